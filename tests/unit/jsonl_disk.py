"""What the tests of the file store share: stories to write, files written by hand, and a disk that breaks on demand."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from polyloop.serialization import encode
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os
from polyloop.types import EffectIntended, Record, RunFinished, RunKey, RunStarted
from tests.contract.records import acted, action_intent, ended, model_intent, replied, started, stepped

KEY: Final = RunKey("run")
SECTOR: Final = 512


def story(steps: int, *, finished: bool = False) -> list[Record]:
    """A run of so many steps, as a driver writes it."""
    records: list[Record] = [started()]
    for step in range(steps):
        seq = len(records)
        records += [
            model_intent(seq, step),
            replied(seq + 1, step),
            action_intent(seq + 2, step),
            acted(seq + 3, step),
            stepped(seq + 4, step),
        ]
    if finished:
        records.append(ended(len(records)))
    return records


def is_barrier(record: Record) -> bool:
    return isinstance(record, RunStarted | EffectIntended | RunFinished)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLog:
    """A log's bytes as the format is described, made here without the store's help."""

    data: bytes
    offsets: tuple[int, ...]
    """Where each line begins, and where the last one ends."""
    acknowledged: tuple[int, ...]
    """For each line: how many bytes had been acknowledged before it was written."""


def written(records: Sequence[Record], key: str = KEY, *, texts: Sequence[str] | None = None) -> WrittenLog:
    """The file of these records, each barrier acknowledged before anything is written behind it."""
    data, offsets, acknowledged, durable = b"", [0], [], 0
    for index, record in enumerate(records):
        named = f',"key":{json.dumps(key)}' if index == 0 else ""
        text = encode(record) if texts is None else texts[index]
        rest = f'","durable":{durable}{named},"record":{text}}}'.encode()
        secret = hashlib.sha256(key.encode()).digest()
        check = hashlib.blake2b(rest, digest_size=8, key=secret).hexdigest().encode()
        data += b'{"check":"' + check + rest + b"\n"
        offsets.append(len(data))
        acknowledged.append(durable)
        if is_barrier(record):
            durable = len(data)
    return WrittenLog(data=data, offsets=tuple(offsets), acknowledged=tuple(acknowledged))


def path_of(directory: Path, key: str = KEY) -> Path:
    """The one file whose name holds the digest of the key."""
    (path,) = directory.glob(f"*{hashlib.sha256(key.encode()).hexdigest()}.jsonl")
    return path


def place_for(directory: Path, data: bytes, key: str = KEY) -> Path:
    """Put a log's bytes where a store of this directory looks for them."""
    path = directory / f"{key}-{hashlib.sha256(key.encode()).hexdigest()}.jsonl"
    path.write_bytes(data)
    return path


def names_in(directory: Path) -> list[str]:
    """What stands in a directory."""
    return sorted(path.name for path in directory.iterdir())


def open_descriptors() -> int:
    """How many files this process has open."""
    return len(names_in(Path("/proc/self/fd")))


async def eventually(condition: Callable[[], bool]) -> None:
    """Turn the loop until something that a thread does has happened."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0)


class FaultyOs(Os):
    """The real system calls, counted by name and thread, some of them failing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.faults: dict[str, list[Callable[..., Any] | None]] = {}

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in Os.__dict__ or name.startswith("_"):
            return value
        return lambda *given, **named: self._called(name, value, given, named)

    def fail(self, name: str, fault: Callable[..., Any], *, after: int = 0) -> None:
        """Have a call of this name do something else, once, after so many that work."""
        assert name in Os.__dict__, f"the store makes no call {name}"
        self.faults.setdefault(name, []).extend([*[None] * after, fault])

    def count(self, name: str) -> int:
        """How many calls of this name there were since the last `reset`."""
        return sum(name == called for called, _ in self.calls)

    def reset(self) -> None:
        self.calls.clear()
        self.faults.clear()

    def _called(self, name: str, real: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.calls.append((name, threading.get_ident()))
        planned = self.faults.get(name)
        fault = planned.pop(0) if planned else None
        return real(*given, **named) if fault is None else fault(*given, **named)


def raising(number: int) -> Callable[..., Any]:
    """A call that fails with this error number."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, "planted")

    return fail


def faulty_store(directory: Path) -> tuple[JsonlRunStore, FaultyOs]:
    """A store, and the disk that it works on."""
    store, system = JsonlRunStore(directory), FaultyOs()
    store._os = system
    return store, system
