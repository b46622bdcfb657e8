"""`.ci/run` runs every part, tells the tests that their tools must be there, and fails with the part that fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.tree import ROOT

SCRIPT: Final = ROOT / ".ci" / "run"
PARTS: Final = (".venv/.stamp-dev", ".venv/.stamp-examples", "check", "docs", "test", "verify")

# Stands in for make: notes what it is asked, and fails where it is told to.
_MAKE: Final = """#!/bin/sh
required="strace=$POLYLOOP_REQUIRE_STRACE mount=$POLYLOOP_REQUIRE_MOUNT postgres=$POLYLOOP_REQUIRE_POSTGRES"
required="$required environments=$POLYLOOP_REQUIRE_ENVIRONMENTS chromium=$POLYLOOP_REQUIRE_CHROMIUM"
echo "$* $required seconds=$POLYLOOP_VERIFY_SECONDS ci=$CI stdin=$(cat | wc -c)" >> "$CALLS"
[ "$1" != "$FAILS" ]
"""
_TOOL: Final = "#!/bin/sh\necho stand-in\n"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with stand-ins for everything that the script starts, but for the shell's own tools."""
    for name, text in (
        ("make", _MAKE),
        ("strace", _TOOL),
        ("git", _TOOL),
        ("mkfs.ext4", _TOOL),
        ("initdb", _TOOL),
        ("mount", _TOOL),
        ("cc", _TOOL),
        ("chromium", _TOOL),
        ("apt-get", "#!/bin/sh\nexit 9\n"),
    ):
        tool = tmp_path / name
        tool.write_text(text)
        tool.chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    return tmp_path


def ci(tools: Path, *, fails: str = "nothing", **settings: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with the stand-ins: how it went, and what make was asked."""
    calls = tools / "calls"
    calls.touch()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("POLYLOOP_")}
    environment = {**inherited, "PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": fails, **settings}
    done = subprocess.run(
        [str(SCRIPT)], input="y\n", check=False, capture_output=True, text=True, env=environment, cwd="/"
    )
    return done, calls.read_text().splitlines()


def test_it_runs_every_part_in_order_with_the_tools_required_and_without_input(tools: Path) -> None:
    done, calls = ci(tools)
    assert done.returncode == 0, done.stderr
    assert calls == [
        f"{part} strace=1 mount=1 postgres=1 environments=1 chromium=1 seconds=240 ci=true stdin=0" for part in PARTS
    ]
    assert "all parts passed" in done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_it_fails_with_the_first_part_that_fails_and_names_it(part: str, tools: Path) -> None:
    done, calls = ci(tools, fails=part)
    assert done.returncode != 0
    assert [call.split(" ")[0] for call in calls] == list(PARTS[: PARTS.index(part) + 1])
    assert "failed in" in done.stderr
    assert "all parts passed" not in done.stdout


def test_the_long_tests_can_be_given_another_limit(tools: Path) -> None:
    _, calls = ci(tools, POLYLOOP_VERIFY_SECONDS="7")
    assert calls[-1].startswith("verify strace=1 mount=1 postgres=1 environments=1 chromium=1 seconds=7 ")


def test_a_tool_that_is_missing_and_cannot_be_installed_is_a_failure(tools: Path) -> None:
    if shutil.which("strace", path="/usr/bin:/bin"):
        # It would be found there: make the stand-in itself unusable instead.
        (tools / "strace").write_text("#!/bin/sh\nexit 9\n")
    else:
        (tools / "strace").unlink()
    done, calls = ci(tools)
    assert done.returncode != 0
    assert calls == []


def test_the_parts_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert targets >= set(PARTS)


def test_it_can_be_started() -> None:
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
