"""`JsonlRunStore.runs` and `.delete`: what is read of a file, damage, memory, what is held open, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import fcntl
import os
import random
import sqlite3
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from polyloop import serialization
from polyloop.serialization import encode
from polyloop.stores import RunState, RunSummary
from polyloop.stores._listing import summary_of
from polyloop.stores.jsonl import JsonlRunStore, files, listing
from polyloop.stores.jsonl import store as store_module
from polyloop.stores.jsonl.contents import read_contents
from polyloop.stores.jsonl.files import Os, file_name
from polyloop.stores.jsonl.format import LineFormat
from polyloop.stores.jsonl.listing import PAGE, SLICE, WINDOW, summarize
from polyloop.types import (
    CorruptRunLog,
    ModelReply,
    Record,
    RunConflict,
    RunKey,
    StopReason,
    StoreBusy,
    UnsupportedSchemaVersion,
)
from tests.contract.records import a_run, a_step, ended, model_intent, replied, started, stepped
from tests.seams import append
from tests.unit.jsonl_disk import (
    KEY,
    SECTOR,
    eventually,
    faulty_store,
    names_in,
    open_descriptors,
    raising,
    story,
    written,
)
from tests.unit.listing_stores import keys_of, listed, write

NAME: Final = file_name(KEY)
DONE: Final = a_run(2, end=StopReason.TASK_COMPLETED)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JsonlRunStore]:
    async with JsonlRunStore(tmp_path) as entered:
        yield entered


def place(directory: Path, data: bytes, key: str = KEY) -> Path:
    """Put a log's bytes under the name that the store gives it."""
    path = directory / file_name(key)
    path.write_bytes(data)
    return path


def damaged(key: str) -> RunSummary:
    return RunSummary(
        key=RunKey(key), state=RunState.DAMAGED, started_at=None, last_record_at=None, steps=None, stop_reason=None
    )


def plant(directory: Path, number: int) -> None:
    """So many finished runs, as files."""
    for index in range(number):
        key = f"k{index:05d}"
        place(directory, written([started(), ended(1)], key).data, key)


# ---------------------------------------------------------------- what is read


async def test_of_a_long_log_only_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    records = a_run(200, end=StopReason.STEP_BUDGET)
    path = place(tmp_path, written(records).data)
    assert path.stat().st_size > 10 * WINDOW
    store, system = faulty_store(tmp_path)
    sizes: list[int] = []

    def counted(fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        sizes.append(len(data))
        return data

    async with store:
        for _ in range(9):
            system.fail("pread", counted)
        (found,) = await listed(store)
    assert (found.steps, found.stop_reason) == (200, StopReason.STEP_BUDGET)
    assert sum(sizes) <= 2 * WINDOW


@pytest.mark.parametrize("size", [WINDOW - 400, WINDOW, 5 * WINDOW, 1_000_000])
@pytest.mark.parametrize("open_end", [False, True])
async def test_large_records_are_read_as_far_as_it_takes(
    tmp_path: Path, store: JsonlRunStore, size: int, open_end: bool
) -> None:
    large = ModelReply(call_id=None, text="x" * size, reasoning=None)
    step = dataclasses.replace(a_step(), observation="y" * size)
    records: list[Record] = [
        started({"prompt": "p" * size}),
        model_intent(1),
        replied(2, reply=large),
        stepped(3, step=step),
        model_intent(4, 1),
        replied(5, 1, reply=large),
    ]
    records += [] if open_end else [ended(6)]
    place(tmp_path, written(records).data)
    assert await listed(store) == [summary_of(KEY, await store.read_log(KEY))]


async def test_steps_whose_number_cannot_be_right_are_counted(tmp_path: Path, store: JsonlRunStore) -> None:
    records: list[Record] = [started(), stepped(1, step=a_step(2**63 - 1)), stepped(2, step=a_step(7)), ended(3)]
    place(tmp_path, written(records).data)
    assert [each.steps for each in await listed(store)] == [2]


@pytest.mark.parametrize("text", ["plain", "\ud83d\ude00 is two"])
async def test_a_snapshot_is_not_decoded(
    tmp_path: Path, store: JsonlRunStore, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    place(tmp_path, written([started({"prompt": text}), *DONE[1:]]).data)
    decoded: list[str] = []

    def decode(line: str) -> Record:
        decoded.append(line)
        return serialization.decode(line)

    monkeypatch.setattr(listing, "decode", decode)
    assert await keys_of(store) == [KEY]
    assert decoded
    assert not any("run_started" in line for line in decoded)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("end", [None, StopReason.CANCELLED, StopReason.AGENT_FINISHED])
def test_every_cut_of_a_log_is_listed_as_it_is_read(tmp_path: Path, steps: int, end: StopReason | None) -> None:
    log = written(a_run(steps, end=end))
    first = log.offsets[-3] if len(log.offsets) > 3 else 0
    seen = {_agree(tmp_path, log.data[:length], inside=False) for length in range(first, len(log.data) + 1)}
    assert RunState.UNFINISHED in seen


def test_zeroed_sectors_are_listed_as_they_are_read(tmp_path: Path) -> None:
    records: list[Record] = [*a_run(1), model_intent(6, 1), replied(7, 1), stepped(8, 1)]
    log = written(records)
    for start in range(0, len(log.data), SECTOR):
        for end in range(start + SECTOR, len(log.data) + SECTOR, SECTOR):
            zeroed = log.data[:start] + bytes(min(end, len(log.data)) - start) + log.data[end:]
            assert len(zeroed) == len(log.data)
            _agree(tmp_path, zeroed)


def test_a_torn_line_before_a_sound_one_of_the_last_stretch_is_found(tmp_path: Path) -> None:
    # Both were written since the last sync, and the disk kept the later one only.
    large = ModelReply(call_id=None, text="x" * 4 * SECTOR, reasoning=None)
    log = written([*a_run(1), model_intent(6, 1), replied(7, 1, reply=large), stepped(8, 1)])
    start = log.offsets[7] + SECTOR - log.offsets[7] % SECTOR
    assert start + SECTOR < log.offsets[8]
    assert _agree(tmp_path, log.data[:start] + bytes(SECTOR) + log.data[start + SECTOR :]) is RunState.UNFINISHED
    found = summarize(Os(), str(tmp_path), NAME)
    assert found is not None
    assert found.steps == 1


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_listed_as_it_is_read_or_not_seen(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs = [written(a_run(steps, end=end)).data for steps in (0, 1, 40) for end in (None, StopReason.CANCELLED)]
    seen = set()
    for _ in range(150):
        data = bytearray(rng.choice(logs))
        for _ in range(rng.randint(1, 2)):
            at = rng.choice([rng.randrange(len(data)), rng.randrange(min(200, len(data))), len(data) - 1])
            match rng.randrange(4):
                case 0:
                    data[at] ^= 1 << rng.randrange(7)
                case 1:
                    del data[at : at + rng.randint(1, 600)]
                case 2:
                    data[at:at] = data[rng.randrange(len(data)) :][: rng.randint(1, 900)]
                case _:
                    data[at : at + 512] = bytes(len(data[at : at + 512]))
            if not data:
                data = bytearray(b"\n")
        seen.add(_agree(tmp_path, bytes(data)))
    assert {RunState.DAMAGED, RunState.UNFINISHED} <= seen


def _agree(directory: Path, data: bytes, *, inside: bool = True) -> RunState | None:
    """What listing says of a file, after a comparison with what reading says. `inside`: damage may lie further in."""
    place(directory, data)
    found = summarize(Os(), str(directory), NAME)
    try:
        log = read_contents(KEY, LineFormat(KEY), data).log
    except CorruptRunLog:
        assert found is not None
        assert inside or found.state is RunState.DAMAGED
        return found.state
    assert found == (None if log.started is None else summary_of(KEY, log))
    return None if found is None else found.state


# ---------------------------------------------------------------- damage


async def test_damage_inside_a_log_is_not_seen_and_damage_at_its_ends_is(tmp_path: Path, store: JsonlRunStore) -> None:
    log = written(DONE)
    inside = log.offsets[1] + 40
    first, last = log.offsets[1] - 20, log.offsets[-2] - 40
    for at, state in ((inside, RunState.ENDED), (first, RunState.DAMAGED), (last, RunState.DAMAGED)):
        data = bytearray(log.data)
        data[at] ^= 1
        place(tmp_path, bytes(data))
        assert [each.state for each in await listed(store)] == [state]
        with pytest.raises(CorruptRunLog):
            await store.read_log(KEY)


async def test_a_damaged_log_keeps_its_key_as_long_as_its_first_line_tells_it(
    tmp_path: Path, store: JsonlRunStore
) -> None:
    log = written(DONE)
    for at in (12, log.data.index(b'"durable":') + 10, log.offsets[1] - 5):
        data = bytearray(log.data)
        data[at] = ord("3") if data[at] != ord("3") else ord("4")
        place(tmp_path, bytes(data))
        assert await listed(store) == [damaged(KEY)]


async def test_a_damaged_log_whose_key_cannot_be_told_is_listed_under_its_name(
    tmp_path: Path, store: JsonlRunStore
) -> None:
    log = written(DONE)
    named = log.data.index(b'"key":"run"')
    for broken in (
        log.data[:named] + b'"key":"ruin"' + log.data[named + 11 :],
        log.data[:named] + b'"key":["run"]' + log.data[named + 11 :],
        log.data[:named] + b'"key":"\\ud800"' + log.data[named + 11 :],
        written(DONE, "somebody else").data,
        b"not a log\nat all\n",
    ):
        place(tmp_path, broken)
        assert await listed(store) == [damaged(NAME)]
        assert await listed(store, state=RunState.DAMAGED, prefix="run-") == [damaged(NAME)]
        with pytest.raises(CorruptRunLog):
            await store.read_log(KEY)


async def test_a_log_under_a_name_that_is_not_its_own_is_damaged(tmp_path: Path, store: JsonlRunStore) -> None:
    path = place(tmp_path, written(DONE).data)
    path.rename(tmp_path / f"copy-of-{NAME}")
    assert await listed(store) == [damaged(f"copy-of-{NAME}")]


async def test_damaged_logs_come_first_and_pages_go_on_behind_them(tmp_path: Path, store: JsonlRunStore) -> None:
    for key in ("b", "a", "z"):
        place(tmp_path, written(DONE, key).data[:-20] + b"\n", key)
    await write(store, "sound", DONE)
    assert await keys_of(store) == ["a", "b", "z", "sound"]
    assert await keys_of(store, newest_first=True) == ["sound", "z", "b", "a"]
    for newest_first in (False, True):
        found: list[RunSummary] = []
        while page := await listed(store, limit=1, after=found[-1] if found else None, newest_first=newest_first):
            found += page
        assert found == await listed(store, newest_first=newest_first)


async def test_a_record_of_a_newer_library_does_not_hide_the_other_runs(tmp_path: Path, store: JsonlRunStore) -> None:
    for index in (0, 1):
        texts = [encode(record) for record in (started(), ended(1))]
        texts[index] = texts[index].replace('"schema":"1.0"', '"schema":"2.0"')
        place(tmp_path, written([started(), ended(1)], texts=texts).data)
        place(tmp_path, written(DONE, "sound").data, "sound")
        assert [(each.key, each.state) for each in await listed(store)] == [
            (KEY, RunState.DAMAGED),
            ("sound", RunState.ENDED),
        ]
        with pytest.raises(UnsupportedSchemaVersion):
            await store.read_log(KEY)


async def test_what_holds_no_record_is_no_run(tmp_path: Path, store: JsonlRunStore) -> None:
    line = written([started()]).data
    for data in (b"", line[:1], line[:100], line[:-1], bytes(1024)):
        path = place(tmp_path, data)
        assert await listed(store) == []
        assert await store.delete(KEY) is False
        assert not path.exists()


async def test_what_else_lies_in_the_directory_is_passed_over(tmp_path: Path, store: JsonlRunStore) -> None:
    log = written(DONE).data
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.write_bytes(log)
    (tmp_path / file_name("link")).symlink_to(elsewhere)
    (tmp_path / file_name("folder")).mkdir()
    os.mkfifo(tmp_path / file_name("pipe"))
    for name in ("README", f"{NAME}.bak", f"{NAME}~", NAME.replace(".jsonl", ".json"), NAME.upper(), "x.jsonl"):
        (tmp_path / name).write_bytes(log)
    (tmp_path / os.fsdecode(b"\xff\xfe.jsonl")).write_bytes(log)
    assert await listed(store) == []


# ---------------------------------------------------------------- memory, threads, what is held open


def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    async def peak(directory: Path, number: int) -> int:
        async with JsonlRunStore(directory) as store:
            await listed(store, limit=1)
            tracemalloc.start()
            try:
                count = 0
                async for _ in store.runs(newest_first=True):
                    count += 1
                assert count == number
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    few, many = tmp_path / "few", tmp_path / "many"
    for directory, number in ((few, 500), (many, 5000)):
        directory.mkdir()
        plant(directory, number)
    small, large = asyncio.run(peak(few, 500)), asyncio.run(peak(many, 5000))
    assert large < 1_000_000
    assert large < 1.3 * small


async def test_no_file_is_touched_on_the_loops_thread(tmp_path: Path) -> None:
    plant(tmp_path, 3)
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        assert len(await listed(store)) == 3
        assert await store.delete(RunKey("k00000")) is True
    assert {"scandir", "pread", "unlink", "fsync"} <= {name for name, _ in system.calls}
    assert threading.get_ident() not in {thread for _, thread in system.calls}


async def test_appends_are_served_while_a_large_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, 5 * SLICE)
    monkeypatch.setattr(store_module, "THREADS", 1)
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        reading = asyncio.create_task(keys_of(store))
        await eventually(lambda: system.count("pread") > 0)
        await append(store, RunKey("new"), started())
        before = system.count("pread")
        found = await reading
    # On the one thread that there is the append came in between.
    assert before < 5 * SLICE
    assert len(set(found) - {"new"}) == 5 * SLICE


@pytest.mark.parametrize("number", [1, SLICE, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
async def test_a_listing_that_came_to_its_end_holds_nothing(tmp_path: Path, store: JsonlRunStore, number: int) -> None:
    plant(tmp_path, number)
    assert len(await listed(store)) == number
    before = open_descriptors()
    assert len(await listed(store)) == number
    assert len(await listed(store, limit=number)) == number
    await eventually(lambda: open_descriptors() <= before)


async def test_an_abandoned_listing_holds_nothing(tmp_path: Path, store: JsonlRunStore) -> None:
    plant(tmp_path, 3 * PAGE)
    await listed(store, limit=1)
    await eventually(lambda: not _open_listings(store))
    before = open_descriptors()
    for _ in range(5):
        async for _ in store.runs():
            break
    await eventually(lambda: open_descriptors() <= before and not _open_listings(store))
    async with contextlib.aclosing(store.runs()) as runs:
        await anext(runs)
    await eventually(lambda: open_descriptors() <= before and not _open_listings(store))


def _open_listings(store: JsonlRunStore) -> int:
    assert store._pool is not None
    return sum(len(runs.indexes) for runs in store._pool.workers())


async def test_leaving_the_store_releases_a_listing_that_somebody_still_holds(tmp_path: Path) -> None:
    plant(tmp_path, 2 * PAGE)
    before, threads = open_descriptors(), threading.active_count()
    async with JsonlRunStore(tmp_path) as store:
        listings = [store.runs() for _ in range(3)]
        for each in listings:
            await anext(each)
        assert _open_listings(store) == 3
        assert store._pool is not None
        workers = store._pool.workers()
        databases = [index._database for runs in workers for index in runs.indexes]
    assert not any(runs.indexes for runs in workers)
    for database in databases:
        assert database is not None
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            assert database.total_changes
    assert open_descriptors() <= before
    assert threading.active_count() == threads
    async with store:
        for each in listings:
            with pytest.raises(RuntimeError):
                for _ in range(PAGE + 1):
                    await anext(each)
        # What was closed for them is not closed twice, and disturbs nobody.
        assert len(await listed(store)) == 2 * PAGE
    assert open_descriptors() <= before


async def test_a_cancelled_listing_holds_nothing(tmp_path: Path) -> None:
    plant(tmp_path, 5 * SLICE)
    store, system = faulty_store(tmp_path)
    async with store:
        await listed(store)
        await eventually(lambda: not _open_listings(store))
        before = open_descriptors()
        for _ in range(3):
            system.reset()
            task = asyncio.create_task(listed(store))
            await eventually(lambda: system.count("pread") > SLICE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: open_descriptors() <= before and not _open_listings(store))


async def test_a_listing_needs_a_store_that_was_entered(tmp_path: Path) -> None:
    store = JsonlRunStore(tmp_path)
    with pytest.raises(RuntimeError):
        await listed(store)
    with pytest.raises(RuntimeError):
        await store.delete(KEY)


# ---------------------------------------------------------------- failures and other processes


@pytest.mark.parametrize("call", ["scandir", "pread", "fstat"])
async def test_a_disk_that_fails_is_told_and_nothing_is_left_open(tmp_path: Path, call: str) -> None:
    plant(tmp_path, 3)
    store, system = faulty_store(tmp_path)
    async with store:
        await listed(store)
        before = open_descriptors()
        system.fail(call, raising(errno.EIO))
        with pytest.raises(OSError, match="planted"):
            await listed(store)
        await eventually(lambda: open_descriptors() <= before)
        assert len(await listed(store)) == 3


async def test_a_directory_that_is_gone_is_an_error_and_not_an_empty_listing(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    async with JsonlRunStore(directory) as store:
        directory.rmdir()
        with pytest.raises(FileNotFoundError):
            await listed(store)
        with pytest.raises(FileNotFoundError):
            await store.delete(KEY)


async def test_a_log_that_is_deleted_while_the_directory_is_read_is_not_listed(tmp_path: Path) -> None:
    plant(tmp_path, 3)
    store, system = faulty_store(tmp_path)

    def gone(path: str, flags: int, mode: int = 0o777) -> int:
        Path(path).unlink()
        return os.open(path, flags, mode)

    async with store:
        system.fail("open", gone)
        assert len(await listed(store)) == 2


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """A log that somebody else has locked."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_a_lock_that_is_held_for_too_long_is_store_busy(
    tmp_path: Path, store: JsonlRunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.0)
    path = place(tmp_path, written(DONE).data)
    with held(path):
        with pytest.raises(StoreBusy) as busy:
            await listed(store)
        assert busy.value.key == KEY
        with pytest.raises(StoreBusy) as busy:
            await store.delete(KEY)
        assert busy.value.key == KEY
    assert path.exists()
    assert await keys_of(store) == [KEY]
    assert await store.delete(KEY) is True


async def test_a_delete_that_failed_leaves_the_key_blocked_if_it_was(
    tmp_path: Path, store: JsonlRunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, KEY, story(1))
    with pytest.raises(RunConflict):
        await write(store, KEY, [ended(3)])
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.0)
    with held(tmp_path / NAME), pytest.raises(StoreBusy):
        await store.delete(KEY)
    with pytest.raises(RunConflict):
        await write(store, KEY, [ended(6)])


async def test_an_append_that_waits_for_the_lock_of_a_delete_writes_nothing(tmp_path: Path) -> None:
    records = story(2)
    store, system = faulty_store(tmp_path)

    def deleted_first(fd: int, *, shared: bool) -> bool:
        (tmp_path / NAME).unlink()
        return Os().flock(fd, shared=shared)

    async with store:
        await write(store, KEY, records[:5])
        system.fail("flock", deleted_first)
        with pytest.raises(RunConflict):
            await write(store, KEY, records[5:6])
        assert (await store.read_log(KEY)).next_seq == 0
        assert names_in(tmp_path) == []


async def test_a_start_that_waits_for_the_lock_of_a_delete_begins_a_new_log(tmp_path: Path) -> None:
    place(tmp_path, b"")
    store, system = faulty_store(tmp_path)

    def deleted_first(fd: int, *, shared: bool) -> bool:
        (tmp_path / NAME).unlink()
        return Os().flock(fd, shared=shared)

    async with store:
        system.fail("flock", deleted_first)
        await write(store, KEY, story(1))
    assert (tmp_path / NAME).read_bytes() == written(story(1)).data


async def test_deletes_and_starts_in_two_objects_leave_whole_logs_or_none(tmp_path: Path) -> None:
    async def drive(store: JsonlRunStore) -> None:
        with contextlib.suppress(RunConflict):
            await write(store, KEY, DONE)

    async with JsonlRunStore(tmp_path) as one, JsonlRunStore(tmp_path) as other:
        for _ in range(30):
            driving = asyncio.create_task(drive(one))
            while not driving.done():
                await other.delete(KEY)
                assert all(each.state is not RunState.DAMAGED for each in await listed(other))
            await driving
            records = list((await one.read_log(KEY)).records())
            assert records in ([], DONE)
            await other.delete(KEY)
            assert names_in(tmp_path) == []


async def test_the_name_is_off_the_disk_before_a_delete_returns(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        await write(store, KEY, DONE)
        system.reset()
        assert await store.delete(KEY) is True
        names = [name for name, _ in system.calls]
        assert names.index("unlink") < names.index("fsync")
        assert system.count("fsync") == 1


async def test_a_damaged_log_is_deleted(tmp_path: Path, store: JsonlRunStore) -> None:
    path = place(tmp_path, b"not a log\nat all\n")
    assert await store.delete(KEY) is True
    assert not path.exists()


async def test_listing_goes_on_while_runs_are_driven_in_another_object(tmp_path: Path) -> None:
    plant(tmp_path, SLICE)

    async def drive(store: JsonlRunStore, number: int) -> None:
        await write(store, f"driven{number}", DONE)

    async with JsonlRunStore(tmp_path) as store, JsonlRunStore(tmp_path) as other:
        driving = asyncio.gather(*(drive(store, number) for number in range(20)))
        while not driving.done():
            found = await listed(other)
            assert all(each.state in (RunState.ENDED, RunState.UNFINISHED) for each in found)
            assert len({each.key for each in found}) == len(found)
        await driving
        assert len(await keys_of(other, prefix="driven", state=RunState.ENDED)) == 20
