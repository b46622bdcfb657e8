"""Tools and JSON tool calls as CHSAnalyzer has them: the registry as it comes, and the parser of the examples."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from examples.parsers import JsonToolCallParser
from polyloop.ports import ModelCall
from polyloop.types import JSONValue, RunResult, StopReason
from tests.consumers.chsanalyzer import WORKS, CHSAnalyzer, Tables, call
from tests.fakes import ScriptedModel

ROOT: Final = Path(__file__).parents[2]
LOAD: Final = call("load_table", name="offers", limit=2)
LOAD_ALL: Final = call("load_table", name="offers", limit=200)
ROWS: Final = json.dumps([[f"offer {number}", "on sale " * 9] for number in range(2)])
ANSWER: Final = '{"final_answer": "enough"}'
FIXED: Final = "This call was not executed."


async def analysed(tmp_path: Path, *replies: str) -> tuple[RunResult, list[str]]:
    """An analysis of these replies, and what the tools did in it."""
    tables = Tables(tmp_path)
    result = await CHSAnalyzer(tables).analyse(ScriptedModel(replies), tmp_path / "runs", "offers/1")
    return result, tables.done()


# --- what is understood


@pytest.mark.parametrize(
    "reply",
    [
        LOAD,
        f"I look.\n```json\n{LOAD}\n```\nThen I wait.",
        json.dumps({"tool": "load_table", "arguments": json.dumps({"name": "offers", "limit": 2})}),
        json.dumps({"tool": "load_table", "name": "offers", "limit": 2}),
        json.dumps({"tool": "load_table", "final_answer": None, "arguments": {"name": "offers", "limit": 2.0}}),
    ],
    ids=["plain", "in a fence", "stringified", "beside the name", "null for what is left out"],
)
async def test_a_call_is_validated_dispatched_and_answered(tmp_path: Path, reply: str) -> None:
    result, done = await analysed(tmp_path, reply, ANSWER)
    step = result.steps[0]
    assert (step.parse_ok, step.action_status, step.observation) == (True, "executed", ROWS)
    assert (step.tool_name, json.loads(step.tool_arguments_json or "")) == (
        "load_table",
        {"name": "offers", "limit": 2},
    )
    assert done == ["load_table offers"]
    assert (result.stop_reason, result.final_answer) == (StopReason.AGENT_FINISHED, "enough")


async def test_the_model_is_shown_each_tool_as_it_is_dispatched_and_told_how_to_call_it(tmp_path: Path) -> None:
    model = ScriptedModel([LOAD, ANSWER])
    analyzer = CHSAnalyzer(Tables(tmp_path))
    await analyzer.analyse(model, tmp_path / "runs", "offers/1")
    instructions, docs, question = model.calls[0].messages
    assert "exactly one JSON object" in instructions.content
    assert [json.loads(line) for line in docs.content.splitlines()] == list(analyzer.tools.schemas)
    assert question.content == "Which offers are there?"
    assert [message.content for message in model.calls[1].messages[3:]] == [LOAD, f"Result:\n{ROWS}"]


# --- what is not: nothing is run, and the model reads why


MISUNDERSTOOD: Final = {
    "an unknown tool": (call("drop_table", name="offers"), ["unknown tool 'drop_table'", "load_table, store_report"]),
    "an argument missing": (call("load_table", name="offers"), ["load_table", "limit", "required"]),
    "an argument too many": (call("load_table", name="offers", limit=1, order="up"), ["order"]),
    "a string for a number": (call("load_table", name="offers", limit="5"), ["limit", "integer"]),
    "null for a number": (call("load_table", name="offers", limit=None), ["limit", "integer"]),
    "true for a number": (call("load_table", name="offers", limit=True), ["limit", "integer"]),
    "a number out of range": (call("load_table", name="offers", limit=201), ["limit", "200"]),
    "an empty report": (call("store_report", text=""), ["text"]),
    "null for the arguments": ('{"tool": "load_table", "arguments": null}', ["name", "required"]),
    "a list for the arguments": ('{"tool": "load_table", "arguments": [1]}', ["must be an object", "list"]),
    "broken JSON in a string": ('{"tool": "load_table", "arguments": "{1"}', ["not valid JSON"]),
    "no number": ('{"tool": "load_table", "arguments": {"name": "offers", "limit": NaN}}', ["NaN"]),
    "two calls": (f"{LOAD}\n{LOAD}", ["2 decisions"]),
    "a call and an answer": (json.dumps({"tool": "load_table", "final_answer": "x"}), ["beside it"]),
    "prose": ("Let me think about it.", ["no JSON object"]),
    "nothing": ("", ["empty"]),
    "a call that is cut off": (LOAD[:-1], ["not valid JSON"]),
}


@pytest.mark.parametrize(("reply", "told"), MISUNDERSTOOD.values(), ids=MISUNDERSTOOD)
async def test_what_cannot_be_called_is_not_called_and_the_model_is_told_precisely(
    tmp_path: Path, reply: str, told: Sequence[str]
) -> None:
    result, done = await analysed(tmp_path, reply, ANSWER)
    step = result.steps[0]
    assert (step.parse_ok, step.action, step.action_status, step.observation_is_synthetic) == (False, None, None, True)
    assert step.observation == step.parse_error
    for word in told:
        assert word in step.observation
    assert done == []
    assert (result.usage.steps, result.usage.executed_actions) == (2, 0)


async def test_three_misunderstandings_in_a_row_end_an_analysis_and_a_call_between_them_resets_the_count(
    tmp_path: Path,
) -> None:
    wrong = [reply for reply, _ in MISUNDERSTOOD.values()]
    result, done = await analysed(tmp_path, *wrong[:2], LOAD, *wrong[2:4], LOAD, *wrong[4:7], "never asked")
    assert result.stop_reason is StopReason.PARSE_FAILED_REPEATEDLY
    assert [step.parse_ok for step in result.steps] == [False, False, True, False, False, True, False, False, False]
    assert done == ["load_table offers"] * 2


class Credulous:
    """A catalogue that finds nothing wrong with any call."""

    def __init__(self, schemas: tuple[Mapping[str, JSONValue], ...]) -> None:
        self.schemas = schemas

    def validate(self, name: str, arguments: Mapping[str, JSONValue], /) -> str | None:
        return None


@pytest.mark.parametrize(
    "reply", [call("drop_table", name="offers"), call("load_table", name="offers", limit="5"), call("load_table")]
)
async def test_what_gets_past_a_parser_that_does_not_validate_is_refused_by_the_executor(
    tmp_path: Path, reply: str
) -> None:
    tables = Tables(tmp_path)
    analyzer = CHSAnalyzer(tables)
    analyzer.page.names["PARSER"] = JsonToolCallParser(
        tools=Credulous(analyzer.tools.schemas),
        tool_key="tool",
        arguments_key="arguments",
        answer_key="final_answer",
        comment_keys=("thought",),
        blank_history_text="(empty)",
    )
    result = await analyzer.analyse(ScriptedModel([reply, ANSWER]), tmp_path / "runs", "offers/1")
    step = result.steps[0]
    assert (step.parse_ok, step.action_status, step.observation) == (True, "not_executed", FIXED)
    assert step.observation_is_synthetic
    assert tables.done() == []
    assert result.stop_reason is StopReason.AGENT_FINISHED


# --- what tools do


async def test_a_tool_that_raises_is_an_observation(tmp_path: Path) -> None:
    result, done = await analysed(tmp_path, call("load_table", name="offer", limit=2), ANSWER)
    assert (result.steps[0].action_status, result.steps[0].observation) == ("executed", "KeyError: 'no table offer'")
    assert done == ["load_table offer"]
    assert result.usage.executed_actions == 1


async def test_an_environment_that_fails_ends_the_analysis(tmp_path: Path) -> None:
    result, _ = await analysed(tmp_path, LOAD, call("load_table", name="unplugged", limit=2))
    assert (result.stop_reason, result.detail) == (StopReason.ENV_ERROR, "the database is unplugged")
    assert result.steps[1].observation == "The analysis service is not available."


async def test_a_tool_that_completes_ends_the_analysis_once_it_ran_without_raising(tmp_path: Path) -> None:
    failed, stored = call("store_report", text="unspeakable"), call("store_report", text="There are offers.")
    result, done = await analysed(tmp_path, failed, stored)
    assert (result.stop_reason, result.final_answer) == (StopReason.TASK_COMPLETED, None)
    assert [step.observation for step in result.steps] == ["PermissionError: not that", "Stored."]
    assert done == ["store_report unspeakable", "store_report There are offers."]
    assert Tables(tmp_path).reports.read_text() == "There are offers.\n"


async def test_a_long_observation_keeps_its_beginning_and_the_cut_is_counted(tmp_path: Path) -> None:
    """The page's limit is 10,000 characters."""
    tables = Tables(tmp_path)
    result = await CHSAnalyzer(tables).analyse(ScriptedModel([LOAD_ALL, ANSWER]), tmp_path / "runs", "offers/1")
    whole = tables.load_table("offers", 200)
    assert len(whole) > 10_000
    assert result.steps[0].observation == whole[:10_000]
    assert result.steps[0].observation_truncated_chars == len(whole) - 10_000


# --- crashes


def killed_in(tool: str, root: Path) -> None:
    """An analysis in a process that dies in a tool, after the tool has done what it does."""
    code = "from tests.consumers.chsanalyzer import main; main()"
    dead = subprocess.run([sys.executable, "-c", code, str(root), tool], cwd=ROOT, check=False)
    assert dead.returncode == -signal.SIGKILL


async def test_killed_in_a_tool_that_only_reads_an_analysis_reads_again_and_goes_on(tmp_path: Path) -> None:
    killed_in("load_table", tmp_path)
    tables, model = Tables(tmp_path), ScriptedModel(WORKS)
    result = await CHSAnalyzer(tables).analyse(model, tmp_path / "runs", "offers/1")
    assert result.stop_reason is StopReason.TASK_COMPLETED
    assert [step.observation for step in result.steps] == [ROWS, "Stored."]
    assert tables.done() == ["load_table offers", "load_table offers", "store_report There are offers."]
    assert [each.call_index for each in model.calls] == [1], "the reply that it had is not asked for again"


async def test_killed_in_a_tool_that_may_not_be_repeated_an_analysis_says_so_and_does_not_repeat_it(
    tmp_path: Path,
) -> None:
    killed_in("store_report", tmp_path)
    tables, model = Tables(tmp_path), ScriptedModel(WORKS)
    result = await CHSAnalyzer(tables).analyse(model, tmp_path / "runs", "offers/1")
    assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
    assert "action of step 1" in (result.detail or "")
    assert (len(result.steps), model.calls) == (1, [])
    assert tables.reports.read_text() == "There are offers.\n"


async def test_the_second_start_of_a_finished_analysis_returns_its_result(tmp_path: Path) -> None:
    first, done = await analysed(tmp_path, *WORKS)

    def refuse(_: ModelCall) -> AssertionError:
        return AssertionError("no call may be made")

    tables = Tables(tmp_path)
    assert await CHSAnalyzer(tables).analyse(ScriptedModel(refuse), tmp_path / "runs", "offers/1") == first
    assert tables.done() == done


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    assert CHSAnalyzer(Tables(tmp_path)).page.unused == set()
