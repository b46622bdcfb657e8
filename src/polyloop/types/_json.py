r"""JSON as the log knows it: what counts as JSON, copies of it, and its canonical text.

One module, used by the codec and by the identity check alike, so that the two can never disagree.

What Python holds and plain JSON text does not tell apart: a surrogate *pair* kept as two characters
(``"\ud83d" + "\ude00"``) and the one character that it would stand for have the same ASCII JSON. Where a
text holds such a pair, `dumps` therefore writes every string of it percent-escaped, and says so; `loads`
undoes it. All other text, lone surrogates included, is plain ASCII JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from polyloop.types.errors import InvalidRequest

# Only the inner names are quoted: annotations that use this alias can then be resolved from any module that imports it.
JSONValue: TypeAlias = str | int | float | bool | Mapping[str, "JSONValue"] | Sequence["JSONValue"] | None
"""JSON as Python values: finite numbers, string keys. Tuples count as lists."""

MAX_DEPTH = 100
"""How deep containers may be nested: far below any recursion limit, far above any honest document."""

MAX_DIGITS = 640
"""The longest integer, in digits: the most that every interpreter reads and writes, however it is set up."""

MAX_PATH_CHARS = 200
"""How much of a path an error names."""

_TOO_LARGE = 10**MAX_DIGITS
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_UNSAFE = re.compile("[%\ud800-\udfff]")
_ESCAPED = re.compile("%(25|d[89a-f][0-9a-f]{2})")

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


def copy_json(value: object, path: str) -> JSONValue:
    """A copy in plain dicts, lists, strings and numbers that shares nothing with `value`.

    Raises:
        InvalidRequest: naming the path, where something is not JSON: a non-finite number, a key that is no
            string, a foreign object, nesting deeper than 100, an integer of more than 640 digits.
    """
    return _copy(value, path, 0)


def copy_object(value: Mapping[str, JSONValue], path: str) -> dict[str, JSONValue]:
    """`copy_json` of a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(path, f"must be a mapping, got {type(value).__name__}")
    return cast("dict[str, JSONValue]", _copy(value, path, 0))


def _copy(value: object, path: str, depth: int) -> JSONValue:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, int):
        return _copy_int(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refusal(path, "must be a finite number; NaN and infinities are not JSON")
        return value if type(value) is float else float.__float__(value)
    return _copy_container(value, path, depth)


def _copy_int(value: int, path: str) -> int:
    plain = value if type(value) is int else int.__int__(value)
    if not -_TOO_LARGE < plain < _TOO_LARGE:
        raise _refusal(path, f"must be an integer of at most {MAX_DIGITS} digits")
    return plain


def _copy_container(value: object, path: str, depth: int) -> JSONValue:
    if depth == MAX_DEPTH:
        raise _refusal(path, f"must not be nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        copied: dict[str, JSONValue] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _refusal(path, f"must have string keys only, got a key of type {type(key).__name__}")
            copied[str.__str__(key)] = _copy(inner, f"{path}.{key}", depth + 1)
        return copied
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_copy(inner, f"{path}[{index}]", depth + 1) for index, inner in enumerate(value)]
    raise _refusal(path, f"must be JSON, got {type(value).__name__}")


def _refusal(path: str, problem: str) -> InvalidRequest:
    # Keys may be of any length, and paths of any depth: the beginning finds the place.
    return InvalidRequest(path if len(path) <= MAX_PATH_CHARS else f"{path[:MAX_PATH_CHARS]}...", problem)


def dumps(value: JSONValue) -> tuple[str, bool]:
    """ASCII JSON text of a JSON value, keys in the order given, and whether its strings are escaped."""
    text = _encode(value)
    # Surrogates and characters beyond the BMP alike show as \ud in ASCII JSON: without it there is no pair.
    if "\\ud" in text and _has_pair(value):
        return _encode(_mapped(value, _escape)), True
    return text, False


def ascii_json(value: JSONValue) -> str:
    """ASCII JSON text for people and models to read: keys in the order given, never escaped further."""
    return _encode(value)


def canonical(value: JSONValue) -> str:
    """The text by which two JSON values are compared: ASCII, sorted keys; `True` is not `1`, `1` not `1.0`.

    Different values have different texts, a surrogate pair held as two characters included.
    """
    text = _encode_sorted(value)
    if "\\ud" in text and _has_pair(value):
        # No JSON text starts with "%", so escaped and plain texts never meet.
        return "%" + _encode_sorted(_mapped(value, _escape))
    return text


def digest(value: JSONValue) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def unescaped(value: JSONValue) -> JSONValue:
    """What `dumps` escaped, as it was.

    Raises:
        ValueError: if a string holds an escape that `dumps` does not write.
    """
    return _mapped(value, _unescape)


def _has_pair(value: JSONValue) -> bool:
    if isinstance(value, str):
        return _PAIR.search(value) is not None
    if isinstance(value, Mapping):
        return any(_has_pair(key) or _has_pair(inner) for key, inner in value.items())
    if isinstance(value, Sequence):
        return any(_has_pair(inner) for inner in value)
    return False


def _mapped(value: JSONValue, change: Callable[[str], str]) -> JSONValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(inner, change) for inner in value]
    return value


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: "%25" if found[0] == "%" else f"%{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    plain = _ESCAPED.sub(lambda found: "%" if found[1] == "25" else chr(int(found[1], 16)), text)
    if _escape(plain) != text:
        raise ValueError("a string is not escaped as this library escapes strings")
    return plain
