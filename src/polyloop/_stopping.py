"""When a run stops, and why. Pure; the order is a frozen public contract.

====  =====================================================================================================
A     budget admission: as many steps as `max_steps` → `step_budget`; as many executed actions as
      `max_executed_actions` → `action_budget`; both → `step_budget`
B     the prompt holds more than `max_prompt_chars` → `context_overflow`; no step, no intent
C     the model call raises → step → `llm_error`
D     `InvalidDecision` → step; at `max_consecutive_parse_failures` in a row → `parse_failed_repeatedly`,
      else back to A. Any valid decision sets the count to 0
E     `FinalAnswer` → step → `agent_finished`
F     the action is executed; its step is recorded whatever happened
G     `ENV_ERROR` → `env_error`; `NOT_EXECUTED` → A; `EXECUTED`: `completed` None → `env_error`, True →
      `task_completed`
H     back to A
====  =====================================================================================================

Budgets are settled at the start of the next iteration, not at the end of this one: a run that completes on
exactly its last step is completed. Why: `research-wiki/design/0009-order-of-judgement.md`.
"""

from __future__ import annotations

import dataclasses

from polyloop.types import (
    ActionStatus,
    Budget,
    EffectCompleted,
    EffectIntended,
    Step,
    StopReason,
    Usage,
)

NO_COMPLETION_SIGNAL = "the action was executed, but the environment's completion signal could not be obtained"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come, in what the budget limits."""

    steps: int
    executed_actions: int
    parse_failures_in_row: int


START = Progress(steps=0, executed_actions=0, parse_failures_in_row=0)


def advance(progress: Progress, step: Step) -> Progress:
    """Count one step. The one reduction: a live loop and a resumed one both count by it."""
    failures = progress.parse_failures_in_row
    if step.parse_ok:
        failures = 0
    elif step.parse_error is not None:
        failures += 1
    return Progress(
        steps=progress.steps + 1,
        executed_actions=progress.executed_actions + (step.action_status == ActionStatus.EXECUTED),
        parse_failures_in_row=failures,
    )


def admit(progress: Progress, budget: Budget) -> StopReason | None:
    """A: may another iteration begin?"""
    if progress.steps >= budget.max_steps:
        return StopReason.STEP_BUDGET
    if progress.executed_actions >= budget.max_executed_actions:
        return StopReason.ACTION_BUDGET
    return None


def overflow(prompt_chars: int, budget: Budget) -> StopReason | None:
    """B: may this prompt be sent?"""
    return StopReason.CONTEXT_OVERFLOW if prompt_chars > budget.max_prompt_chars else None


def judge(step: Step, completed: bool | None, progress: Progress, budget: Budget) -> StopReason | None:
    """C to G: the verdict of a step, None where the run goes on.

    Args:
        step: The step.
        completed: The completion signal of its outcome; counts for an executed action only.
        progress: The counts with this step included.
        budget: The limits.
    """
    if step.action is None:
        return _judge_without_action(step, progress, budget)
    if step.action_status == ActionStatus.ENV_ERROR:
        return StopReason.ENV_ERROR
    if step.action_status == ActionStatus.NOT_EXECUTED or completed is False:
        return None
    return StopReason.TASK_COMPLETED if completed else StopReason.ENV_ERROR


def _judge_without_action(step: Step, progress: Progress, budget: Budget) -> StopReason | None:
    if step.parse_ok:
        return StopReason.AGENT_FINISHED
    if step.parse_error is None:
        return StopReason.LLM_ERROR
    if progress.parse_failures_in_row >= budget.max_consecutive_parse_failures:
        return StopReason.PARSE_FAILED_REPEATEDLY
    return None


def explain(stop_reason: StopReason, evidence: EffectCompleted | EffectIntended | None) -> str | None:
    """`RunResult.detail`: what lies behind a stop reason, from the log alone.

    Args:
        stop_reason: Why the run stops.
        evidence: The result behind an error, the open intent behind `resume_state_unknown`.
    """
    if isinstance(evidence, EffectIntended):
        return (
            f"the {evidence.kind.value.replace('_', ' ')} of step {evidence.step_idx}, attempt {evidence.attempt}, "
            "was announced and has no recorded result: it may have happened, and is not declared safe to repeat"
        )
    if evidence is None or stop_reason not in (StopReason.LLM_ERROR, StopReason.ENV_ERROR):
        return None
    if evidence.outcome is None:
        return evidence.error
    if evidence.outcome.status is ActionStatus.ENV_ERROR:
        return evidence.outcome.observation
    return NO_COMPLETION_SIGNAL


def usage_of(steps: tuple[Step, ...], model_calls: int) -> Usage:
    """What a run used, from its steps and the number of distinct model calls it announced."""
    return Usage(
        model_calls=model_calls,
        executed_actions=sum(step.action_status == ActionStatus.EXECUTED for step in steps),
        steps=len(steps),
        prompt_chars=sum(step.prompt_chars for step in steps),
        content_chars=sum(step.content_chars for step in steps),
        thinking_chars=sum(step.thinking_chars for step in steps),
    )
