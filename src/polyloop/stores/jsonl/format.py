r"""The text of a log file: one line a record, each with a checksum. Pure.

::

    {"check":"9f86d081884c7d65","durable":0,"key":"my-run","record":{"schema":"1.0","record":"run_started",…}}
    {"check":"60303ae22b998861","durable":412,"record":{"schema":"1.0","record":"effect_intended",…}}

- `record` is what `polyloop.serialization.encode` makes of the record; the line is ASCII JSON, so `jq .record`
  works, and it never holds a NUL byte or a line end of its own.
- `durable` says how many bytes of the file were known to be on the disk when the line was written. Whatever
  lies before that was acknowledged, so it cannot have been torn by a power loss. See `contents.py`.
- `key` stands in the first line only.
- `check` is BLAKE2b (8 bytes) over every byte that follows it in the line, keyed with the SHA-256 of the run
  key: a line of another run never fits, whatever it says of itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Final

_OPENING: Final = b'{"check":"'
_REST: Final = len(_OPENING) + 16
"""Where the checked part of a line begins."""
_RECORD: Final = b',"record":'
# A key is a JSON string, whose quotes are escaped: the first `,"record":` of a line is never inside it.
_FIELDS: Final = re.compile(rb'","durable":(0|[1-9][0-9]{0,18})(?:,"key":("[ -~]*"))?')
_CLAIM: Final = re.compile(rb'\{"check":"[0-9a-f]{16}","durable":([0-9]{1,19}),')


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What a line says whose checksum fits."""

    durable: int
    """How many bytes of the file, from its start, were acknowledged when the line was written."""
    key: str | None
    """The run's key, which the first line alone holds; None in the others."""
    text: str
    """The encoded record."""


class LineFormat:
    """Writes and checks the lines of one run."""

    __slots__ = ("_check", "_key")

    def __init__(self, key: str) -> None:
        self._check = hashlib.blake2b(digest_size=8, key=hashlib.sha256(key.encode("utf-8")).digest())
        self._key = json.dumps(key)

    def write(self, text: str, durable: int, *, first: bool) -> bytes:
        """The line of an encoded record, its end included."""
        key = f',"key":{self._key}' if first else ""
        rest = f'","durable":{durable}{key},"record":{text}}}'.encode("ascii")
        return b"".join((_OPENING, self._digest(rest), rest, b"\n"))

    def fits(self, data: bytes, start: int, end: int) -> bool:
        """Whether the checksum of the line at `data[start:end]` (without its line end) fits."""
        if end - start <= _REST or not data.startswith(_OPENING, start):
            return False
        return self._digest(data[start + _REST : end]) == data[start + len(_OPENING) : start + _REST]

    def _digest(self, rest: bytes) -> bytes:
        check = self._check.copy()
        check.update(rest)
        return check.hexdigest().encode("ascii")


def parse(data: bytes, start: int, end: int) -> Line | None:
    """The fields of a line whose checksum is known to fit; None if it is laid out in another way."""
    head, _, text = data[start + _REST : end].partition(_RECORD)
    fields = _FIELDS.fullmatch(head)
    if fields is None or not text.endswith(b"}") or not text.isascii():
        return None
    durable, key = fields.groups()
    return Line(int(durable), None if key is None else _string(key), text[:-1].decode("ascii"))


def _string(quoted: bytes) -> str | None:
    try:
        value = json.loads(quoted)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def owner(data: bytes, start: int, end: int) -> str | None:
    """The key that a first line names, where its checksum fits that key; None otherwise."""
    line = parse(data, start, end)
    if line is None or not line.key:
        return None
    try:
        return line.key if LineFormat(line.key).fits(data, start, end) else None
    except UnicodeEncodeError:
        return None


def claimed_durable(data: bytes, start: int) -> int:
    """What the beginning of a line says was durable, without a look at its checksum; 0 if it is unreadable."""
    claim = _CLAIM.match(data, start)
    return 0 if claim is None else int(claim[1])
