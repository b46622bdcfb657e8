"""What the tests of the SQLite store share: a connection that is watched and fails on demand, and the file seen by
others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyloop.stores.sqlite import SqliteRunStore


class Watched(sqlite3.Connection):
    """Keeps the statements; fails the next one that it is told to, with this error code."""

    said: list[str] = []  # noqa: RUF012 - the class is what the store makes its connections of
    failing: str | None = None
    code = sqlite3.SQLITE_IOERR
    before: Callable[[str], None] | None = None
    """Called with each statement before it is made."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if Watched.before is not None:
            Watched.before(statement)
        if Watched.failing is not None and statement.startswith(Watched.failing):
            Watched.failing = None
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = Watched.code
            raise error
        Watched.said.append(statement)
        return super().execute(statement, *parameters)

    @classmethod
    def reset(cls) -> None:
        """Forget what was said and what was to fail."""
        cls.said, cls.failing, cls.code, cls.before = [], None, sqlite3.SQLITE_IOERR, None

    @classmethod
    def count(cls, beginning: str) -> int:
        """How many statements began like this."""
        return sum(statement.startswith(beginning) for statement in cls.said)


class WatchedStore(SqliteRunStore):
    """A store whose connections are watched, and that waits for a lock for a fifth of a second."""

    _connection = Watched
    _wait_s = 0.2


def change(path: Path, statement: str, *values: object) -> list[Any]:
    """Have another connection make a statement, and what it gives."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()
