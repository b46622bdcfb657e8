"""DBOS: the loop written by hand as a workflow, each model call and each tool call a step, on a SQLite database.

`--journal delete` is what DBOS makes of a new file; `--journal wal` turns the file to SQLite's write-ahead log before
DBOS opens it, which DBOS does not ask for, and which is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dbos import DBOS, SetWorkflowID

from benchmarks.peers import work


class Reply(TypedDict):
    """What the model said."""

    role: str
    content: str
    number: int | None


@DBOS.step()
async def model_step() -> Reply:
    """One model call."""
    number = work.current.get().next_call()
    return {"role": "assistant", "content": work.FINAL if number is None else work.REPLY, "number": number}


@DBOS.step()
async def tool_step(number: int) -> str:  # noqa: ARG001 - the argument that the model gave
    """One tool call."""
    return work.current.get().act()


@DBOS.workflow()
async def loop() -> str:
    """One run."""
    reply: Reply
    messages: list[object] = [{"role": "system", "content": work.SYSTEM}, {"role": "user", "content": work.TASK}]
    while True:
        reply = await model_step()
        messages.append(reply)
        if reply["number"] is None:
            return reply["content"]
        messages.append({"role": "tool", "content": await tool_step(reply["number"])})


async def run(steps: int) -> None:
    """Make one run."""
    script = work.begin(steps)
    with SetWorkflowID(uuid.uuid4().hex):
        script.check(await loop())


def opened(journal: str, pool: int | None) -> work.Opened:
    """Opens DBOS on a fresh file."""

    @contextlib.asynccontextmanager
    async def launched(directory: Path, concurrency: int) -> AsyncIterator[work.OneRun]:  # noqa: ARG001 - as for all peers
        path = directory / "dbos.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute(f"pragma journal_mode={journal}")
        config = {
            "name": "peer",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": "local",
        }
        DBOS(config=config if pool is None else {**config, "sys_db_pool_size": pool})
        await asyncio.to_thread(DBOS.launch)
        yield run
        await asyncio.to_thread(DBOS.destroy)

    return launched


if __name__ == "__main__":
    command = argparse.ArgumentParser(add_help=False)
    command.add_argument("--journal", choices=("delete", "wal"), required=True)
    command.add_argument("--pool", type=int)
    own = command.parse_known_args()[0]
    work.measure("dbos", opened(own.journal, own.pool), command)
