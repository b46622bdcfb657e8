"""Ports and stores that answer a cancellation in their own way cannot make a run go on, nor lose its log."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator

import pytest
from loguru import logger

from polyloop import (
    ActionOutcome,
    AgentDefinition,
    EffectCompleted,
    ModelReply,
    Record,
    ReplayPolicy,
    RunConflict,
    RunFinished,
    RunKey,
    RunRequest,
    StepCompleted,
    StopReason,
)
from polyloop.ports import Action, ModelCall, ParsedReply
from tests.cancellation.worlds import KEY, SlowStore, World, turns
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser, act, executed, final

SAFE = ReplayPolicy.SAFE
OTHER = ValueError("the port's own answer")


class Answer:
    """Waits until it is cancelled, then answers: returns `value`, or raises it."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.waiting = asyncio.Event()

    async def wait(self) -> object:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if isinstance(self.value, BaseException):
                raise self.value from None
        return self.value


class Model(ScriptedModel):
    def __init__(self, answer: Answer | None) -> None:
        super().__init__([act("one"), act("two"), final("three")])
        self.answer = answer

    async def call(self, call: ModelCall, /) -> ModelReply:
        if self.answer is not None:
            self.calls.append(call)
            return await self.answer.wait()  # type: ignore[return-value]  # the script may play nonsense
        return await super().call(call)


class Parser(ScriptedParser):
    def __init__(self, answer: Answer | None) -> None:
        super().__init__()
        self.answer = answer

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        if self.answer is not None:
            self.parsed.append(reply)
            return await self.answer.wait()  # type: ignore[return-value]  # as above
        return await super().parse(reply)


class Executor(ScriptedExecutor):
    def __init__(self, answer: Answer | None) -> None:
        super().__init__()
        self.answer = answer

    async def execute(self, action: Action, /) -> ActionOutcome:
        if self.answer is not None:
            self.actions.append(action)
            return await self.answer.wait()  # type: ignore[return-value]  # as above
        return await super().execute(action)


class Sink(RecordingSink):
    def __init__(self, answer: Answer | None) -> None:
        super().__init__()
        self.answer = answer

    async def emit(self, event: object, /) -> None:
        self.events.append(event)  # type: ignore[arg-type]  # a sink takes any event
        if self.answer is not None:
            await self.answer.wait()


@dataclasses.dataclass
class Assembled:
    model: Model
    parser: Parser
    executor: Executor
    sink: Sink
    definition: AgentDefinition
    request: RunRequest
    store: SlowStore

    def port_calls(self) -> tuple[int, int, int, int]:
        return len(self.model.calls), len(self.parser.parsed), len(self.executor.actions), len(self.sink.events)


def assembled(port: str = "", answer: Answer | None = None, store: SlowStore | None = None) -> Assembled:
    world = World(model=SAFE, tool=SAFE, store=store)
    model, parser = Model(answer if port == "model" else None), Parser(answer if port == "parser" else None)
    executor, sink = Executor(answer if port == "executor" else None), Sink(answer if port == "sink" else None)
    definition = dataclasses.replace(world.definition, model=model, parser=parser, events=sink)
    empty = world.request.tools.subset(())
    request = dataclasses.replace(world.request, executor=executor, tools=empty, finalize_timeout_s=0.05)
    return Assembled(model, parser, executor, sink, definition, request, world.store)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lines.append, format="{message}", diagnose=True, backtrace=True)
    yield lines
    logger.remove(handler)


async def cancelled_while_waiting(it: Assembled, answer: Answer) -> asyncio.CancelledError:
    """Cancel the run once its port waits; the error that passes. No port is called after that."""
    task = asyncio.create_task(it.definition.run(it.request))
    await answer.waiting.wait()
    calls = it.port_calls()
    task.cancel("stop it")
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert it.port_calls() == calls, "a port was called after the cancellation"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return caught.value


async def records(it: Assembled) -> tuple[Record, ...]:
    return (await it.store.inner.read_log(KEY)).records()


RETURNED = {
    "model": ModelReply(call_id=None, text=act("swallowed"), reasoning=None),
    "executor": executed("swallowed", completed=True),
    "parser": None,
    "sink": None,
}


@pytest.mark.parametrize("port", ["model", "executor"])
async def test_what_a_port_returns_instead_of_passing_a_cancellation_is_recorded_and_ends_the_run(port: str) -> None:
    answer = Answer(RETURNED[port])
    it = assembled(port, answer)
    error = await cancelled_while_waiting(it, answer)
    result, end = (await records(it))[-2:]
    assert isinstance(result, EffectCompleted)
    assert RETURNED[port] in (result.reply, result.outcome)
    assert isinstance(end, RunFinished)
    assert end.stop_reason is StopReason.CANCELLED
    assert error.args == ("stop it",), "the caller's own cancellation must pass, its message with it"


@pytest.mark.parametrize("port", ["parser", "sink"])
async def test_a_parser_or_sink_that_swallows_a_cancellation_ends_the_run_too(port: str) -> None:
    answer = Answer(RETURNED[port])
    it = assembled(port, answer)
    await cancelled_while_waiting(it, answer)
    assert isinstance((await records(it))[-1], RunFinished)


async def test_a_swallowed_completion_is_found_by_the_next_resume() -> None:
    answer = Answer(executed("swallowed", completed=True))
    it = assembled("executor", answer)
    await cancelled_while_waiting(it, answer)
    it.executor.answer = None
    result = await it.definition.resume(it.request)
    assert result.stop_reason is StopReason.TASK_COMPLETED
    assert len(it.executor.actions) == 1, "the action must not be executed again"


@pytest.mark.parametrize("port", ["model", "parser", "executor", "sink"])
async def test_another_exception_is_the_context_of_the_cancellation_and_is_not_recorded(
    port: str, logged: list[str]
) -> None:
    answer = Answer(OTHER)
    it = assembled(port, answer)
    error = await cancelled_while_waiting(it, answer)
    assert error.__context__ is OTHER
    assert error.args == ("stop it",)
    found = await records(it)
    end = found[-1]
    assert isinstance(end, RunFinished)
    assert end.stop_reason is StopReason.CANCELLED
    assert end.event_sink_failures == 0
    assert not any(isinstance(each, EffectCompleted) and each.error for each in found)
    assert not any(isinstance(each, StepCompleted) for each in found)
    assert logged == []


@pytest.mark.parametrize("port", ["model", "parser", "executor", "sink"])
async def test_a_cancellation_that_a_port_raises_by_itself_cancels_the_run(port: str) -> None:
    class Raises(Answer):
        async def wait(self) -> object:
            raise asyncio.CancelledError("from inside")

    it = assembled(port, Raises(None))
    task = asyncio.create_task(it.definition.run(it.request))
    with pytest.raises(asyncio.CancelledError):
        await task
    end = (await records(it))[-1]
    assert isinstance(end, RunFinished)
    assert end.stop_reason is StopReason.CANCELLED
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("port", ["model", "parser", "executor", "sink"])
async def test_another_base_exception_passes_with_nothing_more_written(port: str) -> None:
    class Gone(BaseException):
        pass

    class Raises(Answer):
        async def wait(self) -> object:
            raise Gone

    it = assembled(port, Raises(None))
    with pytest.raises(Gone):
        await it.definition.run(it.request)
    assert not isinstance((await records(it))[-1], RunFinished | EffectCompleted) or port == "parser"


class GatedStore(SlowStore):
    """Holds one named call back until it is released, or fails it."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(pace=1)
        self.name = name
        self.error = error
        self.reached = asyncio.Event()
        self.release = asyncio.Event()

    async def _slowly(self, name: str, call: Callable[[], Awaitable[None]]) -> None:
        if name == self.name and not self.release.is_set():
            self.reached.set()
            await self.release.wait()
            if self.error is not None:
                raise self.error
        await super()._slowly(name, call)


@pytest.mark.parametrize("name", ["append_run_start", "append_intent", "append_result", "append_step"])
async def test_a_write_under_way_settles_and_is_followed_by_the_end_record(name: str) -> None:
    store = GatedStore(name)
    it = assembled(store=store)
    task = asyncio.create_task(it.definition.run(it.request))
    await store.reached.wait()
    task.cancel()
    await turns(5)
    assert not task.done(), "the run must wait for the write"
    store.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = await records(it)
    kinds = {
        "append_run_start": "RunStarted",
        "append_intent": "EffectIntended",
        "append_result": "EffectCompleted",
        "append_step": "StepCompleted",
    }
    assert [type(each).__name__ for each in found[-2:]] == [kinds[name], "RunFinished"]
    assert store.reached_by_cancellation == []


@pytest.mark.parametrize("name", ["append_run_start", "append_intent", "append_result", "append_step"])
async def test_a_write_under_way_that_fails_is_logged_and_no_end_record_is_tried(name: str, logged: list[str]) -> None:
    fault = OSError(28, "no space, and a secret value")
    store = GatedStore(name, fault)
    it = assembled(store=store)
    task = asyncio.create_task(it.definition.run(it.request))
    await store.reached.wait()
    task.cancel()
    await turns(2)
    store.release.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.__context__ is fault
    assert "finish" not in store.entered
    assert len(logged) == 1
    assert "OSError" in logged[0]
    assert "secret value" not in logged[0]


@pytest.mark.parametrize("name", ["append_run_start", "append_intent", "append_result", "append_step", "finish"])
async def test_a_store_that_does_not_settle_is_left_alone_after_the_bound(name: str, logged: list[str]) -> None:
    store = GatedStore(name)
    it = assembled(store=store)
    task = asyncio.create_task(it.definition.run(it.request))
    await store.reached.wait()
    loop = asyncio.get_running_loop()
    started = loop.time()
    task.cancel()
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0.04 <= loop.time() - started < 2
    assert len(logged) == 1
    before = len(await records(it))
    store.release.set()
    await turns(20)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left once the store has returned"
    # The late landing is harmless: at most the one record, and no end record of a cancelled run behind it.
    assert len(await records(it)) == before + 1
    assert name == "finish" or "finish" not in store.entered
    it.sink.events.clear()
    await it.definition.resume(it.request)


async def test_the_end_record_of_a_cancelled_run_is_bounded_too(logged: list[str]) -> None:
    store = GatedStore("finish")
    answer = Answer(asyncio.CancelledError())
    it = assembled("model", answer, store)
    task = asyncio.create_task(it.definition.run(it.request))
    await answer.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.reached.is_set()
    assert len(logged) == 1
    store.release.set()
    await turns(20)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_end_record_of_a_cancellation_from_inside_is_bounded_too(logged: list[str]) -> None:
    class Raises(Answer):
        async def wait(self) -> object:
            raise asyncio.CancelledError

    store = GatedStore("finish")
    it = assembled("model", Raises(None), store)
    with pytest.raises(asyncio.CancelledError):
        await it.definition.run(it.request)
    assert len(logged) == 1
    store.release.set()
    await turns(20)


async def test_a_port_that_cleans_up_is_not_bounded_and_the_end_record_has_its_whole_time() -> None:
    class CleansUp(Answer):
        async def wait(self) -> object:
            self.waiting.set()
            try:
                return await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.15)

    answer = CleansUp(None)
    it = assembled("executor", answer)
    await cancelled_while_waiting(it, answer)
    assert isinstance((await records(it))[-1], RunFinished)


async def test_a_port_that_ignores_one_cancellation_receives_the_next() -> None:
    class Stubborn(Answer):
        async def wait(self) -> object:
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.first = True
            return await asyncio.Event().wait()

    answer = Stubborn(None)
    it = assembled("model", answer)
    task = asyncio.create_task(it.definition.run(it.request))
    await answer.waiting.wait()
    task.cancel()
    await turns(5)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.first


async def test_a_cancellation_during_the_last_write_changes_nothing_in_the_log() -> None:
    store = GatedStore("finish")
    it = assembled(store=store)
    task = asyncio.create_task(it.definition.run(it.request))
    await store.reached.wait()
    events = len(it.sink.events)
    task.cancel()
    await turns(2)
    store.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(it.sink.events) == events, "no RunClosed on this path"
    end = (await records(it))[-1]
    assert isinstance(end, RunFinished)
    assert end.stop_reason is StopReason.AGENT_FINISHED
    assert (await it.definition.resume(it.request)).stop_reason is StopReason.AGENT_FINISHED


async def test_a_resume_that_has_written_nothing_writes_nothing_when_it_is_cancelled() -> None:
    answer = Answer(asyncio.CancelledError())
    it = assembled("parser", answer)
    await cancelled_while_waiting(it, answer)
    before = await records(it)
    it.parser.answer = again = Answer(asyncio.CancelledError())
    task = asyncio.create_task(it.definition.resume(it.request))
    await again.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await records(it) == before


class ElsewhereStore(SlowStore):
    """Another driver takes the position while a write is cut short."""

    def __init__(self, *, landed: bool) -> None:
        super().__init__(pace=0)
        self.landed = landed
        self.cut = asyncio.Event()

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        if self.landed:
            await super().append_step(key, record)
        else:
            moved = dataclasses.replace(record, recorded_at="2000-01-01T00:00:00.000000+00:00")
            await super().append_step(key, moved)
        self.cut.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("landed", [True, False])
async def test_after_a_write_was_cut_short_the_log_is_read_again_before_the_end_is_written(landed: bool) -> None:
    store = ElsewhereStore(landed=landed)
    it = assembled(store=store)
    task = asyncio.create_task(it.definition.run(it.request))
    await store.cut.wait()
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance((await records(it))[-1], RunFinished) is landed, "somebody else's log is not ours to end"


async def test_a_run_cancelled_before_its_first_turn_writes_nothing() -> None:
    it = assembled()
    task = asyncio.create_task(it.definition.run(it.request))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await records(it) == ()


async def test_a_task_that_cancels_itself_before_the_run_writes_nothing() -> None:
    it = assembled()

    async def caller() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await it.definition.run(it.request)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(caller())
    assert await records(it) == ()


async def test_the_key_is_free_again_after_a_cancellation() -> None:
    answer = Answer(asyncio.CancelledError())
    it = assembled("model", answer)
    task = asyncio.create_task(it.definition.run(it.request))
    await answer.waiting.wait()
    with pytest.raises(RunConflict):
        await it.definition.resume(it.request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    it.model.answer = None
    assert (await it.definition.resume(it.request)).stop_reason is StopReason.AGENT_FINISHED
