"""The five persisted records, and the log that they make up.

A run's log is an append-only sequence. Each record names its own position (`seq`), which is what fences two
drivers of one run: a store takes a record at the next position and at no other. Why:
`research-wiki/design/0001-intent-log.md` and `0006-position-and-fencing.md`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from polyloop.types._checks import check_count, check_name, check_optional_str, check_positive, check_str, check_type
from polyloop.types._json import JSONValue, copy_object
from polyloop.types.errors import CorruptionReason, CorruptRunLog, InvalidRequest
from polyloop.types.steps import Step
from polyloop.types.values import ActionOutcome, EffectKind, ModelReply, PlannedAction, ReplayPolicy, StopReason

MAX_ERROR_CHARS = 2000
"""How much of an exception's type and message a result record keeps."""

_RECORDED_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII)


def _check_place(owner: str, seq: object, recorded_at: object) -> None:
    check_count(f"{owner}.seq", seq)
    if not (isinstance(recorded_at, str) and _RECORDED_AT.fullmatch(recorded_at)):
        raise InvalidRequest(f"{owner}.recorded_at", "must be a UTC time 'YYYY-MM-DDTHH:MM:SS.ffffff+00:00'")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first record of every run."""

    seq: int
    """The position in the log; 0 in a log that a driver wrote."""
    recorded_at: str
    """When the driver built the record, UTC, `YYYY-MM-DDTHH:MM:SS.ffffff+00:00`. Never compared."""
    params_snapshot: Mapping[str, JSONValue]
    """All that influences the run, as plain JSON; prompt texts as length and digest."""
    library_version: str
    """The PolyLoop that started the run. Not part of its identity."""

    def __post_init__(self) -> None:
        _check_place("RunStarted", self.seq, self.recorded_at)
        check_type("RunStarted.params_snapshot", self.params_snapshot, Mapping, "a mapping")
        check_str("RunStarted.library_version", self.library_version)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EffectIntended:
    """A side effect is about to happen. It is durable before the effect begins."""

    seq: int
    """The position in the log, from 0."""
    recorded_at: str
    """When the driver built the record, UTC. Never compared."""
    result_id: str
    """The effect's name within the run, `f"{step_idx:06d}-{kind}"`; a replay has the same."""
    kind: EffectKind
    """What is about to happen: a model call or an action."""
    step_idx: int
    """The step that the effect belongs to, from 0."""
    attempt: int
    """Which attempt at this effect, from 1. Any number is legal; the last one decides."""
    replay: ReplayPolicy
    """Whether the effect may be repeated, as declared when it was announced."""
    action: PlannedAction | None
    """What will be executed; None for a model call."""

    def __post_init__(self) -> None:
        _check_place("EffectIntended", self.seq, self.recorded_at)
        check_name("EffectIntended.result_id", self.result_id)
        check_type("EffectIntended.kind", self.kind, EffectKind, "an EffectKind")
        check_count("EffectIntended.step_idx", self.step_idx)
        check_positive("EffectIntended.attempt", self.attempt)
        check_type("EffectIntended.replay", self.replay, ReplayPolicy, "a ReplayPolicy")
        if self.kind is EffectKind.ACTION:
            check_type("EffectIntended.action", self.action, PlannedAction, "a PlannedAction for an action")
        elif self.action is not None:
            raise InvalidRequest("EffectIntended.action", "must be None for a model call")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EffectCompleted:
    """What came of an announced effect: exactly one of `reply`, `outcome` and `error` is set."""

    seq: int
    """The position in the log, from 0."""
    recorded_at: str
    """When the driver built the record, UTC. Never compared."""
    result_id: str
    """The effect that this answers."""
    reply: ModelReply | None
    """A model call's reply."""
    outcome: ActionOutcome | None
    """An executor's outcome, verbatim."""
    error: str | None
    """The exception that escaped instead: its type and message, cut at 2,000 characters."""

    def __post_init__(self) -> None:
        _check_place("EffectCompleted", self.seq, self.recorded_at)
        check_name("EffectCompleted.result_id", self.result_id)
        if self.reply is not None:
            check_type("EffectCompleted.reply", self.reply, ModelReply, "a ModelReply or None")
        if self.outcome is not None:
            check_type("EffectCompleted.outcome", self.outcome, ActionOutcome, "an ActionOutcome or None")
        check_optional_str("EffectCompleted.error", self.error)
        if (self.reply is not None) + (self.outcome is not None) + (self.error is not None) != 1:
            raise InvalidRequest("EffectCompleted", "exactly one of reply, outcome and error must be set")
        if self.error is not None and len(self.error) > MAX_ERROR_CHARS:
            raise InvalidRequest("EffectCompleted.error", f"must have at most {MAX_ERROR_CHARS:,} characters")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """One iteration is over."""

    seq: int
    """The position in the log, from 0."""
    recorded_at: str
    """When the driver built the record, UTC. Never compared."""
    step: Step
    """The row of the trajectory."""
    result_id: str | None
    """The action's result that the step is made of; None for a step whose action was never announced."""
    stop_reason: StopReason | None
    """The verdict that this step led to; None where the run goes on. Never a budget or an overflow: those
    belong to the next iteration."""
    final_answer: str | None
    """The final answer, with `agent_finished` only."""

    def __post_init__(self) -> None:
        _check_place("StepCompleted", self.seq, self.recorded_at)
        check_type("StepCompleted.step", self.step, Step, "a Step")
        check_optional_str("StepCompleted.result_id", self.result_id)
        if self.stop_reason is not None:
            check_type("StepCompleted.stop_reason", self.stop_reason, StopReason, "a StopReason or None")
        check_optional_str("StepCompleted.final_answer", self.final_answer)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The end of a run. Nothing follows it, unless it is `cancelled` and the run was resumed."""

    seq: int
    """The position in the log, from 0."""
    recorded_at: str
    """When the driver built the record, UTC. Never compared."""
    stop_reason: StopReason
    """Why the run ended; `cancelled` in the one end record that others may follow."""
    final_answer: str | None
    """The final answer, with `agent_finished` only."""
    detail: str | None
    """As in `RunResult.detail`."""
    event_sink_failures: int
    """How many events this process's sink failed to take, up to the building of this record."""

    def __post_init__(self) -> None:
        _check_place("RunFinished", self.seq, self.recorded_at)
        check_type("RunFinished.stop_reason", self.stop_reason, StopReason, "a StopReason")
        check_optional_str("RunFinished.final_answer", self.final_answer)
        check_optional_str("RunFinished.detail", self.detail)
        check_count("RunFinished.event_sink_failures", self.event_sink_failures)


Record: TypeAlias = RunStarted | EffectIntended | EffectCompleted | StepCompleted | RunFinished
"""Any record of a log."""


def is_terminal(record: Record) -> bool:
    """Whether nothing may follow this record."""
    return isinstance(record, RunFinished) and record.stop_reason is not StopReason.CANCELLED


def detached(record: Record) -> Record:
    """An equal record that shares no mapping with this one, so that nobody's later change reaches it."""
    if isinstance(record, RunStarted):
        snapshot = copy_object(record.params_snapshot, "RunStarted.params_snapshot")
        return dataclasses.replace(record, params_snapshot=snapshot)
    if isinstance(record, EffectIntended) and record.action is not None:
        return _with_action(record, record.action)
    return record


def _with_action(intent: EffectIntended, action: PlannedAction) -> EffectIntended:
    # Field by field: `dataclasses.replace` takes half as long again, and this is done twice a step.
    return EffectIntended(
        seq=intent.seq,
        recorded_at=intent.recorded_at,
        result_id=intent.result_id,
        kind=intent.kind,
        step_idx=intent.step_idx,
        attempt=intent.attempt,
        replay=intent.replay,
        action=PlannedAction(
            action_text=action.action_text,
            tool_name=action.tool_name,
            arguments=copy_object(action.arguments, "EffectIntended.action.arguments"),
            history_text=action.history_text,
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """All records of one run, by kind. An empty log stands for a run that does not exist."""

    started: RunStarted | None
    """None for a run that does not exist."""
    intents: tuple[EffectIntended, ...]
    """Every announcement, repeated ones included, in the order of their positions."""
    results: tuple[EffectCompleted, ...]
    """What came of the effects, in order; one that was interrupted has none."""
    steps: tuple[StepCompleted, ...]
    """The steps that are over, in order."""
    finished: RunFinished | None
    """The end record, if it is the last record; None while the run goes on, or goes on again."""
    cancellations: tuple[RunFinished, ...] = ()
    """The `cancelled` end records that the run was resumed from, in order."""

    @property
    def next_seq(self) -> int:
        """The position at which the next record must stand."""
        ends = len(self.cancellations) + (self.finished is not None)
        return (self.started is not None) + len(self.intents) + len(self.results) + len(self.steps) + ends

    def records(self) -> tuple[Record, ...]:
        """All records in the order of their positions."""
        records: list[Record] = [*self.intents, *self.results, *self.steps, *self.cancellations]
        if self.started is not None:
            records.append(self.started)
        if self.finished is not None:
            records.append(self.finished)
        return tuple(sorted(records, key=lambda record: record.seq))

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> RunLog:
        """The log that these records make up, in the order given.

        The one builder, for every store. It checks positions and record kinds only; whether intents, results
        and steps fit together is judged by `resume`.

        Raises:
            CorruptRunLog: if a record does not stand at its position, the first is no start record, another
                one is, or something follows an end record other than `cancelled`.
        """
        started: RunStarted | None = None
        intents: list[EffectIntended] = []
        results: list[EffectCompleted] = []
        steps: list[StepCompleted] = []
        ends: list[RunFinished] = []
        last: Record | None = None
        for position, record in enumerate(records):
            _check_succession(position, record, last)
            match record:
                case RunStarted():
                    started = record
                case EffectIntended():
                    intents.append(record)
                case EffectCompleted():
                    results.append(record)
                case StepCompleted():
                    steps.append(record)
                case RunFinished():
                    ends.append(record)
            last = record
        finished = ends.pop() if isinstance(last, RunFinished) else None
        return cls(
            started=started,
            intents=tuple(intents),
            results=tuple(results),
            steps=tuple(steps),
            finished=finished,
            cancellations=tuple(ends),
        )


def _check_succession(position: int, record: Record, last: Record | None) -> None:
    if not isinstance(record, Record):
        raise CorruptRunLog(
            CorruptionReason.MALFORMED_RECORD, f"a {type(record).__name__} is no record of a log", seq=position
        )
    if record.seq != position:
        problem = f"a record that names position {record.seq} stands at position {position}"
        raise CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, seq=position)
    if last is None:
        if not isinstance(record, RunStarted):
            raise CorruptRunLog(CorruptionReason.MISSING_START, "the first record is no start record", seq=position)
    elif isinstance(record, RunStarted):
        raise CorruptRunLog(CorruptionReason.SECOND_START, "a second start record", seq=position)
    elif is_terminal(last):
        raise CorruptRunLog(CorruptionReason.RECORD_AFTER_END, "a record follows the end of the run", seq=position)
