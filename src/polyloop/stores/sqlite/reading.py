"""Reading a file without changing anything: no write-ahead log is begun, no lock file made, no table.

A connection that only reads (`mode=ro`) would still make the two files beside the database, and leave them. So where
there is no write-ahead log, or an empty one, the database itself is read as it lies there (`immutable`), and what was
read counts only if the file is the same afterwards; otherwise it is read again. Where there is one, its readers' file
is used as it is (`readonly_shm`).
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import stat
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores.sqlite.file import LAYOUT, as_text, transaction, translated
from polyloop.stores.sqlite.heads import READ_HEAD
from polyloop.stores.sqlite.listing import PAGE_ROWS, read_page
from polyloop.stores.sqlite.rows import READ_RECORDS, read_rows
from polyloop.types import InvalidRequest, RunKey, RunLog, StoreBusy, UnsupportedSchemaVersion

R = TypeVar("R")

LOCK_WAIT_S: Final = 10.0
"""How long a question waits for a writer, in seconds. Writers hardly ever keep a reader waiting."""

_FIELD: Final = "SqliteReader.path"

_STRAYS: Final = (
    "select key, count(*) from records where not exists (select 1 from runs where runs.key = records.key)"
    " group by key order by key"
)


class SqliteReader:
    """A file of runs, read-only. A question opens the file and closes it: nothing is kept open between two."""

    def __init__(self, path: str) -> None:
        # SQLite keeps the write-ahead log beside the file itself, and not beside a link to it.
        self._path = Path(path).resolve()

    async def __aenter__(self) -> Self:
        if not stat.S_ISREG(self._path.stat().st_mode):
            raise InvalidRequest(_FIELD, f"{str(self._path)!r} is no file")
        self._ask(None, lambda _: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    async def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[RunSummary, None]:
        """List the runs, page by page."""
        listing = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        while listing.limit != 0:
            page = self._page(listing)
            for summary in page:
                yield summary
            if len(page) < PAGE_ROWS:
                return
            left = None if listing.limit is None else listing.limit - len(page)
            listing = dataclasses.replace(listing, after=page[-1], limit=left)

    def _page(self, listing: Listing) -> list[RunSummary]:
        return self._ask(None, lambda connection: read_page(connection, listing))

    async def read_log(self, key: RunKey) -> RunLog:
        """Read a run's log.

        Raises:
            CorruptRunLog, UnsupportedSchemaVersion: it is damaged, or a newer version's.
        """

        def read(connection: sqlite3.Connection) -> RunLog:
            with transaction(connection, "begin"):
                head = connection.execute(READ_HEAD, (key,)).fetchone()
                return read_rows(key, head, connection.execute(READ_RECORDS, (key,)).fetchall())

        return self._ask(key, read)

    async def strays(self) -> AsyncGenerator[tuple[RunKey | None, str], None]:
        """Runs that have records and are not listed: the key of each, and what there is of it."""
        for key, count in self._ask(None, lambda connection: connection.execute(_STRAYS).fetchall()):
            yield RunKey(key), f"{count} rows"

    async def mark(self, key: RunKey) -> object:
        """Something that is another once the log has grown; None for a run that does not exist."""
        return self._ask(key, lambda connection: connection.execute(READ_HEAD, (key,)).fetchone())

    async def check(self, key: RunKey) -> tuple[RunLog, int]:
        """Read a log as `read_log` does; and how many bytes of it were torn off by a crash, which is none here."""
        return await self.read_log(key), 0

    def _ask(self, key: str | None, question: Callable[[sqlite3.Connection], R]) -> R:
        began = time.monotonic()
        while time.monotonic() - began < LOCK_WAIT_S:
            before = self._state()
            try:
                answer: R | Exception = self._asked(question, immutable=not before.wal_bytes)
            except (sqlite3.Error, sqlite3.Warning) as error:
                answer = self._told(error, key, began, before)
            if before.wal_bytes or self._state() == before:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise StoreBusy(key, time.monotonic() - began)

    def _asked(self, question: Callable[[sqlite3.Connection], R], *, immutable: bool) -> R:
        how = "immutable=1" if immutable else "readonly_shm=1"
        uri = f"{self._path.as_uri()}?mode=ro&{how}"
        connection = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
        connection.text_factory = as_text
        try:
            self._refuse_others(connection)
            return question(connection)
        finally:
            connection.close()

    def _refuse_others(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("pragma user_version").fetchone()
        if found > LAYOUT:
            raise UnsupportedSchemaVersion(str(found), str(LAYOUT), "another layout of the tables")
        if found != LAYOUT:
            raise InvalidRequest(_FIELD, f"{str(self._path)!r} holds no runs of PolyLoop")

    def _told(self, error: Exception, key: str | None, began: float, before: _State) -> Exception:
        if before.wal_bytes and not before.shm:
            problem = (
                f"{str(self._path)!r} has a write-ahead log without its -shm file, which reading would have to make: "
                "open it once with SqliteRunStore, or copy both files elsewhere and do so there"
            )
            return InvalidRequest(_FIELD, problem)
        return translated(error, key, began)

    def _state(self) -> _State:
        status = self._path.stat()
        wal = _status(f"{self._path}-wal")
        return _State(
            (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
            0 if wal is None else wal.st_size,
            shm=_status(f"{self._path}-shm") is not None,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    database: tuple[int, int, int, int]
    wal_bytes: int
    shm: bool


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a name that is no path of its own
    except FileNotFoundError:
        return None
