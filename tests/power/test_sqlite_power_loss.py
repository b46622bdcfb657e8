"""Whatever a power loss leaves of recorded runs in one SQLite file holds all that was acknowledged, and they go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.power.recorded import KILLED
from tests.power.sqlite_check import Bounds, Loss, Recording, Walk
from tests.power.test_planted_faults import FAULTS
from tests.power.test_power_loss import RECOVERIES, STATES
from tests.power.trace import Begin, Call, End, Event
from tests.power.workload import CANCELLED, FEW, PAUSED, everything
from tests.proof.plugin import Checked

KEYS: Final = (*FEW, *PAUSED[1:], CANCELLED[1])
FAILING: Final = "power loss behind failed syncs and writes"


def check(recording: Recording, events: Sequence[Event], bounds: Bounds) -> Walk:
    """Walk along these events; no promise may be broken."""
    walk = recording.walk(events, bounds)
    print(f"{walk.looked_at} states looked at, {recording.scratch.distinct} of them different, {bounds}")
    assert not walk.broken, "\n".join(walk.broken)
    return walk


def recorded(at: Path, memory: Path, keys: Sequence[str], *given: str) -> Recording:
    """Runs that are killed, and gone on with by another process."""
    recording = Recording(at, memory, keys)
    recording.record("begin", *given, status=KILLED)
    recording.record("resume", *given)
    return recording


def check_recovery(at: Path, memory: Path, keys: Sequence[str], losses: Sequence[Loss], bounds: Bounds) -> int:
    """Runs go on from each loss to their right ends, and what another one leaves of that is honest too."""
    looked_at = 0
    for number, loss in enumerate(losses):
        again = Recording(at / str(number), memory, keys, loss)
        again.record("resume")
        looked_at += check(again, again.events(), bounds).looked_at
    return looked_at


@pytest.fixture(scope="module")
def few_runs(tmp_path_factory: pytest.TempPathFactory, memory: Path) -> Recording:
    return recorded(tmp_path_factory.mktemp("few"), memory, KEYS)


def test_a_power_loss_leaves_an_honest_prefix_of_each_run_and_all_go_on_from_it(
    few_runs: Recording, tmp_path: Path, memory: Path, checked: Checked
) -> None:
    walk = check(few_runs, few_runs.events(), Bounds(seed=1, every=25, states=1, sample=8))
    for number, loss in enumerate(walk.sample):
        asyncio.run(few_runs.scratch.recover(loss, random.Random(number)))
    check_recovery(tmp_path, memory, KEYS, walk.sample[:1], Bounds(seed=2, every=60, states=1))
    checked(STATES, "sqlite", seed=1, states=walk.looked_at, different=few_runs.scratch.distinct)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [(("--connection", "normal"), "is gone"), (("--fault", "early"), "is gone")],
    ids=["a store that does not sync a commit", "a store that answers before the commit"],
)
def test_a_store_that_acknowledges_what_is_not_on_the_disk_is_found(
    fault: tuple[str, str], expected: str, tmp_path: Path, memory: Path
) -> None:
    find(fault, expected, tmp_path, memory)


def find(fault: Sequence[str], expected: str, at: Path, memory: Path, inject: str | None = None) -> None:
    """Record a store with this fault; some state must show it."""
    recording = Recording(at / "faulty", memory, ["works long", "has no model"])
    recording.record("resume" if inject is None else "retry", *fault, inject=inject)
    walk = recording.walk(recording.events(), Bounds(seed=1, every=6, states=3))
    assert any(expected in each for each in walk.broken), walk.broken


@pytest.mark.slow
def test_a_store_that_never_syncs_is_found(tmp_path: Path, memory: Path, checked: Checked) -> None:
    find(("--connection", "off"), "", tmp_path, memory)
    checked(FAULTS, "sqlite", seed=1, faults=1)


def fail(inject: str, at: Path, memory: Path, bounds: Bounds) -> Walk:
    """Runs on a disk that fails for a time go on to their ends all the same; a power loss then takes nothing."""
    recording = Recording(at / "failing", memory, ["a", "b", "works long"])
    recording.record("retry", inject=inject)
    return check(recording, recording.events(), bounds)


TWO_SYNCS: Final = "fdatasync:error=EIO:when=8..9"
"""The sync of a commit, and the next one, by which SQLite would leave the file: the log then outlives the failure."""


def test_what_was_acknowledged_behind_a_failed_sync_does_not_rest_on_what_that_sync_lost(
    tmp_path: Path, memory: Path
) -> None:
    fail(TWO_SYNCS, tmp_path, memory, Bounds(seed=1, every=12, states=2))
    find(("--fault", "trusting"), "is gone", tmp_path, memory, inject=TWO_SYNCS)


# The sixth sync is SQLite's own of the directory, whose failure it tells nobody: the store syncs it once more.
FAILURES: Final = (
    *(f"fdatasync:error=EIO:when={first}..{first + more}" for first in range(6, 14) for more in (0, 1, 3)),
    "fsync:error=EIO:when=1..1",
    *(
        f"pwrite64:error={error}:when={first}..{first + 3}"
        for first in range(40, 110, 7)
        for error in ("EIO", "ENOSPC")
    ),
    *(f"ftruncate:error=EIO:when={number}" for number in (2, 3)),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("inject", FAILURES)
def test_a_disk_that_fails_for_a_time_costs_nothing_that_was_acknowledged(
    inject: str, tmp_path: Path, memory: Path, checked: Checked
) -> None:
    recording = Recording(tmp_path / "failing", memory, ["a", "b", "works long"])
    recording.record("persist", inject=inject)
    recording.record("resume")
    walk = check(recording, recording.events(), Bounds(seed=3, every=4, states=4))
    checked(FAILING, "sqlite", seed=3, states=walk.looked_at, failing_disks=1)


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory, memory: Path) -> Recording:
    return recorded(tmp_path_factory.mktemp("all"), memory, all_keys())


def all_keys() -> list[str]:
    return [key for key in everything("all") if not key.startswith("torn")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
def test_of_all_runs_a_power_loss_leaves_an_honest_prefix_and_they_go_on_from_it(
    all_runs: Recording, seed: int, tmp_path: Path, memory: Path, checked: Checked
) -> None:
    before = all_runs.scratch.distinct
    walk = check(all_runs, all_runs.events(), Bounds(seed=seed, every=15, states=4, sample=20))
    for number, loss in enumerate(walk.sample):
        asyncio.run(all_runs.scratch.recover(loss, random.Random(number)))
    again = check_recovery(tmp_path, memory, all_keys(), walk.sample[:2], Bounds(seed=seed, every=30, states=2))
    checked(STATES, "sqlite", seed=seed, states=walk.looked_at, different=all_runs.scratch.distinct - before)
    runs = len(walk.sample) * len(all_keys())
    checked(RECOVERIES, "sqlite", seed=seed, runs=runs, states=again)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["rarely", "shared"])
def test_nor_does_it_where_the_log_is_long_or_two_processes_write_it(
    way: str, tmp_path: Path, memory: Path, checked: Checked
) -> None:
    recording = Recording(tmp_path / way, memory, all_keys())
    phase, connection = ("share", "often") if way == "shared" else ("resume", "rarely")
    recording.record("begin", "--connection", connection, status=KILLED)
    recording.record(phase, "--connection", connection)
    walk = check(recording, recording.events(), Bounds(seed=5, every=15, states=4))
    checked(STATES, "sqlite", seed=5, states=walk.looked_at, different=recording.scratch.distinct)


def relied_on(events: Sequence[Event]) -> Iterator[Call]:
    """The syncs of the write-ahead log behind which a barrier is acknowledged before it is synced again."""
    latest: Call | None = None
    for event in events:
        if isinstance(event, End) and event.call.name == "fdatasync" and event.call.path(0).endswith("-wal"):
            latest = event.call
        elif isinstance(event, Begin) and event.call.name == "write" and b'"barrier": true' in event.call.data(1):
            if latest is not None:
                yield latest
            latest = None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_sync_before_an_acknowledged_record_is_missed_if_it_is_taken_out_of_a_trace(
    tmp_path: Path, memory: Path, checked: Checked
) -> None:
    recording = recorded(tmp_path / "runs", memory, KEYS)
    events = recording.events()
    calls = list(relied_on(events))
    assert len(calls) > 15
    for call in calls:
        left = [event for event in events if not (isinstance(event, End) and event.call.line == call.line)]
        walk = recording.walk(left, Bounds(seed=call.line, every=30, states=1))
        assert walk.broken, f"nothing tells that this sync was left out: {call}"
    checked(FAULTS, "sqlite", seed="lines of the trace", faults=len(calls))
