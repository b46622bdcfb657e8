"""One run, driven by two processes at once: both may be well, and still no effect happens that must not."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from polyloop.types import EffectIntended, RunFinished
from tests.crash.conftest import Server
from tests.crash.server import Job, Recovered, Report, ledger_of
from tests.crash.stores import DURABLE
from tests.family import FAMILY, Scenario

_T = TypeVar("_T")

NAMED = {scenario.name: scenario for scenario in FAMILY}


def happened(directory: Path) -> list[str]:
    ledger = ledger_of(str(directory))
    return [line.split(" ")[1] for line in ledger.read_text().splitlines()] if ledger.exists() else []


def job(store: str, scenario: Scenario, directory: Path) -> Job:
    return Job(store=store, directory=str(directory), scenario=FAMILY.index(scenario), method="run", keys=("k",))


def taken_over(server: Server, run: Job, held: str, take_over: Callable[[], _T]) -> tuple[Report, _T]:
    """What becomes of a run whose effect is held up while others take it over, and what those come to."""
    directory = Path(run.directory)
    go_on = directory / "go on"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        alive = pool.submit(server.ask, dataclasses.replace(run, hold=(held, str(go_on))))
        try:
            deadline = time.monotonic() + 60
            while held not in happened(directory):
                assert not alive.done(), alive.result()
                assert time.monotonic() < deadline
                time.sleep(0.001)
            taken = take_over()
        finally:
            go_on.touch()
        return alive.result(), taken


def recovered(server: Server, run: Job) -> Recovered:
    """Bring the run to its end in a process of its own."""
    (found,) = server.perform(dataclasses.replace(run, method="recover")).recovered
    return found


@pytest.mark.parametrize("store", DURABLE)
@pytest.mark.parametrize("held", ["000000-model_call", "000000-action", "000001-action"])
def test_a_run_taken_over_inside_an_effect_that_must_not_be_repeated_ends_there_for_both(
    server: Server, other_server: Server, store: str, directory: Path, held: str
) -> None:
    run = job(store, NAMED["completes the task"], directory)
    first, second = taken_over(server, run, held, lambda: recovered(other_server, run))
    assert second.result.stop_reason == "resume_state_unknown"
    assert f"step {int(held[:6])}" in (second.result.detail or "")
    assert first.error is not None
    assert "RunConflict" in first.error, "the first driver meets the moved log"
    done = happened(directory)
    assert sorted(done) == sorted(set(done)), "nothing happened twice"
    assert done[-1] == held, "nothing happened behind it"
    assert isinstance(second.records[-1], RunFinished)


@pytest.mark.parametrize("store", DURABLE)
@pytest.mark.parametrize("held", ["000000-model_call", "000000-action", "000001-model_call", "000006-action"])
def test_a_run_taken_over_inside_a_safe_effect_goes_on_in_one_process_alone(
    server: Server, other_server: Server, store: str, directory: Path, held: str
) -> None:
    scenario = NAMED["calls tools in every way"]
    run = job(store, scenario, directory)
    first, second = taken_over(server, run, held, lambda: recovered(other_server, run))
    assert second.result.stop_reason is scenario.stop_reason
    assert first.error is not None
    assert "RunConflict" in first.error
    done = happened(directory)
    assert done.count(held) == 2
    assert all(done.count(each) == 1 for each in set(done) - {held})
    attempts = [each.attempt for each in second.records if isinstance(each, EffectIntended) and each.result_id == held]
    assert attempts == [1, 2]


@pytest.mark.parametrize("store", DURABLE)
@pytest.mark.parametrize("kill_at", range(1, 8))
def test_a_driver_that_is_behind_one_that_died_on_its_way_stops_too_and_a_third_goes_on(
    server: Server, other_server: Server, store: str, directory: Path, kill_at: int
) -> None:
    """The run has not ended: it is the position alone that refuses the first driver's result."""
    scenario, held = NAMED["calls tools in every way"], "000000-action"
    run = job(store, scenario, directory)
    dying = dataclasses.replace(run, method="resume", kill_at=kill_at)
    first, second = taken_over(server, run, held, lambda: other_server.ask(dying))
    assert second.killed
    assert first.error is not None
    assert "RunConflict" in first.error
    third = recovered(server, run)
    assert third.result.stop_reason is scenario.stop_reason
    done = happened(directory)
    announced = [each.result_id for each in third.records if isinstance(each, EffectIntended)]
    assert all(done.count(each) <= announced.count(each) for each in announced)
    assert all(done.count(each) == 1 for each in announced if each != held and "action" in each)
