"""Every shipped store lists its runs, and deletes them, in the same way."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloop.stores import RunState, RunSummary
from polyloop.types import (
    InvalidRequest,
    Record,
    RunConflict,
    RunFinished,
    RunKey,
    StepCompleted,
    StopReason,
)
from tests.contract.cases import StoreFactory
from tests.contract.implementations import Implementation
from tests.contract.records import a_run, ended, model_intent, replied, started
from tests.unit.listing_stores import SHIPPED, Shipped, Store, keys_of, listed, write
from tests.unit.listing_stores import shipped as shipped  # noqa: PLC0414 - a fixture is found by its name here

KEY: Final = RunKey("run")
HOSTILE: Final = ("%", "%a", "_", "a", "A", "a_b", "aXb", "a%b", "*", "?", "[a]", "\\", "'", "ä", "a\u0308", "Ä", "ß")
WILD: Final = (
    *HOSTILE,
    "\u2028",
    "\n",
    " ",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U0001f600",
    "x" * 1024,
    "\U0001f600" * 1024,
)


def at(second: int) -> str:
    """A time, later for a larger number."""
    return f"2026-03-04T05:06:{second:02d}.000000+00:00"


def log(second: int = 0, steps: int = 0, end: StopReason | None = None) -> list[Record]:
    """The records of a run that was begun at that second, each a microsecond later than the one before."""
    records = a_run(steps, end=end)
    return [
        dataclasses.replace(record, recorded_at=f"2026-03-04T05:06:{second:02d}.{seq:06d}+00:00")
        for seq, record in enumerate(records)
    ]


def summary(key: str, second: int = 0) -> RunSummary:
    """The summary of a run that need not exist."""
    return RunSummary(
        key=RunKey(key),
        state=RunState.ENDED,
        started_at=at(second),
        last_record_at=at(second),
        steps=0,
        stop_reason=StopReason.TASK_COMPLETED,
    )


# ---------------------------------------------------------------- order


async def test_an_empty_store_lists_nothing(shipped: Shipped) -> None:
    async with shipped.open() as store:
        assert await listed(store) == []
        assert await listed(store, newest_first=True, limit=5) == []


async def test_runs_are_ordered_by_their_start_and_then_by_their_key(shipped: Shipped) -> None:
    async with shipped.open() as store:
        for key, second in (("c", 1), ("a", 2), ("b", 1), ("B", 1), ("z", 0), ("a2", 2)):
            await write(store, key, log(second))
        expected = ["z", "B", "b", "c", "a", "a2"]
        assert await keys_of(store) == expected
        assert await keys_of(store, newest_first=True) == expected[::-1]


async def test_equal_starts_are_ordered_by_code_points_and_never_by_a_language(shipped: Shipped) -> None:
    async with shipped.open() as store:
        for key in WILD:
            await write(store, key, log())
        assert await keys_of(store) == sorted(WILD)
        assert await keys_of(store, newest_first=True) == sorted(WILD, reverse=True)


# ---------------------------------------------------------------- what a summary says


async def test_a_summary_tells_start_last_record_steps_and_state(shipped: Shipped) -> None:
    records = log(7, 3, StopReason.AGENT_FINISHED)
    async with shipped.open() as store:
        await write(store, KEY, records)
        async with shipped.reopened(store) as other:
            assert await listed(other) == await listed(store)
        assert await listed(store) == [
            RunSummary(
                key=KEY,
                state=RunState.ENDED,
                started_at=records[0].recorded_at,
                last_record_at=records[-1].recorded_at,
                steps=3,
                stop_reason=StopReason.AGENT_FINISHED,
            )
        ]


@pytest.mark.parametrize("reason", list(StopReason))
async def test_every_stop_reason_has_its_state(shipped: Shipped, reason: StopReason) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(0, 1, reason))
        (found,) = await listed(store)
    assert found.stop_reason is reason
    assert found.state is (RunState.CANCELLED if reason is StopReason.CANCELLED else RunState.ENDED)


async def test_own_appends_are_seen_whatever_the_record(shipped: Shipped) -> None:
    records = log(0, 2)
    async with shipped.open() as store:
        for number, record in enumerate(records, start=1):
            await write(store, KEY, [record])
            (found,) = await listed(store)
            assert found.state is RunState.UNFINISHED
            assert found.stop_reason is None
            assert found.last_record_at == record.recorded_at
            assert found.steps == sum(isinstance(each, StepCompleted) for each in records[:number])


async def test_a_cancelled_run_that_goes_on_is_unfinished_again(shipped: Shipped) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(0, 1, StopReason.CANCELLED))
        assert [each.state for each in await listed(store)] == [RunState.CANCELLED]
        await write(store, KEY, [model_intent(7, 1)])
        (found,) = await listed(store)
        assert (found.state, found.stop_reason, found.steps) == (RunState.UNFINISHED, None, 1)
        await write(store, KEY, [replied(8, 1), ended(9, StopReason.CANCELLED)])
        (found,) = await listed(store)
        assert (found.state, found.stop_reason, found.steps) == (RunState.CANCELLED, StopReason.CANCELLED, 1)


async def test_a_refused_record_changes_no_summary(shipped: Shipped) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(0, 1))
        before = await listed(store)
        with pytest.raises(RunConflict):
            await write(store, KEY, [ended(4)])
        assert await listed(store) == before


# ---------------------------------------------------------------- which are listed


async def test_only_runs_in_the_state_that_is_asked_for(shipped: Shipped) -> None:
    ends = {"a": None, "b": StopReason.CANCELLED, "c": StopReason.STEP_BUDGET, "d": StopReason.ENV_ERROR}
    async with shipped.open() as store:
        for key, end in ends.items():
            await write(store, key, log(0, 1, end))
        assert await keys_of(store, state=RunState.UNFINISHED) == ["a"]
        assert await keys_of(store, state=RunState.CANCELLED) == ["b"]
        assert await keys_of(store, state=RunState.ENDED) == ["c", "d"]
        assert await keys_of(store, state=RunState.DAMAGED) == []
        assert await keys_of(store, state=RunState.ENDED, newest_first=True, limit=1) == ["d"]


async def test_a_prefix_is_compared_as_it_is_and_means_nothing_else(shipped: Shipped) -> None:
    no_keys = ("\0", "a\0", "\ud800", "a\udfff", "x" * 1025, "nobody")
    async with shipped.open() as store:
        for key in WILD:
            await write(store, key, log())
        for prefix in (*WILD, *no_keys, "", "a", "x" * 1000, "\U0001f600" * 3):
            assert await keys_of(store, prefix=prefix) == sorted(key for key in WILD if key.startswith(prefix)), prefix


async def test_a_limit_is_the_most_that_is_listed(shipped: Shipped) -> None:
    keys = [f"{number:02d}" for number in range(5)]
    async with shipped.open() as store:
        for key in keys:
            await write(store, key, log())
        for limit in (0, 1, 4, 5, 6, 2**63 - 1):
            assert await keys_of(store, limit=limit) == keys[:limit]
            assert await keys_of(store, limit=limit, newest_first=True) == keys[::-1][:limit]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"state": "ended"}, "runs.state"),
        ({"state": 1}, "runs.state"),
        ({"prefix": None}, "runs.prefix"),
        ({"prefix": b"a"}, "runs.prefix"),
        ({"limit": -1}, "runs.limit"),
        ({"limit": True}, "runs.limit"),
        ({"limit": 1.0}, "runs.limit"),
        ({"limit": 2**63}, "runs.limit"),
        ({"after": "a"}, "runs.after"),
        ({"newest_first": 1}, "runs.newest_first"),
        ({"newest_first": None}, "runs.newest_first"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_argument_is_named(shipped: Shipped, asked: dict[str, Any], field: str) -> None:
    async with shipped.open() as store:
        with pytest.raises(InvalidRequest) as refused:
            await listed(store, **asked)
    assert refused.value.field == field


# ---------------------------------------------------------------- page by page


async def pages(store: Store, size: int, **asked: Any) -> list[RunSummary]:
    """A listing, put together from pages."""
    found: list[RunSummary] = []
    while page := await listed(store, limit=size, after=found[-1] if found else None, **asked):
        found += page
    return found


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
async def test_pages_make_up_the_whole_listing(shipped: Shipped, size: int, newest_first: bool) -> None:
    async with shipped.open() as store:
        for number in range(7):
            await write(store, f"k{number}", log(number // 3))
        assert await pages(store, size, newest_first=newest_first) == await listed(store, newest_first=newest_first)


async def test_a_page_begins_behind_a_run_that_exists_no_more(shipped: Shipped) -> None:
    async with shipped.open() as store:
        for key, second in (("a", 1), ("b", 1), ("c", 2)):
            await write(store, key, log(second, 0, StopReason.STEP_BUDGET))
        (first,) = await listed(store, limit=1)
        assert await store.delete(first.key)
        assert await keys_of(store, after=first) == ["b", "c"]
        assert await keys_of(store, after=summary("aa", 1)) == ["b", "c"]
        assert await keys_of(store, after=summary("b", 1)) == ["c"]
        assert await keys_of(store, after=summary("\ud800", 0)) == ["b", "c"]
        assert await keys_of(store, after=summary("b", 1), newest_first=True) == []
        assert await keys_of(store, after=summary("z", 1), newest_first=True) == ["b"]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_is_added_and_deleted_between_pages_hides_no_other_run(shipped: Shipped, newest_first: bool) -> None:
    async with shipped.open() as store:
        for number in range(12):
            await write(store, f"k{number:02d}", log(10 + number // 2, 1, StopReason.STEP_BUDGET))
        found: list[str] = []
        last: RunSummary | None = None
        for turn in itertools.count():
            page = await listed(store, limit=2, after=last, newest_first=newest_first)
            if not page:
                break
            found += [each.key for each in page]
            last = page[-1]
            await store.delete(page[0].key)
            await write(store, f"early{turn}", log(0, 0, StopReason.STEP_BUDGET))
            await write(store, f"late{turn}", log(59, 0, StopReason.STEP_BUDGET))
    old = [key for key in found if key.startswith("k")]
    assert old == sorted((f"k{number:02d}" for number in range(12)), reverse=newest_first)
    assert len(set(found)) == len(found)


async def test_listings_at_once_do_not_disturb_each_other(shipped: Shipped) -> None:
    async with shipped.open() as store:
        for number in range(20):
            await write(store, f"k{number:02d}", log(number))
        whole, backwards = await asyncio.gather(listed(store), listed(store, newest_first=True))
        assert whole == backwards[::-1]
        one, other = store.runs(), store.runs(limit=5)
        turns = [(await anext(one), await anext(other)) for _ in range(5)]
        assert turns == [(each, each) for each in whole[:5]]


async def test_a_run_may_be_written_and_deleted_by_whoever_lists(shipped: Shipped) -> None:
    keys = [f"k{number:02d}" for number in range(30)]
    async with shipped.open() as store:
        for number, key in enumerate(keys):
            await write(store, key, log(0, 1, None if number % 2 else StopReason.STEP_BUDGET))
        seen = []
        async for each in store.runs():
            seen.append(each.key)
            if each.state is RunState.ENDED:
                assert await store.delete(each.key)
            else:
                await write(store, each.key, [model_intent(6, 1)])
        assert seen == keys
        assert await keys_of(store) == keys[1::2]


# ---------------------------------------------------------------- against a model

KEYS: Final = ("a", "A", "ab", "a%", "a_", "ä", "\U0001f600")


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """A log as a driver leaves it at some moment, resumed after a cancelled end or not."""
    steps = draw(st.integers(0, 2))
    records = log(draw(st.integers(0, 2)), steps)
    records = records[: draw(st.integers(1, len(records)))]
    shape = draw(st.sampled_from(["open", "cancelled", "resumed", "ended"]))
    if shape in ("cancelled", "resumed"):
        records = [*records, ended(len(records), StopReason.CANCELLED)]
    if shape == "resumed":
        done = sum(isinstance(each, StepCompleted) for each in records)
        records = [
            *records,
            model_intent(len(records), done),
            ended(len(records) + 1, draw(st.sampled_from(StopReason))),
        ]
    if shape == "ended":
        records = [*records, ended(len(records), draw(st.sampled_from(StopReason)))]
    return records


def modelled(key: str, records: Sequence[Record]) -> RunSummary:
    """The summary of a run, made from all of its records."""
    last, reason, state = records[-1], None, RunState.UNFINISHED
    if isinstance(last, RunFinished):
        reason = last.stop_reason
        state = RunState.CANCELLED if reason is StopReason.CANCELLED else RunState.ENDED
    return RunSummary(
        key=RunKey(key),
        state=state,
        started_at=records[0].recorded_at,
        last_record_at=last.recorded_at,
        steps=len([each for each in records if isinstance(each, StepCompleted)]),
        stop_reason=reason,
    )


questions: Final = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from([None, *RunState]),
        "prefix": st.sampled_from(["", *KEYS, "b"]),
        "limit": st.none() | st.integers(0, 4),
        "after": st.none() | st.builds(summary, st.sampled_from(KEYS), st.integers(0, 2)),
        "newest_first": st.booleans(),
    },
)


def answer(
    runs: dict[str, list[Record]],
    *,
    state: RunState | None = None,
    prefix: str = "",
    limit: int | None = None,
    after: RunSummary | None = None,
    newest_first: bool = False,
) -> list[RunSummary]:
    """What a listing must give."""
    found = sorted(
        (modelled(key, records) for key, records in runs.items()), key=lambda each: (each.started_at or "", each.key)
    )
    found = found[::-1] if newest_first else found
    if after is not None:
        border = (after.started_at or "", after.key)
        kept = []
        for each in found:
            here = (each.started_at or "", each.key)
            if (here < border) if newest_first else (here > border):
                kept.append(each)
        found = kept
    found = [each for each in found if each.key.startswith(prefix) and state in (None, each.state)]
    return found if limit is None else found[:limit]


@pytest.mark.parametrize("implementation", SHIPPED, ids=lambda each: each.name)
@settings(max_examples=25)
@given(
    runs=st.dictionaries(st.sampled_from(KEYS), logs(), max_size=5),
    asked=st.lists(questions, min_size=1, max_size=6),
)
def test_a_listing_is_what_a_naive_model_says(
    implementation: Implementation[StoreFactory], runs: dict[str, list[Record]], asked: list[dict[str, Any]]
) -> None:
    async def compare(folder: Path) -> None:
        shipped = Shipped(implementation, folder)
        async with shipped.open() as store:
            for key, records in runs.items():
                await write(store, key, records)
            async with shipped.reopened(store) as other:
                for question in asked:
                    assert await listed(store, **question) == answer(runs, **question)
                    assert await listed(other, **question) == answer(runs, **question)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))


# ---------------------------------------------------------------- deleting


async def test_an_unknown_run_cannot_be_deleted(shipped: Shipped) -> None:
    async with shipped.open() as store:
        assert await store.delete(KEY) is False
        await write(store, "other", log(0, 1, StopReason.STEP_BUDGET))
        assert await store.delete(KEY) is False
        assert await keys_of(store) == ["other"]


@pytest.mark.parametrize("key", ["", "\0", "\ud800", "x" * 1025, None])
async def test_what_is_no_key_is_refused(shipped: Shipped, key: Any) -> None:
    async with shipped.open() as store:
        with pytest.raises(InvalidRequest) as refused:
            await store.delete(key)
    assert refused.value.field == "RunRequest.key"


@pytest.mark.parametrize("records", range(1, 7))
async def test_a_driven_run_is_not_deleted(shipped: Shipped, records: int) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(0, 1)[:records])
        with pytest.raises(RunConflict) as refused:
            await store.delete(KEY)
        assert refused.value.key == KEY
        assert list((await store.read_log(KEY)).records()) == log(0, 1)[:records]
        await write(store, KEY, [ended(records)])
        assert await store.delete(KEY) is True


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.TASK_COMPLETED])
async def test_a_run_that_has_stopped_is_deleted_and_its_key_can_start_anew(
    shipped: Shipped, reason: StopReason
) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(1, 2, reason))
        assert await store.delete(KEY) is True
        assert (await store.read_log(KEY)).next_seq == 0
        assert await listed(store) == []
        assert await store.delete(KEY) is False
        anew = log(2, 1)
        await write(store, KEY, anew)
        assert list((await store.read_log(KEY)).records()) == anew
        async with shipped.reopened(store) as other:
            assert await listed(other) == [modelled(KEY, anew)]


async def test_a_deleted_run_stays_deleted_and_the_others_stay(shipped: Shipped) -> None:
    async with shipped.open() as store:
        for key in HOSTILE:
            await write(store, key, log(0, 1, StopReason.STEP_BUDGET))
        for key in HOSTILE[::2]:
            assert await store.delete(RunKey(key)) is True
        async with shipped.reopened(store) as other:
            assert await keys_of(other) == sorted(HOSTILE[1::2])
            for key in HOSTILE[1::2]:
                assert list((await other.read_log(RunKey(key))).records()) == log(0, 1, StopReason.STEP_BUDGET)
            for key in HOSTILE[::2]:
                assert (await other.read_log(RunKey(key))).next_seq == 0


async def test_after_a_refused_append_a_run_can_be_deleted_and_its_key_is_free(shipped: Shipped) -> None:
    async with shipped.open() as store:
        await write(store, KEY, log(0, 1))
        with pytest.raises(RunConflict):
            await write(store, KEY, [model_intent(9)])
        assert await store.delete(KEY) is True
        await write(store, KEY, [started()])
        assert (await store.read_log(KEY)).next_seq == 1


async def test_a_driver_whose_run_was_deleted_elsewhere_is_refused(shipped: Shipped) -> None:
    if not shipped.durable:
        pytest.skip("a second object on the same runs does not exist for this store")
    async with shipped.open() as store, shipped.open() as other:
        await write(store, KEY, log(0, 1))
        # Read first: what was handed in without waiting is on the medium by then.
        async with shipped.open() as third:
            assert await other.delete(KEY) is True
            with pytest.raises(RunConflict):
                await write(store, KEY, [ended(6)])
            assert await listed(third) == []
        assert (await store.read_log(KEY)).next_seq == 0
