"""Whatever a power loss leaves of a recorded run holds all that was acknowledged, and nothing that was not written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.power.check import Bounds, Loss, Walk
from tests.power.recorded import KILLED, Recording
from tests.power.workload import TORN, everything
from tests.proof.plugin import Checked

LONG_RUN: Final = "works long"
STATES: Final = "power loss: states of the disk, read back"
RECOVERIES: Final = "power loss: runs gone on with, states behind a second loss"


def check(recording: Recording, bounds: Bounds) -> Walk:
    """Walk along all of it; no promise may be broken."""
    walk = asyncio.run(recording.walk(recording.events(), bounds))
    print(f"{walk.looked_at} states looked at, {recording.reader.distinct} of them different")
    assert not walk.broken, "\n".join(walk.broken)
    return walk


def check_recovery(at: Path, losses: list[Loss], bounds: Bounds) -> Walk:
    """After a power loss each run goes on to its right end, and whatever a second power loss leaves is honest too."""
    again = Recording(at, losses)
    again.record("recover")
    return check(again, bounds)


@pytest.fixture(scope="module")
def few_runs(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    recording = Recording(tmp_path_factory.mktemp("few"))
    keys = everything("few")
    recording.record("begin", *keys, status=KILLED)
    recording.record("resume", *keys)
    return recording


def test_a_power_loss_leaves_an_honest_prefix_and_the_runs_go_on_from_it(few_runs: Recording, tmp_path: Path) -> None:
    walk = check(few_runs, Bounds(seed=1, states=30, sample=12, whole_every=40))
    check_recovery(tmp_path / "again", walk.sample, Bounds(seed=2, states=15))


@pytest.mark.parametrize(("key", "call"), [(LONG_RUN, "mkdir"), ("torn in write 0", "ftruncate")])
def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_relied_on(
    key: str, call: str, tmp_path: Path
) -> None:
    killed_behind(key, call, 0, tmp_path, Bounds(seed=3, states=30))


def killed_behind(key: str, call: str, number: int, at: Path, bounds: Bounds) -> Walk:
    """A process is killed behind one of its calls; the next one goes on."""
    recording = Recording(at / "killed")
    if key in TORN:
        recording.record("begin", key, status=KILLED)
    recording.record("resume", key, "--kill", call, str(number), status=KILLED)
    recording.record("resume", key)
    return check(recording, bounds)


KILLS: Final = [
    *((LONG_RUN, call, number) for call, number in (("mkdir", 0), ("mkdir", 1), ("fsync", 0), ("fsync", 1))),
    *((LONG_RUN, call, number) for call in ("pwrite", "fdatasync") for number in (0, 1, 3)),
    *((key, call, number) for key in TORN for call, number in (("ftruncate", 0), ("pwrite", 0), ("pwrite", 1))),
    *((key, "fdatasync", 0) for key in TORN),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("key", "call", "number"), KILLS)
def test_a_process_may_be_killed_at_any_place_of_beginning_and_of_taking_over(
    key: str, call: str, number: int, tmp_path: Path, checked: Checked
) -> None:
    walk = killed_behind(key, call, number, tmp_path, Bounds(seed=number, states=400))
    checked(STATES, "jsonl", seed=number, states=walk.looked_at)


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    recording = Recording(tmp_path_factory.mktemp("all"))
    keys = everything("all")
    recording.record("begin", *keys, status=KILLED)
    recording.record("resume", *keys)
    return recording


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2))
def test_of_all_runs_a_power_loss_leaves_an_honest_prefix_and_they_go_on_from_it(
    all_runs: Recording, seed: int, tmp_path: Path, checked: Checked
) -> None:
    walk = check(all_runs, Bounds(seed=seed, states=300, sample=150, whole_every=10))
    again = check_recovery(tmp_path / "again", walk.sample, Bounds(seed=seed, states=60))
    checked(STATES, "jsonl", seed=seed, states=walk.looked_at)
    checked(RECOVERIES, "jsonl", seed=seed, runs=len(walk.sample), states=again.looked_at)
