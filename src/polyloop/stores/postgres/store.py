"""`PostgresRunStore`: the runs of many processes and machines in one Postgres database."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from polyloop.stores._listing import DRIVEN, Listing, RunState, RunSummary
from polyloop.stores.postgres import listing as pages
from polyloop.stores.postgres.rows import delete_rows, fetch, read_rows
from polyloop.stores.postgres.server import Limits, Server
from polyloop.stores.postgres.tables import migrate
from polyloop.stores.postgres.writer import Writer
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from polyloop.types._checks import check_run_key

R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class _Entered:
    """What there is between entering and leaving."""

    loop: asyncio.AbstractEventLoop
    server: Server
    writer: Writer
    tasks: set[asyncio.Task[Any]]
    """Calls that are under way, apart from appends."""


class PostgresRunStore:
    """Keeps the logs of runs in a Postgres database: for services, shared by many processes and machines.

    ::

        async with PostgresRunStore(dsn) as store:
            await store.migrate()      # once, by whoever deploys
            definition = AgentDefinition(store=store, ...)

    Works inside `async with` only, in the event loop in which it was entered, and in no forked process
    (`RuntimeError` otherwise); it can be entered again after it was left. Entering connects, so that a server that
    cannot be reached is told at once; that the tables are missing or older is told by the first call but `migrate`
    (`InvalidRequest`). Leaving sends what waits, raises the first failure that nobody was told of, and closes all
    connections.

    A connection that breaks, a server that restarts or does not answer: the driver's error (`psycopg.Error`) reaches
    each call that waited, before any further side effect, and blocks its run until `read_log`. What became of a result
    or a step is told by the key's next call; where that is a read, the next one then reads. The object reconnects by
    itself. `StoreBusy`: another session held a lock for too long, or the server was too slow; nothing was written.

    The tables are found by the connection's `search_path`, so several sets can live in one database. Settings of the
    session are the store's own: connect to the server itself, or to a pooler in session mode. The server's `fsync`
    must be on. Tables and useful queries: `research-wiki/design/0019-postgres-store.md`.

    Args:
        dsn: A connection string or URI as libpq reads it. Its password stands in no message, log line or repr.
        pool_size: Connections at most. Two of them append, the others read.
        statement_timeout_s: Seconds that the server works at one statement. Reading a log is one.
        lock_timeout_s: Seconds that a statement waits for another session's lock on a run.
        connect_timeout_s: Seconds to wait for a connection. An answer is waited for as long as a statement may take
            and this on top, as a frozen server keeps no time; giving it up takes the driver up to 10 s more.

    Raises:
        InvalidRequest: an argument is not of its type, not positive, or no connection string.
        ImportError: the extra is missing: `pip install 'polyloop[postgres]'`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = 4,
        statement_timeout_s: float = 30.0,
        lock_timeout_s: float = 10.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._limits = Limits(
            pool_size=pool_size,
            statement_timeout_s=statement_timeout_s,
            lock_timeout_s=lock_timeout_s,
            connect_timeout_s=connect_timeout_s,
        )
        self._place = Server(dsn, self._limits).place
        self._dsn = dsn
        self._entered: _Entered | None = None
        self._entering = False

    def __repr__(self) -> str:
        return f"PostgresRunStore({self._place})"

    async def __aenter__(self) -> Self:
        if self._entering:
            raise RuntimeError("this PostgresRunStore is in use: it cannot be entered again before it was left")
        self._entering = True
        server = Server(self._dsn, self._limits)
        try:
            await server.open()
        except BaseException:
            self._entering = False
            await server.close()
            raise
        self._entered = _Entered(asyncio.get_running_loop(), server, Writer(server), set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = self._inside()
        self._entered = None
        leaving = entered.loop.create_task(self._leave(entered))
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                # Connections must not outlive a caller who is cancelled here; the wait is bounded.
                await asyncio.wait([leaving])
            except asyncio.CancelledError as again:
                cancelled = again
        self._entering = False
        failure = None if leaving.cancelled() else leaving.exception()
        passes = cancelled or (error if error is not None and not isinstance(error, Exception) else None)
        if passes is not None:
            # A cancellation passes whatever else goes wrong.
            if failure is not None:
                passes.add_note(f"leaving {self!r} failed too: {type(failure).__name__}: {failure}")
            if cancelled is not None:
                raise cancelled
        elif failure is not None:
            raise failure

    async def _leave(self, entered: _Entered) -> None:
        within_s = 2 * self._limits.answer_s
        try:
            if entered.tasks:
                _, late = await asyncio.wait(entered.tasks, timeout=within_s)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
            await entered.writer.close(within_s)
        finally:
            await entered.server.close()

    async def migrate(self) -> None:
        """Make the tables, or bring them to this version. Safe when several processes call it at once.

        Raises:
            InvalidRequest: the database's encoding cannot hold every key.
            UnsupportedSchemaVersion: a newer library migrated them.
            StoreBusy: another session held a lock for too long.
            psycopg.Error: the server refuses, for instance because the user may not make tables.
        """
        entered = self._inside()
        await self._detached(entered, entered.server.call_anyway(migrate))

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
        """Read a run's log from the database; unblocks the key. See `polyloop.ports.RunStore`."""
        check_run_key(key)
        entered = self._inside()
        await entered.writer.settled(key)
        entered.writer.tell(key)
        rows = await self._detached(entered, entered.server.read(lambda connection: fetch(connection, key), key))
        entered.writer.unblock(key)
        return read_rows(key, rows)

    async def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[RunSummary]:
        """List the runs, by their start and then by their key; a page at a time, each as the database has it then.

        Args:
            state: Only runs in this state; None for all.
            prefix: Only runs whose key begins with this.
            limit: At most so many; None for all.
            after: Only runs behind this one, which need not exist any more: the last of the page before.
            newest_first: The reverse order.

        Raises:
            InvalidRequest: an argument is not of its type, or negative; the start of `after` is no time.
        """
        asked = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        entered = self._inside()
        await entered.writer.all_settled()
        left = asked.limit
        while pages.can_match(asked.prefix) and left != 0:
            size = pages.PAGE if left is None else min(left, pages.PAGE)
            found = await self._detached(entered, entered.server.read(pages.reader(asked, size)))
            for summary in found:
                yield summary
            if len(found) < size:
                return
            left = None if left is None else left - size
            asked = dataclasses.replace(asked, after=found[-1])

    async def delete(self, key: RunKey, /) -> bool:
        """Forget a run and its log.

        Args:
            key: The run.

        Returns:
            Whether there was one.

        Raises:
            RunConflict: the run is driven in this object: its last append here was taken, and was no end record.
        """
        check_run_key(key)
        entered = self._inside()
        await entered.writer.settled(key)
        entered.writer.tell(key)
        if entered.writer.is_driven(key):
            raise RunConflict(key, DRIVEN)
        found = await self._detached(entered, entered.server.call(lambda connection: delete_rows(connection, key), key))
        entered.writer.unblock(key)
        return found

    async def _append(self, key: RunKey, record: Record) -> None:
        check_run_key(key)
        entered = self._inside()
        item = entered.writer.hand_in(key, record)
        await entered.writer.settle(key, item)

    def _inside(self) -> _Entered:
        entered = self._entered
        if entered is None:
            raise RuntimeError(f"{self!r} works inside 'async with' only: it was not entered yet, or was left")
        if entered.loop is not asyncio.get_running_loop():
            raise RuntimeError(f"{self!r} works in the event loop only in which it was entered: enter one in each loop")
        return entered

    async def _detached(self, entered: _Entered, work: Coroutine[Any, Any, R]) -> R:
        """Do it in a task of its own: a caller who is cancelled leaves no statement cut off, no connection broken."""
        task = entered.loop.create_task(work)
        entered.tasks.add(task)
        task.add_done_callback(entered.tasks.discard)
        # An exception that nobody waits for any more would be reported by the loop.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task])
        if task.cancelled():
            # By leaving, which is not to look like a cancellation of the caller.
            raise RuntimeError("the store was left while this call was made")
        return task.result()
