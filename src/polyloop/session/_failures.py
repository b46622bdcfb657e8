"""How failures are told: in a record, and in the log for those that the caller cannot see otherwise."""

from __future__ import annotations

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
    from loguru import logger  # noqa: PLC0415 - imported at first use: `import polyloop` stays light

    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    logger.error("{} (run {}): {}\n{}", what, ascii(key[:120]), type(error).__qualname__, frames)


def log_note(what: str, key: str) -> None:
    """Log a failure that has no exception."""
    from loguru import logger  # noqa: PLC0415 - as above

    logger.error("{} (run {})", what, ascii(key[:120]))
