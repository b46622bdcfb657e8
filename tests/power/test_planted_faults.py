"""The check of power losses finds what it is for: each sync that a store leaves out."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.power.check import Bounds
from tests.power.recorded import KILLED, Recording
from tests.power.trace import Begin, Call, End, Event
from tests.power.workload import TORN, everything
from tests.proof.plugin import Checked

LONG_RUN: Final = "works long"
FAULTS: Final = "power loss: planted faults, found"

SKIPPED: Final = [
    ("barrier", LONG_RUN, 1, "is gone"),
    ("directory", LONG_RUN, 0, "is gone"),
    ("tail", "torn in write 3", 0, "refused"),
    ("tail", "torn in write 0", 0, "record 0 is not the one that was written"),
]
MORE_SKIPPED: Final = [
    *(("barrier", LONG_RUN, number, "is gone") for number in (0, 2, 3, 4, 5, 6, 7)),
    *(("tail", key, 0, "refused") for key in TORN if key not in ("torn in write 0", "torn in write 2")),
]


def find(what: str, key: str, number: int, expected: str, at: Path) -> None:
    """Record a store that leaves out this sync; some state must show it."""
    recording = Recording(at / "faulty")
    if key in TORN:
        recording.record("begin", key, status=KILLED)
    recording.record("resume", key, "--skip", what, key, str(number))
    walk = asyncio.run(recording.walk(recording.events(), Bounds(seed=1, states=80)))
    assert any(expected in each for each in walk.broken), walk.broken


@pytest.mark.parametrize(("what", "key", "number", "expected"), SKIPPED)
def test_a_store_that_leaves_out_one_sync_is_found(
    what: str, key: str, number: int, expected: str, tmp_path: Path
) -> None:
    find(what, key, number, expected, tmp_path)


def test_a_store_that_does_not_lock_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="changed by one who has not locked it"):
        find("lock", LONG_RUN, 3, "", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("skipped", MORE_SKIPPED)
def test_a_store_that_leaves_out_any_one_sync_is_found(
    skipped: tuple[str, str, int, str], tmp_path: Path, checked: Checked
) -> None:
    find(*skipped, tmp_path)
    checked(FAULTS, "jsonl", seed=1, faults=1)


def relied_on(events: Sequence[Event]) -> Iterator[Call]:
    """The syncs of files behind which a record is acknowledged before the file is synced again."""
    latest: dict[str, Call] = {}
    for event in events:
        if isinstance(event, End) and event.call.name == "fdatasync":
            latest[event.call.path(0)] = event.call
        elif isinstance(event, Begin) and event.call.name == "write" and event.call.path(0).endswith("/ledger"):
            note = json.loads(event.call.data(1))
            if note["what"] == "done" and note["barrier"] and (call := latest.pop(note["path"], None)):
                yield call


def each_is_needed(recording: Recording, calls: Sequence[Call], events: Sequence[Event]) -> None:
    """Take each of these syncs out of the trace; some state must show that it is missing."""
    for call in calls:
        left = [event for event in events if not (isinstance(event, End) and event.call.line == call.line)]
        bounds = Bounds(seed=call.line, states=40, only=call.path(0))
        walk = asyncio.run(recording.walk(left, bounds))
        assert walk.broken, f"nothing tells that this sync was left out: {call}, seed {bounds.seed}"


def recorded(at: Path, keys: Sequence[str]) -> tuple[Recording, list[Event]]:
    recording = Recording(at / "runs")
    recording.record("begin", *keys, status=KILLED)
    recording.record("resume", *keys)
    return recording, recording.events()


def test_each_of_some_syncs_is_missed_if_it_is_taken_out_of_a_trace(tmp_path: Path) -> None:
    recording, events = recorded(tmp_path, [LONG_RUN, "torn in write 3", "behind the step"])
    calls = list(relied_on(events))
    each_is_needed(recording, random.Random(1).sample(calls, 8), events)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_sync_before_an_acknowledged_record_is_missed_if_it_is_taken_out_of_a_trace(
    tmp_path: Path, checked: Checked
) -> None:
    recording, events = recorded(tmp_path, everything("all"))
    calls = list(relied_on(events))
    assert len(calls) > 100
    each_is_needed(recording, calls, events)
    checked(FAULTS, "jsonl", seed="lines of the trace", faults=len(calls))
