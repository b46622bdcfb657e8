"""The one thread that writes: what waits, what is blocked, and one transaction for all of it."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import sqlite3
import time
from pathlib import Path
from typing import Final

from polyloop.serialization import encode
from polyloop.stores.sqlite.file import create_file, empty_log, is_busy, set_up, transaction, translated
from polyloop.stores.sqlite.rows import Item, insert, read_rows
from polyloop.types import (
    EffectIntended,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunLog,
    RunStarted,
)

LOCK_WAIT_S: Final = 30.0
"""How long a call waits for other writers of the file before `StoreBusy`. The wait keeps all runs of the object."""

inherited: Final[set[tuple[int, int]]] = set()
"""The files that this process's parent had open when it forked, as device and inode."""

REST_S: Final = 0.05
"""How long results and steps wait for a barrier to ride with. Half of what the port allows: a commit takes time."""

_BARRIERS: Final = (RunStarted, EffectIntended, RunFinished)


@dataclasses.dataclass(slots=True)
class _Block:
    failure: BaseException
    told: bool


class Writer:
    """The one thread's side: the connection, what waits, and which keys are blocked."""

    def __init__(
        self, path: Path, inbox: collections.deque[Item], factory: type[sqlite3.Connection], wait_s: float
    ) -> None:
        self._path = path
        self._inbox = inbox
        self._factory = factory
        self._wait_s = wait_s
        self._waiting: list[Item] = []
        self._since = 0.0
        self._blocked: dict[str, _Block] = {}
        self._doubtful = False
        """Whether a transaction failed for another reason than a lock, and the log was not emptied since."""
        self.connection: sqlite3.Connection | None = None

    def prepare(self) -> tuple[int, int]:
        """Make the file and its tables, or refuse it; tells device and inode."""
        create_file(self._path)
        status = self._path.stat()
        inode = status.st_dev, status.st_ino
        if inode in inherited:
            raise RuntimeError(f"{str(self._path)!r} was in use when this process was forked: start it with 'spawn'")
        self._connected()
        return inode

    def settle(self, item: Item) -> None:
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
            with transaction(connection, "begin"):
                head = connection.execute("select next_seq, ended from runs where key = ?", (key,)).fetchone()
                rows = connection.execute(
                    "select seq, kind, record, checksum from records where key = ? order by seq", (key,)
                ).fetchall()
        except sqlite3.Error as error:
            self._disconnect()
            raise translated(error, key, began) from error
        return read_rows(key, head, rows)

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
        runs: dict[str, list[Item]] = {}
        for item in batch:
            runs.setdefault(item.key, []).append(item)
        began = time.monotonic()
        refused: list[tuple[Item, Exception]] = []
        try:
            connection = self._connected()
            with transaction(connection, "begin immediate"):
                for key, items in runs.items():
                    refused += insert(connection, key, items)
        except Exception as error:  # noqa: BLE001 - it is raised where the appends are awaited
            # What SQLite remembers after a failure is not built upon: the next call opens the file anew.
            self._disconnect()
            self._doubtful = self._doubtful or not is_busy(error)
            refused = [(item, translated(error, item.key, began)) for item in batch]
        for item, failure in refused:
            self._fail(item, failure)
        for item in batch:
            item.settled = True

    def _fail(self, item: Item, failure: Exception) -> None:
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
                set_up(self.connection, began + self._wait_s)
                if self._doubtful:
                    empty_log(self.connection)
                    self._doubtful = False
            except BaseException as error:
                self._disconnect()
                if isinstance(error, sqlite3.Error):
                    raise translated(error, None, began) from error
                raise
        return self.connection

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            # Nothing that was acknowledged depends on closing: the write-ahead log is read by whoever comes next.
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _again(item: Item, failure: BaseException) -> BaseException:
    """What a blocked key answers: the failure itself, or for a refusal that another was refused before."""
    if isinstance(failure, RunConflict | RunAlreadyExists):
        problem = "an earlier record was refused, and the log was not read since"
        return RunConflict(item.key, problem, seq=item.record.seq)
    return copy.copy(failure)
