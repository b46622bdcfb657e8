"""The work that all peers do, and the one way in which it is measured.

A run is so many steps, each one model call and one tool call that answer at once, and a last model call that ends it.
A peer's script hands a way to make one run to `measure`, which is its command line:

    python peer_dbos.py --steps 10 --runs 1000 --concurrency 1000 --directory DIRECTORY

It prints one object of JSON. Imports, opening the store and a first few runs are not timed.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import errno
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

SYSTEM: Final = "You tidy folders."
TASK: Final = "Tidy the next folders."
REPLY: Final = "look into the next folder"
OBSERVATION: Final = "there are three files in it ".ljust(200, ".")
FINAL: Final = "done"
TOOL: Final = "look"
TOOL_DESCRIPTION: Final = "Look into a folder."

WARM_RUNS: Final = 10
WARM_STEPS: Final = 3

NO_FILE: Final = 2**30
"""A file descriptor that no process has."""

OneRun: TypeAlias = Callable[[int], Coroutine[object, object, None]]
"""Makes one run of so many steps."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Script:
    """What the model of one run says next: tool calls, then the final answer."""

    steps: int
    calls: int = 0
    """Model calls so far."""
    actions: int = 0
    """Tool calls so far."""

    def next_call(self) -> int | None:
        """The number of the tool call that the model asks for, from 1 on; None for the final answer."""
        self.calls += 1
        return self.calls if self.calls <= self.steps else None

    def act(self) -> str:
        """The tool's work."""
        self.actions += 1
        return OBSERVATION

    def check(self, final: object) -> None:
        """Raises AssertionError if the run was not all the work."""
        assert final == FINAL, final
        assert (self.calls, self.actions) == (self.steps + 1, self.steps)


current: Final[contextvars.ContextVar[Script]] = contextvars.ContextVar("current")
"""The script of the run that is under way, for peers whose model is shared by all runs."""


def begin(steps: int) -> Script:
    """A fresh script, which is the current one from here on."""
    script = Script(steps=steps)
    current.set(script)
    return script


@contextlib.asynccontextmanager
async def on_threads(run: Callable[[int], None], concurrency: int) -> AsyncIterator[OneRun]:
    """A synchronous peer: a thread for each run that is under way, and none if there is only one."""

    async def here(steps: int) -> None:
        run(steps)

    if concurrency == 1:
        yield here
        return
    with concurrent.futures.ThreadPoolExecutor(concurrency) as threads:

        async def there(steps: int) -> None:
            await asyncio.get_running_loop().run_in_executor(threads, run, steps)

        yield there


Opened: TypeAlias = Callable[[Path, int], contextlib.AbstractAsyncContextManager[OneRun]]
"""Opens a peer, in a directory and for so many runs at a time."""


async def many(run: OneRun, runs: int, steps: int, concurrency: int) -> None:
    """So many runs, of which so many are under way at a time; each in a task of its own."""
    left = iter(range(runs))

    async def worker() -> None:
        for _ in left:
            await asyncio.create_task(run(steps))

    await asyncio.gather(*(worker() for _ in range(concurrency)))


def written_bytes() -> int | None:
    """Bytes that this process handed to write calls; None where the system does not tell."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return None
    return int(dict(line.split(": ") for line in counters.read_text("ascii").splitlines())["wchar"])


def mark() -> None:
    """A system call that fails, for whoever traces this process: it stands at the start and end of what is measured."""
    try:
        os.fdatasync(NO_FILE)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


async def measured(opened: Opened, arguments: argparse.Namespace) -> dict[str, object]:
    """The figures of one measurement."""
    runs, steps, concurrency = arguments.runs, arguments.steps, arguments.concurrency
    async with opened(arguments.directory, concurrency) as run:
        await many(run, WARM_RUNS, WARM_STEPS, min(concurrency, WARM_RUNS))
        gc.collect()
        before = written_bytes()
        mark()
        started = time.perf_counter()
        await many(run, runs, steps, concurrency)
        seconds = time.perf_counter() - started
        mark()
        after = written_bytes()
    return {
        "seconds": seconds,
        "steps_per_second": runs * steps / seconds,
        "written_bytes": None if before is None or after is None else after - before,
    }


def measure(distribution: str, opened: Opened, parser: argparse.ArgumentParser | None = None) -> None:
    """A peer's command line: measure once and print JSON."""
    parser = argparse.ArgumentParser() if parser is None else parser
    for name in ("steps", "runs", "concurrency"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    arguments = parser.parse_args()
    figures = asyncio.run(measured(opened, arguments))
    given = {name: getattr(arguments, name) for name in ("steps", "runs", "concurrency")}
    print(json.dumps({"version": version(distribution), **given, **figures}))
