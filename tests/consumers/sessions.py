"""A Python session in a process of its own, which stands for the container of an episode.

What is sent and what comes back is a value of `marshal`, after its length in four bytes: any string passes, and the
session begins without importing anything, which matters where hundreds of them do.
"""

from __future__ import annotations

import asyncio
import marshal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

_SESSION: Final = r"""
import marshal, os, sys

goal, ledger = eval(sys.argv[1])
requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0), os.dup2(null, 1), os.dup2(null, 2)

class Printed:
    def __init__(self):
        self.text = ""
    def write(self, text):
        self.text += text
    def flush(self):
        pass

def note(what):
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (what + "\n").encode())
    os.close(file)

names = {"__name__": "session", "note": note}

def run(code):
    sys.stdout = printed = Printed()
    try:
        exec(compile(code, "<action>", "exec"), names)
    except BaseException as error:
        printed.write(type(error).__name__ + ": " + str(error) + "\n")
    return printed.text

while head := requests.read(4):
    kind, code = marshal.loads(requests.read(int.from_bytes(head, "big")))
    answer = marshal.dumps(run(code) if kind == "run" else bool(names.get("answer") == goal))
    answers.write(len(answer).to_bytes(4, "big") + answer)
    answers.flush()
"""


class EpisodeUnavailable(Exception):  # noqa: N818 - the project's name for it
    """The session is gone."""


class Episode:
    """An open session with a goal: it is done when the variable `answer` equals it.

    `note(what)` writes a line into the ledger, from within the session.
    """

    def __init__(self, goal: object, ledger: Path | None = None) -> None:
        self._goal = goal
        self._ledger = ledger
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs.fileno())
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        self._writer.close()

    def _start(self, end: int) -> subprocess.Popen[bytes]:
        arguments = repr((self._goal, str(self._ledger)))
        command = [sys.executable, "-I", "-S", "-c", _SESSION, arguments]
        return subprocess.Popen(command, stdin=end, stdout=end, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """End the session, whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def execute(self, code: str) -> str:
        """Run a piece of code; what it printed, and what it raised."""
        return str(await self._ask("run", code))

    async def is_done(self) -> bool:
        """Ask the session whether the goal is reached."""
        return bool(await self._ask("done", ""))

    async def _ask(self, kind: str, code: str) -> object:
        request = marshal.dumps((kind, code))
        try:
            self._writer.write(len(request).to_bytes(4, "big") + request)
            await self._writer.drain()
            answer = await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4), "big"))
        except (ConnectionError, asyncio.IncompleteReadError):
            raise EpisodeUnavailable("the session is gone") from None
        except asyncio.CancelledError:
            # The code goes on until the session is ended, and its answer would be taken for the next one's.
            self.kill()
            raise
        return marshal.loads(answer)  # noqa: S302 - from our own session
