"""A run is cancelled at every turn of the event loop, once and twice; nothing is lost, nothing is repeated."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from polyloop import EffectIntended, ReplayPolicy, RunFinished, RunLog, RunResult, StopReason
from tests.cancellation.worlds import SlowStore, World, comparable, turns

NEVER, SAFE = ReplayPolicy.NEVER, ReplayPolicy.SAFE
POLICIES = [(NEVER, NEVER), (SAFE, NEVER), (NEVER, SAFE), (SAFE, SAFE)]


async def uninterrupted(model: ReplayPolicy, tool: ReplayPolicy) -> RunResult:
    return comparable(await World(model=model, tool=tool).run())


def check_log_of_a_cancelled_run(log: RunLog) -> None:
    """It ends with an end record, or it was never begun."""
    if log.started is not None:
        assert isinstance(log.records()[-1], RunFinished), f"no end record behind {log.records()[-1]}"


def expects_unknown(log: RunLog) -> bool:
    """Whether the log, its cancelled ends set aside, stops inside an effect that must not be repeated."""
    last = [record for record in log.records() if not isinstance(record, RunFinished)][-1]
    return isinstance(last, EffectIntended) and last.replay is NEVER


async def cancel_at(world: World, turn: int, again_after: tuple[int, ...] = ()) -> bool:
    """Cancel a run at this turn, and again after so many more turns; whether it was still running."""
    before = asyncio.all_tasks()
    task = world.run()
    await turns(turn)
    if task.done():
        return False
    task.cancel()
    calls = world.counts.calls
    for more in again_after:
        await turns(more)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.counts.calls == calls, "a port was called after the cancellation"
    assert asyncio.all_tasks() == before, "a task was left behind"
    assert world.store.reached_by_cancellation == [], "the cancellation reached the store"
    return True


async def check_resume(world: World, expected: RunResult) -> None:
    """Resuming ends as an uninterrupted run does, unless the run stopped inside an effect that is not `SAFE`."""
    log = await world.log()
    check_log_of_a_cancelled_run(log)
    if log.started is None:
        assert comparable(await world.run()) == expected
        return
    unknown = log.finished is not None and log.finished.stop_reason is StopReason.CANCELLED and expects_unknown(log)
    result = await world.definition.resume(world.request)
    if unknown:
        assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
    else:
        assert comparable(result) == expected
    world.check_never_twice()


@pytest.mark.parametrize(("model", "tool"), POLICIES)
async def test_cancelled_once_at_every_turn(model: ReplayPolicy, tool: ReplayPolicy) -> None:
    expected = await uninterrupted(model, tool)
    for turn in itertools.count():
        world = World(model=model, tool=tool)
        if not await cancel_at(world, turn):
            break
        await check_resume(world, expected)
    assert turn > 50, "the run was expected to take many turns"


@pytest.mark.parametrize("again_after", [(0,), (1,), (2,), (3,), (5,), (1, 1, 1, 1, 1, 1)])
async def test_cancelled_again_while_it_ends(again_after: tuple[int, ...]) -> None:
    expected = await uninterrupted(SAFE, NEVER)
    for turn in itertools.count():
        world = World(model=SAFE, tool=NEVER, store=SlowStore(pace=2))
        if not await cancel_at(world, turn, again_after):
            break
        await check_resume(world, expected)
    assert turn > 50, "the run was expected to take many turns"


async def test_resume_cancelled_at_every_turn() -> None:
    """Each resume is cancelled in its turn, until the run is through; the second story is the first."""
    expected = await uninterrupted(SAFE, SAFE)
    for first, second in itertools.product(range(0, 200, 7), range(0, 40, 3)):
        world = World(model=SAFE, tool=SAFE)
        if not await cancel_at(world, first):
            break
        if (await world.log()).started is None:
            continue
        resumed = asyncio.create_task(world.definition.resume(world.request))
        await turns(second)
        records = (await world.log()).next_seq
        if not resumed.cancel():
            assert comparable(resumed.result()) == expected
            continue
        with pytest.raises(asyncio.CancelledError):
            await resumed
        assert (await world.log()).next_seq >= records
        await check_resume(world, expected)


async def test_every_task_of_the_loop_cancelled_at_every_turn() -> None:
    """When a loop shuts down, the run's own inner task is cancelled with its caller."""
    expected = await uninterrupted(SAFE, NEVER)
    for turn in itertools.count():
        world = World(model=SAFE, tool=NEVER)
        task = world.run()
        await turns(turn)
        if task.done():
            break
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        calls = world.counts.calls
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.counts.calls == calls
        assert len(asyncio.all_tasks()) == 1
        log = await world.log()
        if log.started is not None and log.finished is None:
            # Only a terminal end record that was cut short may leave the log open.
            assert log.steps[-1].stop_reason is StopReason.AGENT_FINISHED
        if log.started is not None:
            result = await world.definition.resume(world.request)
            if expects_unknown(log):
                assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
            else:
                assert comparable(result) == expected
            world.check_never_twice()
    assert turn > 50
