"""Runs as OpenTelemetry spans: the extra `otel`.

::

    async with OpenTelemetrySink(
        provider_name="openai",             # as the conventions spell it: openai, anthropic, aws.bedrock, ...
        request_model="reviewer-large",
        agent_name="reviewer",
        capture_content=False,              # True: replies, arguments and observations go to the collector too
    ) as events:
        definition = AgentDefinition(events=events, ...)

=========================== ============ ====================================================================
span                        kind         from, until
=========================== ============ ====================================================================
`invoke_agent {agent_name}` `INTERNAL`   `RunOpened`, `RunClosed`; child of the span that `run` was called in
`chat {request_model}`      `CLIENT`     `ModelCallStarted`, `ModelCallEnded`; child of the run's
`execute_tool {tool_name}`  `INTERNAL`   `ActionStarted`, `ActionEnded`; child of the run's
=========================== ============ ====================================================================

The names are those of the GenAI semantic conventions, which are still in development; they stand in `Names` alone.
What the conventions have no name for begins with `polyloop.`. Why: `research-wiki/design/0022-sinks-and-mcp.md`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from polyloop._version import __version__
from polyloop.types import (
    ActionEnded,
    ActionStarted,
    ActionStatus,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    ModelReply,
    RunClosed,
    RunKey,
    RunOpened,
    StepEnded,
    StopReason,
)
from polyloop.types._checks import check_bool, check_name
from polyloop.types._json import copy_object

try:
    from opentelemetry import context as otel_context
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as error:
    if error.name != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        "polyloop.adapters.opentelemetry needs the extra `otel`: pip install 'polyloop[otel]'", name="opentelemetry"
    ) from error

__all__ = ["Names", "OpenTelemetrySink"]


class Names:
    """The names of the GenAI semantic conventions that are used here, as of December 2026."""

    OPERATION: Final = "gen_ai.operation.name"
    """`invoke_agent`, `chat` or `execute_tool`."""
    PROVIDER: Final = "gen_ai.provider.name"
    """Who serves the model."""
    AGENT: Final = "gen_ai.agent.name"
    """The agent's name."""
    CONVERSATION: Final = "gen_ai.conversation.id"
    """The run's key, on every span of the run."""
    REQUEST_MODEL: Final = "gen_ai.request.model"
    """The model that is asked for."""
    RESPONSE_ID: Final = "gen_ai.response.id"
    """The reply's `call_id`, where it has one."""
    OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
    """Content: the reply and its reasoning, as JSON."""
    TOOL_NAME: Final = "gen_ai.tool.name"
    """The tool; `text_action` for an action that is no tool call."""
    TOOL_TYPE: Final = "gen_ai.tool.type"
    """`function`, for tool calls."""
    TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
    """The effect's `result_id`, unique within the run."""
    TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
    """Content: the arguments as JSON; for an action that is no tool call, an object with its `action_text`."""
    TOOL_RESULT: Final = "gen_ai.tool.call.result"
    """Content: the observation, also where it does not enter the history."""
    ERROR_TYPE: Final = "error.type"
    """An exception's class, `interrupted`, an action status or a stop reason that is a failure; else `_OTHER`."""


_ERRORS: Final = (StopReason.ENV_ERROR, StopReason.LLM_ERROR, StopReason.RESUME_STATE_UNKNOWN)
_CLASS_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")
_INTERRUPTED: Final = "interrupted"


@dataclasses.dataclass(slots=True, kw_only=True)
class _OpenRun:
    """A run that has no closing event yet."""

    span: Span
    """That of the run."""
    outside: Context
    """What was current when the run began."""
    inside: Context
    """The same with the run's span."""
    last_ns: int
    """When its last event came."""
    effect: Span | None = None
    """The model call or action that runs."""


class OpenTelemetrySink:
    """Turns events into spans, with the tracer provider given, or the process's own.

    No content leaves by default: no reply, argument, observation or error message, whose text may hold parts of
    them; only names, counts, times and classes of errors. With `capture_content` these are set too; the prompt never
    is, for no event holds it. The run's key and tools' names are always shown: give no secret such a name.

    While a model is called or an action runs, its span is the current one in the task of the run, so what an
    instrumented client traces there becomes its child, and an agent that is run by a tool becomes a child of that
    tool's span. Runs at once do not see each other's: each has a task, and so a context, of its own.

    It works inside `async with` only (`RuntimeError` otherwise). No event tells of a run that was cancelled, or ended
    with an exception. A later `RunOpened` of its key, or leaving, ends its spans as `interrupted`, at the time of
    their last event; the new run's span links to the old one. Until then such a run is kept in memory. The provider
    is the caller's: it is neither flushed nor shut down. Have it export in the background (`BatchSpanProcessor`):
    ending a span on one that exports at once blocks the event loop.

    Raises:
        InvalidRequest: a name is empty or no string, or `capture_content` no bool.
    """

    def __init__(
        self,
        *,
        provider_name: str,
        request_model: str | None,
        agent_name: str | None,
        capture_content: bool,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        check_name("OpenTelemetrySink.provider_name", provider_name)
        for field, name in (("request_model", request_model), ("agent_name", agent_name)):
            if name is not None:
                check_name(f"OpenTelemetrySink.{field}", name)
        check_bool("OpenTelemetrySink.capture_content", capture_content)
        self._tracer = get_tracer("polyloop", __version__, tracer_provider)
        self._content = capture_content
        self._agent_name, self._model = agent_name, request_model
        shared = {Names.PROVIDER: provider_name, Names.AGENT: agent_name, Names.REQUEST_MODEL: request_model}
        self._shared = {name: value for name, value in shared.items() if value is not None}
        self._runs: dict[RunKey, _OpenRun] = {}
        self._inside = False

    async def __aenter__(self) -> Self:
        if self._inside:
            raise RuntimeError("this OpenTelemetrySink is in use: it cannot be entered again before it was left")
        self._inside = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        while self._runs:
            _, run = self._runs.popitem()
            _interrupt(run)

    async def emit(self, event: Event, /) -> None:
        """Start or end the span that the event tells of. One whose beginning was not seen is passed over.

        Raises:
            RuntimeError: the sink was not entered, or was left.
        """
        if not self._inside:
            raise RuntimeError("an OpenTelemetrySink works inside 'async with' only: it was not entered, or was left")
        if isinstance(event, RunOpened):
            self._open(event)
        elif isinstance(event, Event) and (run := self._runs.get(event.key)) is not None:
            run.last_ns = time.time_ns()
            self._go_on(run, event)

    def _open(self, event: RunOpened) -> None:
        before = self._runs.pop(event.key, None)
        if before is not None:
            _interrupt(before)
        outside, now = otel_context.get_current(), time.time_ns()
        span = self._tracer.start_span(
            _named("invoke_agent", self._agent_name),
            context=outside,
            kind=SpanKind.INTERNAL,
            attributes={
                Names.OPERATION: "invoke_agent",
                **self._shared,
                Names.CONVERSATION: event.key,
                "polyloop.run.resumed": event.resumed,
                "polyloop.run.steps_before": event.steps,
            },
            links=[] if before is None else [Link(before.span.get_span_context())],
            start_time=now,
        )
        inside = set_span_in_context(span, outside)
        self._runs[event.key] = _OpenRun(span=span, outside=outside, inside=inside, last_ns=now)
        _make_current(inside)

    def _go_on(self, run: _OpenRun, event: Event) -> None:
        match event:
            case ModelCallStarted():
                self._begin_model_call(run, event)
            case ActionStarted():
                self._begin_action(run, event)
            case ModelCallEnded() | ActionEnded():
                self._end_effect(run, event)
            case StepEnded():
                of_step = {"polyloop.step_idx": event.step.step_idx, "polyloop.parse_ok": event.step.parse_ok}
                run.span.add_event("polyloop.step", of_step)
            case RunClosed():
                del self._runs[event.key]
                _close(run, event)

    def _begin_model_call(self, run: _OpenRun, event: ModelCallStarted) -> None:
        about: dict[str, str | int] = {Names.OPERATION: "chat", **self._shared}
        about["polyloop.prompt_chars"] = event.prompt_chars
        self._begin(run, event, _named("chat", self._model), SpanKind.CLIENT, about)

    def _begin_action(self, run: _OpenRun, event: ActionStarted) -> None:
        plan = event.action
        tool = "text_action" if plan.tool_name is None else _text(plan.tool_name)
        about: dict[str, str | int] = {Names.OPERATION: "execute_tool", Names.TOOL_NAME: tool}
        about[Names.TOOL_CALL_ID] = event.result_id
        if plan.tool_name is not None:
            about[Names.TOOL_TYPE] = "function"
        span = self._begin(run, event, _named("execute_tool", tool), SpanKind.INTERNAL, about)
        if self._content and span.is_recording():
            arguments = {"action_text": plan.action_text} if plan.tool_name is None else plan.arguments
            span.set_attribute(Names.TOOL_ARGUMENTS, json.dumps(copy_object(arguments, "arguments")))

    def _begin(
        self,
        run: _OpenRun,
        event: ModelCallStarted | ActionStarted,
        name: str,
        kind: SpanKind,
        about: Mapping[str, str | int],
    ) -> Span:
        _interrupt_effect(run)
        place = {"polyloop.step_idx": event.step_idx, "polyloop.attempt": event.attempt}
        attributes = {**about, Names.CONVERSATION: event.key, **place}
        run.effect = self._tracer.start_span(
            name, context=run.inside, kind=kind, attributes=attributes, start_time=run.last_ns
        )
        _make_current(set_span_in_context(run.effect, run.inside))
        return run.effect

    def _end_effect(self, run: _OpenRun, event: ModelCallEnded | ActionEnded) -> None:
        span, run.effect = run.effect, None
        if span is None:
            return
        if event.error is not None:
            said = event.error.partition(":")[0]
            kind = said if _CLASS_NAME.fullmatch(said) else "_OTHER"
            _fail(span, kind, _text(event.error) if self._content else None)
        if isinstance(event, ActionEnded):
            self._tell_outcome(span, event)
        elif event.reply is not None:
            self._tell_reply(span, event.reply)
        span.end()
        _make_current(run.inside)

    def _tell_reply(self, span: Span, reply: ModelReply) -> None:
        if reply.call_id is not None:
            span.set_attribute(Names.RESPONSE_ID, _text(reply.call_id))
        span.set_attribute("polyloop.content_chars", len(reply.text))
        span.set_attribute("polyloop.thinking_chars", len(reply.reasoning or ""))
        if self._content and span.is_recording():
            thought = [] if reply.reasoning is None else [{"type": "reasoning", "content": reply.reasoning}]
            parts = [*thought, {"type": "text", "content": reply.text}]
            # The conventions demand a finish reason, which no model port reports.
            message = {"role": "assistant", "parts": parts, "finish_reason": "unknown"}
            span.set_attribute(Names.OUTPUT_MESSAGES, json.dumps([message]))

    def _tell_outcome(self, span: Span, event: ActionEnded) -> None:
        outcome = event.outcome
        if outcome is None:
            return
        if outcome.status is not ActionStatus.EXECUTED:
            _fail(span, str(outcome.status), None)
        span.set_attribute("polyloop.action.status", str(outcome.status))
        span.set_attribute("polyloop.action.truncated_chars", outcome.truncated_chars)
        span.set_attribute("polyloop.action.observation_chars", len(outcome.observation))
        if outcome.completed is not None:
            span.set_attribute("polyloop.action.completed", outcome.completed)
        if self._content and span.is_recording():
            span.set_attribute(Names.TOOL_RESULT, _text(outcome.observation))


def _named(operation: str, name: str | None) -> str:
    return operation if name is None else f"{operation} {name}"


def _text(text: str) -> str:
    """A text that can be sent: an exporter that meets a lone surrogate loses the whole batch."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _make_current(context: Context) -> None:
    # Set and never reset by its token: the next event sets the next one, and the task of the run ends with its context.
    otel_context.attach(context)


def _fail(span: Span, kind: str, description: str | None) -> None:
    span.set_attribute(Names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, description))


def _close(run: _OpenRun, event: RunClosed) -> None:
    _interrupt_effect(run)
    run.span.set_attribute("polyloop.stop_reason", str(event.stop_reason))
    for field in dataclasses.fields(event.usage):
        run.span.set_attribute(f"polyloop.usage.{field.name}", getattr(event.usage, field.name))
    if event.stop_reason in _ERRORS:
        _fail(run.span, str(event.stop_reason), None)
    run.span.end()
    _make_current(run.outside)


def _interrupt(run: _OpenRun) -> None:
    _interrupt_effect(run)
    _fail(run.span, _INTERRUPTED, None)
    run.span.end(end_time=run.last_ns)


def _interrupt_effect(run: _OpenRun) -> None:
    span, run.effect = run.effect, None
    if span is not None:
        _fail(span, _INTERRUPTED, None)
        span.end(end_time=run.last_ns)
