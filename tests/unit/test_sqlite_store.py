"""`SqliteRunStore`: group commit, positions between objects, locks, faults, damage, mode, forks, leaving."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    InvalidRequest,
    RunAlreadyExists,
    RunConflict,
    RunKey,
    RunLog,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from tests.contract.records import model_intent, replied, started
from tests.seams import append
from tests.unit.jsonl_disk import eventually, story
from tests.unit.sqlite_files import Watched, WatchedStore, change

KEY = RunKey("a run")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Watched.reset()
    return tmp_path / "runs.sqlite"


async def written(path: Path, steps: int = 1) -> None:
    async with SqliteRunStore(path) as store:
        for record in story(steps, finished=True):
            await append(store, KEY, record)


# ---------------------------------------------------------------- group commit


async def test_barriers_of_many_runs_share_their_commits(path: Path) -> None:
    async with WatchedStore(path) as store:
        Watched.reset()
        await asyncio.gather(*(append(store, RunKey(f"run {number}"), started()) for number in range(200)))
        assert Watched.count("commit") <= 20
    assert change(path, "select count(*) from records") == [(200,)]


async def test_results_and_steps_ride_with_the_next_barrier(path: Path) -> None:
    async with WatchedStore(path) as store:
        Watched.reset()
        for record in story(1)[:3]:
            await append(store, KEY, record)
        assert Watched.count("commit") == 2


async def test_a_result_goes_by_itself_where_no_barrier_comes(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        for record in story(1)[:3]:
            await append(store, KEY, record)
        await eventually(lambda: change(path, "select count(*) from records") == [(3,)])


async def test_a_conflict_in_a_batch_concerns_its_run_alone(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        for key in ("sound", "stale"):
            await append(store, RunKey(key), started())
        outcomes = await asyncio.gather(
            append(store, RunKey("stale"), model_intent(5)),
            append(store, RunKey("sound"), model_intent(1)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], RunConflict)
        assert outcomes[1] is None
        assert (await store.read_log(RunKey("stale"))).next_seq == 1


async def test_nothing_of_a_stale_driver_goes_in(path: Path) -> None:
    async with SqliteRunStore(path) as stale, SqliteRunStore(path) as ahead:
        for record in story(1)[:2]:
            await append(stale, KEY, record)
        await append(stale, KEY, replied(2))
        await stale.read_log(KEY)
        await append(ahead, KEY, model_intent(3))
        await append(stale, KEY, replied(3))
        with pytest.raises(RunConflict):
            await append(stale, KEY, model_intent(4))
        assert (await ahead.read_log(KEY)).next_seq == 4


async def test_a_start_of_a_run_that_another_object_started_is_refused(path: Path) -> None:
    async with SqliteRunStore(path) as first, SqliteRunStore(path) as second:
        await append(first, KEY, started())
        with pytest.raises(RunAlreadyExists):
            await append(second, KEY, started())


# ---------------------------------------------------------------- locks and faults


async def test_a_lock_that_is_held_too_long_is_store_busy_and_the_loop_runs_on(path: Path) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("begin immediate")
        waiting = asyncio.ensure_future(append(store, KEY, model_intent(1)))
        turns = 0
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.001)
        with pytest.raises(StoreBusy) as caught:
            await waiting
        assert caught.value.key == KEY
        assert turns > 10
        holder.execute("rollback")
        holder.close()
        with pytest.raises(StoreBusy):
            await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 1
        await append(store, KEY, model_intent(1))


async def test_entering_a_file_that_is_locked_is_store_busy(path: Path) -> None:
    await written(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("pragma locking_mode = exclusive")
    holder.execute("begin exclusive")
    holder.execute("delete from runs")
    with pytest.raises(StoreBusy):
        await WatchedStore(path).__aenter__()
    holder.execute("rollback")
    holder.close()


@pytest.mark.parametrize("statement", ["begin immediate", "commit"])
async def test_a_failed_transaction_blocks_its_runs_until_they_are_read(path: Path, statement: str) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.failing = statement
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
                await append(store, KEY, model_intent(1))
        await append(store, RunKey("another"), started())
        assert (await store.read_log(KEY)).next_seq == 1
        await append(store, KEY, model_intent(1))


async def test_leaving_raises_the_failure_that_nobody_was_told_of(path: Path) -> None:
    store = await WatchedStore(path).__aenter__()
    for record in story(1)[:3]:
        if record.seq == 2:
            Watched.failing = "begin immediate"
        await append(store, KEY, record)
    with pytest.raises(sqlite3.OperationalError):
        await store.__aexit__(None, None, None)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "update records set record = replace(record, 'model', 'nodel') where seq = 1",
            CorruptionReason.MALFORMED_LINE,
        ),
        ("update records set record = x'00' where seq = 1", CorruptionReason.MALFORMED_LINE),
        ("update records set kind = 'step_completed' where seq = 1", CorruptionReason.MALFORMED_LINE),
        ("update records set recorded_at = 'never' where seq = 1", CorruptionReason.MALFORMED_LINE),
        ("update records set stop_reason = null where kind = 'run_finished'", CorruptionReason.MALFORMED_LINE),
        ("delete from records where seq = 1", CorruptionReason.WRONG_POSITION),
        ("delete from records where seq = (select max(seq) from records)", CorruptionReason.WRONG_POSITION),
        ("delete from records", CorruptionReason.WRONG_POSITION),
        ("delete from runs", CorruptionReason.WRONG_POSITION),
        ("update runs set ended = 0", CorruptionReason.WRONG_POSITION),
        ("update runs set next_seq = next_seq + 1", CorruptionReason.WRONG_POSITION),
        ("update runs set started_at = 'never'", CorruptionReason.WRONG_POSITION),
        ("update runs set last_record_at = 'never'", CorruptionReason.WRONG_POSITION),
        ("update runs set steps = steps + 1", CorruptionReason.WRONG_POSITION),
        ("update runs set stop_reason = 'step_budget'", CorruptionReason.WRONG_POSITION),
    ],
)
async def test_changed_rows_are_damage(path: Path, statement: str, reason: CorruptionReason) -> None:
    await written(path)
    change(path, statement)
    async with SqliteRunStore(path) as store:
        with pytest.raises(CorruptRunLog) as caught:
            await store.read_log(KEY)
        assert (caught.value.reason, caught.value.key) == (reason, KEY)


async def test_one_runs_damage_does_not_hinder_the_others_of_its_batch(path: Path) -> None:
    await written(path)
    change(path, "delete from runs")
    async with SqliteRunStore(path) as store:
        outcomes = await asyncio.gather(
            append(store, KEY, started()), append(store, RunKey("sound"), started()), return_exceptions=True
        )
        assert isinstance(outcomes[0], CorruptRunLog)
        assert (await store.read_log(RunKey("sound"))).next_seq == 1


# ---------------------------------------------------------------- the file


async def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        await append(store, KEY, started())
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"), 0o600)


@pytest.mark.parametrize("given", ["", "a\0b", ":memory:", 7])
def test_what_is_no_path_of_a_file_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        SqliteRunStore(given)


async def test_a_database_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    change(path, "create table mine (x)")
    with pytest.raises(InvalidRequest):
        await SqliteRunStore(path).__aenter__()
    assert change(path, "select name from sqlite_master") == [("mine",)]


async def test_a_newer_layout_is_refused(path: Path) -> None:
    await written(path)
    change(path, "pragma user_version = 2")
    with pytest.raises(UnsupportedSchemaVersion):
        await SqliteRunStore(path).__aenter__()


async def test_a_file_that_is_no_database_is_damage(path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, b"no database" * 1000)
    with pytest.raises(CorruptRunLog):
        await SqliteRunStore(path).__aenter__()


# ---------------------------------------------------------------- entering, leaving, loops, forks


@pytest.mark.parametrize("left", [False, True])
async def test_it_works_inside_its_context_only(path: Path, left: bool) -> None:
    store = SqliteRunStore(path)
    if left:
        async with store:
            pass
    with pytest.raises(RuntimeError):
        await store.read_log(KEY)


async def test_what_was_waiting_is_there_after_leaving_and_entering_again(path: Path) -> None:
    store = SqliteRunStore(path)
    async with store:
        with pytest.raises(RuntimeError):
            await store.__aenter__()
        for record in story(1)[:3]:
            await append(store, KEY, record)
    async with store:
        assert (await store.read_log(KEY)).next_seq == 3


async def test_another_loop_on_another_thread_is_served(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        other = threading.Thread(target=lambda: asyncio.run(append(store, KEY, started())))
        other.start()
        await append(store, RunKey("here"), started())
        await asyncio.to_thread(other.join)
        assert (await store.read_log(KEY)).next_seq == 1


async def test_a_forked_process_finds_it_left_and_may_not_use_the_file(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        await append(store, KEY, started())
        child = os.fork()
        if child == 0:
            os._exit(_refusals(store, path))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 2
        await append(store, KEY, model_intent(1))


def _refusals(store: SqliteRunStore, path: Path) -> int:
    async def enter() -> None:
        await SqliteRunStore(path).__aenter__()

    return sum(_refused(attempt) for attempt in (lambda: store.read_log(KEY), enter))


def _refused(attempt: Callable[[], Awaitable[RunLog | None]]) -> bool:
    async def attempted() -> None:
        await attempt()

    # A loop of the child's own: the parent's counts as running in this thread.
    asyncio._set_running_loop(None)
    try:
        asyncio.run(attempted())
    except RuntimeError as refusal:
        return "forked" in str(refusal) or "left" in str(refusal)
    return False


# ---------------------------------------------------------------- processes


def _writes(path: Path, number: int) -> None:
    async def write() -> None:
        async with SqliteRunStore(path) as store:
            for record in story(10):
                await append(store, RunKey(f"run {number}"), record)

    asyncio.run(write())


async def test_eight_processes_on_a_new_file_all_get_their_turn(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_writes, args=(path, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0] * 8
    async with SqliteRunStore(path) as store:
        for number in range(8):
            assert (await store.read_log(RunKey(f"run {number}"))).next_seq == len(story(10))
