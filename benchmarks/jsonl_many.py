"""What a thousand runs at once cost on the file store: speed, open files, reading again, memory."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_least, at_most, exactly, in_turns, median_ratio, reported, show, work_directory
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os
from polyloop.stores.jsonl.runs import OPEN_FILES_PER_THREAD
from polyloop.stores.jsonl.store import THREADS

RUNS: Final = 1000
STEPS: Final = 10


async def at_once(store: JsonlRunStore, name: str, runs: int) -> None:
    """All runs at the same time."""
    run = agents.definition(store).run
    await asyncio.gather(*(run(agents.request(f"{name}-{index}", STEPS)) for index in range(runs)))


async def one_by_one(store: JsonlRunStore, name: str, runs: int) -> None:
    """One run after another."""
    run = agents.definition(store).run
    for index in range(runs):
        await run(agents.request(f"{name}-{index}", STEPS))


class SlowerOs(Os):
    """A disk whose syncs take a millisecond longer, as those of cloud disks do."""

    def fdatasync(self, fd: int) -> None:
        """Wait, and sync."""
        time.sleep(0.001)
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Wait, and sync."""
        time.sleep(0.001)
        super().fsync(fd)


class SlowerStore(JsonlRunStore):
    """A file store on such a disk."""

    _os = SlowerOs()


async def speed(store: JsonlRunStore) -> tuple[float, str]:
    """Steps a second of 1,000 runs at once over those of one run after another, and both in words.

    The runs one after another are taken in ten groups, so that both meet the disk in the same mood.
    """
    turns, in_a_row = iter(range(10**6)), RUNS // 10
    async with store:
        times = await in_turns(
            {
                "one by one": lambda: one_by_one(store, f"row-{next(turns)}", in_a_row),
                "at once": lambda: at_once(store, f"crowd-{next(turns)}", RUNS),
            },
            repeats=3,
        )
    ratio = median_ratio(times["one by one"], times["at once"]) * RUNS / in_a_row
    crowd = RUNS * STEPS / statistics.median(times["at once"])
    row = in_a_row * STEPS / statistics.median(times["one by one"])
    return ratio, f"{crowd:,.0f} steps a second against {row:,.0f}"


def speeds(folder: Path) -> list[Row]:
    """On the disk that is there, and on one with slower syncs."""
    what = "steps a second of 1,000 runs at once over one run after another"
    ratio, note = asyncio.run(speed(JsonlRunStore(folder / "here")))
    slower, slower_note = asyncio.run(speed(SlowerStore(folder / "slower")))
    return [
        at_least(what, 2.5, ratio, "x", note=note),
        reported("the same where each sync takes 1 ms longer", f"{slower:.3g} x ({slower_note})"),
    ]


class WatchedOs(Os):
    """Sees which files are open, and how much is read of them."""

    def __init__(self) -> None:
        self.most_open = 0
        self.opened = 0
        self.bytes_read = 0
        self._logs: set[int] = set()
        self._lock = threading.Lock()

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        """Open, and note it."""
        fd = super().open(path, flags, mode)
        if Path(path).suffix == ".jsonl":
            with self._lock:
                self._logs.add(fd)
                self.opened += 1
                self.most_open = max(self.most_open, len(self._logs))
        return fd

    def close(self, fd: int) -> None:
        """Note it, and close."""
        with self._lock:
            self._logs.discard(fd)
        super().close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read, and note how much."""
        data = super().pread(fd, size, offset)
        with self._lock:
            self.bytes_read += len(data)
        return data


class WatchedStore(JsonlRunStore):
    """A file store that is watched."""

    def __init__(self, directory: str | os.PathLike[str], watch: WatchedOs) -> None:
        super().__init__(directory)
        self._os = watch


async def files(folder: Path) -> list[Row]:
    """Open files at most, and what is read of a file that was closed to make room."""
    watch = WatchedOs()
    async with WatchedStore(folder, watch) as store:
        await at_once(store, "watched", RUNS)
    bound = THREADS * OPEN_FILES_PER_THREAD
    note = f"{watch.opened:,} times a file was opened"
    return [
        at_most("logs open at a time, 1,000 runs at once", bound, watch.most_open, "files", note=note),
        exactly("read again of the logs that were closed to make room", 0, watch.bytes_read, "bytes"),
    ]


def memory() -> list[Row]:
    """The most that is held while the runs are under way, for each of them."""

    async def measured(store_folder: Path, runs: int) -> int:
        async with JsonlRunStore(store_folder) as store:
            await at_once(store, "warm", 10)
            tracemalloc.start()
            try:
                await at_once(store, "held", runs)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        few, many = (asyncio.run(measured(Path(folder) / str(runs), runs)) for runs in (RUNS // 2, RUNS))
    a_run = (many - few) / (RUNS - RUNS // 2)
    return [
        reported("memory for each run under way", f"{a_run / 1000:,.1f} KB at 10 short steps each, results included")
    ]


def rows() -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        return [
            *speeds(Path(folder) / "speed"),
            *asyncio.run(files(Path(folder) / "files")),
            *memory(),
        ]


if __name__ == "__main__":
    sys.exit(show("A thousand runs on the file store", rows()))
