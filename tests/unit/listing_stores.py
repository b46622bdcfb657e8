"""The shipped stores that list and delete their runs, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, cast

import pytest

from polyloop.stores import RunState, RunSummary
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    Record,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from tests.contract.cases import StoreFactory
from tests.contract.implementations import RUN_STORES, Implementation
from tests.contract.promises import opened
from tests.contract.running import loaded
from tests.seams import append

LISTING: Final = (
    "ephemeral",
    "jsonl",
    "sqlite",
    "postgres",
)
"""By their names in `RUN_STORES`. A store that comes to list its runs is added here."""

SHIPPED: Final = tuple(each for each in RUN_STORES if each.name in LISTING)


class Store(Protocol):
    """A run store that also lists and deletes."""

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None: ...

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None: ...

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None: ...

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None: ...

    async def finish(self, key: RunKey, record: RunFinished, /) -> None: ...

    async def read_log(self, key: RunKey, /) -> RunLog: ...

    def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[RunSummary]: ...

    async def delete(self, key: RunKey, /) -> bool: ...


class Shipped:
    """One of the stores, in a folder of its own."""

    def __init__(self, implementation: Implementation[StoreFactory], folder: Path) -> None:
        self.name = implementation.name
        self._make = loaded(implementation)
        self._folder = folder

    def open(self) -> AbstractAsyncContextManager[Store]:
        """One more object on the folder."""
        return cast("AbstractAsyncContextManager[Store]", opened(self._make(self._folder), "store"))

    @property
    def durable(self) -> bool:
        """Whether a second object on the folder sees the same runs."""
        return self.name != "ephemeral"

    @asynccontextmanager
    async def reopened(self, store: Store) -> AsyncGenerator[Store, None]:
        """Another object on the same runs; the same one, where there is no other."""
        if not self.durable:
            yield store
            return
        async with self.open() as other:
            yield other


@pytest.fixture(params=SHIPPED, ids=lambda each: each.name)
def shipped(request: pytest.FixtureRequest, tmp_path: Path) -> Shipped:
    """Each store that lists its runs."""
    return Shipped(request.param, tmp_path)


async def listed(store: Store, **asked: Any) -> list[RunSummary]:
    """A whole listing."""
    return [summary async for summary in store.runs(**asked)]


async def keys_of(store: Store, **asked: Any) -> list[str]:
    """The keys of a listing."""
    return [summary.key for summary in await listed(store, **asked)]


async def write(store: Store, key: str, records: Sequence[Record]) -> None:
    """Append records to a run."""
    for record in records:
        await append(store, RunKey(key), record)
