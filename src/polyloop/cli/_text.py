r"""Text that models, tools and users wrote, made harmless for a terminal; and figures as people read them. Pure.

A terminal obeys control characters: a model that was told to print `ESC ] 0 ; …` would set its title, others hide or
reverse what stands there. Every such character is shown by its code instead, `\x1b`, `\u202e`; so is what cannot be
printed at all. What is seen as text stays, with all blanks and the two joiners that scripts and emoji need.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Final

_KEPT: Final = frozenset(
    "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\u200c\u200d"
)
"""Not printable in Python's eyes, and harmless."""

_BYTE: Final = 0x100
_PLANE: Final = 0x10000


def one_line(text: str) -> str:
    """Text on one line: line ends and tabs are shown by their codes too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _code(char) for char in text)


def lines(text: str) -> list[str]:
    r"""Text of several lines, without their ends; tabs become blanks. Only `\n`, and `\r\n`, end a line."""
    return [one_line(line.removesuffix("\r").expandtabs(4)) for line in text.split("\n")]


def _code(char: str) -> str:
    code = ord(char)
    if code < _BYTE:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < _PLANE else f"\\U{code:08x}"


def ascii_json(value: object, *, indent: int | None = None) -> str:
    """Strict JSON in printable ASCII: harmless whatever stands in it."""
    # The only ASCII character that JSON need not escape and a terminal does not print.
    return json.dumps(value, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def cut(text: str, width: int) -> str:
    """One line of at most so many characters; an ellipsis stands for the rest."""
    return text if len(text) <= width else text[: width - 1] + "…"


def seconds_between(earlier: str, later: str) -> float:
    """From one `recorded_at` to another, in seconds; negative if the clock was set back."""
    return (parsed(later) - parsed(earlier)).total_seconds()


def parsed(recorded_at: str) -> dt.datetime:
    """The moment that a record names."""
    return dt.datetime.fromisoformat(recorded_at)


def duration(seconds: float) -> str:
    """A time as people say it: `0.35 s`, `12 s`, `3 min 20 s`, `5 h 10 min`, `3 d 4 h`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 10:  # noqa: PLR2004 - where hundredths stop to matter
        return f"{seconds:.2f} s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def moment(recorded_at: str | None) -> str:
    """A moment to the second, UTC."""
    return "-" if recorded_at is None else recorded_at[:19].replace("T", " ")


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `1,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of JSON with their paths: `budget.max_steps`. Lists are leaves."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from flattened(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value
