"""An environment of shell commands: each action is one command, run by a shell of its own in the run's directory.

What is worth copying:

- **A command ends as a whole.** It gets a process group, and the group is killed when the shell has exited, when time
  is up and when the run is cancelled. Killing the shell alone would leave what it started at work for hours. For the
  same reason nothing that a command puts into the background outlives it.
- **A descendant that holds the output open holds up nobody.** What counts is that the shell has exited, not that
  everybody has closed the pipe.
- **What was written before the end is kept**, whichever end it was, and cut at the limit while it comes: an endless
  writer costs no memory.
- **Output is whatever bytes a program writes.** They are decoded as they come, and what is no UTF-8 becomes U+FFFD; a
  character that arrives in two pieces stays one.
- **An exit code is no error.** The command ran, so the model reads the code and the output. Only a shell that cannot be
  started is an `ENV_ERROR`, and a command that no shell can be given is `NOT_EXECUTED`.

What it does not do: fence anything in. A command may do all that its user may, and one that makes a session of its own
(`setsid`) is out of the group's reach. Run it in a container, and let the container's end be the last word.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from polyloop import Action, ActionKind, ActionOutcome, ActionStatus, JSONValue

_SHELL: Final = ("/bin/sh", "-c")
_READ_BYTES: Final = 1 << 20
"""More than a pipe holds: one read takes all that is there."""


class Ended(NamedTuple):
    """A command that was run."""

    how: str
    """`exit code 0`, `killed by signal 9`, or `killed after 60 s`."""
    output: str
    """The first characters of what it wrote, on standard output and standard error together."""
    cut_chars: int
    """How many more there were."""


class NoCommandError(Exception):
    """No shell can be given this text."""


class Shell:
    """Runs commands in a directory, any number of them at once.

    Args:
        directory: Where each command starts.
        workspace: What stands for the directory in `params`: its path, or the name of what is in it. A run is resumed
            with the same one only, so two directories of one name must be as good as one.
        environment: All environment variables that a command sees. Handing it those of the process would hand it the
            process's credentials.
        time_limit_s: How long a command may take, in seconds.
        max_output_chars: How much of its output is kept.
    """

    def __init__(
        self,
        *,
        directory: Path,
        workspace: str,
        environment: Mapping[str, str],
        time_limit_s: float,
        max_output_chars: int,
    ) -> None:
        self._directory = directory
        self._workspace = workspace
        self._environment = dict(environment)
        self._time_limit_s = time_limit_s
        self._max_output_chars = max_output_chars

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """What shapes the output. The variables are among it: what a command can read is no secret any more."""
        return {
            "shell": _SHELL,
            "workspace": self._workspace,
            "environment": self._environment,
            "time_limit_s": self._time_limit_s,
            "max_output_chars": self._max_output_chars,
        }

    async def run(self, command: str) -> Ended:
        """Run one command to its end. When this has returned or raised, nothing of its process group is left.

        Raises:
            NoCommandError: the text holds a NUL or is too long, so there is no such command.
            OSError: the shell cannot be started.
        """
        source, sink = os.pipe()
        try:
            process = self._start(command, sink)
        except BaseException:
            os.close(source)
            raise
        finally:
            os.close(sink)
        output = _Output(source, self._max_output_chars)
        try:
            in_time = await self._exited(process)
        finally:
            text, cut = output.close()
        return Ended(_how(process.returncode) if in_time else f"killed after {self._time_limit_s:g} s", text, cut)

    def _start(self, command: str, sink: int) -> subprocess.Popen[bytes]:
        # Not asyncio's own function: a cancellation between fork and return would leave nobody to kill the group.
        try:
            return subprocess.Popen(  # noqa: S603 - running what it is given is what a shell is for
                [*_SHELL, _encoded(command)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise NoCommandError("the command is too long for a shell; write it to a file first") from None
            raise

    async def _exited(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the shell, and end what is left of its group. False if it ran out of time."""
        exited = _watched(process)
        try:
            async with asyncio.timeout(self._time_limit_s):
                await exited.wait()
        except TimeoutError:
            # It may have exited in the very turn in which the time ran out.
            return exited.is_set()
        finally:
            # As long as the group has members, nobody else gets its number. Permission is what some systems say is
            # missing where only members are left that have exited already.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await exited.wait()
        return True


def _encoded(command: str) -> bytes:
    try:
        encoded = command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise NoCommandError("the command holds half a character, and cannot be written as UTF-8") from None
    if b"\0" in encoded:
        raise NoCommandError("the command holds a NUL character, which no argument of a process can")
    return encoded


def _how(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"killed by signal {-returncode}"


def _watched(process: subprocess.Popen[bytes]) -> asyncio.Event:
    """An event for the end of a process. A thread each, for those of the default pool are few."""
    exited, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(exited.set)

    threading.Thread(target=wait, daemon=True).start()
    return exited


class _Output:
    """Takes what comes out of a pipe, as it comes, and keeps the beginning."""

    def __init__(self, source: int, limit: int) -> None:
        self._source = source
        self._room = limit
        self._cut_chars = 0
        self._kept: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._loop = asyncio.get_running_loop()
        os.set_blocking(source, False)
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._source, _READ_BYTES)
            self._take(self._decoder.decode(chunk))
            if not chunk:
                self._loop.remove_reader(self._source)

    def _take(self, text: str) -> None:
        kept = text[: self._room]
        self._kept.append(kept)
        self._room -= len(kept)
        self._cut_chars += len(text) - len(kept)

    def close(self) -> tuple[str, int]:
        """Take what is there, whoever may still hold the other end; the text, and how much of it was cut."""
        self._read()
        self._loop.remove_reader(self._source)
        os.close(self._source)
        self._take(self._decoder.decode(b"", final=True))
        return "".join(self._kept), self._cut_chars


class ShellExecutor:
    """An action executor for the commands of one run, as `CodeBlockParser` reads them from fenced blocks.

    An observation is how the command ended, in brackets, and below it what it wrote. The first line comes first so that
    it is never what is cut off. There is no completion signal: such a run ends with the model's final answer.

    A command is never repeated: a run that was killed inside one ends with `resume_state_unknown`.
    """

    tool_schemas: tuple[Mapping[str, JSONValue], ...] = ()

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """The shell's."""
        return self._shell.params

    @property
    def accepts(self) -> ActionKind:
        """Text: the command itself is the action."""
        return ActionKind.TEXT

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Run the command."""
        try:
            ended = await self._shell.run(action.action_text)
        except NoCommandError as problem:
            return _outcome(ActionStatus.NOT_EXECUTED, str(problem))
        except OSError as problem:
            return _outcome(ActionStatus.ENV_ERROR, f"the shell cannot be started: {problem}")
        return _outcome(ActionStatus.EXECUTED, f"[{ended.how}]\n{ended.output}", ended.cut_chars)


def _outcome(status: ActionStatus, observation: str, cut_chars: int = 0) -> ActionOutcome:
    return ActionOutcome(status=status, observation=observation, completed=False, truncated_chars=cut_chars)
