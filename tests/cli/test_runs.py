"""`polyloop runs`: what it lists, in which order, a page at a time, and how it ends."""

from __future__ import annotations

import json
import subprocess

from polyloop.types import StopReason
from tests.cli.logs import HOSTILE, eventful, sound, timed
from tests.cli.places import COMMAND, Place, environment, polyloop, printed, refusal
from tests.contract.records import ended, started

KEYS = ("first", "second/a", "second/b", "third")


def fill(place: Place) -> None:
    place.fill({key: sound(number + 1, start=10.0 * number) for number, key in enumerate(KEYS)})


def listed(*arguments: str) -> list[str]:
    return [json.loads(line)["key"] for line in printed("runs", "--json", *arguments).splitlines()]


def test_a_line_a_run_says_state_steps_stop_reason_start_and_key(anywhere: Place) -> None:
    cancelled = timed((0, started()), (5, ended(0, StopReason.CANCELLED)))
    anywhere.fill({"done": sound(2), "on the way": eventful(), "stopped": cancelled})
    heading, *rows = printed("runs", anywhere.url).splitlines()
    assert heading.split() == ["STATE", "STEPS", "STOP", "REASON", "STARTED", "(UTC)", "AGE", "KEY"]
    assert [row.split()[:4] for row in rows] == [
        ["ended", "2", "task_completed", "2026-03-04"],
        ["unfinished", "1", "-", "2026-03-04"],
        ["cancelled", "0", "cancelled", "2026-03-04"],
    ]
    assert [row[heading.index("KEY") :] for row in rows] == ["done", "on the way", "stopped"]
    assert all("d" in row[heading.index("(UTC)") + 5 : heading.index("KEY")] for row in rows)


def test_json_is_an_object_a_line_with_every_fact_of_the_summary(anywhere: Place) -> None:
    anywhere.fill({f"a key {HOSTILE[:3]}": sound(1)})
    text = printed("runs", anywhere.url, "--json")
    assert text.isascii()
    row = json.loads(text)
    assert row.pop("age_s") > 0
    assert row == {
        "key": f"a key {HOSTILE[:3]}",
        "state": "ended",
        "started_at": "2026-03-04T23:00:00.000000+00:00",
        "last_record_at": "2026-03-04T23:00:01.000000+00:00",
        "steps": 1,
        "stop_reason": "task_completed",
    }


def test_filters_choose_and_the_order_can_be_reversed(anywhere: Place) -> None:
    fill(anywhere)
    assert listed(anywhere.url) == list(KEYS)
    assert listed(anywhere.url, "--newest-first") == list(KEYS[::-1])
    assert listed(anywhere.url, "--prefix", "second/") == ["second/a", "second/b"]
    assert listed(anywhere.url, "--state", "unfinished") == []
    assert listed(anywhere.url, "--state", "ended", "--limit", "1") == ["first"]
    assert listed(anywhere.url, "--limit", "0") == []


def test_pages_follow_each_other_by_the_last_key(anywhere: Place) -> None:
    fill(anywhere)
    for order in ((), ("--newest-first",)):
        found: list[str] = []
        while page := listed(anywhere.url, "--limit", "1", *order, *(("--after", found[-1]) if found else ())):
            found += page
        assert found == list(KEYS)[:: -1 if order else 1]


def test_a_page_behind_a_run_that_is_not_there_is_refused(anywhere: Place) -> None:
    fill(anywhere)
    assert "--after: the store holds no run 'second'" in refusal("runs", anywhere.url, "--json", "--after", "second")


def test_a_store_without_runs_has_a_heading_only(anywhere: Place) -> None:
    anywhere.fill({})
    assert printed("runs", anywhere.url).count("\n") == 1
    assert printed("runs", anywhere.url, "--json") == ""


def test_a_damaged_log_is_listed_as_such(on_disk: Place) -> None:
    fill(on_disk)
    path = on_disk.url.partition(":")[2]
    damage(on_disk.kind, path)
    (row,) = [line for line in printed("runs", on_disk.url).splitlines() if line.startswith("damaged")]
    assert row.split()[:5] == ["damaged", "-", "-", "-", "-"]
    assert row.endswith("first")


def damage(kind: str, path: str) -> None:
    """Break the log of the key `first`, so that listing sees it."""
    if kind == "sqlite":
        import sqlite3

        with sqlite3.connect(path) as connection:
            connection.execute("update runs set ended = 0 where key = 'first'")
        connection.close()
    else:
        from pathlib import Path

        (file,) = Path(path).glob("first-*")
        file.write_bytes(file.read_bytes().replace(b"task_completed", b"tusk_completed"))


def test_output_that_is_closed_early_ends_it_quietly(anywhere: Place) -> None:
    anywhere.fill({f"{number:04} {'x' * 900}": timed((number, started())) for number in range(300)})
    with subprocess.Popen(
        [*COMMAND, "runs", anywhere.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"STATE")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_that_was_closed_before_anything_was_printed_ends_it_quietly(on_disk: Place) -> None:
    fill(on_disk)
    script = '"$@" | true; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, "runs", on_disk.url],
        check=False,
        capture_output=True,
        env=environment(),
    )
    assert done.stderr == b""
    assert done.returncode in (0, 141)


def test_a_terminal_that_knows_ascii_only_gets_codes(on_disk: Place) -> None:
    on_disk.fill({"Größe": sound(1)})
    done = polyloop("runs", on_disk.url, PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Gr\\xf6\\xdfe" in done.stdout
