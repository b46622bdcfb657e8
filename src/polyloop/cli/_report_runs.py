"""What the report says of one run: a row of the table, and its trajectory as labelled texts. Pure.

A log is taken as it is, also one that cannot be resumed: what fits together is shown, and what does not is said.
Why it is made up like this: `research-wiki/design/0024-report.md`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from polyloop.cli._text import counted, seconds_between
from polyloop.cli._text import duration as spoken
from polyloop.stores import RunState, RunSummary
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    EffectKind,
    JSONValue,
    ModelReply,
    Record,
    RunFinished,
    RunLog,
    Step,
    StepCompleted,
)

LONG_PAUSE_MS: Final = 60_000
"""From which time between two records on a step tells of it, where no record explains it."""

Labelled: TypeAlias = list[tuple[str, str]]
"""Texts, each behind what it is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run in the table."""

    key: str
    """The run's key; of a damaged log whose key is not known, the name that the store lists it by."""
    outcome: str
    """The stop reason; `unfinished` or `damaged` where there is none."""
    steps: int | None
    """How many steps the log holds; None if that cannot be told."""
    started: str | None
    """When it was started, as in the log; None if that cannot be told."""
    wall_ms: int | None
    """From the first record to the last one, pauses included, milliseconds; None if that cannot be told."""
    model_ms: int
    """Milliseconds in model calls that have a result."""
    action_ms: int
    """Milliseconds in actions that have a result."""
    damage: str | None
    """Why the log is refused; None for a sound one."""


class _Effect(NamedTuple):
    """An announced effect: its last intent, and what came of it."""

    intent: EffectIntended
    result: EffectCompleted | None
    milliseconds: int


_Effects: TypeAlias = Mapping[tuple[int, EffectKind], _Effect]


def described(summary: RunSummary, log: RunLog | None, damage: str | None) -> tuple[Row, dict[str, JSONValue]]:
    """A run's row, and what its trajectory is drawn from.

    Args:
        summary: As the store lists it.
        log: Its log; None if it cannot be read.
        damage: Why the log is refused, in words; None for a sound one.

    Returns:
        The row, and plain JSON for `_report.js`.
    """
    if log is None:
        return _unreadable(summary, damage)
    effects = _effects(log)
    records = log.records()
    last = records[-1]
    outcome = "damaged" if damage else last.stop_reason.value if isinstance(last, RunFinished) else "unfinished"
    row = Row(
        key=summary.key,
        outcome=outcome,
        steps=len(log.steps),
        started=records[0].recorded_at,
        wall_ms=_between(records[0], last),
        model_ms=sum(each.milliseconds for (_, kind), each in effects.items() if kind is EffectKind.MODEL_CALL),
        action_ms=sum(each.milliseconds for (_, kind), each in effects.items() if kind is EffectKind.ACTION),
        damage=damage,
    )
    snapshot = {} if log.started is None else log.started.params_snapshot
    pauses = _pauses(records)
    trajectory: dict[str, JSONValue] = {
        "key": summary.key,
        "facts": _plain(_facts(row, log)),
        "params": _plain(list(leaves(snapshot))),
        "steps": [_step(each.step, effects, pauses.get(each.seq, [])) for each in log.steps],
        "after": [*pauses.get(len(records), []), *_open_effects(effects)],
    }
    return row, trajectory


def _unreadable(summary: RunSummary, damage: str | None) -> tuple[Row, dict[str, JSONValue]]:
    row = Row(
        key=summary.key,
        outcome=RunState.DAMAGED.value,
        steps=summary.steps,
        started=summary.started_at,
        wall_ms=None,
        model_ms=0,
        action_ms=0,
        damage=damage,
    )
    facts: Labelled = [("outcome", row.outcome), ("damage", damage or "")]
    return row, {"key": summary.key, "facts": _plain(facts), "params": [], "steps": [], "after": []}


def _plain(pairs: Sequence[tuple[str, str]]) -> list[JSONValue]:
    return [[label, text] for label, text in pairs]


# --- times


def _between(first: Record, then: Record) -> int:
    """Milliseconds; 0 where the clock was set back in between."""
    return max(0, round(1000 * seconds_between(first.recorded_at, then.recorded_at)))


def duration(milliseconds: int) -> str:
    """A duration as people read it; steps are short, so milliseconds are said."""
    # `_report.js` says times in the same way.
    return f"{milliseconds} ms" if milliseconds < 1000 else spoken(milliseconds / 1000)  # noqa: PLR2004 - a second


def _effects(log: RunLog) -> _Effects:
    """Each effect with its last intent. The time of an interrupted attempt is not known, and not counted."""
    results = {result.result_id: result for result in log.results}
    found: dict[tuple[int, EffectKind], _Effect] = {}
    for intent in log.intents:
        result = results.get(intent.result_id)
        taken = 0 if result is None else _between(intent, result)
        found[intent.step_idx, intent.kind] = _Effect(intent, result, taken)
    return found


def _pauses(records: Sequence[Record]) -> dict[int, list[JSONValue]]:
    """What interrupted the run, by the position of the step in which, or before which, it happened."""
    found: list[str] = []
    by_step: dict[int, list[JSONValue]] = {}
    for before, record in itertools.pairwise(records):
        lasted = _between(before, record)
        if isinstance(before, RunFinished):
            found.append(f"Cancelled at {before.recorded_at}; went on {duration(lasted)} later.")
        elif isinstance(record, EffectIntended) and record.attempt > 1:
            what = _NAMES[record.kind]
            found.append(f"Interrupted; the {what} was made again, attempt {record.attempt}, {duration(lasted)} later.")
        elif lasted >= LONG_PAUSE_MS and isinstance(record, EffectIntended):
            found.append(f"Nothing was recorded for {duration(lasted)}: the run may have been resumed here.")
        if isinstance(record, StepCompleted) and found:
            by_step[record.seq] = list(found)
            found.clear()
    if found:
        by_step[len(records)] = list(found)
    return by_step


_NAMES: Final = {EffectKind.MODEL_CALL: "model call", EffectKind.ACTION: "action"}


def _open_effects(effects: _Effects) -> Iterator[str]:
    for (step_idx, kind), effect in effects.items():
        if effect.result is None:
            intent = effect.intent
            yield (
                f"The {_NAMES[kind]} of step {step_idx} was announced at {intent.recorded_at} "
                f"(attempt {intent.attempt}, replay {intent.replay.value}); no result of it is in the log."
            )


# --- texts


def _facts(row: Row, log: RunLog) -> Labelled:
    facts: Labelled = [("outcome", row.outcome)]
    if row.damage is not None:
        facts.append(("damage", row.damage))
    if log.finished is not None and log.finished.detail is not None:
        facts.append(("detail", log.finished.detail))
    if log.finished is not None and log.finished.final_answer is not None:
        facts.append(("final answer", log.finished.final_answer))
    facts.append(("steps", str(row.steps)))
    if log.started is not None:
        facts += [("started", log.started.recorded_at), ("library version", log.started.library_version)]
    facts += [
        ("last record", log.records()[-1].recorded_at),
        ("duration", duration(row.wall_ms or 0)),
        ("in model calls", duration(row.model_ms)),
        ("in actions", duration(row.action_ms)),
    ]
    if log.cancellations:
        facts.append(("cancelled and resumed", counted(len(log.cancellations), "time")))
    failures = sum(end.event_sink_failures for end in (*log.cancellations, *([log.finished] if log.finished else [])))
    if failures:
        facts.append(("event sink failures", str(failures)))
    return facts


def leaves(value: JSONValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Each value inside a JSON value, as text, behind its path: numbers stay what they are, however large."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            # A name that would be taken for more of the path is quoted, so that no two values have one path.
            shown = json.dumps(name, ensure_ascii=False) if not name or set(name) & set('.["\\') else name
            yield from leaves(inner, f"{path}.{shown}" if path else shown)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False, default=_empty)


def _empty(value: object) -> JSONValue:
    """An empty mapping or sequence of another class than json knows."""
    return {} if isinstance(value, Mapping) else []


def _step(step: Step, effects: _Effects, pauses: list[JSONValue]) -> dict[str, JSONValue]:
    model = effects.get((step.step_idx, EffectKind.MODEL_CALL))
    action = effects.get((step.step_idx, EffectKind.ACTION))
    model_ms = 0 if model is None else model.milliseconds
    action_ms = 0 if action is None else action.milliseconds
    result = None if model is None else model.result
    counts = f"prompt {step.prompt_chars:,} characters, reply {step.content_chars:,}, reasoning {step.thinking_chars:,}"
    return {
        "n": step.step_idx,
        "title": _title(step),
        "pauses": pauses,
        "parts": _plain(_parts(step, result)),
        "counts": counts + ("" if step.call_id is None else f"; call {step.call_id}"),
        # By a monotonic clock, and of the last process alone: a replayed effect's pause is not in it.
        "ms": [model_ms, action_ms, max(0, step.step_wall_ms - model_ms - action_ms)],
    }


def _title(step: Step) -> str:
    if step.tool_name is not None:
        return step.tool_name
    if step.action is not None:
        return "action"
    if step.parse_error is not None:
        return "not understood"
    return "final answer" if step.parse_ok else "model call failed"


_OBSERVATION: Final = "observation"
_SYNTHETIC: Final = "observation, not of the environment"


def _parts(step: Step, result: EffectCompleted | None) -> Labelled:
    """All that the step has to say, in the order in which it came about. What is absent is left out."""
    reply: ModelReply | None = None if result is None else result.reply
    error = None if result is None else result.error
    cut = step.observation_truncated_chars
    observation = _SYNTHETIC if step.observation_is_synthetic else _OBSERVATION
    texts: list[tuple[str, str | None]] = [
        ("reasoning", None if reply is None else reply.reasoning),
        ("reply before it was read", None if reply is None or reply.text == step.raw_output else reply.text),
        ("model error", error),
        ("reply", step.raw_output or None),
        ("parse error", step.parse_error),
        ("action", None if step.action == step.raw_output else step.action),
        ("tool", step.tool_name),
        ("arguments", step.tool_arguments_json),
        ("action status", step.action_status),
        (observation, None if step.action is None and not step.observation else step.observation),
        ("cut off the observation", f"{cut:,} characters" if cut else None),
    ]
    return [(label, text) for label, text in texts if text is not None and (text or label == observation)]
