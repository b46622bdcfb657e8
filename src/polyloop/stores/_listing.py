"""What the shipped stores say of their runs beyond the port: summaries, and moving a log to another store."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from polyloop.ports import RunStore
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    InvalidRequest,
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
from polyloop.types._checks import check_bool, check_count, check_run_key, check_str, check_type
from polyloop.types.records import is_terminal

DRIVEN: Final = (
    "what was last appended here is no end record, so it may be driven still, and is not deleted: "
    "let it end, or delete it through another store object"
)
"""Why a run is not deleted, and the way out."""


class RunState(enum.StrEnum):
    """Where a run stands, as far as its log tells. Closed: a store names no other."""

    UNFINISHED = "unfinished"
    """No end record stands at the end of the log: the run is under way, or was interrupted and can be resumed."""
    CANCELLED = "cancelled"
    """The log ends with `cancelled`: the run can be resumed."""
    ENDED = "ended"
    """The log ends with one of the other nine stop reasons: nothing may follow."""
    DAMAGED = "damaged"
    """What listing reads of the log makes no sense, or a newer version wrote it; `read_log` tells what is wrong. Not
    every damage is found by listing, which need not read a log whole."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run of a store, as `runs()` lists it. Why: `research-wiki/design/0018-listing-and-moving-runs.md`."""

    key: RunKey
    """The run's key."""
    state: RunState
    """Where it stands."""
    started_at: str | None
    """When its start record was built, UTC, `YYYY-MM-DDTHH:MM:SS.ffffff+00:00`; None if the log is damaged."""
    last_record_at: str | None
    """When its last record was built, UTC; None if the log is damaged."""
    steps: int | None
    """How many steps its log holds; None if the log is damaged. The file store takes it from the last step's number."""
    stop_reason: StopReason | None
    """Why it stopped; None unless `state` is `cancelled` or `ended`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What `runs()` is asked for, checked."""

    state: RunState | None
    """Only runs in this state; None for all."""
    prefix: str
    """Only runs whose key begins with this, compared code point by code point."""
    limit: int | None
    """At most so many; None for all."""
    after: RunSummary | None
    """Only runs behind this one, in the order of the listing. Its key and start count; it need not exist any more."""
    newest_first: bool
    """The reverse order."""

    def __post_init__(self) -> None:
        if self.state is not None:
            check_type("runs.state", self.state, RunState, "a RunState or None")
        check_str("runs.prefix", self.prefix)
        if self.limit is not None:
            check_count("runs.limit", self.limit)
        if self.after is not None:
            check_type("runs.after", self.after, RunSummary, "a RunSummary or None")
        check_bool("runs.newest_first", self.newest_first)

    def wants(self, summary: RunSummary) -> bool:
        """Whether a run belongs in the listing, its limit apart."""
        if self.state is not None and summary.state is not self.state:
            return False
        if not summary.key.startswith(self.prefix):
            return False
        if self.after is None:
            return True
        here, there = place(summary), place(self.after)
        return here < there if self.newest_first else here > there


def place(summary: RunSummary) -> tuple[str, str]:
    """What listings are ordered by: the start, then the key. A damaged log has no start and comes first."""
    return summary.started_at or "", summary.key


def summary_of(key: str, log: RunLog) -> RunSummary:
    """The summary of a log that has been read; not for an empty one."""
    records = log.records()
    last = records[-1]
    if isinstance(last, RunFinished):
        state = RunState.ENDED if is_terminal(last) else RunState.CANCELLED
    else:
        state = RunState.UNFINISHED
    return RunSummary(
        key=RunKey(key),
        state=state,
        started_at=records[0].recorded_at,
        last_record_at=last.recorded_at,
        steps=sum(isinstance(record, StepCompleted) for record in records),
        stop_reason=last.stop_reason if isinstance(last, RunFinished) else None,
    )


async def copy_run(source: RunStore, target: RunStore, key: RunKey) -> int:
    """Copy a run's log from one store to another, record by record.

    The copy is an honest prefix at any moment: interrupted, it holds the first records and can be resumed like any
    run that was. It is read back at the end and compared.

    Results and steps behind the last intent of an unfinished run are ordered records in the copy too: they are durable
    at the latest once the target's `async with` was left. Delete the original after that.

    Args:
        source: Where the log is read.
        target: Where it is written. It must not know the key.
        key: The run.

    Returns:
        How many records were copied.

    Raises:
        InvalidRequest: `source` holds no record of `key`.
        CorruptRunLog: the log of `key` in `source`, or one that `target` has, is damaged; nothing was written.
        RunAlreadyExists: `target` has a record of `key`; nothing was written. An interrupted copy is such a record:
            resume it, or delete it and copy again.
        RunConflict: somebody else appended to the copy in the meantime.
    """
    check_run_key(key)
    log = await source.read_log(key)
    if log.started is None:
        raise InvalidRequest("copy_run.key", f"the source holds no run {key!r}; name one that it lists")
    # Asked first, for a key that a failed attempt has blocked answers an append with that failure.
    if (await target.read_log(key)).started is not None:
        raise RunAlreadyExists(key)
    records = log.records()
    for record in records:
        await _append(target, key, record)
    # Reading sees the object's own ordered appends, and brings up a failure that waited for the next call.
    if (await target.read_log(key)).records() != records:
        problem = "the copy is not equal to what was copied: somebody else wrote to it"
        raise RunConflict(key, problem, seq=log.next_seq, next_seq=log.next_seq)
    return len(records)


async def _append(store: RunStore, key: RunKey, record: Record) -> None:
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
