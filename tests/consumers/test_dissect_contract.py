"""What joins dissect to the library keeps the contracts of its ports, as its page says that it can be proved."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from polyloop.ports import ActionExecutor, DecisionParser, ModelPort
from polyloop.types import ChatMessage, ModelReply
from tests.consumers.harness import HARNESS, CodeParser, LedgerClient, Message, Response
from tests.consumers.pages import Page
from tests.consumers.rollouts import python
from tests.consumers.sessions import Episode
from tests.contract import executor_suite, model_suite, parser_suite
from tests.contract.cases import ActionSample, ExecutorCase, ModelCase, ParserCase
from tests.contract.promises import Promise
from tests.contract.running import keep


def page() -> Page:
    loaded = Page("dissect.md", HARNESS)
    for marker in ("class LedgerModel", "class CodeDecisions", "class EpisodeExecutor"):
        loaded.run(marker)
    return loaded


class Forgotten(Episode):
    """A session that dies between an action and the question whether it is done."""

    async def is_done(self) -> bool:
        self.kill()
        return await super().is_done()


def model_case() -> ModelCase:
    def port(say: Any) -> ModelPort:
        return cast("ModelPort", page()["LedgerModel"](LedgerClient(say)))

    def echo(_: str, __: int, messages: Sequence[Message]) -> Response:
        return Response(messages[-1]["content"], f"You said: {messages[-1]['content']}")

    async def hang(*_: object) -> Response:
        await asyncio.Event().wait()
        return Response("", "")

    return ModelCase(
        make=lambda: port(echo),
        messages=(ChatMessage(role="user", content="Say something."),),
        binding={"ledger": "main", "round_idx": "3", "phase": "train", "attempt_idx": "0"},
        prepare=lambda call: dataclasses.replace(
            call, messages=(*call.messages, ChatMessage(role="user", content=f"{call.key} {call.result_id}"))
        ),
        expected=lambda call: ModelReply(
            call_id=call.messages[-1].content, text=f"You said: {call.messages[-1].content}", reasoning=None
        ),
        make_failing=lambda: port(lambda *_: ConnectionError("closed")),
        make_hanging=lambda: port(hang),
    )


def parser_case() -> ParserCase:
    return ParserCase(
        make=lambda: cast("DecisionParser", page()["CodeDecisions"](CodeParser())),
        actions=(python("print(1)"), python("")),
        invalids=("", "I would rather not.", "```python\n1", "```sql\nselect 1\n```", python("1") + python("2")),
    )


def executor_case(ledger: Path) -> ExecutorCase:
    loaded = page()

    @contextlib.asynccontextmanager
    async def make(kind: type[Episode] = Episode, *, killed: bool = False) -> AsyncIterator[ActionExecutor]:
        async with kind("reached", ledger) as episode:
            if killed:
                episode.kill()
            made = loaded["EpisodeExecutor"](episode, session_id="the session", max_observation_chars=1000)
            yield cast("ActionExecutor", made)

    def code(text: str) -> ActionSample:
        return ActionSample(action_text=text)

    return ExecutorCase(
        make=make,
        action=code("note('act'); print('did it')"),
        observation="did it\n",
        failing=code("note('act'); 1 / 0"),
        failing_shows="ZeroDivisionError: division by zero",
        long=code("print('x' * 4999)"),
        long_chars=5000,
        completing=code("answer = 'reached'"),
        make_broken=lambda: make(killed=True),
        make_signal_lost=lambda: make(Forgotten),
        hanging=code("while True: note('act')"),
        remember=code("light = 'on'"),
        recall=code("print(light)"),
        effects=lambda: len(ledger.read_text().splitlines()) if ledger.exists() else 0,
    )


@pytest.mark.parametrize("promise", model_suite.PROMISES, ids=lambda promise: promise.name)
async def test_the_ledger_client_is_a_model_port(promise: Promise[ModelCase]) -> None:
    await keep(promise, model_case())


@pytest.mark.parametrize("promise", parser_suite.PROMISES, ids=lambda promise: promise.name)
async def test_the_code_parser_is_a_decision_parser(promise: Promise[ParserCase]) -> None:
    await keep(promise, parser_case())


@pytest.mark.parametrize("promise", executor_suite.PROMISES, ids=lambda promise: promise.name)
async def test_a_wrapped_episode_is_an_action_executor(promise: Promise[ExecutorCase], tmp_path: Path) -> None:
    await keep(promise, executor_case(tmp_path / "ledger"))
