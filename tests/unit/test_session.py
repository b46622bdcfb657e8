"""Definition and request: what is refused, and named; what the snapshot holds; what a step and its ports are told."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Mapping

import pytest

from polyloop.ports import Action, ActionDecision, ModelCall, ParsedReply
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    ChatMessage,
    InvalidRequest,
    JSONValue,
    ModelReply,
    ReplayPolicy,
    RunKey,
    RunStarted,
    Step,
    StopReason,
    ToolDocsStyle,
)
from tests.builders import KEY, definition, request
from tests.fakes import (
    RecordingSink,
    ScriptedExecutor,
    ScriptedModel,
    ScriptedParser,
    act,
    env_error,
    executed,
    final,
    not_executed,
    tool_call,
)
from tests.seams import WatchedExecutor, WatchedModel, WatchedParser, WatchedSink, WatchedStore

DEFINITION_FIELDS = ("model", "parser", "store", "events", "synthetic_observations", "observation_template")
REQUEST_FIELDS = (
    "key",
    "budget",
    "executor",
    "tools",
    "run_segments",
    "item_segments",
    "skills",
    "model_binding",
    "model_call_replay",
    "tool_docs_style",
    "finalize_timeout_s",
)
MESSAGE = ChatMessage(role="user", content="x")
NAMES = {ActionStatus.NOT_EXECUTED: "n", ActionStatus.ENV_ERROR: "e"}


async def _handler(arguments: dict[str, JSONValue]) -> str:
    return "seen"


LOOK = ToolSpec(
    name="look",
    description="Looks.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
    handler=_handler,
    replay=ReplayPolicy.SAFE,
)


class Lacking:
    """A port that lacks one member."""

    def __init__(self, port: object, member: str) -> None:
        self._port, self._member = port, member

    def __getattr__(self, name: str) -> object:
        if name == self._member:
            raise AttributeError(name)
        return getattr(self._port, name)


class Having:
    """A port with another value for one member."""

    def __init__(self, port: object, **members: object) -> None:
        self._port, self._members = port, members

    def __getattr__(self, name: str) -> object:
        return self._members[name] if name in self._members else getattr(self._port, name)


# --- the two classes


@pytest.mark.parametrize(("cls", "names"), [(AgentDefinition, DEFINITION_FIELDS), (RunRequest, REQUEST_FIELDS)])
def test_every_field_must_be_given_by_name(cls: type, names: tuple[str, ...]) -> None:
    parameters = list(inspect.signature(cls).parameters.values())
    assert tuple(each.name for each in parameters) == names
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters)
    assert all(each.default is inspect.Parameter.empty for each in parameters)


@pytest.mark.parametrize("made", [definition(), request()])
def test_definitions_and_requests_are_frozen(made: AgentDefinition | RunRequest) -> None:
    assert not hasattr(made, "__dict__")
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)


def test_a_request_is_cheap_to_build_and_checks_nothing() -> None:
    broken = dict.fromkeys(REQUEST_FIELDS)
    assert RunRequest(**broken).key is None  # type: ignore[arg-type] # as the docstring says: checked in run


# --- the definition


STORE_METHODS = ("append_run_start", "append_intent", "append_result", "append_step", "finish", "read_log")
WRONG_DEFINITIONS: list[tuple[str, Mapping[str, object]]] = [
    *((f"AgentDefinition.{name}", {name: None}) for name in DEFINITION_FIELDS),
    ("AgentDefinition.model", {"model": ScriptedModel}),
    ("AgentDefinition.model", {"model": Lacking(ScriptedModel([]), "call")}),
    ("AgentDefinition.model", {"model": Having(ScriptedModel([]), call="not callable")}),
    ("AgentDefinition.parser", {"parser": ScriptedParser}),
    ("AgentDefinition.parser", {"parser": Lacking(ScriptedParser(), "parse")}),
    ("AgentDefinition.store", {"store": EphemeralRunStore}),
    *(("AgentDefinition.store", {"store": Lacking(EphemeralRunStore(), name)}) for name in STORE_METHODS),
    ("AgentDefinition.events", {"events": RecordingSink}),
    ("AgentDefinition.events", {"events": Lacking(RecordingSink(), "emit")}),
    ("AgentDefinition.synthetic_observations", {"synthetic_observations": {}}),
    ("AgentDefinition.synthetic_observations", {"synthetic_observations": {ActionStatus.ENV_ERROR: "e"}}),
    ("AgentDefinition.synthetic_observations", {"synthetic_observations": {**NAMES, ActionStatus.EXECUTED: "x"}}),
    # Their literals equal the members, and are not the members.
    ("AgentDefinition.synthetic_observations", {"synthetic_observations": {"not_executed": "n", "env_error": "e"}}),
    (
        "AgentDefinition.synthetic_observations[ENV_ERROR]",
        {"synthetic_observations": {**NAMES, ActionStatus.ENV_ERROR: None}},
    ),
    ("AgentDefinition.observation_template", {"observation_template": "no placeholder"}),
    ("AgentDefinition.observation_template", {"observation_template": "{observation}{observation}"}),
]


@pytest.mark.parametrize(("field", "changes"), WRONG_DEFINITIONS)
def test_a_wrong_definition_is_refused_when_it_is_built(field: str, changes: Mapping[str, object]) -> None:
    with pytest.raises(InvalidRequest) as found:
        dataclasses.replace(definition(), **changes)  # type: ignore[arg-type] # the fault
    assert found.value.field == field


# --- the request


WRONG_REQUESTS: list[tuple[str, Mapping[str, object]]] = [
    *((f"RunRequest.{name}", {name: None}) for name in REQUEST_FIELDS),
    *(("RunRequest.key", {"key": key}) for key in ("", "x" * 1025, "a\0b", "\ud800", "a\udfff", b"k", 7)),
    ("RunRequest.budget", {"budget": {"max_steps": 1}}),
    ("RunRequest.executor", {"executor": ScriptedExecutor}),
    ("RunRequest.executor", {"executor": Lacking(ScriptedExecutor(), "execute")}),
    ("RunRequest.executor.params", {"executor": Lacking(ScriptedExecutor(), "params")}),
    ("RunRequest.executor.params", {"executor": Having(ScriptedExecutor(), params=[("a", 1)])}),
    ("RunRequest.executor.accepts", {"executor": Lacking(ScriptedExecutor(), "accepts")}),
    ("RunRequest.executor.accepts", {"executor": Having(ScriptedExecutor(), accepts="text")}),
    ("RunRequest.executor.accepts", {"executor": ScriptedExecutor(accepts=ActionKind.TOOL_CALL)}),
    ("RunRequest.executor.tool_schemas", {"executor": Lacking(ScriptedExecutor(), "tool_schemas")}),
    ("RunRequest.tools", {"tools": ToolRegistry([LOOK])}),
    ("RunRequest.tools", {"executor": ScriptedExecutor(tool_schemas=ToolRegistry([LOOK]).schemas)}),
    ("RunRequest.tools", {"tools": [LOOK]}),
    *((f"RunRequest.{name}", {name: [MESSAGE]}) for name in ("run_segments", "item_segments", "skills")),
    *((f"RunRequest.{name}[1]", {name: (MESSAGE, "text")}) for name in ("run_segments", "item_segments")),
    ("RunRequest.skills[0]", {"skills": (MESSAGE,)}),
    ("RunRequest.run_segments", {"run_segments": (), "item_segments": (), "skills": ()}),
    ("RunRequest.model_binding", {"model_binding": [("tenant", "t")]}),
    ("RunRequest.model_binding", {"model_binding": {1: "t"}}),
    ("RunRequest.model_binding['tenant']", {"model_binding": {"tenant": 1}}),
    ("RunRequest.model_call_replay", {"model_call_replay": "safe"}),
    ("RunRequest.model_call_replay", {"model_call_replay": True}),
    ("RunRequest.tool_docs_style", {"tool_docs_style": "none"}),
    *(
        ("RunRequest.finalize_timeout_s", {"finalize_timeout_s": seconds})
        for seconds in (0, 0.0, -1, math.inf, -math.inf, math.nan, True, "5", 10**400)
    ),
    *(
        ("params_snapshot.executor.a[0].b", {"executor": ScriptedExecutor(params={"a": [{"b": value}]})})  # type: ignore[dict-item] # the fault
        for value in (math.nan, math.inf, b"x", {1}, object(), 10**700)
    ),
    ("params_snapshot.executor.a", {"executor": ScriptedExecutor(params={"a": {1: "x"}})}),  # type: ignore[dict-item] # the fault
]


@pytest.mark.parametrize("method", ["run", "resume"])
@pytest.mark.parametrize(("field", "changes"), WRONG_REQUESTS)
async def test_a_wrong_request_is_refused_by_field_before_anything_is_asked_or_written(
    field: str, changes: Mapping[str, object], method: str
) -> None:
    points: list[str] = []
    made = watched(definition(), points)
    asked = dataclasses.replace(request(), executor=WatchedExecutor(request().executor, points.append))
    with pytest.raises(InvalidRequest) as found:
        await getattr(made, method)(dataclasses.replace(asked, **changes))  # type: ignore[arg-type] # the fault
    assert found.value.field == field
    assert points == []


@pytest.mark.parametrize("method", ["run", "resume"])
async def test_something_else_than_a_request_is_refused(method: str) -> None:
    wrongs: tuple[object, ...] = (None, {}, "key", RunRequest)
    for wrong in wrongs:
        with pytest.raises(InvalidRequest) as found:
            await getattr(definition(), method)(wrong)
        assert found.value.field == "request"


def watched(made: AgentDefinition, points: list[str]) -> AgentDefinition:
    tell = points.append
    return dataclasses.replace(
        made,
        model=WatchedModel(made.model, tell),
        parser=WatchedParser(made.parser, tell),
        store=WatchedStore(made.store, tell),
        events=WatchedSink(made.events, tell),
    )


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("AgentDefinition.model.params", {"model": Lacking(ScriptedModel([]), "params")}),
        ("AgentDefinition.model.params", {"model": Having(ScriptedModel([]), params="gpt")}),
        ("AgentDefinition.parser.params", {"parser": Lacking(ScriptedParser(), "params")}),
        ("AgentDefinition.parser.produces", {"parser": Lacking(ScriptedParser(), "produces")}),
        ("AgentDefinition.parser.produces", {"parser": Having(ScriptedParser(), produces="text")}),
        ("{0}.model.temperature", {"model": ScriptedModel([], params={"temperature": math.nan})}),
        ("{0}.parser.deep[1]", {"parser": ScriptedParser(params={"deep": [1, object()]})}),  # type: ignore[list-item] # the fault
    ],
)
async def test_wrong_params_of_a_definition_are_named_when_they_are_first_needed(
    field: str, changes: Mapping[str, object]
) -> None:
    points: list[str] = []
    made = dataclasses.replace(watched(definition(), points), **changes)  # type: ignore[arg-type] # the fault
    with pytest.raises(InvalidRequest) as in_view:
        _ = made.params_view
    assert in_view.value.field == field.format("params_view")
    for call in (made.run, made.resume):
        with pytest.raises(InvalidRequest) as found:
            await call(request())
        assert found.value.field == field.format("params_snapshot")
    assert points == []


@pytest.mark.parametrize(
    "key",
    ["x", "a/b", "../x", "K", " . ", "é", "e\u0301", "\U0001f600" * 1024, "\n", "NUL", "\u2028"],
    ids=lambda key: ascii(key[:8]),
)
async def test_any_other_key_is_a_run(key: str) -> None:
    result = await definition().run(request(key))
    assert (result.key, result.stop_reason) == (key, StopReason.AGENT_FINISHED)


async def test_tools_and_schemas_must_be_the_same_in_the_same_order() -> None:
    other = dataclasses.replace(LOOK, name="other")
    made = dataclasses.replace(definition(), parser=ScriptedParser(produces=ActionKind.TOOL_CALL))
    right, wrong = ToolRegistry([LOOK, other]), ToolRegistry([other, LOOK])
    asked = dataclasses.replace(request(), tools=right, executor=right.executor(max_observation_chars=9))
    with pytest.raises(InvalidRequest) as found:
        await made.run(dataclasses.replace(asked, executor=wrong.executor(max_observation_chars=9)))
    assert found.value.field == "RunRequest.tools"
    with pytest.raises(InvalidRequest):
        await made.run(dataclasses.replace(asked, tools=right.subset(["look"])))
    assert (await made.run(dataclasses.replace(asked))).stop_reason is StopReason.AGENT_FINISHED


# --- the snapshot


def sha(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode("ascii")).hexdigest()


def fingerprint(role: str, content: str) -> dict[str, object]:
    return {"role": role, "length": len(content), "sha256": sha([role, content])}


async def snapshot_of(made: AgentDefinition, asked: RunRequest) -> Mapping[str, JSONValue]:
    await made.run(asked)
    started = (await made.store.read_log(asked.key)).started
    assert isinstance(started, RunStarted)
    return started.params_snapshot


async def test_the_snapshot_holds_all_that_influences_a_run_and_no_prompt_text() -> None:
    tools = ToolRegistry([LOOK, dataclasses.replace(LOOK, name="submit", completes=True, replay=ReplayPolicy.NEVER)])
    made = dataclasses.replace(definition([final("x")]), parser=ScriptedParser(produces=ActionKind.TOOL_CALL))
    asked = dataclasses.replace(
        request(),
        tools=tools,
        executor=tools.executor(max_observation_chars=99),
        tool_docs_style=ToolDocsStyle.MARKDOWN,
        run_segments=(ChatMessage(role="system", content="Sécret \u2028 prompt"),),
        item_segments=(MESSAGE, ChatMessage(role="assistant", content="")),
        finalize_timeout_s=5,
    )
    snapshot = await snapshot_of(made, asked)
    assert snapshot == {
        "model": {"model": "scripted"},
        "parser": {"language": "scripted"},
        "produces": "tool_call",
        "synthetic_observations": {"env_error": "(gone)", "not_executed": "(refused)"},
        "observation_template": "observed: {observation}",
        "budget": {
            "max_steps": 20,
            "max_executed_actions": 20,
            "max_prompt_chars": 100_000,
            "max_consecutive_parse_failures": 3,
        },
        "executor": {"max_observation_chars": 99},
        "accepts": "tool_call",
        "tools": [
            {
                "name": name,
                "description": "Looks.",
                "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
                "completes": name == "submit",
                "replay": "safe" if name == "look" else "never",
            }
            for name in ("look", "submit")
        ],
        "tool_docs_style": "markdown",
        "tool_docs": sha(tools.docs(ToolDocsStyle.MARKDOWN)),
        "model_binding": {"tenant": "t"},
        "model_call_replay": "never",
        "finalize_timeout_s": 5.0,
        "run_segments": [fingerprint("system", "Sécret \u2028 prompt")],
        "item_segments": [fingerprint("user", "x"), fingerprint("assistant", "")],
        "skills": [{"entry_id": "skill", **fingerprint("user", "You know how.")}],
    }
    assert type(snapshot) is dict
    assert type(snapshot["finalize_timeout_s"]) is float
    assert "cret" not in json.dumps(snapshot)


async def test_the_view_of_the_definition_is_its_part_of_the_snapshot_and_readable_before_any_run() -> None:
    made = definition([final("x")])
    view = made.params_view
    assert list(view) == ["model", "parser", "produces", "synthetic_observations", "observation_template"]
    assert type(view) is dict
    snapshot = await snapshot_of(made, request())
    assert view == {name: snapshot[name] for name in view}
    assert made.params_view == view


async def test_params_are_normalised_through_json_once() -> None:
    params: dict[str, JSONValue] = {"t": (1, (2,)), "e": ActionKind.TEXT, "f": 1.0, "b": True, "n": None}
    made = dataclasses.replace(definition(), model=ScriptedModel([final("x")], params=params))
    model = (await snapshot_of(made, request()))["model"]
    assert model == {"t": [1, [2]], "e": "text", "f": 1.0, "b": True, "n": None}
    assert isinstance(model, dict)
    assert [type(value) for value in model.values()] == [list, str, float, bool, type(None)]


async def test_the_result_holds_the_snapshot_and_the_start_record_the_version() -> None:
    from polyloop import __version__

    made = definition()
    result = await made.run(request())
    started = (await made.store.read_log(KEY)).started
    assert started is not None
    assert result.params_snapshot == started.params_snapshot
    assert started.library_version == __version__


# --- what the ports are told


async def test_the_model_is_told_prompt_index_key_name_and_binding() -> None:
    model = ScriptedModel([act("a"), "unreadable", final("x")])
    await dataclasses.replace(definition(), model=model).run(request())
    assert [(call.call_index, call.key, call.result_id) for call in model.calls] == [
        (number, KEY, f"{number:06d}-model_call") for number in range(3)
    ]
    assert all(call.binding == {"tenant": "t"} and type(call.binding) is dict for call in model.calls)
    assert all(type(call.messages) is tuple for call in model.calls)


async def test_the_executor_is_told_action_key_step_and_name() -> None:
    executor = ScriptedExecutor(accepts=ActionKind.TOOL_CALL, tool_schemas=ToolRegistry([LOOK]).schemas)
    made = dataclasses.replace(
        definition(["unreadable", tool_call("look", query=["ü", None]), final("x")]),
        parser=ScriptedParser(produces=ActionKind.TOOL_CALL),
    )
    await made.run(dataclasses.replace(request(), executor=executor, tools=ToolRegistry([LOOK])))
    assert executor.actions == [
        Action(
            action_text='look {"query": ["\\u00fc", null]}',
            tool_name="look",
            arguments={"query": ["ü", None]},
            key=KEY,
            step_idx=1,
            result_id="000001-action",
        )
    ]


# --- the step


class Cutting(ScriptedParser):
    """Keeps the first half of a reply for the history, as a parser may."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        parsed = await super().parse(reply)
        return dataclasses.replace(parsed, history_text=reply.text[: len(reply.text) // 2])


async def steps_of(asked: RunRequest, *replies: object) -> tuple[Step, ...]:
    made = dataclasses.replace(definition(), model=ScriptedModel(replies), parser=Cutting())  # type: ignore[arg-type] # a script
    return (await made.run(asked)).steps


BASE = Step(
    step_idx=0,
    raw_output="",
    content_chars=0,
    thinking_chars=0,
    action=None,
    parse_ok=False,
    parse_error=None,
    observation="",
    observation_is_synthetic=False,
    observation_truncated_chars=0,
    prompt_chars=len("You act.You know how.Do it."),
    call_id=None,
    step_wall_ms=0,
)
ACTED = dataclasses.replace(
    BASE,
    raw_output="act: ",
    content_chars=10,
    thinking_chars=3,
    action="do it",
    parse_ok=True,
    call_id="c",
    action_status="executed",
)
REPLY = ModelReply(call_id="c", text="act: do it", reasoning="hmm")
MARKED = ActionOutcome(
    status=ActionStatus.EXECUTED, observation="seen", completed=True, truncated_chars=5, observation_is_synthetic=True
)


@pytest.mark.parametrize(
    ("reply", "outcome", "step"),
    [
        (OSError("gone"), "", BASE),
        (
            ModelReply(call_id=None, text="what", reasoning=None),
            "",
            dataclasses.replace(
                BASE,
                raw_output="wh",
                content_chars=4,
                parse_error="'what' is no decision; begin with 'final: ' or with the word for an action",
                observation="'what' is no decision; begin with 'final: ' or with the word for an action",
                observation_is_synthetic=True,
            ),
        ),
        (
            ModelReply(call_id="c", text="final: 42", reasoning="think"),
            "",
            dataclasses.replace(BASE, raw_output="fina", content_chars=9, thinking_chars=5, parse_ok=True, call_id="c"),
        ),
        (REPLY, executed("seen", completed=True), dataclasses.replace(ACTED, observation="seen")),
        (REPLY, executed("seen", completed=None), dataclasses.replace(ACTED, observation="seen")),
        (
            REPLY,
            MARKED,
            dataclasses.replace(
                ACTED, observation="seen", observation_is_synthetic=True, observation_truncated_chars=5
            ),
        ),
        (
            REPLY,
            dataclasses.replace(not_executed("because"), truncated_chars=5),
            dataclasses.replace(
                ACTED, observation="(refused)", observation_is_synthetic=True, action_status="not_executed"
            ),
        ),
        (
            REPLY,
            dataclasses.replace(env_error("because"), truncated_chars=5),
            dataclasses.replace(ACTED, observation="(gone)", observation_is_synthetic=True, action_status="env_error"),
        ),
        (
            REPLY,
            OSError("broken"),
            dataclasses.replace(ACTED, observation="(gone)", observation_is_synthetic=True, action_status="env_error"),
        ),
    ],
)
async def test_each_kind_of_step_has_its_row(reply: object, outcome: ActionOutcome | str, step: Step) -> None:
    budget = dataclasses.replace(request().budget, max_steps=1)
    asked = dataclasses.replace(request(), budget=budget, executor=ScriptedExecutor([outcome]))
    (made,) = await steps_of(asked, reply)
    assert dataclasses.replace(made, step_wall_ms=0) == step
    assert json.loads(json.dumps(dataclasses.asdict(made))) == dataclasses.asdict(made)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({"b": 1, "a": [True, None, 1.5, "ü\u2028"]}, '{"b":1,"a":[true,null,1.5,"\\u00fc\\u2028"]}'),
        ({"t": (1, 2)}, '{"t":[1,2]}'),
        ({}, "{}"),
        ({"x": math.nan}, None),
        ({"x": [math.inf]}, None),
        ({1: "x"}, None),
        ({"x": object()}, None),
        ({"x": b"bytes"}, None),
    ],
)
@pytest.mark.parametrize("tool_name", ["look", None])
async def test_arguments_stand_in_the_step_as_ascii_json_or_not_at_all(
    arguments: dict[str, JSONValue], written: str | None, tool_name: str | None
) -> None:
    decision = ActionDecision(action_text="do it", tool_name=tool_name, arguments=arguments)
    tools = ToolRegistry([dataclasses.replace(LOOK, parameters={})])
    executor = ScriptedExecutor(accepts=ActionKind.TOOL_CALL, tool_schemas=tools.schemas)
    made = dataclasses.replace(
        definition(["go", final("x")]), parser=ScriptedParser(produces=ActionKind.TOOL_CALL, rules={"go": decision})
    )
    result = await made.run(dataclasses.replace(request(), tools=tools, executor=executor))
    step = result.steps[0]
    assert (step.action, step.tool_name, step.tool_arguments_json) == (
        "do it",
        tool_name,
        None if tool_name is None else written,
    )
    record = (await made.store.read_log(KEY)).steps[0]
    if written is None:
        assert executor.actions == [], "what cannot be announced is not executed"
        assert (step.action_status, step.observation, step.observation_is_synthetic) == (
            "not_executed",
            "(refused)",
            True,
        )
        assert record.result_id is None
        assert result.usage.executed_actions == 0
    else:
        assert executor.actions[0].arguments == json.loads(written)
        assert (step.action_status, record.result_id) == ("executed", "000000-action")


async def test_arguments_nested_a_hundred_deep_are_announced_and_deeper_ones_are_not() -> None:
    def nested(depth: int) -> dict[str, JSONValue]:
        value: JSONValue = {}
        for _ in range(depth - 1):
            value = {"x": value}
        assert isinstance(value, dict)
        return value

    for depth, status in ((100, "executed"), (101, "not_executed"), (5_000, "not_executed")):
        decision = ActionDecision(action_text="deep", tool_name=None, arguments=nested(depth))
        made = dataclasses.replace(definition(["go", final("x")]), parser=ScriptedParser(rules={"go": decision}))
        assert (await made.run(request())).steps[0].action_status == status


async def test_usage_counts_what_the_log_holds() -> None:
    replies = [
        ModelReply(call_id="1", text="act: a", reasoning="12345"),
        ModelReply(call_id="2", text="what", reasoning=None),
        ModelReply(call_id="3", text="act: b", reasoning="1"),
        ModelReply(call_id="4", text="final: x", reasoning=""),
    ]
    made = definition(replies)
    result = await made.run(dataclasses.replace(request(), executor=ScriptedExecutor(["seen", not_executed("no")])))
    model = made.model
    assert isinstance(model, ScriptedModel)
    prompts = sum(len(message.content) for call in model.calls for message in call.messages)
    assert dataclasses.asdict(result.usage) == {
        "model_calls": 4,
        "executed_actions": 1,
        "steps": 4,
        "prompt_chars": prompts,
        "content_chars": 6 + 4 + 6 + 8,
        "thinking_chars": 6,
    }


def test_a_model_call_is_a_value() -> None:
    names = [field.name for field in dataclasses.fields(ModelCall)]
    assert names == ["messages", "call_index", "key", "result_id", "binding"]
    assert RunKey("x") == "x"
