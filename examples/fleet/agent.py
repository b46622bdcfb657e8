"""What the fleet's workers do: a clerk who looks up the items of an order and charges for each.

A stand-in for yours. Looking up is declared `SAFE`, charging `NEVER`: nobody wants to pay twice. Both are written down
in a ledger as they begin and as they are done. The ledger is a file that is only appended to, outside the store, so
that it can testify against it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from examples.parsers import JsonToolCallParser
from examples.scripted import Script, ScriptedModel
from polyloop import (
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    Event,
    JSONValue,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    ToolDocsStyle,
    ToolRegistry,
    ToolSpec,
)
from polyloop.tools import current_action

ITEMS: Final = 2
"""How many items an order has."""

LOOK_UP: Final = "look_up"
CHARGE: Final = "charge"


class Entry(NamedTuple):
    """A line of the ledger."""

    key: str
    """The run."""
    tool: str
    """`look_up` or `charge`."""
    item: int
    """Which of the order's items, from 1."""
    phase: str
    """`begun` or `done`."""
    pid: int
    """The process that did it."""


Duration: TypeAlias = Callable[[Entry], float]
"""How many seconds an effect takes that has begun."""


class Ledger:
    """Writes down what really happened, whoever dies next.

    Args:
        path: The file, made if it is missing. All workers of one machine may share it.
        duration: How long an effect takes.
    """

    def __init__(self, path: Path, *, duration: Duration) -> None:
        self._path = path
        self._duration = duration

    @asynccontextmanager
    async def effect(self, tool: str, item: int) -> AsyncIterator[None]:
        """Between the two lines of the present action's effect."""
        begun = Entry(key=current_action().key, tool=tool, item=item, phase="begun", pid=os.getpid())
        self._append(begun)
        await asyncio.sleep(self._duration(begun))
        yield
        self._append(begun._replace(phase="done"))

    def _append(self, entry: Entry) -> None:
        # One write at the end of the file: lines of several processes do not mix.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, (json.dumps(entry._asdict()) + "\n").encode())
        finally:
            os.close(file)


def entries(path: Path) -> list[Entry]:
    """What the ledger says. A last line that is being written is left out."""
    text = path.read_text() if path.exists() else ""
    return [Entry(**json.loads(line)) for line in text.split("\n")[:-1]]


def tools(ledger: Ledger) -> ToolRegistry:
    """What the clerk can do."""

    async def look_up(arguments: Mapping[str, JSONValue]) -> str:
        async with ledger.effect(LOOK_UP, _item(arguments)):
            return "in stock"

    async def charge(arguments: Mapping[str, JSONValue]) -> str:
        async with ledger.effect(CHARGE, _item(arguments)):
            return "charged"

    item: dict[str, JSONValue] = {"type": "integer", "minimum": 1, "maximum": ITEMS}
    parameters: dict[str, JSONValue] = {
        "type": "object",
        "properties": {"item": item},
        "required": ["item"],
        "additionalProperties": False,
    }
    return ToolRegistry(
        [
            ToolSpec(
                name=LOOK_UP,
                description="Is it in stock?",
                parameters=parameters,
                handler=look_up,
                replay=ReplayPolicy.SAFE,
            ),
            ToolSpec(
                name=CHARGE,
                description="Charge the customer.",
                parameters=parameters,
                handler=charge,
                replay=ReplayPolicy.NEVER,
            ),
        ]
    )


def _item(arguments: Mapping[str, JSONValue]) -> int:
    item = arguments["item"]
    assert isinstance(item, int), "the registry has checked it"
    return item


def _clerk() -> Script:
    for item in range(1, ITEMS + 1):
        for tool in (LOOK_UP, CHARGE):
            yield json.dumps({"tool": tool, "arguments": {"item": item}})
    yield json.dumps({"final_answer": "done"})


class _Quiet:
    """An event sink that nobody looks at."""

    async def emit(self, event: Event, /) -> None:
        """Let it go."""


def definition(store: RunStore, registry: ToolRegistry) -> AgentDefinition:
    """One for the whole process: it serves any number of runs at once."""
    return AgentDefinition(
        model=ScriptedModel(name="clerk-1", script=_clerk),
        parser=JsonToolCallParser(
            tools=registry,
            tool_key="tool",
            arguments_key="arguments",
            answer_key="final_answer",
            comment_keys=(),
            blank_history_text="(no text)",
        ),
        store=store,
        events=_Quiet(),
        synthetic_observations={
            ActionStatus.NOT_EXECUTED: "The action was refused.",
            ActionStatus.ENV_ERROR: "The shop is closed.",
        },
        observation_template="{observation}",
    )


def request_for(key: RunKey, registry: ToolRegistry) -> RunRequest:
    """The request of a run, the same in whichever worker and however often: from the key alone."""
    return RunRequest(
        key=key,
        budget=Budget(
            max_steps=4 * ITEMS,
            max_executed_actions=4 * ITEMS,
            max_prompt_chars=50_000,
            max_consecutive_parse_failures=2,
        ),
        executor=registry.executor(max_observation_chars=1_000),
        tools=registry,
        run_segments=(ChatMessage(role="system", content="You handle orders, by calling tools."),),
        item_segments=(ChatMessage(role="user", content=f"Handle {key}."),),
        skills=(),
        model_binding={},
        model_call_replay=ReplayPolicy.SAFE,
        tool_docs_style=ToolDocsStyle.JSON_SCHEMA,
        finalize_timeout_s=5.0,
    )
