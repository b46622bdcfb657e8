"""What `OpenAIChatModel` asks an endpoint for, and what it says of itself: the real SDK over real HTTP."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from polyloop.types import ChatMessage, InvalidRequest
from tests.adapters.calls import a_call
from tests.adapters.endpoint import KEY, Endpoint, a_client, completion, model, says, served
from tests.contract.port_checks import canonical

ADDRESS = "http://127.0.0.1:1/v1"


@functools.cache
def the_client() -> AsyncOpenAI:
    """One for all that only read it: a client takes a while to build."""
    return a_client(ADDRESS)


async def test_roles_and_contents_go_out_as_they_are_and_in_order() -> None:
    messages = (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="  é \0 \U0001f600\n"),
        ChatMessage(role="assistant", content=""),
        ChatMessage(role="user", content="more"),
        ChatMessage(role="system", content="late"),
    )
    async with served(says(completion())) as (port, endpoint):
        await port.call(a_call(*messages))
    (asked,) = endpoint.asked
    assert asked.line.startswith("POST /v1/chat/completions ")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": "m",
        "messages": [{"role": message.role, "content": message.content} for message in messages],
    }


async def test_everything_that_was_asked_for_goes_out_and_nothing_else() -> None:
    said = {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 64,
        "seed": -1,
        "stop": ["\n\n", "END"],
        "response_format": {"type": "json_object"},
    }
    extra = {"top_k": 40, "chat_template_kwargs": {"enable_thinking": False}, "logit_bias": None}
    async with served(says(completion()), **said, extra_body=extra) as (port, endpoint):
        await port.call(a_call())
    (asked,) = endpoint.asked
    assert {**asked.json, "messages": None} == {"model": "m", "messages": None, **said, **extra}


async def test_the_newer_name_of_the_limit_goes_out_too() -> None:
    async with served(says(completion()), max_completion_tokens=9) as (port, endpoint):
        await port.call(a_call())
    assert endpoint.asked[0].json["max_completion_tokens"] == 9
    assert "max_tokens" not in endpoint.asked[0].json


def test_the_params_hold_every_argument_and_the_address_and_no_credential() -> None:
    arguments: dict[str, Any] = {
        "model": "reviewer",
        "temperature": 0.2,
        "top_p": None,
        "max_tokens": 7,
        "max_completion_tokens": None,
        "seed": 3,
        "stop": ("x",),
        "response_format": {"type": "text"},
        "extra_body": {"top_k": (1, 2)},
        "timeout_s": 2,
        "max_retries": 1,
    }
    client = a_client(
        ADDRESS, default_headers={"X-Secret": "secret-of-a-header"}, default_query={"key": "secret-in-a-query"}
    )
    port = model(client, **arguments)
    wanted = {**arguments, "base_url": ADDRESS, "stop": ["x"], "extra_body": {"top_k": [1, 2]}}
    assert port.params == wanted
    assert json.loads(canonical(port.params)) == wanted
    for shown in (repr(port), str(port), repr(port.params)):
        assert not any(secret in shown for secret in (KEY, "secret-of", "secret-in"))


def test_nobody_changes_the_params_from_outside() -> None:
    extra: dict[str, Any] = {"top": {"k": 1}}
    port = model(the_client(), extra_body=extra)
    extra["top"]["k"] = 2
    port.params["extra_body"]["top"]["k"] = 3  # type: ignore[index,call-overload] # what a careless reader might do
    assert port.params["extra_body"] == {"top": {"k": 1}}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"temperature": "0"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": math.inf}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"stop": "END"}, "stop"),
        ({"stop": []}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"response_format": "json"}, "response_format"),
        ({"extra_body": None}, "extra_body"),
        ({"extra_body": {"x": {1}}}, "extra_body.x"),
        ({"extra_body": {"temperature": 1}}, "extra_body.temperature"),
        ({"extra_body": {"model": "other"}}, "extra_body.model"),
        ({"extra_body": {"messages": []}}, "extra_body.messages"),
        ({"extra_body": {"stream": True}}, "extra_body.stream"),
        ({"extra_body": {"n": 2}}, "extra_body.n"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": None}, "timeout_s"),
        ({"timeout_s": math.inf}, "timeout_s"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
    ],
    ids=lambda value: json.dumps(value, default=str) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model(the_client(), **changed)
    assert refused.value.field == f"OpenAIChatModel.{field}"


def test_every_argument_must_be_said() -> None:
    from polyloop.adapters.openai import OpenAIChatModel

    port = model(the_client())
    names = port.params.keys() - {"base_url"}
    for name in sorted(names):
        with pytest.raises(TypeError, match=name):
            OpenAIChatModel(the_client(), **{key: port.params[key] for key in names - {name}})  # type: ignore[arg-type] # one is left out


def test_a_client_that_would_block_the_event_loop_is_refused() -> None:
    with OpenAI(base_url=ADDRESS, api_key=KEY) as client, pytest.raises(InvalidRequest) as refused:
        model(client)  # type: ignore[arg-type] # the mistake itself
    assert refused.value.field == "OpenAIChatModel.client"


@pytest.mark.parametrize(
    "url",
    ["http://me:pass-word@host/v1", "http://pass-word@host/v1", "http://host/v1?key=pass-word", "http://h/#pass-word"],
)
def test_an_address_that_may_hold_a_credential_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model(a_client(url))
    assert "pass-word" not in f"{refused.value!r} {refused.value}"


@pytest.mark.parametrize("url", ["/v1", "host/v1", "ftp://host/v1", "http:///v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model(a_client(url))
    assert refused.value.field == "OpenAIChatModel.client"


async def test_a_binding_is_refused_since_it_would_be_lost() -> None:
    async with served(says(completion())) as (port, endpoint):
        with pytest.raises(InvalidRequest) as refused:
            await port.call(a_call(binding={"tenant": "t"}))
    assert refused.value.field == "ModelCall.binding"
    assert endpoint.asked == []


async def test_the_client_stays_the_callers() -> None:
    client = a_client(ADDRESS, max_retries=9, timeout=3.0)
    port = model(client, max_retries=2)
    assert (client.max_retries, client.timeout, client.is_closed()) == (9, 3.0, False)
    # Its own bounds would cut an answer that `timeout_s` has time for.
    assert (port._client.max_retries, port._client.timeout) == (2, None)
    await client.close()
    assert port._client.is_closed()


async def test_a_key_that_changes_is_asked_for_before_each_request() -> None:
    keys = iter(("first-key-of-two", "second-key-of-two"))

    async def key() -> str:
        return next(keys)

    async with Endpoint(says(completion())) as endpoint, a_client(endpoint.url, api_key=key) as client:
        port = model(client)
        await port.call(a_call())
        await port.call(a_call())
    sent = [asked.headers["authorization"] for asked in endpoint.asked]
    assert sent == ["Bearer first-key-of-two", "Bearer second-key-of-two"]


def test_without_the_sdk_the_import_says_which_extra_to_install() -> None:
    program = "import sys\nsys.modules['openai'] = None\nimport polyloop.adapters.openai\n"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("pip install 'polyloop[openai]'")
