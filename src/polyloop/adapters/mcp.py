"""The tools of an MCP server, as `ToolSpec`s: the extra `mcp`.

::

    async with Client(stdio_client(StdioServerParameters(command="files-server"))) as client:
        replay = {"read": ReplayPolicy.SAFE, "write": ReplayPolicy.NEVER}
        tools = ToolRegistry(await mcp_tools(client, replay=replay, time_limit_s=30.0))

What a call comes to:

======================================================= =================================================
the server                                              the action
======================================================= =================================================
answers                                                 `EXECUTED`, its text
answers with a tool error (`isError`)                   `EXECUTED`, its text; completes nothing
answers with a protocol error, and then another request `EXECUTED`, the error's type and message
answers against the output schema that it declared      `EXECUTED`, a `RuntimeError`
takes longer than the limit, but answers another request `EXECUTED`, a `TimeoutError`; it was told to stop
is gone, or answers nothing at all any more              `ENV_ERROR`
answers with something that is not of the protocol       `ENV_ERROR`
======================================================= =================================================

A result is the text of its parts, one below the other. What is no text has a line in its place that says what was
left out: `[image, image/png, 5 bytes left out]`, `[audio, ...]`, `[resource URI, ...]`, `[link to a resource: URI,
...]`; the text of an embedded text resource is text. Structured content is shown, as JSON, only where there is nothing
else: servers repeat it as text. Why: `research-wiki/design/0022-sinks-and-mcp.md`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from polyloop.tools import ToolResult, ToolSpec
from polyloop.types import EnvironmentFailure, InvalidRequest, JSONValue, ReplayPolicy
from polyloop.types._checks import check_seconds, check_str, check_type

try:
    from mcp import Client, ClientSession, MCPError
    from mcp.types import (
        CONNECTION_CLOSED,
        REQUEST_TIMEOUT,
        AudioContent,
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        EmbeddedResource,
        ImageContent,
        ListToolsResult,
        PaginatedRequestParams,
        ResourceLink,
        TextContent,
        TextResourceContents,
        Tool,
    )
    from pydantic import ValidationError
except ModuleNotFoundError as error:
    if error.name != "mcp":
        raise
    raise ModuleNotFoundError(
        "polyloop.adapters.mcp needs the extra `mcp`: pip install 'polyloop[mcp]'", name="mcp"
    ) from error

__all__ = ["MCPToolFailed", "UnusableMCPTool", "mcp_tools"]

_SHOWN: Final = 200


class UnusableMCPTool(InvalidRequest):
    """A tool of the server's cannot be a `ToolSpec`, or was named and does not exist."""

    tool: str
    """The tool's name at the server."""

    def __init__(self, tool: str, field: str, problem: str) -> None:
        super().__init__(field, f"{problem} (MCP tool {tool[:120]!a})")
        self.tool = tool


class MCPToolFailed(Exception):  # noqa: N818 - the model reads the name before the tool's own words
    """A tool error of a tool that completes the task. Raised by its handler, so that it completes nothing."""


async def mcp_tools(
    peer: Client | ClientSession,
    *,
    replay: ReplayPolicy | Mapping[str, ReplayPolicy],
    time_limit_s: float,
    only: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    completes: Collection[str] = (),
) -> tuple[ToolSpec, ...]:
    """Ask a server for its tools.

    The table is that of this moment: a later change of the server's list is not followed, for the tools belong to
    a run's identity. Without `only` it is sorted by name, since servers promise no order, and a run is resumed only
    with its tools in the order in which it had them.

    The connection is the caller's: it must be open for as long as the tools are called, and serves any number of
    runs at once. A call that is cancelled, or takes too long, tells the server to stop; whether it does is up to the
    server.

    Args:
        peer: the open connection. With a `Client` the server may ask back by that client's own callbacks.
        replay: whether an interrupted call may be made again: one policy for all tools, or one for each by name. The
            server's own hints (`idempotentHint` and the like) are never believed.
        time_limit_s: seconds for a call, and for the whole listing. A call may take twice as long when the server
            has to be asked whether it is still there.
        only: the tools to take, by the server's names, in this order; None for all.
        rename: other names for some of the tools, where the server's is not allowed here, or is another tool's too.
        prefix: what to put before each name that is not in `rename`, such as `files/`.
        completes: the tools, by the server's names, that complete the task when they succeed.

    Raises:
        UnusableMCPTool: naming the tool: its schema or name is refused, two have one name, or a name was given that
            the server does not have, or a tool has no replay policy.
        InvalidRequest: an argument is wrong.
        TimeoutError: the listing took longer than the limit.
        mcp.MCPError: the server refused to list its tools, or is gone.

    What is raised within a client's block comes out of the block in an `ExceptionGroup`; that is the SDK's way.
    """
    check_seconds("mcp_tools.time_limit_s", time_limit_s)
    check_str("mcp_tools.prefix", prefix)
    check_type("mcp_tools.replay", replay, (ReplayPolicy, Mapping), "a ReplayPolicy, or a mapping of them by tool name")
    names = {} if rename is None else dict(rename)
    async with asyncio.timeout(time_limit_s):
        listed = await _listed(peer)
    _demand_known(listed, {"only": only or (), "rename": names, "completes": completes})
    chosen = sorted(listed) if only is None else list(only)
    policies = _policies(replay, chosen, listed)
    specs: dict[str, ToolSpec] = {}
    for tool in chosen:
        ends = tool in completes
        handler = _Handler(peer=peer, tool=tool, completes=ends, limit_s=time_limit_s, patience_s=time_limit_s)
        spec = _spec(listed[tool], names.get(tool, prefix + tool), handler, policies[tool])
        if spec.name in specs:
            raise UnusableMCPTool(
                tool, "mcp_tools.rename", f"a second tool is called {spec.name!r}; rename one of them"
            )
        specs[spec.name] = spec
    return tuple(specs.values())


async def _listed(peer: Client | ClientSession) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = await _page(peer, cursor)
        for tool in page.tools:
            if tool.name in tools:
                raise UnusableMCPTool(tool.name, "mcp_tools.peer", "the server lists two tools of this name")
            tools[tool.name] = tool
        cursor = page.next_cursor
        if cursor is None:
            return tools
        if cursor in seen:
            raise InvalidRequest("mcp_tools.peer", "the server's list of tools goes in circles: a cursor came twice")
        seen.add(cursor)


async def _page(peer: Client | ClientSession, cursor: str | None) -> ListToolsResult:
    # From the session in either case: a client may answer from its cache.
    session = peer.session if isinstance(peer, Client) else peer
    return await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))


def _demand_known(listed: Mapping[str, Tool], given: Mapping[str, Collection[str]]) -> None:
    for argument, names in given.items():
        check_type(f"mcp_tools.{argument}", names, Collection, "names of tools")
        if isinstance(names, str):
            raise InvalidRequest(f"mcp_tools.{argument}", "must be several names; give a list")
        for name in names:
            if name not in listed:
                raise UnusableMCPTool(name, f"mcp_tools.{argument}", "the server has no such tool")


def _policies(
    replay: ReplayPolicy | Mapping[str, ReplayPolicy], chosen: Sequence[str], listed: Mapping[str, Tool]
) -> Mapping[str, ReplayPolicy]:
    if isinstance(replay, ReplayPolicy):
        return dict.fromkeys(chosen, replay)
    _demand_known(listed, {"replay": replay})
    for tool in chosen:
        if tool not in replay:
            raise UnusableMCPTool(tool, "mcp_tools.replay", "has no policy; say SAFE or NEVER, or leave it out (only)")
    return replay


def _spec(tool: Tool, name: str, handler: _Handler, replay: ReplayPolicy) -> ToolSpec:
    try:
        return ToolSpec(
            name=name,
            description=tool.description or "",
            parameters=tool.input_schema,
            handler=handler,
            replay=replay,
            completes=handler.completes,
        )
    except InvalidRequest as refused:
        remedy = "rename it" if refused.field == "ToolSpec.name" else "leave it out (only)"
        raise UnusableMCPTool(tool.name, refused.field, f"{refused.problem}; {remedy}") from refused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Handler:
    """Calls one tool of the server."""

    peer: Client | ClientSession = dataclasses.field(repr=False)
    tool: str
    completes: bool
    limit_s: float
    """For the call."""
    patience_s: float
    """For the question whether the server is still there."""

    async def __call__(self, arguments: dict[str, JSONValue]) -> ToolResult:
        _demand_text(arguments)
        try:
            async with asyncio.timeout(self.limit_s):
                result = await self.peer.call_tool(self.tool, arguments)
        except ValidationError:
            # Its message holds what the server sent.
            raise self._failure("answered with something that is not of the protocol") from None
        except Exception as error:
            await self._demand_alive()
            if isinstance(error, TimeoutError) or _code(error) == REQUEST_TIMEOUT:
                raise TimeoutError(f"no answer within {self.limit_s:g} s; the server was told to stop") from None
            raise
        text = "\n".join(_texts(result))
        if result.is_error and self.completes:
            raise MCPToolFailed(text)
        return ToolResult(observation=text)

    async def _demand_alive(self) -> None:
        """Ask for the list of tools, which every server has; a code alone does not tell: servers choose theirs freely.

        Raises:
            EnvironmentFailure: there is no answer.
        """
        try:
            async with asyncio.timeout(self.patience_s):
                await _page(self.peer, None)
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise self._failure("is gone") from None
        except TimeoutError:
            raise self._failure(f"did not answer for {self.patience_s:g} s, after a call failed") from None
        except Exception as error:  # noqa: BLE001 - whatever a transport or a closed session raises: nobody is there
            raise self._failure(f"cannot be reached ({type(error).__name__})") from None

    def _failure(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"the MCP server of the tool {self.tool!r} {what}")


def _code(error: Exception) -> int | None:
    return error.code if isinstance(error, MCPError) else None


def _demand_text(arguments: Mapping[str, JSONValue]) -> None:
    """Refuse what cannot be sent: a lone surrogate breaks the connection, and with it every run that uses it.

    Raises:
        ValueError: for the model to read.
    """
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("the arguments hold half a surrogate pair, which cannot be sent; nothing was called") from None


def _texts(result: CallToolResult) -> Iterator[str]:
    yield from map(_text, result.content)
    if not result.content and result.structured_content is not None:
        yield json.dumps(result.structured_content, ensure_ascii=False)


def _text(part: ContentBlock) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent():
            return f"[image, {_short(part.mime_type)}, {_size(part.data)} left out]"
        case AudioContent():
            return f"[audio, {_short(part.mime_type)}, {_size(part.data)} left out]"
        case ResourceLink():
            return f"[link to a resource: {_short(part.uri)}, {_short(part.mime_type or 'of unknown type')}]"
        case EmbeddedResource():
            return _resource(part.resource)


def _resource(resource: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(resource, TextResourceContents):
        return resource.text
    kind = _short(resource.mime_type or "of unknown type")
    return f"[resource {_short(resource.uri)}, {kind}, {_size(resource.blob)} left out]"


def _short(text: str) -> str:
    """One line of what a server wrote."""
    return "".join(each if each.isprintable() else " " for each in text[:_SHOWN])


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"
