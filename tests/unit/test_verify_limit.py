"""The long tests can be bounded in time, and what is left out is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.verify_limit import VARIABLE, limit_from

ROOT: Final = Path(__file__).resolve().parents[2]

TESTS: Final = """
import pytest

@pytest.mark.slow
def test_long():
    pass

def test_short():
    pass
"""


def outcome(folder: Path, limit: str | None, *more: str) -> tuple[int, str]:
    """Run the two tests with the plugin: exit code and output."""
    (folder / "test_two.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", VARIABLE: limit or ""}
    options = ["-p", "tests.verify_limit", "-p", "no:cacheprovider", "-c", os.devnull, "-rs", "-W", "ignore"]
    command = [sys.executable, "-m", "pytest", *options, *more, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("limit", "told"), [(None, "2 passed"), ("60", "2 passed"), ("0", "1 passed, 1 skipped")])
def test_long_tests_are_skipped_once_the_time_is_spent_and_short_ones_never(
    limit: str | None, told: str, tmp_path: Path
) -> None:
    code, output = outcome(tmp_path, limit)
    assert code == 0, output
    assert told in output
    assert (f"of {VARIABLE} are spent" in output) == (limit == "0")


def test_with_a_limit_the_files_take_turns(tmp_path: Path) -> None:
    many = "import pytest\n" + "".join(f"@pytest.mark.slow\ndef test_{n}(): pass\n" for n in range(3))
    (tmp_path / "test_many.py").write_text(many)
    order = re.findall(r"(test_\w+)\.py::(test_\w+) PASSED", outcome(tmp_path, "60", "-v")[1])
    assert order == [
        *[("test_two", "test_short"), ("test_many", "test_0"), ("test_two", "test_long")],
        *[("test_many", "test_1"), ("test_many", "test_2")],
    ]
    assert [file for file, _ in re.findall(r"(test_\w+)\.py::(test_\w+) PASSED", outcome(tmp_path, None, "-v")[1])] == [
        *["test_many"] * 3,
        *["test_two"] * 2,
    ]


def test_a_limit_that_is_no_number_is_refused(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, "soon")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"{VARIABLE} must be a number of seconds, got 'soon'" in output
    assert limit_from("") is None
    assert limit_from("1.5") == 1.5
