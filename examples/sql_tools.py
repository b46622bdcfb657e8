"""Tools for an agent that reads a SQLite database: `list_tables`, `run_sql`, `submit`, and one it is not given.

What is worth copying:

- **Reading means reading.** The file is opened `mode=ro`, and an authorizer lets nothing through but selecting:
  `mode=ro` alone would still let `attach` write other files.
- **Nothing runs away.** Rows, cell sizes and time are bounded. SQLite asks every few thousand instructions
  whether to go on; a time limit and a cancelled run both answer no, and a handler does not return before its
  thread has.
- **Bad SQL is an observation.** Handlers let `sqlite3` errors rise: the executor turns them into what the model
  reads. Only a database that can serve no more is an `EnvironmentFailure`, which stops the run.
- **The ledger** is not needed by an agent. It is how the quickstart proves, from outside the run's own log, what
  was really done.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from polyloop import EnvironmentFailure, JSONValue, ReplayPolicy, ToolRegistry, ToolSpec, current_action

MAX_ROWS = 200
MAX_CELL_BYTES = 100_000
TIME_LIMIT_S = 5.0

_READING = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE))
_BROKEN = frozenset((sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN))


class LedgerEntry(NamedTuple):
    """One thing that was really done."""

    key: str
    result_id: str
    tool: str
    what: str
    pid: int


class Ledger:
    """A file that notes every deed just before it is done: one synced line each, by whichever process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, tool: str, what: str) -> None:
        """Note a deed of the action that is being executed. Blocks for a sync."""
        action = current_action()
        entry = LedgerEntry(action.key, action.result_id, tool, what, os.getpid())
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(entry._asdict()).encode("ascii") + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self, key: str) -> list[LedgerEntry]:
        """Everything noted for a run, in order; empty if nothing was."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        noted = [LedgerEntry(**json.loads(line)) for line in lines]
        return [entry for entry in noted if entry.key == key]


class ReadOnlyDatabase:
    """A SQLite file that can be asked, and nothing else. Every query has a connection and a thread of its own."""

    def __init__(self, path: Path, *, max_rows: int, max_cell_bytes: int, time_limit_s: float) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self._max_rows = max_rows
        self._max_cell_bytes = max_cell_bytes
        self._time_limit_s = time_limit_s

    async def query(self, sql: str, max_rows: int) -> str:
        """The first rows of a query as JSON: `{"columns": [...], "rows": [[...], ...], "more": false}`.

        Raises:
            sqlite3.Error: the query is wrong.
            TimeoutError: it ran longer than the limit, and was stopped.
            EnvironmentFailure: the database cannot be read.
        """
        limit = min(max_rows, self._max_rows)
        return await self._in_thread(lambda connection: json.dumps(_table(connection, sql, limit)), _select_only)

    async def tables(self) -> str:
        """The tables as JSON: `[{"name": ..., "columns": [...], "rows": 40000}, ...]`."""
        return await self._in_thread(lambda connection: json.dumps(_tables(connection)), None)

    async def _in_thread(self, work: Callable[[sqlite3.Connection], str], authorizer: Callable[..., int] | None) -> str:
        stop = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(self._work, work, authorizer, stop))
        try:
            return await asyncio.shield(task)
        finally:
            # On cancellation a thread cannot be killed, only asked to end: leave once it has.
            stop.set()
            if not task.done():
                await asyncio.wait({task})

    def _work(
        self,
        work: Callable[[sqlite3.Connection], str],
        authorizer: Callable[..., int] | None,
        stop: threading.Event,
    ) -> str:
        deadline = time.monotonic() + self._time_limit_s
        try:
            connection = self._connect()
            try:
                connection.set_progress_handler(lambda: stop.is_set() or time.monotonic() > deadline, 5_000)
                connection.set_authorizer(authorizer)
                return work(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise TimeoutError(f"the query ran longer than {self._time_limit_s:g} s and was stopped") from None
            # The low byte is the kind of the error, the rest its detail.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN:
                raise EnvironmentFailure(f"the database cannot be read: {error}") from error
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._uri, uri=True, timeout=self._time_limit_s)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._max_cell_bytes)
        # Text that is not UTF-8 is somebody's broken import, not a reason for the run to end.
        connection.text_factory = lambda stored: stored.decode("utf-8", "replace")
        return connection


def _select_only(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _table(connection: sqlite3.Connection, sql: str, limit: int) -> JSONValue:
    cursor = connection.execute(sql)
    columns = [column[0] for column in cursor.description or ()]
    rows = cursor.fetchmany(limit + 1)
    return {
        "columns": columns,
        "rows": [[_cell(cell) for cell in row] for row in rows[:limit]],
        "more": len(rows) > limit,
    }


def _cell(cell: str | float | bytes | None) -> JSONValue:
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'"
    # SQLite knows infinities, JSON does not.
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _tables(connection: sqlite3.Connection) -> JSONValue:
    names = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table' order by name")]
    return [_described(connection, name) for name in names]


def _described(connection: sqlite3.Connection, name: str) -> JSONValue:
    columns = [row[0] for row in connection.execute("select name from pragma_table_info(?)", (name,))]
    quoted = name.replace('"', '""')
    (rows,) = connection.execute(f'select count(*) from "{quoted}"').fetchone()  # noqa: S608 - a name of the schema itself, quoted
    return {"name": name, "columns": columns, "rows": rows}


class _Handlers:
    """What the tools do. What rises out of a handler becomes the observation."""

    def __init__(self, database: ReadOnlyDatabase, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger

    async def list_tables(self, _: dict[str, JSONValue]) -> str:
        return await self._database.tables()

    async def run_sql(self, arguments: dict[str, JSONValue]) -> str:
        sql = cast("str", arguments["sql"])
        # JSON Schema counts 5.0 among the integers.
        max_rows = int(cast("float", arguments.get("max_rows", MAX_ROWS)))
        await self._note("run_sql", sql)
        return await self._database.query(sql, max_rows)

    async def cancel_refunds(self, arguments: dict[str, JSONValue]) -> str:
        await self._note("cancel_refunds", json.dumps(arguments))
        return "The refunds are cancelled."

    async def submit(self, arguments: dict[str, JSONValue]) -> str:
        await self._note("submit", json.dumps(arguments))
        return "Thank you."

    async def _note(self, tool: str, what: str) -> None:
        await asyncio.to_thread(self._ledger.note, tool, what)


def _object(**properties: JSONValue) -> dict[str, JSONValue]:
    """The schema of arguments that are all required."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_REGION: JSONValue = {"type": "string", "minLength": 1}
_MONTH: JSONValue = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}
_MAX_ROWS: JSONValue = {"type": "integer", "minimum": 1, "maximum": MAX_ROWS}
_QUERY: dict[str, JSONValue] = {
    **_object(sql={"type": "string", "minLength": 1}, max_rows=_MAX_ROWS),
    "required": ["sql"],
}


def catalogue(database: ReadOnlyDatabase, ledger: Ledger) -> ToolRegistry:
    """All tools of the example. A run is given a `subset` of them."""
    handlers = _Handlers(database, ledger)
    return ToolRegistry(
        (
            ToolSpec(
                name="list_tables",
                description="List the tables with their columns and numbers of rows.",
                parameters=_object(),
                handler=handlers.list_tables,
                # Looking twice does no harm: interrupted by a crash, it is simply done again.
                replay=ReplayPolicy.SAFE,
            ),
            ToolSpec(
                name="run_sql",
                description=f"Run one SELECT of SQLite. At most {MAX_ROWS} rows, and {TIME_LIMIT_S:g} s.",
                parameters=_QUERY,
                handler=handlers.run_sql,
                # Say that the warehouse bills every query. A run that a crash interrupts inside one ends with
                # `resume_state_unknown`, rather than pay twice without anybody knowing.
                replay=ReplayPolicy.NEVER,
            ),
            ToolSpec(
                name="submit",
                description="Hand in the finding. This ends the task.",
                parameters=_object(
                    region=_REGION, month=_MONTH, excess_cents={"type": "integer"}, cause={"type": "string"}
                ),
                handler=handlers.submit,
                replay=ReplayPolicy.NEVER,
                completes=True,
            ),
            ToolSpec(
                name="cancel_refunds",
                description="Cancel the doubled refunds of a region and month.",
                parameters=_object(region=_REGION, month=_MONTH),
                handler=handlers.cancel_refunds,
                replay=ReplayPolicy.NEVER,
            ),
        )
    )
