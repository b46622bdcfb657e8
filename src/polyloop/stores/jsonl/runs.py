"""The logs that one thread of the store writes and reads: positions, locks, syncs, taking over, open files.

A `Runs` object belongs to one thread, and a run to one `Runs`: nothing here needs a lock of its own. What keeps
other threads, store objects and processes away is `flock`, held for the time of one append.

What is remembered of a run holds as long as its file is the same and has the same size, since sound lines are never
changed and only torn ones are cut off. Where there are torn ones the size says nothing: another writer may have cut
them, and written as much in their place.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import errno
import os
from pathlib import Path
from typing import Final

from polyloop.serialization import encode
from polyloop.stores._listing import DRIVEN
from polyloop.stores._positions import check_position
from polyloop.stores.jsonl.contents import BARRIERS, Contents, read_contents
from polyloop.stores.jsonl.files import (
    OpenFile,
    Os,
    file_name,
    inode,
    lock,
    open_file,
    open_to_read,
    prepare_directory,
    read_all,
    sync_directory,
    write_all,
)
from polyloop.stores.jsonl.format import LineFormat
from polyloop.stores.jsonl.listing import Index, summarize_open
from polyloop.types import Record, RunAlreadyExists, RunConflict, RunFinished, RunLog, RunStarted

OPEN_FILES_PER_THREAD: Final = 16
"""How many logs a thread keeps open. Evicting one costs an `open` at its next append, and is not read again."""

_REOPENINGS: Final = 10
"""How often an append looks for the file anew. Where this is not enough, the file system has no lasting inodes."""


@dataclasses.dataclass(slots=True)
class _Place:
    """What is known of a run's file."""

    inode: tuple[int, int]
    size: int
    length: int
    """How many bytes are sound lines; less than `size` where a torn tail follows."""
    pending: bytes
    """The last of these bytes, as far as no sync has confirmed them."""
    next_seq: int
    ended: bool
    taken_over: bool = False
    """Whether what others may have left un-synced has been made durable by this object."""
    reopened: bool = False
    """Whether `pending` was written through a file that has been closed since."""

    @classmethod
    def of(cls, contents: Contents, data: bytes, status: os.stat_result) -> _Place:
        return cls(
            inode=inode(status),
            size=status.st_size,
            length=contents.length,
            pending=data[contents.durable : contents.length],
            next_seq=contents.log.next_seq,
            ended=contents.ended,
        )

    @property
    def durable(self) -> int:
        """How many bytes a sync has confirmed."""
        return self.length - len(self.pending)

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file is known to be as it was left."""
        same = self.size == status.st_size and self.inode == inode(status)
        return same and self.size == self.length


_left_behind: Final[list[Index]] = []
"""Listings of the parent: a forked process may not so much as close a database that a thread was using."""


class _Run:
    """One run, as this store object knows it."""

    __slots__ = ("failure", "key", "lines", "path", "place")

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.path = path
        self.lines = LineFormat(key)
        self.place: _Place | None = None
        self.failure: BaseException | None = None
        """Why the key is blocked until it is read again."""


class Runs:
    """Appends to and reads the logs in one directory, from one thread."""

    def __init__(self, directory: Path, system: Os) -> None:
        self._directory = directory
        self._os = system
        self._runs: dict[str, _Run] = {}
        self._open: collections.OrderedDict[str, OpenFile] = collections.OrderedDict()
        self.indexes: set[Index] = set()

    def prepare(self) -> None:
        """Make the directory, or refuse it."""
        prepare_directory(self._os, self._directory)

    def append(self, key: str, record: Record, text: str | None) -> None:
        """Append a record, and sync if it is a barrier. `text` is the encoded record, where it exists already."""
        run = self._run(key)
        if run.failure is not None:
            raise _again(run, run.failure, record)
        try:
            self._append(run, record, encode(record) if text is None else text)
        except BaseException as failure:
            self._forget(run)
            run.failure = _without_traceback(failure)
            raise
        if isinstance(record, RunFinished):
            self._drop(run)

    def read(self, key: str) -> RunLog:
        """Read a log from the medium; unblocks the key."""
        run = self._run(key)
        try:
            fd = open_to_read(self._os, run.path)
        except FileNotFoundError:
            # A directory that is gone is an error. An empty log would have the run begun a second time.
            self._os.stat(self._directory)
            self._drop(run)
            return RunLog.from_records(())
        try:
            lock(self._os, fd, key, shared=True)
            status = self._os.fstat(fd)
            data = read_all(self._os, fd, status.st_size)
            contents = self._contents(run, data)
            if contents.ended:
                self._confirm_end(run, fd, contents, data)
        finally:
            self._os.close(fd)
        self._remember(run, contents, data, status)
        return contents.log

    def delete(self, key: str) -> bool:
        """Take a run's log away; whether there was one."""
        run = self._run(key)
        if run.place is not None and run.place.taken_over:
            raise RunConflict(key, DRIVEN)
        try:
            found = self._delete(run)
        except BaseException:
            self._forget(run)
            if run.failure is None:
                del self._runs[key]
            raise
        self._drop(run)
        return found

    def close(self) -> None:
        """Sync what is not yet durable, close everything, and raise the first failure."""
        for index in list(self.indexes):
            index.close()
        failures: list[Exception] = []
        for run in self._runs.values():
            if run.place is not None and run.place.taken_over and run.place.pending:
                try:
                    self._sync_pending(run)
                except Exception as failure:  # noqa: BLE001 - the first is raised once all files are closed
                    failures.append(failure)
        for run in self._runs.values():
            self._close(run)
        self._runs.clear()
        if failures:
            raise failures[0]

    def let_go(self) -> None:
        """Close everything in a forked process: an open file that is shared with the parent would share its lock."""
        for file in list(self._open.values()):
            self._os.close(file.fd)
        _left_behind.extend(self.indexes)

    def _contents(self, run: _Run, data: bytes) -> Contents:
        try:
            return read_contents(run.key, run.lines, data)
        except BaseException:
            # An append that follows must not go by what was known before the damage.
            self._forget(run)
            raise

    def _confirm_end(self, run: _Run, fd: int, contents: Contents, data: bytes) -> None:
        """Make an end durable before anybody is told of it: nothing will follow that could do it later.

        Whoever wrote it may have been killed before its sync. Where this object saw the sync fail, the system may hold
        the bytes for clean that it could not write, so they are written again.
        """
        if run.failure is None:
            self._os.fdatasync(fd)
            return
        file = open_file(self._os, run.path, create=False)
        try:
            # Over themselves, which needs no other lock than the reader's: nothing follows an end.
            write_all(self._os, file.fd, data[contents.durable : contents.length], contents.durable)
            self._os.fdatasync(file.fd)
        finally:
            self._os.close(file.fd)

    def _run(self, key: str) -> _Run:
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = _Run(key, self._directory / file_name(key))
        return run

    # --- appending

    def _append(self, run: _Run, record: Record, text: str) -> None:
        try:
            file, status = self._locked(run, create=isinstance(record, RunStarted) and not record.seq)
        except FileNotFoundError:
            self._os.stat(self._directory)
            check_position(run.key, record, 0, ended=False)
            raise
        try:
            place = self._place(run, file.fd, status)
            check_position(run.key, record, place.next_seq, ended=place.ended)
            if not place.taken_over:
                self._take_over(file, place)
            self._write(run, file.fd, place, record, text)
        finally:
            self._os.unlock(file.fd)

    def _locked(self, run: _Run, *, create: bool) -> tuple[OpenFile, os.stat_result]:
        """The run's open file, locked, and its status."""
        for _ in range(_REOPENINGS):
            file = self._opened(run, create=create)
            lock(self._os, file.fd, run.key, shared=False)
            # The name is asked, not the open file: what was deleted, moved or replaced no longer counts.
            status = self._named(run)
            if status is not None and inode(status) == file.inode:
                return file, status
            self._forget(run)
        raise OSError(errno.ESTALE, "what has this name is never what was opened", str(run.path))

    def _named(self, run: _Run) -> os.stat_result | None:
        try:
            return self._os.stat(run.path)
        except FileNotFoundError:
            return None

    def _place(self, run: _Run, fd: int, status: os.stat_result) -> _Place:
        """Where the run stands: as remembered, or read again where the file is not as it was left."""
        place = run.place
        if place is None or not place.is_of(status):
            data = read_all(self._os, fd, status.st_size)
            place = run.place = _Place.of(read_contents(run.key, run.lines, data), data, status)
        return place

    def _take_over(self, file: OpenFile, place: _Place) -> None:
        """Make durable what may have been left behind un-synced, before anything is built upon it.

        Writing the same bytes again is no idle act: after a failed sync of another process the kernel may hold
        pages for clean that are not on the disk, and a sync alone would not write them.
        """
        if place.size > place.length:
            self._os.ftruncate(file.fd, place.length)
        if place.pending:
            write_all(self._os, file.fd, place.pending, place.durable)
        # Also if the file is empty: whoever emptied it may have been killed before syncing that.
        if place.size or not file.made:
            self._os.fdatasync(file.fd)
        if place.length and not place.durable:
            # Whoever wrote the start record may not have come to sync the file's name.
            sync_directory(self._os, self._directory)
        place.size, place.pending, place.taken_over = place.length, b"", True

    def _write(self, run: _Run, fd: int, place: _Place, record: Record, text: str) -> None:
        line = run.lines.write(text, place.durable, first=not place.next_seq)
        data, offset = line, place.length
        if place.reopened and place.pending:
            # The file that these were written through is closed, and a failure to write them might have gone with it.
            data, offset = place.pending + line, place.durable
        try:
            write_all(self._os, fd, data, offset)
        except BaseException:
            # What cannot be cut off is a torn tail: readers drop it, and the next writer cuts it.
            with contextlib.suppress(OSError):
                self._os.ftruncate(fd, place.length)
                self._os.fdatasync(fd)
            raise
        if isinstance(record, BARRIERS):
            self._os.fdatasync(fd)
            if not place.next_seq:
                sync_directory(self._os, self._directory)
            place.pending = b""
        else:
            place.pending += line
        place.reopened = False
        place.size = place.length = place.length + len(line)
        place.next_seq += 1

    def _sync_pending(self, run: _Run) -> None:
        try:
            file, status = self._locked(run, create=False)
        except FileNotFoundError:
            self._os.stat(self._directory)
            return  # somebody deleted the log, and nothing of it is left to be made durable
        try:
            place = run.place
            if place is None or not place.is_of(status):
                return  # whoever wrote behind these records has made them durable first
            if place.reopened:
                write_all(self._os, file.fd, place.pending, place.durable)
            self._os.fdatasync(file.fd)
        finally:
            self._os.unlock(file.fd)

    def _delete(self, run: _Run) -> bool:
        try:
            file, _ = self._locked(run, create=False)
        except FileNotFoundError:
            self._os.stat(self._directory)
            return False
        # Whoever waits for the lock finds that the name is gone, and does not write into what no longer has one.
        try:
            found = summarize_open(self._os, file.fd, run.path.name) is not None
            self._os.unlink(run.path)
            sync_directory(self._os, self._directory)
        finally:
            self._os.unlock(file.fd)
        return found

    # --- what is remembered

    def _remember(self, run: _Run, contents: Contents, data: bytes, status: os.stat_result) -> None:
        run.failure = None
        if contents.ended or contents.log.started is None:
            self._drop(run)
        elif run.place is None or not run.place.is_of(status):
            run.place = _Place.of(contents, data, status)

    def _opened(self, run: _Run, *, create: bool) -> OpenFile:
        file = self._open.get(run.key)
        if file is not None:
            self._open.move_to_end(run.key)
            return file
        if len(self._open) >= OPEN_FILES_PER_THREAD:
            self._close(self._runs[next(iter(self._open))])
        file = self._open[run.key] = open_file(self._os, run.path, create=create)
        return file

    def _close(self, run: _Run) -> None:
        file = self._open.pop(run.key, None)
        if file is None:
            return
        if run.place is not None:
            run.place.reopened = True
        # A complaint at closing concerns bytes that are un-synced: those are written again before a sync counts.
        with contextlib.suppress(OSError):
            self._os.close(file.fd)

    def _forget(self, run: _Run) -> None:
        """Trust neither the open file nor what is known of it."""
        self._close(run)
        run.place = None

    def _drop(self, run: _Run) -> None:
        self._forget(run)
        del self._runs[run.key]


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _again(run: _Run, failure: BaseException, record: Record) -> BaseException:
    """What a blocked key answers: the failure itself, or for a refusal that another was refused before."""
    if isinstance(failure, RunConflict | RunAlreadyExists):
        return RunConflict(run.key, "an earlier record was refused, and the log was not read since", seq=record.seq)
    return _without_traceback(failure)


def _without_traceback(failure: BaseException) -> BaseException:
    """An equal exception that holds no frames, and so no records."""
    return copy.copy(failure)
