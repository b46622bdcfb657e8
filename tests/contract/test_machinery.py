"""What the suites stand on: promises, the comparison of records, cancelling at a turn, the judgement of a zoo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from polyloop.types import StopReason
from tests.contract.cases import Maker
from tests.contract.implementations import Implementation
from tests.contract.promises import Promise, PromiseBroken, Suite, Unchecked, cut_short, demand, given, opened
from tests.contract.records import a_run, difference, ended, started
from tests.contract.running import keep, loaded
from tests.contract.zoo import Wrong, broken_promises, judge, never_caught, unknown_names


def a_promise(check: Callable[[int], Awaitable[None]]) -> Promise[int]:
    suite = Suite[int]("Port")
    suite.promise("It keeps its word.", look_at="its mouth")(check)
    return suite.promises[0]


async def kept(_: int) -> None:
    return


async def broken(_: int) -> None:
    demand(condition=False, seen="it lied")


async def unchecked(_: int) -> None:
    given(None, "it says nothing")


async def raises(_: int) -> None:
    raise KeyError("word")


async def hangs(_: int) -> None:
    await asyncio.Event().wait()


async def cancels_itself(_: int) -> None:
    raise asyncio.CancelledError


# ---------------------------------------------------------------------------------------------- promises


async def test_a_broken_promise_tells_what_an_author_needs() -> None:
    with pytest.raises(PromiseBroken) as caught:
        await a_promise(broken).verify(1)
    message = str(caught.value)
    for part in ("Port", "broken", "It keeps its word.", "it lied", "its mouth"):
        assert part in message


@pytest.mark.parametrize(
    ("check", "seen"),
    [(raises, "KeyError"), (hangs, "did not come to an end"), (cancels_itself, "nobody had cancelled it")],
)
async def test_whatever_an_adapter_does_is_a_broken_promise(check: Callable[[int], Awaitable[None]], seen: str) -> None:
    with pytest.raises(PromiseBroken, match=seen):
        await a_promise(check).verify(1, patience_s=0.05)


async def test_a_kept_promise_says_nothing() -> None:
    await a_promise(kept).verify(1)


async def test_a_cancellation_of_the_check_passes() -> None:
    task = asyncio.create_task(a_promise(hangs).verify(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_what_cannot_be_checked_is_skipped_with_its_reason() -> None:
    with pytest.raises(Unchecked, match="it says nothing"):
        await a_promise(unchecked).verify(1)
    with pytest.raises(pytest.skip.Exception, match="unchecked: it says nothing"):
        await keep(a_promise(unchecked), 1)


def test_an_implementation_whose_package_is_missing_is_skipped_by_name() -> None:
    missing = Implementation(name="some-store", load=lambda: 1, requires="no_such_package_anywhere")
    with pytest.raises(pytest.skip.Exception, match=r"some-store.*no_such_package_anywhere"):
        loaded(missing)
    assert loaded(Implementation(name="here", load=lambda: 1, requires="json")) == 1


async def test_a_context_manager_is_entered_and_anything_else_is_used() -> None:
    @asynccontextmanager
    async def entered() -> AsyncIterator[str]:
        yield "inside"

    make: Maker[str] = entered
    async with opened(make(), "thing") as thing:
        assert thing == "inside"
    async with opened("plain", "thing") as thing:
        assert thing == "plain"


async def test_an_async_factory_is_told_apart_from_a_context_manager() -> None:
    async def factory() -> str:
        return "thing"

    with pytest.raises(PromiseBroken, match="must be a plain function"):
        async with opened(factory(), "thing"):
            pass


# ------------------------------------------------------------------------------------------ cancelling


async def test_a_call_is_cut_short_where_the_cancellation_comes_out_of_it() -> None:
    assert await cut_short(hangs(1), 3)
    assert await cut_short(hangs(1), 3, again=True)
    assert not await cut_short(kept(1), 3)


async def test_a_swallowed_cancellation_is_a_broken_promise() -> None:
    async def swallows() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "as if nothing had been"
        return "never"

    with pytest.raises(PromiseBroken, match="as if nothing had been"):
        await cut_short(swallows(), 2)


# ------------------------------------------------------------------------------------------ comparison


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ("executed", None),
        (StopReason.CANCELLED, "cancelled"),
        ([1], (1,)),
        ([1, 2], [1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": True}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}),
        (started({"a": 1}), started({"a": 2})),
        (ended(1), ended(1, failures=1)),
        (a_run(2), a_run(3)),
    ],
)
def test_values_that_differ_in_anything_are_told_apart(written: object, found: object) -> None:
    assert difference(written, found, "it") is not None


@pytest.mark.parametrize("value", [float("nan"), -0.0, {"a": [None, {}]}, a_run(2), StopReason.ENV_ERROR])
def test_equal_values_do_not_differ(value: object) -> None:
    assert difference(value, value, "it") is None


def test_a_difference_names_its_place() -> None:
    assert difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "it") == "it['a'][1]['b'] is int 3, written was int 2"


# ------------------------------------------------------------------------------------------------- zoo


async def test_a_zoo_demands_the_right_promise_and_no_other() -> None:
    promises = (a_promise(kept), a_promise(broken), a_promise(raises))
    failed = await broken_promises(promises, lambda _: 1, None)
    assert set(failed) == {"broken", "raises"}

    def wrong(caught_by: set[str], besides: set[str]) -> Wrong[int]:
        return Wrong(fault="f", make=1, caught_by=frozenset(caught_by), besides=frozenset(besides), patience_s=1.0)

    judge(wrong({"broken", "raises"}, set()), failed)
    judge(wrong({"broken"}, {"raises"}), failed)
    with pytest.raises(AssertionError, match="was not caught by"):
        judge(wrong({"kept"}, {"broken", "raises"}), failed)
    with pytest.raises(AssertionError, match="broke other promises too"):
        judge(wrong({"broken"}, set()), failed)
    assert never_caught(promises, [wrong({"broken"}, {"raises"})]) == ["kept", "raises"]
    assert unknown_names(promises, [wrong({"brocken"}, set())]) == ["brocken"]
