"""The command line changes nothing: no file is made, touched or left, no row written, and no writer notices it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from polyloop.stores.postgres.reading import PostgresReader
from polyloop.stores.sqlite.reading import SqliteReader
from polyloop.types import InvalidRequest, RunKey, StoreBusy
from tests.cli.logs import sound
from tests.cli.places import Place, place, polyloop, printed
from tests.postgres import server
from tests.seams import append

COMMANDS = (
    ("runs",),
    ("runs", "--newest-first", "--json", "--after", "run"),
    ("show", "run"),
    ("watch", "run"),
    ("export", "run", "--format", "atif"),
    ("verify",),
)


def tree(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file with its inode, mode, last change and content; every directory with its last change."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.stat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, content)
    return found


def call_all(place: Place) -> None:
    for name, *rest in COMMANDS:
        printed(name, place.url, *rest)


def test_files_are_as_they_were(on_disk: Place, tmp_path: Path) -> None:
    on_disk.fill({"run": sound(2), "other": sound(1)})
    before = tree(tmp_path)
    call_all(on_disk)
    assert tree(tmp_path) == before


def test_a_torn_end_stays(tmp_path: Path) -> None:
    there = place("jsonl", tmp_path)
    there.fill({"run": sound(2, finished=False)})
    (file,) = (tmp_path / "logs").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    before = tree(tmp_path)
    for name, *rest in COMMANDS:
        if name != "watch":
            printed(name, there.url, *rest)
    assert tree(tmp_path) == before


@pytest.fixture
def in_use(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database whose writer is there, with all of its runs in the write-ahead log."""
    there = place("sqlite", tmp_path)
    there.fill({"run": sound(2)})
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        connection.execute("update runs set steps = 3 where key = 'run'")
        connection.execute("update runs set steps = 2 where key = 'run'")
    yield connection
    connection.close()


def test_a_database_is_read_while_its_writer_is_there(in_use: sqlite3.Connection, tmp_path: Path) -> None:
    there = place("sqlite", tmp_path)
    assert (tmp_path / "runs.sqlite-wal").stat().st_size > 0
    before = {name: facts for name, facts in tree(tmp_path).items() if not name.endswith("-shm")}
    call_all(there)
    assert {name: facts for name, facts in tree(tmp_path).items() if not name.endswith("-shm")} == before
    # The writer goes on while a reader looks, and the reader sees what came.
    in_use.execute("begin immediate")
    in_use.execute("delete from records where seq > 5")
    in_use.execute("delete from runs")
    assert printed("runs", there.url, "--json") != ""
    in_use.execute("commit")
    assert printed("runs", there.url, "--json") == ""


def test_through_a_link_the_same_is_read(in_use: sqlite3.Connection, tmp_path: Path) -> None:
    in_use.execute("delete from runs")
    in_use.commit()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "runs.sqlite").symlink_to(tmp_path / "runs.sqlite")
    assert printed("runs", place("sqlite", elsewhere).url, "--json") == ""


def test_after_a_killed_writer_what_it_had_committed_is_read(in_use: sqlite3.Connection, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
        shutil.copy(tmp_path / name, copy / name)
    before = tree(copy)
    call_all(place("sqlite", copy))
    assert tree(copy) == before


def test_a_write_ahead_log_without_its_lock_file_is_refused_and_left(
    in_use: sqlite3.Connection, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("runs.sqlite", "runs.sqlite-wal"):
        shutil.copy(tmp_path / name, copy / name)
    before = tree(copy)
    done = polyloop("runs", place("sqlite", copy).url)
    assert done.returncode == 2
    assert "has a write-ahead log without its -shm file" in done.stderr
    assert tree(copy) == before


def test_what_was_read_of_a_file_that_was_changed_meanwhile_is_read_again(tmp_path: Path) -> None:
    """Without a write-ahead log nothing keeps a writer away: an answer counts if the file is the same afterwards."""
    there = place("sqlite", tmp_path)
    there.fill({"run": sound(1)})
    reader = SqliteReader(str(tmp_path / "runs.sqlite"))
    answers = []

    def count(connection: sqlite3.Connection) -> int:
        (found,) = connection.execute("select count(*) from runs").fetchone()
        answers.append(found)
        if len(answers) == 1:
            with sqlite3.connect(tmp_path / "runs.sqlite") as writer:
                writer.execute("delete from runs")
            writer.close()
        return int(found)

    assert reader._ask(None, count) == 0
    assert answers == [1, 0]


def test_a_file_that_never_rests_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = place("sqlite", tmp_path)
    there.fill({"run": sound(1)})
    path = tmp_path / "runs.sqlite"
    times = iter([0.0, 1.0, 2.0, 99.0, 99.0])
    monkeypatch.setattr("polyloop.stores.sqlite.reading.time.monotonic", lambda: next(times))

    def touch(_: sqlite3.Connection) -> None:
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))

    with pytest.raises(StoreBusy) as refused:
        SqliteReader(str(path))._ask(None, touch)
    assert refused.value.waited_s == 99.0


def test_a_session_in_postgres_refuses_to_write(tmp_path: Path) -> None:
    there = place("postgres", tmp_path)
    there.fill({"run": sound(1)})

    async def write() -> None:
        async with PostgresReader(there.url) as reader:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                await reader._server.read(lambda connection: connection.execute("delete from polyloop_runs"))

    asyncio.run(write())
    before = rows(str(tmp_path))
    call_all(there)
    assert rows(str(tmp_path)) == before


def rows(name: str) -> list[tuple[object, ...]]:
    """Every row with the transaction that wrote it."""
    with psycopg.connect(server.schema(name)) as session:
        heads = session.execute("select xmin::text, ctid::text, * from polyloop_runs").fetchall()
        return heads + session.execute("select xmin::text, ctid::text, * from polyloop_records").fetchall()


def test_a_log_that_a_writer_has_open_is_read_between_its_appends(anywhere: Place) -> None:
    anywhere.fill({"other": sound(1)})

    async def drive() -> list[str]:
        seen = []
        async with anywhere.store() as store:
            for record in sound(1):
                await append(store, RunKey("run"), record)
                await store.read_log(RunKey("run"))
                if record.seq in (0, 2, 6):
                    seen.append(await asyncio.to_thread(printed, "export", anywhere.url, "run", "--format", "jsonl"))
        return seen

    counts = [text.count("\n") for text in asyncio.run(drive())]
    assert counts == [1, 3, 7]


def test_a_directory_is_not_taken_for_a_database(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        asyncio.run(SqliteReader(str(tmp_path)).__aenter__())
