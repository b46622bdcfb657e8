"""The cases of the environments in `examples/environments`, whose packages are installed by the extra `examples`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from examples.environments.worlds import PastAction, Seen, World, in_thread, played
from polyloop.ports import ActionExecutor
from polyloop.types import JSONValue, PlannedAction
from tests.contract.cases import ActionSample, ExecutorCase
from tests.fakes import executed


class _Counted:
    """A world that notes what is done in it: a count for `effects` that no executor keeps."""

    def __init__(self, world: World, effects: list[str]) -> None:
        self._world = world
        self._effects = effects

    def begin(self) -> str:
        return self._world.begin()

    def step(self, command: str, /) -> Seen:
        self._effects.append(command)
        return self._world.step(command)

    def close(self) -> None:
        self._world.close()


def lake() -> ExecutorCase:
    """The frozen lake of `examples/environments`. Each starts where three replayed moves have led: beside the goal."""
    from examples.environments import lake as example  # the package gymnasium need not be installed

    ice = example.Lake(size=3, ice_share=0.9, slippery=False, seed=6)
    effects: list[str] = []

    def move(direction: JSONValue) -> ActionSample:
        return ActionSample(action_text="move", tool_name="move", arguments={"direction": direction})

    def moved(number: int, direction: str, place: str) -> PastAction:
        plan = PlannedAction(action_text="", tool_name="move", arguments={"direction": direction}, history_text="")
        return PastAction(f"{number:06d}-past", plan, executed(f"You are at {place}."))

    past = [moved(0, "south", "row 1, column 0"), moved(1, "south", "row 2, column 0")]
    past.append(moved(2, "east", "row 2, column 1"))

    @contextlib.asynccontextmanager
    async def make(*, gone: bool = False) -> AsyncIterator[ActionExecutor]:
        async with contextlib.AsyncExitStack() as stack:
            world = _Counted(example.LakeWorld(ice), effects)
            episode = await stack.enter_async_context(played(world, pool=None, past=past, command=example.direction))
            if gone:
                await stack.aclose()
            yield example.LakeExecutor(ice, episode, max_observation_chars=60)

    return ExecutorCase(
        make=make,
        action=move("south"),
        observation="You are at row 2, column 1.",
        refused=move("up"),
        long=move("north"),
        long_chars=len("The ice broke at row 1, column 1. You are back at row 0, column 0."),
        completing=move("east"),
        make_broken=lambda: make(gone=True),
        remember=move("west"),
        recall=move("south"),
        effects=lambda: len(effects),
    )


@functools.cache
def _games() -> Path:
    """A folder for games, which take seconds to make: one for the process."""
    folder = Path(tempfile.mkdtemp(prefix="polyloop-games-"))
    atexit.register(shutil.rmtree, folder)
    return folder


def adventure() -> ExecutorCase:
    """The text adventure of `examples/environments`."""
    from examples.environments import adventure as example  # the package textworld need not be installed

    game = example.Adventure(rooms=1, objects=2, quest_length=1, seed=1)
    effects: list[str] = []
    choices = "close safe; examine passkey; examine safe; inventory; look; take passkey from safe"

    @contextlib.asynccontextmanager
    async def make(*, gone: bool = False) -> AsyncIterator[ActionExecutor]:
        async with contextlib.AsyncExitStack() as stack:
            world = example.AdventureWorld(await in_thread(example.POOL, lambda: game.made_in(_games())))
            playing = played(_Counted(world, effects), pool=example.POOL, past=(), command=example.command)
            episode = await stack.enter_async_context(playing)
            if gone:
                await stack.aclose()
            yield example.AdventureExecutor(
                game, episode, verbs=world.verbs, digest=world.digest, max_observation_chars=200
            )

    return ExecutorCase(
        make=make,
        action=ActionSample(action_text="inventory"),
        observation=f"You are carrying nothing.\n\nYou could: {choices}",
        failing=ActionSample(action_text="open nothing"),
        failing_shows="You can't see any such thing.",
        refused=ActionSample(action_text="quit"),
        long=ActionSample(action_text="look"),
        long_chars=245,
        completing=ActionSample(action_text="close safe"),
        make_broken=lambda: make(gone=True),
        remember=ActionSample(action_text="take passkey from safe"),
        recall=ActionSample(action_text="inventory"),
        effects=lambda: len(effects),
    )
