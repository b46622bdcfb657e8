"""The model port: what is sent, for how long, and which failure of the SDK is which of ours."""

from __future__ import annotations

import asyncio
import math
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError

from polyloop.adapters.openai.answers import error_answer, masked, reply_in
from polyloop.adapters.openai.errors import (
    ChatCompletionError,
    ConnectionFailedError,
    ErrorAnswerError,
    RequestNotSentError,
    TimedOutError,
    one_line,
)
from polyloop.ports import ModelCall
from polyloop.types import ChatMessage, InvalidRequest, JSONValue, ModelReply
from polyloop.types._checks import check_count, check_name, check_positive, check_seconds, reject
from polyloop.types._json import copy_object

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

_OWN_FIELDS: Final = frozenset(("model", "messages", "stream", "stream_options", "n"))
_PLAIN_HEADERS: Final = ("accept", "connection", "content-", "host", "user-agent", "x-stainless-")
"""How the names of headers begin that hold no credential."""


class OpenAIChatModel:
    """A `ModelPort` for any endpoint that speaks OpenAI's chat completions.

    Serves many calls at once, as far as the client's connections go. It keeps nothing between calls and closes
    nothing: the client is the caller's. Roles and contents go out as they are. Everything that is None is not sent,
    and shows as None in `params`: the server's own default then counts.

    What the client adds of itself (headers, query, organization, project) is not in `params`, for it may hold
    credentials: give what shapes replies here. The base URL is in `params`, for the same name stands for different
    models elsewhere: a run is resumed against the address that it was started with. Tokens in the *path* of a URL
    cannot be told from a path; do not use such a URL. The client's settings are taken when the model is built; a key
    that changes while it lives is given to the client as a function, which the SDK asks before each request.

    `ModelCall.binding` has no place in this protocol: a call with a binding is refused rather than sent without it.

    Args:
        client: The caller's client, with address, credentials and connections. Its own `timeout` and `max_retries`
            do not count here.
        model: The model's name at the endpoint.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
        max_tokens: The most tokens of output, under the name that most servers know.
        max_completion_tokens: The same under the newer name, reasoning included; give at most one of the two.
        seed: The seed of sampling, for servers that have one.
        stop: Texts that end the output; at least one, each not empty.
        response_format: Such as `{"type": "json_object"}`.
        extra_body: All other fields of the request, such as `top_k` or `reasoning_effort`; `{}` for none.
        timeout_s: Seconds for a whole call, retries and the waits between them included. Nothing else bounds it.
        max_retries: How often the SDK repeats a request that failed; 0 where a gateway does that.

    Raises:
        InvalidRequest: an argument is wrong; the client's base URL is no address, or holds a user, password, query or
            fragment.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        *,
        model: str,
        temperature: float | None,
        top_p: float | None,
        max_tokens: int | None,
        max_completion_tokens: int | None,
        seed: int | None,
        stop: Sequence[str] | None,
        response_format: Mapping[str, JSONValue] | None,
        extra_body: Mapping[str, JSONValue],
        timeout_s: float,
        max_retries: int,
    ) -> None:
        if not isinstance(client, AsyncOpenAI):
            reject("OpenAIChatModel.client", "an AsyncOpenAI, which does not block the event loop", client)
        check_name("OpenAIChatModel.model", model)
        check_seconds("OpenAIChatModel.timeout_s", timeout_s)
        check_count("OpenAIChatModel.max_retries", max_retries)
        named: dict[str, object] = {
            "temperature": _number("temperature", temperature),
            "top_p": _number("top_p", top_p),
            "max_tokens": _limit("max_tokens", max_tokens),
            "max_completion_tokens": _limit("max_completion_tokens", max_completion_tokens),
            "seed": _integer("seed", seed),
            "stop": _stop(stop),
            "response_format": _object("response_format", response_format),
        }
        if max_tokens is not None and max_completion_tokens is not None:
            raise InvalidRequest("OpenAIChatModel.max_completion_tokens", "give this or max_tokens, not both")
        extra = copy_object(extra_body, "OpenAIChatModel.extra_body")
        for name in sorted(extra.keys() & (_OWN_FIELDS | named.keys())):
            raise InvalidRequest(f"OpenAIChatModel.extra_body.{name}", _why_not_extra(name))
        # Everything is said here: the client's own bounds do not count, and `timeout_s` bounds the whole call.
        self._client = client.with_options(max_retries=max_retries, timeout=None)
        # Asked for here: the SDK imports these parts when they are first touched, which would hold up the event loop.
        self._completions = self._client.chat.completions.with_raw_response
        self._model = model
        self._timeout_s = timeout_s
        self._params = copy_object(
            {
                "model": model,
                "base_url": _base_url(client),
                **cast("dict[str, JSONValue]", named),
                "extra_body": extra,
                "timeout_s": timeout_s,
                "max_retries": max_retries,
            },
            "OpenAIChatModel",
        )
        self._body = {name: self._params[name] for name, value in named.items() if value is not None} | extra

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """Everything that shapes the replies, the address included; no credential."""
        return copy_object(self._params, "params")

    def __repr__(self) -> str:
        return f"OpenAIChatModel(model={self._model!r}, base_url={self._params['base_url']!r})"

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Ask once.

        Raises:
            ChatCompletionError: there is no reply that can be used; each condition has a class.
            InvalidRequest: the call has a binding.
        """
        if call.binding:
            raise InvalidRequest(
                "ModelCall.binding",
                "a chat endpoint has no place for it: give model_binding={}, or an adapter of yours",
            )
        answer, headers = await self._asked(call.messages)
        return reply_in(answer, lambda text: self._said(text, headers))

    async def _asked(self, messages: tuple[ChatMessage, ...]) -> tuple[bytes, Mapping[str, str]]:
        """The answer's body, and the headers that were sent."""
        sent = [{"role": message.role, "content": message.content} for message in messages]
        failure: ChatCompletionError
        try:
            async with asyncio.timeout(self._timeout_s) as bound:
                response = await self._completions.create(
                    model=self._model,
                    messages=cast("list[ChatCompletionMessageParam]", sent),
                    extra_body=self._body,
                )
                # The bytes, not the SDK's object: that one is built without validation, from whatever came.
                return response.content, response.http_request.headers
        except TimeoutError:
            if not bound.expired():
                raise
            failure = TimedOutError(self._timeout_s)
        except APIStatusError as error:
            failure = self._answered_with(error)
        except APIConnectionError as error:
            failure = ConnectionFailedError(type(error.__cause__ or error).__name__)
        except OpenAIError as error:
            failure = ChatCompletionError(f"the SDK failed ({type(error).__name__}): {self._said(str(error), {})}")
        except UnicodeEncodeError as error:
            failure = RequestNotSentError(error.encoding)
        # Raised out here: the exceptions above hold the request, with its headers and messages, and would come along
        # as the context of this one.
        raise failure

    def _answered_with(self, error: APIStatusError) -> ErrorAnswerError:
        # What is said about a key often quotes a part of it.
        silent = error.status_code in (401, 403)
        headers = error.request.headers
        return error_answer(error.status_code, {} if silent else error.body, lambda text: self._said(text, headers))

    def _said(self, text: str, headers: Mapping[str, str]) -> str:
        """What the endpoint says, on one line, cut, and without the credentials that it may quote."""
        return one_line(masked(text, credentials(self._client, headers)))


# ------------------------------------------------------------------------------------------- The arguments


def _number(name: str, value: object) -> object:
    if value is not None and type(value) is not float and type(value) is not int:
        reject(f"OpenAIChatModel.{name}", "a number or None", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"OpenAIChatModel.{name}", "must be a finite number")
    return value


def _integer(name: str, value: object) -> object:
    if value is not None and type(value) is not int:
        reject(f"OpenAIChatModel.{name}", "an int or None", value)
    return value


def _limit(name: str, value: object) -> object:
    if value is not None:
        check_positive(f"OpenAIChatModel.{name}", value)
    return value


def _object(name: str, value: Mapping[str, JSONValue] | None) -> object:
    return None if value is None else copy_object(value, f"OpenAIChatModel.{name}")


def _stop(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        reject("OpenAIChatModel.stop", "a sequence of strings or None", value)
    for index, each in enumerate(value):
        check_name(f"OpenAIChatModel.stop[{index}]", each)
    if not value:
        raise InvalidRequest("OpenAIChatModel.stop", "must not be empty; give None for no such texts")
    return list(value)


def _why_not_extra(name: str) -> str:
    if name in ("stream", "stream_options"):
        return "replies are not streamed: leave it out"
    if name == "n":
        return "a reply is one completion: leave it out"
    return f"give it as the argument `{name}`" if name != "messages" else "the messages are those of each call"


def _base_url(client: AsyncOpenAI) -> str:
    """The client's address, which is stored with each run.

    Raises:
        InvalidRequest: it is no address, or may hold a credential. It is not shown.
    """
    url = str(client.base_url)
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("OpenAIChatModel.client", "its base_url must be http(s)://host/path")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            "OpenAIChatModel.client", "its base_url must hold no user, password, query or fragment: it is stored"
        )
    return url.rstrip("/")


def credentials(client: AsyncOpenAI, headers: Mapping[str, str]) -> Iterator[str]:
    """Everything that may be one: the key, the headers that were sent and are not the SDK's, the query.

    The headers hold the key that this request was sent with; the client's own may have changed meanwhile.
    """
    yield client.api_key
    for name, value in (*client.default_headers.items(), *headers.items()):
        if isinstance(value, str) and not name.lower().startswith(_PLAIN_HEADERS):
            yield value
    yield from (value for value in client.default_query.values() if isinstance(value, str))
