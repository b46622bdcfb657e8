"""What resuming a long run costs: reading its log, judging it, and going on."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_most, median_ratio, reported, show, timed, work_directory
from polyloop import ModelCall, ModelReply, RunKey, StopReason
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os

SIZES: Final = (2_500, 5_000, 10_000)
REPEATS: Final = 5


class LaxOs(Os):
    """Writes without syncing: how a log came about does not matter to whoever resumes it."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""


class LaxStore(JsonlRunStore):
    """A file store for making logs to read."""

    _os = LaxOs()


class Stop(BaseException):
    """Ends a process's part in a run as a kill would: nothing more is written."""


class StoppedModel(agents.Model):
    """Answers so many calls, and is then interrupted."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._until = calls

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Answer."""
        if call.call_index == self._until:
            raise Stop
        return await super().call(call)


async def interrupted(folder: Path, steps: int) -> None:
    """Leave the log of a run of so many steps that has not ended."""
    async with LaxStore(folder) as store:
        run = agents.definition(store, model=StoppedModel(steps)).run
        try:
            await run(agents.request("run", max(SIZES) + 1))
        except Stop:
            return
    raise AssertionError("the run was not interrupted")


async def resumed(folder: Path, steps: int) -> float:
    """Seconds of a resume that takes one more step, and ends the run."""
    async with JsonlRunStore(folder) as store:
        resume = agents.definition(store, model=agents.Model(calls=steps)).resume

        async def work() -> None:
            result = await resume(agents.request("run", max(SIZES) + 1))
            assert (result.stop_reason, len(result.steps)) == (StopReason.AGENT_FINISHED, steps + 1)

        return await timed(work)


async def read(folder: Path) -> float:
    """Seconds of the reading alone."""
    async with JsonlRunStore(folder) as store:
        return await timed(lambda: store.read_log(RunKey("run")))


async def measured(folder: Path) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds of each resume by the number of steps in the log, and of reading the longest log."""
    for steps in SIZES:
        await interrupted(folder / str(steps), steps)
    times: dict[int, list[float]] = {steps: [] for steps in SIZES}
    readings: list[float] = []
    for turn in range(REPEATS + 1):
        for steps in SIZES:
            # A resumed run has ended: each turn gets a copy of the log.
            fresh = Path(shutil.copytree(folder / str(steps), folder / f"{steps}-{turn}"))
            seconds = await resumed(fresh, steps)
            if turn:
                times[steps].append(seconds)
        if turn:
            readings.append(await read(folder / str(max(SIZES))))
    return times, readings


def rows() -> list[Row]:
    """All figures."""
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        times, readings = asyncio.run(measured(Path(folder)))
    small, large = min(SIZES), max(SIZES)
    ratio = median_ratio(times[large], times[small]) * small / large
    whole = {steps: statistics.median(seconds) for steps, seconds in times.items()}
    shown = ", ".join(f"{steps:,} steps {seconds:.2f} s" for steps, seconds in whole.items())
    return [
        at_most("time a step of a log of 10,000 steps over one of 2,500", 1.25, ratio, "x"),
        reported("resuming a log", shown),
        reported(
            "a step in a log of 10,000",
            f"{whole[large] / large * 1e6:,.0f} µs, {statistics.median(readings) / large * 1e6:,.0f} µs of it to read",
        ),
    ]


if __name__ == "__main__":
    sys.exit(show("Resuming a long run", rows()))
