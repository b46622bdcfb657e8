"""What lacks its documentation in a source text. A field's stands under the field."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

_Documented: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(source: str) -> list[str]:
    """The public classes, functions, fields, enum members and constants without a docstring."""
    module = ast.parse(source)
    missing = [] if ast.get_docstring(module) else ["the module"]
    return [*missing, *_undocumented("", module.body)]


def _undocumented(owner: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    for position, statement in enumerate(body):
        if isinstance(statement, _Documented):
            if _is_public(statement.name):
                yield from _in_definition(f"{owner}{statement.name}", statement)
            continue
        followed = position + 1 < len(body) and _is_text(body[position + 1])
        if not followed:
            yield from (f"{owner}{name} (line {statement.lineno})" for name in _assigned(statement) if _is_public(name))


def _in_definition(name: str, node: _Documented) -> Iterator[str]:
    if not ast.get_docstring(node):
        yield f"{name} (line {node.lineno})"
    if isinstance(node, ast.ClassDef):
        yield from _undocumented(f"{name}.", node.body)


def _assigned(statement: ast.stmt) -> list[str]:
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and _is_type_variable(statement.value)
    ):
        return []
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_type_variable(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("TypeVar", "ParamSpec")


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
