"""Listing the logs of a directory: what is read of each, and the index by which they are put in order.

**What is read.** Of a log its first line (key and start), and its last ones: back to a step or an intent, which tells
how many steps there were, and to what the last line says was durable when it was written, for only behind that can a
crash have left torn lines. Where any of this is not as a run leaves it, the whole log is read and judged as `read_log`
judges it. So nothing is called damaged that can be read; damage further inside is not seen.

**The key of a damaged log** is the one that its first line names, where the file's name belongs to that key. Where no
such key can be told, the file's name stands in its place: the file shows in a listing, and a person can look at it.

**The order** needs the starts of all runs, and they need not fit into memory: they go into a private SQLite database
in a temporary file that has no name, with a cache of one megabyte.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from polyloop.serialization import SCHEMA_VERSION, decode
from polyloop.stores._listing import Listing, RunState, RunSummary, place, summary_of
from polyloop.stores.jsonl.contents import read_contents
from polyloop.stores.jsonl.files import Os, file_name, lock, open_to_read, read_all
from polyloop.stores.jsonl.format import Line, LineFormat, parse
from polyloop.types import (
    CorruptRunLog,
    EffectIntended,
    Record,
    RunFinished,
    RunKey,
    RunStarted,
    StepCompleted,
    StopReason,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from polyloop.types.records import is_terminal

SLICE: Final = 32
"""How many logs are read at a time. What else the thread has to do is done in between."""

PAGE: Final = 256
"""How many summaries are in memory at a time."""

WINDOW: Final = 1 << 14
"""How many bytes are read of a log's beginning, and at first of its end. A first line names its key within so many."""

NAME: Final = re.compile(r"[a-z0-9_-]+-[0-9a-f]{64}\.jsonl")
"""What a log's file is called."""

_KEY: Final = re.compile(rb'\{"check":"[^"]{16}","durable":[0-9]{1,19},"key":("(?:[^"\\]|\\.)*")')

_START: Final = re.compile(
    rf'\{{"schema":"{re.escape(SCHEMA_VERSION)}","record":"run_started",(?:"escaped":true,)?"seq":0,"recorded_at":"([^"]+)"'
)
"""How the text of a start record begins, if this version wrote it."""

_Read = Callable[[int, int], bytes]

_INDEX: Final = """
    pragma temp_store = file; pragma cache_size = -1024; pragma journal_mode = off; pragma synchronous = off;
    create table found (
        start text not null, key text not null, name text not null unique,
        state text not null, last text, steps integer, reason text, primary key (start, key, name)
    ) without rowid;
"""
"""A directory that changes while it is read may name a file twice: hence `unique`."""

_OLDEST_FIRST: Final = "select key, state, start, last, steps, reason from found order by start, key, name"
_NEWEST_FIRST: Final = (
    "select key, state, start, last, steps, reason from found order by start desc, key desc, name desc"
)


class Index:
    """The runs of one listing. Belongs to one thread."""

    def __init__(self, directory: Path, system: Os, listing: Listing) -> None:
        # As text: `Path` keeps the names that it was made of in a table of the interpreter.
        self._directory = str(directory)
        self._os = system
        self._listing = listing
        self._left = listing.limit
        self._open: set[Index] = set()
        self._entries: Iterator[os.DirEntry[str]] | None = None
        self._directory_open = contextlib.ExitStack()
        self._database: sqlite3.Connection | None = None
        self._rows: sqlite3.Cursor | None = None

    def read_some(self, still_open: set[Index]) -> bool:
        """Read the next logs; whether there were any left. It stands in `still_open` until it is closed."""
        self._open = still_open
        still_open.add(self)
        entries, database = self._opened()
        database.execute("begin")
        for _ in range(SLICE):
            entry = next(entries, None)
            if entry is None:
                database.execute("commit")
                return False
            # Neither a link nor a directory is a log, whatever it is called: the store opens none.
            if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                self._add(database, entry.name)
        database.execute("commit")
        return True

    def page(self) -> list[RunSummary]:
        """The next summaries; none once all were given, and everything is then released."""
        if self._database is None:
            return []
        if self._rows is None:
            self._rows = self._database.execute(_NEWEST_FIRST if self._listing.newest_first else _OLDEST_FIRST)
        size = PAGE if self._left is None else min(PAGE, self._left)
        rows = self._rows.fetchmany(size) if size else []
        if self._left is not None:
            self._left -= len(rows)
        if len(rows) < PAGE:
            self.close()
        return [_summary(row) for row in rows]

    def close(self) -> None:
        """Release everything; twice is once."""
        self._open.discard(self)
        database, self._database, self._rows, self._entries = self._database, None, None, None
        self._directory_open.close()
        if database is not None:
            database.close()

    def _opened(self) -> tuple[Iterator[os.DirEntry[str]], sqlite3.Connection]:
        if self._database is None:
            self._database = sqlite3.connect("", isolation_level=None)
            self._database.executescript(_INDEX)
        if self._entries is None:
            self._entries = self._directory_open.enter_context(self._os.scandir(self._directory))
        return self._entries, self._database

    def _add(self, database: sqlite3.Connection, name: str) -> None:
        summary = summarize(self._os, self._directory, name)
        if summary is None or not self._listing.wants(summary):
            return
        start, key = place(summary)
        row = (start, key, name, summary.state, summary.last_record_at, summary.steps, summary.stop_reason)
        database.execute("insert or replace into found values (?, ?, ?, ?, ?, ?, ?)", row)


def _summary(row: tuple[str, str, str, str | None, int | None, str | None]) -> RunSummary:
    key, state, start, last, steps, reason = row
    return RunSummary(
        key=RunKey(key),
        state=RunState(state),
        started_at=start or None,
        last_record_at=last,
        steps=steps,
        stop_reason=None if reason is None else StopReason(reason),
    )


def summarize(system: Os, directory: str, name: str) -> RunSummary | None:
    """The summary of a log; None if it is gone, or holds no record.

    Raises:
        StoreBusy: another process kept it locked.
    """
    try:
        fd = open_to_read(system, os.path.join(directory, name))  # noqa: PTH118 - text, as said above
    except FileNotFoundError:
        return None
    try:
        _lock(system, fd, name)
        return summarize_open(system, fd, name)
    finally:
        system.close(fd)


def summarize_open(system: Os, fd: int, name: str) -> RunSummary | None:
    """The summary of a log that is open and locked; None if it holds no record."""
    size = system.fstat(fd).st_size
    summary = _at_a_glance(_reader(system, fd), size, name)
    return _judged(read_all(system, fd, size), name) if summary is None else summary


def _lock(system: Os, fd: int, name: str) -> None:
    try:
        lock(system, fd, name, shared=True)
    except StoreBusy as busy:
        # Which run it is can be read without the lock: what is in a first line stays.
        raise StoreBusy(_key(system.pread(fd, WINDOW, 0), name), busy.waited_s) from None


def _reader(system: Os, fd: int) -> _Read:
    head = system.pread(fd, WINDOW, 0)

    def read(offset: int, size: int) -> bytes:
        if offset + size <= len(head):
            return head[offset : offset + size]
        return system.pread(fd, size, offset)

    return read


def _key(head: bytes, name: str) -> str | None:
    """The key that a log's beginning names, if the file's name belongs to it. The rest of the line may be damaged."""
    named = _KEY.match(head)
    try:
        key = None if named is None else json.loads(named[1])
        return key if isinstance(key, str) and file_name(key) == name else None
    except ValueError:
        return None


def _judged(data: bytes, name: str) -> RunSummary | None:
    """What the whole of a log says."""
    key = _key(data[:WINDOW], name)
    told = name if key is None else key
    try:
        # A name is never the key that it belongs to, so that no line fits where the key cannot be told.
        log = read_contents(told, LineFormat(told), data).log
    except (CorruptRunLog, UnsupportedSchemaVersion):
        return RunSummary(
            key=RunKey(told),
            state=RunState.DAMAGED,
            started_at=None,
            last_record_at=None,
            steps=None,
            stop_reason=None,
        )
    return None if log.started is None else summary_of(told, log)


def _at_a_glance(read: _Read, size: int, name: str) -> RunSummary | None:
    """What the beginning and the end of a log say; None where they are not as a run leaves them."""
    head = _first_line(read, size)
    key = _key(head, name)
    if key is None:
        return None
    lines = LineFormat(key)
    started_at = _started_at(_line(lines, head, key))
    end = _end(lines, key, _from_the_end(read, size))
    if end is None or started_at is None:
        return None
    state = RunState.UNFINISHED
    if isinstance(end.last, RunFinished):
        state = RunState.ENDED if is_terminal(end.last) else RunState.CANCELLED
    return RunSummary(
        key=RunKey(key),
        state=state,
        started_at=started_at,
        last_record_at=end.last.recorded_at,
        steps=end.steps,
        stop_reason=end.last.stop_reason if isinstance(end.last, RunFinished) else None,
    )


def _started_at(line: Line | None) -> str | None:
    # Snapshots are large, and decoding one takes longer than all else that is done for a log.
    found = None if line is None else _START.match(line.text)
    if found is not None:
        return found[1]
    record = _record(line)
    return record.recorded_at if isinstance(record, RunStarted) and not record.seq else None


class _End(NamedTuple):
    last: Record
    steps: int


def _end(lines: LineFormat, key: str, backwards: Iterator[tuple[int, bytes]]) -> _End | None:
    """The last record and the number of steps; None if the lines that tell it do not fit together."""
    last: Record | None = None
    steps: int | None = None
    seq = durable = 0
    for offset, text in backwards:
        line = _line(lines, text, None if offset else key)
        record = _record(line) if steps is None else last
        if line is None or record is None:
            return None
        if last is None:
            last, durable = record, line.durable
        elif steps is None and (record.seq != seq or is_terminal(record)):
            return None
        if steps is None:
            seq, steps = record.seq - 1, _steps(record)
        if steps is not None and offset <= durable:
            break
    # Steps that no log of this length can hold are not taken from their number, but counted.
    return None if last is None or steps is None or steps > last.seq else _End(last, steps)


def _steps(record: Record) -> int | None:
    """How many steps there are up to this record, as far as it tells."""
    match record:
        case StepCompleted():
            return record.step.step_idx + 1
        case EffectIntended():
            return record.step_idx
        case RunStarted():
            return 0
        case _:
            return None


def _first_line(read: _Read, size: int) -> bytes:
    """A log's first line with its end; without one if it has none."""
    wanted = min(WINDOW, size)
    while True:
        head = read(0, wanted)
        end = head.find(b"\n")
        if end >= 0 or len(head) < wanted or wanted == size:
            return head[: end + 1] if end >= 0 else head
        wanted = min(4 * wanted, size)


def _from_the_end(read: _Read, size: int) -> Iterator[tuple[int, bytes]]:
    """Each line of a log with its place, from the last to the first; no more is read than is asked for."""
    data, base, end = b"", size, size
    while end > 0:
        start = data.rfind(b"\n", 0, max(0, end - base - 1)) + 1
        if not start and base > 0:
            low = max(0, base - max(WINDOW, 3 * (end - base)))
            data, base = read(low, base - low) + data[: end - base], low
            continue
        yield base + start, data[start : end - base]
        end = base + start


def _line(lines: LineFormat, text: bytes, key: str | None) -> Line | None:
    """A sound line of the run; `key` for the first, None for every other."""
    end = len(text) - 1
    if not text.endswith(b"\n") or not lines.fits(text, 0, end):
        return None
    line = parse(text, 0, end)
    return line if line is not None and line.key == key else None


def _record(line: Line | None) -> Record | None:
    try:
        return None if line is None else decode(line.text)
    except (CorruptRunLog, UnsupportedSchemaVersion):
        return None
