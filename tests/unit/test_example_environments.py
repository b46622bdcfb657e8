"""The real environments of the examples: episodes that end, that are killed, and that go on in a replayed world."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.environments import run
from examples.environments.worlds import PastAction, Seen, WorldDiffersError, executed_actions, played
from polyloop import (
    Action,
    ActionOutcome,
    ActionStatus,
    EnvironmentFailure,
    PlannedAction,
    RunIdentityMismatch,
    RunKey,
    RunLog,
    RunResult,
    StopReason,
)
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from tests import builders
from tests.fakes import HANG, RecordingSink, ScriptedExecutor, env_error, executed, not_executed

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gymnasium", "textworld")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]

needs_gymnasium = pytest.mark.skipif("gymnasium" in MISSING, reason="the package gymnasium is not installed")
needs_textworld = pytest.mark.skipif("textworld" in MISSING, reason="the package textworld is not installed")


def test_the_packages_are_there_where_they_are_required() -> None:
    """Without this, CI would pass by skipping."""
    assert not (os.environ.get("POLYLOOP_REQUIRE_ENVIRONMENTS") and MISSING), f"not installed: {MISSING}"


# --- worlds, with one that counts


class Counter:
    """A world that counts its steps, and can be held up in one."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.is_closed = False
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def begin(self) -> str:
        return "0"

    def step(self, command: str, /) -> Seen:
        self.entered.set()
        assert self.go_on.wait(30)
        if command == "break":
            raise OSError("no such world")
        self.steps.append(command)
        return Seen(f"{command} {len(self.steps)}", completed=command == "finish")

    def close(self) -> None:
        self.is_closed = True


def past(number: int, command: str, outcome: ActionOutcome) -> PastAction:
    plan = PlannedAction(action_text=command, tool_name=None, arguments={}, history_text=command)
    return PastAction(f"{number:06d}-action", plan, outcome)


def said(plan: PlannedAction) -> str:
    return plan.action_text


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a thread, which takes time and no turns of this loop."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancellation_passes_when_the_step_has_ended_and_the_step_is_not_done_again(cancellations: int) -> None:
    world = Counter()
    async with played(world, pool=None, past=(), command=said) as episode:
        world.go_on.clear()
        acting = asyncio.create_task(episode.act("000000-action", "walk"))
        await until(world.entered.is_set)
        for _ in range(cancellations):
            acting.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not acting.done()
        world.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await acting
        assert world.steps == ["walk"]
        # As a run does that is resumed in the same process, on the same executor.
        assert await episode.act("000000-action", "walk") == Seen("walk 1", completed=False)
        assert await episode.act("000001-action", "walk") == Seen("walk 2", completed=False)


async def test_a_world_that_raises_or_is_closed_is_an_environment_failure() -> None:
    world = Counter()
    async with played(world, pool=None, past=(), command=said) as episode:
        with pytest.raises(EnvironmentFailure, match="OSError: no such world"):
            await episode.act("000000-action", "break")
    assert world.is_closed
    with pytest.raises(EnvironmentFailure, match="closed"):
        await episode.act("000001-action", "walk")
    assert world.steps == []


async def test_what_was_done_is_done_again_and_remembered() -> None:
    world = Counter()
    done = [
        past(0, "walk", executed("walk 1")),
        past(3, "swim", dataclasses.replace(executed("swi"), truncated_chars=3)),
    ]
    async with played(world, pool=None, past=done, command=said) as episode:
        assert (episode.opening, world.steps) == ("0", ["walk", "swim"])
        assert await episode.act("000003-action", "swim") == Seen("swim 2", completed=False)
        assert await episode.act("000004-action", "walk") == Seen("walk 3", completed=False)


@pytest.mark.parametrize(
    "recorded",
    [
        executed("walk 2"),
        executed("walk"),
        executed("walk 1", completed=True),
        dataclasses.replace(executed("walk"), truncated_chars=1),
        dataclasses.replace(executed("walk 1"), truncated_chars=1),
    ],
)
async def test_another_answer_than_the_recorded_one_is_another_world(recorded: ActionOutcome) -> None:
    world = Counter()
    with pytest.raises(WorldDiffersError) as raised:
        async with played(world, pool=None, past=[past(7, "walk", recorded)], command=said):
            raise AssertionError("the world was handed out")
    assert raised.value.result_id == "000007-action"
    assert world.is_closed


async def log_of(*outcomes: ActionOutcome, says: str) -> RunLog:
    """A run's log with these outcomes, after which the model says something more; what hangs is cancelled."""
    acts = [f"act: {number}" for number in range(len(outcomes))]
    hangs = asyncio.Event()

    def script(action: Action) -> object:
        if action.step_idx < len(outcomes):
            return outcomes[action.step_idx]
        hangs.set()
        return HANG

    store = EphemeralRunStore()
    request = dataclasses.replace(builders.request(), executor=ScriptedExecutor(script))
    running = asyncio.create_task(builders.definition([*acts, says], store=store).run(request))
    hanging = asyncio.create_task(hangs.wait())
    await asyncio.wait([running, hanging], return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    hanging.cancel()
    await asyncio.gather(running, hanging, return_exceptions=True)
    return await store.read_log(builders.KEY)


async def test_only_what_was_executed_is_done_again() -> None:
    outcomes = (executed("one"), not_executed("no"), executed("three"))
    log = await log_of(*outcomes, says="act: hang")
    assert log.finished is not None
    assert log.finished.stop_reason is StopReason.CANCELLED
    assert [each.action for each in log.intents][-1] is not None, "it was not cancelled within an action"
    actions = executed_actions(log)
    assert [(each.plan.action_text, each.outcome) for each in actions] == [("0", outcomes[0]), ("2", outcomes[2])]


async def test_an_action_that_found_the_environment_broken_is_not_done_again() -> None:
    log = await log_of(executed("one"), env_error("gone"), says="final: 42")
    crashed = dataclasses.replace(log, finished=None)
    assert [each.outcome for each in executed_actions(crashed)] == [executed("one")]


async def test_a_run_that_has_ended_needs_no_world() -> None:
    log = await log_of(executed("one"), says="final: 42")
    assert executed_actions(log) == ()
    assert len(executed_actions(dataclasses.replace(log, finished=None))) == 1


# --- whole episodes


def played_in(data_dir: Path, environment: str, episodes: int, *, first_seed: int = 0) -> list[RunResult]:
    options = run.Options(
        environment=environment, episodes=episodes, first_seed=first_seed, at_once=4, data_dir=data_dir, kill_after=None
    )
    return asyncio.run(run.all_episodes(options))


def without_times(results: list[RunResult]) -> list[RunResult]:
    """Steps take as long as they take."""
    return [
        dataclasses.replace(each, steps=tuple(dataclasses.replace(step, step_wall_ms=0) for step in each.steps))
        for each in results
    ]


def process(*arguments: str | Path, program: str = "") -> subprocess.CompletedProcess[str]:
    """`run.py` as a process of its own; or a program that changes something before it does the same."""
    script = ROOT / "examples" / "environments" / "run.py"
    start = ["-c", f"{program}\n{_MAIN}"] if program else [str(script)]
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


_MAIN = """
import asyncio, sys
from examples.environments import run
print(run.summary(asyncio.run(run.all_episodes(run.options_from(sys.argv[1:])))))
"""

_DIES_IN_AN_ACTION = """
import os, signal
from examples.environments.{module} import {world} as World

real, steps = World.step, []

def step(self, command):
    seen = real(self, command)
    steps.append(command)
    if len(steps) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return seen

World.step = step
"""


async def _log(data_dir: Path, key: str) -> RunLog:
    async with JsonlRunStore(data_dir / "runs") as store:
        return await store.read_log(RunKey(key))


def log_in(data_dir: Path, key: str) -> RunLog:
    return asyncio.run(_log(data_dir, key))


@needs_gymnasium
def test_some_episodes_succeed_and_some_exhaust_a_budget_and_the_summary_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = played_in(tmp_path, "lake", 12)
    ends = [each.stop_reason for each in results]
    counted = {reason: ends.count(reason) for reason in ends}
    assert counted.keys() == {StopReason.TASK_COMPLETED, StopReason.ACTION_BUDGET}
    assert all(each.steps[-1].observation.endswith("This is the goal.") for each in results if is_done(each))
    rows = [line.split()[:2] for line in run.summary(results).splitlines()[1:]]
    assert {row[0]: int(row[1]) for row in rows} == counted
    progress = capsys.readouterr().err.splitlines()[-1]
    assert progress.startswith("12/12 runs")
    # The same command again: stored results, and nothing is done.
    assert played_in(tmp_path, "lake", 12) == results
    assert "12/12 runs, 0 open, 0 steps" in capsys.readouterr().err.splitlines()[-1]


def is_done(result: RunResult) -> bool:
    return result.stop_reason is StopReason.TASK_COMPLETED


@needs_gymnasium
def test_a_lake_that_was_killed_between_steps_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    killed = process("lake", "--episodes", "3", "--kill-after", "20", "--data-dir", tmp_path / "killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    open_runs = [seed for seed in range(3) if log_in(tmp_path / "killed", f"lake/{seed}").finished is None]
    assert open_runs
    resumed = played_in(tmp_path / "killed", "lake", 3)
    assert without_times(resumed) == without_times(played_in(tmp_path / "whole", "lake", 3))


@needs_gymnasium
def test_a_lake_that_was_killed_within_a_move_makes_it_again_in_a_world_that_never_saw_it(tmp_path: Path) -> None:
    program = _DIES_IN_AN_ACTION.format(module="lake", world="LakeWorld", number=9)
    arguments = ("lake", "--episodes", "1", "--first-seed", "1", "--data-dir", tmp_path / "killed")
    assert process(*arguments, program=program).returncode == -signal.SIGKILL
    log = log_in(tmp_path / "killed", "lake/1")
    assert len(log.intents) == len(log.results) + 1
    (resumed,) = played_in(tmp_path / "killed", "lake", 1, first_seed=1)
    assert log_in(tmp_path / "killed", "lake/1").intents[len(log.intents)].attempt == 2
    assert without_times([resumed]) == without_times(played_in(tmp_path / "whole", "lake", 1, first_seed=1))


@needs_gymnasium
async def test_a_lake_rebuilt_after_any_number_of_moves_is_the_same_lake() -> None:
    """The ice is slippery: the slides must come out the same too."""
    from examples.environments import lake

    ice = lake.Lake(size=4, ice_share=0.7, slippery=True, seed=3)
    moves = [("south", "east", "east", "north", "west")[number * number % 5] for number in range(40)]
    world = lake.LakeWorld(ice)
    opening, seen = world.begin(), [world.step(move) for move in moves]
    world.close()
    assert any("The ice broke" in each.text for each in seen)
    assert len({each.text for each in seen}) > 5
    for cut in range(0, len(moves) + 1, 5):
        actions = [
            PastAction(f"{number:06d}-action", plan_of(move), executed(answer.text, completed=answer.completed))
            for number, (move, answer) in enumerate(zip(moves[:cut], seen[:cut], strict=True))
        ]
        async with played(lake.LakeWorld(ice), pool=None, past=actions, command=lake.direction) as episode:
            assert episode.opening == opening
            rest = [await episode.act(f"{number:06d}-action", moves[number]) for number in range(cut, len(moves))]
        assert rest == seen[cut:]


def plan_of(move: str) -> PlannedAction:
    return PlannedAction(action_text="", tool_name="move", arguments={"direction": move}, history_text="")


@needs_gymnasium
async def test_another_lake_is_another_run() -> None:
    from examples.environments import lake

    store = EphemeralRunStore()
    definition = lake.definition(store, RecordingSink())
    async with lake.request(RunKey("k"), 2, ()) as request:
        await definition.run(request)
    async with lake.request(RunKey("k"), 4, executed_actions(await store.read_log(RunKey("k")))) as request:
        with pytest.raises(RunIdentityMismatch) as raised:
            await definition.resume(request)
    assert any("seed" in str(each) for each in raised.value.differences)


# --- adventures


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where games are kept: they take seconds to make."""
    return tmp_path_factory.mktemp("games")


@needs_textworld
def test_an_adventure_that_was_killed_goes_on_unless_it_was_within_a_command(tmp_path: Path, games: Path) -> None:
    directories = [tmp_path / name for name in ("whole", "between", "within")]
    for directory in directories:
        directory.mkdir()
        (directory / "games").symlink_to(games)
    (whole,) = without_times(played_in(directories[0], "adventure", 1))

    between = process("adventure", "--episodes", "1", "--kill-after", "3", "--data-dir", directories[1])
    assert between.returncode == -signal.SIGKILL, between.stderr
    assert len(log_in(directories[1], "adventure/0").steps) == 3
    assert without_times(played_in(directories[1], "adventure", 1)) == [whole]

    program = _DIES_IN_AN_ACTION.format(module="adventure", world="AdventureWorld", number=3)
    within = process("adventure", "--episodes", "1", "--data-dir", directories[2], program=program)
    assert within.returncode == -signal.SIGKILL, within.stderr
    (unknown,) = without_times(played_in(directories[2], "adventure", 1))
    assert unknown.stop_reason is StopReason.RESUME_STATE_UNKNOWN
    assert unknown.steps == whole.steps[:2]


@needs_textworld
def test_the_same_seed_makes_the_same_game_and_another_one_another(tmp_path: Path) -> None:
    from examples.environments.adventure import Adventure, AdventureWorld

    game = Adventure(rooms=1, objects=2, quest_length=1, seed=1)
    again = AdventureWorld(game.made_in(tmp_path / "again"))
    digest = AdventureWorld(game.made_in(tmp_path / "once")).digest
    assert again.digest == digest
    assert AdventureWorld(dataclasses.replace(game, seed=2).made_in(tmp_path / "once")).digest != digest
    assert not list((tmp_path / "once").glob("unfinished-*"))


@needs_textworld
def test_a_game_that_is_lost_starts_over_and_is_not_completed(tmp_path: Path) -> None:
    import textworld
    from textworld.generator.game import Event, Quest

    from examples.environments.adventure import AdventureWorld

    maker = textworld.GameMaker()
    kitchen = maker.new_room("kitchen")
    maker.set_player(kitchen)
    apple = maker.new(type="f", name="apple")
    maker.inventory.add(apple)
    put_down = Event(conditions=[maker.new_fact("at", apple, kitchen)])
    eaten = Event(conditions=[maker.new_fact("eaten", apple)])
    maker.quests = [Quest(win_events=[put_down], fail_events=[eaten])]
    maker.compile(str(tmp_path / "game.z8"))

    world = AdventureWorld(tmp_path / "game.z8")
    world.begin()
    lost, done = world.step("eat apple"), world.step("drop apple")
    world.close()
    assert "start over" in lost.text
    assert "eat apple" in lost.text.rpartition("You could: ")[2].split("; ")
    assert (lost.completed, done.completed) == (False, True)


@needs_textworld
@pytest.mark.parametrize(
    "command",
    [
        "",
        " ",
        "quit",
        "SAVE",
        "undo",
        "restart",
        "look. quit",
        "look, quit",
        "look then quit",
        "look\nquit",
        "öffne kiste",
        "look " * 30,
        "xyzzy",
    ],
)
async def test_what_goes_past_the_run_is_not_executed(command: str) -> None:
    from examples.environments.adventure import Adventure, AdventureExecutor

    world = Counter()
    async with played(world, pool=None, past=(), command=said) as episode:
        executor = AdventureExecutor(
            Adventure(rooms=1, objects=2, quest_length=1, seed=1),
            episode,
            verbs=("go", "look"),
            digest="d",
            max_observation_chars=100,
        )
        outcome = await executor.execute(an_action(command))
        assert outcome.status is ActionStatus.NOT_EXECUTED
        assert world.steps == []
        assert (await executor.execute(an_action("Look"))).status is ActionStatus.EXECUTED


def an_action(command: str) -> Action:
    return Action(action_text=command, tool_name=None, arguments={}, key=RunKey("k"), step_idx=0, result_id="r")
