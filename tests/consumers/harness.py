"""A stand-in for the research harness *dissect*: its ledger client, its code parser, its episodes, its old loop.

The old loop is written from the order of judgement alone, on the harness's own objects: it knows nothing of PolyLoop.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.consumers.sessions import Episode, EpisodeUnavailable

Message: TypeAlias = dict[str, str]
Row: TypeAlias = dict[str, object]

OBSERVATION_LIMIT: Final = 300
UNAVAILABLE: Final = "The environment is not available."


# ------------------------------------------------------------------------------------ harness.llm.gateway


class Ledger(enum.Enum):
    """Which ledger a call is booked in."""

    MAIN = "main"


@dataclasses.dataclass(frozen=True)
class Response:
    """What the gateway gives."""

    call_id: str
    text: str
    reasoning: str | None = None


Policy: TypeAlias = Callable[[str, int, Sequence[Message]], "Response | Exception | Awaitable[Response | Exception]"]
"""What the model says: from the item, the number of the call and the messages."""


class LedgerClient:
    """The gateway's client. Books each call, by its five dimensions and its messages, before it is answered."""

    def __init__(self, policy: Policy, *, file: Path | None = None) -> None:
        self.model = "small-1"
        self.scope = "experiment-7"
        self.rows: list[Row] = []
        self._policy = policy
        self._file = file

    async def chat(
        self,
        messages: list[Message],
        *,
        ledger: Ledger,
        round_idx: int,
        phase: str,
        item_id: str | None,
        attempt_idx: int,
    ) -> Response:
        """Ask the model."""
        turn = sum(message["role"] == "assistant" for message in messages)
        dimensions = {"ledger": ledger, "round_idx": round_idx, "phase": phase, "item_id": item_id}
        self.rows.append({**dimensions, "attempt_idx": attempt_idx, "turn": turn, "messages": messages})
        self._book(str(item_id), turn)
        answer = self._policy(str(item_id), turn, messages)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _book(self, item_id: str, turn: int) -> None:
        if self._file is not None:
            append_line(self._file, json.dumps([item_id, turn]))


def append_line(path: Path, line: str) -> None:
    """Write a line in one piece, whoever else writes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


# ----------------------------------------------------------------------------------- harness.agent.parser


@dataclasses.dataclass(frozen=True)
class Parsed:
    """A reply as the code parser reads it: either code or an error."""

    history_text: str
    code: str | None
    error: str


class CodeParser:
    """Reads one block of Python. Each of the five ways to fail has its own explanation."""

    mode = "strict"

    def parse(self, text: str) -> Parsed:
        """What follows the block does not enter the history."""
        blocks = list(re.finditer(r"```(\w*)\n(.*?)```", text, re.DOTALL))
        if error := self._error(text, blocks):
            return Parsed(text, None, error)
        return Parsed(text[: blocks[0].end()], blocks[0][2], "")

    def _error(self, text: str, blocks: Sequence[re.Match[str]]) -> str:
        if not text.strip():
            return "Your reply was empty."
        if len(blocks) > 1:
            return f"You sent {len(blocks)} blocks; send one."
        if not blocks:
            return "Your block is not closed." if "```" in text else "You sent no block of code."
        return "" if blocks[0][1] == "python" else f"You sent {blocks[0][1]}; send python."


HARNESS: Final[Mapping[str, Mapping[str, object]]] = {
    "harness.llm.gateway": {"Ledger": Ledger, "LedgerClient": LedgerClient},
    "harness.agent.parser": {"CodeParser": CodeParser},
    "harness.envs.protocol": {"Episode": Episode, "EpisodeUnavailable": EpisodeUnavailable},
}


# ------------------------------------------------------------------------------------------- the old loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a rollout may go on."""

    max_steps: int = 10
    max_actions: int = 10
    max_prompt_chars: int = 100_000
    max_failures: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What a rollout leaves behind."""

    rows: list[Row]
    stop_reason: str


class OldLoop:
    """The loop as the harness had it."""

    def __init__(self, client: LedgerClient, episode: Episode, limits: Limits, dimensions: Mapping[str, Any]) -> None:
        self._client = client
        self._episode = episode
        self._limits = limits
        self._dimensions = dimensions
        self._rows: list[Row] = []
        self._actions = self._failures = 0

    async def run(self, head: Sequence[Message]) -> Trajectory:
        """From the first prompt to the stop reason."""
        messages = list(head)
        while (stop_reason := self._before(messages) or await self._step(messages)) is None:
            row = self._rows[-1]
            messages.append({"role": "assistant", "content": str(row["raw_output"])})
            messages.append({"role": "user", "content": str(row["observation"])})
        return Trajectory(rows=self._rows, stop_reason=stop_reason)

    def _before(self, messages: Sequence[Message]) -> str | None:
        if len(self._rows) == self._limits.max_steps:
            return "step_budget"
        if self._actions == self._limits.max_actions:
            return "action_budget"
        return "context_overflow" if _chars(messages) > self._limits.max_prompt_chars else None

    async def _step(self, messages: list[Message]) -> str | None:
        row: Row = {
            "step_idx": len(self._rows),
            "raw_output": "",
            "content_chars": 0,
            "thinking_chars": 0,
            "action": None,
            "parse_ok": False,
            "parse_error": None,
            "observation": "",
            "observation_is_synthetic": False,
            "observation_truncated_chars": 0,
            "prompt_chars": _chars(messages),
            "call_id": None,
        }
        self._rows.append(row)
        try:
            response = await self._client.chat(list(messages), **self._dimensions)
        except Exception:  # noqa: BLE001 - whatever the gateway raises ended a rollout
            return "llm_error"
        row.update(
            content_chars=len(response.text),
            thinking_chars=len(response.reasoning or ""),
            call_id=response.call_id or None,
        )
        return await self._decide(row, response.text)

    async def _decide(self, row: Row, text: str) -> str | None:
        parsed = CodeParser().parse(text)
        row["raw_output"] = parsed.history_text
        if parsed.code is None:
            row.update(parse_error=parsed.error, observation=parsed.error, observation_is_synthetic=True)
            self._failures += 1
            return "parse_failed_repeatedly" if self._failures == self._limits.max_failures else None
        self._failures = 0
        row.update(action=parsed.code, parse_ok=True)
        return await self._act(row, parsed.code)

    async def _act(self, row: Row, code: str) -> str | None:
        try:
            seen = await self._episode.execute(code)
        except EpisodeUnavailable:
            row.update(observation=UNAVAILABLE, observation_is_synthetic=True)
            return "env_error"
        self._actions += 1
        row["observation"] = seen[:OBSERVATION_LIMIT]
        row["observation_truncated_chars"] = max(0, len(seen) - OBSERVATION_LIMIT)
        try:
            done = await self._episode.is_done()
        except EpisodeUnavailable:
            return "env_error"
        return "task_completed" if done else None


def _chars(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) for message in messages)
