"""Several workers, several machines, one Postgres; any worker may die at any moment.

    export PGDSN='postgresql://...'                            the one database, for runs and for jobs
    python examples/fleet/fleet.py setup                       once: makes the tables
    python examples/fleet/fleet.py enqueue --runs 200          runs that are to be driven
    python examples/fleet/fleet.py work                        a worker; start as many as you like
    python examples/fleet/fleet.py status                      how the runs stand, and the jobs
    python examples/fleet/fleet.py sweep                       a job for each unfinished run that has none

`jobs.py` is the part to copy, `agent.py` stands for your agent. More in this folder's README.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

# So that the other examples are found when this file is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.fleet import agent, jobs
from polyloop import RunKey
from polyloop.stores.postgres import PostgresRunStore


async def setup(dsn: str) -> str:
    """Make the tables of the store and of the queue. Done again, it changes nothing."""
    async with PostgresRunStore(dsn) as store, jobs.connected(dsn) as queries:
        await store.migrate()
        if not await queries.schema_is_installed():
            await queries.install()
    return "the tables are there"


async def enqueue(dsn: str, count: int) -> str:
    """Ask for the first so many orders to be handled."""
    async with jobs.connected(dsn) as queries:
        added = await jobs.enqueue(queries, [RunKey(f"orders/{number:04}") for number in range(count)])
    return f"{added} new jobs"


async def work(dsn: str, ledger: Path, seconds: float, settings: jobs.Settings) -> str:
    """Be a worker."""

    def duration(begun: agent.Entry) -> float:
        # What must not happen twice is better short: a worker is rarely killed within it.
        return seconds / 5 if begun.tool == agent.CHARGE else seconds

    registry = agent.tools(agent.Ledger(ledger, duration=duration))
    async with PostgresRunStore(dsn) as store, jobs.connected(dsn) as queries:
        definition = agent.definition(store, registry)
        await jobs.work(queries, definition, lambda key: agent.request_for(key, registry), settings)
    return f"worker {os.getpid()} has finished what it had"


async def status(dsn: str) -> str:
    """Count the runs by how they stand, and the jobs."""
    async with PostgresRunStore(dsn) as store, jobs.connected(dsn) as queries:
        runs = Counter([str(each.stop_reason or each.state) async for each in store.runs()])
        sizes = await queries.queue_size()
    rows = [f"run  {count:>6}  {name}" for name, count in runs.most_common()]
    rows += [f"job  {size.count:>6}  {size.status}" for size in sizes]
    return "\n".join(rows) if rows else "nothing"


async def sweep(dsn: str) -> str:
    """Find runs that no job speaks of."""
    async with PostgresRunStore(dsn) as store, jobs.connected(dsn) as queries:
        return f"{await jobs.sweep(queries, store)} new jobs"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Workers on one Postgres. The database is the one of $PGDSN.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("setup", "status", "sweep"):
        commands.add_parser(name)
    runs = commands.add_parser("enqueue")
    runs.add_argument("--runs", type=int, default=20, metavar="N", help="how many (20)")
    worker = commands.add_parser("work")
    worker.add_argument("--ledger", type=Path, default=Path("demo-data/fleet.jsonl"), help="where effects are noted")
    worker.add_argument("--seconds", type=float, default=0.5, help="how long a look-up takes (0.5); a charge a fifth")
    worker.add_argument("--at-once", type=int, default=8, metavar="N", help="runs at the same time (8)")
    worker.add_argument("--heartbeat-timeout", type=float, default=5.0, metavar="S", help="a dead worker's silence (5)")
    return parser


def main(arguments: Sequence[str]) -> str:
    """Do what the command line says."""
    asked = _parser().parse_args(arguments)
    dsn = os.environ.get("PGDSN")
    if dsn is None:
        raise SystemExit("set PGDSN: a connection string to the database of the fleet")
    match asked.command:
        case "setup":
            return asyncio.run(setup(dsn))
        case "enqueue":
            return asyncio.run(enqueue(dsn, asked.runs))
        case "work":
            asked.ledger.parent.mkdir(parents=True, exist_ok=True)
            logging.basicConfig()  # the queue tells of failed jobs there, and otherwise nowhere that one sees
            settings = jobs.Settings(
                at_once=asked.at_once,
                heartbeat_timeout_s=asked.heartbeat_timeout,
                longest_step_s=4 * asked.seconds + 1,
                retry_after_s=2.0,
            )
            return asyncio.run(work(dsn, asked.ledger, asked.seconds, settings))
        case "status":
            return asyncio.run(status(dsn))
        case _:
            return asyncio.run(sweep(dsn))


if __name__ == "__main__":
    print(main(sys.argv[1:]))
