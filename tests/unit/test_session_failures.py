"""Ports that return nonsense or raise: what becomes a stop reason, and what passes and leaves a run to be resumed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import cast

import pytest

from polyloop.ports import Action, ModelCall, ParsedReply
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    ActionOutcome,
    InvalidRequest,
    ModelReply,
    Record,
    RunConflict,
    RunKey,
    RunLog,
    RunNotFound,
    RunResult,
    StoreBusy,
)
from tests.builders import KEY, definition, request
from tests.fakes import FailingSink, RecordingSink, ScriptedExecutor, ScriptedModel, ScriptedParser
from tests.family import FAMILY, SAFE, Scenario, assemble, check_resumed, must_not_go_on, story, timeless
from tests.recovery.test_every_prefix import run_whole, stored
from tests.seams import WatchedModel, WatchedParser, WatchedSink, WatchedStore, append

WRONG_RETURNS: tuple[object, ...] = (None, 17, {"text": "x"}, [], object(), ModelReply, ActionOutcome)


class Fatal(BaseException):
    """Not an `Exception`: never translated."""


# --- ports that return something else


class Sync:
    """A port whose methods forgot their `async`."""

    def __init__(self, port: object, method: str, returned: object) -> None:
        self._port, self._method, self._returned = port, method, returned

    def __getattr__(self, name: str) -> object:
        return (lambda _: self._returned) if name == self._method else getattr(self._port, name)


async def test_a_model_without_async_is_named() -> None:
    model = cast("ScriptedModel", Sync(ScriptedModel([]), "call", ModelReply(call_id=None, text="", reasoning=None)))
    result = await dataclasses.replace(definition(), model=model).run(request())
    wrong = "TypeError: model.call() must be awaitable, got ModelReply: define the method with async def"
    assert (result.stop_reason, result.detail) == ("llm_error", wrong)


async def test_an_executor_without_async_is_named() -> None:
    executor = cast("ScriptedExecutor", Sync(ScriptedExecutor(), "execute", "text"))
    result = await definition().run(dataclasses.replace(request(), executor=executor))
    wrong = "TypeError: executor.execute() must be awaitable, got str: define the method with async def"
    assert (result.stop_reason, result.detail) == ("env_error", wrong)


async def test_a_parser_without_async_is_named() -> None:
    parser = cast("ScriptedParser", Sync(ScriptedParser(), "parse", None))
    with pytest.raises(
        TypeError, match=r"^parser\.parse\(\) must be awaitable, got NoneType: define the method with async"
    ):
        await dataclasses.replace(definition(), parser=parser).run(request())


async def test_a_sink_without_async_is_a_failing_sink() -> None:
    sink = cast("RecordingSink", Sync(RecordingSink(), "emit", None))
    result = await dataclasses.replace(definition(), events=sink).run(request())
    assert (result.stop_reason, result.event_sink_failures > 0) == ("agent_finished", True)


@pytest.mark.parametrize("returned", [*WRONG_RETURNS, ParsedReply])
async def test_a_model_that_returns_something_else_is_an_llm_error(returned: object) -> None:
    class Wrong(ScriptedModel):
        async def call(self, call: ModelCall, /) -> ModelReply:
            return cast("ModelReply", returned)

    result = await dataclasses.replace(definition(), model=Wrong([])).run(request())
    assert result.stop_reason == "llm_error"
    name = type(returned).__name__
    assert result.detail == f"TypeError: model.call() must return ModelReply, got {name}"
    assert (result.steps[0].call_id, result.usage.model_calls) == (None, 1)


@pytest.mark.parametrize("returned", [*WRONG_RETURNS, "a text"])
async def test_an_executor_that_returns_something_else_is_an_env_error(returned: object) -> None:
    class Wrong(ScriptedExecutor):
        async def execute(self, action: Action, /) -> ActionOutcome:
            return cast("ActionOutcome", returned)

    result = await definition().run(dataclasses.replace(request(), executor=Wrong()))
    assert result.stop_reason == "env_error"
    assert result.detail == f"TypeError: executor.execute() must return ActionOutcome, got {type(returned).__name__}"
    assert (result.steps[0].action_status, result.usage.executed_actions) == ("env_error", 0)


@pytest.mark.parametrize("returned", [*WRONG_RETURNS, "a text"])
async def test_a_parser_that_returns_something_else_is_a_type_error_that_passes(returned: object) -> None:
    class Wrong(ScriptedParser):
        async def parse(self, reply: ModelReply, /) -> ParsedReply:
            return cast("ParsedReply", returned)

    made = definition()
    with pytest.raises(TypeError, match=r"parser.parse\(\) must return ParsedReply"):
        await dataclasses.replace(made, parser=Wrong()).run(request())
    log = await made.store.read_log(KEY)
    assert (log.next_seq, log.finished) == (3, None)
    assert (await made.resume(request())).final_answer == "42"


def empty_call_id(_: object) -> object:
    return ModelReply(call_id="", text="x", reasoning=None)


async def test_a_value_that_a_port_cannot_build_is_its_failure() -> None:
    result = await definition([empty_call_id]).run(request())
    assert result.stop_reason == "llm_error"
    assert (result.detail or "").startswith("InvalidRequest: ModelReply.call_id")


# --- exceptions of the model and of the executor


class Mute(Exception):  # noqa: N818 - a name
    def __str__(self) -> str:
        raise ValueError("no message either")


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (OSError(5, "gone"), "OSError: [Errno 5] gone"),
        (ValueError(), "ValueError"),
        (TimeoutError("x" * 3000), ("TimeoutError: " + "x" * 3000)[:2000]),
        (Mute(), "Mute: (its message cannot be read: __str__ raised)"),
        (ExceptionGroup("two", [ValueError(), OSError()]), "ExceptionGroup: two (2 sub-exceptions)"),
        (RunConflict("other", "busy").with_traceback(None), None),
        (StopAsyncIteration("odd"), "StopAsyncIteration: odd"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
async def test_any_exception_of_the_model_or_the_executor_becomes_a_stop_reason(
    error: Exception, kept: str | None
) -> None:
    by_model = await definition([error]).run(request())
    by_executor = await definition().run(dataclasses.replace(request(), executor=ScriptedExecutor([error])))
    assert (by_model.stop_reason, by_executor.stop_reason) == ("llm_error", "env_error")
    assert by_model.detail == by_executor.detail
    assert by_model.detail == (f"RunConflict: {error}" if kept is None else kept)


# --- whatever is no Exception passes


def with_fault(place: str, error: BaseException) -> tuple[AgentDefinition, RunRequest]:
    """A definition one of whose ports raises this, at the first occasion."""
    made, asked = definition(), request()
    if place == "model":
        made = dataclasses.replace(made, model=ScriptedModel([error]))
    elif place == "parser":
        made = dataclasses.replace(made, parser=ScriptedParser(rules={"act: a": error}))
    elif place == "executor":
        asked = dataclasses.replace(asked, executor=ScriptedExecutor([error]))
    elif place == "sink":
        sink = FailingSink(lambda: error, on=lambda event: type(event).__name__ == "StepEnded")
        made = dataclasses.replace(made, events=sink)
    else:
        made = dataclasses.replace(made, store=FailingStore(place, error))
    return made, asked


class FailingStore(EphemeralRunStore):
    """Raises once, instead of one kind of call or after it."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__()
        self.kind, _, self.when = place.partition(" ")
        self.error: BaseException | None = error

    def _fail(self, kind: str, when: str) -> None:
        if self.error is not None and (kind, when) == (self.kind, self.when):
            error, self.error = self.error, None
            raise error

    def _append(self, key: RunKey, record: Record) -> None:
        kind = type(record).__name__
        self._fail(kind, "before")
        super()._append(key, record)
        self._fail(kind, "after")

    async def read_log(self, key: RunKey, /) -> RunLog:
        self._fail("read", "before")
        return await super().read_log(key)


KINDS = ("RunStarted", "EffectIntended", "EffectCompleted", "StepCompleted", "RunFinished")
STORE_PLACES = [f"{kind} {when}" for kind in KINDS for when in ("before", "after")]
LENGTHS = {"model": 2, "parser": 3, "executor": 4, "sink": 6}
"""How many records stand in the log when each port is called first."""


@pytest.mark.parametrize("place", [*LENGTHS, "read before", *STORE_PLACES])
async def test_a_base_exception_passes_from_anywhere_with_nothing_more_written(place: str) -> None:
    fatal = Fatal("stop")
    made, asked = with_fault(place, fatal)
    with pytest.raises(Fatal) as found:
        await made.run(asked)
    assert found.value is fatal
    log = await made.store.read_log(KEY)
    assert log.finished is None or place == "RunFinished after"
    if place in LENGTHS:
        assert log.next_seq == LENGTHS[place]
    assert isinstance(made.events, RecordingSink)
    assert made.events.kinds().count("RunClosed") == 0
    assert len(asyncio.all_tasks()) == 1, "no task is left behind"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", LENGTHS)
def test_an_interrupt_ends_the_program_with_nothing_more_written(place: str, error: type[BaseException]) -> None:
    made, asked = with_fault(place, error())
    with pytest.raises(error):
        asyncio.run(made.run(asked))
    log = asyncio.run(made.store.read_log(KEY))
    assert (log.next_seq, log.finished) == (LENGTHS[place], None)


# --- the parser


@pytest.mark.parametrize("error", [ValueError("bug"), InvalidRequest("x", "y"), RecursionError(), KeyError("k")])
async def test_an_exception_of_the_parser_passes_and_the_run_goes_on_once_it_is_mended(error: Exception) -> None:
    whole = await definition(["act: a", "what", "final: 42"]).run(request())
    for text, length in (("act: a", 3), ("what", 8), ("final: 42", 11)):
        made = definition(["act: a", "what", "final: 42"])
        broken = dataclasses.replace(made, parser=ScriptedParser(rules={text: error}))
        with pytest.raises(type(error)) as found:
            await broken.run(request())
        assert found.value is error
        log = await made.store.read_log(KEY)
        assert (log.next_seq, log.finished) == (length, None)
        for _ in range(2):
            # Still broken: the same again, and nothing written.
            with pytest.raises(type(error)):
                await broken.resume(request())
        assert (await made.store.read_log(KEY)).next_seq == length
        assert timeless(await made.resume(request())) == timeless(whole)


# --- the store


ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: OSError(28, "No space left on device"),
    lambda: StoreBusy("k", 30.0),
    lambda: RunConflict("k", "the log has moved"),
    lambda: RuntimeError("driver"),
)


@pytest.mark.parametrize("make", ERRORS)
@pytest.mark.parametrize("place", STORE_PLACES)
async def test_an_exception_of_the_store_passes_at_once_and_the_run_goes_on_once_it_is_gone(
    place: str, make: Callable[[], Exception]
) -> None:
    error = make()
    made, asked = with_fault(place, error)
    asked = dataclasses.replace(asked, model_call_replay=SAFE)
    points: list[str] = []
    with pytest.raises(type(error)) as found:
        await watch(made, points).run(asked)
    assert found.value is error
    assert points[-1].startswith("raise "), "no port is called and no event told after it"
    log = await made.store.read_log(KEY)
    resumed = dataclasses.replace(asked, executor=ScriptedExecutor())
    if log.next_seq == 0:
        with pytest.raises(RunNotFound):
            await made.resume(resumed)
        result = await made.run(resumed)
    else:
        result = await made.resume(resumed)
    whole = await definition().run(dataclasses.replace(request(), model_call_replay=SAFE))
    assert timeless(result) == timeless(whole)


def watch(made: AgentDefinition, points: list[str]) -> AgentDefinition:
    tell = points.append
    return dataclasses.replace(
        made,
        model=WatchedModel(made.model, tell),
        parser=WatchedParser(made.parser, tell),
        store=WatchedStore(made.store, tell),
        events=WatchedSink(made.events, tell),
    )


class FullStore(EphemeralRunStore):
    """Refuses append number `place`, counted from 0, and every one after it, until there is space again."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.full = True

    def _append(self, key: RunKey, record: Record) -> None:
        if self.full and record.seq >= self.place:
            raise OSError(28, "No space left on device")
        super()._append(key, record)


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_a_full_store_stops_a_run_before_the_effect_that_it_cannot_announce(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    for place in range(len(whole.records)):
        store = FullStore(place)
        first = assemble(scenario, store)
        with pytest.raises(OSError, match="No space left"):
            await first.definition.run(first.request)
        assert (await store.read_log(first.request.key)).next_seq == place
        announced = {record.result_id for record in whole.records[:place] if hasattr(record, "result_id")}
        assert set(first.effects) <= announced
        store.full = False
        second = assemble(scenario, store)
        if place == 0:
            result: RunResult = await second.definition.run(second.request)
            assert timeless(result) == timeless(whole.result)
            continue
        left = whole.records[:place]
        result = await second.definition.resume(second.request)
        check_resumed(scenario, RunLog.from_records(left), result, whole.result)
        if must_not_go_on(scenario, left) is None:
            assert story((await store.read_log(first.request.key)).records()) == story(whole.records)


async def test_a_failed_end_record_is_written_by_the_next_resume() -> None:
    whole = await run_whole(FAMILY[0])
    store = await stored(whole.records[:-1])
    resumed = assemble(FAMILY[0], store)
    assert timeless(await resumed.definition.resume(resumed.request)) == timeless(whole.result)
    with pytest.raises(RunConflict):
        await append(store, resumed.request.key, whole.records[-1])
