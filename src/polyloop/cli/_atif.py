"""A run as a document of ATIF, the Agent Trajectory Interchange Format, version 1.8. Pure.

======================== ==============================================================================================
in the log               in the document
======================== ==============================================================================================
a message of the prompt  a step without text: the log has none. `extra.prompt` says which it is, its length and digest
a step                   an agent's step: the model's whole reply, its reasoning, the tool call, what the model then saw
an action without a tool no tool call; `extra.action` is its text
the decision's failure   the observation that the model was given, marked as synthetic
counts of characters     `metrics.extra`, `final_metrics.extra`: the log knows no tokens and no money
repeated effects, times  the step's `extra`
snapshot of parameters   `agent.extra`; tools also as `agent.tool_definitions`
state, stop reason       the document's `extra`
======================== ==============================================================================================

Lone surrogates, which are no text for most readers of JSON, become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from polyloop.cli._story import standing
from polyloop.types import (
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    JSONValue,
    RunLog,
    RunStarted,
    Step,
    StepCompleted,
)

VERSION: Final = "ATIF-v1.8"

_NOTES: Final = (
    "Exported from the log of a PolyLoop run. The texts of the prompt are not kept in the log: the steps before the "
    "first reply stand for its messages, with their lengths and digests. Observations are what the model was shown."
)

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_Object: TypeAlias = dict[str, Any]


def trajectory(key: str, log: RunLog) -> _Object:
    """The document of a run that has begun."""
    started = log.started
    if started is None:
        raise ValueError("a run that does not exist has no trajectory")
    steps = [*_prompt(started), *_turns(log)]
    for number, step in enumerate(steps, start=1):
        # First, where a reader looks for it.
        steps[number - 1] = {"step_id": number, **step}
    document = {
        "schema_version": VERSION,
        "session_id": key,
        "trajectory_id": key,
        "agent": _agent(started),
        "steps": steps,
        "notes": _NOTES,
        "final_metrics": {"total_steps": len(steps), "extra": _usage(log)},
        "extra": _outcome(log),
    }
    cleaned: _Object = _clean(document)
    return cleaned


def _agent(started: RunStarted) -> _Object:
    snapshot = started.params_snapshot
    agent: _Object = {"name": "polyloop", "version": started.library_version}
    model = snapshot.get("model")
    # What a model port calls its parameters is its own affair; most name the model so.
    name = model.get("model") if isinstance(model, Mapping) else None
    if isinstance(name, str):
        agent["model_name"] = name
    tools = snapshot.get("tools")
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        agent["tool_definitions"] = [_definition(tool) for tool in tools if isinstance(tool, Mapping)]
    return {**agent, "extra": {"params_snapshot": snapshot}}


def _definition(tool: Mapping[str, JSONValue]) -> _Object:
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function}


def _prompt(started: RunStarted) -> Iterator[_Object]:
    """A step for each message of the prompt's head, in the order of the prompt."""
    for part, messages in _parts(started.params_snapshot):
        for message in messages:
            if isinstance(message, Mapping):
                yield _unsaid(part, message)


def _parts(snapshot: Mapping[str, JSONValue]) -> Iterator[tuple[str, Sequence[JSONValue]]]:
    for part in ("run_segments", "tool_docs", "skills", "item_segments"):
        found = snapshot.get(part)
        if part == "tool_docs":
            styled = bool(snapshot.get("tools")) and snapshot.get("tool_docs_style") not in (None, "none")
            yield part, [{"role": "system", "sha256": found}] if styled else []
        elif isinstance(found, Sequence) and not isinstance(found, str):
            yield part, found


def _unsaid(part: str, message: Mapping[str, JSONValue]) -> _Object:
    role = message.get("role")
    if role == "assistant":
        # Nobody was asked for it: it is part of the prompt.
        return {"source": "agent", "message": "", "llm_call_count": 0, "extra": {"prompt": {"part": part, **message}}}
    source = "user" if role == "user" else "system"
    return {"source": source, "message": "", "extra": {"prompt": {"part": part, **message}}}


def _turns(log: RunLog) -> Iterator[_Object]:
    results = {result.result_id: result for result in log.results}
    intents: dict[int, list[EffectIntended]] = {}
    for intent in log.intents:
        intents.setdefault(intent.step_idx, []).append(intent)
    for done in log.steps:
        yield _turn(done, intents.get(done.step.step_idx, []), results)


def _turn(done: StepCompleted, intents: Sequence[EffectIntended], results: Mapping[str, EffectCompleted]) -> _Object:
    step = done.step
    calls = [intent for intent in intents if intent.kind is EffectKind.MODEL_CALL]
    actions = [intent for intent in intents if intent.kind is EffectKind.ACTION]
    answer = results.get(calls[-1].result_id) if calls else None
    reply = None if answer is None else answer.reply
    turn: _Object = {
        "timestamp": done.recorded_at if answer is None else answer.recorded_at,
        "source": "agent",
        "message": step.raw_output if reply is None else reply.text,
    }
    if reply is not None and reply.reasoning is not None:
        turn["reasoning_content"] = reply.reasoning
    called = _tool_calls(actions)
    if called:
        turn["tool_calls"] = called
    if step.action is not None or (not step.parse_ok and step.parse_error is not None):
        turn["observation"] = {"results": [_observation(step, called)]}
    counts = {name: getattr(step, name) for name in ("prompt_chars", "content_chars", "thinking_chars")}
    turn["metrics"] = {"extra": counts}
    turn["llm_call_count"] = 1
    turn["extra"] = _more(done, calls, actions, results)
    return turn


def _tool_calls(actions: Sequence[EffectIntended]) -> list[_Object]:
    """The call of the step, if it was announced: once, however often it was repeated."""
    planned = actions[-1].action if actions else None
    if planned is None or planned.tool_name is None:
        return []
    call = {"tool_call_id": actions[-1].result_id, "function_name": planned.tool_name}
    return [{**call, "arguments": dict(planned.arguments)}]


def _observation(step: Step, called: Sequence[_Object]) -> _Object:
    result: _Object = {"source_call_id": called[0]["tool_call_id"]} if called else {}
    result["content"] = step.observation
    result["extra"] = {
        "synthetic": step.observation_is_synthetic,
        "truncated_chars": step.observation_truncated_chars,
        "status": step.action_status,
    }
    return result


def _more(
    done: StepCompleted,
    calls: Sequence[EffectIntended],
    actions: Sequence[EffectIntended],
    results: Mapping[str, EffectCompleted],
) -> _Object:
    step = done.step
    errors = [result.error for intent in (*calls[-1:], *actions[-1:]) if (result := results.get(intent.result_id))]
    return {
        "step_idx": step.step_idx,
        "step_wall_ms": step.step_wall_ms,
        "call_id": step.call_id,
        "history_text": step.raw_output,
        "parse_ok": step.parse_ok,
        "parse_error": step.parse_error,
        "action": step.action,
        "tool_name": step.tool_name,
        "tool_arguments_json": step.tool_arguments_json,
        "action_status": step.action_status,
        "model_call_attempts": len(calls),
        "action_attempts": len(actions),
        "error": next((error for error in errors if error is not None), None),
        "stop_reason": done.stop_reason,
        "final_answer": done.final_answer,
        "recorded_at": done.recorded_at,
    }


def _usage(log: RunLog) -> _Object:
    steps = [done.step for done in log.steps]
    return {
        "steps": len(steps),
        "model_calls": len({intent.result_id for intent in log.intents if intent.kind is EffectKind.MODEL_CALL}),
        "executed_actions": sum(step.action_status == ActionStatus.EXECUTED for step in steps),
        "prompt_chars": sum(step.prompt_chars for step in steps),
        "content_chars": sum(step.content_chars for step in steps),
        "thinking_chars": sum(step.thinking_chars for step in steps),
    }


def _outcome(log: RunLog) -> _Object:
    last, end = log.records()[-1], log.finished
    state, _ = standing(last)
    open_effect = None
    if isinstance(last, EffectIntended):
        open_effect = {"result_id": last.result_id, "attempt": last.attempt, "replay": last.replay}
    return {
        "state": state,
        "stop_reason": None if end is None else end.stop_reason,
        "final_answer": None if end is None else end.final_answer,
        "detail": None if end is None else end.detail,
        "started_at": log.records()[0].recorded_at,
        "last_record_at": last.recorded_at,
        "cancelled_at": [each.recorded_at for each in log.cancellations],
        "open_effect": open_effect,
    }


def _clean(value: Any) -> Any:
    """Plain JSON that every reader takes: no lone surrogates, in names neither."""
    match value:
        case str():
            return _SURROGATE.sub("�", value)
        case Mapping():
            return {_clean(name): _clean(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_clean(inner) for inner in value]
        case _:
            return value
