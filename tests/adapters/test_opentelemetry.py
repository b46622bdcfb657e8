"""`OpenTelemetrySink`, seen through the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from polyloop.adapters.fanout import FanOutSink
from polyloop.adapters.opentelemetry import Names, OpenTelemetrySink
from polyloop.ports import Action, ModelCall
from polyloop.session import AgentDefinition
from polyloop.types import (
    ActionKind,
    InvalidRequest,
    ModelReply,
    ReplayPolicy,
    RunKey,
    RunOpened,
)
from tests.builders import definition, request
from tests.fakes import (
    HANG,
    RecordingSink,
    ScriptedExecutor,
    ScriptedModel,
    ScriptedParser,
    env_error,
    executed,
    not_executed,
)

SECRET = "only the model may know"  # noqa: S105 - it opens nothing


class Traced:
    """A provider of its own, and what was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def sink(self, **given: Any) -> OpenTelemetrySink:
        settings = {"provider_name": "openai", "request_model": "m-1", "agent_name": "clerk", "capture_content": False}
        return OpenTelemetrySink(tracer_provider=self.provider, **{**settings, **given})

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest_asyncio.fixture
async def traced() -> AsyncIterator[Traced]:
    traces = Traced()
    yield traces
    traces.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def with_sink(sink: OpenTelemetrySink, **changes: Any) -> AgentDefinition:
    return dataclasses.replace(definition(), events=sink, **changes)


TOOLS = ScriptedParser(produces=ActionKind.TOOL_CALL)


async def test_a_run_its_model_calls_and_its_actions_are_spans_by_the_conventions(traced: Traced) -> None:
    model = ScriptedModel(['call: find {"q": "x"}', "final: 42"])
    executor = ScriptedExecutor([executed("seen")], accepts=ActionKind.TOOL_CALL)
    async with traced.sink() as sink:
        result = await with_sink(sink, model=model, parser=TOOLS).run(
            dataclasses.replace(request("the-key"), executor=executor)
        )
    assert result.event_sink_failures == 0
    assert [span.name for span in traced.spans] == ["chat m-1", "execute_tool find", "chat m-1", "invoke_agent clerk"]
    run, tool, chat = traced.named("invoke_agent clerk"), traced.named("execute_tool find"), traced.spans[0]
    assert (run.kind, tool.kind, chat.kind) == (SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CLIENT)
    assert parent_of(run) is None
    assert {parent_of(span) for span in traced.spans[:3]} == {id_of(run)}
    assert {span.status.status_code for span in traced.spans} == {StatusCode.UNSET}
    assert attributes(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "clerk",
        "gen_ai.request.model": "m-1",
        "gen_ai.conversation.id": "the-key",
        "polyloop.run.resumed": False,
        "polyloop.run.steps_before": 0,
        "polyloop.stop_reason": "agent_finished",
        **{f"polyloop.usage.{name}": value for name, value in dataclasses.asdict(result.usage).items()},
    }
    assert attributes(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "clerk",
        "gen_ai.request.model": "m-1",
        "gen_ai.conversation.id": "the-key",
        "gen_ai.response.id": "call-0",
        "polyloop.step_idx": 0,
        "polyloop.attempt": 1,
        "polyloop.prompt_chars": result.steps[0].prompt_chars,
        "polyloop.content_chars": result.steps[0].content_chars,
        "polyloop.thinking_chars": 0,
    }
    assert attributes(tool) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "find",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "000000-action",
        "gen_ai.conversation.id": "the-key",
        "polyloop.step_idx": 0,
        "polyloop.attempt": 1,
        "polyloop.action.status": "executed",
        "polyloop.action.completed": False,
        "polyloop.action.truncated_chars": 0,
        "polyloop.action.observation_chars": 4,
    }
    steps = [event for event in run.events if event.name == "polyloop.step"]
    assert [dict(event.attributes or {})["polyloop.step_idx"] for event in steps] == [0, 1]


async def run_with_secrets(sink: OpenTelemetrySink) -> None:
    reply = ModelReply(call_id=None, text=f'call: find {{"q": "{SECRET}"}}', reasoning=f"thought {SECRET}")
    model = ScriptedModel([reply, ValueError(f"400: bad prompt {SECRET}")])
    executor = ScriptedExecutor([executed(f"found {SECRET}")], accepts=ActionKind.TOOL_CALL)
    await with_sink(sink, model=model, parser=TOOLS).run(dataclasses.replace(request(), executor=executor))


async def test_no_content_leaves_unless_it_is_asked_for(traced: Traced) -> None:
    async with traced.sink() as sink:
        await run_with_secrets(sink)
    assert len(traced.spans) == 4
    assert not [span.name for span in traced.spans if SECRET in span.to_json()]


async def test_content_that_is_asked_for_stands_where_the_conventions_have_it(traced: Traced) -> None:
    async with traced.sink(capture_content=True) as sink:
        await run_with_secrets(sink)
    tool = attributes(traced.named("execute_tool find"))
    assert json.loads(str(tool[Names.TOOL_ARGUMENTS])) == {"q": SECRET}
    assert tool[Names.TOOL_RESULT] == f"found {SECRET}"
    (message,) = json.loads(str(attributes(traced.spans[0])[Names.OUTPUT_MESSAGES]))
    assert [part["type"] for part in message["parts"]] == ["reasoning", "text"]
    assert message["parts"][0]["content"] == f"thought {SECRET}"
    assert traced.spans[2].status.description == f"ValueError: 400: bad prompt {SECRET}"


async def test_an_action_that_is_no_tool_call_has_a_name_and_its_text_as_argument(traced: Traced) -> None:
    async with traced.sink(capture_content=True) as sink:
        await with_sink(sink).run(request())
    span = attributes(traced.named("execute_tool text_action"))
    assert json.loads(str(span[Names.TOOL_ARGUMENTS])) == {"action_text": "a"}
    assert Names.TOOL_TYPE not in span


async def test_texts_that_cannot_be_sent_are_escaped(traced: Traced) -> None:
    executor = ScriptedExecutor([executed("\ud800 half")])
    async with traced.sink(capture_content=True) as sink:
        await with_sink(sink).run(dataclasses.replace(request(), executor=executor))
    assert attributes(traced.named("execute_tool text_action"))[Names.TOOL_RESULT] == "\\ud800 half"


@pytest.mark.parametrize(
    ("item", "span_name", "error_type", "run_error"),
    [
        (not_executed("no"), "execute_tool text_action", "not_executed", None),
        (env_error("gone"), "execute_tool text_action", "env_error", "env_error"),
        (OSError("gone"), "execute_tool text_action", "OSError", "env_error"),
        (type("Odd name: x", (Exception,), {})("y"), "execute_tool text_action", "_OTHER", "env_error"),
    ],
)
async def test_a_failure_has_its_class_and_no_text(
    traced: Traced, item: Any, span_name: str, error_type: str, run_error: str | None
) -> None:
    async with traced.sink() as sink:
        run = dataclasses.replace(request(), executor=ScriptedExecutor([item]))
        await with_sink(sink).run(run)
    span, whole = traced.named(span_name), traced.named("invoke_agent clerk")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert attributes(span)[Names.ERROR_TYPE] == error_type
    assert attributes(whole).get(Names.ERROR_TYPE) == run_error


async def test_runs_at_once_do_not_mix_their_parents(traced: Traced) -> None:
    """Each model call traces a span of its own, as an instrumented client would, in the middle of all the others."""
    tracer = traced.provider.get_tracer("client")
    turn = asyncio.Barrier(8)

    async def ask(call: ModelCall) -> str:
        await turn.wait()
        with tracer.start_as_current_span(f"http {call.key}"):
            await asyncio.sleep(0)
        return "act: a" if call.call_index == 0 else "final: 42"

    async def look(action: Action) -> str:
        await turn.wait()
        with tracer.start_as_current_span(f"tool {action.key}"):
            await asyncio.sleep(0)
        return "seen"

    async with traced.sink() as sink:
        # Behind a fan-out, as with most users: it must not lose the current span.
        events = FanOutSink(RecordingSink(), sink)
        shared = dataclasses.replace(with_sink(sink, model=ScriptedModel(ask)), events=events)

        async def one(key: str) -> None:
            with tracer.start_as_current_span(f"caller {key}"):
                await shared.run(dataclasses.replace(request(key), executor=ScriptedExecutor(look)))

        await asyncio.gather(*(one(f"k{number}") for number in range(8)))
    by_id = {id_of(span): span for span in traced.spans}

    def parents(span: ReadableSpan) -> list[str]:
        above = parent_of(span)
        return [span.name, *([] if above is None else parents(by_id[above]))]

    for number in range(8):
        caller = f"caller k{number}"
        chains = [parents(span) for span in traced.spans if parents(span)[-1] == caller]
        assert sorted(chains) == sorted(
            [
                [caller],
                ["invoke_agent clerk", caller],
                *2 * [["chat m-1", "invoke_agent clerk", caller]],
                *2 * [[f"http k{number}", "chat m-1", "invoke_agent clerk", caller]],
                ["execute_tool text_action", "invoke_agent clerk", caller],
                [f"tool k{number}", "execute_tool text_action", "invoke_agent clerk", caller],
            ]
        )


async def test_runs_whose_events_come_in_one_task_do_not_mix_their_parents_either(traced: Traced) -> None:
    recorded: dict[str, RecordingSink] = {"a": RecordingSink(), "b": RecordingSink()}
    for key, events in recorded.items():
        await dataclasses.replace(definition(), events=events).run(request(key))
    async with traced.sink() as sink:
        for pair in zip(recorded["a"].events, recorded["b"].events, strict=True):
            for event in pair:
                await sink.emit(event)
    runs = {attributes(span)[Names.CONVERSATION]: id_of(span) for span in traced.spans if "invoke" in span.name}
    below = [span for span in traced.spans if "invoke" not in span.name]
    assert len(below) == 6
    assert {parent_of(span) == runs[attributes(span)[Names.CONVERSATION]] for span in below} == {True}


async def cancelled_in_the_model(sink: OpenTelemetrySink, reached: asyncio.Event, shared: AgentDefinition) -> None:
    run = dataclasses.replace(request(), model_call_replay=ReplayPolicy.SAFE)
    task = asyncio.create_task(shared.run(run))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def hanging_once(reached: asyncio.Event) -> ScriptedModel:
    def ask(_: ModelCall) -> object:
        if reached.is_set():
            return "final: 42"
        reached.set()
        return HANG

    return ScriptedModel(ask)


async def test_a_cancelled_run_is_closed_as_interrupted_when_its_key_opens_again_and_linked(traced: Traced) -> None:
    reached = asyncio.Event()
    async with traced.sink() as sink:
        shared = with_sink(sink, model=hanging_once(reached))
        await cancelled_in_the_model(sink, reached, shared)
        assert list(traced.spans) == []
        await shared.resume(dataclasses.replace(request(), model_call_replay=ReplayPolicy.SAFE))
        chat, run, again, resumed = traced.spans
    assert [span.name for span in traced.spans] == ["chat m-1", "invoke_agent clerk"] * 2
    assert {attributes(span)[Names.ERROR_TYPE] for span in (chat, run)} == {"interrupted"}
    assert Names.ERROR_TYPE not in {**attributes(again), **attributes(resumed)}
    assert attributes(resumed)["polyloop.run.resumed"] is True
    assert attributes(again)["polyloop.attempt"] == 2
    assert [link.context for link in resumed.links] == [run.get_span_context()]
    assert all((span.end_time or 0) >= (span.start_time or 1) for span in traced.spans)


async def test_leaving_closes_what_is_open_as_interrupted(traced: Traced) -> None:
    reached = asyncio.Event()
    async with traced.sink() as sink:
        await cancelled_in_the_model(sink, reached, with_sink(sink, model=hanging_once(reached)))
    assert [span.name for span in traced.spans] == ["chat m-1", "invoke_agent clerk"]
    assert {attributes(span)[Names.ERROR_TYPE] for span in traced.spans} == {"interrupted"}


async def test_it_works_inside_its_block_only(traced: Traced) -> None:
    sink = traced.sink()
    opened = RunOpened(key=RunKey("k"), resumed=False, steps=0)
    with pytest.raises(RuntimeError, match="async with"):
        await sink.emit(opened)
    async with sink:
        await sink.emit(opened)
        with pytest.raises(RuntimeError, match="cannot be entered again"):
            await sink.__aenter__()
    with pytest.raises(RuntimeError, match="async with"):
        await sink.emit(opened)
    assert len(traced.spans) == 1


async def test_the_callers_span_is_current_again_after_the_run(traced: Traced) -> None:
    """Also for one that emits in its own task, without a run around it."""
    tracer = traced.provider.get_tracer("caller")
    recorded = RecordingSink()
    await dataclasses.replace(definition(), events=recorded).run(request())
    async with traced.sink() as sink:
        with tracer.start_as_current_span("caller"):
            for event in recorded.events:
                await sink.emit(event)
            tracer.start_span("afterwards").end()
    assert parent_of(traced.named("afterwards")) == id_of(traced.named("caller"))


@pytest.mark.parametrize(
    "wrong", [{"provider_name": ""}, {"request_model": ""}, {"agent_name": 3}, {"capture_content": 1}]
)
def test_wrong_settings_are_refused(traced: Traced, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        traced.sink(**wrong)
    assert caught.value.field == f"OpenTelemetrySink.{next(iter(wrong))}"


def test_the_names_are_those_that_the_sdk_knows() -> None:
    """The published package lags behind the conventions: what it knows, it must know under the same name."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {value for name, value in vars(Names).items() if name.isupper()}
    assert used - known == {"error.type"}


def test_without_the_extra_the_message_names_it() -> None:
    program = "import sys\nsys.modules['opentelemetry'] = None\nimport polyloop.adapters.opentelemetry"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'polyloop[otel]'")
