"""The rules of the house that no linter checks: each takes a source text and returns what breaks it, with the line."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

Rule: TypeAlias = Callable[[str], list[str]]

MAX_FUNCTION_LINES: Final = 60

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_DYNAMIC: Final = frozenset(("__import__", "import_module", "exec", "eval", "compile"))
_DYNAMIC_MODULES: Final = frozenset(("importlib", "imp", "runpy", "pkgutil", "pkg_resources", "zipimport"))
_IMPURE: Final = frozenset(("open", "print", "input", "breakpoint", "globals", "id", "hash"))
_NEVER_SILENT: Final = frozenset(("Exception", "BaseException", "CancelledError"))

_NOQA: Final = re.compile(r"noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \S.+")
_TYPE_IGNORE: Final = re.compile(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\] +# (?!noqa)\S.+")
_EXEMPTION: Final = re.compile(r"(noqa|type:\s*ignore|pyright|mypy:|pragma|ruff:)", re.IGNORECASE)
_PRAGMA: Final = re.compile(r"pragma: no cover - \S.+")


def dynamic_imports(source: str) -> list[str]:
    """Imports that the import contracts cannot see."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called(node) in _DYNAMIC and not _is_re_compile(node):
            found.append(f"line {node.lineno}: {_called(node)}()")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"line {node.lineno}: import {each}" for each in names if each.split(".")[0] in _DYNAMIC_MODULES]
    return found


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_re_compile(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "re"


def impurities(source: str) -> list[str]:
    """What needs no import and still depends on more than the arguments."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"line {node.lineno}: {type(node).__name__}")
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found.append(f"line {node.lineno}: {type(node).__name__.lower()} {', '.join(node.names)}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _IMPURE:
            found.append(f"line {node.lineno}: {node.func.id}()")
    return found


def functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and length in lines of each function; decorators do not count, docstrings do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Function) and node.end_lineno is not None:
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def long_functions(source: str) -> list[str]:
    """Functions that do not fit on a screen."""
    return [
        f"line {line}: {name} has {size} lines" for name, line, size in functions(source) if size > MAX_FUNCTION_LINES
    ]


def silent_handlers(source: str) -> list[str]:
    """Handlers that hide a failure or swallow a cancellation."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            found += [f"line {node.lineno}: {problem}" for problem in _handler_problems(node)]
        if isinstance(node, ast.Call) and _called(node) == "suppress":
            broad = sorted(_NEVER_SILENT & {_last_name(argument) for argument in node.args})
            found += [f"line {node.lineno}: suppress({each})" for each in broad]
    return found


def _handler_problems(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "bare except"
    caught = {_last_name(each) for each in _each_type(handler.type)}
    if all(isinstance(each, ast.Pass | ast.Continue) or _is_ellipsis(each) for each in handler.body):
        yield "except: pass"
    if caught & {"BaseException", "CancelledError"} and not _passes_on(handler):
        yield f"{', '.join(sorted(caught))} is neither raised again nor handed on"


def _each_type(caught: ast.expr | None) -> list[ast.expr]:
    if caught is None:
        return []
    return list(caught.elts) if isinstance(caught, ast.Tuple) else [caught]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _passes_on(handler: ast.ExceptHandler) -> bool:
    body = [node for statement in handler.body for node in ast.walk(statement)]
    raised = any(isinstance(node, ast.Raise) for node in body)
    return raised or any(isinstance(node, ast.Name) and node.id == handler.name for node in body)


def bad_exemptions(source: str) -> list[str]:
    """Comments that switch a check off without saying which, and why."""
    found: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not _EXEMPTION.match(token.string.lstrip("# ")):
            continue
        text = token.string.lstrip("# ")
        if not any(form.fullmatch(text) for form in (_NOQA, _TYPE_IGNORE, _PRAGMA)) and not _both(text):
            found.append(f"line {token.start[0]}: {token.string}")
    return found


def _both(text: str) -> bool:
    """Whether a line has both exemptions; their reason then stands at its end."""
    ignored, _, rest = text.partition("# ")
    return _TYPE_IGNORE.fullmatch(f"{ignored}# reason") is not None and _NOQA.fullmatch(rest) is not None


def unexplained_skips(source: str) -> list[str]:
    """Tests that are skipped, or expected to fail, without a reason that is written down."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        # `pytest.mark.skip` that is not called has no reason either.
        if isinstance(node, ast.Call) and _last_name(node.func) in ("skip", "skipif", "xfail", "importorskip"):
            if not _states_reason(node):
                found.append(f"line {node.lineno}: {_last_name(node.func)} without a reason")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bare = [each for each in node.decorator_list if _last_name(each) in ("skip", "xfail")]
            found += [f"line {each.lineno}: {_last_name(each)} without a reason" for each in bare]
    return found


def _states_reason(node: ast.Call) -> bool:
    if any(keyword.arg == "reason" for keyword in node.keywords):
        return True
    return _last_name(node.func) == "skip" and bool(node.args)


def lost_cancellations(source: str) -> list[str]:
    """`wait_for`: on Python 3.11 it loses a cancellation that lands in the turn in which the awaited thing is done."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {node.lineno}: wait_for()" for node in calls if _called(node) == "wait_for"]


def inherited_ports(source: str) -> list[str]:
    """Classes that inherit a port, rather than satisfy it."""
    ports = ("ModelPort", "DecisionParser", "ActionExecutor", "RunStore", "EventSink")
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [f"line {node.lineno}: {node.name}" for node in classes if any(_last_name(b) in ports for b in node.bases)]


def loose_dataclasses(source: str) -> list[str]:
    """Dataclasses that are not frozen, slotted and keyword-only."""
    wanted = {"frozen", "slots", "kw_only"}
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            call = decorator if isinstance(decorator, ast.Call) else None
            name = _last_name(decorator if call is None else call.func)
            keywords = () if call is None else call.keywords
            stated = {key.arg for key in keywords if isinstance(key.value, ast.Constant) and key.value.value is True}
            if name == "dataclass" and not wanted <= stated:
                found.append(f"line {decorator.lineno}: a dataclass without {', '.join(sorted(wanted - stated))}")
    return found
