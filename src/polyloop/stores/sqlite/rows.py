"""A run as rows: what goes in, and what is read back or refused."""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
import zlib
from typing import Final

from polyloop.serialization import decode
from polyloop.stores._positions import check_position
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    PolyLoopError,
    Record,
    RunFinished,
    RunLog,
    RunStarted,
    StepCompleted,
)
from polyloop.types.records import is_terminal

_KINDS: Final = {
    RunStarted: "run_started",
    EffectIntended: "effect_intended",
    EffectCompleted: "effect_completed",
    StepCompleted: "step_completed",
    RunFinished: "run_finished",
}


@dataclasses.dataclass(slots=True, eq=False)
class Item:
    """One append on its way."""

    key: str
    """The run."""
    record: Record
    """What is to be appended."""
    text: str | None
    """The record as text; None where the writer is to encode it."""
    settled: bool = False
    """Whether its caller may be answered: a barrier is committed, another record is waiting, or it failed."""
    failure: BaseException | None = None
    """What its caller is told instead."""


def insert(connection: sqlite3.Connection, key: str, items: list[Item]) -> list[tuple[Item, Exception]]:
    """Put in a run's records up to the first that is refused; the refused ones, each with its reason."""
    head = connection.execute("select next_seq, ended from runs where key = ?", (key,)).fetchone()
    next_seq, ended = (0, False) if head is None else (head[0], bool(head[1]))
    rows = []
    failure: PolyLoopError | None = None
    for item in items:
        try:
            check_position(key, item.record, next_seq, ended=ended)
        except PolyLoopError as refusal:
            failure = refusal
            break
        rows.append(_row(item))
        next_seq, ended = next_seq + 1, is_terminal(item.record)
    if rows and not _store(connection, key, rows, next_seq, ended=ended):
        rows, failure = [], _misplaced(key, "its head row is missing or behind its records")
    return [] if failure is None else list(zip(items[len(rows) :], itertools.repeat(failure)))


def _store(
    connection: sqlite3.Connection, key: str, rows: list[tuple[object, ...]], next_seq: int, *, ended: bool
) -> bool:
    """Whether the rows could be put in: one run's damage must not take the others' records with it."""
    connection.execute("savepoint run")
    try:
        connection.executemany("insert into records values (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("insert or replace into runs values (?, ?, ?)", (key, next_seq, int(ended)))
    except sqlite3.IntegrityError:
        connection.execute("rollback to run")
        return False
    finally:
        # An error that has ended the whole transaction has ended this with it.
        if connection.in_transaction:
            connection.execute("release run")
    return True


def _row(item: Item) -> tuple[object, ...]:
    record, text = item.record, item.text or ""
    reason = record.stop_reason if isinstance(record, RunFinished) else None
    checksum = _checksum(item.key, record.seq, text)
    kind = _KINDS[type(record)]
    return (item.key, record.seq, kind, record.recorded_at, None if reason is None else str(reason), text, checksum)


def _checksum(key: str, seq: int, text: str) -> int:
    return zlib.crc32(f"{seq} {key} {text}".encode())


def read_rows(key: str, head: tuple[int, int] | None, rows: list[tuple[object, ...]]) -> RunLog:
    """The log that the rows hold, or the damage."""
    records = [_record(key, position, row) for position, row in enumerate(rows)]
    try:
        log = RunLog.from_records(records)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=damage.seq) from None
    ended = log.finished is not None and is_terminal(log.finished)
    if (head or (0, 0)) != (log.next_seq, int(ended)):
        raise _misplaced(key, "its head row does not fit its records")
    return log


def _record(key: str, position: int, row: tuple[object, ...]) -> Record:
    seq, kind, text, checksum = row
    if seq != position:
        raise _misplaced(key, f"a row for position {position} is missing", seq=position)
    if not isinstance(text, str) or not text.isascii() or checksum != _checksum(key, position, text):
        raise CorruptRunLog(
            CorruptionReason.MALFORMED_LINE, "a row's text does not fit its checksum", key=key, seq=position
        )
    try:
        record = decode(text)
    except CorruptRunLog as damage:
        raise CorruptRunLog(damage.reason, damage.problem, key=key, seq=position) from None
    if kind != _KINDS[type(record)]:
        raise CorruptRunLog(CorruptionReason.MALFORMED_LINE, "a row's kind is not its record's", key=key, seq=position)
    return record


def _misplaced(key: str, problem: str, seq: int | None = None) -> CorruptRunLog:
    return CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key, seq=seq)
