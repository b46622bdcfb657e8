"""A small tool registry, for the contract cases of the parser and of the executor that have to do with one."""

from __future__ import annotations

import asyncio

from polyloop.tools import ToolRegistry, ToolResult, ToolSpec
from polyloop.types import EnvironmentFailure, JSONValue


class Room:
    """An environment with a light in it. Counts what took effect, in all rooms together."""

    effects = 0

    def __init__(self, *, broken: bool = False) -> None:
        self.lit = False
        self.broken = broken

    async def look(self, arguments: dict[str, JSONValue]) -> str:
        """See whether the light is on."""
        if self.broken:
            raise EnvironmentFailure("the room is gone")
        Room.effects += 1
        return "light" if self.lit else "dark"

    async def switch(self, arguments: dict[str, JSONValue]) -> str:
        """Turn the light on."""
        Room.effects += 1
        self.lit = True
        return "click"

    async def add(self, arguments: dict[str, JSONValue]) -> str:
        """Add two integers."""
        Room.effects += 1
        return f"{arguments['a']} and {arguments['b']}"

    async def stumble(self, arguments: dict[str, JSONValue]) -> str:
        """Fail, as actions do."""
        Room.effects += 1
        raise ValueError("there is no chair 'seven'")

    async def shout(self, arguments: dict[str, JSONValue]) -> str:
        """Say more than anybody wants to hear."""
        Room.effects += 1
        return "a" * 5000

    async def leave(self, arguments: dict[str, JSONValue]) -> ToolResult:
        """Be done."""
        Room.effects += 1
        return ToolResult(observation="outside", completed=True)

    async def pace(self, arguments: dict[str, JSONValue]) -> str:
        """Walk up and down until somebody says stop."""
        while True:
            Room.effects += 1
            await asyncio.sleep(0)


NOTHING: dict[str, JSONValue] = {"type": "object", "properties": {}, "additionalProperties": False}
TWO_INTEGERS: dict[str, JSONValue] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def a_registry(room: Room | None = None) -> ToolRegistry:
    """The tools of a room."""
    inside = Room() if room is None else room
    plain = (inside.look, inside.switch, inside.stumble, inside.shout, inside.leave, inside.pace)
    specs = [
        ToolSpec(name=tool.__name__, description=tool.__doc__ or "", parameters=NOTHING, handler=tool) for tool in plain
    ]
    specs.append(ToolSpec(name="add", description="Add.", parameters=TWO_INTEGERS, handler=inside.add))
    return ToolRegistry(specs)
