"""Fakes of the ports, shared by all tests. Each passes the contract suite of its port.

The model and the executor follow a script; the parser reads a language that is easy to write in a script::

    act: print(1)                        an action, `ActionKind.TEXT`
    call: search {"query": "x"}          an action, `ActionKind.TOOL_CALL`
    final: 42                            the final answer
    anything else                        an invalid decision

A script is a sequence or a function. Its items say what happens: a string or a finished value is returned, an
exception is raised, `HANG` waits until it is cancelled, and a function is called (and awaited, if it is async)
and gives one of these.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar, cast

from polyloop.ports import (
    Action,
    ActionDecision,
    ActionExecutor,
    Decision,
    DecisionParser,
    EventSink,
    FinalAnswer,
    InvalidDecision,
    ModelCall,
    ModelPort,
    ParsedReply,
)
from polyloop.types import ActionKind, ActionOutcome, ActionStatus, Event, JSONValue, ModelReply

AskedT = TypeVar("AskedT")
GivenT = TypeVar("GivenT")


class Hang:
    """The item of a script that waits until it is cancelled."""


HANG: Final = Hang()

ModelItem: TypeAlias = "str | ModelReply | BaseException | Hang | Callable[[ModelCall], object]"
ExecutorItem: TypeAlias = "str | ActionOutcome | BaseException | Hang | Callable[[Action], object]"


class _Script(Generic[AskedT, GivenT]):
    """Plays one item: raises, hangs, calls, or gives what the item says."""

    def __init__(self, finished: Callable[[AskedT, str], GivenT]) -> None:
        self._finished = finished

    async def play(self, item: object, asked: AskedT) -> GivenT:
        while callable(item):
            item = item(asked)
            if inspect.isawaitable(item):
                item = await item
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Hang):
            await asyncio.Event().wait()
        if isinstance(item, str):
            return self._finished(asked, item)
        # Anything else is returned as it is, so that a script can also play a port that returns nonsense.
        return cast("GivenT", item)


def numbered_reply(call: ModelCall, text: str) -> ModelReply:
    """A reply whose `call_id` tells which call of the run it answers."""
    return ModelReply(call_id=f"call-{call.call_index}", text=text, reasoning=None)


class ScriptedModel:
    """Answers call number n of every run with item n of the script.

    It keeps no position of its own, so it serves any number of runs, and a replayed call gets the same answer.
    """

    def __init__(
        self,
        script: Sequence[ModelItem] | Callable[[ModelCall], object],
        *,
        params: Mapping[str, JSONValue] | None = None,
    ) -> None:
        self._script = script
        self._player = _Script[ModelCall, ModelReply](numbered_reply)
        self.params: Mapping[str, JSONValue] = {"model": "scripted"} if params is None else params
        self.calls: list[ModelCall] = []

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Play the item of this call."""
        self.calls.append(call)
        item = self._script if callable(self._script) else self._script[call.call_index]
        return await self._player.play(item, call)


def act(text: str) -> str:
    """A reply that `ScriptedParser` reads as an action of text."""
    return f"act: {text}"


def tool_call(name: str, /, **arguments: JSONValue) -> str:
    """A reply that `ScriptedParser` reads as a tool call."""
    return f"call: {name} {json.dumps(arguments)}"


def final(text: str) -> str:
    """A reply that `ScriptedParser` reads as the final answer."""
    return f"final: {text}"


class ScriptedParser:
    """Reads the language above; `rules` says for single texts what else they are, or which exception they raise."""

    def __init__(
        self,
        *,
        produces: ActionKind = ActionKind.TEXT,
        rules: Mapping[str, Decision | BaseException] | None = None,
        params: Mapping[str, JSONValue] | None = None,
    ) -> None:
        self.produces = produces
        self.params: Mapping[str, JSONValue] = {"language": "scripted"} if params is None else params
        self._rules = {} if rules is None else rules
        self.parsed: list[ModelReply] = []

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        """Read one reply."""
        self.parsed.append(reply)
        decision = self._rules[reply.text] if reply.text in self._rules else self._read(reply.text)
        if isinstance(decision, BaseException):
            raise decision
        return ParsedReply(history_text=reply.text, decision=decision)

    def _read(self, text: str) -> Decision:
        verb, found, rest = text.partition(": ")
        if found and verb == "final":
            return FinalAnswer(text=rest)
        if found and verb == "act" and self.produces is ActionKind.TEXT:
            return ActionDecision(action_text=rest, tool_name=None, arguments={})
        if found and verb == "call" and self.produces is ActionKind.TOOL_CALL:
            return self._read_call(rest)
        shown = ascii(text if len(text) <= 40 else text[:40])
        return InvalidDecision(reason=f"{shown} is no decision; begin with 'final: ' or with the word for an action")

    def _read_call(self, rest: str) -> Decision:
        name, _, written = rest.partition(" ")
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError) as error:
            return InvalidDecision(reason=f"the arguments are no JSON: {type(error).__name__}")
        if not isinstance(arguments, dict):
            return InvalidDecision(reason=f"the arguments must be an object, not a {type(arguments).__name__}")
        return ActionDecision(action_text=rest, tool_name=name, arguments=arguments)


def executed(observation: str, *, completed: bool | None = False) -> ActionOutcome:
    """The outcome of an action that ran."""
    return ActionOutcome(status=ActionStatus.EXECUTED, observation=observation, completed=completed)


def not_executed(observation: str) -> ActionOutcome:
    """The outcome of an action that never got to run."""
    return ActionOutcome(status=ActionStatus.NOT_EXECUTED, observation=observation, completed=False)


def env_error(observation: str) -> ActionOutcome:
    """The outcome of an action whose environment is gone."""
    return ActionOutcome(status=ActionStatus.ENV_ERROR, observation=observation, completed=False)


def echo(action: Action) -> str:
    """The observation of an executor without a script."""
    return f"did {action.action_text}"


class ScriptedExecutor:
    """Executes the n-th action that it is given with item n of the script; without a script it echoes.

    A resumed run brings a new executor: give that one a script which begins where the run goes on, or a
    function, which needs no position.
    """

    def __init__(
        self,
        script: Sequence[ExecutorItem] | Callable[[Action], object] = echo,
        *,
        accepts: ActionKind = ActionKind.TEXT,
        tool_schemas: tuple[Mapping[str, JSONValue], ...] = (),
        params: Mapping[str, JSONValue] | None = None,
    ) -> None:
        self._script = script
        self._player = _Script[Action, ActionOutcome](lambda _, text: executed(text))
        self.accepts = accepts
        self.tool_schemas = tool_schemas
        self.params: Mapping[str, JSONValue] = {"environment": "scripted"} if params is None else params
        self.actions: list[Action] = []

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Play the item of this action."""
        self.actions.append(action)
        item = self._script if callable(self._script) else self._script[len(self.actions) - 1]
        return await self._player.play(item, action)


class RecordingSink:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def emit(self, event: Event, /) -> None:
        """Keep it."""
        self.events.append(event)

    def kinds(self) -> list[str]:
        """The names of the events, in order."""
        return [type(event).__name__ for event in self.events]


class FailingSink(RecordingSink):
    """Keeps every event, and fails to take those that `on` picks."""

    def __init__(
        self,
        error: Callable[[], BaseException] = lambda: RuntimeError("the sink is full"),
        *,
        on: Callable[[Event], bool] = lambda _: True,
    ) -> None:
        super().__init__()
        self._error = error
        self._on = on

    async def emit(self, event: Event, /) -> None:
        """Keep it, then fail."""
        await super().emit(event)
        if self._on(event):
            raise self._error()


if TYPE_CHECKING:
    _MODEL: ModelPort = ScriptedModel([])
    _PARSER: DecisionParser = ScriptedParser()
    _EXECUTOR: ActionExecutor = ScriptedExecutor()
    _SINKS: tuple[EventSink, ...] = (RecordingSink(), FailingSink())
