"""Steps, usage and results: what a run leaves behind for those who analyse it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from polyloop.types._checks import (
    check_bool,
    check_count,
    check_optional_str,
    check_run_key,
    check_str,
    check_type,
)
from polyloop.types._json import JSONValue
from polyloop.types.errors import InvalidRequest
from polyloop.types.values import RunKey, StopReason

SCHEMA_VERSION = "1.0"
"""The version of the persisted records that this library writes, `major.minor`."""

_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})", re.ASCII)


def check_version(field: str, value: object) -> None:
    """A schema version, `major.minor`."""
    check_str(field, value)
    if not (isinstance(value, str) and _VERSION.fullmatch(value)):
        raise InvalidRequest(field, "must be a version 'major.minor', such as '1.0'")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration of the loop, as a row of a trajectory. All fields are JSON primitives.

    The first thirteen are those that trajectories have always had; they keep their names and their order.

    ======================= ========= ================ ============ ======================
    field                   llm error invalid decision final answer action
    ======================= ========= ================ ============ ======================
    raw_output              ""        history text     history text history text
    action                  None      None             None         action text
    parse_ok                False     False            True         True
    parse_error             None      reason           None         None
    observation             ""        reason           ""           environment's, or the
                                                                    definition's own text
    observation_is_synthetic False    True             False        as the outcome says
    call_id                 None      reply's          reply's      reply's
    tool_name etc.          None      None             None         set
    ======================= ========= ================ ============ ======================
    """

    step_idx: int
    """Which step of the run, from 0."""
    raw_output: str
    """The text that entered the history. The parser may have cut it: it is not the model's original."""
    content_chars: int
    """Characters of the model's original reply."""
    thinking_chars: int
    """Characters of the model's original reasoning; 0 where there was none."""
    action: str | None
    """The action as the parser shows it, verbatim; None where the step has none."""
    parse_ok: bool
    """Whether the parser read a valid decision."""
    parse_error: str | None
    """The parser's reason where it did not; None otherwise, a failed model call included."""
    observation: str
    """What entered the history as the answer to this step; empty where nothing did."""
    observation_is_synthetic: bool
    """True where the observation was not produced by the environment."""
    observation_truncated_chars: int
    """How many characters the executor cut off; 0 for the definition's own texts."""
    prompt_chars: int
    """Characters of the prompt's messages, `sum(len(content))`."""
    call_id: str | None
    """The model call's id, to join a gateway's ledger by; None where there is none."""
    step_wall_ms: int
    """Milliseconds of the whole step, not of the model call, by a monotonic clock: from the start of the
    iteration in this process to the building of this record."""
    tool_name: str | None = None
    """The tool that was asked for; None for an action that is no tool call and for a step without action."""
    tool_arguments_json: str | None = None
    """Its arguments as ASCII JSON in the order given; None without a tool name, and where they are not JSON."""
    action_status: str | None = None
    """An `ActionStatus` literal; None for a step without action."""
    schema_version: str = SCHEMA_VERSION
    """The version of this record's schema, `major.minor`."""

    def __post_init__(self) -> None:
        check_count("Step.step_idx", self.step_idx)
        check_str("Step.raw_output", self.raw_output)
        check_count("Step.content_chars", self.content_chars)
        check_count("Step.thinking_chars", self.thinking_chars)
        check_optional_str("Step.action", self.action)
        check_bool("Step.parse_ok", self.parse_ok)
        check_optional_str("Step.parse_error", self.parse_error)
        check_str("Step.observation", self.observation)
        check_bool("Step.observation_is_synthetic", self.observation_is_synthetic)
        check_count("Step.observation_truncated_chars", self.observation_truncated_chars)
        check_count("Step.prompt_chars", self.prompt_chars)
        check_optional_str("Step.call_id", self.call_id)
        check_count("Step.step_wall_ms", self.step_wall_ms)
        check_optional_str("Step.tool_name", self.tool_name)
        check_optional_str("Step.tool_arguments_json", self.tool_arguments_json)
        check_optional_str("Step.action_status", self.action_status)
        if self.schema_version != SCHEMA_VERSION:
            check_version("Step.schema_version", self.schema_version)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run used, in what the library can count itself. All of it is derived from the log.

    Tokens and money are not here: join the gateway's ledger by `Step.call_id`.
    """

    model_calls: int
    """Distinct model calls announced; a replayed one counts once."""
    executed_actions: int
    """Actions that ended `EXECUTED`."""
    steps: int
    """Step records of every kind."""
    prompt_chars: int
    """Characters of prompts, summed over the steps."""
    content_chars: int
    """Characters of the model's original replies, summed over the steps."""
    thinking_chars: int
    """Characters of the model's original reasoning, summed over the steps."""

    def __post_init__(self) -> None:
        check_count("Usage.model_calls", self.model_calls)
        check_count("Usage.executed_actions", self.executed_actions)
        check_count("Usage.steps", self.steps)
        check_count("Usage.prompt_chars", self.prompt_chars)
        check_count("Usage.content_chars", self.content_chars)
        check_count("Usage.thinking_chars", self.thinking_chars)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run. Resuming the run again returns an equal one."""

    key: RunKey
    """The run's name, as the request gave it."""
    stop_reason: StopReason
    """Why the run stopped. Never `StopReason.CANCELLED`: a cancelled run raises `CancelledError` instead."""
    steps: tuple[Step, ...]
    """All steps of the run, in order, whichever process took them."""
    final_answer: str | None
    """The answer, with `agent_finished` only; otherwise None."""
    detail: str | None
    """What lies behind the stop reason: the recorded error (`llm_error`, an executor's exception), the executor's
    own words (`ENV_ERROR`), a fixed sentence for a missing completion signal, the open effect's kind, step and
    attempt (`resume_state_unknown`); otherwise None. A pure function of the log."""
    usage: Usage
    """What the run used, counted from its log: the same after any resume."""
    params_snapshot: Mapping[str, JSONValue]
    """What influenced the run, as its start record keeps it. A copy: changing it changes nothing."""
    event_sink_failures: int
    """How many events the sink failed to take, up to the building of the end record, summed over the processes
    whose end records are in the log. A crashed process's count is lost with it."""

    def __post_init__(self) -> None:
        check_run_key(self.key, "RunResult.key")
        check_type("RunResult.stop_reason", self.stop_reason, StopReason, "a StopReason")
        check_type("RunResult.steps", self.steps, tuple, "a tuple of Step")
        check_optional_str("RunResult.final_answer", self.final_answer)
        check_optional_str("RunResult.detail", self.detail)
        check_type("RunResult.usage", self.usage, Usage, "a Usage")
        check_type("RunResult.params_snapshot", self.params_snapshot, Mapping, "a mapping")
        check_count("RunResult.event_sink_failures", self.event_sink_failures)
