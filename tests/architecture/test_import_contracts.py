"""The contracts of `.importlinter` hold, and each of them is broken by what it forbids."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.tree import PACKAGE, ROOT, planted, python_files

_CONFIG = configparser.ConfigParser()
_CONFIG.read(ROOT / ".importlinter", encoding="utf-8")

CONTRACTS: Final = {
    section.rpartition(":")[2]: _CONFIG[section]["name"]
    for section in _CONFIG.sections()
    if section.startswith("importlinter:contract:")
}
"""The names of the contracts, by their identifiers."""

PLANTS: Final = [
    # contract, file of the package, what is planted there
    ("layers", "ports.py", "from polyloop.session import AgentDefinition"),
    ("layers", "tools.py", "def late() -> None:\n    from polyloop.session import _driver"),
    ("layers", "session/_steps.py", "from polyloop.stores.ephemeral import EphemeralRunStore"),
    ("layers", "serialization.py", "from polyloop.adapters import anything"),
    ("layers", "session/_steps.py", "from polyloop.adapters.openai import OpenAIChatModel"),
    ("layers", "types/values.py", "from polyloop import ports"),
    ("layers", "_recovery/_states.py", "from polyloop._stopping import judge"),
    ("layers", "_assembly.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from polyloop import tools"),
    ("layers", "util.py", "MODULE_ON_NO_LINE = True"),
    ("layers", "util/__init__.py", "PACKAGE_ON_NO_LINE = True"),
    ("middle-independent", "tools.py", "from polyloop._assembly import count_chars"),
    ("middle-independent", "_stopping.py", "from polyloop.serialization import encode"),
    ("middle-independent", "_recovery/_moves.py", "from polyloop import _stopping"),
    ("tool-schema", "session/_assembled.py", "from polyloop._tool_schema import one_line"),
    ("tool-schema", "_assembly.py", "from polyloop._tool_schema import one_line"),
    ("opt-in", "__init__.py", "from polyloop.cli import main"),
    ("opt-in", "__init__.py", "from polyloop.stores.ephemeral import EphemeralRunStore"),
    ("opt-in", "__init__.py", "from polyloop import adapters"),
    ("opt-in", "__init__.py", "from polyloop.adapters.openai.errors import ChatCompletionError"),
    ("downstream", "session/_driver.py", "import dissect"),
    ("downstream", "adapters/__init__.py", "from govdoc.orchestrator import Orchestrator"),
    ("downstream", "stores/ephemeral.py", "import docagent_core.names"),
    ("downstream", "types/errors.py", "import harness"),
    ("downstream", "tools.py", "import chsanalyzer"),
    ("vendors", "session/_effects.py", "from polygateway.client import Client"),
    ("vendors", "stores/ephemeral.py", "import polygateway"),
    ("vendors", "adapters/__init__.py", "import polygateway"),
    ("vendors", "__init__.py", "import openai"),
    ("vendors", "brand_new.py", "import openai"),
    ("vendors", "tools.py", "from mcp import Client"),
    ("vendors", "stores/new.py", "from opentelemetry import trace"),
    ("vendors", "types/_json.py", "import httpx"),
    ("vendors", "stores/new.py", "from httpx2 import AsyncClient"),
    ("drivers", "session/_driver.py", "import sqlite3"),
    ("drivers", "adapters/new.py", "import psycopg.rows"),
    ("drivers", "tools.py", "def late() -> None:\n    import asyncpg"),
    ("drivers", "__init__.py", "import aiosqlite"),
    ("core-stdlib-only", "types/_json.py", "import jsonschema"),
    ("core-stdlib-only", "types/new.py", "def late() -> None:\n    import pydantic"),
    ("core-stdlib-only", "ports.py", "from loguru import logger"),
    ("core-stdlib-only", "ports.py", "import polygateway.client"),
    ("pure", "_stopping.py", "import asyncio"),
    ("pure", "_assembly.py", "from pathlib import Path"),
    ("pure", "_recovery/_identity.py", "def late() -> None:\n    import os.path"),
    ("pure", "_recovery/new.py", "from random import random"),
    ("pure", "serialization.py", "from datetime import datetime"),
    ("pure", "types/_checks.py", "import time"),
    ("ports-types", "ports.py", "from polyloop.serialization import encode"),
    ("ports-types", "ports.py", "from polyloop import _version"),
    ("ports-types", "ports.py", "import polyloop.tools"),
    ("types-nothing", "types/records.py", "from polyloop.ports import Action"),
    ("types-nothing", "types/__init__.py", "from polyloop._version import __version__"),
    ("private", "stores/ephemeral.py", "from polyloop.session._driver import start_run"),
    ("private", "session/_driver.py", "from polyloop.stores._positions import check_position"),
    ("private-recovery", "session/_driver.py", "from polyloop._recovery._moves import NextIteration"),
    ("acyclic", "types/errors.py", "from polyloop.types.records import RunLog"),
    ("acyclic", "session/_failures.py", "def late() -> None:\n    from polyloop.session import _driver"),
]


def lint_imports(source: Path) -> tuple[int, set[str], str]:
    """Run import-linter on the package below `source`: its exit code, the contracts it calls broken, its output."""
    script = Path(sys.executable).with_name("lint-imports")
    arguments = [str(script), str(ROOT / ".importlinter"), "--no-cache", "--no-logo"]
    # Wide enough for the longest name of a contract, which would be wrapped otherwise.
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "300", "NO_COLOR": "1"}
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    broken = re.findall(r"^(.+) BROKEN\b", done.stdout, re.MULTILINE)
    return done.returncode, set(broken), done.stdout + done.stderr


def test_every_contract_is_kept() -> None:
    code, broken, output = lint_imports(PACKAGE.parent)
    assert (code, broken) == (0, set()), output
    assert f"{len(CONTRACTS)} kept" in output


@pytest.mark.parametrize(("contract", "file", "plant"), PLANTS, ids=[f"{plant[0]}-{plant[1]}" for plant in PLANTS])
def test_a_contract_is_broken_by_what_it_forbids(contract: str, file: str, plant: str, tmp_path: Path) -> None:
    code, broken, output = lint_imports(planted(tmp_path, {file: plant}))
    assert code == 1, output
    assert CONTRACTS[contract] in broken, output


def test_an_adapter_may_import_a_vendor_and_a_store_a_driver(tmp_path: Path) -> None:
    """The exemptions are what they say: without them, the contracts above would be broken for the wrong reason."""
    plants = {
        "adapters/new.py": "import openai\nimport polygateway.client",
        "stores/new.py": "import psycopg\nimport sqlite3",
    }
    code, broken, output = lint_imports(planted(tmp_path, plants))
    assert (code, broken) == (0, set()), output


def test_a_command_line_may_stand_on_top_and_nowhere_else(tmp_path: Path) -> None:
    plants = {"cli/new.py": "import polyloop.stores.ephemeral\nimport polyloop.adapters\nimport polyloop.session"}
    code, broken, output = lint_imports(planted(tmp_path / "above", plants))
    assert (code, broken) == (0, set()), output
    code, broken, output = lint_imports(
        planted(tmp_path / "below", {**plants, "stores/new.py": "import polyloop.cli.new"})
    )
    assert code == 1, output
    assert CONTRACTS["layers"] in broken, output


def test_every_contract_has_its_planted_violation() -> None:
    assert {plant[0] for plant in PLANTS} == CONTRACTS.keys()
    assert len(set(CONTRACTS.values())) == len(CONTRACTS)


def folders_without_init(package: Path) -> list[Path]:
    """Folders of code that import-linter would pass over in silence."""
    return sorted({path.parent for path in python_files(package) if not (path.parent / "__init__.py").exists()})


def test_every_folder_of_the_package_is_seen_by_the_contracts(tmp_path: Path) -> None:
    assert folders_without_init(PACKAGE) == []
    source = planted(tmp_path, {"session/inner/hidden.py": "import openai"})
    assert folders_without_init(source / "polyloop") == [source / "polyloop" / "session" / "inner"]
