"""`polyloop report` without a browser: what it takes from a log, the file that it writes, and what it refuses."""

from __future__ import annotations

import dataclasses
import html.parser
import io
import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from polyloop.cli._failures import redacted
from polyloop.cli._report_page import binned, data_block, document, is_invisible
from polyloop.cli._report_runs import Row, described, duration, leaves
from polyloop.cli.report import _collected
from polyloop.stores import RunState, RunSummary
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl.files import file_name
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import (
    EffectKind,
    JSONValue,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
    StopReason,
    UnsupportedSchemaVersion,
)
from tests.cli import report_runs as made
from tests.cli.report_pages import hostile_store, page_of, report, stored


def of(records: list[Record], broken: str | None = None) -> tuple[Row, Any]:
    """A row and a trajectory."""
    summary = RunSummary(
        key=RunKey("k"),
        state=RunState.UNFINISHED,
        started_at=None,
        last_record_at=None,
        steps=None,
        stop_reason=None,
    )
    return described(summary, RunLog.from_records(records), broken)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def facts(trajectory: Any) -> dict[str, str]:
    return dict(trajectory["facts"])


# --- what it takes from a log


def test_times_are_those_between_the_last_intent_and_its_result_and_pauses_are_told() -> None:
    row, trajectory = of(made.answered())
    assert (row.outcome, row.steps, row.wall_ms, row.model_ms, row.action_ms) == (
        "agent_finished",
        2,
        202_000,
        3000,
        1500,
    )
    assert [step["ms"] for step in trajectory["steps"]] == [[2000, 1500, 1500], [1000, 0, 0]]
    assert [len(step["pauses"]) for step in trajectory["steps"]] == [2, 1]
    assert trajectory["after"] == []
    assert facts(trajectory)["cancelled and resumed"] == "1 time"


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    row, trajectory = of(
        [
            made.start(),
            made.intent(1, 50, 0, EffectKind.MODEL_CALL),
            made.result(2, 10, 0, reply=made.reply()),
            made.step(3, 10, made.ended(0, raw="r", parse_ok=True), stop=StopReason.AGENT_FINISHED, answer="a"),
        ]
    )
    assert row.model_ms == 0
    assert trajectory["steps"][0]["ms"] == [0, 0, 10]


def test_an_effect_without_a_result_is_told_with_its_step_attempt_and_policy() -> None:
    row, trajectory = of(made.open_run())
    assert row.outcome == "unfinished"
    assert trajectory["after"] == [
        (
            "The action of step 0 was announced at 2026-01-02T03:00:03.000000+00:00 (attempt 1, replay safe); "
            "no result of it is in the log."
        )
    ]


def test_a_run_that_was_cancelled_last_is_cancelled() -> None:
    row, _ = of(made.answered()[:3])
    assert row.outcome == "cancelled"


def test_a_step_says_all_that_it_has_and_nothing_twice() -> None:
    _, trajectory = of(made.answered())
    assert [label for label, _ in trajectory["steps"][0]["parts"]] == [
        "reasoning",
        "reply before it was read",
        "reply",
        "action",
        "tool",
        "arguments",
        "action status",
        "observation",
        "cut off the observation",
    ]
    plain = made.answered()
    step = plain[8]
    assert isinstance(step, StepCompleted)
    same = dataclasses.replace(step.step, action=step.step.raw_output, observation_truncated_chars=0)
    plain[8] = dataclasses.replace(step, step=dataclasses.replace(same, observation_is_synthetic=True, observation=""))
    plain[5] = made.result(5, 22, 0, reply=dataclasses.replace(made.reply(), text=step.step.raw_output, reasoning=None))
    _, trajectory = of(plain)
    assert [label for label, _ in trajectory["steps"][0]["parts"]] == [
        "reply",
        "tool",
        "arguments",
        "action status",
        "observation, not of the environment",
    ]


def test_a_failed_model_call_and_a_reply_that_was_not_understood_say_so() -> None:
    _, trajectory = of(made.failed())
    first, second = trajectory["steps"]
    assert (first["title"], second["title"]) == ("not understood", "model call failed")
    assert ["model error", made.text("error")[:2000]] in second["parts"]
    assert facts(trajectory)["detail"] == made.text("error")[:2000]


def test_parameters_are_told_leaf_by_leaf_and_numbers_stay_exact() -> None:
    value: JSONValue = {
        "a": {"b": [1, 2**64, {"c": 0.1}]},
        "e": {},
        "l": [],
        "t": "\ud800\u2028",
        "n": None,
        "a.b[0]": 2,
    }
    assert list(leaves(value)) == [
        ("a.b[0]", "1"),
        ("a.b[1]", str(2**64)),
        ("a.b[2].c", "0.1"),
        ("e", "{}"),
        ("l", "[]"),
        ("t", '"\ud800\u2028"'),
        ("n", "null"),
        ('"a.b[0]"', "2"),
    ]


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(0, "0 ms"), (999, "999 ms"), (1000, "1.00 s"), (12_000, "12 s"), (3_720_000, "1 h 2 min")],
)
def test_durations_are_said_as_people_say_them(milliseconds: int, said: str) -> None:
    assert duration(milliseconds) == said


def test_step_counts_fall_into_at_most_twenty_columns_of_one_width() -> None:
    assert binned([]) == []
    assert binned([0]) == [(0, 0, 1)]
    assert binned([0, 2, 2]) == [(0, 0, 1), (1, 1, 0), (2, 2, 2)]
    for most in (19, 20, 39, 40, 1000):
        bins = binned([0, most, most])
        assert len(bins) <= 20
        assert sum(count for _, _, count in bins) == 3
        assert bins[0][2] == 1
        assert bins[-1][0] <= most <= bins[-1][1]


# --- escaping


def test_a_block_of_data_is_one_line_of_ascii_that_nothing_in_it_can_end() -> None:
    block = data_block(7, {"text": made.ANYTHING, made.ANYTHING: 1})
    assert block.startswith('<script type="application/json" id="d7">')
    assert block.isascii()
    assert block.count("\n") == 1
    inner = block.partition(">")[2].removesuffix("</script>\n")
    assert not set("<>&\0") & set(inner)
    assert json.loads(inner) == {"text": made.ANYTHING, made.ANYTHING: 1}


def test_the_characters_that_are_named_are_those_that_are_not_seen() -> None:
    assert all(
        map(
            is_invisible, "\0\x1b\x7f\x85\u00ad\u061c\u200b\u200e\u2028\u2029\u202e\u2066\ufeff\ud800\udfff\U000e0041\r"
        )
    )
    assert not any(map(is_invisible, "a\n\t \u00e9\u4e16\u200c\u200d\U0001f469\u3000"))


class Tree(html.parser.HTMLParser):
    """What a page's elements are, as Python reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_keys_titles_and_damage_stay_text_in_the_static_part() -> None:
    row = Row(
        key=made.ANYTHING,
        outcome=made.ANYTHING,
        steps=None,
        started=None,
        wall_ms=None,
        model_ms=0,
        action_ms=0,
        damage=made.ANYTHING,
    )
    page = "".join(document(made.ANYTHING, made.ANYTHING, [row], []))
    assert page.encode("utf-8", "strict")
    tree = Tree(page)
    assert tree.tags.count("script") == 1
    assert not {"img", "iframe", "a", "link", "base", "form", "input"} & set(tree.tags)
    visible = re.sub(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "", made.CLAIMS)
    assert tree.text.count(visible) >= 5
    assert not any(is_invisible(character) for character in page)


def test_the_policy_names_the_digest_of_the_script_and_of_the_style_that_the_page_has() -> None:
    page = "".join(document("t", "m", [], []))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/]{43}='", policy[1])) == 2


def test_a_store_without_runs_gives_a_page_without_rows() -> None:
    page = "".join(document("t", "0 runs", [], []))
    assert "Why runs stopped: no runs" in page
    assert "<tbody>\n</tbody>" in page


# --- the command


def test_damaged_logs_appear_as_such_and_do_not_stop_the_report(tmp_path: Path) -> None:
    page = page_of(hostile_store(tmp_path / "runs"), tmp_path / "report.html").read_text("utf-8")
    assert page.count('class="reason bad">damaged<') == 2
    assert "malformed_line: " in page
    assert "wrong_effect: " in page
    assert "agent_<wbr>finished" in page
    assert page.count('<script type="application/json"') == 5


def test_a_log_whose_key_is_lost_has_a_row_under_its_file_s_name(tmp_path: Path) -> None:
    url = stored(tmp_path / "runs", {"lost": made.answered(), "fine": made.failed()})
    lost = tmp_path / "runs" / file_name(RunKey("lost"))
    lost.write_bytes(b"x" + lost.read_bytes())
    page = page_of(url, tmp_path / "report.html").read_text("utf-8")
    assert f">{lost.name}<" in page
    assert page.count('class="reason bad">damaged<') == 1
    assert ">fine<" in page


class Reader(EphemeralRunStore):
    """A store whose one log is a newer version's, and whose other one is deleted once it is listed."""

    async def read_log(self, key: RunKey, /) -> RunLog:
        if key == "later":
            raise UnsupportedSchemaVersion("9.0", "1.0", "its major version is another")
        return RunLog(started=None, intents=(), results=(), steps=(), finished=None)

    async def check(self, key: RunKey, /) -> tuple[RunLog, int]:
        return await self.read_log(key), 0


async def test_a_log_of_the_future_has_a_row_that_says_so_and_one_that_was_deleted_meanwhile_has_none() -> None:
    store: Any = Reader()
    blocks = io.BytesIO()
    for key in ("later", "deleted"):
        await store.append_run_start(RunKey(key), made.start())
    (row,) = await _collected(store, blocks, "report.html")
    assert (row.key, row.outcome) == ("later", "damaged")
    assert row.damage is not None
    assert "'9.0'" in row.damage
    assert blocks.getvalue().count(b"\n") == 1


async def test_a_sqlite_store_is_read_as_well(tmp_path: Path) -> None:
    async with SqliteRunStore(tmp_path / "runs.sqlite") as store:
        start = made.start()
        await store.append_run_start(RunKey("only"), start)
    page = page_of(f"sqlite:{tmp_path / 'runs.sqlite'}", tmp_path / "report.html").read_text("utf-8")
    assert ">only<" in page
    assert ">unfinished<" in page


def test_the_page_replaces_the_one_before_whole_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    url = stored(tmp_path / "runs", {"k": made.failed()})
    page = tmp_path / "report.html"
    page.write_text("old")
    page.chmod(0o644)
    page_of(url, page)
    assert page.read_text("utf-8").endswith("</html>\n")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert names(tmp_path) == ["report.html", "runs"]


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    url = stored(tmp_path / "runs", {"k": made.failed()})
    (tmp_path / "there").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "there" / "report.html")
    page_of(url, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "there" / "report.html").is_file()


def test_the_page_can_go_into_a_pipe(tmp_path: Path) -> None:
    url = stored(tmp_path / "runs", {"k": made.failed()})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    page_of(url, pipe)
    reader.join()
    assert read[0].endswith(b"</html>\n")


@pytest.mark.parametrize(
    ("store", "output", "said"),
    [
        ("jsonl:missing", "report.html", "missing"),
        ("nonsense", "report.html", "names no store"),
        ("jsonl:runs", "no/such/folder.html", "cannot write 'no/such/folder.html': No such file or directory"),
        ("jsonl:runs", ".", "it is a directory"),
        ("jsonl:runs", "/dev/full", "cannot write '/dev/full': No space left on device"),
        ("jsonl:runs", "", "--output must be a path"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_leaves_nothing_behind(
    store: str, output: str, said: str, tmp_path: Path
) -> None:
    stored(tmp_path / "runs", {"k": made.failed()})
    done = report(store, "-o", output, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert names(tmp_path) == ["runs"]


def test_a_page_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    """The largest size of a file is what stops it here."""
    url = stored(tmp_path / "runs", {str(number): made.answered() for number in range(3)})
    page = tmp_path / "report.html"
    page.write_text("old")
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "from polyloop.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "report", url, "-o", str(page)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"cannot write {str(page)!r}: File too large" in done.stderr
    assert page.read_text() == "old"
    assert names(tmp_path) == ["report.html", "runs"]


def test_a_password_in_the_url_is_not_in_the_title() -> None:
    title = redacted("postgresql://user:sesame@host/runs?password=sesame")
    assert "sesame" not in "".join(document(title, "m", [], []))


def test_the_records_of_the_stores_here_are_of_all_kinds() -> None:
    kinds = {type(record) for record in made.answered()}
    assert {RunStarted, StepCompleted, RunFinished} <= kinds
    assert len(kinds) == 5
