"""The command line starts without what it does not need, and stands where users find it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import polyloop as package
from polyloop.cli import main
from tests.cli.logs import sound
from tests.cli.places import ROOT, Place, environment, place, printed

HEAVY = ("jsonschema", "referencing", "loguru", "psycopg", "psycopg_pool", "rich", "openai", "mcp", "http", "xml")

SCRIPT = """
import json, sys
from polyloop.cli import main
code = main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
raise SystemExit(code)
"""


@pytest.mark.parametrize("command", [("runs",), ("show", "run"), ("export", "run", "--format=atif"), ("verify",)])
def test_only_what_a_command_needs_is_imported(on_disk: Place, command: tuple[str, ...]) -> None:
    on_disk.fill({"run": sound(1)})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, command[0], on_disk.url, *command[1:]],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert modules.isdisjoint(HEAVY)
    assert "polyloop.cli.report" not in modules
    other = "polyloop.stores.sqlite" if on_disk.kind == "jsonl" else "polyloop.stores.jsonl"
    assert other not in modules
    own = {f"polyloop.cli._{name}" for name in ("runs", "show", "watch", "export", "verify", "atif")}
    needed = {f"polyloop.cli._{command[0]}"} | ({"polyloop.cli._atif"} if command[0] == "export" else set())
    assert modules & own == needed


def test_help_says_what_there_is() -> None:
    told = printed("--help")
    for word in ("runs", "show", "watch", "export", "verify", "report", "jsonl:DIRECTORY", "Exit codes", "PGPASSFILE"):
        assert word in told
    for command in ("runs", "show", "watch", "export", "verify", "report"):
        assert printed(command, "--help").startswith(f"usage: polyloop {command} ")
    assert printed("--version") == f"polyloop {package.__version__}\n"


def test_the_script_is_what_the_module_runs(tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"polyloop": "polyloop.cli:main"}
    assert main.__module__ == "polyloop.cli._main"
    script = shutil.which("polyloop", path=str(Path(sys.executable).parent))
    if script is None:
        pytest.skip("the project was installed here before it had a script: install it again")
    there = place("jsonl", tmp_path)
    there.fill({"run": sound(1)})
    done = subprocess.run([script, "verify", there.url], check=True, capture_output=True, text=True)
    assert done.stdout == "1 run: 1 sound\n"
