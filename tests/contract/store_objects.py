"""`RunStore`: several objects on one medium, as several processes have them."""

from __future__ import annotations

import asyncio

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    ModelReply,
    PlannedAction,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunStarted,
    StepCompleted,
    StopReason,
)
from tests.contract.cases import StoreCase
from tests.contract.promises import Unchecked, demand, settled, turns
from tests.contract.records import (
    a_run,
    acted,
    action_intent,
    any_kind_at,
    ended,
    model_intent,
    replied,
    started,
    stepped,
)
from tests.contract.store_tools import (
    ATOMIC,
    BARRIER,
    HANDED_OVER,
    KEY,
    LEAVING,
    ORDERED,
    PREFIX,
    REFUSED,
    SUITE,
    WHOLE,
    expect_log,
    expect_one_winner,
    expect_prefix,
    expect_refusal,
    put,
    put_all,
    two_objects,
)


@SUITE.promise(BARRIER, look_at="what a barrier leaves in the object's memory: another object must see all of it")
async def a_barrier_puts_everything_before_it_on_the_medium(case: StoreCase) -> None:
    records = a_run(2, end=StopReason.STEP_BUDGET)
    async with two_objects(case) as (one, other):
        for number, record in enumerate(records, start=1):
            await put(one, KEY, record)
            if isinstance(record, RunStarted | EffectIntended | RunFinished):
                what = f"read by another object after the barrier {type(record).__name__}"
                await expect_log(other, KEY, records[:number], what)


@SUITE.promise(
    ORDERED,
    look_at="ordered records between two barriers: write them in their order, before the barrier's own record",
)
async def ordered_records_stand_before_the_barrier_that_follows(case: StoreCase) -> None:
    records: list[Record] = [started(), *(replied(n, n) for n in range(1, 20)), ended(20)]
    async with two_objects(case) as (one, other):
        await put_all(one, KEY, records)
        await expect_log(other, KEY, records, "read by another object after twenty ordered records and a barrier")


@SUITE.promise(
    HANDED_OVER, look_at="ordered records without a barrier behind them: hand them over by a timer, not on demand"
)
async def ordered_records_are_handed_over_without_a_barrier(case: StoreCase) -> None:
    records: list[Record] = [started(), model_intent(1), replied(2)]
    async with two_objects(case) as (one, other):
        await put_all(one, KEY, records)
        # The promise is about time, so this check waits; twenty times the bound, for machines under load.
        for _ in range(200):
            if (await other.read_log(KEY)).next_seq == len(records):
                break
            await asyncio.sleep(0.01)
        await expect_log(other, KEY, records, "read by another object 2 s after an ordered record")


@SUITE.promise(
    PREFIX, look_at="what another object sees between barriers: never a later record without the ones before it"
)
async def what_is_on_the_medium_is_a_prefix(case: StoreCase) -> None:
    records = a_run(10)
    acknowledged = 0
    async with two_objects(case) as (one, other):
        for number, record in enumerate(records, start=1):
            await put(one, KEY, record)
            if not isinstance(record, EffectCompleted | StepCompleted):
                acknowledged = number
            seen = await expect_prefix(other, KEY, records[:number], f"read by another object after {number} records")
            demand(seen >= acknowledged, f"{acknowledged} records were acknowledged, another object sees {seen}")


@SUITE.promise(
    WHOLE, look_at="readers while a record is being written: they see it whole or not at all, and raise nothing"
)
async def a_reader_never_sees_half_a_record(case: StoreCase) -> None:
    text = "half of this is not this" * 2_000
    records: list[Record] = [started({"text": text})]
    for step_idx in range(6):
        planned = PlannedAction(action_text=text, tool_name=None, arguments={"n": step_idx}, history_text=text)
        records.append(action_intent(len(records), step_idx, action=planned))
        outcome = ActionOutcome(status=ActionStatus.EXECUTED, observation=text, completed=False)
        records.append(acted(len(records), step_idx, outcome=outcome))
    records.append(ended(len(records)))
    async with two_objects(case) as (one, other):
        writing = asyncio.create_task(put_all(one, KEY, records))
        try:
            while not writing.done():
                await expect_prefix(other, KEY, records, "read by another object while records were being written")
                await turns(1)
        finally:
            await writing
        await expect_log(other, KEY, records, "read at the end")


@SUITE.promise(
    "which reads the medium afresh.",
    look_at="read_log answered from memory: another process may have written since",
)
async def a_read_sees_what_other_objects_wrote(case: StoreCase) -> None:
    records: list[Record] = [started(), *(model_intent(seq, seq) for seq in range(1, 10))]
    async with two_objects(case) as objects:
        for number, record in enumerate(records):
            writer, reader = objects[number % 2], objects[1 - number % 2]
            await put(writer, KEY, record)
            await expect_log(reader, KEY, records[: number + 1], "read by the object that did not write last")


@SUITE.promise(PREFIX, look_at="a medium that is rewritten from one object's memory: what others wrote is lost")
async def objects_that_write_different_runs_lose_nothing(case: StoreCase) -> None:
    keys = [RunKey(f"of-{number}") for number in range(4)]
    logs = {key: a_run(2, snapshot={"key": key}) for key in keys}
    async with two_objects(case) as objects:
        for position in range(6):
            for number, key in enumerate(keys):
                await put(objects[number % 2], key, logs[key][position])
        rest = [put_all(objects[number % 2], key, logs[key][6:]) for number, key in enumerate(keys)]
        await asyncio.gather(*rest)
        for number, key in enumerate(keys):
            logs[key].append(ended(len(logs[key])))
            await put(objects[number % 2], key, logs[key][-1])
        for key in keys:
            for store in objects:
                await expect_log(store, key, logs[key], "after two objects wrote different runs")


@SUITE.promise(
    REFUSED, look_at="an object whose log was moved by another one: compare with the medium, not with a cache"
)
async def an_object_that_is_behind_is_refused(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        for number, late in enumerate(any_kind_at(2)):
            key = RunKey(f"behind-{number}")
            await put_all(one, key, [started(), model_intent(1)])
            await expect_log(other, key, [started(), model_intent(1)], "read by another object")
            await put(other, key, model_intent(2, 1))
            log: list[Record] = [started(), model_intent(1), model_intent(2, 1)]
            await expect_refusal(one, key, late, log)
            await put(one, key, model_intent(3, 2))
            await expect_log(other, key, [*log, model_intent(3, 2)], "after the one behind had read and gone on")


@SUITE.promise(
    REFUSED,
    look_at="several records of an object that is behind: all are refused, also those whose position is free by then",
)
async def a_stale_stretch_of_records_is_refused_whole(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        await put_all(one, KEY, [started(), model_intent(1)])
        other_reply = ModelReply(call_id=None, text="other", reasoning=None)
        taken: list[Record] = [started(), model_intent(1), replied(2, reply=other_reply)]
        await expect_log(other, KEY, taken[:2], "read by another object")
        await put(other, KEY, taken[2])
        await put(other, KEY, action_intent(3))
        stale: list[Record] = [replied(2), stepped(3), stepped(4), model_intent(5, 1)]
        outcomes = [await settled(put(one, KEY, record)) for record in stale]
        demand(
            isinstance(next((each for each in outcomes if each is not None), None), RunConflict),
            f"no append of the object that is behind raised RunConflict, they gave {outcomes!r:.300}",
        )
        demand(outcomes[-1] is not None, "the barrier behind refused records was acknowledged")
        await expect_log(other, KEY, [*taken, action_intent(3)], "after the object that was behind was refused")


@SUITE.promise(REFUSED, look_at="the end of a run that another object wrote")
async def an_object_that_missed_the_end_is_refused(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        for number, late in enumerate(any_kind_at(3)):
            key = RunKey(f"missed-{number}")
            await put_all(one, key, [started(), model_intent(1)])
            await expect_log(other, key, [started(), model_intent(1)], "read by another object")
            await put(other, key, ended(2))
            await expect_refusal(one, key, late, [started(), model_intent(1), ended(2)])


@SUITE.promise(ATOMIC, look_at="comparing and appending in two steps: two writers must not both find the place free")
async def of_two_objects_at_one_position_one_wins(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        for number in range(20):
            key = RunKey(f"race-{number}")
            await put(one, key, started())
            await expect_log(other, key, [started()], "read by another object")
            rivals = [model_intent(1, 0), model_intent(1, 1)]
            calls = (settled(put(one, key, rivals[0])), settled(put(other, key, rivals[1])))
            outcomes = await asyncio.gather(*calls)
            await expect_one_winner(one, key, [started()], list(zip(rivals, outcomes, strict=True)))
            await expect_log(other, key, (await one.read_log(key)).records(), "read by the other object after the race")


@SUITE.promise(
    ATOMIC, look_at="two processes that start one run: the second start is RunAlreadyExists, also at the same time"
)
async def of_two_objects_that_start_a_run_one_wins(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        for number in range(20):
            key = RunKey(f"start-{number}")
            rivals = [started({"by": "one"}), started({"by": "other"})]
            calls = (settled(put(one, key, rivals[0])), settled(put(other, key, rivals[1])))
            outcomes = await asyncio.gather(*calls)
            await expect_one_winner(one, key, [], list(zip(rivals, outcomes, strict=True)), RunAlreadyExists)


@SUITE.promise(
    PREFIX, look_at="what an object keeps in memory only: a fresh one must know every record, and the position"
)
async def a_run_goes_on_in_a_fresh_object(case: StoreCase) -> None:
    case.need_medium()
    records = a_run(2, end=StopReason.STEP_BUDGET)
    # Each object writes up to a barrier: ordered records alone need not be there yet.
    stretches = ((0, 1), (1, 2), (2, 4), (4, 7), (7, 9), (9, 12))
    for begin, end in stretches:
        async with case.open() as store:
            await expect_log(store, KEY, records[:begin], "read by a fresh object")
            await put_all(store, KEY, records[begin:end])
    async with case.open() as store:
        await expect_log(store, KEY, records, "read by a fresh object")


@SUITE.promise(LEAVING, look_at="__aexit__: write and sync what is buffered, for every run")
async def leaving_makes_ordered_records_durable(case: StoreCase) -> None:
    case.need_medium()
    if not hasattr(case.make(case.path), "__aenter__"):
        raise Unchecked("this store is no async context manager")
    logs: dict[str, list[Record]] = {"replied": [started(), replied(1)], "stepped": [*a_run(1), replied(6), stepped(7)]}
    async with case.open() as store:
        for name, log in logs.items():
            await put_all(store, RunKey(name), log)
    async with case.open() as fresh:
        for name, log in logs.items():
            await expect_log(fresh, RunKey(name), log, "read by a fresh object right after another was left")


@SUITE.promise(
    REFUSED, look_at="a fresh object knows no position yet: it must take it from the medium, not from the record"
)
async def a_fresh_object_refuses_without_having_read(case: StoreCase) -> None:
    case.need_medium()
    wrong: list[Record] = [*any_kind_at(2), *any_kind_at(0), *any_kind_at(7)]
    async with case.open() as store:
        for number in range(len(wrong)):
            await put_all(store, RunKey(f"fresh-{number}"), [started(), model_intent(1), replied(2)])
    for number, record in enumerate(wrong):
        async with case.open() as store:
            await expect_refusal(store, RunKey(f"fresh-{number}"), record, [started(), model_intent(1), replied(2)])
    async with case.open() as store:
        outcome = await settled(put(store, RunKey("fresh-0"), started()))
        demand(isinstance(outcome, RunAlreadyExists), f"a second start gave {outcome!r:.200}")
