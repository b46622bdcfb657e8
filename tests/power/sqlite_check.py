"""Records processes on one SQLite file, and reads back at each place what a power loss may leave there."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hashlib
import random
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import PolyLoopError, Record, RunKey
from tests.power import trace
from tests.power.check import ENOUGH, place_of
from tests.power.ledger import Tidings, Told
from tests.power.recorded import ROOT
from tests.power.trace import Begin, Event, Gone
from tests.power.tree import SHARED_MEMORY, DiskState, Tree
from tests.power.workload import go_on

FILE: Final = "runs.sqlite"

REMEMBERED: Final = 50
"""Of how many states it is remembered what was read."""

Found: TypeAlias = "Mapping[str, tuple[Record, ...] | str]"
"""What was read of each run: the records, or the error that was raised instead."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much a walk looks at."""

    seed: int
    every: int
    """Of how many places, on average, one is looked at. Where something was acknowledged, always."""
    states: int
    """How many states at one place, beside the newest and the oldest."""
    sample: int = 0
    """How many states are kept for later."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """One state of the disk at one place of the trace."""

    told: Mapping[str, Told]
    """What had been told of each run by then: a copy."""
    state: DiskState


class Scratch:
    """A directory in which a fresh store finds what a power loss has left."""

    def __init__(self, memory: Path, keys: Sequence[str]) -> None:
        self._at = Path(tempfile.mkdtemp(dir=memory))
        self._keys = keys
        self._latest: dict[bytes, Found] = {}
        self._known: set[bytes] = set()

    @property
    def distinct(self) -> int:
        """How many different states were read."""
        return len(self._known)

    def put(self, state: DiskState, dice: random.Random) -> None:
        """Lay out a state. Of the shared memory anything is left, or nothing."""
        for path in self._at.iterdir():
            path.unlink()
        for name, data in state.files.items():
            (self._at / name).write_bytes(data)
        if dice.randrange(2):
            (self._at / f"{FILE}{SHARED_MEMORY}").write_bytes(dice.randbytes(32768))

    async def read(self, state: DiskState, dice: random.Random) -> Found:
        """What a fresh store finds. Equal states are read once, unless there were many others in between."""
        digest = hashlib.blake2b()
        for file, data in sorted(state.files.items()):
            digest.update(f"{file} {len(data)} ".encode() + data)
        name = digest.digest()
        if name not in self._latest:
            self.put(state, dice)
            self._known.add(name)
            self._latest[name] = await self._read()
            if len(self._latest) > REMEMBERED:
                del self._latest[next(iter(self._latest))]
        return self._latest[name]

    async def _read(self) -> Found:
        try:
            async with SqliteRunStore(self._at / FILE) as store:
                return {key: await _records(store, key) for key in self._keys}
        except (sqlite3.Error, PolyLoopError) as error:
            return dict.fromkeys(self._keys, f"{type(error).__name__}: {error}")

    async def recover(self, loss: Loss, dice: random.Random) -> None:
        """Each run goes on from a state to its right end, with all the others."""
        self.put(loss.state, dice)
        async with SqliteRunStore(self._at / FILE) as store:
            left = {key: await _records(store, key) for key in self._keys}
            async with asyncio.TaskGroup() as group:
                for key in self._keys:
                    group.create_task(go_on(key, store))
        async with SqliteRunStore(self._at / FILE) as store:
            for key, records in left.items():
                found = await _records(store, key)
                assert found[: len(records)] == records, f"the log of {key} was not gone on with, but changed"


async def _records(store: SqliteRunStore, key: str) -> tuple[Record, ...] | str:
    try:
        return (await store.read_log(RunKey(key))).records()
    except (sqlite3.Error, PolyLoopError) as error:
        return f"{type(error).__name__}: {error}"


class Walk:
    """One pass over a trace."""

    def __init__(self, tree: Tree, ledger: Path, scratch: Scratch, tidings: Tidings, bounds: Bounds) -> None:
        self._tree = tree
        self._ledger = str(ledger.resolve())
        self._scratch = scratch
        self._tidings = tidings
        self._bounds = bounds
        self._dice = random.Random(bounds.seed)
        self.looked_at = 0
        """How many states were read back."""
        self.broken: list[str] = []
        """The promises that were broken, each with the state that did it."""
        self.sample: list[Loss] = []
        """Some of the states, each with the same chance."""

    async def along(self, events: Sequence[Event]) -> None:
        """Walk to the end, or until enough is broken."""
        touched: str | None = None
        for event in events:
            if isinstance(event, Begin) and event.call.name == "write" and event.call.path(0) == self._ledger:
                note = event.call.data(1)
                self._tidings.take(note)
                # What was written last is what may be missing now.
                if b'"barrier": true' in note or b'"left"' in note:
                    await self._look_at(event, touched)
            elif (name := self._tree.touch(event)) is not None:
                touched = name
                if not self._dice.randrange(self._bounds.every):
                    await self._look_at(event, touched)
            if len(self.broken) >= ENOUGH:
                return

    async def _look_at(self, event: Event, touched: str | None) -> None:
        for state in self._tree.states(touched, self._bounds.states, self._dice):
            self.looked_at += 1
            found = await self._scratch.read(state, self._dice)
            for key, told in self._tidings.logs.items():
                if problem := told.verdict(found[key], at_least=told.acknowledged):
                    place = f"seed {self._bounds.seed}, at {place_of(event)}, {key}"
                    self.broken.append(f"{place}, {state.how}: {problem}")
            if len(self.broken) >= ENOUGH:
                return
            if self._bounds.sample:
                self._keep(state)

    def _keep(self, state: DiskState) -> None:
        full = len(self.sample) == self._bounds.sample
        at = self._dice.randrange(self.looked_at) if full else len(self.sample)
        if at < self._bounds.sample:
            self.sample[at : at + 1] = [Loss(copies(self._tidings.logs), state)]


def copies(logs: Mapping[str, Told]) -> dict[str, Told]:
    """What has been told by now."""
    return {key: dataclasses.replace(told, records=list(told.records)) for key, told in logs.items()}


class Recording:
    """Processes that follow each other on one file; `loss` is what an earlier power loss has left of it."""

    def __init__(self, at: Path, memory: Path, keys: Sequence[str], loss: Loss | None = None) -> None:
        root = at / "disk"
        root.mkdir(parents=True)
        self._root = root
        self._ledger = at / "ledger"
        self._ledger.touch()
        self._trace = at / "trace"
        self._keys = keys
        self._told = {} if loss is None else loss.told
        for name, data in {} if loss is None else loss.state.files.items():
            (root / name).write_bytes(data)
        self._tree = Tree(root)
        self.scratch = Scratch(memory, keys)

    def record(self, phase: str, *given: str, status: int = 0, inject: str | None = None) -> None:
        """Let a process do a phase of the workload."""
        file = str(self._root / FILE)
        command = [sys.executable, "-m", "tests.power.sqlite_workload", phase, file, str(self._ledger), *self._keys]
        trace.record([*command, *given], self._trace, cwd=ROOT, status=status, inject=inject)

    def events(self) -> list[Event]:
        """All that was recorded of the disk and the ledger."""
        events = trace.parse(self._trace.read_text("ascii"))
        return [event for event in events if isinstance(event, Gone) or any(map(self._concerns, event.call.paths()))]

    def _concerns(self, path: str) -> bool:
        return self._tree.holds(path) or path == str(self._ledger.resolve())

    def walk(self, events: Sequence[Event], bounds: Bounds) -> Walk:
        """Walk along what was recorded, and look at what a power loss may leave at each place."""
        tidings = Tidings()
        tidings.logs = copies(self._told)
        walk = Walk(copy.deepcopy(self._tree), self._ledger, self.scratch, tidings, bounds)
        asyncio.run(walk.along(events))
        return walk
