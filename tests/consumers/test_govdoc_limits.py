"""Reviews that run into their time limit, and what the next scheduling makes of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from polyloop.session import RunRequest
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunResult, StopReason
from tests.consumers import clock
from tests.consumers.govdoc import GovDoc, undisturbed
from tests.family import timeless

LIMIT_S: Final = 30.0


class Limits:
    """Lets the time run out at the points that are named, once each."""

    def __init__(self) -> None:
        self.points: list[str] = []

    async def __call__(self, point: str) -> None:
        if point in self.points:
            self.points.remove(point)
            clock.jump(LIMIT_S + 1)
            await clock.hang()


Scheduled = Callable[[GovDoc, RunRequest], Awaitable["RunResult | None"]]


async def by_wait_for(service: GovDoc, request: RunRequest) -> RunResult | None:
    """As a service that has the library's calls in its own hands."""
    begun = (await service.store.read_log(request.key)).next_seq > 0
    call = service.definition.resume if begun else service.definition.run
    try:
        return await asyncio.wait_for(call(request), LIMIT_S)
    except TimeoutError:
        return None


async def by_the_page(service: GovDoc, request: RunRequest) -> RunResult | None:
    return await service.review(request, LIMIT_S)


SCHEDULERS: Final = pytest.mark.parametrize("schedule", [by_wait_for, by_the_page], ids=lambda each: each.__name__)
CAN_GO_ON: Final = {
    "explore": ["#0", " read_section", "#1", "#2"],
    "review": ["#0", " read_section", "#1", "#2", " submit", "#3", " submitted"],
    "summarize": ["#0", "#1", " read_section", "#2", " submit", " submitted"],
}


@SCHEDULERS
@pytest.mark.parametrize(("phase", "points"), CAN_GO_ON.items(), ids=CAN_GO_ON)
def test_a_review_that_ran_into_its_limit_goes_on_where_it_stopped(
    tmp_path: Path, schedule: Scheduled, phase: str, points: list[str]
) -> None:
    async def one_after_another() -> None:
        limits = Limits()
        async with JsonlRunStore(tmp_path / "runs") as store:
            service = GovDoc(store, tmp_path / "documents", in_model=limits, in_tool=limits)
            request = service.request("alba", phase)
            limits.points += [f"{request.key}{point}" for point in points]
            for left in reversed(range(len(points))):
                assert await schedule(service, request) is None
                assert len(limits.points) == left
                log = await store.read_log(request.key)
                assert log.finished is not None
                assert log.finished.stop_reason is StopReason.CANCELLED
            result = await schedule(service, request)
            assert result is not None
            (quiet,) = await undisturbed(tmp_path, ("alba", phase))
            assert timeless(result) == timeless(quiet)
            await check_traces(service, request, result, sum(point.startswith("#") for point in points))
            assert await schedule(service, request) == result
            await check_traces(service, request, result, sum(point.startswith("#") for point in points))

    clock.run(one_after_another())


async def check_traces(service: GovDoc, request: RunRequest, result: RunResult, interrupted_calls: int) -> None:
    """Outside the log: interrupted model calls were made again, and nothing else happened twice."""
    summarizes, explores = request.key.endswith("summarize"), request.key.endswith("explore")
    assert len(service.client.calls) == len(result.steps) + interrupted_calls
    assert service.documents.ledger(request.key) == ([] if summarizes else [f"{request.key}#1"])
    assert len(service.documents.submitted(request.key)) == (0 if explores else 1)
    assert service.progress.steps[request.key] == list(range(len(result.steps)))


@SCHEDULERS
def test_a_review_that_ran_into_its_limit_inside_a_command_is_over_and_so_is_the_command(
    tmp_path: Path, schedule: Scheduled
) -> None:
    async def inside() -> None:
        async with JsonlRunStore(tmp_path / "runs") as store:
            service = GovDoc(store, tmp_path / "documents")
            request = service.request("alba", "explore")
            folder = service.documents.folder(request.key)
            # The model's `grep` reads a pipe that nobody writes to.
            (folder / "fees.txt").unlink()
            os.mkfifo(folder / "fees.txt")
            watching = asyncio.create_task(run_out(service, request))
            assert await schedule(service, request) is None
            await watching
            assert is_unread(folder / "fees.txt"), "the command goes on after the cancellation has passed"
            result = await schedule(service, request)
            assert result is not None
            assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
            assert "action of step 1" in (result.detail or "")
            assert service.documents.ledger(request.key) == [f"{request.key}#1"], "it was not run again"
            assert service.verdict(result) == "again under a new key"
            (folder / "fees.txt").unlink()
            (folder / "fees.txt").write_text("one pays 1\none pays 2\n")
            again = await schedule(service, service.request("alba", "explore", "r2"))
            assert again is not None
            assert service.verdict(again) == "done"

    clock.run(inside())


async def run_out(service: GovDoc, request: RunRequest) -> None:
    """Let the time run out once the command is at work."""
    while not service.documents.ledger(request.key):  # noqa: ASYNC110 - another process tells nobody what it did
        await asyncio.sleep(0.005)
    clock.jump(LIMIT_S + 1)


def is_unread(path: Path) -> bool:
    """Whether nobody has a pipe open for reading."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return True
    return False
