"""A right event sink, and wrong ones that differ from it in one fault each."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any, Literal, cast

from polyloop.ports import EventSink
from polyloop.types import ActionEnded, Event, ModelCallEnded, RunClosed, RunOpened, StepEnded, StopReason
from tests.contract.cases import SinkCase
from tests.contract.sink_suite import PROMISES
from tests.contract.zoo import Zoo

SECRET = "dsn-do-not-show-me"  # noqa: S105 - it opens nothing
State = Literal["works", "full", "silent"]

EVERYTHING = frozenset(promise.name for promise in PROMISES)
TAKING = frozenset(
    {
        "every_kind_of_event_is_taken",
        "events_with_any_text_are_taken",
        "events_of_any_run_are_taken",
        "events_are_taken_once_and_in_order",
        "events_of_many_runs_at_once_are_taken",
        "the_order_within_each_run_is_kept",
        "an_event_is_taken_in_any_task",
        "unknown_kinds_are_ignored",
    }
)
"""The promises whose checks emit every kind of event."""
CANCELLATION = frozenset({"a_cancellation_passes", "a_cancellation_ends_a_wait"})


class ListSink:
    """A right sink: it keeps the events that it knows, a turn of the loop after each came."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []
        self._dsn = SECRET

    async def emit(self, event: Event, /) -> None:
        if isinstance(event, Event):
            await self.connect()
            self.take(event)

    async def connect(self) -> None:
        """Reach the other end."""
        await asyncio.sleep(0)
        if self.state == "full":
            raise OSError("the disk is full")
        if self.state == "silent":
            await asyncio.Event().wait()

    def take(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)


def case_of(sink: type[ListSink]) -> SinkCase:
    """The case of such a sink."""

    def taken(one: EventSink) -> list[Event]:
        return cast("ListSink", one).events

    return SinkCase(
        make=lambda: sink("works"),
        taken=taken,
        make_failing=lambda: sink("full"),
        make_hanging=lambda: sink("silent"),
        secrets=(SECRET,),
    )


SINKS = Zoo[type[ListSink]]()
wrong = SINKS.breaks


@wrong("the_repr_shows_no_secret")
class ShowsItself(ListSink):
    """Shows the connection string that it was built with."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._dsn!r})"


@wrong("every_kind_of_event_is_taken", besides=TAKING | CANCELLATION)
class ExpectsAReply(ListSink):
    """Expects every model call to have a reply."""

    def take(self, event: Event) -> None:
        if isinstance(event, ModelCallEnded):
            _ = event.reply.text  # type: ignore[union-attr]  # the fault itself
        super().take(event)


@wrong("every_kind_of_event_is_taken", besides=TAKING)
class KnowsNineStopReasons(ListSink):
    """Looks the stop reason up in a table that lacks one."""

    def take(self, event: Event) -> None:
        if isinstance(event, RunClosed):
            table = {str(reason): 1 for reason in StopReason if reason is not StopReason.RESUME_STATE_UNKNOWN}
            _ = table[event.stop_reason]
        super().take(event)


@wrong("every_kind_of_event_is_taken", besides=TAKING)
class ReturnsTheEvent(ListSink):
    """Returns what it took."""

    async def emit(self, event: Event, /) -> Any:
        await super().emit(event)
        return event


@wrong("every_kind_of_event_is_taken", besides=EVERYTHING)
class IsNotAsync(ListSink):
    """Takes events without being awaited."""

    def emit(self, event: Event, /) -> Any:
        self.take(event)


@wrong("events_with_any_text_are_taken")
class EncodesTexts(ListSink):
    """Encodes texts as UTF-8."""

    def take(self, event: Event) -> None:
        if isinstance(event, StepEnded):
            event.step.observation.encode()
        super().take(event)


@wrong("events_of_any_run_are_taken")
class FormatsKeys(ListSink):
    """Takes the key for a template."""

    def take(self, event: Event) -> None:
        _ = event.key.format("run") if isinstance(event, RunOpened) else None
        super().take(event)


@wrong("events_are_taken_once_and_in_order", "the_order_within_each_run_is_kept")
class TakesTwice(ListSink):
    """Takes the last event of an action twice."""

    def take(self, event: Event) -> None:
        super().take(event)
        if isinstance(event, ActionEnded):
            super().take(event)


@wrong("events_are_taken_once_and_in_order", "the_order_within_each_run_is_kept")
class TakesTheLastFirst(ListSink):
    """Puts the newest event in front."""

    def take(self, event: Event) -> None:
        self.events.insert(0, event)


@wrong("the_order_within_each_run_is_kept")
class KeepsTheEventInTheSink(ListSink):
    """Keeps the event in the sink while it connects."""

    current: Event

    async def emit(self, event: Event, /) -> None:
        if isinstance(event, Event):
            self.current = event
            await self.connect()
            self.take(self.current)


@wrong("events_of_many_runs_at_once_are_taken", "the_order_within_each_run_is_kept")
class ServesOneRun(ListSink):
    """Refuses an event while another one is on its way."""

    busy = False

    async def connect(self) -> None:
        if self.busy:
            raise RuntimeError("one event at a time")
        self.busy = True
        try:
            await super().connect()
        finally:
            self.busy = False


@wrong("unknown_kinds_are_ignored")
class KnowsAllKinds(ListSink):
    """Takes the kinds of today for all that there will ever be."""

    async def emit(self, event: Event, /) -> None:
        if not isinstance(event, Event):
            raise TypeError(f"unknown event {type(event).__name__}")
        await super().emit(event)


@wrong("unknown_kinds_are_ignored")
class ReadsTheKey(ListSink):
    """Expects every event to have a key."""

    async def emit(self, event: Event, /) -> None:
        _ = event.key
        await super().emit(event)


class Fatal(BaseException):
    """An exception that nobody is to catch."""


@wrong("a_failing_sink_raises_an_exception", besides=frozenset({"a_failure_shows_no_secret"}))
class FailsFatally(ListSink):
    """Raises something that is no Exception."""

    async def connect(self) -> None:
        try:
            await super().connect()
        except OSError as error:
            raise Fatal from error


@wrong("a_failing_sink_raises_an_exception", besides=frozenset({"a_failure_shows_no_secret"}))
class CancelsTheRun(ListSink):
    """Raises CancelledError when it fails, which cancels the run."""

    async def connect(self) -> None:
        try:
            await super().connect()
        except OSError as error:
            raise asyncio.CancelledError from error


@wrong("a_failure_shows_no_secret")
class ShowsItsConnection(ListSink):
    """Tells which connection failed, credential and all."""

    async def connect(self) -> None:
        try:
            await super().connect()
        except OSError as error:
            raise OSError(f"cannot write to {self._dsn}") from error


@wrong(*CANCELLATION)
class CatchesEverything(ListSink):
    """Makes sure that no run is disturbed, not even by its own cancellation."""

    async def emit(self, event: Event, /) -> None:
        try:
            await super().emit(event)
        except asyncio.CancelledError:
            return


@wrong("a_cancellation_ends_a_wait")
class TakesCancellationsForTimeOuts(ListSink):
    """Takes the cancellation of a wait for a time-out."""

    async def connect(self) -> None:
        try:
            await super().connect()
        except asyncio.CancelledError:
            if self.state == "silent":
                raise TimeoutError("no answer") from None
            raise


_trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")


@wrong("an_event_is_taken_in_any_task")
class NeedsItsContext(ListSink):
    """Reads a context variable that it set when it was built."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        _trace.set("t")

    def take(self, event: Event) -> None:
        _trace.get()
        super().take(event)


@wrong("an_event_does_not_block_the_event_loop")
class BlocksTheLoop(ListSink):
    """Writes to a synchronous client."""

    async def emit(self, event: Event, /) -> None:
        quick = not isinstance(event, RunOpened) or event.resumed or self.state != "works"
        if 1 <= len(self.events) <= 4 and not quick:
            time.sleep(0.15)  # noqa: ASYNC251 - the fault itself
            self.take(event)
        else:
            await super().emit(event)
