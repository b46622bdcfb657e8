"""The database tools of the examples: reading only, bounded, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.orders import build
from examples.scripted import ScriptedModel, analyst
from examples.sql_tools import Ledger, LedgerEntry, ReadOnlyDatabase, catalogue
from polyloop import Action, ActionExecutor, ActionOutcome, ActionStatus, ChatMessage, ModelCall, RunKey

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "books of 100 % #1?.sqlite3"
    connection = sqlite3.connect(path)
    connection.executescript('create table t (a, b); create table "odd "" name" (c); insert into t values (1, null);')
    connection.executemany("insert into t values (?, 'x')", [(number,) for number in range(2, 301)])
    connection.commit()
    connection.close()
    return path


def _executor(path: Path, time_limit_s: float = 5.0) -> ActionExecutor:
    database = ReadOnlyDatabase(path, max_rows=200, max_cell_bytes=10_000, time_limit_s=time_limit_s)
    ledger = Ledger(path.with_name("ledger.jsonl"))
    return catalogue(database, ledger).executor(max_observation_chars=100_000)


def _action(tool: str, **arguments: Any) -> Action:
    return Action(action_text="", tool_name=tool, arguments=arguments, key=RunKey("k"), step_idx=3, result_id="r3")


async def _ask(path: Path, sql: str, **more: Any) -> ActionOutcome:
    return await _executor(path).execute(_action("run_sql", sql=sql, **more))


async def _answer(path: Path, sql: str, **more: Any) -> dict[str, Any]:
    outcome = await _ask(path, sql, **more)
    assert outcome.status is ActionStatus.EXECUTED
    answer: dict[str, Any] = json.loads(outcome.observation)
    return answer


# -- What is answered


async def test_tables_are_listed_with_columns_and_rows(path: Path) -> None:
    outcome = await _executor(path).execute(_action("list_tables"))
    assert json.loads(outcome.observation) == [
        {"name": 'odd " name', "columns": ["c"], "rows": 0},
        {"name": "t", "columns": ["a", "b"], "rows": 300},
    ]


async def test_rows_are_cut_at_what_was_asked_for_and_at_the_limit(path: Path) -> None:
    assert await _answer(path, "select a, b from t order by a", max_rows=2) == {
        "columns": ["a", "b"],
        "rows": [[1, None], [2, "x"]],
        "more": True,
    }
    assert len((await _answer(path, "select a from t"))["rows"]) == 200
    assert (await _answer(path, "select a from t where a <= 200"))["more"] is False
    assert len((await _answer(path, "select a from t", max_rows=7.0))["rows"]) == 7
    narrow = ReadOnlyDatabase(path, max_rows=3, max_cell_bytes=1_000, time_limit_s=5.0)
    assert len(json.loads(await narrow.query("select a from t", 200))["rows"]) == 3


async def test_what_is_not_text_or_json_is_shown_by_a_rule(path: Path) -> None:
    """Text that is not UTF-8 is decoded with replacement, bytes are shown in hexadecimal, infinities as words."""
    answer = await _answer(path, "select cast(x'f0ff41' as text), x'00ff', 9e999, -9e999, 1.5, 'a' || char(0) || 'b'")
    assert answer["rows"] == [["\ufffd\ufffdA", "x'00ff'", "inf", "-inf", 1.5, "a\x00b"]]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from nope", "OperationalError: no such table: nope"),
        ("selekt 1", "OperationalError"),
        ("select 1; select 2", "one statement at a time"),
        ("select '\ud800'", "UnicodeEncodeError"),
        ("select hex(zeroblob(1000000))", "too big"),
        ("select load_extension('x')", "Error"),
    ],
)
async def test_bad_sql_is_executed_and_its_error_the_observation(sql: str, said: str, path: Path) -> None:
    outcome = await _ask(path, sql)
    assert outcome.status is ActionStatus.EXECUTED
    assert said in outcome.observation
    assert outcome.completed is False


# -- What is refused


def _files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t values (1, 2)",
        "update t set a = 1",
        "delete from t",
        "drop table t",
        "create table u (a)",
        "create temp table u (a)",
        "attach database '{beside}' as other",
        "vacuum into '{beside}'",
        "pragma user_version = 7",
        "pragma writable_schema = 1",
        "begin immediate",
        "explain delete from t",
    ],
)
async def test_nothing_but_selecting_is_let_through(sql: str, path: Path) -> None:
    before = _files(path)
    outcome = await _ask(path, sql.format(beside=path.with_name("other.sqlite3")))
    assert outcome.status is ActionStatus.EXECUTED
    assert re.search("not authorized|authorization denied", outcome.observation)
    after = _files(path)
    assert after.pop("ledger.jsonl")
    assert after == before


async def test_a_file_that_is_only_readable_stays_so_without_the_authorizer(path: Path) -> None:
    """Two locks on one door: the connection itself is read-only too."""
    database = ReadOnlyDatabase(path, max_rows=1, max_cell_bytes=1_000, time_limit_s=1.0)
    connection = database._connect()
    try:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("delete from t")
    finally:
        connection.close()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"sql": ""}, {"sql": 5}, {"sql": "select 1", "max_rows": "5"}, {"sql": "select 1", "max_rows": 201}],
)
async def test_arguments_that_do_not_fit_run_and_note_nothing(arguments: dict[str, Any], path: Path) -> None:
    outcome = await _executor(path).execute(_action("run_sql", **arguments))
    assert outcome.status is ActionStatus.NOT_EXECUTED
    assert Ledger(path.with_name("ledger.jsonl")).entries("k") == []


def _damage(path: Path, damage: str) -> None:
    if damage == "missing":
        path.unlink()
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    elif damage == "overwritten":
        path.write_bytes(b"no database" * 1_000)
    else:
        stored = path.read_bytes()
        path.write_bytes(stored[:4096] + b"\xff" * (len(stored) - 4096))


@pytest.mark.parametrize("damage", ["missing", "a folder", "overwritten", "torn"])
async def test_a_database_that_cannot_be_read_is_an_environment_error(damage: str, path: Path) -> None:
    _damage(path, damage)
    for tool, arguments in (("run_sql", {"sql": "select sum(a) from t"}), ("list_tables", {})):
        outcome = await _executor(path).execute(_action(tool, **arguments))
        assert outcome.status is ActionStatus.ENV_ERROR
        assert "cannot be read" in outcome.observation


# -- What runs away


async def test_an_endless_query_is_stopped_and_said_so(path: Path) -> None:
    outcome = await _executor(path, time_limit_s=0.05).execute(_action("run_sql", sql=ENDLESS))
    assert outcome.status is ActionStatus.EXECUTED
    assert outcome.observation == "TimeoutError: the query ran longer than 0.05 s and was stopped"


async def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_query_ends_at_once(times: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled once, it does not return before its thread has ended; cancelled twice, the thread still ends."""
    running: list[bool] = []
    connect = ReadOnlyDatabase._connect

    class _Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            running.append(True)
            return super().execute(*arguments)

        def close(self) -> None:
            super().close()
            running.clear()

    def _connect(database: ReadOnlyDatabase) -> sqlite3.Connection:
        connect(database).close()
        return sqlite3.connect(database._uri, uri=True, factory=_Watched)

    monkeypatch.setattr(ReadOnlyDatabase, "_connect", _connect)
    task = asyncio.create_task(_executor(path, time_limit_s=60.0).execute(_action("run_sql", sql=ENDLESS)))
    await _until(lambda: bool(running))
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    if times == 1:
        assert running == []
    await _until(lambda: not running)


# -- The ledger


async def test_the_ledger_notes_a_deed_before_it_is_done(path: Path) -> None:
    ledger = Ledger(path.with_name("ledger.jsonl"))
    seen: list[list[LedgerEntry]] = []

    class _Looking(ReadOnlyDatabase):
        async def query(self, sql: str, max_rows: int) -> str:
            seen.append(ledger.entries("k"))
            return await super().query(sql, max_rows)

    database = _Looking(path, max_rows=1, max_cell_bytes=1_000, time_limit_s=1.0)
    await catalogue(database, ledger).executor(max_observation_chars=100).execute(_action("run_sql", sql="select 1"))
    assert [(entry.result_id, entry.tool, entry.what) for entry in seen[0]] == [("r3", "run_sql", "select 1")]
    assert ledger.entries("k") == seen[0]
    assert ledger.entries("another run") == []


# -- The data and the script


def test_the_books_are_the_same_every_time_and_replaced_whole(tmp_path: Path) -> None:
    first, second = tmp_path / "a.sqlite3", tmp_path / "b.sqlite3"
    second.write_text("what was there before")
    assert build(first) == build(second)
    assert first.read_bytes() == second.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


_BOOKINGS = """
create temp view bookings as
select g.name as region, substr(r.refunded_on, 1, 7) as month, r.booking_ref, r.amount_cents as cents
from refunds r join orders using (order_id) join customers using (customer_id) join regions g using (region_id)
"""
_DOUBLED = """
select region, month, sum((times - 1) * cents)
from (select region, month, cents, count(*) as times from bookings group by 1, 2, booking_ref, 3 having times > 1)
group by 1, 2
"""


def test_the_planted_fault_is_the_only_one_of_its_kind_and_not_the_largest_sum(tmp_path: Path) -> None:
    finding = build(tmp_path / "a.sqlite3")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite3")) as connection:
        connection.execute(_BOOKINGS)
        assert connection.execute(_DOUBLED).fetchall() == [tuple(finding)]
        by_sum = "select region, month from bookings group by 1, 2 order by sum(cents) desc"
        assert connection.execute(by_sum).fetchone() != (finding.region, finding.month)
        assert connection.execute("select count(*) from orders").fetchone() == (40_000,)
        assert connection.execute("select count(*) from order_lines").fetchone() > (70_000,)


_OTHER_FAULT = """
alter table refunds rename to refunding;
create temp view large as select * from refunding where amount_cents > 9000;
insert into refunding (order_id, booking_ref, refunded_on, amount_cents, reason)
select order_id, booking_ref, '2025-02-02', 1000 * amount_cents, 'late' from large
union all select order_id, booking_ref, '2025-02-02', 1000 * amount_cents, 'damaged' from large;
"""


async def test_the_script_reads_what_is_there(tmp_path: Path) -> None:
    """With other figures it comes to another finding: it is no recording."""
    build(tmp_path / "a.sqlite3")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite3")) as connection:
        connection.executescript(_OTHER_FAULT)
    executor = _executor(tmp_path / "a.sqlite3")
    model = ScriptedModel(name="analyst", script=analyst)
    messages: list[ChatMessage] = [ChatMessage(role="user", content="?")]
    said = []
    for index in range(9):
        call = ModelCall(messages=tuple(messages), call_index=index, key=RunKey("k"), result_id="r", binding={})
        reply = await model.call(call)
        assert reply == await model.call(call), "asked again, it says the same"
        said.append(reply.text)
        # The first reply is cut off, the others end with their call.
        action: dict[str, Any] = {"tool": "-", "arguments": {}} if index == 0 else json.loads(reply.text.split("\n")[1])
        outcome = await executor.execute(_action(action["tool"], **action["arguments"]))
        messages.append(ChatMessage(role="assistant", content=reply.text))
        messages.append(ChatMessage(role="user", content=outcome.observation))
        if action["tool"] == "submit":
            break
    assert "from refunding r" in said[4]
    assert '"month": "2025-02"' in said[-1]
