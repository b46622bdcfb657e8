"""A family of runs whose ports answer the same every time: by step and by arguments, never by what was asked before.

Together they reach every stop reason that a run reaches by itself, and every way in which a step can end. Each is the
yardstick for itself: whatever interrupts it, `resumed_result` says what `resume` must return.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, cast

from polyloop.ports import (
    Action,
    ActionDecision,
    ActionExecutor,
    Decision,
    DecisionParser,
    EventSink,
    ModelPort,
    RunStore,
)
from polyloop.session import AgentDefinition, RunRequest
from polyloop.tools import ToolRegistry, ToolResult, ToolSpec
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    Budget,
    ChatMessage,
    EffectIntended,
    EffectKind,
    EnvironmentFailure,
    InjectedEntry,
    JSONValue,
    ModelReply,
    Record,
    ReplayPolicy,
    RunFinished,
    RunKey,
    RunLog,
    RunResult,
    StepCompleted,
    StopReason,
    ToolDocsStyle,
    Usage,
)
from tests.fakes import (
    ExecutorItem,
    ModelItem,
    RecordingSink,
    ScriptedExecutor,
    ScriptedModel,
    ScriptedParser,
    act,
    env_error,
    executed,
    final,
    not_executed,
    tool_call,
)
from tests.seams import Tell, WatchedExecutor, WatchedModel, WatchedParser, WatchedSink, WatchedStore

KEY: Final = RunKey("the/run")
NEVER, SAFE = ReplayPolicy.NEVER, ReplayPolicy.SAFE
NOT_EXECUTED_TEXT: Final = "(the action was not executed)"
ENV_ERROR_TEXT: Final = "(the environment is gone)"
NOT_JSON: Final = "call with arguments that are not JSON"
ROOMY: Final = Budget(max_steps=20, max_executed_actions=20, max_prompt_chars=100_000, max_consecutive_parse_failures=3)

Effect: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run."""

    name: str
    stop_reason: StopReason
    replies: tuple[ModelItem, ...]
    """By step."""
    outcomes: Mapping[int, ExecutorItem] = dataclasses.field(default_factory=dict)
    """By step, for the scripted executor; none means that the registry's own executor is used."""
    tools: tuple[ToolSpec, ...] = ()
    budget: Budget = ROOMY
    model_call_replay: ReplayPolicy = NEVER

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> ActionKind:
        return ActionKind.TOOL_CALL if self.tools else ActionKind.TEXT

    def replay_of(self, intent: EffectIntended) -> ReplayPolicy:
        """What this run declares for an effect."""
        if intent.action is None:
            return self.model_call_replay
        return {spec.name: spec.replay for spec in self.tools}.get(intent.action.tool_name or "", NEVER)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A scenario put together anew, as a fresh process would."""

    definition: AgentDefinition
    request: RunRequest
    model: ScriptedModel
    parser: ScriptedParser
    sink: RecordingSink
    effects: list[str]
    """The effects that really began, in order, by their `result_id`."""


def assemble(
    scenario: Scenario,
    store: RunStore,
    *,
    tell: Tell = lambda _: None,
    effect: Effect = lambda _: None,
    sink: RecordingSink | None = None,
    key: RunKey = KEY,
) -> Assembled:
    """Fresh ports around this store. `effect` is called where an effect happens, `tell` at every seam."""
    model = ScriptedModel(scenario.replies)
    parser = ScriptedParser(produces=scenario.kind, rules=_RULES)
    sink = RecordingSink() if sink is None else sink
    registry = ToolRegistry(scenario.tools)
    effects: list[str] = []

    def begun(point: str) -> None:
        edge, _, result_id = point.split(" ")
        if edge == "enter":
            effects.append(result_id)
            effect(result_id)

    watched_model: ModelPort = WatchedModel(WatchedModel(model, begun), tell)
    watched_executor = WatchedExecutor(WatchedExecutor(_executor(scenario, registry), begun), tell)
    watched_parser: DecisionParser = WatchedParser(parser, tell)
    watched_sink: EventSink = WatchedSink(sink, tell)
    definition = AgentDefinition(
        model=watched_model,
        parser=watched_parser,
        store=WatchedStore(store, tell),
        events=watched_sink,
        synthetic_observations={
            ActionStatus.NOT_EXECUTED: NOT_EXECUTED_TEXT,
            ActionStatus.ENV_ERROR: ENV_ERROR_TEXT,
        },
        observation_template="observed {{observation}} {}",
    )
    request = RunRequest(
        key=key,
        budget=scenario.budget,
        executor=watched_executor,
        tools=registry,
        run_segments=(ChatMessage(role="system", content="You act."),),
        item_segments=(ChatMessage(role="user", content="Do it."),),
        skills=(InjectedEntry(entry_id="skill", message=ChatMessage(role="user", content="You know how.")),),
        model_binding={"tenant": "t"},
        model_call_replay=scenario.model_call_replay,
        tool_docs_style=ToolDocsStyle.JSON_SCHEMA,
        finalize_timeout_s=5.0,
    )
    return Assembled(definition=definition, request=request, model=model, parser=parser, sink=sink, effects=effects)


def _executor(scenario: Scenario, registry: ToolRegistry) -> ActionExecutor:
    if scenario.tools and not scenario.outcomes:
        return registry.executor(max_observation_chars=60)

    def outcome(action: Action) -> ExecutorItem:
        return scenario.outcomes[action.step_idx]

    return ScriptedExecutor(outcome, accepts=scenario.kind, tool_schemas=registry.schemas)


_RULES: Final[Mapping[str, Decision]] = {
    NOT_JSON: ActionDecision(action_text="look {nan}", tool_name="look", arguments={"query": math.nan}),
}


async def _look(arguments: dict[str, JSONValue]) -> str:
    return f"{arguments['query']} looks like {{this}}"


async def _write(arguments: dict[str, JSONValue]) -> ToolResult:
    return ToolResult(observation=f"wrote {arguments['text']}, {'and much more ' * 5}")


async def _fail(arguments: dict[str, JSONValue]) -> str:
    raise ValueError("no such table")


async def _vanish(arguments: dict[str, JSONValue]) -> str:
    raise EnvironmentFailure("the container is gone")


async def _submit(arguments: dict[str, JSONValue]) -> str:
    return "taken"


def _schema(name: str) -> dict[str, JSONValue]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


LOOK = ToolSpec(name="look", description="Looks.", parameters=_schema("query"), handler=_look, replay=SAFE)
WRITE = ToolSpec(name="write", description="Writes.", parameters=_schema("text"), handler=_write)
FAIL = ToolSpec(name="fail", description="Fails.", parameters={}, handler=_fail, replay=SAFE)
VANISH = ToolSpec(name="vanish", description="Vanishes.", parameters={}, handler=_vanish, replay=SAFE)
SUBMIT = ToolSpec(name="submit", description="Submits.", parameters={}, handler=_submit, completes=True)
TOOLS: Final = (LOOK, WRITE, FAIL, VANISH, SUBMIT)

_EVERY_TOOL_STEP: Final = (
    tool_call("look", query="the data"),
    "no decision at all",
    tool_call("write", text="a line"),
    tool_call("nope", x=1),
    tool_call("look", quarry="misspelt"),
    NOT_JSON,
    tool_call("fail"),
    tool_call("submit"),
)

FAMILY: Final = (
    Scenario(name="answers at once", stop_reason=StopReason.AGENT_FINISHED, replies=(final("42"),)),
    Scenario(
        name="answers after work, model calls safe",
        stop_reason=StopReason.AGENT_FINISHED,
        replies=(act("a"), "no decision", act("b"), final("")),
        outcomes={0: "did a", 2: "did b"},
        model_call_replay=SAFE,
    ),
    Scenario(
        name="completes the task",
        stop_reason=StopReason.TASK_COMPLETED,
        replies=(act("a"), act("b")),
        outcomes={0: executed("not yet"), 1: executed("done", completed=True)},
    ),
    Scenario(
        name="completes on its last step",
        stop_reason=StopReason.TASK_COMPLETED,
        replies=(act("a"), act("b")),
        outcomes={0: executed("not yet"), 1: executed("done", completed=True)},
        budget=dataclasses.replace(ROOMY, max_steps=2, max_executed_actions=2),
        model_call_replay=SAFE,
    ),
    Scenario(
        name="spends its steps",
        stop_reason=StopReason.STEP_BUDGET,
        replies=(act("a"), "no decision", act("b")),
        outcomes={0: "did a", 2: not_executed("refused")},
        budget=dataclasses.replace(ROOMY, max_steps=3),
        model_call_replay=SAFE,
    ),
    Scenario(
        name="spends its actions",
        stop_reason=StopReason.ACTION_BUDGET,
        replies=(act("a"), act("refused"), act("b")),
        outcomes={0: "did a", 1: dataclasses.replace(not_executed("refused"), completed=True), 2: "did b"},
        budget=dataclasses.replace(ROOMY, max_executed_actions=2),
    ),
    Scenario(
        name="cannot be understood",
        stop_reason=StopReason.PARSE_FAILED_REPEATEDLY,
        replies=("what", act("a"), "what", "how"),
        outcomes={1: "did a"},
        budget=dataclasses.replace(ROOMY, max_consecutive_parse_failures=2),
        model_call_replay=SAFE,
    ),
    Scenario(
        name="outgrows its prompt",
        stop_reason=StopReason.CONTEXT_OVERFLOW,
        replies=(act("a"), act("b")),
        outcomes={0: "short", 1: "long " * 40},
        budget=dataclasses.replace(ROOMY, max_prompt_chars=200),
        model_call_replay=SAFE,
    ),
    Scenario(
        name="has too long a prompt to begin with",
        stop_reason=StopReason.CONTEXT_OVERFLOW,
        replies=(),
        budget=dataclasses.replace(ROOMY, max_prompt_chars=5),
    ),
    Scenario(
        name="loses its environment",
        stop_reason=StopReason.ENV_ERROR,
        replies=(act("a"), act("b")),
        outcomes={0: "did a", 1: env_error("connection refused")},
    ),
    Scenario(
        name="cannot learn whether it is done",
        stop_reason=StopReason.ENV_ERROR,
        replies=(act("a"),),
        outcomes={0: executed("did a", completed=None)},
        model_call_replay=SAFE,
    ),
    Scenario(
        name="has an executor that raises",
        stop_reason=StopReason.ENV_ERROR,
        replies=(act("a"), act("b")),
        outcomes={0: "did a", 1: lambda _: OSError(5, "broken pipe")},
        model_call_replay=SAFE,
    ),
    Scenario(
        name="has an executor that returns nonsense",
        stop_reason=StopReason.ENV_ERROR,
        replies=(act("a"),),
        outcomes={0: cast("ExecutorItem", 17)},
    ),
    Scenario(
        name="has no model",
        stop_reason=StopReason.LLM_ERROR,
        replies=(lambda _: ConnectionError("refused " * 400),),
    ),
    Scenario(
        name="loses its model",
        stop_reason=StopReason.LLM_ERROR,
        replies=(act("a"), "no decision", lambda _: TimeoutError("late")),
        outcomes={0: "did a"},
        model_call_replay=SAFE,
    ),
    Scenario(
        name="has a model that returns nonsense",
        stop_reason=StopReason.LLM_ERROR,
        replies=(cast("ModelItem", {"text": "final: 42"}),),
        model_call_replay=SAFE,
    ),
    Scenario(
        name="calls tools in every way",
        stop_reason=StopReason.TASK_COMPLETED,
        replies=_EVERY_TOOL_STEP,
        tools=TOOLS,
        model_call_replay=SAFE,
    ),
    Scenario(
        name="calls tools in every way, model calls never again",
        stop_reason=StopReason.TASK_COMPLETED,
        replies=_EVERY_TOOL_STEP,
        tools=TOOLS,
    ),
    Scenario(
        name="has a tool that loses the environment",
        stop_reason=StopReason.ENV_ERROR,
        replies=(tool_call("vanish"),),
        tools=TOOLS,
        model_call_replay=SAFE,
    ),
    Scenario(
        name="has a tool whose completion is unknown",
        stop_reason=StopReason.ENV_ERROR,
        replies=(tool_call("look", query="x"), tool_call("look", query="y")),
        outcomes={0: executed("seen"), 1: executed("seen", completed=None)},
        tools=TOOLS,
        model_call_replay=SAFE,
    ),
    Scenario(
        name="says strange things",
        stop_reason=StopReason.AGENT_FINISHED,
        replies=(
            ModelReply(call_id=None, text=act("nul \0, half \ud83d, pair \ud83d\ude00, \u2028"), reasoning="well\0"),
            ModelReply(call_id="id", text="", reasoning=""),
            ModelReply(call_id="id", text=final("{observation} \udc00"), reasoning=None),
        ),
        outcomes={
            0: ActionOutcome(
                status=ActionStatus.EXECUTED,
                observation="{observation} {0} \0 \udfff",
                completed=False,
                truncated_chars=7,
                observation_is_synthetic=True,
            ),
        },
        model_call_replay=SAFE,
    ),
)


def timeless(result: RunResult) -> RunResult:
    """A result without its wall-clock times."""
    steps = tuple(dataclasses.replace(step, step_wall_ms=0) for step in result.steps)
    return dataclasses.replace(result, steps=steps)


def timeless_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """Records without their wall-clock times."""
    return tuple(map(_timeless, records))


def _timeless(record: Record) -> Record:
    at = "2000-01-01T00:00:00.000000+00:00"
    if isinstance(record, StepCompleted):
        return dataclasses.replace(record, recorded_at=at, step=dataclasses.replace(record.step, step_wall_ms=0))
    return dataclasses.replace(record, recorded_at=at)


def renumbered(records: Iterable[Record]) -> tuple[Record, ...]:
    """Records at the positions in which they stand."""
    return tuple(dataclasses.replace(record, seq=seq) for seq, record in enumerate(records))


def story(records: Iterable[Record]) -> tuple[Record, ...]:
    """What a log tells, interruptions left out: no cancelled ends, of each effect the last attempt, as if the first."""
    kept: list[Record] = []
    for record in timeless_records(records):
        if isinstance(record, RunFinished) and record.stop_reason is StopReason.CANCELLED:
            continue
        if isinstance(record, EffectIntended):
            if isinstance(kept[-1], EffectIntended) and kept[-1].result_id == record.result_id:
                kept.pop()
            kept.append(dataclasses.replace(record, attempt=1))
        else:
            kept.append(record)
    return renumbered(kept)


def open_effect(records: Iterable[Record]) -> EffectIntended | None:
    """The effect that a log ends in; an interruption, and an end that says so, set aside."""
    last: Record | None = None
    for record in records:
        if not (isinstance(record, RunFinished) and record.stop_reason in _INTERRUPTED):
            last = record
    return last if isinstance(last, EffectIntended) else None


_INTERRUPTED: Final = (StopReason.CANCELLED, StopReason.RESUME_STATE_UNKNOWN)


def must_not_go_on(scenario: Scenario, records: Iterable[Record]) -> EffectIntended | None:
    """The open effect that forbids to go on: one that is not `SAFE` in the log and at present."""
    intent = open_effect(records)
    if intent is None or (intent.replay is SAFE and scenario.replay_of(intent) is SAFE):
        return None
    return intent


def check_resumed(scenario: Scenario, log: RunLog, result: RunResult, uninterrupted: RunResult) -> None:
    """`resume` of this log must have returned this result."""
    intent = must_not_go_on(scenario, log.records())
    if intent is None:
        assert timeless(result) == timeless(uninterrupted)
        return
    steps = tuple(record.step for record in log.steps)
    expected = RunResult(
        key=result.key,
        stop_reason=StopReason.RESUME_STATE_UNKNOWN,
        steps=steps,
        final_answer=None,
        detail=result.detail,
        usage=Usage(
            model_calls=len({each.result_id for each in log.intents if each.kind is EffectKind.MODEL_CALL}),
            executed_actions=sum(step.action_status == "executed" for step in steps),
            steps=len(steps),
            prompt_chars=sum(step.prompt_chars for step in steps),
            content_chars=sum(step.content_chars for step in steps),
            thinking_chars=sum(step.thinking_chars for step in steps),
        ),
        params_snapshot=uninterrupted.params_snapshot,
        event_sink_failures=0,
    )
    assert timeless(result) == timeless(expected)
    named = (
        "model call" if intent.action is None else "action",
        f"step {intent.step_idx}",
        f"attempt {intent.attempt}",
    )
    assert all(part in (result.detail or "") for part in named), result.detail


def effects_in(records: Iterable[Record]) -> list[str]:
    """The effects that a log announces for the first time, in order."""
    return list(dict.fromkeys(record.result_id for record in records if isinstance(record, EffectIntended)))
