"""The table of the proof is put together rightly, and tells only of what has passed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.proof.plugin import PAGE, VARIABLE
from tests.proof.table import BEGIN, END, Finding, Row, rewritten, rows_of

ROOT: Final = Path(__file__).parents[2]


def finding(check: str, store: str, seed: str = "", **counts: int) -> Finding:
    return Finding(check=check, store=store, seed=seed, counts=counts)


def test_figures_and_seconds_of_one_check_are_summed() -> None:
    findings = [
        (finding("races", "sqlite", "2", races=500), 2.0),
        (finding("races", "jsonl", "1", races=3), 1.0),
        (finding("races", "sqlite", "1", races=500, refusals=7), 1.2),
    ]
    assert [str(row) for row in rows_of(findings, "2026-01-02")] == [
        "| races | jsonl | 3 races | 1 | 1 | 1 | 2026-01-02 |",
        "| races | sqlite | 1,000 races, 7 refusals | 2 | 3 | 1, 2 | 2026-01-02 |",
    ]


def test_rows_of_checks_that_did_not_run_keep_their_last_figures_and_their_day() -> None:
    first = rows_of([(finding("a", "x", n=1), 1.0), (finding("b", "x", n=2), 1.0)], "2026-01-01")
    page = rewritten(f"# Title\n\n{BEGIN}\n{END}\n\nMore.\n", first)
    again = rewritten(page, rows_of([(finding("b", "x", n=3), 1.0), (finding("a", "w", n=4), 1.0)], "2026-01-02"))
    rows = [line for line in again.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| a | w | 4 n | 1 | 1 | none | 2026-01-02 |",
        "| a | x | 1 n | 1 | 1 | none | 2026-01-01 |",
        "| b | x | 3 n | 1 | 1 | none | 2026-01-02 |",
    ]
    assert again.startswith("# Title\n")
    assert again.endswith("\n\nMore.\n")
    assert rewritten(again, []) == again


@pytest.mark.parametrize("page", ["no table", f"{BEGIN}\n{BEGIN}\n{END}", f"{BEGIN}\n|h|\n|-|\n| a | b |\n{END}"])
def test_a_page_that_cannot_be_read_is_refused_and_not_overwritten(page: str) -> None:
    with pytest.raises(ValueError, match=r"must hold|cannot be read"):
        rewritten(page, [])


def test_the_page_has_a_table_that_can_be_rewritten() -> None:
    text = PAGE.read_text("utf-8")
    row = Row(check="zzz", store="s", figures="1 n", tests="1", seconds="1", seeds="none", last_run="2026-01-01")
    assert f"\n{row}\n" in rewritten(text, [row])
    assert rewritten(text, []) == text, "the table stands as it would be written"


SAMPLE: Final = """
import pytest

@pytest.mark.parametrize("n", range(4))
def test_passes(checked, n):
    checked("sample", "s", seed=n, small_steps=10)

def test_is_skipped(checked):
    checked("skipped", "s", small_steps=1)
    pytest.skip("today")

def test_fails_if_asked(checked):
    import os
    checked("failing", "s", small_steps=1)
    assert "SAMPLE_FAILS" not in os.environ
"""


QUIETLY: Final = ("-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:hypothesispytest", "-p", "no:asyncio")


def run_sample(at: Path, workers: int, **variables: str) -> str:
    """Run the sample on a page of its own; the rows that it has then."""
    (at / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.proof import plugin\n"
        "plugin.PAGE = Path(__file__).with_name('page.md')\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(plugin)\n"
    )
    (at / "test_sample.py").write_text(SAMPLE)
    (at / "page.md").write_text(f"{BEGIN}\n{END}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={at}", *QUIETLY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    subprocess.run([*command, "-n", str(workers), str(at)], env=environment, check=False, capture_output=True)
    return re.sub(r"\d{4}-\d\d-\d\d", "today", (at / "page.md").read_text())


def test_what_has_passed_comes_onto_the_page_out_of_every_worker(tmp_path: Path) -> None:
    page = run_sample(tmp_path, 2, **{VARIABLE: "1"})
    assert "| sample | s | 40 small steps | 4 | 0 | 0, 1, 2, 3 | today |" in page
    assert "skipped" not in page


@pytest.mark.parametrize("variables", [{VARIABLE: "1", "SAMPLE_FAILS": "1"}, {VARIABLE: "0"}])
def test_a_run_with_a_failure_or_without_the_variable_writes_nothing(tmp_path: Path, variables: dict[str, str]) -> None:
    assert run_sample(tmp_path, 0, **variables) == f"{BEGIN}\n{END}\n"
