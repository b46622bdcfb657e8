"""The step record for each way in which an iteration can end. Pure; the table is in `polyloop.types.Step`."""

from __future__ import annotations

from collections.abc import Mapping

from polyloop.ports import FinalAnswer, InvalidDecision
from polyloop.types import ActionOutcome, ActionStatus, ModelReply, PlannedAction, Step
from polyloop.types._json import ascii_json


def model_error_step(step_idx: int, prompt_chars: int, wall_ms: int) -> Step:
    """The model call failed: there is no reply."""
    return Step(
        step_idx=step_idx,
        raw_output="",
        content_chars=0,
        thinking_chars=0,
        action=None,
        parse_ok=False,
        parse_error=None,
        observation="",
        observation_is_synthetic=False,
        observation_truncated_chars=0,
        prompt_chars=prompt_chars,
        call_id=None,
        step_wall_ms=wall_ms,
    )


def decision_step(
    step_idx: int,
    prompt_chars: int,
    wall_ms: int,
    *,
    reply: ModelReply,
    history_text: str,
    decision: InvalidDecision | FinalAnswer,
) -> Step:
    """The reply held no action."""
    reason = decision.reason if isinstance(decision, InvalidDecision) else None
    return Step(
        step_idx=step_idx,
        raw_output=history_text,
        content_chars=len(reply.text),
        thinking_chars=len(reply.reasoning or ""),
        action=None,
        parse_ok=reason is None,
        parse_error=reason,
        observation=reason or "",
        observation_is_synthetic=reason is not None,
        observation_truncated_chars=0,
        prompt_chars=prompt_chars,
        call_id=reply.call_id,
        step_wall_ms=wall_ms,
    )


def action_step(
    step_idx: int,
    prompt_chars: int,
    wall_ms: int,
    *,
    reply: ModelReply,
    action: PlannedAction,
    outcome: ActionOutcome | None,
    synthetic_observations: Mapping[ActionStatus, str],
) -> Step:
    """An action has its outcome; None for an exception that escaped from the executor."""
    status = ActionStatus.ENV_ERROR if outcome is None else outcome.status
    real = outcome if status is ActionStatus.EXECUTED else None
    return Step(
        step_idx=step_idx,
        raw_output=action.history_text,
        content_chars=len(reply.text),
        thinking_chars=len(reply.reasoning or ""),
        action=action.action_text,
        parse_ok=True,
        parse_error=None,
        # What the model reads must be in the snapshot: an executor's words for a refusal are not.
        observation=synthetic_observations[status] if real is None else real.observation,
        observation_is_synthetic=True if real is None else real.observation_is_synthetic,
        observation_truncated_chars=0 if real is None else real.truncated_chars,
        prompt_chars=prompt_chars,
        call_id=reply.call_id,
        step_wall_ms=wall_ms,
        tool_name=action.tool_name,
        tool_arguments_json=None if action.tool_name is None else ascii_json(action.arguments),
        action_status=status.value,
    )


def unannounced_step(
    step_idx: int,
    prompt_chars: int,
    wall_ms: int,
    *,
    reply: ModelReply,
    history_text: str,
    action_text: str,
    tool_name: str | None,
    observation: str,
) -> Step:
    """An action whose arguments are not JSON: it cannot be announced, so it is not executed."""
    return Step(
        step_idx=step_idx,
        raw_output=history_text,
        content_chars=len(reply.text),
        thinking_chars=len(reply.reasoning or ""),
        action=action_text,
        parse_ok=True,
        parse_error=None,
        observation=observation,
        observation_is_synthetic=True,
        observation_truncated_chars=0,
        prompt_chars=prompt_chars,
        call_id=reply.call_id,
        step_wall_ms=wall_ms,
        tool_name=tool_name,
        tool_arguments_json=None,
        action_status=ActionStatus.NOT_EXECUTED.value,
    )
