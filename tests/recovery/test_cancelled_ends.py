"""End records `cancelled`, in every place and in any number: each is set aside, and the record before it decides."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import pytest

from polyloop.types import Record, RunFinished, StopReason
from polyloop.types.records import is_terminal
from tests.family import FAMILY, KEY, SAFE, Scenario, assemble, must_not_go_on, renumbered, timeless
from tests.recovery.test_every_prefix import resume_from, run_whole, stored

SCENARIOS = pytest.mark.parametrize("scenario", FAMILY, ids=str)


def cancelled(sink_failures: int = 0) -> RunFinished:
    return RunFinished(
        seq=0,
        recorded_at="2024-02-29T12:00:00.000000+00:00",
        stop_reason=StopReason.CANCELLED,
        final_answer=None,
        detail=None,
        event_sink_failures=sink_failures,
    )


def with_ends_behind(records: Sequence[Record], places: Iterable[int]) -> tuple[Record, ...]:
    """The records with a cancelled end behind each of these positions."""
    ends = set(places)
    mixed = [[record, cancelled()] if at in ends else [record] for at, record in enumerate(records)]
    return renumbered(itertools.chain.from_iterable(mixed))


@SCENARIOS
async def test_a_run_that_was_cancelled_anywhere_goes_on_as_after_a_crash_there(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records)):
        await resume_from(scenario, with_ends_behind(whole.records[:length], [length - 1]), whole)


@SCENARIOS
async def test_a_run_that_was_cancelled_again_and_again_gives_the_uninterrupted_result(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    open_ended = whole.records[:-1]
    for places in itertools.combinations(range(len(open_ended)), 2):
        await resume_from(scenario, with_ends_behind(open_ended[: places[1] + 1], places), whole)
    await resume_from(scenario, with_ends_behind(open_ended, range(len(open_ended))), whole)


@SCENARIOS
async def test_a_log_with_cancelled_ends_and_a_terminal_one_is_a_stored_result(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for places in itertools.chain(([at] for at in range(len(whole.records) - 1)), [range(len(whole.records) - 1)]):
        records = with_ends_behind(whole.records, places)
        assert is_terminal(records[-1])
        assert await resume_from(scenario, records, whole) == records


@SCENARIOS
async def test_a_crash_while_a_cancelled_run_recovers_changes_nothing(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for length in range(1, len(whole.records)):
        start = with_ends_behind(whole.records[:length], [length - 1])
        recovered = await resume_from(scenario, start, whole)
        if must_not_go_on(scenario, start) is None:
            for again in range(length, len(recovered)):
                await resume_from(scenario, recovered[:again], whole)


async def test_sink_failures_are_summed_over_the_processes_whose_end_records_are_in_the_log() -> None:
    scenario = dataclasses.replace(FAMILY[1], model_call_replay=SAFE)
    whole = await run_whole(scenario)
    records = list(with_ends_behind(whole.records[:-1], [2, 6]))
    records[3] = dataclasses.replace(cancelled(3), seq=3)
    records[8] = dataclasses.replace(cancelled(4), seq=8)
    store = await stored(records)
    resumed = assemble(scenario, store)
    result = await resumed.definition.resume(resumed.request)
    assert result.event_sink_failures == 7
    assert timeless(dataclasses.replace(result, event_sink_failures=0)) == timeless(whole.result)
    end = (await store.read_log(KEY)).finished
    assert end is not None
    assert end.event_sink_failures == 0, "the end record counts its own process alone"
    again = assemble(scenario, store)
    assert await again.definition.resume(again.request) == result
