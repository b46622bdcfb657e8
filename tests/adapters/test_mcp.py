"""The tools of MCP servers, most of them real processes on standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import pytest
from mcp import Client, ClientSession, StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server

from polyloop.adapters.mcp import MCPToolFailed, UnusableMCPTool, mcp_tools
from polyloop.ports import Action
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    EnvironmentFailure,
    InvalidRequest,
    JSONValue,
    ReplayPolicy,
    RunKey,
    StopReason,
)
from tests.adapters.mcp_server import TOOLS, server
from tests.builders import definition, request
from tests.fakes import ScriptedModel, ScriptedParser, tool_call

ROOT: Final = Path(__file__).parents[2]
LONG: Final = 60.0
NEVER: Final = ReplayPolicy.NEVER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the server of these tests ends by POSIX signals")


def command(argument: str | Path) -> StdioServerParameters:
    """How the server process is started."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "tests.adapters.mcp_server", str(argument)], cwd=ROOT
    )


@contextlib.asynccontextmanager
async def served(notes: Path) -> AsyncIterator[ToolRegistry]:
    """The tools of a server process, as long as it is connected."""
    async with Client(stdio_client(command(notes))) as client:
        yield ToolRegistry(await mcp_tools(client, replay=NEVER, time_limit_s=LONG))


@contextlib.asynccontextmanager
async def within(notes: Path, **given: Any) -> AsyncIterator[ToolRegistry]:
    """The same within this process: for what has nothing to do with processes, which take their time to start."""
    async with Client(server(notes)) as client:
        yield ToolRegistry(await mcp_tools(client, replay=NEVER, time_limit_s=LONG, **given))


def an_action(name: str, arguments: dict[str, JSONValue]) -> Action:
    return Action(
        action_text=name,
        tool_name=name,
        arguments=arguments,
        key=RunKey("k"),
        step_idx=0,
        result_id="000000-action",
    )


async def outcome(tools: ToolRegistry, name: str, **arguments: JSONValue) -> ActionOutcome:
    return await tools.executor(max_observation_chars=1000).execute(an_action(name, arguments))


def impatient(tools: ToolRegistry, name: str, **limits: float) -> Any:
    """A tool's handler with other limits than those of the listing, which a busy machine must keep."""
    spec = tools.get(name)
    assert spec is not None
    return dataclasses.replace(spec.handler, **limits)  # type: ignore[type-var] # it is a dataclass


def noted(notes: Path) -> list[str]:
    """What the server process has noted so far."""
    return notes.read_text("utf-8").split() if notes.exists() else []


async def until_noted(notes: Path, what: str) -> None:
    """Wait until the server process has noted something."""
    while what not in noted(notes):  # noqa: ASYNC110 - it is another process that sets it
        await asyncio.sleep(0.01)


# --------------------------------------------------------------------------------------------- a real process


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_all_pages_are_listed_and_sorted_by_name(tmp_path: Path, mode: str) -> None:
    async with Client(stdio_client(command(tmp_path / "notes")), mode=mode) as client:
        specs = await mcp_tools(client, replay=ReplayPolicy.SAFE, time_limit_s=LONG)
    assert [spec.name for spec in specs] == sorted(TOOLS)
    assert {spec.name: spec.description for spec in specs} == {name: told for name, (told, _) in TOOLS.items()}
    assert {spec.name: spec.parameters for spec in specs} == {name: schema for name, (_, schema) in TOOLS.items()}
    assert {spec.replay for spec in specs} == {ReplayPolicy.SAFE}


async def test_a_plain_session_serves_as_well_as_a_client(tmp_path: Path) -> None:
    async with (
        stdio_client(command(tmp_path / "notes")) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = ToolRegistry(await mcp_tools(session, replay=NEVER, time_limit_s=LONG))
        assert (await outcome(tools, "echo", text="hello")).observation == "hello"
        assert (await outcome(tools, "die")).status is ActionStatus.ENV_ERROR


async def test_the_text_of_a_result_is_the_observation(tmp_path: Path) -> None:
    async with served(tmp_path / "notes") as tools:
        said = "two\nlines \u2028 and \U0001f600 and a NUL \0"
        done = await outcome(tools, "echo", text=said)
        assert done == ActionOutcome(status=ActionStatus.EXECUTED, observation=said, completed=False)
        assert (await outcome(tools, "nothing")).observation == ""
        assert (await outcome(tools, "figures")).observation == '{"é": [1, 2]}'


async def test_content_that_is_no_text_has_a_line_in_its_place(tmp_path: Path) -> None:
    async with within(tmp_path / "notes") as tools:
        lines = (await outcome(tools, "picture")).observation.splitlines()
    assert lines == [
        "a cat:",
        "[image, image/png, 6 bytes left out]",
        "[audio, audio/wav, 3 bytes left out]",
        "[link to a resource: file:///cat.png, image/png]",
        "meow",
        "[resource file:///cat .bin, of unknown type, 3 bytes left out]",
    ]


async def test_a_tools_error_result_is_executed_with_its_text(tmp_path: Path) -> None:
    async with within(tmp_path / "notes") as tools:
        done = await outcome(tools, "refuse")
    assert done == ActionOutcome(status=ActionStatus.EXECUTED, observation="there is no chair\nseven", completed=False)


async def test_a_tool_that_completes_does_so_when_it_succeeds_and_not_when_it_fails(tmp_path: Path) -> None:
    async with within(tmp_path / "notes", completes=["echo", "refuse"]) as tools:
        assert [spec.name for spec in tools if spec.completes] == ["echo", "refuse"]
        assert (await outcome(tools, "echo", text="done")).completed is True
        failed = await outcome(tools, "refuse")
        assert failed.completed is False
        assert failed.observation == "MCPToolFailed: there is no chair\nseven"
        refuse = tools.get("refuse")
        assert refuse is not None
        with pytest.raises(MCPToolFailed):
            await refuse.handler({})


@pytest.mark.parametrize(
    ("tool", "said"), [("protest", "MCPError: no such chair"), ("impersonate", "MCPError: Connection closed")]
)
async def test_a_protocol_error_of_a_server_that_goes_on_is_executed(tmp_path: Path, tool: str, said: str) -> None:
    """Also where the server has chosen the code that the client's own library has for a closed connection."""
    async with served(tmp_path / "notes") as tools:
        done = await outcome(tools, tool)
        assert (done.status, done.observation) == (ActionStatus.EXECUTED, said)
        assert (await outcome(tools, "echo", text="still here")).observation == "still here"


async def test_a_server_that_is_killed_in_mid_call_is_an_environment_failure(tmp_path: Path) -> None:
    async with served(tmp_path / "notes") as tools:
        for _ in range(2):
            done = await outcome(tools, "die")
            assert done.status is ActionStatus.ENV_ERROR
            assert done.observation == "the MCP server of the tool 'die' is gone"
        assert (await outcome(tools, "echo", text="x")).status is ActionStatus.ENV_ERROR


async def test_a_run_whose_server_is_killed_stops_with_env_error(tmp_path: Path) -> None:
    model = ScriptedModel([tool_call("echo", text="hello"), tool_call("die")])
    async with served(tmp_path / "notes") as tools:
        shared = dataclasses.replace(definition(), model=model, parser=ScriptedParser(produces=ActionKind.TOOL_CALL))
        executor = tools.executor(max_observation_chars=100)
        result = await shared.run(dataclasses.replace(request(), tools=tools, executor=executor))
    assert result.stop_reason is StopReason.ENV_ERROR
    assert result.detail == "the MCP server of the tool 'die' is gone"
    assert result.steps[0].observation == "hello"


async def test_a_call_that_takes_too_long_is_told_to_stop_and_the_server_goes_on(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with Client(stdio_client(command(notes))) as client:
        tools = ToolRegistry(await mcp_tools(client, replay=NEVER, time_limit_s=LONG))
        with pytest.raises(TimeoutError, match="no answer within 2 s; the server was told to stop"):
            await impatient(tools, "hang", limit_s=2.0)({})
        await until_noted(notes, "stopped")
        assert (await outcome(tools, "echo", text="still here")).observation == "still here"


async def test_a_server_that_answers_nobody_any_more_is_an_environment_failure(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with served(notes) as tools:
        blocking = asyncio.create_task(outcome(tools, "block"))
        await until_noted(notes, "block")
        with pytest.raises(EnvironmentFailure, match="the tool 'echo' did not answer"):
            await impatient(tools, "echo", limit_s=0.1, patience_s=0.1)({"text": "x"})
        blocking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocking


async def test_an_answer_that_is_not_of_the_protocol_is_an_environment_failure_that_does_not_repeat_it() -> None:
    async with Client(stdio_client(command("garble")), mode="legacy") as client:
        tools = ToolRegistry(await mcp_tools(client, replay=NEVER, time_limit_s=LONG))
        look = tools.get("look")
        assert look is not None
        with pytest.raises(EnvironmentFailure) as caught:
            await look.handler({})
    assert "may-know" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_connection_that_was_left_is_an_environment_failure(tmp_path: Path) -> None:
    async with served(tmp_path / "notes") as tools:
        pass
    done = await outcome(tools, "echo", text="x")
    assert done.status is ActionStatus.ENV_ERROR
    assert "cannot be reached" in done.observation


async def test_a_cancellation_passes_and_the_server_is_told_to_stop(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with served(notes) as tools:
        task = asyncio.create_task(outcome(tools, "hang"))
        await until_noted(notes, "hang")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_noted(notes, "stopped")
        assert (await outcome(tools, "echo", text="still here")).observation == "still here"


async def test_half_a_surrogate_pair_does_not_break_the_connection(tmp_path: Path) -> None:
    """It would: the SDK fails to write it, and takes the connection down with it."""
    notes = tmp_path / "notes"
    async with served(notes) as tools:
        done = await outcome(tools, "echo", text="\ud800")
        assert done.status is ActionStatus.EXECUTED
        assert done.observation.startswith("ValueError: the arguments hold half a surrogate pair")
        assert (await outcome(tools, "echo", text="still here")).observation == "still here"
    assert noted(notes) == ["echo"]


async def test_many_calls_at_once_get_each_their_own_answer(tmp_path: Path) -> None:
    async with served(tmp_path / "notes") as tools:
        done = await asyncio.gather(*(outcome(tools, "echo", text=f"number {each}") for each in range(50)))
    assert [each.observation for each in done] == [f"number {each}" for each in range(50)]


# ------------------------------------------------------------------------------------------- listing, in process


def a_server(*pages: list[types.Tool] | str) -> Server[Any]:
    """A server whose list of tools has these pages; a string is the cursor of the page before it."""

    async def listed(_: object, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        position = int((params.cursor if params is not None else None) or 0)
        page = pages[position]
        assert isinstance(page, list)
        after = pages[position + 1] if position + 1 < len(pages) else None
        return types.ListToolsResult(tools=page, next_cursor=after if isinstance(after, str) else None)

    return Server("pages", on_list_tools=listed)


def a_tool(name: str, schema: dict[str, Any] | None = None) -> types.Tool:
    return types.Tool(name=name, input_schema={"type": "object"} if schema is None else schema)


async def specs_of(*names: str, **given: Any) -> tuple[ToolSpec, ...]:
    async with Client(a_server([a_tool(name) for name in names])) as client:
        try:
            return await mcp_tools(client, **{"replay": NEVER, "time_limit_s": LONG, **given})
        except Exception as error:  # noqa: BLE001 - raised below: the client's block would make a group of it
            refusal = error
    raise refusal


async def refused(*names: str, **given: Any) -> UnusableMCPTool:
    with pytest.raises(UnusableMCPTool) as caught:
        await specs_of(*names, **given)
    return caught.value


async def test_the_policy_is_the_callers_for_each_tool_and_never_the_servers_hint() -> None:
    hinting = types.Tool(
        name="a", input_schema={"type": "object"}, annotations=types.ToolAnnotations(idempotent_hint=True)
    )
    async with Client(a_server([hinting, a_tool("b")])) as client:
        policies = {"a": ReplayPolicy.NEVER, "b": ReplayPolicy.SAFE}
        specs = await mcp_tools(client, replay=policies, time_limit_s=LONG)
    assert {spec.name: spec.replay for spec in specs} == policies


async def test_a_tool_without_a_policy_and_a_policy_without_a_tool_are_refused() -> None:
    missing = await refused("a", "b", replay={"a": NEVER})
    assert (missing.tool, missing.field) == ("b", "mcp_tools.replay")
    unknown = await refused("a", replay={"a": NEVER, "c": NEVER})
    assert (unknown.tool, unknown.field) == ("c", "mcp_tools.replay")
    assert len(await specs_of("a", "b", replay={"a": NEVER}, only=["a"])) == 1


async def test_tools_are_taken_in_the_callers_order_and_those_left_out_may_be_unusable() -> None:
    assert [spec.name for spec in await specs_of("b", "a", "c")] == ["a", "b", "c"]
    specs = await specs_of("a", "not a name", "b", "c", only=["c", "a"])
    assert [spec.name for spec in specs] == ["c", "a"]


async def test_names_can_be_prefixed_and_replaced() -> None:
    specs = await specs_of("a", "not a name", prefix="files/", rename={"not a name": "spoken"})
    assert {spec.name for spec in specs} == {"files/a", "spoken"}


async def test_a_name_that_is_not_allowed_is_refused_by_name_with_the_way_out() -> None:
    error = await refused("fine", "not a name\n")
    assert (error.tool, error.field) == ("not a name\n", "ToolSpec.name")
    assert "rename it (MCP tool 'not a name\\n')" in str(error)


@pytest.mark.parametrize(
    "given", [{"rename": {"a": "b"}}, {"only": ["a", "a"]}, {"prefix": "x", "rename": {"a": "xb"}}]
)
async def test_names_that_clash_are_refused(given: dict[str, Any]) -> None:
    assert (await refused("a", "b", **given)).field == "mcp_tools.rename"


async def test_two_tools_of_one_name_are_refused_also_from_two_pages() -> None:
    async with Client(a_server([a_tool("a")], "2", [a_tool("a")])) as client:
        with pytest.raises(UnusableMCPTool) as caught:
            await mcp_tools(client, replay=NEVER, time_limit_s=LONG)
    assert caught.value.tool == "a"


async def test_a_list_that_goes_in_circles_is_refused() -> None:
    async with Client(a_server([], "0")) as client:
        with pytest.raises(InvalidRequest, match="in circles"):
            await mcp_tools(client, replay=NEVER, time_limit_s=LONG)


@pytest.mark.parametrize("argument", ["only", "completes"])
async def test_names_that_the_server_does_not_have_are_refused(argument: str) -> None:
    error = await refused("a", **{argument: ["nix"]})
    assert (error.tool, error.field) == ("nix", f"mcp_tools.{argument}")
    with pytest.raises(InvalidRequest, match="give a list"):
        await specs_of("a", **{argument: "a"})


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "object", "properties": {"x": {"type": "strng"}}}, "ToolSpec.parameters.properties.x.type"),
        (
            {"type": "object", "properties": {"x": {"$ref": "http://x.example/y"}}},
            "ToolSpec.parameters.properties.x.$ref",
        ),
    ],
)
async def test_a_schema_that_is_refused_is_refused_with_the_tools_name(schema: dict[str, Any], field: str) -> None:
    async with Client(a_server([a_tool("fine"), a_tool("broken", schema)])) as client:
        with pytest.raises(UnusableMCPTool) as caught:
            await mcp_tools(client, replay=NEVER, time_limit_s=LONG)
        assert (caught.value.tool, caught.value.field) == ("broken", field)
        assert len(await mcp_tools(client, replay=NEVER, time_limit_s=LONG, only=["fine"])) == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"time_limit_s": 0}, "mcp_tools.time_limit_s"),
        ({"replay": "safe"}, "mcp_tools.replay"),
        ({"prefix": None}, "mcp_tools.prefix"),
        ({"only": 3}, "mcp_tools.only"),
    ],
)
async def test_wrong_arguments_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await specs_of("a", **given)
    assert caught.value.field == field


async def test_a_server_that_does_not_list_its_tools_in_time_is_given_up() -> None:
    async def listed(_: object, __: object) -> types.ListToolsResult:
        await asyncio.Event().wait()
        raise AssertionError

    async with Client(Server("slow", on_list_tools=listed)) as client:
        with pytest.raises(TimeoutError):
            await mcp_tools(client, replay=NEVER, time_limit_s=0.01)


async def test_no_part_of_the_connection_stands_in_the_repr_of_a_tool(tmp_path: Path) -> None:
    async with within(tmp_path / "notes") as tools:
        shown = repr([(spec, spec.handler) for spec in tools])
    assert "_Handler(tool='echo'" in shown
    assert "Client" not in shown


def test_without_the_extra_the_message_names_it() -> None:
    program = "import sys\nsys.modules['mcp'] = None\nimport polyloop.adapters.mcp"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'polyloop[mcp]'")
