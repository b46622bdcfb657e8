"""The suite of parsers catches every wrong one, each for the promise that it breaks."""

from __future__ import annotations

import pytest

from tests.contract.parser_suite import PROMISES
from tests.contract.zoo import Wrong, broken_promises, judge, never_caught, unknown_names
from tests.contract.zoo_parsers import PARSERS, LineParser, case_of

ZOO = tuple(PARSERS.inmates)


async def test_a_right_parser_keeps_every_promise() -> None:
    assert await broken_promises(PROMISES, lambda _: case_of(LineParser), None) == {}


@pytest.mark.parametrize("wrong", ZOO, ids=str)
async def test_a_wrong_parser_is_caught(wrong: Wrong[type[LineParser]]) -> None:
    judge(wrong, await broken_promises(PROMISES, lambda _: case_of(wrong.make), wrong))


def test_every_promise_has_a_parser_that_breaks_it() -> None:
    assert unknown_names(PROMISES, ZOO) == []
    assert never_caught(PROMISES, ZOO) == []


def test_the_zoo_has_its_size() -> None:
    assert len(ZOO) >= 10
