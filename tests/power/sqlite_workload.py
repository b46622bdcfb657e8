"""The process whose system calls are recorded for SQLite: `python -m tests.power.sqlite_workload PHASE FILE LEDGER`.

`begin` starts many runs at once on one file. When the others stand still at several places, the process kills itself.
`resume` goes on with all of them, or runs those that have not begun; `share` lets two processes do that, each with
every other run. `persist` does it again and again in one store object, whatever SQLite raises, if the file can be
opened; so does `retry`, which demands that SQLite has raised something.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from polyloop.stores.sqlite import SqliteRunStore, writer
from polyloop.types import EffectIntended, RunKey
from tests.power.ledger import Ledger, NotedStore
from tests.power.workload import CANCELLED, PAUSED, go_on, pausing, run_and_cancel, run_whole

TRIES: Final = 20
"""How often a run is gone on with while the disk fails."""


class Often(sqlite3.Connection):
    """Moves the write-ahead log into the database every few pages, which otherwise takes thousands of records."""

    PAGES: Final = 12

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.execute(f"pragma wal_autocheckpoint = {self.PAGES}")


class Normal(Often):
    """Syncs at checkpoints only."""

    LEVEL = "normal"

    def execute(self, sql: str, /, *given: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = full", f"synchronous = {self.LEVEL}"), *given)


class Off(Normal):
    """Never syncs."""

    LEVEL = "off"


CONNECTIONS: Final = {"often": Often, "rarely": sqlite3.Connection, "normal": Normal, "off": Off}


class Early(SqliteRunStore):
    """Answers an announcement before it is committed."""

    _under_way: asyncio.Task[None] | None = None

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        self._under_way = asyncio.create_task(super().append_intent(key, record))
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def noted_store(file: Path, ledger: Ledger, connection: str, fault: str | None) -> AsyncIterator[NotedStore]:
    """A store on this file."""
    store = Early(file) if fault == "early" else SqliteRunStore(file)
    store._connection = CONNECTIONS[connection]
    async with store:
        noted = NotedStore(store, str, ledger)
        yield noted
    ledger.note("left", paths=sorted(noted.written))


async def begin(store: NotedStore, keys: list[str]) -> None:
    """Run them all at once, and be killed."""
    reached = {key: asyncio.Event() for key in keys if key in PAUSED}
    standing = []
    for key, event in reached.items():
        assembled = pausing(key, store, event)
        standing.append(asyncio.create_task(assembled.definition.run(assembled.request)))
    async with asyncio.TaskGroup() as group:
        for key in keys:
            if key in CANCELLED:
                group.create_task(run_and_cancel(key, store))
            elif key not in PAUSED:
                group.create_task(run_whole(key, store))
        for event in reached.values():
            group.create_task(event.wait())
    os.kill(os.getpid(), signal.SIGKILL)


async def resume(store: NotedStore, keys: list[str]) -> None:
    """Go on with them all at once, to their ends."""
    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(go_on(key, store))


async def retry(store: NotedStore, keys: list[str]) -> None:
    """Go on with them all at once, again when SQLite fails, which it must."""
    assert await persist(store, keys), "the disk never failed: the test shows nothing"


async def persist(store: NotedStore, keys: list[str]) -> int:
    """Go on with them all at once, again when SQLite fails. How often it did."""
    failures = 0

    async def insist(key: str) -> None:
        nonlocal failures
        for _ in range(TRIES):
            try:
                # Reading first: it unblocks the key.
                await store.read_log(RunKey(key))
                await go_on(key, store)
            except sqlite3.Error:
                failures += 1
            else:
                return
        raise AssertionError(f"{key} did not come to its end in {TRIES} tries")

    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(insist(key))
    return failures


def share(given: argparse.Namespace) -> None:
    """Let two processes go on at once."""
    program = [sys.executable, "-m", "tests.power.sqlite_workload", "resume", str(given.file), str(given.ledger)]
    halves = (given.keys[::2], given.keys[1::2])
    processes = [subprocess.Popen([*program, *keys, "--connection", given.connection]) for keys in halves]
    assert [process.wait() for process in processes] == [0, 0]


PHASES: Final[Mapping[str, Callable[[NotedStore, list[str]], Awaitable[object]]]] = {
    "begin": begin,
    "resume": resume,
    "persist": persist,
    "retry": retry,
}


async def perform(given: argparse.Namespace) -> None:
    """Do one phase."""
    async with noted_store(given.file, Ledger(given.ledger), given.connection, given.fault) as store:
        await PHASES[given.phase](store, given.keys)


def main() -> None:
    """Plant the faults that are asked for, and do one phase."""
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", choices=(*PHASES, "share"))
    parser.add_argument("file", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--connection", choices=tuple(CONNECTIONS), default="often")
    parser.add_argument("--fault", choices=("early", "trusting"), default=None)
    given = parser.parse_args()
    if given.fault == "trusting":
        # Goes on with the write-ahead log after a failed sync as if it were on the disk.
        assert "empty_log" in vars(writer)
        vars(writer)["empty_log"] = lambda _: None
    if given.phase == "share":
        share(given)
        return
    try:
        asyncio.run(perform(given))
    except (sqlite3.Error, OSError):
        # The disk may fail while the file is made or opened: the next process goes on.
        if given.phase != "persist":
            raise


if __name__ == "__main__":
    main()
