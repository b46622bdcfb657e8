"""A few threads that do blocking work for any number of event loops.

Work is pinned: the same pin means the same thread, and the work of one thread is done in the order in which it was
handed in. Each thread has a worker of its own, which it gives to every piece of work.

A hop to a thread and back is most of what a short write costs. So a loop is woken once for all that was done since
it last looked, and not once for each piece.
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

_Job: TypeAlias = "tuple[_Inbox, asyncio.Future[Any], Callable[[W], Any]]"


class Pool(Generic[W]):
    """At most `size` daemon threads, each started when it is first needed."""

    def __init__(self, make_worker: Callable[[], W], size: int, name: str) -> None:
        self._make_worker = make_worker
        self._name = name
        self._threads: list[_Thread[W] | None] = [None] * size
        self._inboxes: dict[asyncio.AbstractEventLoop, _Inbox] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, pin: int, work: Callable[[W], R]) -> asyncio.Future[R]:
        """Hand in work. It is done whatever becomes of the future that tells its outcome.

        Raises:
            RuntimeError: if the pool is closed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        # Under the lock, for nothing may be handed in behind a thread's last job.
        with self._lock:
            if self._closed:
                raise RuntimeError("the store is being left, or was left, in another task")
            self._thread(pin % len(self._threads)).jobs.put((self._inbox(loop), future, work))
        return future

    async def close(self, last_work: Callable[[W], None]) -> None:
        """Do what was handed in, then `last_work` on every thread; end the threads and raise the first failure.

        A cancellation passes at once; the threads then come to their end by themselves.
        """
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[None]] = []
        with self._lock:
            self._closed = True
            threads = [thread for thread in self._threads if thread is not None]
            for thread in threads:
                futures.append(loop.create_future())
                thread.jobs.put((self._inbox(loop), futures[-1], last_work))
                thread.jobs.put(None)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for thread in threads:
            thread.join()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _thread(self, index: int) -> _Thread[W]:
        thread = self._threads[index]
        if thread is None:
            thread = _Thread(self._make_worker(), f"{self._name}-{index}")
            thread.start()
            self._threads[index] = thread
        return thread

    def _inbox(self, loop: asyncio.AbstractEventLoop) -> _Inbox:
        inbox = self._inboxes.get(loop)
        if inbox is None:
            self._inboxes = {known: box for known, box in self._inboxes.items() if not known.is_closed()}
            inbox = self._inboxes[loop] = _Inbox(loop)
        return inbox


class _Thread(threading.Thread, Generic[W]):
    def __init__(self, worker: W, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[_Job[W] | None] = queue.SimpleQueue()
        self._worker = worker

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            inbox, future, work = job
            inbox.put(future, *_outcome(work, self._worker))
            # A thread that waits must not keep alive what its last job was about.
            del job, inbox, future, work


def _outcome(work: Callable[[W], R], worker: W) -> tuple[R | None, BaseException | None]:
    try:
        return work(worker), None
    except BaseException as failure:  # noqa: BLE001 - it is raised where the outcome is awaited
        return None, failure


class _Inbox:
    """What was done for one event loop and its tasks have not been told yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._outcomes: collections.deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = collections.deque()
        self._woken = False

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
