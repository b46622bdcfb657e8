"""A deterministic world: several processes drive one run, and a seeded scheduler says who moves next.

Everything that takes time waits at a *point*, and the scheduler wakes one point at a time. At any point it may
also crash the process (its un-flushed records are lost), cancel its task, or fail its store call. The same seed
gives the same story, to the last turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable

from polyloop import (
    ActionKind,
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    EffectCompleted,
    EffectIntended,
    InvalidDecision,
    ModelCall,
    ModelReply,
    ParsedReply,
    Record,
    ReplayPolicy,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunNotFound,
    RunRequest,
    RunResult,
    RunStarted,
    StepCompleted,
    ToolDocsStyle,
    ToolRegistry,
    ToolSpec,
    current_action,
)
from polyloop.stores._positions import check_position
from polyloop.types.records import detached, is_terminal
from tests.fakes import RecordingSink, ScriptedModel, ScriptedParser, final, tool_call

KEY = RunKey("simulated")
SCRIPT = (tool_call("safe"), "nonsense", tool_call("never"), tool_call("missing"), tool_call("never"), final("done"))


class Crashed(BaseException):
    """The process is gone."""


class Fault(OSError):  # noqa: N818 - it stands for any error of the medium
    """The store's medium failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How likely each mishap is at a point."""

    crash: float
    cancel: float
    fault: float


class Scheduler:
    """Wakes one waiting point at a time, chosen by the seed."""

    def __init__(self, seed: int, chances: Chances) -> None:
        self.random = random.Random(seed)
        self.calm = False
        self.closed = False
        self._chances = chances
        self._waiting: list[tuple[Process, asyncio.Future[None], bool]] = []

    async def point(self, process: Process, *, store: bool = False) -> None:
        """Wait for one's turn; it may end in a mishap."""
        if process.crashed or self.closed:
            raise Crashed
        waker = asyncio.get_running_loop().create_future()
        self._waiting.append((process, waker, store))
        await waker

    def close(self) -> None:
        """Crash whatever still waits, so that nothing outlives the simulation."""
        self.closed = True
        for _, waker, _ in self._waiting:
            if not waker.done():
                waker.set_exception(Crashed())

    def wake_one(self) -> bool:
        """Let one point go on; False if none waits."""
        self._waiting = [entry for entry in self._waiting if not entry[1].done()]
        if not self._waiting:
            return False
        process, waker, store = self._waiting.pop(self.random.randrange(len(self._waiting)))
        mishap = 1.0 if self.calm else self.random.random()
        chances = self._chances
        if mishap < chances.crash or process.crashed:
            process.crashed = True
            waker.set_exception(Crashed())
        elif mishap < chances.crash + chances.cancel and process.task is not None:
            waker.set_result(None)
            process.task.cancel()
        elif mishap < chances.crash + chances.cancel + chances.fault and store:
            waker.set_exception(Fault(5, "the medium failed"))
        else:
            waker.set_result(None)
        return True


class Medium:
    """What all processes share: the durable log, and what was promised of it."""

    def __init__(self, *, fenced: bool) -> None:
        self.log: list[Record] = []
        self.acknowledged = 0
        self._fenced = fenced

    def append(self, base: int, records: list[Record]) -> None:
        """Compare and append, in one act."""
        if base != len(self.log) and self._fenced:
            raise RunConflict(KEY, "the log has moved", seq=base, next_seq=len(self.log))
        self.log[base:] = records


class Store:
    """One process's view of the medium. Ordered records wait in a buffer for a barrier, or for a whim."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._view: list[Record] | None = None
        self._buffer: list[Record] = []
        self._error: Exception | None = None

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._append(record, barrier=True)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._append(record, barrier=True)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._append(record, barrier=False)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._append(record, barrier=False)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._append(record, barrier=True)

    async def read_log(self, key: RunKey, /) -> RunLog:
        await self._process.point(store=True)
        medium = self._process.medium
        self._error, self._buffer = None, []
        self._view = list(medium.log)
        # What a reader has seen, it may build on: it is not lost later.
        medium.acknowledged = len(medium.log)
        return RunLog.from_records(map(detached, self._view))

    async def _append(self, record: Record, *, barrier: bool) -> None:
        if self._error is not None:
            raise self._error
        try:
            view = self._view if self._view is not None else list(self._process.medium.log)
            check_position(KEY, record, len(view), ended=bool(view) and is_terminal(view[-1]))
            self._view = [*view, record]
            await self._process.point(store=True)
            self._buffer.append(detached(record))
            if barrier or self._process.scheduler.random.random() < 0.3:
                self._flush()
            await self._process.point()
        except Exception as error:
            self._error = error
            raise
        if barrier:
            self._process.medium.acknowledged = max(self._process.medium.acknowledged, record.seq + 1)

    def _flush(self) -> None:
        self._process.medium.append(self._buffer[0].seq, self._buffer)
        self._buffer = []


class Process:
    """One process: ports of its own, a view of the medium, and a life that may end at any point."""

    def __init__(self, scheduler: Scheduler, medium: Medium, effects: Effects, policies: Policies) -> None:
        self.scheduler = scheduler
        self.medium = medium
        self.crashed = False
        self.task: asyncio.Task[object] | None = None
        self._effects = effects
        self.store = Store(self)
        registry = ToolRegistry(
            tuple(self._tool(name, replay) for name, replay in (("safe", policies.safe_tool), ("never", NEVER)))
        )
        self.definition = AgentDefinition(
            model=_Model(self),
            parser=_Parser(self),
            store=self.store,
            events=_Sink(self),
            synthetic_observations={ActionStatus.NOT_EXECUTED: "no", ActionStatus.ENV_ERROR: "broken"},
            observation_template="{observation}",
        )
        self.request = RunRequest(
            key=KEY,
            budget=Budget(
                max_steps=9, max_executed_actions=9, max_prompt_chars=10**6, max_consecutive_parse_failures=3
            ),
            executor=registry.executor(max_observation_chars=99),
            tools=registry,
            run_segments=(ChatMessage(role="system", content="go"),),
            item_segments=(),
            skills=(),
            model_binding={},
            model_call_replay=policies.model,
            tool_docs_style=ToolDocsStyle.NONE,
            finalize_timeout_s=10_000,
        )

    def _tool(self, name: str, replay: ReplayPolicy) -> ToolSpec:
        async def handler(_: object) -> str:
            await self.point()
            self.happens("action", current_action().result_id)
            await self.point()
            return f"{name} done"

        return ToolSpec(name=name, description="", parameters={"type": "object"}, handler=handler, replay=replay)

    async def point(self, *, store: bool = False) -> None:
        """Wait for the scheduler."""
        await self.scheduler.point(self, store=store)

    def happens(self, kind: str, result_id: str) -> None:
        """An effect takes place: it must have been announced, durably, and have no result in this driver's story."""
        log = self.medium.log[: self.medium.acknowledged]
        if not any(isinstance(each, EffectIntended) and each.result_id == result_id for each in log):
            # Noted, not raised: an exception would be a port's own, and become a stop reason.
            self._effects.violations.append(f"{result_id} happened before it was announced")
        self._effects.count(kind, result_id)

    async def drive(self) -> RunResult | None:
        """Run or resume, once; None if it did not come to a result."""
        self.task = asyncio.current_task()
        with contextlib.suppress(Crashed, Fault, RunConflict, RunNotFound, RunAlreadyExists):
            try:
                return await self.definition.resume(self.request)
            except RunNotFound:
                return await self.definition.run(self.request)
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    model: ReplayPolicy
    safe_tool: ReplayPolicy


NEVER, SAFE = ReplayPolicy.NEVER, ReplayPolicy.SAFE


class Effects:
    """The ledger: how often each effect really happened, whichever process did it."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], int] = {}
        self.violations: list[str] = []

    def count(self, kind: str, result_id: str) -> None:
        self.times[kind, result_id] = self.times.get((kind, result_id), 0) + 1


class _Model(ScriptedModel):
    def __init__(self, process: Process) -> None:
        super().__init__(SCRIPT)
        self._process = process

    async def call(self, call: ModelCall, /) -> ModelReply:
        await self._process.point()
        self._process.happens("model", call.result_id)
        await self._process.point()
        return await super().call(call)


class _Parser(ScriptedParser):
    def __init__(self, process: Process) -> None:
        super().__init__(produces=ActionKind.TOOL_CALL, rules={"nonsense": InvalidDecision(reason="again")})
        self._process = process

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        await self._process.point()
        return await super().parse(reply)


class _Sink(RecordingSink):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    async def emit(self, event: object, /) -> None:
        await self._process.point()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a simulation left behind."""

    log: tuple[Record, ...]
    results: tuple[RunResult, ...]
    effects: dict[tuple[str, str], int]
    never: frozenset[tuple[str, str]]
    mishaps: int


async def simulate(seed: int, *, fenced: bool = True) -> Story:
    """One schedule, from the first process to the last result; `fenced=False` plants a medium that does not compare."""
    choice = random.Random(seed)
    policies = Policies(model=choice.choice((NEVER, SAFE)), safe_tool=choice.choice((NEVER, SAFE)))
    chances = Chances(
        crash=choice.choice((0, 0.01, 0.05)), cancel=choice.choice((0, 0.02)), fault=choice.choice((0, 0.02))
    )
    scheduler, medium, effects = Scheduler(seed, chances), Medium(fenced=fenced), Effects()
    tasks: list[asyncio.Task[RunResult | None]] = []

    def start() -> None:
        tasks.append(asyncio.create_task(Process(scheduler, medium, effects, policies).drive()))

    def all_done() -> bool:
        return all(task.done() for task in tasks)

    try:
        for _ in range(choice.randrange(2, 7)):
            start()
            await _let_go_on(scheduler, medium, choice.randrange(1, 60), all_done)
        await _let_go_on(scheduler, medium, 10_000, all_done)
        scheduler.calm = True
        start()
        await _let_go_on(scheduler, medium, 10_000, all_done)
        assert all_done(), "a driver does not come to an end"
    finally:
        scheduler.close()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not effects.violations, effects.violations[0]
    results = [None if task.cancelled() else task.result() for task in tasks]
    return Story(
        log=tuple(medium.log),
        results=tuple(result for result in results if result is not None),
        effects=effects.times,
        never=_never(effects, policies),
        mishaps=results.count(None),
    )


def _never(effects: Effects, policies: Policies) -> frozenset[tuple[str, str]]:
    safe = {("action", "000000-action")} if policies.safe_tool is SAFE else set()
    return frozenset(
        each for each in effects.times if each not in safe and not (each[0] == "model" and policies.model is SAFE)
    )


async def _let_go_on(scheduler: Scheduler, medium: Medium, points: int, done: Callable[[], bool]) -> None:
    """Wake so many points; after each, what was promised must still be so."""
    for _ in range(points):
        promised = tuple(medium.log[: medium.acknowledged])
        for _ in range(8):
            await asyncio.sleep(0)
        if done() or not scheduler.wake_one():
            break
        assert tuple(medium.log[: len(promised)]) == promised, "an acknowledged record was lost or changed"
    for _ in range(8):
        await asyncio.sleep(0)
