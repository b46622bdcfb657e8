"""Records as text: what is written reads back to the last bit, what is not a record is refused, nothing in between."""

from __future__ import annotations

import copy
import dataclasses
import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyloop import SCHEMA_VERSION, decode, encode
from polyloop.serialization import SCHEMA_VERSIONS
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    InvalidRequest,
    PolyLoopError,
    Record,
    UnsupportedSchemaVersion,
)
from tests import strategies
from tests.contract.records import (
    LARGE_TEXTS,
    LINE_TEXTS,
    NUL_TEXTS,
    NUMBERS,
    OTHER_TEXTS,
    PAIR_TEXTS,
    SURROGATE_TEXTS,
    a_run_holding,
    action_intent,
    difference,
    ended,
    nested,
    started,
)
from tests.ids import stable_id
from tests.unit.stored_records import VERSION_1_0

Document: TypeAlias = dict[str, Any]
Path_: TypeAlias = tuple[str, ...]

FIXTURES: Final = Path(__file__).parent / "fixtures"
STORED: Final = {"1.0": VERSION_1_0}
DOCUMENTS: Final[list[Document]] = [json.loads(encode(record)) for record in VERSION_1_0]
IDS: Final = [f"{document['record']}-{document['seq']}" for document in DOCUMENTS]


def refused(text: Any) -> PolyLoopError:
    """What decoding raises: one of the two errors that it may."""
    with pytest.raises((CorruptRunLog, UnsupportedSchemaVersion)) as error:
        decode(text)
    if isinstance(error.value, CorruptRunLog):
        assert error.value.reason is CorruptionReason.MALFORMED_RECORD
    assert len(str(error.value)) < 1000, "a message stays readable, however long the text is"
    return error.value


def corrupt(text: Any) -> CorruptRunLog:
    """Decoding must call this damage."""
    error = refused(text)
    assert isinstance(error, CorruptRunLog)
    return error


def unsupported(text: Any) -> UnsupportedSchemaVersion:
    """Decoding must say that a newer library wrote this."""
    error = refused(text)
    assert isinstance(error, UnsupportedSchemaVersion)
    return error


def judge(text: str) -> Record | None:
    """Decode what may be damaged: None if it was refused, else a record that says all that the text says.

    A record that differs from its text in anything, a number's type included, was half understood.
    """
    try:
        record = decode(text)
    except (CorruptRunLog, UnsupportedSchemaVersion):
        return None
    document = json.loads(text)
    if document["schema"] == SCHEMA_VERSION:
        again = json.loads(encode(record))
        document.setdefault("escaped", False)
        again.setdefault("escaped", False)
        if document["escaped"] is again["escaped"]:
            found = difference(in_order(document), in_order(again), "record")
            assert found is None, f"half understood: {found}: {text}"
    return record


def in_order(value: Any) -> Any:
    """The value with its keys sorted: their order is no part of a record's fields."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(inner) for inner in value] if isinstance(value, list) else value


# What is written


@given(strategies.records)
def test_a_record_comes_back_to_the_last_bit(record: Record) -> None:
    assert difference(record, decode(encode(record)), "record") is None


@given(strategies.records)
def test_the_text_is_one_line_of_strict_ascii_json(record: Record) -> None:
    text = encode(record)
    assert text.isascii()
    assert text.isprintable()
    assert text.splitlines() == [text]
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["schema"] == SCHEMA_VERSION == "1.0"
    assert document.keys() - {"schema", "record", "escaped"} == {f.name for f in dataclasses.fields(record)}


@pytest.mark.parametrize(
    "text",
    [*NUL_TEXTS, *SURROGATE_TEXTS, *PAIR_TEXTS, *LINE_TEXTS, *OTHER_TEXTS, *LARGE_TEXTS],
    ids=lambda text: ascii(text[:12]),
)
def test_every_string_comes_back_from_every_place(text: str) -> None:
    for record in a_run_holding(text):
        assert difference(record, decode(encode(record)), "record") is None


def test_every_number_comes_back_with_its_type() -> None:
    record = started({"numbers": list(NUMBERS)})
    assert difference(record, decode(encode(record)), "record") is None


def test_containers_come_back_as_plain_dicts_and_lists_up_to_the_limit_of_depth() -> None:
    record = started({"tuple": (1, (2,)), "proxy": types.MappingProxyType({"a": ()})})
    read = decode(encode(record))
    assert difference(started({"tuple": [1, [2]], "proxy": {"a": []}}), read, "record") is None
    deepest = started(nested(100))
    assert difference(deepest, decode(encode(deepest)), "record") is None


def test_the_order_of_keys_comes_back() -> None:
    record = started({"b": 1, "a": {"d": 1, "c": 2}, "": 3})
    assert difference(record, decode(encode(record)), "record") is None


@pytest.mark.parametrize(
    ("record", "path"),
    [
        (started({"a": [1, float("nan")]}), "RunStarted.params_snapshot.a[1]"),
        (started({"a": {1: 2}}), "RunStarted.params_snapshot.a"),  # type: ignore[dict-item] # what is refused here
        (started({"a": b"x"}), "RunStarted.params_snapshot.a"),
    ],
    ids=["nan", "key", "bytes"],
)
def test_what_is_not_json_is_refused_by_its_path(record: Record, path: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        encode(record)
    assert error.value.field == path


def test_arguments_that_are_not_json_are_refused_by_their_path() -> None:
    intent = action_intent(3)
    assert intent.action is not None
    planned = dataclasses.replace(intent.action, arguments={"x": float("inf")})
    with pytest.raises(InvalidRequest) as error:
        encode(dataclasses.replace(intent, action=planned))
    assert error.value.field == "PlannedAction.arguments.x"


@pytest.mark.parametrize("value", [None, {}, "text", VERSION_1_0, VERSION_1_0[2].reply, type(VERSION_1_0[0])])  # type: ignore[union-attr] # it is a result
def test_only_a_record_is_written(value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        encode(value)
    assert error.value.field == "record"


# What was stored


def test_every_version_that_was_ever_written_has_its_stored_records() -> None:
    assert SCHEMA_VERSIONS.keys() == STORED.keys()
    assert all(SCHEMA_VERSIONS.values()), "each version says in a line what it brought"
    assert SCHEMA_VERSION in SCHEMA_VERSIONS
    assert {path.name for path in FIXTURES.glob("records-*")} == {f"records-{version}.jsonl" for version in STORED}


@pytest.mark.parametrize("version", STORED)
def test_stored_records_still_decode(version: str) -> None:
    lines = (FIXTURES / f"records-{version}.jsonl").read_bytes().decode("ascii").split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(STORED[version])
    for line, record in zip(lines, STORED[version], strict=True):
        assert difference(record, decode(line), "record") is None


def test_the_stored_records_are_of_every_kind_and_fill_every_field() -> None:
    kinds = {document["record"] for document in DOCUMENTS}
    assert kinds == {"run_started", "effect_intended", "effect_completed", "step_completed", "run_finished"}
    paths = {(document["record"], path) for document in DOCUMENTS for path in places(document)}
    filled = {
        (document["record"], path)
        for document in DOCUMENTS
        for path in places(document)
        if at(document, path) not in (None, [], {}, "")
    }
    assert paths - filled == {("step_completed", ("final_answer",)), ("effect_completed", ("outcome", "completed"))}


# Places of a document


def places(document: Document, prefix: Path_ = ()) -> Iterator[Path_]:
    """The path of each field, those of the records' own objects included, not those of free JSON."""
    for name, value in document.items():
        yield (*prefix, name)
        if isinstance(value, dict) and name not in ("params_snapshot", "arguments"):
            yield from places(value, (*prefix, name))


def at(document: Document, path: Path_) -> Any:
    for name in path:
        document = document[name]
    return document


def changed(document: Document, path: Path_, change: Callable[[Document, str], None]) -> str:
    """The document as text, after a change of the object that holds the field."""
    twin = copy.deepcopy(document)
    change(at(twin, path[:-1]), path[-1])
    return json.dumps(twin)


def put(document: Document, path: Path_, value: Any) -> str:
    return changed(document, path, lambda holder, name: holder.__setitem__(name, value))


PLACES: Final = [(document, path) for document in DOCUMENTS for path in places(document)]
PLACE_IDS: Final = [f"{document['record']}-{document['seq']}-{'.'.join(path)}" for document, path in PLACES]

WRONG: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**63 - 1, 2**63, 10**640, 1.0, 1.5, -0.0, 1e308),
    *("", "x", "1", "null", "1.0", "model_call", "executed", "safe", "\ud83d\ude00", "%", "y" * 3000),
    *([], [[]], [{}], ["x"], {}, {"": {}}, {"x": 1}),
)


@pytest.mark.parametrize(("document", "path"), PLACES, ids=PLACE_IDS)
def test_a_wrong_value_anywhere_is_refused_or_wholly_understood(document: Document, path: Path_) -> None:
    refusals = 0
    for value in WRONG:
        text = put(document, path, value)
        refusals += judge(text) is None
        if path != ("schema",):
            # In a newer minor, too: what is unknown is ignored, what is known must be right.
            judge(put(json.loads(text), ("schema",), "1.7"))
    assert refusals >= 8, "hardly anything is wrong here"


@pytest.mark.parametrize(("document", "path"), PLACES, ids=PLACE_IDS)
def test_a_missing_field_is_damage_in_every_version(document: Document, path: Path_) -> None:
    text = changed(document, path, lambda holder, name: holder.pop(name))
    if path == ("escaped",):
        # What is left says the same characters, escaped: sound, and another text.
        assert judge(text) is not None
        return
    corrupt(text)
    if path != ("schema",):
        corrupt(put(json.loads(text), ("schema",), "1.1"))


@pytest.mark.parametrize("name", ["extra", "Seq", "seq ", "", "schema_version ", "é", "escape"], ids=ascii)
def test_a_surplus_field_is_damage_in_this_version_and_ignored_in_a_newer_minor(name: str) -> None:
    for document, record in zip(DOCUMENTS, VERSION_1_0, strict=True):
        objects = [(), *(path for path in places(document) if isinstance(at(document, path), dict))]
        for path in objects:
            if path and path[-1] in ("params_snapshot", "arguments"):
                continue
            text = put(document, (*path, name), [{"any": "thing"}])
            corrupt(text)
            newer = decode(put(json.loads(text), ("schema",), "1.1"))
            assert difference(record, newer, "record") is None


# Versions


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "999999999.0", "0.0", "2.999999999"])
def test_another_major_version_is_not_supported_whatever_else_it_says(version: str) -> None:
    for document in (*DOCUMENTS, {"schema": "1.0"}, {"schema": "1.0", "record": 1, "extra": []}):
        error = unsupported(put(document, ("schema",), version))
        assert (error.found, error.supported) == (version, SCHEMA_VERSION)


@pytest.mark.parametrize("version", ["1.1", "1.10", "1.999999999"])
def test_a_newer_minor_version_is_read(version: str) -> None:
    for document, record in zip(DOCUMENTS, VERSION_1_0, strict=True):
        assert difference(record, decode(put(document, ("schema",), version)), "record") is None


@pytest.mark.parametrize(
    "version",
    [
        *(None, 1, 1.0, True, [], {}, "", "1", "1.", ".1", "1.0.0", "v1.0", "01.0", "1.00", "1.0 ", "-1.0", "1.0\n"),
        *("1,0", "1.9999999999", "one.zero", "1.0\u0660"),
    ],
    ids=stable_id,
)
def test_what_is_no_version_is_damage(version: object) -> None:
    for document in DOCUMENTS:
        error = corrupt(put(document, ("schema",), version))
        assert error.seq == document["seq"]


@pytest.mark.parametrize(
    "kind", ["", "run_paused", "RunStarted", "run_started ", "k" * 5000, "é\n"], ids=lambda kind: kind[:9]
)
def test_an_unknown_kind_is_damage_in_this_version_and_unsupported_in_a_newer_minor(kind: str) -> None:
    text = put(DOCUMENTS[0], ("record",), kind)
    corrupt(text)
    assert unsupported(put(json.loads(text), ("schema",), "1.1")).found == "1.1"


@pytest.mark.parametrize("kind", [None, 1, True, [], {}])
def test_a_kind_that_is_no_string_is_damage_in_every_version(kind: object) -> None:
    text = put(DOCUMENTS[0], ("record",), kind)
    corrupt(text)
    corrupt(put(json.loads(text), ("schema",), "1.1"))


LITERALS: Final = [
    (1, ("kind",)),
    (1, ("replay",)),
    (4, ("outcome", "status")),
    (5, ("stop_reason",)),
    (9, ("stop_reason",)),
]


@pytest.mark.parametrize(("index", "path"), LITERALS, ids=[f"{IDS[i]}-{'.'.join(path)}" for i, path in LITERALS])
def test_an_unknown_literal_is_damage_in_this_version_and_unsupported_in_a_newer_minor(index: int, path: Path_) -> None:
    for literal in ("", "perhaps", "SAFE", "Model_call", "executed ", "l" * 5000, "é\n"):
        text = put(DOCUMENTS[index], path, literal)
        assert corrupt(text).seq == index
        assert unsupported(put(json.loads(text), ("schema",), "1.1")).found == "1.1"
    no_strings: tuple[Any, ...] = (1, True, [], {}, ["safe"])
    for value in no_strings:
        text = put(DOCUMENTS[index], path, value)
        corrupt(text)
        corrupt(put(json.loads(text), ("schema",), "1.1"))


@pytest.mark.parametrize("escaped", [None, False, 1, 0, "true", "hex", [], {}])
def test_an_unknown_way_to_escape_is_damage_in_this_version_and_unsupported_in_a_newer_minor(escaped: object) -> None:
    for document in DOCUMENTS:
        text = put(document, ("escaped",), escaped)
        corrupt(text)
        unsupported(put(json.loads(text), ("schema",), "1.1"))


@pytest.mark.parametrize("text", ["%", "100%", "%2", "%D83D", "%0041", "\ud800", "\U0001f600%"], ids=ascii)
def test_a_string_that_is_not_escaped_as_its_record_says_is_damage(text: str) -> None:
    corrupt(put(DOCUMENTS[8], ("reply", "text"), text))
    corrupt(put(DOCUMENTS[8], ("result_id",), text))
    corrupt(put(put_escaped(DOCUMENTS[0]), ("params_snapshot", text), 1))


def put_escaped(document: Document) -> Document:
    return {**document, "escaped": True, "params_snapshot": {"a": 1}}


def test_the_version_of_a_step_is_kept_as_it_was_written() -> None:
    text = put(json.loads(put(DOCUMENTS[5], ("step", "schema_version"), "1.3")), ("schema",), "1.3")
    step = decode(text).step  # type: ignore[union-attr] # it is a step record
    assert step.schema_version == "1.3"


# Hostile texts


@pytest.mark.parametrize(
    "text",
    [
        *(None, 1, b'{"schema":"1.0"}', bytearray(b"{}"), {}, [], object()),
        *("", " ", "null", "true", "1", '"text"', "[]", "[{}]", "{}", "{", "}", "{]", "\ufeff{}", "{}{}", "nonsense"),
        *(
            '{"schema"}',
            '{"schema":}',
            "{'schema':'1.0'}",
            '{"schema":"1.0",}',
            '{"schema":"1.0"} x',
            "\0",
            "\ud800",
            "é",
        ),
    ],
    ids=stable_id,
)
def test_what_is_no_json_object_is_damage(text: Any) -> None:
    corrupt(text)


@pytest.mark.parametrize("index", range(len(DOCUMENTS)), ids=IDS)
def test_a_part_of_a_text_is_damage(index: int) -> None:
    """A torn line is never a record: all of its prefixes and suffixes are refused."""
    text = encode(VERSION_1_0[index])
    for length in range(len(text)):
        corrupt(text[:length])
        corrupt(text[len(text) - length :])


@pytest.mark.parametrize("index", range(len(DOCUMENTS)), ids=IDS)
def test_two_texts_fused_are_damage(index: int) -> None:
    text = encode(VERSION_1_0[index])
    for between in ("", "\n", " ", ","):
        corrupt(text + between + text)
    corrupt(text + "\0")


def test_characters_beyond_ascii_are_damage_even_where_json_allows_them() -> None:
    text = encode(VERSION_1_0[2])
    corrupt(text.replace("It is open", "Sie ist öffen"))
    corrupt(text.replace("It is open", "\u2028"))
    corrupt(text.replace("It is open", "\ud800"))


@pytest.mark.parametrize("character", [chr(code) for code in range(0x20)], ids=ascii)
def test_a_raw_control_character_in_a_string_is_damage(character: str) -> None:
    corrupt(encode(VERSION_1_0[2]).replace("It is open", f"It is{character}open"))


def with_number(digits: str) -> str:
    return encode(started({"number": 0})).replace('"number":0', f'"number":{digits}')


@pytest.mark.parametrize(
    "digits",
    [
        *("NaN", "Infinity", "-Infinity", "nan", "inf", "+1", "01", "1.", ".5", "0x10", "1_000", "--1", "1e", "-"),
        *("1e400", "-1e400", "1" + "0" * 400 + ".0", "1e99999999999999999999"),
        *("9" * 641, "-" + "9" * 641, "9" * 5000, "9" * 100_000),
    ],
    ids=lambda digits: digits[:12],
)
def test_what_is_no_finite_number_of_json_is_damage(digits: str) -> None:
    corrupt(with_number(digits))
    corrupt(encode(started()).replace('"seq":0', f'"seq":{digits}'))
    corrupt(with_number(digits).replace('"1.0"', '"1.1"'))


def test_numbers_at_the_limits_are_read() -> None:
    for digits in ("9" * 640, "-" + "9" * 640, "1e308", "1E-400", "-0", "-0.0", "0e0"):
        assert judge(with_number(digits)) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seq":0', '"seq":0,"seq":0'),
        ('"seq":0', '"seq":1,"seq":0'),
        ('"schema":"1.0"', '"schema":"1.0","schema":"1.0"'),
        ('"n":1', '"n":1,"n":1'),
        ('"n":1', '"n":1,"\\u006e":2'),
        ('"n":1', '"n":[{"a":1,"a":2}]'),
    ],
)
def test_a_key_that_stands_twice_in_one_object_is_damage(old: str, new: str) -> None:
    text = encode(started({"n": 1})).replace(old, new)
    assert json.loads(text) is not None
    corrupt(text)
    corrupt(text.replace('"1.0"', '"1.1"'))


@pytest.mark.parametrize("depth", [99, 100, 101, 500, 990, 5_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_damage_and_exhausts_nothing(depth: int, opening: str, closing: str) -> None:
    deep = opening * depth + ("0" if opening != "[" else "") + closing * depth
    inside = encode(started({"n": 1})).replace('"n":1', f'"n":{deep}')
    if depth <= 99:
        # The snapshot itself is one container more.
        assert judge(inside) is not None
    else:
        corrupt(inside)
    escaped = inside.replace('"seq"', '"escaped":true,"seq"')
    assert (judge(escaped) is None) == (depth > 98), "the record itself counts, too"
    corrupt(deep)
    corrupt(encode(started()).replace('"0.1.0"', deep))
    corrupt(encode(started()).replace('"seq":0', f'"extra":{deep},"seq":0'))


@given(st.one_of(st.text(), strategies.json_objects.map(json.dumps), st.text(st.characters(codec="ascii"))))
def test_arbitrary_text_is_refused(text: str) -> None:
    refused(text)


FRAMES: Final = st.fixed_dictionaries(
    {
        "schema": st.sampled_from(["1.0", "1.0", "1.1", "2.0"]),
        "record": st.sampled_from([document["record"] for document in DOCUMENTS]),
        "seq": st.integers(-1, 3),
        "recorded_at": st.sampled_from(["2026-03-04T05:06:07.000008+00:00", "now", None]),
    },
    optional=dict.fromkeys(
        ("escaped", "step", "reply", "outcome", "error", "action", "result_id", "params_snapshot", "kind"),
        strategies.json_values,
    ),
)


@given(FRAMES)
def test_arbitrary_fields_are_refused_or_wholly_understood(document: Document) -> None:
    judge(json.dumps(document))


@given(strategies.records, st.data())
def test_an_arbitrary_change_of_an_arbitrary_field_is_refused_or_wholly_understood(
    record: Record, data: st.DataObject
) -> None:
    document = json.loads(encode(record))
    path = data.draw(st.sampled_from(list(places(document))))
    judge(put(document, path, data.draw(strategies.json_values)))


CHARACTERS: Final = '"\\{}[]:,0195-.eEtfnlu %a_\n\0é'


@pytest.mark.parametrize("index", range(len(DOCUMENTS)), ids=IDS)
def test_every_change_of_one_character_is_refused_or_wholly_understood(index: int) -> None:
    text = encode(VERSION_1_0[index])
    understood = 0
    for at_ in range(len(text)):
        before, after = text[:at_], text[at_ + 1 :]
        changes = {before + each + after for each in CHARACTERS} | {before + after, before + text[at_] * 2 + after}
        understood += sum(judge(each) is not None for each in changes - {text})
    # In free text a changed letter is another text, and no damage that could be seen: that is for checksums.
    assert 0 < understood < len(text) * len(CHARACTERS)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(DOCUMENTS)), ids=IDS)
def test_every_change_of_one_character_to_any_ascii_one_is_refused_or_wholly_understood(index: int) -> None:
    text = encode(VERSION_1_0[index])
    for at_ in range(len(text)):
        for code in range(0x80):
            judge(text[:at_] + chr(code) + text[at_ + 1 :])
            judge(text[:at_] + chr(code) + text[at_:])


# What an error says


def test_an_error_names_the_position_where_it_is_known() -> None:
    for index, document in enumerate(DOCUMENTS):
        assert corrupt(put(document, ("recorded_at",), "now")).seq == index
        assert corrupt(put(document, ("extra",), 1)).seq == index
    for seq in (None, "7", True, 7.0, [7]):
        assert corrupt(put(DOCUMENTS[0], ("seq",), seq)).seq is None


def test_an_error_names_the_field_and_tells_no_values_of_others() -> None:
    document = json.loads(put(DOCUMENTS[4], ("outcome", "observation"), "sk-secret"))
    for path, value in ((("outcome", "truncated_chars"), -1), (("outcome", "status"), 3), (("seq",), "sk-secret")):
        error = corrupt(put(document, path, value))
        assert "secret" not in str(error)
    assert "ActionOutcome.truncated_chars" in str(corrupt(put(document, ("outcome", "truncated_chars"), -1)))
    assert "lacks observation" in str(
        corrupt(changed(document, ("outcome", "observation"), lambda o, name: o.pop(name)))
    )


def test_a_chain_of_causes_does_not_keep_the_text_alive() -> None:
    """`raise … from None`: a traceback shows the finding, not the parser's own error with the document in it."""
    for text in ("nonsense", put(DOCUMENTS[0], ("recorded_at",), "now"), put(DOCUMENTS[0], ("schema",), "one")):
        error = corrupt(text)
        assert error.__suppress_context__
        assert error.__cause__ is None


def test_decoding_shares_nothing_between_two_calls() -> None:
    text = encode(VERSION_1_0[0])
    one, other = decode(text), decode(text)
    one.params_snapshot["budget"]["max_steps"] = 99  # type: ignore[union-attr,index] # a plain dict
    assert difference(VERSION_1_0[0], other, "record") is None
    assert difference(ended(9), decode(encode(ended(9))), "record") is None
