"""The one thread that calls SQLite: what waits, what is blocked, and one transaction for all of it.

Whoever appends hands an `Item` in, from any thread, and has fixed its place with that. The thread takes up what was
handed in as one batch whenever it comes round. So the records that come while one transaction is under way share the
next, and an event loop is woken once for all of its calls that a transaction has settled.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from polyloop.serialization import encode
from polyloop.stores._listing import DRIVEN, Listing, RunSummary
from polyloop.stores._pool import Desk, Outcome
from polyloop.stores.sqlite.batch import put_in
from polyloop.stores.sqlite.file import (
    as_text,
    create_file,
    empty_log,
    is_busy,
    refuse_network,
    set_up,
    sync_names,
    transaction,
    translated,
)
from polyloop.stores.sqlite.heads import READ_HEAD, Heads
from polyloop.stores.sqlite.listing import read_page
from polyloop.stores.sqlite.rows import READ_RECORDS, Item, read_rows
from polyloop.types import RunAlreadyExists, RunConflict, RunFinished, RunLog, StoreBusy

R = TypeVar("R")

LOCK_WAIT_S: Final = 30.0
"""How long a call waits for other writers of the file before `StoreBusy`. The wait keeps all runs of the object."""

inherited: Final[set[tuple[int, int]]] = set()
"""The files that this process's parent had open when it forked, as device and inode."""

REST_S: Final = 0.07
"""How long results and steps wait for a barrier to ride with. The port allows 100 ms, and a commit takes time."""


@dataclasses.dataclass(slots=True)
class _Block:
    failure: Exception
    ordered: bool = False
    """Whether ordered records are among what failed: their callers went on, so somebody else is to be told."""
    told: bool = False
    """Whether a call that reads was told."""
    hearer: Item | None = None
    """The append that was told."""

    @property
    def owed(self) -> bool:
        heard = self.told or (self.hearer is not None and not self.hearer.unheard)
        return self.ordered and not heard


class _Sleep(enum.Enum):
    """What the thread must be woken for."""

    NO = enum.auto()
    """Nothing: it has yet to look what was handed in."""
    DOZE = enum.auto()
    """A record that somebody waits for. It looks by itself within `REST_S`."""
    SLEEP = enum.auto()
    """Anything."""


class Writer:
    """The one thread's side: the connection, what waits, and which keys are blocked."""

    def __init__(self, path: Path, factory: type[sqlite3.Connection], wait_s: float) -> None:
        self._path = path
        self._factory = factory
        self._wait_s = wait_s
        self._inbox: collections.deque[Item] = collections.deque()
        self._sleep = _Sleep.NO
        self._waiting: list[Item] = []
        self._heads = Heads()
        self._blocked: dict[str, _Block] = {}
        self._driven: set[str] = set()
        """The runs whose last append here was taken and was no end record."""
        self._doubtful = False
        """Whether a transaction failed for another reason than a lock, and the log was not emptied since."""
        self.connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        """Which file the connection has open, as device and inode."""

    # --- called from the callers' threads

    def take(self, item: Item) -> bool:
        """Fix an append's place. Tells whether the thread must be woken; of two calls at once, one must wait."""
        self._inbox.append(item)
        # In this order, and the other way round in `turn`: of the two, one sees what the other did.
        if self._sleep is _Sleep.NO or (item.answer is None and self._sleep is _Sleep.DOZE):
            return False
        self._sleep = _Sleep.NO
        return True

    def blocks(self, key: str) -> bool:
        """Whether the key is known to be blocked: an append that need not wait for an answer has to, then."""
        return key in self._blocked

    # --- called on the thread

    def prepare(self, mounts: str) -> tuple[int, int]:
        """Make the file and its tables, or refuse it; tells device and inode. `mounts` is Linux's table of mounts."""
        refuse_network(self._path, mounts)
        create_file(self._path)
        status = self._path.stat()
        inode = status.st_dev, status.st_ino
        if inode in inherited:
            raise RuntimeError(f"{str(self._path)!r} was in use when this process was forked: start it with 'spawn'")
        self._connected()
        return inode

    def turn(self) -> float | None:
        """Deal with what was handed in and what has waited long enough; tells for how long to sleep at most."""
        while True:
            self._sleep = _Sleep.NO
            came = self._take_up()
            left = REST_S if came else None
            if self._waiting:
                left = self._waiting[0].taken_at + REST_S - time.monotonic()
                if left <= 0:
                    self._commit()
                    left = REST_S
            # After something came the thread sleeps lightly once: a record that rides with the next barrier, as most
            # do, then wakes nobody.
            self._sleep = _Sleep.SLEEP if left is None else _Sleep.DOZE
            if not self._inbox:
                return left

    def read(self, key: str) -> RunLog:
        """Commit what waits, and read a log as the file has it."""
        self._settle(key)

        def read(connection: sqlite3.Connection) -> RunLog:
            with transaction(connection, "begin"):
                head = connection.execute(READ_HEAD, (key,)).fetchone()
                rows = connection.execute(READ_RECORDS, (key,)).fetchall()
            # Not before: a read that failed tells nobody where the run stands.
            self._unblock(key)
            return read_rows(key, head, rows)

        return self._ask(key, read)

    def page(self, listing: Listing) -> list[RunSummary]:
        """Commit what waits, and read the first runs of a listing."""
        self._settle(None)
        return self._ask(None, lambda connection: read_page(connection, listing))

    def delete(self, key: str) -> bool:
        """Commit what waits, and delete a run that is not driven; tells whether there was one."""
        self._settle(key)
        if key in self._driven:
            raise RunConflict(key, DRIVEN)

        def delete(connection: sqlite3.Connection) -> bool:
            with transaction(connection, "begin immediate"):
                records = connection.execute("delete from records where key = ?", (key,)).rowcount
                heads = connection.execute("delete from runs where key = ?", (key,)).rowcount
            return bool(records or heads)

        deleted = self._ask(key, delete, writes=True)
        self._unblock(key)
        return deleted

    def close(self) -> None:
        """Commit what waits, close, and raise the first failure that nobody was told of."""
        self._settle(None)
        self._disconnect()
        for block in self._blocked.values():
            if block.owed:
                raise block.failure

    # --- appending

    def _settle(self, key: str | None) -> None:
        """Commit all that waits, for a call that reads; raises what the key's callers were not told yet."""
        self._take_up()
        self._commit()
        block = None if key is None else self._blocked.get(key)
        if block is not None and block.owed:
            block.told = True
            raise copy.copy(block.failure)

    def _take_up(self) -> bool:
        """Take up what was handed in, and commit if somebody waits for it; tells whether there was anything."""
        failed: list[Item] = []
        barrier = False
        taken = len(self._inbox)
        for _ in range(taken):
            item = self._inbox.popleft()
            failure = self._refusal(item)
            if failure is None:
                self._waiting.append(item)
                barrier = barrier or item.answer is not None
            else:
                self._fail(item, failure)
                failed.append(item)
        _answer(failed)
        if barrier:
            self._commit()
        return bool(taken)

    def _refusal(self, item: Item) -> Exception | None:
        """Why a record is not tried; encodes it if there is no reason."""
        if (block := self._blocked.get(item.key)) is not None:
            return _again(item, block)
        if item.failure is not None:
            return item.failure
        if item.text is None:
            try:
                item.text = encode(item.record)
            except Exception as failure:  # noqa: BLE001 - it is raised where the append is awaited
                return failure
        return None

    def _commit(self) -> None:
        """One transaction for all that waits. Afterwards each caller has its answer, one way or the other."""
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        began = time.monotonic()
        try:
            refused = put_in(self._connected(), self._heads, batch)
        except Exception as error:  # noqa: BLE001 - it is raised where the appends are awaited
            # What SQLite remembers after a failure is not built upon: the next call opens the file anew.
            self._disconnect()
            self._doubtful = self._doubtful or not (is_busy(error) or isinstance(error, StoreBusy))
            refused = [(item, translated(error, item.key, began)) for item in batch]
        for item in batch:
            if isinstance(item.record, RunFinished):
                self._driven.discard(item.key)
            else:
                self._driven.add(item.key)
        for item, failure in refused:
            self._driven.discard(item.key)
            self._fail(item, failure)
        _answer(batch)

    def _fail(self, item: Item, failure: Exception) -> None:
        # An ordered record's caller went on: the key's next call is told instead.
        # The exception that is raised gathers frames, and with them records; the one that is kept must not.
        block = self._blocked.setdefault(item.key, _Block(copy.copy(failure)))
        item.failure = copy.copy(block.failure if block.owed else failure)
        if item.answer is None:
            block.ordered = True
        else:
            block.hearer = item

    def _unblock(self, key: str) -> None:
        self._blocked.pop(key, None)
        self._heads.forget(key)

    # --- the connection

    def _ask(self, key: str | None, question: Callable[[sqlite3.Connection], R], *, writes: bool = False) -> R:
        began = time.monotonic()
        try:
            return question(self._connected())
        except sqlite3.Error as error:
            self._disconnect()
            self._doubtful = self._doubtful or (writes and not is_busy(error))
            raise translated(error, key, began) from error

    def _connected(self) -> sqlite3.Connection:
        if self.connection is not None and self._identity() != self._opened:
            # The name is another file's by now, or nobody's: what this one was given would be lost.
            self._disconnect()
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
            self.connection.text_factory = as_text
            self._opened = self._identity()
            try:
                set_up(self.connection, began + self._wait_s)
                sync_names(self._path)
                if self._doubtful:
                    empty_log(self.connection)
                    self._doubtful = False
            except BaseException as error:
                self._disconnect()
                if isinstance(error, sqlite3.Error):
                    raise translated(error, None, began) from error
                raise
        return self.connection

    def _identity(self) -> tuple[int, int] | None:
        """Device and inode of what bears the file's name; None if nothing does."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        self._heads.forget()
        if connection is not None:
            # Nothing that was acknowledged depends on closing: the write-ahead log is read by whoever comes next.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _again(item: Item, block: _Block) -> Exception:
    """What a blocked key answers: the failure itself, or for a refusal that another was refused before."""
    if isinstance(block.failure, RunConflict | RunAlreadyExists):
        problem = "an earlier record was refused, and the log was not read since"
        return RunConflict(item.key, problem, seq=item.record.seq)
    return copy.copy(block.failure)


def _answer(items: list[Item]) -> None:
    """Leave the answers where they are waited for, with one ring for each event loop."""
    outcomes: dict[Desk, list[Outcome]] = {}
    for item in items:
        if item.answer is not None:
            desk, future = item.answer
            outcomes.setdefault(desk, []).append((future, None, item.failure))
    for desk, left in outcomes.items():
        desk.leave(left)
