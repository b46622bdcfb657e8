"""Reading a directory without changing anything: it is not made, no torn tail is removed, nothing is synced."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Self

from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores.jsonl.contents import read_contents
from polyloop.stores.jsonl.files import Os, file_name, inode, lock, open_to_read, read_all
from polyloop.stores.jsonl.format import LineFormat
from polyloop.stores.jsonl.listing import NAME, Index
from polyloop.types import InvalidRequest, RunKey, RunLog

_EMPTY = RunLog(started=None, intents=(), results=(), steps=(), finished=None)


class JsonlReader:
    """A directory of logs, read-only. A log is locked against its writer while it is read, as by every reader."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory).absolute()
        self._os = Os()

    async def __aenter__(self) -> Self:
        if not stat.S_ISDIR(self._directory.stat().st_mode):
            raise InvalidRequest("JsonlReader.directory", f"{str(self._directory)!r} is no directory")
        with self._os.scandir(self._directory):
            """It can be read."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    async def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[RunSummary, None]:
        """List the runs: the beginning and the end of every log is read first."""
        listing = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        index = Index(self._directory, self._os, listing)
        try:
            while index.read_some(set()):  # noqa: ASYNC110 - whoever interrupts is heard between two slices
                await asyncio.sleep(0)
            while page := index.page():
                for summary in page:
                    yield summary
        finally:
            index.close()

    async def read_log(self, key: RunKey) -> RunLog:
        """Read a run's log.

        Raises:
            CorruptRunLog, UnsupportedSchemaVersion: it is damaged, or a newer version's.
        """
        return (await self.check(key))[0]

    async def strays(self) -> AsyncGenerator[tuple[RunKey | None, str], None]:
        """Runs that have records and are not listed: none, for a log is listed by its file."""
        none: tuple[tuple[RunKey | None, str], ...] = ()
        for stray in none:
            yield stray

    async def mark(self, key: RunKey) -> object:
        """Something that is another once the log has grown; None for a run that does not exist."""
        try:
            status = (self._directory / file_name(key)).stat()
        except FileNotFoundError:
            return None
        return (*inode(status), status.st_size)

    async def check(self, key: RunKey) -> tuple[RunLog, int]:
        """Read a log as `read_log` does; and how many bytes of it were torn off by a crash, which nobody relied on.

        Args:
            key: The run; of a damaged log whose key cannot be told, the name under which it is listed.
        """
        data = self._data(key, file_name(key))
        if data is None and NAME.fullmatch(key):
            data = self._data(key, key)
        if data is None:
            return _EMPTY, 0
        contents = read_contents(key, LineFormat(key), data)
        return contents.log, len(data) - contents.length

    def _data(self, key: str, name: str) -> bytes | None:
        try:
            fd = open_to_read(self._os, self._directory / name)
        except FileNotFoundError:
            return None
        try:
            lock(self._os, fd, key, shared=True)
            return read_all(self._os, fd, self._os.fstat(fd).st_size)
        finally:
            self._os.close(fd)
