"""An agent whose ports cost nothing, so that what is measured is the loop and the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polyloop import (
    Action,
    ActionDecision,
    ActionKind,
    ActionOutcome,
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    Event,
    FinalAnswer,
    JSONValue,
    ModelCall,
    ModelReply,
    ParsedReply,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    ToolDocsStyle,
    ToolRegistry,
)

REPLY: Final = "look into the next folder"
OBSERVATION: Final = "there are three files in it"
FINAL: Final = "done"


class Model:
    """Answers at once, with a new reply each time as any model must; after `calls` calls with the final answer."""

    params: Mapping[str, JSONValue] = {"model": "instant"}

    def __init__(self, text: str = REPLY, calls: int | None = None) -> None:
        self._text = text
        self._calls = calls

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Answer."""
        return ModelReply(call_id="call", text=FINAL if call.call_index == self._calls else self._text, reasoning=None)


class Parser:
    """Reads the part of a reply behind `skip` characters as an action."""

    params: Mapping[str, JSONValue] = {"parser": "instant"}
    produces = ActionKind.TEXT

    def __init__(self, skip: int = 0) -> None:
        self._skip = skip

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        """Read one reply."""
        text = reply.text
        if text == FINAL:
            return ParsedReply(history_text=text, decision=FinalAnswer(text=text))
        decision = ActionDecision(action_text=text[self._skip :], tool_name=None, arguments={})
        return ParsedReply(history_text=text, decision=decision)


class Executor:
    """Observes the same each time."""

    params: Mapping[str, JSONValue] = {"environment": "instant"}
    accepts = ActionKind.TEXT
    tool_schemas: tuple[Mapping[str, JSONValue], ...] = ()

    def __init__(self, observation: str = OBSERVATION) -> None:
        self._observation = observation

    async def execute(self, action: Action, /) -> ActionOutcome:  # noqa: ARG002 - the port's signature
        """Observe."""
        return ActionOutcome(status=ActionStatus.EXECUTED, observation=self._observation, completed=False)


class Sink:
    """Does nothing."""

    async def emit(self, event: Event, /) -> None:
        """Drop it."""


def definition(store: RunStore, *, model: Model | None = None, parser: Parser | None = None) -> AgentDefinition:
    """A definition of these ports."""
    return AgentDefinition(
        model=Model() if model is None else model,
        parser=Parser() if parser is None else parser,
        store=store,
        events=Sink(),
        synthetic_observations={ActionStatus.NOT_EXECUTED: "not executed", ActionStatus.ENV_ERROR: "broken"},
        observation_template="{observation}",
    )


def request(key: str, steps: int, *, executor: Executor | None = None) -> RunRequest:
    """A run that ends after so many steps, if the model does not end it before."""
    return RunRequest(
        key=RunKey(key),
        budget=Budget(
            max_steps=steps,
            max_executed_actions=steps + 1,
            max_prompt_chars=10**12,
            max_consecutive_parse_failures=3,
        ),
        executor=Executor() if executor is None else executor,
        tools=ToolRegistry(()),
        run_segments=(ChatMessage(role="system", content="You tidy folders."),),
        item_segments=(),
        skills=(),
        model_binding={},
        model_call_replay=ReplayPolicy.SAFE,
        tool_docs_style=ToolDocsStyle.NONE,
        finalize_timeout_s=5.0,
    )
