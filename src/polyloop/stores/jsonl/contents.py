"""What a log file's bytes say: its records, a torn tail that nobody relied on, or damage. Pure.

**The crash model.** A barrier (start, intent, end record) is acknowledged only after a sync, and nothing is
written behind it before. So of the file's bytes everything up to the last acknowledged barrier is on the disk
after a power loss. What was written since, the *stretch*, holds ordered records and at most one barrier, as its
last line; of it, the disk may hold any subset of the 512-byte sectors. Sectors that are missing at the end make
the file shorter, others read as zeros, and zeros may swallow line ends, so that records fuse into one bad line.

**The rule.** Lines are read up to the first bad one (`b`: no line end, or the checksum fails). From `b` to the end
of the file all is dropped as a torn stretch if

- nothing from `b` on says that `b` was acknowledged: no line there claims that the bytes at `b` were durable, no
  sound barrier among them is followed by anything, and `b` is not a start record that is followed by anything;
- every bad line can have been torn by a power loss: it is the last and lacks its line end, or zeros fill all of a
  sector that the stretch had written to.

Otherwise it is damage, and refused. So is everything behind a terminal end record, and a line whose checksum fits
but whose record cannot be read: no crash makes such a line.

**The blind spot.** What was acknowledged last looks like a torn stretch when it is damaged in just the way of one:
the file is cut inside it (the loss of its line end alone is enough), or zeros fill a whole sector of it. "Last" is
the last barrier with the ordered records before and behind it; a finished run's end record is such a barrier.
Everything before is told apart, as long as the beginning of any later line can be read.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final, NoReturn

from polyloop.serialization import decode
from polyloop.stores.jsonl.format import Line, LineFormat, claimed_durable, owner, parse
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    EffectIntended,
    Record,
    RunFinished,
    RunLog,
    RunStarted,
    UnsupportedSchemaVersion,
)
from polyloop.types.records import is_terminal

SECTOR: Final = 512
"""What a disk writes wholly or not at all."""

BARRIERS: Final = (RunStarted, EffectIntended, RunFinished)
"""The records that are acknowledged only once they are on the disk."""

_ZEROS: Final = re.compile(rb"\0+")


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """A log as its file has it."""

    log: RunLog
    """The records of the sound lines."""
    length: int
    """How many bytes of the file are sound lines, from the start. What follows is a torn tail."""
    durable: int
    """How many of them are known to have been acknowledged. The rest may not be on the disk."""
    ended: bool
    """Whether the last record is a terminal end record."""


def read_contents(key: str, lines: LineFormat, data: bytes) -> Contents:
    """Read a whole file.

    Raises:
        CorruptRunLog: if it is damaged; names line and byte offset.
        UnsupportedSchemaVersion: if a newer library wrote one of its records.
    """
    reader = _Reader(key, lines, data)
    reader.read_sound_lines()
    log = reader.log()
    if reader.position < len(data):
        reader.judge_tail()
    ended = log.finished is not None and is_terminal(log.finished)
    return Contents(log, length=reader.position, durable=reader.durable, ended=ended)


class _Reader:
    """One pass over a file's bytes."""

    def __init__(self, key: str, lines: LineFormat, data: bytes) -> None:
        self._key = key
        self._lines = lines
        self._data = data
        self._records: list[Record] = []
        self._offsets: list[int] = []
        self.position = 0
        self.durable = 0

    def read_sound_lines(self) -> None:
        """Read records up to the first bad line or the end, and note what they say was durable."""
        barrier_end = 0
        while (end := self._data.find(b"\n", self.position)) >= 0:
            start, index = self.position, len(self._records)
            if not self._lines.fits(self._data, start, end):
                break
            line = self._line(index, start, end)
            record = self._record(line, index, start)
            self.durable = max(self.durable, line.durable)
            self._records.append(record)
            self._offsets.append(start)
            self.position = end + 1
            if isinstance(record, BARRIERS):
                barrier_end = self.position
        if self.position < len(self._data):
            # That anything was written behind a barrier shows that it was acknowledged.
            self.durable = max(self.durable, barrier_end)

    def log(self) -> RunLog:
        """The log that the records make up."""
        try:
            return RunLog.from_records(self._records)
        except CorruptRunLog as found:
            index = found.seq or 0
            raise found.located(key=self._key, line=index + 1, offset=self._offsets[index]) from None

    def judge_tail(self) -> None:
        """Return if all from the first bad line on is a torn stretch that nobody relied on; raise otherwise."""
        data, bad, first = self._data, self.position, len(self._records)
        self._refuse_foreign(bad)
        if self._records and is_terminal(self._records[-1]):
            self._damaged(first, bad, "a line that is not sound stands behind the end of the run")
        if bad == 0 and 0 <= data.find(b"\n") < len(data) - 1:
            self._damaged(0, 0, "the start record is not sound, though more was written behind it")
        start, index, last_seq = bad, first, first - 1
        while start < len(data):
            newline = data.find(b"\n", start)
            end = len(data) if newline < 0 else newline
            if claimed_durable(data, start) > bad:
                self._damaged(first, bad, "it is not sound, though a later line says that it was durable")
            if newline >= 0 and self._lines.fits(data, start, end):
                last_seq = self._judge_sound_line(index, start, end, last_seq)
            elif newline >= 0 and not _may_be_torn(data, start, end):
                self._damaged(index, start, "its checksum does not fit, and no interrupted write explains it")
            start, index = end + 1, index + 1

    def _judge_sound_line(self, index: int, start: int, end: int, last_seq: int) -> int:
        record = self._record(self._line(index, start, end), index, start)
        if record.seq <= last_seq or record.seq < index:
            problem = f"a record that names position {record.seq} stands on line {index + 1}"
            self._damaged(index, start, problem, CorruptionReason.WRONG_POSITION)
        if isinstance(record, BARRIERS) and end + 1 < len(self._data):
            self._damaged(len(self._records), self.position, "it is not sound, though the run went on behind it")
        return record.seq

    def _refuse_foreign(self, bad: int) -> None:
        end = self._data.find(b"\n")
        if bad == 0 and end >= 0:
            other = owner(self._data, 0, end)
            if other is not None and other != self._key:
                self._damaged(0, 0, "the file holds the log of another key", CorruptionReason.WRONG_KEY)

    def _line(self, index: int, start: int, end: int) -> Line:
        line = parse(self._data, start, end)
        if line is None or line.key != (None if index else self._key):
            self._damaged(index, start, "its checksum fits, but it is not laid out as a line of a log")
        return line

    def _record(self, line: Line, index: int, start: int) -> Record:
        try:
            return decode(line.text)
        except CorruptRunLog as found:
            raise found.located(key=self._key, line=index + 1, offset=start) from None
        except UnsupportedSchemaVersion as found:
            found.add_note(f"in the log of run {self._key!a}, line {index + 1}, byte {start}")
            raise

    def _damaged(
        self, index: int, offset: int, problem: str, reason: CorruptionReason = CorruptionReason.MALFORMED_LINE
    ) -> NoReturn:
        # Behind a bad line the number of a line no longer tells its position: lines may have fused.
        seq = index if index <= len(self._records) else None
        raise CorruptRunLog(reason, problem, key=self._key, seq=seq, line=index + 1, offset=offset)


def _may_be_torn(data: bytes, start: int, end: int) -> bool:
    """Whether zeros fill, in this bad line that has its line end, all of a sector that was written to.

    A sector counts from where its latest write may have begun, which is the beginning of the line or of the sector:
    what stood in the sector before that write stays.
    """
    for zeros in _ZEROS.finditer(data, start, end):
        low, high = zeros.span()
        if low != start:
            low += -low % SECTOR
        if low < high - high % SECTOR:
            return True
    return False
