"""The suite of executors catches every wrong one, each for the promise that it breaks."""

from __future__ import annotations

import pytest

from tests.contract.executor_suite import PROMISES
from tests.contract.zoo import Wrong, broken_promises, judge, never_caught, unknown_names
from tests.contract.zoo_executors import EXECUTORS, BoxExecutor, case_of

ZOO = tuple(EXECUTORS.inmates)


async def test_a_right_executor_keeps_every_promise() -> None:
    assert await broken_promises(PROMISES, lambda _: case_of(BoxExecutor), None) == {}


@pytest.mark.parametrize("wrong", ZOO, ids=str)
async def test_a_wrong_executor_is_caught(wrong: Wrong[type[BoxExecutor]]) -> None:
    judge(wrong, await broken_promises(PROMISES, lambda _: case_of(wrong.make), wrong))


def test_every_promise_has_an_executor_that_breaks_it() -> None:
    assert unknown_names(PROMISES, ZOO) == []
    assert never_caught(PROMISES, ZOO) == []


def test_the_zoo_has_its_size() -> None:
    assert len(ZOO) >= 10
