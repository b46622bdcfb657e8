"""The SQLite store where the disk is full or broken, the file is held by others, or the process forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.stores.sqlite.writer import Writer
from polyloop.types import InvalidRequest, RunKey, StoreBusy
from tests.contract.records import model_intent, replied, started
from tests.seams import append
from tests.unit.jsonl_disk import eventually, is_barrier, story
from tests.unit.sqlite_files import Watched, WatchedStore, change

KEY = RunKey("a run")
STORY = story(2, finished=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Watched.reset()
    return tmp_path / "runs.sqlite"


# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize(
    "statement", ["begin immediate", "insert into records", "update runs", "insert into runs", "commit"]
)
@pytest.mark.parametrize("position", range(len(STORY)))
async def test_a_full_disk_at_any_record_leaves_the_run_resumable(path: Path, position: int, statement: str) -> None:
    """Whatever statement meets it: the caller is told, the log is an honest prefix, and goes on from there."""
    acknowledged = 0
    async with WatchedStore(path) as store:
        try:
            for record in STORY[:position]:
                await append(store, KEY, record)
                acknowledged = record.seq + 1 if is_barrier(record) else acknowledged
            Watched.failing, Watched.code = statement, sqlite3.SQLITE_FULL
            for record in STORY[position:]:
                await append(store, KEY, record)
        except sqlite3.OperationalError as error:
            assert error.sqlite_errorcode == sqlite3.SQLITE_FULL  # noqa: PT017 - the run may also end well
        else:
            assert Watched.failing is not None, "the failure was told to nobody"
            Watched.failing = None
        found = (await store.read_log(KEY)).records()
        assert list(found) == STORY[: len(found)]
        assert len(found) >= acknowledged
        for record in STORY[len(found) :]:
            await append(store, KEY, record)
    async with SqliteRunStore(path) as fresh:
        assert list((await fresh.read_log(KEY)).records()) == STORY


class Cramped(sqlite3.Connection):
    """A connection to a database that may not grow beyond so many pages."""

    pages = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if Cramped.pages:
            super().execute(f"pragma max_page_count = {Cramped.pages}")


class CrampedStore(SqliteRunStore):
    _connection = Cramped


async def test_sqlites_own_word_of_a_full_file_reaches_the_caller_and_the_run_goes_on_once_there_is_room(
    path: Path,
) -> None:
    Cramped.pages = 0
    async with SqliteRunStore(path) as roomy:
        await append(roomy, KEY, started())
    Cramped.pages = 1
    async with CrampedStore(path) as store:
        with pytest.raises(sqlite3.OperationalError, match="full"):
            for seq in range(1, 500):
                await append(store, KEY, model_intent(seq))
        Cramped.pages = 0
        found = await store.read_log(KEY)
        assert found.next_seq >= 1
        await append(store, KEY, model_intent(found.next_seq))
        assert (await store.read_log(KEY)).next_seq == found.next_seq + 1


# ---------------------------------------------------------------- after a failed sync


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


async def test_after_a_failed_transaction_the_log_is_moved_into_the_database_before_anything_is_written(
    path: Path,
) -> None:
    sizes: list[int] = []

    def before(statement: str) -> None:
        if statement == "begin immediate":
            sizes.append(log_size(path))

    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.failing = "commit"
        with pytest.raises(sqlite3.OperationalError):
            await append(store, KEY, model_intent(1))
        Watched.reset()
        Watched.before = before
        await append(store, RunKey("another"), started())
        assert Watched.count("pragma wal_checkpoint(truncate)") == 1
        assert sizes == [0]
        await append(store, RunKey("another"), model_intent(1))
        assert Watched.count("pragma wal_checkpoint(truncate)") == 1
        assert sizes[1] > 0


async def test_a_lock_is_no_reason_to_move_the_log(path: Path) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.failing, Watched.code = "begin immediate", sqlite3.SQLITE_BUSY
        with pytest.raises(StoreBusy):
            await append(store, KEY, model_intent(1))
        await store.read_log(KEY)
        assert Watched.count("pragma wal_checkpoint") == 0


async def test_where_a_reader_holds_the_log_nothing_is_written_until_it_lets_go(path: Path) -> None:
    reader = sqlite3.connect(path, isolation_level=None)
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        reader.execute("begin")
        reader.execute("select * from runs").fetchall()
        await append(store, KEY, model_intent(1))
        Watched.failing = "commit"
        with pytest.raises(sqlite3.OperationalError):
            await append(store, KEY, model_intent(2))
        for attempt in (append(store, RunKey("another"), started()), store.read_log(KEY)):
            with pytest.raises(StoreBusy):
                await attempt
        reader.execute("commit")
        reader.close()
        assert (await store.read_log(KEY)).next_seq == 2
        assert (await store.read_log(RunKey("another"))).started is None
        await append(store, KEY, model_intent(2))


# ---------------------------------------------------------------- others on the file

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("held", flush=True)
sys.stdin.read()
"""


def holding(path: Path) -> subprocess.Popen[str]:
    """A process that has the write lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_another_process_that_holds_the_lock_too_long_is_store_busy_and_the_run_is_resumable(path: Path) -> None:
    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        holder = holding(path)
        try:
            with pytest.raises(StoreBusy) as caught:
                await append(store, KEY, model_intent(1))
            assert caught.value.key == KEY
            with pytest.raises(StoreBusy):
                await append(store, KEY, model_intent(1))
            assert (await store.read_log(KEY)).next_seq == 1
            with pytest.raises(StoreBusy):
                await store.delete(RunKey("another"))
        finally:
            holder.communicate("")
        await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 2


async def test_a_lock_that_is_let_go_in_time_is_waited_for(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        await append(store, KEY, started())
        holder = holding(path)
        waiting = asyncio.ensure_future(append(store, KEY, model_intent(1)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        holder.communicate("")
        await waiting


async def test_readers_who_poll_neither_disturb_nor_see_half_a_record(path: Path) -> None:
    """One that polls the store, and one that polls the file itself, while eight runs are written."""
    keys = [RunKey(f"run {number}") for number in range(8)]
    records = story(25, finished=True)
    done = threading.Event()
    seen: list[tuple[int, int]] = []

    def poll_the_file() -> None:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
        query = "select sum(next_seq), (select count(*) from records) from runs"
        while not done.is_set():
            seen.append(connection.execute(query).fetchone())
        connection.close()

    async def write(store: SqliteRunStore, key: RunKey) -> None:
        for record in records:
            await append(store, key, record)

    async with SqliteRunStore(path) as store, SqliteRunStore(path) as other:
        await append(store, RunKey("first"), started())
        thread = threading.Thread(target=poll_the_file)
        thread.start()
        try:
            writing = asyncio.gather(*(write(store, key) for key in keys))
            while not writing.done():
                for key in keys:
                    found = (await other.read_log(key)).records()
                    assert list(found) == records[: len(found)]
            await writing
        finally:
            done.set()
            await asyncio.to_thread(thread.join)
    assert all(heads == rows for heads, rows in seen)
    assert len(set(seen)) > 1


def _writes_many(path: Path, number: int) -> None:
    async def write() -> None:
        async with SqliteRunStore(path) as store:
            for seq in range(50):
                record = model_intent(seq) if seq else started()
                await append(store, RunKey(f"run {number}"), record)

    asyncio.run(write())


async def test_eight_processes_with_fifty_appends_each_all_succeed_while_a_reader_polls(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    async with SqliteRunStore(path) as store:
        processes = [context.Process(target=_writes_many, args=(path, number)) for number in range(8)]
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            async for summary in store.runs():
                assert (await store.read_log(summary.key)).next_seq <= 50
        assert [process.exitcode for process in processes] == [0] * 8
        for number in range(8):
            assert (await store.read_log(RunKey(f"run {number}"))).next_seq == 50


@pytest.mark.parametrize("kind", ["nfs", "cifs", "fuse.sshfs"])
async def test_a_network_file_system_is_refused_by_name_and_nothing_is_made(path: Path, kind: str) -> None:
    class Far(SqliteRunStore):
        @staticmethod
        def _mounts() -> str:
            return f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {path.parent.resolve()} rw - {kind} there rw\n"

    with pytest.raises(InvalidRequest, match=re.escape(kind)) as refused:
        await Far(path).__aenter__()
    assert refused.value.field == "SqliteRunStore.path"
    assert not list(path.parent.iterdir())


# ---------------------------------------------------------------- forks


async def test_a_fork_while_the_writer_is_busy_leaves_the_parent_alone(path: Path) -> None:
    """The child has no thread, touches no connection and ends; the parent's transaction ends well."""
    forked: list[int] = []

    def fork(statement: str) -> None:
        if statement == "commit" and not forked:
            forked.append(os.fork())
            if not forked[0]:
                os._exit(0)

    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.before = fork
        await append(store, KEY, model_intent(1))
        _, status = await asyncio.to_thread(os.waitpid, forked[0], 0)
        assert os.waitstatus_to_exitcode(status) == 0
        for seq in range(2, 10):
            await append(store, KEY, model_intent(seq))
    assert change(path, "pragma integrity_check") == [("ok",)]
    assert change(path, "select next_seq from runs") == [(10,)]


async def test_a_child_of_a_busy_writer_finds_the_store_left(path: Path) -> None:
    """The loop's thread forks while the writer's is inside a commit."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(statement: str) -> None:
        if statement == "commit":
            inside.set()
            assert go_on.wait(20)

    async with WatchedStore(path) as store:
        await append(store, KEY, started())
        Watched.before = hold
        writing = asyncio.ensure_future(append(store, KEY, model_intent(1)))
        await eventually(inside.is_set)
        child = os.fork()
        if not child:
            os._exit(0 if store._inside is None and not store._entered else 1)
        go_on.set()
        await writing
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (await store.read_log(KEY)).next_seq == 2


# ---------------------------------------------------------------- syncs

ONE_RUN = """
import asyncio, sys
from polyloop.stores.sqlite import SqliteRunStore
from tests.seams import append
from tests.unit.jsonl_disk import story

async def main():
    async with SqliteRunStore(sys.argv[1]) as store:
        for record in story(int(sys.argv[2])):
            await append(store, "a run", record)

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_step_costs_two_syncs(tmp_path: Path) -> None:
    """As the kernel sees it; the start and the end of a run do not count."""

    def syncs(steps: int) -> int:
        trace = tmp_path / f"trace-{steps}"
        command = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=fdatasync,fsync,sync_file_range,msync,sync"]
        command += [sys.executable, "-c", ONE_RUN, str(tmp_path / f"{steps}.sqlite"), str(steps)]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
        return len(re.findall(r"^\d+ +\w+\(", trace.read_text("ascii", "replace"), re.MULTILINE))

    assert syncs(30) - syncs(10) == 40


# ---------------------------------------------------------------- memory


async def test_runs_that_have_ended_are_not_remembered(path: Path) -> None:
    async with SqliteRunStore(path) as store:
        for number in range(20):
            for record in story(1, finished=True):
                await append(store, RunKey(f"run {number}"), record)
        assert store._inside is not None
        writer = store._inside[1]
        assert isinstance(writer, Writer)
        assert (writer._heads._heads, writer._driven, writer._blocked) == ({}, set(), {})
        await append(store, RunKey("another"), started())
        await append(store, RunKey("another"), replied(1))
        assert (await store.read_log(RunKey("another"))).next_seq == 2
        assert writer._driven == {"another"}
