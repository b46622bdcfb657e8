"""A recorded run: the processes, what strace saw of them, and walks along it."""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.power import trace
from tests.power.check import Bounds, Loss, Reader, Walk, put
from tests.power.disk import Disk
from tests.power.hand_made import path_of
from tests.power.ledger import Tidings
from tests.power.trace import Event, Gone

ROOT: Final = Path(__file__).parents[2]
"""Where recorded processes run."""

KILLED: Final = -9


class Recording:
    """Processes that follow each other on one disk.

    `losses` are files that earlier power losses have left. Each gets a directory of its own, which names the run.
    """

    def __init__(self, at: Path, losses: Sequence[Loss] = ()) -> None:
        root = at / "disk"
        root.mkdir(parents=True)
        self._root = root
        self._ledger = at / "ledger"
        self._trace = at / "trace"
        self._tidings = Tidings()
        for number, loss in enumerate(losses):
            path = path_of(root / f"{number:04d} {loss.told.key}", loss.told.key)
            path.parent.mkdir()
            put(path, loss.state.data)
            self._tidings.logs[str(path)] = loss.told
        self._disk = Disk(root)
        self.runs = root / "made" / "runs"
        self.reader = Reader(at / "scratch")

    def record(self, phase: str, *given: str, status: int = 0) -> None:
        """Let a process do a phase of the workload."""
        directory = self._root if phase == "recover" else self.runs
        command = [sys.executable, "-m", "tests.power.workload", phase, str(directory), str(self._ledger), *given]
        trace.record(command, self._trace, cwd=ROOT, status=status)

    def events(self) -> list[Event]:
        """All that was recorded of the disk and the ledger."""
        events = trace.parse(self._trace.read_text("ascii"))
        return [event for event in events if isinstance(event, Gone) or any(map(self._concerns, event.call.paths()))]

    def _concerns(self, path: str) -> bool:
        return self._disk.holds(path) or path == os.path.realpath(self._ledger)

    async def walk(self, events: Sequence[Event], bounds: Bounds) -> Walk:
        """Walk along what was recorded, and look at what a power loss may leave at each place."""
        tidings = Tidings()
        tidings.logs = {
            path: dataclasses.replace(told, records=list(told.records)) for path, told in self._tidings.logs.items()
        }
        walk = Walk(copy.deepcopy(self._disk), self._ledger, self.reader, tidings, bounds)
        await walk.along(events)
        return walk
