"""`polyloop verify`: what is sound, what a crash explains, what is damaged and where, what a newer version wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from polyloop.stores.jsonl.files import file_name
from polyloop.types import Record
from tests.cli.logs import eventful, hostile, sound
from tests.cli.places import Place, place, polyloop, printed, refusal
from tests.postgres import server
from tests.unit.jsonl_disk import WrittenLog, written


@pytest.fixture
def files(tmp_path: Path) -> Place:
    return place("jsonl", tmp_path)


def found(place: Place, *key: str) -> list[str]:
    """What is printed where there is damage."""
    done = polyloop("verify", place.url, *key)
    assert (done.returncode, done.stderr) == (1, ""), done
    return done.stdout.splitlines()


def rewrite(place: Place, key: str, change: Callable[[bytes], bytes]) -> None:
    path = Path(place.url.partition(":")[2]) / file_name(key)
    path.write_bytes(change(path.read_bytes()))


def test_sound_logs_are_counted(anywhere: Place) -> None:
    anywhere.fill({"a": sound(2), "b": sound(1, finished=False), "c": eventful(), "d": hostile()})
    assert printed("verify", anywhere.url) == "4 runs: 4 sound\n"
    assert printed("verify", anywhere.url, "b") == "1 run: 1 sound\n"


def test_a_story_that_no_run_can_have_written_is_damage(anywhere: Place) -> None:
    """Stores check positions only; that the story makes sense is checked here, as `resume` checks it."""
    anywhere.fill({"good": sound(1), "bad": [*sound(2)[:5], *_moved(sound(1)[-1], 5)]})
    name, why, total = found(anywhere)
    assert name == "damaged  bad"
    assert why.startswith("         record 5, line 6: " if anywhere.kind == "jsonl" else "         record 5: ")
    assert why.endswith("(wrong_verdict)")
    assert total == "2 runs: 1 sound, 1 damaged"
    assert printed("verify", anywhere.url, "good") == "1 run: 1 sound\n"
    assert found(anywhere, "bad")[-1] == "1 run: 0 sound, 1 damaged"


def _moved(record: Record, seq: int) -> list[Record]:
    import dataclasses

    return [dataclasses.replace(record, seq=seq)]


def test_damage_in_a_file_is_told_by_line_and_byte(files: Place) -> None:
    files.fill({"run": sound(3)})
    log = log_of(files, "run")
    third = log.offsets[2]
    rewrite(files, "run", lambda data: data[: third + 60] + b"#" + data[third + 61 :])
    name, why, _ = found(files)
    assert name == "damaged  run"
    assert f"line 3, byte {third}: " in why
    assert why.endswith("(malformed_line)")


def log_of(place: Place, key: str) -> WrittenLog:
    """The log's file with its lines' places; it is the one that the store wrote."""
    log = written(sound(3), key)
    path = Path(place.url.partition(":")[2]) / file_name(key)
    assert path.stat().st_size == len(log.data)
    return log


def test_a_torn_end_is_no_damage_and_is_said(files: Place) -> None:
    files.fill({"run": sound(1, finished=False)})
    rewrite(files, "run", lambda data: data + b'{"check":"0123')
    name, why, total = printed("verify", files.url).splitlines()
    assert name == "torn     run"
    assert "its last 14 bytes were being written" in why
    assert total == "1 run: 1 sound, 1 of them with a torn end"
    # It was read, and not removed.
    rewrite(files, "run", lambda data: data[: -len(b'{"check":"0123')])
    assert printed("verify", files.url) == "1 run: 1 sound\n"


def test_a_log_whose_key_is_hidden_by_damage_is_judged_under_its_files_name(files: Place) -> None:
    files.fill({"run": sound(1)})
    rewrite(files, "run", lambda data: data.replace(b'"key":"run"', b'"key":"ran"'))
    name, why, total = found(files)
    assert name == f"damaged  {file_name('run')}"
    assert "line 1, byte 0: " in why
    assert total == "1 run: 0 sound, 1 damaged"
    assert found(files, file_name("run"))[0] == name


def test_a_log_of_a_newer_version_is_not_judged(anywhere: Place) -> None:
    anywhere.fill({"new": sound(1), "old": sound(1)})
    newer(anywhere)
    done = polyloop("verify", anywhere.url)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0] == "newer    new"
    assert "'9.0'" in lines[1]
    assert "use a newer PolyLoop" in lines[1]
    assert lines[2] == "2 runs: 1 sound, 1 of a newer version, not judged"
    for command in (("show",), ("export", "--format", "jsonl")):
        assert "use a newer PolyLoop" in refusal(command[0], anywhere.url, "new", *command[1:])


def newer(place: Place) -> None:
    """Let the second record of the run `new` be of version 9.0, with a checksum that fits."""
    from zlib import crc32

    from polyloop.serialization import encode

    records = sound(1)
    text = encode(records[1]).replace('"schema":"1.0"', '"schema":"9.0"')
    if place.kind == "jsonl":
        texts = [text if seq == 1 else encode(record) for seq, record in enumerate(records)]
        rewrite(place, "new", lambda _: written(records, "new", texts=texts).data)
        return
    checksum = crc32(f"1 new {text}".encode())
    if place.kind == "sqlite":
        with sqlite3.connect(place.url.partition(":")[2]) as connection:
            connection.execute(
                "update records set record = ?, checksum = ? where key = 'new' and seq = 1", (text, checksum)
            )
        connection.close()
        return
    with psycopg.connect(place.url) as session:
        session.execute(
            "update polyloop_records set record = %s, checksum = %s"
            " where seq = 1 and key_digest = sha256('new'::bytea)",
            (text, checksum),
        )


def test_a_row_that_was_changed_is_damage(tmp_path: Path) -> None:
    database = place("sqlite", tmp_path)
    database.fill({"run": sound(2)})
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        connection.execute("update records set record = replace(record, 'reply 1', 'reply 2') where seq = 7")
    connection.close()
    name, why, _ = found(database)
    assert name == "damaged  run"
    assert why == "         record 7: a row's text does not fit its checksum (malformed_line)"


def test_rows_of_a_run_that_is_not_listed_are_damage(tmp_path: Path) -> None:
    database = place("sqlite", tmp_path)
    database.fill({"run": sound(2), "other": sound(1)})
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        connection.execute("delete from runs where key = 'run'")
    connection.close()
    assert found(database) == [
        "damaged  run",
        "         the whole log: its head row does not fit its records (wrong_position)",
        "2 runs: 1 sound, 1 damaged",
    ]


def test_rows_without_a_run_are_found_in_postgres_by_their_digest(tmp_path: Path) -> None:
    database = place("postgres", tmp_path)
    database.fill({"run": sound(2), "other": sound(1)})
    with psycopg.connect(server.schema(str(tmp_path))) as session:
        session.execute("delete from polyloop_runs where key = 'run'")
    name, why, total = found(database)
    assert name == "damaged  (key unknown)"
    assert "12 rows of records belong to no run: key_digest" in why
    assert total == "2 runs: 1 sound, 1 damaged"
