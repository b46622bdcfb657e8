"""`polyloop watch`: a run, record by record, until it ends."""

from __future__ import annotations

import argparse
import asyncio
import sys

from polyloop.cli._failures import OK, Failure
from polyloop.cli._show import heading
from polyloop.cli._stores import Reader, existing_log, open_store, run_key
from polyloop.cli._story import Story
from polyloop.types import RunFinished, RunKey


async def main(arguments: argparse.Namespace) -> int:
    """Print the run's records as they come; the exit code, once it has ended."""
    key = run_key(arguments.key)
    async with open_store(arguments.store) as reader:
        mark = await reader.mark(key)
        log = await existing_log(reader, key)
        story, told = Story(full=arguments.full), 0
        _print(*heading(key, log, log.records(), full=arguments.full))
        while True:
            # From the records that are there now: one that came since the mark only makes the next look a long one.
            for record in log.records()[told:]:
                _print(*story.tell(record))
            told = log.next_seq
            if isinstance(log.finished, RunFinished):
                return OK
            mark = await _moved(reader, key, mark, arguments.every)
            log = await existing_log(reader, key)
            if log.next_seq < told:
                raise Failure(f"the log of run {key!r} was replaced by a shorter one while it was watched")


async def _moved(reader: Reader, key: RunKey, mark: object, every_s: float) -> object:
    """Wait until the log has another mark than this; that mark."""
    while True:
        await asyncio.sleep(every_s)
        found = await reader.mark(key)
        if found != mark:
            return found


def _print(*lines: str) -> None:
    for line in lines:
        print(line)
    # Somebody waits for it, also behind a pipe.
    sys.stdout.flush()
