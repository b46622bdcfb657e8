"""The system calls of real processes, as `strace` saw them.

A call is two events, its begin and its end, in the order in which the kernel was entered and left: what a thread does
after a call stands behind the call's end. Calls that change files in a way that `disk.py` does not know are refused
by it, so they are recorded too.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import pytest

REQUIRE: Final = "POLYLOOP_REQUIRE_STRACE"
"""Set to 1, it makes a missing strace a failure instead of a skip."""

CALLS: Final = (
    *("openat", "mkdir", "mkdirat", "write", "pwrite64", "ftruncate", "fdatasync", "fsync", "flock", "close"),
    *("?open", "?creat", "?openat2", "writev", "pwritev", "?pwritev2", "truncate", "fallocate", "?copy_file_range"),
    *("sendfile", "splice", "tee", "sync", "syncfs", "sync_file_range", "msync", "?rename", "?renameat", "renameat2"),
    *("?link", "linkat", "?symlink", "symlinkat", "?unlink", "unlinkat", "?rmdir", "mmap"),
)
"""What is recorded; a question mark says that not every processor's Linux has it."""

_LINE: Final = re.compile(r"(\d+) +([\d.]+) (.*)", re.DOTALL)
_BEGUN: Final = re.compile(r"(\w+)\((.*) <unfinished \.\.\.>")
_RESUMED: Final = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_WHOLE: Final = re.compile(r"(\w+)\((.*)", re.DOTALL)
_RESULT: Final = re.compile(r"(.*)\) += (-?\d+|0x[0-9a-f]+|\?)(?:<((?:\\x..)*)>)?(?: (\w+).*)?", re.DOTALL)
_BYTES: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_OPEN_FILE: Final = re.compile(r"(?:-?\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>(?:\(deleted\))?")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One system call. Arguments are as strace prints them, with all strings in hexadecimal."""

    line: int
    """The line of the trace on which it begins."""
    thread: int
    name: str
    args: tuple[str, ...]
    result: int | None = None
    """None while it is under way, and for good if its process was killed in it."""
    error: str | None = None
    opened: str | None = None
    """The path of the file that it opened."""

    def __str__(self) -> str:
        shown = ", ".join(each if len(each) < 40 else f"{len(each)} characters" for each in map(_readable, self.args))
        return f"line {self.line}: {self.name}({shown})"

    def path(self, arg: int) -> str:
        """The path of the open file that an argument stands for; empty for what has none."""
        found = _OPEN_FILE.fullmatch(self.args[arg])
        return "" if found is None else os.fsdecode(_unescaped(found[1]))

    def data(self, arg: int) -> bytes:
        """The bytes that an argument holds."""
        found = _BYTES.fullmatch(self.args[arg])
        if found is None:
            raise ValueError(f"strace cut an argument short: {self}")
        return _unescaped(found[1])

    def paths(self) -> Iterator[str]:
        """Every path that stands in its arguments or its result."""
        for arg in range(len(self.args)):
            if _OPEN_FILE.fullmatch(self.args[arg]):
                yield self.path(arg)
            elif self.name not in ("write", "pwrite64") and _BYTES.fullmatch(self.args[arg]):
                yield os.fsdecode(self.data(arg))
        if self.opened is not None:
            yield self.opened


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """The kernel was entered."""

    call: Call


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The kernel was left."""

    call: Call


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """A thread or process is no more."""

    thread: int


Event: TypeAlias = Begin | End | Gone


def _unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _readable(arg: str) -> str:
    return re.sub(r"(?:\\x[0-9a-f]{2})+", lambda found: ascii(_unescaped(found[0]))[2:-1], arg)


def parse(text: str) -> list[Event]:
    """The events of a trace that was written with `-f -y -xx -ttt`."""
    events: list[Event] = []
    under_way: dict[int, Call] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        found = _LINE.fullmatch(line)
        if found is None:
            if line:
                raise ValueError(f"line {number} of the trace cannot be read: {line[:200]}")
            continue
        events += _events(number, int(found[1]), found[3], under_way)
    return events


def _events(number: int, thread: int, text: str, under_way: dict[int, Call]) -> Iterator[Event]:
    if text.startswith("+++"):
        under_way.pop(thread, None)
        yield Gone(thread)
    elif found := _BEGUN.fullmatch(text):
        call = Call(line=number, thread=thread, name=found[1], args=_split(found[2]))
        under_way[thread] = call
        yield Begin(call)
    elif found := _RESUMED.fullmatch(text):
        yield End(_ended(under_way.pop(thread), found[2]))
    elif found := _WHOLE.fullmatch(text):
        call = _ended(Call(line=number, thread=thread, name=found[1], args=()), found[2])
        yield Begin(dataclasses.replace(call, result=None, error=None, opened=None))
        yield End(call)
    elif not text.startswith("---"):
        raise ValueError(f"line {number} of the trace cannot be read: {text[:200]}")


def _split(text: str) -> tuple[str, ...]:
    # Strings are in hexadecimal and structures are not among the calls, so a comma always separates.
    return tuple(text.split(", ")) if text else ()


def _ended(call: Call, text: str) -> Call:
    found = _RESULT.fullmatch(text)
    if found is None:
        raise ValueError(f"the end of {call} cannot be read: {text[:200]}")
    args = call.args + _split(found[1].removeprefix(", "))
    opened = None if found[3] is None else os.fsdecode(_unescaped(found[3]))
    result = None if found[2] == "?" else int(found[2], 0)
    return dataclasses.replace(call, args=args, result=result, error=found[4], opened=opened)


def strace() -> str:
    """Where strace is. Skips the test if it is missing or may not be used here."""
    program = shutil.which("strace")
    problem = "strace is not installed" if program is None else None
    if program is not None:
        tried = subprocess.run([program, "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            problem = f"strace may not trace processes here: {tried.stderr.strip()[:200]}"
    if problem is not None:
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{problem}, and {REQUIRE}=1 demands it")
        pytest.skip(f"{problem}; {REQUIRE}=1 makes this a failure")
    assert program is not None
    return program


def record(command: Sequence[str], trace: Path, *, cwd: Path, status: int = 0, inject: str | None = None) -> None:
    """Run a command, and append its system calls to a trace. `status` is how it must end, -9 for a kill.

    `inject` makes calls fail, in the words of strace: `fdatasync:error=EIO:when=3`.
    """
    options = ["-f", "-y", "-xx", "-ttt", "-s", "100000000", "-A", "-o", str(trace), "--seccomp-bpf"]
    faults = [] if inject is None else ["-e", f"inject={inject}"]
    ended = subprocess.run(
        [strace(), *options, "-e", "trace=" + ",".join(CALLS), *faults, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == status, f"{command} ended with {ended.returncode}:\n{ended.stderr[-4000:]}"
