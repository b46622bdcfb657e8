"""What a process says of its store calls, in a file of its own that the recorder sees too.

A note is one `write` of one line: `enter` before a record is handed to the store, `done` when the store has returned,
`read` when it has given a log, `left` when an `async with` has ended without an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from polyloop.ports import RunStore
from polyloop.serialization import decode, encode
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from tests.power.hand_made import path_of
from tests.seams import append

UNKNOWN: Final = RunKey("unknown")
BARRIERS: Final = (RunStarted, EffectIntended, RunFinished)


class Ledger:
    """Writes notes. They outlive the process as soon as they are written, though not the power."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, **facts: object) -> None:
        """Write one note."""
        os.write(self._fd, json.dumps({"what": what, **facts}).encode("ascii") + b"\n")


class NotedStore:
    """A store whose calls are noted. `place` says where a run's log is: its file, or what else names it."""

    def __init__(self, store: RunStore, place: Callable[[RunKey], str], ledger: Ledger) -> None:
        self._store = store
        self._place = place
        self._ledger = ledger
        self.written: set[str] = set()
        """The places to which a record was appended."""

    async def _append(self, key: RunKey, record: Record) -> None:
        path = self._place(key)
        self._ledger.note("enter", path=path, key=key, record=encode(record))
        await append(self._store, key, record)
        self.written.add(path)
        self._ledger.note("done", path=path, seq=record.seq, barrier=isinstance(record, BARRIERS))

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._append(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._append(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        log = await self._store.read_log(key)
        self._ledger.note("read", path=self._place(key), next_seq=log.next_seq)
        return log


@contextlib.asynccontextmanager
async def noted_store(directory: Path, ledger: Ledger, system: Os) -> AsyncIterator[NotedStore]:
    """A file store in this directory, on these system calls."""
    store = JsonlRunStore(directory)
    store._os = system
    async with store:
        noted = NotedStore(store, lambda key: str(path_of(directory, key)), ledger)
        yield noted
    ledger.note("left", paths=sorted(noted.written))


@dataclasses.dataclass(slots=True)
class Told:
    """What the notes say of one log."""

    key: RunKey = UNKNOWN
    records: list[Record] = dataclasses.field(default_factory=list)
    """What was handed to the store, the latest story if there were several."""
    done: int = 0
    """How many of them the store has returned for. They outlive the process."""
    acknowledged: int = 0
    """How many of them are behind a barrier. They outlive the power."""

    def verdict(self, found: tuple[Record, ...] | str, *, at_least: int) -> str | None:
        """What is wrong with the log that was read, or with the error that was raised instead; None if nothing is."""
        if isinstance(found, str):
            return f"refused: {found}"
        if len(found) < at_least:
            return f"record {len(found)} is gone, though {at_least} records must be there"
        if found != tuple(self.records[: len(found)]):
            at = next(at for at, each in enumerate(found) if [each] != self.records[at : at + 1])
            return f"record {at} is not the one that was written: {found[at]}"
        return None


class Tidings:
    """What the notes say of all logs."""

    def __init__(self) -> None:
        self.logs: dict[str, Told] = {}

    def take(self, line: bytes) -> list[str]:
        """Take a note; the files of which something else is expected now."""
        note = json.loads(line)
        if note["what"] == "left":
            for path in note["paths"]:
                self.logs[path].acknowledged = self.logs[path].done
            return list(note["paths"])
        told = self.logs.setdefault(note["path"], Told())
        match note["what"]:
            case "enter":
                record = decode(note["record"])
                told.key = note["key"]
                told.records[record.seq :] = [record]
            case "done":
                told.done = note["seq"] + 1
                told.acknowledged = told.done if note["barrier"] else told.acknowledged
            case "read":
                assert note["next_seq"] >= told.acknowledged, f"a running process lost an acknowledged record: {note}"
                del told.records[note["next_seq"] :]
                told.done = note["next_seq"]
        return [note["path"]]
