"""openai-agents: an agent with a model of our own and one function tool; tracing is off."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from benchmarks.peers import work


def said(text: str) -> ResponseOutputMessage:
    """A text of the model."""
    content: list[Any] = [ResponseOutputText(type="output_text", text=text, annotations=[])]
    return ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=content)


class InstantModel(Model):
    """Answers at once, as the current script says."""

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        """Answer."""
        number = work.current.get().next_call()
        if number is None:
            return ModelResponse(output=[said(work.FINAL)], usage=Usage(), response_id=None)
        call = ResponseFunctionToolCall(
            id=f"item-{number}",
            call_id=f"call-{number}",
            type="function_call",
            name=work.TOOL,
            arguments=f'{{"number": {number}}}',
        )
        return ModelResponse(output=[said(work.REPLY), call], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Nobody asks for it."""
        raise NotImplementedError


@function_tool
async def look(number: int) -> str:  # noqa: ARG001 - the argument that the model gave
    """Look into a folder."""
    return work.current.get().act()


AGENT: Final = Agent(name="peer", instructions=work.SYSTEM, model=InstantModel(), tools=[look])


async def run(steps: int) -> None:
    """Make one run."""
    script = work.begin(steps)
    result = await Runner.run(AGENT, work.TASK, max_turns=steps + 2)
    script.check(result.final_output)


@contextlib.asynccontextmanager
async def opened(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
    """Switch tracing off."""
    set_tracing_disabled(True)
    yield run


if __name__ == "__main__":
    work.measure("openai-agents", opened)
