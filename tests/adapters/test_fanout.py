"""`FanOutSink` feeds each of its sinks, whatever the others do."""

from __future__ import annotations

import asyncio
import dataclasses
from types import TracebackType
from typing import Self, cast

import pytest

from polyloop.adapters.fanout import FanOutSink
from polyloop.ports import EventSink
from polyloop.types import ActionStarted, Event, InvalidRequest, PlannedAction, RunKey, RunOpened
from tests.builders import definition, request
from tests.fakes import FailingSink, RecordingSink

OPENED = RunOpened(key=RunKey("k"), resumed=False, steps=0)


def started() -> ActionStarted:
    plan = PlannedAction(action_text="a", tool_name="t", arguments={"list": [1]}, history_text="h")
    return ActionStarted(key=RunKey("k"), step_idx=0, result_id="000000-action", attempt=1, action=plan)


class ManagedSink(RecordingSink):
    """Notes when it is entered and left, and does then what it is told."""

    def __init__(self, name: str, notes: list[str], *, entering: str = "", leaving: str = "") -> None:
        super().__init__()
        self.name, self.notes, self.entering, self.leaving = name, notes, entering, leaving

    def _do(self, what: str) -> None:
        if what == "fail":
            raise OSError(f"{self.name} is broken")
        if what == "cancel":
            raise asyncio.CancelledError

    async def __aenter__(self) -> Self:
        self._do(self.entering)
        self.notes.append(f"enter {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.notes.append(f"leave {self.name}")
        self._do(self.leaving)
        return True


async def test_every_sink_gets_every_event_in_order() -> None:
    sinks = RecordingSink(), RecordingSink(), RecordingSink()
    fan = FanOutSink(*sinks)
    events: list[Event] = [OPENED, started(), OPENED]
    for event in events:
        await fan.emit(event)
    assert [sink.events for sink in sinks] == [events, events, events]


async def test_a_sink_that_changes_its_event_changes_nobody_elses() -> None:
    class Vandal(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            assert isinstance(event, ActionStarted)
            cast("list[int]", event.action.arguments["list"]).append(99)

    first, last = Vandal(), RecordingSink()
    await FanOutSink(first, last, Vandal()).emit(started())
    assert last.events == [started()]


async def test_a_kind_of_event_that_does_not_exist_yet_is_copied_too() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Later:
        notes: dict[str, list[int]]

    sinks = RecordingSink(), RecordingSink()
    await FanOutSink(*sinks).emit(cast("Event", Later(notes={"a": [1]})))
    one, other = (cast("Later", sink.events[0]) for sink in sinks)
    assert one == other
    assert one.notes["a"] is not other.notes["a"]


async def test_a_failing_sink_does_not_starve_the_others_and_the_failures_are_raised_together() -> None:
    first, second, last = FailingSink(lambda: OSError("full")), FailingSink(), RecordingSink()
    with pytest.raises(ExceptionGroup) as caught:
        await FanOutSink(first, second, last).emit(OPENED)
    assert [type(error) for error in caught.value.exceptions] == [OSError, RuntimeError]
    assert last.events == [OPENED]


async def test_the_failures_of_one_event_count_once() -> None:
    last = RecordingSink()
    failing = FailingSink(on=lambda event: isinstance(event, RunOpened)), FailingSink(on=lambda event: event == OPENED)
    run = dataclasses.replace(definition(), events=FanOutSink(*failing, last))
    result = await run.run(request())
    assert result.event_sink_failures == 1
    assert last.kinds()[0] == "RunOpened"
    assert last.kinds()[-1] == "RunClosed"


async def test_a_cancellation_passes_at_once_and_is_never_part_of_a_group() -> None:
    failing, cancelled, last = FailingSink(), FailingSink(asyncio.CancelledError), RecordingSink()
    with pytest.raises(asyncio.CancelledError):
        await FanOutSink(failing, cancelled, last).emit(OPENED)
    assert last.events == []


async def test_an_exception_that_nobody_is_to_catch_passes_at_once() -> None:
    last = RecordingSink()
    with pytest.raises(SystemExit):
        await FanOutSink(FailingSink(), FailingSink(SystemExit), last).emit(OPENED)
    assert last.events == []


async def test_sinks_are_entered_in_order_and_left_in_reverse_and_plain_ones_are_fed_all_the_same() -> None:
    notes: list[str] = []
    plain = RecordingSink()
    async with FanOutSink(ManagedSink("a", notes), plain, ManagedSink("b", notes)) as fan:
        await fan.emit(OPENED)
    assert notes == ["enter a", "enter b", "leave b", "leave a"]
    assert plain.events == [OPENED]


async def test_a_sink_that_cannot_be_entered_leaves_none_open() -> None:
    notes: list[str] = []
    fan = FanOutSink(ManagedSink("a", notes), ManagedSink("b", notes, entering="fail"), ManagedSink("c", notes))
    with pytest.raises(OSError, match="b is broken"):
        async with fan:
            raise AssertionError("the block was begun")
    assert notes == ["enter a", "leave a"]


async def test_failures_to_leave_are_raised_together_once_every_sink_was_left() -> None:
    notes: list[str] = []
    names = ("a", "fail"), ("b", ""), ("c", "fail")
    with pytest.raises(ExceptionGroup) as caught:
        async with FanOutSink(*(ManagedSink(name, notes, leaving=leaving) for name, leaving in names)):
            notes.clear()
    assert [str(error) for error in caught.value.exceptions] == ["c is broken", "a is broken"]
    assert notes == ["leave c", "leave b", "leave a"]


async def test_a_cancellation_while_leaving_passes_once_every_sink_was_left() -> None:
    notes: list[str] = []
    names = ("a", ""), ("b", "cancel"), ("c", "fail")
    with pytest.raises(asyncio.CancelledError) as caught:
        async with FanOutSink(*(ManagedSink(name, notes, leaving=leaving) for name, leaving in names)):
            notes.clear()
    assert notes == ["leave c", "leave b", "leave a"]
    assert caught.value.__notes__ == ["an event sink failed to close: OSError"]


@pytest.mark.parametrize("ending", [asyncio.CancelledError(), ValueError("the body failed")])
async def test_no_sink_makes_the_exception_that_ends_the_block_go_away(ending: BaseException) -> None:
    notes: list[str] = []
    with pytest.raises(type(ending)) as caught:
        async with FanOutSink(ManagedSink("a", notes, leaving="fail"), ManagedSink("b", notes)):
            raise ending
    assert caught.value is ending
    assert caught.value.__notes__ == ["an event sink failed to close: OSError"]


async def test_it_can_be_entered_again_only_after_it_was_left() -> None:
    notes: list[str] = []
    fan = FanOutSink(ManagedSink("a", notes))
    async with fan:
        with pytest.raises(RuntimeError, match="cannot be entered again"):
            await fan.__aenter__()
    async with fan:
        assert notes == ["enter a", "leave a", "enter a"]


def test_a_sink_that_is_none_and_one_that_is_given_twice_are_refused() -> None:
    sink = RecordingSink()
    with pytest.raises(InvalidRequest) as nothing:
        FanOutSink(sink, cast("EventSink", object()))
    assert nothing.value.field == "FanOutSink.sinks[1]"
    with pytest.raises(InvalidRequest) as twice:
        FanOutSink(sink, RecordingSink(), sink)
    assert twice.value.field == "FanOutSink.sinks[2]"


def test_its_repr_names_the_kinds_of_its_sinks_alone() -> None:
    class Talkative(RecordingSink):
        def __repr__(self) -> str:
            return "a secret"

    assert repr(FanOutSink(Talkative(), RecordingSink())) == "FanOutSink(Talkative, RecordingSink)"
