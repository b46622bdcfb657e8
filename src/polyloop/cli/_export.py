"""`polyloop export`: a run for other tools, on standard output."""

from __future__ import annotations

import argparse
import sys

from polyloop.cli._failures import OK
from polyloop.cli._stores import existing_log, open_store
from polyloop.cli._text import ascii_json
from polyloop.serialization import encode


async def main(arguments: argparse.Namespace) -> int:
    """Write the run; the exit code."""
    async with open_store(arguments.store) as reader:
        log = await existing_log(reader, arguments.key)
    if arguments.format == "jsonl":
        for record in log.records():
            text = encode(record)
            # The one character of it that a terminal does not print. To a file every byte is `encode`'s.
            print(text.replace("\x7f", "\\u007f") if sys.stdout.isatty() else text)
    else:
        from polyloop.cli._atif import trajectory  # noqa: PLC0415 - only what the command needs

        print(ascii_json(trajectory(arguments.key, log), indent=2))
    return OK
