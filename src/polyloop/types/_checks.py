"""The checks that values make of themselves. Each failure is `InvalidRequest` naming the field."""

from __future__ import annotations

import math
from typing import NoReturn

from polyloop.types.errors import InvalidRequest

MAX_KEY_CHARS = 1024

MAX_INT = 2**63 - 1
"""What every database keeps in an integer column; `sys.maxsize` is a legal "no limit"."""


def reject(field: str, expected: str, value: object) -> NoReturn:
    """Raise for a value of the wrong type. Only the type is told: a value may be secret or megabytes long."""
    raise InvalidRequest(field, f"must be {expected}, got {type(value).__name__}")


def check_str(field: str, value: object) -> None:
    """A string, of any content."""
    if not isinstance(value, str):
        reject(field, "a string", value)


def check_optional_str(field: str, value: object) -> None:
    """A string or None."""
    if value is not None and not isinstance(value, str):
        reject(field, "a string or None", value)


def check_name(field: str, value: object) -> None:
    """A string that is not empty."""
    check_str(field, value)
    if not value:
        raise InvalidRequest(field, "must not be empty")


def check_bool(field: str, value: object) -> None:
    """True or False, not merely truthy."""
    if value is not True and value is not False:
        reject(field, "a bool", value)


def check_count(field: str, value: object) -> None:
    """An int from 0 to `MAX_INT`; a bool is not an int here."""
    if type(value) is not int:
        reject(field, "an int", value)
    if not 0 <= value <= MAX_INT:
        raise InvalidRequest(field, "must be 0 or more, and below 2**63")


def check_positive(field: str, value: object) -> None:
    """An int from 1 to `MAX_INT`; a bool is not an int here."""
    if type(value) is not int:
        reject(field, "an int", value)
    if not 1 <= value <= MAX_INT:
        raise InvalidRequest(field, "must be 1 or more, and below 2**63")


def check_seconds(field: str, value: object) -> None:
    """A finite number of seconds above 0."""
    if type(value) is not int and type(value) is not float:
        reject(field, "a number of seconds", value)
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest(field, "must be a finite number of seconds above 0")


def check_type(field: str, value: object, expected: type | tuple[type, ...], words: str) -> None:
    """An instance of one of the classes."""
    if not isinstance(value, expected):
        reject(field, words, value)


def check_run_key(value: object, field: str = "RunRequest.key") -> None:
    """A run key: a non-empty string without NUL or lone surrogates, of at most 1,024 characters."""
    if not isinstance(value, str):
        reject(field, "a string", value)
    if not value:
        raise InvalidRequest(field, "must not be empty")
    if len(value) > MAX_KEY_CHARS:
        raise InvalidRequest(field, f"must have at most {MAX_KEY_CHARS:,} characters, got {len(value):,}")
    if "\0" in value:
        raise InvalidRequest(field, "must not contain a NUL character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(field, "must not contain lone surrogates") from None
