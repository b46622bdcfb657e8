"""A warm process that forks a child for each job, and tells what became of it.

A child runs or resumes one scenario, and kills itself (`SIGKILL`, no cleaning up of any kind) at the point that the job
names. Forking a process that has everything imported makes a process that is really killed cost milliseconds. The
server itself starts neither threads nor event loops, so a child begins with a clean slate.

Jobs are read from standard input, reports written to standard output, as pickles.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO

from polyloop.ports import RunStore
from polyloop.types import Record, RunKey, RunResult
from tests.crash.stores import DURABLE, kill, killing_jsonl
from tests.family import FAMILY, assemble
from tests.seams import Tell

IGNORED = ("event ", "enter parse", "leave parse", "enter read_log", "leave read_log")
"""Points at which a kill leaves the same behind as at the point before."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a child is to do. All runs of a directory are in one store, told apart by their keys."""

    store: str
    directory: str
    scenario: int
    """The index in `FAMILY`."""
    method: str
    """`run` or `resume` of the first key; or `recover`, which brings all of them to their ends."""
    keys: tuple[str, ...]
    kill_at: int | None = None
    """The point at which the child kills itself, from 0; None to come to the end."""
    cancel_at: int | None = None
    """The point at which the run is cancelled, from 0."""
    hold: tuple[str, str] | None = None
    """An effect that does not return before a file is there: its `result_id`, and the file."""
    kill_inside: tuple[int, str] | None = None
    """The system call of the file store around which the child is killed, and when."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a fresh process found of a run, and what it made of it."""

    left: tuple[Record, ...]
    """The log as it was found."""
    result: RunResult
    points: tuple[str, ...]
    records: tuple[Record, ...]
    """The log afterwards."""
    stored: RunResult
    """What resuming the ended run through another store object returned."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a child."""

    killed: bool = False
    cancelled: bool = False
    recovered: tuple[Recovered, ...] = ()
    points: tuple[str, ...] = ()
    error: str | None = None


def ledger_of(directory: str) -> Path:
    """Where effects are written down, outside the store: a line of key and `result_id` each."""
    return Path(directory, "ledger")


class Child:
    """One job, in a process of its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._points: list[str] = []
        self._caller: asyncio.Task[object] | None = None

    def _store(self) -> AbstractAsyncContextManager[RunStore]:
        directory = Path(self._job.directory, "store")
        if self._job.kill_inside is not None:
            return killing_jsonl(directory, *self._job.kill_inside)
        return DURABLE[self._job.store](directory)

    async def perform(self) -> Report:
        """Do it. Does not return from the point at which the job kills it."""
        if self._job.method == "recover":
            return Report(recovered=await self._recover())
        self._caller = asyncio.current_task()
        async with self._store() as store:
            try:
                await self._drive(store, self._job.keys[0], self._job.method, self._tell)
            except asyncio.CancelledError:
                return Report(cancelled=True, points=tuple(self._points))
        return Report(points=tuple(self._points))

    async def _drive(self, store: RunStore, key: str, method: str, tell: Tell) -> RunResult:
        def write_down(result_id: str) -> None:
            self._write_down(f"{key} {result_id}\n")
            if self._job.hold is not None and self._job.hold[0] == result_id:
                _wait_for(Path(self._job.hold[1]))

        assembled = assemble(FAMILY[self._job.scenario], store, tell=tell, effect=write_down, key=RunKey(key))
        made, asked = assembled.definition, assembled.request
        return await (made.run(asked) if method == "run" else made.resume(asked))

    async def _recover(self) -> tuple[Recovered, ...]:
        """All runs at once, so that their barriers overlap."""
        keys = self._job.keys
        async with self._store() as store:
            gone_on = await asyncio.gather(*(self._go_on(store, key) for key in keys))
        async with self._store() as store:
            records = [(await store.read_log(RunKey(key))).records() for key in keys]
            stored = [await self._drive(store, key, "resume", lambda _: None) for key in keys]
        return tuple(
            Recovered(left=left, result=result, points=points, records=log, stored=again)
            for (left, result, points), log, again in zip(gone_on, records, stored, strict=True)
        )

    async def _go_on(self, store: RunStore, key: str) -> tuple[tuple[Record, ...], RunResult, tuple[str, ...]]:
        left = (await store.read_log(RunKey(key))).records()
        points: list[str] = []

        def tell(point: str) -> None:
            if not point.startswith(IGNORED):
                points.append(point)

        result = await self._drive(store, key, "resume" if left else "run", tell)
        return left, result, tuple(points)

    def _tell(self, point: str) -> None:
        if point.startswith(IGNORED):
            return
        place = len(self._points)
        self._points.append(point)
        if place == self._job.kill_at:
            kill()
        if place == self._job.cancel_at and self._caller is not None:
            self._caller.cancel()

    def _write_down(self, line: str) -> None:
        ledger = os.open(ledger_of(self._job.directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(ledger, line.encode())
        os.fsync(ledger)
        os.close(ledger)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)


def _in_child(write: int, perform: Callable[[], Report]) -> None:
    try:
        report = perform()
    except BaseException:  # noqa: BLE001 - told to the test, which fails with it
        report = Report(error=traceback.format_exc())
    with os.fdopen(write, "wb") as pipe:
        pickle.dump(report, pipe)


def in_a_process(perform: Callable[[], Report]) -> Report:
    """Fork, let the child perform, and return its report, or that it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _in_child(write, perform)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        assert not told, "a killed child reports nothing"
        return Report(killed=True)
    report = pickle.loads(told)  # noqa: S301 - from our own child
    assert isinstance(report, Report)
    return report


def serve(requests: BinaryIO, reports: BinaryIO) -> None:
    """Answer jobs until there are no more."""
    while True:
        try:
            job = pickle.load(requests)  # noqa: S301 - from our own parent
        except EOFError:
            return
        pickle.dump(in_a_process(lambda: asyncio.run(Child(job).perform())), reports)  # noqa: B023 - used at once
        reports.flush()
