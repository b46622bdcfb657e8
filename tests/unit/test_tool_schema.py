"""The schema of a tool's arguments: what is refused when it is declared, and what is said of a call."""

from __future__ import annotations

import datetime as dt
import decimal
import http.server
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloop._tool_schema import one_line
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import InvalidRequest, JSONValue

DRAFT = "http://json-schema.org/draft-{:02d}/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


async def say_done(_: dict[str, JSONValue]) -> str:
    return "done"


def tool(name: str = "t", parameters: Mapping[str, Any] | None = None) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters=parameters or {}, handler=say_done)


def judge(parameters: Mapping[str, Any], arguments: object) -> str | None:
    """What a registry with this one schema says of the arguments, which may be of any type."""
    return ToolRegistry([tool(parameters=parameters)]).validate("t", cast("Mapping[str, JSONValue]", arguments))


def refusal(parameters: Mapping[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        tool(parameters=parameters)
    return refused.value


# ------------------------------------------------------------------------------------------------ schemas

SOUND: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]},
    {"$schema": DRAFT_2020, "prefixItems": [{}]},
    {"$schema": DRAFT_2019},
    {"$schema": DRAFT.format(7)},
    {"$schema": DRAFT.format(7).rstrip("#")},
    {"$schema": DRAFT.format(6)},
    {"$schema": DRAFT.format(4), "properties": {"n": {"minimum": 1, "exclusiveMinimum": True}}},
    # References that lead somewhere.
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    {"$ref": "#/properties/a", "properties": {"a": {"$ref": "#/properties/b"}, "b": True}},
    {"$ref": "#/a~1b/c~0d", "a/b": {"c~d": {"type": "object"}}},
    {"$ref": "#named", "$defs": {"a": {"$anchor": "named"}}},
    {"$id": "https://example.org/t.json", "$ref": "a.json#n", "$defs": {"a": {"$id": "a.json", "$anchor": "n"}}},
    {"$id": "https://example.org/t.json", "properties": {"again": {"$ref": "https://example.org/t.json"}}},
    {"properties": {"schema": {"$ref": DRAFT_2020}}},
    {"definitions": {"a": {}}, "$ref": "#/definitions/a", "$schema": DRAFT.format(7)},
    # Recursion that goes down into the arguments, and so ends with them.
    {"properties": {"child": {"$ref": "#"}}},
    {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}},
    {"not": {"properties": {"a": {"$ref": "#"}}}},
    {"$dynamicAnchor": "node", "properties": {"child": {"$dynamicRef": "#node"}}},
    {"$schema": DRAFT_2019, "properties": {"child": {"$recursiveRef": "#"}}},
    {"$schema": DRAFT.format(7), "dependencies": {"a": {"required": ["b"]}, "b": ["c"]}},
    # What looks like a keyword and is none.
    {"properties": {"$ref": {"type": "string"}, "$schema": {"type": "string"}, "pattern": {"type": "string"}}},
    {"properties": {"a": {"enum": [{"$ref": "nowhere"}, {"$schema": "nowhere"}]}}},
    {"default": {"$ref": "nowhere"}, "examples": [{"type": "nonsense"}]},
    {"extends": {"$ref": "a remark of the author's own"}},
    {"$schema": DRAFT.format(7), "$dynamicRef": "#nowhere"},
]


@pytest.mark.parametrize("parameters", SOUND, ids=json.dumps)
def test_a_sound_schema_is_taken(parameters: dict[str, Any]) -> None:
    assert tool(parameters=parameters).parameters == parameters


UNSOUND: list[tuple[str, dict[str, Any]]] = [
    ("type", {"type": "strng"}),
    ("type", {"type": None}),
    ("required", {"required": "a"}),
    ("properties.a", {"properties": {"a": 5}}),
    ("properties.a.minimum", {"properties": {"a": {"minimum": "1"}}}),
    ("allOf[1].type", {"allOf": [{}, {"type": "strng"}]}),
    # Patterns that do not compile.
    ("pattern", {"pattern": "("}),
    ("properties.a.pattern", {"properties": {"a": {"pattern": "[z-a]"}}}),
    ("patternProperties", {"patternProperties": {"(": {}}}),
    ("patternProperties", {"$schema": DRAFT.format(4), "patternProperties": {"(": {}}}),
    ("items.patternProperties", {"$schema": DRAFT.format(4), "items": {"patternProperties": {"(": {}}}}),
    ("", {"pattern": "(" * 5000}),
    ("", {"pattern": "a{99999999999999999999}"}),
    # Dialects that nobody knows.
    ("$schema", {"$schema": "https://example.org/dialect"}),
    ("$schema", {"$schema": DRAFT.format(99)}),
    ("$schema", {"$schema": DRAFT.format(3)}),
    ("$schema", {"$schema": "http://["}),
    ("$schema", {"$schema": ""}),
    ("$schema", {"$schema": 7}),
    ("$schema", {"$schema": None}),
    ("$schema", {"$schema": [DRAFT_2020]}),
    ("properties.a.$schema", {"properties": {"a": {"$schema": "https://example.org/dialect"}}}),
    ("properties.a.$schema", {"properties": {"a": {"$schema": DRAFT.format(7)}}}),
    # References that lead nowhere, or out of the schema.
    ("$ref", {"$ref": "#/$defs/missing"}),
    ("$ref", {"$ref": "#missing"}),
    ("$ref", {"$ref": "other.json"}),
    ("$ref", {"$ref": "https://example.org/other.json"}),
    ("$ref", {"$ref": "file:///etc/passwd"}),
    ("$ref", {"$ref": "http://["}),
    ("$ref", {"$ref": "\ud800"}),
    ("$ref", {"$ref": 5}),
    ("$ref", {"$schema": DRAFT.format(4), "$ref": 5}),
    ("$ref", {"$ref": "#/required/0", "required": ["a"]}),
    ("$ref", {"$ref": "#/required/x", "required": ["a"]}),
    ("$ref", {"$ref": "#/required", "required": ["a"]}),
    ("$dynamicRef", {"$dynamicRef": "#missing"}),
    ("properties.a.items.$ref", {"properties": {"a": {"items": {"$ref": "nope"}}}}),
    ("$defs.unused.$ref", {"$defs": {"unused": {"$ref": "nope"}}}),
    ("else.$ref", {"if": {}, "else": {"$ref": "nope"}}),
    # Schemas where the dialect does not look for any, but a reference leads.
    ("mine.type", {"$ref": "#/mine", "mine": {"type": "strng"}}),
    ("mine[0].properties.a.$ref", {"$ref": "#/mine/0", "mine": [{"properties": {"a": {"$ref": "nope"}}}]}),
    # Circles that do not go down into the arguments.
    ("", {"$ref": "#"}),
    ("", {"$id": "https://example.org/t.json", "$ref": "t.json"}),
    ("", {"allOf": [{"$ref": "#"}]}),
    ("", {"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
    ("", {"oneOf": [{"type": "null"}, {"$ref": "#"}]}),
    ("", {"not": {"$ref": "#"}}),
    ("", {"if": {"$ref": "#"}}),
    ("", {"if": {}, "then": {"$ref": "#"}}),
    ("", {"if": {}, "else": {"$ref": "#"}}),
    ("", {"dependentSchemas": {"a": {"$ref": "#"}}}),
    ("", {"$schema": DRAFT.format(7), "dependencies": {"a": {"$ref": "#"}}}),
    ("", {"$schema": DRAFT.format(7), "dependencies": {"b": ["a"], "a": {"$ref": "#"}}}),
    ("", {"$schema": DRAFT.format(7), "dependencies": {"a": {"$ref": "#"}, "b": ["a"]}}),
    ("", {"$dynamicAnchor": "x", "$dynamicRef": "#x"}),
    ("", {"$schema": DRAFT_2019, "$recursiveRef": "#"}),
    ("$recursiveRef", {"$schema": DRAFT_2019, "$recursiveRef": DRAFT_2019}),
    ("items.$recursiveRef", {"$schema": DRAFT_2019, "items": {"$recursiveRef": "#/$defs/a"}, "$defs": {"a": {}}}),
    ("$defs.a", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
    ("properties.a", {"properties": {"a": {"anyOf": [{"not": {"$ref": "#/properties/a"}}]}}}),
    ("mine", {"$ref": "#/mine", "mine": {"$ref": "#/mine"}}),
]


@pytest.mark.parametrize(("where", "parameters"), UNSOUND, ids=[json.dumps(each)[:60] for _, each in UNSOUND])
def test_an_unsound_schema_is_refused_naming_the_place_and_the_tool(where: str, parameters: dict[str, Any]) -> None:
    refused = refusal(parameters)
    assert refused.field == ".".join(filter(None, ("ToolSpec.parameters", where)))
    assert refused.problem.endswith("(tool 't')")
    assert str(refused).isprintable()
    assert len(str(refused)) < 1200


def test_what_the_validator_itself_cannot_read_is_told_with_its_error() -> None:
    assert refusal({"pattern": "a{99999999999999999999}"}).problem.startswith(
        "cannot be read as a JSON Schema: OverflowError: "
    )


def test_a_wrong_type_is_told_with_the_types_that_there_are() -> None:
    assert "'integer'" in refusal({"properties": {"a": {"type": "int"}}}).problem


@pytest.mark.parametrize(
    ("where", "parameters"),
    [
        (".a", {"a": float("nan")}),
        (".a.b[1]", {"a": {"b": [0, float("inf")]}}),
        (".a", {"a": {1: 2}}),
        (".default", {"default": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}),
        (".enum[0]", {"enum": [b"x"]}),
        (".enum", {"enum": {"a", "b"}}),
    ],
)
def test_a_schema_that_is_not_json_is_refused_naming_the_path(where: str, parameters: dict[str, Any]) -> None:
    assert refusal(parameters).field == f"ToolSpec.parameters{where}"


def test_a_schema_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["properties"] = {"a": endless}
    assert "nested deeper" in refusal(endless).problem


def test_a_schema_as_deep_as_json_may_be_is_taken() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(45):
        deep = {"properties": {"a": deep}}
    tool(parameters=deep)
    negated: dict[str, Any] = {}
    for _ in range(90):
        negated = {"not": negated}
    tool(parameters=negated)


def test_a_long_chain_of_references_is_taken_and_followed() -> None:
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(60)}
    parameters = {"$ref": "#/$defs/d0", "$defs": {**chain, "d60": {"required": ["x"]}}}
    assert judge(parameters, {"x": 1}) is None
    assert "'x' is a required property" in str(judge(parameters, {}))


def test_a_chain_of_references_longer_than_the_stack_is_refused_per_call_not_raised() -> None:
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(5000)}
    parameters = {"$ref": "#/$defs/d0", "$defs": {**chain, "d5000": {}}}
    assert "too deep" in str(judge(parameters, {}))


@pytest.fixture
def fetches() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that would answer with a schema, and the list of what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "object"}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_nothing_is_ever_fetched(fetches: tuple[str, list[str]]) -> None:
    address, asked = fetches
    for parameters in (
        {"$ref": f"{address}/a.json"},
        {"properties": {"a": {"$ref": f"{address}/b.json#/x"}}},
        {"$dynamicRef": f"{address}/c.json"},
        {"$schema": f"{address}/d.json"},
        {"$id": f"{address}/e.json", "$ref": "f.json"},
    ):
        refusal(parameters)
    # A base address alone is no reason to refuse, nor to fetch.
    assert judge({"$id": f"{address}/g.json", "required": ["a"]}, {}) is not None
    assert asked == []


def test_of_several_faults_the_same_one_is_told_in_every_process() -> None:
    script = """
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import InvalidRequest
async def run(_): return ""
def spec(parameters): return ToolSpec(name="t", description="", parameters=parameters, handler=run)
def told(make):
    try: return make()
    except InvalidRequest as refused: return str(refused)
keywords = ("not", "items", "contains", "propertyNames", "additionalProperties", "if", "then", "else")
print(told(lambda: spec({key: {"$ref": f"#/{key}/nowhere"} for key in keywords})))
print(told(lambda: spec({key: {"$ref": "#"} for key in keywords})))
print(told(lambda: spec({key: {"type": key} for key in keywords})))
alternatives = [{"type": "integer"}, {"required": ["x"], "type": "object"}]
tools = ToolRegistry([spec({"additionalProperties": {"anyOf": alternatives}})])
print(tools.validate("t", {letter: "x" for letter in "qwertyuiopasdfghjkl"}))
print(tools.validate("t", {letter: {} for letter in "qwertyuiopasdfghjkl"}))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    }
    assert len(outputs) == 1, outputs
    assert "arguments.a" in outputs.pop()


def test_the_validator_is_imported_with_the_first_spec_and_not_before() -> None:
    script = """
import sys
import polyloop.tools
def third_party(): return {"jsonschema", "referencing", "jsonschema_specifications"} & set(sys.modules)
assert not third_party(), third_party()
polyloop.tools.ToolRegistry(()).executor(max_observation_chars=1)
assert not third_party(), third_party()
async def run(_): return ""
polyloop.tools.ToolSpec(name="t", description="", parameters={}, handler=run)
assert third_party()
"""
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


# ----------------------------------------------------------------------------------------------- validate

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "lang": {"enum": ["de", "en"]},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
    "required": ["query"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": ""},
        {"query": "x", "limit": 1},
        {"query": "x", "limit": 5.0},
        {"query": "x", "note": None},
        {"query": "x", "tags": []},
        {"query": "x", "tags": ({"name": "a"},)},
        {"query": "\ud800\0"},
    ],
)
def test_arguments_that_fit_have_no_reason(arguments: dict[str, Any]) -> None:
    assert judge(SEARCH, arguments) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "tool 't': arguments: 'query' is a required property"),
        ({"query": 5}, "tool 't': arguments.query: 5 is not of type 'string'"),
        ({"query": "x", "limit": "5"}, "tool 't': arguments.limit: '5' is not of type 'integer'"),
        ({"query": "x", "limit": True}, "tool 't': arguments.limit: True is not of type 'integer'"),
        ({"query": "x", "limit": 0}, "tool 't': arguments.limit: 0 is less than the minimum of 1"),
        ({"query": "x", "lang": "fr"}, "tool 't': arguments.lang: 'fr' is not one of ['de', 'en']"),
        (
            {"query": "x", "tags": [{}, {"name": 1}]},
            "tool 't': arguments.tags[1].name: 1 is not of type 'string'",
        ),
        (
            {"query": "x", "zeta": 1, "alpha": 2},
            "tool 't': arguments: Additional properties are not allowed ('alpha', 'zeta' were unexpected)",
        ),
    ],
)
def test_arguments_that_do_not_fit_have_a_precise_reason(arguments: dict[str, Any], reason: str) -> None:
    assert judge(SEARCH, arguments) == reason


@pytest.mark.parametrize("field", ["query", "limit", "lang", "tags"])
def test_null_is_no_way_to_leave_a_field_out_and_the_reason_says_so_by_name(field: str) -> None:
    reason = judge(SEARCH, {"query": "x", field: None})
    assert reason is not None
    assert reason.startswith(f"tool 't': arguments.{field} must not be null: ")
    assert reason.endswith("leave it out if it is optional")


def test_null_is_told_by_name_under_alternatives_too() -> None:
    reason = judge({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, {"a": None})
    assert str(reason).startswith("tool 't': arguments.a must not be null: ")


def test_an_unknown_field_is_taken_unless_the_schema_forbids_it() -> None:
    assert judge({"type": "object", "properties": {}}, {"extra": 1}) is None
    assert "'extra' was unexpected" in str(judge({"type": "object", "additionalProperties": False}, {"extra": 1}))


@pytest.mark.parametrize("arguments", [None, [], "{}", 5, True, (("a", 1),)])
def test_arguments_that_are_no_object_have_a_reason(arguments: object) -> None:
    found = type(arguments).__name__
    assert judge({}, arguments) == f"tool 't': arguments: must be an object, got {found}; give {{}} for none"


class Unreadable(dict[str, JSONValue]):
    def items(self) -> Any:
        raise OSError("gone")


def _endless() -> dict[str, Any]:
    endless: dict[str, Any] = {}
    endless["a"] = [endless]
    return endless


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": float("nan")},
        {"a": [float("-inf")]},
        {"a": json.loads("1e400")},
        {"a": json.loads("NaN")},
        {"a": 10**700},
        {"a": b"bytes"},
        {"a": {"x", "y"}},
        {"a": decimal.Decimal(1)},
        {"a": uuid.uuid4()},
        {"a": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
        {"a": object()},
        {1: "a", "1": "b"},
        {None: 1},
        _endless(),
        Unreadable(a=1),
    ],
    ids=[*map(str, range(15))],
)
def test_arguments_that_are_not_json_have_a_reason(arguments: Any) -> None:
    """A schema that bounds numbers does not stop NaN, which compares with nothing: JSON is judged first."""
    reason = judge({"properties": {"a": {"maximum": 1}}}, arguments)
    assert reason is not None
    assert reason.startswith("tool 't': arguments")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nope", "unknown tool 'nope'; known tools: b, a"),
        ("A", "unknown tool 'A'; known tools: b, a"),
        ("a ", "unknown tool 'a '; known tools: b, a"),
        ("", "unknown tool ''; known tools: b, a"),
        ("a\n", "unknown tool 'a\\n'; known tools: b, a"),
        (None, "no tool named; known tools: b, a"),
        (5, "no tool named; known tools: b, a"),
        (["a"], "no tool named; known tools: b, a"),
    ],
)
def test_an_unknown_tool_is_named_with_the_known_ones(name: Any, reason: str) -> None:
    assert ToolRegistry([tool("b"), tool("a")]).validate(name, {}) == reason


def test_without_tools_the_reason_says_that_there_are_none() -> None:
    assert ToolRegistry(()).validate("a", {}) == "unknown tool 'a'; there are no tools"


@pytest.mark.parametrize(
    ("parameters", "arguments", "words"),
    [
        ({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 10**6}, "is not of type 'integer'"),
        ({"properties": {"a": {"type": "integer"}}}, {"a": [{"k": "x" * 10**6}]}, "is not of type 'integer'"),
        ({"additionalProperties": {"type": "integer"}}, {"k" * 10**6: "x"}, "is not of type 'integer'"),
        (
            {"additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            {"k" * 10**5: "x" * 10**5},
            "any of",
        ),
        ({"additionalProperties": False}, {"k" * 10**6: "x"}, "Additional properties"),
        ({"properties": {"a": {"enum": ["x" * 10**5, 1]}}}, {"a": 2}, "is not one of"),
        ({}, {"k" * 10**6: b""}, "must be JSON"),
        ({}, {"k\n\u2028\ud800": b""}, "arguments.k\\n\\u2028\\ud800: must be JSON"),
        ({"additionalProperties": {"type": "integer"}}, {"k\n\ud800": "x"}, "arguments.k\\n\\ud800: 'x' is not"),
    ],
)
def test_a_reason_is_one_printable_line_of_bounded_length_that_still_says_what_is_wrong(
    parameters: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    reason = judge(parameters, arguments)
    assert reason is not None
    assert words in reason
    assert reason.isprintable()
    assert len(reason) <= 500


def test_a_line_is_cut_only_where_it_is_longer_than_the_limit() -> None:
    assert one_line("x" * 500) == "x" * 500
    assert one_line("x" * 501) == "x" * 497 + "..."
    assert one_line("abcd", 4) == "abcd"
    assert one_line("abcde", 4) == "a..."
    assert one_line("\n\n\n", 4) == "\\..."


def test_a_value_is_echoed_whole_up_to_80_characters() -> None:
    parameters = {"properties": {"a": {"type": "integer"}}}
    assert judge(parameters, {"a": "x" * 78}) == f"tool 't': arguments.a: '{'x' * 78}' is not of type 'integer'"
    assert judge(parameters, {"a": "x" * 79}) == f"tool 't': arguments.a: '{'x' * 79}... is not of type 'integer'"


def test_of_many_alternatives_three_say_what_they_miss_each_in_bounded_length() -> None:
    parameters = {"anyOf": [{"required": [letter * 300]} for letter in "dcba"]}
    told = "; ".join(f"'{letter * 156}..." for letter in "abc")
    assert (
        judge(parameters, {})
        == f"tool 't': arguments: {{}} is not valid under any of the given schemas ({told})"[:497] + "..."
    )
    short = {"anyOf": [{"required": [letter]} for letter in "dcba"]}
    assert str(judge(short, {})).endswith(
        "('a' is a required property; 'b' is a required property; 'c' is a required property)"
    )


def test_a_path_is_told_whole_up_to_200_characters() -> None:
    parameters = {"additionalProperties": {"type": "integer"}}
    exact, longer = "k" * 190, "k" * 191
    assert f"arguments.{exact}: 'x' is not" in str(judge(parameters, {exact: "x"}))
    assert f"arguments.{'k' * 187}...: 'x' is not" in str(judge(parameters, {longer: "x"}))


def test_an_unknown_name_of_any_length_leaves_room_for_the_known_ones() -> None:
    reason = ToolRegistry([tool("a")]).validate("x\n" * 10**6, {})
    assert reason is not None
    assert reason.endswith("known tools: a")
    assert len(reason) <= 500


def test_many_tools_of_long_names_do_not_make_the_reason_longer() -> None:
    registry = ToolRegistry([tool(f"{index:03d}" + "x" * 125) for index in range(50)])
    reason = registry.validate("nope", {})
    assert reason is not None
    assert len(reason) == 500
    assert reason.endswith("...")


def test_of_several_errors_the_outermost_and_earliest_is_told() -> None:
    parameters = {
        "properties": {
            "b": {"properties": {"x": {"type": "string"}}},
            "a": {"items": {"type": "string"}},
            "c": {"type": "null"},
        }
    }
    assert "arguments.c:" in str(judge(parameters, {"c": 1, "b": {"x": 1}, "a": [1, 2]}))
    assert "arguments.a[0]:" in str(judge(parameters, {"b": {"x": 1}, "a": [1, 2]}))


@pytest.mark.parametrize("alternatives", ["anyOf", "oneOf"])
def test_what_is_wrong_for_certain_is_told_before_alternatives(alternatives: str) -> None:
    parameters = {alternatives: [{"required": ["x"]}, {"required": ["y"]}], "required": ["z"]}
    assert judge(parameters, {}) == "tool 't': arguments: 'z' is a required property"


def test_of_alternatives_the_one_that_came_nearest_is_told() -> None:
    parameters = {
        "properties": {
            "a": {
                "oneOf": [
                    {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
                    {"type": "integer"},
                ]
            }
        }
    }
    assert judge(parameters, {"a": {}}) == "tool 't': arguments.a: 'k' is a required property"


def test_of_alternatives_none_of_which_came_near_each_says_what_it_misses() -> None:
    parameters = {"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}
    assert "('x' is a required property; 'y' is a required property)" in str(judge(parameters, {}))


def test_arguments_nested_too_deep_for_the_validator_have_a_reason() -> None:
    parameters: dict[str, Any] = {"properties": {"a": {"allOf": [{"anyOf": [{"oneOf": [{"$ref": "#"}]}]}]}}}
    deep: dict[str, Any] = {}
    for _ in range(98):
        deep = {"a": deep}
    assert judge(parameters, deep) == "tool 't': arguments: are nested too deep to be judged by the schema"


def test_numbers_that_the_validator_cannot_reckon_with_have_a_reason() -> None:
    reason = judge({"properties": {"a": {"multipleOf": 0.1}}}, {"a": 10**600})
    assert reason == "tool 't': arguments: cannot be judged by the schema (OverflowError)"


def test_formats_are_remarks() -> None:
    assert judge({"properties": {"a": {"format": "date-time"}}}, {"a": "no date"}) is None


def test_the_dialect_named_is_the_dialect_that_judges() -> None:
    """What stands beside a reference counts since 2019, and was ignored before."""
    parameters: dict[str, Any] = {
        "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}},
        "definitions": {"s": {"type": "string"}},
    }
    assert judge(parameters, {"a": "xx"}) is not None
    assert judge({"$schema": DRAFT.format(7), **parameters}, {"a": "xx"}) is None


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.binary(max_size=1),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), inner, max_size=3)
    ),
    max_leaves=8,
)
LEAVES: list[dict[str, Any]] = [
    {},
    {"type": "integer"},
    {"type": ["string", "null"]},
    {"type": "object", "required": ["a"]},
    {"enum": [1, "", None]},
    {"const": False},
    {"$ref": "#"},
    {"$ref": "#/$defs/x"},
    {"$ref": "#/$defs/y"},
    {"$ref": "#/properties/a"},
]
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.fixed_dictionaries({}, optional=dict.fromkeys(("not", "if", "then", "else", "items", "contains"), inner)),
        st.dictionaries(
            st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=2), max_size=2
        ),
        st.builds(lambda a, b: {"properties": {"a": a, "b": b}}, inner, inner),
        st.builds(lambda a: {"additionalProperties": a}, inner),
        st.builds(lambda a, b: {**a, **b} if isinstance(a, dict) and isinstance(b, dict) else b, inner, inner),
    ),
    max_leaves=6,
)


def accepted(parameters: dict[str, Any]) -> ToolRegistry | None:
    try:
        return ToolRegistry([tool(parameters=parameters)])
    except InvalidRequest:
        return None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    schema=SCHEMAS,
    x=SCHEMAS,
    y=SCHEMAS,
    several=st.lists(st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=3), max_size=4),
)
def test_a_schema_that_is_taken_judges_every_argument_as_the_validator_does(
    schema: Any, x: Any, y: Any, several: list[dict[str, Any]]
) -> None:
    parameters = {**(schema if isinstance(schema, dict) else {}), "$defs": {"x": x, "y": y}}
    registry = accepted(parameters)
    if registry is None:
        return
    plain = jsonschema.Draft202012Validator(parameters)
    for arguments in several:
        reason = registry.validate("t", arguments)
        assert reason is None or (reason.isprintable() and len(reason) <= 500)
        if reason is None or not ("must be JSON" in reason or "must be a finite number" in reason):
            assert (reason is None) == plain.is_valid(arguments)
