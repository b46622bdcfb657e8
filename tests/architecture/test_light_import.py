"""`import polyloop` stays light: in a fresh interpreter, it brings no driver, SDK, store or adapter along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.tree import PACKAGE, ROOT, planted

FORBIDDEN: Final = (
    # the gateway and other vendors' SDKs
    *("polygateway", "openai", "anthropic", "litellm", "httpx", "httpx2", "requests", "aiohttp"),
    # database drivers
    *("sqlite3", "_sqlite3", "psycopg", "psycopg_pool", "psycopg2", "asyncpg", "aiosqlite", "sqlalchemy"),
    # dependencies that are imported at first use
    *("jsonschema", "jsonschema_specifications", "referencing", "loguru"),
    # whatever an extra may bring
    *("opentelemetry", "rich", "textual", "pydantic", "anyio"),
    # the opt-in parts of the package itself
    *("polyloop.stores", "polyloop.adapters", "polyloop.cli"),
)

IMPORT_ONLY: Final = "import polyloop"

RUN_WITHOUT_TOOLS: Final = """
import asyncio
import polyloop
from polyloop.stores.ephemeral import EphemeralRunStore
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser, act, final

definition = polyloop.AgentDefinition(
    model=ScriptedModel([act("look"), final("42")]),
    parser=ScriptedParser(),
    store=EphemeralRunStore(),
    events=RecordingSink(),
    synthetic_observations={polyloop.ActionStatus.NOT_EXECUTED: "-", polyloop.ActionStatus.ENV_ERROR: "-"},
    observation_template="{observation}",
)
request = polyloop.RunRequest(
    key=polyloop.RunKey("run"),
    budget=polyloop.Budget(
        max_steps=5, max_executed_actions=5, max_prompt_chars=999, max_consecutive_parse_failures=2
    ),
    executor=ScriptedExecutor(),
    tools=polyloop.ToolRegistry(()),
    run_segments=(polyloop.ChatMessage(role="system", content="Act."),),
    item_segments=(),
    skills=(),
    model_binding={},
    model_call_replay=polyloop.ReplayPolicy.NEVER,
    tool_docs_style=polyloop.ToolDocsStyle.NONE,
    finalize_timeout_s=1.0,
)
result = asyncio.run(definition.run(request))
assert result.final_answer == "42", result
"""


def brought_along(code: str, source: Path) -> set[str]:
    """The modules that `code` loads, in an interpreter of its own that takes the package from `source`."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nimport json\n"
    program += "print(json.dumps(sorted(set(sys.modules) - before)), polyloop.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    loaded, _, file = done.stdout.strip().rpartition(" ")
    assert Path(file).is_relative_to(source), f"the package was taken from {file}"
    return set(json.loads(loaded))


def forbidden_in(modules: set[str]) -> set[str]:
    """Those of the modules that must not be there, and everything else that is third-party."""
    named = {each for each in modules if any(each == name or each.startswith(f"{name}.") for name in FORBIDDEN)}
    foreign = {each for each in modules if each.split(".")[0] not in {*sys.stdlib_module_names, "polyloop", "tests"}}
    return named | foreign


def test_import_polyloop_brings_nothing_but_itself_and_the_standard_library() -> None:
    modules = brought_along(IMPORT_ONLY, PACKAGE.parent)
    assert "polyloop.session" in modules
    assert forbidden_in(modules) == set()


def test_a_run_without_tools_and_failures_needs_no_third_party_package() -> None:
    """jsonschema is for tools, loguru for failures that the caller cannot see otherwise."""
    modules = brought_along(RUN_WITHOUT_TOOLS, PACKAGE.parent)
    assert forbidden_in(modules) == {
        "polyloop.stores",
        "polyloop.stores._listing",
        "polyloop.stores._positions",
        "polyloop.stores.ephemeral",
    }


@pytest.mark.parametrize(
    ("file", "plant", "caught"),
    [
        ("__init__.py", "from polyloop.stores.ephemeral import EphemeralRunStore", "polyloop.stores.ephemeral"),
        ("__init__.py", "import polyloop.adapters", "polyloop.adapters"),
        ("session/_driver.py", "import sqlite3", "sqlite3"),
        ("tools.py", "import jsonschema", "jsonschema"),
        ("_tool_schema.py", "from referencing import Registry", "referencing"),
        ("session/_failures.py", "from loguru import logger", "loguru"),
        ("session/_effects.py", "from polygateway.client import Client", "polygateway.client"),
        ("types/_json.py", "import openai", "openai"),
        ("ports.py", "import somebody_elses_package", "somebody_elses_package"),
        ("session/_driver.py", "__import__('sqlite' + '3')", "sqlite3"),
    ],
)
def test_whatever_else_it_brings_is_found(file: str, plant: str, caught: str, tmp_path: Path) -> None:
    source = planted(tmp_path, {file: plant})
    (source / "polygateway").mkdir()
    (source / "polygateway" / "__init__.py").touch()
    (source / "polygateway" / "client.py").write_text("class Client: ...\n")
    (source / "openai.py").touch()
    (source / "somebody_elses_package.py").touch()
    assert caught in forbidden_in(brought_along(IMPORT_ONLY, source))
