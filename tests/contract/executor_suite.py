"""All promises of `ActionExecutor`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from polyloop.ports import Action, ActionExecutor
from polyloop.types import ActionKind, ActionOutcome, ActionStatus, RunKey
from tests.contract.cases import ActionSample, ExecutorCase
from tests.contract.port_checks import (
    BLOCKING,
    CANCELLATION,
    Configured,
    add_params_promises,
    canonical,
    expect_any_task,
    expect_no_blocking,
    not_json,
)
from tests.contract.promises import Suite, cut_short, demand, given, moments, opened, turns

SUITE = Suite[ExecutorCase]("ActionExecutor")

ACCEPTS = "The kind of action that it executes."
SCHEMAS = "each `{name, description, parameters}`; empty where there are none."
EXECUTED = (
    "the action really ran in the environment, whatever came of it: an action that raises, exits non-zero or is bad "
    "SQL is a normal observation, fed back verbatim"
)
NOT_EXECUTED = "the action never got to run: unknown tool, invalid arguments, refused."
ENV_ERROR = (
    "the environment itself can serve no more: unreachable, protocol broken, the completion signal itself failed."
)
LINE = "The dividing line is whether the environment can go on serving."
SAFETY_NET = "the safety net, not the channel"
NO_SIGNAL = (
    "`completed=None` on an `EXECUTED` action says that the completion signal could not be had, and stops the run with "
    "`env_error`, the real observation kept."
)
ONE_RUN = "On the request: one environment, one run."
STOPPED = (
    "When a cancellation has passed through `execute`, the action has stopped: nothing of it goes on in the background."
)


_steps = itertools.count()


def an_action(sample: ActionSample, step_idx: int | None = None) -> Action:
    """An action of the suite, with everything of its own; unless the step is given, it is like no other."""
    number = next(_steps) if step_idx is None else step_idx
    return Action(
        action_text=sample.action_text,
        tool_name=sample.tool_name,
        arguments=dict(sample.arguments),
        key=RunKey("run"),
        step_idx=number,
        result_id=f"{number:06d}-action",
    )


async def outcome_of(executor: ActionExecutor, sample: ActionSample, step_idx: int | None = None) -> ActionOutcome:
    """The executor gives an outcome, and raises nothing."""
    outcome: object = await executor.execute(an_action(sample, step_idx))
    demand(isinstance(outcome, ActionOutcome), f"execute returned a {type(outcome).__name__}")
    assert isinstance(outcome, ActionOutcome)
    return outcome


async def expect_status(executor: ActionExecutor, sample: ActionSample, status: ActionStatus) -> ActionOutcome:
    """The action ends with this status."""
    outcome = await outcome_of(executor, sample)
    what = f"{sample.tool_name or sample.action_text!r:.80}"
    demand(outcome.status is status, f"{what} ended with {outcome!r:.300}, expected was {status!r}")
    return outcome


async def _use(case: ExecutorCase, port: Configured) -> object:
    executor: ActionExecutor = port  # type: ignore[assignment]  # a port of this suite is an executor
    return await executor.execute(an_action(case.action))


add_params_promises(SUITE, _use)


# -------------------------------------------------------------------------------------------- what it is


@SUITE.promise(ACCEPTS, look_at="accepts: a property that gives a polyloop.ActionKind, always the same")
async def accepts_is_a_kind_of_action(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor, opened(case.make(), "executor") as another:
        first: object = executor.accepts
        demand(isinstance(first, ActionKind), f"accepts is a {type(first).__name__}, no ActionKind")
        calls, named = first is ActionKind.TOOL_CALL, case.action.tool_name is not None
        demand(calls == named, f"accepts is {first!r}, and the case's action has tool_name={case.action.tool_name!r}")
        await executor.execute(an_action(case.action))
        demand(executor.accepts is first, "accepts changed after an action was executed")
        demand(another.accepts is first, "two executors built alike accept different kinds")


@SUITE.promise(SCHEMAS, look_at="tool_schemas: a tuple of mappings with these three keys and no other")
async def tool_schemas_have_their_shape(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        schemas: object = executor.tool_schemas
        demand(isinstance(schemas, tuple), f"tool_schemas is a {type(schemas).__name__}, no tuple")
        assert isinstance(schemas, tuple)
        for number, schema in enumerate(schemas):
            _expect_shape(schema, f"tool_schemas[{number}]")
        names = [schema["name"] for schema in schemas]
        demand(len(set(names)) == len(names), f"tool_schemas has a name twice: {names!r:.200}")


def _expect_shape(schema: object, path: str) -> None:
    demand(isinstance(schema, Mapping), f"{path} is a {type(schema).__name__}, no mapping")
    assert isinstance(schema, Mapping)
    demand(set(schema) == {"name", "description", "parameters"}, f"{path} has the keys {sorted(schema)!r:.200}")
    for name in ("name", "description"):
        demand(isinstance(schema[name], str), f"{path}.{name} is no string")
    demand(isinstance(schema["parameters"], Mapping), f"{path}.parameters is no mapping")
    problem = not_json(schema, path)
    demand(problem is None, str(problem))


@SUITE.promise(
    "what the model is shown is what is dispatched.",
    look_at="tool_schemas: it names every tool that execute runs, in the same order every time",
)
async def tool_schemas_name_what_is_dispatched(case: ExecutorCase) -> None:
    samples = (case.action, case.failing, case.completing, case.hanging, case.remember, case.recall, case.long)
    async with opened(case.make(), "executor") as executor, opened(case.make(), "executor") as another:
        names = [schema["name"] for schema in executor.tool_schemas]
        for sample in samples:
            if sample is not None and sample.tool_name is not None:
                demand(sample.tool_name in names, f"{sample.tool_name!r} can be executed and is not in tool_schemas")
        shown = [canonical(schema) for schema in executor.tool_schemas]
        await executor.execute(an_action(case.action))
        again = [canonical(schema) for schema in executor.tool_schemas]
        demand(shown == again, "tool_schemas changed after an action was executed")
        alike = [canonical(schema) for schema in another.tool_schemas]
        demand(shown == alike, "two executors built alike have different tool_schemas, or another order of them")


# -------------------------------------------------------------------------------------------- outcomes


@SUITE.promise(
    "An `ActionOutcome`.", look_at="what execute returns: an async method that gives a polyloop.ActionOutcome"
)
async def an_action_has_an_outcome(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        for _ in range(2):
            await outcome_of(executor, case.action)


@SUITE.promise(EXECUTED, look_at="the status and the observation of an action that simply runs")
async def an_action_that_ran_is_executed(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        outcome = await expect_status(executor, case.action, ActionStatus.EXECUTED)
        if case.observation is not None:
            what = f"the observation is {outcome.observation!r:.200}, the environment said {case.observation!r:.200}"
            demand(outcome.observation == case.observation, what)


@SUITE.promise(
    "Whether the environment says that the task is done.",
    look_at="completed of an ordinary action: False; None is for a signal that could not be had",
)
async def an_ordinary_action_does_not_complete(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        outcome = await outcome_of(executor, case.action)
        demand(outcome.completed is False, f"completed is {outcome.completed!r} after an ordinary action")


@SUITE.promise(EXECUTED, look_at="an action's own error: return it as the observation, neither raise nor NOT_EXECUTED")
async def an_action_that_fails_is_executed(case: ExecutorCase) -> None:
    sample = given(case.failing, "the case names no `failing` action")
    async with opened(case.make(), "executor") as executor:
        outcome = await expect_status(executor, sample, ActionStatus.EXECUTED)
        demand(outcome.completed is False, f"completed is {outcome.completed!r} after an action that failed")
        shows = case.failing_shows or ""
        demand(outcome.observation, "the observation of an action that failed is empty")
        demand(shows in outcome.observation, f"the observation {outcome.observation!r:.200} does not show {shows!r}")


@SUITE.promise(
    NOT_EXECUTED, look_at="unknown tools, arguments that do not fit, refusals: NOT_EXECUTED, not an exception"
)
async def a_refused_action_is_not_executed(case: ExecutorCase) -> None:
    sample = given(case.refused, "the case names no `refused` action")
    async with opened(case.make(), "executor") as executor:
        await expect_status(executor, sample, ActionStatus.NOT_EXECUTED)


@SUITE.promise(NOT_EXECUTED, look_at="the order of judging and acting: what is refused must have had no effect")
async def a_refused_action_has_no_effect(case: ExecutorCase) -> None:
    sample = given(case.refused, "the case names no `refused` action")
    effects = given(case.effects, "the case has no `effects`")
    async with opened(case.make(), "executor") as executor:
        before = effects()
        await outcome_of(executor, sample)
        demand(effects() == before, f"an action that was refused took effect {effects() - before} times")


@SUITE.promise(
    "Execute one action, after its intent is durable.", look_at="retries: an action takes effect once a call"
)
async def an_action_takes_effect_once(case: ExecutorCase) -> None:
    effects = given(case.effects, "the case has no `effects`")
    async with opened(case.make(), "executor") as executor:
        for sample in filter(None, (case.action, case.failing, case.action)):
            before = effects()
            await outcome_of(executor, sample)
            demand(effects() - before == 1, f"an action took effect {effects() - before} times")


@SUITE.promise(LINE, look_at="failed and refused actions: the environment serves on as if nothing had been")
async def the_environment_serves_on(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        first = await expect_status(executor, case.action, ActionStatus.EXECUTED)
        for sample in filter(None, (case.failing, case.refused)):
            await outcome_of(executor, sample)
            outcome = await expect_status(executor, case.action, ActionStatus.EXECUTED)
            if case.observation is not None:
                what = f"the observation became {outcome.observation!r:.200}, it was {first.observation!r:.200}"
                demand(outcome.observation == first.observation, what)


@SUITE.promise(ENV_ERROR, look_at="a connection that is gone, a container that died: ENV_ERROR, not an observation")
async def a_broken_environment_is_an_env_error(case: ExecutorCase) -> None:
    make = given(case.make_broken, "the case has no `make_broken`")
    async with opened(make(), "executor") as executor:
        for _ in range(2):
            await expect_status(executor, case.action, ActionStatus.ENV_ERROR)


@SUITE.promise(SAFETY_NET, look_at="exceptions of the environment's client: catch them and return ENV_ERROR")
async def a_broken_environment_raises_nothing(case: ExecutorCase) -> None:
    make = given(case.make_broken, "the case has no `make_broken`")
    async with opened(make(), "executor") as executor:
        await outcome_of(executor, case.action)


@SUITE.promise(
    NO_SIGNAL, look_at="a completion signal that cannot be had: EXECUTED, the observation, and completed=None"
)
async def a_lost_signal_keeps_the_observation(case: ExecutorCase) -> None:
    make = given(case.make_signal_lost, "the case has no `make_signal_lost`")
    async with opened(make(), "executor") as executor:
        outcome = await expect_status(executor, case.action, ActionStatus.EXECUTED)
        demand(outcome.completed is None, f"completed is {outcome.completed!r}, the signal could not be had")
        kept = outcome.observation == case.observation if case.observation is not None else outcome.observation
        demand(kept, f"the observation is {outcome.observation!r:.200}, the real one is to be kept")


@SUITE.promise(
    "Whether the environment says that the task is done.",
    look_at="completed of the action that completes the task: True",
)
async def the_completing_action_completes(case: ExecutorCase) -> None:
    sample = given(case.completing, "the case names no `completing` action")
    async with opened(case.make(), "executor") as executor:
        outcome = await expect_status(executor, sample, ActionStatus.EXECUTED)
        demand(outcome.completed is True, f"completed is {outcome.completed!r} after the completing action")


@SUITE.promise(
    "How many characters of the observation the executor cut off.",
    look_at="truncated_chars: what is missing of the environment's answer, markers not counted as part of it",
)
async def what_is_cut_off_is_counted(case: ExecutorCase) -> None:
    sample = given(case.long, "the case names no `long` action")
    chars = given(case.long_chars, "the case does not say `long_chars`")
    async with opened(case.make(), "executor") as executor:
        outcome = await expect_status(executor, sample, ActionStatus.EXECUTED)
        kept, cut = len(outcome.observation), outcome.truncated_chars
        demand(cut > 0, f"of an answer of {chars} characters {kept} were kept, and truncated_chars is {cut}")
        demand(kept + cut >= chars, f"{kept} characters were kept and {cut} cut off, the answer had {chars}")
        demand(cut <= chars, f"{cut} characters are said to be cut off, the answer had {chars}")


@SUITE.promise(
    "With `key` it makes an idempotency key: a replay has the same.",
    look_at="registers of actions that were seen: a repeated one has an outcome too, in a fresh executor as well",
)
async def a_repeated_action_has_an_outcome(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        for _ in range(2):
            await outcome_of(executor, case.action, step_idx=7)
    async with opened(case.make(), "executor") as executor:
        await outcome_of(executor, case.action, step_idx=7)


# ------------------------------------------------------------------------------------ several environments


@SUITE.promise(ONE_RUN, look_at="state of a class or module: what one environment did must not show in another")
async def environments_are_apart(case: ExecutorCase) -> None:
    remember = given(case.remember, "the case names no `remember` action")
    recall = given(case.recall, "the case names no `recall` action")
    async with opened(case.make(), "executor") as one, opened(case.make(), "executor") as other:
        untouched = (await outcome_of(other, recall)).observation
        before = (await outcome_of(one, recall)).observation
        demand(before == untouched, f"two fresh environments observe {before!r:.100} and {untouched!r:.100}")
        await outcome_of(one, remember)
        changed = (await outcome_of(one, recall)).observation
        demand(changed != untouched, f"`recall` observes {changed!r:.100} with and without `remember` before it")
        after = (await outcome_of(other, recall)).observation
        demand(after == untouched, f"`remember` in one environment changed what another observes to {after!r:.100}")


@SUITE.promise(ONE_RUN, look_at="executors that are used at once: clients, sessions and results that they share")
async def executors_at_once_do_not_mix(case: ExecutorCase) -> None:
    async def drive() -> None:
        async with opened(case.make(), "executor") as executor:
            outcome = await outcome_of(executor, case.action)
            demand(outcome.status is ActionStatus.EXECUTED, f"beside other executors an action ended {outcome!r:.200}")
            if case.observation is not None:
                what = f"beside other executors the observation is {outcome.observation!r:.200}"
                demand(outcome.observation == case.observation, what)

    await asyncio.gather(*(drive() for _ in range(6)))


# ------------------------------------------------------------------------------------- cancellation, loop


@SUITE.promise(CANCELLATION, look_at="handlers of CancelledError and BaseException: a cancelled action has no outcome")
async def a_cancellation_passes(case: ExecutorCase) -> None:
    for moment in moments():
        async with opened(case.make(), "executor") as executor:
            if not await cut_short(executor.execute(an_action(case.action)), moment):
                break


@SUITE.promise(CANCELLATION, look_at="an action that runs long: the cancellation must get through to it, and out again")
async def a_cancellation_ends_a_long_action(case: ExecutorCase) -> None:
    sample = given(case.hanging, "the case names no `hanging` action")
    for moment in (0, 1, 2, 3, 5, 8, 13, 50):
        async with opened(case.make(), "executor") as executor:
            reached = await cut_short(executor.execute(an_action(sample)), moment)
            demand(reached, "the action that was to run until it is cancelled had ended")


@SUITE.promise(
    STOPPED, look_at="tasks that execute starts: cancel them and wait for them before the cancellation passes"
)
async def a_cancelled_action_leaves_no_task(case: ExecutorCase) -> None:
    sample = given(case.hanging, "the case names no `hanging` action")
    async with opened(case.make(), "executor") as executor:
        # What a first action starts for good (a reader of the session, say) is not the second one's.
        await outcome_of(executor, case.action)
        for moment in (1, 2, 3, 10):
            before = asyncio.all_tasks()
            await cut_short(executor.execute(an_action(sample)), moment)
            left = asyncio.all_tasks() - before
            demand(not left, f"after a cancelled action {len(left)} tasks are still there: {left!r:.300}")


@SUITE.promise(STOPPED, look_at="threads, processes and sessions that go on with an action that was cancelled")
async def a_cancelled_action_has_stopped(case: ExecutorCase) -> None:
    sample = given(case.hanging, "the case names no `hanging` action")
    effects = given(case.effects, "the case has no `effects`")
    async with opened(case.make(), "executor") as executor:
        await outcome_of(executor, case.action)
        await cut_short(executor.execute(an_action(sample)), 10)
        before = effects()
        await turns(50)
        # Work outside the event loop needs time, not turns, to be seen.
        await asyncio.sleep(0.05)
        demand(effects() == before, f"an action that was cancelled took effect {effects() - before} more times")


@SUITE.promise(
    "It is awaited from one task of the run.",
    look_at="context variables and locks that belong to the task that built the executor",
)
async def an_action_runs_in_any_task(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        await expect_any_task(lambda: expect_status(executor, case.action, ActionStatus.EXECUTED))


@SUITE.promise(BLOCKING, look_at="synchronous clients and subprocesses: use async ones, or asyncio.to_thread")
async def an_action_does_not_block_the_event_loop(case: ExecutorCase) -> None:
    async with opened(case.make(), "executor") as executor:
        await expect_no_blocking(lambda: executor.execute(an_action(case.action)))


PROMISES = SUITE.promises
