"""A process under load, to be killed: `python -m tests.power.load DIRECTORY LEDGER COUNT`.

It says that it is ready, waits for the end of its input, and goes on with `COUNT` runs at once, or begins them. It
notes every store call and every effect.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from polyloop.ports import RunStore
from polyloop.stores.jsonl.files import Os
from polyloop.types import ReplayPolicy, RunAlreadyExists, RunConflict, RunKey, StopReason
from tests.fakes import tool_call
from tests.family import TOOLS, Scenario, assemble
from tests.power.ledger import Ledger, noted_store

STEPS: Final = 8

SCENARIO: Final = Scenario(
    name="works under load",
    stop_reason=StopReason.TASK_COMPLETED,
    replies=(
        *(tool_call("write" if step == 3 else "look", query="q" * 300 * step, text="t") for step in range(STEPS)),
        tool_call("submit"),
    ),
    tools=TOOLS,
    model_call_replay=ReplayPolicy.SAFE,
)
"""Mostly what may be repeated, so that most runs go on after a kill; one action of each must never happen twice."""

NEVER: Final = ("000003-action", f"{STEPS:06d}-action")
"""The actions of it that must not happen twice: `write` and `submit`."""


def key_of(number: int) -> RunKey:
    """The key of one of the runs."""
    return RunKey(f"load {number}")


async def go_on(key: RunKey, store: RunStore, ledger: Ledger) -> None:
    """Resume, or run what has not begun."""
    assembled = assemble(SCENARIO, store, key=key, effect=lambda name: ledger.note("effect", key=key, effect=name))
    try:
        if (await store.read_log(key)).started is None:
            await assembled.definition.run(assembled.request)
        else:
            await assembled.definition.resume(assembled.request)
    except (RunConflict, RunAlreadyExists):
        # Where two processes go on with the same runs, one of them is refused.
        ledger.note("refused", key=key)


async def main(directory: Path, ledger: Ledger, count: int) -> None:
    """Go on with them all at once."""
    async with noted_store(directory, ledger, Os()) as store, asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(go_on(key_of(number), store, ledger))


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.read()
    asyncio.run(main(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), int(sys.argv[3])))
