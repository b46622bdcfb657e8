"""A run on a file system that is really full: the error reaches the caller, nothing happens unannounced, and once there
is space again the run goes on."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import errno
import itertools
import mmap
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from polyloop.ports import RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import EffectIntended, PolyLoopError, Record, RunKey, RunLog
from tests.fakes import tool_call
from tests.family import Scenario, assemble, check_resumed, effects_in
from tests.power.workload import LONG
from tests.proof.plugin import Checked

REQUIRE: Final = "POLYLOOP_REQUIRE_MOUNT"
"""Set to 1, it makes a file system that cannot be mounted a failure instead of a skip."""

KEY: Final = RunKey("run")


def run_as_root(*command: str) -> str | None:
    """Run a command; what went wrong."""
    program = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if program is None:
        return f"{command[0]} is not installed"
    ended = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    return None if ended.returncode == 0 else f"{command[0]}: {ended.stderr.strip()}"


def mount_tmpfs(at: Path, image: Path) -> str | None:
    return run_as_root("mount", "-t", "tmpfs", "-o", "size=1024k", "tmpfs", str(at))


def mount_ext4(at: Path, image: Path) -> str | None:
    return mount_ext4_of(1024, 8, at, image)


def mount_ext4_of_pages(at: Path, image: Path) -> str | None:
    """With blocks of a page. With smaller ones SQLite's shared memory has holes, and a full disk ends the process."""
    return mount_ext4_of(mmap.PAGESIZE, 32, at, image)


def mount_ext4_of(block: int, megabytes: int, at: Path, image: Path) -> str | None:
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    made = run_as_root("mkfs.ext4", "-q", "-b", str(block), "-m", "0", str(image))
    return made or run_as_root("mount", "-o", "loop", str(image), str(at))


def refuse(problem: str) -> None:
    """Skip the test, or fail it if it is demanded."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{problem}, and {REQUIRE}=1 demands a file system of its own")
    pytest.skip(f"{problem}; {REQUIRE}=1 makes this a failure")


@pytest.fixture(params=[mount_tmpfs, mount_ext4], ids=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(request.param, tmp_path) as at:
        yield at


@pytest.fixture(params=[mount_tmpfs, mount_ext4_of_pages], ids=["tmpfs", "ext4"])
def disk_of_pages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(request.param, tmp_path) as at:
        yield at


@contextlib.contextmanager
def mounted(mount: Callable[[Path, Path], str | None], place: Path) -> Iterator[Path]:
    at = place / "disk"
    at.mkdir()
    problem = "only root may mount file systems" if os.geteuid() else mount(at, place / "image")
    if problem is not None:
        refuse(problem)
    try:
        yield at
    finally:
        assert run_as_root("umount", str(at)) is None


def fill(filler: Path, room: int) -> None:
    """Leave this many bytes."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1024):
            with contextlib.suppress(OSError):
                while file.write(b"\1" * size) == size:
                    pass
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - room)
        os.fsync(file.fileno())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of store, and how it says that the disk is full."""

    name: str
    make: Callable[[Path], AbstractAsyncContextManager[RunStore]]
    says: Callable[[Exception], bool]
    rooms: tuple[range, range]
    """How many bytes are left on tmpfs and on ext4, from none to enough for a run."""


def sqlite_says(error: Exception) -> bool:
    """SQLite says that it is full, or of files beside the database that they cannot be written or opened."""
    codes = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in codes


FILES: Final = Kind(
    name="jsonl",
    make=JsonlRunStore,
    says=lambda error: type(error) is OSError and error.errno == errno.ENOSPC,
    rooms=(range(0, 12288, mmap.PAGESIZE), range(0, 12288, 1024)),
)
SQLITE: Final = Kind(
    name="sqlite",
    make=lambda directory: SqliteRunStore(directory / "runs.sqlite"),
    says=sqlite_says,
    rooms=(range(0, 400_000, mmap.PAGESIZE), range(0, 400_000, mmap.PAGESIZE)),
)


async def read(kind: Kind, directory: Path) -> RunLog:
    async with kind.make(directory) as store:
        return await store.read_log(KEY)


def scenario(chars: int) -> Scenario:
    """A run whose first action has a text of this length."""
    replies = (tool_call("look", query="q" * chars), "no decision", tool_call("submit"))
    return dataclasses.replace(LONG, replies=replies)


@dataclasses.dataclass(slots=True)
class Attempt:
    """A run on a disk that may be too small for it."""

    failure: Exception | None = None
    """What it raised, None if it did not need as much space."""
    effects: list[str] = dataclasses.field(default_factory=list)
    """The effects that began."""
    returned: list[str] = dataclasses.field(default_factory=list)
    """The store calls that returned."""

    @property
    def acknowledged(self) -> int:
        """How many records are behind a barrier that returned."""
        barriers = [at for at, call in enumerate(self.returned) if call.startswith(BARRIERS)]
        return barriers[-1] + 1 if barriers else 0


BARRIERS: Final = ("leave append_run_start", "leave append_intent", "leave finish")


async def run_until_full(kind: Kind, planned: Scenario, directory: Path) -> Attempt:
    attempt = Attempt()

    def tell(point: str) -> None:
        if point.startswith(("leave append_", "leave finish")):
            attempt.returned.append(point)

    try:
        async with kind.make(directory) as store:
            assembled = assemble(planned, store, key=KEY, tell=tell, effect=attempt.effects.append)
            await assembled.definition.run(assembled.request)
    except (OSError, sqlite3.Error, PolyLoopError) as failure:
        attempt.failure = failure
    return attempt


async def go_on(kind: Kind, planned: Scenario, directory: Path, log: RunLog) -> tuple[Record, ...]:
    """It comes to what the run comes to that nothing interrupts. The records of that one."""
    whole_store = EphemeralRunStore()
    whole = assemble(planned, whole_store, key=KEY)
    uninterrupted = await whole.definition.run(whole.request)
    async with kind.make(directory) as store:
        assembled = assemble(planned, store, key=KEY)
        how = assembled.definition.resume if log.next_seq else assembled.definition.run
        check_resumed(planned, log, await how(assembled.request), uninterrupted)
    return (await whole_store.read_log(KEY)).records()


def fill_and_free(kind: Kind, disk: Path, chars: int, room: int) -> str:
    """Run until the disk is full, and go on once there is space again. Which kind of record did not fit."""
    directory, filler = disk / f"runs {chars} {room}", disk / "filler"
    directory.mkdir()
    fill(filler, room)
    planned = scenario(chars)
    attempt = asyncio.run(run_until_full(kind, planned, directory))
    filler.unlink()
    log = asyncio.run(read(kind, directory))
    records = asyncio.run(go_on(kind, planned, directory, log))
    shutil.rmtree(directory)
    assert log.next_seq >= attempt.acknowledged, "what was acknowledged is gone"
    if attempt.failure is None:
        return "none"
    assert kind.says(attempt.failure), f"{attempt.failure!r}"
    announced = effects_in(log.records())
    assert attempt.effects == announced[: len(attempt.effects)], "an effect began that was not announced"
    assert len(announced) - len(attempt.effects) <= 1
    refused = records[log.next_seq]
    return f"intended {refused.kind}" if isinstance(refused, EffectIntended) else type(refused).__name__


KINDS: Final = frozenset(
    ("RunStarted", "intended model_call", "intended action", "EffectCompleted", "StepCompleted", "RunFinished")
)


def run_out_of_space(kind: Kind, disk: Path, step: int, every: int = 1) -> collections.Counter[str]:
    """Let runs with texts of many lengths meet the end of the disk at many places. Which kinds of records met it."""
    rooms = kind.rooms[0 if on_tmpfs(disk) else 1][::every]
    sizes = itertools.product(range(10, 1500, step), rooms)
    return collections.Counter(fill_and_free(kind, disk, chars, room) for chars, room in sizes)


def on_tmpfs(disk: Path) -> bool:
    asked = subprocess.run(["stat", "-f", "-c", "%T", disk], capture_output=True, text=True, check=True)
    return asked.stdout == "tmpfs\n"


def test_whichever_record_does_not_fit_the_run_stops_before_its_next_effect_and_goes_on_later(small_disk: Path) -> None:
    seen = run_out_of_space(FILES, small_disk, 20 if on_tmpfs(small_disk) else 1000)
    assert set(seen) >= (KINDS if on_tmpfs(small_disk) else {"RunStarted", "intended action"})


def test_with_sqlite_too_a_run_that_meets_the_end_of_the_disk_goes_on_later(disk_of_pages: Path) -> None:
    seen = run_out_of_space(SQLITE, disk_of_pages, 1490, every=2 if on_tmpfs(disk_of_pages) else 5)
    assert set(seen) > {"none", "RunStarted"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_that_meet_the_end_of_the_disk_at_many_places_all_go_on_later(small_disk: Path, checked: Checked) -> None:
    seen = run_out_of_space(FILES, small_disk, 100)
    assert set(seen) >= {"RunStarted", "intended action", "StepCompleted", "EffectCompleted"}
    checked(FULL[on_tmpfs(small_disk)], "jsonl", full_disks=seen.total() - seen["none"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_sqlite_too_they_all_go_on_later(disk_of_pages: Path, checked: Checked) -> None:
    seen = run_out_of_space(SQLITE, disk_of_pages, 500)
    # A transaction that does not fit takes the reply or the outcome before the intent with it.
    assert set(seen) >= {"RunStarted", "intended model_call", "EffectCompleted"}
    checked(FULL[on_tmpfs(disk_of_pages)], "sqlite", full_disks=seen.total() - seen["none"])


FULL: Final = {True: "full disk, tmpfs", False: "full disk, ext4"}
