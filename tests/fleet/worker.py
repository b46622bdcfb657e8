"""One worker of the fleet, as the tests start and kill it: `python -m tests.fleet.worker LEDGER SEED`.

It is the example's, but for how long effects take: some milliseconds that the seed chooses, and in some runs far longer
than a test, so that whoever is about it is surely killed in the middle.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Final

from examples.fleet import agent, jobs
from examples.fleet.agent import CHARGE, LOOK_UP, Entry, entries
from polyloop.stores.postgres import PostgresRunStore

STUCK: Final = {"stuck in a charge": CHARGE, "stuck in a look-up": LOOK_UP}
"""The first part of a run's key, and the tool that does not come back when it is called for item 1 the first time."""

_FOR_EVER_S: Final = 1_000.0

SETTINGS: Final = jobs.Settings(at_once=8, heartbeat_timeout_s=2.0, longest_step_s=1.0, retry_after_s=0.2)


async def main(dsn: str, ledger: Path, seed: str) -> None:
    def duration(entry: Entry) -> float:
        begun = [each for each in entries(ledger) if each._replace(pid=entry.pid) == entry]
        if STUCK.get(entry.key.partition("/")[0]) == entry.tool and entry.item == 1 and len(begun) == 1:
            return _FOR_EVER_S
        return random.Random(f"{seed} {entry.key} {entry.tool} {entry.item}").uniform(0, 0.04)

    registry = agent.tools(agent.Ledger(ledger, duration=duration))
    async with PostgresRunStore(dsn) as store, jobs.connected(dsn) as queries:
        definition = agent.definition(store, registry)
        await jobs.work(queries, definition, lambda key: agent.request_for(key, registry), SETTINGS)


if __name__ == "__main__":
    asyncio.run(main(os.environ["PGDSN"], Path(sys.argv[1]), sys.argv[2]))
