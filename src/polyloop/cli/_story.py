"""A run's log as people like to read it: a record after the other, with what lies between them. Pure.

What the model wrote is printed where it came; what it then saw, at the end of the step, as it saw it. What a tool or a
model wrote stands behind a bar, so that nothing that it writes can pass for a line of the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, Literal

from polyloop.cli._text import counted, cut, duration, flattened, lines, one_line, seconds_between
from polyloop.types import (
    ActionOutcome,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    ModelReply,
    PlannedAction,
    Record,
    ReplayPolicy,
    RunFinished,
    RunStarted,
    Step,
    StepCompleted,
    StopReason,
)

GAP_S: Final = 5.0
"""A silence this long is told: between two records that the library writes at once, nobody was there."""

TEXT_LINES: Final = 20
"""How many lines of a text are printed, unless it is wanted whole."""

LINE_CHARS: Final = 400
"""How much of a line is printed, unless it is wanted whole."""

PARAMS: Final = 30
"""How many parameters are printed, unless all are wanted."""

_INDENT: Final = " " * 14


class Story:
    """Tells one run, record by record."""

    def __init__(self, *, full: bool) -> None:
        self._full = full
        self._before: Record | None = None
        self._reply: ModelReply | None = None

    def tell(self, record: Record) -> Iterator[str]:
        """The lines of the next record."""
        yield from self._silence(record)
        time = record.recorded_at[11:23]
        for number, line in enumerate(self._told(record)):
            yield f"{'' if number else time:12}  {line}"
        self._before = record

    def _silence(self, record: Record) -> Iterator[str]:
        before = self._before
        if before is None or before.recorded_at[:10] != record.recorded_at[:10]:
            yield f"---- {record.recorded_at[:10]} UTC"
        if before is None:
            return
        passed_s = seconds_between(before.recorded_at, record.recorded_at)
        if passed_s < 0:
            yield f"{_INDENT}(the clock stood {duration(-passed_s)} earlier than at the record before)"
        elif passed_s >= GAP_S and not self._answers(record):
            yield f"{_INDENT}(no record for {duration(passed_s)})"
        if isinstance(before, RunFinished):
            yield f"{_INDENT}resumed"

    def _answers(self, record: Record) -> bool:
        """Whether it is the result of the effect that was announced just before."""
        return isinstance(self._before, EffectIntended) and isinstance(record, EffectCompleted)

    def _told(self, record: Record) -> Iterator[str]:
        match record:
            case RunStarted():
                yield f"started by polyloop {one_line(record.library_version)}"
            case EffectIntended():
                yield from self._intended(record)
            case EffectCompleted():
                yield from self._completed(record)
            case StepCompleted():
                yield from self._step(record)
            case RunFinished():
                yield from self._finished(record)

    def _intended(self, intent: EffectIntended) -> Iterator[str]:
        again = f" · attempt {intent.attempt}: the one before was interrupted" if intent.attempt > 1 else ""
        if intent.action is None:
            yield f"step {intent.step_idx} · model call{again}"
        else:
            yield f"action {one_line(_named(intent.action, full=self._full))}{again}"
            if intent.action.tool_name is None:
                yield from self._text("", intent.action.action_text)

    def _completed(self, result: EffectCompleted) -> Iterator[str]:
        after = ""
        if self._before is not None and self._answers(result):
            after = f" after {duration(seconds_between(self._before.recorded_at, result.recorded_at))}"
        if result.reply is not None:
            self._reply = result.reply
            yield from self._replied(result.reply, after)
        elif result.outcome is not None:
            yield f"{_status(result.outcome)}{after} · completed: {_COMPLETED[result.outcome.completed]}"
        else:
            yield f"failed{after}"
            yield from self._text("error ", result.error or "")

    def _replied(self, reply: ModelReply, after: str) -> Iterator[str]:
        parts = [f"replied{after}", counted(len(reply.text), "character")]
        if reply.reasoning is not None:
            parts.append(f"reasoning {counted(len(reply.reasoning), 'character')}")
        if reply.call_id is not None:
            parts.append(f"call {one_line(reply.call_id)}")
        yield " · ".join(parts)
        if reply.reasoning is not None:
            yield from self._text("thinks ", reply.reasoning)
        yield from self._text("", reply.text)

    def _step(self, done: StepCompleted) -> Iterator[str]:
        step, reply, self._reply = done.step, self._reply, None
        took = duration(step.step_wall_ms / 1000)
        yield f"step {step.step_idx} done in {took} · prompt {counted(step.prompt_chars, 'character')}"
        if reply is not None and step.raw_output != reply.text:
            yield f"the history keeps another text than the reply, {counted(len(step.raw_output), 'character')}:"
            yield from self._text("", step.raw_output)
        if not step.parse_ok and step.parse_error is not None:
            yield "no valid decision:"
            yield from self._text("", step.parse_error)
        elif step.action is not None:
            yield f"observation, {_observed(step)}:"
            yield from self._text("", step.observation)
        if done.final_answer is not None:
            yield "final answer:"
            yield from self._text("", done.final_answer)
        if done.stop_reason is not None:
            yield f"this ends the run: {done.stop_reason.value}"

    def _finished(self, end: RunFinished) -> Iterator[str]:
        if end.stop_reason is StopReason.CANCELLED:
            yield "cancelled"
        else:
            yield f"ended: {end.stop_reason.value}"
        if end.detail is not None:
            yield from self._text("", end.detail)
        if end.event_sink_failures:
            yield f"the event sink failed to take {counted(end.event_sink_failures, 'event')}"

    def _text(self, label: str, text: str) -> Iterator[str]:
        written = lines(text)
        shown = written if self._full else [cut(line, LINE_CHARS) for line in written[:TEXT_LINES]]
        for line in shown:
            yield f"{label}| {line}"
        left = len(written) - len(shown)
        if left or any(map(str.__ne__, shown, written)):
            more = counted(left, "more line") if left else "long lines are cut"
            yield f"{label}  ({more}; --full prints all {counted(len(text), 'character')})"


_COMPLETED: Final = {True: "yes", False: "no", None: "not known"}


def _status(outcome: ActionOutcome) -> str:
    return outcome.status.value.replace("_", " ")


def _named(action: PlannedAction, *, full: bool) -> str:
    if action.tool_name is None:
        return "(no tool)"
    arguments = json.dumps(action.arguments, ensure_ascii=False)
    return f"{action.tool_name} {arguments if full else cut(arguments, LINE_CHARS)}"


def _observed(step: Step) -> str:
    parts = [counted(len(step.observation), "character")]
    if step.observation_is_synthetic:
        parts.append("synthetic: not from the environment")
    if step.observation_truncated_chars:
        parts.append(f"{step.observation_truncated_chars:,} more were cut off")
    return ", ".join(parts)


def parameters(started: RunStarted, *, full: bool) -> Iterator[tuple[str, str]]:
    """What influenced the run: each path with its value, shortened unless wanted whole."""
    leaves = list(flattened(started.params_snapshot))
    for path, value in leaves if full else leaves[:PARAMS]:
        text = json.dumps(value, ensure_ascii=False)
        yield one_line(path), one_line(text if full else cut(text, 100))
    if not full and len(leaves) > PARAMS:
        yield "…", f"{len(leaves) - PARAMS} more: --full prints all"


def standing(last: Record) -> tuple[Literal["unfinished", "cancelled", "ended"], str]:
    """Where a run stands by its last record, and what that means for whoever wants to go on."""
    match last:
        case RunFinished(stop_reason=StopReason.CANCELLED):
            return "cancelled", "resume() goes on with it"
        case RunFinished():
            return "ended", last.stop_reason.value
        case EffectIntended():
            effect = "a model call" if last.kind is EffectKind.MODEL_CALL else "an action"
            here = f"{effect} of step {last.step_idx} is under way, or was interrupted"
            if last.replay is ReplayPolicy.SAFE:
                return "unfinished", f"{here}; it may be repeated"
            return "unfinished", f"{here}; it may not be repeated: resume() ends with resume_state_unknown"
        case _:
            return "unfinished", "under way, or interrupted: resume() goes on with it"
