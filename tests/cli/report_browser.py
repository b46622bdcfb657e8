"""A real Chromium without a window, driven over a pair of pipes by its own protocol. Nothing but the standard library.

Every request that the page makes is noted, and whatever would leave the machine ends at a proxy that notes it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S: Final = 90

if CHROMIUM is None and os.environ.get("POLYLOOP_REQUIRE_CHROMIUM") == "1":
    raise RuntimeError("POLYLOOP_REQUIRE_CHROMIUM=1, and there is no chromium: apt-get install chromium")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, a package of Debian")


class _Noting(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        line = self.request.recv(4096).split(b"\r\n")[0].decode("latin-1")
        self.server.noted.append(line)  # type: ignore[attr-defined]  # set below
        self.request.sendall(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@contextlib.contextmanager
def _proxy() -> Iterator[tuple[int, list[str]]]:
    noted: list[str] = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Noting) as server:
        server.daemon_threads = True
        server.noted = noted  # type: ignore[attr-defined]  # for the handler
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1], noted
        finally:
            server.shutdown()
            thread.join()


class Page:
    """One page of the browser."""

    def __init__(self, write: int, read: int, left_machine: list[str]) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self.left_machine = left_machine
        """What reached the proxy, the browser's own requests included."""

    def open_blank(self) -> None:
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]  # type: ignore[no-any-return]  # as the protocol has it

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
            assert ready, "chromium does not answer"
            read = os.read(self._read, 1 << 20)
            assert read, "chromium has ended"
            self._buffer += read
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "id" not in message:
            self.events.append(message)
            if message["method"] == "Page.javascriptDialogOpening":
                self._next += 1
                answer = {"id": self._next, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                os.write(self._write, json.dumps({**answer, "sessionId": self._session}).encode() + b"\0")
        return message

    def load(self, path: Path) -> None:
        """Load a file, and wait until it has loaded."""
        self.events.clear()
        self.command("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._message()

    def run(self, script: str) -> Any:
        """The value of an expression in the page, of a promise what it comes to."""
        done = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def settle(self) -> None:
        """Let everything that the page has begun come to something: two turns of drawing, and a breath."""
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 300)))")

    def press(self, key: str, code: int) -> None:
        """A key, as from a keyboard."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        named = " " if key == "Space" else key
        common = {"key": named, "code": key, "windowsVirtualKeyCode": code}
        self.command("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.command("Input.dispatchKeyEvent", type="keyUp", **common)

    def requests(self) -> list[str]:
        """The addresses that the page asked for, itself first."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Dialogs, uncaught errors, and what the browser logged: a violation of the policy, for one."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Page.javascriptDialogOpening":
                found.append(f"dialog: {params['message']}")
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails'].get('exception', {}).get('description')}")
            elif event["method"] == "Log.entryAdded":
                found.append(f"log: {params['entry']['text']}")
        return found


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """A browser with one blank page, for the time of a `with`."""
    assert CHROMIUM is not None
    with _proxy() as (port, left_machine), contextlib.ExitStack() as stack:
        ends = [os.pipe(), os.pipe()]
        for end in (end for pair in ends for end in pair):
            stack.callback(_closed, end)
        # Chromium reads from 3 and writes to 4; copies far from there, so that none is in the other's way.
        theirs = [
            fcntl.fcntl(end, fcntl.F_DUPFD, 40 + 10 * place) for place, end in enumerate((ends[0][0], ends[1][1]))
        ]
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",  # tests run as root, too; the pages are ours
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            f"--proxy-server=http://127.0.0.1:{port}",
            "--proxy-bypass-list=<-loopback>",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-default-apps",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
        ]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "chromium", *command],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in theirs:
            os.close(end)
        os.close(ends[0][0])
        os.close(ends[1][1])
        try:
            page = Page(ends[0][1], ends[1][0], left_machine)
            page.open_blank()
            yield page
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _closed(end: int) -> None:
    with contextlib.suppress(OSError):
        os.close(end)
