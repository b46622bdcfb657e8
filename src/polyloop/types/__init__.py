"""Values, records, events and errors: everything that is stored, returned or raised.

The lowest layer: it imports nothing of `polyloop` and nothing from outside the standard library. Values are
frozen, slotted, keyword-only dataclasses that check themselves on construction (`InvalidRequest` names the
field); enums are `StrEnum`s whose literals are persisted. Fields are only ever added, with defaults.
"""

from __future__ import annotations

from polyloop.types._json import JSONValue
from polyloop.types.errors import (
    CorruptionReason,
    CorruptRunLog,
    EnvironmentFailure,
    IdentityDifference,
    InvalidRequest,
    PolyLoopError,
    RunAlreadyExists,
    RunConflict,
    RunIdentityMismatch,
    RunNotFound,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from polyloop.types.events import (
    ActionEnded,
    ActionStarted,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunClosed,
    RunOpened,
    StepEnded,
)
from polyloop.types.records import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunFinished,
    RunLog,
    RunStarted,
    StepCompleted,
)
from polyloop.types.steps import RunResult, Step, Usage
from polyloop.types.values import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    Budget,
    ChatMessage,
    EffectKind,
    InjectedEntry,
    ModelReply,
    PlannedAction,
    ReplayPolicy,
    Role,
    RunKey,
    StopReason,
    ToolDocsStyle,
)

__all__ = [
    "ActionEnded",
    "ActionKind",
    "ActionOutcome",
    "ActionStarted",
    "ActionStatus",
    "Budget",
    "ChatMessage",
    "CorruptRunLog",
    "CorruptionReason",
    "EffectCompleted",
    "EffectIntended",
    "EffectKind",
    "EnvironmentFailure",
    "Event",
    "IdentityDifference",
    "InjectedEntry",
    "InvalidRequest",
    "JSONValue",
    "ModelCallEnded",
    "ModelCallStarted",
    "ModelReply",
    "PlannedAction",
    "PolyLoopError",
    "Record",
    "ReplayPolicy",
    "Role",
    "RunAlreadyExists",
    "RunClosed",
    "RunConflict",
    "RunFinished",
    "RunIdentityMismatch",
    "RunKey",
    "RunLog",
    "RunNotFound",
    "RunOpened",
    "RunResult",
    "RunStarted",
    "Step",
    "StepCompleted",
    "StepEnded",
    "StopReason",
    "StoreBusy",
    "ToolDocsStyle",
    "UnsupportedSchemaVersion",
    "Usage",
]
