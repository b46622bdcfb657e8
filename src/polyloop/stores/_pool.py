"""A few threads that do blocking work for any number of event loops.

Work is pinned: the same pin means the same thread, and the work of one thread is done in the order in which it was
handed in. Each thread has a worker of its own, which it gives to every piece of work.

A hop to a thread and back is most of what a short write costs. So a loop is woken once for all that was done since
it last looked, and through a pipe: `call_soon_threadsafe` does the same with a socket and more calls around it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")

Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"
"""A future, and what it is to give: a result, or a failure where that is not None."""

_Job: TypeAlias = "tuple[Desk, asyncio.Future[Any], Callable[[W], Any]]"

_RING: Final = "ring"
"""What a thread is woken with where there is no job for it: it only calls `due`."""


class Pool(Generic[W]):
    """At most `size` daemon threads, each started when it is first needed.

    `due`, where given, is called on a thread before it waits for work: it does what has become due, and tells in how
    many seconds it wants to be called again at the latest (None: not before there was work).
    """

    def __init__(
        self, make_worker: Callable[[], W], size: int, name: str, *, due: Callable[[W], float | None] | None = None
    ) -> None:
        self._make_worker = make_worker
        self._due = due
        self._name = name
        self._threads: list[_Thread[W] | None] = [None] * size
        self._desks: dict[asyncio.AbstractEventLoop, Desk] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, pin: int, work: Callable[[W], R]) -> asyncio.Future[R]:
        """Hand in work. It is done whatever becomes of the future that tells its outcome.

        Raises:
            RuntimeError: if the pool is closed, or no thread can be had.
        """
        loop = asyncio.get_running_loop()
        desk = self.desk(loop)
        future: asyncio.Future[R] = loop.create_future()
        # Under the lock, for nothing may come behind a thread's last job.
        with self._lock:
            if self._closed:
                raise RuntimeError("the store was left while this call was made")
            self._thread(pin % len(self._threads)).jobs.put((desk, future, work))
        return future

    def hand_in(self, pin: int, take: Callable[[W, T], bool], thing: T) -> None:
        """Have a worker take something, here and now, and wake its thread if `take` says so.

        For workers with a `due`, which deals with what was taken. Nothing is taken behind the last work.

        Raises:
            RuntimeError: if the pool is closed, or no thread can be had.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the store was left while this call was made")
            thread = self._thread(pin % len(self._threads))
            if take(thread.worker, thing):
                thread.jobs.put(_RING)

    def desk(self, loop: asyncio.AbstractEventLoop) -> Desk:
        """Where outcomes for the running loop are left."""
        return self._desks.get(loop) or self._new_desk(loop)

    async def close(self, last_work: Callable[[W], None]) -> None:
        """Do what was handed in, then `last_work` on every thread; end the threads and raise the first failure.

        A cancellation passes at once; the threads then come to their end by themselves.
        """
        loop = asyncio.get_running_loop()
        desk = self._new_desk(loop)
        with self._lock:
            self._closed = True
            threads = [thread for thread in self._threads if thread is not None]
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in threads]
        for thread, future in zip(threads, futures, strict=True):
            thread.jobs.put((desk, future, last_work))
            thread.jobs.put(None)
        ended = asyncio.gather(*futures, return_exceptions=True)
        ended.add_done_callback(lambda _: self._release(threads, loop))
        for outcome in await asyncio.shield(ended):
            if isinstance(outcome, BaseException):
                raise outcome

    def workers(self) -> list[W]:
        """The workers of all threads, for a forked process, in which these threads do not exist."""
        return [thread.worker for thread in self._threads if thread is not None]

    def _release(self, threads: list[_Thread[W]], here: asyncio.AbstractEventLoop) -> None:
        for thread in threads:
            thread.join()
        for loop, desk in self._desks.items():
            if loop is here:
                desk.remove()
            else:
                # A loop that is closed no longer listens, and its desk goes with the last reference to it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(desk.remove)

    def _thread(self, index: int) -> _Thread[W]:
        thread = self._threads[index]
        if thread is None:
            thread = _Thread(self._make_worker(), f"{self._name}-{index}", self._due)
            thread.start()
            self._threads[index] = thread
        return thread

    def _new_desk(self, loop: asyncio.AbstractEventLoop) -> Desk:
        with self._lock:
            self._desks = {known: desk for known, desk in self._desks.items() if not known.is_closed()}
            if loop not in self._desks:
                self._desks[loop] = Desk(loop)
            return self._desks[loop]


class _Thread(threading.Thread, Generic[W]):
    def __init__(self, worker: W, name: str, due: Callable[[W], float | None] | None) -> None:
        super().__init__(name=name, daemon=True)
        self._due = due
        self.jobs: queue.SimpleQueue[_Job[W] | Literal["ring"] | None] = queue.SimpleQueue()
        self.worker = worker

    def run(self) -> None:
        while (job := self._next()) is not None:
            desk, future, work = job
            desk.leave([(future, *_outcome(work, self.worker))])
            # A thread that waits must not keep alive what its last job was about.
            del job, desk, future, work

    def _next(self) -> _Job[W] | None:
        while True:
            timeout = None if self._due is None else self._due(self.worker)
            with contextlib.suppress(queue.Empty):
                job = self.jobs.get(timeout=timeout)
                if job != _RING:
                    return job


def _outcome(work: Callable[[W], R], worker: W) -> tuple[R | None, BaseException | None]:
    try:
        return work(worker), None
    except BaseException as failure:  # noqa: BLE001 - it is raised where the outcome is awaited
        return None, failure


class Desk:
    """Where the threads leave outcomes for one event loop, and ring for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outcomes: collections.deque[Outcome] = collections.deque()
        self._rung = False
        self._reading, self._writing = os.pipe()
        # At the latest with the last reference to this, and never before all threads have ended: one that came to ring
        # would write to whatever file has the number by then.
        self._close = weakref.finalize(self, _close_both, self._reading, self._writing)
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        loop.add_reader(self._reading, self._tell_all)

    def leave(self, outcomes: Iterable[Outcome]) -> None:
        """Leave outcomes, from any thread, with one ring at most."""
        self._outcomes.extend(outcomes)
        if not self._rung:
            self._rung = True
            # A full pipe wakes the loop as well as one more byte would.
            with contextlib.suppress(BlockingIOError):
                os.write(self._writing, b"!")

    def remove(self) -> None:
        """Stop listening, on the loop's own thread, once all threads have ended."""
        self._loop.remove_reader(self._reading)
        self._close()

    def _tell_all(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reading, 4096)
        # Before the look: an outcome that comes after it rings again.
        self._rung = False
        while self._outcomes:
            future, result, failure = self._outcomes.popleft()
            if future.done():
                continue  # cancelled: the work was done all the same
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)


def _close_both(reading: int, writing: int) -> None:
    os.close(reading)
    os.close(writing)
