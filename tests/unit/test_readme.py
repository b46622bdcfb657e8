"""What the README prints runs as printed, and says what is so."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from polyloop import StopReason

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_complete_agent_runs_as_printed() -> None:
    done = run_python(BLOCKS[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "agent_finished 42"


def test_the_template_idiom_runs_as_printed() -> None:
    agent = BLOCKS[0].replace(
        "result = await agent.run(request)", "globals()['request'] = request; result = await agent.run(request)"
    )
    check = "print(request_for(7, 'What is 1 + 1?').key, request_for(7, '').budget == request.budget)"
    done = run_python("\n".join((agent, BLOCKS[1], check)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "sums/7 True"


def test_every_python_block_is_run() -> None:
    assert len(BLOCKS) == 2


def test_the_table_of_stop_reasons_is_complete_and_in_order() -> None:
    table = README.partition("## Why a run stopped")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == ["stop_reason"] + [reason.value for reason in StopReason]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
