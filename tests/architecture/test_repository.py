"""What is tracked speaks of the project alone: no machine's paths, no registry's host, no setting that names one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.tree import ROOT, tracked_files

# Put together here, so that this file can be held to its own rule.
_MACHINE_PATHS: Final = ("work", "root")
_REGISTRIES: Final = ("pypi", "pythonhosted", "npmjs", "crates", "artifactory", "nexus", "registry", "mirror", "conda")

needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what is tracked: no checkout")

FOREIGN: Final = {
    "a path of one machine": re.compile(rf"(?<![\w.~/-])/({'|'.join(_MACHINE_PATHS)})/[\w.-]"),
    "a registry's host": re.compile(
        rf"https?://[\w.-]*({'|'.join(_REGISTRIES)})[\w.-]*|\b({'|'.join(_REGISTRIES)})\.(org|io)\b"
    ),
    "a registry's setting": re.compile(
        r"--(extra-)?index" + r"-url|--trusted" + "-host|--find" + "-links|PIP_" + r"\w+=\S"
    ),
    "a line end of another system": re.compile(r"\r$", re.MULTILINE),
}


def foreign(text: str) -> list[str]:
    """What in a text is not the project's own."""
    return [f"{what}: {found[0]}" for what, pattern in FOREIGN.items() if (found := pattern.search(text))]


@needs_git
def test_tracked_files_speak_of_the_project_alone() -> None:
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in tracked_files()}
    assert ROOT / "pyproject.toml" in texts
    found = {str(path.relative_to(ROOT)): problems for path, text in texts.items() if (problems := foreign(text))}
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /{}/main/src".format("work"),
        "(/{}/shared/design)".format("work"),
        "cd '/{}/project'".format("root"),
        "https://{}.org/simple".format("pypi"),
        "https://files.{}.org/packages".format("pythonhosted"),
        "on {}.org".format("pypi"),
        "http://{}.corp.example/api".format("artifactory"),
        "pip install --{}-url x".format("index"),
        "pip install --find{} x".format("-links"),
        "a line\r\n",
    ],
)
def test_what_is_foreign_is_found(text: str) -> None:
    assert foreign(text)


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd and /tmp/x and /home/me/runs",
        "runs/work/1",
        "https://docs.python.org/3/",
        "the registry of tools",
        "a mirror image",
        "$HOME/work/x",
        "research-wiki/root/x",
    ],
)
def test_what_is_the_projects_own_is_accepted(text: str) -> None:
    assert foreign(text) == []


@needs_git
def test_every_tracked_python_file_belongs_to_a_folder_that_is_held_to_the_rules() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked_files() if path.suffix == ".py"}
    assert folders <= {"src", "tests", "examples", "benchmarks"}


def lost_links(folder: Path, text: str) -> list[str]:
    """Relative links of a Markdown text that lead nowhere."""
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    return [target for target in targets if not (folder / target).exists()]


@needs_git
def test_links_between_the_documents_lead_somewhere() -> None:
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    assert pages
    lost = {str(path.relative_to(ROOT)): lost_links(path.parent, path.read_text("utf-8")) for path in pages}
    assert {page: links for page, links in lost.items() if links} == {}
    assert lost_links(ROOT, "[x](pyproject.toml) [y](no-such-page.md#part)") == ["no-such-page.md"]
