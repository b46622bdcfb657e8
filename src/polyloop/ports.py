"""The five ports: what a project brings to the loop, and what crosses each seam.

A port is a `typing.Protocol`: any object with these members satisfies it, and none needs to inherit. (Do not
inherit: a frozen dataclass that inherits a Protocol with properties passes type checkers and fails when it is
built.) A port's docstring is its contract; `tests/contract/` holds a case for each of its sentences. Why the
seams run here: `research-wiki/design/0005-behaviour-of-the-seams.md`.

What holds for every port:

- It is awaited from one task of the run. A definition's ports serve many runs at once; nothing that they keep
  may leak from one run into another. No port blocks the event loop, which other runs share.
- `CancelledError` must pass through it. A port that swallows a cancellation cannot make the run go on: what it
  returned is recorded, and no further port is called.
- Only `Exception` is ever translated into a stop reason. Any other `BaseException` passes with nothing written.
- `params` is plain JSON, holds no secrets, and is the same every time while the object lives: it is stored with
  each run, compared on resume, and shown in error messages. Two objects built alike have equal `params`, or no
  other process could resume a run. No secret stands in a port's `repr` either, nor in the text of an exception
  that leaves it or of that one's causes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol, TypeAlias

from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ChatMessage,
    EffectCompleted,
    EffectIntended,
    Event,
    InvalidRequest,
    JSONValue,
    ModelReply,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)

__all__ = [
    "Action",
    "ActionDecision",
    "ActionExecutor",
    "Decision",
    "DecisionParser",
    "EventSink",
    "FinalAnswer",
    "InvalidDecision",
    "ModelCall",
    "ModelPort",
    "ParsedReply",
    "RunStore",
]


def _check_str(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be a string, got {type(value).__name__}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of the model, as the driver asks for it."""

    messages: tuple[ChatMessage, ...]
    """The whole prompt. Each prompt of a run is the one before it plus a tail."""
    call_index: int
    """Which model call of the run, from 0. A replayed call has the index of the one that it replays."""
    key: RunKey
    """The run."""
    result_id: str
    """The effect's name within the run. With `key` it makes an idempotency key: a replay has the same."""
    binding: Mapping[str, str]
    """`RunRequest.model_binding`, passed through: a copy of the port's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action, as the driver asks for it."""

    action_text: str
    """The action as the trajectory shows it; for `ActionKind.TEXT` it is what is to be executed."""
    tool_name: str | None
    """The tool to call; None for an action that is no tool call."""
    arguments: Mapping[str, JSONValue]
    """The arguments as plain JSON: a copy of the executor's own."""
    key: RunKey
    """The run."""
    step_idx: int
    """The step, from 0."""
    result_id: str
    """The effect's name within the run. With `key` it makes an idempotency key: a replay has the same."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionDecision:
    """The model wants to act."""

    action_text: str
    """What the trajectory's `action` column shows, verbatim."""
    tool_name: str | None
    """The tool to call; None for an action that is no tool call."""
    arguments: Mapping[str, JSONValue]
    """The arguments. The driver judges their contents: what is not JSON is a `NOT_EXECUTED` step."""

    def __post_init__(self) -> None:
        _check_str("ActionDecision.action_text", self.action_text)
        if self.tool_name is not None:
            _check_str("ActionDecision.tool_name", self.tool_name)
        if not isinstance(self.arguments, Mapping):
            found = type(self.arguments).__name__
            raise InvalidRequest("ActionDecision.arguments", f"must be a mapping, got {found}; give {{}} for none")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """The model is done: the run ends with `agent_finished`."""

    text: str
    """The answer; becomes `RunResult.final_answer`."""

    def __post_init__(self) -> None:
        _check_str("FinalAnswer.text", self.text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InvalidDecision:
    """The reply cannot be read as a decision. An everyday event, not an error."""

    reason: str
    """What the model reads as this step's observation: the remedy for this very failure, not a fixed text."""

    def __post_init__(self) -> None:
        _check_str("InvalidDecision.reason", self.reason)


Decision: TypeAlias = ActionDecision | FinalAnswer | InvalidDecision
"""What a parser reads in a reply. One decision holds one action."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply as the parser read it."""

    history_text: str
    """What enters the history as the assistant's message: the reply, or the part of it that counts."""
    decision: Decision
    """What the reply wants: an action, the end, or nothing that can be read."""

    def __post_init__(self) -> None:
        _check_str("ParsedReply.history_text", self.history_text)
        if not isinstance(self.decision, ActionDecision | FinalAnswer | InvalidDecision):
            raise InvalidRequest(
                "ParsedReply.decision",
                f"must be an ActionDecision, FinalAnswer or InvalidDecision, got {type(self.decision).__name__}",
            )


class ModelPort(Protocol):
    """Calls a model. On the definition; serves many runs at once.

    The driver awaits `call` once a step, after the call's intent is durable. A call that was interrupted is
    repeated with the same `result_id` only where both the recorded and the present `model_call_replay` say
    `SAFE`.

    Retries, backoff and quotas belong behind this port (in a gateway), not in its signature.

    The library does not promise that `call` runs in the caller's task, and gives it no time limit.
    """

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """Everything that shapes the replies: model name, temperature, … Plain JSON, without secrets."""
        ...

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Ask the model once.

        Returns:
            A `ModelReply`; anything else counts as an error. An empty text is a legal reply.

        Raises:
            Exception: any exception is a failed call: its type and message are recorded, cut at 2,000
                characters, and the run stops with `llm_error`. It must hold no secrets.
        """
        ...


class DecisionParser(Protocol):
    """Reads a decision in a reply. On the definition; serves many runs at once.

    The library brings no parser of its own: a parser is the language of the actions. Parsing has no effect
    outside: after a crash, a reply without an intent behind it is parsed again. The same reply is read the same
    way every time, whatever was read before it.
    """

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """Everything that shapes the decisions. Plain JSON, without secrets."""
        ...

    @property
    def produces(self) -> ActionKind:
        """The kind of action that the decisions hold. It must be the executor's `accepts`."""
        ...

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        """Read one reply. Returns for any input: an unreadable reply is an `InvalidDecision`.

        It does not raise. If it does, or returns something else than a `ParsedReply` (`TypeError`), that is a
        bug in the parser: the exception passes untouched out of `run`, no stop reason is invented, no end
        record is written, and the run can be resumed once the parser is mended.
        """
        ...


class ActionExecutor(Protocol):
    """Executes actions in an environment. On the request: one environment, one run.

    =============== ===================================================================================
    status          when
    =============== ===================================================================================
    `EXECUTED`      the action really ran in the environment, whatever came of it: an action that
                    raises, exits non-zero or is bad SQL is a normal observation, fed back verbatim
    `NOT_EXECUTED`  the action never got to run: unknown tool, invalid arguments, refused. The run
                    goes on, whatever `completed` says
    `ENV_ERROR`     the environment itself can serve no more: unreachable, protocol broken, the
                    completion signal itself failed. The run always stops with `env_error`
    =============== ===================================================================================

    The dividing line is whether the environment can go on serving. For `NOT_EXECUTED` and `ENV_ERROR` the
    model reads the definition's own text for that status; the executor's goes to the result record and the
    event only.

    When a cancellation has passed through `execute`, the action has stopped: nothing of it goes on in the
    background.
    """

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """Everything that shapes the observations. Plain JSON, without secrets."""
        ...

    @property
    def accepts(self) -> ActionKind:
        """The kind of action that it executes. It must be the parser's `produces`."""
        ...

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        """The tools that it dispatches to, each `{name, description, parameters}`; empty where there are none.

        It must equal `request.tools.schemas`, order included: what the model is shown is what is dispatched.
        """
        ...

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Execute one action, after its intent is durable.

        Returns:
            An `ActionOutcome`. `completed=None` on an `EXECUTED` action says that the completion signal could
            not be had, and stops the run with `env_error`, the real observation kept. Anything that is no
            `ActionOutcome` counts as an error.

        Raises:
            Exception: the safety net, not the channel: it stops the run with `env_error`, its type and
                message recorded, cut at 2,000 characters.
        """
        ...


class RunStore(Protocol):
    """Keeps the logs of runs. On the definition; six methods, all keyed, no implicit current run.

    *Barriers and ordered appends.* `append_run_start`, `append_intent` and `finish` are **barriers**: they
    return only when this record and everything before it in this run is durable. `append_result` and
    `append_step` are **ordered**: they may return as soon as the record's place is fixed; it becomes durable no
    later than the run's next barrier, and is handed to the medium within 100 ms even if no barrier comes. Leaving
    a store that is an async context manager makes ordered records durable too.

    *Position.* A record is taken at the run's next position (`seq`) and at no other. A `seq` that is not the
    next position, a first record that is no `RunStarted`, and any append after an end record other than
    `cancelled` is `RunConflict`, and nothing is written. `append_run_start` of a key that has any record is
    `RunAlreadyExists`. A store checks no more than that: whether records fit together is not its business.
    Across processes, comparing and appending is one atomic act.

    *What survives.* A prefix of what was written, holding everything that a barrier acknowledged. A record is
    wholly there or not at all, for readers and after a crash.

    *What comes back.* Records deeply equal to those written: every string that Python can hold (NUL, lone
    surrogates, a surrogate pair held as two characters, U+2028, megabytes), numbers by value and type, the
    order of keys in mappings; mappings as plain dicts, sequences as lists. What is handed in and what is handed
    out is shared with nobody: changing either later changes no record. Any key within `RunKey`'s rules is a run
    of its own, down to the code point.

    *Reads* see the object's own ordered appends. `read_log` of a damaged log raises `CorruptRunLog`; a torn,
    never acknowledged tail is not damage and is dropped.

    *Failures.* A store's own exceptions pass through unchanged and end the run at once. A failure or refusal
    surfaces at that call, or at the next call for that key, as itself; of ordered records that wait to be written
    with what follows, at the next barrier at the latest. It blocks the key for this store object until the next
    `read_log` of the key, which reads the medium afresh. A blocked key refuses every append, after a refusal with
    `RunConflict`; other keys and other store objects are not concerned. A record whose append failed is either
    wholly in the log that this read finds, or not at all.

    *Cancellation.* A cancelled call is wholly written or wholly not, as the next `read_log` of the key finds it,
    and the object stays usable. Other calls that are under way are not concerned.

    *Concurrency.* Usable from several tasks of one event loop at once; runs do not see each other.

    The driver awaits one call at a time for a run, and none for a run after one of its calls failed.
    """

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        """Write a run's first record. Barrier.

        Raises:
            RunAlreadyExists: the key has a record.
            RunConflict: `record.seq` is not 0.
        """
        ...

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        """Announce an effect. Barrier: the effect may begin when this has returned.

        Raises:
            RunConflict: `record.seq` is not the run's next position, or the run has ended.
        """
        ...

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        """Write what came of an effect. Ordered.

        Raises:
            RunConflict: as for `append_intent`; it may surface at the next call for the key instead.
        """
        ...

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        """Write a step. Ordered.

        Raises:
            RunConflict: as for `append_result`.
        """
        ...

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        """Write an end record. Barrier. After one that is `cancelled` the run may go on.

        Raises:
            RunConflict: as for `append_intent`.
        """
        ...

    async def read_log(self, key: RunKey, /) -> RunLog:
        """Read a run's log from the medium. An unknown key is an empty log, never an exception.

        Raises:
            CorruptRunLog: the stored log is damaged.
            UnsupportedSchemaVersion: a newer library wrote it.
        """
        ...


class EventSink(Protocol):
    """Is told what happens. On the definition; serves many runs at once.

    The driver awaits `emit` in the order of the events, without a limit of time: a sink that may be slow bounds
    itself. A failing sink never interrupts a run: the exception is caught, logged with a traceback that shows
    no values, and counted in `RunResult.event_sink_failures`; the event is not emitted again. `CancelledError`
    is not a failure: it passes, and cancels the run. Delivery is not guaranteed, and nothing may be built on it:
    audits read the log.

    A sink may call back into the same definition, for another key.
    """

    async def emit(self, event: Event, /) -> None:
        """Take one event. What it holds is a copy of the sink's own; unknown kinds are to be ignored."""
        ...
