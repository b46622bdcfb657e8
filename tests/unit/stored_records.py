"""The records that `fixtures/records-1.0.jsonl` holds, line by line, as values."""

from __future__ import annotations

from typing import Final

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


def _at(second: int) -> str:
    return f"2026-03-04T05:06:{second:02d}.000089+00:00"


_SNAPSHOT: Final[dict[str, JSONValue]] = {
    "model": {"name": "small", "temperature": 0.0, "top_p": 1, "stop": [], "seed": None, "stream": False},
    "budget": {"max_steps": 3, "max_prompt_chars": 9223372036854775807},
    "numbers": [True, 1, 1.0, -0.0, 1e-07, 5e-324, 1e22, -17, 123456789012345678901234567890],
    "tools": [{"name": "walk", "parameters": {"type": "object"}, "replay": "safe"}],
    "é\u2028\0": {"": [[], {}, ""]},
}

VERSION_1_0: Final[tuple[Record, ...]] = (
    RunStarted(seq=0, recorded_at=_at(0), params_snapshot=_SNAPSHOT, library_version="0.1.0"),
    EffectIntended(
        seq=1,
        recorded_at=_at(1),
        result_id="000000-model_call",
        kind=EffectKind.MODEL_CALL,
        step_idx=0,
        attempt=1,
        replay=ReplayPolicy.SAFE,
        action=None,
    ),
    EffectCompleted(
        seq=2,
        recorded_at=_at(2),
        result_id="000000-model_call",
        reply=ModelReply(call_id="call-1", text='walk {"to": "the door"}\n', reasoning="It is open. \U0001f6aa"),
        outcome=None,
        error=None,
    ),
    EffectIntended(
        seq=3,
        recorded_at=_at(3),
        result_id="000000-action",
        kind=EffectKind.ACTION,
        step_idx=0,
        attempt=2,
        replay=ReplayPolicy.NEVER,
        action=PlannedAction(
            action_text="walk to the door",
            tool_name="walk",
            arguments={
                "to": "the door",
                "steps": 3,
                "how": {"fast": True, "by": None, "speed": 1.5, "via": ["a", "b"]},
            },
            history_text='walk {"to": "the door"}',
        ),
    ),
    EffectCompleted(
        seq=4,
        recorded_at=_at(4),
        result_id="000000-action",
        reply=None,
        outcome=ActionOutcome(
            status=ActionStatus.EXECUTED,
            observation="The door says: \0 \ud800 100% \x7f",
            completed=None,
            truncated_chars=12,
            observation_is_synthetic=True,
        ),
        error=None,
    ),
    StepCompleted(
        seq=5,
        recorded_at=_at(5),
        step=Step(
            step_idx=0,
            raw_output='walk {"to": "the door"}',
            content_chars=24,
            thinking_chars=12,
            action="walk to the door",
            parse_ok=True,
            parse_error=None,
            observation="The door says: \0 \ud800 100% \x7f",
            observation_is_synthetic=True,
            observation_truncated_chars=12,
            prompt_chars=345,
            call_id="call-1",
            step_wall_ms=6789,
            tool_name="walk",
            tool_arguments_json='{"to":"the door","steps":3}',
            action_status="executed",
            schema_version="1.0",
        ),
        result_id="000000-action",
        stop_reason=StopReason.ENV_ERROR,
        final_answer=None,
    ),
    EffectCompleted(
        seq=6,
        recorded_at=_at(6),
        result_id="000001-model_call",
        reply=None,
        outcome=None,
        error="TimeoutError: the gateway did not answer",
    ),
    StepCompleted(
        seq=7,
        recorded_at=_at(7),
        step=Step(
            step_idx=1,
            raw_output="",
            content_chars=0,
            thinking_chars=0,
            action=None,
            parse_ok=False,
            parse_error="no decision",
            observation="no decision",
            observation_is_synthetic=True,
            observation_truncated_chars=0,
            prompt_chars=0,
            call_id=None,
            step_wall_ms=0,
        ),
        result_id=None,
        stop_reason=None,
        final_answer=None,
    ),
    # The two halves of a pair, held as two characters: the line is escaped.
    EffectCompleted(
        seq=8,
        recorded_at=_at(8),
        result_id="000002-model_call",
        reply=ModelReply(call_id=None, text="\ud83d\ude00 is two, \U0001f600 is one, 100%", reasoning=None),
        outcome=None,
        error=None,
    ),
    RunFinished(
        seq=9,
        recorded_at=_at(9),
        stop_reason=StopReason.CANCELLED,
        final_answer=None,
        detail=None,
        event_sink_failures=2,
    ),
    RunFinished(
        seq=10,
        recorded_at=_at(10),
        stop_reason=StopReason.AGENT_FINISHED,
        final_answer="42",
        detail="in so many words",
        event_sink_failures=0,
    ),
)
"""One of each kind, and of each way in which a record of that kind can be filled."""
