"""An MCP server with one fault for each way in which a tool may fail. Run on stdio by the tests, or within a process.

`python -m tests.adapters.mcp_server FILE` serves on standard input and output; FILE is where it notes what it did.
With `garble` in the file's place it serves nonsense.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
TEXT: Final[dict[str, Any]] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

TOOLS: Final = {
    "echo": ("Say it again.", TEXT),
    "refuse": ("Fail, as tools do.", NOTHING),
    "picture": ("Show what is no text.", NOTHING),
    "figures": ("Answer with structure alone.", NOTHING),
    "nothing": ("Answer with nothing.", NOTHING),
    "protest": ("Fail, as protocols do.", NOTHING),
    "impersonate": ("Fail with the code that the client has for a closed connection.", NOTHING),
    "hang": ("Wait until it is told to stop.", NOTHING),
    "block": ("Answer nobody any more.", NOTHING),
    "die": ("Be killed.", NOTHING),
}

Content = types.TextContent | types.ImageContent | types.AudioContent | types.ResourceLink | types.EmbeddedResource


def text(said: str) -> types.TextContent:
    return types.TextContent(text=said)


PICTURE: Final[list[Content]] = [
    text("a cat:"),
    types.ImageContent(data="aGVsbG8=", mime_type="image/png"),
    types.AudioContent(data="aGk=", mime_type="audio/wav"),
    types.ResourceLink(name="cat", uri="file:///cat.png", mime_type="image/png"),
    types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///cat.txt", text="meow")),
    types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///cat\n.bin", blob="AAAA")),
]

ANSWERS: Final = {
    "refuse": types.CallToolResult(content=[text("there is no chair"), text("seven")], is_error=True),
    "picture": types.CallToolResult(content=PICTURE),
    "figures": types.CallToolResult(content=[], structured_content={"é": [1, 2]}),
    "nothing": types.CallToolResult(content=[]),
}
ERRORS: Final = {
    "protest": MCPError(-32602, "no such chair"),
    "impersonate": MCPError(-32000, "Connection closed"),
}


class Behaviour:
    """What the tools do."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def note(self, what: str) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")

    async def call(self, _: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.note(params.name)
        if params.name in ANSWERS:
            return ANSWERS[params.name]
        if params.name in ERRORS:
            raise ERRORS[params.name]
        match params.name:
            case "echo":
                return types.CallToolResult(content=[text((params.arguments or {})["text"])])
            case "hang":
                return await self._hang()
            case "block":
                signal.pause()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError(params.name)

    async def _hang(self) -> types.CallToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            self.note("stopped")
        raise AssertionError


def server(notes: Path) -> Server[Any]:
    """The server. It lists three tools a page, in an order of its own."""

    async def listed(_: object, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        start = int((params.cursor if params is not None else None) or 0)
        names = sorted(TOOLS, reverse=True)
        tools = [
            types.Tool(
                name=name,
                description=TOOLS[name][0],
                input_schema=TOOLS[name][1],
                # A hint that nobody is to believe.
                annotations=types.ToolAnnotations(idempotent_hint=True, read_only_hint=True),
            )
            for name in names[start : start + 3]
        ]
        after = start + 3
        return types.ListToolsResult(tools=tools, next_cursor=str(after) if after < len(names) else None)

    return Server("faults", on_list_tools=listed, on_call_tool=Behaviour(notes).call)


async def main(notes: Path) -> None:
    """Serve on standard input and output."""
    served = server(notes)
    async with stdio_server() as (read, write):
        await served.run(read, write, served.create_initialization_options())


def garble() -> None:
    """Serve by hand what no library would send: a tool whose results are nonsense."""
    told = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "g", "version": "1"}}
    tools = {"tools": [{"name": "look", "inputSchema": NOTHING}]}
    answers = {"initialize": told, "tools/list": tools, "tools/call": {"content": "only-the-server-may-know"}}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["method"] in answers:
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": answers[asked["method"]]}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "garble":
        garble()
    else:
        asyncio.run(main(Path(sys.argv[1])))
