"""Several drivers of one run, crashes, cancellations and faults, in thousands of seeded schedules."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest

from polyloop import ReplayPolicy, RunFinished, RunLog, RunResult
from polyloop._recovery import next_move
from tests.proof.plugin import Checked
from tests.property.simulation import Story, simulate

SEEDS = 2_000
SEEDS_LONG = 40_000


def comparable(result: RunResult) -> RunResult:
    steps = tuple(dataclasses.replace(step, step_wall_ms=0) for step in result.steps)
    return dataclasses.replace(result, steps=steps)


def check(story: Story, seed: int) -> None:
    """One story, with nothing repeated that must not be."""
    for effect in story.never:
        assert story.effects[effect] == 1, f"seed {seed}: {effect} happened {story.effects[effect]} times"
    assert story.results, f"seed {seed}: the last, undisturbed driver came to no result"
    first, *others = map(comparable, story.results)
    assert all(other == first for other in others), f"seed {seed}: two drivers were told different stories"
    log = RunLog.from_records(story.log)
    assert isinstance(log.finished, RunFinished), f"seed {seed}: the run has no end"
    safe = ReplayPolicy.SAFE
    assert next_move(log, model_call_replay=safe, tool_replay={}) is None, f"seed {seed}: the log is no finished run"


def run_seeds(first: int, count: int, *, fenced: bool = True) -> list[Story]:
    stories = []

    async def all_of_them() -> None:
        for seed in range(first, first + count):
            try:
                story = await simulate(seed, fenced=fenced)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            check(story, seed)
            stories.append(story)

    asyncio.run(all_of_them())
    return stories


def test_thousands_of_schedules_tell_one_story_each() -> None:
    first = int(os.environ.get("POLYLOOP_SEED", "0"))
    stories = run_seeds(first, SEEDS)
    # The schedules must really hurt: otherwise this test says nothing.
    assert sum(story.mishaps > 0 for story in stories) > SEEDS // 3
    reasons = {story.results[0].stop_reason for story in stories}
    assert {"agent_finished", "resume_state_unknown"} <= reasons
    assert sum(len(story.results) > 1 for story in stories) > SEEDS // 20
    assert sum(max(story.effects.values(), default=0) > 1 for story in stories) > SEEDS // 50, (
        "no SAFE effect was repeated"
    )


def test_a_medium_that_does_not_compare_positions_is_found_out() -> None:
    """The planted fault that this simulation is there for."""
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(0, 300, fenced=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(8))
def test_many_more_schedules(part: int, checked: Checked) -> None:
    first = 1_000_000 + part * SEEDS_LONG // 8
    run_seeds(first, SEEDS_LONG // 8)
    checked(
        "simulated interleavings", "the driver, on a virtual store", seed=f"from {first}", schedules=SEEDS_LONG // 8
    )


def test_the_same_seed_gives_the_same_story() -> None:
    async def story(seed: int) -> list[str]:
        log = (await simulate(seed)).log
        return [f"{type(record).__name__} {record.seq}" for record in log]

    for seed in (3, 14, 159):
        assert asyncio.run(story(seed)) == asyncio.run(story(seed))
