"""A right action executor, and wrong ones that differ from it in one fault each."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Literal

from polyloop.ports import Action
from polyloop.types import ActionKind, ActionOutcome, ActionStatus, JSONValue
from tests.contract.cases import ActionSample, ExecutorCase
from tests.contract.executor_suite import PROMISES
from tests.contract.promises import turns
from tests.contract.zoo import Zoo

SECRET = "token-do-not-show-me"  # noqa: S105 - it opens nothing
State = Literal["works", "gone", "deaf"]

EVERYTHING = frozenset(promise.name for promise in PROMISES)

STOPPED = frozenset({"a_cancelled_action_has_stopped", "a_cancelled_action_leaves_no_task"})
OBSERVING = frozenset(
    {"the_environment_serves_on", "executors_at_once_do_not_mix", "a_lost_signal_keeps_the_observation"}
)


class GoneError(Exception):
    """The box cannot be reached any more."""


class FailedError(Exception):
    """An action failed in the box."""


class BoxExecutor:
    """A right executor: a box that says what was put into it. It counts what takes effect in all boxes together."""

    effects = 0
    limit = 100
    tools: tuple[str, ...] = ("look", "put", "fail", "shout", "close", "wait")

    def __init__(self, state: State) -> None:
        self.state = state
        self.holds = "nothing"
        self._token = SECRET

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"box": "wooden", "limit": self.limit}

    @property
    def accepts(self) -> ActionKind:
        return ActionKind.TOOL_CALL

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        return tuple({"name": name, "description": "", "parameters": {"type": "object"}} for name in self.tools)

    async def execute(self, action: Action, /) -> ActionOutcome:
        if action.tool_name not in self.tools or action.arguments:
            return self.outcome(ActionStatus.NOT_EXECUTED, "no such action")
        try:
            said = await self.act(str(action.tool_name))
        except GoneError as error:
            return self.outcome(ActionStatus.ENV_ERROR, str(error))
        except FailedError as error:
            return self.outcome(ActionStatus.EXECUTED, f"FailedError: {error}")
        completed = None if self.state == "deaf" else action.tool_name == "close"
        return dataclasses.replace(self.outcome(ActionStatus.EXECUTED, said), completed=completed)

    def outcome(self, status: ActionStatus, said: str) -> ActionOutcome:
        """An outcome with as much of the observation as is let through."""
        cut = max(0, len(said) - self.limit)
        return ActionOutcome(status=status, observation=said[: self.limit], completed=False, truncated_chars=cut)

    async def act(self, name: str) -> str:
        """Do it, and say what came of it."""
        await turns(2)
        if self.state == "gone":
            raise GoneError("the box is gone")
        self.took_effect()
        match name:
            case "put":
                self.holds = "something"
            case "fail":
                raise FailedError("the lid is stuck")
            case "shout":
                return "a" * 250
            case "wait":
                await self.wait()
            case _:
                pass
        return f"the box holds {self.holds}"

    async def wait(self) -> None:
        """Go on until somebody says stop."""
        while True:
            self.took_effect()
            await asyncio.sleep(0)

    def took_effect(self) -> None:
        """Count an effect."""
        BoxExecutor.effects += 1


def sample(name: str) -> ActionSample:
    """An action of this name."""
    return ActionSample(action_text=name, tool_name=name)


def case_of(executor: type[BoxExecutor]) -> ExecutorCase:
    """The case of such an executor."""
    return ExecutorCase(
        make=lambda: executor("works"),
        action=sample("look"),
        observation="the box holds nothing",
        failing=sample("fail"),
        failing_shows="the lid is stuck",
        refused=dataclasses.replace(sample("put"), arguments={"what": 1}),
        long=sample("shout"),
        long_chars=250,
        completing=sample("close"),
        make_broken=lambda: executor("gone"),
        make_signal_lost=lambda: executor("deaf"),
        hanging=sample("wait"),
        remember=sample("put"),
        recall=sample("look"),
        effects=lambda: BoxExecutor.effects,
        secrets=(SECRET,),
    )


EXECUTORS = Zoo[type[BoxExecutor]]()
wrong = EXECUTORS.breaks

# ------------------------------------------------------------------------------------ params and descriptions


@wrong("params_are_plain_json")
class ParamsWithAType(BoxExecutor):
    """Has an object in its params that is no JSON."""

    @property
    def params(self) -> Any:
        return {"box": "wooden", "limits": (1, b"2")}


@wrong("params_hold_no_secret")
class ParamsWithTheToken(BoxExecutor):
    """Shows its token in a header."""

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"headers": [{"authorization": f"Bearer {self._token}"}]}


@wrong("params_stay_the_same")
class ParamsShowTheState(BoxExecutor):
    """Shows in its params what an action changed."""

    executed = False

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"used": self.executed}

    async def execute(self, action: Action, /) -> ActionOutcome:
        self.executed = True
        return await super().execute(action)


@wrong("ports_built_alike_have_equal_params")
class ParamsWithTheSession(BoxExecutor):
    """Shows the id of its session."""

    sessions = 0

    def __init__(self, state: State) -> None:
        super().__init__(state)
        ParamsWithTheSession.sessions += 1
        self.session = ParamsWithTheSession.sessions

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"session": self.session}


@wrong("the_repr_shows_no_secret")
class ShowsItself(BoxExecutor):
    """Shows all its fields."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"


@wrong("accepts_is_a_kind_of_action")
class AcceptsAString(BoxExecutor):
    """Gives the literal of a kind."""

    @property
    def accepts(self) -> Any:
        return "tool_call"


@wrong("accepts_is_a_kind_of_action")
class AcceptsText(BoxExecutor):
    """Says that it takes text, and takes tool calls."""

    @property
    def accepts(self) -> ActionKind:
        return ActionKind.TEXT


@wrong("tool_schemas_have_their_shape", besides=frozenset({"tool_schemas_name_what_is_dispatched"}))
class WrapsItsSchemas(BoxExecutor):
    """Describes its tools as some vendors want it."""

    @property
    def tool_schemas(self) -> Any:
        return tuple({"type": "function", "function": schema} for schema in super().tool_schemas)


@wrong("tool_schemas_have_their_shape")
class ListsItsSchemas(BoxExecutor):
    """Gives a list of its tools."""

    @property
    def tool_schemas(self) -> Any:
        return list(super().tool_schemas)


@wrong("tool_schemas_name_what_is_dispatched")
class HidesATool(BoxExecutor):
    """Runs a tool that it does not show."""

    @property
    def tool_schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        return tuple(schema for schema in super().tool_schemas if schema["name"] != "close")


@wrong("tool_schemas_name_what_is_dispatched")
class ShufflesItsTools(BoxExecutor):
    """Shows its tools in another order each time that one is built."""

    built = 0

    def __init__(self, state: State) -> None:
        super().__init__(state)
        ShufflesItsTools.built += 1
        begin = ShufflesItsTools.built % len(self.tools)
        self.tools = self.tools[begin:] + self.tools[:begin]


# ---------------------------------------------------------------------------------------------------- outcomes


@wrong("an_action_has_an_outcome", besides=EVERYTHING)
class ReturnsText(BoxExecutor):
    """Returns the observation alone."""

    async def execute(self, action: Action, /) -> Any:
        return (await super().execute(action)).observation


@wrong(
    "an_action_that_ran_is_executed",
    besides=frozenset(
        {"the_environment_serves_on", "executors_at_once_do_not_mix", "a_lost_signal_keeps_the_observation"}
    ),
)
class DecoratesObservations(BoxExecutor):
    """Adds a line of its own to what the environment said."""

    def outcome(self, status: ActionStatus, said: str) -> ActionOutcome:
        decorated = f"Observation: {said}" if said == "the box holds nothing" else said
        return super().outcome(status, decorated)


@wrong("an_ordinary_action_does_not_complete")
class AsksForNoSignal(BoxExecutor):
    """Says that the signal could not be had where nobody asked for it."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        ordinary = action.tool_name == "look" and outcome.status is ActionStatus.EXECUTED
        return dataclasses.replace(outcome, completed=None) if ordinary else outcome


@wrong("an_action_that_fails_is_executed", besides=frozenset({"the_environment_serves_on"}))
class RefusesWhatFails(BoxExecutor):
    """Takes an action that fails for one that was refused."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        if outcome.observation.startswith("FailedError"):
            return dataclasses.replace(outcome, status=ActionStatus.NOT_EXECUTED)
        return outcome


@wrong("an_action_that_fails_is_executed", "the_environment_serves_on", "an_action_takes_effect_once")
class LetsErrorsOut(BoxExecutor):
    """Lets the error of an action out."""

    async def act(self, name: str) -> str:
        try:
            return await super().act(name)
        except FailedError as error:
            raise RuntimeError(str(error)) from error


@wrong("an_action_that_fails_is_executed")
class HidesErrors(BoxExecutor):
    """Tells that an action failed, and not why."""

    def outcome(self, status: ActionStatus, said: str) -> ActionOutcome:
        return super().outcome(status, "error" if said.startswith("FailedError") else said)


@wrong("a_refused_action_is_not_executed", besides=frozenset({"a_refused_action_has_no_effect"}))
class ExecutesRefusals(BoxExecutor):
    """Takes a refusal for an observation."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        if outcome.status is ActionStatus.NOT_EXECUTED:
            return dataclasses.replace(outcome, status=ActionStatus.EXECUTED)
        return outcome


@wrong("a_refused_action_is_not_executed", "a_refused_action_has_no_effect", "the_environment_serves_on")
class RaisesRefusals(BoxExecutor):
    """Raises for arguments that do not fit."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        if action.arguments:
            raise TypeError("unexpected arguments")
        return await super().execute(action)


@wrong("a_refused_action_has_no_effect", besides=frozenset({"the_environment_serves_on"}))
class ActsThenJudges(BoxExecutor):
    """Judges the arguments when the action has been done."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        if action.arguments:
            await self.act(str(action.tool_name))
        return await super().execute(action)


@wrong("an_action_takes_effect_once")
class RetriesFailures(BoxExecutor):
    """Tries once more what failed."""

    async def act(self, name: str) -> str:
        try:
            return await super().act(name)
        except FailedError:
            return await super().act(name)


@wrong("an_action_takes_effect_once", "environments_are_apart")
class KeepsObservations(BoxExecutor):
    """Answers an action that it has executed before from memory."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.known: dict[str, str] = {}

    async def act(self, name: str) -> str:
        if name not in self.known or self.state != "works":
            self.known[name] = await super().act(name)
        return self.known[name]


@wrong("the_environment_serves_on", besides=frozenset({"an_action_takes_effect_once"}))
class GivesUpAfterAFailure(BoxExecutor):
    """Takes the environment for gone after an action failed."""

    async def act(self, name: str) -> str:
        try:
            return await super().act(name)
        except FailedError:
            self.state = "gone"
            raise


@wrong("a_broken_environment_is_an_env_error")
class ObservesThatAllIsGone(BoxExecutor):
    """Takes a broken environment for an observation."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        if outcome.status is ActionStatus.ENV_ERROR:
            return dataclasses.replace(outcome, status=ActionStatus.EXECUTED)
        return outcome


@wrong("a_broken_environment_raises_nothing", "a_broken_environment_is_an_env_error")
class RaisesThatAllIsGone(BoxExecutor):
    """Raises what the environment's client raises."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        if self.state == "gone":
            raise GoneError("the box is gone")
        return await super().execute(action)


@wrong("a_lost_signal_keeps_the_observation")
class TakesNoSignalForNo(BoxExecutor):
    """Takes a signal that cannot be had for a no."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        return dataclasses.replace(outcome, completed=bool(outcome.completed))


@wrong("a_lost_signal_keeps_the_observation")
class DropsTheObservation(BoxExecutor):
    """Says nothing of an action whose signal is lost."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        return dataclasses.replace(outcome, observation="no signal") if outcome.completed is None else outcome


@wrong("the_completing_action_completes")
class NeverCompletes(BoxExecutor):
    """Does not ask whether the task is done."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        outcome = await super().execute(action)
        return dataclasses.replace(outcome, completed=False) if outcome.completed else outcome


@wrong("what_is_cut_off_is_counted")
class CutsInSilence(BoxExecutor):
    """Cuts an observation without counting."""

    def outcome(self, status: ActionStatus, said: str) -> ActionOutcome:
        return dataclasses.replace(super().outcome(status, said), truncated_chars=0)


@wrong("a_repeated_action_has_an_outcome", besides=frozenset())
class RefusesRepeats(BoxExecutor):
    """Raises for an action whose result_id it knows."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.seen: set[str] = set()

    async def execute(self, action: Action, /) -> ActionOutcome:
        if action.result_id in self.seen:
            raise ValueError("seen before")
        self.seen.add(action.result_id)
        return await super().execute(action)


# --------------------------------------------------------------------------------------- several environments


@wrong("environments_are_apart", besides=frozenset({"an_action_that_ran_is_executed"}))
class SharesTheBox(BoxExecutor):
    """Has one box for all executors."""

    box = "nothing"

    @property
    def holds(self) -> str:
        return SharesTheBox.box

    @holds.setter
    def holds(self, value: str) -> None:
        SharesTheBox.box = value


@wrong("executors_at_once_do_not_mix")
class SharesAConnection(BoxExecutor):
    """Has one connection for all executors, which one action can use at a time."""

    busy = False

    async def act(self, name: str) -> str:
        if SharesAConnection.busy:
            raise GoneError("the connection is in use")
        SharesAConnection.busy = True
        try:
            return await super().act(name)
        finally:
            SharesAConnection.busy = False


# ------------------------------------------------------------------------------------------- cancellation, loop


@wrong(
    "a_cancellation_passes",
    "a_cancellation_ends_a_long_action",
    besides=STOPPED,
)
class SwallowsCancellations(BoxExecutor):
    """Makes an observation of a cancellation."""

    async def execute(self, action: Action, /) -> ActionOutcome:
        try:
            return await super().execute(action)
        except asyncio.CancelledError:
            return self.outcome(ActionStatus.EXECUTED, "interrupted")


@wrong(
    "a_cancellation_ends_a_long_action",
    besides=STOPPED,
)
class TakesCancellationsForTimeOuts(BoxExecutor):
    """Takes the cancellation of a long action for a time-out."""

    async def wait(self) -> None:
        try:
            await super().wait()
        except asyncio.CancelledError:
            raise FailedError("timed out") from None


@wrong("a_cancelled_action_leaves_no_task", "a_cancelled_action_has_stopped")
class LeavesTheActionRunning(BoxExecutor):
    """Runs actions in a task of their own, and forgets it when it is cancelled."""

    running: set[asyncio.Task[str]]

    async def act(self, name: str) -> str:
        task = asyncio.create_task(super().act(name))
        self.running = {task}
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Long enough to be seen, short enough for the tests to end.
            asyncio.get_running_loop().call_later(0.2, task.cancel)
            raise


@wrong("a_cancelled_action_has_stopped")
class LeavesATimer(BoxExecutor):
    """Leaves work to a timer that a cancellation does not stop."""

    async def wait(self) -> None:
        for after in range(1, 50):
            asyncio.get_running_loop().call_later(after * 0.02, self.took_effect)
        await super().wait()


_session: contextvars.ContextVar[str] = contextvars.ContextVar("session")


@wrong("an_action_runs_in_any_task")
class NeedsItsContext(BoxExecutor):
    """Reads a context variable that it set when it was built."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        _session.set("open")

    async def act(self, name: str) -> str:
        _session.get()
        return await super().act(name)


@wrong("an_action_does_not_block_the_event_loop")
class BlocksTheLoop(BoxExecutor):
    """Calls a synchronous client."""

    calls = 0

    async def execute(self, action: Action, /) -> ActionOutcome:
        self.calls += 1
        if 2 <= self.calls <= 5 and action.tool_name == "look" and self.state == "works":
            time.sleep(0.15)  # noqa: ASYNC251 - the fault itself
            self.took_effect()
            return dataclasses.replace(self.outcome(ActionStatus.EXECUTED, f"the box holds {self.holds}"))
        return await super().execute(action)
