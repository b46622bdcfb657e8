"""`polyloop report`: one self-contained HTML page of a store's runs.

The page needs nothing from outside and lets nothing in. One run at a time is in memory; what is said of it waits in a
temporary file until the table, which stands before it in the page, is complete. Why:
`research-wiki/design/0024-report.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from polyloop._recovery import next_move
from polyloop._version import __version__
from polyloop.cli._failures import OK, Failure, redacted
from polyloop.cli._report_page import data_block, document
from polyloop.cli._report_runs import Row, described
from polyloop.cli._stores import Reader, open_store
from polyloop.cli._text import counted
from polyloop.stores import RunState, RunSummary
from polyloop.types import CorruptRunLog, JSONValue, ReplayPolicy, RunLog, UnsupportedSchemaVersion


async def main(arguments: argparse.Namespace) -> int:
    """Write the page; the exit code.

    Raises:
        Failure: the page cannot be written. What was at its place is then still there.
    """
    target = _target(arguments.output)
    with contextlib.ExitStack() as opened:
        async with open_store(arguments.store) as reader:
            # Not before the store is there: without it nothing is made, not even for a moment.
            with _writing(arguments.output):
                blocks = opened.enter_context(tempfile.TemporaryFile(dir=_folder(target)))
            rows = await _collected(reader, blocks, arguments.output)
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        made = f"{counted(len(rows), 'run')}, read at {now} UTC by PolyLoop {__version__}."
        with _writing(arguments.output):
            blocks.seek(0)
            lines = (line.decode("ascii") for line in blocks)
            _write(target, document(redacted(arguments.store), made, rows, lines))
    return OK


async def _collected(reader: Reader, blocks: IO[bytes], output: str) -> list[Row]:
    """The rows of all runs, newest first; their trajectories go into the file, in the same order."""
    rows: list[Row] = []
    async with contextlib.aclosing(reader.runs(newest_first=True)) as runs:
        async for summary in runs:
            found = await _read(reader, summary)
            if found is not None:
                row, trajectory = found
                with _writing(output):
                    blocks.write(data_block(len(rows), trajectory).encode("ascii"))
                rows.append(row)
    return rows


async def _read(reader: Reader, summary: RunSummary) -> tuple[Row, dict[str, JSONValue]] | None:
    """One run, damaged or not; None for one that was deleted since it was listed."""
    try:
        if summary.state is RunState.DAMAGED:
            # Listed under its file's name, where the damage hides its key: `read_log` would find nothing there.
            log, _ = await reader.check(summary.key)
        else:
            log = await reader.read_log(summary.key)
    except (CorruptRunLog, UnsupportedSchemaVersion) as damage:
        return described(summary, None, _said(damage))
    if log.started is None:
        return None
    return described(summary, log, _misfit(log))


def _misfit(log: RunLog) -> str | None:
    """Why a log that can be read cannot have been written by a run; None for a sound one."""
    try:
        next_move(log, model_call_replay=ReplayPolicy.NEVER, tool_replay={})
    except CorruptRunLog as damage:
        return _said(damage)
    return None


def _said(damage: CorruptRunLog | UnsupportedSchemaVersion) -> str:
    return f"{damage.reason.value}: {damage.problem}" if isinstance(damage, CorruptRunLog) else str(damage)


# --- the file


def _target(output: str) -> Path:
    if not output or "\0" in output:
        raise Failure("--output must be a path, not empty and without NUL characters")
    target = Path(output).resolve()
    if target.is_dir():
        raise Failure(f"cannot write {output!r}: it is a directory")
    return target


def _folder(target: Path) -> Path | None:
    """Where the temporary files of a page go: beside it, unless it is a pipe or a device."""
    return target.parent if _is_plain(target) else None


def _is_plain(target: Path) -> bool:
    return not target.exists() or stat.S_ISREG(target.stat().st_mode)


@contextlib.contextmanager
def _writing(output: str) -> Iterator[None]:
    """Say of a failure that it was the page that could not be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {output!r}: {error.strerror or error}") from error


def _write(target: Path, pieces: Iterable[str]) -> None:
    """Write the page whole or not at all; with mode 0600, as the logs that it shows."""
    if not _is_plain(target):
        with target.open("w", encoding="utf-8", newline="\n") as page:
            page.writelines(pieces)
        return
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=target.parent, prefix=f".{target.name[:40]}-", delete=False
    ) as page:
        try:
            page.writelines(pieces)
            page.close()
            os.replace(page.name, target)  # noqa: PTH105 - the file has a name, not a path
        except BaseException:
            os.unlink(page.name)  # noqa: PTH108 - likewise
            raise
