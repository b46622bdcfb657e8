"""Messages, budgets, policies, and what the ports return that the log keeps."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Literal, NewType, TypeAlias

from polyloop.types._checks import (
    check_bool,
    check_count,
    check_name,
    check_optional_str,
    check_positive,
    check_str,
    check_type,
)
from polyloop.types._json import JSONValue
from polyloop.types.errors import InvalidRequest

RunKey = NewType("RunKey", str)
"""The name of a run: opaque to the library, which never parses it.

Any non-empty string without NUL or lone surrogates, of at most 1,024 characters; anything else is
`InvalidRequest`. Keys that differ in any code point are different runs in every store.
"""

Role: TypeAlias = Literal["system", "user", "assistant"]
"""Who speaks in a `ChatMessage`."""

_ROLES = frozenset(("system", "user", "assistant"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a prompt."""

    role: Role
    """`system`, `user` or `assistant`."""
    content: str
    """The text; any string that Python can hold, the empty one included."""

    def __post_init__(self) -> None:
        if not (isinstance(self.role, str) and self.role in _ROLES):
            raise InvalidRequest("ChatMessage.role", "must be 'system', 'user' or 'assistant'")
        if not isinstance(self.content, str):
            check_str("ChatMessage.content", self.content)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InjectedEntry:
    """One injected item (a skill, a memory), already rendered by the project."""

    entry_id: str
    """The project's name for the item; not empty. It stands in the snapshot, never in the prompt."""
    message: ChatMessage
    """What the model reads."""

    def __post_init__(self) -> None:
        check_name("InjectedEntry.entry_id", self.entry_id)
        check_type("InjectedEntry.message", self.message, ChatMessage, "a ChatMessage")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The four limits of a run. All are required and positive; a limit is part of a run's identity."""

    max_steps: int
    """How many step records of any kind the run may hold. The run that completes on its last step is completed."""
    max_executed_actions: int
    """How many actions may end `EXECUTED`; refused ones do not count."""
    max_prompt_chars: int
    """How many characters the prompt's messages may hold in all: `sum(len(content))`, not tokens."""
    max_consecutive_parse_failures: int
    """At how many invalid decisions in a row the run stops; any valid decision resets the count."""

    def __post_init__(self) -> None:
        check_positive("Budget.max_steps", self.max_steps)
        check_positive("Budget.max_executed_actions", self.max_executed_actions)
        check_positive("Budget.max_prompt_chars", self.max_prompt_chars)
        check_positive("Budget.max_consecutive_parse_failures", self.max_consecutive_parse_failures)


class ReplayPolicy(enum.StrEnum):
    """Whether an effect that was announced, and whose result is unknown, may be done again."""

    NEVER = "never"
    """It may have happened: never again. The run then ends with `resume_state_unknown`."""
    SAFE = "safe"
    """Doing it twice does no harm."""


class ActionKind(enum.StrEnum):
    """What passes from a parser to an executor. The two must agree, or nothing starts."""

    TEXT = "text"
    """`action_text` is what is executed: a piece of code, a command."""
    TOOL_CALL = "tool_call"
    """`tool_name` and `arguments` are what is executed."""


class ToolDocsStyle(enum.StrEnum):
    """How the tools of a request are described to the model."""

    NONE = "none"
    """Not at all: the prompt is the same as without tools."""
    JSON_SCHEMA = "json_schema"
    """One line of JSON a tool: name, description, parameters."""
    MARKDOWN = "markdown"
    """A section a tool, its schema in a fenced block."""


class EffectKind(enum.StrEnum):
    """The two kinds of side effect that the log announces."""

    MODEL_CALL = "model_call"
    """`ModelPort.call`."""
    ACTION = "action"
    """`ActionExecutor.execute`."""


class ActionStatus(enum.StrEnum):
    """What became of an action. The line runs where the environment can no longer go on serving."""

    EXECUTED = "executed"
    """It really ran in the environment, whatever came of it. Bad SQL is an observation, not a failure."""
    NOT_EXECUTED = "not_executed"
    """It never got to run: unknown tool, invalid arguments, refused. The run goes on."""
    ENV_ERROR = "env_error"
    """The environment can serve no more. The run always stops with `StopReason.ENV_ERROR`."""


class StopReason(enum.StrEnum):
    """Why a run stopped. The literals are frozen.

    More values may be added one day: code that matches on them must have a branch for those that it does
    not know.
    """

    TASK_COMPLETED = "task_completed"
    """An executed action reported `completed=True`."""
    AGENT_FINISHED = "agent_finished"
    """The parser read a final answer."""
    STEP_BUDGET = "step_budget"
    """`max_steps` step records, and another would have to start. Named before `action_budget` where both are spent."""
    ACTION_BUDGET = "action_budget"
    """`max_executed_actions` executed actions, and another step would have to start."""
    PARSE_FAILED_REPEATEDLY = "parse_failed_repeatedly"
    """`max_consecutive_parse_failures` invalid decisions in a row."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The next prompt would hold more than `max_prompt_chars`; the model was not called."""
    ENV_ERROR = "env_error"
    """The environment failed, the completion signal could not be had, or the executor raised."""
    LLM_ERROR = "llm_error"
    """The model call raised."""
    CANCELLED = "cancelled"
    """Stands in end records alone: a returned result never has it, and the run can be resumed."""
    RESUME_STATE_UNKNOWN = "resume_state_unknown"
    """The log ends inside an effect that may have happened and must not be repeated."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What a model call returned."""

    call_id: str | None
    """The gateway's name for the call, to join its ledger by; None where it has none, never an empty string."""
    text: str
    """The reply itself; may be empty."""
    reasoning: str | None
    """The reasoning text that came beside the reply; None where there is none."""

    def __post_init__(self) -> None:
        check_optional_str("ModelReply.call_id", self.call_id)
        if self.call_id == "":
            raise InvalidRequest("ModelReply.call_id", "must not be empty; give None where the call has no id")
        check_str("ModelReply.text", self.text)
        check_optional_str("ModelReply.reasoning", self.reasoning)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcome:
    """What an executor says of an action."""

    status: ActionStatus
    """What became of the action; decides whether the observation enters the history."""
    observation: str
    """What the environment answered, verbatim. For `NOT_EXECUTED` and `ENV_ERROR` it goes to the result record
    and the event only: the model then reads the definition's own text for that status."""
    completed: bool | None
    """Whether the environment says that the task is done. None: the signal could not be had, which stops the run
    with `env_error`. It counts for `EXECUTED` only."""
    truncated_chars: int = 0
    """How many characters of the observation the executor cut off."""
    observation_is_synthetic: bool = False
    """True where an `EXECUTED` observation was written by the executor, not by the environment."""

    def __post_init__(self) -> None:
        check_type("ActionOutcome.status", self.status, ActionStatus, "an ActionStatus")
        check_str("ActionOutcome.observation", self.observation)
        if self.completed is not None:
            check_bool("ActionOutcome.completed", self.completed)
        check_count("ActionOutcome.truncated_chars", self.truncated_chars)
        check_bool("ActionOutcome.observation_is_synthetic", self.observation_is_synthetic)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """An action as its intent announces it: everything needed to go on without asking the parser again."""

    action_text: str
    """What the trajectory's `action` column shows, verbatim."""
    tool_name: str | None
    """The tool to call; None for an action that is no tool call."""
    arguments: Mapping[str, JSONValue]
    """The arguments as plain JSON; empty where there are none."""
    history_text: str
    """What enters the history as the assistant's message."""

    def __post_init__(self) -> None:
        check_str("PlannedAction.action_text", self.action_text)
        check_optional_str("PlannedAction.tool_name", self.tool_name)
        check_type("PlannedAction.arguments", self.arguments, Mapping, "a mapping")
        check_str("PlannedAction.history_text", self.history_text)
