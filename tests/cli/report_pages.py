"""Stores to report on, and `polyloop report` as a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import file_name
from polyloop.types import EffectCompleted, EffectIntended, Record, RunFinished, RunKey, RunStarted
from tests.cli import report_runs as made


async def _append(store: JsonlRunStore, key: str, record: Record) -> None:
    match record:
        case RunStarted():
            await store.append_run_start(RunKey(key), record)
        case EffectIntended():
            await store.append_intent(RunKey(key), record)
        case EffectCompleted():
            await store.append_result(RunKey(key), record)
        case RunFinished():
            await store.finish(RunKey(key), record)
        case _:
            await store.append_step(RunKey(key), record)


def stored(directory: Path, runs: Mapping[str, Sequence[Record]]) -> str:
    """A file store that holds these runs; its URL."""

    async def write() -> None:
        async with JsonlRunStore(directory) as store:
            for key, records in runs.items():
                for record in records:
                    await _append(store, key, record)

    asyncio.run(write())
    return f"jsonl:{directory}"


def damage(directory: Path, key: str) -> None:
    """Change a word in the middle of a run's log."""
    path = directory / file_name(RunKey(key))
    lines = path.read_bytes().split(b"\n")
    assert b"seq" in lines[2]
    lines[2] = lines[2].replace(b"seq", b"sec", 1)
    path.write_bytes(b"\n".join(lines))


def hostile_store(directory: Path) -> str:
    """Every kind of run there is, hostile in every text; its URL."""
    runs = {
        made.key("answered"): made.answered(),
        made.key("failed"): made.failed(),
        made.key("open"): made.open_run(),
        made.key("misfit"): made.misfit(),
        made.key("damaged"): made.answered(),
    }
    url = stored(directory, runs)
    damage(directory, made.key("damaged"))
    return url


def report(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`polyloop report` with these arguments."""
    command = [sys.executable, "-m", "polyloop.cli", "report", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)


def page_of(url: str, page: Path) -> Path:
    """The report of a store, written to a file."""
    done = report(url, "-o", page, cwd=page.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return page
