"""A run is stopped dead before and after every call of a port or the store, on a store that barely keeps its promises.

`LaggingStore` holds ordered records back until the next barrier. At a crash any number of those that are held back may
have landed, in order: that is all that the port promises, so that is what a run must recover from.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunNotFound,
    RunStarted,
    StepCompleted,
)
from tests.family import (
    FAMILY,
    KEY,
    Assembled,
    Scenario,
    assemble,
    check_resumed,
    must_not_go_on,
    story,
    timeless,
    timeless_records,
)
from tests.recovery.test_every_prefix import Whole, run_whole, stored
from tests.seams import append


class Killed(BaseException):
    """The process is gone: nothing that the library does may catch this."""


class KillAt:
    """Stops a run at point number `place`, counted from 0."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.points: list[str] = []

    def __call__(self, point: str) -> None:
        self.points.append(point)
        if len(self.points) == self.place + 1:
            raise Killed(point)


class LaggingStore:
    """Ordered records wait here until a barrier takes them along."""

    def __init__(self) -> None:
        self.medium = EphemeralRunStore()
        self.waiting: list[Record] = []

    async def _barrier(self, key: RunKey, record: Record) -> None:
        waiting, self.waiting = self.waiting, []
        for each in (*waiting, record):
            await append(self.medium, key, each)

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._barrier(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._barrier(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        self.waiting.append(record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        self.waiting.append(record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._barrier(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        return RunLog.from_records((*(await self.medium.read_log(key)).records(), *self.waiting))

    async def survivors(self) -> Iterator[tuple[Record, ...]]:
        """Every log that a crash now may leave."""
        durable = (await self.medium.read_log(KEY)).records()
        return iter([(*durable, *self.waiting[:landed]) for landed in range(len(self.waiting) + 1)])


async def crash(scenario: Scenario, place: int) -> tuple[Assembled, LaggingStore] | None:
    """A run that is stopped at this place; None where it has ended before."""
    store = LaggingStore()
    assembled = assemble(scenario, store, tell=KillAt(place))
    try:
        await assembled.definition.run(assembled.request)
    except Killed:
        return assembled, store
    return None


async def recover(scenario: Scenario, whole: Whole, crashed: Assembled, records: tuple[Record, ...]) -> Assembled:
    """Resume what a crash has left, or begin where it has left nothing."""
    store = await stored(records)
    fresh = assemble(scenario, store)
    if not records:
        with pytest.raises(RunNotFound):
            await fresh.definition.resume(fresh.request)
        assert crashed.effects == [], "an effect before the start record"
        result = await fresh.definition.run(fresh.request)
        assert timeless(result) == timeless(whole.result)
    else:
        result = await fresh.definition.resume(fresh.request)
        check_resumed(scenario, RunLog.from_records(records), result, whole.result)
    if must_not_go_on(scenario, records) is None:
        assert story((await store.read_log(KEY)).records()) == story(whole.records)
    return fresh


def check_ledger(scenario: Scenario, whole: Whole, done: list[str]) -> None:
    """No effect that is not `SAFE` was begun twice."""
    for intent in (record for record in whole.records if isinstance(record, EffectIntended)):
        if scenario.replay_of(intent).value == "never":
            assert done.count(intent.result_id) <= 1


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_a_crash_anywhere_loses_nothing_and_repeats_nothing(scenario: Scenario) -> None:
    whole = await run_whole(scenario)
    place = 0
    while crashed := await crash(scenario, place):
        dead, store = crashed
        for records in await store.survivors():
            # What survives is a prefix of what the uninterrupted run wrote.
            assert timeless_records(records) == timeless_records(whole.records[: len(records)])
            fresh = await recover(scenario, whole, dead, records)
            check_ledger(scenario, whole, dead.effects + fresh.effects)
        place += 1
    assert place > len(whole.records) * 2


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_nothing_is_written_and_no_port_is_called_after_the_crash(scenario: Scenario) -> None:
    place = 0
    while True:
        kill = KillAt(place)
        assembled = assemble(scenario, EphemeralRunStore(), tell=kill)
        try:
            await assembled.definition.run(assembled.request)
        except Killed:
            assert len(kill.points) == place + 1
        else:
            break
        place += 1
