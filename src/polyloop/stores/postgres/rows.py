"""A run as rows: the statement that appends, and what is read back or refused."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg

from polyloop.serialization import decode
from polyloop.stores._positions import check_position
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    PolyLoopError,
    Record,
    RunConflict,
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

# Whether a head row stands where the run's records begin is looked at again under its lock, should another session
# have moved it meanwhile. Runs come in the order of their digests, which is the order of the locks.
_APPEND: Final = """
with part as (
    select * from unnest(%s::bytea[], %s::text[], %s::bigint[], %s::bigint[], %s::boolean[], %s::timestamptz[],
        %s::timestamptz[], %s::bigint[], %s::text[])
    as part (key_digest, key, first, next, ended, first_at, last_at, steps, stop_reason)
), begun as (
    insert into polyloop_runs
    select key_digest, key, next, ended, first_at, last_at, steps, stop_reason from part where first = 0
    on conflict do nothing returning key_digest
), moved as (
    update polyloop_runs as head
    set next_seq = part.next, ended = part.ended, last_record_at = part.last_at, steps = head.steps + part.steps,
        stop_reason = part.stop_reason
    from part
    where head.key_digest = part.key_digest and part.first > 0 and head.next_seq = part.first and not head.ended
    returning head.key_digest
), taken as (
    select key_digest from begun union all select key_digest from moved
), put as (
    insert into polyloop_records
    select record.* from unnest(%s::bytea[], %s::bigint[], %s::text[], %s::timestamptz[], %s::text[], %s::text[],
        %s::bigint[])
    as record (key_digest, seq, kind, recorded_at, stop_reason, record, checksum) join taken using (key_digest)
)
select key_digest from taken
"""

# The same for a few records of one run that has begun: arrays of one cost a third of the statement. Figures are handed
# over as text, for the driver prepares a statement anew for each width of an integer.
_APPEND_TO_ONE: Final = """
with moved as (
    update polyloop_runs
    set next_seq = %s::bigint, ended = %s, last_record_at = %s, steps = steps + %s::bigint, stop_reason = %s
    where key_digest = %s and next_seq = %s::bigint and not ended
    returning key_digest
)
insert into polyloop_records
select moved.key_digest, record.* from moved, (values ROWS) as record
"""

_ROW: Final = "(%s::bigint, %s, %s::timestamptz, %s, %s, %s::bigint)"

FEW: Final = 4
"""Up to so many records are appended to one run without arrays."""

_TO_ONE: Final = {count: _APPEND_TO_ONE.replace("ROWS", ", ".join([_ROW] * count)) for count in range(1, FEW + 1)}

_HEADS: Final = "select key_digest, next_seq, ended from polyloop_runs where key_digest = any(%s::bytea[])"

# One statement, and so one moment of the database.
_READ: Final = """
select -1 as seq, null, null, null, next_seq, ended from polyloop_runs where key_digest = %(digest)s
union all
select seq, kind, record, checksum, null, null from polyloop_records where key_digest = %(digest)s
order by seq
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A run's part of a statement: records that follow each other. All of it goes in, or nothing."""

    key: str
    """The run."""
    digest: bytes
    """Its key's digest."""
    records: Sequence[Record]
    """What is to be appended, at least one."""
    texts: Sequence[str]
    """The same as text."""
    possible: bool
    """Whether there is a log in which the first record could stand; otherwise only the refusal is looked up."""


def digest_of(key: str) -> bytes:
    """What a run is found by."""
    return hashlib.sha256(key.encode()).digest()


def agreeing(key: str, records: Sequence[Record]) -> tuple[int, PolyLoopError | None]:
    """How many of the records can follow each other in one log, and why not the next one."""
    next_seq, ended = records[0].seq + 1, is_terminal(records[0])
    for count, record in enumerate(records[1:], start=1):
        try:
            check_position(key, record, next_seq, ended=ended)
        except PolyLoopError as refusal:
            return count, refusal
        next_seq, ended = next_seq + 1, is_terminal(record)
    return len(records), None


async def append_parts(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], parts: Sequence[Part]
) -> dict[str, PolyLoopError]:
    """Append each run's part, or refuse it; the refused runs, each with its reason."""
    possible = sorted((part for part in parts if part.possible), key=lambda part: part.digest)
    taken: set[bytes] = set()
    if len(possible) == 1 and possible[0].records[0].seq and len(possible[0].records) <= FEW:
        (part,) = possible
        cursor = await connection.execute(_TO_ONE[len(part.records)], _parameters_of_one(part))
        taken = {part.digest} if cursor.rowcount else set()
    elif possible:
        cursor = await connection.execute(_APPEND, _parameters(possible), binary=True)
        taken = {row[0] for row in await cursor.fetchall()}
    refused = {part.digest: part for part in parts if part.digest not in taken}
    if not refused:
        return {}
    cursor = await connection.execute(_HEADS, (_strings("\\x" + each.hex() for each in refused),))
    heads = {row[0]: (int(row[1]), bool(row[2])) for row in await cursor.fetchall()}
    return {part.key: _refusal(part, *heads.get(digest, (0, False))) for digest, part in refused.items()}


def _refusal(part: Part, next_seq: int, ended: bool) -> PolyLoopError:
    first = part.records[0]
    try:
        check_position(part.key, first, next_seq, ended=ended)
    except PolyLoopError as refusal:
        return refusal
    return RunConflict(part.key, "the log was moved at the same time", seq=first.seq, next_seq=next_seq)


def _parameters(parts: Sequence[Part]) -> list[str]:
    digests = ["\\x" + part.digest.hex() for part in parts]
    firsts, lasts = [part.records[0] for part in parts], [part.records[-1] for part in parts]
    rows = [(part, record, text) for part in parts for record, text in zip(part.records, part.texts, strict=True)]
    records = [record for _, record, _ in rows]
    return [
        _strings(digests),
        _strings(part.key for part in parts),
        _plain(first.seq for first in firsts),
        _plain(last.seq + 1 for last in lasts),
        _plain(map(is_terminal, lasts)),
        _strings(first.recorded_at for first in firsts),
        _strings(last.recorded_at for last in lasts),
        _plain(map(_steps, parts)),
        _plain(map(_reason, lasts)),
        _strings(digest for digest, part in zip(digests, parts, strict=True) for _ in part.records),
        _plain(record.seq for record in records),
        _plain(_KINDS[type(record)] for record in records),
        _strings(record.recorded_at for record in records),
        _plain(map(_reason, records)),
        _strings(text for _, _, text in rows),
        _plain(_checksum(part.key, record.seq, text) for part, record, text in rows),
    ]


def _parameters_of_one(part: Part) -> list[object]:
    first, last = part.records[0], part.records[-1]
    values: list[object] = [str(last.seq + 1), is_terminal(last), last.recorded_at, str(_steps(part)), _reason(last)]
    values += [part.digest, str(first.seq)]
    for record, text in zip(part.records, part.texts, strict=True):
        values += [str(record.seq), _KINDS[type(record)], record.recorded_at, _reason(record), text]
        values.append(str(_checksum(part.key, record.seq, text)))
    return values


def _steps(part: Part) -> int:
    return sum(isinstance(record, StepCompleted) for record in part.records)


def _reason(record: Record) -> str | None:
    return record.stop_reason.value if isinstance(record, RunFinished) else None


# Arrays as text, as the server reads them: the driver's own way of writing lists costs more than the statement.


def _plain(values: Iterable[object]) -> str:
    return "{" + ",".join("null" if value is None else str(value) for value in values) + "}"


def _strings(values: Iterable[str]) -> str:
    return '{"' + '","'.join(value.replace("\\", "\\\\").replace('"', '\\"') for value in values) + '"}'


def _checksum(key: str, seq: int, text: str) -> int:
    return zlib.crc32(f"{seq} {key} {text}".encode())


async def fetch(connection: psycopg.AsyncConnection[tuple[Any, ...]], key: str) -> list[tuple[Any, ...]]:
    """All rows of a run, its head row first."""
    return await (await connection.execute(_READ, {"digest": digest_of(key)})).fetchall()


async def delete_rows(connection: psycopg.AsyncConnection[tuple[Any, ...]], key: str) -> bool:
    """Delete all rows of a run; whether there were any."""
    digest = digest_of(key)
    async with connection.transaction():
        # The head row is locked first: what another process has on its way goes in before, or finds it gone.
        await connection.execute("select 1 from polyloop_runs where key_digest = %s for update", (digest,))
        rows = await connection.execute("delete from polyloop_records where key_digest = %s", (digest,))
        head = await connection.execute("delete from polyloop_runs where key_digest = %s", (digest,))
    return rows.rowcount + head.rowcount > 0


def read_rows(key: str, rows: list[tuple[Any, ...]]) -> RunLog:
    """The log that the rows hold, or the damage."""
    head = (0, False)
    if rows and rows[0][0] == -1:
        head = (rows[0][4], rows[0][5])
        rows = rows[1:]
    records = [_record(key, position, row) for position, row in enumerate(rows)]
    try:
        log = RunLog.from_records(records)
    except CorruptRunLog as damage:
        raise damage.located(key=key) from None
    if head != (log.next_seq, log.finished is not None and is_terminal(log.finished)):
        raise _misplaced(key, "its head row does not fit its records")
    return log


def _record(key: str, position: int, row: tuple[Any, ...]) -> Record:
    seq, kind, text, checksum = row[:4]
    if seq != position:
        raise _misplaced(key, f"a row for position {position} is missing", seq=position)
    if not text.isascii() or checksum != _checksum(key, position, text):
        raise _malformed(key, position, "a row's text does not fit its checksum")
    try:
        record = decode(text)
    except CorruptRunLog as damage:
        raise damage.located(key=key, seq=position) from None
    if kind != _KINDS[type(record)]:
        raise _malformed(key, position, "a row's kind is not its record's")
    return record


def _malformed(key: str, seq: int, problem: str) -> CorruptRunLog:
    return CorruptRunLog(CorruptionReason.MALFORMED_LINE, problem, key=key, seq=seq)


def _misplaced(key: str, problem: str, seq: int | None = None) -> CorruptRunLog:
    return CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key, seq=seq)


def behind(key: str) -> CorruptRunLog:
    """What a run says whose rows stand where there should be none yet."""
    return _misplaced(key, "its head row is missing or behind its records")
