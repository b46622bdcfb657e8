"""What `OpenAIChatModel` does when there is no answer: errors, silence, cuts, cancellations; and what it shows."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import OpenAIError

from polyloop.adapters.openai import (
    ChatCompletionError,
    ConnectionFailedError,
    EmptyCompletionError,
    ErrorAnswerError,
    IncompleteCompletionError,
    MalformedCompletionError,
    OpenAIChatModel,
    RefusalError,
    RequestNotSentError,
    TimedOutError,
    ToolCallsError,
)
from polyloop.types import ChatMessage
from tests.adapters.calls import a_call
from tests.adapters.endpoint import (
    KEY,
    Asked,
    Behaviour,
    Endpoint,
    a_client,
    completion,
    cuts,
    hangs,
    model,
    says,
    sends,
    served,
)

PROMPT = "the plan is a secret of ours"
IN_A_HEADER = "header-credential-77"
IN_THE_QUERY = "q7x2-mb41-zz90-kk35"  # shares no piece with the others, which would hide it too
SECRETS = (KEY, IN_A_HEADER, IN_THE_QUERY, PROMPT)


@asynccontextmanager
async def guarded(behaviour: Behaviour, **changed: Any) -> AsyncIterator[tuple[OpenAIChatModel, Endpoint]]:
    """A model with credentials everywhere."""
    async with (
        Endpoint(behaviour) as endpoint,
        a_client(
            endpoint.url,
            default_headers={"X-Gateway": IN_A_HEADER},
            default_query={"key": IN_THE_QUERY},
        ) as client,
    ):
        yield model(client, **changed), endpoint


def shown(error: BaseException) -> str:
    """Everything that is shown of an exception by those who log it, chain and all."""
    return f"{error!r} {error} {vars(error)} {''.join(traceback.format_exception(error))}"


async def failure(behaviour: Behaviour, **changed: Any) -> ChatCompletionError:
    """What a call raises that is to fail, having shown no secret, and brought nothing of the SDK along."""
    async with guarded(behaviour, **changed) as (port, _):
        with pytest.raises(ChatCompletionError) as raised:
            await port.call(a_call(ChatMessage(role="user", content=PROMPT)))
    told = shown(raised.value)
    assert not [secret for secret in SECRETS if secret in told]
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    return raised.value


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529])
async def test_an_error_status_is_an_error_with_the_endpoints_words(status: int) -> None:
    error = await failure(says({"error": {"message": "too\nmuch", "type": "t", "code": "limit"}}, status=status))
    assert isinstance(error, ErrorAnswerError)
    assert (error.status, error.kind) == (status, "limit")
    assert str(error).endswith(f"HTTP {status}, limit: too much")


async def test_the_words_of_an_endpoint_are_cut_and_put_on_one_line() -> None:
    error = await failure(says({"error": {"message": "a \n\t b" * 500}}, status=500))
    assert len(str(error)) < 400
    assert "\n" not in str(error)


@pytest.mark.parametrize("status", [401, 403])
async def test_nothing_is_quoted_of_what_is_said_about_a_key(status: int) -> None:
    error = await failure(says({"error": {"message": f"wrong key {KEY[:6]}**{KEY[-4:]}", "code": KEY}}, status=status))
    assert isinstance(error, ErrorAnswerError)
    assert "wrong key" not in str(error)


@pytest.mark.parametrize("secret", [KEY, KEY[3:14], f"Bearer {KEY}", IN_A_HEADER, IN_THE_QUERY])
@pytest.mark.parametrize(
    "place", [lambda said: {"message": said}, lambda said: {"code": said}, lambda said: {"type": said}, str]
)
async def test_a_credential_that_an_error_quotes_is_masked(secret: str, place: Any) -> None:
    for answer, status in ((place(f"got {secret}!"), 400), ({"error": place(f"got {secret}!")}, 500)):
        assert secret not in shown(await failure(says(answer, status=status)))


async def test_a_credential_that_an_error_in_a_success_quotes_is_masked() -> None:
    assert "[masked]" in str(await failure(says({"error": {"message": f"got {KEY}"}})))


async def test_the_request_that_an_error_quotes_is_not_shown() -> None:
    """Servers that validate requests send them back: the body is never shown, only what it says of itself."""
    detail = [{"loc": ["body", "messages"], "msg": "bad", "input": PROMPT}]
    error = await failure(says({"detail": detail}, status=422))
    assert isinstance(error, ErrorAnswerError)
    assert error.status == 422


async def test_a_page_instead_of_json_is_an_error_answer() -> None:
    error = await failure(sends(b"<html>Bad gateway</html>", status=502, kind="text/html"))
    assert isinstance(error, ErrorAnswerError)
    assert error.status == 502


async def headless(asked: Asked) -> None:
    await asked.send(b"HTP/9 what?\r\n\r\n")
    asked.writer.close()


async def within_the_head(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\ncontent-")
    asked.writer.close()


async def within_the_body(asked: Asked) -> None:
    await asked.answer(b'{"choices": [', length=1000)
    asked.writer.close()


async def not_unpackable(asked: Asked) -> None:
    await asked.send(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc")


@pytest.mark.parametrize("behaviour", [cuts, headless, within_the_head, within_the_body, not_unpackable])
async def test_a_connection_that_is_cut_or_talks_nonsense_is_a_failure(behaviour: Behaviour) -> None:
    error = await failure(behaviour)
    assert isinstance(error, ConnectionFailedError)
    assert error.kind.isidentifier()


async def test_an_endpoint_that_is_not_there_is_a_failure() -> None:
    async with Endpoint(cuts) as endpoint:
        url = endpoint.url
    async with a_client(url) as client:
        with pytest.raises(ConnectionFailedError) as raised:
            await model(client).call(a_call())
    assert raised.value.kind == "ConnectError"


async def test_a_call_that_takes_too_long_ends_and_closes_its_connection() -> None:
    async with guarded(cuts, timeout_s=0.05) as (port, endpoint):
        endpoint.behaviour = hangs(endpoint)
        with pytest.raises(TimedOutError) as raised:
            await port.call(a_call())
        await until(lambda: endpoint.hung_up == 1)
    assert raised.value.timeout_s == 0.05
    assert raised.value.__context__ is None


async def test_the_limit_holds_for_an_answer_that_comes_byte_by_byte() -> None:
    """A limit for each read would never be reached."""

    async def drips(asked: Asked) -> None:
        await asked.answer(b"", length=10**9)
        while True:
            await asked.send(b" ")
            await asyncio.sleep(0.01)

    assert isinstance(await failure(drips, timeout_s=0.2), TimedOutError)


async def test_the_limit_holds_for_retries_and_the_waits_between_them() -> None:
    async with guarded(says({}, status=503), timeout_s=0.3, max_retries=100) as (port, endpoint):
        with pytest.raises(TimedOutError):
            await port.call(a_call())
        assert len(endpoint.asked) < 10


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_failed_request_is_repeated_as_often_as_was_said_whatever_the_client_says(retries: int) -> None:
    async with (
        Endpoint(says({"error": {"message": "busy"}}, status=503)) as endpoint,
        a_client(endpoint.url, max_retries=5, timeout=0.001) as client,
    ):
        with pytest.raises(ErrorAnswerError):
            await model(client, max_retries=retries).call(a_call())
        assert len(endpoint.asked) == 1 + retries


async def test_a_retry_that_succeeds_is_a_reply() -> None:
    async def first_busy(asked: Asked) -> None:
        await (says(completion()) if len(endpoint.asked) > 1 else says({}, status=500))(asked)

    async with served(first_busy, max_retries=1) as (port, endpoint):
        assert (await port.call(a_call())).text == "Hello."


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
async def test_a_lone_surrogate_in_a_message_is_said_and_not_sent(text: str) -> None:
    async with guarded(says(completion())) as (port, endpoint):
        with pytest.raises(RequestNotSentError) as raised:
            await port.call(a_call(ChatMessage(role="user", content=PROMPT + text)))
    assert PROMPT not in shown(raised.value)
    assert raised.value.__context__ is None
    assert endpoint.asked == []


@pytest.mark.parametrize("key", ["sk-not-for-a-header-\u20ac", "sk-not-for\na-header", "sk-not-for-a-header\0"])
async def test_a_key_that_no_header_can_hold_is_not_shown(key: str) -> None:
    async with Endpoint(says(completion())) as endpoint, a_client(endpoint.url, api_key=key) as client:
        with pytest.raises(ChatCompletionError) as raised:
            await model(client).call(a_call())
    assert "not-for" not in shown(raised.value)
    assert endpoint.asked == []


async def test_a_key_that_cannot_be_had_is_a_failure_of_the_call() -> None:
    async def no_key() -> str:
        raise OpenAIError(f"no token for {KEY}")

    async with Endpoint(says(completion())) as endpoint, a_client(endpoint.url, api_key=no_key) as client:
        with pytest.raises(ChatCompletionError) as raised:
            await model(client).call(a_call())
    assert "OpenAIError" in str(raised.value)


@pytest.mark.parametrize("status", [200, 400])
async def test_a_key_is_masked_that_has_been_replaced_while_the_request_was_under_way(status: int) -> None:
    keys = iter(("first-key-of-two", "second-key-of-two"))

    async def key() -> str:
        return next(keys)

    async def quotes(asked: Asked) -> None:
        quoted = asked.headers["authorization"]
        if "first" in quoted:
            await second.wait()
        else:
            second.set()
        await says({"error": {"message": f"wrong: {quoted}"}}, status=status)(asked)

    second = asyncio.Event()
    async with Endpoint(quotes) as endpoint, a_client(endpoint.url, api_key=key) as client:
        port = model(client)
        ends = await asyncio.gather(*(port.call(a_call()) for _ in range(2)), return_exceptions=True)
    assert len(endpoint.asked) == 2
    for end in ends:
        assert isinstance(end, ErrorAnswerError)
        assert "[masked]" in str(end)
        assert "key-of-two" not in shown(end)


async def test_an_error_of_ours_that_comes_out_of_the_client_passes() -> None:
    async def no_key() -> str:
        raise TimeoutError("the vault is slow")

    async with Endpoint(says(completion())) as endpoint, a_client(endpoint.url, api_key=no_key) as client:
        with pytest.raises(TimeoutError, match="the vault is slow"):
            await model(client).call(a_call())


# ------------------------------------------------------------------------------------------- Cancellation


async def until(condition: Any) -> None:
    """Let the loop turn until it is so; the test's own limit bounds it."""
    while not condition():  # noqa: ASYNC110 - what it waits for happens at the other end of a socket
        await asyncio.sleep(0.001)


async def test_a_cancellation_in_mid_request_passes_and_the_server_sees_the_connection_close() -> None:
    async with guarded(cuts) as (port, endpoint):
        endpoint.behaviour = hangs(endpoint)
        before = asyncio.all_tasks()
        call = asyncio.create_task(port.call(a_call()))
        await endpoint.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: endpoint.hung_up == 1 and endpoint.open_connections == 0)
        assert asyncio.all_tasks() <= before

        endpoint.behaviour = says(completion())
        assert (await port.call(a_call())).text == "Hello."


async def test_a_cancellation_in_mid_answer_passes_and_the_server_sees_the_connection_close() -> None:
    async def half(asked: Asked) -> None:
        await asked.answer(b'{"choices": [', length=1000)
        await hangs(endpoint)(asked)

    async with served(half) as (port, endpoint):
        call = asyncio.create_task(port.call(a_call()))
        await endpoint.waiting.wait()
        await asyncio.sleep(0.02)  # until the half is there; one that comes later is cancelled as well
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: endpoint.hung_up == 1)


async def test_a_cancellation_between_two_retries_passes() -> None:
    async with served(says({}, status=503), max_retries=5) as (port, endpoint):
        call = asyncio.create_task(port.call(a_call()))
        await endpoint.waiting.wait()
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_many_calls_that_are_cut_short_leave_no_connection_and_no_task() -> None:
    async with served(cuts) as (port, endpoint):
        endpoint.behaviour = hangs(endpoint)
        before = asyncio.all_tasks()
        calls = [asyncio.create_task(port.call(a_call())) for _ in range(30)]
        await until(lambda: len(endpoint.asked) == 30)
        for call in calls:
            call.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True)
        )
        await until(lambda: endpoint.open_connections == 0)
        assert not [task for task in asyncio.all_tasks() - before if not task.done()]
        gc.collect()


@pytest.mark.parametrize(
    "error",
    [
        ChatCompletionError("no", call_id="c"),
        RequestNotSentError("utf-8"),
        ConnectionFailedError("ReadError"),
        TimedOutError(1.5),
        ErrorAnswerError(500, "kind", "said"),
        MalformedCompletionError("bad", call_id="c"),
        ToolCallsError(call_id="c"),
        RefusalError(3, call_id=None),
        IncompleteCompletionError("length", call_id="c"),
        EmptyCompletionError("no text", call_id=None),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickle_and_copy(error: ChatCompletionError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))
