"""Runs under the scopes that callers use: `wait_for`, `timeout`, `TaskGroup`, anyio."""

from __future__ import annotations

import asyncio
import itertools

import anyio
import pytest

from polyloop import ReplayPolicy, RunFinished, RunResult, StopReason
from tests.cancellation.worlds import World, comparable, turns

SAFE = ReplayPolicy.SAFE


def hanging_world() -> tuple[World, asyncio.Event]:
    """A world whose model waits for ever from its third call on, and the sign that it does."""
    world = World(model=SAFE, tool=SAFE)
    model = world.definition.model
    call, waiting = model.call, asyncio.Event()

    async def hanging(asked: object) -> object:
        if asked.call_index == 2 and not waiting.is_set():  # type: ignore[attr-defined]  # a ModelCall
            waiting.set()
            await asyncio.Event().wait()
        return await call(asked)  # type: ignore[arg-type]  # a ModelCall

    model.call = hanging  # type: ignore[method-assign,assignment]  # this object alone hangs
    return world, waiting


async def check_cancelled_and_resumable(world: World) -> None:
    end = (await world.log()).records()[-1]
    assert isinstance(end, RunFinished)
    assert end.stop_reason is StopReason.CANCELLED
    assert asyncio.all_tasks() == {asyncio.current_task()}
    expected = comparable(await World(model=SAFE, tool=SAFE).run())
    assert comparable(await world.definition.resume(world.request)) == expected


async def test_wait_for() -> None:
    world, _ = hanging_world()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.definition.run(world.request), 0.05)
    await check_cancelled_and_resumable(world)


async def test_timeout() -> None:
    world, _ = hanging_world()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await world.definition.run(world.request)
    await check_cancelled_and_resumable(world)


async def test_task_group() -> None:
    world, waiting = hanging_world()

    async def fail() -> None:
        await waiting.wait()
        raise ValueError("a sibling")

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(world.definition.run(world.request))
            group.create_task(fail())
    await check_cancelled_and_resumable(world)


async def test_anyio_scope_that_cancels_again_at_every_turn() -> None:
    world, _ = hanging_world()
    with anyio.move_on_after(0.05) as scope:
        await world.definition.run(world.request)
    assert scope.cancelled_caught
    await check_cancelled_and_resumable(world)


async def test_anyio_scopes_at_every_turn() -> None:
    """However early or late the scope is cancelled, the log is left in order and the scope is not confused."""
    for turn in itertools.count():
        world = World(model=SAFE, tool=SAFE)
        results: list[RunResult] = []
        async with anyio.create_task_group() as group:

            async def in_scope() -> None:
                results.append(await world.definition.run(world.request))  # noqa: B023 - used within this turn

            group.start_soon(in_scope)
            await turns(turn)
            group.cancel_scope.cancel()
        log = await world.log()
        assert log.started is None or log.finished is not None
        assert world.store.reached_by_cancellation == []
        if results:
            break
    assert turn > 50


async def test_a_failed_task_group_before_the_run_does_not_cancel_it() -> None:
    """On Python 3.11 it leaves the task's count of cancellation requests at one."""

    async def fail() -> None:
        raise ValueError("in the group")

    async def nap() -> None:
        await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(nap())
            group.create_task(fail())
            await asyncio.sleep(60)
    result = await World(model=SAFE, tool=SAFE).definition.run(World(model=SAFE, tool=SAFE).request)
    assert result.stop_reason is StopReason.AGENT_FINISHED


async def test_a_failed_task_group_inside_a_port_does_not_cancel_the_run() -> None:
    world = World(model=SAFE, tool=SAFE)
    model = world.definition.model
    call = model.call

    async def fail() -> None:
        raise ValueError("in the group")

    async def with_group(asked: object) -> object:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(60)
        return await call(asked)  # type: ignore[arg-type]  # a ModelCall

    model.call = with_group  # type: ignore[method-assign,assignment]  # this object alone
    assert (await world.definition.run(world.request)).stop_reason is StopReason.AGENT_FINISHED


def test_a_loop_that_shuts_down_leaves_a_log_in_order() -> None:
    """`asyncio.run` cancels every task of its loop at once when its main coroutine ends."""
    worlds: list[World] = []

    async def main() -> None:
        world, waiting = hanging_world()
        worlds.append(world)
        task = world.run()
        await waiting.wait()
        assert not task.done()

    asyncio.run(main())
    log = asyncio.run(worlds[0].log())
    assert log.finished is not None
    assert log.finished.stop_reason is StopReason.CANCELLED


def test_thousands_of_steps_that_answer_at_once_can_be_cancelled() -> None:
    """A run whose ports never wait still gives the event loop its turns."""
    import dataclasses

    from polyloop.stores.ephemeral import EphemeralRunStore
    from tests.cancellation.test_misbehaving_ports import assembled
    from tests.fakes import ScriptedModel, act

    async def main() -> None:
        it = assembled()
        definition = dataclasses.replace(
            it.definition, model=ScriptedModel(lambda _: act("x")), store=EphemeralRunStore()
        )
        budget = dataclasses.replace(
            it.request.budget, max_steps=10**9, max_executed_actions=10**9, max_prompt_chars=10**12
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(definition.run(dataclasses.replace(it.request, budget=budget)), 0.05)

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="eager tasks came with Python 3.12")
async def test_runs_under_an_eager_task_factory_at_every_turn() -> None:
    expected = comparable(await World(model=SAFE, tool=SAFE).run())
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]  # see above
    for turn in itertools.count():
        world = World(model=SAFE, tool=SAFE)
        task = world.run()
        await turns(turn)
        if task.done():
            assert comparable(task.result()) == expected
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log = await world.log()
        assert log.started is None or log.finished is not None
        assert world.store.reached_by_cancellation == []
    assert turn > 50
