"""Reading a database without changing anything: every session refuses to write, and no table is made."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Self

from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores.postgres import listing as pages
from polyloop.stores.postgres.rows import digest_of, fetch, read_rows
from polyloop.stores.postgres.server import Connection, Limits, Server
from polyloop.types import RunKey, RunLog

LIMITS: Final = Limits(pool_size=1, statement_timeout_s=30.0, lock_timeout_s=10.0, connect_timeout_s=10.0)
"""How long the server is waited for."""

_READ_ONLY: Final = "select set_config('default_transaction_read_only', 'on', false)"
_STRAYS: Final = """
select encode(key_digest, 'hex'), count(*) from polyloop_records as record
where not exists (select 1 from polyloop_runs as run where run.key_digest = record.key_digest)
group by key_digest order by key_digest
"""
_MARK: Final = "select next_seq, ended, last_record_at from polyloop_runs where key_digest = %s"


class _ReadOnlyServer(Server):
    async def _configure(self, connection: Connection) -> None:
        await super()._configure(connection)
        await connection.execute(_READ_ONLY)


class PostgresReader:
    """The runs of a database, read-only. It works in the event loop only in which it was entered."""

    def __init__(self, dsn: str) -> None:
        self._server = _ReadOnlyServer(dsn, LIMITS)

    async def __aenter__(self) -> Self:
        try:
            await self._server.open()
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

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
        left = listing.limit
        while pages.can_match(listing.prefix) and left != 0:
            size = pages.PAGE if left is None else min(left, pages.PAGE)
            found = await self._server.read(pages.reader(listing, size))
            for summary in found:
                yield summary
            if len(found) < size:
                return
            left = None if left is None else left - size
            listing = dataclasses.replace(listing, after=found[-1])

    async def read_log(self, key: RunKey) -> RunLog:
        """Read a run's log.

        Raises:
            CorruptRunLog, UnsupportedSchemaVersion: it is damaged, or a newer version's.
        """
        return read_rows(key, await self._server.read(lambda connection: fetch(connection, key), key))

    async def strays(self) -> AsyncGenerator[tuple[RunKey | None, str], None]:
        """Runs that have records and are not listed. Their keys, of which records have a digest, are not known."""

        async def ask(connection: Connection) -> list[tuple[str, int]]:
            return await (await connection.execute(_STRAYS)).fetchall()

        for digest, count in await self._server.read(ask):
            yield None, f"{count} rows of records belong to no run: key_digest '\\x{digest}'"

    async def mark(self, key: RunKey) -> object:
        """Something that is another once the log has grown; None for a run that does not exist."""

        async def ask(connection: Connection) -> object:
            return await (await connection.execute(_MARK, (digest_of(key),))).fetchone()

        return await self._server.read(ask, key)

    async def check(self, key: RunKey) -> tuple[RunLog, int]:
        """Read a log as `read_log` does; and how many bytes of it were torn off by a crash, which is none here."""
        return await self.read_log(key), 0
