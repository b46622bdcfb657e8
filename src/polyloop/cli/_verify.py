"""`polyloop verify`."""

from __future__ import annotations

import argparse

from polyloop.cli._failures import Failure


async def main(arguments: argparse.Namespace) -> int:
    """Do it; the exit code."""
    raise Failure(f"{arguments.command} is not there yet")
