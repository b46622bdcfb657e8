"""PolyLoop: a registry's tool, a parser of JSON tool calls, and one of its stores (`--store`)."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.agents import Sink
from benchmarks.peers import work
from examples.parsers import JsonToolCallParser
from polyloop import (
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    JSONValue,
    ModelCall,
    ModelReply,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    ToolDocsStyle,
    ToolRegistry,
    ToolSpec,
)
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore

SCHEMA: Final[Mapping[str, JSONValue]] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}


class Model:
    """Answers at once, as the current script says."""

    params: Mapping[str, JSONValue] = {"model": "instant"}

    async def call(self, call: ModelCall, /) -> ModelReply:  # noqa: ARG002 - the port's signature
        """Answer."""
        number = work.current.get().next_call()
        if number is None:
            text = f'{{"final_answer": "{work.FINAL}"}}'
        else:
            text = f'{{"thought": "{work.REPLY}", "tool": "{work.TOOL}", "arguments": {{"number": {number}}}}}'
        return ModelReply(call_id="call", text=text, reasoning=None)


async def look(arguments: dict[str, JSONValue]) -> str:  # noqa: ARG001 - a handler's signature
    """Answer at once."""
    return work.current.get().act()


TOOLS: Final = ToolRegistry(
    [ToolSpec(name=work.TOOL, description=work.TOOL_DESCRIPTION, parameters=SCHEMA, handler=look)]
)


def request(key: str, steps: int) -> RunRequest:
    """One run."""
    return RunRequest(
        key=RunKey(key),
        budget=Budget(
            max_steps=steps + 1,
            max_executed_actions=steps + 1,
            max_prompt_chars=10**12,
            max_consecutive_parse_failures=3,
        ),
        executor=TOOLS.executor(max_observation_chars=1000),
        tools=TOOLS,
        run_segments=(ChatMessage(role="system", content=work.SYSTEM),),
        item_segments=(ChatMessage(role="user", content=work.TASK),),
        skills=(),
        model_binding={},
        model_call_replay=ReplayPolicy.SAFE,
        tool_docs_style=ToolDocsStyle.NONE,
        finalize_timeout_s=5.0,
    )


def one_run(store: RunStore) -> work.OneRun:
    """Runs on a store."""
    definition = AgentDefinition(
        model=Model(),
        parser=JsonToolCallParser(
            tools=TOOLS,
            tool_key="tool",
            arguments_key="arguments",
            answer_key="final_answer",
            comment_keys=("thought",),
            blank_history_text="(no text)",
        ),
        store=store,
        events=Sink(),
        synthetic_observations={ActionStatus.NOT_EXECUTED: "not executed", ActionStatus.ENV_ERROR: "broken"},
        observation_template="{observation}",
    )
    keys = itertools.count()

    async def run(steps: int) -> None:
        script = work.begin(steps)
        result = await definition.run(request(f"run-{next(keys)}", steps))
        script.check(result.final_answer)

    return run


def opened(kind: str) -> work.Opened:
    """Opens a kind of store."""

    @contextlib.asynccontextmanager
    async def open_store(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
        match kind:
            case "jsonl":
                async with JsonlRunStore(directory / "runs") as files:
                    yield one_run(files)
            case "sqlite":
                async with SqliteRunStore(directory / "runs.sqlite") as database:
                    yield one_run(database)
            case _:
                yield one_run(EphemeralRunStore())

    return open_store


if __name__ == "__main__":
    command = argparse.ArgumentParser(add_help=False)
    command.add_argument("--store", choices=("ephemeral", "jsonl", "sqlite"), required=True)
    work.measure("polyloop", opened(command.parse_known_args()[0].store), command)
