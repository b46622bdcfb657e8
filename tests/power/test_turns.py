"""Two drivers of one run take turns at every system call, as the dice say: each record is where it was acknowledged."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import pytest

from polyloop.stores.jsonl.files import Os
from polyloop.stores.jsonl.runs import Runs
from polyloop.types import Record, RunAlreadyExists, RunConflict
from tests.power.hand_made import KEY, STORY, line_offsets, path_of

T = TypeVar("T")


class Turns:
    """Lets one of several threads go on at a time, whichever the dice say."""

    def __init__(self, seed: int, threads: int) -> None:
        self._dice = random.Random(seed)
        self._changed = threading.Condition()
        self._running = threads
        self._waiting: list[int] = []
        self._turn: int | None = None

    def take(self, thread: int) -> None:
        """Wait for a turn."""
        with self._changed:
            self._waiting.append(thread)
            self._pause()
            self._changed.wait_for(lambda: self._turn == thread)
            self._turn = None
            self._running += 1

    def leave(self) -> None:
        """Have no more turns."""
        with self._changed:
            self._pause()

    def _pause(self) -> None:
        self._running -= 1
        if not self._running and self._waiting:
            self._turn = self._waiting.pop(self._dice.randrange(len(self._waiting)))
            self._changed.notify_all()


class TurnOs(Os):
    """Waits for a turn before each call that others could notice, or that could notice others."""

    def __init__(self, turns: Turns, thread: int) -> None:
        self._turns = turns
        self._thread = thread

    def _in_turn(self, call: Callable[[], T]) -> T:
        self._turns.take(self._thread)
        return call()

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        return self._in_turn(lambda: os.open(path, flags, mode))

    def fstat(self, fd: int) -> os.stat_result:
        return self._in_turn(lambda: os.fstat(fd))

    def stat(self, path: Path) -> os.stat_result:
        return self._in_turn(path.stat)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._in_turn(lambda: os.pread(fd, size, offset))

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return self._in_turn(lambda: os.pwrite(fd, data, offset))

    def ftruncate(self, fd: int, length: int) -> None:
        self._in_turn(lambda: os.ftruncate(fd, length))

    def fdatasync(self, fd: int) -> None:
        self._in_turn(lambda: None)

    def flock(self, fd: int, *, shared: bool) -> bool:
        return self._in_turn(lambda: super(TurnOs, self).flock(fd, shared=shared))

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """The next try to lock waits for a turn."""


def record_of(driver: int, seq: int) -> Record:
    """What a driver writes at a position: of the same length for each of them, and not the same."""
    return dataclasses.replace(STORY[seq], recorded_at=f"2024-02-29T12:00:00.00000{driver}+00:00")


def drive(driver: int, directory: Path, turns: Turns, told: dict[int, Record]) -> None:
    """Read, and go on until the other one was faster, or for three records."""
    runs = Runs(directory, TurnOs(turns, driver))
    try:
        first = runs.read(KEY).next_seq
        for seq in range(first, min(first + 3, len(STORY))):
            runs.append(KEY, record_of(driver, seq), None)
            told[seq] = record_of(driver, seq)
    except (RunConflict, RunAlreadyExists):
        pass
    finally:
        turns.leave()


def sound(data: bytes) -> bytes:
    return data


def zeroed(data: bytes) -> bytes:
    begin = line_offsets(data)[-2]
    return data[:begin] + bytes(len(data) - begin)


def zeroed_before_its_end(data: bytes) -> bytes:
    begin = line_offsets(data)[-2]
    return data[: begin + 30] + bytes(len(data) - begin - 30)


def cut(data: bytes) -> bytes:
    return data[:-20]


def emptied(data: bytes) -> bytes:
    return b""


STATES: Final = [sound, zeroed, zeroed_before_its_end, cut, emptied]


def take_turns(state: Callable[[bytes], bytes], records: int, seed: int, directory: Path) -> None:
    """Let two drivers go on from this state of a log."""
    directory.mkdir()
    writing = Runs(directory, Os())
    for seq in range(records):
        writing.append(KEY, record_of(9, seq), None)
    writing.close()
    path = path_of(directory)
    path.write_bytes(state(path.read_bytes()))
    left = Runs(directory, Os()).read(KEY).records()
    turns, told = Turns(seed, 3), [dict[int, Record](), dict[int, Record]()]
    threads = [
        threading.Thread(target=drive, args=(driver, directory, turns, told[driver])) for driver in range(len(told))
    ]
    for thread in threads:
        thread.start()
    turns.leave()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), f"seed {seed}: it hangs"
    found = Runs(directory, Os()).read(KEY).records()
    problem = f"seed {seed}, {state.__name__}, {records} records"
    assert found[: len(left)] == left, problem
    assert not told[0].keys() & told[1].keys(), f"{problem}: both were told that they wrote the same position"
    for seq, record in {**told[0], **told[1]}.items():
        assert found[seq : seq + 1] == (record,), f"{problem}: what was acknowledged at {seq} is gone"


@pytest.mark.parametrize("state", STATES)
def test_two_drivers_that_take_turns_at_every_system_call_are_told_apart(
    state: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    for seed in range(40):
        take_turns(state, records=1 + seed % 5, seed=seed, directory=tmp_path / str(seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_of_thousands_of_ways_to_take_turns_all_are_told_apart(state: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for seed in range(1000):
        take_turns(state, records=1 + seed % 5, seed=seed, directory=tmp_path / str(seed))
