"""The contract cases of the adapters that speak to a model. Imports the SDKs: load it where one is installed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from polyloop.ports import ModelCall, ModelPort
from polyloop.types import ChatMessage, ModelReply
from tests.adapters.endpoint import KEY, Asked, Behaviour, Endpoint, a_client, completion, hangs, model, says
from tests.contract.cases import ModelCase

ADDRESS = "http://chat.test/v1"
"""Ports built alike have one address, while each has a server of its own: that one is reached as a proxy."""


async def echoes(asked: Asked) -> None:
    """Says what it was told last, with an id and a thought that tell which it was."""
    said = asked.json["messages"][-1]["content"]
    await says({**completion(said, reasoning_content=f"I heard {said}"), "id": f"chat-{said}"})(asked)


def openai_case() -> ModelCase:
    """`OpenAIChatModel` on an endpoint of loopback, through the official SDK."""
    quoting = says({"error": {"message": f"no model for {KEY}", "code": KEY}}, status=500)
    return ModelCase(
        make=_on(lambda _: echoes),
        messages=(ChatMessage(role="system", content="Echo."), ChatMessage(role="user", content="Say something.")),
        binding={},
        prepare=_telling,
        expected=lambda call: ModelReply(
            call_id=f"chat-{_told(call)}", text=_told(call), reasoning=f"I heard {_told(call)}"
        ),
        make_failing=_on(lambda _: quoting),
        make_hanging=_on(hangs),
        secrets=(KEY, KEY[:12], KEY[-12:]),
    )


def _on(behaviour: Callable[[Endpoint], Behaviour]) -> Callable[[], AbstractAsyncContextManager[ModelPort]]:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[ModelPort]:
        async with Endpoint(echoes) as endpoint:
            endpoint.behaviour = behaviour(endpoint)
            async with a_client(ADDRESS, proxy=endpoint.url.removesuffix("/v1")) as client:
                yield model(client)

    return make


def _told(call: ModelCall) -> str:
    return f"{call.key} {call.result_id}"


def _telling(call: ModelCall) -> ModelCall:
    return dataclasses.replace(call, messages=(*call.messages, ChatMessage(role="user", content=_told(call))))
