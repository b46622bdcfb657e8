"""One of two processes that race on many runs: `python -m tests.crash.racing STORE DIRECTORY SEED COUNT SIDE`.

For each run the two meet, and then both drive it, `run` or `resume`, whichever the log asks for, with delays that the
seed chooses. Half of the runs were begun and cancelled before. Every effect is written down outside the store, in a
file that is only appended to.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from polyloop.ports import RunStore
from polyloop.types import EffectIntended, RunAlreadyExists, RunConflict, RunKey
from tests.crash.stores import DURABLE
from tests.family import FAMILY, Assembled, Scenario, assemble

SIDES: Final = 2
TRIES: Final = 3
SCENARIOS: Final = [
    scenario
    for scenario in FAMILY
    if scenario.name
    in (
        *("calls tools in every way", "completes the task", "answers after work, model calls safe"),
        *("spends its actions", "has an executor that raises", "loses its model"),
    )
]


def dice_of(seed: int, number: int, side: int | None = None) -> random.Random:
    """What decides about a race: for both sides alike, or for one of them."""
    return random.Random(f"{seed} {number} {side}")


def key_of(number: int) -> RunKey:
    """The key of a race."""
    return RunKey(f"race {number}")


def scenario_of(seed: int, number: int) -> Scenario:
    """What is raced on."""
    return dice_of(seed, number).choice(SCENARIOS)


class Unfenced:
    """A store that is wrong on purpose: it does not tell a driver that another has announced in its place."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        with contextlib.suppress(RunConflict):
            await self._store.append_intent(key, record)


class Racer:
    """One side."""

    def __init__(self, directory: Path, seed: int, side: int) -> None:
        self._seed = seed
        self._side = side
        self._met = 0
        fd = os.open(directory / "meet", os.O_RDWR)
        self._meeting = mmap.mmap(fd, SIDES * 8)
        os.close(fd)
        self._ledger = os.open(directory / "ledger", os.O_WRONLY | os.O_APPEND)

    def note(self, line: str) -> None:
        """Write down what cannot be taken back."""
        os.write(self._ledger, f"{line}\n".encode())

    def meet(self) -> None:
        """Go on when the other has come here too."""
        self._met += 1
        self._meeting[self._side * 8 : self._side * 8 + 8] = self._met.to_bytes(8, "little")
        other = (1 - self._side) * 8
        deadline = time.monotonic() + 60
        while int.from_bytes(self._meeting[other : other + 8], "little") < self._met:
            assert time.monotonic() < deadline, "the other side does not come"
            os.sched_yield()

    async def race(self, store: RunStore, number: int) -> None:
        """Drive a run against the other side."""
        dice = dice_of(self._seed, number)
        if self._side == 0 and dice.randrange(2):
            await self._begin(store, number, dice)
        self.meet()
        dice = dice_of(self._seed, number, self._side)

        def dawdle(_: str) -> None:
            if not dice.randrange(3):
                time.sleep(dice.random() * 0.002)

        for _ in range(dice.randint(1, TRIES)):
            assembled = self._assembled(store, number, tell=dawdle)
            try:
                await self._drive(store, assembled)
            except (RunConflict, RunAlreadyExists):
                self.note(f"refused {number} {self._side}")
            else:
                break
        self.meet()

    async def _drive(self, store: RunStore, assembled: Assembled) -> None:
        definition, request = assembled.definition, assembled.request
        begun = (await store.read_log(request.key)).started is not None
        await (definition.resume(request) if begun else definition.run(request))

    async def _begin(self, store: RunStore, number: int, dice: random.Random) -> None:
        """Begin a run, and be cancelled somewhere."""
        left = dice.randint(5, 40)
        task: asyncio.Task[object] | None = None

        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if not left and task is not None:
                task.cancel()

        assembled = self._assembled(store, number, tell=count)
        task = asyncio.create_task(assembled.definition.run(assembled.request))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _assembled(self, store: RunStore, number: int, tell: Any) -> Assembled:
        def write_down(result_id: str) -> None:
            self.note(f"effect {number} {self._side} {result_id}")

        return assemble(scenario_of(self._seed, number), store, tell=tell, effect=write_down, key=key_of(number))


def store_of(name: str, directory: Path) -> AbstractAsyncContextManager[Any]:
    """A durable store in a directory of the test's own."""
    return DURABLE[name](directory / "store")


async def main(name: str, directory: Path, seed: int, count: int, side: int) -> None:
    """Race on so many runs."""
    wrong = name.startswith("unfenced ")
    racer = Racer(directory, seed, side)
    async with store_of(name.removeprefix("unfenced "), directory) as store:
        for number in range(count):
            await racer.race(Unfenced(store) if wrong else store, number)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
