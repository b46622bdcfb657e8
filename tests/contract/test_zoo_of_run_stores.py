"""The suite of run stores catches every wrong one, each for the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polyloop.ports import RunStore
from tests.contract.cases import StoreCase
from tests.contract.right_store import BatchingStore, DeferringStore, DictStore, Medium
from tests.contract.store_suite import PROMISES
from tests.contract.zoo import Wrong, broken_promises, judge, never_caught, unknown_names
from tests.contract.zoo_stores_at_once import AT_ONCE_STORES
from tests.contract.zoo_stores_positions import POSITION_STORES
from tests.contract.zoo_stores_values import VALUE_STORES

ZOO = (*VALUE_STORES.inmates, *POSITION_STORES.inmates, *AT_ONCE_STORES.inmates)


async def broken_by(
    make: Callable[[Medium], RunStore], folder: Path, wrong: Wrong[Callable[[Medium], RunStore]] | None
) -> dict[str, str]:
    def subject(name: str) -> StoreCase:
        # A medium for each promise: it lives as long as the case, and the folder has no part in it.
        medium = Medium()
        return StoreCase(make=lambda _: make(medium), path=folder / name)

    return await broken_promises(PROMISES, subject, wrong)


@pytest.mark.parametrize("right", [DictStore, DeferringStore, BatchingStore])
async def test_a_right_store_keeps_every_promise(right: type[DictStore], tmp_path: Path) -> None:
    assert await broken_by(right, tmp_path, None) == {}


@pytest.mark.parametrize("wrong", ZOO, ids=str)
async def test_a_wrong_store_is_caught(wrong: Wrong[Callable[[Medium], RunStore]], tmp_path: Path) -> None:
    judge(wrong, await broken_by(wrong.make, tmp_path, wrong))


def test_every_promise_has_a_store_that_breaks_it() -> None:
    assert unknown_names(PROMISES, ZOO) == []
    assert never_caught(PROMISES, ZOO) == []


def test_the_zoo_has_its_size() -> None:
    assert len(ZOO) >= 25
