"""What `polyloop report` costs as a process: 1,000 runs of 20 steps, on the two stores that live on a disk."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_most, reported, show, work_directory
from polyloop import RunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore

RUNS: Final = 1000
STEPS: Final = 20
# As much as agents write: about 60 MB of text in all.
REPLY: Final = "I look into the next folder, for what I need may be <there> & not \u201chere\u201d.\n" * 12
OBSERVATION: Final = "-rw-r--r-- 1 user user 1234 a file with a name of some length.txt\n" * 30
LIMIT_S: Final = 10
LIMIT_MB: Final = 300


class Cost(NamedTuple):
    """What a process cost."""

    processor_s: float
    wall_s: float
    peak_mb: float
    page_mb: float


async def fill(store: RunStore) -> None:
    """Make the runs, a hundred at a time."""
    run = agents.definition(store, model=agents.Model(REPLY), parser=agents.Parser(skip=200)).run
    for first in range(0, RUNS, 100):
        requests = [
            agents.request(f"episode-{number}", STEPS, executor=agents.Executor(OBSERVATION))
            for number in range(first, first + 100)
        ]
        await asyncio.gather(*map(run, requests))


async def made(kind: str, path: Path) -> str:
    """A filled store; its URL."""
    if kind == "jsonl":
        async with JsonlRunStore(path) as files:
            await fill(files)
    else:
        async with SqliteRunStore(path) as database:
            await fill(database)
    return f"{kind}:{path}"


def cost(url: str, page: Path) -> Cost:
    """Write the report in a process of its own."""
    command = [sys.executable, "-m", "polyloop.cli", "report", url, "-o", str(page)]
    started = time.perf_counter()
    process = os.spawnv(os.P_NOWAIT, sys.executable, command)  # noqa: S606 - our own command; its usage is asked for
    _, status, usage = os.wait4(process, 0)
    wall_s = time.perf_counter() - started
    if status:
        raise RuntimeError(f"polyloop report ended with {os.waitstatus_to_exitcode(status)}")
    peak = usage.ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, peak, page.stat().st_size / 1e6)


def rows() -> list[Row]:
    """All figures."""
    found: list[Row] = []
    for kind in ("jsonl", "sqlite"):
        with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
            url = asyncio.run(made(kind, Path(folder) / "runs"))
            measured = cost(url, Path(folder) / "report.html")
        what = f"a report on {RUNS:,} runs of {STEPS} steps, {kind}"
        processor = f"{measured.processor_s:.1f} s of the processor"
        found += [
            at_most(f"{what}: time", LIMIT_S, measured.wall_s, "s", note=processor),
            at_most(f"{what}: peak memory", LIMIT_MB, measured.peak_mb, "MB"),
            reported(f"{what}: size of the page", f"{measured.page_mb:.0f} MB"),
        ]
    return found


if __name__ == "__main__":
    sys.exit(show("The report", rows()))
