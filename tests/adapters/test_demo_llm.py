"""`examples/demo_llm.py` without its model: the demo's own machinery, on an endpoint that plays a part."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.endpoint import Asked, Behaviour, Endpoint, completion, says
from tests.architecture.tree import ROOT

DEMO = ROOT / "examples" / "demo_llm.py"


def decides(tool: str, **arguments: Any) -> dict[str, Any]:
    return completion(json.dumps({"thought": "so", "tool": tool, "arguments": arguments}))


def cut_off() -> dict[str, Any]:
    answer = decides("run_sql", sql="select 1")
    answer["choices"][0]["finish_reason"] = "length"
    return answer


def plays(*answers: dict[str, Any]) -> Behaviour:
    """The answer for each step; the demo's prompt has two turns of the model before the first."""

    async def behaviour(asked: Asked) -> None:
        said = sum(message["role"] == "assistant" for message in asked.json["messages"]) - 2
        await says(answers[min(said, len(answers) - 1)])(asked)

    return behaviour


async def demo(behaviour: Behaviour, folder: Path, *more: str) -> tuple[str, Endpoint]:
    """What the demo prints; it must have ended well."""
    async with Endpoint(behaviour) as endpoint:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(DEMO), "--data-dir", str(folder), "--base-url", endpoint.url, "--runs", "1", *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    assert "NOT SO" not in printed.decode()
    return printed.decode(), endpoint


QUERY = decides("run_sql", sql="select 1")
SUBMIT = decides("submit", region="North", month="2026-01", excess_cents=1, cause="none")

PARTS = (
    ((decides("list_tables"), QUERY, SUBMIT), "task_completed"),
    ((QUERY,), "action_budget"),
    ((completion("I would rather not."),), "parse_failed_repeatedly"),
    ((QUERY, cut_off()), "llm_error"),
    ((completion("x" * 14_000),), "context_overflow"),
)
"""What the model says in a run, step by step, and how the run must end."""
SEED = 100


async def by_run(asked: Asked) -> None:
    """The runs are told apart by their seeds."""
    await plays(*PARTS[asked.json["seed"] - SEED][0])(asked)


@pytest.mark.timeout(600)  # a process or more for each run, on whatever machine
async def test_the_demo_ends_well_whatever_the_model_says(tmp_path: Path) -> None:
    printed, endpoint = await demo(by_run, tmp_path, "--runs", str(len(PARTS)), "--kills", "0", "--seed", str(SEED))
    for _, reason in PARTS:
        assert re.search(rf"^ +1  {reason}$", printed, re.MULTILINE), printed
    assert {asked.json["model"] for asked in endpoint.asked} == {"gemma3-270m"}
    held = {asked.json["seed"] - SEED for asked in endpoint.asked if "response_format" in asked.json}
    assert held == {0, 2, 4}


KILLED_AT_EVENTS = 87
"""A seed whose three kills are at early events."""


@pytest.mark.timeout(600)  # a process or more for each run, on whatever machine
async def test_a_demo_whose_processes_are_killed_ends_well(tmp_path: Path) -> None:
    behaviour = plays(decides("list_tables"), QUERY, QUERY, SUBMIT)
    printed, _ = await demo(behaviour, tmp_path, "--kills", "3", "--seed", str(KILLED_AT_EVENTS))
    assert printed.count("SIGKILL") == 3
    assert "What is so, after 3 kills" in printed
    assert "the log is complete" in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_demo_ends_well_for_many_moments_to_kill_at(tmp_path: Path) -> None:
    behaviour = plays(decides("list_tables"), QUERY, completion("no"), QUERY, SUBMIT)
    for seed in range(8):
        await demo(behaviour, tmp_path / str(seed), "--kills", "6", "--seed", str(seed))
