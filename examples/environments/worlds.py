"""What both environments need to stand behind an action executor: threads, a memory of what was done, rebuilding.

A game of these packages is an object in memory that blocks while it steps and dies with its process. So:

- **Steps run in a thread**, and a cancelled step is waited for: a thread cannot be stopped, and an action whose
  cancellation has passed must not go on in the background. These steps take milliseconds.
- **One world, one run.** An `Episode` owns its world, from `played(...)` until that is left.
- **A resumed run gets its world back by replaying.** The library never executes past actions again; whoever resumes
  hands it an executor on the environment as the run left it. Here that environment is gone, and only the log knows
  what was done in it: `executed_actions(log)` reads it there, and `played` does it again in a fresh world, before the
  run goes on. Each step must answer what the log says that it answered, or `WorldDiffersError` is raised and nothing
  is resumed: the run is as it was, and can be resumed where the world is the old one.
- **An action is done once.** An episode remembers each `result_id` that it has executed and answers a repeated one from
  memory. That covers the run that is cancelled and resumed within one process, on the same executor. In a new process
  the interrupted action has no result in the log, so it is not among what is replayed, and the new world has not seen
  it. So here, unlike for an environment that outlives its process, repeating it is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol, TypeVar

from polyloop import (
    ActionOutcome,
    ActionStatus,
    ChatMessage,
    EffectKind,
    EnvironmentFailure,
    JSONValue,
    ModelCall,
    ModelReply,
    PlannedAction,
    RunLog,
    StopReason,
)

ResultT = TypeVar("ResultT")


class Seen(NamedTuple):
    """What a world answers to one command."""

    text: str
    completed: bool
    """Whether the world says that the task is done."""


class World(Protocol):
    """A game. Everything in it may block, and is called from one thread at a time."""

    def begin(self) -> str:
        """Start it. What is seen first."""
        ...

    def step(self, command: str, /) -> Seen:
        """Do one thing in it."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class PastAction(NamedTuple):
    """An action that the log says was executed."""

    result_id: str
    plan: PlannedAction
    outcome: ActionOutcome


class WorldDiffersError(Exception):
    """A replayed action was answered otherwise than the log says: this is not the world that the run was in.

    Attributes:
        result_id: The action.
    """

    def __init__(self, result_id: str) -> None:
        super().__init__(
            f"{result_id}: replayed, the action is answered otherwise than in the log. The game's package or its "
            "files have changed since the run was started; resume it with those, or start a new key"
        )
        self.result_id = result_id


def has_ended(log: RunLog) -> bool:
    """Whether nothing more will be done in the run. One that was cancelled goes on when it is resumed."""
    return log.finished is not None and log.finished.stop_reason is not StopReason.CANCELLED


def executed_actions(log: RunLog) -> tuple[PastAction, ...]:
    """What was executed in the run's environment, in order; nothing for a run that has ended, which needs none."""
    if has_ended(log):
        return ()
    plans = {each.result_id: each.action for each in log.intents if each.kind is EffectKind.ACTION}
    past: list[PastAction] = []
    for result in log.results:
        plan, outcome = plans.get(result.result_id), result.outcome
        if plan is not None and outcome is not None and outcome.status is ActionStatus.EXECUTED:
            past.append(PastAction(result.result_id, plan, outcome))
    return tuple(past)


class Episode:
    """A world for the length of one run."""

    def __init__(self, world: World, pool: Executor | None) -> None:
        self._world = world
        self._pool = pool
        self._seen: dict[str, Seen] = {}
        self._is_open = False
        self.opening = ""
        """What is seen first."""

    async def act(self, result_id: str, command: str) -> Seen:
        """Do one thing in the world, or say again what came of it.

        Raises:
            EnvironmentFailure: the world is closed, or its package raised.
        """
        return await in_thread(self._pool, functools.partial(self._act, result_id, command))

    def _act(self, result_id: str, command: str) -> Seen:
        if result_id not in self._seen:
            if not self._is_open:
                raise EnvironmentFailure("the environment is closed")
            try:
                # Remembered in the thread itself: a cancelled caller is no longer there to do it.
                self._seen[result_id] = self._world.step(command)
            except Exception as error:
                raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error
        return self._seen[result_id]

    def _begin(self, past: Iterable[PastAction], command: Callable[[PlannedAction], str]) -> None:
        self.opening = self._world.begin()
        self._is_open = True
        for action in past:
            if not _is_same(self._act(action.result_id, command(action.plan)), action.outcome):
                raise WorldDiffersError(action.result_id)

    def _close(self) -> None:
        self._is_open = False
        self._world.close()


def _is_same(seen: Seen, recorded: ActionOutcome) -> bool:
    kept = len(recorded.observation)
    return (seen.text[:kept], len(seen.text) - kept, seen.completed) == (
        recorded.observation,
        recorded.truncated_chars,
        recorded.completed,
    )


@contextlib.asynccontextmanager
async def played(
    world: World, *, pool: Executor | None, past: Sequence[PastAction], command: Callable[[PlannedAction], str]
) -> AsyncIterator[Episode]:
    """A world that has begun, with everything done in it that the run had done.

    Args:
        world: A fresh one.
        pool: Where its calls run; None for the event loop's own threads.
        past: `executed_actions` of the run's log, which is empty for a new run.
        command: What a planned action says to the world.

    Raises:
        WorldDiffersError: it is not the world that the run was in.
    """
    episode = Episode(world, pool)
    try:
        await in_thread(pool, functools.partial(episode._begin, past, command))  # noqa: SLF001 - not for executors
        yield episode
    finally:
        await in_thread(pool, episode._close)  # noqa: SLF001 - likewise


async def in_thread(pool: Executor | None, call: Callable[[], ResultT]) -> ResultT:
    """Have a blocking call done in a thread. A cancellation, or several, passes when the call has ended."""
    work = asyncio.get_running_loop().run_in_executor(pool, call)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            # Not awaited itself: it would count as done once it is cancelled, while the thread goes on.
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        work.exception()  # looked at, so that nobody is told that nobody did
        raise cancelled
    return work.result()


class PolicyModel:
    """A model without a model: a rule that reads the prompt and says what to do next.

    Args:
        name: Stands for the rule in `params`: give a changed rule another one.
        policy: A pure function of the prompt, so that a repeated call gets the same reply.
    """

    def __init__(self, *, name: str, policy: Callable[[Sequence[ChatMessage]], str]) -> None:
        self._name = name
        self._policy = policy

    @property
    def params(self) -> dict[str, JSONValue]:
        """The rule's name."""
        return {"model": self._name}

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Ask the rule."""
        return ModelReply(call_id=f"{self._name}-{call.call_index}", text=self._policy(call.messages), reasoning=None)
