"""How long the command line takes with its process: the first page of a large SQLite store, and what it starts with."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_most, reported, show, work_directory
from polyloop import Record, RunKey, encode
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.stores.sqlite.heads import HEAD_COLUMNS, head_row
from polyloop.stores.sqlite.rows import record_row

RUNS: Final = 100_000
STEPS: Final = 2
TURNS: Final = 9
PAGE: Final = 50
BEGAN: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


async def _one_run() -> tuple[Record, ...]:
    """The records of a real run."""
    store = EphemeralRunStore()
    await agents.definition(store).run(agents.request("run", STEPS))
    return (await store.read_log(RunKey("run"))).records()


async def _made(path: Path) -> None:
    async with SqliteRunStore(path):
        """The store makes its tables."""


def fill(path: Path, runs: int) -> None:
    """A store with so many finished runs, a second apart: the rows that the store itself would have written."""
    records = asyncio.run(_one_run())
    asyncio.run(_made(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("begin")
    for number in range(runs):
        key, began = f"suite/round-1/item-{number:06}", BEGAN + dt.timedelta(seconds=number)
        at = began.isoformat(timespec="microseconds")
        dated = [dataclasses.replace(record, recorded_at=at) for record in records]
        head = head_row(key, dated) or ()
        connection.execute(f"insert into runs ({HEAD_COLUMNS}) values (?,?,?,?,?,?,?)", head)  # noqa: S608 - columns only
        rows = [record_row(key, record, encode(record)) for record in dated]
        connection.executemany("insert into records values (?,?,?,?,?,?,?)", rows)
    connection.execute("commit")
    connection.close()


def timed(*command: str) -> tuple[float, float]:
    """Seconds of a process, by the clock on the wall and of the processor."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)  # noqa: S603 - ours
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if command[0] == "-m" and done.stdout.count("\n") != PAGE + 1:
        raise RuntimeError(f"{command} printed {done.stdout.count(chr(10))} lines")
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def rows() -> list[Row]:
    """All figures."""
    walls: dict[str, list[float]] = {}
    processor: list[float] = []
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        path = Path(folder) / "runs.sqlite"
        fill(path, RUNS)
        page = ("-m", "polyloop.cli", "runs", f"sqlite:{path}", "--newest-first", "--limit", str(PAGE))
        works = {"page": page, "import polyloop": ("-c", "import polyloop"), "python": ("-c", "pass")}
        for turn in range(TURNS + 1):
            for name, command in works.items():
                wall, busy = timed(*command)
                if turn:
                    walls.setdefault(name, []).append(wall)
                if turn and name == "page":
                    processor.append(busy)
    middle = {name: statistics.median(times) for name, times in walls.items()}
    parts = ", ".join(f"{name} alone {middle[name]:.2f} s" for name in ("python", "import polyloop"))
    what = f"`polyloop runs --newest-first --limit {PAGE}` on {RUNS:,} finished runs in SQLite, with process start"
    return [
        at_most(f"{what}, median of {TURNS}", 0.5, middle["page"], "s", note=parts),
        reported("the same, fastest", f"{min(walls['page']):.2f} s"),
        reported("the same, time of the processor, median", f"{statistics.median(processor):.2f} s"),
    ]


if __name__ == "__main__":
    sys.exit(show("The command line", rows()))
