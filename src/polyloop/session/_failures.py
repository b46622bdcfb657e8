"""How failures are told: in a record, and in the log for those that the caller cannot see otherwise."""

from __future__ import annotations

import contextlib
import sys
import traceback

from polyloop.types.records import MAX_ERROR_CHARS


def describe(error: BaseException) -> str:
    """An exception's type and message, as a result record keeps them: cut at 2,000 characters."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure that it belongs to
        message = "(its message cannot be read: __str__ raised)"
    return (f"{name}: {message}" if message else name)[:MAX_ERROR_CHARS]


def log_failure(what: str, key: str, error: BaseException) -> None:
    """Log a failure with its frames and type, without messages or values: those may hold secrets or payloads.

    `what` is a constant of this library. loguru's own `exception=` would print the values of local variables
    under a user's default sink, so the frames are formatted here.
    """
    _log(f"{what} (run {key[:120]!a}): {_told(error)}")


def _told(error: BaseException) -> str:
    """An exception's type and frames, and those of each that it groups."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    grouped = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "".join((f"{type(error).__qualname__}\n{frames}", *map(_told, grouped)))


def log_note(what: str, key: str) -> None:
    """Log a failure that has no exception."""
    _log(f"{what} (run {key[:120]!a})")


def _log(message: str) -> None:
    from loguru import logger  # noqa: PLC0415 - imported at first use: `import polyloop` stays light

    try:
        # As an argument, for braces in it are none of loguru's.
        logger.error("{}", message)
    except Exception as failure:  # noqa: BLE001 - a handler of the user's that was added with catch=False
        # A run is not interrupted by what cannot be told of it; standard error is what loguru itself falls back on.
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, it is broken, or closed
            sys.stderr.write(f"PolyLoop: a loguru handler raised {type(failure).__qualname__} at: {message}\n")
