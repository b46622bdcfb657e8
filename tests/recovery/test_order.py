"""The order of what a run does, pinned in full: no effect before its intent, nobody told between it and its record."""

from __future__ import annotations

import dataclasses

import pytest

from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import StopReason
from tests.fakes import act, final, tool_call
from tests.family import FAMILY, NOT_JSON, SAFE, TOOLS, Scenario, assemble
from tests.recovery.test_every_prefix import run_whole, stored


async def order_of(scenario: Scenario) -> list[str]:
    points: list[str] = []
    assembled = assemble(scenario, EphemeralRunStore(), tell=points.append)
    await assembled.definition.run(assembled.request)
    return points


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


OPENING = lines("""
    enter read_log
    leave read_log
    enter append_run_start
    leave append_run_start
    event RunOpened
""")

MODEL_CALL = """
    event ModelCallStarted
    enter append_intent {step}-model_call
    leave append_intent {step}-model_call
    enter call {step}-model_call
    leave call {step}-model_call
    enter append_result {step}-model_call
    leave append_result {step}-model_call
    event ModelCallEnded
    enter parse {call}
    leave parse {call}
"""

ACTION = """
    event ActionStarted
    enter append_intent {step}-action
    leave append_intent {step}-action
    enter execute {step}-action
    leave execute {step}-action
    enter append_result {step}-action
    leave append_result {step}-action
    enter append_step {number}
    leave append_step {number}
    event ActionEnded
    event StepEnded
"""

STEP = """
    enter append_step {number}
    leave append_step {number}
    event StepEnded
"""


def model_call(number: int) -> list[str]:
    return lines(MODEL_CALL.format(step=f"{number:06d}", call=f"call-{number}"))


def action(number: int) -> list[str]:
    return lines(ACTION.format(step=f"{number:06d}", number=number))


def step(number: int) -> list[str]:
    return lines(STEP.format(number=number))


def ending(stop_reason: str) -> list[str]:
    return [f"enter finish {stop_reason}", f"leave finish {stop_reason}", "event RunClosed"]


async def test_a_run_with_an_action_an_invalid_decision_and_an_answer() -> None:
    scenario = Scenario(
        name="", stop_reason=StopReason.AGENT_FINISHED, replies=(act("a"), "?", final("x")), outcomes={0: "did a"}
    )
    assert await order_of(scenario) == [
        *OPENING,
        *model_call(0),
        *action(0),
        *model_call(1),
        *step(1),
        *model_call(2),
        *step(2),
        *ending("agent_finished"),
    ]


async def test_a_run_with_an_unknown_tool_arguments_that_are_not_json_and_a_tool_that_completes() -> None:
    scenario = Scenario(
        name="",
        stop_reason=StopReason.TASK_COMPLETED,
        replies=(tool_call("nope"), NOT_JSON, tool_call("submit")),
        tools=TOOLS,
    )
    assert await order_of(scenario) == [
        *OPENING,
        *model_call(0),
        *action(0),
        *model_call(1),
        *step(1),
        *model_call(2),
        *action(2),
        *ending("task_completed"),
    ]


async def test_a_run_whose_model_raises() -> None:
    scenario = Scenario(name="", stop_reason=StopReason.LLM_ERROR, replies=(lambda _: OSError("gone"),))
    called = [line.replace("leave call", "raise call") for line in model_call(0) if "parse" not in line]
    assert await order_of(scenario) == [*OPENING, *called, *step(0), *ending("llm_error")]


async def test_a_run_whose_executor_raises() -> None:
    scenario = Scenario(
        name="", stop_reason=StopReason.ENV_ERROR, replies=(act("a"),), outcomes={0: lambda _: OSError("gone")}
    )
    executed = [line.replace("leave execute", "raise execute") for line in action(0)]
    assert await order_of(scenario) == [*OPENING, *model_call(0), *executed, *ending("env_error")]


async def test_a_run_that_is_stopped_by_a_budget_announces_nothing_more() -> None:
    budget = dataclasses.replace(FAMILY[0].budget, max_steps=1)
    scenario = Scenario(
        name="", stop_reason=StopReason.STEP_BUDGET, replies=(act("a"),), outcomes={0: "did a"}, budget=budget
    )
    assert await order_of(scenario) == [*OPENING, *model_call(0), *action(0), *ending("step_budget")]


async def test_a_run_whose_prompt_is_too_long_announces_nothing() -> None:
    budget = dataclasses.replace(FAMILY[0].budget, max_prompt_chars=1)
    scenario = Scenario(name="", stop_reason=StopReason.CONTEXT_OVERFLOW, replies=(), budget=budget)
    assert await order_of(scenario) == [*OPENING, *ending("context_overflow")]


RESUMED = Scenario(
    name="",
    stop_reason=StopReason.AGENT_FINISHED,
    replies=(tool_call("look", query="q"), final("x")),
    tools=TOOLS,
    model_call_replay=SAFE,
)
READ = lines("""
    enter read_log
    leave read_log
    event RunOpened
""")


@pytest.mark.parametrize(
    ("length", "rest"),
    [
        (1, [*model_call(0), *action(0), *model_call(1), *step(1)]),
        (2, [*model_call(0), *action(0), *model_call(1), *step(1)]),
        (3, ["enter parse call-0", "leave parse call-0", *action(0), *model_call(1), *step(1)]),
        (4, [*action(0), *model_call(1), *step(1)]),
        # What an earlier process executed is not told by this one.
        (5, [*step(0), *model_call(1), *step(1)]),
        (6, [*model_call(1), *step(1)]),
        (7, [*model_call(1), *step(1)]),
        (8, ["enter parse call-1", "leave parse call-1", *step(1)]),
        (9, []),
    ],
)
async def test_a_resumed_run(length: int, rest: list[str]) -> None:
    whole = await run_whole(RESUMED)
    assert len(whole.records) == 10
    points: list[str] = []
    assembled = assemble(RESUMED, await stored(whole.records[:length]), tell=points.append)
    await assembled.definition.resume(assembled.request)
    assert points == [*READ, *rest, *ending("agent_finished")]


async def test_resuming_an_effect_that_must_not_be_repeated() -> None:
    never = dataclasses.replace(RESUMED, model_call_replay=FAMILY[0].model_call_replay)
    whole = await run_whole(never)
    points: list[str] = []
    assembled = assemble(never, await stored(whole.records[:2]), tell=points.append)
    await assembled.definition.resume(assembled.request)
    assert points == [*READ, *ending("resume_state_unknown")]


async def test_resuming_an_ended_run_only_reads() -> None:
    whole = await run_whole(RESUMED)
    points: list[str] = []
    assembled = assemble(RESUMED, await stored(whole.records), tell=points.append)
    await assembled.definition.resume(assembled.request)
    assert points == ["enter read_log", "leave read_log"]


@pytest.mark.parametrize("scenario", FAMILY, ids=str)
async def test_every_effect_begins_after_its_intent_and_is_handed_over_before_anybody_is_told(
    scenario: Scenario,
) -> None:
    points = await order_of(scenario)
    for at, point in enumerate(points):
        verb, _, rest = point.partition(" ")
        name, _, what = rest.partition(" ")
        if verb == "enter" and name in ("call", "execute"):
            assert points[at - 1] == f"leave append_intent {what}"
        if verb in ("leave", "raise") and name in ("call", "execute"):
            assert points[at + 1] == f"enter append_result {what}"
    begun = [point for point in points if point.startswith(("enter call ", "enter execute "))]
    assert len(set(begun)) == len(begun)
