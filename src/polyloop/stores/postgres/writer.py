"""What waits, what is blocked, and who sends it: one statement for all runs that have something due."""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import errors

from polyloop.serialization import encode
from polyloop.stores.postgres.rows import Part, agreeing, append_parts, behind, digest_of
from polyloop.stores.postgres.server import Server
from polyloop.types import (
    EffectIntended,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunStarted,
    StoreBusy,
)
from polyloop.types import Record as AnyRecord

REST_S: Final = 0.05
"""How long results and steps wait for a barrier to ride with. Half of what the port allows: a commit takes time."""

SENDERS: Final = 2
"""How many statements are under way at a time, never two with the same run: a slow one holds up its runs alone."""

BATCH_RECORDS: Final = 2000
"""A statement is closed when it has so many records."""
BATCH_CHARS: Final = 8_000_000
"""Or so much text."""

DEADLOCKS: Final = 5
"""How often a statement is sent again that the server ended because of a deadlock with another process."""

_BARRIERS: Final = (RunStarted, EffectIntended, RunFinished)

# The server has refused the statement for what one run has in it, or because of a lock: each goes by itself then.
_ONE_RUNS_FAULT: Final = (psycopg.IntegrityError, psycopg.DataError, errors.LockNotAvailable)

LOCKS: Final = 2
"""How many runs of a statement are waited for by themselves. More locks than that are somebody's on the whole table."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One append on its way."""

    record: AnyRecord
    """What is to be appended."""
    text: str
    """The record as text."""
    done: asyncio.Future[None] | None
    """For a barrier: when it is over."""
    failure: Exception | None = None
    """What its caller is told."""


@dataclasses.dataclass(slots=True)
class _Block:
    failure: Exception
    told: bool
    ordered: bool
    """Whether ordered records are among what failed: their callers went on, so a call that reads is told, too."""


class _Run:
    """What this object knows of one run."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.digest = digest_of(key)
        self.items: collections.deque[Item] = collections.deque()
        self.sending = False
        self.block: _Block | None = None
        self.driven = False
        """Whether its last append here was taken and was no end record."""
        self.idle: asyncio.Future[None] | None = None
        """Set when there is nothing more under way, for those who wait for it."""

    @property
    def busy(self) -> bool:
        return self.sending or bool(self.items)


class Writer:
    """The queues of all runs, and the tasks that empty them. Of one event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, _Run] = {}
        self._due: dict[str, _Run] = {}
        """The runs that have something to send now, in the order in which they got it."""
        self._resting: dict[str, _Run] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._senders: set[asyncio.Task[None]] = set()

    # --- what the store asks

    def hand_in(self, key: RunKey, record: AnyRecord) -> Item:
        """Put a record into its run's queue.

        Raises:
            InvalidRequest: it holds what is not JSON; the key is blocked.
            Exception: the failure that blocks the key.
        """
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = _Run(key)
        if run.block is not None:
            raise _again(run, record)
        try:
            text = encode(record)
        except Exception as failure:
            run.block = _Block(copy.copy(failure), told=True, ordered=False)
            raise
        barrier = isinstance(record, _BARRIERS)
        item = Item(record, text, self._loop.create_future() if barrier else None)
        run.items.append(item)
        if barrier:
            self._make_due(run)
        elif run.key not in self._due:
            self._resting[run.key] = run
            if self._timer is None:
                self._timer = self._loop.call_later(REST_S, self._rested)
        return item

    async def settle(self, key: RunKey, item: Item) -> None:
        """Wait for a barrier. A caller who is cancelled leaves it on its way."""
        if item.done is None:
            return
        try:
            await item.done
        except asyncio.CancelledError:
            run = self._runs.get(key)
            if item.failure is not None and run is not None and run.block is not None:
                run.block.told = False
            raise
        if item.failure is not None:
            raise item.failure

    async def settled(self, key: RunKey) -> None:
        """Wait until nothing of a run is on its way any more."""
        while (run := self._runs.get(key)) is not None and run.busy:
            if run.items:
                self._make_due(run)
            if run.idle is None:
                run.idle = self._loop.create_future()
            await asyncio.shield(run.idle)

    async def all_settled(self) -> None:
        """Wait until nothing of what was handed in so far is on its way any more."""
        busy = [run for run in self._runs.values() if run.busy]
        for run in busy:
            self._make_due(run)
        for run in busy:
            await self.settled(RunKey(run.key))

    def tell(self, key: RunKey) -> None:
        """For a call that reads: raise what the callers of the run's ordered records were not told.

        Raises:
            Exception: the failure that blocks the key, if nobody was told of it.
        """
        run = self._runs.get(key)
        block = None if run is None else run.block
        if block is not None and block.ordered and not block.told:
            block.told = True
            raise copy.copy(block.failure)

    def unblock(self, key: RunKey) -> None:
        """The run was read: go on from there."""
        if (run := self._runs.get(key)) is not None:
            run.block = None
            self._forget(run)

    def is_driven(self, key: RunKey) -> bool:
        """Whether the run's last append here was taken and was no end record; not while one is on its way."""
        run = self._runs.get(key)
        return run is not None and run.driven

    async def close(self, within_s: float) -> None:
        """Send what waits, and raise the first failure that nobody was told of."""
        if self._timer is not None:
            self._timer.cancel()
        self._rested()
        deadline = self._loop.time() + within_s
        while self._senders and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(self._senders, timeout=left)
        for task in self._senders:
            task.cancel()
        if self._senders:
            await asyncio.wait(self._senders)
        for run in [run for run in self._runs.values() if run.items]:
            problem = "the store was left before this could be sent: the server did not answer in time"
            self._fail(run, [], psycopg.OperationalError(problem))
        for run in self._runs.values():
            if run.block is not None and not run.block.told:
                raise run.block.failure

    # --- sending

    def _rested(self) -> None:
        self._timer = None
        resting, self._resting = self._resting, {}
        for run in resting.values():
            if run.items:
                self._make_due(run)

    def _make_due(self, run: _Run) -> None:
        self._resting.pop(run.key, None)
        if run.sending:
            return
        self._due[run.key] = run
        if len(self._senders) < SENDERS:
            # In a task of its own: a cancelled caller leaves the statement on its way, and other callers who run
            # before it come along.
            task = self._loop.create_task(self._send_due())
            self._senders.add(task)

    async def _send_due(self) -> None:
        try:
            while self._due:
                await self._send(self._take())
        finally:
            # Here and not in a callback of the task: nobody must find a sender that looks no more.
            self._senders.discard(asyncio.current_task())

    def _take(self) -> list[tuple[_Run, list[Item]]]:
        batch: list[tuple[_Run, list[Item]]] = []
        records = chars = 0
        while self._due and records < BATCH_RECORDS and chars < BATCH_CHARS:
            run = self._due.pop(next(iter(self._due)))
            items: list[Item] = []
            while run.items and records < BATCH_RECORDS and chars < BATCH_CHARS:
                items.append(run.items.popleft())
                records += 1
                chars += len(items[-1].text)
            run.sending = True
            batch.append((run, items))
        return batch

    async def _send(self, batch: Sequence[tuple[_Run, list[Item]]]) -> None:
        """Have a batch appended. Afterwards each of its items is settled, one way or the other."""
        judged = [(run, items, *agreeing(run.key, [item.record for item in items])) for run, items in batch]
        parts = [_part(run, items[:count]) for run, items, count, _ in judged]
        failures: dict[str, Exception]
        try:
            failures = dict(await self._append(parts))
        except Exception as error:  # noqa: BLE001 - it is raised where the appends are awaited
            failures = {part.key: _concerning(part.key, error) for part in parts}
        except BaseException:
            problem = "the event loop was closed on the way to the server; reading the log tells what was written"
            self._settle_all(judged, {part.key: psycopg.OperationalError(problem) for part in parts})
            raise
        self._settle_all(judged, failures)

    async def _append(self, parts: Sequence[Part]) -> dict[str, Exception]:
        """The runs whose parts did not go in, and why."""
        for chance in range(DEADLOCKS, -1, -1):
            try:
                return dict(await self._server.call(lambda connection: append_parts(connection, parts), parts[0].key))
            except errors.DeadlockDetected:
                # Nothing was written, and the other process has what it waited for.
                if not chance:
                    raise
            except Exception as error:
                if not isinstance(_cause(error), _ONE_RUNS_FAULT):
                    raise
                return await self._one_by_one(parts, error)
        raise AssertionError("the last chance returns or raises")

    async def _one_by_one(self, parts: Sequence[Part], error: Exception) -> dict[str, Exception]:
        if len(parts) == 1:
            (part,) = parts
            return {part.key: behind(part.key) if isinstance(error, errors.UniqueViolation) else error}
        failures: dict[str, Exception] = {}
        locks: list[StoreBusy] = []
        for part in parts:
            if len(locks) == LOCKS:
                failures[part.key] = StoreBusy(part.key, locks[0].waited_s)
                continue
            try:
                failures |= await self._append([part])
            except Exception as failure:  # noqa: BLE001 - it is raised where the append is awaited
                failures[part.key] = failure
            if isinstance(busy := failures.get(part.key), StoreBusy):
                locks.append(busy)
        return failures

    # --- afterwards

    def _settle_all(
        self, judged: Sequence[tuple[_Run, list[Item], int, Exception | None]], failures: dict[str, Exception]
    ) -> None:
        for run, items, count, refusal in judged:
            run.sending = False
            if (failure := failures.get(run.key)) is not None:
                self._fail(run, items, failure)
                continue
            for item in items[:count]:
                run.driven = not isinstance(item.record, RunFinished)
                _answer(item, None)
            if refusal is not None:
                self._fail(run, items[count:], refusal)
            elif run.items:
                self._make_due(run)
            self._forget(run)

    def _fail(self, run: _Run, items: Sequence[Item], failure: Exception) -> None:
        """Block a run. What its callers get are copies: a raised exception gathers frames, and with them records."""
        run.driven = False
        lost = [*items, *run.items]
        ordered = any(item.done is None for item in lost)
        run.block = block = _Block(copy.copy(failure), told=False, ordered=ordered)
        run.items.clear()
        self._due.pop(run.key, None)
        for item in lost:
            if item.done is not None and not item.done.done():
                _answer(item, _again(run, item.record) if block.told else copy.copy(failure))
                block.told = True
        self._forget(run)

    def _forget(self, run: _Run) -> None:
        """Drop what need not be known any more."""
        if run.busy:
            return
        if run.idle is not None:
            run.idle.set_result(None)
            run.idle = None
        if run.block is None and not run.driven:
            self._runs.pop(run.key, None)


def _part(run: _Run, items: Sequence[Item]) -> Part:
    first = items[0].record
    return Part(
        key=run.key,
        digest=run.digest,
        records=[item.record for item in items],
        texts=[item.text for item in items],
        possible=isinstance(first, RunStarted) is (first.seq == 0),
    )


def _answer(item: Item, failure: Exception | None) -> None:
    item.failure = failure
    if item.done is not None and not item.done.done():
        item.done.set_result(None)


def _concerning(key: str, error: Exception) -> Exception:
    """What one run of a statement is told of the error that ended it."""
    return StoreBusy(key, error.waited_s) if isinstance(error, StoreBusy) else error


def _cause(error: Exception) -> BaseException:
    return error if error.__cause__ is None else error.__cause__


def _again(run: _Run, record: AnyRecord) -> Exception:
    """What a blocked key answers: the failure, or for a refusal that was told already that there was one."""
    block = run.block
    if block is None:
        raise AssertionError("the run is not blocked")
    told, block.told = block.told, True
    if told and isinstance(block.failure, RunConflict | RunAlreadyExists):
        return RunConflict(run.key, "an earlier record was refused, and the log was not read since", seq=record.seq)
    return copy.copy(block.failure)
