"""Wrong run stores about several objects on one medium, several tasks, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from polyloop.types import (
    EffectCompleted,
    PolyLoopError,
    Record,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from tests.contract.promises import turns
from tests.contract.right_store import BatchingStore, DeferringStore, DictStore, Medium
from tests.contract.zoo import Zoo
from tests.contract.zoo_groups import CANCELLATION, EVERYTHING, KEYS, OBJECTS, REFUSALS, VALUES

AT_ONCE_STORES = Zoo[Callable[[Medium], DictStore]]()
wrong = AT_ONCE_STORES.breaks


# ------------------------------------------------------------------------------- ordered appends and barriers


@wrong(
    "ordered_records_are_handed_over_without_a_barrier",
    "leaving_makes_ordered_records_durable",
    besides=frozenset({"a_fresh_object_refuses_without_having_read"}) | VALUES,
)
class WaitsForTheBarrier(DeferringStore):
    """Keeps ordered records in memory until a barrier comes, also when none does and when it is left."""

    async def append(self, key: RunKey, record: Record) -> None:
        await super().append(key, record)
        if key in self.timers:
            self.timers[key].cancel()

    async def __aexit__(self, *_: object) -> None:
        return


@wrong(
    "reads_see_the_objects_own_ordered_appends",
    besides=VALUES
    | KEYS
    | REFUSALS
    | CANCELLATION
    | OBJECTS
    | {
        "a_gap_is_refused",
        "a_repeated_position_is_refused",
        "a_cancelled_run_goes_on",
        "a_cancellation_concerns_one_call",
        "many_runs_at_once_do_not_see_each_other",
        "runs_that_take_turns_do_not_see_each_other",
        "hundreds_of_runs_are_open_at_once",
        "a_cancelled_read_leaves_the_object_usable",
    },
)
class DoesNotSeeItsBuffer(DeferringStore):
    """Reads the medium alone, without its own records that are not there yet."""

    async def read_log(self, key: RunKey, /) -> RunLog:
        return await DictStore.read_log(self, key)


@wrong("ordered_records_stand_before_the_barrier_that_follows")
class HasABufferOfTen(DictStore):
    """Keeps ten ordered records between two barriers, and drops the ones before."""

    def write(self, key: str, record: Record, data: bytes) -> None:
        if isinstance(record, RunFinished):
            lines = self.lines(key)
            ordered = [data for data in lines if isinstance(self.restored(data), EffectCompleted)]
            if len(ordered) == len(lines) - 1 > 10:
                del lines[1 : len(lines) - 10]
        super().write(key, record, data)


@wrong(
    "a_barrier_puts_everything_before_it_on_the_medium",
    "what_is_on_the_medium_is_a_prefix",
    besides=OBJECTS | REFUSALS | CANCELLATION,
)
class AcknowledgesFirst(DictStore):
    """Acknowledges a record when it is in memory, and writes it a little later."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.later: dict[str, list[bytes]] = {}

    async def __aexit__(self, *_: object) -> None:
        for key in list(self.later):
            self.land(key)

    def lines(self, key: str) -> list[bytes]:
        return [*super().lines(key), *self.later.get(key, [])]

    def write(self, key: str, record: Record, data: bytes) -> None:
        self.later.setdefault(key, []).append(data)
        asyncio.get_running_loop().call_later(0.05, self.land, key)

    def land(self, key: str) -> None:
        """Write what is due."""
        self.medium.logs.setdefault(key, []).extend(self.later.pop(key, []))


@wrong(
    "a_barrier_puts_everything_before_it_on_the_medium",
    "a_run_goes_on_in_a_fresh_object",
    besides=EVERYTHING,
)
class KeepsAllInTheObject(DictStore):
    """Keeps logs in the object, though it is said to have a medium."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(Medium())


# --------------------------------------------------------------------------------- several objects, one medium


class CachingStore(DictStore):
    """Remembers how many records each run has: alone that is one fault already."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.known: dict[str, list[bytes]] = {}

    def lines(self, key: str) -> list[bytes]:
        return self.known.setdefault(key, list(super().lines(key)))

    def write(self, key: str, record: Record, data: bytes) -> None:
        self.lines(key).append(data)
        super().write(key, record, data)


@wrong(
    "an_object_that_is_behind_is_refused",
    "a_stale_stretch_of_records_is_refused_whole",
    "of_two_objects_at_one_position_one_wins",
)
class ComparesWithACache(CachingStore):
    """Compares positions with what it last read, and not with the medium."""

    def lift(self, key: str) -> None:
        super().lift(key)
        self.known.pop(key, None)


@wrong("a_read_sees_what_other_objects_wrote", besides=OBJECTS | REFUSALS)
class ReadsFromACache(CachingStore):
    """Answers reads from memory."""

    def check(self, key: str, record: Record) -> None:
        known, self.known = self.known, {}
        try:
            super().check(key, record)
        finally:
            self.known = known


@wrong(
    "a_stale_stretch_of_records_is_refused_whole",
    besides=REFUSALS
    | {"a_gap_is_refused", "a_repeated_position_is_refused", "a_first_record_that_is_no_start_is_refused"},
)
class InsertsByPosition(DeferringStore):
    """Has a primary key on the position: of a stretch that is behind, the records beyond the others' are taken."""

    async def append(self, key: RunKey, record: Record) -> None:
        await asyncio.sleep(0)
        if self.is_blocked(key):
            raise RunConflict(key, "blocked", seq=record.seq)
        self.buffers.setdefault(key, []).append(record)
        if isinstance(record, EffectCompleted | StepCompleted):
            self.timers[key] = asyncio.get_running_loop().call_later(0.02, self.hand_over, key)
            return
        self.hand_over(key)
        if (refusal := self.refused.pop(key, None)) is not None:
            raise refusal

    def hand_over(self, key: str) -> None:
        for record in self.buffers.pop(key, []):
            try:
                self.check(key, record)
            except PolyLoopError as refusal:
                self.block(key)
                self.refused.setdefault(key, refusal)
            else:
                self.write(key, record, self.stored(record))


@wrong(
    "of_two_objects_at_one_position_one_wins",
    "of_two_objects_that_start_a_run_one_wins",
    "of_two_tasks_at_one_position_one_wins",
)
class ComparesThenWrites(DictStore):
    """Lets others run between comparing and appending."""

    async def append(self, key: RunKey, record: Record) -> None:
        text = self.stored(record)
        if self.is_blocked(key):
            raise RunConflict(key, "blocked", seq=record.seq)
        try:
            self.check(key, record)
        except PolyLoopError:
            self.block(key)
            raise
        await asyncio.sleep(0)
        self.write(key, record, text)


@wrong("of_two_objects_at_one_position_one_wins", "of_two_objects_that_start_a_run_one_wins")
class LocksItsOwnTasksOnly(ComparesThenWrites):
    """Holds a lock between comparing and appending that other objects do not have."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.lock = asyncio.Lock()

    async def append(self, key: RunKey, record: Record) -> None:
        async with self.lock:
            await super().append(key, record)


@wrong("a_reader_never_sees_half_a_record", besides=REFUSALS)
class WritesInTwoHalves(DictStore):
    """Writes a record in two goes, and lets readers in between them."""

    async def append(self, key: RunKey, record: Record) -> None:
        await super().append(key, record)
        lines, data = self.lines(key), self.stored(record)
        place = len(lines) - 1
        lines[place] = data[: len(data) // 2]
        try:
            await asyncio.sleep(0)
        finally:
            lines[place] = data


@wrong("a_fresh_object_refuses_without_having_read", besides=frozenset({"a_run_goes_on_in_a_fresh_object"}))
class TrustsTheFirstRecord(DictStore):
    """Takes the position of a run that it does not know from the first record that it is given."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.known: set[str] = set()

    def lift(self, key: str) -> None:
        super().lift(key)
        self.known.add(key)

    def check(self, key: str, record: Record) -> None:
        if key not in self.known and not isinstance(record, RunStarted) and self.lines(key):
            self.known.add(key)
            return
        self.known.add(key)
        super().check(key, record)


# ---------------------------------------------------------------------------------------------- many tasks


@wrong(
    "runs_that_take_turns_do_not_see_each_other",
    "many_runs_at_once_do_not_see_each_other",
    besides=EVERYTHING,
)
class HasACurrentRun(DictStore):
    """Writes results and steps to the run that was begun last."""

    current = RunKey("none")

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        self.current = key
        await super().append_run_start(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await super().append_result(self.current, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await super().append_step(self.current, record)


@wrong(
    "many_runs_at_once_do_not_see_each_other",
    "of_two_tasks_at_one_position_one_wins",
    besides=frozenset({"a_refusal_among_calls_at_once_concerns_one_run", "a_cancellation_concerns_one_call"}),
)
class SharesAScratchpad(DictStore):
    """Keeps the record that is being written in the object while others may write."""

    async def append(self, key: RunKey, record: Record) -> None:
        self.scratch = self.stored(record)
        await super().append(key, record)

    def write(self, key: str, record: Record, data: bytes) -> None:
        super().write(key, record, self.scratch)


@wrong(
    "a_refusal_among_calls_at_once_concerns_one_run",
    besides=frozenset({"of_two_tasks_at_one_position_one_wins"}),
)
class RollsBackTheBatch(BatchingStore):
    """Writes a batch in one transaction: a refused record takes those of other runs with it."""

    async def write_batch(self) -> None:
        await asyncio.sleep(0)
        batch, self.batch, self.writer = self.batch, [], None
        errors = [self.judged(key, record) for key, record, _ in batch]
        error = next((each for each in errors if each is not None), None)
        for (key, record, done), own in zip(batch, errors, strict=True):
            if error is None:
                self.write(key, record, self.stored(record))
                if not done.done():
                    done.set_result(None)
            elif not done.done():
                done.set_exception(own or RunConflict(key, str(error)))


@wrong("hundreds_of_runs_are_open_at_once")
class ForgetsTheOldestBuffer(DeferringStore):
    """Has room for the buffers of 200 runs, and makes room without writing."""

    async def append(self, key: RunKey, record: Record) -> None:
        await super().append(key, record)
        for oldest in list(self.buffers)[:-200]:
            del self.buffers[oldest]


@wrong("objects_that_write_different_runs_lose_nothing")
class RewritesTheMedium(DictStore):
    """Reads the whole medium when the first run is written, and writes it back with each record."""

    everything: dict[str, list[bytes]] | None = None

    def write(self, key: str, record: Record, data: bytes) -> None:
        logs = self.medium.logs
        if self.everything is None:
            self.everything = {name: list(lines) for name, lines in logs.items()}
        # The run that is being written is read again, and its position compared: that much is right.
        self.everything[key] = [*logs.get(key, []), data]
        logs.clear()
        logs.update({name: list(lines) for name, lines in self.everything.items()})


@wrong("a_barrier_does_not_block_the_event_loop", besides=frozenset({"a_reader_never_sees_half_a_record"}))
class BlocksTheLoop(DictStore):
    """Writes without ever giving way to others."""

    async def append(self, key: RunKey, record: Record) -> None:
        if self.is_blocked(key):
            raise RunConflict(key, "blocked", seq=record.seq)
        try:
            self.check(key, record)
        except PolyLoopError:
            self.block(key)
            raise
        self.write(key, record, self.stored(record))


# --------------------------------------------------------------------------------------------- cancellation


@wrong("a_cancellation_concerns_one_call", besides=CANCELLATION)
class CancelsTheBatch(BatchingStore):
    """Awaits the write that it shares with others: cancelling one cancels all."""

    async def append(self, key: RunKey, record: Record) -> None:
        done = asyncio.get_running_loop().create_future()
        self.batch.append((key, record, done))
        if self.writer is None:
            self.writer = asyncio.create_task(self.write_batch())
        try:
            await self.writer
        except asyncio.CancelledError:
            self.batch, self.writer = [], None
            raise
        await done


@wrong("a_cancellation_passes", besides=CANCELLATION | {"a_cancellation_concerns_one_call"})
class SwallowsCancellations(DictStore):
    """Finishes a cancelled append and returns as if nothing had been."""

    async def append(self, key: RunKey, record: Record) -> None:
        writing = asyncio.create_task(super().append(key, record))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing


@wrong("a_cancellation_passes", besides=CANCELLATION | {"a_cancellation_concerns_one_call"})
class TranslatesCancellations(DictStore):
    """Turns a cancellation into an error of its own."""

    async def append(self, key: RunKey, record: Record) -> None:
        try:
            await super().append(key, record)
        except asyncio.CancelledError as error:
            raise ConnectionError("the write was interrupted") from error


@wrong("a_cancellation_passes", "a_cancelled_read_leaves_the_object_usable")
class SwallowsCancelledReads(DictStore):
    """Reads again when a read is cancelled."""

    async def read_log(self, key: RunKey, /) -> RunLog:
        try:
            return await super().read_log(key)
        except asyncio.CancelledError:
            return await super().read_log(key)


@wrong(*CANCELLATION)
class LandsLate(DictStore):
    """Leaves a cancelled write under way: it lands after the log was read."""

    async def append(self, key: RunKey, record: Record) -> None:
        try:
            await super().append(key, record)
        except asyncio.CancelledError:
            self.land(5, key, record)
            raise

    def land(self, turns_left: int, key: RunKey, record: Record) -> None:
        """Write after so many turns of the loop, if the place is free then."""
        if turns_left:
            asyncio.get_running_loop().call_soon(self.land, turns_left - 1, key, record)
        elif len(self.lines(key)) == record.seq:
            self.write(key, record, self.stored(record))


@wrong(*CANCELLATION, besides=frozenset({"a_reader_never_sees_half_a_record"}))
class LeavesHalfARecord(DictStore):
    """Stops in the middle of a record when it is cancelled."""

    async def append(self, key: RunKey, record: Record) -> None:
        await super().append(key, record)
        lines, data = self.lines(key), self.stored(record)
        if len(lines) not in {1, 7}:
            return
        lines[-1] = data[: len(data) // 2]
        await asyncio.sleep(0)
        lines[-1] = data


@wrong(*CANCELLATION, "a_cancellation_passes", besides=frozenset({"a_cancellation_concerns_one_call"}))
class ClosesWhenCancelled(DictStore):
    """Is of no more use once a call was cancelled."""

    closed = False

    async def append(self, key: RunKey, record: Record) -> None:
        if self.closed:
            raise ConnectionError("the connection is closed")
        try:
            await super().append(key, record)
        except asyncio.CancelledError:
            self.closed = True
            raise


@wrong(*CANCELLATION, "a_cancellation_passes", "a_cancellation_concerns_one_call", patience_s=1.0)
class KeepsTheLock(DictStore):
    """Does not give its lock back when it is cancelled."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.lock = asyncio.Lock()

    async def append(self, key: RunKey, record: Record) -> None:
        await self.lock.acquire()
        try:
            await super().append(key, record)
        except Exception:
            self.lock.release()
            raise
        self.lock.release()


@wrong("an_append_cancelled_twice_is_whole_or_nothing")
class WithstandsOneCancellation(DictStore):
    """Waits for a write under way when it is cancelled, and runs away when it is cancelled once more."""

    async def append(self, key: RunKey, record: Record) -> None:
        writing = asyncio.create_task(self.slowly(super().append(key, record)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.shield(writing)
            raise

    async def slowly(self, writing: Awaitable[None]) -> None:
        """Take a few turns of the loop."""
        await turns(4)
        await writing


@wrong("a_cancelled_read_leaves_the_object_usable", "a_cancellation_passes")
class LosesConnections(DictStore):
    """Does not give the connection of a cancelled read back."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.taken: set[str] = set()

    async def read_log(self, key: RunKey, /) -> RunLog:
        if key in self.taken:
            raise ConnectionError("no connection is free")
        self.taken.add(key)
        log = await super().read_log(key)
        self.taken.remove(key)
        return log
