"""A few threads that do blocking work for any number of event loops.

Work is pinned: the same pin means the same thread, and the work of one thread is done in the order in which it was
handed in. Each thread has a worker of its own, which it gives to every piece of work.

Hops to a thread and back are most of what a short write costs, and there are two ways to make them cheap. Work is
handed over at the end of the loop's turn: handed over at once, the thread would wake while the loop still holds the
interpreter, and go back to sleep for it (measured: 56 instead of 20 µs a hop). And a loop is woken once for all that
was done since it last looked, not once for each piece.
"""

from __future__ import annotations

import asyncio
import collections
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

W = TypeVar("W")
R = TypeVar("R")

_Job: TypeAlias = "tuple[_Desk[W], asyncio.Future[Any], Callable[[W], Any]]"


class Pool(Generic[W]):
    """At most `size` daemon threads, each started when it is first needed."""

    def __init__(self, make_worker: Callable[[], W], size: int, name: str) -> None:
        self._make_worker = make_worker
        self._name = name
        self._threads: list[_Thread[W] | None] = [None] * size
        self._desks: dict[asyncio.AbstractEventLoop, _Desk[W]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, pin: int, work: Callable[[W], R]) -> asyncio.Future[R]:
        """Hand in work. It is done whatever becomes of the future that tells its outcome."""
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._new_desk(loop)
        return desk.take(pin, work)

    async def close(self, last_work: Callable[[W], None]) -> None:
        """Do what was handed in, then `last_work` on every thread; end the threads and raise the first failure.

        A cancellation passes at once; the threads then come to their end by themselves. What other loops hand in
        meanwhile fails with `RuntimeError`.
        """
        loop = asyncio.get_running_loop()
        desk = self._new_desk(loop)
        desk.hand_over()
        with self._lock:
            self._closed = True
            threads = [thread for thread in self._threads if thread is not None]
        futures: list[asyncio.Future[None]] = [loop.create_future() for _ in threads]
        for thread, future in zip(threads, futures, strict=True):
            thread.jobs.put((desk, future, last_work))
            thread.jobs.put(None)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def start(self, pin: int, job: _Job[W]) -> None:
        """Give a job to its thread.

        Raises:
            RuntimeError: if the pool is closed, or no thread can be had.
        """
        # Under the lock, for nothing may come behind a thread's last job.
        with self._lock:
            if self._closed:
                raise RuntimeError("the store was left while this call was made")
            self._thread(pin % len(self._threads)).jobs.put(job)

    def workers(self) -> list[W]:
        """The workers of all threads, for a forked process, in which these threads do not exist."""
        return [thread.worker for thread in self._threads if thread is not None]

    def _thread(self, index: int) -> _Thread[W]:
        thread = self._threads[index]
        if thread is None:
            thread = _Thread(self._make_worker(), f"{self._name}-{index}")
            thread.start()
            self._threads[index] = thread
        return thread

    def _new_desk(self, loop: asyncio.AbstractEventLoop) -> _Desk[W]:
        with self._lock:
            self._desks = {known: desk for known, desk in self._desks.items() if not known.is_closed()}
            return self._desks.setdefault(loop, _Desk(self, loop))


class _Thread(threading.Thread, Generic[W]):
    def __init__(self, worker: W, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[_Job[W] | None] = queue.SimpleQueue()
        self.worker = worker

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            desk, future, work = job
            desk.put(future, *_outcome(work, self.worker))
            # A thread that waits must not keep alive what its last job was about.
            del job, desk, future, work


def _outcome(work: Callable[[W], R], worker: W) -> tuple[R | None, BaseException | None]:
    try:
        return work(worker), None
    except BaseException as failure:  # noqa: BLE001 - it is raised where the outcome is awaited
        return None, failure


class _Desk(Generic[W]):
    """Where one event loop's work is handed in, and its outcomes are left."""

    def __init__(self, pool: Pool[W], loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._jobs: list[tuple[int, _Job[W]]] = []
        self._outcomes: collections.deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = collections.deque()
        self._woken = False

    def take(self, pin: int, work: Callable[[W], R]) -> asyncio.Future[R]:
        """Take work, on the loop's own thread."""
        future: asyncio.Future[R] = self._loop.create_future()
        if not self._jobs:
            self._loop.call_soon(self.hand_over)
        self._jobs.append((pin, (self, future, work)))
        return future

    def hand_over(self) -> None:
        """Give the threads all that was taken in this turn of the loop."""
        jobs, self._jobs = self._jobs, []
        for pin, job in jobs:
            try:
                self._pool.start(pin, job)
            except (RuntimeError, MemoryError) as refused:
                self.put(job[1], None, refused)

    def put(self, future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
        """Leave an outcome, from any thread."""
        self._outcomes.append((future, result, failure))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop was closed meanwhile: nobody waits for these any more.
                self._outcomes.clear()

    def _deliver(self) -> None:
        # First: an outcome that comes after the last look wakes the loop again.
        self._woken = False
        while self._outcomes:
            future, result, failure = self._outcomes.popleft()
            if future.done():
                continue  # cancelled: the work was done all the same
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)
