"""A disk that is full, slow or broken: the error reaches the caller as itself, and the log stays honest.

Each fault is planted at each record of a run. What is asked of the store every time: the caller gets the `OSError` that
the system gave, nothing more is written for the key until it is read again, the log then is what was acknowledged or
that and the failed record, and once the fault is gone the run goes on.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import CorruptRunLog, InvalidRequest, Record, RunAlreadyExists, RunConflict, RunKey, StopReason
from tests.contract.records import action_intent, ended, model_intent, replied, started, stepped
from tests.seams import append
from tests.unit.jsonl_disk import (
    KEY,
    FaultyOs,
    eventually,
    faulty_store,
    is_barrier,
    names_in,
    open_descriptors,
    path_of,
    place_for,
    raising,
    story,
    written,
)

RECORDS = story(1, finished=True)
EVERY_RECORD = pytest.mark.parametrize("index", range(len(RECORDS)))


async def write(store: JsonlRunStore, records: list[Record], key: RunKey = KEY) -> None:
    for record in records:
        await append(store, key, record)


def short_then_full(size: int) -> Callable[..., Any]:
    """A write that takes only so many bytes; what follows is for the next fault to say."""

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        return os.pwrite(fd, data[:size], offset)

    return pwrite


def plant(system: FaultyOs, fault: str) -> int:
    """Plant a fault for the next append; the error number to expect."""
    call, number = FAULTS[fault]
    if fault.startswith("short write"):
        system.fail("pwrite", short_then_full(50))
    if fault.endswith("the rest stays"):
        system.fail("ftruncate", raising(errno.EIO))
    system.fail(call, raising(number))
    return number


FAULTS = {
    "full disk": ("pwrite", errno.ENOSPC),
    "broken disk": ("pwrite", errno.EIO),
    "short write, then full": ("pwrite", errno.ENOSPC),
    "short write, then full, and the rest stays": ("pwrite", errno.ENOSPC),
    "failed sync": ("fdatasync", errno.EIO),
    "failed sync of the directory": ("fsync", errno.EIO),
    "no file": ("open", errno.EACCES),
    "no more descriptors": ("open", errno.EMFILE),
    "no locks": ("flock", errno.ENOLCK),
    "no status": ("stat", errno.EIO),
}


def meets(fault: str, index: int) -> bool:
    """Whether the append of this record makes the call that fails."""
    match FAULTS[fault][0]:
        case "fdatasync":
            return is_barrier(RECORDS[index])
        case "fsync" | "open":
            return index == 0
        case _:
            return True


CASES = [(fault, index) for fault in FAULTS for index in range(len(RECORDS)) if meets(fault, index)]
BARRIERS = [index for index, record in enumerate(RECORDS) if is_barrier(record)]


@pytest.mark.parametrize(("fault", "index"), CASES)
async def test_a_fault_reaches_the_caller_blocks_the_key_and_leaves_an_honest_log(
    tmp_path: Path, fault: str, index: int
) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:index])
        expected = plant(system, fault)
        with pytest.raises(OSError, match="planted") as failed:
            await append(store, KEY, RECORDS[index])
        assert (type(failed.value), failed.value.errno) == (type(OSError(expected, "")), expected)
        assert not any(system.faults.values()), "the fault was met"

        before = path_of(tmp_path).read_bytes() if names_in(tmp_path) else None
        for record in (RECORDS[index], stepped(index + 1)):
            with pytest.raises(OSError, match="planted") as again:
                await append(store, KEY, record)
            assert again.value.errno == expected
        assert before == (path_of(tmp_path).read_bytes() if before is not None else None)

        found = list((await store.read_log(KEY)).records())
        survives = "sync" in fault
        assert found == RECORDS[: index + survives]
        await write(store, RECORDS[len(found) :])
        assert list((await store.read_log(KEY)).records()) == RECORDS
    async with JsonlRunStore(tmp_path) as fresh:
        assert list((await fresh.read_log(KEY)).records()) == RECORDS


@pytest.mark.parametrize("index", BARRIERS[:-1])
async def test_after_a_failed_sync_the_file_is_opened_anew_and_all_that_was_un_synced_is_written_again(
    tmp_path: Path, index: int
) -> None:
    """The system forgets what it failed to write: a sync that succeeds afterwards says nothing of it."""
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:index])
        system.fail("fdatasync", raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[index])
        await store.read_log(KEY)
        system.reset()
        rewritten: list[tuple[bytes, int]] = []

        def remember(fd: int, data: bytes, offset: int) -> int:
            rewritten.append((data, offset))
            return os.pwrite(fd, data, offset)

        system.fail("pwrite", remember)
        await append(store, KEY, RECORDS[index + 1])
        log = written(RECORDS)
        low = log.acknowledged[index]
        assert rewritten == [(log.data[low : log.offsets[index + 1]], low)]
        assert system.count("open") >= 1
        assert system.count("fdatasync") == 1 + is_barrier(RECORDS[index + 1])


async def test_after_a_failed_write_the_run_is_taken_over_anew(tmp_path: Path) -> None:
    """Also where the file is as long as before: what this object had written so far may be what the disk refuses."""
    store, system = faulty_store(tmp_path)
    log = written(RECORDS)
    async with store:
        await write(store, RECORDS[:5])
        system.fail("pwrite", raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[5])
        await store.read_log(KEY)
        with path_of(tmp_path).open("r+b") as file:
            file.seek(log.offsets[4])
            file.write(bytes(10))
        system.reset()
        await append(store, KEY, RECORDS[5])
        assert system.count("fdatasync") == 1
        assert (await store.read_log(KEY)).next_seq == 6


@EVERY_RECORD
async def test_a_short_write_is_completed(tmp_path: Path, index: int) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:index])
        for size in (1, 30, 7):
            system.fail("pwrite", short_then_full(size))
        await write(store, RECORDS[index:])
    assert path_of(tmp_path).read_bytes() == written(RECORDS).data


async def test_what_a_failed_write_left_is_cut_off_and_that_is_synced(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:3])
        before = path_of(tmp_path).read_bytes()
        system.reset()
        plant(system, "short write, then full")
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[3])
        assert path_of(tmp_path).read_bytes() == before
        assert [name for name, _ in system.calls if name in ("ftruncate", "fdatasync")] == ["ftruncate", "fdatasync"]


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "fdatasync"])
async def test_taking_over_that_fails_is_a_failed_append(tmp_path: Path, call: str) -> None:
    place_for(tmp_path, written(RECORDS[:5]).data[:-7])
    store, system = faulty_store(tmp_path)
    async with store:
        assert (await store.read_log(KEY)).next_seq == 4
        system.fail(call, raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[4])
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[4])
        assert (await store.read_log(KEY)).next_seq == 4
        await write(store, RECORDS[4:])
    async with JsonlRunStore(tmp_path) as fresh:
        assert list((await fresh.read_log(KEY)).records()) == RECORDS


@pytest.mark.parametrize("call", ["open", "flock", "fstat", "pread"])
async def test_a_read_that_fails_raises_the_error_and_does_not_unblock(tmp_path: Path, call: str) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:2])
        system.fail("pwrite", raising(errno.ENOSPC))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[2])
        system.fail(call, raising(errno.EIO))
        with pytest.raises(OSError, match="planted") as failed:
            await store.read_log(KEY)
        assert failed.value.errno == errno.EIO
        with pytest.raises(OSError, match="planted") as blocked:
            await append(store, KEY, RECORDS[2])
        assert blocked.value.errno == errno.ENOSPC
        assert (await store.read_log(KEY)).next_seq == 2
        await write(store, RECORDS[2:])


async def test_a_blocked_key_keeps_no_frames_alive_and_each_caller_gets_an_error_of_its_own(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:2])
        system.fail("pwrite", raising(errno.ENOSPC))
        raised = []
        for _ in range(3):
            with pytest.raises(OSError, match="planted") as failed:
                await append(store, KEY, RECORDS[2])
            raised.append(failed.value)
        assert len({id(each) for each in raised}) == 3
        assert {(each.errno, each.strerror) for each in raised} == {(errno.ENOSPC, "planted")}
        assert store._pool is not None
        kept = [run.failure for runs in store._pool.workers() for run in runs._runs.values() if run.failure]
        assert [each.__traceback__ for each in kept] == [None]


async def test_a_fault_of_one_run_is_nothing_to_the_others(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    keys = [RunKey(f"run {number}") for number in range(20)]
    async with store:
        await asyncio.gather(*(write(store, RECORDS[:2], key) for key in keys))
        system.fail("pwrite", raising(errno.EIO), after=7)
        outcomes = await asyncio.gather(*(append(store, key, RECORDS[2]) for key in keys), return_exceptions=True)
        assert sum(isinstance(each, OSError) for each in outcomes) == 1
        well = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None]
        await asyncio.gather(*(write(store, RECORDS[3:], key) for key in well))
        for key in well:
            assert (await store.read_log(key)).next_seq == len(RECORDS)


@pytest.mark.parametrize("index", range(1, len(RECORDS)))
async def test_a_refusal_blocks_the_key_with_a_conflict_until_it_is_read(tmp_path: Path, index: int) -> None:
    async with JsonlRunStore(tmp_path) as store:
        await write(store, RECORDS[:index])
        with pytest.raises(RunConflict):
            await append(store, KEY, model_intent(index + 1))
        with pytest.raises(RunConflict):
            await append(store, KEY, RECORDS[index])
        assert (await store.read_log(KEY)).next_seq == index
        with pytest.raises(RunAlreadyExists):
            await append(store, KEY, started())
        with pytest.raises(RunConflict):
            await append(store, KEY, RECORDS[index])
        assert (await store.read_log(KEY)).next_seq == index
        await write(store, RECORDS[index:])


async def test_damage_that_an_append_meets_blocks_the_key_with_itself(tmp_path: Path) -> None:
    log = written(RECORDS[:4])
    place_for(tmp_path, log.data[:-2] + b"#\n")
    async with JsonlRunStore(tmp_path) as store:
        for _ in range(2):
            with pytest.raises(CorruptRunLog) as refused:
                await append(store, KEY, RECORDS[4])
            assert (refused.value.line, refused.value.offset) == (4, log.offsets[3])


async def test_a_record_that_is_not_json_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        with pytest.raises(InvalidRequest):
            await append(store, KEY, started({"n": float("nan")}))
        assert names_in(tmp_path) == []


@pytest.mark.parametrize("evicted", [False, True])
async def test_leaving_raises_a_failed_sync_after_everything_was_closed(tmp_path: Path, evicted: bool) -> None:
    descriptors = open_descriptors()
    store, system = faulty_store(tmp_path)
    keys = [RunKey(f"run {number}") for number in range(200 if evicted else 20)]

    async def use() -> None:
        async with store:
            await asyncio.gather(*(write(store, RECORDS[:3], key) for key in keys))
            system.reset()
            system.fail("fdatasync", raising(errno.EIO), after=3)
            system.fail("fdatasync", raising(errno.ENOSPC), after=3)

    with pytest.raises(OSError, match="planted"):
        await use()
    assert system.count("fdatasync") == len(keys), "one failure keeps no other run from being synced"
    assert open_descriptors() == descriptors
    async with store:
        assert (await store.read_log(keys[0])).next_seq == 3


async def test_leaving_with_an_error_of_ones_own_and_a_failed_sync_shows_both(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)

    async def use() -> None:
        async with store:
            await write(store, RECORDS[:3])
            system.fail("fdatasync", raising(errno.EIO))
            raise ValueError("mine")

    with pytest.raises(OSError, match="planted") as failed:
        await use()
    assert isinstance(failed.value.__context__, ValueError)


async def test_a_cancellation_passes_also_where_leaving_fails(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)

    async def use() -> None:
        async with store:
            await write(store, RECORDS[:3])
            system.fail("fdatasync", raising(errno.EIO))
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await eventually(lambda: "fdatasync" in system.faults)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert "planted" in cancelled.value.__notes__[0]


async def test_a_sync_of_leaving_that_another_driver_made_needless_is_left_out(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:3])
        async with JsonlRunStore(tmp_path) as other:
            await append(other, KEY, RECORDS[3])
        system.reset()
    assert system.count("fdatasync") == 0


async def test_entering_that_fails_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path) -> None:
    before = (open_descriptors(), threading.active_count())
    store, system = faulty_store(tmp_path / "runs")
    for call, number in (("mkdir", errno.EACCES), ("mkdir", errno.EROFS), ("fsync", errno.EIO)):
        system.fail(call, raising(number))
        with pytest.raises(OSError, match="planted") as failed:
            await store.__aenter__()
        assert failed.value.errno == number
        assert (open_descriptors(), threading.active_count()) == before
        with pytest.raises(RuntimeError, match="async with"):
            await store.read_log(KEY)
    async with store:
        await write(store, RECORDS)


async def test_a_file_system_without_lasting_inodes_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    (tmp_path / "other").write_bytes(b"")
    async with store:
        system.faults["stat"] = [lambda _: (tmp_path / "other").stat()] * 1000
        with pytest.raises(OSError, match="never what was opened") as failed:
            await append(store, KEY, started())
        assert failed.value.errno == errno.ESTALE
        system.reset()
        assert (await store.read_log(KEY)).next_seq == 0
        await append(store, KEY, started())


async def test_a_directory_that_cannot_be_written_is_an_error_at_the_first_write(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        system.fail("open", raising(errno.EROFS))
        with pytest.raises(OSError, match="planted") as failed:
            await append(store, KEY, started())
        assert failed.value.errno == errno.EROFS
        assert (await store.read_log(KEY)).next_seq == 0
        await append(store, KEY, started())


async def test_an_error_at_closing_an_evicted_file_is_no_error_of_the_run_that_needed_the_room(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    keys = [RunKey(f"run {number}") for number in range(300)]

    def close(fd: int) -> None:
        os.close(fd)
        raise OSError(errno.EIO, "planted")

    async with store:
        await asyncio.gather(*(append(store, key, started()) for key in keys[:150]))
        system.fail("close", close)
        await asyncio.gather(*(append(store, key, started()) for key in keys[150:]))
        await asyncio.gather(*(append(store, key, model_intent(1)) for key in keys))


async def test_after_a_failed_finish_the_run_can_be_finished(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, [started(), model_intent(1), replied(2), action_intent(3)])
        system.fail("pwrite", raising(errno.ENOSPC))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, ended(4, StopReason.CANCELLED))
        await store.read_log(KEY)
        await append(store, KEY, ended(4))
        assert (await store.read_log(KEY)).finished == ended(4)


async def test_an_end_whose_sync_failed_is_written_again_before_it_is_told(tmp_path: Path) -> None:
    """Nothing is appended behind an end that could make it durable later, and a stored result is believed."""
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, RECORDS[:-1])
        system.fail("fdatasync", raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await append(store, KEY, RECORDS[-1])
        system.fail("fdatasync", raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await store.read_log(KEY)
        system.reset()
        assert (await store.read_log(KEY)).records() == tuple(RECORDS)
        assert [name for name, _ in system.calls if name in ("pwrite", "fdatasync")] == ["pwrite", "fdatasync"]


async def test_an_end_that_somebody_else_wrote_is_synced_before_it_is_told_also_where_nobody_may_write(
    tmp_path: Path,
) -> None:
    async with JsonlRunStore(tmp_path) as writer:
        await write(writer, RECORDS)
    path_of(tmp_path).chmod(0o400)
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        await store.read_log(KEY)
        assert system.count("fdatasync") == 1
        assert system.count("pwrite") == 0
