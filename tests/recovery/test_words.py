"""What a refused log is told, and how differences of identity are put: people act on these words."""

from __future__ import annotations

import dataclasses

import pytest

from polyloop._recovery import differences, next_move
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    ActionStatus,
    CorruptionReason,
    CorruptRunLog,
    IdentityDifference,
    Record,
    ReplayPolicy,
    RunKey,
    RunLog,
    StopReason,
)
from tests.builders import definition, request
from tests.family import renumbered
from tests.recovery.logs import ACTION, MODEL, PLAN, came, end, intent, name_of, replied, start, step

M0, A0 = name_of(0, MODEL), name_of(0, ACTION)
ASKED: tuple[Record, ...] = (start(), intent(0, MODEL), replied(M0))
ACTING: tuple[Record, ...] = (*ASKED, intent(0, ACTION))
ACTED: tuple[Record, ...] = (*ACTING, came(A0, ActionStatus.EXECUTED))
LONG = "x" * 60
FINISHED = StopReason.AGENT_FINISHED

REFUSED = [
    (
        (*ASKED, step(0, "final", FINISHED, final_answer="42"), intent(1, MODEL)),
        "a record follows a step that ended the run",
    ),
    (
        (*ACTING, intent(0, ACTION, attempt=2, action=dataclasses.replace(PLAN, action_text="other"))),
        "a repeated intent announces another action",
    ),
    ((*ACTED, step(0, "executed", result_id=M0)), "a step does not belong to the effect before it"),
    (
        (*ACTED, step(0, "executed", StopReason.TASK_COMPLETED, result_id=A0)),
        "a step's verdict contradicts the result before it",
    ),
    (
        (*ASKED, step(0, "final", FINISHED)),
        "a final answer stands without agent_finished, or lacks with it",
    ),
    ((start(), intent(0, MODEL, result_id=LONG)), f"an intent is named '{LONG[:40]}'"),
    ((start(), intent(0, MODEL), replied(LONG)), f"a result for '{LONG[:40]}', not open"),
    ((*ASKED, replied(M0)), "an effect has two results"),
    ((start(), replied(M0)), "a result stands where none is due"),
    ((start(), step(0, "invalid")), "a step stands where none is due"),
    ((start(), intent(0, ACTION)), "an intent (action) stands where none is due"),
    ((start(), end(FINISHED)), "the run cannot end with agent_finished here"),
]


@pytest.mark.parametrize(("records", "problem"), REFUSED, ids=[problem[:50] for _, problem in REFUSED])
def test_a_refusal_says_what_was_found(records: tuple[Record, ...], problem: str) -> None:
    log = RunLog.from_records(renumbered(records))
    with pytest.raises(CorruptRunLog) as caught:
        next_move(log, model_call_replay=ReplayPolicy.SAFE, tool_replay={})
    assert caught.value.problem == problem
    assert caught.value.seq == len(records) - 1
    assert caught.value.reason in CorruptionReason


def test_what_stands_on_one_side_only_is_told_with_its_value() -> None:
    assert differences({"a": 1, "b": [1]}, {"b": [1, True], "c": None}) == (
        IdentityDifference(path="a", recorded="1", present=None),
        IdentityDifference(path="b[1]", recorded=None, present="true"),
        IdentityDifference(path="c", recorded=None, present="null"),
    )


def test_positions_are_told_in_their_own_order() -> None:
    found = differences({"a": list(range(12))}, {"a": list(range(1, 13))})
    assert [each.path for each in found] == [f"a[{index}]" for index in range(12)]


def test_a_tool_that_is_no_mapping_is_compared_as_it_is() -> None:
    assert differences({"tools": ["x"]}, {"tools": ["y"]}) == (
        IdentityDifference(path="tools[0]", recorded='"x"', present='"y"'),
    )


async def test_a_log_with_a_gap_is_damage_whoever_built_it() -> None:
    """A store that does not build its logs with `RunLog.from_records` is not trusted to have looked."""
    made, asked = definition(), request()
    await made.run(asked)
    whole = await made.store.read_log(asked.key)
    gap = dataclasses.replace(whole, intents=whole.intents[1:])

    class Careless(EphemeralRunStore):
        async def read_log(self, key: RunKey, /) -> RunLog:
            return gap

    with pytest.raises(CorruptRunLog) as caught:
        await dataclasses.replace(made, store=Careless()).resume(asked)
    assert (caught.value.reason, caught.value.key) == (CorruptionReason.WRONG_POSITION, asked.key)
