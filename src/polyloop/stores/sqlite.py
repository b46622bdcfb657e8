"""`SqliteRunStore`: any number of runs in one SQLite file, with one sync for all barriers that wait at a time.

One thread writes. What was handed in while it was busy goes into the next transaction together (group commit).
Results and steps wait for the next barrier of any run, or go by themselves after 50 ms.

A batch gives every run what single appends would have given it: records are judged in order against the run's head
row, under the lock of `begin immediate`, and behind a refused one nothing of that run goes in.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polyloop.serialization import decode, encode
from polyloop.stores._pool import Pool
from polyloop.stores._positions import check_position
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    InvalidRequest,
    PolyLoopError,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from polyloop.types._checks import check_run_key, reject
from polyloop.types.records import is_terminal

__all__ = ["SqliteRunStore"]

LOCK_WAIT_S: Final = 30.0
"""How long a call waits for other writers of the file before `StoreBusy`. The wait keeps all runs of the object."""

REST_S: Final = 0.05
"""How long results and steps wait for a barrier to ride with. Half of what the port allows: a commit takes time."""

LAYOUT: Final = 1
"""The version of the tables, in the file's `user_version`. Records have a version of their own."""

_PATH_FIELD: Final = "SqliteRunStore.path"
_BARRIERS: Final = (RunStarted, EffectIntended, RunFinished)
_KINDS: Final = {
    RunStarted: "run_started",
    EffectIntended: "effect_intended",
    EffectCompleted: "effect_completed",
    StepCompleted: "step_completed",
    RunFinished: "run_finished",
}
_TABLES: Final = (
    "create table runs (key text primary key not null, next_seq integer not null, ended integer not null)",
    "create table records (key text not null, seq integer not null, kind text not null, recorded_at text not null,"
    " stop_reason text, record text not null, checksum integer not null, primary key (key, seq))",
    f"pragma user_version = {LAYOUT}",
)

_entered: Final[weakref.WeakSet[SqliteRunStore]] = weakref.WeakSet()
_inherited: Final[set[tuple[int, int]]] = set()
"""The files that this process's parent had open when it forked, as device and inode."""
_left_behind: Final[list[sqlite3.Connection]] = []
"""Connections of the parent: SQLite forbids a forked process even to close them."""
_creating: Final = threading.Lock()


@functools.cache
def _watch_forks() -> None:
    def leave_all() -> None:
        for store in list(_entered):
            store._leave_to_parent()  # noqa: SLF001 - of this module's own class

    os.register_at_fork(after_in_child=leave_all)


class SqliteRunStore:
    """Keeps the logs of all runs in one SQLite file: for many concurrent runs, which share their syncs.

    ::

        async with SqliteRunStore("runs.sqlite") as store:
            definition = AgentDefinition(store=store, ...)

    For a local disk: SQLite's write-ahead log does not work over a network. The file is made where it does not exist,
    with mode 0600, in a directory that must exist; SQLite keeps two more beside it while it is in use (`-wal`,
    `-shm`), which belong to it. Tables and useful queries: `research-wiki/design/0017-sqlite-store.md`.

    One object serves any number of runs, tasks, event loops and threads; objects and processes may share a file. A
    call that waits longer than 30 seconds for another writer raises `StoreBusy`. SQLite is called on one thread of
    the object's own, never on an event loop's.

    It works inside `async with` only (`RuntimeError` otherwise), and cannot be entered again before it was left.
    Leaving waits for the calls under way, commits what waits, raises the first failure that nobody was told of, and
    closes the file. A forked process finds the object left, and cannot enter a store on that file (`RuntimeError`):
    SQLite does not survive a fork. Start such processes with `spawn`.

    A call that fails raises `sqlite3.Error` itself, except for a lock (`StoreBusy`) and damage (`CorruptRunLog`). The
    failure of a transaction is told to each of its runs, whose keys are then blocked until read with `read_log`.
    """

    _connection: type[sqlite3.Connection] = sqlite3.Connection
    _wait_s = LOCK_WAIT_S

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(given, str):
            reject(_PATH_FIELD, "a path as a string or os.PathLike", given)
        if not given or "\0" in given or given == ":memory:":
            raise InvalidRequest(_PATH_FIELD, "must be the path of a file, not empty and without NUL characters")
        # Absolute, for a change of the working directory must not split the runs.
        self._path = Path(given).absolute()
        self._gate = threading.Lock()
        self._entered = False
        self._inode: tuple[int, int] | None = None
        self._pool: Pool[_Writer] | None = None
        self._inbox: collections.deque[_Item] = collections.deque()

    def __repr__(self) -> str:
        return f"SqliteRunStore({str(self._path)!r})"

    async def __aenter__(self) -> Self:
        with self._gate:
            if self._entered:
                raise RuntimeError("this SqliteRunStore is in use: it cannot be entered again before it was left")
            self._entered = True
        inbox = self._inbox = collections.deque()
        pool = Pool(
            lambda: _Writer(self._path, inbox, self._connection, self._wait_s), 1, "polyloop-sqlite", due=_Writer.rest
        )
        try:
            self._inode = await pool.submit(0, _Writer.prepare)
        except BaseException:
            self._entered = False
            await pool.close(_Writer.close)
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
            await pool.close(_Writer.close)
        except Exception as failure:
            if error is None or isinstance(error, Exception):
                raise
            # A cancellation passes whatever else goes wrong.
            error.add_note(f"leaving {self!r} failed too: {type(failure).__name__}: {failure}")

    def _leave_to_parent(self) -> None:
        pool, self._pool, self._entered, self._gate = self._pool, None, False, threading.Lock()
        if pool is not None and self._inode is not None:
            _inherited.add(self._inode)
            _left_behind.extend(writer.connection for writer in pool.workers() if writer.connection is not None)

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
        """Read a run's log from the file; unblocks the key. See `polyloop.ports.RunStore`."""
        check_run_key(key)
        return await self._running().submit(0, lambda writer: writer.read(key))

    async def _append(self, key: RunKey, record: Record) -> None:
        check_run_key(key)
        pool = self._running()
        # What holds mappings is encoded before anybody else can run: a cancelled caller may change them while the
        # call is under way. The rest is immutable, and long texts are better encoded on the thread.
        mutable = isinstance(record, RunStarted) or (isinstance(record, EffectIntended) and record.action is not None)
        item = _Item(key, record, encode(record) if mutable else None)
        # In the inbox before the job: whichever job comes first takes all that lies there into one transaction.
        self._inbox.append(item)
        await pool.submit(0, lambda writer: writer.settle(item))

    def _running(self) -> Pool[_Writer]:
        if self._pool is None:
            raise RuntimeError(f"{self!r} works inside 'async with' only: it was not entered yet, or was left")
        return self._pool


@dataclasses.dataclass(slots=True, eq=False)
class _Item:
    """One append on its way."""

    key: str
    record: Record
    text: str | None
    settled: bool = False
    """Whether its caller may be answered: a barrier is committed, another record is waiting, or it failed."""
    failure: BaseException | None = None


@dataclasses.dataclass(slots=True)
class _Block:
    failure: BaseException
    told: bool


class _Writer:
    """The one thread's side: the connection, what waits, and which keys are blocked."""

    def __init__(
        self, path: Path, inbox: collections.deque[_Item], factory: type[sqlite3.Connection], wait_s: float
    ) -> None:
        self._path = path
        self._inbox = inbox
        self._factory = factory
        self._wait_s = wait_s
        self._waiting: list[_Item] = []
        self._since = 0.0
        self._blocked: dict[str, _Block] = {}
        self.connection: sqlite3.Connection | None = None

    def prepare(self) -> tuple[int, int]:
        """Make the file and its tables, or refuse it; tells device and inode."""
        _create(self._path)
        status = os.stat(self._path)
        inode = status.st_dev, status.st_ino
        if inode in _inherited:
            raise RuntimeError(f"{str(self._path)!r} was in use when this process was forked: start it with 'spawn'")
        self._connected()
        return inode

    def settle(self, item: _Item) -> None:
        """Answer one append, after taking up all that was handed in so far."""
        if not item.settled:
            self._take_up()
        if item.failure is not None:
            raise item.failure

    def rest(self) -> float | None:
        """Commit what has waited long enough; tell how long the rest may still wait."""
        if not self._waiting:
            return None
        left = self._since + REST_S - time.monotonic()
        if left > 0:
            return left
        self._commit()
        return None

    def read(self, key: str) -> RunLog:
        """Commit what waits, and read a log as the file has it."""
        self._take_up()
        self._commit()
        self._blocked.pop(key, None)
        began = time.monotonic()
        try:
            connection = self._connected()
            with _transaction(connection, "begin"):
                head = connection.execute("select next_seq, ended from runs where key = ?", (key,)).fetchone()
                rows = connection.execute(
                    "select seq, kind, record, checksum from records where key = ? order by seq", (key,)
                ).fetchall()
        except sqlite3.Error as error:
            self._disconnect()
            raise _translated(error, key, began) from error
        return _log(key, head, rows)

    def close(self) -> None:
        """Commit what waits, close, and raise the first failure that nobody was told of."""
        self._take_up()
        self._commit()
        self._disconnect()
        for block in self._blocked.values():
            if not block.told:
                raise block.failure

    # --- appending

    def _take_up(self) -> None:
        barrier = False
        while self._inbox:
            item = self._inbox.popleft()
            if (block := self._blocked.get(item.key)) is not None:
                item.failure, item.settled, block.told = _again(item, block.failure), True, True
                continue
            try:
                item.text = encode(item.record) if item.text is None else item.text
            except Exception as failure:  # noqa: BLE001 - it is raised where the append is awaited
                self._fail(item, failure)
                continue
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(item)
            item.settled = not isinstance(item.record, _BARRIERS)
            barrier = barrier or not item.settled
        if barrier:
            self._commit()

    def _commit(self) -> None:
        """One transaction for all that waits. Afterwards each item is settled, one way or the other."""
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        runs: dict[str, list[_Item]] = {}
        for item in batch:
            runs.setdefault(item.key, []).append(item)
        began = time.monotonic()
        refused: list[tuple[_Item, Exception]] = []
        try:
            connection = self._connected()
            with _transaction(connection, "begin immediate"):
                for key, items in runs.items():
                    refused += _insert(connection, key, items)
        except Exception as error:  # noqa: BLE001 - it is raised where the appends are awaited
            # What SQLite remembers after a failure is not built upon: the next call opens the file anew.
            self._disconnect()
            refused = [(item, _translated(error, item.key, began)) for item in batch]
        for item, failure in refused:
            self._fail(item, failure)
        for item in batch:
            item.settled = True

    def _fail(self, item: _Item, failure: Exception) -> None:
        # An ordered record's caller has its answer already: the key's next call is told instead.
        told = not item.settled
        item.failure, item.settled = failure, True
        # The exception that is raised gathers frames, and with them records; the one that is kept must not.
        block = self._blocked.setdefault(item.key, _Block(copy.copy(failure), told))
        if told and not block.told:
            item.failure, block.told = copy.copy(block.failure), True

    # --- the connection

    def _connected(self) -> sqlite3.Connection:
        if self.connection is None:
            began = time.monotonic()
            # `mode=rw`: a file that was deleted meanwhile is an error, not an empty store.
            self.connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                uri=True,
                timeout=self._wait_s,
                isolation_level=None,
                factory=self._factory,
            )
            try:
                _set_up(self.connection, began + self._wait_s)
            except BaseException as error:
                self._disconnect()
                if isinstance(error, sqlite3.Error):
                    raise _translated(error, None, began) from error
                raise
        return self.connection

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            # Nothing that was acknowledged depends on closing: the write-ahead log is read by whoever comes next.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _create(path: Path) -> None:
    # Made here, for SQLite would make it readable to others. Never opened if it exists: closing a descriptor drops
    # the locks that other connections of this process hold on the file.
    with _creating:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _set_up(connection: sqlite3.Connection, deadline: float) -> None:
    while True:
        try:
            (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
            break
        except sqlite3.OperationalError as error:
            # On a new file this does not wait by itself, whatever the timeout.
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise InvalidRequest(_PATH_FIELD, "must lie where SQLite can keep a write-ahead log")
    connection.execute("pragma synchronous = full")
    if _layout(connection) == LAYOUT:
        return
    with _transaction(connection, "begin immediate"):
        found = _layout(connection)
        if found not in (0, LAYOUT):
            raise UnsupportedSchemaVersion(str(found), str(LAYOUT), "another layout of the tables")
        if not found:
            if connection.execute("select 1 from sqlite_master").fetchone() is not None:
                raise InvalidRequest(_PATH_FIELD, "must not be a database of something else")
            for statement in _TABLES:
                connection.execute(statement)


def _layout(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("pragma user_version").fetchone()
    return int(version)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("rollback")
        raise


def _insert(connection: sqlite3.Connection, key: str, items: list[_Item]) -> list[tuple[_Item, Exception]]:
    """Put in a run's records up to the first that is refused; the refused ones, each with its reason."""
    head = connection.execute("select next_seq, ended from runs where key = ?", (key,)).fetchone()
    next_seq, ended = (0, False) if head is None else (head[0], bool(head[1]))
    rows = []
    failure: PolyLoopError | None = None
    for item in items:
        try:
            check_position(key, item.record, next_seq, ended=ended)
        except PolyLoopError as refusal:
            failure = refusal
            break
        rows.append(_row(item))
        next_seq, ended = next_seq + 1, is_terminal(item.record)
    if rows and not _store(connection, key, rows, next_seq, ended=ended):
        rows, failure = [], _misplaced(key, "its head row is missing or behind its records")
    return [] if failure is None else list(zip(items[len(rows) :], itertools.repeat(failure)))


def _store(
    connection: sqlite3.Connection, key: str, rows: list[tuple[object, ...]], next_seq: int, *, ended: bool
) -> bool:
    """Whether the rows could be put in: one run's damage must not take the others' records with it."""
    connection.execute("savepoint run")
    try:
        connection.executemany("insert into records values (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("insert or replace into runs values (?, ?, ?)", (key, next_seq, int(ended)))
    except sqlite3.IntegrityError:
        connection.execute("rollback to run")
        return False
    finally:
        # An error that has ended the whole transaction has ended this with it.
        if connection.in_transaction:
            connection.execute("release run")
    return True


def _row(item: _Item) -> tuple[object, ...]:
    record, text = item.record, item.text or ""
    reason = record.stop_reason if isinstance(record, RunFinished) else None
    checksum = _checksum(item.key, record.seq, text)
    kind = _KINDS[type(record)]
    return (item.key, record.seq, kind, record.recorded_at, None if reason is None else str(reason), text, checksum)


def _checksum(key: str, seq: int, text: str) -> int:
    return zlib.crc32(f"{seq} {key} {text}".encode())


def _log(key: str, head: tuple[int, int] | None, rows: list[tuple[object, ...]]) -> RunLog:
    """The log that the rows hold, or the damage."""
    records = [_record(key, position, *row) for position, row in enumerate(rows)]
    try:
        log = RunLog.from_records(records)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=damage.seq) from None
    ended = log.finished is not None and is_terminal(log.finished)
    if (head or (0, 0)) != (log.next_seq, int(ended)):
        raise _misplaced(key, "its head row does not fit its records")
    return log


def _record(key: str, position: int, seq: object, kind: object, text: object, checksum: object) -> Record:
    if seq != position:
        raise _misplaced(key, f"a row for position {position} is missing", seq=position)
    if not isinstance(text, str) or not text.isascii() or checksum != _checksum(key, position, text):
        raise CorruptRunLog(
            CorruptionReason.MALFORMED_LINE, "a row's text does not fit its checksum", key=key, seq=position
        )
    try:
        record = decode(text)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=position) from None
    if kind != _KINDS[type(record)]:
        raise CorruptRunLog(CorruptionReason.MALFORMED_LINE, "a row's kind is not its record's", key=key, seq=position)
    return record


def _misplaced(key: str, problem: str, seq: int | None = None) -> CorruptRunLog:
    return CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key, seq=seq)


def _is_busy(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_BUSY


def _code(error: BaseException) -> int:
    # The lowest byte is the error, the others say more of it. Errors of the module itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _translated(error: Exception, key: str | None, began: float) -> Exception:
    """What a caller is told: never a bare "database is locked"."""
    if _is_busy(error):
        return StoreBusy(key, time.monotonic() - began)
    if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptRunLog(CorruptionReason.MALFORMED_LINE, f"SQLite refuses the file: {error}", key=key)
    return error


def _again(item: _Item, failure: BaseException) -> BaseException:
    """What a blocked key answers: the failure itself, or for a refusal that another was refused before."""
    if isinstance(failure, RunConflict | RunAlreadyExists):
        problem = "an earlier record was refused, and the log was not read since"
        return RunConflict(item.key, problem, seq=item.record.seq)
    return copy.copy(failure)
