"""The public surface as it is, in a form that can be compared with the pinned one."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Final, ForwardRef, Literal, cast

import polyloop

MODULES: Final = ("polyloop.types", "polyloop.ports", "polyloop.tools", "polyloop.serialization", "polyloop.session")

_CONTAINERS: Final = ("builtins", "collections", "collections.abc", "typing")


def exported(module: str) -> list[str]:
    """A module's `__all__`."""
    return list(importlib.import_module(module).__all__)


def public_classes() -> dict[str, type]:
    """Every public class, by its name."""
    return {name: each for name in polyloop.__all__ if inspect.isclass(each := getattr(polyloop, name))}


def dataclass_of(cls: type) -> bool:
    """Whether the class itself, not only one that it inherits, is a dataclass."""
    return "__dataclass_fields__" in vars(cls)


def public_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that its users give and read."""
    return [field for field in dataclasses.fields(cls) if not field.name.startswith("_")]


def described_fields(cls: type) -> list[str]:
    """The fields of a dataclass as text: name, type and default."""
    return [_described(field) for field in public_fields(cls)]


def _described(field: dataclasses.Field[Any]) -> str:
    text = f"{field.name}: {field.type}"
    if field.default_factory is not dataclasses.MISSING:
        return f"{text} = {getattr(field.default_factory, '__name__', '?')}()"
    if field.default is dataclasses.MISSING:
        return text
    if isinstance(field.default, enum.Enum):
        return f"{text} = {type(field.default).__name__}.{field.default.name}"
    return f"{text} = {field.default!r}"


def public_functions() -> Iterator[tuple[str, types.FunctionType]]:
    """Every public function, method and property getter, and the constructors that are written by hand."""
    for name in polyloop.__all__:
        each = getattr(polyloop, name)
        if inspect.isfunction(each):
            yield name, each
        if inspect.isclass(each):
            yield from _methods(name, each)


def _methods(owner: str, cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        # What a dataclass or a protocol generates is theirs, what a class writes by hand is ours.
        dunder = name.startswith("__") and not dataclass_of(cls)
        by_hand = isinstance(function, types.FunctionType) and function.__module__ == cls.__module__
        if by_hand and (dunder or not name.startswith("_")):
            yield f"{owner}.{name}", cast("types.FunctionType", function)


def described_signatures() -> dict[str, str]:
    """The signatures of all public functions, as text."""
    return {name: str(inspect.signature(each)).replace("'", "") for name, each in public_functions()}


def described_constructors(module: str, names: Iterable[str]) -> dict[str, str]:
    """The constructors of some classes of a module, as text."""
    found = {name: getattr(importlib.import_module(module), name) for name in names}
    return {
        name: str(inspect.signature(each)).replace("'", "").removesuffix(" -> None") for name, each in found.items()
    }


def literals() -> dict[str, dict[str, str]]:
    """The members of every public enum, by name."""
    enums = {name: cls for name, cls in public_classes().items() if issubclass(cls, enum.Enum)}
    return {name: {member.name: member.value for member in cls} for name, cls in enums.items()}


def loose_annotations() -> list[str]:
    """Annotations on the public surface that say nothing, or name a type of somebody else's."""
    found: list[str] = []
    for name, cls in public_classes().items():
        if dataclass_of(cls):
            hints = typing.get_type_hints(cls)
            found += _loose(name, {field.name: hints[field.name] for field in public_fields(cls)}, may_be_object=False)
        elif issubclass(cls, Exception):
            found += _loose(name, typing.get_type_hints(cls), may_be_object=False)
    for name, function in public_functions():
        # The protocols of Python itself take any object: `__contains__`, `__eq__`, `__reduce__`.
        dunder = name.endswith("__") and not name.endswith("__init__")
        found += _loose(name, typing.get_type_hints(function), may_be_object=dunder)
    return found


def _loose(owner: str, hints: dict[str, Any], *, may_be_object: bool) -> list[str]:
    problems = ((name, problem) for name, hint in hints.items() for problem in type_problems(hint))
    return [f"{owner}: {name} is {what}" for name, what in problems if not (may_be_object and what == "object")]


def type_problems(hint: Any) -> Iterator[str]:
    """What is wrong with an annotation: `Any`, `object`, a bare container, a third-party type."""
    if hint is Any or hint is object:
        yield "Any" if hint is Any else "object"
    elif typing.get_origin(hint) is Literal or isinstance(hint, ForwardRef) or hint in (None, ..., "JSONValue"):
        return
    elif isinstance(hint, list | tuple):
        for each in hint:
            yield from type_problems(each)
    elif typing.get_origin(hint) is not None:
        for each in (typing.get_origin(hint), *typing.get_args(hint)):
            yield from type_problems(each) if each in typing.get_args(hint) else _foreign(each)
    else:
        yield from _foreign(hint)
        if hasattr(hint, "__class_getitem__") and getattr(hint, "__module__", "") in _CONTAINERS:
            yield f"{hint.__name__} of nobody knows what"


def _foreign(hint: Any) -> Iterator[str]:
    top = str(getattr(hint, "__module__", "")).split(".")[0]
    if top not in {*sys.stdlib_module_names, "polyloop"}:
        yield f"{hint} of {top}"
