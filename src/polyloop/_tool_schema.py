"""The JSON Schema of a tool's arguments: checked once, judged by from then on. Used by `polyloop.tools` alone.

What the validator would only find out while it judges a call is found here, when the tool is declared: a pattern
that does not compile, a reference that leads nowhere (nothing is fetched, ever), a schema that leads back to
itself without going down into the arguments and so would never come to an end.

jsonschema and its referencing are imported at the first schema, not before.
"""

from __future__ import annotations

import contextlib
import graphlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from polyloop.types import InvalidRequest, JSONValue
from polyloop.types._json import copy_object

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from referencing._core import Resolver  # what its public functions take and return

MAX_LINE_CHARS = 500
"""How long a reason may be: it is read by models, and echoes what they sent."""

_MAX_ECHO_CHARS = 80
_MAX_PATH_CHARS = 200
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ALTERNATIVES = ("anyOf", "oneOf")

# Keywords that judge the same value again, rather than a part of it. Only through these can a schema go in circles.
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_SAME_VALUE_BY_NAME = ("dependentSchemas", "dependencies")

# Not printable, or able to break a line or an encoder, though JSON lets them stand as they are.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """A text as one printable line, cut to a limit."""
    # One character more than fits, so that a cut shows.
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def readable_json(value: JSONValue, indent: int | None = None) -> str:
    """JSON for models to read: keys in the order given, letters of every script as they are."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return _UNREADABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class CheckedSchema:
    """A schema that was found sound. Immutable, and shared with nobody."""

    __slots__ = ("_document", "_nearest_error")

    def __init__(self, parameters: Mapping[str, JSONValue], field: str, owner: str) -> None:
        try:
            self._document = copy_object(parameters, field)
            self._nearest_error = _compiled(self._document, field)
        except InvalidRequest as refused:
            raise InvalidRequest(refused.field, f"{refused.problem} (tool {owner!r})") from refused

    def copy(self) -> dict[str, JSONValue]:
        """The schema, as a copy of the caller's own."""
        return copy_object(self._document, "parameters")

    def judge(self, arguments: object) -> dict[str, JSONValue] | str:
        """A copy of the arguments as plain JSON, or in one line what is wrong with them. Never raises."""
        if not isinstance(arguments, Mapping):
            return f"arguments: must be an object, got {type(arguments).__name__}; give {{}} for none"
        try:
            own = copy_object(arguments, "arguments")
            error = self._nearest_error(own)
            return own if error is None else one_line(_told(error))
        except InvalidRequest as refused:
            return one_line(f"{one_line(refused.field, _MAX_PATH_CHARS)}: {refused.problem}")
        except RecursionError:
            return "arguments: are nested too deep to be judged by the schema"
        except Exception as broken:  # noqa: BLE001 - numbers beyond a float, a hostile mapping: refused all the same
            return f"arguments: cannot be judged by the schema ({type(broken).__name__})"


def _told(error: ValidationError) -> str:
    where = one_line(_path("arguments", error.absolute_path), _MAX_PATH_CHARS)
    message = _short(error)
    if error.instance is None:
        return f"{where} must not be null: {message}; leave it out if it is optional"
    return f"{where}: {message}"


def _place(error: ValidationError) -> tuple[int, list[str | int], bool]:
    path = list(error.absolute_path)
    return len(path), path, error.validator in _ALTERNATIVES


def _path(root: str, parts: Iterable[str | int]) -> str:
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _short(error: ValidationError) -> str:
    """The validator's message; where it begins with a long value, what it says of it would be cut off."""
    echo, message = repr(error.instance), error.message
    if len(echo) > _MAX_ECHO_CHARS:
        message = message.replace(echo, echo[:_MAX_ECHO_CHARS] + "...", 1)
    # Alternatives of which none came nearer than the others: each says what it misses.
    missed = sorted({one_line(each.message, 2 * _MAX_ECHO_CHARS) for each in error.context or ()})
    return f"{message} ({'; '.join(missed[:3])})" if missed else message


def _compiled(document: dict[str, JSONValue], field: str) -> Callable[[JSONValue], ValidationError | None]:
    """What finds the most relevant error of arguments; None where there is none."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - imported at the first schema
    from referencing import Registry  # noqa: PLC0415 - likewise

    dialect = _dialect(document, field)
    _check_form(dialect, document, field)
    try:
        _Walk(dialect, document, field).check()
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(field, _unreadable(error)) from error
    # A registry of its own, for the validator's own default would fetch.
    validator = dialect(document, registry=Registry())

    def nearest(arguments: JSONValue) -> ValidationError | None:
        # The outermost first, then the earliest: the same one every time, whatever order a set had.
        first = min(validator.iter_errors(arguments), key=_place, default=None)
        return None if first is None else best_match([first])

    return nearest


def _dialect(document: dict[str, JSONValue], field: str) -> type[Validator]:
    from jsonschema.validators import Draft3Validator, validator_for  # noqa: PLC0415 - imported at the first schema

    named = document.get("$schema", _DIALECT)
    # Asked with a default of None, it says None of a dialect that it does not know, rather than guess one.
    dialect: type[Validator] | None = None
    # A ValueError: the text is not even a URI.
    with contextlib.suppress(ValueError):
        if isinstance(named, str):
            dialect = validator_for({"$schema": named}, default=None)  # type: ignore[arg-type] # its stub forgets None
    # Draft 3 lets types stand that do not exist, so that no call could ever be judged.
    if dialect is None or dialect is Draft3Validator:
        problem = f"must name a dialect from draft 4 on, such as {_DIALECT}, got {one_line(repr(named), 160)}"
        raise InvalidRequest(f"{field}.$schema", problem)
    return dialect


def _check_form(dialect: type[Validator], schema: dict[str, JSONValue], field: str) -> None:
    """Check a schema against its dialect, patterns included (they are a format)."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - imported at the first schema

    try:
        form = dialect(dialect.META_SCHEMA, format_checker=dialect.FORMAT_CHECKER)
        error = best_match(form.iter_errors(schema))
    except Exception as broken:
        raise InvalidRequest(field, _unreadable(broken)) from broken
    if error is not None:
        raise InvalidRequest(one_line(_path(field, error.absolute_path)), one_line(_short(error)))


def _unreadable(error: Exception) -> str:
    return one_line(f"cannot be read as a JSON Schema: {type(error).__name__}: {error}")


class _Walk:
    """Visits every schema within a document, and whatever their references lead to."""

    def __init__(self, dialect: type[Validator], document: dict[str, JSONValue], field: str) -> None:
        from referencing.jsonschema import specification_with  # noqa: PLC0415 - imported at the first schema

        self._dialect = dialect
        self._specification = specification_with(dialect.META_SCHEMA["$schema"])
        self._keywords = {*dialect.VALIDATORS, "then", "else"}
        self._document = document
        self._paths = dict(_positions(document, field))
        self._references: list[_Reference] = []
        self._leads_to: dict[int, list[int]] = {}

    def check(self) -> None:
        # The dialects themselves, which come with the validator and may be referred to.
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # noqa: PLC0415 - it has no types

        root = self._specification.create_resource(self._document)
        self._visit(self._document, REGISTRY.resolver_with_root(root))
        while self._references:
            self._follow(self._references.pop())
        try:
            graphlib.TopologicalSorter(self._leads_to).prepare()
        except graphlib.CycleError as error:
            problem = "leads back to itself without going down into the arguments: judging them would never end"
            raise InvalidRequest(self._paths[error.args[1][0]], problem) from None

    def _visit(self, schema: dict[str, JSONValue], resolver: Resolver[Any]) -> None:
        resource = self._specification.create_resource
        waiting = [(schema, resolver)]
        while waiting:
            schema, resolver = waiting.pop()
            if id(schema) not in self._leads_to:
                self._check(schema, resolver)
                waiting += [(each, resolver.in_subresource(resource(each))) for each in self._within(schema)]

    def _check(self, schema: dict[str, JSONValue], resolver: Resolver[Any]) -> None:
        where = self._paths[id(schema)]
        self._check_dialect(schema, where)
        _check_patterns(schema, where)
        self._leads_to[id(schema)] = [id(each) for each in _same_value(schema, self._keywords)]
        known = (key for key in _REFERENCES if key in schema and key in self._keywords)
        self._references += [_Reference(schema, f"{where}.{key}", key, resolver) for key in known]

    def _within(self, schema: dict[str, JSONValue]) -> list[dict[str, JSONValue]]:
        """The schemas directly within one, the last in the document first."""
        looked_for = self._specification.subresources_of(schema)
        within = [each for each in (*_same_value(schema, self._keywords), *looked_for) if isinstance(each, dict)]
        # They come from sets; which of several faults is told must not depend on the process.
        return sorted(within, key=lambda each: self._paths[id(each)], reverse=True)

    def _check_dialect(self, schema: dict[str, JSONValue], where: str) -> None:
        if "$schema" in schema and _dialect(schema, where) is not self._dialect:
            raise InvalidRequest(f"{where}.$schema", "must be the dialect of the whole schema, or be left out")

    def _follow(self, reference: _Reference) -> None:
        target, resolver = reference.resolved()
        if isinstance(target, bool):
            return
        if not isinstance(target, dict):
            raise InvalidRequest(reference.where, "leads to something that is no schema; give the place of a schema")
        self._leads_to[id(reference.schema)].append(id(target))
        # Elsewhere than in this document is only the dialect itself, which is sound.
        if id(target) in self._paths and id(target) not in self._leads_to:
            # A place where the dialect does not look for schemas: nobody has checked this one yet.
            _check_form(self._dialect, target, self._paths[id(target)])
            self._visit(target, resolver)


class _Reference(NamedTuple):
    schema: dict[str, JSONValue]
    where: str
    keyword: str
    resolver: Resolver[Any]

    def resolved(self) -> tuple[JSONValue, Resolver[Any]]:
        named = self.schema[self.keyword]
        if self.keyword == "$recursiveRef" and named != "#":
            # The validator would take it for "#", whatever it says.
            raise InvalidRequest(self.where, 'must be "#": no other reference of this kind is defined')
        try:
            found = self.resolver.lookup(str(named))
        except Exception as error:
            problem = f"{named!r} does not resolve within the schema, and nothing is fetched"
            raise InvalidRequest(self.where, one_line(f"{problem}: {type(error).__name__}")) from error
        return found.contents, found.resolver


def _positions(value: JSONValue, path: str) -> Iterator[tuple[int, str]]:
    """Where each object of a document stands, by its identity."""
    if isinstance(value, dict):
        yield id(value), one_line(path)
        for key, inner in value.items():
            yield from _positions(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _positions(inner, f"{path}[{index}]")


def _same_value(schema: Mapping[str, JSONValue], known: set[str]) -> Iterator[dict[str, JSONValue]]:
    for keyword in _SAME_VALUE:
        inner = schema.get(keyword) if keyword in known else None
        yield from (each for each in (inner if isinstance(inner, list) else [inner]) if isinstance(each, dict))
    for keyword in _SAME_VALUE_BY_NAME:
        by_name = schema.get(keyword) if keyword in known else None
        yield from (each for each in (by_name if isinstance(by_name, dict) else {}).values() if isinstance(each, dict))


def _check_patterns(schema: Mapping[str, JSONValue], where: str) -> None:
    # Not every dialect demands that the keys of patternProperties compile.
    by_pattern = schema.get("patternProperties")
    for pattern in by_pattern if isinstance(by_pattern, dict) else ():
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            problem = f"{one_line(repr(pattern), 160)} is no regular expression: {type(error).__name__}: {error}"
            raise InvalidRequest(f"{where}.patternProperties", one_line(problem)) from error
