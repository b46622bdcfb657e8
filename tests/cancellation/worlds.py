"""A run in which everything takes several turns of the event loop, so that it can be cancelled at each of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from polyloop import (
    ActionKind,
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    EffectCompleted,
    EffectIntended,
    Event,
    InvalidDecision,
    ModelCall,
    ModelReply,
    ParsedReply,
    ReplayPolicy,
    RunFinished,
    RunKey,
    RunLog,
    RunRequest,
    RunResult,
    RunStarted,
    StepCompleted,
    ToolDocsStyle,
    ToolRegistry,
    ToolResult,
    ToolSpec,
    current_action,
)
from polyloop.stores.ephemeral import EphemeralRunStore
from tests.fakes import RecordingSink, ScriptedModel, ScriptedParser, final, tool_call

KEY = RunKey("cancelled")
SCRIPT = (
    tool_call("look", at="a"),
    "nonsense",
    tool_call("push", at="b"),
    tool_call("missing"),
    final("done"),
)


async def turns(count: int) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


@dataclasses.dataclass
class Counts:
    """How often each port was called, and each effect happened."""

    calls: int = 0
    effects: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    def happened(self, kind: str, result_id: str) -> None:
        self.effects[kind, result_id] = self.effects.get((kind, result_id), 0) + 1


class SlowStore:
    """Each call takes turns before and after the record is taken, and notes a cancellation that reaches it."""

    def __init__(self, pace: int = 1) -> None:
        self.inner = EphemeralRunStore()
        self.pace = pace
        self.reached_by_cancellation: list[str] = []
        self.entered: list[str] = []

    async def _slowly(self, name: str, call: Callable[[], Awaitable[None]]) -> None:
        self.entered.append(name)
        try:
            await turns(self.pace)
            await call()
            await turns(self.pace)
        except asyncio.CancelledError:
            self.reached_by_cancellation.append(name)
            raise

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._slowly("append_run_start", lambda: self.inner.append_run_start(key, record))

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._slowly("append_intent", lambda: self.inner.append_intent(key, record))

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._slowly("append_result", lambda: self.inner.append_result(key, record))

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._slowly("append_step", lambda: self.inner.append_step(key, record))

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._slowly("finish", lambda: self.inner.finish(key, record))

    async def read_log(self, key: RunKey, /) -> RunLog:
        await turns(self.pace)
        return await self.inner.read_log(key)


class SlowModel(ScriptedModel):
    """The effect happens in the middle of the call."""

    def __init__(self, counts: Counts) -> None:
        super().__init__(SCRIPT)
        self._counts = counts

    async def call(self, call: ModelCall, /) -> ModelReply:
        self._counts.calls += 1
        await turns(1)
        self._counts.happened("model", call.result_id)
        await turns(1)
        return await super().call(call)


class SlowParser(ScriptedParser):
    def __init__(self, counts: Counts) -> None:
        super().__init__(produces=ActionKind.TOOL_CALL, rules={"nonsense": InvalidDecision(reason="say it again")})
        self._counts = counts

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        self._counts.calls += 1
        await turns(1)
        return await super().parse(reply)


class SlowSink(RecordingSink):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    async def emit(self, event: Event, /) -> None:
        self._counts.calls += 1
        await turns(1)
        await super().emit(event)


class World:
    """Ports with one set of counts; `resume` brings new ports onto the same store, as a new process would."""

    def __init__(self, *, model: ReplayPolicy, tool: ReplayPolicy, store: SlowStore | None = None) -> None:
        self.counts = Counts()
        self.store = SlowStore() if store is None else store
        self.policies = {"model": model, "action": tool}
        self.sink = SlowSink(self.counts)
        self.definition = AgentDefinition(
            model=SlowModel(self.counts),
            parser=SlowParser(self.counts),
            store=self.store,
            events=self.sink,
            synthetic_observations={ActionStatus.NOT_EXECUTED: "not executed", ActionStatus.ENV_ERROR: "broken"},
            observation_template="{observation}",
        )
        self.request = self._request(model, tool)

    def _request(self, model: ReplayPolicy, tool: ReplayPolicy) -> RunRequest:
        registry = ToolRegistry((self._tool("look", tool), self._tool("push", tool)))
        return RunRequest(
            key=KEY,
            budget=Budget(
                max_steps=9, max_executed_actions=9, max_prompt_chars=10_000, max_consecutive_parse_failures=3
            ),
            executor=registry.executor(max_observation_chars=100),
            tools=registry,
            run_segments=(ChatMessage(role="system", content="go"),),
            item_segments=(),
            skills=(),
            model_binding={},
            model_call_replay=model,
            tool_docs_style=ToolDocsStyle.NONE,
            finalize_timeout_s=5,
        )

    def _tool(self, name: str, replay: ReplayPolicy) -> ToolSpec:
        async def handler(arguments: object) -> ToolResult:
            self.counts.calls += 1
            await turns(1)
            self.counts.happened("action", current_action().result_id)
            await turns(1)
            return ToolResult(observation=f"{name} {arguments}")

        return ToolSpec(name=name, description=name, parameters={"type": "object"}, handler=handler, replay=replay)

    def run(self) -> asyncio.Task[RunResult]:
        return asyncio.create_task(self.definition.run(self.request))

    async def log(self) -> RunLog:
        return await self.store.inner.read_log(KEY)

    def check_never_twice(self) -> None:
        """No effect that must not be repeated happened twice."""
        for (kind, result_id), times in self.counts.effects.items():
            assert times == 1 or self.policies[kind] is ReplayPolicy.SAFE, f"{kind} {result_id} happened {times} times"


def comparable(result: RunResult) -> RunResult:
    """A result without what may differ between runs: wall-clock times."""
    steps = tuple(dataclasses.replace(step, step_wall_ms=0) for step in result.steps)
    return dataclasses.replace(result, steps=steps)
