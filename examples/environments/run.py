"""Many episodes in an environment that nobody here wrote, and how they ended.

    python examples/environments/run.py lake --episodes 40
    python examples/environments/run.py adventure --episodes 8 --at-once 4
    python examples/environments/run.py lake --episodes 40 --kill-after 300       dies (SIGKILL) after so many steps

The same command again goes on where the last process ended, however that was: episodes that have ended answer from the
log, and interrupted ones are resumed in a world in which their actions were replayed. `one_episode` is all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

# So that the other examples are found when this file is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.environments.worlds import PastAction, executed_actions, has_ended
from polyloop import AgentDefinition, Event, EventSink, RunKey, RunRequest, RunResult, RunStore, StepEnded
from polyloop.adapters.progress import ProgressSink
from polyloop.stores.jsonl import JsonlRunStore

Requests: TypeAlias = Callable[[RunKey, int, Sequence[PastAction]], AbstractAsyncContextManager[RunRequest]]


class Setting(NamedTuple):
    """One of the environments."""

    definition: Callable[[RunStore, EventSink], AgentDefinition]
    request: Requests
    """Key, seed and past actions to an episode's request, whose environment lives as long as it is entered."""


class Options(NamedTuple):
    """What the command line says."""

    environment: str
    episodes: int
    first_seed: int
    at_once: int
    data_dir: Path
    kill_after: int | None

    @property
    def runs(self) -> dict[int, RunKey]:
        """The episodes' seeds and keys."""
        seeds = range(self.first_seed, self.first_seed + self.episodes)
        return {seed: RunKey(f"{self.environment}/{seed}") for seed in seeds}

    def setting(self) -> Setting:
        """The environment. Its package is imported here, so that the other one's need not be installed."""
        if self.environment == "lake":
            from examples.environments import lake  # noqa: PLC0415 - see above

            return Setting(lake.definition, lake.request)
        from examples.environments import adventure  # noqa: PLC0415 - see above

        return Setting(adventure.definition, functools.partial(adventure.request, self.data_dir / "games"))


async def one_episode(
    definition: AgentDefinition, requests: Requests, key: RunKey, seed: int, gate: asyncio.Semaphore
) -> RunResult:
    """Run it from the start, go on with it, or take its stored result: whatever its log asks for."""
    async with gate:
        log = await definition.store.read_log(key)
        async with requests(key, seed, executed_actions(log)) as request:
            return await (definition.run(request) if log.started is None else definition.resume(request))


async def all_episodes(options: Options) -> list[RunResult]:
    """Run them, so many at once."""
    setting, gate = options.setting(), asyncio.Semaphore(options.at_once)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    async with JsonlRunStore(options.data_dir / "runs") as store, _events(options, store) as events:
        definition = setting.definition(store, events)
        async with asyncio.TaskGroup() as tasks:
            started = [
                tasks.create_task(one_episode(definition, setting.request, key, seed, gate))
                for seed, key in options.runs.items()
            ]
        return [task.result() for task in started]


@asynccontextmanager
async def _events(options: Options, store: RunStore) -> AsyncIterator[EventSink]:
    """The progress line: a bar on a terminal, plain lines elsewhere."""
    ended = [has_ended(await store.read_log(key)) for key in options.runs.values()]
    async with ProgressSink(total=options.episodes, already_done=sum(ended), plain_every_s=5.0) as progress:
        yield progress if options.kill_after is None else Killing(progress, options.kill_after)


class Killing:
    """Kills the process after so many steps of all episodes together. For showing what a crash costs: nothing."""

    def __init__(self, sink: EventSink, steps: int) -> None:
        self._sink = sink
        self._steps_left = steps

    async def emit(self, event: Event, /) -> None:
        """Hand the event on, and count."""
        await self._sink.emit(event)
        self._steps_left -= isinstance(event, StepEnded)
        if self._steps_left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def summary(results: Iterable[RunResult]) -> str:
    """How many episodes ended for which reason, and how many steps those had on average."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for result in results:
        steps[result.stop_reason].append(len(result.steps))
    rows = [f"{'stop reason':<24}{'episodes':>10}{'mean steps':>12}"]
    for reason, each in sorted(steps.items(), key=lambda item: -len(item[1])):
        rows.append(f"{reason:<24}{len(each):>10}{sum(each) / len(each):>12.1f}")
    return "\n".join(rows)


def options_from(arguments: Sequence[str]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Many episodes in a real environment, and how they ended.")
    parser.add_argument("environment", choices=("lake", "adventure"))
    parser.add_argument("--episodes", type=_positive, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the first one's seed (0); each has one")
    parser.add_argument("--at-once", type=_positive, default=8, metavar="N", help="how many at the same time (8)")
    parser.add_argument("--data-dir", type=Path, default=Path("demo-data/environments"), help="logs and games")
    parser.add_argument("--kill-after", type=_positive, default=None, metavar="STEPS", help="die after so many steps")
    return Options(**vars(parser.parse_args(arguments)))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    print(summary(asyncio.run(all_episodes(options_from(sys.argv[1:])))))
