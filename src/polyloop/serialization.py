"""Records as text and back: one line of strict ASCII JSON a record, with a schema version in each.

`encode` writes the present version. `decode` reads every version of the same major: a newer minor may have
fields that this library does not know, which are ignored; kinds and enum literals that it does not know are
refused (`UnsupportedSchemaVersion`), since a record that is half understood is worse than none. In a version
that this library knows, all of these are damage (`CorruptRunLog`).

Deep equality after a round trip is the promise, equality of bytes is not. Why:
`research-wiki/design/0011-json-and-serialization.md`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias, cast

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    InvalidRequest,
    JSONValue,
    ModelReply,
    PlannedAction,
    Record,
    ReplayPolicy,
    RunFinished,
    RunStarted,
    Step,
    StepCompleted,
    StopReason,
    UnsupportedSchemaVersion,
)
from polyloop.types._json import copy_object, dumps, unescaped
from polyloop.types.steps import SCHEMA_VERSION, check_version

__all__ = ["SCHEMA_VERSION", "decode", "encode"]

SCHEMA_VERSIONS: Final[Mapping[str, str]] = {
    "1.0": "the first version: five kinds of records",
}
"""Every version that was ever written, with what it brought. Each keeps a stored fixture that still decodes."""

_MAJOR, _MINOR = (int(part) for part in SCHEMA_VERSION.split("."))

_Object: TypeAlias = dict[str, JSONValue]
_Literals: TypeAlias = EffectKind | ReplayPolicy | StopReason | ActionStatus
_Convert: TypeAlias = Callable[["_Source", JSONValue], object]


def encode(record: Record) -> str:
    """One line of strict ASCII JSON, without its line end.

    Raises:
        InvalidRequest: if a mapping inside holds what is not JSON; names the path.
    """
    kind = _KIND_OF.get(type(record))
    if kind is None:
        raise InvalidRequest("record", f"must be a record of a run's log, got {type(record).__name__}")
    plain = _plain(record)
    text, escaped = dumps(plain)
    head = f'{{"schema":"{SCHEMA_VERSION}","record":"{kind}",'
    return f'{head}"escaped":true,{text[1:]}' if escaped else head + text[1:]


def _plain(value: object) -> _Object:
    plain: _Object = {}
    for name in _FIELDS[type(value)]:
        inner = getattr(value, name)
        if type(inner) in _ATOMS:
            plain[name] = inner
        elif type(inner) in _FIELDS:
            plain[name] = _plain(inner)
        elif isinstance(inner, Mapping):
            plain[name] = copy_object(inner, f"{type(value).__name__}.{name}")
        else:
            plain[name] = inner
    return plain


def decode(text: str) -> Record:
    """The record that `encode` wrote.

    Raises:
        CorruptRunLog: if the text is not a record of a version that this library knows.
        UnsupportedSchemaVersion: if a newer library wrote it and this one cannot read it.
    """
    document = _parse(text)
    source = _Source.of(document)
    try:
        if "escaped" in document:
            if document.pop("escaped") is not True:
                raise source.unknown("other ways to escape strings")
            document = cast("_Object", unescaped(copy_object(document, "record")))
        kind = document.pop("record", None)
        if not isinstance(kind, str):
            raise source.corrupt("it does not say which record it is")
        if kind not in _CLASS_OF:
            raise source.unknown(f"records of kind {kind[:40]!a}")
        return cast("Record", _build(source, _CLASS_OF[kind], document))
    except (InvalidRequest, ValueError) as problem:
        raise source.corrupt(str(problem)[:500]) from None


def _parse(text: str) -> _Object:
    if not (isinstance(text, str) and text.isascii()):
        raise CorruptRunLog(CorruptionReason.MALFORMED_RECORD, "a record must be ASCII text")
    try:
        document = _DECODER.decode(text)
    except (ValueError, RecursionError) as problem:
        raise CorruptRunLog(CorruptionReason.MALFORMED_RECORD, f"it is not strict JSON ({problem!s:.200})") from None
    if not isinstance(document, dict):
        raise CorruptRunLog(CorruptionReason.MALFORMED_RECORD, "a record must be a JSON object")
    return document


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is known of a document while it is decoded: its version, and where its record would stand."""

    version: str
    newer: bool
    seq: int | None

    @classmethod
    def of(cls, document: _Object) -> _Source:
        version, seq = document.pop("schema", None), document.get("seq")
        known_seq = seq if type(seq) is int else None
        try:
            check_version("schema", version)
        except InvalidRequest as problem:
            raise CorruptRunLog(CorruptionReason.MALFORMED_RECORD, str(problem), seq=known_seq) from None
        major, minor = (int(part) for part in str(version).split("."))
        if major != _MAJOR:
            raise UnsupportedSchemaVersion(str(version), SCHEMA_VERSION, "another major version")
        return cls(version=str(version), newer=minor > _MINOR, seq=known_seq)

    def corrupt(self, problem: str) -> CorruptRunLog:
        return CorruptRunLog(CorruptionReason.MALFORMED_RECORD, problem, seq=self.seq)

    def unknown(self, what: str) -> CorruptRunLog | UnsupportedSchemaVersion:
        """What the version says of something unknown: the future, or damage."""
        if self.newer:
            return UnsupportedSchemaVersion(self.version, SCHEMA_VERSION, f"{what} are not known here")
        return self.corrupt(f"{what} do not exist")


def _build(source: _Source, cls: type, data: _Object) -> object:
    names = _FIELDS[cls]
    missing = [name for name in names if name not in data]
    if missing:
        raise source.corrupt(f"{cls.__name__} lacks {', '.join(missing)}")
    if len(data) != len(names) and not source.newer:
        surplus = ", ".join(ascii(name[:40]) for name in data if name not in names)
        raise source.corrupt(f"{cls.__name__} has no {surplus}")
    values: dict[str, object] = {name: data[name] for name in names}
    for name, convert in _CONVERT.get(cls, ()):
        if values[name] is not None:
            values[name] = convert(source, data[name])
    return cls(**values)


def _literal(enum_class: type[_Literals], source: _Source, value: JSONValue) -> object:
    if not isinstance(value, str):
        raise source.corrupt(f"a {enum_class.__name__} must be a string")
    try:
        return enum_class(value)
    except ValueError:
        raise source.unknown(f"{enum_class.__name__} literals such as {value[:40]!a}") from None


def _object(cls: type, source: _Source, value: JSONValue) -> object:
    if not isinstance(value, dict):
        raise source.corrupt(f"{cls.__name__} must be a JSON object")
    return _build(source, cls, value)


def _mapping(_source: _Source, value: JSONValue) -> object:
    return copy_object(cast("_Object", value), "record")


def _unique(pairs: list[tuple[str, JSONValue]]) -> _Object:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return document


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)

_KIND_OF: Final[Mapping[type, str]] = {
    RunStarted: "run_started",
    EffectIntended: "effect_intended",
    EffectCompleted: "effect_completed",
    StepCompleted: "step_completed",
    RunFinished: "run_finished",
}
_CLASS_OF: Final[Mapping[str, type]] = {kind: cls for cls, kind in _KIND_OF.items()}

_ATOMS: Final = frozenset((str, int, bool, type(None), EffectKind, ReplayPolicy, StopReason, ActionStatus))
"""What is written as it is. Asked first: the question whether something is a `Mapping` costs more than all others."""

_FIELDS: Final[Mapping[type, tuple[str, ...]]] = {
    cls: tuple(field.name for field in dataclasses.fields(cls))
    for cls in (*_KIND_OF, PlannedAction, ModelReply, ActionOutcome, Step)
}

_CONVERT: Final[Mapping[type, tuple[tuple[str, _Convert], ...]]] = {
    RunStarted: (("params_snapshot", _mapping),),
    EffectIntended: (
        ("kind", partial(_literal, EffectKind)),
        ("replay", partial(_literal, ReplayPolicy)),
        ("action", partial(_object, PlannedAction)),
    ),
    EffectCompleted: (("reply", partial(_object, ModelReply)), ("outcome", partial(_object, ActionOutcome))),
    StepCompleted: (("step", partial(_object, Step)), ("stop_reason", partial(_literal, StopReason))),
    RunFinished: (("stop_reason", partial(_literal, StopReason)),),
    PlannedAction: (("arguments", _mapping),),
    ActionOutcome: (("status", partial(_literal, ActionStatus)),),
}
