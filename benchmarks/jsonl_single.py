"""What one run costs on the file store: syncs, time against the bare system calls, bytes."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import dataclasses
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_most, exactly, median_ratio, reported, show, work_directory
from polyloop import Action, ActionOutcome, ModelCall, ModelReply
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os

KEY: Final = "run"
OVERHEAD_BYTES: Final = 1536


async def run_once(
    directory: Path, steps: int, *, model: agents.Model, parser: agents.Parser, observation: str
) -> None:
    """A run of so many steps on a file store."""
    async with JsonlRunStore(directory) as store:
        run = agents.definition(store, model=model, parser=parser).run
        await run(agents.request(KEY, steps, executor=agents.Executor(observation)))


async def plain_run(directory: Path, steps: int) -> None:
    """A run with short texts."""
    await run_once(directory, steps, model=agents.Model(), parser=agents.Parser(), observation=agents.OBSERVATION)


# --- syncs


class CountingOs(Os):
    """Counts syncs where no tracer is at hand."""

    syncs = 0

    def fdatasync(self, fd: int) -> None:
        """Count, and sync."""
        type(self).syncs += 1
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Count, and sync."""
        type(self).syncs += 1
        super().fsync(fd)


class CountingStore(JsonlRunStore):
    """A file store whose syncs are counted."""

    _os = CountingOs()


def traced_syncs(strace: str, folder: Path, steps: int) -> int | None:
    """Syncs of a process that makes one run, as the kernel saw them; None where tracing is not allowed."""
    trace = folder / "trace"
    command = [strace, "-f", "-qq", "-o", str(trace), "-e", "trace=fdatasync,fsync,sync_file_range,msync,syncfs,sync"]
    command += [sys.executable, __file__, "--steps", str(steps), "--directory", str(folder / "runs")]
    if subprocess.run(command, check=False, capture_output=True).returncode:  # noqa: S603 - our own script
        return None
    return len(re.findall(r"^\d+ +\w+\(", trace.read_text("ascii", "replace"), re.MULTILINE))


def counted_syncs(folder: Path, steps: int) -> int:
    """The same, counted in this process."""

    async def one() -> None:
        async with CountingStore(folder / "runs") as store:
            await agents.definition(store).run(agents.request(KEY, steps))

    CountingOs.syncs = 0
    asyncio.run(one())
    return CountingOs.syncs


def syncs() -> list[Row]:
    """Syncs a step: the difference between two runs, so that start and end do not count."""
    few, many = 50, 150
    strace = shutil.which("strace")
    found: list[int] = []
    how = "counted by strace"
    for steps in (few, many):
        with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
            count = traced_syncs(strace, Path(folder), steps) if strace else None
            if count is None:
                how = "counted in the process"
                count = counted_syncs(Path(folder) / "again", steps)
            found.append(count)
    note = f"{how}: {found[0]} in {few} steps, {found[1]} in {many}"
    return [exactly("syncs a step", 2, (found[1] - found[0]) / (many - few), "syncs", note=note)]


# --- time


class Meter:
    """Times a run's way from one port call to the next, and next to each the bare system calls for its bytes.

    How long a disk takes changes by more than ten times within a second when others use it too, so all must
    alternate as finely as this to meet the same disk.
    """

    def __init__(self, folder: Path) -> None:
        self.library: list[float] = []
        self.bare: list[float] = []
        self.hopped: list[float] = []
        """The bare system calls made on another thread and awaited: the least that an event loop can do with."""
        self._runs = folder / "runs"
        self._fds = [os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600) for name in ("bare", "hopped")]
        self._threads = concurrent.futures.ThreadPoolExecutor(1)
        self._log: BinaryIO | None = None
        self._resumed = time.perf_counter()

    async def pause(self) -> None:
        """An effect's intent has just become durable: write and sync the same bytes, with nothing around."""
        self.library.append(time.perf_counter() - self._resumed)
        if self._log is None:
            (path,) = self._runs.iterdir()
            self._log = path.open("rb")
        data = self._log.read()
        bare, hopped = self._fds
        started = time.perf_counter()
        pair(bare, data)
        self.bare.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(self._threads, pair, hopped, data)
        self._resumed = time.perf_counter()
        self.hopped.append(self._resumed - started)

    def close(self) -> None:
        """Release the files and the thread."""
        self._threads.shutdown()
        for fd in self._fds:
            os.close(fd)
        if self._log is not None:
            self._log.close()


def pair(fd: int, data: bytes) -> None:
    """Write and sync."""
    os.write(fd, data)
    os.fdatasync(fd)


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
    meter = Meter(folder)
    async with JsonlRunStore(folder / "runs") as store:
        run = agents.definition(store, model=MeteredModel(meter)).run
        await run(agents.request(KEY, steps, executor=MeteredExecutor(meter)))
    meter.close()
    return meter


def by_steps(pauses: list[float]) -> list[float]:
    """The seconds of whole steps: from action to action, so that the start does not count."""
    return [model + action for model, action in zip(pauses[2::2], pauses[3::2], strict=True)]


def against_bare_pairs() -> list[Row]:
    """A run's time over that of its own bytes, written and synced bare."""
    library: list[float] = []
    bare: list[float] = []
    hopped: list[float] = []
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        for turn in range(5):
            turn_folder = Path(folder) / str(turn)
            turn_folder.mkdir()
            meter = asyncio.run(metered(turn_folder, 300))
            library += by_steps(meter.library)
            bare += by_steps(meter.bare)
            hopped += by_steps(meter.hopped)
    note = (
        f"{statistics.median(library) * 1e6:,.0f} µs a step against {statistics.median(bare) * 1e6:,.0f} µs, "
        f"medians of {len(bare):,} steps"
    )
    return [
        at_most("one run over the bare pairs of write and fdatasync", 2, median_ratio(library, bare), "x", note=note),
        reported("the bare pairs, each made on another thread and awaited", f"{median_ratio(hopped, bare):.3g} x"),
    ]


# --- bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Texts:
    """What the ports say in each step."""

    reply: str
    skip: int
    """How many characters of the reply stand before the action."""
    observation: str

    @property
    def payload(self) -> int:
        """Bytes of the texts that the ports hand over, in UTF-8: reply, action, observation."""
        return len((self.reply + self.reply[self.skip :] + self.observation).encode())


USUAL: Final = Texts(reply="think " * 50 + "print(1)\n" * 30, skip=300, observation="a line of output\n" * 60)

OTHERS: Final = {
    "no text at all": Texts(reply="", skip=0, observation=""),
    "2,000 characters of reply, all of them the action": Texts(reply="x = 1 # a\n" * 200, skip=0, observation=""),
    "2,000 Chinese characters observed": Texts(reply="", skip=0, observation="公文" * 1000),
}


def bytes_by_step(data: bytes) -> list[int]:
    """Bytes of each step of a log, from the step before to this one."""
    ends = [found.end() for found in re.finditer(rb'.*"record":"step_completed".*\n', data)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def logged(texts: Texts, steps: int) -> list[int]:
    """Bytes of each step of such a run but the first, which has the start record."""
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        runs = Path(folder) / "runs"
        model, parser = agents.Model(texts.reply), agents.Parser(texts.skip)
        asyncio.run(run_once(runs, steps, model=model, parser=parser, observation=texts.observation))
        (log,) = runs.iterdir()
        return bytes_by_step(log.read_bytes())[1:]


def size() -> list[Row]:
    """Bytes a step, and whether they stay the same."""
    sizes = logged(USUAL, 1000)
    early, late = statistics.mean(sizes[:100]), statistics.mean(sizes[-100:])
    said = f"{len(USUAL.reply)} characters of reply, {len(USUAL.reply) - USUAL.skip} of them the action, "
    said += f"{len(USUAL.observation)} observed"
    return [
        at_most("bytes of the last 100 of 1,000 steps over those of the first 100", 1.05, late / early, "x"),
        at_most(
            f"bytes a step: {said}",
            3 * USUAL.payload + OVERHEAD_BYTES,
            late,
            "bytes",
            note="the limit is 1.5 KB and 3 x the payload: reply, action and observation in UTF-8",
        ),
        *(reported(f"bytes a step: {what}", _multiple(texts)) for what, texts in OTHERS.items()),
    ]


def _multiple(texts: Texts) -> str:
    mean = statistics.mean(logged(texts, 20))
    if not texts.payload:
        return f"{mean:,.0f} bytes"
    return f"{mean:,.0f} bytes: 1.5 KB and {(mean - OVERHEAD_BYTES) / texts.payload:.2f} x the payload"


def rows() -> list[Row]:
    """All figures."""
    return [*syncs(), *against_bare_pairs(), *size()]


def main() -> int:
    """Measure, or with `--steps` make the one run that is traced."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print the rows for run.py")
    parser.add_argument("--steps", type=int, help="make one run of so many steps, nothing else")
    parser.add_argument("--directory", type=Path, help="where")
    asked = parser.parse_args()
    if asked.steps is None:
        return show("One run on the file store", rows())
    asyncio.run(plain_run(asked.directory, asked.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
