"""`RunStore`: many runs at once, and cancellation at every turn of the event loop."""

from __future__ import annotations

import asyncio

from polyloop.ports import RunStore
from polyloop.types import (
    Record,
    RunConflict,
    RunKey,
    StopReason,
)
from tests.contract.cases import StoreCase
from tests.contract.promises import cut_short, demand, moments, settled, turns
from tests.contract.records import (
    a_run,
    ended,
    model_intent,
    replied,
    started,
    stepped,
)
from tests.contract.store_tools import (
    BLOCKING,
    CANCELLED,
    KEY,
    NO_CURRENT_RUN,
    OTHER_CALLS,
    SUITE,
    TASKS,
    expect_log,
    put,
    put_all,
)


@SUITE.promise(
    NO_CURRENT_RUN, look_at="state that belongs to 'the current run': every method has its key, and nothing else counts"
)
async def runs_that_take_turns_do_not_see_each_other(case: StoreCase) -> None:
    keys = [RunKey(f"turn-{number}") for number in range(3)]
    logs = {key: a_run(2, snapshot={"key": key}) for key in keys}
    async with case.open() as store:
        for position in range(len(logs[keys[0]])):
            for key in keys:
                await put(store, key, logs[key][position])
        for key in keys:
            await expect_log(store, key, logs[key], "after three runs took turns")


@SUITE.promise(TASKS, look_at="buffers, connections and locks that are shared between runs")
async def many_runs_at_once_do_not_see_each_other(case: StoreCase) -> None:
    async def drive(store: RunStore, number: int) -> None:
        key = RunKey(f"many-{number}")
        records = a_run(1 + number % 4, end=list(StopReason)[number % 10], snapshot={"number": number})
        for position, record in enumerate(records):
            await put(store, key, record)
            if (number + position) % 5 == 0:
                await expect_log(store, key, records[: position + 1], "while many runs were under way")
        await expect_log(store, key, records, "after many runs at once")

    async with case.open() as store:
        await asyncio.gather(*(drive(store, number) for number in range(30)))


@SUITE.promise(TASKS, look_at="a bounded number of open files or of runs in memory: nothing is lost with the oldest")
async def hundreds_of_runs_are_open_at_once(case: StoreCase) -> None:
    keys = [RunKey(f"open-{number}") for number in range(300)]
    log: list[Record] = [started(), replied(1), model_intent(2), replied(3)]
    async with case.open() as store:
        for record in log:
            await asyncio.gather(*(put(store, key, record) for key in keys))
        for key in keys[::7]:
            await expect_log(store, key, log, "among 300 open runs")
        await asyncio.gather(*(put(store, key, model_intent(4)) for key in keys))
        for key in keys[::5]:
            await expect_log(store, key, [*log, model_intent(4)], "among 300 open runs")


@SUITE.promise(BLOCKING, look_at="system calls and synchronous drivers: make them on threads, or use async ones")
async def a_barrier_does_not_block_the_event_loop(case: StoreCase) -> None:
    # Only a medium takes time. How much is the machine's affair; that others run meanwhile is the store's.
    case.need_medium()
    async with case.open() as store:
        await put(store, KEY, started())
        for seq in range(1, 6):
            others = asyncio.create_task(turns(0))
            await put(store, KEY, model_intent(seq))
            demand(others.done(), "another task, ready to run, did not run while a barrier was written")


@SUITE.promise(TASKS, look_at="writes of several runs that share one commit: a refused one takes no other with it")
async def a_refusal_among_calls_at_once_concerns_one_run(case: StoreCase) -> None:
    async with case.open() as store:
        keys = [RunKey(f"batch-{number}") for number in range(12)]
        for key in keys:
            await put(store, key, started())
        wrong = {3: 5, 7: 0, 8: 2}
        calls = (settled(put(store, key, model_intent(wrong.get(n, 1)))) for n, key in enumerate(keys))
        for number, outcome in enumerate(await asyncio.gather(*calls)):
            if number in wrong:
                demand(isinstance(outcome, RunConflict), f"a wrong position gave {outcome!r:.200}")
                await expect_log(store, keys[number], [started()], "after its record was refused")
            else:
                demand(outcome is None, f"a right record beside refused ones gave {outcome!r:.200}")
                await expect_log(store, keys[number], [started(), model_intent(1)], "beside refused records")


def _each_kind() -> list[tuple[list[Record], Record]]:
    """A log and the record to be appended to it, for each of the five methods that append."""
    log = a_run(1)
    return [([], started()), (log, model_intent(6, 1)), (log, replied(6)), (log, stepped(6)), (log, ended(6))]


async def _expect_whole_or_nothing(case: StoreCase, *, again: bool) -> None:
    final: dict[RunKey, list[Record]] = {}
    async with case.open() as store:
        for log, record in _each_kind():
            for moment in moments():
                key = RunKey(f"{type(record).__name__}-{moment}")
                await put_all(store, key, log)
                reached = await cut_short(put(store, key, record), moment, again=again)
                what = f"after the append of a {type(record).__name__} was cancelled after {moment} turns"
                final[key] = await _continued(store, key, [*log, record], what)
                if not reached:
                    break
        for key, expected in final.items():
            await expect_log(store, key, expected, "long after a cancelled append")


async def _continued(store: RunStore, key: RunKey, full: list[Record], what: str) -> list[Record]:
    """The log is `full` or lacks its last record; it stays so, and the run goes on from there."""
    found = (await store.read_log(key)).next_seq
    demand(found in (len(full) - 1, len(full)), f"{what}, the log has {found} records, it had {len(full) - 1}")
    await turns(20)
    await expect_log(store, key, full[:found], f"{what}, some turns after the first read")
    goes_on = [*full[:found], *([full[-1]] if found < len(full) else [])]
    await put_all(store, key, full[found:])
    await expect_log(store, key, goes_on, f"{what}, and the run went on")
    return goes_on


@SUITE.promise(
    CANCELLED, look_at="an append that is cancelled midway: undo it, or let it finish before the cancellation passes"
)
async def a_cancelled_append_is_whole_or_nothing(case: StoreCase) -> None:
    await _expect_whole_or_nothing(case, again=False)


@SUITE.promise(
    CANCELLED,
    look_at="a second cancellation while the first is being dealt with; anyio scopes deliver one at every turn",
)
async def an_append_cancelled_twice_is_whole_or_nothing(case: StoreCase) -> None:
    await _expect_whole_or_nothing(case, again=True)


@SUITE.promise(
    "`CancelledError` must pass through it.",
    look_at="handlers of CancelledError and of BaseException: raise again; asyncio.wait_for on Python 3.11 loses one",
)
async def a_cancellation_passes(case: StoreCase) -> None:
    async with case.open() as store:
        await put_all(store, KEY, a_run(1))
        for moment in moments():
            if not await cut_short(store.read_log(KEY), moment):
                break
        for log, record in _each_kind():
            for moment in moments():
                key = RunKey(f"{type(record).__name__}-{moment}")
                await put_all(store, key, log)
                if not await cut_short(put(store, key, record), moment):
                    break


@SUITE.promise(CANCELLED, look_at="a read that is cancelled: locks, cursors and connections must be given back")
async def a_cancelled_read_leaves_the_object_usable(case: StoreCase) -> None:
    log = a_run(2)
    async with case.open() as store:
        await put_all(store, KEY, log)
        for moment in moments():
            reached = await cut_short(store.read_log(KEY), moment)
            await expect_log(store, KEY, log, f"after a read was cancelled after {moment} turns")
            if not reached:
                break
        await put(store, KEY, model_intent(len(log), 2))
        await expect_log(store, KEY, [*log, model_intent(len(log), 2)], "after cancelled reads")


@SUITE.promise(
    OTHER_CALLS, look_at="calls of several runs that share one write: cancelling one must not cancel the others"
)
async def a_cancellation_concerns_one_call(case: StoreCase) -> None:
    async with case.open() as store:
        for moment in moments():
            keys = [RunKey(f"beside-{moment}-{number}") for number in range(4)]
            for key in keys:
                await put(store, key, started())
            others = [asyncio.create_task(put(store, key, model_intent(1))) for key in keys[1:3]]
            others.append(asyncio.create_task(put(store, keys[3], replied(1))))
            reached = await cut_short(put(store, keys[0], model_intent(1)), moment)
            for outcome in await asyncio.gather(*others, return_exceptions=True):
                demand(outcome is None, f"an append beside one that was cancelled gave {outcome!r:.200}")
            beside: list[Record] = [model_intent(1), model_intent(1), replied(1)]
            for key, record in zip(keys[1:], beside, strict=True):
                await expect_log(store, key, [started(), record], "beside an append that was cancelled")
            if not reached:
                break
