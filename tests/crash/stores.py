"""The durable stores that are killed: one line each. A store is made from a directory of the test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from polyloop.ports import RunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os
from polyloop.stores.sqlite import SqliteRunStore


def _sqlite(directory: Path) -> SqliteRunStore:
    directory.mkdir(exist_ok=True)
    return SqliteRunStore(directory / "runs.sqlite")


def _postgres(directory: Path) -> AbstractAsyncContextManager[RunStore]:
    """On the tables that the test has made, whose connection string lies beside the directory."""
    from polyloop.stores.postgres import PostgresRunStore  # the package psycopg need not be installed

    return PostgresRunStore(directory.with_name("postgres").read_text())


DURABLE: Final[Mapping[str, Callable[[Path], AbstractAsyncContextManager[RunStore]]]] = {
    "jsonl": JsonlRunStore,
    "sqlite": _sqlite,
    "postgres": _postgres,
}


def kill() -> None:
    """End this process as a power switch ends a program: nothing runs behind this line."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class KillingOs(Os):
    """Kills the process around one of the calls that change what is on the disk, counted from 0.

    `half` kills a write when half of its bytes are written, and is `after` for other calls.
    """

    def __init__(self, place: int, when: str) -> None:
        self._place = place
        self._when = when

    def _arrive(self, when: str) -> None:
        if self._place == 0 and when == self._when:
            kill()
        if when == "after":
            self._place -= 1

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        if not flags & os.O_CREAT:
            return super().open(path, flags, mode)
        self._arrive("before")
        fd = super().open(path, flags, mode)
        self._arrive("half")
        self._arrive("after")
        return fd

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._arrive("before")
        if self._place == 0 and self._when == "half":
            super().pwrite(fd, data[: len(data) // 2], offset)
        self._arrive("half")
        written = super().pwrite(fd, data, offset)
        self._arrive("after")
        return written

    def fdatasync(self, fd: int) -> None:
        self._arrive("before")
        super().fdatasync(fd)
        self._arrive("half")
        self._arrive("after")

    def fsync(self, fd: int) -> None:
        self._arrive("before")
        super().fsync(fd)
        self._arrive("half")
        self._arrive("after")

    def ftruncate(self, fd: int, length: int) -> None:
        self._arrive("before")
        super().ftruncate(fd, length)
        self._arrive("half")
        self._arrive("after")


def killing_jsonl(directory: Path, place: int, when: str) -> JsonlRunStore:
    """A file store that kills its process around a system call."""

    class Killing(JsonlRunStore):
        _os = KillingOs(place, when)

    return Killing(directory)
