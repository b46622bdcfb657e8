"""What a command ends with: its exit code, and the one line that says what went wrong."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

from polyloop.cli._text import one_line
from polyloop.types import InvalidRequest, PolyLoopError

OK: Final = 0
"""It did what it was asked for."""

DAMAGE: Final = 1
"""`verify` found damage. Nothing else ends with this code."""

FAILED: Final = 2
"""It could not do what it was asked for."""

INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""

PIPE_CLOSED: Final = 141
"""Whoever read the output went away, as shells have it; nothing is said."""

_USERINFO: Final = re.compile(r"(?<=://)\S*@")
_PASSWORD: Final = re.compile(r"""((?:ssl)?password\s*(?:=|%3D)\s*)('(?:[^'\\]|\\.)*'|[^\s&'"]+)""", re.IGNORECASE)

_secrets: Final[set[str]] = set()


class Failure(Exception):  # noqa: N818 - what it is, not what went wrong
    """A command cannot do what it was asked for; the message is what the user is told."""


def keep_secrets(arguments: Iterable[str]) -> None:
    """Have the passwords of these URLs, and that of the environment, in nothing that is printed as a failure."""
    found = {os.environ.get("PGPASSWORD")}
    for argument in arguments:
        try:
            password = urlsplit(argument).password
        except ValueError:
            # No URL that Python can read; by its place, the password is found all the same.
            password = None
        if password is not None:
            found |= {password, unquote(password)}
    _secrets.update(secret for secret in found if secret)


def redacted(text: str) -> str:
    """A text without the passwords of URLs and connection strings, whoever wrote it."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PASSWORD.sub(r"\1***", _USERINFO.sub("***@", text))


def line_of(error: BaseException) -> str:
    """What is said of an error, in one line without secrets."""
    match error:
        case Failure():
            text = str(error)
        case InvalidRequest():
            text = error.problem
        case PolyLoopError():
            text = str(error)
        case OSError(strerror=str(reason), filename=filename) if filename is not None:
            text = f"cannot read {filename!r}: {reason}"
        case _:
            text = f"{type(error).__name__}: {error}"
    # Of a driver's message of many lines, all; harmless, for a server wrote it.
    return one_line(redacted(" ".join(text.split())))


def trace_of(error: BaseException) -> str:
    """The traceback, without secrets; it never shows the values of variables."""
    return redacted("".join(traceback.format_exception(error)))
