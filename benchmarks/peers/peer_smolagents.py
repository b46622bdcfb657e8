"""smolagents: a `ToolCallingAgent` with a model of our own and one tool, silent. It is synchronous.

An agent holds one conversation, so each run builds one; its tools run on threads that do not know the run, so each
run has a tool of its own, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from smolagents import LogLevel, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model

from benchmarks.peers import work


class InstantModel(Model):
    """Answers at once, as its script says."""

    def __init__(self, script: work.Script) -> None:
        super().__init__(model_id="instant")
        self.script = script

    def generate(self, *_: Any, **__: Any) -> ChatMessage:
        """Answer."""
        number = self.script.next_call()
        name, arguments = (work.TOOL, {"number": number}) if number else ("final_answer", {"answer": work.FINAL})
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(id=f"call-{number}", type="function", function=function)
        return ChatMessage(role=MessageRole.ASSISTANT, content=work.REPLY, tool_calls=[call])


class Look(Tool):
    """The tool."""

    name = work.TOOL
    description = work.TOOL_DESCRIPTION
    inputs = {"number": {"type": "integer", "description": "Which folder."}}  # noqa: RUF012 - as the library reads it
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, script: work.Script) -> None:
        super().__init__()
        self.script = script

    def forward(self, number: int) -> str:  # noqa: ARG002 - the argument that the model gave
        """Look."""
        return self.script.act()


def run(steps: int) -> None:
    """Make one run."""
    script = work.Script(steps=steps)
    agent = ToolCallingAgent(
        tools=[Look(script)],
        model=InstantModel(script),
        instructions=work.SYSTEM,
        max_steps=steps + 2,
        verbosity_level=LogLevel.OFF,
    )
    script.check(agent.run(work.TASK))


@contextlib.asynccontextmanager
async def opened(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
    """Threads, if there are several runs at a time."""
    async with work.on_threads(run, concurrency) as one_run:
        yield one_run


if __name__ == "__main__":
    work.measure("smolagents", opened)
