"""What an event sink is told. Events are droppable and are no persistent schema: audits read the log.

The order within one run is fixed: `RunOpened`, then for each step `ModelCallStarted`, `ModelCallEnded`,
`ActionStarted`, `ActionEnded`, `StepEnded` (those that apply), then `RunClosed`. A `…Started` comes before
its intent is written, an `…Ended` after the record that it tells of. A cancelled run, and one that ends with
an exception, emits nothing more; returning a stored result emits nothing at all. Why:
`research-wiki/design/0003-events.md`.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from polyloop.types.steps import Step, Usage
from polyloop.types.values import ActionOutcome, ModelReply, PlannedAction, RunKey, StopReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOpened:
    """The start record is written; on resume: the log was read and accepted."""

    key: RunKey
    """The run that this is about."""
    resumed: bool
    """False for `run`, True for `resume`."""
    steps: int
    """How many steps the log holds already."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted:
    """A model call is about to be announced in the log."""

    key: RunKey
    """The run that this is about."""
    step_idx: int
    """The step that it belongs to, from 0."""
    result_id: str
    """The effect's name within the run; a replay has the same."""
    attempt: int
    """Which attempt at this call, from 1."""
    prompt_chars: int
    """Characters of the prompt's messages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallEnded:
    """A model call's result has been handed to the store. Exactly one of `reply` and `error` is set."""

    key: RunKey
    """The run that this is about."""
    step_idx: int
    """The step that it belongs to, from 0."""
    result_id: str
    """The effect's name within the run; a replay has the same."""
    reply: ModelReply | None
    """The model's reply; None where the call raised."""
    error: str | None
    """The exception's type and message, cut at 2,000 characters."""
    wall_ms: int
    """Milliseconds of the call itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionStarted:
    """An action is about to be announced in the log."""

    key: RunKey
    """The run that this is about."""
    step_idx: int
    """The step that it belongs to, from 0."""
    result_id: str
    """The effect's name within the run; a replay has the same."""
    attempt: int
    """Which attempt at this action, from 1."""
    action: PlannedAction
    """A copy of what will be executed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionEnded:
    """An action's result and its step have been handed to the store. Exactly one of `outcome` and `error` is set."""

    key: RunKey
    """The run that this is about."""
    step_idx: int
    """The step that it belongs to, from 0."""
    result_id: str
    """The effect's name within the run; a replay has the same."""
    outcome: ActionOutcome | None
    """The executor's outcome verbatim, also where its observation did not enter the history."""
    error: str | None
    """The exception that escaped from the executor: type and message, cut at 2,000 characters."""
    wall_ms: int
    """Milliseconds of the execution itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """A step record has been handed to the store."""

    key: RunKey
    """The run that this is about."""
    step: Step
    """The step, as it stands in the log."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunClosed:
    """The end record is durable."""

    key: RunKey
    """The run that this is about."""
    stop_reason: StopReason
    """Why the run stopped; never `cancelled`, for a cancelled run emits nothing more."""
    usage: Usage
    """What the whole run used, earlier processes included."""


Event: TypeAlias = RunOpened | ModelCallStarted | ModelCallEnded | ActionStarted | ActionEnded | StepEnded | RunClosed
"""Any event. More kinds may be added: a sink ignores those that it does not know."""
