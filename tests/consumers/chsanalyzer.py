"""A stand-in for *CHSAnalyzer*, moved over by its page: tools that block, and a model that calls them in JSON."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from examples import parsers
from polyloop.ports import ModelPort
from polyloop.tools import ToolRegistry
from polyloop.types import EnvironmentFailure, RunResult
from tests.consumers.harness import append_line
from tests.consumers.pages import Page


class Tables:
    """The project's tools: they block, and note what they do in a file outside."""

    def __init__(self, root: Path, dies_in: str | None = None) -> None:
        self.ledger = root / "ledger"
        self.reports = root / "reports"
        self._database = root / "tables.sqlite3"
        self._dies_in = dies_in
        if not self._database.exists():
            self._fill()

    def _fill(self) -> None:
        with sqlite3.connect(self._database) as database:
            database.execute("create table offers (name, words)")
            database.executemany(
                "insert into offers values (?, ?)", [(f"offer {n}", "on sale " * 9) for n in range(500)]
            )
        database.close()

    def load_table(self, name: str, limit: int) -> str:
        """The first rows of a table."""
        self._note("load_table", name)
        if name == "unplugged":
            raise EnvironmentFailure("the database is unplugged")
        if name != "offers":
            raise KeyError(f"no table {name}")
        database = sqlite3.connect(self._database)
        rows = database.execute("select * from offers limit ?", (limit,)).fetchall()
        database.close()
        self._die("load_table")
        return json.dumps(rows)

    def store_report(self, text: str) -> str:
        """Store the finished report."""
        self._note("store_report", text)
        if "unspeakable" in text:
            raise PermissionError("not that")
        append_line(self.reports, text)
        self._die("store_report")
        return "Stored."

    def _note(self, tool: str, what: str) -> None:
        append_line(self.ledger, f"{tool} {what}")

    def _die(self, tool: str) -> None:
        if tool == self._dies_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def done(self) -> list[str]:
        """What the tools really did."""
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


class CHSAnalyzer:
    """The page's code on such tools."""

    def __init__(self, tables: Tables) -> None:
        project: Mapping[str, Mapping[str, object]] = {
            "chsanalyzer.tools": {"load_table": tables.load_table, "store_report": tables.store_report},
            "chsanalyzer.parsers": {"JsonToolCallParser": parsers.JsonToolCallParser},
        }
        self.page = Page("chsanalyzer.md", project)
        self.page.run("TOOLS = ToolRegistry")
        self.page.run("async def analyse")

    @property
    def tools(self) -> ToolRegistry:
        return cast("ToolRegistry", self.page["TOOLS"])

    async def analyse(self, model: ModelPort, folder: Path, name: str) -> RunResult:
        """The page's function."""
        analyse: Callable[..., Awaitable[Any]] = self.page["analyse"]
        return cast("RunResult", await analyse(model, str(folder), name, "Which offers are there?"))


def call(tool: str, **arguments: object) -> str:
    """A reply that calls a tool."""
    return json.dumps({"thought": "I call.", "tool": tool, "arguments": arguments})


WORKS = (call("load_table", name="offers", limit=2), call("store_report", text="There are offers."))


def main() -> None:
    """A process that dies in the tool that is named: `python -c "...main()" root tool`."""
    import asyncio

    from tests.fakes import ScriptedModel

    root, tool = sys.argv[1:]
    analyzer = CHSAnalyzer(Tables(Path(root), dies_in=tool))
    asyncio.run(analyzer.analyse(ScriptedModel(WORKS), Path(root) / "runs", "offers/1"))
