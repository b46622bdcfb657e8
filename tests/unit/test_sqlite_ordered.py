"""Results and steps in the SQLite store: not waited for, committed in time, and what became of them is told."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.stores.sqlite.writer import REST_S
from polyloop.types import Record, RunConflict, RunKey
from tests.contract.records import ended, model_intent, replied, started, stepped
from tests.seams import append
from tests.unit.jsonl_disk import eventually, story
from tests.unit.sqlite_files import Watched, WatchedStore, change

KEY = RunKey("a run")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Watched.reset()
    return tmp_path / "runs.sqlite"


def at_once(store: SqliteRunStore, record: Record, key: RunKey = KEY) -> None:
    """Append a record; fails if the append lets anybody else run."""
    call = append(store, key, record)
    try:
        call.send(None)
    except StopIteration:
        return
    call.close()
    raise AssertionError("it was waited for")


def rows(path: Path) -> int:
    ((count,),) = change(path, "select count(*) from records")
    return int(count)


def in_the_file(path: Path, count: int) -> None:
    """Wait on this thread: an event loop that runs on it stands still meanwhile."""
    deadline = time.monotonic() + 20
    while rows(path) != count:
        assert time.monotonic() < deadline, "it was not committed"


async def test_results_and_steps_return_without_a_turn_of_the_loop(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        await append(store, KEY, started())
        await append(store, KEY, model_intent(1))
        at_once(store, replied(2))
        at_once(store, stepped(3))
        await append(store, KEY, model_intent(4))
        assert rows(path) == 5


async def test_they_are_committed_while_the_loop_is_busy(path: Path) -> None:
    """Right after other work, when the thread dozes, and long after it, when it sleeps."""
    async with SqliteRunStore(path) as store:
        await append(store, KEY, started())
        at_once(store, replied(1))
        in_the_file(path, 2)
        await eventually(lambda: asleep(store))
        at_once(store, replied(2))
        at_once(store, stepped(3))
        in_the_file(path, 4)


def asleep(store: SqliteRunStore) -> bool:
    assert store._inside is not None
    return store._inside[1]._sleep.name == "SLEEP"


async def test_a_thread_without_work_sleeps_without_a_limit(path: Path) -> None:
    turns: list[float | None] = []
    async with SqliteRunStore(path) as store:
        assert store._inside is not None
        (thread,) = store._inside[0]._threads
        assert thread is not None
        turn = thread._due
        assert turn is not None

        def watched(worker: object) -> float | None:
            turns.append(turn(worker))  # type: ignore[arg-type]  # it is the writer
            return turns[-1]

        thread._due = watched
        await append(store, KEY, started())
        await eventually(lambda: bool(turns) and turns[-1] is None)
        assert len(turns) <= 3
        at_once(store, replied(1))
        await eventually(lambda: rows(path) == 2 and turns[-1] is None)
        assert [left for left in turns if left is not None and left > REST_S] == []


async def test_many_records_in_one_stretch_share_a_commit(path: Path) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.reset()
        for seq in range(1, 200):
            at_once(store, replied(seq))
        await eventually(lambda: rows(path) == 200)
    # Two where the thread came round between the records.
    assert Watched.count("commit") <= 3


async def test_they_ride_with_the_barrier_of_another_run(path: Path) -> None:
    other = RunKey("another")
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.reset()
        at_once(store, replied(1))
        await append(store, other, started())
        assert Watched.count("commit") == 1
        assert rows(path) == 3


async def test_several_loops_on_threads_are_served_at_once(path: Path) -> None:
    async def drive(store: SqliteRunStore, number: int) -> None:
        for record in story(20, finished=True):
            await append(store, RunKey(f"run {number}"), record)

    async with SqliteRunStore(path) as store:
        threads = [threading.Thread(target=lambda n=n: asyncio.run(drive(store, n))) for n in range(4)]
        for thread in threads:
            thread.start()
        await drive(store, 4)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        for number in range(5):
            assert list((await store.read_log(RunKey(f"run {number}"))).records()) == story(20, finished=True)


async def test_records_of_a_loop_that_ended_are_committed(path: Path) -> None:
    """Their loop is closed before the thread comes round."""

    async def drive(store: SqliteRunStore) -> None:
        await append(store, KEY, started())
        at_once(store, replied(1))

    async with SqliteRunStore(path) as store:
        await asyncio.to_thread(lambda: asyncio.run(drive(store)))
        await eventually(lambda: rows(path) == 2)


# ---------------------------------------------------------------- what became of them


async def begun(path: Path) -> WatchedStore:
    """A store with a run that has just been started."""
    store = await WatchedStore(path).__aenter__()
    await append(store, KEY, started())
    return store


def fails() -> None:
    Watched.failing = "commit"


CALLS: dict[str, Callable[[SqliteRunStore], Awaitable[object]]] = {
    "the next barrier": lambda store: append(store, KEY, model_intent(2)),
    "an end": lambda store: append(store, KEY, ended(2)),
    "a read": lambda store: store.read_log(KEY),
    "a deletion": lambda store: store.delete(KEY),
    "leaving": lambda store: store.__aexit__(None, None, None),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_a_failure_is_told_as_itself(path: Path, call: str, late: bool) -> None:
    store = await begun(path)
    at_once(store, replied(1))
    fails()
    if late:
        await eventually(lambda: Watched.failing is None)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
        await CALLS[call](store)
    assert (rows(path), Watched.failing) == (1, None)
    await store.__aexit__(None, None, None)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_a_refusal_is_told_as_itself(path: Path, call: str, late: bool) -> None:
    store = await begun(path)
    Watched.reset()
    at_once(store, replied(7))
    if late:
        await eventually(lambda: Watched.count("commit") == 1)
    with pytest.raises(RunConflict) as caught:
        await CALLS[call](store)
    assert (caught.value.seq, caught.value.next_seq) == (7, 1)
    assert rows(path) == 1
    await store.__aexit__(None, None, None)


async def test_what_follows_a_refused_record_does_not_go_in_and_hides_nothing(path: Path) -> None:
    store = await begun(path)
    at_once(store, replied(7))
    at_once(store, replied(1))
    with pytest.raises(RunConflict) as caught:
        await append(store, KEY, model_intent(1))
    assert caught.value.seq == 7
    with pytest.raises(RunConflict):
        await append(store, KEY, replied(1))
    assert (await store.read_log(KEY)).next_seq == 1
    at_once(store, replied(1))
    await append(store, KEY, ended(2))
    await store.__aexit__(None, None, None)
    assert rows(path) == 3


async def test_what_was_accepted_before_a_refused_record_goes_in(path: Path) -> None:
    """The driver was told that these records have their place; only what comes behind the refusal has none."""
    store = await begun(path)
    at_once(store, replied(1))
    at_once(store, replied(2))
    with pytest.raises(RunConflict):
        await append(store, KEY, model_intent(9))
    assert (await store.read_log(KEY)).next_seq == 3
    await store.__aexit__(None, None, None)


async def test_a_read_that_told_of_a_failure_is_followed_by_one_that_reads(path: Path) -> None:
    store = await begun(path)
    at_once(store, replied(1))
    fails()
    with pytest.raises(sqlite3.OperationalError):
        await store.read_log(KEY)
    assert (await store.read_log(KEY)).next_seq == 1
    await append(store, KEY, model_intent(1))
    await store.__aexit__(None, None, None)


async def test_an_append_after_leaving_is_refused_and_not_lost(path: Path) -> None:
    store = await begun(path)
    leaving = asyncio.ensure_future(store.__aexit__(None, None, None))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await append(store, KEY, replied(1))
    await leaving
