"""A real process is killed between the system calls of the file store, and in the middle of its writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import Server
from tests.crash.test_kill_points import World
from tests.family import FAMILY, Scenario

NAMES = ("calls tools in every way", "spends its actions", "has no model")
SOME = [scenario for scenario in FAMILY if scenario.name in NAMES]
"""Of `has no model` one record is so long that its torn half is longer than all that comes in its place."""


@pytest.fixture
def world(server: Server, scenario: Scenario, directory: Path) -> World:
    return World(server, "jsonl", scenario, directory)


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("scenario", SOME, ids=str)
def test_killed_around_any_system_call_a_run_is_resumed_to_the_uninterrupted_result(world: World, when: str) -> None:
    place = 0
    while world.kill_inside(f"at-{place}", "run", place, when):
        place += 1
    assert place > len(world.records)
    world.recover([f"at-{place}" for place in range(place)])


@pytest.mark.parametrize("scenario", [each for each in SOME if each.name == NAMES[0]], ids=str)
def test_killed_while_it_removes_a_torn_tail_a_run_is_resumed_to_the_uninterrupted_result(world: World) -> None:
    place, keys = 0, []
    while True:
        # A torn tail in the middle of the run, and a kill around the calls that take the log over.
        keys.append(f"at-{place}")
        assert world.kill_inside(keys[-1], "run", 12, "half")
        if not world.kill_inside(keys[-1], "resume", place, "half"):
            break
        place += 1
    assert place > 5
    world.recover(keys[:-1])
