"""`JsonlRunStore`: its threads, several loops, cancelled calls, entering and leaving."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from pathlib import Path

import pytest

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.store import THREADS
from polyloop.types import (
    InvalidRequest,
    Record,
    RunKey,
)
from tests.contract.records import ended, model_intent, replied, started
from tests.seams import append
from tests.unit.jsonl_disk import (
    KEY,
    eventually,
    faulty_store,
    names_in,
    open_descriptors,
    place_for,
    story,
    written,
)


async def write(store: JsonlRunStore, records: list[Record], key: RunKey = KEY) -> None:
    for record in records:
        await append(store, key, record)


# ---------------------------------------------------------------- threads and loops


async def test_no_system_call_is_made_on_the_thread_of_the_event_loop(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path / "new")
    async with store:
        await write(store, story(2))
        await store.read_log(KEY)
        await write(store, [model_intent(11, 2), ended(12)])
        await append(store, RunKey("left open"), started())
    assert threading.get_ident() not in {thread for _, thread in system.calls}
    assert len({thread for _, thread in system.calls}) <= THREADS


async def test_the_loop_goes_on_while_the_disk_hangs(tmp_path: Path) -> None:
    """And so do other runs, on other threads."""
    store, system = faulty_store(tmp_path)
    release = threading.Event()
    async with store:
        keys = [RunKey(f"run {number}") for number in range(64)]
        await asyncio.gather(*(append(store, key, started()) for key in keys))

        def hang(fd: int) -> None:
            assert release.wait(20)
            os.fdatasync(fd)

        system.fail("fdatasync", hang)
        hanging = asyncio.create_task(append(store, keys[0], model_intent(1)))
        await eventually(lambda: not system.faults["fdatasync"])
        others = [key for key in keys if hash(key) % THREADS != hash(keys[0]) % THREADS]
        await asyncio.gather(*(append(store, key, model_intent(1)) for key in others))
        assert not hanging.done()
        release.set()
        await hanging


def test_several_loops_in_several_threads_use_one_object(tmp_path: Path) -> None:
    store = JsonlRunStore(tmp_path)
    failures: list[BaseException] = []

    def drive(name: str) -> None:
        async def runs() -> None:
            keys = [RunKey(f"{name} {number}") for number in range(10)]
            await asyncio.gather(*(write(store, story(3, finished=True), key) for key in keys))

        try:
            asyncio.run(runs())
        except BaseException as failure:  # noqa: BLE001 - told to the test's own thread
            failures.append(failure)

    async def main() -> None:
        async with store:
            threads = [threading.Thread(target=drive, args=(name,)) for name in "abcd"]
            for thread in threads:
                thread.start()
            await asyncio.gather(write(store, story(3, finished=True), RunKey("mine")))
            for thread in threads:
                await asyncio.to_thread(thread.join, 30)
            for name in "abcd":
                log = await store.read_log(RunKey(f"{name} 9"))
                assert list(log.records()) == story(3, finished=True)

    asyncio.run(main())
    assert failures == []


def test_a_loop_that_was_closed_in_the_middle_of_a_call_disturbs_nobody(tmp_path: Path) -> None:
    """What it had asked for is done; other loops go on."""
    store, system = faulty_store(tmp_path)
    release, begun = threading.Event(), threading.Event()

    def hang(fd: int) -> None:
        begun.set()
        assert release.wait(20)
        os.fdatasync(fd)

    async def main() -> None:
        async with store:
            await append(store, KEY, started())
            system.fail("fdatasync", hang)

            def other() -> None:
                loop = asyncio.new_event_loop()
                task = loop.create_task(append(store, KEY, model_intent(1)))
                while not begun.is_set():
                    loop.run_until_complete(asyncio.sleep(0))
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
                loop.close()

            await asyncio.to_thread(other)
            release.set()
            assert (await store.read_log(KEY)).next_seq == 2
            await append(store, KEY, replied(2))
            assert (await store.read_log(KEY)).next_seq == 3

    asyncio.run(main())


# ---------------------------------------------------------------- cancellation


@pytest.mark.parametrize("index", range(len(story(1, finished=True)) + 1))
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_a_cancelled_call_is_wholly_written_or_not_and_the_object_stays_usable(
    tmp_path: Path, index: int, turns: int
) -> None:
    """Each call in its turn, the last one being a read; later calls for the key come behind the cancelled one."""
    records = story(1, finished=True)
    async with JsonlRunStore(tmp_path) as store:
        await write(store, records[:index])
        work = append(store, KEY, records[index]) if index < len(records) else store.read_log(KEY)
        task = asyncio.ensure_future(work)
        for _ in range(turns):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        if not done:
            with pytest.raises(asyncio.CancelledError):
                await task
        found = list((await store.read_log(KEY)).records())
        assert found in (records[:index], records[: index + 1])
        await write(store, records[len(found) :])
        assert list((await store.read_log(KEY)).records()) == records


async def test_what_a_cancelled_caller_does_to_its_mappings_changes_no_record(tmp_path: Path) -> None:
    """Its call waits behind that of another run, whose disk hangs."""
    store, system = faulty_store(tmp_path)
    release = threading.Event()
    snapshot: dict[str, int] = {"n": 1}
    neighbours = (RunKey(f"run {number}") for number in itertools.count())
    neighbour = next(key for key in neighbours if hash(key) % THREADS == hash(KEY) % THREADS)

    def hang(fd: int) -> None:
        assert release.wait(20)
        os.fdatasync(fd)

    async with store:
        system.fail("fdatasync", hang)
        before = asyncio.create_task(append(store, neighbour, started()))
        await eventually(lambda: not system.faults["fdatasync"])
        task = asyncio.create_task(append(store, KEY, started(snapshot)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        snapshot["n"] = 2
        release.set()
        await before
        log = await store.read_log(KEY)
        assert log.started is not None
        assert log.started.params_snapshot == {"n": 1}


# ---------------------------------------------------------------- entering and leaving


@pytest.mark.parametrize("directory", [1, b"runs", None, "", "a\0b"])
def test_a_directory_that_is_no_path_is_refused_by_name(directory: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        JsonlRunStore(directory)  # type: ignore[arg-type] # the wrong type is the point
    assert refused.value.field == "JsonlRunStore.directory"


async def test_outside_async_with_every_call_says_so(tmp_path: Path) -> None:
    store = JsonlRunStore(tmp_path)
    for _ in range(2):
        for call in (append(store, KEY, started()), store.read_log(KEY)):
            with pytest.raises(RuntimeError, match="async with"):
                await call
        async with store:
            pass
    assert names_in(tmp_path) == []


async def test_it_cannot_be_entered_twice_at_once_but_again_after_it_was_left(tmp_path: Path) -> None:
    store = JsonlRunStore(tmp_path)
    async with store:
        with pytest.raises(RuntimeError, match="left"):
            await store.__aenter__()
        await append(store, KEY, started())
    async with store:
        await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 2


async def test_leaving_waits_for_calls_under_way_syncs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    descriptors, threads = open_descriptors(), threading.active_count()
    store, system = faulty_store(tmp_path)
    async with store:
        keys = [RunKey(f"run {number}") for number in range(40)]
        await asyncio.gather(*(write(store, story(1), key) for key in keys))
        system.reset()
        tasks = [asyncio.create_task(append(store, key, model_intent(6, 1))) for key in keys[:10]]
        await asyncio.sleep(0)
    assert system.count("fdatasync") == len(keys), "10 barriers, and 30 runs with un-synced records"
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads
    await asyncio.gather(*tasks)
    async with store:
        assert [(await store.read_log(key)).next_seq for key in keys] == [7] * 10 + [6] * 30


async def test_leaving_has_nothing_to_sync_where_only_was_read(tmp_path: Path) -> None:
    place_for(tmp_path, written(story(1)).data)
    store, system = faulty_store(tmp_path)
    async with store:
        await store.read_log(KEY)
    assert system.count("fdatasync") == 0


async def test_a_call_that_comes_while_the_store_is_being_left_is_refused(tmp_path: Path) -> None:
    """From another loop; it neither hangs nor is lost in silence."""
    store = JsonlRunStore(tmp_path)
    outcomes: list[object] = []
    stop = threading.Event()

    def insist() -> None:
        async def calls() -> None:
            for number in range(100_000):
                try:
                    await append(store, RunKey(f"run {number}"), started())
                except RuntimeError as refused:
                    outcomes.append(refused)
                    return
                if stop.is_set():
                    return

        asyncio.run(calls())

    async with store:
        thread = threading.Thread(target=insist)
        thread.start()
        await asyncio.gather(*(write(store, story(1), RunKey(f"mine {number}")) for number in range(5)))
    await asyncio.to_thread(thread.join, 20)
    stop.set()
    assert not thread.is_alive()
    assert [type(each) for each in outcomes] == [RuntimeError]


async def test_a_cancelled_leaving_passes_at_once_and_the_threads_end_by_themselves(tmp_path: Path) -> None:
    threads = threading.active_count()
    store, system = faulty_store(tmp_path)
    release = threading.Event()
    await store.__aenter__()
    await write(store, story(1))

    def hang(fd: int) -> None:
        assert release.wait(20)
        os.fdatasync(fd)

    system.fail("fdatasync", hang)
    leaving = asyncio.create_task(store.__aexit__(None, None, None))
    await eventually(lambda: not system.faults["fdatasync"])
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    release.set()
    await eventually(lambda: threading.active_count() == threads)
    assert system.count("open") == system.count("close")
