"""A process with many runs at once is killed at random moments: all that a store call has returned for is there."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunFinished
from tests.power.check import read_log
from tests.power.hand_made import path_of
from tests.power.ledger import Tidings
from tests.power.load import NEVER, key_of
from tests.power.recorded import ROOT
from tests.proof.plugin import Checked

KILLS: Final = 8
BYTES_PER_RUN: Final = 95_000
"""How much a run that nothing interrupts writes into the ledger, or a little less."""


class Load:
    """Processes that follow each other under load, and what they say."""

    def __init__(self, at: Path, count: int, seed: int) -> None:
        self.directory = at / "runs"
        self._ledger = at / "ledger"
        self._ledger.touch()
        self._count = count
        self._dice = random.Random(seed)

    def start(self, ledger: Path | None = None) -> subprocess.Popen[str]:
        """Start one; it waits for the end of its input."""
        command = [sys.executable, "-m", "tests.power.load", str(self.directory), str(ledger or self._ledger)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*command, str(self._count)], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def kill_one(self) -> None:
        """Start one, and kill it when it has done about a share of the work."""
        share = self._count * BYTES_PER_RUN // (KILLS + 1)
        target = self._ledger.stat().st_size + self._dice.randrange(share)
        process = self.start()
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        while self._ledger.stat().st_size < target and process.poll() is None:
            time.sleep(0.002)
        time.sleep(self._dice.random() * 0.003)
        process.send_signal(signal.SIGKILL)
        _, complaint = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, f"it ended before it was killed: {complaint}"

    def finish(self) -> None:
        """Let one do the rest."""
        process = self.start()
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint

    async def check(self) -> int:
        """Compare the logs with the ledger; how many runs are at an end."""
        tidings, effects = Tidings(), collections.Counter[tuple[str, str]]()
        for line in self._ledger.read_bytes().splitlines():
            note = json.loads(line)
            assert note["what"] != "refused", "a process that was alone was refused"
            if note["what"] == "effect":
                effects[note["key"], note["effect"]] += 1
            else:
                tidings.take(line)
        twice = [each for each, count in effects.items() if count > 1 and each[1] in NEVER]
        assert not twice, f"happened twice: {twice}"
        ended = 0
        async with JsonlRunStore(self.directory) as store:
            for number in range(self._count):
                key = key_of(number)
                told = tidings.logs.get(str(path_of(self.directory, key)))
                found = await read_log(store, key)
                if told is not None:
                    problem = told.verdict(found, at_least=told.done)
                    assert problem is None, f"{key}: {problem}"
                ended += isinstance(found, tuple) and bool(found) and isinstance(found[-1], RunFinished)
        return ended


def eight_kills(at: Path, count: int, seed: int) -> None:
    load = Load(at, count, seed)
    for kill in range(KILLS):
        try:
            load.kill_one()
            asyncio.run(load.check())
        except BaseException as failure:
            failure.add_note(f"seed {seed}, {count} runs, kill {kill}")
            raise
    load.finish()
    assert asyncio.run(load.check()) == count


def test_eight_kills_lose_nothing_that_was_acknowledged_and_repeat_nothing(tmp_path: Path) -> None:
    eight_kills(tmp_path, count=60, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 8))
def test_eight_kills_of_many_runs_lose_nothing_that_was_acknowledged(
    seed: int, tmp_path: Path, checked: Checked
) -> None:
    eight_kills(tmp_path, count=400, seed=seed)
    checked("processes killed under load", "jsonl", seed=seed, kills=KILLS, runs=400)
