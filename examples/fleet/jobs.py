"""Runs as jobs of PGQueuer: the part of the fleet to copy.

A job is a run's key and nothing else: the run is in the store. The queue delivers a job at least once, the store's
positions see to it that no effect is announced twice. What a worker makes of a delivery:

| the log | the worker |
|---|---|
| is empty | runs it |
| has begun | resumes it: whoever began is dead, as its heartbeats have stopped |
| has begun, and the last attempt met another driver | watches it for a longest step, and resumes it if it rests |
| has ended | resumes it too: that returns the stored result, and the job is done with |

| what comes of it | the job |
|---|---|
| a result, whatever its stop reason | is deleted |
| `RunConflict`, `RunAlreadyExists`: another one drives | comes again later. It must not be dropped, see `perform` |
| `StoreBusy`, a lost connection | comes again later: nothing was written, the run can be resumed |
| anything else | is held with status `failed`, for a person to look at |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from typing import Final, NamedTuple

import psycopg
from pgqueuer import Job, PsycopgDriver, Queries, QueueManager, RetryRequested

from polyloop import (
    AgentDefinition,
    RunAlreadyExists,
    RunConflict,
    RunKey,
    RunRequest,
    RunResult,
    StoreBusy,
)
from polyloop.stores import RunState
from polyloop.stores.postgres import PostgresRunStore

ENTRYPOINT: Final = "polyloop-run"
"""What the queue calls the kind of these jobs."""

_LATER: Final = (RunConflict, RunAlreadyExists, StoreBusy, psycopg.OperationalError)


class Settings(NamedTuple):
    """How a worker works. All workers of a fleet should agree on the seconds."""

    at_once: int
    """Runs that one worker has under way, at least 2. So many may be interrupted when it dies."""
    heartbeat_timeout_s: float
    """Seconds without a heartbeat after which another worker takes a job over. Three times as long as anything may keep
    this process from answering: a handler that blocks the event loop, a paused machine, a database that restarts."""
    longest_step_s: float
    """Seconds that a step takes at most, model call and action together: a log that rests for so long rests."""
    retry_after_s: float
    """Seconds after which a job comes again that met another driver or a busy database."""


class TwoConnections(PsycopgDriver):
    """Listens on one connection and asks on another.

    With one for both, each statement of the queue waits until the listener lets go of it, which takes up to a second:
    heartbeats among them.
    """

    def __init__(self, *, asking: psycopg.AsyncConnection, listening: psycopg.AsyncConnection) -> None:
        super().__init__(listening)
        self._asking = PsycopgDriver(asking)

    async def fetch(self, query: str, *args: object) -> list[dict[str, object]]:
        """Ask."""
        return await self._asking.fetch(query, *args)

    async def execute(self, query: str, *args: object) -> str:
        """Ask without an answer."""
        return await self._asking.execute(query, *args)


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Queries]:
    """The queue, on connections of its own."""
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as asking,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as listening,
    ):
        yield Queries(TwoConnections(asking=asking, listening=listening))


async def enqueue(queries: Queries, keys: Iterable[RunKey]) -> int:
    """Have them driven. A key that waits or is being driven already is left out, so doing it again does no harm.

    Returns:
        How many jobs are new.
    """
    names = [str(key) for key in keys]
    if not names:
        return 0
    added = await queries.enqueue(
        [ENTRYPOINT] * len(names),
        [name.encode() for name in names],
        [0] * len(names),
        dedupe_key=list(names),
        on_conflict="skip",
    )
    return sum(job is not None for job in added)


async def sweep(queries: Queries, store: PostgresRunStore) -> int:
    """Enqueue each run that has begun and not ended, and has no job: the log knows what is to be done, jobs get lost.

    Runs whose job is held as failed are left to whoever looks at that one.

    Returns:
        How many jobs are new.
    """
    held = {key_of(job) for job in await queries.list_failed_jobs(limit=10_000)}
    found = [
        summary.key
        for state in (RunState.UNFINISHED, RunState.CANCELLED)
        async for summary in store.runs(state=state)
        if summary.key not in held
    ]
    return await enqueue(queries, found)


def key_of(job: Job) -> RunKey:
    """The run that a job is about."""
    return RunKey((job.payload or b"").decode())


async def drive(definition: AgentDefinition, request: RunRequest, *, watch_s: float) -> RunResult:
    """Run it or resume it, whichever its log asks for.

    Args:
        definition: The agent.
        request: The run.
        watch_s: Seconds to watch a run that is under way, before it is resumed; 0 for not at all.

    Raises:
        RunConflict: another one drives it.
        RunAlreadyExists: another one has just begun it.
    """
    log = await definition.store.read_log(request.key)
    if log.started is None:
        return await definition.run(request)
    if watch_s and log.finished is None:
        await asyncio.sleep(watch_s)
        if (await definition.store.read_log(request.key)).next_seq != log.next_seq:
            raise RunConflict(request.key, "somebody else drives it, its log has grown")
    return await definition.resume(request)


async def perform(
    job: Job, definition: AgentDefinition, request_for: Callable[[RunKey], RunRequest], settings: Settings
) -> None:
    """One delivery of a job.

    A job whose run somebody else drives is not dropped. The queue deletes a job by its number, whoever holds it: it
    would vanish from under the other worker, and if that one died then, nobody would ever resume the run.

    Raises:
        RetryRequested: deliver it again later.
    """
    key = key_of(job)
    # Only a run that met another driver is watched: one that was left by a dead worker need not wait any longer.
    watch_s = settings.longest_step_s if job.attempts else 0
    try:
        result = await drive(definition, request_for(key), watch_s=watch_s)
    except _LATER as reason:
        name = type(reason).__name__
        print(f"{key}: {name}, again in {settings.retry_after_s} s", flush=True)
        raise RetryRequested(timedelta(seconds=settings.retry_after_s), name) from reason
    print(f"{key}: {result.stop_reason} after {len(result.steps)} steps", flush=True)


async def work(
    queries: Queries, definition: AgentDefinition, request_for: Callable[[RunKey], RunRequest], settings: Settings
) -> None:
    """Work until SIGTERM or SIGINT; then take no more jobs and finish those under way.

    Args:
        queries: The queue.
        definition: The agent.
        request_for: A run's request, from its key alone: each delivery makes it anew, in whichever process.
        settings: How to work.
    """
    manager = QueueManager(queries)

    @manager.entrypoint(ENTRYPOINT, on_failure="hold")
    async def handle(job: Job) -> None:
        await perform(job, definition, request_for, settings)

    # Not by cancelling: a job that is cancelled is deleted, while its run is not ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, manager.shutdown.set)
    print(f"worker {os.getpid()} is at work", flush=True)
    await manager.run(
        heartbeat_timeout=timedelta(seconds=settings.heartbeat_timeout_s),
        # Jobs of dead workers are looked for so often; new ones are announced by the database.
        dequeue_timeout=timedelta(seconds=settings.heartbeat_timeout_s / 4),
        batch_size=settings.at_once // 2,
        max_concurrent_tasks=settings.at_once,
    )
