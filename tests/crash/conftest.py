"""The client of `tests.crash.server`."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from tests.crash.server import Job, Report

ROOT = Path(__file__).parents[2]


class Server:
    """Sends jobs to a server process, one at a time; one that owes an answer to a test that was given up is ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owes = False

    def ask(self, job: Job) -> Report:
        """Have it done in a process of its own; what it reports, or that it was killed."""
        if self._owes:
            self.stop()
        if self._process is None:
            # Not `-m`: what it pickles must not belong to a module called `__main__`.
            program = "import sys; from tests.crash.server import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
            command = [sys.executable, "-c", program]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        jobs, reports = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)
        self._owes = True
        pickle.dump(job, jobs)
        jobs.flush()
        report = pickle.load(reports)  # noqa: S301 - from our own server
        self._owes = False
        assert isinstance(report, Report)
        return report

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                if self._owes:
                    process.kill()
        self._owes = False

    def perform(self, job: Job) -> Report:
        """Have a job done that must not fail."""
        report = self.ask(job)
        assert report.error is None, report.error
        return report


@contextlib.contextmanager
def started() -> Iterator[Server]:
    """A server, for as long as it is needed."""
    server = Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process takes nothing with it of what the kernel has taken."""
    memory = Path("/dev/shm")  # noqa: S108 - the names in it are made by tempfile
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="polyloop-", dir=memory) as place:
        yield Path(place)


@pytest.fixture(autouse=True)
def tables(request: pytest.FixtureRequest, directory: Path) -> None:
    """For a test on Postgres: tables of its own, and word of them for the processes that it starts."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("store") != "postgres":
        return
    pytest.importorskip("psycopg", reason="postgres: the package psycopg is not installed")
    from tests.postgres import server

    directory.joinpath("postgres").write_text(server.migrated(str(directory)))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with started() as one:
        yield one


@pytest.fixture(scope="session")
def other_server() -> Iterator[Server]:
    with started() as another:
        yield another
