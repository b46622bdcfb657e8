"""`polyloop runs`: a line a run, printed as they are read."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
from typing import Final

from polyloop.cli._failures import OK, Failure
from polyloop.cli._stores import Reader, open_store
from polyloop.cli._text import ascii_json, duration, moment, one_line, parsed
from polyloop.stores import RunState, RunSummary

# Fixed, for the longest state and stop reason: lines are printed before the last run is known.
_LINE: Final = "{:<10} {:>6} {:<23} {:<19} {:>12}  {}"
_HEADING: Final = _LINE.format("STATE", "STEPS", "STOP REASON", "STARTED (UTC)", "AGE", "KEY") + "\n"


async def main(arguments: argparse.Namespace) -> int:
    """List the runs; the exit code."""
    async with open_store(arguments.store) as reader:
        listed = reader.runs(
            state=None if arguments.state is None else RunState(arguments.state),
            prefix=arguments.prefix,
            limit=arguments.limit,
            after=None if arguments.after is None else await _summary(reader, arguments.after),
            newest_first=arguments.newest_first,
        )
        now = dt.datetime.now(dt.UTC)
        # A store that cannot be read says so with its first run: the heading waits for it.
        heading = "" if arguments.json else _HEADING
        async with contextlib.aclosing(listed) as runs:
            async for run in runs:
                print(heading, _as_json(run, now) if arguments.json else _as_line(run, now), sep="")
                heading = ""
        print(heading, end="")
    return OK


async def _summary(reader: Reader, key: str) -> RunSummary:
    """The run of this key as it is listed, which for a damaged one is all that there is."""
    async with contextlib.aclosing(reader.runs(prefix=key)) as runs:
        async for run in runs:
            if run.key == key:
                return run
    raise Failure(f"--after: the store holds no run {key!r}")


def _age_s(run: RunSummary, now: dt.datetime) -> float | None:
    return None if run.last_record_at is None else (now - parsed(run.last_record_at)).total_seconds()


def _as_line(run: RunSummary, now: dt.datetime) -> str:
    age_s = _age_s(run, now)
    return _LINE.format(
        run.state.value,
        "-" if run.steps is None else run.steps,
        "-" if run.stop_reason is None else run.stop_reason.value,
        moment(run.started_at),
        "-" if age_s is None else duration(age_s),
        one_line(run.key),
    )


def _as_json(run: RunSummary, now: dt.datetime) -> str:
    return ascii_json(dataclasses.asdict(run) | {"age_s": _age_s(run, now)})
