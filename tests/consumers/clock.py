"""An event loop whose clock can be set forward: a time limit is reached when the test says so, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class JumpingLoop(asyncio.SelectorEventLoop):
    """The usual loop, ahead of its time."""

    _ahead = 0.0

    def time(self) -> float:
        return super().time() + self._ahead

    def jump(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._ahead += seconds


def jump(seconds: float) -> None:
    """Set the running loop's clock forward."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.jump(seconds)


async def hang() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run on such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)
