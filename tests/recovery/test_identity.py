"""A run is resumed with what it was started with: every entry of the snapshot counts, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import (
    ActionKind,
    ActionStatus,
    ChatMessage,
    InjectedEntry,
    JSONValue,
    Record,
    ReplayPolicy,
    RunIdentityMismatch,
    RunKey,
    RunStarted,
    ToolDocsStyle,
)
from tests.builders import KEY, definition, request
from tests.fakes import FailingSink, RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser, final, tool_call
from tests.recovery.logs import MODEL, intent
from tests.seams import append

Pair = tuple[AgentDefinition, RunRequest]
Change = Callable[[AgentDefinition, RunRequest], Pair]
EXECUTOR_PARAMS: dict[str, JSONValue] = {"environment": "scripted", "image": {"tag": 1}}


async def _handler(arguments: dict[str, JSONValue]) -> str:
    return "seen"


async def _other_handler(arguments: dict[str, JSONValue]) -> str:
    return "something else"


LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object"}, handler=_handler)
READ = ToolSpec(name="read", description="Reads.", parameters={}, handler=_handler, replay=ReplayPolicy.SAFE)


def tool_request(*specs: ToolSpec, style: ToolDocsStyle = ToolDocsStyle.MARKDOWN) -> RunRequest:
    """A request for these tools, with an executor whose params can be varied."""
    tools = ToolRegistry(specs)
    executor = ScriptedExecutor(accepts=ActionKind.TOOL_CALL, tool_schemas=tools.schemas, params=EXECUTOR_PARAMS)
    return dataclasses.replace(request(), tools=tools, executor=executor, tool_docs_style=style)


def tool_definition() -> AgentDefinition:
    parser = ScriptedParser(produces=ActionKind.TOOL_CALL)
    model = ScriptedModel([tool_call("look"), final("42")], params={"model": "m", "top": {"p": 1, "k": [1, 2]}})
    return dataclasses.replace(definition(), model=model, parser=parser)


def in_definition(**changes: object) -> Change:
    return lambda made, asked: (dataclasses.replace(made, **changes), asked)  # type: ignore[arg-type] # by name


def in_request(**changes: object) -> Change:
    return lambda made, asked: (made, dataclasses.replace(asked, **changes))  # type: ignore[arg-type] # by name


def in_budget(**changes: int) -> Change:
    return lambda made, asked: (
        made,
        dataclasses.replace(asked, budget=dataclasses.replace(asked.budget, **changes)),
    )


def with_model_params(params: dict[str, JSONValue]) -> Change:
    return in_definition(model=ScriptedModel([tool_call("look"), final("42")], params=params))


def with_executor_params(params: dict[str, JSONValue]) -> Change:
    def change(made: AgentDefinition, asked: RunRequest) -> Pair:
        schemas = asked.tools.schemas
        executor = ScriptedExecutor(accepts=ActionKind.TOOL_CALL, tool_schemas=schemas, params=params)
        return made, dataclasses.replace(asked, executor=executor)

    return change


def with_tools(*specs: ToolSpec, style: ToolDocsStyle = ToolDocsStyle.MARKDOWN) -> Change:
    changed = tool_request(*specs, style=style)
    return in_request(tools=changed.tools, executor=changed.executor, tool_docs_style=style)


def to_text(made: AgentDefinition, asked: RunRequest) -> Pair:
    executor = ScriptedExecutor(tool_schemas=asked.tools.schemas, params=EXECUTOR_PARAMS)
    return dataclasses.replace(made, parser=ScriptedParser()), dataclasses.replace(asked, executor=executor)


def texts(not_executed: str, env_error: str) -> dict[ActionStatus, str]:
    return {ActionStatus.NOT_EXECUTED: not_executed, ActionStatus.ENV_ERROR: env_error}


def says(content: str, role: str = "user") -> ChatMessage:
    return ChatMessage(role=role, content=content)  # type: ignore[arg-type] # one of the three


CHANGES: list[tuple[set[str], Change]] = [
    ({"model.model"}, with_model_params({"model": "n", "top": {"p": 1, "k": [1, 2]}})),
    ({"model.top.p"}, with_model_params({"model": "m", "top": {"p": 1.0, "k": [1, 2]}})),
    ({"model.top.p"}, with_model_params({"model": "m", "top": {"p": True, "k": [1, 2]}})),
    ({"model.top.k[1]"}, with_model_params({"model": "m", "top": {"p": 1, "k": [1, None]}})),
    ({"model.top.k[2]"}, with_model_params({"model": "m", "top": {"p": 1, "k": [1, 2, 3]}})),
    ({"model.top"}, with_model_params({"model": "m"})),
    ({"model.seed"}, with_model_params({"model": "m", "top": {"p": 1, "k": [1, 2]}, "seed": None})),
    (
        {"parser.language"},
        in_definition(parser=ScriptedParser(produces=ActionKind.TOOL_CALL, params={"language": "new"})),
    ),
    ({"produces", "accepts"}, to_text),
    ({"synthetic_observations.not_executed"}, in_definition(synthetic_observations=texts("(no)", "(gone)"))),
    ({"synthetic_observations.env_error"}, in_definition(synthetic_observations=texts("(refused)", "(lost)"))),
    ({"observation_template"}, in_definition(observation_template="observed: {observation}.")),
    ({"budget.max_steps"}, in_budget(max_steps=21)),
    ({"budget.max_executed_actions"}, in_budget(max_executed_actions=21)),
    ({"budget.max_prompt_chars"}, in_budget(max_prompt_chars=99_999)),
    ({"budget.max_consecutive_parse_failures"}, in_budget(max_consecutive_parse_failures=2)),
    ({"executor.image.tag"}, with_executor_params({"environment": "scripted", "image": {"tag": 2}})),
    ({"executor.image"}, with_executor_params({"environment": "scripted"})),
    ({"tools[0].description", "tool_docs"}, with_tools(dataclasses.replace(LOOK, description="Peers."), READ)),
    ({"tools[0].parameters.type", "tool_docs"}, with_tools(dataclasses.replace(LOOK, parameters={}), READ)),
    ({"tools[0].completes"}, with_tools(dataclasses.replace(LOOK, completes=True), READ)),
    ({"tools[0].name", "tool_docs"}, with_tools(dataclasses.replace(LOOK, name="Look"), READ)),
    ({"tools[1]", "tool_docs"}, with_tools(LOOK)),
    ({"tools[2]", "tool_docs"}, with_tools(LOOK, READ, dataclasses.replace(READ, name="third"))),
    (
        {
            "tools[0].description",
            "tools[0].name",
            "tools[0].parameters.type",
            "tools[1].description",
            "tools[1].name",
            "tools[1].parameters.type",
            "tool_docs",
        },
        with_tools(READ, LOOK),
    ),
    ({"tool_docs_style", "tool_docs"}, in_request(tool_docs_style=ToolDocsStyle.JSON_SCHEMA)),
    ({"tool_docs_style", "tool_docs"}, in_request(tool_docs_style=ToolDocsStyle.NONE)),
    ({"model_binding.tenant"}, in_request(model_binding={"tenant": "u"})),
    ({"model_binding.cost"}, in_request(model_binding={"tenant": "t", "cost": "c"})),
    ({"model_binding.tenant"}, in_request(model_binding={})),
    ({"finalize_timeout_s"}, in_request(finalize_timeout_s=5.5)),
    ({"run_segments[0].sha256"}, in_request(run_segments=(says("You ACT.", "system"),))),
    ({"run_segments[0].sha256", "run_segments[0].length"}, in_request(run_segments=(says("You.", "system"),))),
    ({"run_segments[0].sha256", "run_segments[0].role"}, in_request(run_segments=(says("You act."),))),
    ({"run_segments[0]"}, in_request(run_segments=())),
    ({"run_segments[1]"}, in_request(run_segments=(says("You act.", "system"), says("")))),
    ({"item_segments[0].sha256"}, in_request(item_segments=(says("Do IT."),))),
    ({"item_segments[0]"}, in_request(item_segments=())),
    ({"skills[0].entry_id"}, in_request(skills=(InjectedEntry(entry_id="other", message=says("You know how.")),))),
    ({"skills[0].sha256"}, in_request(skills=(InjectedEntry(entry_id="skill", message=says("You know HOW.")),))),
    ({"skills[0]"}, in_request(skills=())),
]


def start_pair(store: EphemeralRunStore) -> Pair:
    return dataclasses.replace(tool_definition(), store=store), tool_request(LOOK, READ)


async def begun(*, to_the_end: bool) -> tuple[EphemeralRunStore, tuple[Record, ...]]:
    """A store with a run of it, ended or with just its start."""
    store = EphemeralRunStore()
    made, asked = start_pair(store)
    await made.run(asked)
    records = (await store.read_log(KEY)).records()
    if not to_the_end:
        store = EphemeralRunStore()
        records = records[:1]
        await append(store, KEY, records[0])
    return store, records


@pytest.mark.parametrize("to_the_end", [False, True])
@pytest.mark.parametrize(
    ("paths", "change"), CHANGES, ids=lambda value: ",".join(sorted(value)) if type(value) is set else ""
)
async def test_whatever_differs_is_refused_by_its_path_with_nothing_executed_or_written(
    paths: set[str], change: Change, to_the_end: bool
) -> None:
    store, records = await begun(to_the_end=to_the_end)
    made, asked = change(*start_pair(store))
    with pytest.raises(RunIdentityMismatch) as found:
        await made.resume(asked)
    assert {each.path for each in found.value.differences} == paths
    assert len(found.value.differences) == len(paths)
    assert found.value.key == KEY
    assert all(path in str(found.value) for path in paths)
    assert (await store.read_log(KEY)).records() == records
    model, executor, sink = made.model, asked.executor, made.events
    assert isinstance(model, ScriptedModel)
    assert isinstance(executor, ScriptedExecutor)
    assert isinstance(sink, RecordingSink)
    assert (model.calls, executor.actions, sink.events) == ([], [], [])


async def test_every_entry_of_the_snapshot_but_the_replay_policy_is_changed_above() -> None:
    _, records = await begun(to_the_end=False)
    started = records[0]
    assert isinstance(started, RunStarted)
    changed = {path.split(".")[0].split("[")[0] for paths, _ in CHANGES for path in paths}
    assert changed == set(started.params_snapshot) - {"model_call_replay"}


async def test_a_difference_holds_both_values_as_json() -> None:
    store, _ = await begun(to_the_end=False)
    made, asked = start_pair(store)
    changed = dataclasses.replace(asked, model_binding={"tenant": "u", "new": "n"})
    with pytest.raises(RunIdentityMismatch) as found:
        await made.resume(changed)
    values = {each.path: (each.recorded, each.present) for each in found.value.differences}
    assert values == {
        "model_binding.tenant": (json.dumps("t"), json.dumps("u")),
        "model_binding.new": (None, json.dumps("n")),
    }


async def test_differences_stand_in_the_order_of_the_canonical_text() -> None:
    specs = [dataclasses.replace(READ, name=f"tool{number}") for number in range(12)]
    store = EphemeralRunStore()
    made = dataclasses.replace(tool_definition(), store=store)
    await made.run(tool_request(*specs))
    changed = tool_request(*(dataclasses.replace(spec, description="Other.") for spec in specs[:11]), LOOK)
    with pytest.raises(RunIdentityMismatch) as found:
        await made.resume(dataclasses.replace(changed, model_binding={"a": "", "z": ""}))
    assert [each.path for each in found.value.differences] == [
        "model_binding.a",
        "model_binding.tenant",
        "model_binding.z",
        "tool_docs",
        *(f"tools[{number}].description" for number in range(12)),
        "tools[11].name",
        "tools[11].parameters.type",
    ]


NO_CHANGES: dict[str, Change] = {
    "nothing": lambda made, asked: (made, asked),
    "the model's replay policy": in_request(model_call_replay=ReplayPolicy.SAFE),
    "a tool's replay policy, tightened": with_tools(LOOK, dataclasses.replace(READ, replay=ReplayPolicy.NEVER)),
    "a tool's replay policy, loosened": with_tools(dataclasses.replace(LOOK, replay=ReplayPolicy.SAFE), READ),
    "a handler": with_tools(dataclasses.replace(LOOK, handler=_other_handler), READ),
    "the sink": in_definition(events=FailingSink()),
    "the order of keys": with_model_params({"top": {"k": [1, 2], "p": 1}, "model": "m"}),
    "tuples for lists": with_model_params({"model": "m", "top": {"p": 1, "k": (1, 2)}}),
    "an int for the same seconds": in_request(finalize_timeout_s=5),
}


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES.keys())
@pytest.mark.parametrize("to_the_end", [False, True])
async def test_what_is_no_part_of_the_identity_may_differ(change: Change, to_the_end: bool) -> None:
    store, _ = await begun(to_the_end=to_the_end)
    made, asked = change(*start_pair(store))
    result = await made.resume(asked)
    assert result.final_answer == "42"


async def test_store_key_and_library_version_are_no_part_of_the_identity() -> None:
    _, records = await begun(to_the_end=False)
    (started,) = records
    assert isinstance(started, RunStarted)
    elsewhere = EphemeralRunStore()
    await append(elsewhere, RunKey("other"), dataclasses.replace(started, library_version="99.0"))
    made, asked = start_pair(elsewhere)
    result = await made.resume(dataclasses.replace(asked, key=RunKey("other")))
    assert (result.final_answer, result.key) == ("42", "other")


async def test_a_start_record_of_another_shape_is_another_identity_and_no_crash() -> None:
    store = EphemeralRunStore()
    _, records = await begun(to_the_end=False)
    (started,) = records
    odd: dict[str, JSONValue] = {"tools": "look", "budget": [1], "unknown": None}
    await append(store, KEY, dataclasses.replace(started, params_snapshot=odd))  # type: ignore[arg-type] # a start
    await append(store, KEY, dataclasses.replace(intent(0, MODEL), seq=1))
    made, asked = start_pair(store)
    with pytest.raises(RunIdentityMismatch) as found:
        await made.resume(asked)
    assert {"tools", "budget", "unknown", "model"} <= {each.path for each in found.value.differences}
