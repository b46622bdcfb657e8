"""The suite of sinks catches every wrong one, each for the promise that it breaks."""

from __future__ import annotations

import pytest

from tests.contract.sink_suite import PROMISES
from tests.contract.zoo import Wrong, broken_promises, judge, never_caught, unknown_names
from tests.contract.zoo_sinks import SINKS, ListSink, case_of

ZOO = tuple(SINKS.inmates)


async def test_a_right_sink_keeps_every_promise() -> None:
    assert await broken_promises(PROMISES, lambda _: case_of(ListSink), None) == {}


@pytest.mark.parametrize("wrong", ZOO, ids=str)
async def test_a_wrong_sink_is_caught(wrong: Wrong[type[ListSink]]) -> None:
    judge(wrong, await broken_promises(PROMISES, lambda _: case_of(wrong.make), wrong))


def test_every_promise_has_a_sink_that_breaks_it() -> None:
    assert unknown_names(PROMISES, ZOO) == []
    assert never_caught(PROMISES, ZOO) == []


def test_the_zoo_has_its_size() -> None:
    assert len(ZOO) >= 5
