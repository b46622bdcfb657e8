"""Watched ports: each says when it is entered and when it is left.

`tell` hears one line a point, such as ``enter append_intent 000000-model_call`` or ``leave execute 000001-action``
(``raise`` instead of ``leave`` where the port raised). It may itself raise, cancel or kill: that is how a run is
stopped at a named place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from polyloop.ports import (
    Action,
    ActionExecutor,
    DecisionParser,
    EventSink,
    ModelCall,
    ModelPort,
    ParsedReply,
    RunStore,
)
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    EffectCompleted,
    EffectIntended,
    Event,
    JSONValue,
    ModelReply,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)

Tell: TypeAlias = Callable[[str], None]

_T = TypeVar("_T")


async def _watched(tell: Tell, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
    tell(f"enter {what}")
    try:
        returned = await call()
    except Exception:
        tell(f"raise {what}")
        raise
    tell(f"leave {what}")
    return returned


class WatchedStore:
    """A store with `tell` before and after each of its calls."""

    def __init__(self, store: RunStore, tell: Tell) -> None:
        self._store = store
        self._tell = tell

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await _watched(self._tell, "append_run_start", lambda: self._store.append_run_start(key, record))

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        what = f"append_intent {record.result_id}"
        await _watched(self._tell, what, lambda: self._store.append_intent(key, record))

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        what = f"append_result {record.result_id}"
        await _watched(self._tell, what, lambda: self._store.append_result(key, record))

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        what = f"append_step {record.step.step_idx}"
        await _watched(self._tell, what, lambda: self._store.append_step(key, record))

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await _watched(self._tell, f"finish {record.stop_reason}", lambda: self._store.finish(key, record))

    async def read_log(self, key: RunKey, /) -> RunLog:
        return await _watched(self._tell, "read_log", lambda: self._store.read_log(key))


class WatchedModel:
    """A model with `tell` before and after each call."""

    def __init__(self, model: ModelPort, tell: Tell) -> None:
        self._model = model
        self._tell = tell

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return self._model.params

    async def call(self, call: ModelCall, /) -> ModelReply:
        return await _watched(self._tell, f"call {call.result_id}", lambda: self._model.call(call))


class WatchedParser:
    """A parser with `tell` before and after each reply."""

    def __init__(self, parser: DecisionParser, tell: Tell) -> None:
        self._parser = parser
        self._tell = tell

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return self._parser.params

    @property
    def produces(self) -> ActionKind:
        return self._parser.produces

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        return await _watched(self._tell, f"parse {reply.call_id}", lambda: self._parser.parse(reply))


class WatchedExecutor:
    """An executor with `tell` before and after each action."""

    def __init__(self, executor: ActionExecutor, tell: Tell) -> None:
        self._executor = executor
        self._tell = tell

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return self._executor.params

    @property
    def accepts(self) -> ActionKind:
        return self._executor.accepts

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        return self._executor.tool_schemas

    async def execute(self, action: Action, /) -> ActionOutcome:
        return await _watched(self._tell, f"execute {action.result_id}", lambda: self._executor.execute(action))


class WatchedSink:
    """A sink that says of each event that it was told."""

    def __init__(self, sink: EventSink, tell: Tell) -> None:
        self._sink = sink
        self._tell = tell

    async def emit(self, event: Event, /) -> None:
        self._tell(f"event {type(event).__name__}")
        await self._sink.emit(event)


async def append(store: RunStore, key: RunKey, record: Record) -> None:
    """Append a record by the method of its kind."""
    match record:
        case RunStarted():
            await store.append_run_start(key, record)
        case EffectIntended():
            await store.append_intent(key, record)
        case EffectCompleted():
            await store.append_result(key, record)
        case StepCompleted():
            await store.append_step(key, record)
        case RunFinished():
            await store.finish(key, record)


if TYPE_CHECKING:

    def _satisfied(
        store: WatchedStore, model: WatchedModel, parser: WatchedParser, executor: WatchedExecutor, sink: WatchedSink
    ) -> tuple[RunStore, ModelPort, DecisionParser, ActionExecutor, EventSink]:
        return store, model, parser, executor, sink
