"""The SQLite store under attack: calls that were cancelled, reads that fail, rows that make no sense, a file that goes.

Each test names the promise that it was found to break.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.stores.sqlite.reading import SqliteReader
from polyloop.types import (
    CorruptRunLog,
    InvalidRequest,
    ModelReply,
    RunConflict,
    RunKey,
)
from tests.contract.records import model_intent, replied, started
from tests.seams import append
from tests.unit.sqlite_files import Watched, WatchedStore, change

KEY, OTHER = RunKey("a run"), RunKey("another")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Watched.reset()
    return tmp_path / "runs.sqlite"


async def intended(store: SqliteRunStore, *keys: RunKey) -> None:
    for key in keys:
        await append(store, key, started())
        await append(store, key, model_intent(1))


# ---------------------------------------------------------------- who is told


async def cancelled_barrier_of_a_failed_batch(store: SqliteRunStore) -> None:
    """A result is handed in, then an intent whose caller is cancelled; the transaction with both fails."""
    given_up = threading.Event()

    def before(statement: str) -> None:
        if statement == "begin immediate":
            given_up.wait(30)

    Watched.before = before
    Watched.failing = "commit"
    await append(store, KEY, replied(2))
    caller = asyncio.create_task(append(store, KEY, model_intent(3, 1)))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    given_up.set()


async def test_leaving_raises_what_a_cancelled_barrier_did_not_hear_of_a_result(path: Path) -> None:
    store = await WatchedStore(path).__aenter__()
    await intended(store, KEY)
    await cancelled_barrier_of_a_failed_batch(store)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        await store.__aexit__(None, None, None)


async def test_a_read_raises_what_a_cancelled_barrier_did_not_hear_of_a_result(path: Path) -> None:
    async with WatchedStore(path) as store:
        await intended(store, KEY)
        await cancelled_barrier_of_a_failed_batch(store)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            await store.read_log(KEY)
        assert (await store.read_log(KEY)).next_seq == 2


async def test_a_cancelled_barrier_that_fails_alone_is_as_the_next_read_finds_it(path: Path) -> None:
    """Its caller has given it up: no later call is told of it, and the read reads."""
    async with WatchedStore(path) as store:
        await intended(store, KEY)
        Watched.failing = "commit"
        caller = asyncio.create_task(append(store, KEY, model_intent(2, 1)))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await store.read_log(KEY)).next_seq == 2


# ---------------------------------------------------------------- what blocks, and for how long


async def test_a_read_that_fails_does_not_unblock(path: Path) -> None:
    async with WatchedStore(path) as store:
        await intended(store, KEY)
        Watched.failing = "commit"
        with pytest.raises(sqlite3.OperationalError):
            await append(store, KEY, model_intent(2, 1))
        Watched.failing = "select seq"
        with pytest.raises(sqlite3.OperationalError):
            await store.read_log(KEY)
        with pytest.raises(sqlite3.OperationalError):
            await append(store, KEY, model_intent(2, 1))
        assert (await store.read_log(KEY)).next_seq == 2
        await append(store, KEY, model_intent(2, 1))


async def test_a_start_that_cannot_be_encoded_blocks_like_any_failure(path: Path) -> None:
    record = started({"x": float("nan")})
    async with SqliteRunStore(path) as store:
        for attempt in (record, started()):
            with pytest.raises(InvalidRequest, match="params_snapshot"):
                await append(store, KEY, attempt)
        assert (await store.read_log(KEY)).next_seq == 0
        await append(store, KEY, started())


# ---------------------------------------------------------------- one run's fault


@pytest.mark.parametrize(
    "values",
    ["steps = 'x'", "next_seq = 'x'", "ended = x'00'", "started_at = x'00'", "started_at = cast(x'73ff' as text)"],
)
async def test_a_head_row_that_makes_no_sense_is_damage_of_its_run_alone(path: Path, values: str) -> None:
    async with SqliteRunStore(path) as store:
        await intended(store, KEY, OTHER)
        change(path, f"update runs set {values} where key = ?", KEY)  # noqa: S608 - the test's own
        appends = [append(store, key, model_intent(2, 1)) for key in (KEY, OTHER)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert isinstance(outcomes[0], CorruptRunLog)
        assert outcomes[1] is None
        for _ in range(2):
            with pytest.raises(CorruptRunLog):
                await store.read_log(KEY)
        assert len([run async for run in store.runs()]) == 2
        assert (await store.read_log(OTHER)).next_seq == 3


@pytest.mark.parametrize("column", ["record", "kind", "recorded_at", "stop_reason"])
async def test_text_that_is_no_utf_8_is_damage_and_is_not_quoted(path: Path, column: str) -> None:
    async with SqliteRunStore(path) as store:
        await intended(store, KEY)
        change(path, f"update records set {column} = cast(x'736563726574ff' as text) where seq = 1")  # noqa: S608 - the test's own
        with pytest.raises(CorruptRunLog) as caught:
            await store.read_log(KEY)
        assert "secret" not in str(caught.value)
    async with SqliteReader(str(path)) as reader:
        with pytest.raises(CorruptRunLog):
            await reader.read_log(KEY)


class Small(sqlite3.Connection):
    """A connection that takes no text over 100 kB, as any takes none over a gigabyte."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)


class SmallStore(SqliteRunStore):
    _connection = Small


async def test_a_text_that_is_too_long_for_sqlite_concerns_its_run_alone(path: Path) -> None:
    long = replied(2, reply=ModelReply(call_id=None, text="x" * 200_000, reasoning=None))
    async with SmallStore(path) as store:
        await intended(store, KEY, OTHER)
        await append(store, KEY, long)
        await append(store, OTHER, model_intent(2, 1))
        with pytest.raises(sqlite3.DataError):
            await store.read_log(KEY)
        assert (await store.read_log(KEY)).next_seq == 2
        assert (await store.read_log(OTHER)).next_seq == 3


# ---------------------------------------------------------------- the file


async def test_nothing_is_acknowledged_into_a_file_that_was_deleted(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        await intended(store, KEY)
        await asyncio.to_thread(path.unlink)
        with pytest.raises(sqlite3.OperationalError):
            await append(store, KEY, model_intent(2, 1))
    assert "runs.sqlite" not in await asyncio.to_thread(os.listdir, path.parent)


async def test_a_file_in_the_place_of_a_moved_one_is_judged_by_what_it_holds(path: Path) -> None:
    elsewhere = path.with_name("other.sqlite")
    async with SqliteRunStore(elsewhere) as other:
        await append(other, KEY, started())
    async with SqliteRunStore(path) as store:
        await intended(store, KEY)
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).rename(path.with_name(f"moved{ending}"))
        elsewhere.rename(path)
        with pytest.raises(RunConflict):
            await append(store, KEY, model_intent(2, 1))
        assert (await store.read_log(KEY)).next_seq == 1
