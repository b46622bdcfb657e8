"""What is built and published: complete, typed, and at work with the core dependencies alone."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Final

import pytest

import polyloop
from tests.architecture.tree import PACKAGE, ROOT, tracked_files

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CORE: Final = {"jsonschema", "loguru"}

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what is tracked: no checkout")

_USE: Final = """
import asyncio, sys
import polyloop
from polyloop.stores.ephemeral import EphemeralRunStore

async def look(arguments):
    return "seen"

tools = polyloop.ToolRegistry([polyloop.ToolSpec(name="look", description="", parameters={}, handler=look)])
assert tools.validate("look", {}) is None and tools.validate("find", {}) is not None
log = asyncio.run(EphemeralRunStore().read_log(polyloop.RunKey("run")))
assert log.started is None
print(polyloop.__version__, polyloop.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # The wheel is made from the source distribution, so that one without the other cannot be right.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel_in(built)) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert found == {path.relative_to(PACKAGE.parent).as_posix() for path in sources}
    assert "polyloop/py.typed" in found


@pytest.mark.slow
def test_the_wheel_says_what_it_needs_and_no_more(built: Path) -> None:
    metadata = metadata_of(wheel_in(built))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.split(r"[<>=!~; \[]", line)[0] for line in needed} == CORE
    assert metadata["Version"] == polyloop.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"


@needs_git
@pytest.mark.slow
def test_the_source_distribution_holds_what_one_needs_to_test_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        found = {name.partition("/")[2] for name in files.getnames()}
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    assert tracked - found == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_environment_with_the_core_dependencies_alone(built: Path, tmp_path: Path) -> None:
    """Needs a package index, and nothing else from outside."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel_in(built), cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    version, _, file = run(python, "-I", "-c", _USE, cwd=tmp_path).strip().partition(" ")
    assert version == polyloop.__version__
    assert Path(file).is_relative_to(tmp_path), "the package was not taken from the new environment"


def test_the_core_dependencies_are_the_two() -> None:
    named = {re.split(r"[<>=!~; \[]", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert named == CORE


def test_no_extra_names_the_gateway() -> None:
    """It is on no public index: whoever registered the name there would run code on users' machines."""
    extras = PROJECT["project"].get("optional-dependencies", {})
    assert not [line for lines in extras.values() for line in lines if "polygateway" in line.lower()]
    assert "polygateway" not in extras


def pinned_versions(text: str) -> dict[str, str]:
    """The names and versions of a constraints file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines), "each line pins one version"
    return {_normal(name): version for name, _, version in (line.partition("==") for line in lines)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_that_development_needs_is_pinned() -> None:
    pinned = pinned_versions((ROOT / "constraints.txt").read_text("utf-8"))
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    assert {_normal(re.split(r"[<>=!~; \[]", line)[0]) for line in wanted} <= pinned.keys()
