"""The threads behind the file store: order, wake-ups, cancellation, loops that go away."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from polyloop.stores._pool import Pool
from tests.unit.jsonl_disk import eventually, open_descriptors


class Worker:
    """What a thread works with."""

    def __init__(self) -> None:
        self.done: list[tuple[object, int]] = []


def note(what: object) -> Callable[[Worker], object]:
    def work(worker: Worker) -> object:
        worker.done.append((what, threading.get_ident()))
        return what

    return work


@pytest.fixture
async def pool() -> AsyncIterator[Pool[Worker]]:
    made: Pool[Worker] = Pool(Worker, 4, "test")
    yield made
    await made.close(lambda _: None)


async def test_work_of_one_pin_is_done_on_one_thread_in_the_order_it_was_handed_in(pool: Pool[Worker]) -> None:
    order: list[tuple[int, int, int]] = []

    def work(pin: int, number: int) -> Callable[[Worker], None]:
        return lambda _: order.append((pin, number, threading.get_ident()))

    await asyncio.gather(*(pool.submit(pin, work(pin, number)) for number in range(50) for pin in range(-3, 5)))
    for pin in range(-3, 5):
        mine = [each for each in order if each[0] == pin]
        assert [number for _, number, _ in mine] == list(range(50))
        assert len({thread for _, _, thread in mine}) == 1
    assert len({thread for _, _, thread in order}) == 4


async def test_a_thread_is_started_when_it_is_first_needed(pool: Pool[Worker]) -> None:
    before = threading.active_count()
    await pool.submit(1, note(1))
    await pool.submit(5, note(2))
    assert threading.active_count() == before + 1


async def test_an_outcome_reaches_the_one_who_asked(pool: Pool[Worker]) -> None:
    def fail(_: Worker) -> None:
        raise KeyError("mine")

    good, bad = await asyncio.gather(pool.submit(0, note(7)), pool.submit(0, fail), return_exceptions=True)
    assert good == 7
    assert isinstance(bad, KeyError)


async def test_a_loop_is_woken_once_for_many_outcomes(pool: Pool[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are done while the loop does not look."""
    rings: list[bytes] = []
    ring = os.write

    def counted(fd: int, data: bytes) -> int:
        rings.append(data)
        return ring(fd, data)

    monkeypatch.setattr(os, "write", counted)
    finished = threading.Event()
    futures = [pool.submit(0, note(number)) for number in range(30)]
    last = pool.submit(0, lambda _: finished.set())
    assert finished.wait(20)
    await asyncio.gather(*futures, last)
    assert len(rings) <= 2


async def test_a_ring_without_an_outcome_does_not_hold_the_loop_up(pool: Pool[Worker]) -> None:
    await pool.submit(0, note(1))
    pool._desks[asyncio.get_running_loop()]._tell_all()
    assert await pool.submit(0, note(2)) == 2


async def test_cancelled_work_is_done_all_the_same(pool: Pool[Worker]) -> None:
    done: list[int] = []
    future = pool.submit(0, lambda _: done.append(1))
    future.cancel()
    await pool.submit(0, lambda _: done.append(2))
    assert done == [1, 2]
    assert future.cancelled()


async def test_closing_does_what_was_handed_in_then_the_last_work_and_ends_the_threads() -> None:
    before = threading.active_count()
    done: list[object] = []
    pool: Pool[Worker] = Pool(Worker, 3, "test")
    futures = [pool.submit(number, note(number)) for number in range(9)]
    await pool.close(lambda worker: done.append([what for what, _ in worker.done]))
    assert sorted(map(str, done)) == ["[0, 3, 6]", "[1, 4, 7]", "[2, 5, 8]"]
    assert [await future for future in futures] == list(range(9))
    assert threading.active_count() == before


async def test_closing_raises_the_first_failure_after_all_threads_did_their_last_work() -> None:
    pool: Pool[Worker] = Pool(Worker, 3, "test")
    await asyncio.gather(*(pool.submit(number, note(number)) for number in range(3)))
    seen: list[int] = []

    def last(worker: Worker) -> None:
        seen.append(1)
        raise KeyError(worker.done[0][0])

    with pytest.raises(KeyError):
        await pool.close(last)
    assert len(seen) == 3


async def test_a_closed_pool_refuses_work(pool: Pool[Worker]) -> None:
    await pool.close(lambda _: None)
    with pytest.raises(RuntimeError, match="left"):
        pool.submit(0, note(1))


async def test_what_was_worked_on_is_not_kept_alive(pool: Pool[Worker]) -> None:
    class Thing:
        pass

    async def use(fail: bool) -> weakref.ref[Thing]:
        thing = Thing()

        def work(_: Worker) -> None:
            assert thing
            if fail:
                raise KeyError

        try:
            await pool.submit(0, work)
        except KeyError:
            assert fail
        return weakref.ref(thing)

    for fail in (False, True):
        kept = await use(fail)
        await asyncio.sleep(0)
        gc.collect()
        assert kept() is None


def test_loops_come_and_go() -> None:
    """Each is told of its own work; the ones that were closed are forgotten."""
    pool: Pool[Worker] = Pool(Worker, 2, "test")

    async def use(number: int) -> object:
        return await pool.submit(0, note(number))

    assert [asyncio.run(use(number)) for number in range(20)] == list(range(20))
    assert len(pool._desks) == 1
    asyncio.run(pool.close(lambda _: None))


def test_descriptors_of_all_loops_are_closed_in_the_end() -> None:
    """Of loops that were closed, loops that go on elsewhere, and the one that closes the pool."""
    before = open_descriptors()
    pool: Pool[Worker] = Pool(Worker, 2, "test")
    used, leave = threading.Event(), threading.Event()

    async def use() -> None:
        await pool.submit(0, note(1))

    async def stay() -> None:
        await use()
        held = open_descriptors()
        used.set()
        await eventually(leave.is_set)
        await eventually(lambda: open_descriptors() < held)

    asyncio.run(use())
    other = threading.Thread(target=lambda: asyncio.run(stay()))
    other.start()
    assert used.wait(20)
    asyncio.run(pool.close(lambda _: None))
    leave.set()
    other.join(20)
    gc.collect()
    assert open_descriptors() == before


async def test_a_cancelled_closing_passes_at_once_and_is_completed_behind_it() -> None:
    before, threads = open_descriptors(), threading.active_count()
    pool: Pool[Worker] = Pool(Worker, 2, "test")
    release = threading.Event()
    done: list[int] = []

    def last(_: Worker) -> None:
        assert release.wait(20)
        done.append(1)

    await asyncio.gather(pool.submit(0, note(1)), pool.submit(1, note(1)))
    closing = asyncio.create_task(pool.close(last))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert done == []
    release.set()
    await eventually(lambda: open_descriptors() == before)
    assert (done, threading.active_count()) == ([1, 1], threads)


def test_an_outcome_for_a_loop_that_was_closed_is_dropped_and_the_thread_goes_on() -> None:
    pool: Pool[Worker] = Pool(Worker, 1, "test")
    release = threading.Event()
    done: list[int] = []

    async def abandon() -> None:
        pool.submit(0, lambda _: release.wait(20))
        pool.submit(0, lambda _: done.append(1))
        await asyncio.sleep(0)

    async def go_on() -> None:
        release.set()
        await pool.submit(0, lambda _: done.append(2))
        await pool.close(lambda _: None)

    asyncio.run(abandon())
    asyncio.run(go_on())
    assert done == [1, 2]
