"""`FrozenLake` of gymnasium's toy_text: a walk over ice, to a goal that is known, past holes that are not.

The action is a tool call, `move(direction)`, declared `SAFE`: see `worlds` for why a step that was cut short may be
made again. So an episode goes on from a kill at any moment. The ice is slippery by chance, from the episode's seed:
replaying the same moves slides the same way.

The package says `terminated` both at the goal and in a hole, with a reward only at the goal. `completed` is the goal
alone. A hole ends gymnasium's episode and not the run: the walker is back at the start, as after `reset()`, and what
it has learned is in its history. So `task_completed` means success and nothing else, and who never arrives runs out of
a budget. (`env_error` for a hole would say that the environment is broken, which it is not.)
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from examples.environments.worlds import Episode, PastAction, PolicyModel, Seen, played
from examples.parsers import JsonToolCallParser
from polyloop import (
    Action,
    ActionKind,
    ActionOutcome,
    ActionStatus,
    AgentDefinition,
    Budget,
    ChatMessage,
    EventSink,
    JSONValue,
    PlannedAction,
    ReplayPolicy,
    RunKey,
    RunRequest,
    RunStore,
    ToolDocsStyle,
    ToolRegistry,
    ToolResult,
    ToolSpec,
    current_action,
)

MOVES: Final = {"west": 0, "south": 1, "east": 2, "north": 3}
"""The package's numbers for the directions."""


class Cell(NamedTuple):
    """A place on the ice, counted from the north-west."""

    row: int
    column: int

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Which lake: the same values are the same lake, hole by hole and slide by slide."""

    size: int
    """Rows, and columns."""
    ice_share: float
    """How much of it is ice rather than holes, from 0 to 1."""
    slippery: bool
    """Whether two moves in three slide off to a side."""
    seed: int
    """What the map and the slides are drawn from."""

    @property
    def params(self) -> dict[str, JSONValue]:
        """Everything that shapes the observations, the map itself and the package's version among it."""
        return {
            "environment": "FrozenLake-v1",
            "gymnasium": gymnasium.__version__,
            **dataclasses.asdict(self),
            "map": self.map(),
        }

    def map(self) -> list[str]:
        """The rows: S start, F ice, H hole, G goal. There is a way."""
        rows: list[str] = generate_random_map(size=self.size, p=self.ice_share, seed=self.seed)
        return rows


class LakeWorld:
    """The game itself."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        # No limit on steps of the package's own: the run's budget is the limit.
        self._game: Any = gymnasium.make(
            "FrozenLake-v1", desc=lake.map(), is_slippery=lake.slippery, max_episode_steps=-1
        )

    def begin(self) -> str:
        """Start at the north-western corner."""
        size = self._lake.size
        start, _ = self._game.reset(seed=self._lake.seed)
        ice = "The ice is slippery: a move may slide off to a side." if self._lake.slippery else "The ice is rough."
        goal = Cell(size - 1, size - 1)
        return f"The lake has {size} by {size} cells. You are at {self._cell(start)}. The goal is {goal}. {ice}"

    def step(self, command: str, /) -> Seen:
        """Move one cell, more or less in this direction."""
        state, reward, terminated, _, _ = self._game.step(MOVES[command])
        where = self._cell(state)
        if terminated and reward > 0:
            return Seen(f"You are at {where}. This is the goal.", completed=True)
        if terminated:
            start, _ = self._game.reset()  # without a seed: chance goes on where it was
            return Seen(f"The ice broke at {where}. You are back at {self._cell(start)}.", completed=False)
        return Seen(f"You are at {where}.", completed=False)

    def close(self) -> None:
        """Give back what the game holds."""
        self._game.close()

    def _cell(self, state: int) -> Cell:
        return Cell(*divmod(int(state), self._lake.size))


# ----------------------------------------------------------------------------------------------- The executor


class LakeExecutor:
    """The executor of one run: a tool registry's, with the lake in `params`."""

    accepts = ActionKind.TOOL_CALL

    def __init__(self, lake: Lake, episode: Episode, *, max_observation_chars: int) -> None:
        self._lake = lake
        self._episode = episode
        self.tools = ToolRegistry([_move(self._moved)])
        """For `RunRequest.tools`."""
        self._dispatch = self.tools.executor(max_observation_chars=max_observation_chars)

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """The lake, and the limit on observations."""
        return {**self._lake.params, **self._dispatch.params}

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        """The registry's."""
        return self.tools.schemas

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Move, or refuse what is no move."""
        return await self._dispatch.execute(action)

    async def _moved(self, arguments: Mapping[str, JSONValue]) -> ToolResult:
        seen = await self._episode.act(current_action().result_id, str(arguments["direction"]))
        return ToolResult(observation=seen.text, completed=seen.completed)


class _Handler:
    """For the parser's table of tools, whose handlers nobody calls."""

    async def __call__(self, _: Mapping[str, JSONValue]) -> str:
        raise NotImplementedError("the parser's table only says what a call looks like")


def _move(handler: Any) -> ToolSpec:
    return ToolSpec(
        name="move",
        description="Move one cell.",
        parameters={
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": list(MOVES)}},
            "required": ["direction"],
            "additionalProperties": False,
        },
        handler=handler,
        replay=ReplayPolicy.SAFE,
    )


@contextlib.asynccontextmanager
async def lake_executor(
    lake: Lake, *, past: Sequence[PastAction], max_observation_chars: int
) -> AsyncIterator[tuple[LakeExecutor, Episode]]:
    """An executor on a lake on which `past` was done already.

    Raises:
        WorldDiffersError: the lake answers otherwise than it did then.
    """
    async with played(LakeWorld(lake), pool=None, past=past, command=direction) as episode:
        yield LakeExecutor(lake, episode, max_observation_chars=max_observation_chars), episode


def direction(plan: PlannedAction) -> str:
    """What a recorded action says to the game."""
    return str(plan.arguments["direction"])


# ----------------------------------------------------------------------------------------------- The agent


def definition(store: RunStore, events: EventSink) -> AgentDefinition:
    """What all episodes share."""
    return AgentDefinition(
        model=PolicyModel(name="careful-walker-1", policy=careful_walker),
        parser=JsonToolCallParser(
            tools=ToolRegistry([_move(_Handler())]),
            tool_key="tool",
            arguments_key="arguments",
            answer_key="final_answer",
            comment_keys=("thought",),
            blank_history_text="(no text)",
        ),
        store=store,
        events=events,
        synthetic_observations={
            ActionStatus.NOT_EXECUTED: "Not executed: there is no such move.",
            ActionStatus.ENV_ERROR: "The lake is gone.",
        },
        observation_template="{observation}",
    )


@contextlib.asynccontextmanager
async def request(key: RunKey, seed: int, past: Sequence[PastAction]) -> AsyncIterator[RunRequest]:
    """One episode: every second lake is slippery."""
    slippery = seed % 2 == 1
    lake = Lake(size=4 if slippery else 6, ice_share=0.85 if slippery else 0.75, slippery=slippery, seed=seed)
    async with lake_executor(lake, past=past, max_observation_chars=1_000) as (executor, episode):
        yield RunRequest(
            key=key,
            budget=Budget(
                max_steps=60, max_executed_actions=40, max_prompt_chars=100_000, max_consecutive_parse_failures=3
            ),
            executor=executor,
            tools=executor.tools,
            run_segments=(ChatMessage(role="system", content="Cross the lake by calling tools, in JSON."),),
            # The opening comes from the environment. A resumed run must see the same, or it is refused.
            item_segments=(ChatMessage(role="user", content=episode.opening),),
            skills=(),
            model_binding={},
            model_call_replay=ReplayPolicy.SAFE,
            tool_docs_style=ToolDocsStyle.JSON_SCHEMA,
            finalize_timeout_s=5.0,
        )


_HERE = re.compile(r"You are (?:back )?at row (\d+), column (\d+)")
_HOLE = re.compile(r"The ice broke at row (\d+), column (\d+)")
_SIZE = re.compile(r"The lake has (\d+) by")


def careful_walker(messages: Sequence[ChatMessage]) -> str:
    """Takes the shortest way on which nothing has broken yet."""
    seen = "\n".join(message.content for message in messages if message.role == "user")
    size = int(_SIZE.findall(seen)[-1])
    here = Cell(*map(int, _HERE.findall(seen)[-1]))
    holes = {Cell(int(row), int(column)) for row, column in _HOLE.findall(seen)}
    way = _first_move(here, Cell(size - 1, size - 1), holes, size)
    said = f"I am at {here} and know {len(holes)} holes."
    return json.dumps({"thought": said, "tool": "move", "arguments": {"direction": way}})


def _first_move(here: Cell, goal: Cell, holes: set[Cell], size: int) -> str:
    """How a shortest way begins, if everything that has not broken holds."""
    first = {here: ""}
    waiting = collections.deque([here])
    while waiting:
        cell = waiting.popleft()
        if cell == goal:
            return first[cell]
        for way, (down, right) in {"south": (1, 0), "east": (0, 1), "north": (-1, 0), "west": (0, -1)}.items():
            after = Cell(cell.row + down, cell.column + right)
            inside = 0 <= after.row < size and 0 <= after.column < size
            if inside and after not in holes and after not in first:
                first[after] = first[cell] or way
                waiting.append(after)
    return "south"
