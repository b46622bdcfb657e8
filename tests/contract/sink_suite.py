"""All promises of `EventSink`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from polyloop.ports import EventSink
from polyloop.types import (
    ActionEnded,
    ActionOutcome,
    ActionStarted,
    ActionStatus,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    ModelReply,
    PlannedAction,
    RunClosed,
    RunKey,
    RunOpened,
    StepEnded,
    StopReason,
    Usage,
)
from tests.contract.cases import SinkCase
from tests.contract.port_checks import (
    BLOCKING,
    CANCELLATION,
    MANY_RUNS,
    SECRETS,
    add_repr_promise,
    expect_any_task,
    expect_failure,
    expect_no_blocking,
    hangs_until_cancelled,
    named_secrets,
    passes_cancellation,
)
from tests.contract.promises import Suite, demand, given, opened
from tests.contract.records import LINE_TEXTS, NUL_TEXTS, OTHER_TEXTS, PAIR_TEXTS, SURROGATE_TEXTS, a_step

SUITE = Suite[SinkCase]("EventSink")

TAKE = "Take one event."
UNKNOWN = "unknown kinds are to be ignored."
NO_TAKEN = "the case has no `taken`: what the sink took cannot be seen"
NO_FAILING = "the case has no `make_failing`"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaterEvent:
    """A kind of event that does not exist yet, with fields that no event has today."""

    shard: int
    notes: tuple[str, ...] = ()


def events_of(key: str, text: str = "text") -> list[Event]:
    """One event of each kind at least, and each with its alternatives, as one run might emit them."""
    run, model, action = RunKey(key), "000000-model_call", "000000-action"
    planned = PlannedAction(action_text=text, tool_name=text, arguments={text: [text, 1, None]}, history_text=text)
    reply = ModelReply(call_id=None, text=text, reasoning=text)
    outcome = ActionOutcome(status=ActionStatus.ENV_ERROR, observation=text, completed=None, truncated_chars=3)
    textual = dataclasses.replace(a_step(), raw_output=text, observation=text, action=text, tool_arguments_json=text)
    usage = Usage(model_calls=2, executed_actions=1, steps=2, prompt_chars=10, content_chars=5, thinking_chars=0)
    events: list[Event] = [
        RunOpened(key=run, resumed=False, steps=0),
        RunOpened(key=run, resumed=True, steps=12),
        ModelCallStarted(key=run, step_idx=0, result_id=model, attempt=1, prompt_chars=10),
        ModelCallEnded(key=run, step_idx=0, result_id=model, reply=reply, error=None, wall_ms=0),
        ModelCallEnded(key=run, step_idx=0, result_id=model, reply=None, error=text, wall_ms=3),
        ActionStarted(key=run, step_idx=0, result_id=action, attempt=2, action=planned),
        ActionEnded(key=run, step_idx=0, result_id=action, outcome=outcome, error=None, wall_ms=1),
        ActionEnded(key=run, step_idx=0, result_id=action, outcome=None, error=text, wall_ms=1),
        StepEnded(key=run, step=textual),
    ]
    events += [RunClosed(key=run, stop_reason=reason, usage=usage) for reason in StopReason]
    return events


async def emit_all(sink: EventSink, events: Sequence[Event]) -> None:
    """Emit the events one after the other, as a run does."""
    emit: Callable[[Event], Awaitable[object]] = sink.emit
    for event in events:
        returned = await emit(event)
        demand(returned is None, f"emit returned {returned!r:.100} for a {type(event).__name__}")


async def emit_later(sink: EventSink, event: LaterEvent) -> None:
    """Emit an event of a kind that the sink cannot know."""
    await sink.emit(event)  # type: ignore[arg-type]  # that is the point


add_repr_promise(SUITE)


@SUITE.promise(TAKE, look_at="kinds of events, and fields that may be None: reply, error, outcome, call_id")
async def every_kind_of_event_is_taken(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        await emit_all(sink, events_of("run"))


@SUITE.promise(TAKE, look_at="texts of any kind: lone surrogates cannot be encoded as UTF-8, NULs end C strings")
async def events_with_any_text_are_taken(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        for text in (*NUL_TEXTS, *SURROGATE_TEXTS, *PAIR_TEXTS, *LINE_TEXTS, *OTHER_TEXTS, "x" * 1_000_000):
            await emit_all(sink, events_of("run", text))


@SUITE.promise(TAKE, look_at="keys: any text without NUL and lone surrogates, up to 1,024 characters")
async def events_of_any_run_are_taken(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        for key in ("../x", "a/b", "\n", "{", "{nobody}", "%s %d", "\u2028", "\U0001f600" * 1024):
            await emit_all(sink, events_of(key))


@SUITE.promise(TAKE, look_at="what the sink does with an event: take each once, in the order in which they come")
async def events_are_taken_once_and_in_order(case: SinkCase) -> None:
    taken = given(case.taken, NO_TAKEN)
    async with opened(case.make(), "sink") as sink:
        events = events_of("run")
        await emit_all(sink, events)
        _expect_taken(list(taken(sink)), events, "")


def _expect_taken(found: list[Event], events: list[Event], when: str) -> None:
    for number, (one, other) in enumerate(zip(events, found, strict=False)):
        demand(one == other, f"{when}event {number} is a {type(other).__name__}, emitted was {type(one).__name__}")
    demand(len(found) == len(events), f"{when}{len(found)} events were taken, emitted were {len(events)}")


@SUITE.promise(UNKNOWN, look_at="the branch for events that the sink does not know: return, whatever fields they have")
async def unknown_kinds_are_ignored(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        await emit_later(sink, LaterEvent(shard=1))
        await emit_all(sink, events_of("run")[:1])
        await emit_later(sink, LaterEvent(shard=2, notes=("",)))
        await emit_all(sink, events_of("run")[2:])


@SUITE.promise(MANY_RUNS, look_at="a current run that is kept in the sink: each event has its key")
async def events_of_many_runs_at_once_are_taken(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        runs = [events_of(f"run-{number}") for number in range(8)]
        await asyncio.gather(*(emit_all(sink, events) for events in runs))


@SUITE.promise(MANY_RUNS, look_at="buffers that runs share: no event may get lost, doubled, or come under another key")
async def the_order_within_each_run_is_kept(case: SinkCase) -> None:
    taken = given(case.taken, NO_TAKEN)
    async with opened(case.make(), "sink") as sink:
        runs = {f"run-{number}": events_of(f"run-{number}") for number in range(8)}
        await asyncio.gather(*(emit_all(sink, events) for events in runs.values()))
        found = list(taken(sink))
        for key, events in runs.items():
            _expect_taken([event for event in found if event.key == key], events, f"of {key}, ")


@SUITE.promise(
    "A failing sink never interrupts a run: the exception is caught",
    look_at="what a failure raises: an Exception; SystemExit and the like interrupt the run",
)
async def a_failing_sink_raises_an_exception(case: SinkCase) -> None:
    make = given(case.make_failing, NO_FAILING)
    async with opened(make(), "sink") as sink:
        for _ in range(2):
            await expect_failure(sink.emit(events_of("run")[0]), (), "a sink that was to fail")


@SUITE.promise(SECRETS, look_at="texts of exceptions: connection strings and requests hold credentials")
async def a_failure_shows_no_secret(case: SinkCase) -> None:
    make, secrets = given(case.make_failing, NO_FAILING), named_secrets(case.secrets)
    async with opened(make(), "sink") as sink:
        await expect_failure(sink.emit(events_of("run")[0]), secrets, "a sink that was to fail")


@SUITE.promise(
    "`CancelledError` is not a failure: it passes, and cancels the run.",
    look_at="handlers of CancelledError and of BaseException: raise it again",
)
async def a_cancellation_passes(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        for event in events_of("run")[:9]:
            await passes_cancellation(lambda event=event: sink.emit(event))  # type: ignore[misc]  # bound early


@SUITE.promise(CANCELLATION, look_at="a sink that waits for its other end: a cancellation ends the wait at once")
async def a_cancellation_ends_a_wait(case: SinkCase) -> None:
    make = given(case.make_hanging, "the case has no `make_hanging`")
    async with opened(make(), "sink") as sink:
        await hangs_until_cancelled(lambda: sink.emit(events_of("run")[0]))


@SUITE.promise(
    "It is awaited from one task of the run.",
    look_at="context variables and locks that belong to the task that built the sink",
)
async def an_event_is_taken_in_any_task(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        await expect_any_task(lambda: emit_all(sink, events_of("run")))


@SUITE.promise(BLOCKING, look_at="synchronous clients and files: hand events to a queue, or use asyncio.to_thread")
async def an_event_does_not_block_the_event_loop(case: SinkCase) -> None:
    async with opened(case.make(), "sink") as sink:
        await expect_no_blocking(lambda: sink.emit(events_of("run")[0]))


PROMISES = SUITE.promises
