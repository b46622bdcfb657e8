"""Tools: one table drives what the model sees, what exists, what fits, what runs, what a replay may do."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

import polyloop.tools
from polyloop.ports import Action, ActionExecutor
from polyloop.tools import ToolRegistry, ToolResult, ToolSpec, current_action
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    EnvironmentFailure,
    InvalidRequest,
    JSONValue,
    ReplayPolicy,
    RunKey,
    ToolDocsStyle,
)
from tests.ids import stable_id


async def say_done(_: dict[str, JSONValue]) -> str:
    return "done"


def tool(
    name: str = "t",
    parameters: object = None,
    handler: object = say_done,
    *,
    description: str = "",
    replay: ReplayPolicy = ReplayPolicy.NEVER,
    completes: bool = False,
) -> ToolSpec:
    """A spec; parameters and handler may be of any type, since tests hand in wrong ones."""
    return ToolSpec(
        name=name,
        description=description,
        parameters=cast("Mapping[str, JSONValue]", {} if parameters is None else parameters),
        handler=cast("Callable[[dict[str, JSONValue]], Awaitable[ToolResult | str]]", handler),
        replay=replay,
        completes=completes,
    )


def action(name: str | None = "t", arguments: object = None, *, result_id: str = "000000-action") -> Action:
    return Action(
        action_text="as the trajectory shows it",
        tool_name=name,
        arguments=cast("Mapping[str, JSONValue]", {} if arguments is None else arguments),
        key=RunKey("run"),
        step_idx=0,
        result_id=result_id,
    )


NAMED: dict[str, JSONValue] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "note": {"type": ["string", "null"]}},
    "required": ["name"],
}


async def run(
    handler: object, *, limit: int = 1000, completes: bool = False, arguments: object = None
) -> ActionOutcome:
    registry = ToolRegistry([tool(handler=handler, completes=completes)])
    return await registry.executor(max_observation_chars=limit).execute(action(arguments=arguments))


# ------------------------------------------------------------------------------------------------ results


def test_a_result_is_frozen_and_takes_keywords_only() -> None:
    with pytest.raises(TypeError):
        ToolResult("x")  # type: ignore[call-arg] # that is what is tried
    result = ToolResult(observation="x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.completed = True  # type: ignore[misc] # likewise
    assert not hasattr(result, "__dict__")


def test_a_result_completes_nothing_unless_it_says_so() -> None:
    assert ToolResult(observation="x") == ToolResult(observation="x", completed=False)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"observation": b"x"}, "ToolResult.observation"),
        ({"observation": None}, "ToolResult.observation"),
        ({"observation": "x", "completed": None}, "ToolResult.completed"),
        ({"observation": "x", "completed": 1}, "ToolResult.completed"),
    ],
)
def test_a_result_refuses_other_types(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolResult(**fields)
    assert refused.value.field == field


# ------------------------------------------------------------------------------------------- names, fields


@pytest.mark.parametrize("name", ["a", "A", "read_file", "files/read", "v1.2-x", "..", "/", "_", "0", "x" * 128])
def test_a_name_of_the_published_pattern_is_kept_as_it_is(name: str) -> None:
    assert tool(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a\n",
        "\na",
        "a\0",
        "x" * 129,
        "caf\u00e9",
        "cafe\u0301",
        "\u0660",
        "a:b",
        "a@b",
        "\ud800",
        "\u212a",
    ],
)
def test_any_other_name_is_refused_by_name_and_shown_in_one_line(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tool(name)
    assert refused.value.field == "ToolSpec.name"
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("name", b"t"),
        ("description", None),
        ("description", 5),
        ("parameters", None),
        ("parameters", []),
        ("parameters", "{}"),
        ("parameters", True),
        ("handler", None),
        ("handler", "run"),
        ("replay", "safe"),
        ("replay", None),
        ("completes", None),
        ("completes", 1),
    ],
)
def test_each_field_refuses_a_value_of_the_wrong_type(field: str, value: object) -> None:
    fields: dict[str, Any] = {"name": "t", "description": "", "parameters": {}, "handler": say_done, field: value}
    with pytest.raises(InvalidRequest) as refused:
        ToolSpec(**fields)
    assert refused.value.field == f"ToolSpec.{field}"


def test_a_tool_is_never_replayed_and_completes_nothing_unless_it_says_so() -> None:
    spec = ToolSpec(name="t", description="", parameters={}, handler=say_done)
    assert (spec.replay, spec.completes) == (ReplayPolicy.NEVER, False)


def test_a_spec_is_frozen_and_takes_keywords_only() -> None:
    assert inspect.signature(ToolSpec).parameters["name"].kind is inspect.Parameter.KEYWORD_ONLY
    with pytest.raises(dataclasses.FrozenInstanceError):
        tool().name = "other"  # type: ignore[misc] # that is what is tried
    assert not hasattr(tool(), "__dict__")


def test_a_spec_can_be_replaced_field_by_field() -> None:
    spec = tool("a", {"type": "object"})
    other = dataclasses.replace(spec, name="b")
    assert (other.name, other.parameters, other.handler) == ("b", {"type": "object"}, spec.handler)
    with pytest.raises(InvalidRequest):
        dataclasses.replace(spec, parameters={"type": "objekt"})


def test_specs_of_equal_fields_are_equal() -> None:
    assert tool("a", {"type": "object"}) == tool("a", {"type": "object"})
    assert tool("a", {"type": "object"}) != tool("a", {})


def test_names_of_string_enums_become_plain_strings() -> None:
    class Names(str, enum.Enum):  # noqa: UP042 - the older spelling, whose members format differently by version
        READ = "read"

    spec = tool(Names.READ, description=Names.READ)
    assert type(spec.name) is str
    assert type(spec.description) is str
    assert ToolRegistry([spec]).docs(ToolDocsStyle.MARKDOWN).startswith("## read\n\nread\n")


def test_annotations_can_be_read_at_run_time_and_hold_nothing_of_a_third_party() -> None:
    for public in (ToolSpec, ToolResult, current_action, ToolRegistry.validate, ToolRegistry.executor):
        assert "jsonschema" not in repr(typing.get_type_hints(public))


# ----------------------------------------------------------------------------------------------- handlers


class Greeter:
    async def greet(self, arguments: dict[str, JSONValue], greeting: str = "hello") -> str:
        return f"{greeting} {arguments['name']}"

    async def __call__(self, arguments: dict[str, JSONValue], greeting: str = "hello") -> str:
        return await self.greet(arguments, greeting)

    @staticmethod
    async def static(arguments: dict[str, JSONValue]) -> str:
        return f"hello {arguments['name']}"

    @classmethod
    async def of_class(cls, arguments: dict[str, JSONValue]) -> str:
        return f"hello {arguments['name']}"

    bound_early = functools.partialmethod(greet, greeting="hello")


async def greet_with(greeting: str, arguments: dict[str, JSONValue]) -> str:
    return f"{greeting} {arguments['name']}"


@pytest.mark.parametrize(
    "handler",
    [
        functools.partial(greet_with, "hello"),
        functools.partial(functools.partial(greet_with), "hello"),
        Greeter(),
        functools.partial(Greeter(), greeting="hello"),
        Greeter().greet,
        functools.partial(Greeter().greet, greeting="hello"),
        Greeter().bound_early,
        Greeter.static,
        Greeter.of_class,
    ],
)
async def test_every_kind_of_coroutine_function_is_a_handler(handler: object) -> None:
    assert (await run(handler, arguments={"name": "you"})).observation == "hello you"


@pytest.mark.skipif(not hasattr(inspect, "markcoroutinefunction"), reason="the mark came with Python 3.12")
async def test_a_function_marked_as_a_coroutine_function_is_a_handler() -> None:
    def marked(arguments: dict[str, JSONValue]) -> Awaitable[str]:
        return greet_with("hello", arguments)

    handler = inspect.markcoroutinefunction(marked)  # type: ignore[attr-defined] # mypy checks for 3.11
    assert (await run(handler, arguments={"name": "you"})).observation == "hello you"


def sync_handler(_: object) -> str:
    return ""


async def async_generator(_: object) -> Any:
    yield ""


class SyncCallable:
    def __call__(self, _: object) -> str:
        return ""


@pytest.mark.parametrize(
    "handler",
    [
        sync_handler,
        lambda _: say_done({}),
        functools.partial(sync_handler),
        functools.partial(functools.partial(SyncCallable())),
        SyncCallable(),
        Greeter,
        async_generator,
        print,
        Greeter.__dict__["bound_early"],
        object(),
    ],
    ids=stable_id,
)
def test_anything_else_is_refused_with_the_remedy(handler: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tool("slow", handler=handler)
    assert refused.value.field == "ToolSpec.handler"
    assert "asyncio.to_thread" in refused.value.problem
    assert "'slow'" in refused.value.problem


# ----------------------------------------------------------------------------------------------- registry


def test_a_registry_keeps_the_order_given() -> None:
    specs = [tool(name) for name in ("b", "a", "c")]
    registry = ToolRegistry(specs)
    assert registry.names == ("b", "a", "c")
    assert [spec.name for spec in registry] == ["b", "a", "c"]
    assert [schema["name"] for schema in registry.schemas] == ["b", "a", "c"]
    assert len(registry) == 3
    assert registry.get("a") is specs[1]
    assert registry.get("A") is None


def test_a_registry_takes_any_iterable_also_another_registry() -> None:
    registry = ToolRegistry(tool(name) for name in "ab")
    assert ToolRegistry([*registry, tool("c")]).names == ("a", "b", "c")
    assert ToolRegistry(registry).names == registry.names
    assert ToolRegistry(()).names == ()
    assert ToolRegistry(()).schemas == ()


def test_membership_is_asked_by_name_or_by_spec() -> None:
    spec = tool("a")
    registry = ToolRegistry([spec])
    assert "a" in registry
    assert spec in registry
    assert "b" not in registry
    assert tool("b") not in registry
    assert ["a"] not in registry


def test_two_tools_of_one_name_are_refused_naming_both_places() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry([tool("x"), tool("read"), tool("y"), tool("read")])
    assert refused.value.field == "ToolRegistry.specs[3]"
    assert "'read'" in refused.value.problem
    assert "specs[1]" in refused.value.problem


def test_names_that_differ_in_any_character_are_different_tools() -> None:
    names = ("read", "Read", "read_", "read-", "read.", "/read", "read/")
    registry = ToolRegistry([tool(name) for name in names])
    assert all(registry.validate(name, {}) is None for name in names)
    assert registry.validate("READ", {}) is not None


@pytest.mark.parametrize(
    ("specs", "field"),
    [
        (None, "ToolRegistry.specs"),
        (5, "ToolRegistry.specs"),
        (["t"], "ToolRegistry.specs[0]"),
        ("t", "ToolRegistry.specs[0]"),
    ],
)
def test_something_else_than_specs_is_refused(specs: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry(specs)
    assert refused.value.field == field


def test_one_spec_alone_is_refused_as_no_iterable() -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry(tool())  # type: ignore[arg-type] # that is what is tried
    assert refused.value.field == "ToolRegistry.specs"


def test_schemas_hold_what_the_model_may_see_and_no_more() -> None:
    parameters = {"type": "object", "properties": {"z": {}, "a": {}}}
    spec = tool("t", parameters, description="What it does.", replay=ReplayPolicy.SAFE, completes=True)
    assert ToolRegistry([spec]).schemas == ({"name": "t", "description": "What it does.", "parameters": parameters},)


def _spoil(value: Any) -> None:
    """Change every object and list within a value."""
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        value["spoiled"] = True
    elif isinstance(value, list | tuple):
        for inner in value:
            _spoil(inner)


async def test_nobodys_mutation_changes_a_registry() -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    before = copy.deepcopy(parameters)
    spec = tool(parameters=parameters)
    registry = ToolRegistry([spec])
    executor = registry.executor(max_observation_chars=9)
    docs = [registry.docs(style) for style in ToolDocsStyle]

    for handed_out in (parameters, spec.parameters, registry.schemas, executor.tool_schemas, executor.params):
        _spoil(handed_out)
    parameters["required"].append("b")
    cast("dict[str, JSONValue]", spec.parameters)["required"] = ["c"]

    assert registry.schemas == executor.tool_schemas == ({"name": "t", "description": "", "parameters": before},)
    assert executor.params == {"max_observation_chars": 9}
    assert [registry.docs(style) for style in ToolDocsStyle] == docs
    assert registry.validate("t", {"a": "x"}) is None
    assert registry.validate("t", {}) is not None
    assert (await executor.execute(action(arguments={"a": "x"}))).status is ActionStatus.EXECUTED
    assert ToolRegistry(registry).schemas == registry.subset(["t"]).schemas == registry.schemas


def test_tuples_in_a_schema_count_as_lists() -> None:
    spec = tool(parameters={"required": ("a",)})
    assert spec.parameters == {"required": ["a"]}
    assert ToolRegistry([spec]).validate("t", {}) is not None


def test_a_registry_has_no_attributes_to_set() -> None:
    registry = ToolRegistry(())
    for name in ("names", "schemas", "other"):
        with pytest.raises(AttributeError):
            setattr(registry, name, ())


# ------------------------------------------------------------------------------------------------- subset


def test_a_subset_keeps_the_order_of_the_registry_whatever_the_order_asked() -> None:
    registry = ToolRegistry([tool(name) for name in "abcd"])
    assert registry.subset(["d", "b"]).names == ("b", "d")
    assert registry.subset({"d": 1, "b": 2}).names == ("b", "d")
    assert registry.subset(iter("db")).names == ("b", "d")
    assert registry.subset(()).names == ()
    assert registry.names == ("a", "b", "c", "d")


async def test_a_subset_narrows_prompt_existence_and_dispatch_together() -> None:
    narrow = ToolRegistry([tool(name) for name in "abc"]).subset(["b"])
    executor = narrow.executor(max_observation_chars=100)
    assert [schema["name"] for schema in narrow.schemas] == ["b"]
    assert executor.tool_schemas == narrow.schemas
    assert narrow.docs(ToolDocsStyle.MARKDOWN).count("## ") == 1
    assert narrow.validate("a", {}) == "unknown tool 'a'; known tools: b"
    assert (await executor.execute(action("a"))).status is ActionStatus.NOT_EXECUTED
    assert (await executor.execute(action("b"))).status is ActionStatus.EXECUTED


def test_a_subset_shares_the_specs_so_nothing_is_checked_or_built_again() -> None:
    registry = ToolRegistry([tool(name) for name in "ab"])
    assert registry.subset("a"[:1].split()).get("a") is registry.get("a")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["nope"], "unknown tool 'nope'; known tools: a, b"),
        (["a", "A"], "unknown tool 'A'"),
        (["a", "b", "a"], "'a' is given twice"),
        ("a", "give a list"),
        ("ab", "give a list"),
        (None, "give a list"),
        ([None], "known tools: a, b"),
        ([["a"]], "known tools: a, b"),
    ],
)
def test_a_subset_of_unknown_or_doubled_names_is_refused(names: Any, words: str) -> None:
    registry = ToolRegistry([tool(name) for name in "ab"])
    with pytest.raises(InvalidRequest) as refused:
        registry.subset(names)
    assert refused.value.field == "ToolRegistry.subset.names"
    assert words in refused.value.problem


# --------------------------------------------------------------------------------------------------- docs

GOLDEN = ToolRegistry(
    [
        tool(
            "files/read",
            {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "相对路径"}, "limit": {"type": "integer"}},
                "required": ["path"],
                "additionalProperties": False,
            },
            description="Read a file.\nThe first line counts as 1.",
        ),
        tool("noop"),
        tool("submit", {"properties": {"b": {}, "a": {"pattern": "```\n\u2028\x85\ud800"}}}, description="Überall."),
    ]
)

GOLDEN_JSON = (
    '{"name": "files/read", "description": "Read a file.\\nThe first line counts as 1.", '
    '"parameters": {"type": "object", "properties": {'
    '"path": {"type": "string", "description": "相对路径"}, "limit": {"type": "integer"}}, '
    '"required": ["path"], "additionalProperties": false}}\n'
    '{"name": "noop", "description": "", "parameters": {}}\n'
    '{"name": "submit", "description": "Überall.", "parameters": {"properties": {"b": {}, '
    '"a": {"pattern": "```\\n\\u2028\\u0085\\ud800"}}}}'
)

GOLDEN_MARKDOWN = """\
## files/read

Read a file.
The first line counts as 1.

```json
{
  "type": "object",
  "properties": {
    "path": {
      "type": "string",
      "description": "相对路径"
    },
    "limit": {
      "type": "integer"
    }
  },
  "required": [
    "path"
  ],
  "additionalProperties": false
}
```

## noop

```json
{}
```

## submit

Überall.

```json
{
  "properties": {
    "b": {},
    "a": {
      "pattern": "```\\n\\u2028\\u0085\\ud800"
    }
  }
}
```"""


def test_the_text_of_the_docs_is_frozen() -> None:
    """It enters prompts, and its digest is part of a run's identity: a change here is a change for every user."""
    assert GOLDEN.docs(ToolDocsStyle.JSON_SCHEMA) == GOLDEN_JSON
    assert GOLDEN.docs(ToolDocsStyle.MARKDOWN) == GOLDEN_MARKDOWN


def test_the_json_docs_are_one_line_a_tool_and_read_back_as_the_schemas() -> None:
    lines = GOLDEN.docs(ToolDocsStyle.JSON_SCHEMA).splitlines()
    assert tuple(json.loads(line) for line in lines) == GOLDEN.schemas


def test_there_are_no_docs_with_none_and_without_tools() -> None:
    assert GOLDEN.docs(ToolDocsStyle.NONE) == ""
    assert [ToolRegistry(()).docs(style) for style in ToolDocsStyle] == ["", "", ""]


@pytest.mark.parametrize("style", ["markdown", None, "MARKDOWN"])
def test_docs_in_no_style_are_refused(style: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        GOLDEN.docs(style)
    assert refused.value.field == "ToolRegistry.docs.style"


# ----------------------------------------------------------------------------------------------- executor


def test_the_executor_tells_what_it_is() -> None:
    registry = ToolRegistry([tool("b"), tool("a")])
    executor: ActionExecutor = registry.executor(max_observation_chars=7)
    assert executor.params == {"max_observation_chars": 7}
    assert executor.accepts is ActionKind.TOOL_CALL
    assert executor.tool_schemas == registry.schemas


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, "5", None])
def test_a_limit_that_is_no_positive_int_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ToolRegistry(()).executor(max_observation_chars=limit)
    assert refused.value.field == "ToolRegistry.executor.max_observation_chars"


def test_the_limit_has_no_default() -> None:
    with pytest.raises(TypeError):
        ToolRegistry(()).executor()  # type: ignore[call-arg] # that is what is tried


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nope", {"name": "x"}),
        (None, {}),
        ("t", {}),
        ("t", {"name": None}),
        ("t", {"name": "x", "n": float("nan")}),
        ("t", {"name": "x", "n": {1: 2}}),
        ("t", ["x"]),
        ("", {}),
    ],
)
async def test_a_call_that_cannot_be_made_is_not_executed_and_says_why_without_touching_a_handler(
    name: str | None, arguments: dict[str, Any]
) -> None:
    async def touched(_: dict[str, JSONValue]) -> str:
        raise AssertionError("the handler was called")

    registry = ToolRegistry([tool(parameters=NAMED, handler=touched, completes=True)])
    outcome = await registry.executor(max_observation_chars=1000).execute(action(name, arguments))
    reason = registry.validate(cast("str", name), arguments)
    assert reason
    assert outcome == ActionOutcome(status=ActionStatus.NOT_EXECUTED, observation=reason, completed=False)


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize(
    ("returned", "says"),
    [("seen", False), (ToolResult(observation="seen"), False), (ToolResult(observation="seen", completed=True), True)],
)
async def test_what_a_handler_returns_is_the_observation_and_completes_if_tool_or_result_says_so(
    completes: bool, returned: object, says: bool
) -> None:
    async def handler(_: object) -> object:
        return returned

    outcome = await run(handler, completes=completes)
    assert outcome == ActionOutcome(
        status=ActionStatus.EXECUTED, observation="seen", completed=completes or says, truncated_chars=0
    )


class Silent(Exception):  # noqa: N818 - named for what it does
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Numeric(Exception):  # noqa: N818 - likewise
    def __str__(self) -> str:
        return cast("str", 5)


@pytest.mark.parametrize(
    ("error", "observation"),
    [
        (ValueError("no such column: x"), "ValueError: no such column: x"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("ends with: "), "RuntimeError: ends with: "),
        (TimeoutError(), "TimeoutError"),
        (InvalidRequest("a.b", "is wrong"), "InvalidRequest: a.b: is wrong"),
        (StopAsyncIteration("x"), "StopAsyncIteration: x"),
        (ExceptionGroup("both", [ValueError("a"), OSError("b")]), "ExceptionGroup: both (2 sub-exceptions)"),
        (Silent(), "Silent: its message could not be read (RuntimeError)"),
        (Numeric(), "Numeric: its message could not be read (TypeError)"),
        (ValueError("a\nb\ud800\0"), "ValueError: a\nb\ud800\0"),
    ],
    ids=[*map(str, range(11))],
)
async def test_a_handler_that_raises_has_executed_with_type_and_message_as_observation(
    error: Exception, observation: str
) -> None:
    async def handler(_: object) -> str:
        raise error

    outcome = await run(handler, completes=True)
    assert outcome == ActionOutcome(status=ActionStatus.EXECUTED, observation=observation, completed=False)


@pytest.mark.parametrize(
    "returned", [None, 5, b"bytes", {"a": 1}, ["x"], True, float("nan"), object(), {None: 1, 1: 2}]
)
async def test_a_handler_that_returns_something_else_has_executed_with_that_error(returned: object) -> None:
    async def handler(_: object) -> object:
        return returned

    outcome = await run(handler, completes=True)
    assert outcome.status is ActionStatus.EXECUTED
    assert outcome.completed is False
    assert outcome.observation == f"TypeError: the handler must return str or ToolResult, got {type(returned).__name__}"
    assert outcome.observation_is_synthetic is True, "the environment said none of this"


async def test_a_handler_of_the_wrong_signature_has_executed_with_that_error() -> None:
    async def none_taken() -> str:
        return ""

    outcome = await run(none_taken)
    assert outcome.status is ActionStatus.EXECUTED
    assert outcome.observation.startswith("TypeError: ")


class Unreachable(EnvironmentFailure):
    pass


@pytest.mark.parametrize(
    ("error", "observation"),
    [
        (EnvironmentFailure("container gone"), "container gone"),
        (Unreachable("container gone"), "container gone"),
        (EnvironmentFailure(), "EnvironmentFailure"),
        (Unreachable(""), "Unreachable"),
        (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [Unreachable("gone")])]), "gone"),
    ],
)
async def test_an_environment_failure_is_an_env_error_in_its_own_words_also_out_of_a_task_group(
    error: Exception, observation: str
) -> None:
    async def handler(_: object) -> str:
        raise error

    outcome = await run(handler, completes=True)
    assert outcome == ActionOutcome(status=ActionStatus.ENV_ERROR, observation=observation, completed=False)


async def test_an_environment_failure_in_a_task_of_the_handler_is_one() -> None:
    async def fail() -> None:
        raise EnvironmentFailure("gone")

    async def handler(_: object) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return "never"

    assert (await run(handler)).status is ActionStatus.ENV_ERROR


@pytest.mark.parametrize(("limit", "kept"), [(1, "o"), (3, "obs"), (11, "observation"), (12, "observation")])
@pytest.mark.parametrize("how", ["text", "result", "error", "failure"])
async def test_an_observation_of_any_kind_keeps_its_first_characters_and_the_cut_is_counted(
    how: str, limit: int, kept: str
) -> None:
    observation = type("observation", (Exception,), {})
    said: dict[str, Any] = {
        "text": "observation",
        "result": ToolResult(observation="observation"),
        "error": observation(),
        "failure": EnvironmentFailure("observation"),
    }

    async def handler(_: object) -> object:
        if isinstance(said[how], Exception):
            raise said[how]
        return said[how]

    outcome = await run(handler, limit=limit)
    assert (outcome.observation, outcome.truncated_chars) == (kept, 11 - len(kept))


async def test_a_refusal_is_cut_to_the_limit_too() -> None:
    outcome = await ToolRegistry(()).executor(max_observation_chars=7).execute(action("x"))
    whole = "unknown tool 'x'; there are no tools"
    assert (outcome.observation, outcome.truncated_chars) == (whole[:7], len(whole) - 7)


async def test_an_observation_is_a_plain_string_of_any_content() -> None:
    class Text(str):
        __slots__ = ()

        def __len__(self) -> int:
            return 0

        def __getitem__(self, _: Any) -> str:
            return "other"

    async def handler(_: object) -> str:
        return Text("\0\ud83d\ude00\u2028" + "x" * 10)

    outcome = await run(handler, limit=6)
    assert type(outcome.observation) is str
    assert (outcome.observation, outcome.truncated_chars) == ("\0\ud83d\ude00\u2028xx", 8)


async def test_a_handler_can_tell_null_from_missing() -> None:
    async def show(arguments: dict[str, JSONValue]) -> str:
        return repr(arguments.get("note", "missing"))

    executor = ToolRegistry([tool(parameters=NAMED, handler=show)]).executor(max_observation_chars=99)
    assert (await executor.execute(action(arguments={"name": "x"}))).observation == "'missing'"
    assert (await executor.execute(action(arguments={"name": "x", "note": None}))).observation == "None"


async def test_a_handler_has_its_own_arguments() -> None:
    given = {"a": [1, {"b": 2}], "t": (1, 2)}
    action_given = action(arguments=given)
    seen: list[dict[str, JSONValue]] = []

    async def handler(arguments: dict[str, JSONValue]) -> str:
        seen.append(copy.deepcopy(arguments))
        _spoil(arguments)
        return json.dumps(arguments)

    await run(handler, arguments=given)
    executor = ToolRegistry([tool(handler=handler)]).executor(max_observation_chars=99)
    for _ in range(2):
        await executor.execute(action_given)
    assert seen == [{"a": [1, {"b": 2}], "t": [1, 2]}] * 3
    assert given == {"a": [1, {"b": 2}], "t": (1, 2)}


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_is_no_exception_passes(error: type[BaseException]) -> None:
    async def handler(_: object) -> str:
        raise error

    coroutine = run(handler)
    with pytest.raises(error):
        coroutine.send(None)


async def test_a_group_that_holds_more_than_exceptions_passes() -> None:
    async def handler(_: object) -> str:
        raise BaseExceptionGroup("g", [EnvironmentFailure("gone"), KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup):
        await run(handler)


async def test_a_cancellation_reaches_the_handler_and_passes() -> None:
    cleaned: list[bool] = []

    async def handler(_: object) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return "never"

    task = asyncio.create_task(run(handler))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


# ------------------------------------------------------------------------------------------ current_action


def test_outside_a_handler_there_is_no_action() -> None:
    with pytest.raises(LookupError, match="only while a tool handler"):
        current_action()


@pytest.mark.parametrize("end", ["returns", "raises", "fails", "passes"])
async def test_a_handler_sees_its_action_and_nobody_does_afterwards(end: str) -> None:
    seen: list[Action] = []
    ends: dict[str, BaseException] = {
        "raises": ValueError(),
        "fails": EnvironmentFailure(),
        "passes": KeyboardInterrupt(),
    }

    async def handler(_: object) -> str:
        seen.append(current_action())
        await asyncio.sleep(0)
        seen.append(current_action())
        if end in ends:
            raise ends[end]
        return ""

    asked = action(arguments={"a": 1})
    executor = ToolRegistry([tool(handler=handler)]).executor(max_observation_chars=9)
    try:
        await executor.execute(asked)
    except KeyboardInterrupt:
        assert end == "passes"
    assert [each is asked for each in seen] == [True, True]
    with pytest.raises(LookupError):
        current_action()


async def test_concurrent_handlers_each_see_their_own_action() -> None:
    async def handler(_: object) -> str:
        before = current_action().result_id
        for _turn in range(3):
            await asyncio.sleep(0)
        assert current_action().result_id == before
        return before

    executor = ToolRegistry([tool(handler=handler)]).executor(max_observation_chars=99)
    ids = [f"{index:06d}-action" for index in range(50)]
    outcomes = await asyncio.gather(*(executor.execute(action(result_id=each)) for each in ids))
    assert [outcome.observation for outcome in outcomes] == ids


async def test_a_handler_that_runs_another_executor_gets_its_own_action_back() -> None:
    async def inner(_: object) -> str:
        return current_action().result_id

    async def outer(_: object) -> str:
        executor = ToolRegistry([tool(handler=inner)]).executor(max_observation_chars=99)
        nested = await executor.execute(action(result_id="inner"))
        return f"{nested.observation} in {current_action().result_id}"

    assert (await run(outer)).observation == "inner in 000000-action"


async def test_tasks_and_threads_of_a_handler_see_its_action() -> None:
    async def ask() -> str:
        return current_action().result_id

    async def handler(_: object) -> str:
        in_thread = await asyncio.to_thread(current_action)
        return f"{await asyncio.create_task(ask())} {in_thread.result_id}"

    assert (await run(handler)).observation == "000000-action 000000-action"


async def test_a_handler_thrown_away_in_another_context_makes_no_noise_and_changes_nothing_there() -> None:
    async def handler(_: object) -> str:
        await asyncio.Event().wait()
        return "never"

    abandoned = run(handler)
    contextvars.copy_context().run(abandoned.send, None)

    async def busy(_: object) -> str:
        abandoned.close()
        return current_action().result_id

    assert (await run(busy)).observation == "000000-action"


# ------------------------------------------------------------------------------------------------- repr


async def test_reprs_show_names_and_neither_handlers_nor_schemas_nor_arguments() -> None:
    spec = tool("read", {"description": "SECRET"}, functools.partial(greet_with, "SECRET"), description="SECRET")
    registry = ToolRegistry([spec, tool("write")])
    assert repr(spec) == "ToolSpec(name='read')"
    assert repr(registry) == "ToolRegistry(['read', 'write'])"
    shown = repr(registry.executor(max_observation_chars=5))
    assert "SECRET" not in shown
    assert "greet" not in shown
    assert "['read', 'write']" in shown


def test_the_public_names_are_pinned() -> None:
    assert polyloop.tools.__all__ == ["ToolRegistry", "ToolResult", "ToolSpec", "current_action"]
