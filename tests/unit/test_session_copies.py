"""What crosses a seam is a copy: whoever keeps it and changes it later changes no record, no snapshot, no result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from polyloop.ports import Action, ActionDecision, ModelCall
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStarted,
    ActionStatus,
    EffectIntended,
    Event,
    JSONValue,
    ModelCallEnded,
    ModelReply,
    Record,
    RunKey,
    RunLog,
    RunResult,
    RunStarted,
)
from tests.builders import KEY, definition, request
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser, final, tool_call
from tests.family import timeless, timeless_records


def spoil(value: object) -> None:
    """Change whatever can be changed in it, all the way down."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value.clear()
        value["spoilt"] = True
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.clear()


def spoil_record(record: Record) -> None:
    if isinstance(record, RunStarted):
        spoil(record.params_snapshot)
    if isinstance(record, EffectIntended) and record.action is not None:
        spoil(record.action.arguments)


async def _handler(arguments: dict[str, JSONValue]) -> str:
    seen = sorted(arguments)
    spoil(arguments)
    return f"seen {seen}"


def tools() -> ToolRegistry:
    return ToolRegistry([ToolSpec(name="look", description="Looks.", parameters={}, handler=_handler)])


def replies() -> list[str]:
    return [tool_call("look", query={"deep": [1, {"er": 2}]}), tool_call("look", more=[1]), final("x")]


def plain() -> tuple[AgentDefinition, RunRequest]:
    made = dataclasses.replace(definition(replies()), parser=ScriptedParser(produces=ActionKind.TOOL_CALL))
    registry = tools()
    executor = registry.executor(max_observation_chars=99)
    return made, dataclasses.replace(request(), tools=registry, executor=executor)


async def outcome_of(made: AgentDefinition, asked: RunRequest) -> tuple[RunResult, tuple[Record, ...]]:
    result = await made.run(asked)
    return timeless(result), timeless_records((await made.store.read_log(asked.key)).records())


async def check(made: AgentDefinition, asked: RunRequest) -> None:
    """The run comes to the same as one in which nobody spoils anything."""
    assert await outcome_of(made, asked) == await outcome_of(*plain())
    stored = await made.resume(plain()[1])
    assert timeless(stored) == (await outcome_of(*plain()))[0]


async def test_the_model_may_spoil_what_it_is_given_and_what_it_gave() -> None:
    class Spoiling(ScriptedModel):
        async def call(self, call: ModelCall, /) -> ModelReply:
            spoil(call.binding)
            spoil(self.params)
            return await super().call(call)

    params: dict[str, JSONValue] = {"model": "scripted"}
    made, asked = plain()
    spoiling = dataclasses.replace(made, model=Spoiling(replies(), params=params))
    binding = {"tenant": "t"}
    result = await outcome_of(spoiling, dataclasses.replace(asked, model_binding=binding))
    assert params == {"spoilt": True}
    assert binding == {"tenant": "t"}, "the model is given a copy of its own"
    assert result == await outcome_of(*plain())


async def test_every_call_of_the_model_has_its_own_binding() -> None:
    bindings: list[Mapping[str, str]] = []

    def reply(call: ModelCall) -> str:
        bindings.append(dict(call.binding))
        spoil(call.binding)
        return replies()[call.call_index]

    made, asked = plain()
    await check(dataclasses.replace(made, model=ScriptedModel(reply)), asked)
    assert bindings == [{"tenant": "t"}] * 3


async def test_the_caller_may_change_the_request_while_the_run_goes_on() -> None:
    binding = {"tenant": "t"}
    seen: list[Mapping[str, str]] = []

    def reply(call: ModelCall) -> str:
        seen.append(call.binding)
        spoil(binding)
        return replies()[call.call_index]

    made, asked = plain()
    spoiling = dataclasses.replace(made, model=ScriptedModel(reply))
    await check(spoiling, dataclasses.replace(asked, model_binding=binding))
    assert list(binding) == ["spoilt"]
    assert seen == [{"tenant": "t"}] * 3


async def test_the_parser_may_keep_and_spoil_its_decision() -> None:
    kept: list[dict[str, JSONValue]] = []

    class Spoiling(ScriptedParser):
        def _read(self, text: str) -> object:  # type: ignore[override] # it is a Decision
            decision = super()._read(text)
            if isinstance(decision, ActionDecision):
                kept.append(cast("dict[str, JSONValue]", decision.arguments))
            return decision

    class SpoilingSink(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            for arguments in kept:
                spoil(arguments)

    made, asked = plain()
    spoiling = dataclasses.replace(made, parser=Spoiling(produces=ActionKind.TOOL_CALL), events=SpoilingSink())
    await check(spoiling, asked)
    assert kept == [{"spoilt": True}] * 2


async def test_the_executor_may_spoil_what_it_is_given() -> None:
    given: list[Action] = []
    made, asked = plain()

    class Spoiling:
        params = asked.executor.params
        accepts = asked.executor.accepts
        tool_schemas = asked.executor.tool_schemas

        async def execute(self, action: Action, /) -> object:
            given.append(action)
            outcome = await asked.executor.execute(action)
            spoil(action.arguments)
            return outcome

    await check(made, dataclasses.replace(asked, executor=Spoiling()))  # type: ignore[arg-type] # what it returns fits
    assert [action.arguments for action in given] == [{"spoilt": True}] * 2


async def test_the_sink_may_spoil_what_it_is_told() -> None:
    class Spoiling(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            await super().emit(event)
            if isinstance(event, ActionStarted):
                spoil(event.action.arguments)

    sink = Spoiling()
    made, asked = plain()
    await check(dataclasses.replace(made, events=sink), asked)
    assert [each.action.arguments for each in sink.events if isinstance(each, ActionStarted)] == [{"spoilt": True}] * 2


class SpoilingStore(EphemeralRunStore):
    """Keeps its promises, and spoils what it was handed once it has its own copy, and what it has handed out."""

    def _append(self, key: RunKey, record: Record) -> None:
        super()._append(key, record)
        spoil_record(record)


async def test_the_store_may_spoil_the_records_that_it_was_handed() -> None:
    made, asked = plain()
    await check(dataclasses.replace(made, store=SpoilingStore()), asked)


async def test_whoever_reads_a_log_may_spoil_it() -> None:
    made, asked = plain()
    await made.run(asked)
    before = timeless_records((await made.store.read_log(KEY)).records())
    for record in (await made.store.read_log(KEY)).records():
        spoil_record(record)
    assert timeless_records((await made.store.read_log(KEY)).records()) == before


@pytest.mark.parametrize("resumed", [False, True])
async def test_the_caller_may_spoil_the_result(resumed: bool) -> None:
    made, asked = plain()
    result = await made.run(asked)
    if resumed:
        result = await made.resume(asked)
    spoil(result.params_snapshot)
    assert timeless(await made.resume(asked)) == (await outcome_of(*plain()))[0]


async def test_a_resumed_run_shares_nothing_with_the_log_that_it_read() -> None:
    class Keeping(EphemeralRunStore):
        """Hands out the same log object that it keeps for itself, and spoils it afterwards."""

        logs: list[RunLog]

        async def read_log(self, key: RunKey, /) -> RunLog:
            log = await super().read_log(key)
            self.logs.append(log)
            return log

    store = Keeping()
    store.logs = []
    made, asked = plain()
    made = dataclasses.replace(made, store=store)
    await made.run(asked)
    result = await made.resume(asked)
    started = store.logs[-1].started
    assert started is not None
    spoil(started.params_snapshot)
    assert "spoilt" not in result.params_snapshot


def test_a_definition_keeps_a_copy_of_its_texts() -> None:
    texts = {ActionStatus.NOT_EXECUTED: "n", ActionStatus.ENV_ERROR: "e"}
    made = dataclasses.replace(definition(), synthetic_observations=texts)
    texts[ActionStatus.NOT_EXECUTED] = "changed"
    assert made.synthetic_observations[ActionStatus.NOT_EXECUTED] == "n"
    view = made.params_view
    spoil(view)
    assert made.params_view["synthetic_observations"] == {"not_executed": "n", "env_error": "e"}


def test_a_port_that_is_asked_for_its_params_keeps_its_own() -> None:
    params: dict[str, JSONValue] = {"deep": {"er": [1]}}
    made = dataclasses.replace(definition(), model=ScriptedModel([], params=params))
    spoil(made.params_view)
    assert params == {"deep": {"er": [1]}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedReply(ModelReply):
    """A reply as an adapter may return it, with something of its own."""

    tokens: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedOutcome(ActionOutcome):
    seconds: float


async def test_an_answer_of_a_subclass_is_recorded_as_what_the_port_promises(tmp_path: Path) -> None:
    """No store could write its further fields: the record of a thing that has happened would be lost."""
    replies = ("act: a", "final: 42")
    model = ScriptedModel(
        lambda call: CountedReply(call_id="c", text=replies[call.call_index], reasoning="r", tokens={"in": 1})
    )
    outcome = TimedOutcome(
        status=ActionStatus.EXECUTED, observation="seen", completed=False, truncated_chars=2, seconds=0.5
    )
    async with JsonlRunStore(tmp_path) as store:
        counted = dataclasses.replace(definition(store=store), model=model)
        timed = dataclasses.replace(request(), executor=ScriptedExecutor([outcome]))
        result = await counted.run(timed)
        log = await store.read_log(KEY)
        assert await counted.resume(timed) == result
    assert result.final_answer == "42"
    assert log.results[0].reply == ModelReply(call_id="c", text="act: a", reasoning="r")
    assert log.results[1].outcome == ActionOutcome(
        status=ActionStatus.EXECUTED, observation="seen", completed=False, truncated_chars=2
    )
    sink = counted.events
    assert isinstance(sink, RecordingSink)
    told = [event.reply for event in sink.events if isinstance(event, ModelCallEnded)]
    assert [type(reply) for reply in told] == [ModelReply, ModelReply]


async def test_the_snapshot_holds_what_is_shown_whatever_became_of_a_spec() -> None:
    made, asked = plain()
    [spec] = list(asked.tools)[:1]
    spoil(spec.parameters)
    result = await made.run(asked)
    recorded = cast("list[Mapping[str, JSONValue]]", result.params_snapshot["tools"])
    assert [each["parameters"] for each in recorded] == [each["parameters"] for each in asked.tools.schemas]
