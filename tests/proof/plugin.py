"""A pytest plugin: tests say what they checked, and `POLYLOOP_PROOF_TABLE=1` writes it onto the page of the proof.

A finding travels as a property of its test's report, which is how it comes out of the workers of a parallel run. What
a failed or skipped test said is left out, and a run with a failure rewrites nothing.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.proof.table import Finding, rewritten, rows_of

VARIABLE: Final = "POLYLOOP_PROOF_TABLE"
PAGE: Final = Path(__file__).parents[2] / "research-wiki" / "design" / "0020-the-proof.md"

_PROPERTY: Final = "proof"


class Checked(Protocol):
    """What the fixture `checked` gives."""

    def __call__(self, check: str, store: str, /, *, seed: object = "", **counts: int) -> None:
        """Say what this test checked. Counts are named by their unit, underscores for blanks."""
        ...


@pytest.fixture
def checked(request: pytest.FixtureRequest) -> Checked:
    """Tells the table of the proof what a test has checked."""

    def tell(check: str, store: str, /, *, seed: object = "", **counts: int) -> None:
        named = {unit.replace("_", " "): count for unit, count in counts.items()}
        told = {"check": check, "store": store, "seed": str(seed), "counts": named}
        request.node.user_properties.append((_PROPERTY, told))

    return tell


class Gathered:
    """What the tests of this run have said."""

    def __init__(self) -> None:
        self.findings: list[tuple[Finding, float]] = []
        self._passed: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed[report.nodeid] = report.duration
        elif report.when == "teardown" and report.passed and report.nodeid in self._passed:
            seconds = self._passed.pop(report.nodeid)
            said = [told for name, told in report.user_properties if name == _PROPERTY]
            self.findings += [(_finding(told), seconds / len(said)) for told in said]


def _finding(told: object) -> Finding:
    assert isinstance(told, Mapping)
    return Finding(**told)


def write(page: Path, findings: list[tuple[Finding, float]]) -> None:
    """Put the findings of this run onto the page."""
    day = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")
    page.write_text(rewritten(page.read_text("utf-8"), rows_of(findings, day)), "utf-8")


_GATHERED: Final = pytest.StashKey[Gathered]()


def pytest_configure(config: pytest.Config) -> None:
    # A worker of a parallel run reports to the one process that writes.
    if os.environ.get(VARIABLE) == "1" and not hasattr(config, "workerinput"):
        config.stash[_GATHERED] = Gathered()
        config.pluginmanager.register(config.stash[_GATHERED])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    gathered = session.config.stash.get(_GATHERED, None)
    if gathered is not None and gathered.findings and exitstatus == pytest.ExitCode.OK:
        write(PAGE, gathered.findings)
