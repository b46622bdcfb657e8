"""What a worker of `examples/fleet` makes of a delivery: of a first one, of a second one, and of one in between."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from polyloop import ChatMessage, RunConflict, RunKey, RunLog, RunResult, StopReason, StoreBusy
from polyloop.stores.postgres import PostgresRunStore
from tests.crash.conftest import ROOT

if os.environ.get("POLYLOOP_REQUIRE_POSTGRES") != "1":
    pytest.importorskip("pgqueuer", reason="the package pgqueuer is not installed")

from pgqueuer import Job, Queries, RetryRequested
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.types import QueueEntrypoint, QueueManagerId

from examples.fleet import agent, fleet, jobs
from examples.fleet.agent import CHARGE, LOOK_UP, Ledger
from tests.fleet.harness import asked

KEY = RunKey("orders/0001")
SETTINGS = jobs.Settings(at_once=2, heartbeat_timeout_s=60.0, longest_step_s=0.01, retry_after_s=0.0)


class Gates(Ledger):
    """A ledger whose effects begin, and end once they are let through."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), duration=lambda _: 0)
        self.begun: list[tuple[str, int]] = []
        self.are_open = asyncio.Event()
        self.reached = asyncio.Event()
        self.stop_at: tuple[str, int] | None = None

    @contextlib.asynccontextmanager
    async def effect(self, tool: str, item: int) -> AsyncIterator[None]:
        self.begun.append((tool, item))
        if (tool, item) == self.stop_at:
            self.reached.set()
            await self.are_open.wait()
        yield


class Reading(PostgresRunStore):
    """Has something else happen right after a log was read."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.after_read: Callable[[], Awaitable[object]] | None = None
        """What to do after the next reading, once."""

    async def read_log(self, key: RunKey, /) -> RunLog:
        log = await super().read_log(key)
        if self.after_read is not None:
            then, self.after_read = self.after_read, None
            await then()
        return log


class Worker:
    """One worker's part: a store, a queue and an agent of its own. What it does with a job is the example's."""

    def __init__(self, store: Reading, queries: Queries, stop_at: tuple[str, int] | None) -> None:
        self.store = store
        self.queries = queries
        self.gates = Gates()
        self.gates.stop_at = stop_at
        self._id = QueueManagerId(uuid.uuid4())

    async def takes(self, *, silent_s: float = 60.0) -> Job:
        """The next job that waits, or whose worker has been silent for so long."""
        (job,) = await self.queries.dequeue(
            batch_size=1,
            entrypoints={QueueEntrypoint(jobs.ENTRYPOINT): EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=self._id,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=silent_s),
        )
        return job

    async def performs(self, job: Job) -> None:
        registry = agent.tools(self.gates)
        definition = agent.definition(self.store, registry)
        await jobs.perform(job, definition, lambda key: agent.request_for(key, registry), SETTINGS)

    async def begins(self, key: RunKey) -> asyncio.Task[Any]:
        """A run in its middle, without any job."""
        registry = agent.tools(self.gates)
        running = asyncio.create_task(agent.definition(self.store, registry).run(agent.request_for(key, registry)))
        await self.gates.reached.wait()
        self.gates.reached.clear()
        return running

    async def leaves(self, key: RunKey) -> None:
        """The same, cancelled."""
        running = await self.begins(key)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@contextlib.asynccontextmanager
async def worker(dsn: str, *, stops_at: tuple[str, int] | None) -> AsyncIterator[Worker]:
    async with Reading(dsn) as store, jobs.connected(dsn) as queries:
        yield Worker(store, queries, stops_at)


async def database(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    return await asyncio.to_thread(asked, dsn, statement)


async def test_who_lost_a_run_leaves_the_job_and_whoever_gets_it_next_waits_until_the_run_rests(dsn: str) -> None:
    async with (
        worker(dsn, stops_at=(LOOK_UP, 2)) as late,
        worker(dsn, stops_at=(CHARGE, 2)) as driver,
        worker(dsn, stops_at=None) as third,
    ):
        assert await jobs.enqueue(late.queries, [KEY]) == 1
        job = await late.takes()
        losing = asyncio.create_task(late.performs(job))
        await late.gates.reached.wait()

        # Its heartbeats are late, so another one gets the job too, and goes on with the run.
        taken = await driver.takes(silent_s=0)
        assert (taken.id, taken.attempts) == (job.id, 0)
        driving = asyncio.create_task(driver.performs(taken))
        await driver.gates.reached.wait()
        assert driver.gates.begun == [(LOOK_UP, 2), (CHARGE, 2)]

        late.gates.are_open.set()
        with pytest.raises(RetryRequested) as raised:
            await losing
        assert isinstance(raised.value.__cause__, RunConflict)
        await late.queries.retry_job(job, raised.value.delay, None)
        assert await database(dsn, "select status::text, attempts from pgqueuer") == [("queued", 1)]

        # The driver is within a charge: whoever resumed now would end the run in doubt.
        again = await third.takes()

        async def let_it_end() -> None:
            driver.gates.are_open.set()
            await driving

        third.store.after_read = let_it_end
        with pytest.raises(RetryRequested, match="RunConflict"):
            await third.performs(again)
        assert third.gates.begun == []

        # It has ended: the stored result, and nothing is done.
        await third.queries.retry_job(again, timedelta(0), None)
        await third.performs(await third.takes())
        assert third.gates.begun == []
        assert await stop_reason(third) is StopReason.AGENT_FINISHED
        assert [late.gates.begun, driver.gates.begun] == [
            [(LOOK_UP, 1), (CHARGE, 1), (LOOK_UP, 2)],
            [(LOOK_UP, 2), (CHARGE, 2)],
        ]


async def test_a_run_that_rests_after_a_conflict_is_resumed(dsn: str) -> None:
    async with worker(dsn, stops_at=(LOOK_UP, 2)) as gone, worker(dsn, stops_at=None) as next_one:
        hanging = await gone.begins(KEY)
        await jobs.enqueue(gone.queries, [KEY])
        await gone.queries.retry_job(await gone.takes(), timedelta(0), None)
        again = await next_one.takes()
        assert again.attempts == 1
        await next_one.performs(again)
        assert next_one.gates.begun == [(LOOK_UP, 2), (CHARGE, 2)]
        assert await stop_reason(next_one) is StopReason.AGENT_FINISHED
        gone.gates.are_open.set()
        with pytest.raises(RunConflict):
            await hanging


async def stop_reason(one: Worker) -> StopReason | None:
    finished = (await one.store.read_log(KEY)).finished
    return None if finished is None else finished.stop_reason


@pytest.mark.parametrize("trouble", [StoreBusy(KEY, 1.0), psycopg.OperationalError("the connection is lost")])
async def test_a_store_in_trouble_gets_the_job_again(dsn: str, trouble: Exception) -> None:
    async with worker(dsn, stops_at=None) as one:
        await jobs.enqueue(one.queries, [KEY])
        job = await one.takes()

        async def fails() -> None:
            raise trouble

        one.store.after_read = fails
        with pytest.raises(RetryRequested, match=type(trouble).__name__):
            await one.performs(job)
        assert one.gates.begun == []
        await one.performs(job)
        assert await stop_reason(one) is StopReason.AGENT_FINISHED


async def test_a_sweep_finds_the_runs_that_lost_their_jobs_and_no_others(dsn: str) -> None:
    names = ("lost", "driven", "waiting", "held", "ended", "under way")
    lost, driven, waiting, held, ended, under_way = [RunKey(name) for name in names]
    async with worker(dsn, stops_at=(LOOK_UP, 2)) as one, worker(dsn, stops_at=None) as other:
        for key in (lost, driven, waiting, held):
            await one.leaves(key)
        for key in (ended, held, driven):
            await jobs.enqueue(one.queries, [key])
            job = await other.takes()
            assert jobs.key_of(job) == key
            if key == ended:
                await other.performs(job)
                await other.queries.log_jobs([(job, "successful", None)])
            elif key == held:
                await other.queries.log_jobs([(job, "failed", None)])
        await jobs.enqueue(one.queries, [waiting])
        running = await one.begins(under_way)

        assert await jobs.sweep(other.queries, other.store) == 2
        assert await jobs.sweep(other.queries, other.store) == 0
        one.gates.are_open.set()
        await running
        found = await database(dsn, "select dedupe_key, status::text from pgqueuer")
        queued = [(key, "queued") for key in (lost, under_way, waiting)]
        assert sorted(found) == [(driven, "picked"), (held, "failed"), *queued]


async def test_who_comes_second_to_a_new_run_does_not_drive_it(dsn: str) -> None:
    async with worker(dsn, stops_at=(CHARGE, 1)) as first, worker(dsn, stops_at=None) as second:
        await jobs.enqueue(first.queries, [KEY])
        job = await first.takes()
        # Both have read an empty log when the first one begins.
        begun: list[asyncio.Task[None]] = []

        async def begin() -> None:
            begun.append(asyncio.create_task(first.performs(job)))
            await first.gates.reached.wait()

        second.store.after_read = begin
        with pytest.raises(RetryRequested, match="RunAlreadyExists"):
            await second.performs(await second.takes(silent_s=0))
        first.gates.are_open.set()
        await begun[0]
        assert second.gates.begun == []
        assert await stop_reason(first) is StopReason.AGENT_FINISHED


def started_otherwise(dsn: str) -> RunResult:
    """A run under the same key that another deployment had: its prompt is not ours."""

    async def enter() -> RunResult:
        async with PostgresRunStore(dsn) as store:
            registry = agent.tools(Gates())
            request = agent.request_for(KEY, registry)
            other = dataclasses.replace(request, run_segments=(ChatMessage(role="system", content="Other words."),))
            definition = agent.definition(store, registry)
            return await definition.run(other)

    return asyncio.run(enter())


def works(dsn: str, ledger: Path, output: Path) -> tuple[list[str], int]:
    """A worker until there is nothing left that waits, and then SIGTERM. What it said, and its exit code."""
    script = str(ROOT / "examples" / "fleet" / "fleet.py")
    command = [sys.executable, script, "work", "--seconds", "0", "--ledger", str(ledger)]
    environment = {**os.environ, "PGDSN": dsn}
    with output.open("w") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as one:
        try:
            deadline = time.monotonic() + 60
            while asked(dsn, "select 1 from pgqueuer where status in ('queued', 'picked') limit 1"):
                assert (one.poll(), time.monotonic() < deadline) == (None, True), output.read_text()
                time.sleep(0.02)
            one.terminate()
            one.wait(60)
        finally:
            one.kill()
    return output.read_text().splitlines(), one.returncode


def test_the_commands_do_what_they_say_and_a_job_that_nobody_can_do_is_held(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDSN", dsn)
    started_otherwise(dsn)
    assert fleet.main(["setup"]) == "the tables are there"
    assert fleet.main(["status"]) == "run       1  agent_finished"
    assert fleet.main(["enqueue", "--runs", "3"]) == "3 new jobs"
    assert fleet.main(["enqueue", "--runs", "3"]) == "0 new jobs"
    said, code = works(dsn, tmp_path / "folder" / "ledger", tmp_path / "said")
    assert code == 0, said
    ends = [f"orders/000{number}: agent_finished after 5 steps" for number in (0, 2)]
    assert sorted(line for line in said if line.startswith("orders")) == ends
    assert any("RunIdentityMismatch" in line for line in said), "the queue's own log"
    assert said[-1].endswith("has finished what it had")
    assert fleet.main(["status"]) == "run       3  agent_finished\njob       1  failed"
    assert fleet.main(["sweep"]) == "0 new jobs"
    held = asked(dsn, "select traceback ->> 'exception_type' from pgqueuer_log where status = 'failed'")
    assert held == [("RunIdentityMismatch",)]


def test_without_a_database_the_commands_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGDSN", raising=False)
    with pytest.raises(SystemExit, match="set PGDSN"):
        fleet.main(["status"])
