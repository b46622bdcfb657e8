"""What the event sink is told, in which order; and that a sink, whatever it does, changes no run."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import sys
from collections.abc import Iterator, Sequence

import pytest
from loguru import logger

from polyloop.session import AgentDefinition
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    ActionEnded,
    ActionStarted,
    EffectCompleted,
    EffectIntended,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    Record,
    RunClosed,
    RunFinished,
    RunOpened,
    RunResult,
    RunStarted,
    StepCompleted,
    StepEnded,
)
from tests.builders import KEY, definition, request
from tests.fakes import FailingSink, RecordingSink
from tests.family import FAMILY, Scenario, assemble, must_not_go_on, timeless
from tests.family import KEY as FAMILY_KEY
from tests.recovery.test_every_prefix import run_whole, stored

SCENARIOS = pytest.mark.parametrize("scenario", FAMILY, ids=str)


def told(old: Sequence[Record], new: Sequence[Record], result: RunResult) -> Iterator[Event]:
    """What a sink must be told while the new records are written behind the old ones."""
    intents = {record.result_id: record for record in (*old, *new) if isinstance(record, EffectIntended)}
    fresh = {record.result_id: record for record in new if isinstance(record, EffectCompleted)}
    key = result.key
    if old:
        yield RunOpened(key=key, resumed=True, steps=sum(isinstance(record, StepCompleted) for record in old))
    for record in new:
        match record:
            case RunStarted():
                yield RunOpened(key=key, resumed=False, steps=0)
            case EffectIntended(step_idx=at, result_id=name, attempt=attempt, action=None):
                chars = result.steps[at].prompt_chars
                yield ModelCallStarted(key=key, step_idx=at, result_id=name, attempt=attempt, prompt_chars=chars)
            case EffectIntended(step_idx=at, result_id=name, attempt=attempt, action=action):
                assert action is not None
                yield ActionStarted(key=key, step_idx=at, result_id=name, attempt=attempt, action=action)
            case EffectCompleted(result_id=name, reply=reply, error=error) if intents[name].action is None:
                at = intents[name].step_idx
                yield ModelCallEnded(key=key, step_idx=at, result_id=name, reply=reply, error=error, wall_ms=0)
            case StepCompleted(step=step, result_id=name):
                if name is not None and name in fresh:
                    answer = fresh[name]
                    yield ActionEnded(
                        key=key,
                        step_idx=step.step_idx,
                        result_id=name,
                        outcome=answer.outcome,
                        error=answer.error,
                        wall_ms=0,
                    )
                yield StepEnded(key=key, step=step)
            case RunFinished(stop_reason=reason):
                yield RunClosed(key=key, stop_reason=reason, usage=result.usage)


def without_times(events: Sequence[Event]) -> list[Event]:
    assert all(each.wall_ms >= 0 for each in events if isinstance(each, ModelCallEnded | ActionEnded))
    return [
        dataclasses.replace(each, wall_ms=0) if isinstance(each, ModelCallEnded | ActionEnded) else each
        for each in events
    ]


@SCENARIOS
async def test_a_run_tells_each_thing_once_in_order(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    events = without_times(whole.assembled.sink.events)
    assert events == list(told((), whole.records, whole.result))


@SCENARIOS
async def test_a_resumed_run_tells_what_it_does_itself_and_nothing_of_an_earlier_process(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records)):
        store = await stored(whole.records[:length])
        resumed = assemble(scenario, store)
        result = await resumed.definition.resume(resumed.request)
        log = (await store.read_log(FAMILY_KEY)).records()
        assert without_times(resumed.sink.events) == list(told(log[:length], log[length:], result))
        if must_not_go_on(scenario, log[:length]) is not None:
            assert resumed.sink.kinds() == ["RunOpened", "RunClosed"]


@SCENARIOS
async def test_a_stored_result_tells_nothing(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    again = assemble(scenario, await stored(whole.records))
    await again.definition.resume(again.request)
    assert again.sink.events == []


async def test_the_outcome_is_told_as_the_executor_gave_it_where_history_has_another_text() -> None:
    scenario = next(each for each in FAMILY if each.name == "spends its actions")
    whole = await run_whole(scenario)
    refused = [each for each in whole.assembled.sink.events if isinstance(each, ActionEnded)][1]
    assert refused.outcome is not None
    assert (refused.outcome.observation, refused.outcome.completed) == ("refused", True)
    assert whole.result.steps[1].observation != "refused"


# --- sinks that fail


@SCENARIOS
async def test_a_sink_that_always_fails_changes_nothing_but_the_count(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    sink = FailingSink()
    failing = assemble(scenario, EphemeralRunStore(), sink=sink)
    result = await failing.definition.run(failing.request)
    assert timeless(dataclasses.replace(result, event_sink_failures=0)) == timeless(whole.result)
    assert sink.kinds() == whole.assembled.sink.kinds(), "nothing is told twice"
    # The last event comes after the end record is built, and so after the count.
    assert result.event_sink_failures == len(sink.events) - 1


@pytest.mark.parametrize("kind", ["RunOpened", "ModelCallStarted", "ActionEnded", "StepEnded", "RunClosed"])
async def test_each_failure_is_counted_by_itself(kind: str) -> None:
    sink = FailingSink(on=lambda event: type(event).__name__ == kind)
    result = await dataclasses.replace(definition(), events=sink).run(request())
    expected = {"RunOpened": 1, "ModelCallStarted": 2, "ActionEnded": 1, "StepEnded": 2, "RunClosed": 0}
    assert result.event_sink_failures == expected[kind]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a user sees who has loguru print all that it can."""
    text = io.StringIO()
    handler = logger.add(text, level=0, diagnose=True, backtrace=True, format="{message}\n{exception}\n{extra}")
    yield text
    logger.remove(handler)


SECRET = "hunter2"  # noqa: S105 - the point of the tests below


class LeakySink(RecordingSink):
    """Fails with a secret in its message, in its locals and in the exception behind."""

    async def emit(self, event: Event, /) -> None:
        await super().emit(event)
        token = f"token-{SECRET}"
        try:
            dict[str, str]()[token]
        except KeyError as error:
            raise ConnectionError(f"cannot post with {token} {{braces}} <red>") from error


async def test_a_failing_sink_is_logged_with_its_place_and_without_any_value(logged: io.StringIO) -> None:
    made = dataclasses.replace(definition(["act: hunter2", "final: hunter2"]), events=LeakySink())
    result = await made.run(request("a/key {braces} <red>\n"))
    lines = logged.getvalue()
    assert lines.count("): ConnectionError\n") == result.event_sink_failures + 1
    assert "test_session_events.py" in lines, "where it failed is told"
    assert "in emit" in lines
    assert "a/key {braces} <red>\\n" in lines, "which run is told, harmlessly"
    assert SECRET not in lines


async def test_of_failures_raised_together_each_is_logged(logged: io.StringIO) -> None:
    class Several(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            failures: list[Exception] = []
            for kind in (LookupError, PermissionError):
                try:
                    raise kind(SECRET)
                except (LookupError, PermissionError) as failure:
                    failures.append(failure)
            raise ExceptionGroup(SECRET, failures)

    result = await dataclasses.replace(definition(), events=Several()).run(request())
    lines = logged.getvalue()
    assert result.event_sink_failures > 0
    for kind in ("ExceptionGroup", "LookupError", "PermissionError"):
        assert kind in lines
    assert SECRET not in lines


@pytest.mark.parametrize("stderr", ["open", "closed", "none"])
async def test_a_log_handler_that_raises_does_not_interrupt_a_run_either(
    stderr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(message: object) -> None:
        raise BlockingIOError(str(message))

    errors = io.StringIO()
    if stderr == "closed":
        errors.close()
    monkeypatch.setattr(sys, "stderr", None if stderr == "none" else errors)
    handler = logger.add(broken, level=0, catch=False)
    try:
        result = await dataclasses.replace(definition(), events=LeakySink()).run(request())
    finally:
        logger.remove(handler)
    assert result.final_answer == "42"
    assert result.event_sink_failures > 0
    if stderr == "open":
        assert "a loguru handler raised BlockingIOError" in errors.getvalue(), "it is told where it can be"
        assert SECRET not in errors.getvalue()


async def test_nothing_is_logged_by_a_run_that_ends_in_any_other_way(logged: io.StringIO) -> None:
    for scenario in FAMILY:
        await run_whole(scenario)
    with pytest.raises(ZeroDivisionError):
        await dataclasses.replace(definition(), store=_Broken()).run(request())
    assert logged.getvalue() == ""


class _Broken(EphemeralRunStore):
    async def append_step(self, key: object, record: object, /) -> None:
        raise ZeroDivisionError(SECRET)


async def test_a_cancellation_that_a_sink_raises_cancels_the_run() -> None:
    sink = FailingSink(asyncio.CancelledError, on=lambda event: isinstance(event, StepEnded))
    made = dataclasses.replace(definition(), events=sink)
    with pytest.raises(asyncio.CancelledError):
        await made.run(request())
    log = await made.store.read_log(KEY)
    assert log.finished is not None
    assert (log.finished.stop_reason, log.finished.event_sink_failures) == ("cancelled", 0)
    assert sink.kinds()[-1] == "StepEnded"


# --- sinks that are slow, or call back


async def test_a_sink_is_waited_for_without_a_limit() -> None:
    opened = asyncio.Event()

    class Slow(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            await super().emit(event)
            await opened.wait()

    sink = Slow()
    run = asyncio.create_task(dataclasses.replace(definition(), events=sink).run(request()))
    for _ in range(50):
        await asyncio.sleep(0)
    assert sink.kinds() == ["RunOpened"], "nothing goes on before the sink has returned"
    opened.set()
    assert (await run).event_sink_failures == 0


async def test_a_sink_may_call_back_into_the_same_definition() -> None:
    class Nested(RecordingSink):
        made: AgentDefinition
        results: list[RunResult]

        async def emit(self, event: Event, /) -> None:
            await super().emit(event)
            if isinstance(event, StepEnded) and event.key == KEY:
                inner = request(f"inner {event.step.step_idx}")
                self.results.append(await self.made.run(inner))
                self.results.append(await self.made.resume(inner))

    sink = Nested()
    sink.results = []
    sink.made = dataclasses.replace(definition(), events=sink)
    result = await sink.made.run(request())
    assert [each.key for each in sink.results] == ["inner 0", "inner 0", "inner 1", "inner 1"]
    assert all(timeless(dataclasses.replace(each, key=KEY)) == timeless(result) for each in sink.results)
    assert result.event_sink_failures == 0


async def test_a_sink_that_calls_back_for_its_own_run_is_refused_and_counted() -> None:
    class Own(RecordingSink):
        made: AgentDefinition

        async def emit(self, event: Event, /) -> None:
            await super().emit(event)
            # Without the refusal each call would emit, and so call back, again.
            if len(self.events) <= 10:
                await self.made.resume(request())

    sink = Own()
    sink.made = dataclasses.replace(definition(), events=sink)
    result = await sink.made.run(request())
    assert (result.final_answer, result.event_sink_failures, len(sink.events)) == ("42", 9, 10)
