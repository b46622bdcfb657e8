"""What runs cost on the SQLite store: syncs, time against a bare loop of commits, a thousand runs at once."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import re
import shutil
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
from benchmarks.measuring import Row, at_least, at_most, exactly, in_turns, median_ratio, reported, show, work_directory
from polyloop import Action, ActionOutcome, ModelCall, ModelReply, RunStore
from polyloop.stores.sqlite import SqliteRunStore

RUNS: Final = 1000
STEPS: Final = 10
TURNS: Final = 5
METERED_STEPS: Final = 300


async def at_once(store: RunStore, name: str, runs: int, steps: int) -> None:
    """All runs at the same time."""
    run = agents.definition(store).run
    await asyncio.gather(*(run(agents.request(f"{name}-{index}", steps)) for index in range(runs)))


async def one_by_one(store: RunStore, name: str, runs: int, steps: int) -> None:
    """One run after another."""
    run = agents.definition(store).run
    for index in range(runs):
        await run(agents.request(f"{name}-{index}", steps))


async def plain(path: Path, runs: int, steps: int) -> None:
    """So many runs at once on a file, nothing else."""
    async with SqliteRunStore(path) as store:
        await at_once(store, "run", runs, steps)


# --- syncs


class CountingConnection(sqlite3.Connection):
    """Counts transactions that write, each of which is a sync, where no tracer is at hand."""

    commits = 0

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        """Count, and execute."""
        CountingConnection.commits += sql == "begin immediate"
        return super().execute(sql, parameters)  # type: ignore[arg-type]  # passed on as they came


class CountingStore(SqliteRunStore):
    """A store whose commits are counted."""

    _connection = CountingConnection


def traced_syncs(strace: str, folder: Path, runs: int, steps: int) -> int | None:
    """Syncs of a process that makes these runs, as the kernel saw them; None where tracing is not allowed."""
    trace = folder / "trace"
    # Stopped at other calls too, the event loop is so slow that hardly two runs are ready at a time.
    command = [
        strace,
        "--seccomp-bpf",
        "-f",
        "-qq",
        "-o",
        str(trace),
        "-e",
        "trace=fdatasync,fsync,sync_file_range,msync,syncfs,sync",
    ]
    command += [sys.executable, __file__, "--path", str(folder / "runs.sqlite")]
    command += ["--runs", str(runs), "--steps", str(steps)]
    if subprocess.run(command, check=False, capture_output=True).returncode:  # noqa: S603 - our own script
        return None
    return len(re.findall(r"^\d+ +\w+\(", trace.read_text("ascii", "replace"), re.MULTILINE))


def counted_commits(path: Path, runs: int, steps: int) -> int:
    """Commits instead, counted in this process."""

    async def work() -> None:
        async with CountingStore(path) as store:
            await at_once(store, "run", runs, steps)

    CountingConnection.commits = 0
    asyncio.run(work())
    return CountingConnection.commits


def counted(runs: int, steps: int) -> tuple[int, str]:
    """Syncs of these runs, and how they were counted."""
    strace = shutil.which("strace")
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        count = traced_syncs(strace, Path(folder), runs, steps) if strace else None
        if count is not None:
            return count, "counted by strace"
        return counted_commits(Path(folder) / "again.sqlite", runs, steps), "commits counted in the process"


def syncs() -> list[Row]:
    """Syncs a step: of one run the difference between two lengths, so that start and end do not count."""
    few, many = 50, 150
    (short, how), (long, _) = counted(1, few), counted(1, many)
    crowd, _ = counted(RUNS, STEPS)
    steps = RUNS * STEPS
    return [
        exactly(
            "syncs a step, one run",
            2,
            (long - short) / (many - few),
            "syncs",
            note=f"{how}: {short} in {few} steps, {long} in {many}",
        ),
        at_most(
            f"syncs a step, {RUNS:,} runs at once",
            0.1,
            crowd / steps,
            "syncs",
            note=f"{how}: {crowd} in {steps:,} steps",
        ),
    ]


# --- one run


class Bare:
    """What a loop without a library would do: a table, and a transaction for each stretch of records."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table log (record text not null)")

    def commit(self, records: list[tuple[str]]) -> None:
        """Insert and commit."""
        self._connection.execute("begin immediate")
        self._connection.executemany("insert into log values (?)", records)
        self._connection.execute("commit")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()


class Meter:
    """Times a run's way from one port call to the next, and next to each a bare commit of its records.

    How long a disk takes changes by more than ten times within a second when others use it too, so all must
    alternate as finely as this to meet the same disk.
    """

    def __init__(self, folder: Path) -> None:
        self.library: list[float] = []
        self.bare: list[float] = []
        self.hopped: list[float] = []
        """The bare commits made on another thread and awaited: the least that an event loop can do with."""
        self._reader = sqlite3.connect(folder / "runs.sqlite", isolation_level=None)
        self._last = 0
        self._bare = Bare(folder / "bare.sqlite")
        self._hopped = Bare(folder / "hopped.sqlite")
        self._threads = concurrent.futures.ThreadPoolExecutor(1)
        self._resumed = time.perf_counter()

    async def pause(self) -> None:
        """An effect's intent has just become durable: commit the same records, with nothing around."""
        self.library.append(time.perf_counter() - self._resumed)
        rows = self._reader.execute("select rowid, record from records where rowid > ?", (self._last,)).fetchall()
        self._last = rows[-1][0]
        records = [(record,) for _, record in rows]
        started = time.perf_counter()
        self._bare.commit(records)
        self.bare.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(self._threads, self._hopped.commit, records)
        self._resumed = time.perf_counter()
        self.hopped.append(self._resumed - started)

    def close(self) -> None:
        """Release the files and the thread."""
        self._threads.shutdown()
        self._reader.close()
        self._bare.close()
        self._hopped.close()


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


async def metered(folder: Path, steps: int) -> Meter:
    """One run, metered."""
    async with SqliteRunStore(folder / "runs.sqlite") as store:
        meter = Meter(folder)
        run = agents.definition(store, model=MeteredModel(meter)).run
        await run(agents.request("run", steps, executor=MeteredExecutor(meter)))
        meter.close()
    return meter


def by_steps(pauses: list[float]) -> list[float]:
    """The seconds of whole steps: from action to action, so that the start does not count."""
    return [model + action for model, action in zip(pauses[2::2], pauses[3::2], strict=True)]


def against_bare_commits() -> list[Row]:
    """A run's time over that of its own records, committed bare."""
    library: list[float] = []
    bare: list[float] = []
    hopped: list[float] = []
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        for turn in range(TURNS):
            turn_folder = Path(folder) / str(turn)
            turn_folder.mkdir()
            meter = asyncio.run(metered(turn_folder, METERED_STEPS))
            library += by_steps(meter.library)
            bare += by_steps(meter.bare)
            hopped += by_steps(meter.hopped)
    note = (
        f"{statistics.median(library) * 1e6:,.0f} µs a step against {statistics.median(bare) * 1e6:,.0f} µs, "
        f"medians of {len(bare):,} steps"
    )
    return [
        at_most("one run over a bare loop of two commits a step", 2, median_ratio(library, bare), "x", note=note),
        reported("the bare commits, each made on another thread and awaited", f"{median_ratio(hopped, bare):.3g} x"),
    ]


# --- many runs


async def speed(path: Path) -> list[Row]:
    """Steps a second of 1,000 runs at once over those of one run after another.

    The runs one after another are taken in ten groups, so that both meet the disk in the same mood.
    """
    turns, in_a_row = iter(range(10**6)), RUNS // 10
    async with SqliteRunStore(path) as store:
        times = await in_turns(
            {
                "one by one": lambda: one_by_one(store, f"row-{next(turns)}", in_a_row, STEPS),
                "at once": lambda: at_once(store, f"crowd-{next(turns)}", RUNS, STEPS),
            },
            repeats=TURNS,
        )
    ratio = median_ratio(times["one by one"], times["at once"]) * RUNS / in_a_row
    crowd = RUNS * STEPS / statistics.median(times["at once"])
    row = in_a_row * STEPS / statistics.median(times["one by one"])
    note = f"{crowd:,.0f} steps a second against {row:,.0f}"
    return [at_least("steps a second of 1,000 runs at once over one run after another", 5, ratio, "x", note=note)]


def rows() -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        return [*syncs(), *against_bare_commits(), *asyncio.run(speed(Path(folder) / "runs.sqlite"))]


def main() -> int:
    """Measure, or with `--path` make the runs that are traced."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print the rows for run.py")
    parser.add_argument("--path", type=Path, help="make runs on this file, nothing else")
    parser.add_argument("--runs", type=int, default=1, help="how many at once")
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps each")
    asked = parser.parse_args()
    if asked.path is None:
        return show("Runs on the SQLite store", rows())
    asyncio.run(plain(asked.path, asked.runs, asked.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
