"""The fleet of `examples/fleet`: three worker processes on one Postgres, killed at any moment and replaced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from polyloop import RunKey, StopReason

if os.environ.get("POLYLOOP_REQUIRE_POSTGRES") != "1":
    pytest.importorskip("pgqueuer", reason="the package pgqueuer is not installed")

from examples.fleet.agent import CHARGE, LOOK_UP
from tests.fleet.harness import Fleet, after, within


def runs(count: int) -> list[RunKey]:
    return [RunKey(f"run/{number}") for number in range(count)]


def check_stuck_in_charge(fleet: Fleet, key: RunKey) -> None:
    """It was certainly killed within an effect that must not happen again."""
    (begun,) = [line for line in fleet.entries_of(key) if line.tool == CHARGE]
    assert (begun.phase, begun.pid in fleet.killed) == ("begun", True)
    ended = fleet.log_of(key).finished
    assert ended is not None
    assert ended.stop_reason is StopReason.RESUME_STATE_UNKNOWN


def check_stuck_in_look_up(fleet: Fleet, key: RunKey) -> None:
    """It was certainly killed within an effect that may happen again, which it did, in another process."""
    looked = [line for line in fleet.entries_of(key) if (line.tool, line.item) == (LOOK_UP, 1)]
    assert (looked[0].phase, looked[0].pid in fleet.killed) == ("begun", True)
    assert (looked[-1].phase, looked[-1].pid == looked[0].pid) == ("done", False)
    # What came later may have met another kill.
    log = fleet.log_of(key)
    attempts = [intent.attempt for intent in log.intents if intent.result_id == log.results[1].result_id]
    assert attempts == list(range(1, len(attempts) + 1)), "the first action is the look-up"
    assert len(attempts) > 1


def test_runs_of_a_killed_worker_are_resumed_by_another_one(dsn: str, tmp_path: Path) -> None:
    charge, look_up = RunKey("stuck in a charge/0"), RunKey("stuck in a look-up/0")
    keys = [charge, look_up, *runs(28)]
    fleet = Fleet(dsn, tmp_path, seed=1)
    # Where one worker has both, one kill it is.
    assert fleet.run(keys, [within(charge, CHARGE), within(look_up, LOOK_UP)], patience_s=60) == []
    fleet.check(keys)
    check_stuck_in_charge(fleet, charge)
    check_stuck_in_look_up(fleet, look_up)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_of_two_hundred_runs_each_ends_once_whoever_is_killed(dsn: str, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    charges = [RunKey(f"stuck in a charge/{number}") for number in range(3)]
    look_ups = [RunKey(f"stuck in a look-up/{number}") for number in range(3)]
    keys = [*charges, *look_ups, *runs(194)]
    dice.shuffle(keys)
    in_charges = {key: within(key, CHARGE) for key in charges}
    in_look_ups = {key: within(key, LOOK_UP) for key in look_ups}
    anywhere = [after(count) for count in dice.sample(range(50, 1_000), 6)]
    fleet = Fleet(dsn, tmp_path, seed)
    missed = fleet.run(keys, [*in_charges.values(), *in_look_ups.values(), *anywhere], patience_s=240)
    fleet.check(keys)
    for key in (key for key, kill in in_charges.items() if kill not in missed):
        check_stuck_in_charge(fleet, key)
    for key in (key for key, kill in in_look_ups.items() if kill not in missed):
        check_stuck_in_look_up(fleet, key)
    assert len(fleet.killed) >= 6, f"kills that it did not come to: {missed}"
