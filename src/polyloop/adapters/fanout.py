"""One event sink that feeds several.

A definition has one sink, so that there is no rule in the loop for whose failure counts; the rule is here. Why:
`research-wiki/design/0022-sinks-and-mcp.md`.
"""

from __future__ import annotations

import copy
import dataclasses
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from polyloop.ports import EventSink
from polyloop.types import ActionStarted, Event, InvalidRequest
from polyloop.types._json import copy_object

__all__ = ["FanOutSink"]


class FanOutSink:
    """Feeds each event to several sinks, in the order given.

    ::

        async with FanOutSink(ProgressSink(total=100), OpenTelemetrySink(...)) as events:
            definition = AgentDefinition(events=events, ...)

    The sinks are awaited one after the other, in the task that emits, so a slow one delays the others and one that
    hangs stops them. One that fails does not: the others get the event all the same. What failed for one event is
    raised together, as one `ExceptionGroup`, so that it counts once in `RunResult.event_sink_failures`.
    `CancelledError`, and anything else that is no `Exception`, passes at once: the sinks behind are not asked any
    more. Each sink has a copy of the event of its own.

    As an async context manager it enters those of its sinks that are async context managers, in order, and leaves
    them in reverse order. Sinks that need no entering work without. The same rules hold for leaving: each is left,
    whatever the others do; failures are raised together, a cancellation before all; and no sink can make the
    exception that ends the block go away.

    Raises:
        InvalidRequest: a sink has no `emit`, or is given twice.
    """

    def __init__(self, *sinks: EventSink) -> None:
        for index, sink in enumerate(sinks):
            if not callable(getattr(sink, "emit", None)):
                raise InvalidRequest(f"FanOutSink.sinks[{index}]", f"must have emit(), got {type(sink).__name__}")
            if any(sink is other for other in sinks[:index]):
                raise InvalidRequest(f"FanOutSink.sinks[{index}]", "is given twice; give each sink once")
        self._sinks = sinks
        self._entered: list[AbstractAsyncContextManager[object]] = []

    def __repr__(self) -> str:
        return f"FanOutSink({', '.join(type(sink).__name__ for sink in self._sinks)})"

    async def emit(self, event: Event, /) -> None:
        """Feed one event to every sink.

        Raises:
            ExceptionGroup: what the sinks raised that failed to take it.
        """
        # All copies are made first: a sink may change its own, and keep it.
        copies = [event, *(_copy(event) for _ in self._sinks[1:])]
        failures: list[Exception] = []
        for sink, own in zip(self._sinks, copies, strict=False):
            try:
                await sink.emit(own)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other sinks are fed, and then it is raised
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(self._sinks)} event sinks failed", failures)

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("this FanOutSink is in use: it cannot be entered again before it was left")
        try:
            for sink in self._sinks:
                if isinstance(sink, AbstractAsyncContextManager):
                    await sink.__aenter__()
                    self._entered.append(sink)
        except BaseException as error:
            # A caller whose block was never begun would have no way to leave those that are entered.
            await self._leave(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failures = await self._leave(kind, error, trace)
        if error is None and failures:
            raise ExceptionGroup(f"{len(failures)} event sinks failed to close", failures)

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> list[Exception]:
        """Leave what was entered. The failures, which an exception that is under way carries as notes instead."""
        failures: list[Exception] = []
        passing: BaseException | None = None
        while self._entered:
            sink = self._entered.pop()
            try:
                await sink.__aexit__(kind, error, trace)
            except Exception as failure:  # noqa: BLE001 - the others are left first
                failures.append(failure)
            except BaseException as cancelled:  # noqa: BLE001 - raised below, once the others are left
                passing = cancelled
        under_way = error if passing is None else passing
        if under_way is not None:
            for each in failures:
                under_way.add_note(f"an event sink failed to close: {type(each).__qualname__}")
        if passing is not None:
            raise passing
        return failures


def _copy(event: Event) -> Event:
    """A copy that nobody else holds. What is made of strings and numbers alone cannot be changed, and is shared."""
    if not isinstance(event, ActionStarted):
        # A kind that does not exist yet may hold anything.
        return event if isinstance(event, Event) else copy.deepcopy(event)
    arguments = copy_object(event.action.arguments, "ActionStarted.action.arguments")
    return dataclasses.replace(event, action=dataclasses.replace(event.action, arguments=arguments))
