"""A chat endpoint on loopback that does what a test tells it to, over real HTTP, down to the bytes.

It answers keep-alive connections, keeps what it was sent, and sees when its client goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from polyloop.adapters.openai import OpenAIChatModel

KEY = "sk-test-5f1c0a9d7e3b4268-do-not-show"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, and the connection that it came on."""

    line: str
    headers: Mapping[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def json(self) -> dict[str, Any]:
        """The body."""
        return cast("dict[str, Any]", json.loads(self.body))

    async def answer(
        self, body: bytes, *, status: int = 200, kind: str = "application/json", length: int | None = None
    ) -> None:
        """Send a whole answer, or one that claims another length than it has."""
        head = f"HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: {length or len(body)}\r\n\r\n"
        await self.send(head.encode("ascii") + body)

    async def send(self, data: bytes) -> None:
        """Send some bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()


Behaviour: TypeAlias = Callable[[Asked], Awaitable[None]]


class Endpoint:
    """The server. `behaviour` answers each request; it may be changed between requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[Asked] = []
        self.hung_up = 0
        """How often a client was seen to close its connection while it waited for an answer."""
        self.waiting = asyncio.Event()
        """Set as soon as a request is there."""
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while not writer.is_closing():
                asked = await _request(reader, writer)
                self.asked.append(asked)
                self.waiting.set()
                await self.behaviour(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away
        finally:
            self._connections.discard(task)
            writer.close()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(line=head[0], headers=headers, body=body, reader=reader, writer=writer)


# ------------------------------------------------------------------------------------------- Behaviours


def completion(text: object = "Hello.", /, **message: object) -> dict[str, Any]:
    """A whole chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
        ],
    }


def says(answer: object, *, status: int = 200) -> Behaviour:
    """Answers with JSON."""
    return sends(json.dumps(answer).encode("ascii"), status=status)


def sends(body: bytes, *, status: int = 200, kind: str = "application/json", length: int | None = None) -> Behaviour:
    """Answers with these bytes."""
    return lambda asked: asked.answer(body, status=status, kind=kind, length=length)


def hangs(endpoint: Endpoint) -> Behaviour:
    """Never answers; counts the clients that hang up."""

    async def behaviour(asked: Asked) -> None:
        await asked.gone()
        endpoint.hung_up += 1
        asked.writer.close()

    return behaviour


async def cuts(asked: Asked) -> None:
    """Closes the connection without a word."""
    asked.writer.close()


# ------------------------------------------------------------------------------------------- The client's side


def a_client(url: str, *, proxy: str | None = None, **changed: Any) -> AsyncOpenAI:
    """A client of the official SDK, on plain HTTP: without certificates to read it is built in no time."""
    http_client = DefaultAsyncHttpxClient(verify=False, proxy=proxy)
    return AsyncOpenAI(**{"base_url": url, "api_key": KEY, "http_client": http_client, **changed})


def model(client: AsyncOpenAI, **changed: Any) -> OpenAIChatModel:
    """A model with nothing asked for beyond what must be said."""
    arguments: dict[str, Any] = {
        "model": "m",
        "temperature": None,
        "top_p": None,
        "max_tokens": None,
        "max_completion_tokens": None,
        "seed": None,
        "stop": None,
        "response_format": None,
        "extra_body": {},
        "timeout_s": 60.0,
        "max_retries": 0,
    }
    return OpenAIChatModel(client, **{**arguments, **changed})


@contextlib.asynccontextmanager
async def served(behaviour: Behaviour, **changed: Any) -> AsyncIterator[tuple[OpenAIChatModel, Endpoint]]:
    """A model and its endpoint."""
    async with Endpoint(behaviour) as endpoint, a_client(endpoint.url) as client:
        yield model(client, **changed), endpoint
