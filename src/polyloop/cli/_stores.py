"""A store's URL, and the store behind it, opened so that nothing can be changed. Only what is named is imported."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol

from polyloop.cli._failures import Failure, keep_secrets
from polyloop.stores import RunState, RunSummary
from polyloop.types import InvalidRequest, RunKey, RunLog
from polyloop.types._checks import check_run_key

_KINDS: Final = "jsonl:DIRECTORY, sqlite:FILE or postgresql://[USER@][HOST][:PORT][/DATABASE]"


class Reader(Protocol):
    """A store that is open for reading. What each call raises is what the store's own would."""

    def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[RunSummary, None]:
        """The runs, by their start and then by their key, as they are read. See `EphemeralRunStore.runs`."""
        ...

    async def read_log(self, key: RunKey, /) -> RunLog:
        """A run's log; an empty one if there is no such run.

        Raises:
            CorruptRunLog, UnsupportedSchemaVersion: it is damaged, or a newer version's.
        """
        ...

    async def mark(self, key: RunKey, /) -> object:
        """Something that is another once the log has grown, and cheap to ask for; None if there is no such run."""
        ...

    def strays(self) -> AsyncGenerator[tuple[RunKey | None, str], None]:
        """Runs that have records and are not listed, which is damage: the key, if it is known, and what there is."""
        ...

    async def check(self, key: RunKey, /) -> tuple[RunLog, int]:
        """As `read_log`; and how many bytes at the log's end were torn off by a crash, which nobody relied on.

        Args:
            key: As the listing has it, which for a log whose damage hides its key is the file's name.
        """
        ...


@contextlib.asynccontextmanager
async def open_store(url: str) -> AsyncIterator[Reader]:
    """Open a store read-only, for the time of an `async with`.

    Args:
        url: `jsonl:DIRECTORY`, `sqlite:FILE`, or `postgresql://…` as libpq reads it: what it lacks, a password above
            all, comes from libpq's environment variables and files.

    Raises:
        Failure: no such kind of store, or its extra is not installed.
        InvalidRequest: what is there is no such store.
        OSError: it is missing or cannot be read; a driver's error where there is one.
    """
    kind, colon, rest = url.partition(":")
    match kind:
        case "jsonl" | "sqlite" if colon:
            if not rest:
                raise Failure(f"{kind}: needs a path behind it; a store is {_KINDS}")
            async with _on_disk(kind, rest) as reader:
                yield reader
        case "postgresql" | "postgres" if rest.startswith("//"):
            keep_secrets([url])
            async with _postgres(url) as reader:
                yield reader
        case _:
            raise Failure(f"{url!r} names no store; a store is {_KINDS}")


@contextlib.asynccontextmanager
async def _on_disk(kind: str, path: str) -> AsyncIterator[Reader]:
    if "\0" in path:
        raise Failure(f"{kind}:{path!r}: a path has no NUL characters")
    if kind == "jsonl":
        from polyloop.stores.jsonl.reading import JsonlReader  # noqa: PLC0415 - only what the command needs

        async with JsonlReader(path) as files:
            yield files
    else:
        from polyloop.stores.sqlite.reading import SqliteReader  # noqa: PLC0415 - only what the command needs

        async with SqliteReader(path) as database:
            yield database


@contextlib.asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[Reader]:
    try:
        from polyloop.stores.postgres.reading import PostgresReader  # noqa: PLC0415 - only what the command needs
    except ImportError as missing:
        if missing.name is None or not missing.name.startswith("psycopg"):
            raise
        raise Failure("a Postgres store needs the extra postgres: pip install 'polyloop[postgres]'") from missing
    # The driver's pool logs each attempt to connect again, which without any handler would be printed.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    async with PostgresReader(url) as reader:
        yield reader


def run_key(text: str) -> RunKey:
    """A key as the user typed it.

    Raises:
        Failure: no run can have it.
    """
    try:
        check_run_key(text, "KEY")
    except InvalidRequest as wrong:
        raise Failure(f"KEY {wrong.problem}") from None
    return RunKey(text)


async def existing_log(reader: Reader, text: str) -> RunLog:
    """The log of a run that must exist.

    Raises:
        Failure: it does not.
        CorruptRunLog, UnsupportedSchemaVersion: it is damaged, or a newer version's.
    """
    log = await reader.read_log(run_key(text))
    if log.started is None:
        raise Failure(f"the store holds no run {text!r}; `polyloop runs` lists those that there are")
    return log
