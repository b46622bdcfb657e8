"""Whether a run is resumed with what it was started with. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyloop.types import IdentityDifference, JSONValue
from polyloop.types._json import canonical


def differences(recorded: Mapping[str, JSONValue], present: Mapping[str, JSONValue]) -> tuple[IdentityDifference, ...]:
    """Where two snapshots differ, replay policies left aside: those are judged per effect.

    Values are compared by their canonical JSON text: `True` is not `1`, `1` is not `1.0`.
    """
    return tuple(_differ("", _without_replay(recorded), _without_replay(present)))


def _without_replay(snapshot: Mapping[str, JSONValue]) -> JSONValue:
    kept = {name: value for name, value in snapshot.items() if name != "model_call_replay"}
    tools = kept.get("tools")
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        kept["tools"] = [
            {name: value for name, value in tool.items() if name != "replay"} if isinstance(tool, Mapping) else tool
            for tool in tools
        ]
    return kept


def _differ(path: str, recorded: JSONValue, present: JSONValue) -> Iterator[IdentityDifference]:
    before, now = canonical(recorded), canonical(present)
    if before == now:
        return
    parts_before, parts_now = _parts(path, recorded), _parts(path, present)
    if parts_before is None or parts_now is None or type(recorded) is not type(present):
        yield IdentityDifference(path=path, recorded=before, present=now)
        return
    # Names in the order of the canonical text, positions in their own.
    named = isinstance(recorded, Mapping)
    parts = sorted(parts_before.keys() | parts_now.keys()) if named else dict.fromkeys([*parts_before, *parts_now])
    for part in parts:
        if part in parts_before and part in parts_now:
            yield from _differ(part, parts_before[part], parts_now[part])
        elif part in parts_before:
            yield IdentityDifference(path=part, recorded=canonical(parts_before[part]), present=None)
        else:
            yield IdentityDifference(path=part, recorded=None, present=canonical(parts_now[part]))


def _parts(path: str, value: JSONValue) -> dict[str, JSONValue] | None:
    """The parts of a container by their paths; None for anything that has none."""
    if isinstance(value, Mapping):
        return {f"{path}.{name}" if path else name: inner for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {f"{path}[{index}]": inner for index, inner in enumerate(value)}
    return None
