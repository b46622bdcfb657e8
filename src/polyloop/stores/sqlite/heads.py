"""Where runs stand: a row for each run, by which records are judged and runs are listed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, TypeVar

from polyloop.stores._positions import check_position
from polyloop.types import CorruptionReason, CorruptRunLog, Record, RunFinished, RunStarted, StepCompleted
from polyloop.types.records import is_terminal

T = TypeVar("T")

HeadRow: TypeAlias = tuple[str, int, int, str, str, int, str | None]
"""A row of `runs`, as SQLite gives it."""

HEAD_COLUMNS: Final = "key, next_seq, ended, started_at, last_record_at, steps, stop_reason"
"""The columns of a `HeadRow`."""

READ_HEAD: Final = f"select {HEAD_COLUMNS} from runs where key = ?"  # noqa: S608 - columns only
"""Reads the head of one run."""

REMEMBERED: Final = 20_000
"""How many runs' heads are remembered at most; beyond that all are read again."""

_ROWS_AT_ONCE: Final = 128
"""A power of two, and no more values than older SQLite takes in one statement (999, for seven columns)."""

_FEW: Final = 8
"""Up to so many rows go in one statement, whatever their number: one run at a time writes two or three."""


class Head(NamedTuple):
    """Where a run stands."""

    next_seq: int
    """How many records its log holds."""
    ended: bool
    """Whether nothing may follow."""
    started_at: str
    """When its start record was built, UTC; empty without one."""
    last_record_at: str
    """When its last record was built, UTC; empty without one."""
    steps: int
    """How many steps its log holds."""
    stop_reason: str | None
    """That of the end record, if one is last, `cancelled` included."""


_NO_RUN: Final = Head(0, ended=False, started_at="", last_record_at="", steps=0, stop_reason=None)


def _sound(head: tuple[object, ...]) -> bool:
    """Whether a head row's values are what was once written: SQLite's columns take anything."""
    types = tuple(map(type, head[:-1]))
    return types == (int, int, str, str, int) and all(text.isascii() for text in head if isinstance(text, str))


def _behind(head: Head, record: Record) -> Head:
    """Where the run stands once this record is in."""
    return Head(
        head.next_seq + 1,
        is_terminal(record),
        head.started_at or record.recorded_at,
        record.recorded_at,
        head.steps + isinstance(record, StepCompleted),
        str(record.stop_reason) if isinstance(record, RunFinished) else None,
    )


def head_row(key: str, records: Iterable[Record]) -> HeadRow | None:
    """The row of a run with these records; None without any."""
    head = _NO_RUN
    for record in records:
        head = _behind(head, record)
    return _row(key, head) if head.next_seq else None


def _row(key: str, head: Head) -> HeadRow:
    return (key, head.next_seq, int(head.ended), *head[2:])


class Heads:
    """The heads of runs under way, remembered while no other connection commits anything.

    Only for use inside a transaction that holds the write lock: between `refresh` and the commit nobody else writes.
    """

    def __init__(self) -> None:
        self._heads: dict[str, Head | None] = {}
        """None for one that makes no sense."""
        self._version: int | None = None
        self._moved: dict[str, Head] = {}
        """Those that this transaction moves: remembered when it is committed."""
        self._rewritten: set[str] = set()
        """Of these, the ones whose whole row is written: they are new, or their end is."""

    def refresh(self, connection: sqlite3.Connection, keys: Iterable[str]) -> None:
        """Begin a transaction: read the heads of these runs, as far as they are not known to be as they were."""
        self._moved, self._rewritten = {}, set()
        (version,) = connection.execute("pragma data_version").fetchone()
        if version != self._version or len(self._heads) > REMEMBERED:
            self._heads, self._version = {}, version
        unknown = [key for key in dict.fromkeys(keys) if key not in self._heads]
        for some in _in_powers_of_two(unknown):
            marks = ",".join("?" * len(some))
            statement = f"select {HEAD_COLUMNS} from runs where key in ({marks})"  # noqa: S608 - marks only
            for key, next_seq, ended, *rest in connection.execute(statement, some):
                sound = _sound((next_seq, ended, *rest))
                self._heads[key] = Head(next_seq, bool(ended), *rest) if sound else None

    def move(self, key: str, record: Record) -> None:
        """Judge a record by its run's head, and move it.

        Raises:
            RunAlreadyExists, RunConflict: it may not stand there.
            CorruptRunLog: the run's head row makes no sense.
        """
        head = self._moved.get(key) or self._heads.get(key, _NO_RUN)
        if head is None:
            raise CorruptRunLog(CorruptionReason.WRONG_POSITION, "its head row makes no sense", key=key)
        check_position(key, record, head.next_seq, ended=head.ended)
        moved = self._moved[key] = _behind(head, record)
        if moved.stop_reason != head.stop_reason or isinstance(record, RunStarted):
            self._rewritten.add(key)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the rows of the runs that were moved."""
        whole = [_row(key, self._moved[key]) for key in self._rewritten]
        # What an index is made of is left alone where it has not changed.
        others = [_row(key, head) for key, head in self._moved.items() if key not in self._rewritten]
        insert_rows(connection, f"insert into runs ({HEAD_COLUMNS})", whole, _REPLACE_ALL)
        if len(others) == 1:
            ((key, next_seq, _, _, last_record_at, steps, _),) = others
            connection.execute(_ADVANCE_ONE, (next_seq, last_record_at, steps, key))
        else:
            insert_rows(connection, f"insert into runs ({HEAD_COLUMNS})", others, _ADVANCE)

    def committed(self) -> None:
        """The transaction is in the file: what it moved is known from now on."""
        self._heads.update(self._moved)
        for key in self._rewritten:
            if self._moved[key].ended:
                del self._heads[key]

    def forget(self, key: str | None = None) -> None:
        """Read a run's head again before it is believed, or all of them."""
        if key is None:
            self._heads, self._version = {}, None
        else:
            self._heads.pop(key, None)


_REPLACE_ALL: Final = (
    " on conflict (key) do update set next_seq = excluded.next_seq, ended = excluded.ended,"
    " last_record_at = excluded.last_record_at, steps = excluded.steps, stop_reason = excluded.stop_reason"
)
_ADVANCE: Final = (
    " on conflict (key) do update set next_seq = excluded.next_seq, last_record_at = excluded.last_record_at,"
    " steps = excluded.steps"
)
_ADVANCE_ONE: Final = "update runs set next_seq = ?, last_record_at = ?, steps = ? where key = ?"


def insert_rows(
    connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]], conflict: str = ""
) -> None:
    """Insert rows, many in one statement: for each, `sqlite3` lets go of the interpreter and takes it again."""
    for some in _in_powers_of_two(rows):
        marks = "(" + ",".join("?" * len(some[0])) + ")"
        values = ",".join([marks] * len(some))
        connection.execute(f"{statement} values {values}{conflict}", tuple(chain.from_iterable(some)))


def _in_powers_of_two(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """The things in few pieces of few lengths, so that few statements serve and stay prepared."""
    start, size = 0, _ROWS_AT_ONCE
    if 0 < len(things) <= _FEW:
        yield things
        return
    while start < len(things):
        while size > len(things) - start:
            size //= 2
        yield things[start : start + size]
        start += size
