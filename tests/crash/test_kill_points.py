"""A real process is killed before and after every store call, model call and action; another one resumes.

The killed run must have left a prefix of the uninterrupted run's log with everything that was acknowledged, the resumed
one must come to the uninterrupted result, and a ledger outside the store, synced at every effect, must show that
nothing happened twice that was not declared safe.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from polyloop.types import EffectCompleted, EffectIntended, Record, RunFinished, RunLog, StopReason
from tests.crash.conftest import Server
from tests.crash.server import Job, Recovered, Report, ledger_of
from tests.crash.stores import DURABLE
from tests.family import FAMILY, Scenario, check_resumed, must_not_go_on, story, timeless_records
from tests.proof.plugin import Checked

pytestmark = pytest.mark.parametrize("scenario", FAMILY, ids=str)

BARRIERS = ("leave append_run_start", "leave append_intent", "leave finish")
LONG = 40
APPENDS = ("leave append_", "leave finish")
REMOTE = {"postgres"}
"""The stores whose processes spend most of their time on reaching a server."""


class World:
    """One scenario on one store: many runs, each in processes of its own."""

    def __init__(self, server: Server, store: str, scenario: Scenario, directory: Path) -> None:
        self._server = server
        self._job = Job(
            store=store, directory=str(directory), scenario=FAMILY.index(scenario), method="run", keys=("whole",)
        )
        self.scenario = scenario
        self.remote = store in REMOTE
        self.kills = 0
        self.points = self.perform("whole", "run").points
        (whole,) = self._recover(["whole"])
        self.records = whole.records
        self._result = whole.result
        assert self._result.stop_reason is scenario.stop_reason

    def perform(self, key: str, method: str, *, kill_at: int | None = None, cancel_at: int | None = None) -> Report:
        """Run or resume in a process that is killed, if a place is given."""
        job = dataclasses.replace(self._job, method=method, keys=(key,), kill_at=kill_at, cancel_at=cancel_at)
        report = self._server.perform(job)
        assert report.killed is (kill_at is not None), f"{method} {kill_at=}: {report}"
        self.kills += report.killed
        return report

    def kill_inside(self, key: str, method: str, place: int, when: str) -> bool:
        """Run or resume in a process that is killed around a system call of the file store; False if it makes fewer."""
        job = dataclasses.replace(self._job, method=method, keys=(key,), kill_inside=(place, when))
        return self._server.perform(job).killed

    def _recover(self, keys: Sequence[str]) -> tuple[Recovered, ...]:
        job = dataclasses.replace(self._job, method="recover", keys=tuple(keys))
        return self._server.perform(job).recovered

    def recover(self, keys: Sequence[str]) -> Mapping[str, Recovered]:
        """Bring all these runs to their ends in one fresh process, and check what they come to."""
        recovered = dict(zip(keys, self._recover(keys), strict=True))
        happened = self._happened()
        for key, each in recovered.items():
            self._check(each, happened[key])
        return recovered

    def _happened(self) -> Mapping[str, collections.Counter[str]]:
        """What the ledger holds of each run."""
        ledger = ledger_of(self._job.directory)
        found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            key, result_id = line.split(" ")
            found[key][result_id] += 1
        return found

    def _check(self, found: Recovered, happened: collections.Counter[str]) -> None:
        whole = dataclasses.replace(self._result, key=found.result.key)
        check_resumed(self.scenario, RunLog.from_records(found.left), found.result, whole)
        assert found.stored == found.result
        assert found.records[: len(found.left)] == found.left
        if must_not_go_on(self.scenario, found.left) is None:
            assert story(found.records) == story(self.records)
        self._check_ledger(happened, found.records)

    def _check_ledger(self, done: collections.Counter[str], records: Iterable[Record]) -> None:
        """What is `NEVER` happened at most once; what is `SAFE` at most as often as it was announced."""
        intents = [each for each in records if isinstance(each, EffectIntended)]
        announced = collections.Counter(each.result_id for each in intents)
        for intent in intents:
            most = 1 if self.scenario.replay_of(intent) == "never" else announced[intent.result_id]
            assert done[intent.result_id] <= most, f"{intent.result_id} happened {done[intent.result_id]} times"
        assert set(done) <= set(announced), "an effect that no intent announces"
        assert {each.result_id for each in records if isinstance(each, EffectCompleted)} <= set(done)

    def check_survivors(self, left: Sequence[Record], points: Sequence[str]) -> None:
        """A prefix of the uninterrupted log, holding everything that a barrier acknowledged."""
        assert timeless_records(left) == timeless_records(self.records[: len(left)])
        barriers = [at for at, point in enumerate(points) if point.startswith(BARRIERS)]
        acknowledged = points[: barriers[-1] + 1] if barriers else []
        assert len(left) >= sum(point.startswith(APPENDS) for point in acknowledged)


@pytest.fixture(params=DURABLE)
def store(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def world(server: Server, store: str, scenario: Scenario, directory: Path, checked: Checked) -> Iterator[World]:
    made = World(server, store, scenario, directory)
    yield made
    checked("processes killed at every seam", store, kills=made.kills)


def kill_once(world: World, at: Iterable[int]) -> None:
    """Kill a run at each of these places, and bring them all to their ends."""
    places = {f"at-{place}": place for place in at}
    for key, place in places.items():
        world.perform(key, "run", kill_at=place)
    for key, found in world.recover(list(places)).items():
        world.check_survivors(found.left, world.points[: places[key]])


def test_killed_anywhere_a_run_is_resumed_to_the_uninterrupted_result(world: World) -> None:
    """Of a store on a server it is every seventh place, another for each scenario; the slow test below is complete."""
    every = 7 if world.remote else 1
    kill_once(world, range(FAMILY.index(world.scenario) % every, len(world.points), every))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", sorted(REMOTE), indirect=True)
def test_killed_anywhere_on_a_server_too_a_run_is_resumed_to_the_uninterrupted_result(world: World) -> None:
    kill_once(world, range(len(world.points)))


def kill_twice(world: World, first: Iterable[int], choose: random.Random | None) -> None:
    """Kill runs at these places, and then each one's recovery: at every place, or at one that is chosen.

    Of a long recovery it is every third place, and another third for each place of the first kill.
    """
    trials = {place: f"trial-{place}" for place in first}
    for place, key in trials.items():
        world.perform(key, "run", kill_at=place)
    recovered = world.recover(list(trials.values()))
    keys = []
    for place, trial in trials.items():
        points, method = recovered[trial].points, "resume" if recovered[trial].left else "run"
        every = range(len(points)) if len(points) <= LONG else range(place % 3, len(points), 3)
        chosen = every if choose is None else choose.sample(range(len(points)), k=min(1, len(points)))
        for again in chosen:
            keys.append(f"at-{place}-{again}")
            world.perform(keys[-1], "run", kill_at=place)
            world.perform(keys[-1], method, kill_at=again)
    world.recover(keys)


def test_killed_again_while_it_recovers_a_run_still_comes_to_the_uninterrupted_result(world: World) -> None:
    """A sample, the same every time; the slow test below is complete."""
    choose = random.Random(f"twice: {world.scenario.name}")
    places = range(len(world.points))
    kill_twice(world, choose.sample(places, k=min(1 if world.remote else 3, len(places))), choose)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_anywhere_and_again_anywhere_a_run_still_comes_to_the_uninterrupted_result(world: World) -> None:
    if world.remote:
        # All places twice over would take hours.
        choose = random.Random(f"thrice: {world.scenario.name}")
        kill_twice(world, range(0, len(world.points), 5), choose)
        return
    kill_twice(world, range(len(world.points)), None)


def kill_cancelled(world: World, cancel_at: int) -> None:
    """Cancel runs at a place, and kill them at each point that they still reach."""
    name = f"cancelled-{cancel_at}"
    report = world.perform(name, "run", cancel_at=cancel_at)
    assert report.cancelled
    keys = [name]
    for place in range(cancel_at + 1, len(report.points)):
        keys.append(f"{name}-{place}")
        world.perform(keys[-1], "run", cancel_at=cancel_at, kill_at=place)
    left = world.recover(keys)[name].left
    # Cancelled before anything was written, or too late; otherwise the log says so.
    terminal = f"finish {world.scenario.stop_reason}"
    if left and not any(point.endswith(terminal) for point in report.points):
        assert isinstance(left[-1], RunFinished)
        assert left[-1].stop_reason is StopReason.CANCELLED


def test_cancelled_and_then_killed_a_run_is_resumed_to_the_uninterrupted_result(world: World) -> None:
    """A sample, the same every time; the slow test below is complete."""
    choose = random.Random(f"cancelled: {world.scenario.name}")
    places = range(len(world.points))
    for cancel_at in choose.sample(places, k=min(1 if world.remote else 3, len(places))):
        kill_cancelled(world, cancel_at)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cancelled_anywhere_and_then_killed_a_run_is_resumed_to_the_uninterrupted_result(world: World) -> None:
    for cancel_at in range(0, len(world.points), 7 if world.remote else 1):
        kill_cancelled(world, cancel_at)
