"""What a suite is made of: promises, each with its sentence, its check, and where an author should look.

A check is a plain async function of one adapter (its *subject*). It knows nothing of a test runner: it returns
where the promise is kept, raises `PromiseBroken` where it is not, and `Unchecked` where this adapter gives it
nothing to check by.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeAlias, TypeVar, cast

SubjectT = TypeVar("SubjectT")
AdapterT = TypeVar("AdapterT")
ResultT = TypeVar("ResultT")

Check: TypeAlias = Callable[[SubjectT], Awaitable[None]]

PATIENCE_S = 60.0
"""How long a check may take before the adapter counts as hanging."""


class PromiseBroken(AssertionError):  # noqa: N818 - a finding, not an error of the suite
    """The adapter breaks a promise. The message says which, what was seen, and where to look."""


class Unchecked(Exception):  # noqa: N818 - a state, not an error
    """The promise cannot be checked for this adapter; the message is the reason."""


def demand(condition: object, seen: str) -> None:
    """Go on only where the condition holds; `seen` tells what was seen instead."""
    if not condition:
        raise PromiseBroken(seen)


def given(value: AdapterT | None, reason: str) -> AdapterT:
    """A part of a case that an adapter may lack: without it the promise goes unchecked."""
    if value is None:
        raise Unchecked(reason)
    return value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise(Generic[SubjectT]):
    """One promise of a port."""

    port: str
    """The name of the port's protocol."""
    name: str
    """The promise as an identifier that reads as a fact."""
    sentence: str
    """The promise in the words of `polyloop.ports`, verbatim."""
    look_at: str
    """Where an author of an adapter should look when it is broken."""
    check: Check[SubjectT]

    async def verify(self, subject: SubjectT, *, patience_s: float = PATIENCE_S) -> None:
        """Run the check.

        Raises:
            PromiseBroken: with everything that an author needs to know.
            Unchecked: if the subject lacks what the check needs.
        """
        task = asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()
        try:
            async with asyncio.timeout(patience_s) as limit:
                await self.check(subject)
        except PromiseBroken as broken:
            raise self.broken(str(broken)) from broken.__cause__
        except Unchecked:
            raise
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() > cancelling:
                raise
            raise self.broken("the adapter raised CancelledError though nobody had cancelled it") from error
        except Exception as error:
            if limit.expired():
                raise self.broken(f"it did not come to an end within {patience_s:g} s") from error
            raise self.broken(f"the adapter raised {described(error)}") from error

    def broken(self, seen: str) -> PromiseBroken:
        """The failure as an author reads it."""
        return PromiseBroken(
            f"{self.port} breaks the promise {self.name}\n"
            f"  promise:  {self.sentence}\n"
            f"  seen:     {seen}\n"
            f"  look at:  {self.look_at}"
        )


class Suite(Generic[SubjectT]):
    """The promises of one port, in the order in which they are written down."""

    def __init__(self, port: str) -> None:
        self.port = port
        self._promises: list[Promise[SubjectT]] = []

    def promise(self, sentence: str, *, look_at: str) -> Callable[[Check[SubjectT]], Check[SubjectT]]:
        """Make a check a promise of this suite; its function's name is the promise's."""

        def kept(check: Check[SubjectT]) -> Check[SubjectT]:
            name = check.__name__
            self._promises.append(Promise(port=self.port, name=name, sentence=sentence, look_at=look_at, check=check))
            return check

        return kept

    @property
    def promises(self) -> tuple[Promise[SubjectT], ...]:
        """All of them."""
        return tuple(self._promises)


# --------------------------------------------------------------------------------- tools for the checks


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error)[:300]}"


@asynccontextmanager
async def opened(adapter: AdapterT | AbstractAsyncContextManager[AdapterT], what: str) -> AsyncIterator[AdapterT]:
    """What a factory gave, entered where it is to be entered."""
    if inspect.isawaitable(adapter):
        if inspect.iscoroutine(adapter):
            adapter.close()
        raise PromiseBroken(f"the factory of the {what} is async; it must be a plain function")
    if hasattr(adapter, "__aenter__"):
        async with cast("AbstractAsyncContextManager[AdapterT]", adapter) as entered:
            yield entered
    else:
        yield adapter


async def turns(number: int) -> None:
    """Let the event loop turn so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


def moments() -> Iterator[int]:
    """After how many turns of the loop to cancel: each of the first, then ever more widely spaced."""
    yield from range(12)
    moment = 12
    while moment < 1_000_000:
        yield moment
        moment += moment // 3


async def cut_short(call: Coroutine[object, object, ResultT], after: int, *, again: bool = False) -> bool:
    """Cancel a call after so many turns, and once more a turn later if `again`.

    Returns:
        False if the call had ended by then. A cancellation that reached the call must come out of it.
    """
    task = asyncio.create_task(call)
    for _ in range(after):
        if task.done():
            break
        await asyncio.sleep(0)
    if not task.cancel():
        await task
        return False
    if again:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        error = task.exception()
        became = f"returned {task.result()!r:.200}" if error is None else f"raised {described(error)}"
        raise PromiseBroken(f"a call that was cancelled after {after} turns of the loop {became}") from error
    return True


async def settled(call: Coroutine[object, object, ResultT]) -> ResultT | Exception:
    """What the call returned, or the exception that it raised."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the check judges it
        return error
