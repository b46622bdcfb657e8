"""The file: made, opened, laid out; transactions on it; what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polyloop.stores._disk import NETWORK_FILE_SYSTEMS, file_system
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    InvalidRequest,
    StoreBusy,
    UnsupportedSchemaVersion,
)

LAYOUT: Final = 1
"""The version of the tables, in the file's `user_version`. Records have a version of their own."""

PATH_FIELD: Final = "SqliteRunStore.path"
"""How messages name the store's argument."""

STATE: Final = (
    "case when ended = 0 and stop_reason is null then 'unfinished' when ended = 0 and stop_reason = 'cancelled'"
    " then 'cancelled' when ended = 1 and stop_reason <> 'cancelled' then 'ended' else 'damaged' end"
)
"""A run's state, told from its row in `runs`. An index is made of it: a query that says the same is a fast one."""

_TABLES: Final = (
    (
        "create table runs (key text primary key not null, next_seq integer not null, ended integer not null,"
        " started_at text not null, last_record_at text not null, steps integer not null, stop_reason text)"
    ),
    "create index runs_by_start on runs (started_at, key)",
    f"create index runs_by_state on runs ({STATE}, started_at, key)",
    (
        "create table records (key text not null, seq integer not null, kind text not null, recorded_at text not null,"
        " stop_reason text, record text not null, checksum integer not null, primary key (key, seq))"
    ),
    f"pragma user_version = {LAYOUT}",
)

CHECKPOINT_PAGES: Final = 4_000
"""How long the write-ahead log grows before it is moved into the database: two more syncs, in about 16 MB."""

_creating = threading.Lock()


def renew_lock() -> None:
    """In a forked process: the thread that held the lock, if one did, does not exist here."""
    global _creating  # noqa: PLW0603 - it belongs to the process
    _creating = threading.Lock()


def refuse_network(path: Path, mounts: str) -> None:
    """Refuse a path on a network file system, by Linux's table of mounts.

    Raises:
        InvalidRequest: it lies on one.
    """
    kind = file_system(str(path.resolve()), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidRequest(PATH_FIELD, f"lies on a network file system ({kind}); give a path on a local disk")


def create_file(path: Path) -> None:
    """Make the file where it does not exist, for its owner alone."""
    # Made here, for SQLite would make it readable to others. Never opened if it exists: closing a descriptor drops
    # the locks that other connections of this process hold on the file.
    with _creating, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def sync_names(path: Path) -> None:
    """Have the names of the file and of its write-ahead log on the disk.

    SQLite syncs the directory too, and goes on when that fails.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def set_up(connection: sqlite3.Connection, deadline: float) -> None:
    """Set a new connection to write-ahead log and full syncs, and make the tables where there are none."""
    while True:
        try:
            (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
            break
        except sqlite3.OperationalError as error:
            # On a new file this does not wait by itself, whatever the timeout.
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise InvalidRequest(PATH_FIELD, "must lie where SQLite can keep a write-ahead log")
    connection.execute("pragma synchronous = full")
    connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if _layout(connection) == LAYOUT:
        return
    with transaction(connection, "begin immediate"):
        found = _layout(connection)
        if found not in (0, LAYOUT):
            raise UnsupportedSchemaVersion(str(found), str(LAYOUT), "another layout of the tables")
        if not found:
            if connection.execute("select 1 from sqlite_master").fetchone() is not None:
                raise InvalidRequest(PATH_FIELD, "must not be a database of something else")
            for statement in _TABLES:
                connection.execute(statement)


def as_text(stored: bytes) -> str:
    """A text as the file has it. What is no UTF-8 must be found to be damage, and not be an error that quotes it."""
    return stored.decode("utf-8", "surrogateescape")


def _layout(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("pragma user_version").fetchone()
    return int(version)


def empty_log(connection: sqlite3.Connection) -> None:
    """Move all of the write-ahead log into the database, synced.

    After a failed sync the kernel may hold pages of the log for clean that are not on the disk: a later sync would not
    write them, and a power loss would cut the log off there, before what was acknowledged since.
    """
    (busy, _, _) = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    if busy:
        error = sqlite3.OperationalError("the write-ahead log is being read")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit what is done inside, or roll it back."""
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("rollback")
        raise


def is_busy(error: BaseException) -> bool:
    """Whether another connection held a lock for too long."""
    return _code(error) == sqlite3.SQLITE_BUSY


def _code(error: BaseException) -> int:
    # The lowest byte is the error, the others say more of it. Errors of the module itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: Exception, key: str | None, began: float) -> Exception:
    """What a caller is told: never a bare "database is locked"."""
    if is_busy(error):
        return StoreBusy(key, time.monotonic() - began)
    if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptRunLog(CorruptionReason.MALFORMED_LINE, f"SQLite refuses the file: {error}", key=key)
    return error
