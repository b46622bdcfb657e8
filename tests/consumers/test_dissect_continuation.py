"""What becomes of rollouts that were interrupted, in the hands of a runner that continues them as its page says."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from polyloop.ports import RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import (
    Event,
    ReplayPolicy,
    RunLog,
    RunResult,
    StepEnded,
    StopReason,
)
from tests.consumers.dissect import Dissect, old_trajectory
from tests.consumers.dissect_process import say
from tests.consumers.harness import LedgerClient, Limits, Message, Response, Row, Trajectory
from tests.consumers.rollouts import ENDLESS, WALK, WALKS, Item
from tests.consumers.sessions import Episode
from tests.family import open_effect

ROOT: Final = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Interruption:
    """Where a rollout is cancelled."""

    where: str
    at: int = 0
    replay: ReplayPolicy = ReplayPolicy.NEVER

    @property
    def is_final(self) -> bool:
        """Whether the rollout cannot go on: nobody knows what became of the effect that it was in."""
        return self.where.startswith("in a") and self.replay is ReplayPolicy.NEVER

    def item(self, number: int) -> Item:
        return Item(ENDLESS if self.where == "in an action" else WALK, number)


INTERRUPTIONS: Final = (
    Interruption("nowhere"),
    Interruption("before it began"),
    *(Interruption("after a step", at) for at in range(6)),
    *(Interruption("in a model call", at) for at in range(0, 6, 2)),
    *(Interruption("in a model call", at, ReplayPolicy.SAFE) for at in range(0, 6, 2)),
    Interruption("in an action", 3),
)


class World:
    """One store, one client, and rollouts that are cancelled where their interruption says."""

    def __init__(self, store: RunStore, ledger: Path) -> None:
        self.store = store
        self.ledger = ledger
        self.client = LedgerClient(self._say)
        self.project = Dissect(self.client, store)
        self.definition = dataclasses.replace(self.project.definition, events=self)
        self.items = {each.item(number): each for number, each in enumerate(INTERRUPTIONS)}
        self._by_id = {item.item_id: item for item in self.items}
        self._by_key = {self.project.key(item): item for item in self.items}
        self._tasks: dict[Item, asyncio.Task[RunResult]] = {}
        self._interrupting = True

    async def emit(self, event: Event, /) -> None:
        if isinstance(event, StepEnded):
            self._pass("after a step", self._by_key[event.key], event.step.step_idx)

    async def _say(self, item_id: str, turn: int, messages: Sequence[Message]) -> Response | Exception:
        item = self._by_id[item_id]
        if self._pass("in a model call", item, turn):
            await asyncio.Event().wait()
        return item.reply(turn, messages)

    def _pass(self, where: str, item: Item, at: int) -> bool:
        interruption = self.items[item]
        reached = self._interrupting and (interruption.where, interruption.at) == (where, at)
        if reached:
            self._tasks[item].cancel()
        return reached

    async def interrupt(self) -> dict[Item, RunResult | BaseException]:
        """All rollouts at once, each to its end or to its interruption."""
        for item in self.items:
            self._tasks[item] = asyncio.create_task(self._run(item))
        for item, interruption in self.items.items():
            if interruption.where == "before it began":
                self._tasks[item].cancel()
            if interruption.where == "in an action":
                await until(lambda: self.ledger.exists() and self.ledger.read_text().count("works for ever/14#3") > 1)
                self._tasks[item].cancel()
        ended = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._interrupting = False
        return dict(zip(self._tasks, ended, strict=True))

    async def _run(self, item: Item) -> RunResult:
        async with Episode(item.goal, self.ledger) as episode:
            request = self.project.request(item, episode)
            return await self.definition.run(dataclasses.replace(request, model_call_replay=self.items[item].replay))

    async def continue_as_printed(self, item: Item) -> RunResult | None:
        """A new container, by another name, and nothing more."""
        async with Episode(item.goal, self.ledger) as episode:
            request = self.project.request(item, episode, "another session")
            return await self.project.continue_rollout(self.project.definition, request)

    async def continue_rebuilt(self, item: Item) -> RunResult | None:
        """A new container in which the recorded actions were executed before, under the name of the old one."""
        log = await self.store.read_log(self.project.key(item))
        async with rebuilt(item, log, self.ledger) as episode:
            request = self.project.request(item, episode)
            request = dataclasses.replace(request, model_call_replay=self.items[item].replay)
            return await self.project.continue_rollout(self.definition, request)


def recorded_actions(log: RunLog) -> list[str]:
    """The actions that were executed and whose results are in the log; the last of them may have no step yet."""
    results = {result.result_id for result in log.results}
    return [each.action.action_text for each in log.intents if each.action is not None and each.result_id in results]


@contextlib.asynccontextmanager
async def rebuilt(item: Item, log: RunLog, ledger: Path) -> AsyncIterator[Episode]:
    """A new session, brought to where the old one was."""
    async with Episode(item.goal, ledger) as episode:
        for action in recorded_actions(log):
            await episode.execute(action)
        yield episode


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does, which takes time and no turns of this loop."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def old_loop(items: Iterable[Item], ledger: Path) -> tuple[dict[Item, Trajectory], list[Row]]:
    """The same without any interruption; work without an end is left out."""
    client, old = LedgerClient(say), {}
    for item in items:
        kind = dataclasses.replace(item.kind, limits=Limits(max_steps=3)) if item.kind is ENDLESS else item.kind
        old[item] = await old_trajectory(client, Item(kind, item.number), ledger)
    return old, client.rows


def rows_of(result: RunResult) -> list[Row]:
    names = [field.name for field in dataclasses.fields(result.steps[0])] if result.steps else []
    kept = [name for name in names[:13] if name != "step_wall_ms"]
    return [{name: getattr(step, name) for name in kept} for step in result.steps]


def check_equal(result: RunResult | None, old: Trajectory) -> None:
    assert result is not None
    assert (result.stop_reason, rows_of(result)) == (old.stop_reason, old.rows)


def check_unknown(result: RunResult | None, old: Trajectory, log: RunLog) -> None:
    """The rollout ends where it was interrupted: with the steps that it had taken, and no more."""
    assert result is not None
    assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
    assert rows_of(result) == old.rows[: len(log.steps)]
    assert f"step {len(log.steps)}" in (result.detail or "")


def check_calls(calls: Sequence[Row], old_calls: Sequence[Row], most: int) -> None:
    """No call is made more often than that, and each has the messages that it has without any interruption."""
    expected = {(row["item_id"], row["turn"]): row["messages"] for row in old_calls}
    for row in calls:
        # The old loop was stopped before the work without an end: for that call there is nothing to compare with.
        assert row["messages"] == expected.get((row["item_id"], row["turn"])) or "works for ever" in str(row["item_id"])
    counted = collections.Counter((row["item_id"], row["turn"]) for row in calls)
    assert max(counted.values()) <= most


async def test_cancelled_rollouts_go_on_in_rebuilt_sessions_and_those_beside_them_notice_nothing(
    tmp_path: Path,
) -> None:
    before = asyncio.all_tasks()
    async with JsonlRunStore(tmp_path / "runs") as store:
        world = World(store, tmp_path / "actions")
        old, old_calls = await old_loop(world.items, tmp_path / "old actions")
        first = await world.interrupt()
        assert asyncio.all_tasks() == before
        size = world.ledger.stat().st_size
        logs = {item: await store.read_log(world.project.key(item)) for item in world.items}
        assert world.ledger.stat().st_size == size, "an action went on after its rollout was cancelled"
        for item, interruption in world.items.items():
            check_interrupted(interruption, first[item], logs[item])
            result = await world.continue_rebuilt(item)
            if interruption.is_final:
                check_unknown(result, old[item], logs[item])
            else:
                check_equal(result, old[item])
            assert await world.continue_rebuilt(item) == result, "a finished rollout comes back as it was"
        safe = {item.item_id for item, each in world.items.items() if each.replay is ReplayPolicy.SAFE}
        check_calls([row for row in world.client.rows if row["item_id"] not in safe], old_calls, most=1)
        check_calls([row for row in world.client.rows if row["item_id"] in safe], old_calls, most=2)


def check_interrupted(interruption: Interruption, first: RunResult | BaseException, log: RunLog) -> None:
    """It was cancelled where it was meant to be, and the log says so."""
    if interruption.where == "nowhere":
        assert isinstance(first, RunResult)
        return
    assert isinstance(first, asyncio.CancelledError)
    if interruption.where == "before it began":
        assert log.next_seq == 0
        return
    assert log.finished is not None
    assert log.finished.stop_reason is StopReason.CANCELLED
    assert len(log.steps) == interruption.at + (interruption.where == "after a step")


async def test_into_a_new_container_an_interrupted_rollout_is_not_resumed(tmp_path: Path) -> None:
    """The history would speak of variables that it does not have: the runner takes the next attempt instead."""
    async with JsonlRunStore(tmp_path / "runs") as store:
        world = World(store, tmp_path / "actions")
        first = await world.interrupt()
        calls, size = len(world.client.rows), world.ledger.stat().st_size
        for item, interruption in world.items.items():
            if interruption.where == "before it began":
                assert (await store.read_log(world.project.key(item))).next_seq == 0
                continue
            before = await store.read_log(world.project.key(item))
            assert await world.continue_as_printed(item) is None
            assert await store.read_log(world.project.key(item)) == before
        assert len(world.client.rows) == calls
        assert world.ledger.stat().st_size == size
        (begun,) = [item for item, each in world.items.items() if each.where == "before it began"]
        result = await world.continue_as_printed(begun)
        assert isinstance(first[begun], asyncio.CancelledError)
        assert result is not None
        assert result.stop_reason is StopReason.TASK_COMPLETED


async def test_a_finished_rollout_comes_back_whole_without_a_container_where_its_session_is_named(
    tmp_path: Path,
) -> None:
    async with JsonlRunStore(tmp_path / "runs") as store:
        world = World(store, tmp_path / "actions")
        first = await world.interrupt()
        (item,) = [item for item, each in world.items.items() if each.where == "nowhere"]
        calls = len(world.client.rows)
        log = await store.read_log(world.project.key(item))
        assert log.started is not None
        executor = log.started.params_snapshot["executor"]
        assert isinstance(executor, Mapping)
        request = world.project.request(item, Episode(item.goal), str(executor["session"]))
        assert await world.project.continue_rollout(world.project.definition, request) == first[item]
        assert len(world.client.rows) == calls


async def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    item, store = WALKS[1], EphemeralRunStore()
    project = Dissect(LedgerClient(say), store)
    request = project.request(item, Episode(item.goal))

    class Scored(Episode):
        async def score(self) -> int:
            return int(await self.is_done())

    def open_episode(_: Item) -> Scored:
        scored = Scored(item.goal, tmp_path / "actions")
        project.page.names["request"] = dataclasses.replace(request, executor=project.executor(scored, "s"))
        return scored

    marker = "score = await episode.score()"
    await project.page.run_async(marker, runs_directory=tmp_path / "runs", item=item, open_episode=open_episode)
    assert project.page.unused == set()
    assert project.page["result"].stop_reason is StopReason.TASK_COMPLETED
    assert project.page["score"] == 1


@pytest.mark.parametrize("steps", [5, 33])
async def test_a_killed_runners_rollouts_go_on_in_another_process_or_say_that_they_cannot(
    tmp_path: Path, steps: int
) -> None:
    places = [tmp_path / name for name in ("runs", "calls", "actions")]
    directory, calls, actions = places
    command = [sys.executable, "-c", "from tests.consumers.dissect_process import main; main()"]
    dead = subprocess.run([*command, *map(str, places), str(steps)], cwd=ROOT, check=False)  # noqa: ASYNC221 - nothing else runs
    assert dead.returncode == -signal.SIGKILL
    old, old_calls = await old_loop(WALKS, tmp_path / "old actions")
    done_by_the_dead = actions.read_text().splitlines()
    async with JsonlRunStore(directory) as store:
        client = LedgerClient(say, file=calls)
        project = Dissect(client, store)
        went_on = 0
        for item in WALKS:
            log = await store.read_log(project.key(item))
            ledger = tmp_path / f"actions {item.number}"
            async with rebuilt(item, log, ledger) as episode:
                result = await project.continue_rollout(project.definition, project.request(item, episode))
            if (intent := open_effect(log.records())) is not None:
                check_unknown(result, old[item], log)
                assert intent.replay is ReplayPolicy.NEVER
            else:
                check_equal(result, old[item])
                went_on += 1
            lines = ledger.read_text().splitlines()[len(recorded_actions(log)) :] if ledger.exists() else []
            assert not set(lines) & set(done_by_the_dead), "an action was executed twice"
            assert await project.definition.resume(project.request(item, Episode(item.goal))) == result
        assert went_on >= 1
    booked = collections.Counter(calls.read_text().splitlines())
    assert max(booked.values()) == 1, "a model call was made twice"
    check_calls(client.rows, old_calls, most=1)
    assert {json.dumps([row["item_id"], row["turn"]]) for row in old_calls} >= set(booked)
