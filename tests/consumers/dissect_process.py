"""A runner's process that dies in the middle of its rollouts: `python -c "...main()" directory calls actions steps`."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import Event, RunResult, StepEnded
from tests.consumers.dissect import Dissect
from tests.consumers.harness import LedgerClient, Message, Response
from tests.consumers.rollouts import ENDLESS, WALK, WALKS, Item
from tests.consumers.sessions import Episode


class Dies:
    """Kills its process, without cleaning up of any kind, when so many steps have been taken by all rollouts."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    async def emit(self, event: Event, /) -> None:
        if isinstance(event, StepEnded):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def say(item_id: str, turn: int, messages: Sequence[Message]) -> Response | Exception:
    """What the model says to those who walk."""
    name, _, number = item_id.rpartition("/")
    (kind,) = [kind for kind in (WALK, ENDLESS) if kind.name == name]
    return Item(kind, int(number)).reply(turn, messages)


async def roll_out(directory: Path, calls: Path, actions: Path, steps: int) -> None:
    """All walks at once, until death."""
    async with JsonlRunStore(directory) as store:
        project = Dissect(LedgerClient(say, file=calls), store)
        definition = dataclasses.replace(project.definition, events=Dies(steps))

        async def run(item: Item) -> RunResult:
            async with Episode(item.goal, actions) as episode:
                return await definition.run(project.request(item, episode))

        await asyncio.gather(*map(run, WALKS))


def main() -> None:
    directory, calls, actions, steps = sys.argv[1:]
    asyncio.run(roll_out(Path(directory), Path(calls), Path(actions), int(steps)))
