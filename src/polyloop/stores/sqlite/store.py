"""`SqliteRunStore`: any number of runs in one SQLite file."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polyloop.serialization import encode
from polyloop.stores._disk import read_mounts
from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores._pool import Pool
from polyloop.stores.sqlite.file import PATH_FIELD, renew_lock
from polyloop.stores.sqlite.listing import PAGE_ROWS
from polyloop.stores.sqlite.rows import Item
from polyloop.stores.sqlite.writer import LOCK_WAIT_S, Writer, inherited
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

_entered: Final[weakref.WeakSet[SqliteRunStore]] = weakref.WeakSet()
_left_behind: Final[list[sqlite3.Connection]] = []
"""Connections of the parent: SQLite forbids a forked process even to close them."""


@functools.cache
def _watch_forks() -> None:
    def leave_all() -> None:
        renew_lock()
        for store in list(_entered):
            store._leave_to_parent()  # noqa: SLF001 - of this module's own class

    os.register_at_fork(after_in_child=leave_all)


class SqliteRunStore:
    """Keeps the logs of all runs in one SQLite file: for many concurrent runs, which share their syncs.

    ::

        async with SqliteRunStore("runs.sqlite") as store:
            definition = AgentDefinition(store=store, ...)

    For a local disk: SQLite's write-ahead log does not work over a network, and a network file system is refused. The
    file is made where it does not exist, with mode 0600, in a directory that must exist; SQLite keeps two more beside
    it while it is in use (`-wal`, `-shm`), which belong to it. Tables and useful queries:
    `research-wiki/design/0017-sqlite-store.md`.

    One object serves any number of runs, tasks, event loops and threads; objects and processes may share a file. A
    call that waits longer than 30 seconds for another writer raises `StoreBusy`. SQLite is called on one thread of
    the object's own, never on an event loop's.

    It works inside `async with` only (`RuntimeError` otherwise), and cannot be entered again before it was left.
    Leaving waits for the calls under way, commits what waits, raises the first failure that nobody was told of, and
    closes the file. A forked process finds the object left, and cannot enter a store on that file (`RuntimeError`):
    SQLite does not survive a fork. Start such processes with `spawn`.

    Results and steps are not waited for: their place is fixed at once, and they are committed with the next barrier of
    any run, or by themselves after 70 milliseconds. What becomes of them otherwise is told by the key's next call.

    A call that fails raises `sqlite3.Error` itself, except for a lock (`StoreBusy`) and damage (`CorruptRunLog`). The
    failure of a transaction is told to each of its runs, whose keys are then blocked until read with `read_log`. A
    read raises what the key's callers were not told yet; the next one then reads.
    """

    _connection: type[sqlite3.Connection] = sqlite3.Connection
    _wait_s = LOCK_WAIT_S
    _mounts = staticmethod(read_mounts)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(given, str):
            reject(PATH_FIELD, "a path as a string or os.PathLike", given)
        if not given or "\0" in given or given == ":memory:":
            raise InvalidRequest(PATH_FIELD, "must be the path of a file, not empty and without NUL characters")
        # Absolute, for a change of the working directory must not split the runs.
        self._path = Path(given).absolute()
        self._gate = threading.Lock()
        self._entered = False
        self._inode: tuple[int, int] | None = None
        self._inside: tuple[Pool[Writer], Writer] | None = None

    def __repr__(self) -> str:
        return f"SqliteRunStore({str(self._path)!r})"

    async def __aenter__(self) -> Self:
        with self._gate:
            if self._entered:
                raise RuntimeError("this SqliteRunStore is in use: it cannot be entered again before it was left")
            self._entered = True
        _watch_forks()
        writer = Writer(self._path, self._connection, self._wait_s)
        pool = Pool(lambda: writer, 1, "polyloop-sqlite", due=Writer.turn)
        try:
            self._inode = await pool.submit(0, lambda writer: writer.prepare(self._mounts()))
        except BaseException:
            self._entered = False
            await pool.close(Writer.close)
            raise
        self._inside = pool, writer
        _entered.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside, self._inside, self._entered = self._inside, None, False
        if inside is None:
            return
        try:
            await inside[0].close(Writer.close)
        except Exception as failure:
            if error is None or isinstance(error, Exception):
                raise
            # A cancellation passes whatever else goes wrong.
            error.add_note(f"leaving {self!r} failed too: {type(failure).__name__}: {failure}")

    def _leave_to_parent(self) -> None:
        inside, self._inside, self._entered, self._gate = self._inside, None, False, threading.Lock()
        if inside is not None and self._inode is not None:
            inherited.add(self._inode)
            if (connection := inside[1].connection) is not None:
                _left_behind.append(connection)

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        """Write a run's first record. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        """Announce an effect. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        """Write what came of an effect. See `polyloop.ports.RunStore`."""
        await self._append(key, record, ordered=True)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        """Write a step. See `polyloop.ports.RunStore`."""
        await self._append(key, record, ordered=True)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        """Write an end record. See `polyloop.ports.RunStore`."""
        await self._append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        """Read a run's log from the file; unblocks the key. See `polyloop.ports.RunStore`."""
        check_run_key(key)
        pool, _ = self._running()
        return await pool.submit(0, lambda writer: writer.read(key))

    async def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[RunSummary]:
        """List the runs, by their start and then by their key. See `EphemeralRunStore.runs`.

        Raises:
            InvalidRequest: an argument is not of its type, or negative.
            StoreBusy, CorruptRunLog, sqlite3.Error: the file cannot be read.
        """
        listing = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        while listing.limit != 0:
            pool, _ = self._running()
            page = await pool.submit(0, functools.partial(Writer.page, listing=listing))
            for summary in page:
                yield summary
            if len(page) < PAGE_ROWS:
                return
            left = None if listing.limit is None else listing.limit - len(page)
            listing = dataclasses.replace(listing, after=page[-1], limit=left)

    async def delete(self, key: RunKey, /) -> bool:
        """Forget a run and its log; tells whether there was one. See `EphemeralRunStore.delete`.

        Raises:
            RunConflict: the run is driven in this object: its last append here was taken, and was no end record.
            StoreBusy, CorruptRunLog, sqlite3.Error: the file cannot be written; the run is there as it was.
        """
        check_run_key(key)
        pool, _ = self._running()
        return await pool.submit(0, lambda writer: writer.delete(key))

    async def _append(self, key: RunKey, record: Record, *, ordered: bool = False) -> None:
        check_run_key(key)
        pool, writer = self._running()
        # What holds mappings is encoded before anybody else can run: its caller may change them afterwards. The rest
        # is immutable, and long texts are better encoded on the thread.
        mutable = isinstance(record, RunStarted) or (isinstance(record, EffectIntended) and record.action is not None)
        item = Item(key, record, None, time.monotonic(), None)
        if mutable:
            try:
                item.text = encode(record)
            except Exception as failure:  # noqa: BLE001 - it blocks the key, and is raised below, like any other
                item.failure = failure
        if ordered and not writer.blocks(key):
            pool.hand_in(0, Writer.take, item)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        item.answer = pool.desk(loop), future
        pool.hand_in(0, Writer.take, item)
        try:
            await future
        except asyncio.CancelledError:
            # A failure of ordered records that it may have been told is still owed.
            item.unheard = True
            raise

    def _running(self) -> tuple[Pool[Writer], Writer]:
        if self._inside is None:
            raise RuntimeError(f"{self!r} works inside 'async with' only: it was not entered yet, or was left")
        return self._inside
