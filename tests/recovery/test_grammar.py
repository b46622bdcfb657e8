"""Which logs are refused: exactly those that no run can have written, each with a reason of the closed list."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest

from polyloop._recovery import next_move
from polyloop.types import (
    ActionStatus,
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    Record,
    ReplayPolicy,
    RunFinished,
    RunLog,
    StepCompleted,
    StopReason,
)
from tests.family import FAMILY, Scenario, must_not_go_on, renumbered
from tests.recovery.logs import (
    ACTION,
    MODEL,
    PLAN,
    came,
    end,
    failed,
    intent,
    name_of,
    replied,
    start,
    step,
    verdicts,
    writable,
)
from tests.recovery.test_cancelled_ends import with_ends_behind
from tests.recovery.test_every_prefix import resume_from, run_whole

ALL_TOOLS_SAFE = {"look": ReplayPolicy.SAFE, "fail": ReplayPolicy.SAFE}


def refusal(records: Sequence[Record]) -> CorruptRunLog | None:
    """Why this log is refused; None where it is taken."""
    log = RunLog.from_records(renumbered(records))
    try:
        next_move(log, model_call_replay=ReplayPolicy.SAFE, tool_replay=ALL_TOOLS_SAFE)
    except CorruptRunLog as found:
        return found
    return None


def check_judgement(records: Sequence[Record], story: str) -> None:
    try:
        found = refusal(records)
    except CorruptRunLog:
        return  # refused already where the log is built, for its positions and kinds alone
    expected = writable(records)
    assert (found is None) is expected, f"{story}: {'taken' if found is None else found}, should be {expected=}"


# --- every single change of every log of the family


def changes(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    """The log with one record dropped, doubled, changed, or exchanged with another one."""
    for at, record in enumerate(records):
        if at:
            yield f"without record {at}", [*records[:at], *records[at + 1 :]]
            yield f"with record {at} doubled", [*records[: at + 1], *records[at:]]
        for changed in changed_records(record):
            yield f"with {changed} for record {at}", [*records[:at], changed, *records[at + 1 :]]
    for one, other in itertools.combinations(range(1, len(records)), 2):
        swapped = list(records)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        yield f"with records {one} and {other} exchanged", swapped


def changed_records(record: Record) -> Iterator[Record]:
    match record:
        case EffectIntended():
            yield from changed_intents(record)
        case EffectCompleted():
            yield from changed_results(record)
        case StepCompleted():
            yield from changed_steps(record)
        case RunFinished():
            for reason, answer in itertools.product(StopReason, (None, "42", "other")):
                yield dataclasses.replace(record, stop_reason=reason, final_answer=answer)


def names_near(step_idx: int) -> Iterator[str]:
    for near, kind in itertools.product((step_idx - 1, step_idx, step_idx + 1), EffectKind):
        if near >= 0:
            yield name_of(near, kind)
    yield f"{step_idx}-model_call"


def changed_intents(record: EffectIntended) -> Iterator[Record]:
    for step_idx in {max(record.step_idx - 1, 0), record.step_idx + 1}:
        yield dataclasses.replace(record, step_idx=step_idx)
        yield dataclasses.replace(record, step_idx=step_idx, result_id=name_of(step_idx, record.kind))
    for attempt in {max(record.attempt - 1, 1), record.attempt + 1}:
        yield dataclasses.replace(record, attempt=attempt)
    for result_id in names_near(record.step_idx):
        yield dataclasses.replace(record, result_id=result_id)
    kind, action = (ACTION, PLAN) if record.kind is MODEL else (MODEL, None)
    yield dataclasses.replace(record, kind=kind, action=action)
    yield dataclasses.replace(record, kind=kind, action=action, result_id=name_of(record.step_idx, kind))
    if record.action is not None:
        yield dataclasses.replace(record, action=dataclasses.replace(record.action, action_text="another"))
        yield dataclasses.replace(record, action=dataclasses.replace(record.action, arguments={"another": 1}))


def changed_results(record: EffectCompleted) -> Iterator[Record]:
    for result_id in names_near(int(record.result_id[:6])):
        yield dataclasses.replace(record, result_id=result_id)
    for made in (
        replied(record.result_id),
        failed(record.result_id),
        *(
            came(record.result_id, status, completed=completed)
            for status, completed in itertools.product(ActionStatus, (True, False, None))
        ),
    ):
        yield dataclasses.replace(made, seq=record.seq)


def changed_steps(record: StepCompleted) -> Iterator[Record]:
    made = record.step
    for step_idx in {max(made.step_idx - 1, 0), made.step_idx + 1}:
        yield dataclasses.replace(record, step=dataclasses.replace(made, step_idx=step_idx))
    for result_id in (None, *names_near(made.step_idx)):
        yield dataclasses.replace(record, result_id=result_id)
    for reason, answer in itertools.product(verdicts(), (None, "42", "other")):
        yield dataclasses.replace(record, stop_reason=reason, final_answer=answer)
    for status in (None, *ActionStatus):
        literal = None if status is None else status.value
        yield dataclasses.replace(record, step=dataclasses.replace(made, action_status=literal))
    yield dataclasses.replace(record, step=dataclasses.replace(made, action="another"))
    yield dataclasses.replace(record, step=dataclasses.replace(made, action=None))
    yield dataclasses.replace(record, step=dataclasses.replace(made, parse_ok=not made.parse_ok))
    yield dataclasses.replace(record, step=dataclasses.replace(made, parse_error="?" if not made.parse_error else None))


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_a_single_change_of_a_log_is_refused_or_leaves_a_log_that_a_run_can_have_written(
    scenario: Scenario,
) -> None:
    whole = await run_whole(scenario)
    for story, changed in changes(whole.records):
        check_judgement(changed, story)


async def test_a_single_change_of_an_interrupted_log_is_refused_or_leaves_a_log_that_a_run_can_have_written() -> None:
    tools = next(each for each in FAMILY if each.name == "calls tools in every way")
    whole = await run_whole(tools)
    intents = [at for at, record in enumerate(whole.records) if isinstance(record, EffectIntended)]
    for length in (at + 1 for at in intents[:6]):
        prefix = whole.records[:length]
        if must_not_go_on(tools, prefix) is not None:
            continue
        recovered = await resume_from(tools, with_ends_behind(prefix, [1, length - 1]), whole)
        for story, changed in changes(recovered[: length + 8]):
            check_judgement(changed, story)


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_a_record_that_is_lost_doubled_or_moved_without_a_new_position_is_refused_when_the_log_is_built(
    scenario: Scenario,
) -> None:
    records = (await run_whole(scenario)).records
    for at in range(len(records)):
        damaged = [[*records[: at + 1], *records[at:]]]
        if at < len(records) - 1:
            damaged += [[*records[:at], *records[at + 1 :]], [*records[:at], records[at + 1], records[at]]]
        for each in damaged:
            with pytest.raises(CorruptRunLog) as found:
                RunLog.from_records(each)
            assert found.value.reason is CorruptionReason.WRONG_POSITION


# --- every short log over an alphabet of right and wrong records


def alphabet() -> tuple[Record, ...]:
    """Records of two steps, in all that can be right or wrong about them."""
    names = [name_of(step_idx, kind) for step_idx in (0, 1) for kind in EffectKind]
    return (
        *(
            intent(step_idx, kind, attempt=attempt, result_id=name)
            for step_idx, kind, attempt, name in itertools.product((0, 1), EffectKind, (1, 2), names)
        ),
        *(make(name) for make in (replied, failed) for name in names),
        *(
            came(name, status, completed=completed)
            for name, status, completed in itertools.product(names, ActionStatus, (True, False, None))
        ),
        *(
            step(step_idx, kind, verdict, result_id=name, final_answer=answer)
            for step_idx, kind, verdict, name, answer in itertools.product(
                (0, 1),
                ("llm_error", "invalid", "final", *(status.value for status in ActionStatus)),
                verdicts(),
                (None, names[1], names[3]),
                (None, "42"),
            )
        ),
        *(
            end(reason, final_answer=answer)
            for reason, answer in itertools.product(StopReason, (None, "42", "other"))
            if reason is not StopReason.CANCELLED or answer is not None
        ),
    )


def grow(length: int) -> Iterator[tuple[Record, ...]]:
    """Every log up to this length whose records but the last make up a log that a run can have written."""
    letters = alphabet()
    sound: list[tuple[Record, ...]] = [(start(),)]
    for _ in range(length - 1):
        longer: list[tuple[Record, ...]] = []
        for log in sound:
            for letter in letters:
                grown = (*log, letter)
                yield grown
                ended = isinstance(letter, RunFinished)
                if not ended and writable(grown):
                    longer.append(grown)
        sound = longer


def test_of_all_short_logs_exactly_those_are_taken_that_a_run_can_have_written() -> None:
    taken = refused = 0
    for log in grow(7):
        check_judgement(log, str([type(record).__name__ for record in log]))
        if writable(log):
            taken += 1
        else:
            refused += 1
    assert taken > 100
    assert refused > 50_000


@pytest.mark.slow
def test_of_all_logs_up_to_ten_records_exactly_those_are_taken_that_a_run_can_have_written() -> None:
    for log in grow(10):
        check_judgement(log, str([type(record).__name__ for record in log]))
