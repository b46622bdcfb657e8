"""What cannot be done is said in one line, with exit code 2 and without a traceback; and no secret is ever printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyloop.cli._failures import redacted
from tests.cli.logs import sound
from tests.cli.places import COMMAND, ON_DISK, Place, environment, place, polyloop, refusal

SECRET = "hunter2-and-more"  # noqa: S105 - the word that must not be printed


@pytest.mark.parametrize(
    "url",
    ["", "runs", "runs.sqlite", "mysql://localhost/runs", "jsonl", "SQLITE:x", "postgresql:x", "file:///x", "\x1b[31m"],
)
def test_what_names_no_store_is_refused_with_what_would(url: str) -> None:
    line = refusal("runs", url)
    assert "names no store; a store is jsonl:DIRECTORY, sqlite:FILE or postgresql://" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_path_must_follow(kind: str) -> None:
    assert f"{kind}: needs a path behind it" in refusal("runs", f"{kind}:")


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize(
    "command", [("runs",), ("show", "k"), ("watch", "k"), ("export", "k", "--format=atif"), ("verify",)]
)
def test_what_is_missing_is_named_and_not_made(kind: str, command: tuple[str, ...], tmp_path: Path) -> None:
    there = place(kind, tmp_path)
    line = refusal(command[0], there.url, *command[1:])
    assert line == f"polyloop: cannot read '{there.url.partition(':')[2]}': No such file or directory"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_directory_and_the_other_way_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    (tmp_path / "runs.sqlite").mkdir()
    assert refusal("runs", place("jsonl", tmp_path).url).endswith("logs' is no directory")
    assert refusal("runs", place("sqlite", tmp_path).url).endswith("runs.sqlite' is no file")


def test_a_file_that_is_no_database_or_another_one_is_refused(tmp_path: Path) -> None:
    import sqlite3

    there = place("sqlite", tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(b"")
    assert refusal("runs", there.url).endswith("holds no runs of PolyLoop")
    (tmp_path / "runs.sqlite").write_bytes(b"no database, but long enough to be read as one" * 100)
    assert "SQLite refuses the file: file is not a database" in refusal("runs", there.url)
    (tmp_path / "runs.sqlite").unlink()
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        connection.execute("create table mine (n)")
    connection.close()
    assert refusal("runs", there.url).endswith("holds no runs of PolyLoop")
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    assert "use a newer PolyLoop" in refusal("runs", there.url)


def test_what_may_not_be_read_is_refused(on_disk: Place, tmp_path: Path) -> None:
    on_disk.fill({"run": sound(1)})
    for path in tmp_path.iterdir():
        path.chmod(0)
    line = _refused_to_others("runs", on_disk.url)
    assert line.startswith("polyloop: ")
    assert "ermission denied" in line or "unable to open" in line
    assert line.count("\n") == 1
    for path in tmp_path.iterdir():
        path.chmod(0o700)


def _refused_to_others(*arguments: str) -> str:
    """The line that a user without rights gets: somebody else, where the tests run as root."""
    # What it imports may not be readable either: that is done before.
    script = f"""
import contextlib, io, os
from polyloop.cli import main
with contextlib.redirect_stderr(io.StringIO()):
    main(["runs", "jsonl:/not/there"]), main(["runs", "sqlite:/not/there"])
os.geteuid() or os.seteuid(65534)
raise SystemExit(main({list(arguments)}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("look",),
        ("runs",),
        ("runs", "a", "b"),
        ("runs", "--limit=-1", "x"),
        ("runs", "--state=odd", "x"),
        ("show", "x"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_a_line(arguments: tuple[str, ...]) -> None:
    assert refusal(*arguments).endswith("--help)")


@pytest.mark.parametrize("key", ["", "k" * 1025])
def test_a_key_that_no_run_can_have_is_refused(on_disk: Place, key: str) -> None:
    on_disk.fill({"run": sound(1)})
    assert refusal("show", on_disk.url, key).startswith("polyloop: KEY must ")


def test_a_damaged_log_is_refused_with_its_place(tmp_path: Path) -> None:
    there = place("jsonl", tmp_path)
    there.fill({"run": sound(2)})
    (file,) = (tmp_path / "logs").iterdir()
    file.write_bytes(file.read_bytes().replace(b"reply 0", b"reply x"))
    for command in (("show", "run"), ("watch", "run"), ("export", "run", "--format=jsonl")):
        assert "the log of run 'run' is damaged (malformed_line, seq 2, line 3, byte " in refusal(
            command[0], there.url, *command[1:]
        )


def test_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    there = place("jsonl", tmp_path)
    there.fill({"run": sound(1)})
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "show", there.url, "run"], check=False, stdout=full, stderr=subprocess.PIPE, env=environment()
        )
    assert done.returncode == 2
    assert done.stderr == b"polyloop: OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_the_exit_code_stands_also_where_nothing_can_be_said(closed: str, tmp_path: Path) -> None:
    there = place("jsonl", tmp_path)
    there.fill({"run": sound(1)})
    for url, code in ((there.url, 0), (f"{there.url}/not/there", 2)):
        call = ["bash", "-c", f'"$@" {closed}', "bash", *COMMAND, "verify", url]
        done = subprocess.run(call, check=False, capture_output=True, text=True, env=environment())
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_path_may_have_any_characters(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a?b%20#c \x1b ü"
    folder.mkdir()
    there = place(kind, folder)
    there.fill({"run": sound(1)})
    assert polyloop("verify", there.url).stdout == "1 run: 1 sound\n"


def test_debug_shows_the_traceback_before_the_line(tmp_path: Path) -> None:
    done = polyloop("runs", place("jsonl", tmp_path).url, "--debug")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "in open_store" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("polyloop: cannot read ")


def test_without_the_driver_the_extra_is_named_with_the_command_that_installs_it() -> None:
    script = "import sys; sys.modules['psycopg'] = None; from polyloop.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "runs", "postgresql://localhost/runs"],
        check=False,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 2
    assert done.stderr == "polyloop: a Postgres store needs the extra postgres: pip install 'polyloop[postgres]'\n"


@pytest.mark.parametrize("more", [(), ("--debug",)])
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@127.0.0.1:1/runs",
        f"postgres://127.0.0.1:1/runs?user=me&password={SECRET}",
        f"postgresql://me:{SECRET}@127.0.0.1:port/runs",
        f"postgresql://me:{SECRET}@127.0.0.1:1/runs?{SECRET}",
        f"postgresql://me:{SECRET}%zz@127.0.0.1:1/runs",
        f"mysql://me:{SECRET}@127.0.0.1/runs",
    ],
)
def test_no_password_is_printed(url: str, more: tuple[str, ...]) -> None:
    done = polyloop("runs", url, *more, PGCONNECT_TIMEOUT="5")
    assert done.returncode == 2
    assert SECRET not in done.stderr + done.stdout
    assert done.stderr.splitlines()[-1].startswith("polyloop: ")


def test_no_password_of_the_environment_is_printed() -> None:
    done = polyloop("runs", f"postgresql://127.0.0.1:1/{SECRET}", "--debug", PGPASSWORD=SECRET)
    assert done.returncode == 2
    assert SECRET not in done.stderr


def test_no_password_is_printed_for_arguments_in_the_wrong_place() -> None:
    url = f"postgresql://me:a {SECRET}@h/d"
    for arguments in (("runs", "x", url), (url, "runs"), ("runs", f"--limit={url}", "x"), ("runs", "--after", url)):
        assert SECRET not in refusal(*arguments)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("at postgresql://me:a/b@c@host:1/d now", "at postgresql://***@host:1/d now"),
        ("host=h password=abc user=me", "host=h password=*** user=me"),
        (r"password = 'a b\'c' user=me", "password = *** user=me"),
        ("?sslpassword=x&y=z", "?sslpassword=***&y=z"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_passwords_are_taken_out_of_a_text_by_their_place(text: str, printed: str) -> None:
    assert redacted(text) == printed


def test_a_database_without_tables_is_refused_and_gets_none(tmp_path: Path) -> None:
    import psycopg

    there = place("postgres", tmp_path)
    assert "no tables of PolyLoop" in refusal("runs", there.url)
    with psycopg.connect(there.url) as session:
        assert session.execute("select to_regclass('polyloop_runs')").fetchone() == (None,)
