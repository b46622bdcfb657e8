"""`RunStore`: what is written comes back, to the last bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    JSONValue,
    ModelReply,
    PlannedAction,
    Record,
    ReplayPolicy,
    RunKey,
    StopReason,
)
from tests.contract.cases import StoreCase
from tests.contract.records import (
    LARGE_TEXTS,
    LINE_TEXTS,
    NUL_TEXTS,
    NUMBERS,
    OTHER_TEXTS,
    PAIR_TEXTS,
    SURROGATE_TEXTS,
    a_run,
    a_run_holding,
    a_step,
    acted,
    action_intent,
    ended,
    failed,
    model_intent,
    nested,
    replied,
    started,
    stepped,
)
from tests.contract.store_tools import (
    EQUAL,
    KEY,
    PREFIX,
    SHARED,
    SUITE,
    TEXTS,
    expect_log,
    expect_round_trip,
    put,
    put_all,
)


@SUITE.promise(
    "An unknown key is an empty log, never an exception.",
    look_at="read_log of a key that was never written: return RunLog.from_records(()), also while other keys exist",
)
async def an_unknown_key_is_an_empty_log(case: StoreCase) -> None:
    async with case.open() as store:
        await expect_log(store, KEY, (), "before anything was written")
        await put(store, KEY, started())
        await expect_log(store, RunKey("another"), (), "after another key was written")


@SUITE.promise(
    "An unknown key is an empty log, never an exception.",
    look_at="read_log must create nothing: no row, no file and no entry that append_run_start then takes for a run",
)
async def reading_an_unknown_key_does_not_make_it_exist(case: StoreCase) -> None:
    async with case.open() as store:
        for _ in range(2):
            await expect_log(store, KEY, (), "before anything was written")
        await put(store, KEY, started())
        await expect_log(store, KEY, [started()], "after the start record")


@SUITE.promise(
    "Read a run's log from the medium.",
    look_at="build the log with RunLog.from_records, from all records in the order of their positions",
)
async def a_log_holds_each_record_in_its_place(case: StoreCase) -> None:
    cancelled = ended(11, StopReason.CANCELLED)
    records: list[Record] = [*a_run(2), cancelled, model_intent(12, 2), replied(13, 2), ended(14)]
    await expect_round_trip(case, records)


@SUITE.promise(
    "*Reads* see the object's own ordered appends.",
    look_at="read_log after append_result or append_step: buffered records must be in it, before any barrier",
)
async def reads_see_the_objects_own_ordered_appends(case: StoreCase) -> None:
    records = a_run(1)
    async with case.open() as store:
        for number, record in enumerate(records, start=1):
            await put(store, KEY, record)
            await expect_log(store, KEY, records[:number], f"right after the {type(record).__name__}")


@SUITE.promise(PREFIX, look_at="limits on the length of a log: paging of read_log, a ring, a size limit of the medium")
async def a_log_of_a_thousand_records_comes_back_whole(case: StoreCase) -> None:
    await expect_round_trip(case, a_run(200, end=StopReason.STEP_BUDGET))


async def _expect_texts(case: StoreCase, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        await expect_round_trip(case, a_run_holding(text), RunKey(f"text-{number}"))


@SUITE.promise(TEXTS, look_at="NUL characters: C strings, text columns that stop at them, replacement on writing")
async def nul_characters_come_back(case: StoreCase) -> None:
    await _expect_texts(case, NUL_TEXTS)


@SUITE.promise(
    TEXTS, look_at="encoding: UTF-8 refuses lone surrogates, errors='replace' loses them; ASCII JSON keeps them"
)
async def lone_surrogates_come_back(case: StoreCase) -> None:
    await _expect_texts(case, SURROGATE_TEXTS)


@SUITE.promise(
    TEXTS,
    look_at="JSON readers join two escaped surrogates into one character: polyloop.serialization escapes them",
)
async def surrogate_pairs_held_as_two_characters_come_back(case: StoreCase) -> None:
    await _expect_texts(case, PAIR_TEXTS)


@SUITE.promise(
    TEXTS, look_at="splitting into lines: str.splitlines cuts at U+2028 and U+0085, universal newlines change \\r"
)
async def line_separators_of_all_kinds_come_back(case: StoreCase) -> None:
    await _expect_texts(case, LINE_TEXTS)


@SUITE.promise(TEXTS, look_at="trimming, escaping, normalising, and taking an empty string for a missing one")
async def any_other_text_comes_back(case: StoreCase) -> None:
    await _expect_texts(case, OTHER_TEXTS)


@SUITE.promise(TEXTS, look_at="size limits: of a line, a column, a message of the wire protocol, a buffer")
async def megabytes_come_back(case: StoreCase) -> None:
    for number, text in enumerate(LARGE_TEXTS):
        planned = PlannedAction(action_text=text, tool_name=None, arguments={"code": text}, history_text="")
        records: list[Record] = [
            started({"prompt": text}),
            action_intent(1, action=planned),
            replied(2, reply=ModelReply(call_id=None, text=text, reasoning=text)),
            acted(3, outcome=ActionOutcome(status=ActionStatus.EXECUTED, observation=text, completed=True)),
            stepped(4, step=dataclasses.replace(a_step(), observation=text)),
        ]
        await expect_round_trip(case, records, RunKey(f"large-{number}"))


@SUITE.promise(
    "numbers by value and type",
    look_at="the JSON reader and the column type: True is not 1, 1 is not 1.0, -0.0 is not 0.0, integers have no limit "
    "below 640 digits",
)
async def numbers_come_back_by_value_and_type(case: StoreCase) -> None:
    arguments: dict[str, JSONValue] = {f"n{n:02}": value for n, value in enumerate(NUMBERS)}
    planned = PlannedAction(action_text="", tool_name="t", arguments=arguments, history_text="")
    step = dataclasses.replace(a_step(), content_chars=0, thinking_chars=1, prompt_chars=2**53 + 1)
    records: list[Record] = [
        started({"in": {"side": arguments}, "numbers": list(NUMBERS)}),
        action_intent(1, action=planned),
        stepped(2, step=step),
        ended(3, failures=1),
    ]
    await expect_round_trip(case, records)


@SUITE.promise(
    "the order of keys in mappings",
    look_at="sorted keys: sort_keys=True, jsonb and other stores of mappings that keep no order",
)
async def the_order_of_keys_comes_back(case: StoreCase) -> None:
    jumbled: dict[str, JSONValue] = {"b": 1, "10": 2, "a": {"z": 1, "y": 2, "x": [{"2": 0, "1": 0}]}, "9": 3, "B": 4}
    backwards: dict[str, JSONValue] = dict(reversed(jumbled.items()))
    planned = PlannedAction(action_text="", tool_name="t", arguments=backwards, history_text="")
    await expect_round_trip(case, [started({"m": jumbled, **backwards}), action_intent(1, action=planned)])


@SUITE.promise(
    EQUAL,
    look_at="keys of mappings: any string is one, keys that differ in a code point are two, and none is yours to use",
)
async def mappings_with_strange_keys_come_back(case: StoreCase) -> None:
    strange = (
        "",
        " ",
        "a.b",
        "$ref",
        "__class__",
        "\u00e9",
        "e\u0301",
        "a",
        "A",
        "1",
        "%25",
        "seq",
        "kind",
        "v",
        "record",
    )
    arguments: dict[str, JSONValue] = {key: {key: number} for number, key in enumerate(sorted(strange))}
    planned = PlannedAction(action_text="", tool_name="t", arguments=arguments, history_text="")
    await expect_round_trip(case, [started(arguments), action_intent(1, action=planned)])


@SUITE.promise(
    "mappings as plain dicts, sequences as lists.",
    look_at="the types of containers in records that are read: dataclasses.asdict fails on a mapping proxy",
)
async def containers_come_back_as_dicts_and_lists(case: StoreCase) -> None:
    holding: dict[str, JSONValue] = {"both": [{"in": [[], {}]}], "dict": {}, "list": []}
    planned = PlannedAction(action_text="", tool_name="t", arguments=holding, history_text="")
    await expect_round_trip(case, [started(holding), action_intent(1, action=planned)])
    await expect_round_trip(case, [started({})], RunKey("empty snapshot"))


@SUITE.promise(EQUAL, look_at="nesting: values 100 containers deep are legal, whatever you wrap around them")
async def deep_nesting_comes_back(case: StoreCase) -> None:
    planned = PlannedAction(action_text="", tool_name="t", arguments=nested(100), history_text="")
    await expect_round_trip(case, [started(nested(100)), action_intent(1, action=planned)])


@SUITE.promise(
    EQUAL, look_at="a test for truth where a test for None is meant: '' is a text, 0 a number, False an answer"
)
async def nothing_and_empty_are_told_apart(case: StoreCase) -> None:
    outcomes = [
        ActionOutcome(status=ActionStatus.EXECUTED, observation="", completed=completed) for completed in (None, False)
    ]
    bare = dataclasses.replace(
        a_step(),
        action=None,
        parse_error=None,
        call_id=None,
        tool_name=None,
        tool_arguments_json=None,
        action_status=None,
    )
    empty = dataclasses.replace(bare, action="", parse_error="", call_id="", tool_name="", tool_arguments_json="")
    records: list[Record] = [
        started({"a": None, "b": "", "c": 0, "d": False}),
        replied(1, reply=ModelReply(call_id=None, text="", reasoning=None)),
        replied(2, reply=ModelReply(call_id="c", text="", reasoning="")),
        failed(3, ""),
        acted(4, outcome=outcomes[0]),
        acted(5, outcome=outcomes[1]),
        dataclasses.replace(stepped(6, step=bare), result_id=None),
        dataclasses.replace(stepped(7, step=empty), result_id="", final_answer=""),
        dataclasses.replace(ended(8), final_answer="", detail=None),
    ]
    await expect_round_trip(case, records)


@SUITE.promise(EQUAL, look_at="the list of fields that you write and read: those with defaults are easily forgotten")
async def every_field_comes_back(case: StoreCase) -> None:
    outcome = ActionOutcome(
        status=ActionStatus.EXECUTED,
        observation="seen",
        completed=True,
        truncated_chars=7,
        observation_is_synthetic=True,
    )
    flipped = dataclasses.replace(a_step(), parse_ok=False, observation_is_synthetic=True)
    verdict = dataclasses.replace(stepped(4, step=flipped), stop_reason=StopReason.LLM_ERROR, final_answer="a")
    end = dataclasses.replace(ended(5), final_answer="b", detail="c", event_sink_failures=3)
    reply = replied(2, reply=ModelReply(call_id="id", text="t", reasoning="r"))
    await expect_round_trip(
        case, [started(), model_intent(1, 9, attempt=4), reply, acted(3, outcome=outcome), verdict, end]
    )


@SUITE.promise(EQUAL, look_at="enumerations: give back the members, not their literals, and every member there is")
async def every_member_of_every_enumeration_comes_back(case: StoreCase) -> None:
    for number, reason in enumerate(StopReason):
        verdict = dataclasses.replace(stepped(1), stop_reason=reason)
        await expect_round_trip(case, [started(), verdict, ended(2, reason)], RunKey(f"reason-{number}"))
    records: list[Record] = [started()]
    for replay in ReplayPolicy:
        records.append(dataclasses.replace(model_intent(len(records)), replay=replay))
        records.append(dataclasses.replace(action_intent(len(records)), replay=replay))
    for status in ActionStatus:
        outcome = ActionOutcome(status=status, observation="", completed=False)
        records.append(acted(len(records), outcome=outcome))
    await expect_round_trip(case, records)


@SUITE.promise(
    EQUAL,
    look_at="recorded_at is a text to you: keep it to the character, and never sort by it; clocks go backwards",
)
async def times_are_kept_and_mean_nothing(case: StoreCase) -> None:
    times = [f"2026-03-04T05:06:0{9 - n}.{n * 1000:06d}+00:00" for n in range(6)]
    records: list[Record] = [
        started(at=times[0]),
        model_intent(1, at=times[1]),
        replied(2, at=times[2]),
        stepped(3, at=times[3]),
        model_intent(4, 1, at=times[3]),
        dataclasses.replace(ended(5), recorded_at=times[5]),
    ]
    await expect_round_trip(case, records)


@SUITE.promise(SHARED, look_at="keep a copy or the encoded text of what is handed in, not the object")
async def changing_what_was_handed_in_changes_no_record(case: StoreCase) -> None:
    def snapshot() -> dict[str, JSONValue]:
        return {"model": {"name": "m"}, "tools": ["a", {"b": 1}]}

    mine, planned = snapshot(), snapshot()
    async with case.open() as store:
        await put(store, KEY, started(mine))
        action = PlannedAction(action_text="", tool_name="t", arguments=planned, history_text="")
        await put(store, KEY, action_intent(1, action=action))
        for held in cast("tuple[Any, ...]", (mine, planned)):
            held["model"]["name"] = "changed"
            held["tools"][1]["b"] = 2
            held["more"] = 1
        action = PlannedAction(action_text="", tool_name="t", arguments=snapshot(), history_text="")
        expected: list[Record] = [started(snapshot()), action_intent(1, action=action)]
        await expect_log(store, KEY, expected, "after the mappings that were handed in had been changed")


@SUITE.promise(SHARED, look_at="read_log must give fresh mappings each time, nested ones included")
async def changing_what_was_handed_out_changes_no_record(case: StoreCase) -> None:
    def records() -> list[Record]:
        planned = PlannedAction(action_text="", tool_name="t", arguments={"deep": {"n": [1]}}, history_text="")
        return [started({"deep": {"n": [1]}}), action_intent(1, action=planned)]

    async with case.open() as store:
        await put_all(store, KEY, records())
        log: Any = await store.read_log(KEY)
        for held in (log.started.params_snapshot, log.intents[0].action.arguments):
            # What cannot be changed at all is another promise's business.
            with contextlib.suppress(TypeError, AttributeError):
                held["deep"]["n"].append(2)
            with contextlib.suppress(TypeError, AttributeError):
                held["more"] = 1
        await expect_log(store, KEY, records(), "after the mappings of an earlier read had been changed")
