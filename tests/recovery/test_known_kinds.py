"""Kinds of faults that agent loops are known for, each as a whole kind, on every store that needs no server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from polyloop.ports import Action, ActionDecision, ModelCall, ParsedReply, RunStore
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.tools import ToolRegistry, ToolSpec, current_action
from polyloop.types import (
    ActionEnded,
    ActionKind,
    ChatMessage,
    EffectCompleted,
    EffectIntended,
    JSONValue,
    ModelReply,
    Record,
    RunConflict,
    RunFinished,
    RunIdentityMismatch,
    RunKey,
    RunOpened,
    RunResult,
    RunStarted,
    StepCompleted,
    StopReason,
)
from tests.builders import KEY, definition, request
from tests.fakes import (
    HANG,
    RecordingSink,
    ScriptedExecutor,
    ScriptedModel,
    ScriptedParser,
    act,
    executed,
    final,
    tool_call,
)
from tests.family import FAMILY, SAFE, Scenario, assemble, must_not_go_on, timeless, timeless_records
from tests.recovery.test_crash_at_every_seam import KillAt, Killed
from tests.recovery.test_every_prefix import run_whole
from tests.seams import WatchedStore, append


@pytest.fixture(params=["ephemeral", "jsonl"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunStore]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "jsonl":
            yield await stack.enter_async_context(JsonlRunStore(tmp_path / "runs"))
        else:
            yield EphemeralRunStore()


def limited(**limits: int) -> RunRequest:
    return dataclasses.replace(request(), budget=dataclasses.replace(request().budget, **limits))


async def records_of(store: RunStore, key: RunKey = KEY) -> tuple[Record, ...]:
    return (await store.read_log(key)).records()


# --- limits that overwrite a success, are seen too late, or count the wrong thing


@pytest.mark.parametrize("last", ["answers", "completes"])
async def test_a_run_that_succeeds_on_its_last_allowed_step_has_succeeded(store: RunStore, last: str) -> None:
    replies = [act("a"), act("b"), final("42") if last == "answers" else act("c")]
    executor = ScriptedExecutor(["did a", "did b", executed("did c", completed=True)])
    made, asked = definition(replies, store=store), limited(max_steps=3, max_executed_actions=3)
    result = await made.run(dataclasses.replace(asked, executor=executor))
    assert result.stop_reason == ("agent_finished" if last == "answers" else "task_completed")
    assert result.final_answer == ("42" if last == "answers" else None)
    log = await store.read_log(KEY)
    assert (len(log.steps), len(log.cancellations)) == (3, 0)
    assert log.finished is not None
    assert log.finished.stop_reason is result.stop_reason


async def test_a_budget_is_spent_only_when_another_step_would_have_to_start(store: RunStore) -> None:
    made = definition([act("a"), act("b"), act("c")], store=store)
    result = await made.run(limited(max_steps=3))
    assert (result.stop_reason, result.final_answer, len(result.steps)) == ("step_budget", None, 3)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_no_action_begins_that_the_budget_does_not_allow(store: RunStore, limit: int) -> None:
    ledger: list[str] = []

    def count(action: Action) -> str:
        ledger.append(action.result_id)
        return "did it"

    made = definition([act(str(number)) for number in range(9)], store=store)
    asked = dataclasses.replace(limited(max_executed_actions=limit), executor=ScriptedExecutor(count))
    result = await made.run(asked)
    assert result.stop_reason is StopReason.ACTION_BUDGET
    assert len(ledger) == limit == result.usage.executed_actions
    announced = [record.result_id for record in (await store.read_log(KEY)).intents if record.action is not None]
    assert announced == ledger, "a refused action is not announced"


def broken_tool() -> ToolRegistry:
    async def handler(arguments: dict[str, JSONValue]) -> str:
        raise RuntimeError("no such file")

    return ToolRegistry([ToolSpec(name="open", description="", parameters={}, handler=handler, replay=SAFE)])


def for_tools(tools: ToolRegistry, asked: RunRequest) -> RunRequest:
    return dataclasses.replace(asked, tools=tools, executor=tools.executor(max_observation_chars=200))


def tool_definition(replies: list[str], store: RunStore) -> AgentDefinition:
    return dataclasses.replace(definition(replies, store=store), parser=ScriptedParser(produces=ActionKind.TOOL_CALL))


async def test_failing_actions_do_not_spend_the_allowance_for_unreadable_replies(store: RunStore) -> None:
    bad, good = "unreadable", tool_call("open")
    asked = for_tools(broken_tool(), limited(max_consecutive_parse_failures=2))
    asked = dataclasses.replace(asked, model_call_replay=SAFE)
    made = tool_definition([bad, good, bad, good, bad, final("42")], store)
    result = await made.run(asked)
    assert result.final_answer == "42"
    failed = [step.observation for step in result.steps if step.action is not None]
    assert failed == ["RuntimeError: no such file"] * 2
    # The count after a crash is the count before it, wherever it falls.
    records = await records_of(store)
    for length in range(1, len(records)):
        resumed = EphemeralRunStore()
        for record in records[:length]:
            await append(resumed, KEY, record)
        again = await dataclasses.replace(made, store=resumed).resume(asked)
        assert timeless(again) == timeless(result)


@pytest.mark.parametrize("allowance", [1, 2, 3])
async def test_unreadable_replies_in_a_row_end_a_run_without_an_answer(store: RunStore, allowance: int) -> None:
    executor = ScriptedExecutor()
    made = definition(["The answer is 42."] * 9, store=store)
    asked = dataclasses.replace(limited(max_consecutive_parse_failures=allowance), executor=executor)
    result = await made.run(asked)
    assert (result.stop_reason, result.final_answer) == ("parse_failed_repeatedly", None)
    assert [step.raw_output for step in result.steps] == ["The answer is 42."] * allowance
    assert executor.actions == []
    log = await store.read_log(KEY)
    assert all(record.action is None for record in log.intents)
    assert [record.final_answer for record in (*log.steps, log.finished) if record is not None] == [None] * (
        allowance + 1
    )


@pytest.mark.parametrize("name", ["nope", "Open", "open ", "", "öpen", "x" * 300], ids=lambda name: ascii(name[:8]))
async def test_a_tool_that_is_not_there_is_told_and_spends_a_step_and_no_action(store: RunStore, name: str) -> None:
    calls: list[str] = []

    async def handler(arguments: dict[str, JSONValue]) -> str:
        calls.append("called")
        return "opened"

    tools = ToolRegistry([ToolSpec(name="open", description="", parameters={}, handler=handler)])
    sink = RecordingSink()
    parser = ScriptedParser(produces=ActionKind.TOOL_CALL)
    made = dataclasses.replace(tool_definition([tool_call(name)] * 9, store), events=sink, parser=_Naming(parser, name))
    result = await made.run(for_tools(tools, limited(max_steps=5, max_executed_actions=1)))
    assert (result.stop_reason, len(result.steps), calls) == ("step_budget", 5, [])
    assert result.usage.executed_actions == 0
    assert {(step.action_status, step.observation, step.tool_name) for step in result.steps} == {
        ("not_executed", "(refused)", name)
    }
    log = await store.read_log(KEY)
    assert [record.replay for record in log.intents if record.action is not None] == ["never"] * 5
    told = [event.outcome for event in sink.events if isinstance(event, ActionEnded)]
    kept = [record.outcome for record in log.results if record.outcome is not None]
    assert told == kept
    for outcome in told:
        assert outcome is not None
        assert "unknown tool" in outcome.observation
        assert "known tools: open" in outcome.observation


class _Naming:
    """Reads any reply as a call of one tool, whatever its name is."""

    produces = ActionKind.TOOL_CALL

    def __init__(self, parser: ScriptedParser, name: str) -> None:
        self.params = parser.params
        self._name = name

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        decision = ActionDecision(action_text=reply.text, tool_name=self._name, arguments={})
        return ParsedReply(history_text=reply.text, decision=decision)


# --- crashes between an effect and its record


async def test_an_effect_that_happened_before_the_crash_is_not_repeated_and_not_invented(tmp_path: Path) -> None:
    """Whatever the effect and the step: the run stops and names it; a safe one is done again."""
    for scenario in FAMILY:
        whole = await run_whole(scenario)
        for intent in [record for record in whole.records if isinstance(record, EffectIntended)]:
            name = "call" if intent.action is None else "execute"
            ledger: list[str] = []
            directory = tmp_path / f"{FAMILY.index(scenario)}-{intent.seq}"
            async with JsonlRunStore(directory) as store:
                dead = assemble(scenario, store, tell=_kill(f"{name} {intent.result_id}"), effect=ledger.append)
                with pytest.raises(Killed):
                    await dead.definition.run(dead.request)
            async with JsonlRunStore(directory) as store:
                left = await records_of(store, dead.request.key)
                fresh = assemble(scenario, store, effect=ledger.append)
                result = await fresh.definition.resume(fresh.request)
            safe = must_not_go_on(scenario, left) is None
            assert ledger.count(intent.result_id) == (2 if safe else 1)
            if not safe:
                assert (result.stop_reason, fresh.effects) == ("resume_state_unknown", [])
                assert f"step {intent.step_idx}" in (result.detail or "")
            else:
                assert result.stop_reason is scenario.stop_reason


def _kill(what: str) -> Callable[[str], None]:
    def tell(point: str) -> None:
        if point in (f"leave {what}", f"raise {what}"):
            raise Killed(point)

    return tell


class DelayedStore(EphemeralRunStore):
    """Delays the record at one position by several turns of the loop."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    async def _delay(self, record: Record) -> None:
        for _ in range(7 if record.seq == self.place else 0):
            await asyncio.sleep(0)

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._delay(record)
        await super().append_run_start(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._delay(record)
        await super().append_intent(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._delay(record)
        await super().append_result(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._delay(record)
        await super().append_step(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._delay(record)
        await super().finish(key, record)


@pytest.mark.parametrize("scenario", [FAMILY[1], FAMILY[5], FAMILY[16]], ids=str)
async def test_no_delay_of_any_record_changes_the_order_or_the_outcome(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for place in range(len(whole.records)):
        points: list[str] = []
        slow = DelayedStore(place)
        delayed = assemble(scenario, slow, tell=points.append)
        assert timeless(await delayed.definition.run(delayed.request)) == timeless(whole.result)
        for at, point in enumerate(points):
            if point.startswith(("enter call", "enter execute")):
                assert points[at - 1] == f"leave append_intent {point.split()[-1]}"
        # And killed at each of the following points: what is there is a prefix, in the documented order.
        for later in range(place % 5, len(points), 5):
            slow = DelayedStore(place)
            killed = assemble(scenario, slow, tell=KillAt(later))
            with pytest.raises(Killed):
                await killed.definition.run(killed.request)
            left = await records_of(slow, killed.request.key)
            assert timeless_records(left) == timeless_records(whole.records[: len(left)])


# --- one run, two drivers


def blocking(store: RunStore) -> tuple[AgentDefinition, RunRequest, ScriptedExecutor]:
    executor = ScriptedExecutor([HANG])
    sink = RecordingSink()
    made = dataclasses.replace(definition(store=store), events=sink)
    return made, dataclasses.replace(request(), executor=executor), executor


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("method", ["run", "resume"])
async def test_a_run_that_is_alive_in_this_process_is_left_alone(store: RunStore, method: str) -> None:
    points: list[str] = []
    watched = WatchedStore(store, points.append)
    made, asked, executor = blocking(watched)
    alive = asyncio.create_task(made.run(asked))
    await until(lambda: bool(executor.actions))
    before = list(points)
    second = ScriptedExecutor()
    with pytest.raises(RunConflict):
        await getattr(made, method)(dataclasses.replace(asked, executor=second))
    # Other definitions on the same store object are told the same.
    with pytest.raises(RunConflict):
        await getattr(definition(store=watched), method)(request())
    assert points == before, "nothing is read or written"
    assert (len(executor.actions), second.actions) == (1, [])
    alive.cancel()
    await asyncio.wait([alive])
    result = await made.resume(dataclasses.replace(asked, executor=second))
    assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN, "afterwards the key is free again"


async def test_a_run_that_is_alive_in_another_thread_of_this_process_is_left_alone(store: RunStore) -> None:
    made, asked, executor = blocking(store)
    alive = asyncio.create_task(made.run(asked))
    await until(lambda: bool(executor.actions))

    def elsewhere() -> object:
        return asyncio.run(made.resume(request()))

    with pytest.raises(RunConflict):
        await asyncio.to_thread(elsewhere)
    alive.cancel()
    await asyncio.wait([alive])


async def test_of_two_runs_with_one_key_at_once_exactly_one_goes_on(store: RunStore) -> None:
    made, executors = definition(store=store), [ScriptedExecutor(), ScriptedExecutor()]
    both = await asyncio.gather(
        *(made.run(dataclasses.replace(request(), executor=executor)) for executor in executors),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in both) == ["RunConflict", "RunResult"]
    assert sorted(len(executor.actions) for executor in executors) == [0, 1]


@pytest.mark.parametrize("method", ["run", "resume"])
async def test_the_driver_that_is_behind_stops_before_its_next_effect(method: str, tmp_path: Path) -> None:
    """Two store objects on one directory know of each other no more than two processes do."""
    async with JsonlRunStore(tmp_path) as one, JsonlRunStore(tmp_path) as other:
        release = asyncio.Event()

        async def wait(action: Action) -> str:
            await release.wait()
            return "late"

        slow = ScriptedExecutor(wait)
        first_model = ScriptedModel([act("a"), act("b"), final("x")])
        first = dataclasses.replace(definition(store=one), model=first_model)
        alive = asyncio.create_task(first.run(dataclasses.replace(request(), executor=slow)))
        await until(lambda: bool(slow.actions))
        second_executor = ScriptedExecutor()
        second = definition(store=other)
        taken: object
        try:
            taken = await getattr(second, method)(dataclasses.replace(request(), executor=second_executor))
        except Exception as error:  # noqa: BLE001 - judged below
            taken = error
        assert second_executor.actions == []
        release.set()
        if method == "run":
            assert type(taken).__name__ == "RunAlreadyExists"
            assert (await alive).final_answer == "x"
            return
        assert isinstance(taken, RunResult)
        assert taken.stop_reason is StopReason.RESUME_STATE_UNKNOWN
        with pytest.raises(RunConflict):
            await alive
        assert (len(slow.actions), len(first_model.calls)) == (1, 1), "one effect, and none behind it"
        assert [type(record).__name__ for record in await records_of(other)][-1] == "RunFinished"


# --- a run and another configuration


async def test_a_changed_configuration_is_refused_with_each_difference_and_an_unrelated_one_is_not(
    store: RunStore,
) -> None:
    tools = broken_tool()
    asked = for_tools(tools, request())
    made = tool_definition(["unreadable", final("42")], store)
    await made.run(asked)
    unrelated = dataclasses.replace(made, events=RecordingSink())
    assert (await unrelated.resume(asked)).final_answer == "42"
    more = dataclasses.replace(asked, budget=dataclasses.replace(asked.budget, max_steps=99))
    without = for_tools(ToolRegistry(()), request())
    schema = ToolRegistry([dataclasses.replace(next(iter(tools)), parameters={"type": "object"})])
    differing: list[tuple[RunRequest, set[str]]] = [
        (more, {"budget.max_steps"}),
        (without, {"tools[0]"}),
        (for_tools(schema, more), {"budget.max_steps", "tools[0].parameters.type"}),
    ]
    for changed, paths in differing:
        with pytest.raises(RunIdentityMismatch) as found:
            await unrelated.resume(changed)
        assert {each.path for each in found.value.differences} == paths


# --- many runs on one definition


class _Tenants:
    """Fifty runs at once: each port checks that what it is given belongs to the run that it says."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}

    def note(self, key: str, what: str) -> None:
        self.seen.setdefault(key, []).append(what)

    async def reply(self, call: ModelCall) -> str:
        self.note(call.key, f"model {call.call_index}")
        assert call.binding == {"tenant": call.key}
        assert call.messages[0].content == f"You act for {call.key}."
        assert all(call.key in message.content for message in call.messages)
        for _ in range(int(call.key) % 7):
            await asyncio.sleep(0)
        steps = int(call.key) % 5
        return final(f"done by {call.key}") if call.call_index == steps else tool_call("look", who=call.key)

    def tools(self, key: str) -> ToolRegistry:
        async def handler(arguments: dict[str, JSONValue]) -> str:
            for _ in range(int(key) % 3):
                await asyncio.sleep(0)
            assert current_action().key == key
            assert arguments == {"who": key}
            self.note(key, "tool")
            return f"seen for {key}"

        return ToolRegistry([ToolSpec(name="look", description=f"For {key}.", parameters={}, handler=handler)])

    def request(self, number: int) -> RunRequest:
        key = str(number)
        asked = for_tools(self.tools(key), request(key))
        return dataclasses.replace(
            asked,
            model_binding={"tenant": key},
            run_segments=(ChatMessage(role="system", content=f"You act for {key}."),),
            item_segments=(),
            skills=(),
        )


async def test_fifty_runs_at_once_on_one_definition_do_not_see_each_other(store: RunStore) -> None:
    tenants, sink = _Tenants(), RecordingSink()
    model = ScriptedModel(tenants.reply)
    made = dataclasses.replace(tool_definition([], store), model=model, events=sink)
    before = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    view = made.params_view
    results = await asyncio.gather(*(made.run(tenants.request(number)) for number in range(50)))
    for number, result in enumerate(results):
        key, steps = str(number), number % 5
        assert (result.key, result.final_answer) == (key, f"done by {key}")
        assert [step.observation for step in result.steps] == [f"seen for {key}"] * steps + [""]
        assert [step.call_id for step in result.steps] == [f"call-{at}" for at in range(steps + 1)]
        events = [event for event in sink.events if event.key == key]
        assert events[0] == RunOpened(key=RunKey(key), resumed=False, steps=0)
        assert [type(event).__name__ for event in events].count("StepEnded") == steps + 1
        expected = [f"model {at // 2}" if at % 2 == 0 else "tool" for at in range(2 * steps + 1)]
        assert tenants.seen[key] == expected
        assert await made.resume(tenants.request(number)) == result
    assert {field.name: getattr(made, field.name) for field in dataclasses.fields(made)} == before
    assert made.params_view == view
