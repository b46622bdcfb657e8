"""Values check themselves, errors carry their facts, and a log knows its positions."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given

from polyloop import types
from polyloop.ports import ActionDecision, FinalAnswer, InvalidDecision, ParsedReply
from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    Budget,
    ChatMessage,
    CorruptionReason,
    CorruptRunLog,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    EnvironmentFailure,
    IdentityDifference,
    InjectedEntry,
    InvalidRequest,
    ModelReply,
    PlannedAction,
    PolyLoopError,
    Record,
    ReplayPolicy,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunIdentityMismatch,
    RunKey,
    RunLog,
    RunNotFound,
    RunResult,
    RunStarted,
    Step,
    StepCompleted,
    StopReason,
    StoreBusy,
    UnsupportedSchemaVersion,
    Usage,
)
from polyloop.types._checks import check_run_key, check_seconds
from polyloop.types.records import detached, is_terminal
from tests import strategies
from tests.contract.records import a_run, a_step, any_kind_at, ended, model_intent, started, stepped

WHEN: Final = "2026-03-04T05:06:07.000008+00:00"
SECRET: Final = "sk-do-not-tell-anybody"  # noqa: S105 - nobody's

MESSAGE: Final = ChatMessage(role="user", content="hello")
REPLY: Final = ModelReply(call_id="c", text="t", reasoning=None)
OUTCOME: Final = ActionOutcome(status=ActionStatus.EXECUTED, observation="o", completed=False)
ACTION: Final = PlannedAction(action_text="a", tool_name=None, arguments={}, history_text="h")
USAGE: Final = Usage(model_calls=1, executed_actions=0, steps=1, prompt_chars=5, content_chars=4, thinking_chars=3)


class Text(str):
    """A string that is not exactly `str`, as an enum's member is not."""

    __slots__ = ()


# What is wrong for a field, by what the field is.
NO_STRING: Final = (None, 1, True, b"x", ["x"], {"x": 1}, object())
NO_OPTIONAL_STRING: Final = (1, False, 0, b"", ["x"], object())
NO_BOOL: Final[tuple[Any, ...]] = (None, 0, 1, "True", "", 1.0, [])
NO_COUNT: Final = (None, -1, True, False, 1.0, "1", 2**63, 10**700, b"1")
NO_POSITIVE: Final = (*NO_COUNT, 0)
NO_MAPPING: Final = (None, "{}", 1, [("a", 1)], {"a"}, object())
NO_TIME: Final = (
    *(None, 1, "", b"2026-03-04T05:06:07.000008+00:00"),
    *("2026-03-04T05:06:07+00:00", "2026-03-04T05:06:07.000+00:00", "2026-03-04 05:06:07.000008+00:00"),
    *("2026-03-04T05:06:07.000008Z", "2026-03-04T05:06:07.000008+01:00", "2026-03-04T05:06:07.000008"),
    *(f"{WHEN}\n", f" {WHEN}", "２026-03-04T05:06:07.000008+00:00"),  # noqa: RUF001 - a digit of another script
)


def no_enum(cls: type[enum.Enum]) -> tuple[Any, ...]:
    """Wrong where a member of the enum is asked for: its literal too, for a typing mistake would pass otherwise."""
    return (None, "", "unknown", next(iter(cls)).value, 1, True, cls)


PLACE: Final = {"seq": NO_COUNT, "recorded_at": NO_TIME}

CASES: Final[list[tuple[type, dict[str, Any], dict[str, tuple[Any, ...]]]]] = [
    # class, arguments that are right, wrong values of each field
    (
        ChatMessage,
        {"role": "user", "content": ""},
        {"role": (None, "", "tool", "User", "user ", 1, b"user", ["user"]), "content": NO_STRING},
    ),
    (
        InjectedEntry,
        {"entry_id": "skill-1", "message": MESSAGE},
        {"entry_id": (*NO_STRING, ""), "message": (None, "hello", {"role": "user", "content": "x"}, ChatMessage)},
    ),
    (
        Budget,
        {"max_steps": 1, "max_executed_actions": 1, "max_prompt_chars": 1, "max_consecutive_parse_failures": 1},
        dict.fromkeys(
            ("max_steps", "max_executed_actions", "max_prompt_chars", "max_consecutive_parse_failures"), NO_POSITIVE
        ),
    ),
    (
        ModelReply,
        {"call_id": None, "text": "", "reasoning": None},
        {"call_id": (*NO_OPTIONAL_STRING, ""), "text": NO_STRING, "reasoning": NO_OPTIONAL_STRING},
    ),
    (
        ActionOutcome,
        {"status": ActionStatus.EXECUTED, "observation": "", "completed": None},
        {
            "status": no_enum(ActionStatus),
            "observation": NO_STRING,
            "completed": (0, 1, "True", "", 1.0, []),
            "truncated_chars": NO_COUNT,
            "observation_is_synthetic": NO_BOOL,
        },
    ),
    (
        PlannedAction,
        {"action_text": "", "tool_name": None, "arguments": {}, "history_text": ""},
        {
            "action_text": NO_STRING,
            "tool_name": NO_OPTIONAL_STRING,
            "arguments": NO_MAPPING,
            "history_text": NO_STRING,
        },
    ),
    (
        Step,
        {field.name: getattr(a_step(), field.name) for field in dataclasses.fields(Step)},
        {
            **dict.fromkeys(("raw_output", "observation"), NO_STRING),
            **dict.fromkeys(("parse_ok", "observation_is_synthetic"), NO_BOOL),
            **dict.fromkeys(("step_idx", "content_chars", "thinking_chars"), NO_COUNT),
            **dict.fromkeys(("observation_truncated_chars", "prompt_chars", "step_wall_ms"), NO_COUNT),
            **dict.fromkeys(("action", "parse_error", "call_id"), NO_OPTIONAL_STRING),
            **dict.fromkeys(("tool_name", "tool_arguments_json", "action_status"), NO_OPTIONAL_STRING),
            "schema_version": (None, 1, 1.0, "", "1", "1.0.0", "v1.0", "01.0", "1.00", "1.0\n", "-1.0", "1.9999999999"),
        },
    ),
    (
        Usage,
        {field.name: 0 for field in dataclasses.fields(Usage)},
        {field.name: NO_COUNT for field in dataclasses.fields(Usage)},
    ),
    (
        RunResult,
        {
            "key": RunKey("run"),
            "stop_reason": StopReason.STEP_BUDGET,
            "steps": (),
            "final_answer": None,
            "detail": None,
            "usage": USAGE,
            "params_snapshot": {},
            "event_sink_failures": 0,
        },
        {
            "key": (None, "", 1, b"run", "a\0b"),
            "stop_reason": no_enum(StopReason),
            "steps": (None, [], "steps", iter(())),
            "final_answer": NO_OPTIONAL_STRING,
            "detail": NO_OPTIONAL_STRING,
            "usage": (None, {}, dataclasses.asdict(USAGE)),
            "params_snapshot": NO_MAPPING,
            "event_sink_failures": NO_COUNT,
        },
    ),
    (
        RunStarted,
        {"seq": 0, "recorded_at": WHEN, "params_snapshot": {}, "library_version": ""},
        {**PLACE, "params_snapshot": NO_MAPPING, "library_version": NO_STRING},
    ),
    (
        EffectIntended,
        {
            "seq": 0,
            "recorded_at": WHEN,
            "result_id": "000000-action",
            "kind": EffectKind.ACTION,
            "step_idx": 0,
            "attempt": 1,
            "replay": ReplayPolicy.NEVER,
            "action": ACTION,
        },
        {
            **PLACE,
            "result_id": (*NO_STRING, ""),
            "kind": no_enum(EffectKind),
            "step_idx": NO_COUNT,
            "attempt": NO_POSITIVE,
            "replay": no_enum(ReplayPolicy),
            "action": (None, "walk", {}, PlannedAction),
        },
    ),
    (
        EffectCompleted,
        {"seq": 0, "recorded_at": WHEN, "result_id": "x", "reply": None, "outcome": None, "error": ""},
        {
            **PLACE,
            "result_id": (*NO_STRING, ""),
            "reply": ("text", {}, OUTCOME, False),
            "outcome": ("text", {}, REPLY, False),
            "error": (1, False, b"", "x" * 2001),
        },
    ),
    (
        StepCompleted,
        {
            "seq": 0,
            "recorded_at": WHEN,
            "step": a_step(),
            "result_id": None,
            "stop_reason": None,
            "final_answer": None,
        },
        {
            **PLACE,
            "step": (None, {}, Step),
            "result_id": NO_OPTIONAL_STRING,
            "stop_reason": no_enum(StopReason)[1:],
            "final_answer": NO_OPTIONAL_STRING,
        },
    ),
    (
        RunFinished,
        {
            "seq": 0,
            "recorded_at": WHEN,
            "stop_reason": StopReason.CANCELLED,
            "final_answer": None,
            "detail": None,
            "event_sink_failures": 0,
        },
        {
            **PLACE,
            "stop_reason": no_enum(StopReason),
            "final_answer": NO_OPTIONAL_STRING,
            "detail": NO_OPTIONAL_STRING,
            "event_sink_failures": NO_COUNT,
        },
    ),
    (
        ActionDecision,
        {"action_text": "", "tool_name": None, "arguments": {}},
        {"action_text": NO_STRING, "tool_name": NO_OPTIONAL_STRING, "arguments": NO_MAPPING},
    ),
    (FinalAnswer, {"text": ""}, {"text": NO_STRING}),
    (InvalidDecision, {"reason": ""}, {"reason": NO_STRING}),
    (
        ParsedReply,
        {"history_text": "", "decision": FinalAnswer(text="")},
        {"history_text": NO_STRING, "decision": (None, "final: 42", FinalAnswer, {"text": ""}, REPLY)},
    ),
]

IDS: Final = [case[0].__name__ for case in CASES]


@pytest.mark.parametrize(("cls", "right", "wrong"), CASES, ids=IDS)
def test_a_value_that_is_right_is_built_and_keeps_what_it_was_given(
    cls: type, right: dict[str, Any], wrong: dict[str, tuple[Any, ...]]
) -> None:
    value = cls(**right)
    assert {name: getattr(value, name) for name in right} == right
    assert wrong.keys() == {field.name for field in dataclasses.fields(cls)}, "the table misses a field"


@pytest.mark.parametrize(
    ("cls", "right", "field", "value"),
    [(cls, right, field, value) for cls, right, wrong in CASES for field, values in wrong.items() for value in values],
    ids=[
        f"{cls.__name__}.{field}-{number}"
        for cls, _, wrong in CASES
        for field, values in wrong.items()
        for number in range(len(values))
    ],
)
def test_a_value_that_is_wrong_is_refused_by_the_name_of_its_field(
    cls: type, right: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cls(**{**right, field: value})
    assert refused.value.field == f"{cls.__name__}.{field}"
    assert str(refused.value).startswith(f"{cls.__name__}.{field}: ")
    assert refused.value.problem


@pytest.mark.parametrize(("cls", "right", "wrong"), CASES, ids=IDS)
def test_a_refusal_tells_the_type_and_never_the_value(
    cls: type, right: dict[str, Any], wrong: dict[str, tuple[Any, ...]]
) -> None:
    for field in wrong:
        # `steps` and `decision` and the like refuse a string; fields that take any string refuse a list of it.
        takes_text = field in right and isinstance(right[field], str)
        with pytest.raises(InvalidRequest) as refused:
            cls(**{**right, field: [SECRET] if takes_text or right.get(field) is None else object_named(SECRET)})
        assert SECRET not in str(refused.value)
        assert SECRET not in repr(refused.value)


def object_named(name: str) -> object:
    """An object whose repr tells a name."""

    class Named:
        def __repr__(self) -> str:
            return name

    return Named()


def test_a_message_takes_each_of_the_three_roles() -> None:
    for role in ("system", "user", "assistant"):
        assert ChatMessage(role=role, content="x").role == role


def test_counts_take_zero_and_the_largest_number_of_a_database() -> None:
    for count in (0, 2**63 - 1):
        assert dataclasses.replace(USAGE, steps=count).steps == count
    assert (
        Budget(
            max_steps=2**63 - 1, max_executed_actions=1, max_prompt_chars=1, max_consecutive_parse_failures=1
        ).max_steps
        == 2**63 - 1
    )


def test_a_model_call_announces_no_action() -> None:
    with pytest.raises(InvalidRequest) as refused:
        dataclasses.replace(model_intent(1), action=ACTION)
    assert refused.value.field == "EffectIntended.action"


@pytest.mark.parametrize(
    ("reply", "outcome", "error"),
    [(None, None, None), (REPLY, OUTCOME, None), (REPLY, None, ""), (None, OUTCOME, "e"), (REPLY, OUTCOME, "e")],
)
def test_a_result_is_exactly_one_of_reply_outcome_and_error(
    reply: ModelReply | None, outcome: ActionOutcome | None, error: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        EffectCompleted(seq=1, recorded_at=WHEN, result_id="x", reply=reply, outcome=outcome, error=error)
    assert refused.value.field == "EffectCompleted"


def test_an_error_may_be_2000_characters_long_and_may_be_empty() -> None:
    for error in ("", "x" * 2000):
        EffectCompleted(seq=1, recorded_at=WHEN, result_id="x", reply=None, outcome=None, error=error)


@pytest.mark.parametrize(("cls", "right", "wrong"), CASES, ids=IDS)
def test_a_value_cannot_be_changed_and_takes_no_positional_arguments(
    cls: type, right: dict[str, Any], wrong: dict[str, tuple[Any, ...]]
) -> None:
    value = cls(**right)
    for field in wrong:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, right.get(field))
    with pytest.raises(TypeError):
        cls(*right.values())
    with pytest.raises((AttributeError, TypeError)):
        # Slots: no room for a field that nobody declared. Python words the refusal in two ways.
        object.__setattr__(value, "surplus", 1)


# Keys


@pytest.mark.parametrize(
    "key",
    [
        *("a", " ", ".", "..", "a/b", "../x", "/etc/x", "a\\b", "CON", "a\nb", "trailing. ", "A", "é", "e\u0301"),
        *("\x01", "\x7f", "\u2028", "\ufeff", "\uffff", "\U0001f600", "x" * 1024, "\U0001f600" * 1024, "%s", "{}"),
    ],
    ids=ascii,
)
def test_a_key_is_any_text_without_nul_and_lone_surrogates(key: str) -> None:
    check_run_key(key)
    check_run_key(Text(key))


@pytest.mark.parametrize(
    "key",
    [None, 1, b"a", ["a"], "", "x" * 1025, "\0", "a\0b", "\ud800", "a\udfff", "\ud83d\ude00", "\udc80x"],
    ids=lambda key: ascii(key)[:20],
)
def test_any_other_key_is_refused(key: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_run_key(key)
    assert refused.value.field == "RunRequest.key"
    with pytest.raises(InvalidRequest) as refused:
        check_run_key(key, "Elsewhere.key")
    assert refused.value.field == "Elsewhere.key"


@pytest.mark.parametrize("seconds", [1, 0.001, 5e-324, 1e308, 10**300])
def test_a_number_of_seconds_is_finite_and_above_zero(seconds: float) -> None:
    check_seconds("x", seconds)


@pytest.mark.parametrize("seconds", [None, True, "1", 0, 0.0, -0.0, -1, float("inf"), float("nan"), 10**400, 1j])
def test_any_other_number_of_seconds_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_seconds("RunRequest.finalize_timeout_s", seconds)
    assert refused.value.field == "RunRequest.finalize_timeout_s"


# Errors

DIFFERENCE: Final = IdentityDifference(path="budget.max_steps", recorded="1", present="2")

ERRORS: Final[list[tuple[PolyLoopError, dict[str, object]]]] = [
    # an error, and its facts
    (
        InvalidRequest("Budget.max_steps", "must be 1 or more"),
        {"field": "Budget.max_steps", "problem": "must be 1 or more"},
    ),
    (RunNotFound("run"), {"key": "run", "field": "RunRequest.key"}),
    (RunAlreadyExists("run"), {"key": "run"}),
    (RunIdentityMismatch("run", (DIFFERENCE,)), {"key": "run", "differences": (DIFFERENCE,)}),
    (
        CorruptRunLog(CorruptionReason.WRONG_POSITION, "a gap", key="run", seq=3, line=4, offset=512),
        {
            "reason": CorruptionReason.WRONG_POSITION,
            "problem": "a gap",
            "key": "run",
            "seq": 3,
            "line": 4,
            "offset": 512,
        },
    ),
    (
        CorruptRunLog(CorruptionReason.MALFORMED_RECORD, "no JSON"),
        {"reason": CorruptionReason.MALFORMED_RECORD, "key": None, "seq": None, "line": None, "offset": None},
    ),
    (
        RunConflict("run", "the log has moved", seq=3, next_seq=5),
        {"key": "run", "problem": "the log has moved", "seq": 3, "next_seq": 5},
    ),
    (RunConflict("run", "busy"), {"key": "run", "seq": None, "next_seq": None}),
    (StoreBusy("run", 2.5), {"key": "run", "waited_s": 2.5}),
    (StoreBusy(None, 0.0), {"key": None, "waited_s": 0.0}),
    (UnsupportedSchemaVersion("2.0", "1.0", "another major version"), {"found": "2.0", "supported": "1.0"}),
    (EnvironmentFailure("the container is gone"), {"args": ("the container is gone",)}),
    (PolyLoopError("anything"), {"args": ("anything",)}),
]
ERROR_IDS: Final = [f"{type(error).__name__}-{number}" for number, (error, _) in enumerate(ERRORS)]


@pytest.mark.parametrize(("error", "facts"), ERRORS, ids=ERROR_IDS)
def test_an_error_carries_its_facts_as_attributes(error: PolyLoopError, facts: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in facts} == facts
    assert str(error) == str(error.args[0])
    assert "\n" not in str(error)


def by_pickle(error: PolyLoopError) -> object:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - what was pickled here


@pytest.mark.parametrize("copied", [by_pickle, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(("error", "facts"), ERRORS, ids=ERROR_IDS)
def test_an_error_survives_pickle_and_copy(
    error: PolyLoopError, facts: dict[str, object], copied: Callable[[PolyLoopError], object]
) -> None:
    error.add_note("seen by the caller")
    twin = copied(error)
    assert type(twin) is type(error)
    assert isinstance(twin, PolyLoopError)
    assert twin is not error
    assert (twin.args, str(twin)) == (error.args, str(error))
    assert vars(twin) == vars(error)
    assert {name: getattr(twin, name) for name in facts} == facts


def test_every_error_is_in_the_table() -> None:
    classes = {each for each in vars(types).values() if isinstance(each, type) and issubclass(each, PolyLoopError)}
    assert {type(error) for error, _ in ERRORS} == classes


def test_one_except_clause_catches_them_all_and_a_missing_run_is_an_invalid_request() -> None:
    assert all(isinstance(error, PolyLoopError) for error, _ in ERRORS)
    assert issubclass(RunNotFound, InvalidRequest)
    assert not issubclass(RunConflict, RunAlreadyExists)
    assert not issubclass(PolyLoopError, OSError | ValueError)


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "é\u2028", "k" * 1024])
def test_a_key_stands_in_a_message_on_one_printable_line(key: str) -> None:
    for error in (RunNotFound(key), RunAlreadyExists(key), RunConflict(key, "busy"), StoreBusy(key, 1.0)):
        assert str(error).isascii()
        assert str(error).isprintable()
        assert len(str(error)) < 400
        assert error.key == key


def test_a_mismatch_names_every_difference_up_to_20_and_counts_the_rest() -> None:
    differences = tuple(
        IdentityDifference(path=f"tools[{index}]", recorded="x" * 999, present=None) for index in range(25)
    )
    message = str(RunIdentityMismatch("run", differences))
    assert "tools[19]" in message
    assert "tools[20]" not in message
    assert "5 more" in message
    assert "nothing" in message
    assert len(message) < 20 * 300
    assert "more" not in str(RunIdentityMismatch("run", differences[:20]))
    assert "1 more" in str(RunIdentityMismatch("run", differences[:21]))


def test_a_finding_takes_the_places_that_its_caller_knows_and_keeps_its_own() -> None:
    bare = CorruptRunLog(CorruptionReason.WRONG_STEP, "step 4 is due")
    located = bare.located(key="run", seq=7, line=8, offset=99)
    assert (located.reason, located.problem) == (bare.reason, bare.problem)
    assert (located.key, located.seq, located.line, located.offset) == ("run", 7, 8, 99)
    again = located.located()
    assert (again.key, again.seq, again.line, again.offset) == ("run", 7, 8, 99)
    for part in ("'run'", "seq 7", "line 8", "byte 99", "wrong_step", "step 4 is due"):
        assert part in str(located)
    assert "seq" not in str(bare)


# The log


def refused_log(records: list[Any]) -> CorruptRunLog:
    with pytest.raises(CorruptRunLog) as refused:
        RunLog.from_records(records)
    return refused.value


def test_a_run_that_does_not_exist_has_an_empty_log() -> None:
    log = RunLog.from_records([])
    assert log == RunLog(started=None, intents=(), results=(), steps=(), finished=None, cancellations=())
    assert log.next_seq == 0
    assert log.records() == ()


def test_a_log_sorts_its_records_by_kind_and_gives_them_back_in_order() -> None:
    records = a_run(3, end=StopReason.TASK_COMPLETED)
    log = RunLog.from_records(iter(records))
    assert log.started is records[0]
    assert log.finished is records[-1]
    assert [len(log.intents), len(log.results), len(log.steps), len(log.cancellations)] == [6, 6, 3, 0]
    assert log.records() == tuple(records)
    assert [record.seq for record in log.records()] == list(range(log.next_seq))


def test_every_prefix_of_a_log_is_a_log_and_knows_its_next_position() -> None:
    records = [*a_run(2), ended(11, StopReason.CANCELLED), model_intent(12, 2), ended(13, StopReason.CANCELLED)]
    for length in range(len(records) + 1):
        log = RunLog.from_records(records[:length])
        assert log.next_seq == length
        assert log.records() == tuple(records[:length])


def test_a_cancelled_end_is_the_end_until_something_follows_it() -> None:
    first, second = ended(1, StopReason.CANCELLED, failures=1), ended(3, StopReason.CANCELLED, failures=2)
    assert RunLog.from_records([started(), first]).finished is first
    assert RunLog.from_records([started(), first]).cancellations == ()
    resumed = RunLog.from_records([started(), first, model_intent(2)])
    assert (resumed.finished, resumed.cancellations) == (None, (first,))
    again = RunLog.from_records([started(), first, model_intent(2), second])
    assert (again.finished, again.cancellations) == (second, (first,))
    straight = RunLog.from_records([started(), first, ended(2, StopReason.CANCELLED), ended(3)])
    assert straight.finished == ended(3)
    assert [each.seq for each in straight.cancellations] == [1, 2]


@pytest.mark.parametrize("record", any_kind_at(0), ids=lambda record: type(record).__name__)
def test_a_log_begins_with_a_start_record(record: Record) -> None:
    refused = refused_log([record])
    assert (refused.reason, refused.seq) == (CorruptionReason.MISSING_START, 0)


def test_a_log_has_one_start_record() -> None:
    refused = refused_log([started(), started(seq=1)])
    assert (refused.reason, refused.seq) == (CorruptionReason.SECOND_START, 1)


@pytest.mark.parametrize("reason", [reason for reason in StopReason if reason is not StopReason.CANCELLED])
def test_nothing_follows_an_end_that_is_not_a_cancellation(reason: StopReason) -> None:
    for record in any_kind_at(2):
        refused = refused_log([started(), ended(1, reason), record])
        assert (refused.reason, refused.seq) == (CorruptionReason.RECORD_AFTER_END, 2)


@pytest.mark.parametrize("seq", [0, 1, 3, 4, 2**40])
def test_a_record_stands_at_the_position_that_it_names(seq: int) -> None:
    refused = refused_log([started(), model_intent(1), stepped(seq)])
    assert (refused.reason, refused.seq) == (CorruptionReason.WRONG_POSITION, 2)
    assert refused_log([started(seq=1)]).reason is CorruptionReason.WRONG_POSITION


@pytest.mark.parametrize("damage", ["drop", "double", "swap"])
def test_a_record_that_is_missing_doubled_or_swapped_is_found_wherever_it_is(damage: str) -> None:
    records = a_run(2, end=StopReason.TASK_COMPLETED)
    for at in range(len(records) - 1):
        damaged = list(records)
        if damage == "drop":
            del damaged[at]
        elif damage == "double":
            damaged.insert(at, damaged[at])
        else:
            damaged[at], damaged[at + 1] = damaged[at + 1], damaged[at]
        assert refused_log(damaged).reason is CorruptionReason.WRONG_POSITION


@pytest.mark.parametrize("foreign", [None, {}, "record", a_step(), REPLY, RunStarted], ids=str)
def test_something_that_is_no_record_is_refused(foreign: object) -> None:
    refused = refused_log([started(), foreign])
    assert (refused.reason, refused.seq) == (CorruptionReason.MALFORMED_RECORD, 1)


def test_only_an_end_other_than_a_cancellation_is_terminal() -> None:
    for record in any_kind_at(1):
        assert is_terminal(record) is isinstance(record, RunFinished)
    for reason in StopReason:
        assert is_terminal(ended(1, reason)) is (reason is not StopReason.CANCELLED)


@given(strategies.records)
def test_a_detached_record_is_equal_and_shares_no_mapping(record: Record) -> None:
    twin = detached(record)
    assert twin == record
    assert type(twin) is type(record)
    for mine, its in zip(containers(record), containers(twin), strict=True):
        assert mine is not its


def containers(value: object) -> list[object]:
    """All mappings and lists that a value holds."""
    if dataclasses.is_dataclass(value):
        return [each for field in dataclasses.fields(value) for each in containers(getattr(value, field.name))]
    if isinstance(value, Mapping):
        return [value, *(each for inner in value.values() for each in containers(inner))]
    if isinstance(value, list):
        return [value, *(each for inner in value for each in containers(inner))]
    return []


@given(strategies.records)
def test_as_a_dict_a_record_is_plain_json(record: Record) -> None:
    plain = dataclasses.asdict(record)
    assert json.loads(json.dumps(plain)) is not None
    assert list(plain) == [field.name for field in dataclasses.fields(record)]


def test_records_are_compared_by_what_they_hold() -> None:
    assert stepped(5) == stepped(5)
    assert stepped(5) != stepped(6)
    assert ended(5) != ended(5, StopReason.STEP_BUDGET)
