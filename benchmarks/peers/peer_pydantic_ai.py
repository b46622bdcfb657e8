"""pydantic-ai: an agent with a `FunctionModel` and one tool, without a limit of requests."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.peers import work


async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG001 - its signature
    """Answer at once. With a usage, for without one `FunctionModel` counts the words of all messages each time."""
    usage = RequestUsage(input_tokens=1, output_tokens=1)
    number = work.current.get().next_call()
    if number is None:
        return ModelResponse(parts=[TextPart(work.FINAL)], usage=usage)
    call = ToolCallPart(work.TOOL, {"number": number}, tool_call_id=f"call-{number}")
    return ModelResponse(parts=[TextPart(work.REPLY), call], usage=usage)


AGENT: Final = Agent(FunctionModel(model), name="peer", system_prompt=work.SYSTEM)


@AGENT.tool_plain
async def look(number: int) -> str:  # noqa: ARG001 - the argument that the model gave
    """Look into a folder."""
    return work.current.get().act()


async def run(steps: int) -> None:
    """Make one run."""
    script = work.begin(steps)
    result = await AGENT.run(work.TASK, usage_limits=UsageLimits(request_limit=None))
    script.check(result.output)


@contextlib.asynccontextmanager
async def opened(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
    """Nothing to open."""
    yield run


if __name__ == "__main__":
    work.measure("pydantic-ai-slim", opened)
