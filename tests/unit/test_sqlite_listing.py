"""Listing and deleting in the SQLite store, as far as it is SQLite's own: plans, pages, head rows, memory of heads."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from polyloop.stores import RunState, RunSummary
from polyloop.stores._listing import Listing
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.stores.sqlite.listing import PAGE_ROWS, queries
from polyloop.types import CorruptRunLog, RunConflict, RunKey, StopReason
from tests.contract.records import ended, model_intent, replied, started
from tests.seams import append
from tests.unit.jsonl_disk import story
from tests.unit.sqlite_files import Watched, WatchedStore, change

KEY = RunKey("a run")
MANY = 100_000
FILL = """
with recursive number(n) as (select 0 union all select n + 1 from number where n < 99999)
insert into runs select printf('run-%06d', (n * 7919) % 100000), 7, 1,
    strftime('%Y-%m-%dT%H:%M:%S', 1700000000 + n / 2, 'unixepoch') || '.000000+00:00',
    strftime('%Y-%m-%dT%H:%M:%S', 1700000009 + n / 2, 'unixepoch') || '.000000+00:00', 1, 'step_budget' from number
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Watched.reset()
    return tmp_path / "runs.sqlite"


async def listed(store: SqliteRunStore, **wanted: object) -> list[RunSummary]:
    return [summary async for summary in store.runs(**wanted)]  # type: ignore[arg-type]  # the test names them right


def listing(
    *, state: RunState | None = None, prefix: str = "", after: RunSummary | None = None, newest_first: bool = False
) -> Listing:
    return Listing(state=state, prefix=prefix, limit=50, after=after, newest_first=newest_first)


LAST = RunSummary(
    key=RunKey("a run"),
    state=RunState.ENDED,
    started_at="2026-03-04T05:06:07.000000+00:00",
    last_record_at="2026-03-04T05:06:07.000000+00:00",
    steps=1,
    stop_reason=StopReason.STEP_BUDGET,
)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("after", [None, LAST])
@pytest.mark.parametrize("prefix", ["", "run-"])
@pytest.mark.parametrize("state", [None, RunState.UNFINISHED, RunState.CANCELLED, RunState.ENDED])
async def test_a_page_is_found_by_an_index_and_nothing_is_sorted(
    path: Path, state: RunState | None, prefix: str, after: RunSummary | None, newest_first: bool
) -> None:
    async with SqliteRunStore(path):
        asked = listing(state=state, prefix=prefix, after=after, newest_first=newest_first)
        (query,) = [query for query in queries(asked) if "not (" not in query.sql]
        (plan,) = change(path, f"explain query plan {query.sql} limit 50", *query.values)
    index = "runs_by_start" if state is None else "runs_by_state"
    bound = "(started_at,key)" if after else ""
    expected = {
        (False, False): f"SCAN runs USING INDEX {index}",
        (False, True): f"SEARCH runs USING INDEX {index} ({bound}",
        (True, False): f"SEARCH runs USING INDEX {index} (<expr>=?",
        (True, True): f"SEARCH runs USING INDEX {index} (<expr>=? AND {bound}",
    }[state is not None, after is not None]
    assert plan[3].startswith(expected), plan[3]


async def test_the_newest_of_many_runs_are_found_by_one_query(path: Path) -> None:
    async with WatchedStore(path) as store:
        change(path, FILL)
        Watched.reset()
        newest = await listed(store, limit=50, newest_first=True)
        selects = [statement for statement in Watched.said if statement.startswith("select")]
        assert [statement.split(" where ")[0] for statement in selects] == [selects[0].split(" where ")[0]]
        (plan,) = change(path, f"explain query plan {selects[0]}", 50)
    assert plan[3] == "SCAN runs USING INDEX runs_by_start"
    expected = sorted(change(path, "select started_at, key from runs"), reverse=True)[:50]
    assert [(summary.started_at, summary.key) for summary in newest] == expected


async def test_all_of_many_runs_are_listed_page_by_page(path: Path) -> None:
    async with WatchedStore(path) as store:
        change(path, FILL)
        Watched.reset()
        most = 0
        keys = []
        async for summary in store.runs(state=RunState.ENDED, prefix="run-0"):
            keys.append(summary.key)
            most = max(most, len(keys) - PAGE_ROWS * (Watched.count("select") - 1))
        assert most == PAGE_ROWS
    rows = change(path, "select key from runs where key < 'run-1' order by started_at, key")
    assert keys == [key for (key,) in rows]


async def test_no_query_is_open_while_the_caller_is_at_work(path: Path) -> None:
    """A query that were open would keep the write-ahead log from being moved into the database."""
    async with SqliteRunStore(path) as store:
        change(path, FILL)
        async for _ in store.runs():
            ((busy, _, _),) = change(path, "pragma wal_checkpoint(truncate)")
            assert not busy
            break


async def test_the_head_row_follows_a_run(path: Path) -> None:
    columns = "select next_seq, ended, steps, stop_reason from runs"
    at = "2026-03-04T05:06:08.000000+00:00"
    async with SqliteRunStore(path) as store:
        for record in story(1):
            await append(store, KEY, record)
        await append(store, KEY, ended(6, StopReason.CANCELLED))
        assert change(path, columns) == [(7, 0, 1, "cancelled")]
        await append(store, KEY, model_intent(7, 1, at=at))
        assert change(path, columns) == [(8, 0, 1, None)]
        assert change(path, "select last_record_at from runs") == [(at,)]
        await append(store, KEY, ended(8, StopReason.CANCELLED))
        await append(store, KEY, ended(9, StopReason.STEP_BUDGET))
        assert change(path, columns) == [(10, 1, 1, "step_budget")]


@pytest.mark.parametrize(
    "statement",
    [
        "update runs set stop_reason = 'boredom' where key = 'a run'",
        "update runs set stop_reason = null where key = 'a run'",
        "update runs set ended = 0 where key = 'a run'",
        "update runs set ended = 7 where key = 'a run'",
        "update runs set started_at = '' where key = 'a run'",
        "update runs set last_record_at = x'00' where key = 'a run'",
        "update runs set steps = 'many' where key = 'a run'",
        "update runs set steps = -1 where key = 'a run'",
    ],
)
async def test_a_head_row_that_makes_no_sense_is_listed_as_damaged_and_stands_first(path: Path, statement: str) -> None:
    damaged = RunSummary(
        key=KEY, state=RunState.DAMAGED, started_at=None, last_record_at=None, steps=None, stop_reason=None
    )
    async with SqliteRunStore(path) as store:
        for key in ("0", KEY, "z"):
            for record in story(1, finished=True):
                await append(store, RunKey(key), record)
        change(path, statement)
        forwards = await listed(store)
        assert [summary.key for summary in forwards] == [KEY, "0", "z"]
        assert forwards[0] == damaged
        assert await listed(store, newest_first=True) == forwards[::-1]
        assert await listed(store, state=RunState.DAMAGED) == [damaged]
        assert await listed(store, state=RunState.ENDED) == forwards[1:]
        for number in range(3):
            assert await listed(store, after=forwards[number]) == forwards[number + 1 :]
            assert await listed(store, after=forwards[number], newest_first=True) == forwards[:number][::-1]
        with pytest.raises(CorruptRunLog):
            await store.read_log(KEY)


async def test_a_place_that_sqlite_cannot_hold_as_text_is_compared_by_code_point(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        for key in ("\ud7ff", "\ue000", "\U00010000"):
            await append(store, RunKey(key), started())
        (first, *_) = await listed(store)
        surrogate = RunSummary(
            key=RunKey("\udc00"),
            state=RunState.UNFINISHED,
            started_at=first.started_at,
            last_record_at=None,
            steps=None,
            stop_reason=None,
        )
        assert [summary.key for summary in await listed(store, after=surrogate)] == ["\ue000", "\U00010000"]
        assert await listed(store, prefix="\udc00") == []
        assert await listed(store, prefix="\ud7ff\0") == []


async def test_a_driven_run_that_another_object_deleted_is_refused_and_not_gone_on_with(path: Path) -> None:
    """The head that this object remembers is not believed once another connection has written."""
    async with SqliteRunStore(path) as mine, SqliteRunStore(path) as others:
        for record in story(1):
            await append(mine, KEY, record)
        assert (await mine.read_log(KEY)).next_seq == 6
        assert await others.delete(KEY)
        with pytest.raises(RunConflict):
            await append(mine, KEY, model_intent(6))
        assert (await others.read_log(KEY)).started is None


async def test_a_deleted_run_can_be_started_again_by_the_same_object(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        for end in (StopReason.STEP_BUDGET, StopReason.CANCELLED):
            await append(store, KEY, started())
            await append(store, KEY, ended(1, end))
            assert await store.delete(KEY)
        await append(store, KEY, started())
        with pytest.raises(RunConflict):
            await store.delete(KEY)
    assert change(path, "select count(*) from records") == [(1,)]


async def test_heads_are_read_once_while_nobody_else_writes(path: Path) -> None:
    def reads() -> int:
        return sum(said.startswith("select") and " in (" in said for said in Watched.said)

    async with WatchedStore(path) as store:
        for record in story(5):
            await append(store, KEY, record)
        assert reads() == 1
        change(path, "create table if not exists mine (x)")
        await append(store, KEY, replied(len(story(5))))
        await append(store, KEY, ended(len(story(5)) + 1))
        assert reads() == 2


async def test_a_deletion_that_fails_leaves_the_run(path: Path) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        await append(store, KEY, ended(1))
        Watched.failing = "delete from runs"
        with pytest.raises(sqlite3.OperationalError):
            await store.delete(KEY)
        assert (await store.read_log(KEY)).next_seq == 2
        assert await store.delete(KEY)
