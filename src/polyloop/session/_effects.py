"""The only door to the ports and to the store.

Every port call goes through `Effects`, which asks before each whether the caller was cancelled, and every record
through `Effects.write`, which alone knows the next position of the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from polyloop.ports import Action, ModelCall, ParsedReply
from polyloop.session._assembled import Assembly
from polyloop.session._cancellation import Gate
from polyloop.session._failures import describe, log_failure
from polyloop.types import (
    ActionOutcome,
    EffectCompleted,
    EffectIntended,
    Event,
    ModelReply,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
    StopReason,
)
from polyloop.types.records import detached

_R = TypeVar("_R", bound=Record)
_T = TypeVar("_T")
_A = TypeVar("_A", ModelReply, ActionOutcome)


def timestamp() -> str:
    """Now, as records keep it."""
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_date_and_time(seconds)}.{microseconds:06d}+00:00"


@functools.lru_cache(maxsize=1)
def _date_and_time(seconds: int) -> str:
    # Many records fall into one second: what they share is formatted once.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def milliseconds_since(started: float) -> int:
    """Whole milliseconds since a reading of the monotonic clock."""
    return int((time.monotonic() - started) * 1000)


class Effects:
    """One run's ports and store, its position in the log, and its way out when it is cancelled."""

    def __init__(self, assembly: Assembly, gate: Gate) -> None:
        self.sink_failures = 0
        self.next_seq = 0
        """The position of the next record; 0 until a resumed run has read its log."""
        self._ports = assembly.ports
        self._executor = assembly.executor
        self._key = assembly.key
        self._gate = gate
        self._wrote = False
        """Whether this driver has a record of its own in the log."""
        self._ending = False
        """Whether the write of a terminal end record has begun."""
        self._write_failed = False
        self._uncertain: Record | None = None
        """A record whose write was cut short by a cancellation: it may have landed."""

    async def emit(self, event: Event) -> None:
        """Tell the sink. Its failures are counted and logged, never raised."""
        self._gate.check()
        try:
            await _awaitable(self._ports.events.emit(event), "events.emit()")
        except Exception as error:
            if self._gate.cancelled:
                raise self._gate.suppress(error) from error
            self.sink_failures += 1
            log_failure("the event sink failed; the run goes on", self._key, error)
        self._gate.check()

    async def call_model(self, call: ModelCall) -> ModelReply | str:
        """The reply, or what a result record keeps of the failure."""
        self._gate.check()
        try:
            answer = await _awaitable(self._ports.model.call(call), "model.call()")
            return _exact(answer, ModelReply, "model.call()")
        except Exception as error:  # noqa: BLE001 - any exception of this port is an answer, recorded as such
            return self._failed(error)

    async def execute(self, action: Action) -> ActionOutcome | str:
        """The outcome, or what a result record keeps of the failure."""
        self._gate.check()
        try:
            answer = await _awaitable(self._executor.execute(action), "executor.execute()")
            return _exact(answer, ActionOutcome, "executor.execute()")
        except Exception as error:  # noqa: BLE001 - any exception of this port is an answer, recorded as such
            return self._failed(error)

    def _failed(self, error: Exception) -> str:
        if self._gate.cancelled:
            # It must not become llm_error or env_error: it is what the port made of the cancellation.
            raise self._gate.suppress(error) from error
        return describe(error)

    async def parse(self, reply: ModelReply) -> ParsedReply:
        """What the parser reads. Its exceptions are bugs of the parser, and pass."""
        self._gate.check()
        try:
            parsed = await _awaitable(self._ports.parser.parse(reply), "parser.parse()")
            _require(parsed, ParsedReply, "parser.parse()")
        except Exception as error:
            if self._gate.cancelled:
                raise self._gate.suppress(error) from error
            raise
        self._gate.check()
        return parsed

    async def read_log(self) -> RunLog:
        """The log as it stands. Reading is cancelled like a port: it moves no position."""
        self._gate.check()
        try:
            log = await self._ports.store.read_log(self._key)
        except Exception as error:
            if self._gate.cancelled:
                raise self._gate.suppress(error) from error
            raise
        self._gate.check()
        return log

    async def write_start(self, record: RunStarted) -> None:
        """Write the start record."""
        await self._write(self._ports.store.append_run_start, record)

    async def write_intent(self, record: EffectIntended) -> None:
        """Announce an effect: when this has returned, it may begin."""
        await self._write(self._ports.store.append_intent, record)

    async def write_result(self, record: EffectCompleted) -> None:
        """Write what came of an effect."""
        await self._write(self._ports.store.append_result, record)

    async def write_step(self, record: StepCompleted) -> None:
        """Write a step."""
        await self._write(self._ports.store.append_step, record)

    async def write_end(self, record: RunFinished) -> None:
        """Write a terminal end record: from here on there is no cancelled one."""
        self._gate.check()
        self._ending = True
        await self._write(self._ports.store.finish, record)

    async def _write(self, append: Callable[[RunKey, _R], Awaitable[None]], record: _R) -> None:
        self._gate.enter_store()
        try:
            # A copy, as at every seam: a store that keeps it and changes it later changes no action and no snapshot.
            await append(self._key, cast("_R", detached(record)))
        except asyncio.CancelledError:
            self._uncertain = record
            raise
        except Exception as error:
            self._write_failed = True
            if self._gate.cancelled:
                log_failure("a record could not be written while the run was cancelled", self._key, error)
                raise self._gate.suppress(error) from error
            raise
        finally:
            self._gate.leave_store()
        self.next_seq += 1
        self._wrote = True
        self._gate.check()

    async def close_cancelled(self) -> None:
        """Write the end record of a cancelled run, where the log is known to be ours to end."""
        self._gate.begin_closing()
        if self._ending or self._write_failed or self._gate.expired.done():
            return
        self._gate.enter_store()
        try:
            if await self._position_is_known() and self._wrote and not self._gate.expired.done():
                await self._ports.store.finish(self._key, self._cancelled_end())
        except Exception as error:  # noqa: BLE001 - the cancellation passes; the log tells of the missing record
            log_failure("the end record of a cancelled run could not be written", self._key, error)
        finally:
            self._gate.leave_store()

    async def _position_is_known(self) -> bool:
        """Find out whether a record that was cut short has landed; False if somebody else moved the log."""
        if self._uncertain is None:
            return True
        log = await self._ports.store.read_log(self._key)
        if log.next_seq == self.next_seq:
            return True
        landed = log.records()[-1] if log.next_seq == self.next_seq + 1 else None
        if landed != self._uncertain:
            return False
        self.next_seq += 1
        self._wrote = True
        return True

    def _cancelled_end(self) -> RunFinished:
        return RunFinished(
            seq=self.next_seq,
            recorded_at=timestamp(),
            stop_reason=StopReason.CANCELLED,
            final_answer=None,
            detail=None,
            event_sink_failures=self.sink_failures,
        )


def _awaitable(answer: Awaitable[_T], call: str) -> Awaitable[_T]:
    """What a port's method gave, if it can be awaited: Python's own error does not say which method was no `async`."""
    if not inspect.isawaitable(answer):
        raise TypeError(f"{call} must be awaitable, got {type(answer).__name__}: define the method with async def")
    return answer


def _require(value: object, expected: type, call: str) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{call} must return {expected.__name__}, got {type(value).__name__}")


def _exact(answer: _A, expected: type[_A], call: str) -> _A:
    """An answer of just the type that records hold: a subclass is a legal answer, but no store could write it."""
    _require(answer, expected, call)
    if type(answer) is expected:
        return answer
    return expected(**{field.name: getattr(answer, field.name) for field in dataclasses.fields(expected)})
