"""A run on a file system that is really full: the error reaches the caller, nothing happens unannounced, and once there
is space again the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import EffectIntended, Record, RunKey, RunLog
from tests.fakes import tool_call
from tests.family import Scenario, assemble, check_resumed, effects_in
from tests.power.workload import LONG

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
    return run_as_root("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(at))


def mount_ext4(at: Path, image: Path) -> str | None:
    with image.open("wb") as file:
        file.truncate(8 << 20)
    made = run_as_root("mkfs.ext4", "-q", "-b", "1024", "-m", "0", str(image))
    return made or run_as_root("mount", "-o", "loop", str(image), str(at))


def refuse(problem: str) -> None:
    """Skip the test, or fail it if it is demanded."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{problem}, and {REQUIRE}=1 demands a file system of its own")
    pytest.skip(f"{problem}; {REQUIRE}=1 makes this a failure")


@pytest.fixture(params=[mount_tmpfs, mount_ext4], ids=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    at = tmp_path / "disk"
    at.mkdir()
    problem = "only root may mount file systems" if os.geteuid() else request.param(at, tmp_path / "image")
    if problem is not None:
        refuse(problem)
    try:
        yield at
    finally:
        assert run_as_root("umount", str(at)) is None


def fill(filler: Path, room: int) -> None:
    """Leave this many bytes."""
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\1" * 1024)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - room)
        os.fsync(file.fileno())


async def read(directory: Path) -> RunLog:
    async with JsonlRunStore(directory) as store:
        return await store.read_log(KEY)


def scenario(chars: int) -> Scenario:
    """A run whose first action has a text of this length."""
    replies = (tool_call("look", query="q" * chars), "no decision", tool_call("submit"))
    return dataclasses.replace(LONG, replies=replies)


async def run_until_full(planned: Scenario, directory: Path) -> tuple[OSError | None, list[str]]:
    """What the run raised, None if it did not need as much space; and the effects that began."""
    async with JsonlRunStore(directory) as store:
        assembled = assemble(planned, store, key=KEY)
        try:
            await assembled.definition.run(assembled.request)
        except OSError as failure:
            return failure, assembled.effects
    return None, assembled.effects


async def go_on(planned: Scenario, directory: Path, log: RunLog) -> tuple[Record, ...]:
    """It comes to what the run comes to that nothing interrupts. The records of that one."""
    whole_store = EphemeralRunStore()
    whole = assemble(planned, whole_store, key=KEY)
    uninterrupted = await whole.definition.run(whole.request)
    async with JsonlRunStore(directory) as store:
        assembled = assemble(planned, store, key=KEY)
        how = assembled.definition.resume if log.next_seq else assembled.definition.run
        check_resumed(planned, log, await how(assembled.request), uninterrupted)
    return (await whole_store.read_log(KEY)).records()


def fill_and_free(disk: Path, chars: int, room: int) -> str:
    """Run until the disk is full, and go on once there is space again. Which kind of record did not fit."""
    directory, filler = disk / f"runs {chars} {room}", disk / "filler"
    directory.mkdir()
    fill(filler, room)
    planned = scenario(chars)
    failure, effects = asyncio.run(run_until_full(planned, directory))
    log = asyncio.run(read(directory))
    filler.unlink()
    records = asyncio.run(go_on(planned, directory, log))
    shutil.rmtree(directory)
    if failure is None:
        return "none"
    assert (type(failure), failure.errno) == (OSError, errno.ENOSPC)
    assert effects == effects_in(log.records()), "an effect began that was not announced"
    refused = records[log.next_seq]
    return f"intended {refused.kind}" if isinstance(refused, EffectIntended) else type(refused).__name__


KINDS: Final = frozenset(
    ("RunStarted", "intended model_call", "intended action", "EffectCompleted", "StepCompleted", "RunFinished")
)


def run_out_of_space(disk: Path, step: int) -> set[str]:
    """Let runs with texts of many lengths meet the end of the disk at many places. Which kinds of records met it."""
    sizes = itertools.product(range(10, 1500, step), range(0, 12288, os.statvfs(disk).f_bsize))
    return {fill_and_free(disk, chars, room) for chars, room in sizes}


def test_whichever_record_does_not_fit_the_run_stops_before_its_next_effect_and_goes_on_later(small_disk: Path) -> None:
    on_tmpfs = os.statvfs(small_disk).f_bsize == mmap.PAGESIZE
    seen = run_out_of_space(small_disk, 20 if on_tmpfs else 1000)
    assert seen >= (KINDS if on_tmpfs else {"RunStarted", "intended action"})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_that_meet_the_end_of_the_disk_at_many_places_all_go_on_later(small_disk: Path) -> None:
    assert run_out_of_space(small_disk, 100) >= {"RunStarted", "intended action", "StepCompleted", "EffectCompleted"}
