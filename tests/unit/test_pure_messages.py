"""The texts of the pure modules that people read: a run's `detail`, and the refusals of a template."""

from __future__ import annotations

import pytest

from polyloop import EffectIntended, EffectKind, InvalidRequest, ReplayPolicy, StopReason
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
