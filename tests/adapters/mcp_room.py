"""The room of the contract cases, behind an MCP server within the process: what its tools are, they stay."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import Server

from polyloop.adapters.mcp import mcp_tools
from polyloop.ports import ActionExecutor
from polyloop.tools import ToolRegistry, ToolResult
from polyloop.types import ReplayPolicy
from tests.contract.registry import Room, a_registry


def _server(tools: ToolRegistry) -> Server[Any]:
    async def listed(_: object, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=spec.name, input_schema=dict(spec.parameters)) for spec in tools]
        )

    async def call(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        spec = tools.get(params.name)
        assert spec is not None
        try:
            said = await spec.handler(params.arguments or {})
        except ValueError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        text = said.observation if isinstance(said, ToolResult) else said
        return types.CallToolResult(content=[types.TextContent(text=text)])

    return Server("room", on_list_tools=listed, on_call_tool=call)


@contextlib.asynccontextmanager
async def executor(*, broken: bool = False) -> AsyncIterator[ActionExecutor]:
    """The executor of a room's tools; a broken one has lost its connection."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(_server(a_registry(Room()))))
        specs = await mcp_tools(client, replay=ReplayPolicy.NEVER, time_limit_s=60.0, completes=["leave"])
        if broken:
            await stack.aclose()
        yield ToolRegistry(specs).executor(max_observation_chars=1000)
