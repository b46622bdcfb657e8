"""A model behind any OpenAI-compatible endpoint, with nothing but the standard library."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from polyloop import JSONValue, ModelCall, ModelReply

MAX_BYTES = 10_000_000

_KEY = re.compile("[!-~]+")


class ChatModel:
    """A `ModelPort` that posts to `<base_url>/chat/completions`. No retries: those belong to a gateway.

    Whatever goes wrong is raised, and stops the run with `llm_error`. The key is in no message, no
    representation and not in `params`; it is not sent along when a server redirects.

    A cancelled call returns at once. Its thread is left to end by itself, within `timeout_s`.

    Args:
        base_url: Such as `https://api.openai.com/v1`. It must hold no name or password: it is stored with the run.
        model: The model's name there.
        sampling: What else goes into the request: temperature, seed, length.
        api_key: None where the endpoint wants none.
        timeout_s: How long the server may be silent.

    Raises:
        ValueError: the address is no plain http(s) URL, or the key is none that a header can hold.
    """

    def __init__(
        self, *, base_url: str, model: str, sampling: Mapping[str, JSONValue], api_key: str | None, timeout_s: float
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            # Not shown: what is wrong with it may be a password.
            raise ValueError("the base URL must be http(s)://host/path, without user, password and query")
        if api_key is not None and not _KEY.fullmatch(api_key):
            # Checked here, for http.client would quote it.
            raise ValueError("the API key must be printable ASCII without blanks")
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._sampling = dict(sampling)
        self._api_key = api_key
        self._timeout_s = timeout_s

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """Everything that shapes the replies, without the key."""
        return {"model": self._model, "base_url": self._base_url, "sampling": self._sampling}

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Ask once."""
        messages = [{"role": message.role, "content": message.content} for message in call.messages]
        body = json.dumps({**self._sampling, "model": self._model, "messages": messages}).encode("ascii")
        return _reply(await asyncio.to_thread(self._post, body))

    def _post(self, body: bytes) -> bytes:
        request = urllib.request.Request(f"{self._base_url}/chat/completions", data=body)  # noqa: S310 - http(s), checked
        request.add_header("Content-Type", "application/json")
        if self._api_key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._api_key}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310 - likewise
                answered: bytes = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise ConnectionError(f"HTTP {error.code} {error.reason}{self._said(error)}") from None
        if len(answered) > MAX_BYTES:
            raise ValueError(f"the endpoint answered with more than {MAX_BYTES} bytes")
        return answered

    def _said(self, error: urllib.error.HTTPError) -> str:
        """What the server says about a failure, but for one about the key: servers quote parts of it."""
        if error.code in (401, 403):
            return ""
        text = error.read(2_000).decode("utf-8", "replace")
        return ": " + (text if self._api_key is None else text.replace(self._api_key, "[key]"))


def _reply(answered: bytes) -> ModelReply:
    try:
        answer: Any = json.loads(answered)
        message = answer["choices"][0]["message"]
        call_id, text = answer.get("id"), message.get("content")
        reasoning = message.get("reasoning_content") or message.get("reasoning")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the endpoint's answer is no chat completion: {type(error).__name__}") from None
    # A message without text, such as one of native tool calls, is an empty reply: the parser says so to the model.
    return ModelReply(call_id=call_id or None, text=text or "", reasoning=reasoning or None)
