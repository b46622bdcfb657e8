"""The quickstart, run as a user runs it: as a process that kills its own children."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from examples.orders import Finding
from examples.proof import Claims
from examples.scripted import ScriptedModel, analyst
from examples.trace import Trace, shown, wants_colour
from polyloop import ChatMessage, ModelCall, RunKey, RunLog, RunOpened, RunResult, Step, StopReason, Usage
from polyloop.stores.jsonl import JsonlRunStore

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"
SECRET = "sk-planted-0123456789"  # noqa: S105 - planted, to be looked for


def _run(data_dir: Path, *arguments: str, api_key: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "error", "OPENAI_API_KEY": api_key, "no_proxy": "*"}
    return subprocess.run(
        [sys.executable, str(QUICKSTART), "--data-dir", str(data_dir), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


def _ledger(data_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (data_dir / "ledger.jsonl").read_text("ascii").splitlines()]


def _log(data_dir: Path) -> RunLog:
    async def read() -> RunLog:
        key = RunKey(json.loads((data_dir / "last-run.json").read_text("ascii"))["key"])
        async with JsonlRunStore(data_dir / "runs") as store:
            return await store.read_log(key)

    return asyncio.run(read())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One whole demo. Tests that change its files take a copy."""
    data_dir = tmp_path_factory.mktemp("quickstart") / "demo-data"
    return data_dir, _run(data_dir)


@pytest.fixture
def copied(finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def test_it_succeeds_silently_on_stderr_and_without_colours(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, demo = finished
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert demo.stdout.isascii()
    assert "\x1b" not in demo.stdout
    assert "NOT SO" not in demo.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "invalid  nothing was run. The model reads: The JSON object is not valid JSON",
        "executed  OperationalError: no such table: refund",
        "The model reads: tool 'run_sql': arguments.max_rows: 'five' is not of type 'integer'",
        "not executed  unknown tool 'cancel_refunds'; known tools: list_tables, run_sql, submit",
        "synthetic  the model reads instead: Not executed",
        "SIGKILL  the query's result is in the log",
        "SIGKILL  a model call is under way",
        "resumed from the log, which holds 5 steps",
        "asking the model again: the call was cut short",
        "[ok] of 3 processes 2 died of SIGKILL, and the last one ended by itself",
        "[ok] the run stopped after 10 steps with task_completed",
        "[ok] the finding is right",
        "[ok] no query ran twice: the ledger notes 5, run by 3 processes",
        "[ok] asked once more, resume() returned the stored result and did nothing",
    ],
)
def test_it_shows(statement: str, finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert statement in finished[1].stdout


def test_every_step_is_shown_once_where_no_call_was_cut_short(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    asked = Counter(line.split()[1] for line in finished[1].stdout.splitlines() if line.strip().startswith("step "))
    assert asked == {str(index): 2 if index == 6 else 1 for index in range(10)}


def test_the_ledger_and_the_log_bear_it_out(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    data_dir, _ = finished
    ledger, log = _ledger(data_dir), _log(data_dir)
    assert [entry["tool"] for entry in ledger] == ["run_sql"] * 5 + ["submit"]
    assert len({entry["result_id"] for entry in ledger}) == 6
    assert len({entry["what"] for entry in ledger}) == 6
    assert len({entry["pid"] for entry in ledger}) == 3
    assert [(intent.kind, intent.step_idx) for intent in log.intents if intent.attempt > 1] == [("model_call", 6)]
    assert log.finished is not None
    assert log.finished.stop_reason is StopReason.TASK_COMPLETED


def test_it_says_where_its_data_is_and_takes_less_than_ten_seconds(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    data_dir, demo = finished
    assert f"Data, log and ledger: {data_dir}" in demo.stdout
    assert float(demo.stdout.split("Took ")[1].split(" s.")[0]) < 10


def test_it_runs_again_in_the_same_place(copied: Path) -> None:
    assert _run(copied).returncode == 0
    assert len(_ledger(copied)) == 12


def test_a_crash_inside_a_query_ends_as_unknown_and_repeats_nothing(tmp_path: Path) -> None:
    demo = _run(tmp_path, "--kill", "query")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "[ok] the run stopped after 4 steps with resume_state_unknown" in demo.stdout
    assert "[ok] no query ran twice: the ledger notes 2, run by 1 processes" in demo.stdout


# -- A claim that is not so makes it fail


def test_untouched_files_are_verified_again(copied: Path) -> None:
    verified = _run(copied, "--verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert verified.stdout.count("[ok]") == 5


@pytest.mark.parametrize(
    ("damage", "refuted"),
    [
        ("double", "no query ran twice"),
        ("drop", "the ledger notes what the log announced"),
        ("foreign", "the ledger notes what the log announced"),
        ("unended", "resume() returned the stored result and did nothing"),
    ],
)
def test_a_false_claim_makes_it_fail(damage: str, refuted: str, copied: Path) -> None:
    ledger = copied / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    if damage == "double":
        ledger.write_bytes(b"".join([*lines, lines[2]]))
    elif damage == "drop":
        ledger.write_bytes(b"".join(lines[1:]))
    elif damage == "foreign":
        extra = {**json.loads(lines[0]), "tool": "cancel_refunds", "result_id": "other"}
        ledger.write_bytes(b"".join([*lines, json.dumps(extra).encode(), b"\n"]))
    else:
        (log,) = (copied / "runs").glob("*.jsonl")
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    verified = _run(copied, "--verify")
    assert verified.returncode == 1
    assert [line for line in verified.stdout.splitlines() if "NOT SO" in line and refuted in line], verified.stdout


def test_a_child_that_fails_makes_it_fail(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way of the store's directory")
    demo = _run(tmp_path)
    assert demo.returncode == 1
    assert "[NOT SO] of 1 processes 0 died of SIGKILL" in demo.stdout


@pytest.mark.parametrize("exits", [[0], [-9, 0], [-9, -9, 1], [-9, -15, 0], [-9, -9, -9], [-9, -9, -9, 0]])
def test_any_other_course_of_deaths_is_refuted(exits: list[int]) -> None:
    claims = Claims()
    claims.processes([-9, -9, 0], expected_kills=2)
    assert claims.failed == 0
    claims.processes(exits, expected_kills=2)
    assert claims.failed == 1


def _result(stop_reason: StopReason, submitted: str) -> RunResult:
    step = Step(
        step_idx=0,
        raw_output=submitted,
        content_chars=1,
        thinking_chars=0,
        action=submitted,
        parse_ok=True,
        parse_error=None,
        observation="Thank you.",
        observation_is_synthetic=False,
        observation_truncated_chars=0,
        prompt_chars=1,
        call_id=None,
        step_wall_ms=0,
        tool_name="submit",
        tool_arguments_json=submitted,
        action_status="executed",
    )
    usage = Usage(model_calls=1, executed_actions=1, steps=1, prompt_chars=1, content_chars=1, thinking_chars=0)
    return RunResult(
        key=RunKey("k"),
        stop_reason=stop_reason,
        steps=(step,),
        final_answer=None,
        detail=None,
        usage=usage,
        params_snapshot={},
        event_sink_failures=0,
    )


@pytest.mark.parametrize("cents", [0, 1, -285_160])
def test_a_wrong_finding_is_refuted_unless_a_real_model_found_it(cents: int) -> None:
    submitted = json.dumps({"region": "Dunmarsh", "month": "2025-09", "excess_cents": cents})
    result, truth = _result(StopReason.TASK_COMPLETED, submitted), Finding("Dunmarsh", "2025-09", 285_160)
    claims = Claims()
    claims.finding(result, truth, must_be_right=False)
    assert claims.failed == 0
    claims.finding(result, truth, must_be_right=True)
    assert claims.failed == 1


def test_another_end_is_refuted() -> None:
    claims = Claims()
    claims.end(_result(StopReason.TASK_COMPLETED, "{}"), expected=frozenset((StopReason.TASK_COMPLETED,)))
    assert claims.failed == 0
    claims.end(_result(StopReason.STEP_BUDGET, "{}"), expected=frozenset((StopReason.TASK_COMPLETED,)))
    assert claims.failed == 1


def test_verifying_without_a_run_says_what_to_do(tmp_path: Path) -> None:
    verified = _run(tmp_path, "--verify")
    assert verified.returncode == 2
    assert "leave out --verify" in verified.stdout


# -- A real model


class _Endpoint(BaseHTTPRequestHandler):
    """Speaks the chat protocol, and answers as the scripted analyst would."""

    authorizations: ClassVar[set[str | None]] = set()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.authorizations.add(self.headers["Authorization"])
        messages = tuple(ChatMessage(**message) for message in asked["messages"])
        call = ModelCall(messages=messages, call_index=0, key=RunKey("k"), result_id="r", binding={})
        reply = asyncio.run(ScriptedModel(name="analyst", script=analyst).call(call))
        message = {"role": "assistant", "content": f"<think>hm</think>\n```json\n{reply.text}\n```"}
        body = json.dumps({"id": "c-1", "choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_an_endpoint_takes_the_place_of_the_script_and_the_key_is_nowhere(endpoint: str, tmp_path: Path) -> None:
    demo = _run(tmp_path, "--base-url", endpoint, "--model", "m", "--sampling", '{"seed": 1}', api_key=SECRET)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "[ok] the finding is right" in demo.stdout
    assert _Endpoint.authorizations == {f"Bearer {SECRET}"}
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert not any(SECRET.encode() in each for each in [*files, demo.stdout.encode(), demo.stderr.encode()])


def test_an_endpoint_that_is_not_there_makes_it_fail(tmp_path: Path) -> None:
    demo = _run(tmp_path, "--base-url", "http://127.0.0.1:1/v1", "--model", "m", api_key=SECRET)
    assert demo.returncode == 1
    assert "[NOT SO] the run stopped after 1 steps with llm_error (URLError" in demo.stdout
    assert SECRET not in demo.stdout + demo.stderr


@pytest.mark.parametrize("arguments", [["--model", "m"], ["--kill", "everything"], ["--sampling", "[]"]])
def test_a_wrong_command_line_is_refused(arguments: list[str], tmp_path: Path) -> None:
    refused = _run(tmp_path / "not-made", *arguments)
    assert refused.returncode == 2
    assert "usage:" in refused.stderr
    assert not (tmp_path / "not-made").exists()


# -- What it prints


@pytest.mark.parametrize("colour", [False, True])
async def test_colours_are_shown_only_where_they_are_wanted(colour: bool, capsys: pytest.CaptureFixture[str]) -> None:
    await Trace(colour=colour).emit(RunOpened(key=RunKey("k"), resumed=False, steps=0))
    assert ("\x1b" in capsys.readouterr().out) is colour


def test_a_file_and_a_user_who_said_so_want_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not wants_colour()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()


def test_a_text_cannot_steer_the_terminal() -> None:
    assert shown("a\n\tb \x1b[2J\x07 \u202e\ud800 ä") == "a b \\x1b[2J\\x07 \\u202e\\ud800 ä"
