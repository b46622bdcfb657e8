"""The public surface is what is pinned, says what it means, and leaves nothing that influences a run to a default."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

import polyloop
from polyloop import ports
from tests.architecture import pinned, surface
from tests.architecture.docs import undocumented
from tests.architecture.tree import PACKAGE, ROOT, python_files

DATACLASSES = {name: cls for name, cls in surface.public_classes().items() if surface.dataclass_of(cls)}
PORTS = ("ModelPort", "DecisionParser", "ActionExecutor", "RunStore", "EventSink")


@pytest.mark.parametrize("module", surface.MODULES)
def test_a_module_exports_what_is_pinned(module: str) -> None:
    assert surface.exported(module) == pinned.MODULES[module]
    assert len(set(pinned.MODULES[module])) == len(pinned.MODULES[module])


def test_the_package_exports_the_names_of_its_five_public_modules_and_nothing_else() -> None:
    union = {name for names in pinned.MODULES.values() for name in names}
    assert sum(len(names) for names in pinned.MODULES.values()) == len(union), "a name is exported by two modules"
    assert set(polyloop.__all__) == union | {"__version__"}
    assert len(polyloop.__all__) == len(union) + 1


def test_the_package_holds_the_same_objects_as_its_modules() -> None:
    for module, names in pinned.MODULES.items():
        assert all(getattr(polyloop, name) is getattr(__import__(module, fromlist=["_"]), name) for name in names)


def public_modules(package: Path) -> set[str]:
    """The modules whose path has no private part, as far as their name goes: `polyloop.types`, not `types.errors`."""
    names = {path.relative_to(package).parts[0].removesuffix(".py") for path in python_files(package)}
    return {f"polyloop.{name}" for name in names if not name.startswith("_")}


def test_no_other_module_is_public() -> None:
    opt_in = {"polyloop.stores", "polyloop.adapters", "polyloop.cli"}
    assert public_modules(PACKAGE) - opt_in == pinned.MODULES.keys()


@pytest.mark.parametrize("module", pinned.OPT_IN)
def test_an_opt_in_class_stands_at_its_pinned_address(module: str) -> None:
    assert surface.described_constructors(module, pinned.OPT_IN[module]) == pinned.OPT_IN[module]


def test_dataclasses_have_the_pinned_fields_types_and_defaults_in_this_order() -> None:
    """Every default that there is stands in the pinned list: none for what influences a run, the safe one elsewhere."""
    assert {name: surface.described_fields(cls) for name, cls in DATACLASSES.items()} == pinned.FIELDS


def test_functions_have_the_pinned_signatures() -> None:
    assert surface.described_signatures() == pinned.SIGNATURES


def test_enums_have_the_pinned_literals_in_this_order() -> None:
    found = {name: list(members.items()) for name, members in surface.literals().items()}
    assert found == {name: list(members.items()) for name, members in pinned.LITERALS.items()}


def test_errors_form_the_pinned_tree() -> None:
    errors = {name: cls for name, cls in surface.public_classes().items() if issubclass(cls, Exception)}
    assert {name: cls.__base__.__name__ for name, cls in errors.items() if cls.__base__} == pinned.ERROR_BASES
    assert all(len(cls.__bases__) == 1 for cls in errors.values())


NOTHING_BY_DEFAULT = (
    *("AgentDefinition", "RunRequest", "Budget", "ChatMessage", "InjectedEntry", "ModelReply", "PlannedAction"),
    *("ModelCall", "Action", "ActionDecision", "FinalAnswer", "InvalidDecision", "ParsedReply"),
)


def defaulted(fields: list[str]) -> list[str]:
    """The fields, as they are pinned, that have a default."""
    return [field for field in fields if " = " in field]


@pytest.mark.parametrize("name", NOTHING_BY_DEFAULT)
def test_what_influences_a_run_has_no_default(name: str) -> None:
    assert defaulted(surface.described_fields(DATACLASSES[name])) == []
    assert defaulted(pinned.FIELDS[name]) == []


def test_a_default_that_is_planted_is_found() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Budget:
        max_steps: int = 100
        notes: list[str] = dataclasses.field(default_factory=list)

    assert len(defaulted(surface.described_fields(Budget))) == 2
    assert surface.described_fields(Budget) == ["max_steps: int = 100", "notes: list[str] = list()"]


def looseness(cls: type) -> list[str]:
    """What a dataclass lacks to be a value."""
    params = cls.__dataclass_params__  # type: ignore[attr-defined] # every dataclass has it
    found = [] if params.frozen else ["not frozen"]
    found += [] if params.eq and not params.order else ["not compared by its fields"]
    found += [] if "__slots__" in vars(cls) and "__dict__" not in dir(cls) else ["not slotted"]
    found += [f"{field.name} is not keyword-only" for field in dataclasses.fields(cls) if not field.kw_only]
    mutable = ("list", "dict", "set", "bytearray")
    return found + [f"{f.name} is mutable" for f in dataclasses.fields(cls) if str(f.type).split("[")[0] in mutable]


@pytest.mark.parametrize("name", DATACLASSES)
def test_a_public_dataclass_is_a_frozen_slotted_keyword_only_value(name: str) -> None:
    assert looseness(DATACLASSES[name]) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"slots": True, "kw_only": True}, "not frozen"),
        ({"frozen": True, "kw_only": True}, "not slotted"),
        ({"frozen": True, "slots": True}, "value is not keyword-only"),
        ({"frozen": True, "slots": True, "kw_only": True, "eq": False}, "not compared by its fields"),
    ],
)
def test_a_loose_dataclass_is_found(arguments: Mapping[str, Any], problem: str) -> None:
    cls = dataclasses.make_dataclass("Loose", [("value", "list[int]")], **arguments)
    assert looseness(cls) == [problem, "value is mutable"]


def test_a_public_enum_is_a_str_enum_whose_str_is_its_literal() -> None:
    enums = [cls for cls in surface.public_classes().values() if issubclass(cls, enum.Enum)]
    assert enums
    for cls in enums:
        assert issubclass(cls, enum.StrEnum)
        for member in cls:
            assert f"{member}" == str(member) == "%s" % member == member.value  # noqa: UP031 - its literal as %s gives it
            assert json.dumps(member) == f'"{member.value}"'


def test_the_first_thirteen_fields_of_a_step_keep_their_names_and_order() -> None:
    names = [field.name for field in dataclasses.fields(polyloop.Step)]
    assert names[:13] == [
        *("step_idx", "raw_output", "content_chars", "thinking_chars", "action", "parse_ok", "parse_error"),
        *("observation", "observation_is_synthetic", "observation_truncated_chars", "prompt_chars", "call_id"),
        "step_wall_ms",
    ]
    assert names[13:] == ["tool_name", "tool_arguments_json", "action_status", "schema_version"]


def test_public_annotations_name_neither_any_nor_object_nor_a_third_party_type() -> None:
    assert surface.loose_annotations() == []


@pytest.mark.parametrize(
    "annotation",
    [
        *(Any, object, dict, list, Mapping, Callable),
        *(list[Any], dict[str, object], Mapping[str, Any] | None, tuple[int, Any], Callable[[Any], None]),
        Callable[[int], Awaitable[object]],
        *(pytest.Item, list[pytest.Item], type[pytest.Item] | None),
    ],
    ids=str,
)
def test_a_loose_annotation_is_found(annotation: Any) -> None:
    assert list(surface.type_problems(annotation))


@pytest.mark.parametrize(
    "annotation",
    [
        int | None,
        tuple[str, ...],
        Mapping[str, polyloop.JSONValue],
        polyloop.RunKey,
        polyloop.Role,
        polyloop.Event,
        None,
    ],
    ids=str,
)
def test_a_precise_annotation_is_accepted(annotation: Any) -> None:
    assert list(surface.type_problems(annotation)) == []


def port_problems(port: type) -> list[str]:
    """What keeps a port from being satisfied by an object that knows nothing of it."""
    found = [] if getattr(port, "_is_protocol", False) else ["it is no Protocol"]
    for name, member in vars(port).items():
        if name.startswith("_") or isinstance(member, property):
            continue
        if not inspect.iscoroutinefunction(member):
            found.append(f"{name} is neither a coroutine function nor a read-only property")
            continue
        parameters = list(inspect.signature(member).parameters.values())
        found += [f"{name}: {p.name} is not positional-only" for p in parameters if p.kind is not p.POSITIONAL_ONLY]
        found += [f"{name}: {p.name} has a default" for p in parameters if p.default is not p.empty]
    writable = [name for name, member in vars(port).items() if isinstance(member, property) and member.fset]
    annotated = vars(port).get("__annotations__", {})
    return [*found, *(f"{name} is no read-only property" for name in (*writable, *annotated))]


@pytest.mark.parametrize("name", PORTS)
def test_a_port_is_a_protocol_with_positional_only_methods_and_read_only_properties(name: str) -> None:
    assert port_problems(getattr(ports, name)) == []


def test_there_are_five_ports() -> None:
    protocols = {name for name, each in vars(ports).items() if getattr(each, "_is_protocol", False)} - {"Protocol"}
    assert protocols == set(PORTS)


def test_a_port_that_asks_too_much_is_found() -> None:
    class NamedParameter(Protocol):
        async def call(self, call: str) -> str: ...

    class Options(Protocol):
        async def call(self, call: str, /, **options: str) -> str: ...

    class Default(Protocol):
        async def call(self, call: str = "", /) -> str: ...

    class Attribute(Protocol):
        params: Mapping[str, str]

    class Synchronous(Protocol):
        def call(self, call: str, /) -> str: ...

    class Base:
        async def call(self, call: str, /) -> str:
            return call

    for port in (NamedParameter, Options, Default, Attribute, Synchronous, Base):
        assert port_problems(port), port


def documented_files(package: Path) -> list[Path]:
    """The files whose names are public all the way."""
    return [
        path
        for path in python_files(package)
        if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(package).parts)
    ]


def test_everything_public_is_documented_and_a_field_below_the_field() -> None:
    missing = {str(path.relative_to(ROOT)): undocumented(path.read_text("utf-8")) for path in documented_files(PACKAGE)}
    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): ...", ["the module", "f (line 1)"]),
        ('"""M."""\nclass A:\n    x: int', ["A (line 2)", "A.x (line 3)"]),
        (
            '"""M."""\nclass A:\n    """A."""\n    x: int\n    """X."""\n    y: int\n    z: int\n    """Z."""',
            ["A.y (line 6)"],
        ),
        ('"""M."""\nclass A(StrEnum):\n    """A."""\n    X = "x"', ["A.X (line 4)"]),
        ('"""M."""\nclass A:\n    """A."""\n    async def f(self): ...\n    def _g(self): ...', ["A.f (line 4)"]),
        ('"""M."""\nLIMIT = 3\n_private = 4\nT = TypeVar("T")', ["LIMIT (line 2)"]),
    ],
)
def test_what_is_not_documented_is_found(source: str, missing: list[str]) -> None:
    assert undocumented(source) == missing
