"""Cancellations at awkward moments: before the first turn, inside a handler of the caller's, while a process exits."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable

import anyio
import pytest

from polyloop import ModelReply, ReplayPolicy, RunFinished, RunKey, StopReason
from polyloop.ports import ModelCall
from polyloop.stores.ephemeral import EphemeralRunStore
from tests.builders import definition, request
from tests.cancellation.test_misbehaving_ports import OTHER, Answer, assembled
from tests.cancellation.worlds import SlowStore, World, turns
from tests.fakes import HANG, RecordingSink, ScriptedModel

SAFE = ReplayPolicy.SAFE


async def test_a_cancellation_pending_at_entry_lets_a_resume_that_never_waits_do_nothing() -> None:
    """Ports and a store that answer at once would do whole steps in the turn in which the caller learns of it."""
    store = EphemeralRunStore()
    asked = dataclasses.replace(request(), model_call_replay=SAFE)
    first = asyncio.create_task(definition([HANG], store=store).run(asked))
    await turns(9)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    before = (await store.read_log(asked.key)).records()
    assert [type(record).__name__ for record in before] == ["RunStarted", "EffectIntended", "RunFinished"]
    resuming = definition(["final: 42"], store=store)

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await resuming.resume(asked)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(caller())
    model, sink = resuming.model, resuming.events
    assert isinstance(model, ScriptedModel)
    assert isinstance(sink, RecordingSink)
    assert (model.calls, sink.events) == ([], []), "a port was called after the cancellation"
    assert (await store.read_log(asked.key)).records() == before
    assert (await resuming.resume(asked)).stop_reason is StopReason.AGENT_FINISHED


async def test_a_cancellation_pending_at_entry_lets_a_run_that_never_waits_write_nothing() -> None:
    store = EphemeralRunStore()

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await definition(store=store).run(request())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(caller())
    assert (await store.read_log(request().key)).next_seq == 0


@pytest.mark.parametrize("port", ["model", "parser", "executor", "sink"])
async def test_what_a_port_answered_is_the_context_also_where_the_caller_handles_another_exception(port: str) -> None:
    """A service calls `resume` in its `except TimeoutError:`; Python would put that one in the context's place."""
    answer = Answer(OTHER)
    it = assembled(port, answer)

    async def caller() -> None:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        except TimeoutError:
            await it.definition.run(it.request)

    task = asyncio.create_task(caller())
    await answer.waiting.wait()
    task.cancel("stop it")
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.__context__ is OTHER
    assert caught.value.args == ("stop it",)


@pytest.mark.parametrize("gone", [SystemExit, KeyboardInterrupt])
def test_a_port_that_exits_does_not_break_off_the_end_of_other_runs(gone: type[BaseException]) -> None:
    """The loop raises such an exception itself; raised by the caller's task again, it would stop the clean-up."""
    store = SlowStore(pace=5)

    async def main() -> None:
        waiting = asyncio.Event()

        async def hang(_: ModelCall) -> None:
            waiting.set()
            await asyncio.Event().wait()

        async def leave(_: ModelCall) -> ModelReply:
            await waiting.wait()
            raise gone

        async with asyncio.TaskGroup() as group:
            group.create_task(definition(lambda _: leave, store=store).run(request("leaves")))
            group.create_task(definition(lambda _: hang, store=store).run(request("hangs")))

    with pytest.raises(gone):
        asyncio.run(main())
    left = asyncio.run(store.inner.read_log(RunKey("leaves"))).records()
    assert [type(record).__name__ for record in left] == ["RunStarted", "EffectIntended"]
    end = asyncio.run(store.inner.read_log(RunKey("hangs"))).records()[-1]
    assert isinstance(end, RunFinished), "the other run had no turn to write its end"
    assert end.stop_reason is StopReason.CANCELLED


async def test_a_cancellation_before_the_terminal_end_record_is_begun_leaves_a_cancelled_one() -> None:
    """At a budget no port is called in between: the end record itself asks whether the caller was cancelled."""
    for turn in itertools.count():
        world = World(model=SAFE, tool=SAFE)
        budget = dataclasses.replace(world.request.budget, max_steps=1)
        world.request = dataclasses.replace(world.request, budget=budget)
        task = world.run()
        await turns(turn)
        if task.done():
            break
        begun = "finish" in world.store.entered
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        end = (await world.log()).finished
        if end is not None:
            assert (end.stop_reason is StopReason.STEP_BUDGET) == begun, f"cancelled at turn {turn}"
    assert turn > 20, "the run was expected to take many turns"


async def test_a_port_that_shields_its_clean_up_from_an_anyio_scope_is_not_disturbed() -> None:
    """A scope cancels again at every turn, and knows nothing of the shield: the port is in a task of the run's own.

    HTTP clients close their connections under such a shield.
    """
    it = assembled()
    waiting, cleaned = asyncio.Event(), asyncio.Event()

    async def hang(_: ModelCall) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await turns(10)
                cleaned.set()

    connected = dataclasses.replace(it.definition, model=ScriptedModel(lambda _: hang))
    async with anyio.create_task_group() as outer, anyio.create_task_group() as group:
        group.start_soon(connected.run, it.request)
        await waiting.wait()
        group.cancel_scope.cancel()
        outer.cancel_scope.cancel()
    assert cleaned.is_set(), "the clean-up was broken off"
    end = (await it.store.inner.read_log(it.request.key)).finished
    assert end is not None
    assert end.stop_reason is StopReason.CANCELLED


@pytest.mark.parametrize("message", [None, "hurry"])
async def test_another_request_to_cancel_reaches_a_port_that_is_still_cleaning_up(message: str | None) -> None:
    it = assembled()
    waiting, cleaning = asyncio.Event(), asyncio.Event()

    async def hang(_: ModelCall) -> None:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.Event().wait()

    stuck = dataclasses.replace(it.definition, model=ScriptedModel(lambda _: hang))
    task = asyncio.create_task(stuck.run(it.request))
    await waiting.wait()
    task.cancel(message)
    await cleaning.wait()
    task.cancel(message)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert (await it.store.inner.read_log(it.request.key)).finished is not None


async def test_a_cancelled_run_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with a long limit would otherwise hold every cancelled run until its limit is over."""
    loop = asyncio.get_running_loop()
    set_up: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        set_up.append(call_later(delay, callback))
        return set_up[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    world = World(model=SAFE, tool=SAFE)
    task = world.run()
    await turns(30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(set_up) == 1, "the store's time was expected to be bounded, once"
    assert set_up[0].cancelled()


@pytest.mark.parametrize("port", ["model", "parser", "executor", "sink"])
async def test_another_base_exception_with_which_a_port_answers_passes_above_the_cancellation(port: str) -> None:
    """Only exceptions are translated: nothing more is written."""

    class Gone(BaseException):
        pass

    answer = Answer(Gone())
    it = assembled(port, answer)
    task = asyncio.create_task(it.definition.run(it.request))
    await answer.waiting.wait()
    before = await it.store.inner.read_log(it.request.key)
    task.cancel()
    with pytest.raises(Gone):
        await task
    assert await it.store.inner.read_log(it.request.key) == before
