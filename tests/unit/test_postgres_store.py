"""`PostgresRunStore`: one statement for many runs, positions between objects, tables, cancellation, leaving."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from polyloop.stores.postgres import PostgresRunStore, writer
from polyloop.stores.postgres.rows import append_parts
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    InvalidRequest,
    JSONValue,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunKey,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from tests.contract.records import ended, model_intent, replied, started
from tests.postgres import server
from tests.postgres.server import MigratedStore
from tests.seams import append
from tests.unit.jsonl_disk import story

KEY = RunKey("a run")


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    return server.schema(str(tmp_path))


def change(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each statement that appends had."""
    counts: list[int] = []

    async def counted(connection: Any, parts: Any) -> Any:
        counts.append(len(parts))
        return await append_parts(connection, parts)

    monkeypatch.setattr(writer, "append_parts", counted)
    return counts


async def written(dsn: str, steps: int = 1) -> None:
    async with MigratedStore(dsn) as store:
        for record in story(steps, finished=True):
            await append(store, KEY, record)


# ---------------------------------------------------------------- one statement for all


async def test_barriers_of_many_runs_share_their_statements(dsn: str, statements: list[int]) -> None:
    async with MigratedStore(dsn) as store:
        await asyncio.gather(*(append(store, RunKey(f"run {number}"), started()) for number in range(200)))
    assert sum(statements) == 200
    assert len(statements) <= 4
    assert change(dsn, "select count(*) from polyloop_records") == [(200,)]


async def test_a_step_waits_for_two_statements(dsn: str, statements: list[int]) -> None:
    async with MigratedStore(dsn) as store:
        for record in story(3, finished=True):
            await append(store, KEY, record)
    assert len(statements) <= 2 + 2 * 3 + 3, "the start, two a step, the end; a slow machine's timer adds some"
    assert len(statements) >= 2 + 2 * 3


async def test_a_result_goes_by_itself_where_no_barrier_comes(dsn: str) -> None:
    async with MigratedStore(dsn) as store, MigratedStore(dsn) as other:
        for record in story(1)[:3]:
            await append(store, KEY, record)
        while (await other.read_log(KEY)).next_seq < 3:  # noqa: ASYNC110 - another session tells nobody what it did
            await asyncio.sleep(0.01)


async def test_a_conflict_in_a_statement_concerns_its_run_alone(dsn: str, statements: list[int]) -> None:
    async with MigratedStore(dsn) as store:
        keys = [RunKey(f"run {number}") for number in range(5)]
        await asyncio.gather(*(append(store, key, started()) for key in keys))
        statements.clear()
        records: list[Record] = [model_intent(1), model_intent(5), started(), model_intent(0), model_intent(1)]
        outcomes = await asyncio.gather(
            *(append(store, key, record) for key, record in zip(keys, records, strict=True)), return_exceptions=True
        )
        assert statements == [5]
        assert [type(each) for each in outcomes] == [type(None), RunConflict, RunAlreadyExists, RunConflict, type(None)]
        assert [(await store.read_log(key)).next_seq for key in keys] == [2, 1, 1, 1, 2]


async def test_nothing_of_a_stale_batch_goes_in(dsn: str) -> None:
    async with MigratedStore(dsn) as stale, MigratedStore(dsn) as ahead:
        for record in story(1)[:5]:
            await append(stale, KEY, record)
        await stale.read_log(KEY)
        await append(ahead, KEY, model_intent(5, 1))
        await append(stale, KEY, replied(5))
        await append(stale, KEY, replied(6))
        with pytest.raises(RunConflict) as caught:
            await append(stale, KEY, model_intent(7))
        assert (caught.value.seq, caught.value.next_seq) == (5, 6)
        assert (await ahead.read_log(KEY)).records()[5] == model_intent(5, 1)
        assert (await ahead.read_log(KEY)).next_seq == 6


async def test_records_before_one_that_cannot_follow_go_in(dsn: str) -> None:
    async with MigratedStore(dsn) as store:
        for record in story(1)[:2]:
            await append(store, KEY, record)
        await append(store, KEY, replied(2))
        with pytest.raises(RunConflict):
            await append(store, KEY, model_intent(7))
        with pytest.raises(RunConflict, match="earlier record"):
            await append(store, KEY, model_intent(3))
        assert (await store.read_log(KEY)).next_seq == 3


async def test_a_batch_is_cut_where_it_grows_too_large(
    dsn: str, statements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BATCH_RECORDS", 7)
    async with MigratedStore(dsn) as store:
        await asyncio.gather(*(append(store, RunKey(f"run {number}"), started()) for number in range(20)))
        assert max(statements) == 7
        for record in story(4)[1:20]:
            await append(store, RunKey("run 0"), record)
        assert (await store.read_log(RunKey("run 0"))).next_seq == 20


async def test_two_objects_that_send_the_same_runs_in_one_statement_come_to_one_winner_each(dsn: str) -> None:
    keys = [RunKey(f"run {number}") for number in range(40)]
    async with MigratedStore(dsn) as one, MigratedStore(dsn) as other:
        for seq in range(3):
            record = model_intent(seq) if seq else started()
            calls = [append(store, key, record) for store, each in ((one, keys), (other, keys[::-1])) for key in each]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(each is None for each in outcomes) == len(keys)
            assert {type(each) for each in outcomes} <= {type(None), RunConflict, RunAlreadyExists}
            for store in (one, other):
                logs = await asyncio.gather(*(store.read_log(key) for key in keys))
                assert {log.next_seq for log in logs} == {seq + 1}


# ---------------------------------------------------------------- damage, locks


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("update polyloop_records set record = replace(record, 'model', 'nodel') where seq = 1", "malformed_line"),
        ("update polyloop_records set record = record || 'é' where seq = 1", "malformed_line"),
        ("update polyloop_records set checksum = 0 where seq = 1", "malformed_line"),
        ("update polyloop_records set kind = 'step_completed' where seq = 1", "malformed_line"),
        ("update polyloop_records set kind = 'nonsense' where seq = 1", "malformed_line"),
        ("delete from polyloop_records where seq = 1", "wrong_position"),
        ("delete from polyloop_records where seq = 6", "wrong_position"),
        ("delete from polyloop_records", "wrong_position"),
        ("delete from polyloop_runs", "wrong_position"),
        ("update polyloop_runs set next_seq = 6", "wrong_position"),
        ("update polyloop_runs set ended = false, stop_reason = null", "wrong_position"),
    ],
)
async def test_changed_rows_are_damage(dsn: str, statement: str, reason: str) -> None:
    await written(dsn)
    change(dsn, statement)
    async with MigratedStore(dsn) as store:
        with pytest.raises(CorruptRunLog) as caught:
            await store.read_log(KEY)
        assert (caught.value.reason, caught.value.key) == (reason, KEY)


async def test_one_runs_damage_does_not_hinder_the_others_of_its_statement(dsn: str) -> None:
    await written(dsn)
    change(dsn, "delete from polyloop_runs")
    async with MigratedStore(dsn) as store:
        others = [RunKey(f"sound {number}") for number in range(3)]
        outcomes = await asyncio.gather(
            *(append(store, key, started()) for key in (KEY, *others)), return_exceptions=True
        )
        assert isinstance(outcomes[0], CorruptRunLog)
        assert outcomes[0].reason is CorruptionReason.WRONG_POSITION
        assert outcomes[1:] == [None] * 3
        assert [(await store.read_log(key)).next_seq for key in others] == [1, 1, 1]


async def test_a_lock_that_is_held_too_long_is_store_busy_for_its_run_alone(dsn: str) -> None:
    async with MigratedStore(dsn, lock_timeout_s=0.1) as store:
        other = RunKey("another")
        await asyncio.gather(append(store, KEY, started()), append(store, other, started()))
        with psycopg.connect(dsn) as holder:
            holder.execute("select 1 from polyloop_runs where key = 'a run' for update")
            outcomes = await asyncio.gather(
                append(store, KEY, model_intent(1)), append(store, other, model_intent(1)), return_exceptions=True
            )
            assert isinstance(outcomes[0], StoreBusy)
            assert outcomes[0].key == KEY
            assert outcomes[1] is None
            holder.rollback()
        with pytest.raises(StoreBusy):
            await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 1
        await append(store, KEY, model_intent(1))


async def test_a_lock_on_the_whole_table_is_waited_for_three_times_and_not_for_each_run(
    dsn: str, statements: list[int]
) -> None:
    keys = [RunKey(f"run {number}") for number in range(30)]
    async with MigratedStore(dsn, lock_timeout_s=0.1) as store:
        with psycopg.connect(dsn) as holder:
            holder.execute("lock table polyloop_runs")
            outcomes = await asyncio.gather(*(append(store, key, started()) for key in keys), return_exceptions=True)
            holder.rollback()
        assert {type(each) for each in outcomes} == {StoreBusy}
        assert [each.key for each in outcomes if isinstance(each, StoreBusy)] == keys
        assert statements == [30, 1, 1]


# ---------------------------------------------------------------- tables


async def test_a_store_on_an_empty_database_says_what_to_call(dsn: str) -> None:
    async with PostgresRunStore(dsn) as store:
        for call in (store.read_log(KEY), append(store, KEY, started()), store.delete(KEY), anext(store.runs())):
            with pytest.raises(InvalidRequest, match=r"store\.migrate\(\)"):
                await call
        assert change(dsn, "select to_regclass('polyloop_runs')") == [(None,)], "nothing is made implicitly"
        await store.migrate()
        assert (await store.read_log(KEY)).next_seq == 0
        await append(store, KEY, started())


async def test_tables_that_another_store_makes_meanwhile_are_found(dsn: str) -> None:
    async with PostgresRunStore(dsn) as store:
        async with MigratedStore(dsn):
            pass
        await append(store, KEY, started())


async def test_tables_of_a_newer_version_are_refused(dsn: str) -> None:
    await written(dsn)
    change(dsn, "update polyloop_layout set version = 2")
    with pytest.raises(UnsupportedSchemaVersion) as caught:
        await PostgresRunStore(dsn).__aenter__()
    assert (caught.value.found, caught.value.supported) == ("2", "1")


async def test_tables_of_an_older_version_are_to_be_migrated(dsn: str) -> None:
    await written(dsn)
    change(dsn, "update polyloop_layout set version = 0")
    async with PostgresRunStore(dsn) as store:
        with pytest.raises(InvalidRequest, match="version 0"):
            await store.read_log(KEY)


async def test_a_database_that_cannot_hold_every_key_is_refused(tmp_path: Path) -> None:
    name = "latin" + tmp_path.name.replace("-", "_").lower()
    change(server.dsn(), f"create database {name} template template0 encoding 'LATIN1' locale 'C'")
    try:
        async with PostgresRunStore(make_conninfo(server.dsn(), dbname=name)) as store:
            with pytest.raises(InvalidRequest, match="LATIN1"):
                await store.migrate()
    finally:
        change(server.dsn(), f"drop database {name} with (force)")


def migrate(dsn: str, ready: Any, outcome: Any) -> None:
    async def main() -> None:
        async with PostgresRunStore(dsn) as store:
            ready.wait()
            await store.migrate()
            await append(store, RunKey(multiprocessing.current_process().name), started())

    try:
        asyncio.run(main())
    except BaseException as error:  # told to the test, which fails with it
        outcome.put(repr(error))
        raise
    outcome.put(None)


def test_processes_that_migrate_at_once_find_the_same_tables(dsn: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, outcome = spawn.Barrier(3), spawn.Queue()
    processes = [spawn.Process(target=migrate, args=(dsn, ready, outcome)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [outcome.get(timeout=60) for _ in processes] == [None, None, None]
    for process in processes:
        process.join()
    assert change(dsn, "select count(*), max(next_seq) from polyloop_runs") == [(3, 1)]


async def test_objects_that_migrate_at_once_find_the_same_tables(dsn: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(PostgresRunStore(dsn)) for _ in range(5)]
        await asyncio.gather(*(store.migrate() for store in stores))
    assert change(dsn, "select version from polyloop_layout") == [(1,)]


# ---------------------------------------------------------------- loops, leaving


def test_another_event_loop_is_refused(dsn: str) -> None:
    async def enter() -> PostgresRunStore:
        store = await MigratedStore(dsn).__aenter__()
        await append(store, KEY, started())
        return store

    async def elsewhere() -> None:
        for call in (store.read_log(KEY), append(store, KEY, model_intent(1)), store.delete(KEY), store.migrate()):
            with pytest.raises(RuntimeError, match="event loop"):
                await call

    with asyncio.Runner() as runner:
        store = runner.run(enter())
        asyncio.run(elsewhere())
        runner.run(store.__aexit__(None, None, None))


async def test_it_works_inside_async_with_only_and_can_be_entered_again(dsn: str) -> None:
    store = MigratedStore(dsn)
    with pytest.raises(RuntimeError, match="async with"):
        await store.read_log(KEY)
    for _ in range(2):
        async with store:
            with pytest.raises(RuntimeError, match="in use"):
                await store.__aenter__()
            await store.read_log(KEY)
        with pytest.raises(RuntimeError, match="async with"):
            await append(store, KEY, started())


async def test_leaving_raises_the_failure_that_nobody_was_told_of(dsn: str) -> None:
    store = await MigratedStore(dsn).__aenter__()
    for record in story(1)[:2]:
        await append(store, KEY, record)
    await append(store, KEY, replied(9))
    with pytest.raises(RunConflict):
        await store.__aexit__(None, None, None)


async def test_leaving_closes_all_connections_also_when_it_is_cancelled(dsn: str) -> None:
    named = make_conninfo(dsn, application_name="leaving")
    count = "select count(*) from pg_stat_activity where application_name = 'leaving'"

    async def use() -> None:
        async with MigratedStore(named) as store:
            await asyncio.gather(*(store.read_log(RunKey(f"run {number}")) for number in range(10)))
            for record in story(1)[:3]:
                await append(store, KEY, record)
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(use())
    while change(dsn, count) != [(0,)]:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)
    async with MigratedStore(dsn) as store:
        assert (await store.read_log(KEY)).next_seq == 3


# ---------------------------------------------------------------- what comes back, cancellation


async def test_texts_that_postgres_cannot_hold_and_the_order_of_keys_come_back(dsn: str) -> None:
    snapshot: dict[str, JSONValue] = {
        "z": "a\0b",
        "a": "\ud800",
        "m": {"\udc00": 1e2, "b": -0.0},
        "q": '\ud83d\ude00 {}",\\',
    }
    async with MigratedStore(dsn) as store:
        await append(store, KEY, started(snapshot))
        found = (await store.read_log(KEY)).started
    assert found is not None
    assert repr(dict(found.params_snapshot)) == repr(snapshot)


@pytest.mark.parametrize("key", ['{"},NULL,\\', "\\x00", "%s", "é" * 1024, "\U0010ffff" * 1024, "null", " "])
async def test_any_key_is_found_and_listed_as_it_is(dsn: str, key: str) -> None:
    async with MigratedStore(dsn) as store:
        await append(store, RunKey(key), started())
        assert (await store.read_log(RunKey(key))).next_seq == 1
        assert [each.key async for each in store.runs(prefix=key)] == [key]


@contextlib.asynccontextmanager
async def watched(dsn: str) -> AsyncIterator[tuple[PostgresRunStore, Any]]:
    store = MigratedStore(dsn)
    async with store:
        assert store._entered is not None
        yield store, store._entered.server._pool


@pytest.mark.parametrize("seed", [1, pytest.param(range(2, 30), marks=pytest.mark.slow)])
async def test_appends_that_are_cancelled_at_any_moment_are_whole_or_nothing_and_break_no_connection(
    dsn: str, seed: int | range
) -> None:
    for each in (seed,) if isinstance(seed, int) else seed:
        choose = random.Random(each)
        async with watched(dsn) as (store, pool):
            await asyncio.gather(*(_cancelled_at_times(store, RunKey(f"{each}-{n}"), choose) for n in range(10)))
            stats = pool.get_stats()
            broken = [stats.get(name, 0) for name in ("returns_bad", "connections_lost", "connections_errors")]
            assert broken == [0, 0, 0], f"seed {each}: {stats}"


async def _cancelled_at_times(store: PostgresRunStore, key: RunKey, choose: random.Random) -> None:
    """Append, cancelled at random; what was acknowledged is there, and the run goes on from what is there."""
    acknowledged = 0
    while acknowledged < 20:
        record = started() if acknowledged == 0 else model_intent(acknowledged)
        call = asyncio.create_task(append(store, key, record))
        for _ in range(choose.randrange(30)):
            await asyncio.sleep(0)
        if choose.random() < 0.5:
            await asyncio.sleep(choose.random() / 500)
        call.cancel()
        await asyncio.wait([call])
        found = (await store.read_log(key)).next_seq
        assert found in (acknowledged, acknowledged + 1)
        assert found == acknowledged + 1 or call.cancelled()
        acknowledged = found
    await append(store, key, ended(acknowledged))
