"""A definition and a request that work, to be varied with `dataclasses.replace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from polyloop.ports import ModelCall, RunStore
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.tools import ToolRegistry
from polyloop.types import ActionStatus, Budget, ChatMessage, InjectedEntry, ReplayPolicy, RunKey, ToolDocsStyle
from tests.fakes import ModelItem, RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser

KEY: Final = RunKey("k")
ROOMY: Final = Budget(max_steps=20, max_executed_actions=20, max_prompt_chars=100_000, max_consecutive_parse_failures=3)


def definition(
    replies: Sequence[ModelItem] | Callable[[ModelCall], object] = ("act: a", "final: 42"),
    *,
    store: RunStore | None = None,
) -> AgentDefinition:
    """A definition of scripted ports; without a store, on one of its own."""
    return AgentDefinition(
        model=ScriptedModel(replies),
        parser=ScriptedParser(),
        store=EphemeralRunStore() if store is None else store,
        events=RecordingSink(),
        synthetic_observations={ActionStatus.NOT_EXECUTED: "(refused)", ActionStatus.ENV_ERROR: "(gone)"},
        observation_template="observed: {observation}",
    )


def request(key: str = KEY) -> RunRequest:
    """A request without tools."""
    return RunRequest(
        key=RunKey(key),
        budget=ROOMY,
        executor=ScriptedExecutor(),
        tools=ToolRegistry(()),
        run_segments=(ChatMessage(role="system", content="You act."),),
        item_segments=(ChatMessage(role="user", content="Do it."),),
        skills=(InjectedEntry(entry_id="skill", message=ChatMessage(role="user", content="You know how.")),),
        model_binding={"tenant": "t"},
        model_call_replay=ReplayPolicy.NEVER,
        tool_docs_style=ToolDocsStyle.NONE,
        finalize_timeout_s=5.0,
    )
