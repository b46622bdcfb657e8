"""Hypothesis strategies for records and what they hold: every string that Python can hold, every number of JSON."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

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
from polyloop.types._checks import MAX_INT

_PIECES: Final = (
    *("\0", "\n", "\r\n", "\u2028", "\u0085", "\ufeff", '"', "\\", "\\u0000", "\\ud83d"),
    *(
        "%",
        "%25",
        "%d83d",
        "%de00",
        "%0041",
        "\ud83d",
        "\ude00",
        "\ud83d\ude00",
        "\U0001f600",
        "\udc80",
        "é",
        "e\u0301",
    ),
)

texts: Final = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(st.characters(), max_size=4)), max_size=5).map(
    "".join
)
"""Any string, lone surrogates and halves that meet to make a pair included."""

ints: Final = st.one_of(st.integers(), st.integers(0, 640).map(lambda digits: 10**digits - 1))
floats: Final = st.floats(allow_nan=False, allow_infinity=False)
scalars: Final = st.one_of(st.none(), st.booleans(), ints, floats, texts)

json_values: Final[st.SearchStrategy[JSONValue]] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
json_objects: Final = st.dictionaries(texts, json_values, max_size=4)

_counts: Final = st.one_of(st.integers(0, 9), st.integers(0, MAX_INT))
_optional_texts: Final = st.none() | texts
_names: Final = texts.filter(bool)
_times: Final = st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}\+00:00\Z")
_versions: Final = st.from_regex(r"\A(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\Z")

replies: Final = st.builds(ModelReply, call_id=st.none() | _names, text=texts, reasoning=_optional_texts)
outcomes: Final = st.builds(
    ActionOutcome,
    status=st.sampled_from(ActionStatus),
    observation=texts,
    completed=st.none() | st.booleans(),
    truncated_chars=_counts,
    observation_is_synthetic=st.booleans(),
)
actions: Final = st.builds(
    PlannedAction, action_text=texts, tool_name=_optional_texts, arguments=json_objects, history_text=texts
)
steps: Final = st.builds(
    Step,
    step_idx=_counts,
    raw_output=texts,
    content_chars=_counts,
    thinking_chars=_counts,
    action=_optional_texts,
    parse_ok=st.booleans(),
    parse_error=_optional_texts,
    observation=texts,
    observation_is_synthetic=st.booleans(),
    observation_truncated_chars=_counts,
    prompt_chars=_counts,
    call_id=_optional_texts,
    step_wall_ms=_counts,
    tool_name=_optional_texts,
    tool_arguments_json=_optional_texts,
    action_status=_optional_texts,
    schema_version=_versions,
)

starts: Final = st.builds(
    RunStarted, seq=_counts, recorded_at=_times, params_snapshot=json_objects, library_version=texts
)


_NONE: Final[st.SearchStrategy[None]] = st.none()


def _intents(kind: EffectKind, action: st.SearchStrategy[PlannedAction | None]) -> st.SearchStrategy[EffectIntended]:
    return st.builds(
        EffectIntended,
        seq=_counts,
        recorded_at=_times,
        result_id=_names,
        kind=st.just(kind),
        step_idx=_counts,
        attempt=st.one_of(st.integers(1, 9), st.integers(1, MAX_INT)),
        replay=st.sampled_from(ReplayPolicy),
        action=action,
    )


def _results(
    reply: st.SearchStrategy[ModelReply | None] = _NONE,
    outcome: st.SearchStrategy[ActionOutcome | None] = _NONE,
    error: st.SearchStrategy[str | None] = _NONE,
) -> st.SearchStrategy[EffectCompleted]:
    return st.builds(
        EffectCompleted,
        seq=_counts,
        recorded_at=_times,
        result_id=_names,
        reply=reply,
        outcome=outcome,
        error=error,
    )


intents: Final = st.one_of(_intents(EffectKind.MODEL_CALL, st.none()), _intents(EffectKind.ACTION, actions))
results: Final = st.one_of(_results(reply=replies), _results(outcome=outcomes), _results(error=texts))
step_records: Final = st.builds(
    StepCompleted,
    seq=_counts,
    recorded_at=_times,
    step=steps,
    result_id=_optional_texts,
    stop_reason=st.none() | st.sampled_from(StopReason),
    final_answer=_optional_texts,
)
ends: Final = st.builds(
    RunFinished,
    seq=_counts,
    recorded_at=_times,
    stop_reason=st.sampled_from(StopReason),
    final_answer=_optional_texts,
    detail=_optional_texts,
    event_sink_failures=_counts,
)

records: Final[st.SearchStrategy[Record]] = st.one_of(starts, intents, results, step_records, ends)
"""A record of any kind."""
