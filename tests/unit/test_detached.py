"""A copy of a record that is made field by field forgets no field, one that is added one day included."""

from __future__ import annotations

import dataclasses

from polyloop.types import EffectIntended, EffectKind, PlannedAction, ReplayPolicy
from polyloop.types.records import detached

PLAN = PlannedAction(action_text="go", tool_name="walk", arguments={"to": ["there"]}, history_text="I go")

INTENT = EffectIntended(
    seq=7,
    recorded_at="2026-03-04T05:06:07.000001+00:00",
    result_id="000003-action",
    kind=EffectKind.ACTION,
    step_idx=3,
    attempt=2,
    replay=ReplayPolicy.SAFE,
    action=PLAN,
)


def test_the_records_here_leave_no_field_at_its_default() -> None:
    """Whoever adds a field gives it a value here, so that the next test sees whether it is copied."""
    for value in (INTENT, PLAN):
        for field in dataclasses.fields(value):
            assert field.default_factory is dataclasses.MISSING
            assert getattr(value, field.name) != field.default, f"give {field.name} another value than its default"


def test_a_copy_of_an_announced_action_has_every_field() -> None:
    copy = detached(INTENT)
    assert isinstance(copy, EffectIntended)
    assert copy.action is not None
    for original, copied in ((INTENT, copy), (PLAN, copy.action)):
        for field in dataclasses.fields(original):
            assert getattr(copied, field.name) == getattr(original, field.name), field.name
    assert copy.action.arguments is not PLAN.arguments
