"""Where a log stands, and how the run goes on. Pure.

====================================== =====================================================================
the log ends with                      the next move
====================================== =====================================================================
an end record `cancelled`              it is set aside; the record before it decides
any other end record                   none: the stored result is returned
the start, or a step without verdict   `NextIteration`
a step with a verdict                  `Finish` with that verdict, nothing is judged again
a model intent                         `CallModel` with the next attempt, if the policy recorded in the
                                       intent and the present one both say `SAFE`; else `Finish` with
                                       `resume_state_unknown`
a model result                         `ReadReply`: nothing has happened yet, it is parsed (again)
a model error result                   `RecordModelError`
an action intent                       `Execute` with the next attempt or `Finish`, as for a model intent
                                       (the present policy is the tool's; an action without a registered
                                       tool is `NEVER`)
an action result, or error result      `RecordAction`: the decision comes from the intent, not the parser
====================================== =====================================================================

A running loop takes the same moves; `resume` only enters it elsewhere. A log that no run can have written is
`CorruptRunLog` with one of a closed list of reasons, and is never repaired. Why:
`research-wiki/design/0001-intent-log.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyloop._recovery._identity import differences
from polyloop._recovery._moves import (
    CallModel,
    Execute,
    Finish,
    Move,
    NextIteration,
    ReadReply,
    RecordAction,
    RecordModelError,
    effect_id,
)
from polyloop._recovery._states import (
    ActionDone,
    ActionOpen,
    Ended,
    Judged,
    ModelDone,
    ModelOpen,
    Ready,
    State,
    follow,
)
from polyloop.types import EffectIntended, ReplayPolicy, RunLog, StopReason

__all__ = [
    "CallModel",
    "Execute",
    "Finish",
    "Move",
    "NextIteration",
    "ReadReply",
    "RecordAction",
    "RecordModelError",
    "differences",
    "effect_id",
    "next_move",
]


def next_move(log: RunLog, *, model_call_replay: ReplayPolicy, tool_replay: Mapping[str, ReplayPolicy]) -> Move | None:
    """How the run goes on; None for a run that has ended for good.

    Args:
        log: A log that is not empty.
        model_call_replay: The present policy for model calls.
        tool_replay: The present policy of each registered tool, by name.

    Raises:
        CorruptRunLog: if no run can have written this log.
    """
    state: State = Ready(steps=0)
    for record in log.records()[1:]:
        state = follow(state, record)
    match state:
        case Ready():
            return NextIteration()
        case ModelOpen(intent=intent):
            return CallModel(attempt=intent.attempt + 1) if _both_safe(intent, model_call_replay) else _unknown(intent)
        case ModelDone(result=result):
            return RecordModelError(result=result) if result.reply is None else ReadReply(reply=result.reply)
        case ActionOpen(intent=intent, action=action, reply=reply):
            present = ReplayPolicy.NEVER if action.tool_name is None else tool_replay.get(action.tool_name)
            if not _both_safe(intent, present):
                return _unknown(intent)
            return Execute(action=action, reply=reply, attempt=intent.attempt + 1)
        case ActionDone(action=action, reply=reply, result=result):
            return RecordAction(action=action, reply=reply, result=result, wall_ms=None)
        case Judged(stop_reason=stop_reason, final_answer=final_answer, evidence=evidence):
            return Finish(stop_reason=stop_reason, final_answer=final_answer, evidence=evidence)
        case Ended():
            return None


def _both_safe(intent: EffectIntended, present: ReplayPolicy | None) -> bool:
    return intent.replay is ReplayPolicy.SAFE and present is ReplayPolicy.SAFE


def _unknown(intent: EffectIntended) -> Finish:
    return Finish(stop_reason=StopReason.RESUME_STATE_UNKNOWN, final_answer=None, evidence=intent)
