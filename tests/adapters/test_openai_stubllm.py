"""`OpenAIChatModel` against a server that nobody here wrote: stubllm, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from polyloop.adapters.openai import (
    ConnectionFailedError,
    EmptyCompletionError,
    ErrorAnswerError,
    IncompleteCompletionError,
    TimedOutError,
    ToolCallsError,
)
from polyloop.types import ChatMessage
from tests.adapters.calls import a_call
from tests.adapters.endpoint import a_client, model

pytest.importorskip("stubllm", reason="the package stubllm is not installed")

# The child says where it listens, and ends with its parent's pipe.
SERVER = """
import sys
from pathlib import Path

from stubllm.fixtures.loader import FixtureLoader
from stubllm.server import MockLLMServer

server = MockLLMServer(host="127.0.0.1", port=0, fixtures=FixtureLoader().load_file(Path(sys.argv[1])))
server.start()
print(server.url, flush=True)
sys.stdin.read()
server.stop()
"""


def fixture(heard: str, **response: Any) -> dict[str, Any]:
    return {
        "name": heard,
        "match": {"provider": "openai", "messages": [{"role": "user", "content": {"exact": heard}}]},
        "response": response,
    }


FIXTURES = [
    fixture("hello", content="Hello! \u00e9"),
    fixture("cut", content="This reply was c", finish_reason="length"),
    fixture("filtered", content="This", finish_reason="content_filter"),
    fixture("empty", content=""),
    fixture("tool", tool_calls=[{"id": "c1", "function": {"name": "rm", "arguments": "{}"}}]),
    fixture("busy", http_status=429, error_message="slow down", error_code="rate_limit_exceeded"),
    fixture("broken", http_status=500, error_message="it fell over"),
    fixture("wrong key", http_status=401, error_message="Incorrect API key provided: sk-a***1234"),
    fixture("slow", content="late", latency_ms=60_000),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("stubllm") / "fixtures.json"
    file.write_text(json.dumps({"fixtures": FIXTURES}))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            address = server.stdout.readline().strip()
            assert address, "the server did not start"
            yield f"{address}/v1"
        finally:
            server.stdin.close()
            server.wait()


async def ask(url: str, said: str, **changed: Any) -> Any:
    async with a_client(url) as client:
        return await model(client, **changed).call(a_call(ChatMessage(role="user", content=said)))


async def test_a_reply_comes_through_with_its_id(url: str) -> None:
    reply = await ask(url, "hello")
    assert (reply.text, reply.reasoning) == ("Hello! é", None)
    assert reply.call_id


async def test_many_calls_at_once_come_through(url: str) -> None:
    async with a_client(url) as client:
        port = model(client)
        calls = [port.call(a_call(ChatMessage(role="user", content="hello"))) for _ in range(20)]
        assert {reply.text for reply in await asyncio.gather(*calls)} == {"Hello! é"}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("cut", IncompleteCompletionError),
        ("filtered", IncompleteCompletionError),
        ("empty", EmptyCompletionError),
        ("tool", ToolCallsError),
        ("busy", ErrorAnswerError),
        ("broken", ErrorAnswerError),
        ("wrong key", ErrorAnswerError),
    ],
)
async def test_what_is_no_whole_reply_is_an_error_of_its_own(url: str, said: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        await ask(url, said)
    assert "sk-a***1234" not in str(raised.value)


async def test_an_error_has_the_servers_status_code_and_words(url: str) -> None:
    with pytest.raises(ErrorAnswerError) as raised:
        await ask(url, "busy")
    assert (raised.value.status, raised.value.kind) == (429, "rate_limit_exceeded")
    assert "slow down" in str(raised.value)


async def test_a_slow_server_is_left_in_time(url: str) -> None:
    with pytest.raises(TimedOutError):
        await ask(url, "slow", timeout_s=0.2)


async def test_a_path_that_the_server_does_not_have_is_an_error_answer(url: str) -> None:
    with pytest.raises(ErrorAnswerError) as raised:
        await ask(f"{url}/elsewhere", "hello")
    assert raised.value.status == 404


async def test_the_next_call_works_after_a_cancelled_one(url: str) -> None:
    async with a_client(url) as client:
        port = model(client)
        for turns in (1, 5, 20, 80):
            call = asyncio.create_task(port.call(a_call(ChatMessage(role="user", content="slow"))))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await port.call(a_call(ChatMessage(role="user", content="hello")))).text == "Hello! é"


async def test_a_server_that_is_gone_is_a_failed_connection(url: str) -> None:
    with pytest.raises(ConnectionFailedError):
        await ask("http://127.0.0.1:1/v1", "hello")
