"""Two processes race on the same runs at the same time: whoever wins, no effect happens twice that must not."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import EffectIntended, Record, RunFinished, RunKey, RunLog, RunResult, StopReason
from tests.crash.conftest import ROOT
from tests.crash.racing import SIDES, key_of, scenario_of, store_of
from tests.crash.stores import DURABLE
from tests.family import assemble, check_resumed, must_not_go_on, story, timeless
from tests.proof.plugin import Checked

CHECK: Final = "two processes race on one run"
PATIENCE_S: Final = 600


class Races:
    """Many races on one store, and what came of them."""

    def __init__(self, store: str, directory: Path, seed: int, count: int) -> None:
        self._store = store
        self._directory = directory
        self._seed = seed
        self._count = count
        (directory / "store").mkdir()
        (directory / "meet").write_bytes(bytes(8 * SIDES))
        (directory / "ledger").touch()

    def run(self) -> None:
        """Let them race."""
        given = [self._store, str(self._directory), str(self._seed), str(self._count)]
        program = [sys.executable, "-m", "tests.crash.racing", *given]
        sides = [subprocess.Popen([*program, str(side)], cwd=ROOT) for side in range(SIDES)]
        try:
            ended = [side.wait(PATIENCE_S) for side in sides]
        finally:
            for side in sides:
                side.kill()
        assert ended == [0] * SIDES, f"seed {self._seed}"

    def check(self) -> collections.Counter[str]:
        """No race broke a promise. How many were refused, and how many stopped for an effect in doubt."""
        done, refused = self._ledger()
        found = asyncio.run(self._logs_and_ends())
        seen = collections.Counter(refusals=len(refused))
        for number in range(self._count):
            try:
                seen.update(self._judge(number, *found[number], done[number]))
            except AssertionError as error:
                raise AssertionError(f"{self._store}, seed {self._seed}, race {number}: {error}") from error
        return seen

    def _ledger(self) -> tuple[collections.defaultdict[int, collections.Counter[str]], set[int]]:
        done: collections.defaultdict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        refused = set()
        for line in (self._directory / "ledger").read_text().splitlines():
            what, number, _, *result_id = line.split(" ")
            if what == "effect":
                done[int(number)][result_id[0]] += 1
            else:
                refused.add(int(number))
        return done, refused

    async def _logs_and_ends(self) -> list[tuple[tuple[Record, ...], RunResult]]:
        """Each log as the race has left it, and to what a third process brings it."""
        name = self._store.removeprefix("unfenced ")
        found = []
        async with store_of(name, self._directory) as store:
            for number in range(self._count):
                records = (await store.read_log(key_of(number))).records()
                assembled = assemble(scenario_of(self._seed, number), store, key=key_of(number))
                found.append((records, await assembled.definition.resume(assembled.request)))
        return found

    def _judge(
        self, number: int, records: tuple[Record, ...], result: RunResult, done: collections.Counter[str]
    ) -> dict[str, int]:
        scenario = scenario_of(self._seed, number)
        ends = [each for each in records if isinstance(each, RunFinished) and each.stop_reason != StopReason.CANCELLED]
        assert len(ends) <= 1, "it has ended twice"
        assert not ends or records[-1] is ends[0], "something stands behind the end"
        intents = [each for each in records if isinstance(each, EffectIntended)]
        announced = collections.Counter(each.result_id for each in intents)
        assert set(done) <= set(announced), "an effect happened that nobody announced"
        for intent in intents:
            most = 1 if scenario.replay_of(intent) == "never" else announced[intent.result_id]
            assert done[intent.result_id] <= most, f"{intent.result_id} happened {done[intent.result_id]} times"
        in_doubt = must_not_go_on(scenario, records) is not None
        whole, told = _uninterrupted(scenario.name, self._seed, number)
        check_resumed(scenario, RunLog.from_records(records), result, dataclasses.replace(whole, key=result.key))
        if ends and not in_doubt:
            assert story(records) == told
            assert timeless(result) == timeless(dataclasses.replace(whole, key=result.key))
        return {"in_doubt": int(in_doubt), "unended": int(not ends)}


def _uninterrupted(name: str, seed: int, number: int) -> tuple[RunResult, tuple[Record, ...]]:
    if name not in _known:
        _known[name] = asyncio.run(_alone(seed, number))
    return _known[name]


_known: Final[dict[str, tuple[RunResult, tuple[Record, ...]]]] = {}


async def _alone(seed: int, number: int) -> tuple[RunResult, tuple[Record, ...]]:
    store, key = EphemeralRunStore(), RunKey("alone")
    assembled = assemble(scenario_of(seed, number), store, key=key)
    result = await assembled.definition.run(assembled.request)
    return result, story((await store.read_log(key)).records())


def race(store: str, directory: Path, seed: int, count: int, checked: Checked) -> None:
    races = Races(store, directory, seed, count)
    races.run()
    seen = races.check()
    assert seen["refusals"] > count / 4, f"they hardly met: {seen}"
    counts = {"races": count, "with a refusal": seen["refusals"], "stopped in doubt": seen["in_doubt"]}
    checked(CHECK, store, seed=seed, **counts)


@pytest.mark.parametrize("store", DURABLE)
def test_no_effect_that_must_not_happens_twice_and_the_log_tells_one_story(
    store: str, directory: Path, checked: Checked
) -> None:
    race(store, directory, 1, 20, checked)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("store", DURABLE)
def test_nor_in_a_thousand_races(store: str, seed: int, directory: Path, checked: Checked) -> None:
    race(store, directory, seed, 250, checked)


@pytest.mark.parametrize("store", ["unfenced jsonl"])
def test_a_store_that_does_not_fence_is_found(store: str, directory: Path) -> None:
    races = Races(store, directory, 1, 20)
    races.run()
    with pytest.raises(AssertionError, match=r"race \d+: .*(happened|nobody announced)"):
        races.check()
