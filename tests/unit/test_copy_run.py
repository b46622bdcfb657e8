"""`copy_run`: a log moves between any two stores as it is, or not at all, or as an honest beginning."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from polyloop.ports import RunStore
from polyloop.stores import copy_run
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import (
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    InvalidRequest,
    Record,
    ReplayPolicy,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunNotFound,
    RunStarted,
    StepCompleted,
    StopReason,
)
from tests.builders import definition, request
from tests.contract.records import (
    LINE_TEXTS,
    NUL_TEXTS,
    NUMBERS,
    OTHER_TEXTS,
    PAIR_TEXTS,
    SURROGATE_TEXTS,
    a_run,
    a_run_holding,
    difference,
    ended,
    model_intent,
    started,
)
from tests.seams import append
from tests.unit.jsonl_disk import path_of
from tests.unit.listing_stores import SHIPPED, Shipped, Store, listed, write

KEY: Final = RunKey("k")
PAIRS: Final = [(source, target) for source in SHIPPED for target in SHIPPED]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0].name}-to-{pair[1].name}")
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Shipped, Shipped]:
    """Every shipped store with every other, and with another one of its kind."""
    folders = (tmp_path / "source", tmp_path / "target")
    for folder in folders:
        folder.mkdir()
    return Shipped(request.param[0], folders[0]), Shipped(request.param[1], folders[1])


@pytest.fixture(params=SHIPPED, ids=lambda each: each.name)
def implementation(request: pytest.FixtureRequest) -> Any:
    """Each store, as what a copy is interrupted in."""
    return request.param


@contextlib.asynccontextmanager
async def both(pair: tuple[Shipped, Shipped]) -> AsyncIterator[tuple[Store, Store]]:
    async with pair[0].open() as source, pair[1].open() as target:
        yield source, target


async def records_of(store: RunStore, key: RunKey = KEY) -> list[Record]:
    return list((await store.read_log(key)).records())


STORIES: Final[dict[str, list[Record]]] = {
    "a start alone": [started()],
    "every kind": a_run(2, end=StopReason.TASK_COMPLETED),
    "open in the middle of a step": a_run(2)[:9],
    "cancelled": a_run(1, end=StopReason.CANCELLED),
    "cancelled twice and resumed": [
        *a_run(1, end=StopReason.CANCELLED),
        model_intent(7, 1),
        ended(8, StopReason.CANCELLED, failures=3),
        model_intent(9, 1, attempt=2),
    ],
    "cancelled and ended": [*a_run(1, end=StopReason.CANCELLED), ended(7, StopReason.STEP_BUDGET)],
    "numbers": [started({"numbers": list(NUMBERS)})],
}


@pytest.mark.parametrize("name", STORIES)
async def test_a_copy_is_equal(pair: tuple[Shipped, Shipped], name: str) -> None:
    records = STORIES[name]
    async with both(pair) as (source, target):
        await write(source, KEY, records)
        await write(target, "another", a_run(1))
        before = await listed(source)
        assert await copy_run(source, target, KEY) == len(records)
        async with pair[1].reopened(target) as other:
            assert difference(records, await records_of(other), "the copy") is None
            assert [each for each in await listed(other) if each.key == KEY] == before
            assert await records_of(other, RunKey("another")) == a_run(1)
        assert difference(records, await records_of(source), "the original") is None
        assert await listed(source) == before


async def test_text_that_is_hard_to_keep_is_copied_as_it_is(pair: tuple[Shipped, Shipped]) -> None:
    texts = (*NUL_TEXTS, *SURROGATE_TEXTS, *PAIR_TEXTS, *LINE_TEXTS, *OTHER_TEXTS)
    async with both(pair) as (source, target):
        for number, text in enumerate(texts):
            key, records = RunKey(f"run {number} %_\U0001f600"), a_run_holding(text)
            await write(source, key, records)
            await copy_run(source, target, key)
            assert difference(records, await records_of(target, key), "the copy") is None, ascii(text)


async def test_a_copy_goes_on_where_the_run_was(pair: tuple[Shipped, Shipped]) -> None:
    async with both(pair) as (source, target):
        await write(source, KEY, a_run(1))
        await copy_run(source, target, KEY)
        await append(target, KEY, ended(6))
        assert [each.steps for each in await listed(target)] == [1]
        # The original knows nothing of it.
        assert (await source.read_log(KEY)).finished is None


# ---------------------------------------------------------------- refused


async def test_a_run_that_the_source_does_not_hold_is_refused(pair: tuple[Shipped, Shipped]) -> None:
    async with both(pair) as (source, target):
        await write(source, "another", a_run(1))
        with pytest.raises(InvalidRequest) as refused:
            await copy_run(source, target, KEY)
        assert refused.value.field == "copy_run.key"
        assert await listed(target) == []


@pytest.mark.parametrize("key", ["", "\0", "\ud800", "x" * 1025, 7])
async def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidRequest):
        await copy_run(EphemeralRunStore(), EphemeralRunStore(), key)


@pytest.mark.parametrize("existing", [1, 6, 7])
async def test_a_target_that_knows_the_key_is_left_as_it_is(pair: tuple[Shipped, Shipped], existing: int) -> None:
    there = a_run(1, end=StopReason.STEP_BUDGET)[:existing]
    async with both(pair) as (source, target):
        await write(source, KEY, a_run(3))
        await write(target, KEY, there)
        with pytest.raises(RunAlreadyExists) as refused:
            await copy_run(source, target, KEY)
        assert refused.value.key == KEY
        assert await records_of(target) == there


async def test_a_store_cannot_be_copied_onto_itself(pair: tuple[Shipped, Shipped]) -> None:
    async with both(pair) as (source, _):
        await write(source, KEY, a_run(1))
        with pytest.raises(RunAlreadyExists):
            await copy_run(source, source, KEY)
        assert await records_of(source) == a_run(1)


async def test_a_damaged_source_is_refused_and_nothing_is_written(implementation: Any, tmp_path: Path) -> None:
    folders = (tmp_path / "source", tmp_path / "target")
    for folder in folders:
        folder.mkdir()
    async with JsonlRunStore(folders[0]) as source, Shipped(implementation, folders[1]).open() as target:
        await write(source, KEY, a_run(2, end=StopReason.STEP_BUDGET))
        path = path_of(folders[0], KEY)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptRunLog):
            await copy_run(source, target, KEY)
        assert await listed(target) == []
        assert (await target.read_log(KEY)).next_seq == 0
        assert path.read_bytes() == data


# ---------------------------------------------------------------- interrupted


class Interrupted:
    """A store in which something happens instead of, or behind, one append."""

    def __init__(self, store: RunStore, number: int, happen: Callable[[], Awaitable[None]], *, behind: bool) -> None:
        self.store = store
        self._left = number
        self._happen = happen
        self._behind = behind

    async def _append(self, key: RunKey, record: Record) -> None:
        self._left -= 1
        if self._left >= 0 or (self._left == -1 and self._behind):
            await append(self.store, key, record)
        if self._left == -1:
            await self._happen()

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await self._append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        await self._append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._append(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._append(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        await self._append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        return await self.store.read_log(key)


async def full() -> None:
    """A target that takes no more."""
    raise OSError(28, "no space left")


def resumable(store: RunStore, replay: ReplayPolicy) -> tuple[Any, Any]:
    """A definition on this store, and the request of the one run that these tests copy."""
    return definition(["act: a", "nonsense", "final: 42"], store=store), dataclasses.replace(
        request(KEY), model_call_replay=replay
    )


async def a_real_run(replay: ReplayPolicy) -> EphemeralRunStore:
    """A run that a definition has driven to its end: ten records and more, of every kind."""
    store = EphemeralRunStore()
    defined, asked = resumable(store, replay)
    assert (await defined.run(asked)).final_answer == "42"
    return store


async def outcome(store: RunStore, replay: ReplayPolicy) -> tuple[StopReason, str | None, int]:
    """What comes of resuming the run in this store."""
    defined, asked = resumable(store, replay)
    result = await defined.resume(asked)
    return result.stop_reason, result.final_answer, len(result.steps)


@pytest.mark.parametrize("replay", list(ReplayPolicy))
@pytest.mark.parametrize("way", ["full", "cancelled", "cancelled behind"])
async def test_an_interrupted_copy_is_a_beginning_that_can_be_resumed(
    tmp_path: Path, replay: ReplayPolicy, way: str, implementation: Any
) -> None:
    source = await a_real_run(replay)
    records = await records_of(source)
    assert {type(record) for record in records} >= {RunStarted, EffectIntended, EffectCompleted, StepCompleted}
    endings = set()
    for number in range(len(records)):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with Shipped(implementation, folder).open() as target:
            await _interrupt(source, target, number, way)
            copied = number + (way == "cancelled behind")
            assert difference(records[:copied], await records_of(target), "the copy") is None
            if not copied:
                with pytest.raises(RunNotFound):
                    await outcome(target, replay)
                continue
            # A driver that was stopped at the same record would have gone on in the same way.
            same = EphemeralRunStore()
            await write(same, KEY, records[:copied])
            found = await outcome(target, replay)
            assert found == await outcome(same, replay)
            endings.add(found[0])
    # An action whose intent was the last record is not done again, whatever holds for model calls.
    assert endings == {StopReason.AGENT_FINISHED, StopReason.RESUME_STATE_UNKNOWN}


async def _interrupt(source: RunStore, target: RunStore, number: int, way: str) -> None:
    if way == "full":
        with pytest.raises(OSError, match="no space left"):
            await copy_run(source, Interrupted(target, number, full, behind=False), KEY)
        return
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(
        copy_run(source, Interrupted(target, number, hang, behind=way == "cancelled behind"), KEY)
    )
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interrupted_copy_is_not_copied_over_but_can_be_deleted_and_begun_again(
    pair: tuple[Shipped, Shipped],
) -> None:
    records = a_run(1, end=StopReason.CANCELLED)
    async with both(pair) as (source, target):
        await write(source, KEY, records)
        # Refused by the store itself, as by a disk that is full: the target's object no longer drives it.
        with pytest.raises(RunConflict):
            await copy_run(source, Interrupted(target, 4, lambda: append(target, KEY, ended(9)), behind=False), KEY)
        with pytest.raises(RunAlreadyExists):
            await copy_run(source, target, KEY)
        assert await records_of(target) == records[:4]
        assert await target.delete(KEY) is True
        assert await copy_run(source, target, KEY) == len(records)
        assert await records_of(target) == records


async def test_a_copy_that_somebody_else_goes_on_with_is_a_conflict(pair: tuple[Shipped, Shipped]) -> None:
    records = a_run(1)
    async with both(pair) as (source, target):
        await write(source, KEY, records)

        async def goes_on() -> None:
            await append(target, KEY, model_intent(len(records), 1))

        with pytest.raises(RunConflict):
            await copy_run(source, Interrupted(target, len(records) - 1, goes_on, behind=True), KEY)
