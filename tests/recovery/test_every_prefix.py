"""Every prefix of every log is resumed, and every prefix of what that writes is resumed again.

A crash leaves a prefix of the log. So this is a crash at every place, and at every place again while the run recovers
from it, without picking any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import EffectCompleted, EffectIntended, Record, RunLog, RunResult, StepCompleted, StopReason
from polyloop.types.records import is_terminal
from tests.family import (
    FAMILY,
    KEY,
    NEVER,
    SAFE,
    Assembled,
    Scenario,
    assemble,
    check_resumed,
    effects_in,
    must_not_go_on,
    renumbered,
    story,
)
from tests.seams import append

SCENARIOS = pytest.mark.parametrize("scenario", FAMILY, ids=str)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """An uninterrupted run."""

    assembled: Assembled
    result: RunResult
    records: tuple[Record, ...]


async def stored(records: Sequence[Record]) -> EphemeralRunStore:
    """A store that holds this log."""
    store = EphemeralRunStore()
    for record in records:
        await append(store, KEY, record)
    return store


async def run_whole(scenario: Scenario) -> Whole:
    store = EphemeralRunStore()
    assembled = assemble(scenario, store)
    result = await assembled.definition.run(assembled.request)
    return Whole(assembled=assembled, result=result, records=(await store.read_log(KEY)).records())


async def resume_from(scenario: Scenario, records: Sequence[Record], whole: Whole) -> tuple[Record, ...]:
    """Resume this log in a process of its own, check what came of it, and return the log that it leaves."""
    store = await stored(records)
    assembled = assemble(scenario, store)
    result = await assembled.definition.resume(assembled.request)
    log = await store.read_log(KEY)
    check_resumed(scenario, RunLog.from_records(records), result, whole.result)
    assert log.records()[: len(records)] == tuple(records), "what stood in the log is no longer there as it was"
    check_effects(scenario, records, assembled, whole)
    if must_not_go_on(scenario, records) is None:
        assert story(log.records()) == story(whole.records)
    else:
        assert len(log.records()) == len(records) + 1, "nothing but the end record may be written"
    return log.records()


def check_effects(scenario: Scenario, records: Sequence[Record], resumed: Assembled, whole: Whole) -> None:
    """Exactly the effects without a result happen, with the prompts and actions of the uninterrupted run."""
    if is_terminal(records[-1]) or must_not_go_on(scenario, records) is not None:
        assert (resumed.effects, resumed.parser.parsed) == ([], [])
        return
    done = {record.result_id for record in records if isinstance(record, EffectCompleted)}
    assert resumed.effects == [each for each in effects_in(whole.records) if each not in done]
    calls = {call.result_id: call for call in whole.assembled.model.calls}
    assert all(call == calls[call.result_id] for call in resumed.model.calls)
    # What an intent or a step already tells is not asked of the parser again.
    told = {record.step_idx for record in records if isinstance(record, EffectIntended) and record.action is not None}
    told |= {record.step.step_idx for record in records if isinstance(record, StepCompleted)}
    replies = [record for record in whole.records if isinstance(record, EffectCompleted) and record.reply is not None]
    assert resumed.parser.parsed == [each.reply for each in replies if int(each.result_id[:6]) not in told]


def test_the_family_reaches_every_stop_reason_that_a_run_reaches_by_itself() -> None:
    interruptions = {StopReason.CANCELLED, StopReason.RESUME_STATE_UNKNOWN}
    assert {scenario.stop_reason for scenario in FAMILY} == set(StopReason) - interruptions


@SCENARIOS
async def test_a_run_of_the_family_stops_as_it_says(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    assert whole.result.stop_reason is scenario.stop_reason
    assert story(whole.records) == story((await run_whole(scenario)).records)


@SCENARIOS
async def test_resuming_any_prefix_gives_the_uninterrupted_result(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records) + 1):
        await resume_from(scenario, whole.records[:length], whole)


@SCENARIOS
async def test_a_second_crash_at_any_place_of_the_recovery_changes_nothing(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records) + 1):
        recovered = await resume_from(scenario, whole.records[:length], whole)
        unknown = recovered[-1].stop_reason is StopReason.RESUME_STATE_UNKNOWN  # type: ignore[union-attr] # an end
        for again in range(length, len(recovered) + (not unknown)):
            await resume_from(scenario, recovered[:again], whole)


@SCENARIOS
async def test_any_number_of_crashes_in_one_effect_still_gives_the_uninterrupted_result(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records)):
        records = whole.records[:length]
        last = records[-1]
        if not isinstance(last, EffectIntended):
            continue
        for attempt in range(2, 6):
            # A crash directly behind the intent of each further attempt.
            records = renumbered((*records, dataclasses.replace(last, attempt=attempt)))
            recovered = await resume_from(scenario, records, whole)
            if must_not_go_on(scenario, records) is None:
                made = recovered[len(records)]
                assert isinstance(made, EffectIntended)
                assert (made.attempt, made.result_id) == (attempt + 1, last.result_id)


@SCENARIOS
@pytest.mark.parametrize(("recorded", "present"), [(NEVER, SAFE), (SAFE, NEVER), (NEVER, NEVER), (SAFE, SAFE)])
async def test_an_effect_is_repeated_only_where_the_log_and_the_present_both_say_safe(
    scenario: Scenario, recorded: str, present: str
) -> None:
    before, now = (_declared(scenario, policy) for policy in (recorded, present))
    whole = await run_whole(before)
    for length in range(1, len(whole.records)):
        prefix = whole.records[:length]
        last = prefix[-1]
        if not isinstance(last, EffectIntended):
            continue
        recovered = await resume_from(now, prefix, whole)
        is_tool_call = last.action is not None and last.action.tool_name in {spec.name for spec in scenario.tools}
        repeatable = recorded == present == "safe" and (last.action is None or is_tool_call)
        assert (len(recovered) > length + 1) is repeatable


def _declared(scenario: Scenario, policy: str) -> Scenario:
    replay = SAFE if policy == "safe" else NEVER
    tools = tuple(dataclasses.replace(spec, replay=replay) for spec in scenario.tools)
    return dataclasses.replace(scenario, tools=tools, model_call_replay=replay)


@SCENARIOS
async def test_a_stored_result_equals_the_one_that_run_returned(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    store = await stored(whole.records)
    for _ in range(3):
        again = assemble(scenario, store)
        assert await again.definition.resume(again.request) == whole.result, "wall-clock times included"
        assert again.effects == []
        assert again.parser.parsed == []
        assert again.sink.events == []
        assert (await store.read_log(KEY)).records() == whole.records


@SCENARIOS
async def test_the_stored_result_of_an_unknown_state_equals_the_one_that_resume_returned(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records)):
        prefix = whole.records[:length]
        if must_not_go_on(scenario, prefix) is None:
            continue
        store = await stored(prefix)
        first, second = assemble(scenario, store), assemble(scenario, store)
        result = await first.definition.resume(first.request)
        assert await second.definition.resume(second.request) == result
        assert (first.effects, second.effects, second.sink.events) == ([], [], [])
