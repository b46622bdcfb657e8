"""The commands and what they are given."""

from __future__ import annotations

import argparse
from typing import NoReturn

from polyloop._version import __version__
from polyloop.cli._failures import FAILED, redacted
from polyloop.cli._text import one_line
from polyloop.stores import RunState

_STORE = "the store: jsonl:DIRECTORY, sqlite:FILE or postgresql://…"
_EPILOG = """\
A store is jsonl:DIRECTORY, sqlite:FILE or postgresql://[USER@][HOST][:PORT][/DATABASE][?…] (as libpq reads it; a
password is best left to PGPASSFILE, PGSERVICEFILE or PGPASSWORD: other users of the machine see a command's arguments).
It is opened for reading only.

Exit codes: 0 done; 1 damage, which only `verify` looks for; 2 it could not be done, and why is said in one line.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose messages hold no secrets and no control characters."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, in one line."""
        self.exit(FAILED, f"polyloop: {one_line(redacted(message))} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = _Parser(
        prog="polyloop",
        description="Look at the runs of a PolyLoop store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"polyloop {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _runs(_command(commands, "runs", "list the runs of a store"))
    show = _command(commands, "show", "print the trajectory of a run", key=True)
    show.add_argument("--full", action="store_true", help="print long texts whole")
    watch = _command(commands, "watch", "follow a run until it ends", key=True)
    watch.add_argument("--full", action="store_true", help="print long texts whole")
    watch.add_argument("--every", type=_seconds, default=1.0, metavar="SECONDS", help="how often to look (default: 1)")
    export = _command(commands, "export", "write a trajectory for other tools, to standard output", key=True)
    export.add_argument(
        "--format",
        choices=("atif", "jsonl"),
        required=True,
        help="atif: the Agent Trajectory Interchange Format 1.8; jsonl: the log's records, one a line",
    )
    verify = _command(commands, "verify", "check logs, and explain what is damaged")
    verify.add_argument("key", nargs="?", metavar="KEY", help="the run; all runs without it")
    _report(_command(commands, "report", "write one self-contained HTML page of all runs"))
    return whole


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    does: str,
    *,
    key: bool = False,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog="See polyloop --help.", allow_abbrev=False
    )
    command.add_argument("--debug", action="store_true", help="print the traceback of what went wrong")
    command.add_argument("store", metavar="STORE", help=_STORE)
    if key:
        command.add_argument("key", metavar="KEY", help="the run's key")
    return command


def _runs(command: argparse.ArgumentParser) -> None:
    command.description = (
        "List the runs of a store, by their start: state, steps, stop reason, start (UTC), "
        "the time since the last record, key."
    )
    command.add_argument("--state", choices=[state.value for state in RunState], help="only runs in this state")
    command.add_argument("--prefix", default="", help="only runs whose key begins with this")
    command.add_argument("--limit", type=_count, metavar="N", help="at most so many")
    command.add_argument("--after", metavar="KEY", help="only runs behind this one: the last of the page before")
    command.add_argument("--newest-first", action="store_true", help="the reverse order")
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _report(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the page to write")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:  # noqa: PLR2004 - what every store can take
        raise argparse.ArgumentTypeError("must be 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86_400:  # noqa: PLR2004 - from a poll that is no load to one a day
        raise argparse.ArgumentTypeError("must be between 0.01 and 86400")
    return seconds
