"""What the checks of `RunStore` share: the suite itself, its sentences, and how to write, read and refuse.

Every promise about what comes back is checked twice: by the object that wrote, and by a fresh one on the same
medium, so that neither a cache nor the medium alone can keep it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from polyloop.ports import RunStore
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from tests.contract.cases import StoreCase
from tests.contract.promises import Suite, demand, settled
from tests.contract.records import (
    difference,
    model_intent,
)

SUITE = Suite[StoreCase]("RunStore")

KEY = RunKey("run")

# The sentences of the contract that several promises share.
POSITION = "A record is taken at the run's next position (`seq`) and at no other."
REFUSED = (
    "A `seq` that is not the next position, a first record that is no `RunStarted`, and any append after an end "
    "record other than `cancelled` is `RunConflict`, and nothing is written."
)
EXISTS = "`append_run_start` of a key that has any record is `RunAlreadyExists`."
NO_MORE = "A store checks no more than that: whether records fit together is not its business."
EQUAL = "Records deeply equal to those written"
TEXTS = (
    "every string that Python can hold (NUL, lone surrogates, a surrogate pair held as two characters, U+2028, "
    "megabytes)"
)
SHARED = "What is handed in and what is handed out is shared with nobody: changing either later changes no record."
KEYS = "Any key within `RunKey`'s rules is a run of its own, down to the code point."
SURFACES = "A failure or refusal surfaces at that call, or at the next call for that key, as itself"
LATEST = "of ordered records that wait to be written with what follows, at the next barrier at the latest."
BLOCKS = "It blocks the key for this store object until the next `read_log` of the key, which reads the medium afresh."
BLOCKED = "A blocked key refuses every append, after a refusal with `RunConflict`"
OTHERS = "other keys and other store objects are not concerned."
CANCELLED = (
    "A cancelled call is wholly written or wholly not, as the next `read_log` of the key finds it, and the object "
    "stays usable."
)
OTHER_CALLS = "Other calls that are under way are not concerned."
TASKS = "Usable from several tasks of one event loop at once; runs do not see each other."
BLOCKING = "No port blocks the event loop, which other runs share."
NO_CURRENT_RUN = "six methods, all keyed, no implicit current run."
ATOMIC = "Across processes, comparing and appending is one atomic act."
BARRIER = (
    "`append_run_start`, `append_intent` and `finish` are **barriers**: they return only when this record and "
    "everything before it in this run is durable."
)
ORDERED = "it becomes durable no later than the run's next barrier"
HANDED_OVER = "and is handed to the medium within 100 ms even if no barrier comes."
LEAVING = "Leaving a store that is an async context manager makes ordered records durable too."
PREFIX = "A prefix of what was written, holding everything that a barrier acknowledged."
WHOLE = "A record is wholly there or not at all, for readers and after a crash."


async def put(store: RunStore, key: RunKey, record: Record) -> None:
    """Append a record by the method of its kind."""
    match record:
        case RunStarted():
            await store.append_run_start(key, record)
        case EffectIntended():
            await store.append_intent(key, record)
        case EffectCompleted():
            await store.append_result(key, record)
        case StepCompleted():
            await store.append_step(key, record)
        case RunFinished():
            await store.finish(key, record)


async def put_all(store: RunStore, key: RunKey, records: Sequence[Record]) -> None:
    """Append the records one after the other."""
    for record in records:
        await put(store, key, record)


async def expect_log(store: RunStore, key: RunKey, records: Sequence[Record], when: str) -> None:
    """The key's log is exactly these records."""
    log = await store.read_log(key)
    problem = difference(RunLog.from_records(records), log, "the log")
    demand(problem is None, f"{when}, in the log of {key!a:.80}: {problem}")


async def expect_prefix(store: RunStore, key: RunKey, records: Sequence[Record], when: str) -> int:
    """The key's log is the first so many of these records; how many."""
    log = await store.read_log(key)
    problem = difference(RunLog.from_records(records[: log.next_seq]), log, "the log")
    demand(problem is None, f"{when}, in the log of {key!a:.80}: {problem}")
    return log.next_seq


async def expect_round_trip(case: StoreCase, records: Sequence[Record], key: RunKey = KEY) -> None:
    """What was written comes back, from the object that wrote it and from a fresh one."""
    async with case.open() as store:
        await put_all(store, key, records)
        await expect_log(store, key, records, "read by the object that wrote")
    if case.has_medium:
        async with case.open() as fresh:
            await expect_log(fresh, key, records, "read by a fresh object on the same medium")


async def expect_refusal(
    store: RunStore, key: RunKey, record: Record, log: Sequence[Record], error: type[Exception] = RunConflict
) -> None:
    """The record is refused, at this call or, where it is ordered, at the next one; the log stays as it is."""
    outcome = await settled(put(store, key, record))
    if outcome is None and isinstance(record, EffectCompleted | StepCompleted):
        outcome = await settled(put(store, key, model_intent(len(log))))
    what = f"a {type(record).__name__} at position {record.seq} of a log of {len(log)} records"
    demand(isinstance(outcome, Exception), f"{what} was taken, expected was {error.__name__}")
    demand(isinstance(outcome, error), f"{what} was refused with {outcome!r:.200}, expected was {error.__name__}")
    await expect_log(store, key, log, f"after {what} was refused")


@contextlib.asynccontextmanager
async def two_objects(case: StoreCase) -> AsyncIterator[tuple[RunStore, RunStore]]:
    """Two objects on the same medium, as two processes have."""
    case.need_medium()
    async with case.open() as one, case.open() as other:
        yield one, other


async def expect_one_winner(
    store: RunStore,
    key: RunKey,
    before: Sequence[Record],
    rivals: Sequence[tuple[Record, object]],
    error: type[Exception] = RunConflict,
) -> None:
    """Of the records with their outcomes exactly one was taken, and stands in the log."""
    won = [record for record, outcome in rivals if outcome is None]
    lost = [outcome for _, outcome in rivals if outcome is not None]
    demand(len(won) == 1, f"of {len(rivals)} records for one position at once {len(won)} were taken")
    demand(all(isinstance(each, error) for each in lost), f"expected was {error.__name__}, raised were {lost!r:.300}")
    await expect_log(store, key, [*before, *won], "after the race")
