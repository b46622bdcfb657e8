"""Walks along a trace, and at each event reads back what a power loss may leave there."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import CorruptRunLog, Record, RunKey, UnsupportedSchemaVersion
from tests.power.disk import Disk, FileState, file_states
from tests.power.ledger import Tidings, Told
from tests.power.trace import Begin, Call, End, Event, Gone

Found: TypeAlias = "tuple[Record, ...] | str"

ENOUGH: Final = 5
"""After so many broken promises a walk ends."""


class Reader:
    """Reads files as a fresh store finds them after the power is back. Equal bytes are read once."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._known: dict[tuple[str, bytes | None], Found] = {}
        scratch.mkdir()

    @property
    def distinct(self) -> int:
        """How many different states were read."""
        return len(self._known)

    async def read(self, key: RunKey, name: str, data: bytes | None) -> Found:
        """The records, or the error that was raised instead."""
        digest = None if data is None else hashlib.blake2b(data).digest()
        if (key, digest) not in self._known:
            put(self._scratch / name, data)
            self._known[key, digest] = await read_log(self._scratch, key)
            put(self._scratch / name, None)
        return self._known[key, digest]


def put(path: Path, data: bytes | None) -> None:
    """Make a file be in a state."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


async def read_log(directory: Path, key: RunKey) -> Found:
    """What a fresh store reads."""
    try:
        async with JsonlRunStore(directory) as store:
            return (await store.read_log(key)).records()
    except (CorruptRunLog, UnsupportedSchemaVersion) as error:
        return f"{type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """One state of a log at one place of the trace."""

    event: Event
    path: str
    told: Told
    """What had been told by then: a copy."""
    state: FileState


class Walk:
    """One pass over a trace."""

    def __init__(self, disk: Disk, ledger: Path, reader: Reader, *, limit: int, seed: int) -> None:
        """`limit` is how many states of one file are looked at after one event."""
        self._disk = disk
        self._ledger = os.path.realpath(ledger)
        self._reader = reader
        self._limit = limit
        self._seed = seed
        self._tidings = Tidings()
        self._writers: dict[str, int] = {}
        self.dice = random.Random(seed)
        self.looked_at = 0
        self.broken: list[str] = []
        """The promises that were broken, each with the state that did it."""
        self.sample: list[Loss] = []
        """Some of the states that were neither as synced nor missing."""
        self.sample_size = 0

    async def along(self, events: Sequence[Event]) -> None:
        """Walk to the end, or until enough is broken."""
        for event in events:
            touched = self._take(event)
            for path in touched:
                await self._look_at(event, path)
            if len(self.broken) >= ENOUGH:
                return

    def _take(self, event: Event) -> list[str]:
        self._watch_locks(event)
        if isinstance(event, Begin) and event.call.name == "write" and event.call.path(0) == self._ledger:
            return [path for path in self._tidings.take(event.call.data(1)) if path in self._disk.files]
        return self._disk.touch(event)

    def _watch_locks(self, event: Event) -> None:
        """Nobody changes a log but the one thread that has locked it."""
        if isinstance(event, Gone):
            self._writers = {path: thread for path, thread in self._writers.items() if thread != event.thread}
            return
        call, path = event.call, event.call.path(0) if event.call.args else ""
        if path not in self._disk.files:
            return
        if call.name == "flock" and isinstance(event, End) and call.result == 0 and "LOCK_EX" in call.args[1]:
            assert path not in self._writers, f"two threads have locked one log: {call}"
            self._writers[path] = call.thread
        elif isinstance(event, Begin) and self._writers.get(path) == call.thread and _lets_go(call):
            del self._writers[path]
        elif call.name in ("pwrite64", "ftruncate"):
            assert self._writers.get(path) == call.thread, f"a log is changed by one who has not locked it: {call}"

    async def _look_at(self, event: Event, path: str) -> None:
        told = self._tidings.logs.get(path, Told())
        for state in self._states(path):
            self.looked_at += 1
            key = told.key or RunKey("none")
            found = await self._reader.read(key, Path(path).name, state.data)
            if problem := told.verdict(found):
                self.broken.append(f"seed {self._seed}, at {_place(event)}, {Path(path).name}, {state.how}: {problem}")
                if len(self.broken) >= ENOUGH:
                    return
            elif state.data is not None:
                self._keep(Loss(event, path, dataclasses.replace(told, records=list(told.records)), state))

    def _states(self, path: str) -> Iterator[FileState]:
        if self._disk.may_be_missing(path):
            yield FileState(None, "missing, since its entry or that of a directory above it was not synced")
        yield from file_states(self._disk.files[path].versions(), self._limit, self.dice)

    def _keep(self, loss: Loss) -> None:
        # Every state has the same chance to be in the sample.
        if len(self.sample) < self.sample_size:
            self.sample.append(loss)
        elif self.sample_size:
            at = self.dice.randrange(self.looked_at)
            if at < self.sample_size:
                self.sample[at] = loss


def _lets_go(call: Call) -> bool:
    return call.name == "close" or (call.name == "flock" and "LOCK_UN" in call.args[1])


def _place(event: Event) -> str:
    if isinstance(event, Gone):
        return "the end of a process"
    return f"{'the beginning' if isinstance(event, Begin) else 'the end'} of {event.call}"
