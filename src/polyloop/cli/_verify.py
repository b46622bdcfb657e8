"""`polyloop verify`: every log read whole and judged, as reading and resuming would judge it."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from polyloop._recovery import next_move
from polyloop.cli._failures import DAMAGE, FAILED, OK, Failure, line_of
from polyloop.cli._stores import Reader, open_store, run_key
from polyloop.cli._text import counted, one_line
from polyloop.types import CorruptRunLog, ReplayPolicy, RunKey, UnsupportedSchemaVersion


async def main(arguments: argparse.Namespace) -> int:
    """Check the logs; the exit code."""
    counts: Counter[str] = Counter()
    in_lines = arguments.store.startswith("jsonl:")
    async with open_store(arguments.store) as reader:
        if arguments.key is not None:
            await _judge(reader, run_key(arguments.key), counts, in_lines=in_lines)
            if counts["gone"]:
                raise Failure(f"the store holds no run {arguments.key!r}; `polyloop runs` lists those that there are")
        else:
            async with contextlib.aclosing(_keys(reader)) as keys:
                async for key in keys:
                    await _judge(reader, key, counts, in_lines=in_lines)
            async with contextlib.aclosing(reader.strays()) as strays:
                async for stray, problem in strays:
                    if stray is not None:
                        await _judge(reader, stray, counts, in_lines=in_lines)
                    else:
                        counts["damaged"] += 1
                        print(f"damaged  (key unknown)\n         the whole log: {one_line(problem)}")
    print(_total(counts))
    if counts["damaged"]:
        return DAMAGE
    return FAILED if counts["newer"] else OK


async def _keys(reader: Reader) -> AsyncGenerator[RunKey, None]:
    async with contextlib.aclosing(reader.runs()) as runs:
        async for run in runs:
            yield run.key


async def _judge(reader: Reader, key: RunKey, counts: Counter[str], *, in_lines: bool) -> None:
    try:
        log, torn_bytes = await reader.check(key)
        if log.started is None:
            # Deleted since it was listed.
            counts["gone"] += 1
            return
        # What a store does not look at: whether intents, results and steps fit together. The policies do not matter.
        next_move(log, model_call_replay=ReplayPolicy.NEVER, tool_replay={})
    except CorruptRunLog as damage:
        counts["damaged"] += 1
        print(f"damaged  {one_line(key)}\n         {_explained(damage, in_lines=in_lines)}")
    except UnsupportedSchemaVersion as newer:
        counts["newer"] += 1
        notes = "".join(f" ({note})" for note in getattr(newer, "__notes__", ()))
        print(f"newer    {one_line(key)}\n         {line_of(newer)}{one_line(notes)}")
    else:
        counts["sound"] += 1
        if torn_bytes:
            counts["torn"] += 1
            print(f"torn     {one_line(key)}\n         {_torn(torn_bytes)}")


def _explained(damage: CorruptRunLog, *, in_lines: bool) -> str:
    line = damage.line
    if line is None and damage.seq is not None and in_lines:
        # All lines up to this one are sound: each holds one record.
        line = damage.seq + 1
    places = (("record", damage.seq), ("line", line), ("byte", damage.offset))
    where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    return one_line(f"{where or 'the whole log'}: {damage.problem} ({damage.reason.value})")


def _torn(torn_bytes: int) -> str:
    return (
        f"its last {counted(torn_bytes, 'byte')} were being written when the process or the machine stopped; "
        "nothing relied on them: the run can be resumed, which removes them"
    )


def _total(counts: Counter[str]) -> str:
    runs = counts["sound"] + counts["damaged"] + counts["newer"]
    parts = [f"{counts['sound']:,} sound"]
    parts += [f"{counts['torn']:,} of them with a torn end"] if counts["torn"] else []
    parts += [f"{counts['damaged']:,} damaged"] if counts["damaged"] else []
    parts += [f"{counts['newer']:,} of a newer version, not judged"] if counts["newer"] else []
    return f"{counted(runs, 'run')}: {', '.join(parts)}"
