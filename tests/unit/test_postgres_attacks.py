"""The Postgres store under attack: failures that nobody heard of, servers that freeze, leaving in the middle of calls.

Each test names the promise that it was found to break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from polyloop.stores import RunState, RunSummary, copy_run
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.postgres import PostgresRunStore, store, writer
from polyloop.stores.postgres.server import Limits
from polyloop.types import InvalidRequest, RunKey, StoreBusy
from tests.contract.records import model_intent, replied, started
from tests.postgres import server
from tests.postgres.server import MigratedStore, Started
from tests.seams import append

KEY = RunKey("a run")
NO_RESULTS = "alter table polyloop_records add constraint no_results check (kind <> 'effect_completed')"
"""What makes the server refuse results, and nothing else."""


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    return server.schema(str(tmp_path))


@pytest.fixture
def own() -> Iterator[Started]:
    """A server that the test may freeze."""
    started_server = server.own()
    try:
        yield started_server
    finally:
        started_server.thaw()
        started_server.close()


def change(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


async def refused_result(of: PostgresRunStore, dsn: str) -> None:
    """A run whose result was handed in, and is refused by the server when it is sent."""
    await append(of, KEY, started())
    await append(of, KEY, model_intent(1))
    await asyncio.to_thread(change, dsn, NO_RESULTS)
    await append(of, KEY, replied(2))


# ---------------------------------------------------------------- who is told


async def test_a_read_raises_what_nobody_was_told_of_a_result(dsn: str) -> None:
    async with MigratedStore(dsn) as its:
        await refused_result(its, dsn)
        with pytest.raises(psycopg.errors.CheckViolation):
            await its.read_log(KEY)
        assert (await its.read_log(KEY)).next_seq == 2


async def test_a_deletion_raises_what_nobody_was_told_of_a_result(dsn: str) -> None:
    async with MigratedStore(dsn) as its:
        await refused_result(its, dsn)
        with pytest.raises(psycopg.errors.CheckViolation):
            await its.delete(KEY)
        assert await its.delete(KEY)


async def test_a_copy_whose_last_records_are_refused_says_why(dsn: str) -> None:
    source = EphemeralRunStore()
    for record in (started(), model_intent(1), replied(2)):
        await append(source, KEY, record)
    async with MigratedStore(dsn) as its:
        await asyncio.to_thread(change, dsn, NO_RESULTS)
        with pytest.raises(psycopg.errors.CheckViolation):
            await copy_run(source, its, KEY)


async def test_a_cancelled_barrier_that_fails_alone_is_as_the_next_read_finds_it(dsn: str) -> None:
    async with MigratedStore(dsn) as its:
        await append(its, KEY, started())
        caller = asyncio.create_task(append(its, KEY, model_intent(7)))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await its.read_log(KEY)).next_seq == 1


async def test_a_statement_that_takes_too_long_names_to_each_caller_its_own_run(dsn: str) -> None:
    keys = [RunKey(each) for each in "abc"]
    async with MigratedStore(dsn, statement_timeout_s=0.5, lock_timeout_s=30.0) as its:
        await asyncio.gather(*(append(its, key, started()) for key in keys))
        async with await psycopg.AsyncConnection.connect(dsn) as other:
            await other.execute("lock table polyloop_runs")
            appends = [append(its, key, model_intent(1)) for key in keys]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert all(isinstance(each, StoreBusy) for each in outcomes), outcomes
    assert [each.key for each in outcomes if isinstance(each, StoreBusy)] == keys


# ---------------------------------------------------------------- a server that freezes


@pytest.mark.timeout(300)
async def test_idle_connections_to_a_frozen_server_hold_nobody_and_are_not_lost(own: Started) -> None:
    async def read_all() -> list[Any]:
        outcomes = await asyncio.gather(*(its.read_log(RunKey(f"{n}")) for n in range(16)), return_exceptions=True)
        return [each for each in outcomes if isinstance(each, BaseException)]

    async with MigratedStore(own.dsn, pool_size=4, statement_timeout_s=1.0, connect_timeout_s=1.0) as its:
        for _ in range(3):
            await read_all()
        own.freeze()
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                async with asyncio.timeout(60):
                    await its.read_log(KEY)
        own.thaw()
        # On a busy machine a read may still be too late; one that waits for connections that are gone always is.
        for _ in range(30):
            if not (failed := await read_all()):
                break
        assert not failed


async def test_entering_does_not_wait_for_ever_for_somebody_elses_lock(dsn: str) -> None:
    async with MigratedStore(dsn):
        pass
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("lock table polyloop_layout")
        with pytest.raises(StoreBusy):
            async with asyncio.timeout(30), PostgresRunStore(dsn, lock_timeout_s=0.2):
                raise AssertionError("it was entered")


# ---------------------------------------------------------------- leaving


async def for_ever(*_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes answers be waited for a moment only, from then on."""
    return lambda: monkeypatch.setattr(Limits, "answer_s", property(lambda _: 0.05))


async def test_leaving_in_the_middle_of_reads_ends_them_with_an_error_and_loses_no_connection(
    dsn: str, monkeypatch: pytest.MonkeyPatch, impatient: Callable[[], None]
) -> None:
    its = await MigratedStore(dsn, pool_size=2).__aenter__()
    reading = asyncio.Event()

    async def fetch(*_: Any) -> Any:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "fetch", fetch)
    reads = [asyncio.create_task(its.read_log(KEY))]
    await asyncio.wait_for(reading.wait(), 30)
    impatient()
    await its.__aexit__(None, None, None)
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(each) for each in outcomes] == [RuntimeError], outcomes


async def test_what_could_not_be_sent_when_leaving_is_told_to_its_callers(
    dsn: str, monkeypatch: pytest.MonkeyPatch, impatient: Callable[[], None]
) -> None:
    its = await MigratedStore(dsn).__aenter__()
    keys = [RunKey(each) for each in "abcdefghijkl"]
    for key in keys:
        await append(its, key, started())
    monkeypatch.setattr(writer, "append_parts", for_ever)
    monkeypatch.setattr(writer, "BATCH_RECORDS", 1)
    impatient()
    callers = [asyncio.create_task(append(its, key, model_intent(1))) for key in keys]
    await asyncio.sleep(0)
    await its.__aexit__(None, None, None)
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(each, psycopg.OperationalError) for each in outcomes), outcomes


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    "password", ["sec@ret", "s/cret", "12/cret", "@secret", "secret@", "secret/", "a@b/secret", "/"]
)
def test_a_password_that_would_be_read_as_another_part_of_a_uri_is_refused_and_not_told(password: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PostgresRunStore(f"postgresql://user:{password}@localhost/db?sslmode=disable")
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:sec%40ret@localhost/db",
        "postgresql:///db?host=/tmp&user=a@b",
        "postgresql://localhost/db?application_name=a@b/c",
        "postgresql://a,b:5432/db",
        "postgresql://user@/db",
        "host=/tmp user=a@b dbname=c@d/e",
    ],
)
def test_a_string_that_can_be_read_in_one_way_only_is_taken(dsn: str) -> None:
    assert "ret" not in repr(PostgresRunStore(dsn))


async def test_tables_without_their_version_are_refused_and_say_so(dsn: str) -> None:
    async with MigratedStore(dsn):
        pass
    await asyncio.to_thread(change, dsn, "delete from polyloop_layout")
    with pytest.raises(InvalidRequest, match="version"):
        async with PostgresRunStore(dsn):
            raise AssertionError("it was entered")


@pytest.mark.parametrize("start", ["", "x", "\0", "2026-02-30T00:00:00.000000+00:00", "9" * 300])
async def test_a_place_in_the_listing_that_is_no_time_is_refused_and_not_quoted(dsn: str, start: str) -> None:
    place = RunSummary(
        key=KEY, state=RunState.ENDED, started_at=start, last_record_at=None, steps=None, stop_reason=None
    )
    async with MigratedStore(dsn) as its:
        with pytest.raises(InvalidRequest, match="start that is a time"):
            [run async for run in its.runs(after=place)]
        await append(its, KEY, started())
