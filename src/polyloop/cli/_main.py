"""From the arguments to the exit code. A command's own module is imported when it is called."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

from polyloop.cli._arguments import parser
from polyloop.cli._failures import FAILED, INTERRUPTED, PIPE_CLOSED, keep_secrets, line_of, trace_of

_Command: TypeAlias = Callable[[argparse.Namespace], Awaitable[int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line asks for.

    Args:
        argv: The arguments without the program's name; those of the process if None.

    Returns:
        The exit code: 0; 1 if `verify` found damage; 2 if the command could not do its work, which standard error
        says in one line; 130 after Ctrl-C; 141 if the output was closed.

    Raises:
        SystemExit: after `--help` or `--version`, and with 2 for arguments that make no sense.
    """
    # Whoever closed one of them wants nothing of it; the exit code tells all the same.
    with contextlib.ExitStack() as opened:
        if sys.stdout is None:
            opened.enter_context(contextlib.redirect_stdout(opened.enter_context(_nowhere())))
        if sys.stderr is None:
            opened.enter_context(contextlib.redirect_stderr(opened.enter_context(_nowhere())))
        return _with_streams(argv)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _with_streams(argv: Sequence[str] | None) -> int:
    # What a terminal's encoding cannot show is shown by its code: printing must not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if argv is None else argv
    keep_secrets(given)
    arguments = parser().parse_args(given)
    try:
        return _outcome(arguments)
    except BrokenPipeError:
        _give_output_up()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _outcome(arguments: argparse.Namespace) -> int:
    try:
        code = asyncio.run(_called(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - of whatever kind: it is told, and the exit code says that it failed
        _flush()
        if arguments.debug:
            sys.stderr.write(trace_of(error))
        sys.stderr.write(f"polyloop: {line_of(error)}\n")
        return FAILED
    return code


def _flush() -> None:
    """Print what was found before the failure, unless printing is what failed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _give_output_up()


def _give_output_up() -> None:
    # Python writes what is left when it ends, and would complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _called(arguments: argparse.Namespace) -> int:
    return await _command(arguments.command)(arguments)


def _command(name: str) -> _Command:
    # Each is imported when it is called: the time that a command takes to start is its user's.
    match name:
        case "runs":
            from polyloop.cli._runs import main as runs  # noqa: PLC0415 - as said above

            return runs
        case "show":
            from polyloop.cli._show import main as show  # noqa: PLC0415 - as said above

            return show
        case "watch":
            from polyloop.cli._watch import main as watch  # noqa: PLC0415 - as said above

            return watch
        case "export":
            from polyloop.cli._export import main as export  # noqa: PLC0415 - as said above

            return export
        case "verify":
            from polyloop.cli._verify import main as verify  # noqa: PLC0415 - as said above

            return verify
        case _:
            from polyloop.cli.report import main as report  # noqa: PLC0415 - as said above

            return report
