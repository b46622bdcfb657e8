"""The stores that the command line reads, filled by the real ones; and the command line itself, as a process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import Record, RunKey
from tests.seams import append

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = (sys.executable, "-m", "polyloop.cli")
KINDS: Final = ("jsonl", "sqlite", "postgres")
ON_DISK: Final = ("jsonl", "sqlite")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a store is."""

    kind: str
    url: str
    """What the command line is given."""
    store: Callable[[], AbstractAsyncContextManager[Any]]
    """Makes the store object that writes there."""

    def fill(self, runs: Mapping[str, Sequence[Record]]) -> None:
        """Append the records of these runs, one run after the other."""

        async def write() -> None:
            async with self.store() as store:
                for key, records in runs.items():
                    for record in records:
                        await append(store, RunKey(key), record)

        asyncio.run(write())


def place(kind: str, folder: Path) -> Place:
    """A store of this kind, which does not exist yet: of a file store not even its directory."""
    if kind == "jsonl":
        directory = folder / "logs"
        return Place(kind, f"jsonl:{directory}", lambda: JsonlRunStore(directory))
    if kind == "sqlite":
        file = folder / "runs.sqlite"
        return Place(kind, f"sqlite:{file}", lambda: SqliteRunStore(file))
    from psycopg.conninfo import conninfo_to_dict

    from tests.postgres import server

    dsn = server.schema(str(folder))
    values = conninfo_to_dict(dsn)
    return Place(kind, f"postgresql://?{urlencode(values)}".replace("+", "%20"), lambda: server.MigratedStore(dsn))


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: UTF-8, and none of the tester's own settings of Python, buffering above all."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT / "src"), **more}


def polyloop(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, encoding="utf-8", env=environment(**more)
    )


def printed(*arguments: str) -> str:
    """What a command that must succeed prints."""
    done = polyloop(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refusal(*arguments: str, **more: str) -> str:
    """The one line of a command that cannot do its work."""
    done = polyloop(*arguments, **more)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("polyloop: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n")
    return done.stderr.strip()
