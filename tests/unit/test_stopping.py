"""When a run stops, and why: all little worlds, compared with a table written from the order of judgement alone.

A world is a word. Each letter says what happens in one iteration: what the model does, what the parser reads in its
reply, what comes of the action. The table below reads such a word and says what the run must come to. It shares no
code with the library.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from polyloop._stopping import Progress, admit, advance, explain, judge, overflow, usage_of
from polyloop.ports import Action, ActionDecision, Decision, FinalAnswer, InvalidDecision, ModelCall, ParsedReply
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    ActionKind,
    ActionOutcome,
    ActionStatus,
    Budget,
    EffectCompleted,
    EffectKind,
    JSONValue,
    ModelReply,
    ReplayPolicy,
    RunKey,
    RunResult,
    Step,
    StopReason,
    Usage,
)
from tests.builders import definition, request
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel
from tests.recovery.logs import ACTION, MODEL, PLAN, intent
from tests.seams import append

# --- the letters

MODEL_RAISES = "m"
INVALID = "i"
FINAL = "f"
NOT_JSON = "j"
"""An action whose arguments cannot be announced."""
GOES_ON = "e"
"""Executed, not completed."""
COMPLETES = "c"
UNKNOWN = "u"
"""Executed, the completion signal could not be had."""
REFUSED = "r"
REFUSED_COMPLETED = "R"
"""Refused, and yet called completed: that counts for nothing."""
REFUSED_UNKNOWN = "U"
BROKEN = "b"
"""The environment is gone."""
BROKEN_COMPLETED = "B"
RAISES = "x"
"""The executor raises."""
EVERY_LETTER: Final = "mifjecurRUbBx"
LETTERS: Final = "mifjecurbx"
"""Those that differ in what they lead to."""
CONTINUING: Final = "ijerRU"

OUTCOMES: Final[dict[str, tuple[ActionStatus, bool | None]]] = {
    GOES_ON: (ActionStatus.EXECUTED, False),
    COMPLETES: (ActionStatus.EXECUTED, True),
    UNKNOWN: (ActionStatus.EXECUTED, None),
    REFUSED: (ActionStatus.NOT_EXECUTED, False),
    REFUSED_COMPLETED: (ActionStatus.NOT_EXECUTED, True),
    REFUSED_UNKNOWN: (ActionStatus.NOT_EXECUTED, None),
    BROKEN: (ActionStatus.ENV_ERROR, False),
    BROKEN_COMPLETED: (ActionStatus.ENV_ERROR, True),
}
HEAD = len("You act.") + len("You know how.") + len("Do it.")


def text_of(letter: str, number: int) -> str:
    """The model's reply. Texts differ in length, so that a sum that takes the wrong one is seen."""
    return {INVALID: "?", FINAL: "final: "}.get(letter, "act: ") + letter * (number + 1)


def observed(letter: str, number: int) -> str:
    return f"saw {letter} {'.' * number}"


# --- the table


@dataclasses.dataclass(slots=True, kw_only=True)
class Expected:
    stop_reason: str = ""
    final_answer: str | None = None
    detail: str | None = None
    rows: list[tuple[object, ...]] = dataclasses.field(default_factory=list)
    """Of each step: raw_output, action, parse_ok, parse_error, observation, synthetic, prompt_chars, call_id and
    action_status."""
    prompt: int = HEAD
    executed: int = 0
    failures: int = 0


def expected(world: str, budget: Budget) -> Expected:
    """What the order of judgement, A to H, makes of a world."""
    found = Expected()
    for number, letter in enumerate((*world, None)):
        found.stop_reason = before_the_call(found, number, budget)
        if found.stop_reason:
            return found
        assert letter is not None, "the world is too short to say"
        row, observation = row_of(letter, number, found.prompt)
        found.rows.append(row)
        found.prompt += len(str(row[0])) + len("observed: ") + len(observation)
        found.executed += letter in (GOES_ON, COMPLETES, UNKNOWN)
        found.failures = found.failures + 1 if letter == INVALID else 0
        found.stop_reason, found.detail = after_the_step(found, letter, number, budget)
        if found.stop_reason:
            found.final_answer = "f" * (number + 1) if letter == FINAL else None
            return found
    raise AssertionError(world)


def before_the_call(found: Expected, steps: int, budget: Budget) -> str:
    """A and B."""
    if steps == budget.max_steps:
        return "step_budget"
    if found.executed == budget.max_executed_actions:
        return "action_budget"
    return "context_overflow" if found.prompt > budget.max_prompt_chars else ""


def after_the_step(found: Expected, letter: str, number: int, budget: Budget) -> tuple[str, str | None]:
    """C to G: the stop reason, empty where the run goes on, and the detail."""
    spent = found.failures == budget.max_consecutive_parse_failures
    return {
        MODEL_RAISES: ("llm_error", "OSError: no model"),
        INVALID: ("parse_failed_repeatedly" if spent else "", None),
        FINAL: ("agent_finished", None),
        COMPLETES: ("task_completed", None),
        UNKNOWN: ("env_error", "no signal"),
        BROKEN: ("env_error", observed(letter, number)),
        BROKEN_COMPLETED: ("env_error", observed(letter, number)),
        RAISES: ("env_error", "ValueError: broken"),
    }.get(letter, ("", None))


def row_of(letter: str, number: int, prompt: int) -> tuple[tuple[object, ...], str]:
    """A step's row, and its observation."""
    text, call = text_of(letter, number), f"call-{number}"
    if letter == MODEL_RAISES:
        return ("", None, False, None, "", False, prompt, None, None), ""
    if letter == INVALID:
        reason = f"cannot read {text}"
        return (text, None, False, reason, reason, True, prompt, call, None), reason
    if letter == FINAL:
        return (text, None, True, None, "", False, prompt, call, None), ""
    action = text.removeprefix("act: ")
    if letter in (GOES_ON, COMPLETES, UNKNOWN):
        seen = observed(letter, number)
        return (text, action, True, None, seen, False, prompt, call, "executed"), seen
    if letter in (BROKEN, BROKEN_COMPLETED, RAISES):
        return (text, action, True, None, "(gone)", True, prompt, call, "env_error"), "(gone)"
    return (text, action, True, None, "(refused)", True, prompt, call, "not_executed"), "(refused)"


def row_from(step: Step) -> tuple[object, ...]:
    return (
        step.raw_output,
        step.action,
        step.parse_ok,
        step.parse_error,
        step.observation,
        step.observation_is_synthetic,
        step.prompt_chars,
        step.call_id,
        step.action_status,
    )


# --- the worlds as ports


class WorldParser:
    """Reads the replies of a world."""

    params: Mapping[str, JSONValue] = {}
    produces = ActionKind.TEXT

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        verb, _, rest = reply.text.partition(": ")
        arguments: dict[str, JSONValue] = {"x": math.inf} if rest.startswith(NOT_JSON) else {}
        decision: Decision = ActionDecision(action_text=rest, tool_name=None, arguments=arguments)
        if verb == "final":
            decision = FinalAnswer(text=rest)
        elif verb != "act":
            decision = InvalidDecision(reason=f"cannot read {reply.text}")
        return ParsedReply(history_text=reply.text, decision=decision)


class World:
    """One definition that plays any world: the word is in the run's key."""

    def __init__(self) -> None:
        self.store = EphemeralRunStore()
        self.definition: AgentDefinition = dataclasses.replace(
            definition(store=self.store), model=ScriptedModel(self._reply), parser=WorldParser(), events=RecordingSink()
        )
        self.model_calls: dict[str, int] = {}
        self.actions: dict[str, int] = {}
        self._numbers = itertools.count()

    def _word(self, key: RunKey) -> str:
        return key.split("/")[0]

    def _reply(self, call: ModelCall) -> object:
        letter = self._word(call.key)[call.call_index]
        self.model_calls[call.key] = self.model_calls.get(call.key, 0) + 1
        return OSError("no model") if letter == MODEL_RAISES else text_of(letter, call.call_index)

    def _outcome(self, action: Action) -> object:
        letter = self._word(action.key)[action.step_idx]
        self.actions[action.key] = self.actions.get(action.key, 0) + 1
        if letter == RAISES:
            return ValueError("broken")
        status, completed = OUTCOMES[letter]
        return ActionOutcome(status=status, observation=observed(letter, action.step_idx), completed=completed)

    def request(self, word: str, budget: Budget) -> RunRequest:
        key = f"{word}/{next(self._numbers)}"
        return dataclasses.replace(request(key), budget=budget, executor=ScriptedExecutor(self._outcome))

    async def check(self, word: str, budget: Budget) -> None:
        """Run a world, and compare what it came to with the table."""
        asked = self.request(word, budget)
        result = await self.definition.run(asked)
        table = expected(word, budget)
        told = f"world {word!r} with {budget}"
        assert result.stop_reason == table.stop_reason, told
        assert result.final_answer == table.final_answer, told
        assert [row_from(step) for step in result.steps] == table.rows, told
        assert [step.step_idx for step in result.steps] == list(range(len(table.rows))), told
        assert result.usage == self._usage(word, table), told
        self._check_detail(result, table, told)
        self._check_calls(asked.key, word[: len(table.rows)], told)

    def _usage(self, word: str, table: Expected) -> Usage:
        letters = word[: len(table.rows)]
        return Usage(
            model_calls=len(letters),
            executed_actions=sum(letter in "ecu" for letter in letters),
            steps=len(letters),
            prompt_chars=sum(int(str(row[6])) for row in table.rows),
            content_chars=sum(len(text_of(each, at)) for at, each in enumerate(letters) if each != MODEL_RAISES),
            thinking_chars=0,
        )

    def _check_detail(self, result: RunResult, table: Expected, told: str) -> None:
        if table.detail == "no signal":
            assert "completion signal" in (result.detail or ""), told
        else:
            assert result.detail == table.detail, told

    def _check_calls(self, key: str, letters: str, told: str) -> None:
        """Nothing was paid for that the limits forbid."""
        assert self.model_calls.get(key, 0) == len(letters), told
        assert self.actions.get(key, 0) == sum(letter not in "mifj" for letter in letters), told


def words(length: int, letters: str) -> Iterator[str]:
    """All worlds that are over, or would be longer than this."""
    continuing = [letter for letter in letters if letter in CONTINUING]
    for steps in range(1, length + 1):
        for before in itertools.product(continuing, repeat=steps - 1):
            for last in letters:
                if steps == length or last not in CONTINUING:
                    yield "".join((*before, last))


def budgets(steps: range, actions: range, failures: range) -> Iterator[Budget]:
    for max_steps, max_actions, max_failures in itertools.product(steps, actions, failures):
        yield Budget(
            max_steps=max_steps,
            max_executed_actions=max_actions,
            max_prompt_chars=100_000,
            max_consecutive_parse_failures=max_failures,
        )


def distinct(length: int, budget: Budget, letters: str = LETTERS) -> Iterator[str]:
    """All worlds as far as a run under this budget gets to see them, each once."""
    seen: set[str] = set()
    for word in words(length, letters):
        read = word[: len(expected(word, budget).rows)]
        if read not in seen:
            seen.add(read)
            yield read


async def test_every_world_under_budgets_of_one_to_three() -> None:
    world, count = World(), 0
    for budget in budgets(range(1, 4), range(1, 4), range(1, 4)):
        for word in distinct(3, budget, EVERY_LETTER if budget.max_steps < 3 else LETTERS):
            await world.check(word, budget)
            count += 1
    assert count > 2_000


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_world_of_up_to_five_steps_under_budgets_of_one_to_three() -> None:
    for budget in budgets(range(4, 6), range(1, 4), range(1, 4)):
        world = World()
        for word in distinct(budget.max_steps, budget):
            await world.check(word, budget)


async def test_the_prompt_may_be_as_long_as_the_limit_and_no_longer() -> None:
    roomy = next(budgets(range(3, 4), range(2, 3), range(2, 3)))
    world, count = World(), 0
    for word in distinct(3, roomy):
        sizes = [int(str(row[6])) for row in expected(word, roomy).rows]
        for limit in {size + more for size in sizes for more in (-1, 0, 1)}:
            tight = dataclasses.replace(roomy, max_prompt_chars=limit)
            await world.check(word, tight)
            count += 1
    assert count > 1_000


async def test_a_prompt_that_is_too_long_from_the_start_costs_nothing() -> None:
    world = World()
    for limit in (1, HEAD - 1):
        budget = dataclasses.replace(next(budgets(range(3, 4), range(3, 4), range(3, 4))), max_prompt_chars=limit)
        await world.check("f", budget)
    assert world.model_calls == {}


async def test_counts_after_a_resume_are_the_counts_before_the_crash() -> None:
    """Every world is run again from every step of its log; the limits are met at the same place."""
    world = World()
    for budget in budgets(range(3, 4), range(1, 3), range(2, 3)):
        for word in distinct(3, budget):
            await check_resumed(world, word, budget)


async def check_resumed(world: World, word: str, budget: Budget) -> None:
    asked = world.request(word, budget)
    whole = await world.definition.run(asked)
    log = await world.store.read_log(asked.key)
    for step in log.steps:
        store = EphemeralRunStore()
        for record in log.records()[: step.seq + 1]:
            await append(store, asked.key, record)
        fresh = dataclasses.replace(world.definition, store=store)
        resumed = await fresh.resume(dataclasses.replace(asked, executor=ScriptedExecutor(world._outcome)))
        assert (resumed.stop_reason, resumed.usage, resumed.detail) == (whole.stop_reason, whole.usage, whole.detail)


# --- the pure functions


def step_of(
    *, action: str | None, parse_ok: bool, parse_error: str | None, status: str | None, chars: tuple[int, int, int]
) -> Step:
    return Step(
        step_idx=0,
        raw_output="",
        content_chars=chars[1],
        thinking_chars=chars[2],
        action=action,
        parse_ok=parse_ok,
        parse_error=parse_error,
        observation="",
        observation_is_synthetic=False,
        observation_truncated_chars=0,
        prompt_chars=chars[0],
        call_id=None,
        step_wall_ms=0,
        action_status=status,
    )


KINDS: Final = {
    "llm error": step_of(action=None, parse_ok=False, parse_error=None, status=None, chars=(1, 0, 0)),
    "invalid": step_of(action=None, parse_ok=False, parse_error="", status=None, chars=(10, 2, 3)),
    "final": step_of(action=None, parse_ok=True, parse_error=None, status=None, chars=(100, 20, 30)),
    "executed": step_of(action="", parse_ok=True, parse_error=None, status="executed", chars=(1000, 200, 300)),
    "not executed": step_of(action="", parse_ok=True, parse_error=None, status="not_executed", chars=(0, 1, 0)),
    "env error": step_of(action="", parse_ok=True, parse_error=None, status="env_error", chars=(0, 0, 1)),
}
COUNTS: Final = range(4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_counts_what_it_is(kind: str) -> None:
    for steps, actions, failures in itertools.product(COUNTS, repeat=3):
        before = Progress(steps=steps, executed_actions=actions, parse_failures_in_row=failures)
        after = advance(before, KINDS[kind])
        in_row = {"llm error": failures, "invalid": failures + 1}.get(kind, 0)
        assert (after.steps, after.executed_actions) == (steps + 1, actions + (kind == "executed"))
        assert after.parse_failures_in_row == in_row


def test_an_iteration_is_admitted_while_both_budgets_last_and_steps_are_named_first() -> None:
    for budget in budgets(range(1, 4), range(1, 4), range(1, 2)):
        for steps, actions in itertools.product(COUNTS, repeat=2):
            progress = Progress(steps=steps, executed_actions=actions, parse_failures_in_row=3)
            spent_steps, spent_actions = steps >= budget.max_steps, actions >= budget.max_executed_actions
            reason = "step_budget" if spent_steps else "action_budget" if spent_actions else None
            assert admit(progress, budget) == reason


def test_a_prompt_overflows_above_the_limit() -> None:
    budget = Budget(max_steps=1, max_executed_actions=1, max_prompt_chars=10, max_consecutive_parse_failures=1)
    assert [overflow(size, budget) for size in (0, 9, 10)] == [None, None, None]
    assert overflow(11, budget) is StopReason.CONTEXT_OVERFLOW


@pytest.mark.parametrize("completed", [True, False, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_judged_by_its_kind(kind: str, completed: bool | None) -> None:
    executed = {True: "task_completed", False: None, None: "env_error"}[completed]
    for budget in budgets(range(1, 3), range(1, 3), range(1, 4)):
        for steps, actions, failures in itertools.product((1, 2, 3), COUNTS, COUNTS):
            progress = Progress(steps=steps, executed_actions=actions, parse_failures_in_row=failures)
            spent = failures >= budget.max_consecutive_parse_failures
            verdict = {
                "llm error": "llm_error",
                "invalid": "parse_failed_repeatedly" if spent else None,
                "final": "agent_finished",
                "executed": executed,
                "not executed": None,
                "env error": "env_error",
            }[kind]
            assert judge(KINDS[kind], completed, progress, budget) == verdict


def result_of(outcome: ActionOutcome | None, error: str | None) -> EffectCompleted:
    return EffectCompleted(
        seq=1,
        recorded_at="2024-02-29T12:00:00.000000+00:00",
        result_id="r",
        reply=None,
        outcome=outcome,
        error=error,
    )


@pytest.mark.parametrize("stop_reason", [reason for reason in StopReason if reason != "resume_state_unknown"])
def test_a_detail_is_what_the_log_holds_of_an_error(stop_reason: StopReason) -> None:
    gone = ActionOutcome(status=ActionStatus.ENV_ERROR, observation="connection lost", completed=True)
    silent = ActionOutcome(status=ActionStatus.EXECUTED, observation="seen", completed=None)
    is_error = stop_reason in (StopReason.LLM_ERROR, StopReason.ENV_ERROR)
    assert explain(stop_reason, None) is None
    assert explain(stop_reason, result_of(None, "OSError: x")) == ("OSError: x" if is_error else None)
    assert explain(stop_reason, result_of(gone, None)) == ("connection lost" if is_error else None)
    no_signal = explain(stop_reason, result_of(silent, None))
    assert no_signal == explain(stop_reason, result_of(dataclasses.replace(silent, observation="else"), None))
    assert (no_signal is not None) is is_error
    assert no_signal != "seen"


@pytest.mark.parametrize("kind", EffectKind)
def test_the_detail_of_an_unknown_state_names_kind_step_and_attempt(kind: EffectKind) -> None:
    details = set()
    for step_idx, attempt in itertools.product((0, 7), (1, 3)):
        opened = intent(step_idx, kind, attempt=attempt, replay=ReplayPolicy.NEVER, action=PLAN)
        detail = explain(StopReason.RESUME_STATE_UNKNOWN, opened)
        assert detail is not None
        assert {ACTION: "the action of", MODEL: "the model call of"}[kind] in detail
        assert f"step {step_idx}," in detail
        assert f"attempt {attempt}," in detail
        details.add(detail)
    assert len(details) == 4


def test_usage_is_summed_over_the_steps() -> None:
    steps = tuple(KINDS.values())
    assert usage_of(steps, 9) == Usage(
        model_calls=9, executed_actions=1, steps=6, prompt_chars=1111, content_chars=223, thinking_chars=334
    )
    assert usage_of((), 0) == Usage(
        model_calls=0, executed_actions=0, steps=0, prompt_chars=0, content_chars=0, thinking_chars=0
    )
