"""A definition and a request, checked and put together: everything that a run needs, and its snapshot.

All checks happen here, before anything is read or written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from polyloop._assembly import check_template, count_chars, prompt_head
from polyloop.ports import ActionExecutor, DecisionParser, EventSink, ModelPort, RunStore
from polyloop.session.request import RunRequest
from polyloop.tools import ToolRegistry
from polyloop.types import (
    ActionKind,
    ActionStatus,
    Budget,
    ChatMessage,
    InjectedEntry,
    InvalidRequest,
    JSONValue,
    ReplayPolicy,
    RunKey,
    ToolDocsStyle,
)
from polyloop.types._checks import check_run_key, check_seconds, check_type
from polyloop.types._json import canonical, copy_json, copy_object, digest

_SYNTHETIC = frozenset((ActionStatus.NOT_EXECUTED, ActionStatus.ENV_ERROR))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a definition holds."""

    model: ModelPort
    parser: DecisionParser
    store: RunStore
    events: EventSink
    synthetic_observations: Mapping[ActionStatus, str]
    observation_template: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """One run, ready to start."""

    ports: Ports
    key: RunKey
    budget: Budget
    executor: ActionExecutor
    head: tuple[ChatMessage, ...]
    """The prompt before any history."""
    head_chars: int
    binding: Mapping[str, str]
    model_call_replay: ReplayPolicy
    tool_replay: Mapping[str, ReplayPolicy]
    finalize_timeout_s: float
    snapshot: dict[str, JSONValue]


def check_ports(ports: Ports) -> None:
    """Refuse a definition whose ports or texts cannot work."""
    _check_method("AgentDefinition.model", ports.model, "call")
    _check_method("AgentDefinition.parser", ports.parser, "parse")
    for method in ("append_run_start", "append_intent", "append_result", "append_step", "finish", "read_log"):
        _check_method("AgentDefinition.store", ports.store, method)
    _check_method("AgentDefinition.events", ports.events, "emit")
    texts = ports.synthetic_observations
    check_type("AgentDefinition.synthetic_observations", texts, Mapping, "a mapping of ActionStatus to str")
    if set(texts) != _SYNTHETIC or not all(isinstance(status, ActionStatus) for status in texts):
        raise InvalidRequest(
            "AgentDefinition.synthetic_observations",
            "must have exactly the keys ActionStatus.NOT_EXECUTED and ActionStatus.ENV_ERROR",
        )
    for status, text in texts.items():
        check_type(f"AgentDefinition.synthetic_observations[{status.name}]", text, str, "a string")
    check_template(ports.observation_template)


def _check_method(field: str, port: object, method: str) -> None:
    if isinstance(port, type):
        raise InvalidRequest(field, f"must be an object, got the class {port.__name__} itself")
    if not callable(getattr(port, method, None)):
        raise InvalidRequest(field, f"must have a method {method}(); {type(port).__name__} has none")


def definition_params(ports: Ports) -> dict[str, JSONValue]:
    """The definition's part of the snapshot, as plain JSON."""
    return copy_object(_definition_part(ports), "params_view")


def _definition_part(ports: Ports) -> dict[str, JSONValue]:
    return {
        "model": _params("AgentDefinition.model", ports.model),
        "parser": _params("AgentDefinition.parser", ports.parser),
        "produces": _kind("AgentDefinition.parser", ports.parser, "produces").value,
        "synthetic_observations": {status.value: ports.synthetic_observations[status] for status in sorted(_SYNTHETIC)},
        "observation_template": ports.observation_template,
    }


def _params(field: str, port: object) -> Mapping[str, JSONValue]:
    params = _member(field, port, "params")
    if not isinstance(params, Mapping):
        raise InvalidRequest(f"{field}.params", f"must be a mapping of plain JSON, got {type(params).__name__}")
    return params


def _kind(field: str, port: object, name: str) -> ActionKind:
    value = _member(field, port, name)
    if not isinstance(value, ActionKind):
        raise InvalidRequest(f"{field}.{name}", f"must be an ActionKind, got {type(value).__name__}")
    return value


def _member(field: str, port: object, name: str) -> object:
    try:
        found: object = getattr(port, name)
    except AttributeError as error:
        # Not "got None": who forgot a member would look for a None that is nowhere.
        raise InvalidRequest(f"{field}.{name}", f"is missing: {type(port).__name__} must have it") from error
    return found


def assemble(ports: Ports, request: RunRequest) -> Assembly:
    """Check a request against its definition and put the two together.

    Raises:
        InvalidRequest: naming the field, or the path of what is not JSON.
    """
    _check_fields(request)
    _check_channels(ports, request)
    docs = request.tools.docs(request.tool_docs_style)
    head = prompt_head(
        run_segments=request.run_segments,
        tool_docs=docs,
        skills=request.skills,
        item_segments=request.item_segments,
    )
    if not head:
        raise InvalidRequest(
            "RunRequest.run_segments",
            "the prompt has no message at all: give a run segment, a skill or an item segment",
        )
    return Assembly(
        ports=ports,
        key=request.key,
        budget=request.budget,
        executor=request.executor,
        head=head,
        head_chars=count_chars(head),
        binding=dict(request.model_binding),
        model_call_replay=request.model_call_replay,
        tool_replay={spec.name: spec.replay for spec in request.tools},
        finalize_timeout_s=float(request.finalize_timeout_s),
        snapshot=_snapshot(ports, request, docs),
    )


def _check_fields(request: RunRequest) -> None:
    check_type("request", request, RunRequest, "a RunRequest")
    check_run_key(request.key)
    check_type("RunRequest.budget", request.budget, Budget, "a Budget")
    _check_method("RunRequest.executor", request.executor, "execute")
    check_type("RunRequest.tools", request.tools, ToolRegistry, "a ToolRegistry; ToolRegistry(()) for no tools")
    _check_items("RunRequest.run_segments", request.run_segments, ChatMessage)
    _check_items("RunRequest.item_segments", request.item_segments, ChatMessage)
    _check_items("RunRequest.skills", request.skills, InjectedEntry)
    _check_binding(request.model_binding)
    check_type("RunRequest.model_call_replay", request.model_call_replay, ReplayPolicy, "a ReplayPolicy")
    check_type("RunRequest.tool_docs_style", request.tool_docs_style, ToolDocsStyle, "a ToolDocsStyle")
    check_seconds("RunRequest.finalize_timeout_s", request.finalize_timeout_s)


def _check_items(field: str, items: object, expected: type) -> None:
    # A list could be changed while the run goes on; a tuple cannot.
    check_type(field, items, tuple, f"a tuple of {expected.__name__}; (item,) for one, () for none")
    if isinstance(items, tuple):
        for index, item in enumerate(items):
            check_type(f"{field}[{index}]", item, expected, f"a {expected.__name__}")


def _check_binding(binding: object) -> None:
    check_type("RunRequest.model_binding", binding, Mapping, "a mapping of str to str; {} for none")
    if isinstance(binding, Mapping):
        for name, value in binding.items():
            check_type("RunRequest.model_binding", name, str, "a mapping with string keys")
            check_type(f"RunRequest.model_binding[{name!r}]", value, str, "a string")


def _check_channels(ports: Ports, request: RunRequest) -> None:
    produces = _kind("AgentDefinition.parser", ports.parser, "produces")
    accepts = _kind("RunRequest.executor", request.executor, "accepts")
    if produces is not accepts:
        raise InvalidRequest(
            "RunRequest.executor.accepts",
            f"is {accepts.value!r}, but the parser produces {produces.value!r}: give an executor of the same kind",
        )
    schemas = copy_json(
        _member("RunRequest.executor", request.executor, "tool_schemas"), "RunRequest.executor.tool_schemas"
    )
    if canonical(schemas) != canonical(copy_json(request.tools.schemas, "RunRequest.tools.schemas")):
        raise InvalidRequest(
            "RunRequest.tools",
            "its schemas are not the executor's tool_schemas, in the same order: "
            "derive the executor from this registry, tools.executor(...), or give the registry that it was made from; "
            "an executor of your own shows tools.schemas, or () beside ToolRegistry(())",
        )


def _snapshot(ports: Ports, request: RunRequest, docs: str) -> dict[str, JSONValue]:
    """All that influences the run, as plain JSON: normalised once, shared with nobody."""
    parts: dict[str, JSONValue] = {
        **_definition_part(ports),
        "budget": dataclasses.asdict(request.budget),
        "executor": _params("RunRequest.executor", request.executor),
        "accepts": request.executor.accepts.value,
        # What is shown and dispatched: a spec's own `parameters` could have been changed since.
        "tools": [
            {**schema, "completes": spec.completes, "replay": spec.replay.value}
            for spec, schema in zip(request.tools, request.tools.schemas, strict=True)
        ],
        "tool_docs_style": request.tool_docs_style.value,
        "tool_docs": digest(docs),
        "model_binding": request.model_binding,
        "model_call_replay": request.model_call_replay.value,
        "finalize_timeout_s": float(request.finalize_timeout_s),
        "run_segments": [_fingerprint(message) for message in request.run_segments],
        "item_segments": [_fingerprint(message) for message in request.item_segments],
        "skills": [{"entry_id": entry.entry_id, **_fingerprint(entry.message)} for entry in request.skills],
    }
    return copy_object(parts, "params_snapshot")


def _fingerprint(message: ChatMessage) -> dict[str, JSONValue]:
    """What stands for a prompt text: enough to see a change, too little to store a prompt."""
    return {
        "role": message.role,
        "length": len(message.content),
        "sha256": digest([message.role, message.content]),
    }
