"""Two schedulers are handed the same review points: one story each, and no command twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunConflict, RunResult, StopReason
from tests.consumers.govdoc import Documents, GovDoc, undisturbed
from tests.consumers.govdoc_process import told
from tests.family import timeless

ROOT: Final = Path(__file__).parents[2]
KEY: Final = "alba/p1@r1/review"


class Stop:
    """Holds up the first that comes to a point."""

    def __init__(self, point: str) -> None:
        self._point: str | None = point
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, point: str) -> None:
        if point == self._point:
            self._point = None
            self.reached.set()
            await self.go.wait()


async def alone(root: Path) -> RunResult:
    """What the review comes to where nobody else is handed it, wall-clock times apart."""
    (result,) = await undisturbed(root, ("alba", "review"))
    return timeless(result)


# --- in one process, on one store


async def test_of_two_schedulings_at_once_one_reviews_and_the_other_lets_it(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path / "runs") as store:
        service = GovDoc(store, tmp_path / "documents")
        request = service.request("alba", "review")
        both = await asyncio.gather(service.review(request), service.review(request))
        (result,) = [each for each in both if each is not None]
        assert timeless(result) == await alone(tmp_path)
        assert await service.review(request) == result
    assert service.documents.ledger(KEY) == [f"{KEY}#1"]
    assert len(service.client.calls) == len(result.steps)


@pytest.mark.parametrize("point", [f"{KEY}#2", f"{KEY} bash"])
async def test_a_review_that_is_at_work_is_not_resumed_beside_it(tmp_path: Path, point: str) -> None:
    stop = Stop(point)
    async with JsonlRunStore(tmp_path / "runs") as store:
        service = GovDoc(store, tmp_path / "documents", in_model=stop, in_tool=stop)
        request = service.request("alba", "review")
        first = asyncio.create_task(service.review(request))
        await stop.reached.wait()
        log, calls = await store.read_log(request.key), len(service.client.calls)
        assert await service.review(request) is None
        with pytest.raises(RunConflict):
            await service.definition.resume(request)
        assert (await store.read_log(request.key), len(service.client.calls)) == (log, calls)
        stop.go.set()
        result = await first
        assert result is not None
        assert timeless(result) == await alone(tmp_path)


# --- in one process, on two store objects


@contextlib.asynccontextmanager
async def two_services(folder: Path, stop: Stop) -> AsyncIterator[tuple[GovDoc, GovDoc]]:
    """Each has a store object of its own on one directory, as two processes have; the first is held up."""
    async with JsonlRunStore(folder / "runs") as one, JsonlRunStore(folder / "runs") as other:
        held_up = GovDoc(one, folder / "documents", in_model=stop, in_tool=stop)
        yield held_up, GovDoc(other, folder / "documents")


SAFE_POINTS: Final = ["#0", " read_section", "#1", "#2", " submit", "#3", " submitted"]


@pytest.mark.parametrize("point", SAFE_POINTS)
async def test_a_review_that_was_taken_over_stops_before_its_next_effect(tmp_path: Path, point: str) -> None:
    stop = Stop(KEY + point)
    async with two_services(tmp_path, stop) as (held_up, other):
        request = held_up.request("alba", "review")
        first = asyncio.create_task(held_up.definition.run(request))
        await stop.reached.wait()
        calls = len(held_up.client.calls)
        result = await other.review(other.request("alba", "review"))
        assert result is not None
        assert timeless(result) == await alone(tmp_path)
        stop.go.set()
        with pytest.raises(RunConflict):
            await first
        assert len(held_up.client.calls) == calls
        assert await held_up.review(request) == result, "the next scheduling finds the one story"
        assert held_up.documents.ledger(KEY) == [f"{KEY}#1"]
        assert len(held_up.documents.submitted(KEY)) == 1, "the submission carries an idempotency key"


async def test_a_command_that_was_announced_elsewhere_is_not_run_again(tmp_path: Path) -> None:
    """Safe, not alive: the second cannot know that the first is well, and says so."""
    stop = Stop(f"{KEY} bash")
    async with two_services(tmp_path, stop) as (held_up, other):
        request = held_up.request("alba", "review")
        first = asyncio.create_task(held_up.review(request))
        await stop.reached.wait()
        result = await other.review(other.request("alba", "review"))
        assert result is not None
        assert result.stop_reason is StopReason.RESUME_STATE_UNKNOWN
        assert other.documents.ledger(KEY) == []
        stop.go.set()
        assert await first is None
        assert other.documents.ledger(KEY) == [f"{KEY}#1"]
        assert await held_up.review(request) == result


# --- in two processes


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with contextlib.ExitStack() as stack:
        yield Workers(tmp_path, stack)


class Workers:
    """Processes that work in one folder."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, name: str, stop_at: str, *tenants: str) -> subprocess.Popen[str]:
        """Start one; the folders of its tenants are there before it."""
        for tenant in tenants:
            Documents(self.folder / "documents").folder(tenant)
        code = "from tests.consumers.govdoc_process import main; main()"
        command = [sys.executable, "-c", code, str(self.folder), name, stop_at, *tenants]
        process = self._stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.kill)
        return process

    async def reached(self, *names: str) -> None:
        """Wait until these have come to where they stop."""
        while not all((self.folder / f"{name} reached").exists() for name in names):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.005)

    def let_go(self, *names: str) -> None:
        """Let them go on."""
        for name in names:
            (self.folder / f"{name} go").touch()


async def came_to(process: subprocess.Popen[str]) -> Mapping[str, list[str]]:
    """What each scheduling of each tenant came to in a process."""
    output, _ = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    told_by: dict[str, list[str]] = json.loads(output)
    return told_by


async def test_a_process_whose_review_was_taken_over_by_another_gets_its_result(workers: Workers) -> None:
    process = workers.start("one", f"{KEY}#2", "alba")
    await workers.reached("one")
    async with JsonlRunStore(workers.folder / "runs") as store:
        service = GovDoc(store, workers.folder / "documents")
        result = await service.review(service.request("alba", "review"))
        assert result is not None
        assert result.stop_reason is StopReason.TASK_COMPLETED
        workers.let_go("one")
        assert await came_to(process) == {"alba": ["another has it", told(result)]}
        assert await service.review(service.request("alba", "review")) == result
    assert service.documents.ledger(KEY) == [f"{KEY}#1"]
    assert len(service.documents.submitted(KEY)) == 1


async def test_two_processes_that_race_for_the_same_reviews_leave_one_story_of_each(workers: Workers) -> None:
    tenants = [f"tenant{number:02}" for number in range(24)]
    processes = [workers.start("one", "begin", *tenants), workers.start("two", "begin", *reversed(tenants))]
    await workers.reached("one", "two")
    workers.let_go("one", "two")
    one, two = await asyncio.gather(*map(came_to, processes))
    async with JsonlRunStore(workers.folder / "runs") as store:
        service = GovDoc(store, workers.folder / "documents")
        quiet = await undisturbed(workers.folder, *((tenant, "review") for tenant in tenants))
        for tenant, in_peace in zip(tenants, quiet, strict=True):
            request = service.request(tenant, "review")
            result = await service.review(request)
            assert result is not None
            assert one[tenant][-1] == two[tenant][-1] == told(result), "both have the same result in the end"
            check_story(service, result)
            assert timeless(result).steps == timeless(in_peace).steps[: len(result.steps)]
            if result.stop_reason is StopReason.TASK_COMPLETED:
                assert timeless(result) == timeless(in_peace)
    assert service.client.calls == []


def check_story(service: GovDoc, result: RunResult) -> None:
    """A command at most once; a submission exactly once where the review was completed."""
    assert result.stop_reason in (StopReason.TASK_COMPLETED, StopReason.RESUME_STATE_UNKNOWN)
    assert service.documents.ledger(result.key) in ([], [f"{result.key}#1"])
    if result.stop_reason is StopReason.TASK_COMPLETED:
        assert service.documents.ledger(result.key) == [f"{result.key}#1"]
        assert len(service.documents.submitted(result.key)) == 1
