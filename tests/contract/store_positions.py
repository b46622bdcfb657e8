"""`RunStore`: one place for each record, one run for each key, and what a refusal blocks."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from polyloop.types import (
    EffectCompleted,
    EffectKind,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunKey,
    StopReason,
)
from tests.contract.cases import StoreCase
from tests.contract.promises import demand, settled
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
    BLOCKED,
    BLOCKS,
    EXISTS,
    KEY,
    KEYS,
    LATEST,
    NO_MORE,
    OTHERS,
    POSITION,
    REFUSED,
    SUITE,
    SURFACES,
    expect_log,
    expect_one_winner,
    expect_refusal,
    expect_round_trip,
    put,
    put_all,
    two_objects,
)


@SUITE.promise(REFUSED, look_at="compare record.seq with the number of records in the log, for every kind of record")
async def a_gap_is_refused(case: StoreCase) -> None:
    log = a_run(1)
    async with case.open() as store:
        for number, record in enumerate(any_kind_at(len(log) + 1)):
            key = RunKey(f"gap-{number}")
            await put_all(store, key, log)
            await expect_refusal(store, key, record, log)
            await put(store, key, model_intent(len(log), 1))
            await expect_log(store, key, [*log, model_intent(len(log), 1)], "after the right record followed")


@SUITE.promise(REFUSED, look_at="a record for a position that is taken: refuse it, also where it equals the one there")
async def a_repeated_position_is_refused(case: StoreCase) -> None:
    log = a_run(1)
    async with case.open() as store:
        for number, record in enumerate((*any_kind_at(len(log) - 1), log[-1])):
            key = RunKey(f"repeat-{number}")
            await put_all(store, key, log)
            await expect_refusal(store, key, record, log)


@SUITE.promise(REFUSED, look_at="positions long past: the comparison must be with the next one, not with a range")
async def a_stale_position_is_refused(case: StoreCase) -> None:
    log = a_run(3)
    async with case.open() as store:
        for number, record in enumerate((*any_kind_at(0), *any_kind_at(1), *any_kind_at(7))):
            key = RunKey(f"stale-{number}")
            await put_all(store, key, log)
            await expect_refusal(store, key, record, log)


@SUITE.promise(
    SURFACES, look_at="append_result and append_step: a refusal may wait for the next call, it may not be lost"
)
async def the_refusal_of_an_ordered_append_surfaces(case: StoreCase) -> None:
    log = a_run(1)
    async with case.open() as store:
        wrong: list[Record] = [replied(9), acted(4), stepped(2), stepped(7)]
        for number, record in enumerate(wrong):
            key = RunKey(f"ordered-{number}")
            await put_all(store, key, log)
            first = await settled(put(store, key, record))
            second = await settled(put(store, key, model_intent(len(log), 1))) if first is None else first
            what = f"the refusal of a {type(record).__name__} at position {record.seq}"
            demand(isinstance(second, RunConflict), f"{what} was never raised: the calls gave {first!r}, {second!r}")


@SUITE.promise(
    LATEST, look_at="a refused append_result or append_step with more of them behind it: nothing behind it may be taken"
)
async def a_barrier_tells_of_every_ordered_record_before_it(case: StoreCase) -> None:
    log = a_run(1)
    place = len(log)
    stretches: list[list[Record]] = [
        [replied(place + 3), stepped(place)],
        [acted(place - 1), replied(place), stepped(place + 1)],
        [replied(place), stepped(place + 4), stepped(place + 1)],
    ]
    async with case.open() as store:
        for number, (stretch, taken) in enumerate(zip(stretches, (0, 0, 1), strict=True)):
            key = RunKey(f"stretch-{number}")
            await put_all(store, key, log)
            right = sum(record.seq in (place, place + 1) for record in stretch)
            barrier = model_intent(place + right, 1)
            outcomes = [await settled(put(store, key, record)) for record in (*stretch, barrier)]
            told = any(isinstance(outcome, RunConflict) for outcome in outcomes)
            demand(told, f"a refusal among ordered records was never raised: the calls gave {outcomes!r}")
            await expect_log(store, key, [*log, *stretch[:taken]], "after a refusal among ordered records")


@SUITE.promise(REFUSED, look_at="appending to a key without records: only append_run_start may be the first")
async def a_first_record_that_is_no_start_is_refused(case: StoreCase) -> None:
    async with case.open() as store:
        for number, record in enumerate((*any_kind_at(0), *any_kind_at(1))):
            key = RunKey(f"first-{number}")
            await expect_refusal(store, key, record, ())
            await put(store, key, started())
            await expect_log(store, key, [started()], "after a start record followed")


@SUITE.promise("RunConflict: `record.seq` is not 0.", look_at="append_run_start with a record for a later position")
async def a_start_record_for_another_position_is_refused(case: StoreCase) -> None:
    async with case.open() as store:
        for seq in (1, 5):
            key = RunKey(f"start-{seq}")
            await expect_refusal(store, key, started(seq=seq), ())
            await put(store, key, started())
            await expect_log(store, key, [started()], "after the right start record followed")


@SUITE.promise(EXISTS, look_at="append_run_start of a key that has records: refuse it, and leave the log as it is")
async def a_second_start_is_refused(case: StoreCase) -> None:
    logs: dict[str, list[Record]] = {
        "that has just begun": [started()],
        "that goes on": a_run(1),
        "that has ended": a_run(1, end=StopReason.AGENT_FINISHED),
        "that was cancelled": a_run(1, end=StopReason.CANCELLED),
    }
    async with case.open() as store:
        for name, log in logs.items():
            key = RunKey(f"a run {name}")
            await put_all(store, key, log)
            await expect_refusal(store, key, started({"another": "snapshot"}), log, RunAlreadyExists)
            await expect_refusal(store, key, started(), log, RunAlreadyExists)


@SUITE.promise(REFUSED, look_at="the end of a run: remember it for each of the nine reasons that are not `cancelled`")
async def nothing_follows_the_end_of_a_run(case: StoreCase) -> None:
    async with case.open() as store:
        for reason in StopReason:
            if reason is StopReason.CANCELLED:
                continue
            log: list[Record] = [started(), ended(1, reason)]
            for number, record in enumerate(any_kind_at(2)):
                key = RunKey(f"{reason}-{number}")
                await put_all(store, key, log)
                await expect_refusal(store, key, record, log)


@SUITE.promise(
    "After one that is `cancelled` the run may go on.",
    look_at="an end record with `cancelled` is followed by any record, and it stays in the log, in its place",
)
async def a_cancelled_run_goes_on(case: StoreCase) -> None:
    log: list[Record] = [*a_run(1), ended(6, StopReason.CANCELLED, failures=1)]
    for number, record in enumerate(any_kind_at(7)):
        await expect_round_trip(case, [*log, record], RunKey(f"goes-on-{number}"))
    twice: list[Record] = [*log, ended(7, StopReason.CANCELLED, failures=2), stepped(8), ended(9, StopReason.CANCELLED)]
    await expect_round_trip(case, [*twice, ended(10)], RunKey("cancelled thrice"))


@SUITE.promise(NO_MORE, look_at="whatever else you check: attempts, ids, step numbers, one result for an effect")
async def records_that_do_not_fit_together_are_taken(case: StoreCase) -> None:
    odd: list[Record] = [
        started(),
        stepped(1, 7),
        replied(2, 3),
        replied(3, 3),
        acted(4, 1),
        action_intent(5, 0),
        action_intent(6, 0),
        model_intent(7, 5, attempt=9),
        model_intent(8, 5, attempt=2),
        stepped(9, 7),
        dataclasses.replace(stepped(10, 2), stop_reason=StopReason.TASK_COMPLETED),
        model_intent(11, 0),
        dataclasses.replace(model_intent(12), kind=EffectKind.MODEL_CALL, result_id="any name"),
        ended(13, failures=4),
    ]
    await expect_round_trip(case, odd)


@SUITE.promise(
    POSITION, look_at="two tasks that append to one run at once: between comparing and appending nothing may come"
)
async def of_two_tasks_at_one_position_one_wins(case: StoreCase) -> None:
    async with case.open() as store:
        for number in range(10):
            key = RunKey(f"race-{number}")
            await put(store, key, started())
            rivals = [model_intent(1, step_idx) for step_idx in range(3)]
            outcomes = await asyncio.gather(*(settled(put(store, key, rival)) for rival in rivals))
            await expect_one_winner(store, key, [started()], list(zip(rivals, outcomes, strict=True)))


async def _expect_distinct(case: StoreCase, keys: Sequence[str]) -> None:
    logs = {RunKey(key): a_run(1, snapshot={"number": n}) for n, key in enumerate(keys)}
    async with case.open() as store:
        for key, log in logs.items():
            await expect_log(store, key, (), "before anything was written under it")
            await put_all(store, key, log)
        for key, log in logs.items():
            await expect_log(store, key, log, "after other keys were written")
    if case.has_medium:
        async with case.open() as fresh:
            for key, log in logs.items():
                await expect_log(fresh, key, log, "read by a fresh object")


@SUITE.promise(KEYS, look_at="case: file systems and collations that fold it; hash the key, or compare bytes")
async def keys_that_differ_in_case_are_two_runs(case: StoreCase) -> None:
    await _expect_distinct(
        case, ("a", "A", "stra\xdfe", "strasse", "STRASSE", "\u0130", "i", "I", "\u0131", "\u017f", "s")
    )


@SUITE.promise(
    KEYS, look_at="Unicode normal forms: file systems and databases that fold them, and unicodedata.normalize"
)
async def keys_that_differ_in_normal_form_are_two_runs(case: StoreCase) -> None:
    folded = (
        "\u00e9",
        "e\u0301",
        "\ufb01",
        "fi",
        "\u212b",
        "\xc5",
        "A\u030a",
        "\uff21",
        "A",
        "\u2460",
        "1",
        "x\u200by",
        "xy",
    )
    await _expect_distinct(case, folded)


@SUITE.promise(KEYS, look_at="trimming: file systems drop trailing dots and blanks, databases pad and trim")
async def keys_that_differ_in_blanks_and_dots_are_runs_of_their_own(case: StoreCase) -> None:
    keys = (
        "a",
        "a ",
        " a",
        "a.",
        "a..",
        "a\t",
        "a\n",
        "a\r\n",
        "a\xa0",
        "\ufeffa",
        "a  b",
        "a b",
        " ",
        "  ",
        "\n",
        ".",
        "...",
    )
    await _expect_distinct(case, keys)


@SUITE.promise(KEYS, look_at="paths: never build one from a key; hash the key and keep it beside the records")
async def keys_are_no_paths(case: StoreCase) -> None:
    inside = (
        "a",
        "a/b",
        "a//b",
        "a/./b",
        "./a",
        "a/",
        "b/../a",
        "a\\b",
        "a:b",
        "a_b",
        "a-b",
        "CON",
        "nul.txt",
        "-rf",
        "~",
    )
    outside = ("..", "../x", "../../x", "/", "/etc/x", "//server/share", "C:\\x", "file:///x", "a/../../x")
    await _expect_distinct(case, inside + outside)


@SUITE.promise(
    KEYS, look_at="queries and escapes: wildcards, quotes, numbers and percent signs are characters like any other"
)
async def keys_are_no_patterns_and_no_numbers(case: StoreCase) -> None:
    patterns = (
        "%",
        "_",
        "*",
        "?",
        "[a]",
        "a",
        "a%",
        "a_",
        "ab",
        "%61",
        "a%00",
        "\\x61",
        "'; drop table runs; --",
        '"',
        "`",
    )
    numbers = (
        "1",
        "01",
        "1.0",
        "1e0",
        "+1",
        "0x1",
        "true",
        "null",
        "None",
        "NaN",
        "{}",
        "[]",
        "\x01",
        "\x7f",
        "\u2028",
    )
    await _expect_distinct(case, patterns + numbers)


@SUITE.promise(
    KEYS, look_at="long keys: 1,024 characters are legal, up to 4,096 bytes; file names and index entries are shorter"
)
async def long_keys_are_kept_to_the_last_character(case: StoreCase) -> None:
    long, wide = "k" * 1023, "\U0001f600" * 1023
    prefixes = [long[:length] for length in (1, 63, 64, 127, 128, 254, 255, 256, 1022)]
    await _expect_distinct(case, (*prefixes, long, long + "a", long + "b", wide + "a", wide + "\U0001f600", wide[:255]))


@SUITE.promise(KEYS, look_at="keys that begin alike, and keys that look like what you append to them")
async def a_key_is_not_the_runs_that_begin_with_it(case: StoreCase) -> None:
    await _expect_distinct(
        case, ("run1", "run-1", "run/1", "run.jsonl", "run:0", "run\x1f0", "run.lock", "run", "unr", "ru")
    )


@SUITE.promise(BLOCKS, look_at="after a refusal the position of this object's writer is unknown: refuse until read_log")
async def a_refusal_blocks_the_key_until_it_is_read(case: StoreCase) -> None:
    refused: dict[str, Record] = {
        "RunConflict": model_intent(5),
        "RunConflict of an ordered record": replied(5),
        "RunAlreadyExists": started(),
    }
    async with case.open() as store:
        for name, record in refused.items():
            key = RunKey(f"blocked by {name}")
            await put(store, key, started())
            outcome = await settled(put(store, key, record))
            if outcome is None and isinstance(record, EffectCompleted):
                outcome = await settled(put(store, key, model_intent(1)))
            demand(outcome is not None, f"{name} was not raised")
            outcome = await settled(put(store, key, model_intent(1)))
            demand(outcome is not None, f"right after a {name} another record of the run was taken, without a read")
            await expect_log(store, key, [started()], f"after a {name}")
            await put(store, key, model_intent(1))
            await expect_log(store, key, [started(), model_intent(1)], "after the block was lifted by a read")


@SUITE.promise(BLOCKED, look_at="the error of an append to a blocked key, for each kind of record, however often")
async def a_blocked_key_refuses_every_append(case: StoreCase) -> None:
    async with case.open() as store:
        for number, record in enumerate(any_kind_at(1)):
            key = RunKey(f"blocked-{number}")
            await put(store, key, started())
            await settled(put(store, key, model_intent(5)))
            for _ in range(2):
                outcome = await settled(put(store, key, record))
                what = f"the append of a {type(record).__name__} to a blocked key"
                demand(isinstance(outcome, RunConflict), f"{what} gave {outcome!r:.200}, expected was RunConflict")
            await expect_log(store, key, [started()], "after appends to the blocked key")


@SUITE.promise(OTHERS, look_at="a block belongs to one key, and so do the errors behind it")
async def a_refusal_blocks_no_other_key(case: StoreCase) -> None:
    other = RunKey("other")
    async with case.open() as store:
        await put_all(store, other, a_run(1))
        await put(store, KEY, started())
        demand(isinstance(await settled(put(store, KEY, model_intent(9))), RunConflict), "a gap was taken")
        await put(store, other, model_intent(6, 1))
        await put(store, RunKey("third"), started())
        await expect_log(store, other, [*a_run(1), model_intent(6, 1)], "after a refusal under another key")
        outcome = await settled(put(store, KEY, model_intent(1)))
        demand(outcome is not None, "the use of another key lifted the block; only a read of this key may")


@SUITE.promise(OTHERS, look_at="a block belongs to the store object, not to the medium")
async def a_refusal_blocks_no_other_object(case: StoreCase) -> None:
    async with two_objects(case) as (one, other):
        await put(one, KEY, started())
        demand(isinstance(await settled(put(one, KEY, model_intent(9))), RunConflict), "a gap was taken")
        await expect_log(other, KEY, [started()], "read by another object")
        await put(other, KEY, model_intent(1))
        outcome = await settled(put(one, KEY, replied(2)))
        outcome = await settled(put(one, KEY, model_intent(2))) if outcome is None else outcome
        demand(outcome is not None, "the use of another object lifted this one's block")
        await expect_log(one, KEY, [started(), model_intent(1)], "after both")
