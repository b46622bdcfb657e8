"""One run in motion: what has happened so far, and the moves that the loop sequences."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from polyloop._assembly import count_chars, step_tail
from polyloop._recovery import (
    CallModel,
    Execute,
    Finish,
    Move,
    NextIteration,
    ReadReply,
    RecordAction,
    RecordModelError,
    effect_id,
)
from polyloop._stopping import START, admit, advance, explain, judge, overflow, usage_of
from polyloop.ports import Action, ActionDecision, FinalAnswer, ModelCall
from polyloop.session._assembled import Assembly
from polyloop.session._effects import Effects, milliseconds_since, timestamp
from polyloop.session._steps import action_step, decision_step, model_error_step, unannounced_step
from polyloop.types import (
    ActionEnded,
    ActionOutcome,
    ActionStarted,
    ActionStatus,
    EffectCompleted,
    EffectIntended,
    EffectKind,
    InvalidRequest,
    ModelCallEnded,
    ModelCallStarted,
    ModelReply,
    PlannedAction,
    ReplayPolicy,
    RunClosed,
    RunFinished,
    RunLog,
    RunResult,
    Step,
    StepCompleted,
    StepEnded,
)
from polyloop.types._json import copy_object


class Run:
    """One run in motion: what has happened so far, and the moves."""

    def __init__(self, assembly: Assembly, effects: Effects, log: RunLog) -> None:
        if log.started is None:
            raise ValueError("a run in motion has a start record")
        self.effects = effects
        self._assembly = assembly
        self._snapshot = log.started.params_snapshot
        self._earlier_sink_failures = sum(end.event_sink_failures for end in log.cancellations)
        if log.finished is not None:
            self._earlier_sink_failures += log.finished.event_sink_failures
        self._model_calls = len({each.result_id for each in log.intents if each.kind is EffectKind.MODEL_CALL})
        self._steps: list[Step] = []
        self._progress = START
        self._messages = list(assembly.head)
        self._prompt_chars = assembly.head_chars
        self._iteration_started = time.monotonic()
        for record in log.steps:
            self._take(record.step)

    def _take(self, step: Step) -> None:
        """Count a step and put it into the history: the same for live and for restored steps."""
        self._steps.append(step)
        self._progress = advance(self._progress, step)
        tail = step_tail(self._assembly.ports.observation_template, step)
        self._messages += tail
        self._prompt_chars += count_chars(tail)

    @property
    def _step_idx(self) -> int:
        return len(self._steps)

    async def begin_iteration(self) -> Move:
        """A and B: may another iteration begin?"""
        # Ports that answer at once never give the event loop a turn: without this, such a run could not be cancelled.
        await asyncio.sleep(0)
        self._iteration_started = time.monotonic()
        budget = self._assembly.budget
        stop_reason = admit(self._progress, budget) or overflow(self._prompt_chars, budget)
        if stop_reason is not None:
            return Finish(stop_reason=stop_reason, final_answer=None, evidence=None)
        return CallModel(attempt=1)

    async def call_model(self, move: CallModel) -> Move:
        """C: announce the model call, make it, keep what came of it."""
        intent = await self._announce_model_call(move.attempt)
        call = ModelCall(
            messages=tuple(self._messages),
            call_index=self._step_idx,
            key=self._assembly.key,
            result_id=intent.result_id,
            binding=dict(self._assembly.binding),
        )
        started = time.monotonic()
        answer = await self.effects.call_model(call)
        wall_ms = milliseconds_since(started)
        reply, error = (None, answer) if isinstance(answer, str) else (answer, None)
        result = self._result(intent, reply=reply, outcome=None, error=error)
        await self.effects.write_result(result)
        await self.effects.emit(
            ModelCallEnded(
                key=self._assembly.key,
                step_idx=self._step_idx,
                result_id=intent.result_id,
                reply=reply,
                error=error,
                wall_ms=wall_ms,
            )
        )
        return RecordModelError(result=result) if reply is None else ReadReply(reply=reply)

    async def _announce_model_call(self, attempt: int) -> EffectIntended:
        result_id = effect_id(self._step_idx, EffectKind.MODEL_CALL)
        await self.effects.emit(
            ModelCallStarted(
                key=self._assembly.key,
                step_idx=self._step_idx,
                result_id=result_id,
                attempt=attempt,
                prompt_chars=self._prompt_chars,
            )
        )
        intent = EffectIntended(
            seq=self.effects.next_seq,
            recorded_at=timestamp(),
            result_id=result_id,
            kind=EffectKind.MODEL_CALL,
            step_idx=self._step_idx,
            attempt=attempt,
            replay=self._assembly.model_call_replay,
            action=None,
        )
        await self.effects.write_intent(intent)
        if attempt == 1:
            self._model_calls += 1
        return intent

    async def record_model_error(self, move: RecordModelError) -> Move:
        """C: the call raised."""
        step = model_error_step(self._step_idx, self._prompt_chars, milliseconds_since(self._iteration_started))
        return await self._record(step, completed=None, evidence=move.result)

    async def read_reply(self, move: ReadReply) -> Move:
        """D to F: parse the reply."""
        parsed = await self.effects.parse(move.reply)
        if isinstance(parsed.decision, ActionDecision):
            return await self._plan(move.reply, parsed.history_text, parsed.decision)
        step = decision_step(
            self._step_idx,
            self._prompt_chars,
            milliseconds_since(self._iteration_started),
            reply=move.reply,
            history_text=parsed.history_text,
            decision=parsed.decision,
        )
        final_answer = parsed.decision.text if isinstance(parsed.decision, FinalAnswer) else None
        return await self._record(step, completed=None, final_answer=final_answer)

    async def _plan(self, reply: ModelReply, history_text: str, decision: ActionDecision) -> Move:
        """Plan the action; one whose arguments are not JSON cannot be announced, and is a `NOT_EXECUTED` step."""
        try:
            arguments = copy_object(decision.arguments, "ActionDecision.arguments")
        except InvalidRequest:
            step = unannounced_step(
                self._step_idx,
                self._prompt_chars,
                milliseconds_since(self._iteration_started),
                reply=reply,
                history_text=history_text,
                action_text=decision.action_text,
                tool_name=decision.tool_name,
                observation=self._assembly.ports.synthetic_observations[ActionStatus.NOT_EXECUTED],
            )
            return await self._record(step, completed=None)
        action = PlannedAction(
            action_text=decision.action_text,
            tool_name=decision.tool_name,
            arguments=arguments,
            history_text=history_text,
        )
        return Execute(action=action, reply=reply, attempt=1)

    async def execute(self, move: Execute) -> Move:
        """F: announce the action, execute it, keep what came of it."""
        intent = await self._announce_action(move)
        action = Action(
            action_text=move.action.action_text,
            tool_name=move.action.tool_name,
            arguments=copy_object(move.action.arguments, "arguments"),
            key=self._assembly.key,
            step_idx=self._step_idx,
            result_id=intent.result_id,
        )
        started = time.monotonic()
        answer = await self.effects.execute(action)
        wall_ms = milliseconds_since(started)
        outcome, error = (None, answer) if isinstance(answer, str) else (answer, None)
        result = self._result(intent, reply=None, outcome=outcome, error=error)
        await self.effects.write_result(result)
        return RecordAction(action=move.action, reply=move.reply, result=result, wall_ms=wall_ms)

    async def _announce_action(self, move: Execute) -> EffectIntended:
        result_id = effect_id(self._step_idx, EffectKind.ACTION)
        copied = dataclasses.replace(move.action, arguments=copy_object(move.action.arguments, "arguments"))
        await self.effects.emit(
            ActionStarted(
                key=self._assembly.key,
                step_idx=self._step_idx,
                result_id=result_id,
                attempt=move.attempt,
                action=copied,
            )
        )
        tool_name = move.action.tool_name
        never = ReplayPolicy.NEVER
        intent = EffectIntended(
            seq=self.effects.next_seq,
            recorded_at=timestamp(),
            result_id=result_id,
            kind=EffectKind.ACTION,
            step_idx=self._step_idx,
            attempt=move.attempt,
            replay=never if tool_name is None else self._assembly.tool_replay.get(tool_name, never),
            action=move.action,
        )
        await self.effects.write_intent(intent)
        return intent

    async def record_action(self, move: RecordAction) -> Move:
        """F and G: record the step whatever happened, and judge it."""
        outcome = move.result.outcome
        step = action_step(
            self._step_idx,
            self._prompt_chars,
            milliseconds_since(self._iteration_started),
            reply=move.reply,
            action=move.action,
            outcome=outcome,
            synthetic_observations=self._assembly.ports.synthetic_observations,
        )
        ended = None
        if move.wall_ms is not None:
            ended = ActionEnded(
                key=self._assembly.key,
                step_idx=self._step_idx,
                result_id=move.result.result_id,
                outcome=outcome,
                error=move.result.error,
                wall_ms=move.wall_ms,
            )
        completed = None if outcome is None else outcome.completed
        return await self._record(
            step, completed=completed, evidence=move.result, result_id=move.result.result_id, action_ended=ended
        )

    def _result(
        self,
        intent: EffectIntended,
        *,
        reply: ModelReply | None,
        outcome: ActionOutcome | None,
        error: str | None,
    ) -> EffectCompleted:
        return EffectCompleted(
            seq=self.effects.next_seq,
            recorded_at=timestamp(),
            result_id=intent.result_id,
            reply=reply,
            outcome=outcome,
            error=error,
        )

    async def _record(
        self,
        step: Step,
        *,
        completed: bool | None,
        evidence: EffectCompleted | None = None,
        result_id: str | None = None,
        final_answer: str | None = None,
        action_ended: ActionEnded | None = None,
    ) -> Move:
        """Write the step with its verdict, and go on from there."""
        self._take(step)
        verdict = judge(step, completed, self._progress, self._assembly.budget)
        record = StepCompleted(
            seq=self.effects.next_seq,
            recorded_at=timestamp(),
            step=step,
            result_id=result_id,
            stop_reason=verdict,
            final_answer=final_answer,
        )
        await self.effects.write_step(record)
        if action_ended is not None:
            await self.effects.emit(action_ended)
        await self.effects.emit(StepEnded(key=self._assembly.key, step=step))
        if verdict is None:
            return NextIteration()
        return Finish(stop_reason=verdict, final_answer=final_answer, evidence=evidence)

    async def finish(self, move: Finish) -> RunResult:
        """Write the end record and return the result."""
        end = RunFinished(
            seq=self.effects.next_seq,
            recorded_at=timestamp(),
            stop_reason=move.stop_reason,
            final_answer=move.final_answer,
            detail=explain(move.stop_reason, move.evidence),
            event_sink_failures=self.effects.sink_failures,
        )
        await self.effects.write_end(end)
        result = self._result_of(end, self._earlier_sink_failures + end.event_sink_failures)
        await self.effects.emit(RunClosed(key=self._assembly.key, stop_reason=result.stop_reason, usage=result.usage))
        return result

    def stored_result(self, log: RunLog) -> RunResult:
        """The result of a run that has ended: the one that `run` returned."""
        if log.finished is None:
            raise ValueError("the run has not ended")
        return self._result_of(log.finished, self._earlier_sink_failures)

    def _result_of(self, end: RunFinished, event_sink_failures: int) -> RunResult:
        steps = tuple(self._steps)
        return RunResult(
            key=self._assembly.key,
            stop_reason=end.stop_reason,
            steps=steps,
            final_answer=end.final_answer,
            detail=end.detail,
            usage=usage_of(steps, self._model_calls),
            params_snapshot=copy_object(self._snapshot, "params_snapshot"),
            event_sink_failures=event_sink_failures,
        )
