"""The server: how it is reached, how long it is waited for, and which tables it must have."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from polyloop.stores.postgres.tables import LAYOUT, layout_of, unmigrated
from polyloop.types import InvalidRequest, StoreBusy
from polyloop.types._checks import check_positive, check_seconds, check_str

R = TypeVar("R")

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
"""A connection as the store has it: rows are tuples."""
Work: TypeAlias = Callable[[Connection], Awaitable[R]]
"""What is done with one."""

DSN_FIELD: Final = "PostgresRunStore.dsn"
"""How messages name the connection string."""

_MISREAD: Final = re.compile(r"\w+://[^?]*@[^?]*@|\w+://[^?@]*/[^?]*@")
"""A URI in which an "@" stands behind the one that ends user and password, or behind the slash that ends the host."""

# The tables are found by their keys, also when the server has no statistics of them yet. Without a wait for the disk
# there would be no barrier. What one statement sees of another's changes is that of "read committed".
_SETTINGS: Final = """
select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),
    set_config('synchronous_commit', case current_setting('synchronous_commit')
        when 'off' then 'on' else current_setting('synchronous_commit') end, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
    set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false)
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is asked of the server, and for how long."""

    pool_size: int
    """Connections at most."""
    statement_timeout_s: float
    """Seconds that the server works at one statement."""
    lock_timeout_s: float
    """Seconds that a statement waits for another session's lock."""
    connect_timeout_s: float
    """Seconds to wait for a connection, and beyond `statement_timeout_s` for an answer."""

    def __post_init__(self) -> None:
        check_positive("PostgresRunStore.pool_size", self.pool_size)
        for name in ("statement_timeout_s", "lock_timeout_s", "connect_timeout_s"):
            check_seconds(f"PostgresRunStore.{name}", getattr(self, name))

    @property
    def answer_s(self) -> float:
        """How long an answer is waited for, in seconds: a server that is frozen keeps no time itself."""
        return self.statement_timeout_s + self.connect_timeout_s


class Server:
    """The connections of one store object, in one event loop."""

    def __init__(self, dsn: str, limits: Limits) -> None:
        self._parameters = _parameters(dsn, limits)
        self._limits = limits
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._doubtful = False
        """Whether a connection broke, and the others were not replaced since."""
        self._migrated = False

    @property
    def limits(self) -> Limits:
        """How long the server is waited for."""
        return self._limits

    @property
    def place(self) -> str:
        """Where it is, for messages: nothing but host, port and database."""
        given = self._parameters
        return ", ".join(f"{name}={given[name]!r}" for name in ("host", "port", "dbname") if name in given)

    async def open(self) -> None:
        """Connect, so that a server that cannot be reached is known at once, and see which tables it has.

        Raises:
            psycopg.OperationalError: the server cannot be reached, or refuses the user.
            UnsupportedSchemaVersion: a newer library migrated the tables.
            StoreBusy: another session held a lock for too long.
        """
        failure: psycopg.Error | None = None
        try:
            first = await psycopg.AsyncConnection.connect(**self._parameters)
        except psycopg.Error as error:
            failure = error
        if failure is not None:
            # Without the driver's frames, whose locals hold the password: some log handlers print locals.
            raise failure.with_traceback(None)
        async with first, self._answer(None):
            await self._configure(first)
            self._migrated = await layout_of(first) == LAYOUT
        self._pool = AsyncConnectionPool(
            kwargs=self._parameters,
            min_size=1,
            max_size=self._limits.pool_size,
            timeout=self._limits.connect_timeout_s,
            # The pool tries again in ever longer pauses. When it has given up, a caller makes it try at once.
            reconnect_timeout=self._limits.connect_timeout_s,
            configure=self._configure,
            name="polyloop",
            open=False,
        )
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(self._limits.connect_timeout_s)

    async def call(self, work: Work[R], key: str | None = None) -> R:
        """Do something with a connection, on tables of this version.

        Raises:
            InvalidRequest: there are no such tables; `migrate()` makes them.
            UnsupportedSchemaVersion: a newer library migrated them.
            StoreBusy: another session held a lock for too long, or the statement took too long; nothing was written.
            psycopg.OperationalError: no connection was to be had, it broke, or the server did not answer.
        """
        await self._need_tables()
        return await self.call_anyway(work, key)

    async def call_anyway(self, work: Work[R], key: str | None = None) -> R:
        """The same, whatever tables there are."""
        pool = self._pool
        if pool is None:
            raise RuntimeError("the store was left while this call was made")
        if self._doubtful:
            self._doubtful = False
            # Not looked at, which a frozen server would keep waiting, and which loses connections where it is cut off.
            await pool.drain()
        connection = await pool.getconn()
        try:
            async with self._answer(key):
                return await work(connection)
        finally:
            self._doubtful = self._doubtful or connection.closed
            await pool.putconn(connection)

    @contextlib.asynccontextmanager
    async def _answer(self, key: str | None) -> AsyncIterator[None]:
        """Bound the wait for what is asked inside, and say what its end means."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.answer_s):
                yield
        except TimeoutError:
            problem = f"the server did not answer within {self._limits.answer_s:g} s"
            raise psycopg.OperationalError(problem) from None
        except (errors.LockNotAvailable, errors.QueryCanceled) as error:
            raise StoreBusy(key, time.monotonic() - began) from error

    async def read(self, work: Work[R], key: str | None = None) -> R:
        """Do something that changes nothing: once more, where the connection was broken."""
        try:
            return await self.call(work, key)
        except psycopg.OperationalError:
            # A connection that broke while it lay idle says nothing about the server.
            if not self._doubtful:
                raise
        return await self.call(work, key)

    async def _need_tables(self) -> None:
        if not self._migrated:
            found = await self.call_anyway(layout_of)
            if found != LAYOUT:
                raise unmigrated(found)
            self._migrated = True

    async def _configure(self, connection: Connection) -> None:
        limits = self._limits
        times = [f"{max(1, round(s * 1000))}ms" for s in (limits.statement_timeout_s, limits.lock_timeout_s)]
        await connection.execute(_SETTINGS, times)


def _parameters(dsn: str, limits: Limits) -> dict[str, Any]:
    check_str(DSN_FIELD, dsn)
    if _MISREAD.match(dsn) is not None:
        # The rest of such a password would be taken for a host, a port or a database, and told as that.
        raise InvalidRequest(DSN_FIELD, "is a URI whose user or password has an '@' or '/': write %40 or %2F there")
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        given = None
    if given is None:
        # The driver's error is not even kept as the context: it quotes what it cannot read, which may be a password.
        raise InvalidRequest(DSN_FIELD, "must be a connection string or URI as libpq reads it")
    quiet = {
        "fallback_application_name": "polyloop",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": round(limits.answer_s * 1000),
    }
    ours = {
        "connect_timeout": math.ceil(limits.connect_timeout_s),
        "client_encoding": "utf8",
        "autocommit": True,
        "prepare_threshold": 0,
    }
    return {**quiet, **given, **ours}
