"""What runs cost on Postgres: one run against bare inserts of its own bytes, a hundred at once against bare loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psycopg
from psycopg_pool import AsyncConnectionPool

from benchmarks import agents
from benchmarks.measuring import Row, at_least, at_most, in_turns, median_ratio, reported, show, work_directory
from polyloop import Action, ActionOutcome, ModelCall, ModelReply, RunKey
from polyloop.serialization import encode
from polyloop.stores.postgres import PostgresRunStore

RUNS: Final = 100
STEPS: Final = 10
POOL: Final = 10

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

_SETTINGS: Final = "listen_addresses = ''\nfsync = on\nsynchronous_commit = on\nlog_checkpoints = off\n"
_BARE: Final = "create table if not exists bare (run text, seq bigint, record text, primary key (run, seq))"
_INSERT: Final = "insert into bare values (%s, %s, %s)"
_BARE_SETTINGS: Final[dict[str, Any]] = {"autocommit": True, "prepare_threshold": 0}


# --- the server


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A connection string: to the server that POLYLOOP_TEST_POSTGRES names, or to one of our own."""
    given = os.environ.get("POLYLOOP_TEST_POSTGRES")
    if given:
        yield given
        return
    found = shutil.which("initdb")
    programs = Path(found).resolve().parent if found else max(Path("/usr/lib/postgresql").glob("*/bin"))
    # Its socket must have a short name. Beside the other benchmarks' files, since `/tmp` may lie in memory.
    with (
        tempfile.TemporaryDirectory(dir=work_directory()) as place,
        tempfile.TemporaryDirectory(prefix="polyloop-pg-") as sockets,
    ):
        user = "postgres" if os.geteuid() == 0 else None
        for folder in (place, sockets):
            if user is not None:
                shutil.chown(folder, user)
        data = str(Path(place) / "data")

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", data, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user, cwd=sockets)  # noqa: S603 - ours

        run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
        with (Path(data) / "postgresql.conf").open("a") as settings:
            settings.write(f"{_SETTINGS}unix_socket_directories = '{sockets}'\n")
        run("pg_ctl", "-w", "-l", str(Path(data) / "log"), "start")
        try:
            yield f"host={sockets} user=postgres dbname=postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


# --- one run


class Meter:
    """Times a run's way from one port call to the next, and next to each one bare insert of its bytes.

    Both alternate as finely as this, to meet the same machine.
    """

    def __init__(self, bare: Connection, texts: list[str]) -> None:
        self.library: list[float] = []
        self.bare: list[float] = []
        self._connection = bare
        self._texts = texts
        self._resumed = time.perf_counter()

    async def pause(self) -> None:
        """An effect's intent has just become durable: insert as many bytes, with nothing around."""
        self.library.append(time.perf_counter() - self._resumed)
        place = len(self.bare)
        started = time.perf_counter()
        await self._connection.execute(_INSERT, (self._texts[0], place, self._texts[1 + place % 2]))
        self._resumed = time.perf_counter()
        self.bare.append(self._resumed - started)


class MeteredModel(agents.Model):
    """Pauses the meter in each call."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Answer."""
        await self._meter.pause()
        return await super().call(call)


class MeteredExecutor(agents.Executor):
    """Pauses the meter in each action."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Observe."""
        await self._meter.pause()
        return await super().execute(action)


async def texts_of_a_step(store: PostgresRunStore, key: str) -> list[str]:
    """The five records of a step, as text."""
    await agents.definition(store).run(agents.request(key, 3))
    records = (await store.read_log(RunKey(key))).records()
    return [encode(record) for record in records[6:11]]


async def one_run(dsn: str) -> list[Row]:
    """A run's time over that of its own bytes, inserted bare: one insert for each of its two barriers."""
    library: list[float] = []
    bare: list[float] = []
    connection = await psycopg.AsyncConnection.connect(dsn, **_BARE_SETTINGS)
    async with connection, PostgresRunStore(dsn) as store:
        intent, reply, action, observed, step = await texts_of_a_step(store, "one")
        for turn in range(5):
            # What goes with a model call's intent are the result and the step before it.
            meter = Meter(connection, [f"run {turn}", observed + step + intent, reply + action])
            run = agents.definition(store, model=MeteredModel(meter)).run
            await run(agents.request(f"run {turn}", 300, executor=MeteredExecutor(meter)))
            library += by_steps(meter.library)
            bare += by_steps(meter.bare)
    note = (
        f"{statistics.median(library) * 1e6:,.0f} µs a step against {statistics.median(bare) * 1e6:,.0f} µs, "
        f"medians of {len(bare):,} steps"
    )
    return [at_most("one run over two bare inserts a step", 1.5, median_ratio(library, bare), "x", note=note)]


def by_steps(pauses: list[float]) -> list[float]:
    """The seconds of whole steps: from action to action, so that the start does not count."""
    return [model + action for model, action in zip(pauses[2::2], pauses[3::2], strict=True)]


# --- many runs


async def at_once(store: PostgresRunStore, name: str) -> None:
    """All runs at the same time."""
    run = agents.definition(store).run
    await asyncio.gather(*(run(agents.request(f"{name}-{index}", STEPS)) for index in range(RUNS)))


async def bare_loops(pool: AsyncConnectionPool[Connection], name: str, texts: list[str]) -> None:
    """As many loops that insert a step's five records one by one, each committed, on a connection from the pool."""

    async def loop(run: str) -> None:
        for step in range(STEPS):
            for place, text in enumerate(texts):
                async with pool.connection() as connection:
                    await connection.execute(_INSERT, (run, step * len(texts) + place, text))

    await asyncio.gather(*(loop(f"{name}-{index}") for index in range(RUNS)))


async def many_runs(dsn: str) -> list[Row]:
    """Steps a second of 100 runs over those of 100 bare loops."""
    turns = iter(range(10**6))
    bare_pool = AsyncConnectionPool[Connection](
        dsn, kwargs=_BARE_SETTINGS, min_size=POOL, max_size=POOL, timeout=60, open=False
    )
    async with bare_pool as pool, PostgresRunStore(dsn) as store:
        texts = await texts_of_a_step(store, "many")
        times = await in_turns(
            {
                "runs": lambda: at_once(store, f"crowd-{next(turns)}"),
                "bare": lambda: bare_loops(pool, f"loops-{next(turns)}", texts),
            },
            repeats=5,
        )
    runs, bare = (RUNS * STEPS / statistics.median(times[name]) for name in ("runs", "bare"))
    note = f"{runs:,.0f} steps a second against {bare:,.0f}, on a pool of {POOL}"
    ratio = median_ratio(times["bare"], times["runs"])
    return [at_least("steps a second of 100 runs at once over 100 bare loops", 2, ratio, "x", note=note)]


async def measured(dsn: str) -> list[Row]:
    """All figures."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(_BARE)
        version = connection.info.server_version
    async with PostgresRunStore(dsn) as store:
        await store.migrate()
    said = reported(
        "the server", f"PostgreSQL {version // 10000}.{version % 10000}, fsync on; psycopg {psycopg.__version__}"
    )
    return [*await one_run(dsn), *await many_runs(dsn), said]


def rows() -> list[Row]:
    """All figures, on a server of their own."""
    with server() as dsn:
        return asyncio.run(measured(dsn))


if __name__ == "__main__":
    sys.exit(show("Runs on Postgres", rows()))
