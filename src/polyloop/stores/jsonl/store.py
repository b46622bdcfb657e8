"""`JsonlRunStore`: a file a run, in a directory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polyloop.serialization import encode
from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores._pool import Pool
from polyloop.stores.jsonl.files import DIRECTORY_FIELD, Os
from polyloop.stores.jsonl.listing import Index
from polyloop.stores.jsonl.runs import Runs
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    InvalidRequest,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from polyloop.types._checks import check_run_key, reject

THREADS: Final = 8
"""How many threads write and sync. Each run is pinned to one."""

_pins: Final = itertools.count()
"""Which thread a listing is made on: one after the other."""

_entered: Final[weakref.WeakSet[JsonlRunStore]] = weakref.WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Have every store of a forked process be one that was not entered: neither its threads nor its locks are there."""

    def leave_all() -> None:
        for store in list(_entered):
            store._leave_to_parent()  # noqa: SLF001 - of this module's own class

    os.register_at_fork(after_in_child=leave_all)


class JsonlRunStore:
    """Keeps each run's log in a file of its own: human-readable, append-only, one sync a barrier.

    ::

        async with JsonlRunStore("runs") as store:
            definition = AgentDefinition(store=store, ...)

    For a directory on a local POSIX disk; a network file system is refused. It is made where it does not exist,
    with mode 0700, its files with mode 0600. A file's name is a readable beginning of the key and the key's SHA-256;
    the key itself stands in its first line. `jq .record <file>` shows the records; how a line is made up stands in
    `polyloop.stores.jsonl.format`, how a torn tail is told from damage, and where it cannot be, in
    `polyloop.stores.jsonl.contents`.

    One object serves any number of runs, tasks, event loops and threads, and any number of objects and processes may
    share a directory: `flock` makes comparing the position and appending one act. System calls are made on up to 8
    threads and never on an event loop's. Up to 128 files are open at a time; what is remembered of a run (its
    position and the records since its last barrier) is dropped when it ends.

    It works inside `async with` only (`RuntimeError` otherwise), and cannot be entered again before it was left.
    Leaving waits for the calls under way, syncs what is not yet durable, raises the first failure, and releases
    everything. An object that was left can be entered again; in a forked process, one that was entered is left.

    A call that fails raises the `OSError` itself. The key is then blocked until it is read with `read_log`; the
    next append after that first makes durable what may have been left behind.
    """

    _os = Os()

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
        if not isinstance(path, str):
            reject(DIRECTORY_FIELD, "a path as a string or os.PathLike", path)
        if not path or "\0" in path:
            raise InvalidRequest(DIRECTORY_FIELD, "must be a path, not empty and without NUL characters")
        # Absolute, for a change of the working directory must not split the runs.
        self._directory = Path(path).absolute()
        self._gate = threading.Lock()
        self._entered = False
        self._pool: Pool[Runs] | None = None

    def __repr__(self) -> str:
        return f"JsonlRunStore({str(self._directory)!r})"

    async def __aenter__(self) -> Self:
        with self._gate:
            if self._entered:
                raise RuntimeError("this JsonlRunStore is in use: it cannot be entered again before it was left")
            self._entered = True
        pool = Pool(lambda: Runs(self._directory, self._os), THREADS, "polyloop-jsonl")
        try:
            await pool.submit(0, Runs.prepare)
        except BaseException:
            self._entered = False
            await pool.close(Runs.close)
            raise
        self._pool = pool
        _watch_forks()
        _entered.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, self._pool, self._entered = self._pool, None, False
        if pool is None:
            return
        try:
            await pool.close(Runs.close)
        except Exception as failure:
            if error is None or isinstance(error, Exception):
                raise
            # A cancellation passes whatever else goes wrong.
            error.add_note(f"leaving {self!r} failed too: {type(failure).__name__}: {failure}")

    def _leave_to_parent(self) -> None:
        pool, self._pool, self._entered, self._gate = self._pool, None, False, threading.Lock()
        if pool is not None:
            for runs in pool.workers():
                runs.let_go()

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        """Write a run's first record. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        """Announce an effect. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        """Write what came of an effect. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        """Write a step. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        """Write an end record. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        """Read a run's log from its file; unblocks the key. See `polyloop.ports.RunStore`."""
        check_run_key(key)
        return await self._running().submit(hash(key), lambda runs: runs.read(key))

    def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[RunSummary, None]:
        """List the runs, by their start and then by their key. Damaged logs have no start and come first.

        The beginning and the end of every log are read before the first summary is given, whatever the `limit`, and
        again for each page: go through one listing rather than through many pages. Memory stays the same for any number
        of runs: what is needed to put them in order goes into a temporary file without a name. A run that is begun or
        deleted meanwhile may be listed or not. A log whose damage hides its key is listed under its file's name; an
        empty or wholly torn file is no run; whatever else lies in the directory is passed over.

        Args:
            state: Only runs in this state; None for all.
            prefix: Only runs whose key begins with this.
            limit: At most so many; None for all.
            after: Only runs behind this one, which need not exist any more: the last of the page before.
            newest_first: The reverse order.

        Raises:
            InvalidRequest: an argument is not of its type, or negative.
            StoreBusy: another process kept a log locked for 30 seconds.
            OSError: a log, or the directory, cannot be read.
        """
        listing = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        return self._listed(listing)

    async def _listed(self, listing: Listing) -> AsyncGenerator[RunSummary, None]:
        pool, pin = self._running(), next(_pins)
        index = Index(self._directory, self._os, listing)
        try:
            while await self._still(pool).submit(pin, lambda runs: index.read_some(runs.indexes)):
                pass
            while page := await self._still(pool).submit(pin, lambda _: index.page()):
                for summary in page:
                    yield summary
        finally:
            # Not awaited, for whoever drops a listing does not wait for it. Leaving the store releases it as well,
            # and then nothing can be handed in.
            if self._pool is pool:
                with contextlib.suppress(RuntimeError):
                    pool.submit(pin, lambda _: index.close())

    def _still(self, pool: Pool[Runs]) -> Pool[Runs]:
        """The threads that a listing was begun on, unless the store was left since."""
        if self._pool is not pool:
            raise RuntimeError(f"{self!r} was left while its runs were listed")
        return pool

    async def delete(self, key: RunKey, /) -> bool:
        """Delete a run's log, durably, with all that is in it. Damaged ones too.

        Args:
            key: The run.

        Returns:
            Whether there was one.

        Raises:
            RunConflict: the run is driven in this object: its last append here was taken, and was no end record. One
                that is driven elsewhere is deleted, and its driver's next append refused.
            StoreBusy: another process kept the log locked for 30 seconds.
        """
        check_run_key(key)
        return await self._running().submit(hash(key), lambda runs: runs.delete(key))

    async def _append(self, key: RunKey, record: Record) -> None:
        check_run_key(key)
        pool = self._running()
        # What holds mappings is encoded before anybody else can run: a cancelled caller may change them while the
        # call is under way. The rest is immutable, and long texts are better encoded on the thread.
        mutable = isinstance(record, RunStarted) or (isinstance(record, EffectIntended) and record.action is not None)
        text = encode(record) if mutable else None
        await pool.submit(hash(key), lambda runs: runs.append(key, record, text))

    def _running(self) -> Pool[Runs]:
        if self._pool is None:
            raise RuntimeError(f"{self!r} works inside 'async with' only: it was not entered yet, or was left")
        return self._pool
