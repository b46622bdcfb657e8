"""Logs in which time passes, effects are repeated, runs are cancelled and texts are hostile."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Final

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    ModelReply,
    PlannedAction,
    Record,
    StopReason,
)
from tests.contract.records import a_step, acted, action_intent, ended, model_intent, replied, started, stepped

BEGAN: Final = dt.datetime(2026, 3, 4, 23, 0, tzinfo=dt.UTC)

HOSTILE: Final = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eevil\u2028\x00\x7f\ud800\u200b"
"""Sets a terminal's title, clears it, goes back on the line, changes its colour, reverses what follows."""


def timed(*records: tuple[float, Record]) -> list[Record]:
    """Records with their positions, each so many seconds behind the start."""
    made = []
    for seq, (seconds, record) in enumerate(records):
        at = (BEGAN + dt.timedelta(seconds=seconds)).isoformat(timespec="microseconds")
        made.append(dataclasses.replace(record, seq=seq, recorded_at=at))
    return made


def sound(steps: int, *, start: float = 0.0, finished: bool = True) -> list[Record]:
    """A run whose last step completed its task: one that a driver can have written."""
    records: list[tuple[float, Record]] = [(start, started())]
    for step in range(steps):
        last = finished and step == steps - 1
        outcome = ActionOutcome(status=ActionStatus.EXECUTED, observation=f"saw {step}", completed=last)
        row = dataclasses.replace(a_step(step), parse_error=None)
        done = stepped(0, step, step=row)
        if last:
            done = dataclasses.replace(done, stop_reason=StopReason.TASK_COMPLETED)
        records += [
            (start + step + 0.1, model_intent(0, step)),
            (start + step + 0.3, replied(0, step)),
            (start + step + 0.3, action_intent(0, step)),
            (start + step + 0.5, acted(0, step, outcome=outcome)),
            (start + step + 0.5, done),
        ]
    if finished:
        records.append((start + steps, ended(0)))
    return timed(*records)


def eventful() -> list[Record]:
    """Two attempts, a cancellation, a resumption the next day, a cut and synthetic observation; unfinished."""
    planned = PlannedAction(action_text="look twice", tool_name=None, arguments={}, history_text="I look")
    row = dataclasses.replace(
        a_step(0),
        parse_error=None,
        raw_output="I look",
        observation="(refused)",
        observation_is_synthetic=True,
        observation_truncated_chars=1234,
        action="look twice",
        tool_name=None,
        tool_arguments_json=None,
        action_status="not_executed",
    )
    refused = ActionOutcome(status=ActionStatus.NOT_EXECUTED, observation="no", completed=None)
    thought = ModelReply(call_id="call-7", text="I look at it", reasoning="Hm.\nLet me see.")
    return timed(
        (0, started({"model": {"model": "small", "temperature": 0.5}, "budget": {"max_steps": 3}})),
        (1, model_intent(0, 0)),
        (1800, ended(0, StopReason.CANCELLED, failures=2)),
        (3600, model_intent(0, 0, attempt=2)),
        (3602.5, replied(0, 0, reply=thought)),
        (3602.5, action_intent(0, 0, action=planned)),
        (3603, acted(0, 0, outcome=refused)),
        (3603, stepped(0, 0, step=row)),
        (3603, model_intent(0, 1)),
    )


def hostile() -> list[Record]:
    """A run in which everybody writes what a terminal must not see."""
    planned = PlannedAction(
        action_text=HOSTILE, tool_name=HOSTILE, arguments={HOSTILE: HOSTILE}, history_text=f"{HOSTILE}\n{HOSTILE}"
    )
    reply = ModelReply(call_id=HOSTILE, text=f"{HOSTILE}\nrun         forged", reasoning=HOSTILE)
    outcome = ActionOutcome(status=ActionStatus.EXECUTED, observation=HOSTILE, completed=None)
    row = dataclasses.replace(a_step(0), parse_error=None, raw_output=HOSTILE, observation=HOSTILE, call_id=HOSTILE)
    row = dataclasses.replace(row, tool_name=HOSTILE, action=HOSTILE, observation_is_synthetic=True)
    done = dataclasses.replace(stepped(0, 0, step=row), stop_reason=StopReason.ENV_ERROR)
    end = dataclasses.replace(ended(0, StopReason.ENV_ERROR), detail=HOSTILE)
    return timed(
        (0, dataclasses.replace(started({HOSTILE: [HOSTILE]}), library_version=HOSTILE)),
        (1, model_intent(0, 0)),
        (2, replied(0, 0, reply=reply)),
        (2, action_intent(0, 0, action=planned)),
        (3, acted(0, 0, outcome=outcome)),
        (3, done),
        (3, end),
    )
