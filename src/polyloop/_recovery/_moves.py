"""What a run can do next. Each move holds just what it needs. Pure."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    EffectKind,
    ModelReply,
    PlannedAction,
    StopReason,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NextIteration:
    """Judge A and B, then call the model."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallModel:
    """Announce the model call of this step, and make it."""

    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """Parse the reply of this step."""

    reply: ModelReply


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordModelError:
    """Record the step of a model call that failed."""

    result: EffectCompleted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """Announce the action of this step, and execute it."""

    action: PlannedAction
    reply: ModelReply
    attempt: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordAction:
    """Record the step of an action that has its result."""

    action: PlannedAction
    reply: ModelReply
    result: EffectCompleted
    wall_ms: int | None
    """How long the execution took; None where an earlier process executed it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Write the end record."""

    stop_reason: StopReason
    final_answer: str | None
    evidence: EffectCompleted | EffectIntended | None
    """What `detail` is made from."""


Move: TypeAlias = NextIteration | CallModel | ReadReply | RecordModelError | Execute | RecordAction | Finish


def effect_id(step_idx: int, kind: EffectKind) -> str:
    """The name of a step's model call or action; the same on every attempt."""
    return f"{step_idx:06d}-{kind.value}"
