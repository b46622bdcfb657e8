"""Files, folders and locks: everything that the store asks of the operating system.

`Os` is the one door to system calls. A test puts another in its place to have a disk that is full, slow or broken.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from polyloop.stores._disk import NETWORK_FILE_SYSTEMS, file_system, read_mounts
from polyloop.types import InvalidRequest, StoreBusy

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows; refused with a clear error on entering
    fcntl = None  # type: ignore[assignment]  # the module does not exist there

LOCK_WAIT_S: Final = 30.0
"""How long a call waits for another process to let go of a log, before `StoreBusy`. It holds one for the time of a
write and a sync. The wait keeps the thread, and so the other runs that are pinned to it."""

DIRECTORY_FIELD: Final = "JsonlRunStore.directory"
"""The field that errors name."""

_MODE: Final = 0o600
_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_READ_CHUNK: Final = 1 << 30
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_NO_DIRECTORY: Final = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


class Os:
    """The system calls that the store makes, by their own names."""

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        """Open a file or directory."""
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        """Close it."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """The status of an open file."""
        return os.fstat(fd)

    def stat(self, path: Path) -> os.stat_result:
        """The status of what a path leads to."""
        return path.stat()

    def mkdir(self, path: Path, mode: int) -> None:
        """Make one directory."""
        path.mkdir(mode)

    def scandir(self, path: Path | str) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """The entries of a directory, one after the other."""
        return os.scandir(path)

    def unlink(self, path: Path) -> None:
        """Take a file's name away."""
        path.unlink()

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read at a place."""
        return os.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write at a place; how much of it was written."""
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, length: int) -> None:
        """Cut an open file."""
        os.ftruncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        """Have a file's bytes and length on the disk before returning."""
        if sys.platform == "darwin":  # pragma: no cover - there, only this reaches the disk itself
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Have a directory's entries on the disk before returning."""
        os.fsync(fd)

    def has_flock(self) -> bool:
        """Whether this platform locks files in the way that is needed."""
        return fcntl is not None

    def flock(self, fd: int, *, shared: bool) -> bool:
        """Lock without waiting; False if another open file has the lock."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Unlock."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def monotonic(self) -> float:
        """The clock that bounds a wait."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Pause this thread."""
        time.sleep(seconds)

    def mounts(self) -> str:
        """Linux's table of mounts; empty where there is none."""
        return read_mounts()


def file_name(key: str) -> str:
    """The name of a run's file: readable, harmless, and another one for every key.

    The digest alone tells keys apart, also on a disk that does not tell upper case from lower.
    """
    readable = re.sub(r"[^a-z0-9_-]+", "_", key[:80].lower())[:40].strip("_-")
    return f"{readable or 'run'}-{hashlib.sha256(key.encode('utf-8')).hexdigest()}.jsonl"


class OpenFile(NamedTuple):
    """A log that is open for reading and writing."""

    fd: int
    """Its descriptor; the caller closes it."""
    inode: tuple[int, int]
    """Device and inode, by which a file that was moved or replaced is noticed."""
    made: bool
    """Whether it was made when it was opened."""


def open_file(system: Os, path: Path, *, create: bool) -> OpenFile:
    """Open a log for reading and writing. The caller closes it."""
    if create:
        with contextlib.suppress(FileExistsError):
            fd = system.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
            return OpenFile(fd, inode(_status(system, fd, path)), made=True)
    fd = system.open(path, _FLAGS, _MODE)
    return OpenFile(fd, inode(_status(system, fd, path)), made=False)


def open_to_read(system: Os, path: Path | str) -> int:
    """Open a log for reading. The caller closes it."""
    fd = system.open(path, _FLAGS & ~os.O_RDWR | os.O_RDONLY)
    _status(system, fd, path)
    return fd


def inode(status: os.stat_result) -> tuple[int, int]:
    """Which file it is, whatever it is called."""
    return status.st_dev, status.st_ino


def _status(system: Os, fd: int, path: Path | str) -> os.stat_result:
    """The status of a file that was just opened; it is closed again if there is none, or it is no regular file."""
    try:
        status = system.fstat(fd)
    except BaseException:
        system.close(fd)
        raise
    if not stat.S_ISREG(status.st_mode):
        system.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status


def lock(system: Os, fd: int, key: str, *, shared: bool) -> None:
    """Lock a log against other processes and store objects, within `LOCK_WAIT_S`.

    Raises:
        StoreBusy: if somebody else held it all the time.
    """
    if system.flock(fd, shared=shared):
        return
    started, pause = system.monotonic(), _FIRST_PAUSE_S
    while not system.flock(fd, shared=shared):
        waited = system.monotonic() - started
        if waited >= LOCK_WAIT_S:
            raise StoreBusy(key, waited)
        system.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def read_all(system: Os, fd: int, size: int) -> bytes:
    """The first `size` bytes of a file, fewer where it ends before."""
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = system.pread(fd, min(size - offset, _READ_CHUNK), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_all(system: Os, fd: int, data: bytes, offset: int) -> None:
    """Write all of it at this place, in one call unless the system takes less."""
    written = system.pwrite(fd, data, offset)
    while written < len(data):
        written += system.pwrite(fd, memoryview(data)[written:], offset + written)


def sync_directory(system: Os, path: Path) -> None:
    """Have the directory's entries on the disk before returning."""
    fd = system.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        system.fsync(fd)
    finally:
        system.close(fd)


def prepare_directory(system: Os, path: Path) -> None:
    """Make the directory if it does not exist, and refuse a place that cannot keep the store's promises.

    Raises:
        InvalidRequest: not a directory, a network file system, a platform without `flock`.
        OSError: it cannot be made.
    """
    if not system.has_flock():
        raise InvalidRequest(
            DIRECTORY_FIELD, "this platform has no flock, which the file store needs; use another store"
        )
    try:
        _make(system, path)
        real = path.resolve()
    except OSError as problem:
        if problem.errno in _NO_DIRECTORY:
            raise InvalidRequest(
                DIRECTORY_FIELD, f"{str(path)!r} cannot be a directory: {problem.strerror}"
            ) from problem
        raise
    kind = file_system(str(real), system.mounts())
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidRequest(
            DIRECTORY_FIELD,
            f"lies on a network file system ({kind}); give a directory on a local disk, or use a database",
        )


def _make(system: Os, path: Path) -> None:
    try:
        if not stat.S_ISDIR(system.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    except FileNotFoundError:
        _make(system, path.parent)
        _make_one(system, path)
        sync_directory(system, path.parent)
    else:
        # Whoever made it may have been killed before syncing it. Where that is not ours to do, it was not ours to make.
        with contextlib.suppress(PermissionError):
            sync_directory(system, path.parent)


def _make_one(system: Os, path: Path) -> None:
    try:
        system.mkdir(path, 0o700)
    except FileExistsError:
        # Another process was faster; or it is a link that leads nowhere, and stays an error.
        if not path.is_dir():
            raise
