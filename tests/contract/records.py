"""Records to fill logs with, text that is hard to keep, and a comparison that takes `True` and `1` apart.

The comparison is written here, and not with `==`, because Python's equality is what lets faults through: to it
`True`, `1` and `1.0` are one, `0.0` and `-0.0` too, and so are two mappings in different orders.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    EffectKind,
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
)

WHEN = "2026-03-04T05:06:07.000000+00:00"
"""A time whose microseconds a careless formatter drops."""


def started(snapshot: Mapping[str, JSONValue] | None = None, *, seq: int = 0, at: str = WHEN) -> RunStarted:
    """A start record."""
    return RunStarted(
        seq=seq, recorded_at=at, params_snapshot={"n": 1} if snapshot is None else snapshot, library_version="0.1.0"
    )


def model_intent(seq: int, step_idx: int = 0, *, attempt: int = 1, at: str = WHEN) -> EffectIntended:
    """The announcement of a model call."""
    return EffectIntended(
        seq=seq,
        recorded_at=at,
        result_id=f"{step_idx:06d}-model_call",
        kind=EffectKind.MODEL_CALL,
        step_idx=step_idx,
        attempt=attempt,
        replay=ReplayPolicy.SAFE,
        action=None,
    )


def action_intent(seq: int, step_idx: int = 0, *, action: PlannedAction | None = None) -> EffectIntended:
    """The announcement of an action."""
    planned = PlannedAction(action_text="go", tool_name="walk", arguments={"to": "there"}, history_text="I go")
    return EffectIntended(
        seq=seq,
        recorded_at=WHEN,
        result_id=f"{step_idx:06d}-action",
        kind=EffectKind.ACTION,
        step_idx=step_idx,
        attempt=1,
        replay=ReplayPolicy.NEVER,
        action=planned if action is None else action,
    )


def replied(seq: int, step_idx: int = 0, *, reply: ModelReply | None = None, at: str = WHEN) -> EffectCompleted:
    """The result of a model call."""
    said = ModelReply(call_id=f"c{step_idx}", text=f"reply {step_idx}", reasoning=None)
    return EffectCompleted(
        seq=seq,
        recorded_at=at,
        result_id=f"{step_idx:06d}-model_call",
        reply=said if reply is None else reply,
        outcome=None,
        error=None,
    )


def acted(seq: int, step_idx: int = 0, *, outcome: ActionOutcome | None = None) -> EffectCompleted:
    """The result of an action."""
    came = ActionOutcome(status=ActionStatus.EXECUTED, observation=f"saw {step_idx}", completed=False)
    return EffectCompleted(
        seq=seq,
        recorded_at=WHEN,
        result_id=f"{step_idx:06d}-action",
        reply=None,
        outcome=came if outcome is None else outcome,
        error=None,
    )


def failed(seq: int, error: str) -> EffectCompleted:
    """The result of an effect that raised."""
    return EffectCompleted(seq=seq, recorded_at=WHEN, result_id="effect", reply=None, outcome=None, error=error)


def a_step(step_idx: int = 0) -> Step:
    """The row of a step in which every field differs from every other and from its default."""
    return Step(
        step_idx=step_idx,
        raw_output=f"reply {step_idx}",
        content_chars=101,
        thinking_chars=102,
        action="go",
        parse_ok=True,
        parse_error="none to speak of",
        observation=f"saw {step_idx}",
        observation_is_synthetic=False,
        observation_truncated_chars=103,
        prompt_chars=104,
        call_id=f"c{step_idx}",
        step_wall_ms=105,
        tool_name="walk",
        tool_arguments_json='{"to":"there"}',
        action_status="executed",
    )


def stepped(seq: int, step_idx: int = 0, *, step: Step | None = None, at: str = WHEN) -> StepCompleted:
    """A step record."""
    return StepCompleted(
        seq=seq,
        recorded_at=at,
        step=a_step(step_idx) if step is None else step,
        result_id=f"{step_idx:06d}-action",
        stop_reason=None,
        final_answer=None,
    )


def ended(seq: int, stop_reason: StopReason = StopReason.TASK_COMPLETED, *, failures: int = 0) -> RunFinished:
    """An end record."""
    return RunFinished(
        seq=seq,
        recorded_at=WHEN,
        stop_reason=stop_reason,
        final_answer=None,
        detail=None,
        event_sink_failures=failures,
    )


def any_kind_at(seq: int) -> tuple[Record, ...]:
    """One record of each kind but the start, all for the same position."""
    return (model_intent(seq), action_intent(seq), replied(seq), stepped(seq), ended(seq))


def a_run(
    steps: int, *, end: StopReason | None = None, snapshot: Mapping[str, JSONValue] | None = None
) -> list[Record]:
    """The log of a run of so many steps, five records each, as a driver writes it."""
    records: list[Record] = [started(snapshot)]
    for step_idx in range(steps):
        seq = len(records)
        records += [
            model_intent(seq, step_idx),
            replied(seq + 1, step_idx),
            action_intent(seq + 2, step_idx),
            acted(seq + 3, step_idx),
            stepped(seq + 4, step_idx),
        ]
    if end is not None:
        records.append(ended(len(records), end))
    return records


def a_run_holding(text: str) -> list[Record]:
    """A log with the text in every place that holds text, keys of mappings included."""
    holding: dict[str, JSONValue] = {text: [text, {text: text}]}
    planned = PlannedAction(action_text=text, tool_name=text, arguments=holding, history_text=text)
    reply = ModelReply(call_id=text or None, text=text, reasoning=text)
    outcome = ActionOutcome(status=ActionStatus.EXECUTED, observation=text, completed=False)
    step = dataclasses.replace(
        a_step(),
        raw_output=text,
        action=text,
        parse_error=text,
        observation=text,
        call_id=text,
        tool_name=text,
        tool_arguments_json=text,
        action_status=text,
    )
    return [
        dataclasses.replace(started(holding), library_version=text),
        dataclasses.replace(model_intent(1), result_id=text or "id"),
        dataclasses.replace(replied(2, reply=reply), result_id=text or "id"),
        action_intent(3, action=planned),
        acted(4, outcome=outcome),
        failed(5, text[:2000]),
        dataclasses.replace(stepped(6, step=step), result_id=text, final_answer=text),
        dataclasses.replace(ended(7), final_answer=text, detail=text),
    ]


NUL_TEXTS = ("a\0b", "\0", "ends with\0", "\0begins", "\\u0000 is no NUL, \0 is")
SURROGATE_TEXTS = ("\ud800", "a\udfffb", "\ude00\ud83d", "\ud800 \ud800", "\udc80 as from surrogateescape")
PAIR_TEXTS = (
    "\ud83d\ude00",
    "\ud83d\ude00 is two, \U0001f600 is one",
    "%d83d%de00 and 100% \ud83d\ude00 and %25",
    "\ud83d\ud83d\ude00\ude00",
)
LINE_TEXTS = ("a\u2028b\u2029c", "a\x85b\x0bc\x0cd\x1ce\x1df\x1eg", "a\nb\r\nc\rd\n", "\n", "\r", "\n\n\n{}\n")
OTHER_TEXTS = (
    "",
    " ",
    " \t blanks around \t ",
    "\ufeffbyte order mark",
    "\uffff\ufffe\ufffd?",
    "'\"`\\ \\\\ \\n \\ud83d\\ude00 %25 %d83d &amp; &#0;",
    '{"seq": 0}',
    "null",
    "'; drop table runs; --",
    "\u00e9 e\u0301 \ufb01 \u212a \u0130",
    "\U0001f600 \U0010ffff",
    "".join(map(chr, range(1, 0x20))) + "".join(map(chr, range(0x7F, 0xA0))),
)
LARGE_TEXTS = ("x" * 1_000_000, "%\U0001f600\xe9" * 100_000)

NUMBERS: tuple[JSONValue, ...] = (
    True,
    1,
    1.0,
    False,
    0,
    0.0,
    -0.0,
    -1,
    0.1,
    1e-7,
    5e-324,
    1.7976931348623157e308,
    1e16,
    10**16,
    1e22,
    123456789012345680.0,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**100,
    10**640 - 1,
    -(10**640 - 1),
)
"""Numbers, each beside others that compare equal to it and are not the same, or that a narrower type cannot hold."""


def nested(depth: int) -> dict[str, JSONValue]:
    """A mapping of so many containers, one in the other."""
    value: JSONValue = "the innermost"
    for level in range(depth - 1):
        value = [value] if level % 2 else {"deeper": value}
    return {"outermost": value}


_SCALARS = frozenset((str, int, float, bool, type(None)))
_FIELDS: dict[type, tuple[str, ...]] = {}


def difference(expected: object, found: object, path: str) -> str | None:
    """Where and how two values differ first, in a few words; None where they are the same to the last bit."""
    problem = _differ(expected, found)
    return None if problem is None else path + problem


def _differ(expected: object, found: object) -> str | None:
    kind = type(expected)
    if kind is not type(found):
        return _unlike(expected, found)
    if kind in _SCALARS or isinstance(expected, enum.Enum):
        # Only repr tells -0.0 from 0.0, and takes NaN for itself.
        same = repr(expected) == repr(found) if kind is float else expected == found
        return None if same else _unlike(expected, found)
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        if list(expected) != list(found):
            return f" has the keys {_cut(ascii(list(found)))}, written were {_cut(ascii(list(expected)))}"
        return _first((key, value, found[key]) for key, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        if len(expected) != len(found):
            return f" has {len(found)} items, written were {len(expected)}"
        return _first(zip(range(len(expected)), expected, found, strict=True))
    return _first((name, getattr(expected, name), getattr(found, name)) for name in _field_names(kind))


def _first(parts: Iterable[tuple[object, object, object]]) -> str | None:
    for place, expected, found in parts:
        problem = _differ(expected, found)
        if problem is not None:
            return f"[{_cut(ascii(place))}]{problem}"
    return None


def _unlike(expected: object, found: object) -> str:
    return f" is {_shown(found)}, written was {_shown(expected)}"


def _field_names(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        assert dataclasses.is_dataclass(kind), f"records hold no {kind.__name__}"
        _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return _FIELDS[kind]


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return f"an int of {value.bit_length()} bits"
    return f"{type(value).__name__} {_cut(ascii(value))}"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"
