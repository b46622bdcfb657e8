"""Where a log stands after each record, and which record may follow. Pure.

The order of records that a run writes is a small grammar; this module is its parser. What does not fit is damage.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeAlias

from polyloop._recovery._moves import effect_id
from polyloop.types import (
    ActionStatus,
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    ModelReply,
    PlannedAction,
    Record,
    RunFinished,
    StepCompleted,
    StopReason,
)

# Where a log can stand. Each state holds just what the next move needs.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    steps: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelOpen:
    steps: int
    intent: EffectIntended


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelDone:
    steps: int
    result: EffectCompleted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionOpen:
    steps: int
    reply: ModelReply
    intent: EffectIntended
    action: PlannedAction


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionDone:
    steps: int
    reply: ModelReply
    action: PlannedAction
    result: EffectCompleted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    stop_reason: StopReason
    final_answer: str | None
    evidence: EffectCompleted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """For good."""


State: TypeAlias = Ready | ModelOpen | ModelDone | ActionOpen | ActionDone | Judged | Ended


def follow(state: State, record: Record) -> State:
    """The state after one more record."""
    if isinstance(record, RunFinished):
        return _follow_end(state, record)
    match state:
        case Ready():
            return _follow_ready(state, record)
        case ModelOpen():
            return _follow_model_open(state, record)
        case ModelDone():
            return _follow_model_done(state, record)
        case ActionOpen():
            return _follow_action_open(state, record)
        case ActionDone():
            return _follow_action_done(state, record)
        case Judged() | Ended():
            raise _damage(CorruptionReason.WRONG_VERDICT, "a record follows a step that ended the run", record)


def _follow_end(state: State, record: RunFinished) -> State:
    if record.stop_reason is StopReason.CANCELLED and record.final_answer is None:
        return state
    match state:
        case Ready():
            allowed = record.stop_reason in _BETWEEN_STEPS and record.final_answer is None
        case ModelOpen() | ActionOpen():
            allowed = record.stop_reason is StopReason.RESUME_STATE_UNKNOWN and record.final_answer is None
        case Judged():
            allowed = (record.stop_reason, record.final_answer) == (state.stop_reason, state.final_answer)
        case _:
            allowed = False
    if not allowed:
        raise _damage(
            CorruptionReason.WRONG_VERDICT, f"the run cannot end with {record.stop_reason.value} here", record
        )
    return Ended()


_BETWEEN_STEPS: Final = (StopReason.STEP_BUDGET, StopReason.ACTION_BUDGET, StopReason.CONTEXT_OVERFLOW)


def _follow_ready(state: Ready, record: Record) -> State:
    if isinstance(record, EffectIntended) and record.kind is EffectKind.MODEL_CALL:
        _check_intent(record, state.steps, EffectKind.MODEL_CALL, attempt=1)
        return ModelOpen(steps=state.steps, intent=record)
    raise _untimely(record)


def _follow_model_open(state: ModelOpen, record: Record) -> State:
    if isinstance(record, EffectIntended) and record.kind is EffectKind.MODEL_CALL:
        _check_intent(record, state.steps, EffectKind.MODEL_CALL, attempt=state.intent.attempt + 1)
        return ModelOpen(steps=state.steps, intent=record)
    if isinstance(record, EffectCompleted):
        _check_result(record, state.intent)
        return ModelDone(steps=state.steps, result=record)
    raise _untimely(record)


def _follow_model_done(state: ModelDone, record: Record) -> State:
    reply = state.result.reply
    if isinstance(record, EffectIntended) and record.action is not None and reply is not None:
        _check_intent(record, state.steps, EffectKind.ACTION, attempt=1)
        return ActionOpen(steps=state.steps, reply=reply, intent=record, action=record.action)
    if isinstance(record, StepCompleted):
        return _follow_step(record, state.steps, state.result, outcome_of=None)
    raise _second_result(record, state.result)


def _follow_action_open(state: ActionOpen, record: Record) -> State:
    if isinstance(record, EffectIntended) and record.kind is EffectKind.ACTION:
        _check_intent(record, state.steps, EffectKind.ACTION, attempt=state.intent.attempt + 1)
        if record.action != state.action:
            raise _damage(CorruptionReason.WRONG_EFFECT, "a repeated intent announces another action", record)
        return dataclasses.replace(state, intent=record)
    if isinstance(record, EffectCompleted):
        _check_result(record, state.intent)
        return ActionDone(steps=state.steps, reply=state.reply, action=state.action, result=record)
    raise _untimely(record)


def _follow_action_done(state: ActionDone, record: Record) -> State:
    if isinstance(record, StepCompleted):
        return _follow_step(record, state.steps, state.result, outcome_of=state.action)
    raise _second_result(record, state.result)


def _follow_step(
    record: StepCompleted, steps: int, result: EffectCompleted, *, outcome_of: PlannedAction | None
) -> State:
    """Check a step against the result that it is made of."""
    step = record.step
    if step.step_idx != steps:
        raise _damage(CorruptionReason.WRONG_STEP, f"step {step.step_idx} stands where step {steps} is due", record)
    expected_id = None if outcome_of is None else result.result_id
    if record.result_id != expected_id or (outcome_of is not None and step.action != outcome_of.action_text):
        raise _damage(CorruptionReason.WRONG_EFFECT, "a step does not belong to the effect before it", record)
    if record.stop_reason not in _verdicts(record, result, announced=outcome_of is not None):
        raise _damage(CorruptionReason.WRONG_VERDICT, "a step's verdict contradicts the result before it", record)
    if (record.final_answer is not None) != (record.stop_reason is StopReason.AGENT_FINISHED):
        raise _damage(
            CorruptionReason.WRONG_VERDICT, "a final answer stands without agent_finished, or lacks with it", record
        )
    if record.stop_reason is None:
        return Ready(steps=steps + 1)
    return Judged(stop_reason=record.stop_reason, final_answer=record.final_answer, evidence=result)


def _verdicts(record: StepCompleted, result: EffectCompleted, *, announced: bool) -> tuple[StopReason | None, ...]:
    """The verdicts that a step may have, given the result that it is made of; none at all if they do not fit."""
    step, outcome = record.step, result.outcome
    if announced:
        status = ActionStatus.ENV_ERROR if outcome is None else outcome.status
        if step.action_status != status.value:
            return ()
        if outcome is None or status is ActionStatus.ENV_ERROR:
            return (StopReason.ENV_ERROR,)
        if status is ActionStatus.NOT_EXECUTED or outcome.completed is False:
            return (None,)
        return (StopReason.TASK_COMPLETED if outcome.completed else StopReason.ENV_ERROR,)
    if step.action is not None:
        # Arguments that are not JSON: the only action without an announcement.
        return (None,) if step.action_status == ActionStatus.NOT_EXECUTED.value and result.reply is not None else ()
    if step.parse_ok:
        return (StopReason.AGENT_FINISHED,) if result.reply is not None else ()
    if step.parse_error is not None:
        return (None, StopReason.PARSE_FAILED_REPEATEDLY) if result.reply is not None else ()
    return (StopReason.LLM_ERROR,) if result.reply is None else ()


def _check_intent(record: EffectIntended, steps: int, kind: EffectKind, *, attempt: int) -> None:
    if record.step_idx != steps:
        raise _damage(CorruptionReason.WRONG_STEP, f"an intent for step {record.step_idx}, step {steps} is due", record)
    if record.result_id != effect_id(steps, kind):
        raise _damage(CorruptionReason.WRONG_EFFECT, f"an intent is named {record.result_id[:40]!a}", record)
    if record.attempt != attempt:
        raise _damage(CorruptionReason.WRONG_ATTEMPT, f"attempt {record.attempt} where {attempt} is due", record)


def _check_result(record: EffectCompleted, intent: EffectIntended) -> None:
    if record.result_id != intent.result_id:
        raise _damage(
            CorruptionReason.RESULT_WITHOUT_INTENT, f"a result for {record.result_id[:40]!a}, not open", record
        )
    foreign = record.outcome if intent.kind is EffectKind.MODEL_CALL else record.reply
    if foreign is not None:
        raise _damage(
            CorruptionReason.WRONG_EFFECT, f"the result of a {intent.kind.value} is of the other kind", record
        )


def _second_result(record: Record, result: EffectCompleted) -> CorruptRunLog:
    if isinstance(record, EffectCompleted) and record.result_id == result.result_id:
        return _damage(CorruptionReason.SECOND_RESULT, "an effect has two results", record)
    return _untimely(record)


def _untimely(record: Record) -> CorruptRunLog:
    match record:
        case EffectIntended():
            reason, what = CorruptionReason.INTENT_WITHOUT_TURN, f"an intent ({record.kind.value})"
        case EffectCompleted():
            reason, what = CorruptionReason.RESULT_WITHOUT_INTENT, "a result"
        case _:
            reason, what = CorruptionReason.STEP_WITHOUT_RESULT, "a step"
    return _damage(reason, f"{what} stands where none is due", record)


def _damage(reason: CorruptionReason, problem: str, record: Record) -> CorruptRunLog:
    return CorruptRunLog(reason, problem, seq=record.seq)
