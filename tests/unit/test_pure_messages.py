"""The texts of the pure modules that people read: a run's `detail`, and the refusals of a template."""

from __future__ import annotations

import pytest

from polyloop import (
    CorruptRunLog,
    EffectIntended,
    EffectKind,
    InvalidRequest,
    ReplayPolicy,
    StopReason,
    UnsupportedSchemaVersion,
    decode,
)
from polyloop._assembly import check_template
from polyloop._stopping import explain


def test_the_detail_of_an_unknown_state_names_kind_step_and_attempt() -> None:
    intent = EffectIntended(
        seq=7,
        recorded_at="2026-01-01T00:00:00.000000+00:00",
        result_id="000003-model_call",
        kind=EffectKind.MODEL_CALL,
        step_idx=3,
        attempt=2,
        replay=ReplayPolicy.NEVER,
        action=None,
    )
    assert explain(StopReason.RESUME_STATE_UNKNOWN, intent) == (
        "the model call of step 3, attempt 2, was announced and has no recorded result: "
        "it may have happened, and is not declared safe to repeat"
    )


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (7, "must be a string, got int"),
        ("none", "must contain {observation} exactly once, found 0 times"),
        ("{observation} and {observation}", "must contain {observation} exactly once, found 2 times"),
    ],
)
def test_a_template_is_refused_with_what_is_wrong(template: object, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_template(template)
    assert (caught.value.field, caught.value.problem) == ("AgentDefinition.observation_template", problem)


ENDED = (
    '{"schema":"1.0","record":"run_finished","seq":0,"recorded_at":"2026-01-01T00:00:00.000000+00:00",'
    '"stop_reason":"env_error","final_answer":null,"detail":null,"event_sink_failures":0}'
)
STEPPED = (
    '{"schema":"1.0","record":"step_completed","seq":0,"recorded_at":"2026-01-01T00:00:00.000000+00:00",'
    '"step":[],"result_id":null,"stop_reason":null,"final_answer":null}'
)
LONG = "x" * 60


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ENDED.replace('"env_error"', "7"), "a StopReason must be a string"),
        (ENDED.replace("env_error", LONG), f"StopReason literals such as '{LONG[:40]}' do not exist"),
        (STEPPED, "Step must be a JSON object"),
        (
            ENDED.replace('"event_sink_failures":0', '"event_sink_failures":NaN'),
            "it is not strict JSON (NaN is not JSON)",
        ),
    ],
    ids=["type", "literal", "object", "constant"],
)
def test_a_damaged_record_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(CorruptRunLog) as caught:
        decode(text)
    assert caught.value.problem == problem


def test_a_literal_of_the_future_is_named() -> None:
    with pytest.raises(UnsupportedSchemaVersion, match=f"StopReason literals such as '{LONG[:40]}' are not known here"):
        decode(ENDED.replace('"1.0"', '"1.7"').replace("env_error", LONG))
