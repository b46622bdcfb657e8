"""The project's files, and copies of the package with something planted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "src" / "polyloop"

CODE_FOLDERS: Final = ("src", "tests", "examples", "benchmarks")


def python_files(folder: Path) -> list[Path]:
    """All Python files below a folder, in a stable order."""
    return sorted(folder.rglob("*.py"))


def code_files() -> list[Path]:
    """All Python files that are held to the house rules."""
    return [path for folder in CODE_FOLDERS for path in python_files(ROOT / folder)]


def planted(tmp_path: Path, plants: Mapping[str, str]) -> Path:
    """A copy of the package with text appended to some of its files; the folder that holds it."""
    source = tmp_path / "src"
    shutil.copytree(PACKAGE, source / "polyloop", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in plants.items():
        path = source / "polyloop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
    return source


def tracked_files() -> Iterator[Path]:
    """All files that git tracks, symbolic links and deleted files left out."""
    # The folder may belong to another user than the one who runs the tests, as in a container.
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    listed = subprocess.run([*git, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            yield path
