"""Records made by hand, and an oracle that says which logs a run can have written.

The oracle is a regular expression over one letter a record, and a recount of the numbers. It shares nothing with
`polyloop._recovery`, which is a state machine. It knows no budget: whether `step_budget` was due is not its question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    ModelReply,
    PlannedAction,
    Record,
    ReplayPolicy,
    RunFinished,
    RunStarted,
    Step,
    StepCompleted,
    StopReason,
)

AT: Final = "2024-02-29T12:00:00.000000+00:00"
MODEL, ACTION = EffectKind.MODEL_CALL, EffectKind.ACTION
PLAN: Final = PlannedAction(action_text="do it", tool_name="look", arguments={"query": "q"}, history_text="I do it")
REPLY: Final = ModelReply(call_id="call", text="text", reasoning=None)


def name_of(step_idx: int, kind: EffectKind) -> str:
    return f"{step_idx:06d}-{kind.value}"


def start() -> RunStarted:
    return RunStarted(seq=0, recorded_at=AT, params_snapshot={}, library_version="0")


def intent(
    step_idx: int,
    kind: EffectKind,
    *,
    attempt: int = 1,
    replay: ReplayPolicy = ReplayPolicy.SAFE,
    action: PlannedAction = PLAN,
    result_id: str | None = None,
) -> EffectIntended:
    return EffectIntended(
        seq=0,
        recorded_at=AT,
        result_id=name_of(step_idx, kind) if result_id is None else result_id,
        kind=kind,
        step_idx=step_idx,
        attempt=attempt,
        replay=replay,
        action=action if kind is ACTION else None,
    )


def replied(result_id: str) -> EffectCompleted:
    return EffectCompleted(seq=0, recorded_at=AT, result_id=result_id, reply=REPLY, outcome=None, error=None)


def failed(result_id: str) -> EffectCompleted:
    return EffectCompleted(seq=0, recorded_at=AT, result_id=result_id, reply=None, outcome=None, error="OSError: gone")


def came(result_id: str, status: ActionStatus, *, completed: bool | None = False) -> EffectCompleted:
    outcome = ActionOutcome(status=status, observation="seen", completed=completed)
    return EffectCompleted(seq=0, recorded_at=AT, result_id=result_id, reply=None, outcome=outcome, error=None)


def step(
    step_idx: int,
    kind: str,
    verdict: StopReason | None = None,
    *,
    result_id: str | None = None,
    final_answer: str | None = None,
) -> StepCompleted:
    """A step of a kind: `llm_error`, `invalid`, `final`, or the literal of an `ActionStatus`."""
    acted = kind not in ("llm_error", "invalid", "final")
    made = Step(
        step_idx=step_idx,
        raw_output="I do it",
        content_chars=4,
        thinking_chars=0,
        action="do it" if acted else None,
        parse_ok=acted or kind == "final",
        parse_error="unreadable" if kind == "invalid" else None,
        observation="seen",
        observation_is_synthetic=False,
        observation_truncated_chars=0,
        prompt_chars=10,
        call_id="call",
        step_wall_ms=1,
        tool_name="look" if acted else None,
        tool_arguments_json=None,
        action_status=kind if acted else None,
    )
    return StepCompleted(
        seq=0, recorded_at=AT, step=made, result_id=result_id, stop_reason=verdict, final_answer=final_answer
    )


def end(stop_reason: StopReason, *, final_answer: str | None = None) -> RunFinished:
    return RunFinished(
        seq=0,
        recorded_at=AT,
        stop_reason=stop_reason,
        final_answer=final_answer,
        detail=None,
        event_sink_failures=0,
    )


_OUTCOMES: Final = {
    (ActionStatus.EXECUTED, False): "x",
    (ActionStatus.EXECUTED, True): "t",
    (ActionStatus.EXECUTED, None): "n",
}
_ANNOUNCED: Final = {
    ("executed", None): "X",
    ("executed", StopReason.TASK_COMPLETED): "T",
    ("executed", StopReason.ENV_ERROR): "N",
    ("not_executed", None): "R",
    ("env_error", StopReason.ENV_ERROR): "V",
}
_ENDS: Final = {
    StopReason.TASK_COMPLETED: "2",
    StopReason.ENV_ERROR: "3",
    StopReason.LLM_ERROR: "4",
    StopReason.PARSE_FAILED_REPEATEDLY: "5",
    StopReason.STEP_BUDGET: "6",
    StopReason.ACTION_BUDGET: "6",
    StopReason.CONTEXT_OVERFLOW: "6",
    StopReason.RESUME_STATE_UNKNOWN: "7",
}

_GOES_ON: Final = "M+p(?:I|U|A+(?:xX|rR))"
_CALLS: Final = "M+(?:7|p|e(?:L4?)?|p(?:J5?|F1?))?"
_ACTS: Final = "M+pA+(?:7|x|r|t(?:T2?)?|n(?:N3?)?|[ve](?:V3?)?)?"
_LEGAL: Final = re.compile(f"(?:{_GOES_ON})*(?:6|{_CALLS}|{_ACTS})?")


def writable(records: Sequence[Record]) -> bool:
    """Whether a run, interrupted any number of times, can have written this log (behind its start record)."""
    told = [record for record in records[1:] if not _set_aside(record)]
    if not _LEGAL.fullmatch("".join(map(_letter, told))):
        return False
    return all(_numbers_fit(told, at) for at in range(len(told)))


def _set_aside(record: Record) -> bool:
    cancelled = isinstance(record, RunFinished) and record.stop_reason is StopReason.CANCELLED
    return cancelled and isinstance(record, RunFinished) and record.final_answer is None


def _letter(record: Record) -> str:
    match record:
        case EffectIntended():
            return "M" if record.kind is MODEL else "A"
        case EffectCompleted(outcome=None):
            return "p" if record.reply is not None else "e"
        case EffectCompleted(outcome=ActionOutcome(status=status, completed=completed)):
            other = "r" if status is ActionStatus.NOT_EXECUTED else "v"
            return _OUTCOMES.get((status, completed), other)
        case StepCompleted():
            return _step_letter(record)
        case RunFinished(stop_reason=StopReason.AGENT_FINISHED):
            return "1" if record.final_answer is not None else "?"
        case RunFinished():
            return "?" if record.final_answer is not None else _ENDS.get(record.stop_reason, "?")
    return "?"


def _step_letter(record: StepCompleted) -> str:
    made, verdict = record.step, record.stop_reason
    if made.action is None and made.parse_ok:
        finished = verdict is StopReason.AGENT_FINISHED and record.final_answer is not None
        return "F" if finished and record.result_id is None else "?"
    if record.final_answer is not None:
        return "?"
    if made.action is not None and record.result_id is not None:
        return _ANNOUNCED.get((made.action_status or "", verdict), "?")
    if record.result_id is not None:
        return "?"
    if made.action is not None:
        return "U" if made.action_status == "not_executed" and verdict is None else "?"
    if made.parse_error is None:
        return "L" if verdict is StopReason.LLM_ERROR else "?"
    return {None: "I", StopReason.PARSE_FAILED_REPEATEDLY: "J"}.get(verdict, "?")


def _numbers_fit(told: Sequence[Record], at: int) -> bool:
    """Whether the numbers and names of one record are those that its place demands."""
    record, before = told[at], told[:at]
    due = sum(isinstance(each, StepCompleted) for each in before)
    intents = [each for each in before if isinstance(each, EffectIntended)]
    match record:
        case EffectIntended():
            same = [each for each in intents if (each.kind, each.step_idx) == (record.kind, due)]
            named = record.result_id == name_of(due, record.kind) and record.step_idx == due
            return named and record.attempt == len(same) + 1 and all(each.action == record.action for each in same)
        case EffectCompleted():
            return record.result_id == intents[-1].result_id
        case StepCompleted():
            action = intents[-1].action if record.result_id is not None else None
            named = record.result_id in (None, intents[-1].result_id)
            return (
                record.step.step_idx == due and named and (action is None or action.action_text == record.step.action)
            )
        case RunFinished(stop_reason=StopReason.AGENT_FINISHED):
            answered = before[-1]
            return isinstance(answered, StepCompleted) and answered.final_answer == record.final_answer
    return True


def verdicts() -> Iterable[StopReason | None]:
    return (None, *StopReason)
