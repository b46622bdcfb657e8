"""A run as rows: what goes in, and what is read back or refused."""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from typing import Final, TypeAlias

from polyloop.serialization import decode
from polyloop.stores._pool import Desk
from polyloop.stores.sqlite.heads import HeadRow, head_row
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    Record,
    RunFinished,
    RunLog,
    RunStarted,
    StepCompleted,
)

_KINDS: Final = {
    RunStarted: "run_started",
    EffectIntended: "effect_intended",
    EffectCompleted: "effect_completed",
    StepCompleted: "step_completed",
    RunFinished: "run_finished",
}

RecordRow: TypeAlias = tuple[int, str, str, str | None, str, int]
"""A row of `records` without its key."""

READ_RECORDS: Final = (
    "select seq, kind, recorded_at, stop_reason, record, checksum from records where key = ? order by seq"
)
"""Reads the rows of one run."""


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One append on its way."""

    key: str
    """The run."""
    record: Record
    """What is to be appended."""
    text: str | None
    """The record as text; None where the writer is to encode it."""
    taken_at: float
    """When it was handed in, by the monotonic clock, in seconds."""
    answer: tuple[Desk, asyncio.Future[None]] | None
    """Where its caller waits; None for an ordered record, whose caller went on."""
    failure: Exception | None = None
    """What its caller is told, if it waits and the append failed. Set when it is handed in: it cannot be encoded."""
    unheard: bool = False
    """Whether its caller was cancelled, and heard nothing of what it was told."""


def record_row(key: str, record: Record, text: str) -> tuple[str, int, str, str, str | None, str, int]:
    """A record as a row of `records`."""
    reason = str(record.stop_reason) if isinstance(record, RunFinished) else None
    return key, record.seq, _KINDS[type(record)], record.recorded_at, reason, text, _checksum(key, record.seq, text)


def _checksum(key: str, seq: int, text: str) -> int:
    return zlib.crc32(f"{seq} {key} {text}".encode())


def read_rows(key: str, head: HeadRow | None, rows: list[RecordRow]) -> RunLog:
    """The log that the rows hold, or the damage."""
    records = [_record(key, position, row) for position, row in enumerate(rows)]
    try:
        log = RunLog.from_records(records)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=damage.seq) from None
    if head != head_row(key, records):
        problem = "its head row does not fit its records"
        raise CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key)
    return log


def _record(key: str, position: int, row: RecordRow) -> Record:
    seq, _, _, _, text, checksum = row
    if seq != position:
        problem = f"a row for position {position} is missing"
        raise CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key, seq=position)
    if not isinstance(text, str) or not text.isascii() or checksum != _checksum(key, position, text):
        raise _malformed("a row's text does not fit its checksum", key, position)
    try:
        record = decode(text)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=position) from None
    if row != record_row(key, record, text)[1:]:
        raise _malformed("a row's columns are not its record's", key, position)
    return record


def _malformed(problem: str, key: str, seq: int) -> CorruptRunLog:
    return CorruptRunLog(CorruptionReason.MALFORMED_LINE, problem, key=key, seq=seq)
