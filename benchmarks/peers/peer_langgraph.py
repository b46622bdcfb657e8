"""LangGraph: a graph of two nodes, model and tools, which is less than its ready-made agent does.

`--store sqlite` is `AsyncSqliteSaver` with `durability="sync"`; `--channel delta` keeps the messages in the
`DeltaChannel`, which is in beta and writes what is new instead of all messages each time.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import uuid
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from benchmarks.peers import work


class DeltaState(TypedDict):
    """The messages, of which only what is new is written."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


async def model(state: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - a node's signature
    """One model call."""
    number = work.current.get().next_call()
    if number is None:
        return {"messages": [AIMessage(work.FINAL)]}
    call = {"name": work.TOOL, "args": {"number": number}, "id": f"call-{number}"}
    return {"messages": [AIMessage(work.REPLY, tool_calls=[call])]}


async def tools(state: dict[str, Any]) -> dict[str, Any]:
    """One tool call."""
    (call,) = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(work.current.get().act(), tool_call_id=call["id"])]}


def graph(state: type, saver: AsyncSqliteSaver | None) -> Any:
    """The graph, ready to run."""
    nodes = StateGraph(state)
    nodes.add_node("model", model)
    nodes.add_node("tools", tools)
    nodes.add_edge(START, "model")
    nodes.add_conditional_edges("model", lambda now: "tools" if now["messages"][-1].tool_calls else END, ["tools", END])
    nodes.add_edge("tools", "model")
    return nodes.compile(checkpointer=saver)


def one_run(compiled: Any, *, saved: bool) -> work.OneRun:
    """Runs of the graph, each a thread of its own."""

    async def run(steps: int) -> None:
        script = work.begin(steps)
        config: dict[str, Any] = {"recursion_limit": 2 * steps + 10}
        durability = {}
        if saved:
            config["configurable"] = {"thread_id": uuid.uuid4().hex}
            durability = {"durability": "sync"}
        prompt = {"messages": [("system", work.SYSTEM), ("user", work.TASK)]}
        result = await compiled.ainvoke(prompt, config, **durability)
        script.check(result["messages"][-1].content)

    return run


def opened(store: str, channel: str) -> work.Opened:
    """Opens the graph, with a saver on a fresh file if it is to be saved."""
    state = DeltaState if channel == "delta" else MessagesState

    @contextlib.asynccontextmanager
    async def compiled(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
        if store == "none":
            yield one_run(graph(state, None), saved=False)
            return
        async with AsyncSqliteSaver.from_conn_string(str(directory / "langgraph.sqlite")) as saver:
            await saver.setup()
            yield one_run(graph(state, saver), saved=True)

    return compiled


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    command = argparse.ArgumentParser(add_help=False)
    command.add_argument("--store", choices=("none", "sqlite"), required=True)
    command.add_argument("--channel", choices=("messages", "delta"), required=True)
    own = command.parse_known_args()[0]
    work.measure("langgraph", opened(own.store, own.channel), command)
