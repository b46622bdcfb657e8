"""Operating systems that write half a line, leave out a sync or a lock, or are the last thing that a process sees."""

from __future__ import annotations

import collections
import dataclasses
import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from polyloop.stores.jsonl.files import Os


class KnowingOs(Os):
    """Knows the path behind each descriptor."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = str(path)
        return fd


class TearingOs(KnowingOs):
    """A disk that breaks down in the middle of one write to each of some files, and cannot be told to cut it off."""

    def __init__(self, tears: Mapping[str, int]) -> None:
        """`tears` says for each path in which write, counted from 0."""
        super().__init__()
        self._tears = dict(tears)
        self._writes: collections.Counter[str] = collections.Counter()
        self._broken: set[int] = set()

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        path = self.paths[fd]
        write, self._writes[path] = self._writes[path], self._writes[path] + 1
        if self._tears.get(path) != write:
            return super().pwrite(fd, data, offset)
        super().pwrite(fd, data[: len(data) * 2 // 3], offset)
        self._broken.add(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def ftruncate(self, fd: int, length: int) -> None:
        if fd in self._broken:
            self._broken.remove(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().ftruncate(fd, length)


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """What is to be left out."""

    what: str
    """`barrier`: of a file behind a write. `tail`: of a file that was cut. `directory`: of a directory. Or, instead of
    a sync, `lock`: a lock of a file."""
    path: str
    """Of this file or directory."""
    number: int
    """Which one of them, counted from 0."""


class SkippingOs(KnowingOs):
    """A store on this leaves out one sync or lock, and believes that it made it."""

    def __init__(self, skipped: Skipped) -> None:
        super().__init__()
        self._skipped = skipped
        self._cut: set[int] = set()
        self._seen = 0
        self.skipped = False

    def ftruncate(self, fd: int, length: int) -> None:
        super().ftruncate(fd, length)
        self._cut.add(fd)

    def fdatasync(self, fd: int) -> None:
        what = "tail" if fd in self._cut else "barrier"
        self._cut.discard(fd)
        if not self._skip(what, fd):
            super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        if not self._skip("directory", fd):
            super().fsync(fd)

    def flock(self, fd: int, *, shared: bool) -> bool:
        return (not shared and self._skip("lock", fd)) or super().flock(fd, shared=shared)

    def _skip(self, what: str, fd: int) -> bool:
        if (what, self.paths[fd]) != (self._skipped.what, self._skipped.path):
            return False
        number, self._seen = self._seen, self._seen + 1
        self.skipped = self.skipped or number == self._skipped.number
        return number == self._skipped.number


class KillingOs(Os):
    """Kills the process right behind one of its calls."""

    def __init__(self, call: str, number: int) -> None:
        """`number` says which call of this name, counted from 0."""
        self._call = call
        self._left = number

    def mkdir(self, path: Path, mode: int) -> None:
        super().mkdir(path, mode)
        self._behind("mkdir")

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        written = super().pwrite(fd, data, offset)
        self._behind("pwrite")
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        super().ftruncate(fd, length)
        self._behind("ftruncate")

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self._behind("fdatasync")

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._behind("fsync")

    def _behind(self, call: str) -> None:
        if call != self._call:
            return
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
