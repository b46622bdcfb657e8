"""What the tutorial prints runs as printed, in the order in which a reader meets it.

A page is read as follows. A Python listing with a title is a file, which this page and those behind it may use; one
without is a script, and is run. A `console` listing is run: a line that begins with `$` is a command, what stands below
it is what it prints, `...` in a line stands for any characters, and a line of `...` for any lines. A command whose last
line is `Killed` must have been. A `sh` listing is for the reader's own machine: it is not run, but what it names must
exist. A comment above a listing, `<!-- needs NAME -->`, names a package without which it is skipped, or what the test
provides.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.server
import importlib.util
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import polyloop
from polyloop import StopReason
from polyloop.cli._arguments import parser as command_line
from tests.contract.options import OPTIONS

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = tuple(
    re.findall(r"^  - (?:[^:\n]+: )?([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
)
"""The pages of the tutorial, in the order in which they are read."""

_LISTING: Final = re.compile(
    r"^(?:<!-- needs (?P<needs>[\w., ]+) -->\n)?"
    r"```(?P<language>\w+)(?: title=\"(?P<title>[\w./-]+)\")?\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_SIGKILL: Final = 137


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One listing of a page."""

    language: str
    title: str | None
    needs: tuple[str, ...]
    text: str


def listings(page: str) -> list[Listing]:
    """The listings of a page, in order."""
    return [
        Listing(
            language=found["language"],
            title=found["title"],
            needs=tuple((found["needs"] or "").replace(",", " ").split()),
            text=found["text"],
        )
        for found in _LISTING.finditer((DOCS / page).read_text("utf-8"))
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One command of a console listing, and what it prints."""

    command: str
    prints: str

    @property
    def is_killed(self) -> bool:
        """Whether the command must have been killed."""
        return self.prints.endswith("Killed\n")

    def matches(self, printed: str) -> bool:
        """Whether this is what was printed."""
        wanted = self.prints.removesuffix("Killed\n") if self.is_killed else self.prints
        # Any lines first, then any characters within a line.
        lines = [r"(?:.*\n)*?" if line == "..." else _line(line) for line in wanted.splitlines()]
        return re.fullmatch("".join(lines), printed) is not None


def _line(line: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in line.split("...")) + "\n"


def sessions(text: str) -> list[Session]:
    """The commands of a console listing. A command goes on behind a backslash."""
    found = re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", text, re.MULTILINE)
    return [Session(command=command, prints=prints) for command, prints in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder. `python` and `polyloop` are those of the interpreter that runs the tests."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, starts in (("python", ""), ("polyloop", "-m polyloop.cli")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {starts} "$@"\n', "utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    place = tmp_path / "reader"
    place.mkdir()
    return place


def run(folder: Path, command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the reader's folder; both outputs are one."""
    programs = folder.parent / "programs"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "NO_COLOR": "1", **settings}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of the tests that run this one
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=100,
    )  # fmt: skip


def lay_out(folder: Path, pages: tuple[str, ...]) -> None:
    """Save the files that these pages have the reader save."""
    for page in pages:
        for listing in listings(page):
            if listing.title is not None:
                (folder / listing.title).parent.mkdir(parents=True, exist_ok=True)
                (folder / listing.title).write_text(listing.text, "utf-8")


def read(folder: Path, listing: Listing, **settings: str) -> None:
    """Do with a listing what the reader does."""
    if listing.title is not None:
        (folder / listing.title).write_text(listing.text, "utf-8")
    elif listing.language == "python":
        done = run(folder, [sys.executable, "-c", listing.text], **settings)
        assert done.returncode == 0, f"{listing.text}\n{done.stdout}"
    elif listing.language == "console":
        for each in sessions(listing.text):
            done = run(folder, ["bash", "-c", f"{each.command}\nexit $?"], **settings)
            printed = re.sub(r"^bash: .* Killed .*\n", "", done.stdout, flags=re.MULTILINE)
            assert done.returncode == (_SIGKILL if each.is_killed else 0), f"{each.command}\n{printed}"
            assert each.matches(printed), f"$ {each.command}\n{printed}\nThe page shows:\n{each.prints}"


class _Model(http.server.BaseHTTPRequestHandler):
    """A chat endpoint that answers every prompt at once."""

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": '{"answer": "19"}'}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        answer = {"id": "call-1", "object": "chat.completion", "created": 0, "model": "any", "choices": choices}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """Serve a model; its base URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def provided(needs: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """What a listing needs, as environment variables.

    Skips where it cannot be had.
    """
    with contextlib.ExitStack() as stack:
        settings: dict[str, str] = {}
        for name in needs:
            match name:
                case "model":
                    settings["BASE_URL"] = stack.enter_context(model_server())
                    settings["MODEL"] = "any"
                case "postgres":
                    from tests.postgres import server

                    settings["PGDSN"] = server.schema("docs")
                case _:
                    # The parent first: a part of a package that is missing cannot be asked for.
                    if not all(map(importlib.util.find_spec, dict.fromkeys((name.partition(".")[0], name)))):
                        pytest.skip(f"the package {name} is not installed")
        yield settings


def runs() -> list[tuple[str, tuple[str, ...]]]:
    """The pages, each with the needs that its listings have; listings without needs are run first."""
    return [(page, needs) for page in PAGES for needs in dict.fromkeys([(), *(each.needs for each in listings(page))])]


@pytest.mark.parametrize(
    ("page", "needs"), runs(), ids=lambda value: value if isinstance(value, str) else "+".join(value)
)
def test_a_page_runs_as_printed(page: str, needs: tuple[str, ...], folder: Path) -> None:
    """Those of its listings that need something are a test of their own, so that a skip skips nothing else."""
    lay_out(folder, PAGES[: PAGES.index(page)])
    with provided(needs) as settings:
        for listing in listings(page):
            if set(listing.needs) <= set(needs):
                read(folder, listing, **settings)


@pytest.mark.parametrize("page", PAGES)
def test_no_listing_is_passed_over(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert len(listings(page)) == len(re.findall(r"^ *```\S", text, re.MULTILINE))
    assert {each.language for each in listings(page)} <= {"python", "console", "sh"}
    for each in listings(page):
        shown = "".join(f"$ {session.command}\n{session.prints}" for session in sessions(each.text))
        assert each.language != "console" or shown == each.text


def test_what_is_printed_is_compared() -> None:
    (session,) = sessions("$ run\nrow ... 3\n...\nend\n")
    assert session.matches("row 1 2 3\nend\n")
    assert session.matches("row  3\nmore\nand more\nend\n")
    assert not session.matches("row 1\n2 3\nend\n")
    assert not session.matches("row 1 3\nend\nmore\n")


def test_every_page_is_in_the_navigation() -> None:
    assert len(PAGES) == len(set(PAGES)) > 10
    assert {path.name for path in DOCS.glob("*.md")} == set(PAGES)
    named = set(re.findall(r"- (reference/[a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert {f"reference/{path.name}" for path in DOCS.glob("reference/*.md")} == named


def test_every_public_name_is_in_the_reference() -> None:
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("reference/*.md"))
    told = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    sources = {name: ROOT / "src" / f"{name.replace('.', '/')}.py" for name in told}
    defined = "".join(source.read_text("utf-8") for source in sources.values() if source.exists())
    named = {name.rpartition(".")[2] for name in told}
    named |= set(re.findall(r"^(?:class |def |async def )?(\w+)(?=[(: ])", defined, re.MULTILINE))
    assert set(polyloop.__all__) - named == {"__version__"}


def test_the_table_of_stop_reasons_is_complete_and_in_order() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "stopping.md").read_text("utf-8"), re.MULTILINE)
    assert [each for each in named if not each.startswith("max_")] == [
        "stop_reason",
        *(each.value for each in StopReason),
    ]


def shell_lines() -> list[str]:
    """What the reader is told to type on a machine of their own, in the tutorial and in the README."""
    text = (ROOT / "README.md").read_text("utf-8")
    readme = re.findall(r"^(?:make|pip|pytest|polyloop|python) .*$", text, re.MULTILINE)
    tutorial = "".join(each.text for page in PAGES for each in listings(page) if each.language == "sh")
    return [line.partition(" #")[0].strip() for line in [*readme, *tutorial.splitlines()]]


def can_be_installed(package: str) -> bool:
    """Whether a package is this one, with extras that it has, or one that its development needs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    if found := re.fullmatch(r"(?:\.|polyloop)(?:\[([\w,]+)\])?", package):
        return set((found[1] or "dev").split(",")) <= set(extras)
    return any(each.startswith(f"{package}>=") for each in extras["dev"])


def exists(words: list[str]) -> bool:
    """Whether what a command names is there."""
    match words:
        case ["make", target]:
            return (
                re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE) is not None
            )
        case ["pip", "install", *packages]:
            return all(map(can_be_installed, packages))
        case ["pytest" | ".venv/bin/pytest", folder, option, factory]:
            return (ROOT / folder).is_dir() and option in {each.name for each in OPTIONS} and ":" in factory
        case ["polyloop", *arguments]:
            with contextlib.suppress(SystemExit):
                return isinstance(command_line().parse_args(arguments), argparse.Namespace)
            return False
        case ["python", script, *_]:
            return (ROOT / script).exists() or any(
                each.title == script for page in PAGES for each in listings(page)
            )  # fmt: skip
        case _:
            return False


@pytest.mark.parametrize("line", shell_lines())
def test_what_is_not_run_exists(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "export":
        return
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    assert exists(words), line


@pytest.mark.parametrize(
    "line",
    [
        "make tea",
        "pip install 'polyloop[tea]'",
        "pip install tea",
        "polyloop tea x",
        "python tea.py",
        "pytest tests/contract --tea x:y",
    ],
)
def test_what_does_not_exist_is_found(line: str) -> None:
    assert not exists(shlex.split(line))


@pytest.mark.parametrize(
    ("option", "factory"), [("--action-executor", "cases:notebook"), ("--decision-parser", "cases:parser")]
)
def test_the_adapters_of_the_tutorial_pass_the_contract_suite(option: str, factory: str, folder: Path) -> None:
    lay_out(folder, PAGES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract", option, factory]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(folder)}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def outline(text: str) -> dict[str, list[object]]:
    """What a page and its translation share: code, links, and how many headings, rows and points each section has."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {
        "code": re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE),
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        "rows": [part.count("\n|") for part in prose.split("\n## ")],
        "points": [part.count("\n- ") for part in prose.split("\n## ")],
        "links": sorted(set(re.findall(r"\]\(([^)]+)\)", prose)) - {"README.md", "README.zh-CN.md"}),
        "terms": [sorted(set(re.findall(r"`([^`\n]+)`", part))) for part in prose.split("\n## ")],
    }


def test_the_chinese_readme_says_what_the_english_one_says() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    assert outline(chinese) == outline(english)
    assert "](README.zh-CN.md)" in english
    assert "](README.md)" in chinese
