"""Every implementation that the library and its examples ship, and the fakes that the tests use instead.

An implementation is loaded when a test asks for it. One whose package is not installed is skipped by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import io
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from polyloop.adapters.fanout import FanOutSink
from polyloop.ports import Action, ActionExecutor, EventSink, ModelCall, RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import ActionKind, ChatMessage, Event, JSONValue, ModelReply
from tests.contract.cases import (
    ActionSample,
    ExecutorCase,
    ModelCase,
    ParserCase,
    SinkCase,
    StoreFactory,
    kept_in_memory,
)
from tests.contract.environments import adventure, lake
from tests.contract.registry import Room, a_registry
from tests.fakes import (
    HANG,
    FailingSink,
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

SubjectT = TypeVar("SubjectT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Implementation(Generic[SubjectT]):
    """One adapter: a name for the reports, and how to come by its case, or for a store by its factory."""

    name: str
    load: Callable[[], SubjectT]
    requires: str | None = None
    """The package that must be installed for it; None where the library's own dependencies do."""

    def missing(self) -> str | None:
        """Why it cannot be loaded here; None where it can."""
        if self.requires is None or importlib.util.find_spec(self.requires) is not None:
            return None
        return f"{self.name}: the package {self.requires} is not installed"


# ------------------------------------------------------------------------------------------- run stores


@kept_in_memory
def ephemeral(_: Path) -> RunStore:
    """The store that forgets."""
    return EphemeralRunStore()


def jsonl(folder: Path) -> JsonlRunStore:
    """The file store."""
    return JsonlRunStore(folder)


def sqlite(folder: Path) -> SqliteRunStore:
    """The embedded database."""
    return SqliteRunStore(folder / "runs.sqlite")


def postgres(folder: Path) -> RunStore:
    """The database server. The folder's path names the tables."""
    from tests.postgres import server  # the package psycopg need not be installed

    return server.MigratedStore(server.schema(str(folder)))


def _store(name: str, factory: StoreFactory, requires: str | None = None) -> Implementation[StoreFactory]:
    return Implementation(name=name, load=lambda: factory, requires=requires)


RUN_STORES: tuple[Implementation[StoreFactory], ...] = (
    _store("ephemeral", ephemeral),
    _store("jsonl", jsonl),
    _store("sqlite", sqlite),
    _store("postgres", postgres, requires="psycopg"),
)


# ------------------------------------------------------------------------------------------------ models


def scripted_model() -> ModelCase:
    """The scripted model of the tests."""

    def said(call: ModelCall) -> str:
        return f"{call.key} {call.result_id}"

    def fails(_: ModelCall) -> ConnectionError:
        return ConnectionError("the endpoint is closed")

    return ModelCase(
        make=lambda: ScriptedModel(said),
        messages=(ChatMessage(role="user", content="Say something."),),
        binding={},
        expected=lambda call: ModelReply(call_id=f"call-{call.call_index}", text=said(call), reasoning=None),
        make_failing=lambda: ScriptedModel(fails),
        make_hanging=lambda: ScriptedModel(lambda _: HANG),
    )


def openai_chat() -> ModelCase:
    """The adapter for chat endpoints, on a server of loopback."""
    from tests.adapters import cases  # the package openai need not be installed

    return cases.openai_case()


def polygateway() -> ModelCase:
    """The adapter for the gateway, on a client with the members that it needs."""
    from tests.adapters import gateway

    return gateway.gateway_case()


MODEL_PORTS: tuple[Implementation[ModelCase], ...] = (
    Implementation(name="scripted", load=scripted_model),
    Implementation(name="openai", load=openai_chat, requires="openai"),
    Implementation(name="polygateway", load=polygateway),
)


# ----------------------------------------------------------------------------------------------- parsers


def scripted_parser() -> ParserCase:
    """The scripted parser of the tests."""
    return ParserCase(
        make=ScriptedParser,
        actions=(act("print(1)"), act("")),
        finals=(final("42"), final("")),
        invalids=("", "I would rather not.", "call: look {}"),
    )


def scripted_tool_parser() -> ParserCase:
    """The scripted parser of the tests, for tool calls."""
    return ParserCase(
        make=lambda: ScriptedParser(produces=ActionKind.TOOL_CALL),
        actions=(tool_call("look"), tool_call("walk", to="there", steps=3)),
        finals=(final("42"), final("")),
        invalids=("", "I would rather not.", "call: look", "call: look []"),
    )


def json_tool_call_parser() -> ParserCase:
    """The parser of JSON tool calls that `examples/` has to copy."""
    make = _example("parsers").JsonToolCallParser
    return ParserCase(
        make=lambda: make(
            tools=a_registry(),
            tool_key="tool",
            arguments_key="arguments",
            answer_key="final_answer",
            comment_keys=("thought",),
            blank_history_text="(no reply)",
        ),
        actions=(
            '{"tool": "add", "arguments": {"a": 1, "b": 2}}',
            'I add.\n```json\n{"thought": "easy", "tool": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}\n```',
            '{"tool": "add", "a": 1, "b": 2}',
            '{"tool": "look"}',
        ),
        finals=('{"final_answer": "42"}', 'Done: {"final_answer": "```\\nx\\n```"}'),
        invalids=(
            "",
            "I would rather not.",
            "{}",
            '{"tool": "nix"}',
            '{"tool": "add", "arguments": {"a": 1}}',
            '{"tool": "add", "arguments": {"a": 1, "b": "2"}}',
            '{"tool": "look"} {"tool": "look"}',
            '{"tool": "look"',
            '{"tool": "add", "arguments": {"a": NaN, "b": 1}}',
            '{"final_answer": ""}',
            '{"final_answer": 42}',
            '{"tool": "look", "tool": "add"}',
        ),
    )


def code_block_parser() -> ParserCase:
    """The parser of one fenced block that `examples/` has to copy."""
    make = _example("parsers").CodeBlockParser
    return ParserCase(
        make=lambda: make(languages=("python", ""), answer_language="answer", blank_history_text="(no reply)"),
        actions=("```python\nprint(1)\n```", "So:\n~~~~\n```\nx\n```\n~~~~\nThat was it."),
        finals=("```answer\n42\n```",),
        invalids=(
            "",
            "I would rather not.",
            "```python\nprint(1)",
            "```python\n1\n```\n```python\n2\n```",
            "```sql\nselect 1\n```",
            "```python\n```",
            "```answer\n\n```",
        ),
    )


def _example(name: str) -> ModuleType:
    """A module of `examples/`: examples are scripts and no package, so they are loaded by their path."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"polyloop_examples_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DECISION_PARSERS: tuple[Implementation[ParserCase], ...] = (
    Implementation(name="scripted", load=scripted_parser),
    Implementation(name="scripted-tools", load=scripted_tool_parser),
    Implementation(name="examples-json", load=json_tool_call_parser),
    Implementation(name="examples-code", load=code_block_parser),
)


# --------------------------------------------------------------------------------------------- executors


def tool_registry() -> ExecutorCase:
    """The executor that a `ToolRegistry` derives from itself."""

    def call(name: str, **arguments: JSONValue) -> ActionSample:
        return ActionSample(action_text=f"call {name}", tool_name=name, arguments=arguments)

    return ExecutorCase(
        make=lambda: a_registry().executor(max_observation_chars=1000),
        action=call("look"),
        observation="dark",
        failing=call("stumble"),
        failing_shows="there is no chair 'seven'",
        refused=call("add", a=1, b="2"),
        long=call("shout"),
        long_chars=5000,
        completing=call("leave"),
        make_broken=lambda: a_registry(Room(broken=True)).executor(max_observation_chars=1000),
        hanging=call("pace"),
        remember=call("switch"),
        recall=call("look"),
        effects=lambda: Room.effects,
    )


def tool_registry_unknown_tool() -> ExecutorCase:
    """The same, asked for a tool that it does not have."""
    refused = ActionSample(action_text="call fly", tool_name="fly")
    return dataclasses.replace(tool_registry(), refused=refused)


def mcp_tools() -> ExecutorCase:
    """The same tools, from an MCP server."""
    from tests.adapters import mcp_room  # the package mcp need not be installed

    return dataclasses.replace(
        tool_registry(), make=mcp_room.executor, make_broken=lambda: mcp_room.executor(broken=True)
    )


def scripted_executor() -> ExecutorCase:
    """The scripted executor of the tests."""

    def script(action: Action) -> object:
        said: dict[str, object] = {
            "run": "ran",
            "fail": "NameError: x",
            "refuse": not_executed("not that"),
            "finish": executed("done", completed=True),
            "wait": HANG,
        }
        return said[action.action_text]

    return ExecutorCase(
        make=lambda: ScriptedExecutor(script),
        action=ActionSample(action_text="run"),
        observation="ran",
        failing=ActionSample(action_text="fail"),
        failing_shows="NameError",
        refused=ActionSample(action_text="refuse"),
        completing=ActionSample(action_text="finish"),
        make_broken=lambda: ScriptedExecutor(lambda _: env_error("gone")),
        make_signal_lost=lambda: ScriptedExecutor(lambda _: executed("ran", completed=None)),
        hanging=ActionSample(action_text="wait"),
    )


def shell() -> ExecutorCase:
    """The environment of shell commands that `examples/` has to copy. Each has a directory of its own."""
    example = _example("shell")
    open_directories: set[Path] = set()

    @contextlib.asynccontextmanager
    async def make(*, gone: bool = False) -> AsyncIterator[ActionExecutor]:
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            open_directories.add(directory)
            shell = example.Shell(
                directory=directory / "gone" if gone else directory,
                workspace="a desk",
                environment={"PATH": os.defpath},
                time_limit_s=60.0,
                max_output_chars=1000,
            )
            yield example.ShellExecutor(shell)
            open_directories.remove(directory)

    def effects() -> int:
        ledgers = [directory / "ledger" for directory in open_directories]
        return sum(ledger.stat().st_size for ledger in ledgers if ledger.exists())

    return ExecutorCase(
        make=make,
        action=ActionSample(action_text="printf x >> ledger; echo hello"),
        observation="[exit code 0]\nhello\n",
        failing=ActionSample(action_text="printf x >> ledger; echo alas >&2; exit 3"),
        failing_shows="[exit code 3]\nalas",
        refused=ActionSample(action_text="printf x >> ledger; echo a\0b"),
        long=ActionSample(action_text="head -c 5000 /dev/zero | tr '\\0' x"),
        long_chars=5000,
        make_broken=lambda: make(gone=True),
        hanging=ActionSample(action_text="while :; do printf x >> ledger; sleep 0.01; done"),
        remember=ActionSample(action_text="echo on > light"),
        recall=ActionSample(action_text="cat light"),
        effects=effects,
    )


ACTION_EXECUTORS: tuple[Implementation[ExecutorCase], ...] = (
    Implementation(name="scripted", load=scripted_executor),
    Implementation(name="tool-registry", load=tool_registry),
    Implementation(name="tool-registry-unknown-tool", load=tool_registry_unknown_tool),
    Implementation(name="mcp-tools", load=mcp_tools, requires="mcp"),
    Implementation(name="examples-shell", load=shell),
    Implementation(name="examples-lake", load=lake, requires="gymnasium"),
    Implementation(name="examples-adventure", load=adventure, requires="textworld"),
)


# ------------------------------------------------------------------------------------------------- sinks


def recording_sink() -> SinkCase:
    """The sink of the tests that keeps everything, and the one that fails."""

    def taken(sink: EventSink) -> list[Event]:
        assert isinstance(sink, RecordingSink)
        return sink.events

    return SinkCase(make=RecordingSink, taken=taken, make_failing=FailingSink)


def fan_out_sink() -> SinkCase:
    """The sink that feeds several: the last of them shows what came through."""
    fed: dict[FanOutSink, RecordingSink] = {}
    secret = "sink-do-not-show-me"  # noqa: S105 - it opens nothing

    class Talkative(RecordingSink):
        def __repr__(self) -> str:
            return secret

    class Waiting(RecordingSink):
        async def emit(self, event: Event, /) -> None:
            await asyncio.Event().wait()

    def make(*others: EventSink) -> FanOutSink:
        last = RecordingSink()
        fan = FanOutSink(Talkative(), *others, last)
        fed[fan] = last
        return fan

    def taken(sink: EventSink) -> list[Event]:
        assert isinstance(sink, FanOutSink)
        return fed[sink].events

    return SinkCase(
        make=make,
        taken=taken,
        make_failing=lambda: make(FailingSink()),
        make_hanging=lambda: make(Waiting()),
        secrets=(secret,),
    )


def opentelemetry_sink() -> SinkCase:
    """The sink that makes spans, with the SDK's exporter in memory."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from polyloop.adapters.opentelemetry import OpenTelemetrySink

    def make() -> OpenTelemetrySink:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        return OpenTelemetrySink(
            provider_name="test", request_model="m", agent_name="a", capture_content=True, tracer_provider=provider
        )

    return SinkCase(make=make)


def progress_sink() -> SinkCase:
    """The sink that shows how a batch comes along."""
    from polyloop.adapters.progress import ProgressSink

    return SinkCase(make=lambda: ProgressSink(total=8, stream=io.StringIO(), plain_every_s=0.001))


EVENT_SINKS: tuple[Implementation[SinkCase], ...] = (
    Implementation(name="recording", load=recording_sink),
    Implementation(name="fan-out", load=fan_out_sink),
    Implementation(name="opentelemetry", load=opentelemetry_sink, requires="opentelemetry"),
    Implementation(name="progress", load=progress_sink, requires="rich"),
)
