"""A worker of GovDoc in a process of its own: `python -c "...main()" folder name mode tenants...`.

In the folder are the runs, the documents, and what processes tell each other: files that are there or not. The worker
schedules each review point until it has a result, and prints what each scheduling came to.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Final

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunResult
from tests.consumers.govdoc import GovDoc

SCHEDULINGS: Final = 40


class Worker:
    """Reviews a point of each tenant; stops to wait at the points that are asked for."""

    def __init__(self, folder: Path, name: str, stop_at: str) -> None:
        self._folder = folder
        self._name = name
        self._stop_at = stop_at

    async def work(self, tenants: list[str]) -> dict[str, list[str]]:
        """What each scheduling of each tenant's review came to."""
        async with JsonlRunStore(self._folder / "runs") as store:
            service = GovDoc(store, self._folder / "documents", in_model=self._at, in_tool=self._at)
            await self._at("begin")
            done = await asyncio.gather(*(self._schedule(service, tenant) for tenant in tenants))
        return dict(zip(tenants, done, strict=True))

    async def _schedule(self, service: GovDoc, tenant: str) -> list[str]:
        came_to: list[str] = []
        pauses = random.Random(f"{self._name} {tenant}")
        for number in range(SCHEDULINGS):
            # Two that begin again at once could take a review from each other for ever: that is the caller's to avoid.
            await asyncio.sleep(number * pauses.uniform(0, 0.02))
            result = await service.review(service.request(tenant, "review"))
            came_to.append(told(result))
            if result is not None:
                break
        return came_to

    async def _at(self, point: str) -> None:
        """Say that a point is reached, and wait until somebody lets go on."""
        if point != self._stop_at:
            return
        (self._folder / f"{self._name} reached").touch()
        go = self._folder / f"{self._name} go"
        while not go.exists():  # noqa: ASYNC110 - another process tells by this file
            await asyncio.sleep(0.002)


def told(result: RunResult | None) -> str:
    """A result in a word that two processes can compare."""
    if result is None:
        return "another has it"
    seen = [(step.action, step.observation, step.call_id) for step in result.steps]
    return json.dumps([result.stop_reason, seen])


def main() -> None:
    folder, name, stop_at, *tenants = sys.argv[1:]
    print(json.dumps(asyncio.run(Worker(Path(folder), name, stop_at).work(tenants))))
