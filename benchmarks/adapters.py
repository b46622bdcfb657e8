"""What the adapters add to a call beside the SDK's own time, on a server of loopback that answers at once.

Twice, for a call of the SDK takes some milliseconds, in which a difference of microseconds is easily lost: within each
call of `OpenAIChatModel`, by what it takes beside the SDK's part of it; and from outside, against the same requests
made with the SDK alone, call by call in turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from benchmarks.measuring import Row, Work, at_most, reported, show
from polyloop import ChatMessage, ModelCall, RunKey
from polyloop.adapters.openai import OpenAIChatModel
from polyloop.adapters.polygateway import PolyGatewayModel

CALLS: Final = 400
GATEWAY_CALLS: Final = 5000
TURNS: Final = 20
"""Messages of the prompt: twenty steps of a run."""

ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "look " * 100, "reasoning_content": "think " * 100},
            }
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200},
    }
).encode("ascii")
MESSAGES: Final = tuple(
    ChatMessage(role="assistant" if turn % 2 else "user", content="what was said and seen " * 10)
    for turn in range(TURNS)
)
CALL: Final = ModelCall(messages=MESSAGES, call_index=0, key=RunKey("run"), result_id="call", binding={})


class _Server:
    """Answers every request with the same bytes."""

    def __init__(self) -> None:
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        """The SDK's client of this server."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            yield client
        server.close()
        await asyncio.gather(*self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n"
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = asked.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(head.encode("ascii") + ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()  # the client has gone


class _Timed:
    """Stands before the SDK's method, and adds up the time that it takes."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self._raw = cast("Any", model._completions)  # noqa: SLF001 - the seam between the adapter and the SDK
        self._create: Any = self._raw.create
        self.seconds = 0.0

    async def create(self, **arguments: object) -> object:
        """Ask, and count."""
        started = time.perf_counter()
        try:
            return await self._create(**arguments)
        finally:
            self.seconds += time.perf_counter() - started

    async def beside(self, model: OpenAIChatModel) -> float:
        """Seconds of one call that are the adapter's own."""
        self.seconds = 0.0
        self._raw.create = self.create
        started = time.perf_counter()
        await model.call(CALL)
        took = time.perf_counter() - started
        self._raw.create = self._create
        return took - self.seconds


def _model(client: AsyncOpenAI) -> OpenAIChatModel:
    return OpenAIChatModel(
        client,
        model="m",
        temperature=0.0,
        top_p=None,
        max_tokens=1000,
        max_completion_tokens=None,
        seed=7,
        stop=None,
        response_format=None,
        extra_body={},
        timeout_s=60.0,
        max_retries=0,
    )


async def _medians(works: Mapping[str, Work], calls: int) -> dict[str, float]:
    """Microseconds of each work, call by call in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(calls + 20):
        for name, work in works.items():
            started = time.perf_counter()
            await work()
            if turn >= 20:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) * 1e6 for name, seconds in times.items()}


async def chat() -> list[Row]:
    """`OpenAIChatModel` beside the SDK and against it."""
    sent = cast(
        "list[ChatCompletionMessageParam]",
        [{"role": message.role, "content": message.content} for message in MESSAGES],
    )
    async with _Server().client() as client:
        model = _model(client)
        completions = client.chat.completions

        async def parsed() -> None:
            await completions.create(model="m", messages=sent, temperature=0.0, max_tokens=1000, seed=7)

        async def unparsed() -> None:
            raw = completions.with_raw_response
            await raw.create(model="m", messages=sent, temperature=0.0, max_tokens=1000, seed=7)

        each = await _medians({"adapter": lambda: model.call(CALL), "parsed": parsed, "unparsed": unparsed}, CALLS)
        timed = _Timed(model)
        own = [await timed.beside(model) for _ in range(CALLS)]
    note = f"{each['adapter']:,.0f} µs a call against {each['parsed']:,.0f} µs"
    return [
        at_most("the adapter's own part of a call", 150, statistics.median(own) * 1e6, "µs"),
        at_most("a call more than one of the SDK alone", 150, each["adapter"] - each["parsed"], "µs", note=note),
        reported(
            "a call more than one of the SDK that builds no objects of the answer",
            f"{each['adapter'] - each['unparsed']:,.0f} µs ({each['unparsed']:,.0f} µs)",
        ),
    ]


class _Response:
    text = "look " * 100
    reasoning = None
    call_id = "call"


class _Gateway:
    async def chat(self, messages: list[dict[str, str]], *, attempt_idx: int) -> _Response:  # noqa: ARG002 - its form
        """Answer."""
        return _Response()


async def gateway() -> list[Row]:
    """`PolyGatewayModel` against its client alone, which answers at once."""
    client = _Gateway()
    model = PolyGatewayModel(client, params={"model": "m"}, keywords=lambda _: {"attempt_idx": 1})
    sent = [{"role": message.role, "content": message.content} for message in MESSAGES]
    works: dict[str, Work] = {"adapter": lambda: model.call(CALL), "client": lambda: client.chat(sent, attempt_idx=1)}
    each = await _medians(works, GATEWAY_CALLS)
    return [
        at_most("a call of the gateway more than one of its client alone", 150, each["adapter"] - each["client"], "µs")
    ]


def rows() -> list[Row]:
    """All figures."""
    prompt = reported("the prompt", f"{TURNS} messages of {len(MESSAGES[0].content)} characters")
    return [*asyncio.run(chat()), *asyncio.run(gateway()), prompt]


if __name__ == "__main__":
    sys.exit(show("The adapters", rows()))
