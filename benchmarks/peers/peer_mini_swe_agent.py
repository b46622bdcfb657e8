"""mini-swe-agent: its `DefaultAgent` with a model and an environment of our own, without limits. It is synchronous.

An agent holds one conversation, so each run builds one. No trajectory is written.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted

from benchmarks.peers import work


class InstantModel:
    """Answers at once, as its script says."""

    config = None

    def __init__(self, script: work.Script) -> None:
        self.script = script

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:  # noqa: ARG002 - its signature
        """Answer."""
        number = self.script.next_call()
        if number is None:
            extra = {"exit_status": "Submitted", "submission": work.FINAL}
            raise Submitted({"role": "exit", "content": work.FINAL, "extra": extra})
        actions = [{"command": f"{work.TOOL} {number}", "tool_call_id": f"call-{number}"}]
        return {"role": "assistant", "content": work.REPLY, "extra": {"actions": actions, "cost": 0.0}}

    def format_message(self, **message: Any) -> dict[str, Any]:
        """A message as it is kept."""
        return message

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], _: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """One message for the output."""
        (action,) = message["extra"]["actions"]
        (output,) = outputs
        return [{"role": "tool", "content": output["output"], "tool_call_id": action["tool_call_id"]}]

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """None."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}


class InstantEnvironment:
    """Answers at once."""

    config = None

    def __init__(self, script: work.Script) -> None:
        self.script = script

    def execute(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Look."""
        return {"output": self.script.act(), "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """None."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}


def run(steps: int) -> None:
    """Make one run."""
    script = work.Script(steps=steps)
    agent = DefaultAgent(
        InstantModel(script),
        InstantEnvironment(script),
        system_template=work.SYSTEM,
        instance_template="{{task}}",
        step_limit=0,
        cost_limit=0,
    )
    script.check(agent.run(work.TASK)["submission"])


@contextlib.asynccontextmanager
async def opened(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
    """Threads, if there are several runs at a time."""
    async with work.on_threads(run, concurrency) as one_run:
        yield one_run


if __name__ == "__main__":
    work.measure("mini-swe-agent", opened)
