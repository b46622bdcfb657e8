"""The crash table of `polyloop._recovery`, row by row, and the closed list of reasons to refuse a log."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from polyloop._recovery import (
    CallModel,
    Execute,
    Finish,
    Move,
    NextIteration,
    ReadReply,
    RecordAction,
    RecordModelError,
    effect_id,
    next_move,
)
from polyloop.serialization import decode
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import (
    ActionStatus,
    CorruptionReason,
    CorruptRunLog,
    EffectIntended,
    Record,
    ReplayPolicy,
    RunKey,
    RunLog,
    StopReason,
)
from tests.family import renumbered
from tests.recovery.logs import ACTION, MODEL, PLAN, REPLY, came, end, failed, intent, name_of, replied, start, step
from tests.seams import append

NEVER, SAFE = ReplayPolicy.NEVER, ReplayPolicy.SAFE
EXECUTED, NOT_EXECUTED, ENV_ERROR = ActionStatus.EXECUTED, ActionStatus.NOT_EXECUTED, ActionStatus.ENV_ERROR
M0, A0 = name_of(0, MODEL), name_of(0, ACTION)
ASKED: tuple[Record, ...] = (start(), intent(0, MODEL), replied(M0))
ACTING: tuple[Record, ...] = (*ASKED, intent(0, ACTION))
STEPPED: tuple[Record, ...] = (*ACTING, came(A0, EXECUTED), step(0, "executed", result_id=A0))
CANCELLED = end(StopReason.CANCELLED)


def log_of(*records: Record) -> RunLog:
    return RunLog.from_records(renumbered(records))


def move_of(
    *records: Record, model_call_replay: ReplayPolicy = SAFE, tool_replay: Mapping[str, ReplayPolicy] | None = None
) -> Move | None:
    tools = {"look": SAFE} if tool_replay is None else tool_replay
    return next_move(log_of(*records), model_call_replay=model_call_replay, tool_replay=tools)


def last_of(*records: Record) -> Record:
    return renumbered(records)[-1]


@pytest.mark.parametrize(
    "records",
    [
        (start(),),
        STEPPED,
        (*ASKED, step(0, "invalid")),
        (*ASKED, step(0, "not_executed")),
        (*ACTING, came(A0, NOT_EXECUTED), step(0, "not_executed", result_id=A0)),
        (*ACTING, came(A0, NOT_EXECUTED, completed=True), step(0, "not_executed", result_id=A0)),
    ],
)
def test_a_start_or_a_step_without_verdict_leads_to_the_next_iteration(records: tuple[Record, ...]) -> None:
    assert move_of(*records) == NextIteration()
    assert move_of(*records, CANCELLED) == NextIteration()


@pytest.mark.parametrize("attempt", [1, 2, 7])
@pytest.mark.parametrize("recorded", ReplayPolicy)
@pytest.mark.parametrize("present", ReplayPolicy)
def test_a_model_intent_is_called_again_only_where_both_policies_say_safe(
    attempt: int, recorded: ReplayPolicy, present: ReplayPolicy
) -> None:
    earlier = [intent(0, MODEL, attempt=number, replay=recorded) for number in range(1, attempt + 1)]
    records: tuple[Record, ...] = (start(), *earlier)
    move = move_of(*records, model_call_replay=present)
    if recorded is present is SAFE:
        assert move == CallModel(attempt=attempt + 1)
    else:
        assert move == Finish(
            stop_reason=StopReason.RESUME_STATE_UNKNOWN,
            final_answer=None,
            evidence=cast("EffectIntended", last_of(*records)),
        )


@pytest.mark.parametrize("recorded", [(NEVER, SAFE), (SAFE, NEVER)])
def test_of_several_attempts_the_last_intent_decides(recorded: tuple[ReplayPolicy, ReplayPolicy]) -> None:
    first, last = recorded
    model = (start(), intent(0, MODEL, replay=first), intent(0, MODEL, attempt=2, replay=last))
    action = (*ASKED, intent(0, ACTION, replay=first), intent(0, ACTION, attempt=2, replay=last))
    for records in (model, action):
        assert isinstance(move_of(*records), Finish) is (last is NEVER)


def test_a_reply_is_parsed_again() -> None:
    assert move_of(*ASKED) == ReadReply(reply=REPLY)
    assert move_of(*ASKED, CANCELLED) == ReadReply(reply=REPLY)


def test_a_model_error_is_recorded() -> None:
    records = (start(), intent(0, MODEL), failed(M0))
    move = move_of(*records)
    assert isinstance(move, RecordModelError)
    assert move.result == last_of(*records)


@pytest.mark.parametrize("recorded", ReplayPolicy)
@pytest.mark.parametrize("present", [*ReplayPolicy, None])
@pytest.mark.parametrize("tool_name", ["look", None])
def test_an_action_intent_is_executed_again_only_where_both_policies_say_safe_and_it_is_a_tool_call(
    recorded: ReplayPolicy, present: ReplayPolicy | None, tool_name: str | None
) -> None:
    plan = dataclasses.replace(PLAN, tool_name=tool_name)
    tools = {} if present is None else {"look": present}
    records = (*ASKED, intent(0, ACTION, replay=recorded, action=plan))
    # The model's policy is of no account here.
    for model_call_replay in ReplayPolicy:
        move = move_of(*records, tool_replay=tools, model_call_replay=model_call_replay)
        if recorded is present is SAFE and tool_name == "look":
            assert move == Execute(action=plan, reply=REPLY, attempt=2)
        else:
            assert isinstance(move, Finish)
            assert move.stop_reason is StopReason.RESUME_STATE_UNKNOWN
            assert move.evidence == last_of(*records)


@pytest.mark.parametrize("error", [False, True])
def test_an_action_result_is_recorded_from_its_intent(error: bool) -> None:
    records = (*ACTING, failed(A0) if error else came(A0, EXECUTED, completed=True))
    move = move_of(*records)
    assert isinstance(move, RecordAction)
    assert (move.action, move.reply, move.result, move.wall_ms) == (PLAN, REPLY, last_of(*records), None)


JUDGED: list[tuple[StopReason, str | None, tuple[Record, ...]]] = [
    (
        StopReason.TASK_COMPLETED,
        None,
        (*ACTING, came(A0, EXECUTED, completed=True), step(0, "executed", StopReason.TASK_COMPLETED, result_id=A0)),
    ),
    (StopReason.AGENT_FINISHED, "42", (*ASKED, step(0, "final", StopReason.AGENT_FINISHED, final_answer="42"))),
    (StopReason.AGENT_FINISHED, "", (*ASKED, step(0, "final", StopReason.AGENT_FINISHED, final_answer=""))),
    (StopReason.PARSE_FAILED_REPEATEDLY, None, (*ASKED, step(0, "invalid", StopReason.PARSE_FAILED_REPEATEDLY))),
    (
        StopReason.ENV_ERROR,
        None,
        (*ACTING, came(A0, ENV_ERROR, completed=True), step(0, "env_error", StopReason.ENV_ERROR, result_id=A0)),
    ),
    (
        StopReason.ENV_ERROR,
        None,
        (*ACTING, came(A0, EXECUTED, completed=None), step(0, "executed", StopReason.ENV_ERROR, result_id=A0)),
    ),
    (StopReason.ENV_ERROR, None, (*ACTING, failed(A0), step(0, "env_error", StopReason.ENV_ERROR, result_id=A0))),
    (
        StopReason.LLM_ERROR,
        None,
        (start(), intent(0, MODEL), failed(M0), step(0, "llm_error", StopReason.LLM_ERROR)),
    ),
]


@pytest.mark.parametrize(("stop_reason", "final_answer", "records"), JUDGED)
def test_a_step_with_a_verdict_is_finished_with_it(
    stop_reason: StopReason, final_answer: str | None, records: tuple[Record, ...]
) -> None:
    for interrupted in (records, (*records, CANCELLED)):
        move = move_of(*interrupted)
        assert isinstance(move, Finish)
        assert (move.stop_reason, move.final_answer) == (stop_reason, final_answer)
        assert move.evidence == renumbered(records)[-2], "its detail is made from the result behind the step"


@pytest.mark.parametrize(("stop_reason", "final_answer", "records"), JUDGED)
def test_an_ended_run_has_no_next_move(
    stop_reason: StopReason, final_answer: str | None, records: tuple[Record, ...]
) -> None:
    assert move_of(*records, end(stop_reason, final_answer=final_answer)) is None


@pytest.mark.parametrize("stop_reason", StopReason)
def test_between_steps_a_run_ends_with_a_budget_or_an_overflow_alone(stop_reason: StopReason) -> None:
    between = {StopReason.STEP_BUDGET, StopReason.ACTION_BUDGET, StopReason.CONTEXT_OVERFLOW}
    if stop_reason is StopReason.CANCELLED:
        assert move_of(*STEPPED, end(stop_reason)) == NextIteration()
    elif stop_reason in between:
        assert move_of(*STEPPED, end(stop_reason)) is None
    else:
        with pytest.raises(CorruptRunLog) as found:
            move_of(*STEPPED, end(stop_reason))
        assert found.value.reason is CorruptionReason.WRONG_VERDICT


def test_an_unknown_state_ends_an_open_effect_alone() -> None:
    unknown = end(StopReason.RESUME_STATE_UNKNOWN)
    assert move_of(start(), intent(0, MODEL), unknown) is None
    assert move_of(*ACTING, unknown) is None
    for records in ((start(),), ASKED, STEPPED, (*ACTING, came(A0, EXECUTED)), (start(), intent(0, MODEL), failed(M0))):
        with pytest.raises(CorruptRunLog):
            move_of(*records, unknown)


def test_cancelled_ends_change_nothing_wherever_and_however_many_they_are() -> None:
    records: tuple[Record, ...] = (*STEPPED, intent(1, MODEL))
    for places in itertools.product((0, 1, 2), repeat=len(records)):
        if sum(places) > 2:
            continue
        mixed: list[Record] = []
        for record, ends in zip(records, places, strict=True):
            mixed += [record, *[CANCELLED] * ends]
        assert move_of(*mixed) == CallModel(attempt=2)


def test_an_effect_has_one_name_on_every_attempt() -> None:
    assert effect_id(0, MODEL) == "000000-model_call"
    assert effect_id(7, ACTION) == "000007-action"
    assert effect_id(1_234_567, ACTION) == "1234567-action"


# --- the closed list of reasons


Damage = Callable[[Path], object]


def judged(*records: Record) -> Damage:
    return lambda _: move_of(*records)


def stored_otherwise(change: Callable[[bytes], bytes], key: str = "k") -> Damage:
    """A log in a file, changed there (and put in the place of another key's), and read again."""

    async def write(directory: Path, name: str) -> None:
        async with JsonlRunStore(directory) as store:
            for record in renumbered(STEPPED):
                await append(store, RunKey(name), record)

    async def read(directory: Path) -> None:
        async with JsonlRunStore(directory) as store:
            await store.read_log(RunKey(key))

    def damage(directory: Path) -> None:
        asyncio.run(write(directory, "k"))
        (path,) = directory.iterdir()
        damaged = change(path.read_bytes())
        if key != "k":
            asyncio.run(write(directory, key))
            path = next(each for each in directory.iterdir() if each != path)
        path.write_bytes(damaged)
        asyncio.run(read(directory))

    return damage


DAMAGES: list[tuple[CorruptionReason, Damage]] = [
    (CorruptionReason.MALFORMED_LINE, stored_otherwise(lambda data: data.replace(b"do it", b"do if", 1))),
    (CorruptionReason.MALFORMED_RECORD, lambda _: decode('{"schema_version":"1.0"}')),
    (CorruptionReason.MALFORMED_RECORD, lambda _: RunLog.from_records((cast("Record", PLAN),))),
    (CorruptionReason.WRONG_KEY, stored_otherwise(lambda data: data, key="other")),
    (CorruptionReason.WRONG_POSITION, lambda _: RunLog.from_records((start(), intent(0, MODEL)))),
    (CorruptionReason.MISSING_START, lambda _: log_of(intent(0, MODEL))),
    (CorruptionReason.SECOND_START, lambda _: log_of(start(), start())),
    (CorruptionReason.RECORD_AFTER_END, lambda _: log_of(start(), end(StopReason.CONTEXT_OVERFLOW), CANCELLED)),
    (CorruptionReason.WRONG_STEP, judged(start(), intent(1, MODEL))),
    (CorruptionReason.WRONG_STEP, judged(*ASKED, step(1, "invalid"))),
    (CorruptionReason.WRONG_ATTEMPT, judged(start(), intent(0, MODEL, attempt=2))),
    (CorruptionReason.WRONG_ATTEMPT, judged(*ACTING, intent(0, ACTION, attempt=3))),
    (CorruptionReason.WRONG_EFFECT, judged(start(), intent(0, MODEL, result_id=A0))),
    (CorruptionReason.WRONG_EFFECT, judged(start(), intent(0, MODEL), came(M0, EXECUTED))),
    (CorruptionReason.WRONG_EFFECT, judged(*ACTING, replied(A0))),
    (CorruptionReason.WRONG_EFFECT, judged(*ACTING, came(A0, EXECUTED), step(0, "executed", result_id=M0))),
    (
        CorruptionReason.WRONG_EFFECT,
        judged(*ACTING, intent(0, ACTION, attempt=2, action=dataclasses.replace(PLAN, arguments={}))),
    ),
    (CorruptionReason.INTENT_WITHOUT_TURN, judged(start(), intent(0, ACTION))),
    (CorruptionReason.INTENT_WITHOUT_TURN, judged(*ASKED, intent(0, MODEL, attempt=2))),
    (CorruptionReason.INTENT_WITHOUT_TURN, judged(*ACTING, came(A0, EXECUTED), intent(0, ACTION, attempt=2))),
    (CorruptionReason.RESULT_WITHOUT_INTENT, judged(start(), replied(M0))),
    (CorruptionReason.RESULT_WITHOUT_INTENT, judged(*ASKED, came(A0, EXECUTED))),
    (CorruptionReason.RESULT_WITHOUT_INTENT, judged(start(), intent(0, MODEL), replied(name_of(1, MODEL)))),
    (CorruptionReason.SECOND_RESULT, judged(*ASKED, replied(M0))),
    (CorruptionReason.SECOND_RESULT, judged(*ACTING, came(A0, EXECUTED), failed(A0))),
    (CorruptionReason.STEP_WITHOUT_RESULT, judged(start(), step(0, "invalid"))),
    (CorruptionReason.STEP_WITHOUT_RESULT, judged(start(), intent(0, MODEL), step(0, "invalid"))),
    (CorruptionReason.STEP_WITHOUT_RESULT, judged(*ACTING, step(0, "executed", result_id=A0))),
    (CorruptionReason.WRONG_VERDICT, judged(*ASKED, step(0, "final"))),
    (CorruptionReason.WRONG_VERDICT, judged(*STEPPED, end(StopReason.TASK_COMPLETED))),
    (
        CorruptionReason.WRONG_VERDICT,
        judged(*ASKED, step(0, "invalid", StopReason.PARSE_FAILED_REPEATEDLY), intent(1, MODEL)),
    ),
]


@pytest.mark.parametrize(("reason", "damage"), DAMAGES)
def test_each_kind_of_damage_has_its_reason(reason: CorruptionReason, damage: Damage, tmp_path: Path) -> None:
    with pytest.raises(CorruptRunLog) as found:
        damage(tmp_path)
    assert found.value.reason is reason
    assert found.value.problem


def test_the_list_of_reasons_is_closed() -> None:
    assert {reason for reason, _ in DAMAGES} == set(CorruptionReason)


def test_a_refusal_names_the_position_of_the_record_that_does_not_fit() -> None:
    with pytest.raises(CorruptRunLog) as found:
        move_of(*STEPPED, intent(1, MODEL), replied(M0), step(1, "invalid"))
    assert found.value.seq == 7
