"""A right run store to derive wrong ones from: logs as pickled records in a dict, one dict a medium.

It shares nothing with the library's stores, not even the codec and the check of positions, so that a fault which
those had in common would show.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Self

from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    PolyLoopError,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
    StopReason,
)


class Medium:
    """What outlives a store object and is shared by all that are opened on it."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}


class DictStore:
    """A run store of few lines. Every method gives the event loop a turn before and after it acts."""

    def __init__(self, medium: Medium) -> None:
        self.medium = medium
        self.blocked: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self.append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self.append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self.append(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self.append(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self.append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        await asyncio.sleep(0)
        self.lift(key)
        return RunLog.from_records(self.records(key))

    async def append(self, key: RunKey, record: Record) -> None:
        """Everything that the five appends do."""
        text = self.stored(record)
        await asyncio.sleep(0)
        if self.is_blocked(key):
            raise RunConflict(key, "blocked", seq=record.seq)
        try:
            self.check(key, record)
        except PolyLoopError:
            self.block(key)
            raise
        self.write(key, record, text)
        await asyncio.sleep(0)

    # --- what wrong stores change

    def place(self, key: str) -> str:
        """The place of a key on the medium."""
        return key

    def stored(self, record: Record) -> bytes:
        """A record as the medium keeps it."""
        return pickle.dumps(record)

    def restored(self, data: bytes) -> Record:
        """A record as it was."""
        record: Record = pickle.loads(data)  # noqa: S301 - written by this very test
        return record

    def lines(self, key: str) -> list[bytes]:
        """What the medium keeps of a run."""
        return self.medium.logs.get(self.place(key), [])

    def records(self, key: str) -> list[Record]:
        """The records of a run as a read gives them."""
        return [self.restored(data) for data in self.lines(key)]

    def write(self, key: str, record: Record, data: bytes) -> None:
        """Put a record behind the others."""
        self.medium.logs.setdefault(self.place(key), []).append(data)

    def check(self, key: str, record: Record) -> None:
        """Refuse a record that may not stand next."""
        lines = self.lines(key)
        if isinstance(record, RunStarted) and lines:
            raise RunAlreadyExists(key)
        if record.seq != len(lines) or isinstance(record, RunStarted) != (not lines):
            raise RunConflict(key, "not the next position", seq=record.seq, next_seq=len(lines))
        if lines and self.is_end(self.restored(lines[-1])):
            raise RunConflict(key, "the run has ended", seq=record.seq, next_seq=len(lines))

    def is_end(self, record: Record) -> bool:
        """Whether nothing may follow."""
        return isinstance(record, RunFinished) and record.stop_reason is not StopReason.CANCELLED

    def is_blocked(self, key: str) -> bool:
        """Whether a refusal blocks the key."""
        return key in self.blocked

    def block(self, key: str) -> None:
        """Block a key after a refusal."""
        self.blocked.add(key)

    def lift(self, key: str) -> None:
        """Lift the block of a key that is being read."""
        self.blocked.discard(key)


class DeferringStore(DictStore):
    """A right store that takes ordered records into a buffer, and refuses them no later than at the next call."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.buffers: dict[str, list[Record]] = {}
        self.refused: dict[str, PolyLoopError] = {}
        self.timers: dict[str, asyncio.TimerHandle] = {}

    async def __aexit__(self, *_: object) -> None:
        for timer in self.timers.values():
            timer.cancel()
        for key in list(self.buffers):
            self.hand_over(key)

    async def append(self, key: RunKey, record: Record) -> None:
        await asyncio.sleep(0)
        self.hand_over(key)
        if (refusal := self.refused.pop(key, None)) is not None:
            raise refusal
        if isinstance(record, EffectCompleted | StepCompleted) and not self.is_blocked(key):
            self.buffers.setdefault(key, []).append(record)
            loop = asyncio.get_running_loop()
            self.timers[key] = loop.call_later(0.02, self.hand_over, key)
        else:
            await super().append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        self.hand_over(key)
        self.refused.pop(key, None)
        return await super().read_log(key)

    def hand_over(self, key: str) -> None:
        """Write what the buffer holds, up to the first record that is refused."""
        for record in self.buffers.pop(key, []):
            if key in self.refused or self.is_blocked(key):
                return
            try:
                self.check(key, record)
            except PolyLoopError as refusal:
                self.block(key)
                self.refused[key] = refusal
            else:
                self.write(key, record, self.stored(record))


class BatchingStore(DictStore):
    """A right store that writes what several runs append at once in one go, as a group commit does."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.batch: list[tuple[RunKey, Record, asyncio.Future[None]]] = []
        self.writer: asyncio.Task[None] | None = None

    async def __aexit__(self, *_: object) -> None:
        await self.written()

    async def append(self, key: RunKey, record: Record) -> None:
        done = asyncio.get_running_loop().create_future()
        self.batch.append((key, record, done))
        if self.writer is None:
            self.writer = asyncio.create_task(self.write_batch())
        await done

    async def read_log(self, key: RunKey, /) -> RunLog:
        # A cancelled append is still in the batch: what this read finds must stay.
        await self.written()
        return await super().read_log(key)

    async def written(self) -> None:
        """Wait until nothing is under way."""
        while self.writer is not None:
            await asyncio.wait([self.writer])

    async def write_batch(self) -> None:
        """Write everything that has come together, a turn after the first of it came."""
        await asyncio.sleep(0)
        batch, self.batch = self.batch, []
        for key, record, done in batch:
            error = self.judged(key, record)
            if error is None:
                self.write(key, record, self.stored(record))
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self.writer = asyncio.create_task(self.write_batch()) if self.batch else None

    def judged(self, key: str, record: Record) -> PolyLoopError | None:
        """Why a record is refused; None where it is taken."""
        if self.is_blocked(key):
            return RunConflict(key, "blocked", seq=record.seq)
        try:
            self.check(key, record)
        except PolyLoopError as refusal:
            self.block(key)
            return refusal
        return None
