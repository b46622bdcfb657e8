"""What counts as JSON, copies of it, and its two texts: the stored one and the one that is compared."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import itertools
import json
import math
import types
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polyloop.types import InvalidRequest, JSONValue
from polyloop.types._json import (
    MAX_DEPTH,
    MAX_DIGITS,
    ascii_json,
    canonical,
    copy_json,
    copy_object,
    digest,
    dumps,
    unescaped,
)
from tests.contract.records import NUMBERS, PAIR_TEXTS, SURROGATE_TEXTS, difference, nested
from tests.ids import stable_id
from tests.strategies import json_objects, json_values, texts

PAIR: Final = "\ud83d\ude00"
"""Two characters that plain JSON text would join into one."""


def loads(text: str, *, escaped: bool) -> JSONValue:
    """What `dumps` wrote, by Python's own reader."""
    value = cast("JSONValue", json.loads(text))
    return unescaped(value) if escaped else value


# Copies


class OtherMapping(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, items: dict[Any, Any]) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Word(enum.StrEnum):
    YES = "yes"


class Number(enum.IntEnum):
    ONE = 1


class Ratio(float):
    __slots__ = ()


@given(json_values)
def test_a_copy_is_the_same_to_the_last_bit_and_shares_nothing(value: JSONValue) -> None:
    copied = copy_json(value, "x")
    assert difference(value, copied, "x") is None
    mine, its = set(map(id, containers(value))), set(map(id, containers(copied)))
    assert not mine & its


def containers(value: JSONValue) -> list[object]:
    if isinstance(value, str):
        return []
    inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, Sequence) else None
    return [] if inner is None else [value, *(each for item in inner for each in containers(item))]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        (types.MappingProxyType({"a": ()}), {"a": []}),
        (OtherMapping({"a": OtherMapping({})}), {"a": {}}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (Word.YES, "yes"),
        (Number.ONE, 1),
        (Ratio(0.5), 0.5),
        ({Word.YES: Word.YES}, {"yes": "yes"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_json_in_another_dress_is_copied_as_plain_json(value: Any, plain: JSONValue) -> None:
    assert difference(plain, copy_json(value, "x"), "x") is None


@dataclasses.dataclass
class Point:
    x: int


SELF_CONTAINING: Final[list[Any]] = []
SELF_CONTAINING.append(SELF_CONTAINING)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "x"),
        (math.inf, "x"),
        ({"a": -math.inf}, "x.a"),
        ([0, [1, math.nan]], "x[1][1]"),
        ({1: "a"}, "x"),
        ({"a": {None: 1}}, "x.a"),
        ({1: "a", "1": "b"}, "x"),
        ({"a": {("t",): 1}}, "x.a"),
        ({b"a": 1}, "x"),
        (b"bytes", "x"),
        (bytearray(b"bytes"), "x"),
        (memoryview(b"bytes"), "x"),
        ([{"deep": {1, 2}}], "x[0].deep"),
        (frozenset(), "x"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "x"),
        (decimal.Decimal(1), "x"),
        (uuid.UUID(int=1), "x"),
        (Point(x=1), "x"),
        (1j, "x"),
        (object(), "x"),
        (int, "x"),
        (iter([1]), "x"),
        (10**MAX_DIGITS, "x"),
        ([-(10**MAX_DIGITS)], "x[0]"),
        (10**5000, "x"),
    ],
    ids=lambda value: stable_id(value) if not isinstance(value, int) else "large",
)
def test_what_is_not_json_is_refused_by_its_path(value: object, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        copy_json(value, "x")
    assert refused.value.field == path


def test_an_integer_may_have_640_digits() -> None:
    """What every interpreter reads and writes, however its limit for the conversion of integers is set."""
    assert MAX_DIGITS == 640
    for number in (10**640 - 1, -(10**640) + 1):
        assert copy_json(number, "x") == number
        assert json.loads(dumps(number)[0]) == number


def test_containers_may_be_nested_100_deep_and_no_deeper() -> None:
    assert MAX_DEPTH == 100
    assert copy_json(nested(100), "x") == copy_object(nested(100), "x") == nested(100)
    for too_deep in (nested(101), [nested(100)], nested(5000), SELF_CONTAINING):
        with pytest.raises(InvalidRequest) as refused:
            copy_json(too_deep, "x")
        assert "100" in refused.value.problem
        assert len(str(refused.value)) < 400
    empty_below: JSONValue = []
    for _ in range(99):
        empty_below = [empty_below]
    copy_json(empty_below, "x")
    with pytest.raises(InvalidRequest):
        copy_json([empty_below], "x")


@pytest.mark.parametrize("value", [None, [], "{}", 1, [("a", 1)], {"a"}, object()])
def test_an_object_is_a_mapping(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        copy_object(value, "params")
    assert refused.value.field == "params"


@given(json_objects)
def test_copies_of_objects_are_plain_dicts(value: dict[str, JSONValue]) -> None:
    copied = copy_object(types.MappingProxyType(value), "x")
    assert type(copied) is dict
    assert difference(value, copied, "x") is None


def test_a_path_of_any_length_is_named_by_its_first_200_characters() -> None:
    whole, cut = f"x.{'k' * 198}", f"x.{'k' * 198}..."
    not_json: tuple[Any, ...] = (b"", math.nan, 10**MAX_DIGITS, {1: 1})
    for key, field in (("k" * 198, whole), ("k" * 199, cut), ("k" * 10**6, cut)):
        for wrong in not_json:
            with pytest.raises(InvalidRequest) as refused:
                copy_json({key: wrong}, "x")
            assert refused.value.field == field


def test_a_refusal_tells_types_and_not_values() -> None:
    with pytest.raises(InvalidRequest) as refused:
        copy_json({"token": b"sk-secret"}, "params")
    assert "secret" not in str(refused.value)
    assert str(refused.value) == "params.token: must be JSON, got bytes"


# The stored text


@given(json_values)
def test_the_stored_text_is_ascii_on_one_line_and_reads_back_to_the_last_bit(value: JSONValue) -> None:
    text, escaped = dumps(value)
    assert text.isascii()
    assert not {"\n", "\r", "\0"} & set(text)
    assert difference(value, loads(text, escaped=escaped), "x") is None


@given(json_values)
def test_only_a_text_with_a_pair_is_escaped(value: JSONValue) -> None:
    """All other text stays readable, lone surrogates and characters beyond the first plane included."""
    text, escaped = dumps(value)
    assert escaped is any(map(has_pair, strings_of(value)))
    if not escaped:
        assert json.loads(text) == value


def has_pair(text: str) -> bool:
    return any("\ud800" <= one <= "\udbff" and "\udc00" <= two <= "\udfff" for one, two in itertools.pairwise(text))


def strings_of(value: JSONValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from strings_of(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from strings_of(inner)


@pytest.mark.parametrize("text", [*PAIR_TEXTS, *SURROGATE_TEXTS, "%", "%25", "%d83d%de00", "\U0001f600", ""], ids=ascii)
@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text,
        lambda text: [PAIR, text],
        lambda text: {text: 1},
        lambda text: {"a": [{"b": text}], PAIR: None},
        lambda text: (text, (PAIR,)),
    ],
    ids=["bare", "item", "key", "deep", "tuple"],
)
def test_halves_of_a_pair_stay_two_characters_wherever_they_stand(text: str, dress: Any) -> None:
    value = dress(text)
    written, escaped = dumps(value)
    assert difference(copy_json(value, "x"), loads(written, escaped=escaped), "x") is None


def test_a_pair_and_the_character_that_it_would_stand_for_have_different_texts() -> None:
    assert dumps(PAIR) == ('"%d83d%de00"', True)
    assert dumps("\U0001f600") == ('"\\ud83d\\ude00"', False)
    assert dumps([PAIR, "100%", "\U0001f600"]) == ('["%d83d%de00","100%25","\\ud83d\\ude00"]', True)


def test_keys_keep_the_order_in_which_they_were_given() -> None:
    assert dumps({"b": 1, "a": 2}) == ('{"b":1,"a":2}', False)
    assert ascii_json({"b": "é", "a": PAIR}) == '{"b":"\\u00e9","a":"\\ud83d\\ude00"}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_text_is_written_for_what_is_no_number_of_json(value: float) -> None:
    for write in (dumps, ascii_json, canonical):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write([value])


@given(texts)
@example("%25")
@example("%D83D")
@example("%d83d")
def test_what_escaping_never_writes_is_refused(text: str) -> None:
    """Each string has one escaped form: anything else is damage."""
    try:
        plain = unescaped([text])
    except ValueError:
        return
    assert isinstance(plain, list)
    escaped_again, escaped = dumps([*plain, PAIR])
    assert escaped
    assert json.loads(escaped_again)[0] == text


@pytest.mark.parametrize(
    "text", ["%", "%2", "%24", "100%", "%D83D", "%d7ff", "%e000", "%0041", "\ud83d", "%d83", "%25%"]
)
def test_a_half_escape_or_a_needless_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not escaped"):
        unescaped({"a": [text]})
    with pytest.raises(ValueError, match="not escaped"):
        unescaped({text: 1})


def test_unescaping_leaves_everything_but_strings() -> None:
    value: JSONValue = [None, True, 1, 1.5, {"%25": ["%d83d%de00"]}]
    assert difference([None, True, 1, 1.5, {"%": [PAIR]}], unescaped(value), "x") is None


# The text that is compared


@given(json_values, json_values)
def test_two_values_have_one_canonical_text_only_if_they_are_the_same(one: JSONValue, other: JSONValue) -> None:
    assert (canonical(one) == canonical(other)) is (difference(unordered(one), unordered(other), "x") is None)


@given(json_values)
def test_the_canonical_text_forgets_the_order_of_keys_and_nothing_else(value: JSONValue) -> None:
    assert canonical(reversed_keys(value)) == canonical(value)
    text = canonical(value)
    read = loads(text.removeprefix("%"), escaped=text.startswith("%"))
    assert difference(unordered(value), unordered(read), "x") is None


def unordered(value: JSONValue) -> JSONValue:
    """The value with all keys sorted."""
    if isinstance(value, dict):
        return {key: unordered(value[key]) for key in sorted(value)}
    return [unordered(inner) for inner in value] if isinstance(value, list) else value


def reversed_keys(value: JSONValue) -> JSONValue:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(inner) for inner in value] if isinstance(value, list) else value


def test_numbers_that_compare_equal_and_are_not_the_same_have_different_canonical_texts() -> None:
    assert len({canonical(number) for number in NUMBERS}) == len(NUMBERS)
    assert canonical({"a": True}) != canonical({"a": 1}) != canonical({"a": 1.0})
    assert canonical(0.0) != canonical(-0.0)
    assert canonical(None) != canonical("null")


def test_a_pair_an_escape_and_a_character_have_different_canonical_texts() -> None:
    look_alikes: list[JSONValue] = [PAIR, "\U0001f600", "%d83d%de00", "%25d83d%25de00", "\ud83d", [PAIR], {PAIR: PAIR}]
    assert len({canonical(value) for value in look_alikes}) == len(look_alikes)
    assert canonical({"b": PAIR, "a": 1}) == '%{"a":1,"b":"%d83d%de00"}'


def test_tuples_and_lists_have_one_canonical_text() -> None:
    assert canonical((1, (2, 3))) == canonical([1, [2, 3]]) == "[1,[2,3]]"


@given(json_values)
def test_a_digest_is_the_sha_256_of_the_canonical_text(value: JSONValue) -> None:
    assert digest(value) == hashlib.sha256(canonical(value).encode()).hexdigest()


def test_digests_do_not_change() -> None:
    """They are stored with every run and compared on resume, for ever."""
    assert digest(["system", "You are helpful."]) == "4ebd6f4f3dd136ccad53dd5d1729ec4d33fc5f08194349c95b09820ad2879c43"
    assert digest(["user", "é\U0001f600\ud83d"]) == "045ea5406506f7f0d81926922a29f51ce4989aa7676bd20d0aa57207b198116d"
    assert digest(["user", PAIR]) == "5893be1e4158ed8c2f8682a023a5060f426c892e07fc1bf7a9f51b2f9c387970"


@given(st.lists(texts, min_size=2, max_size=2, unique=True))
def test_different_texts_have_different_digests(pair: list[str]) -> None:
    assert digest(pair[0]) != digest(pair[1])
