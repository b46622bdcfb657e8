"""Walks along a trace, and at each event reads back what a power loss may leave there."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
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
            async with JsonlRunStore(self._scratch) as store:
                self._known[key, digest] = await read_log(store, key)
            put(self._scratch / name, None)
        return self._known[key, digest]

    async def read_all(self, disk: Mapping[str, tuple[RunKey, bytes | None]]) -> dict[str, Found]:
        """What one fresh store finds of all files of a disk, by their paths."""
        for path, (_, data) in disk.items():
            put(self._scratch / Path(path).name, data)
        async with JsonlRunStore(self._scratch) as store:
            found = {path: await read_log(store, key) for path, (key, _) in disk.items()}
        for path in disk:
            put(self._scratch / Path(path).name, None)
        return found


def put(path: Path, data: bytes | None) -> None:
    """Make a file be in a state."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


async def read_log(store: JsonlRunStore, key: RunKey) -> Found:
    """The records, or the error that was raised instead."""
    try:
        return (await store.read_log(key)).records()
    except (CorruptRunLog, UnsupportedSchemaVersion) as error:
        return f"{type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """One state of a log at one place of the trace."""

    told: Told
    """What had been told by then: a copy."""
    state: FileState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a walk looks at."""

    seed: int
    states: int
    """How many states of one file, at most, after one event."""
    sample: int = 0
    """How many states are kept for later."""
    whole_every: int = 0
    """After how many events, on average, the whole disk is looked at; 0 for never."""
    only: str | None = None
    """The path of the only file that is looked at."""


class Walk:
    """One pass over a trace."""

    def __init__(self, disk: Disk, ledger: Path, reader: Reader, tidings: Tidings, bounds: Bounds) -> None:
        self._disk = disk
        self._ledger = os.path.realpath(ledger)
        self._reader = reader
        self._tidings = tidings
        self._bounds = bounds
        self._dice = random.Random(bounds.seed)
        self._writers: dict[str, int] = {}
        self.looked_at = 0
        """How many states were read back."""
        self.broken: list[str] = []
        """The promises that were broken, each with the state that did it."""
        self.sample: list[Loss] = []
        """Some of the states of files that are there, each with the same chance."""

    async def along(self, events: Sequence[Event]) -> None:
        """Walk to the end, or until enough is broken."""
        for event in events:
            touched = self._take(event)
            for path in touched:
                if self._bounds.only in (None, path):
                    await self._look_at(event, path)
            if touched and self._bounds.whole_every and not self._dice.randrange(self._bounds.whole_every):
                await self._look_at_all(event)
            if len(self.broken) >= ENOUGH:
                return

    def _take(self, event: Event) -> list[str]:
        self._watch_locks(event)
        if isinstance(event, Begin) and event.call.name == "write" and event.call.path(0) == self._ledger:
            told = self._tidings.take(event.call.data(1))
            unmade = [each for each in told if each not in self._disk.files and self._tidings.logs[each].acknowledged]
            self.broken += [f"records of {each} were acknowledged, and no file was made" for each in unmade]
            return [each for each in told if each in self._disk.files]
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
            self._judge(event, path, state, await self._reader.read(told.key, Path(path).name, state.data))
            if len(self.broken) >= ENOUGH:
                return
            if state.data is not None and self._bounds.sample:
                self._keep(told, state)

    async def _look_at_all(self, event: Event) -> None:
        """Look at one state of the whole disk: of each file any one, whatever the others are like."""
        states = {path: self._dice.choice(list(self._states(path))) for path in self._disk.files}
        self.looked_at += 1
        logs = {path: self._tidings.logs.get(path, Told()).key for path in states}
        found = await self._reader.read_all({path: (logs[path], states[path].data) for path in states})
        for path, state in states.items():
            self._judge(event, path, state, found[path])

    def _states(self, path: str) -> Iterator[FileState]:
        if self._disk.may_be_missing(path):
            yield FileState(None, "missing, since its entry or that of a directory above it was not synced")
        yield from file_states(self._disk.files[path].versions(), self._bounds.states, self._dice)

    def _judge(self, event: Event, path: str, state: FileState, found: Found) -> None:
        told = self._tidings.logs.get(path, Told())
        if problem := told.verdict(found, at_least=told.acknowledged):
            place = f"seed {self._bounds.seed}, at {place_of(event)}, {Path(path).name}"
            self.broken.append(f"{place}, {state.how}: {problem}")

    def _keep(self, told: Told, state: FileState) -> None:
        loss = Loss(dataclasses.replace(told, records=list(told.records)), state)
        if len(self.sample) < self._bounds.sample:
            self.sample.append(loss)
        elif (at := self._dice.randrange(self.looked_at)) < self._bounds.sample:
            self.sample[at] = loss


def _lets_go(call: Call) -> bool:
    return call.name == "close" or (call.name == "flock" and "LOCK_UN" in call.args[1])


def place_of(event: Event) -> str:
    """Where in a trace an event is."""
    if isinstance(event, Gone):
        return "the end of a process"
    return f"{'the beginning' if isinstance(event, Begin) else 'the end'} of {event.call}"
