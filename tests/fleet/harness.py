"""Real worker processes on a real queue, killed at seeded moments and replaced; and what must be so in the end."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from examples.fleet import jobs
from examples.fleet.agent import CHARGE, ITEMS, LOOK_UP, Entry, entries
from polyloop import ReplayPolicy, RunFinished, RunKey, RunLog, StopReason
from polyloop.stores.postgres import PostgresRunStore
from tests.crash.conftest import ROOT

WORKERS: Final = 3


def asked(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """What the database says."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


class Kill(NamedTuple):
    """When a worker is killed: the one that wrote a line of the ledger, as soon as it stands there."""

    name: str
    picks: Callable[[list[Entry]], Entry | None]
    anybody: bool
    """Whether it meets another one where that one is dead already."""


def within(key: RunKey, tool: str) -> Kill:
    """In the middle of an effect that does not come back."""

    def picks(lines: list[Entry]) -> Entry | None:
        return next((line for line in lines if (line.key, line.tool, line.item) == (key, tool, 1)), None)

    return Kill(f"within {tool} of {key}", picks, anybody=False)


def after(count: int) -> Kill:
    """Once so many lines stand there: wherever its runs are then."""
    return Kill(f"after {count} lines", lambda lines: lines[count - 1] if len(lines) >= count else None, anybody=True)


class Fleet:
    """Three workers on a database, and their ledger."""

    def __init__(self, dsn: str, directory: Path, seed: int) -> None:
        self._dsn = dsn
        self._directory = directory
        self._seed = seed
        self._ledger = directory / "ledger"
        self._living: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: dict[int, Path] = {}
        self.killed: set[int] = set()
        """Process numbers."""

    def run(self, keys: list[RunKey], kills: list[Kill], *, patience_s: float) -> list[Kill]:
        """Have the runs driven until no job is left, with these kills in between. Which of them it did not come to.

        A kill can forestall another one: a run that is killed after a charge was announced and before it began has
        ended, and nobody gets stuck in it.

        Raises:
            AssertionError: it does not come to its end in time, or a worker ended that nobody killed. Says how things
                stand.
        """
        self._enqueue(keys)
        deadline = time.monotonic() + patience_s
        waiting = list(kills)
        try:
            for _ in range(WORKERS):
                self._start()
            while asked(self._dsn, "select 1 from pgqueuer limit 1"):
                lines = entries(self._ledger)
                for kill in list(waiting):
                    victim = kill.picks(lines)
                    if victim is not None:
                        waiting.remove(kill)
                        self._kill(victim.pid, anybody=kill.anybody)
                self._check_alive()
                assert time.monotonic() < deadline, self._report(
                    f"not over after {patience_s} s; still to come: {[kill.name for kill in waiting]}"
                )
                time.sleep(0.02)
            self._stop(deadline)
            return waiting
        finally:
            for process in self._living.values():
                process.kill()
                process.wait()

    def _enqueue(self, keys: list[RunKey]) -> None:
        async def enter() -> None:
            async with jobs.connected(self._dsn) as queries:
                assert await jobs.enqueue(queries, keys) == len(keys)

        asyncio.run(enter())

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.fleet.worker", str(self._ledger), str(self._seed)]
        path = self._directory / f"worker-{len(self._outputs)}"
        with path.open("wb") as output:
            environment = {**os.environ, "PGDSN": self._dsn}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        self._living[process.pid] = process
        self._outputs[process.pid] = path

    def _kill(self, pid: int, *, anybody: bool) -> None:
        if pid in self.killed and not anybody:
            return
        if pid in self.killed:
            pid = random.Random(f"{self._seed} {len(self.killed)}").choice(sorted(self._living))
        process = self._living.pop(pid)
        process.kill()
        process.wait()
        self.killed.add(pid)
        self._start()

    def _check_alive(self) -> None:
        for process in self._living.values():
            assert process.poll() is None, self._report(f"worker {process.pid} ended with {process.returncode}")

    def _stop(self, deadline: float) -> None:
        """As one stops a worker: by SIGTERM."""
        # Whoever was started last may not have got to where it knows what to do with that.
        self._wait(lambda: all("is at work" in self._outputs[pid].read_text() for pid in self._living), deadline)
        for process in self._living.values():
            process.terminate()
        self._wait(lambda: all(process.poll() is not None for process in self._living.values()), deadline)
        codes = [process.returncode for process in self._living.values()]
        assert codes == [0] * WORKERS, self._report(f"exit codes {codes}")

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            assert time.monotonic() < deadline, self._report("a worker did not begin or end in time")
            time.sleep(0.02)

    def _report(self, problem: str) -> str:
        found = asked(self._dsn, "select status::text, attempts, count(*) from pgqueuer group by 1, 2")
        said = [f"{path.name}: {path.read_text()[-2_000:]}" for path in self._outputs.values()]
        return "\n".join([f"seed {self._seed}: {problem}", f"jobs: {found}", *said])

    # --- the end

    def check(self, keys: list[RunKey]) -> collections.Counter[StopReason]:
        """Each run has ended once, no charge began twice, and what is in doubt is said to be. Why the runs stopped."""
        logs = asyncio.run(self._logs(keys))
        lines: dict[str, list[Entry]] = collections.defaultdict(list)
        for line in entries(self._ledger):
            lines[line.key].append(line)
        for key, log in logs.items():
            try:
                judge(log, lines[key])
            except AssertionError as error:
                raise AssertionError(self._report(f"{key}: {error}")) from error
        statuses = asked(self._dsn, "select status::text, count(*) from pgqueuer_log group by 1")
        assert dict(statuses).keys() <= {"queued", "picked", "successful"}, statuses
        assert dict(statuses)["successful"] == len(keys), "each job is done once"
        return collections.Counter(log.finished.stop_reason for log in logs.values() if log.finished is not None)

    async def _logs(self, keys: list[RunKey]) -> dict[RunKey, RunLog]:
        async with PostgresRunStore(self._dsn) as store:
            assert {summary.key async for summary in store.runs()} == set(keys)
            return {key: await store.read_log(key) for key in keys}

    def entries_of(self, key: RunKey) -> list[Entry]:
        """What the ledger says of a run."""
        return [line for line in entries(self._ledger) if line.key == key]

    def log_of(self, key: RunKey) -> RunLog:
        """What the store says of it."""
        return asyncio.run(self._logs_of(key))

    async def _logs_of(self, key: RunKey) -> RunLog:
        async with PostgresRunStore(self._dsn) as store:
            return await store.read_log(key)


def judge(log: RunLog, lines: list[Entry]) -> None:
    """A run's log against what really happened."""
    ends = [record for record in log.records() if isinstance(record, RunFinished)]
    assert [end.stop_reason for end in ends] in ([StopReason.AGENT_FINISHED], [StopReason.RESUME_STATE_UNKNOWN]), ends
    counts = collections.Counter((line.tool, line.item, line.phase) for line in lines)
    charges = {effect: count for effect, count in counts.items() if effect[0] == CHARGE}
    assert set(charges.values()) <= {1}, f"charged twice: {charges}"
    answered = {result.result_id for result in log.results}
    if ends[0].stop_reason is StopReason.AGENT_FINISHED:
        wanted = {(tool, item, "done") for tool in (LOOK_UP, CHARGE) for item in range(1, ITEMS + 1)}
        assert wanted <= counts.keys(), f"not all was done: {counts}"
        assert {intent.result_id for intent in log.intents} == answered
    else:
        last = log.intents[-1]
        assert (last.replay, last.result_id in answered) == (ReplayPolicy.NEVER, False), "nothing is in doubt"
    open_charges = [effect for effect in charges if effect[2] == "begun" and (CHARGE, effect[1], "done") not in charges]
    assert not open_charges or ends[0].stop_reason is StopReason.RESUME_STATE_UNKNOWN, f"left open: {open_charges}"
