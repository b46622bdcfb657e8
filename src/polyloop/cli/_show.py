"""`polyloop show`: a run's trajectory."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterator

from polyloop.cli._failures import OK
from polyloop.cli._stores import existing_log, open_store
from polyloop.cli._story import Story, parameters, standing
from polyloop.cli._text import counted, duration, moment, one_line, parsed, seconds_between
from polyloop.types import ActionStatus, EffectKind, Record, RunLog, RunStarted


async def main(arguments: argparse.Namespace) -> int:
    """Print the run; the exit code."""
    async with open_store(arguments.store) as reader:
        log = await existing_log(reader, arguments.key)
    records = log.records()
    for line in heading(arguments.key, log, records, full=arguments.full):
        print(line)
    story = Story(full=arguments.full)
    for record in records:
        for line in story.tell(record):
            print(line)
    return OK


def heading(key: str, log: RunLog, records: tuple[Record, ...], *, full: bool) -> Iterator[str]:
    """What is said of a run as a whole, before its records."""
    first, last = records[0], records[-1]
    state, meaning = standing(last)
    took_s = seconds_between(first.recorded_at, last.recorded_at)
    age_s = (dt.datetime.now(dt.UTC) - parsed(last.recorded_at)).total_seconds()
    yield f"run         {one_line(key)}"
    yield f"state       {state}: {meaning}"
    yield f"started     {moment(first.recorded_at)} UTC"
    yield f"last record {moment(last.recorded_at)} UTC, {duration(took_s)} later, {duration(age_s)} ago"
    yield f"steps       {_counts(log)}"
    yield f"characters  {_characters(log)}"
    if log.cancellations:
        yield f"resumed     {counted(len(log.cancellations), 'time')} after a cancellation"
    if isinstance(first, RunStarted):
        for number, (path, value) in enumerate(parameters(first, full=full)):
            yield f"{'' if number else 'parameters':11} {path} = {value}"
    yield ""


def _counts(log: RunLog) -> str:
    calls = {intent.result_id for intent in log.intents if intent.kind is EffectKind.MODEL_CALL}
    executed = sum(done.step.action_status == ActionStatus.EXECUTED for done in log.steps)
    replayed = sum(intent.attempt > 1 for intent in log.intents)
    invalid = sum(not done.step.parse_ok and done.step.parse_error is not None for done in log.steps)
    parts = [f"{len(log.steps):,}", f"model calls {len(calls):,}", f"executed actions {executed:,}"]
    parts += [f"repeated effects {replayed:,}"] if replayed else []
    parts += [f"invalid decisions {invalid:,}"] if invalid else []
    return " · ".join(parts)


def _characters(log: RunLog) -> str:
    steps = [done.step for done in log.steps]
    prompts, replies = sum(step.prompt_chars for step in steps), sum(step.content_chars for step in steps)
    thinking, lost = sum(step.thinking_chars for step in steps), sum(step.observation_truncated_chars for step in steps)
    cut_off = f" · cut off observations {lost:,}" if lost else ""
    return f"prompts {prompts:,} · replies {replies:,} · reasoning {thinking:,}{cut_off}"
