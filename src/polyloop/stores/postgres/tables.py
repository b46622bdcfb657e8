"""The tables, their versions, and how they come to be."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from polyloop.types import InvalidRequest, PolyLoopError, UnsupportedSchemaVersion

LAYOUT: Final = 1
"""The version of the tables. Records have a version of their own."""

_LOCK: Final = 0x706F6C796C6F6F70
"""Whoever migrates holds this advisory lock: "polyloop", as a number."""

_TABLES: Final = (
    "create table polyloop_layout (one boolean primary key default true check (one), version integer not null)",
    # Keys may be longer than what an index can hold, so their digests stand for them.
    """
    create table polyloop_runs (
        key_digest bytea primary key,
        key text collate "C" not null,
        next_seq bigint not null check (next_seq > 0),
        ended boolean not null,
        started_at timestamptz not null,
        last_record_at timestamptz not null,
        steps bigint not null,
        stop_reason text,
        check (ended = (stop_reason is not null and stop_reason <> 'cancelled'))
    ) with (fillfactor = 70)
    """,
    "create index polyloop_runs_started_at on polyloop_runs (started_at)",
    """
    create table polyloop_records (
        key_digest bytea not null,
        seq bigint not null,
        kind text not null,
        recorded_at timestamptz not null,
        stop_reason text,
        record text not null,
        checksum bigint not null,
        primary key (key_digest, seq)
    )
    """,
)


async def layout_of(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> int | None:
    """The version of the tables; None where there are none.

    Raises:
        UnsupportedSchemaVersion: a newer library migrated them.
        InvalidRequest: they are there without a version.
    """
    cursor = await connection.execute("select to_regclass('polyloop_layout') is not null")
    if not _one(await cursor.fetchone()):
        return None
    cursor = await connection.execute("select max(version) from polyloop_layout")
    found = _one(await cursor.fetchone())
    if found is None:
        problem = "must hold a version: put back the row, which a copy of the tables without their rows leaves out"
        raise InvalidRequest("polyloop_layout", problem)
    if found > LAYOUT:
        raise UnsupportedSchemaVersion(str(found), str(LAYOUT), "the tables were migrated by a newer version")
    return int(found)


def _one(row: tuple[Any, ...] | None) -> Any:
    if row is None:
        raise TypeError("the server gave no row")
    return row[0]


def unmigrated(found: int | None) -> PolyLoopError:
    """What a store on other tables says."""
    has = "no tables of PolyLoop" if found is None else f"tables of version {found}, this PolyLoop needs {LAYOUT}"
    return InvalidRequest("PostgresRunStore", f"the database has {has}: call `await store.migrate()` once")


async def migrate(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Make the tables where there are none. Of several that do so at once, the others wait and find them made."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        if await layout_of(connection) == LAYOUT:
            return
        cursor = await connection.execute("select current_setting('server_encoding')")
        encoding = _one(await cursor.fetchone())
        if encoding not in ("UTF8", "SQL_ASCII"):
            problem = f"the database has the encoding {encoding}, which cannot hold every key: make one with UTF8"
            raise InvalidRequest("PostgresRunStore.dsn", problem)
        for statement in _TABLES:
            await connection.execute(statement, prepare=False)
        await connection.execute("insert into polyloop_layout (version) values (%s)", (LAYOUT,))
