"""`PostgresRunStore` on a server that goes away, restarts or freezes, and what is said of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from loguru import logger
from psycopg.conninfo import make_conninfo

from polyloop.stores.postgres import PostgresRunStore
from polyloop.types import InvalidRequest, RunKey, RunLog
from tests.contract.records import model_intent, started
from tests.family import FAMILY, assemble, check_resumed
from tests.postgres import server
from tests.postgres.server import PASSWORD, MigratedStore, Started
from tests.seams import append
from tests.unit.jsonl_disk import is_barrier, story

KEY = RunKey("a run")
NAMED = {scenario.name: scenario for scenario in FAMILY}


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    return server.schema(str(tmp_path))


@pytest.fixture
def own() -> Iterator[Started]:
    """A server that the test may stop and freeze."""
    started_server = server.own()
    try:
        yield started_server
    finally:
        started_server.thaw()
        started_server.close()


def terminate(dsn: str, name: str) -> int:
    """End all connections of this name."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        ended = connection.execute(
            "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity where application_name = %s", (name,)
        ).fetchone()
    assert ended is not None
    return int(ended[0])


# ---------------------------------------------------------------- lost connections


async def test_a_connection_that_was_cut_is_an_error_and_then_the_run_goes_on(dsn: str) -> None:
    async with MigratedStore(make_conninfo(dsn, application_name="cut")) as store:
        await append(store, KEY, started())
        assert terminate(dsn, "cut") >= 1
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                await append(store, KEY, model_intent(1))
        found = (await store.read_log(KEY)).next_seq
        await append(store, KEY, model_intent(found))
        await append(store, RunKey("another"), started())
        assert (await store.read_log(KEY)).next_seq == found + 1


async def test_a_read_does_not_fail_because_of_connections_that_died_while_they_lay_idle(dsn: str) -> None:
    async with MigratedStore(make_conninfo(dsn, application_name="idle")) as store:
        await append(store, KEY, started())
        await asyncio.gather(*(store.read_log(KEY) for _ in range(8)))
        assert terminate(dsn, "idle") >= 2
        assert (await store.read_log(KEY)).next_seq == 1
        await append(store, KEY, model_intent(1))


async def test_a_statement_that_is_cut_off_fails_for_each_of_its_runs_with_an_error_of_its_own(dsn: str) -> None:
    keys = [RunKey(f"run {number}") for number in range(4)]
    async with MigratedStore(make_conninfo(dsn, application_name="cut off")) as store:
        with psycopg.connect(dsn) as holder:
            holder.execute("lock table polyloop_runs")
            calls = [asyncio.ensure_future(append(store, key, started())) for key in keys]
            while not _waits(dsn, "cut off"):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
            terminate(dsn, "cut off")
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            holder.rollback()
        assert {type(each) for each in outcomes} == {psycopg.errors.AdminShutdown}
        assert len({id(each) for each in outcomes}) == len(keys)
        assert len({str(each) for each in outcomes}) == 1
        for key in keys:
            assert (await store.read_log(key)).next_seq == 0
            await append(store, key, started())


def _waits(dsn: str, name: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select 1 from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
        return connection.execute(query, (name,)).fetchone() is not None


async def test_a_run_whose_connection_is_cut_stops_with_the_drivers_error_and_is_resumed(dsn: str) -> None:
    scenario = NAMED["completes the task"]

    def tell(point: str) -> None:
        if point == "enter append_intent 000001-model_call":
            assert terminate(dsn, "a service") >= 1

    async with MigratedStore(make_conninfo(dsn, application_name="a service")) as store:
        whole = assemble(scenario, store, key=RunKey("whole"))
        result = await whole.definition.run(whole.request)
        run = assemble(scenario, store, key=KEY, tell=tell)
        with pytest.raises(psycopg.OperationalError):
            await run.definition.run(run.request)
        left = await store.read_log(KEY)
        resumed = assemble(scenario, store, key=KEY)
        found = await resumed.definition.resume(resumed.request)
        check_resumed(scenario, left, found, dataclasses.replace(result, key=KEY))


# ---------------------------------------------------------------- a server that is stopped


async def crashed_at(own: Started, place: int, key: RunKey) -> None:
    """One record is appended while the server is killed; what was acknowledged is there, and the run goes on."""
    records = story(2, finished=True)
    acknowledged = 0
    async with MigratedStore(own.dsn, connect_timeout_s=30.0) as store:
        for record in records[:place]:
            await append(store, key, record)
            acknowledged = record.seq + 1 if is_barrier(record) else acknowledged
        call = asyncio.ensure_future(append(store, key, records[place]))
        await asyncio.to_thread(own.crash)
        await asyncio.wait([call])
        if call.exception() is None and is_barrier(records[place]):
            acknowledged = place + 1
        await asyncio.to_thread(own.start)
        try:
            log = await store.read_log(key)
        except psycopg.OperationalError:
            # What became of a result or step, which nobody was told yet.
            log = await store.read_log(key)
        assert list(log.records()) == records[: log.next_seq]
        assert acknowledged <= log.next_seq <= place + 1
        for record in records[log.next_seq :]:
            await append(store, key, record)
        assert list((await store.read_log(key)).records()) == records


@pytest.mark.timeout(300)
async def test_a_server_that_crashes_and_restarts_lost_nothing_and_the_same_object_goes_on(own: Started) -> None:
    for place in (0, 3):
        await crashed_at(own, place, RunKey(f"crashed at {place}"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_server_that_crashes_at_any_record_lost_nothing(own: Started) -> None:
    for place in range(12):
        await crashed_at(own, place, RunKey(f"crashed at {place}"))


@pytest.mark.timeout(300)
async def test_a_server_that_is_gone_is_a_drivers_error_when_entering_and_in_each_call(own: Started) -> None:
    async with MigratedStore(own.dsn, connect_timeout_s=3.0) as store:
        await append(store, KEY, started())
        own.crash()
        with pytest.raises(psycopg.OperationalError):
            await PostgresRunStore(own.dsn).__aenter__()
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                await store.read_log(KEY)
        with pytest.raises(psycopg.OperationalError):
            await append(store, KEY, model_intent(1))
        own.start()
        assert (await store.read_log(KEY)).next_seq == 1
        await append(store, KEY, model_intent(1))


@pytest.mark.timeout(300)
async def test_a_server_that_is_frozen_holds_nobody_for_ever(own: Started) -> None:
    async with MigratedStore(own.dsn, statement_timeout_s=0.5, connect_timeout_s=0.5) as store:
        await append(store, KEY, started())
        own.freeze()
        calls = [append(store, KEY, model_intent(1)), store.read_log(RunKey("another"))]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, psycopg.OperationalError) for each in outcomes), outcomes
        own.thaw()
        found = (await store.read_log(KEY)).next_seq
        assert found in (1, 2)
        await append(store, RunKey("a third"), started())


@pytest.mark.timeout(300)
async def test_leaving_while_the_server_is_frozen_comes_to_an_end(own: Started) -> None:
    store = await MigratedStore(own.dsn, statement_timeout_s=0.5, connect_timeout_s=0.5).__aenter__()
    for record in story(1)[:2]:
        await append(store, KEY, record)
    own.freeze()
    await append(store, KEY, story(1)[2])
    with pytest.raises(psycopg.OperationalError):
        await store.__aexit__(None, None, None)


@pytest.mark.timeout(300)
async def test_a_server_that_takes_no_more_connections_is_a_drivers_error(own: Started) -> None:
    async with MigratedStore(own.dsn, pool_size=1, connect_timeout_s=1.0) as store:
        await append(store, KEY, started())
        holders: list[psycopg.Connection[Any]] = []
        try:
            with pytest.raises(psycopg.OperationalError, match="too many"):
                holders.extend(psycopg.connect(own.dsn) for _ in range(100))
            with pytest.raises(psycopg.OperationalError, match="too many"):
                await PostgresRunStore(own.dsn).__aenter__()
            await append(store, KEY, model_intent(1))
        finally:
            for holder in holders:
                holder.close()


async def test_calls_that_wait_for_a_connection_are_served_one_after_another(dsn: str) -> None:
    async with MigratedStore(dsn, pool_size=1) as store:
        await append(store, KEY, started())
        logs = await asyncio.gather(*(store.read_log(KEY) for _ in range(20)), append(store, RunKey("b"), started()))
        assert all(isinstance(log, RunLog) for log in logs[:-1])


# ---------------------------------------------------------------- what is said


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """All that is logged, by whichever logger and in whichever detail."""
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level=0, diagnose=True, backtrace=True)
    with caplog.at_level(logging.DEBUG):
        yield lines
        lines += [record.getMessage() for record in caplog.records]
        lines += [caplog.text]
    logger.remove(handler)


def secretive(dsn: str, **changed: str) -> str:
    return make_conninfo(dsn, user="secretive", **{"password": PASSWORD, **changed})


@pytest.fixture
def with_role(own: Started) -> Started:
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        password = PASSWORD.replace("'", "''")
        connection.execute(f"create role secretive login superuser password '{password}'".encode())
    return own


@pytest.mark.timeout(300)
async def test_a_password_is_in_no_text_of_a_store_that_works_or_fails(with_role: Started, said: list[str]) -> None:
    own = with_role
    store = MigratedStore(secretive(own.dsn, application_name="secretive"), connect_timeout_s=3.0)
    texts = [repr(store), str(store)]
    async with store:
        for record in story(1)[:2]:
            await append(store, KEY, record)
        texts.append(repr(store))
        terminate(own.dsn, "secretive")
        with pytest.raises(psycopg.OperationalError) as cut:
            await append(store, KEY, model_intent(2))
        await store.read_log(KEY)
        own.crash()
        with pytest.raises(psycopg.OperationalError) as gone:
            await store.read_log(KEY)
        own.start()
        await store.read_log(KEY)
        with psycopg.connect(own.dsn) as connection:
            texts += map(str, connection.execute("select * from polyloop_records").fetchall())
    failures: list[BaseException] = [cut.value, gone.value]
    for wrong in (secretive(own.dsn, dbname="nowhere"), secretive(own.dsn, password=f"not {PASSWORD}")):
        # Made on a line of its own: the log handler prints what stands in the lines that an error came through.
        refusing = PostgresRunStore(wrong)
        with pytest.raises(psycopg.OperationalError) as refused:
            await refusing.__aenter__()
        failures.append(refused.value)
    for failure in failures:
        logger.opt(exception=failure).error("it failed")
        texts += [
            "".join(traceback.format_exception(failure)),
            repr(failure),
            repr(pickle.loads(pickle.dumps(failure))),  # noqa: S301 - our own
        ]
    assert_silent([*texts, *said])


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:%zz-s3cret@host/db",
        "host=here password=s3cret nonsense",
        "host=here s3cret=1",
        "password='s3cret",
        "postgresql://user:s3cret@[::1/db",
    ],
)
def test_a_string_that_is_none_is_refused_without_being_quoted(dsn: str, said: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PostgresRunStore(dsn)
    logger.opt(exception=caught.value).error("it failed")
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("given", [7, None, b"host=here"])
def test_what_is_no_string_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        PostgresRunStore(given)


@pytest.mark.parametrize(
    "limits", [{"pool_size": 0}, {"pool_size": 1.5}, {"statement_timeout_s": 0}, {"connect_timeout_s": float("nan")}]
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(limits))):
        PostgresRunStore("host=here", **limits)


def assert_silent(texts: list[str]) -> None:
    assert texts
    for text in texts:
        assert PASSWORD not in text
        assert PASSWORD.replace("'", "\\'") not in text
        assert "s3cr%t" not in text
        assert "s3cr%25t" not in text
