"""Tools: what the model may call, as one table.

Everything about tools comes from one immutable `ToolRegistry`: the schemas and the text that the model sees, whether
a tool exists, whether arguments fit, which handler runs, what a replay may do, what completes the task. So narrowing
it with `subset` narrows prompt and dispatch together. What is asked of jsonschema is in `polyloop._tool_schema`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar

from polyloop._tool_schema import CheckedSchema, one_line, readable_json
from polyloop.ports import Action, ActionExecutor
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    EnvironmentFailure,
    InvalidRequest,
    JSONValue,
    ReplayPolicy,
    ToolDocsStyle,
)
from polyloop.types._checks import check_bool, check_positive, check_str, check_type

__all__ = ["ToolRegistry", "ToolResult", "ToolSpec", "current_action"]

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")

_current: ContextVar[Action | None] = ContextVar("polyloop.tools.current_action", default=None)


def current_action() -> Action:
    """The action that the running handler was called for.

    Its `key` and `result_id` make an idempotency key: a replay of the action has the same. Tasks and threads
    that a handler starts with a copy of its context (`asyncio.create_task`, `asyncio.to_thread`) see it too.

    Raises:
        LookupError: no handler of a registry's executor is running here.
    """
    action = _current.get()
    if action is None:
        raise LookupError("current_action() has an answer only while a tool handler is run by a registry's executor")
    return action


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a handler returns when it has more to say than a text."""

    observation: str
    """What the model reads, verbatim; cut at the executor's limit."""
    completed: bool = False
    """Whether the task is done with this call. A tool with `completes=True` need not say so."""

    def __post_init__(self) -> None:
        check_str("ToolResult.observation", self.observation)
        check_bool("ToolResult.completed", self.completed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool. Checked on construction: what is accepted here can be shown, judged and called."""

    name: str
    """What the model calls it: `^[A-Za-z0-9_./-]{1,128}$`, exact and case-sensitive."""
    description: str = dataclasses.field(repr=False)
    """What the model reads about it; may be empty."""
    parameters: Mapping[str, JSONValue] = dataclasses.field(repr=False)
    """The JSON Schema of the arguments, which are always an object; `{}` takes anything. A copy: changing it, or
    the original, changes nothing. Draft 2020-12 unless `$schema` names another; every `$ref` must resolve within
    the schema, nothing is fetched. Null is a value like any other: allow it where it may be sent. `format` is a
    remark and not checked. Validation runs on the event loop: a `pattern` that backtracks blocks every run."""
    handler: Callable[[dict[str, JSONValue]], Awaitable[ToolResult | str]] = dataclasses.field(repr=False)
    """Runs it: a coroutine function, a `functools.partial` of one, or an object whose `__call__` is one. It gets
    arguments that fit `parameters`, as a dict of its own. What it raises becomes the observation, type and
    message; `EnvironmentFailure` stops the run. Time limits are its own (`asyncio.timeout`)."""
    replay: ReplayPolicy = dataclasses.field(default=ReplayPolicy.NEVER, repr=False)
    """Whether an interrupted call may be made again. `SAFE` is a promise: twice does no more than once."""
    completes: bool = dataclasses.field(default=False, repr=False)
    """Whether the task is done once this tool ran without raising, as with a `submit`."""
    _schema: CheckedSchema = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_str("ToolSpec.name", self.name)
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest("ToolSpec.name", f"must match ^{_NAME.pattern}$, got {one_line(repr(self.name), 160)}")
        check_str("ToolSpec.description", self.description)
        if not _is_async(self.handler):
            kinds = "a coroutine function, a partial of one, or an object whose __call__ is one"
            remedy = "wrap a synchronous one in an async function that awaits asyncio.to_thread(function, arguments)"
            raise InvalidRequest("ToolSpec.handler", f"must be {kinds}; {remedy} (tool {self.name!r})")
        check_type("ToolSpec.replay", self.replay, ReplayPolicy, "a ReplayPolicy")
        check_bool("ToolSpec.completes", self.completes)
        # Plain strings: a str subclass, such as an enum's member, may show itself differently when formatted.
        object.__setattr__(self, "name", str.__str__(self.name))
        object.__setattr__(self, "description", str.__str__(self.description))
        # Two copies: the schema that is judged and shown is never the one that is handed out.
        object.__setattr__(self, "_schema", CheckedSchema(self.parameters, "ToolSpec.parameters", self.name))
        object.__setattr__(self, "parameters", self._schema.copy())


def _is_async(handler: object) -> bool:
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = getattr(type(handler), "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    return callable(handler) and (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called))


class ToolRegistry:
    """An immutable table of tools, in the order given. It iterates over the specs; `in` takes a name or a spec.

    Raises:
        InvalidRequest: something is no `ToolSpec`, or two have the same name.
    """

    __slots__ = ("_schemas", "_specs")

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        check_type("ToolRegistry.specs", specs, Iterable, "an iterable of ToolSpec")
        table: dict[str, ToolSpec] = {}
        for index, spec in enumerate(specs):
            check_type(f"ToolRegistry.specs[{index}]", spec, ToolSpec, "a ToolSpec")
            if spec.name in table:
                problem = f"has the name {spec.name!r} of specs[{[*table].index(spec.name)}]; give each tool its own"
                raise InvalidRequest(f"ToolRegistry.specs[{index}]", problem)
            table[spec.name] = spec
        self._specs = table
        self._schemas = {name: spec._schema for name, spec in table.items()}  # noqa: SLF001 - one module

    def __iter__(self) -> Iterator[ToolSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, item: object) -> bool:
        return item in self.names or item in self._specs.values()

    def __repr__(self) -> str:
        return f"ToolRegistry({list(self._specs)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in order."""
        return tuple(self._specs)

    @property
    def schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        """What the model may see of each tool: `{name, description, parameters}`. Fresh copies every time."""
        return tuple(
            {"name": spec.name, "description": spec.description, "parameters": self._schemas[spec.name].copy()}
            for spec in self
        )

    def get(self, name: str) -> ToolSpec | None:
        """The tool of this name; None where there is none."""
        return self._specs.get(name)

    def subset(self, names: Iterable[str]) -> ToolRegistry:
        """A new registry of these tools, in the order of this one, whatever the order of `names`.

        Raises:
            InvalidRequest: a name is unknown or given twice.
        """
        field = "ToolRegistry.subset.names"
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InvalidRequest(field, "must be several names; give a list")
        wanted = list(names)
        for name in wanted:
            if name not in self.names:
                raise InvalidRequest(field, self._unknown(name))
            if wanted.count(name) > 1:
                raise InvalidRequest(field, f"{name!r} is given twice; give each name once")
        return ToolRegistry(spec for spec in self if spec.name in wanted)

    def docs(self, style: ToolDocsStyle) -> str:
        """The tools as the model reads them; empty with `NONE` and without tools. The same text every time."""
        check_type("ToolRegistry.docs.style", style, ToolDocsStyle, "a ToolDocsStyle")
        match style:
            case ToolDocsStyle.NONE:
                return ""
            case ToolDocsStyle.JSON_SCHEMA:
                return "\n".join(readable_json(schema) for schema in self.schemas)
            case ToolDocsStyle.MARKDOWN:
                return "\n\n".join(self._section(spec) for spec in self)

    def _section(self, spec: ToolSpec) -> str:
        # The fence cannot be closed from inside: no line of indented JSON begins with a backtick.
        fenced = f"```json\n{readable_json(self._schemas[spec.name].copy(), indent=2)}\n```"
        return "\n\n".join(part for part in (f"## {spec.name}", spec.description, fenced) if part)

    def validate(self, name: str, arguments: Mapping[str, JSONValue]) -> str | None:
        """Whether a call can be made: None, or one line that says why not, for the model to read.

        It answers for any input and never raises, so that a parser can make an `InvalidDecision` of a bad call.
        Nothing is coerced: `"5"` is not `5`, and null is a value. The line echoes parts of the arguments, and
        is cut at 500 characters.
        """
        admitted = self._admit(name, arguments)
        return admitted if isinstance(admitted, str) else None

    def executor(self, *, max_observation_chars: int) -> ActionExecutor:
        """The executor that dispatches to these tools. Observations keep their first characters up to the limit.

        A handler that raises, or that returns neither `str` nor `ToolResult`, is `EXECUTED` with the error as
        observation, and completes nothing.
        """
        check_positive("ToolRegistry.executor.max_observation_chars", max_observation_chars)
        return _RegistryExecutor(registry=self, limit=max_observation_chars, admit=self._admit)

    def _admit(self, name: object, arguments: object) -> tuple[ToolSpec, dict[str, JSONValue]] | str:
        """The call to make, or why there is none."""
        spec = self._specs.get(name) if isinstance(name, str) else None
        if spec is None:
            return one_line(self._unknown(name))
        judged = self._schemas[spec.name].judge(arguments)
        return one_line(f"tool {spec.name!r}: {judged}") if isinstance(judged, str) else (spec, judged)

    def _unknown(self, name: object) -> str:
        known = f"known tools: {', '.join(self._specs)}" if self._specs else "there are no tools"
        return (
            f"unknown tool {one_line(repr(name), 140)}; {known}" if isinstance(name, str) else f"no tool named; {known}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _RegistryExecutor:
    """The `ActionExecutor` that a registry derives from itself."""

    registry: ToolRegistry
    limit: int
    admit: Callable[[object, object], tuple[ToolSpec, dict[str, JSONValue]] | str] = dataclasses.field(repr=False)
    accepts: ActionKind = ActionKind.TOOL_CALL

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"max_observation_chars": self.limit}

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        return self.registry.schemas

    async def execute(self, action: Action, /) -> ActionOutcome:
        admitted = self.admit(action.tool_name, action.arguments)
        if isinstance(admitted, str):
            return self._outcome(ActionStatus.NOT_EXECUTED, admitted)
        spec, arguments = admitted
        try:
            returned = await _run(spec, arguments, action)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is what the action led to
            if (failure := _environment_failure(error)) is not None:
                return self._outcome(ActionStatus.ENV_ERROR, _message(failure) or type(failure).__name__)
            told = (type(error).__name__, _message(error))
            return self._outcome(ActionStatus.EXECUTED, ": ".join(filter(None, told)))
        result = ToolResult(observation=returned) if isinstance(returned, str) else returned
        if isinstance(result, ToolResult):
            completed = spec.completes or result.completed
            return self._outcome(ActionStatus.EXECUTED, result.observation, completed=completed)
        wrong = f"TypeError: the handler must return str or ToolResult, got {type(returned).__name__}"
        return dataclasses.replace(self._outcome(ActionStatus.EXECUTED, wrong), observation_is_synthetic=True)

    def _outcome(self, status: ActionStatus, text: str, *, completed: bool = False) -> ActionOutcome:
        kept = str.__str__(text)[: self.limit]
        cut = str.__len__(text) - len(kept)
        return ActionOutcome(status=status, observation=kept, completed=completed, truncated_chars=cut)


async def _run(spec: ToolSpec, arguments: dict[str, JSONValue], action: Action) -> object:
    token = _current.set(action)
    try:
        return await spec.handler(arguments)
    finally:
        # A coroutine that is thrown away is closed in whatever context is at hand, which never held this token.
        with contextlib.suppress(ValueError):
            _current.reset(token)


def _environment_failure(error: Exception) -> EnvironmentFailure | None:
    """The environment failure that an exception is, or that a task group of the handler met."""
    if isinstance(error, EnvironmentFailure):
        return error
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_environment_failure, error.exceptions)), None)
    return None


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a foreign __str__ may do anything
        return f"its message could not be read ({type(broken).__name__})"
