"""The examples' client of OpenAI-compatible endpoints, against a server that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from examples.chat import MAX_BYTES, ChatModel
from polyloop import ChatMessage, ModelCall, ModelReply, RunKey

SECRET = "sk-planted-0123456789"  # noqa: S105 - planted, to be looked for

CALL = ModelCall(
    messages=(ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="\ud800 ä?")),
    call_index=0,
    key=RunKey("k"),
    result_id="r",
    binding={},
)


@dataclasses.dataclass
class _Server:
    url: str
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    arrived: threading.Event = dataclasses.field(default_factory=threading.Event)
    waits: threading.Event | None = None
    asked: list[tuple[str, str | None, Any]] = dataclasses.field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setenv("no_proxy", "*")

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(body)

        def do_GET(self) -> None:
            self._answer(None)

        def _answer(self, body: Any) -> None:
            said.asked.append((self.path, self.headers["Authorization"], body))
            said.arrived.set()
            if said.waits is not None:
                said.waits.wait(10)
            # A client that has given up is no fault of the server's.
            with contextlib.suppress(ConnectionError):
                self._send()

        def _send(self) -> None:
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        said = _Server(url=f"http://127.0.0.1:{httpd.server_port}/v1")
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield said
        finally:
            httpd.shutdown()
            thread.join()


def _model(url: str, api_key: str | None = SECRET, timeout_s: float = 10.0) -> ChatModel:
    return ChatModel(base_url=url, model="m", sampling={"temperature": 0}, api_key=api_key, timeout_s=timeout_s)


def _completion(**message: Any) -> bytes:
    return json.dumps({"id": "c-1", "choices": [{"message": {"role": "assistant", **message}}]}).encode()


async def _failure(model: ChatModel) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, its text is looked at
        await model.call(CALL)
    return f"{type(caught.value).__name__}: {caught.value}"


async def test_it_posts_the_prompt_and_reads_the_reply(server: _Server) -> None:
    server.body = _completion(content="Yes.", reasoning_content="Hm.")
    assert await _model(server.url + "/").call(CALL) == ModelReply(call_id="c-1", text="Yes.", reasoning="Hm.")
    ((path, authorization, body),) = server.asked
    assert (path, authorization) == ("/v1/chat/completions", f"Bearer {SECRET}")
    assert body == {
        "model": "m",
        "temperature": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\ud800 ä?"}],
    }


@pytest.mark.parametrize("call_id", ["", None])
async def test_a_completion_without_an_id_has_none(call_id: str | None, server: _Server) -> None:
    server.body = json.dumps({"id": call_id, "choices": [{"message": {"content": "x"}}]}).encode()
    assert (await _model(server.url).call(CALL)).call_id is None


async def test_without_a_key_none_is_sent(server: _Server) -> None:
    server.body = _completion(content="Yes.", reasoning="")
    assert await _model(server.url, api_key=None).call(CALL) == ModelReply(call_id="c-1", text="Yes.", reasoning=None)
    assert server.asked[0][1] is None


@pytest.mark.parametrize("message", [{}, {"content": None, "tool_calls": [{}]}, {"content": ""}])
async def test_a_message_without_text_is_an_empty_reply(message: dict[str, Any], server: _Server) -> None:
    server.body = _completion(**message)
    assert (await _model(server.url).call(CALL)).text == ""


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 5}]}', b"[" * 100_000, b"\xff"],
)
async def test_an_answer_that_is_no_completion_is_an_error(body: bytes, server: _Server) -> None:
    server.body = body
    assert "no chat completion" in await _failure(_model(server.url))


async def test_an_answer_without_end_is_an_error(server: _Server) -> None:
    server.body = b" " * (MAX_BYTES + 1)
    assert f"more than {MAX_BYTES} bytes" in await _failure(_model(server.url))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
async def test_a_refusal_says_why_and_never_quotes_the_key(status: int, server: _Server) -> None:
    server.status = status
    server.body = f"no such model; your key {SECRET} (sk-pla***789)".encode()
    said = await _failure(_model(server.url))
    assert f"HTTP {status}" in said
    assert SECRET not in said
    # Where the key is the matter, servers quote parts of it.
    assert ("no such model" in said) is (status not in (401, 403))


async def test_the_key_does_not_follow_a_redirect(server: _Server) -> None:
    server.status, server.headers = 302, {"Location": server.url + "/elsewhere"}
    assert SECRET not in await _failure(_model(server.url))
    followed = [authorization for path, authorization, _ in server.asked if path.endswith("/elsewhere")]
    assert followed
    assert set(followed) == {None}


async def test_a_silent_server_is_given_up(server: _Server) -> None:
    server.waits = threading.Event()
    try:
        assert "TimeoutError" in await _failure(_model(server.url, timeout_s=0.05))
    finally:
        server.waits.set()


async def test_a_cancelled_call_returns_at_once(server: _Server) -> None:
    server.waits, server.body = threading.Event(), _completion(content="late")
    task = asyncio.create_task(_model(server.url).call(CALL))
    assert await asyncio.to_thread(server.arrived.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.waits.set()


def test_its_params_hold_everything_but_the_key() -> None:
    model = _model("https://host/v1/")
    assert model.params == {"model": "m", "base_url": "https://host/v1", "sampling": {"temperature": 0}}
    assert SECRET not in repr(model) + str(model)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/v1",
        "ftp://host",
        "file:///etc/hostname",
        "https://",
        f"https://user:{SECRET}@host",
        f"http://h?k={SECRET}",
    ],
)
def test_an_address_that_is_none_or_holds_a_password_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ValueError, match="base URL") as caught:
        _model(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["", f"{SECRET}\n", f" {SECRET}", f"{SECRET}ä", f"{SECRET}\x00"])
def test_a_key_that_no_header_can_hold_is_refused_unquoted(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        _model("http://host", api_key=key)
    assert SECRET not in str(caught.value)
