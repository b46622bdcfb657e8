"""What the loop costs: against a loop written by hand, step by step as a run grows, and in memory.

The model, the executor and the sink answer at once, the store is `EphemeralRunStore`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import agents
from benchmarks.measuring import Row, at_most, in_turns, median_ratio, reported, show, timed
from polyloop import Action, ActionOutcome, ActionStatus, ChatMessage, ModelCall, ModelReply, RunKey
from polyloop.stores.ephemeral import EphemeralRunStore

HAND_LOOPS: Final = 10
"""How many times the loop by hand is timed in a row: one of them is too short for the clock's neighbours."""


class ReadyModel(agents.Model):
    """Gives one and the same reply, made beforehand."""

    reply = ModelReply(call_id="call", text=agents.REPLY, reasoning=None)

    async def call(self, call: ModelCall, /) -> ModelReply:  # noqa: ARG002 - the port's signature
        """Answer."""
        return self.reply


class ReadyExecutor(agents.Executor):
    """Gives one and the same outcome, made beforehand."""

    outcome = ActionOutcome(status=ActionStatus.EXECUTED, observation=agents.OBSERVATION, completed=False)

    async def execute(self, action: Action, /) -> ActionOutcome:  # noqa: ARG002 - the port's signature
        """Observe."""
        return self.outcome


async def by_library(steps: int, model: agents.Model, executor: agents.Executor) -> None:
    """A run of so many steps."""
    run = agents.definition(EphemeralRunStore(), model=model).run
    result = await run(agents.request("run", steps, executor=executor))
    assert len(result.steps) == steps


async def by_hand(steps: int, model: agents.Model, executor: agents.Executor) -> None:
    """The loop that somebody would write who wants none of the library's promises."""
    call = ModelCall(messages=(), call_index=0, key=RunKey("run"), result_id="call", binding={})
    action = Action(action_text="", tool_name=None, arguments={}, key=RunKey("run"), step_idx=0, result_id="action")
    messages = [ChatMessage(role="system", content="You tidy folders.")]
    prompt: tuple[ChatMessage, ...]
    for _ in range(steps):
        prompt = tuple(messages)
        reply = await model.call(call)
        messages.append(ChatMessage(role="assistant", content=reply.text))
        outcome = await executor.execute(action)
        messages.append(ChatMessage(role="user", content=outcome.observation))
    assert len(prompt) == 2 * steps - 1


async def ratio_to_hand(steps: int, model: agents.Model, executor: agents.Executor, repeats: int) -> tuple[float, str]:
    """The library's time over the time by hand, and both in microseconds a step."""

    async def hand() -> None:
        for _ in range(HAND_LOOPS):
            await by_hand(steps, model, executor)

    times = await in_turns({"library": lambda: by_library(steps, model, executor), "hand": hand}, repeats)
    library = statistics.median(times["library"]) / steps
    by_itself = statistics.median(times["hand"]) / steps / HAND_LOOPS
    note = f"{library * 1e6:.1f} µs a step against {by_itself * 1e6:.2f} µs"
    return median_ratio(times["library"], times["hand"]) * HAND_LOOPS, note


async def overhead() -> list[Row]:
    """At 200 and at 1,000 steps."""
    rows = []
    for steps, repeats in ((200, 25), (1000, 11)):
        ratio, note = await ratio_to_hand(steps, agents.Model(), agents.Executor(), repeats)
        rows.append(at_most(f"overhead over a loop by hand, {steps:,} steps", 30, ratio, "x", note=note))
    for steps, repeats in ((200, 25), (1000, 11)):
        ratio, note = await ratio_to_hand(steps, ReadyModel(), ReadyExecutor(), repeats)
        what = f"the same where the ports give one answer that was made beforehand, {steps:,} steps"
        rows.append(reported(what, f"{ratio:.3g} x ({note})"))
    return rows


def pointer_copies(steps: int) -> float:
    """Seconds that the message tuples of a run take alone."""
    message = ChatMessage(role="user", content=agents.OBSERVATION)

    def grow(finish: Callable[[list[ChatMessage]], object]) -> float:
        messages = [message]
        started = time.perf_counter()
        for _ in range(steps):
            finish(messages)
            messages += (message, message)
        return time.perf_counter() - started

    with_copies = grow(tuple)
    return with_copies - grow(id)


async def growth() -> list[Row]:
    """Microseconds a step at 200 and at 10,000 steps, without the pointer copies."""
    short_steps, long_steps, short_runs, repeats = 200, 10_000, 10, 7
    model, executor = agents.Model(), agents.Executor()
    short, long, copies = [], [], []
    for _ in range(repeats):
        seconds = 0.0
        for _ in range(short_runs):
            seconds += await timed(lambda: by_library(short_steps, model, executor)) - pointer_copies(short_steps)
        short.append(seconds / short_runs / short_steps)
        copies.append(pointer_copies(long_steps) / long_steps)
        long.append(await timed(lambda: by_library(long_steps, model, executor)) / long_steps - copies[-1])
    note = (
        f"{statistics.median(long) * 1e6:.1f} µs against {statistics.median(short) * 1e6:.1f} µs, "
        f"pointer copies of {statistics.median(copies) * 1e6:.1f} µs a step taken off"
    )
    return [at_most("µs a step at 10,000 steps over those at 200", 2, median_ratio(long, short), "x", note=note)]


class TalkingModel(agents.Model):
    """Gives a new text of a known size each time."""

    def __init__(self, chars: int) -> None:
        super().__init__()
        self._chars = chars

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Answer."""
        return ModelReply(call_id="call", text=f"{call.call_index:06d}".ljust(self._chars, "r"), reasoning=None)


class TalkingExecutor(agents.Executor):
    """Observes a new text of a known size each time."""

    def __init__(self, chars: int) -> None:
        super().__init__()
        self._chars = chars

    async def execute(self, action: Action, /) -> ActionOutcome:
        """Observe."""
        text = f"{action.step_idx:06d}".ljust(self._chars, "o")
        return ActionOutcome(status=ActionStatus.EXECUTED, observation=text, completed=False)


def peak_bytes(steps: int, chars: int) -> int:
    """The most that a run with texts of this size held at any time, log and result included."""
    tracemalloc.start()
    try:
        asyncio.run(by_library(steps, TalkingModel(chars), TalkingExecutor(chars)))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def memory() -> list[Row]:
    """Whether memory grows with the steps and with the text, and with nothing else."""
    chars = 2000
    peak_bytes(50, chars)
    at_1000, at_2000, at_4000 = (peak_bytes(steps, chars) for steps in (1000, 2000, 4000))
    early, late = (at_2000 - at_1000) / 1000, (at_4000 - at_2000) / 2000
    per_char = (peak_bytes(1000, 2 * chars) - at_1000) / 1000 / (2 * chars)
    fixed = late - per_char * 2 * chars
    return [
        at_most(
            "memory a step, from 2,000 to 4,000 steps over from 1,000 to 2,000",
            1.1,
            late / early,
            "x",
            note=f"{late:,.0f} bytes against {early:,.0f} bytes with {2 * chars:,} characters of text a step",
        ),
        reported("memory for each byte of text", f"{per_char:.2f} bytes, and {fixed:,.0f} bytes a step besides"),
    ]


def rows() -> list[Row]:
    """All figures."""
    return [*asyncio.run(overhead()), *asyncio.run(growth()), *memory()]


if __name__ == "__main__":
    sys.exit(show("The loop", rows()))
