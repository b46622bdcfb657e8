"""Cancellation: how a run ends when its caller is cancelled, without losing a position or repeating an effect.

The loop of a run lives in one inner task; the caller's task only waits for it. That keeps a cancellation out of
the store: while a port runs, it is passed on to the port; while the store writes, it waits until the write has
settled, so that the position is known. All that the store does on the way out is bounded by one deadline,
`finalize_timeout_s`; what a port does to clean up is not.

(A task for each write would cost five task switches a step; awaiting the store in the caller's task would pass
the cancellation into the write. `asyncio.wait_for` is avoided: on Python 3.11 it loses a cancellation that lands
in the turn in which the awaited thing completes.) Why: `research-wiki/design/0008-cancellation.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from polyloop.session._failures import log_note

_T = TypeVar("_T")

_abandoned: set[asyncio.Task[object]] = set()
"""Inner tasks whose store did not return in time, held until it does: the event loop alone would drop them."""


class Gate:
    """One run's view of its cancellation: asked before every port call, told of every store call."""

    def __init__(self, key: str, finalize_timeout_s: float) -> None:
        caller = asyncio.current_task()
        if caller is None:
            raise RuntimeError("a run needs an asyncio task around it: call run() and resume() from a coroutine")
        self.key = key
        self.expired: asyncio.Future[None] = caller.get_loop().create_future()
        self.suppressed: BaseException | None = None
        """What a port answered to the cancellation instead of letting it pass."""
        self._caller = caller
        # Not 0 everywhere: before Python 3.13 a failed TaskGroup leaves a request behind that is not for us.
        self._cancelling_at_entry = caller.cancelling()
        self._delivered = False
        self._scopes: set[str] = set()
        """The messages of the scopes whose cancellation was passed on."""
        self._in_store = False
        self._finalize_timeout_s = finalize_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the caller was asked to stop, a turn before the inner task can learn of it included."""
        return self._delivered or self._caller.cancelling() > self._cancelling_at_entry

    def check(self) -> None:
        """Go no further if the caller was cancelled: asked before every port call.

        Raises:
            asyncio.CancelledError: if so.
        """
        if self.cancelled:
            raise asyncio.CancelledError

    def suppress(self, error: BaseException) -> asyncio.CancelledError:
        """The cancellation that stands above another exception with which it was answered."""
        self.suppressed = error
        return asyncio.CancelledError()

    def enter_store(self) -> None:
        """The store is called: from here a cancellation waits, and the deadline counts."""
        self._in_store = True
        if self.cancelled:
            self._arm()

    def leave_store(self) -> None:
        """The store has answered."""
        self._in_store = False

    def begin_closing(self) -> None:
        """A cancellation that a port raised by itself counts as one of the caller's."""
        self._delivered = True

    def deliver(self, inner: asyncio.Task[_T], error: asyncio.CancelledError) -> None:
        """The caller's task has received a cancellation."""
        self._delivered = True
        if self._in_store:
            self._arm()
        elif self._is_news(error):
            inner.cancel()

    def _is_news(self, error: asyncio.CancelledError) -> bool:
        """Whether this is more than a scope of anyio saying again what it has said.

        Such a scope cancels at every turn, always by the same message. It does not see the shield under which a
        port in the inner task cleans up, so the port is told once.
        """
        message = str(error.args[0]) if error.args else ""
        if "cancel scope" not in message:
            return True
        known = message in self._scopes
        self._scopes.add(message)
        return not known

    def disarm(self) -> None:
        """The run is over: leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._caller.get_loop().call_later(self._finalize_timeout_s, self._expire)

    def _expire(self) -> None:
        if not self.expired.done():
            self.expired.set_result(None)


async def guarded(gate: Gate, body: Callable[[], Coroutine[object, object, _T]]) -> _T:
    """Run `body` in an inner task; wait for it, and pass cancellations on as described above.

    Raises:
        asyncio.CancelledError: if the caller was cancelled, whatever `body` came to; the exception that stood
            in its way is its `__context__`.
    """
    # A cancellation that was pending at entry passes here: ports that answer at once would be called before it is seen.
    await asyncio.sleep(0)
    inner = asyncio.create_task(body())
    cancellation: asyncio.CancelledError | None = None
    while not (inner.done() or gate.expired.done()):
        try:
            await asyncio.wait((inner, gate.expired), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            # The first one is the one that passes: scopes tell their own by its message.
            cancellation = cancellation or error
            gate.deliver(inner, error)
    gate.disarm()
    if not inner.done():
        _abandon(inner, gate.key)
        raise cancellation or asyncio.CancelledError
    return _settle(inner, gate, cancellation)


def _settle(inner: asyncio.Task[_T], gate: Gate, cancellation: asyncio.CancelledError | None) -> _T:
    error = _outcome_error(inner)
    if isinstance(error, asyncio.CancelledError):
        cancellation, error = cancellation or error, gate.suppressed
    if cancellation is None or _passes_first(error):
        if error is not None:
            raise error
        return inner.result()
    try:
        raise cancellation
    finally:
        # Afterwards: raising puts the exception that the caller may be handling in the context's place.
        if error is not None:
            cancellation.__context__ = error


def _passes_first(error: BaseException | None) -> bool:
    """Whether an exception stands above the caller's cancellation.

    The loop has itself raised an exit out of the inner task; raised by the caller's task once more, while the loop
    cancels what is left, it would break off the end of all other runs.
    """
    return not isinstance(error, Exception | KeyboardInterrupt | SystemExit | None)


def _outcome_error(inner: asyncio.Task[_T]) -> BaseException | None:
    try:
        return inner.exception()
    except asyncio.CancelledError as cancelled:
        return cancelled


def _abandon(inner: asyncio.Task[_T], key: str) -> None:
    """Leave a write that does not settle to the store: a late landing is harmless, positions fence."""
    log_note("the store did not settle within finalize_timeout_s; the cancelled run has no end record", key)
    _abandoned.add(inner)
    inner.add_done_callback(_collect)


def _collect(inner: asyncio.Task[_T]) -> None:
    _abandoned.discard(inner)
    if not inner.cancelled():
        inner.exception()
