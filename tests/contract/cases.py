"""What an adapter's author hands to a suite.

A run store needs no case: its factory takes a folder and gives a store, `(tmp_path) -> RunStore | async context
manager`. Each promise has a folder of its own, empty at first; a store that keeps its logs elsewhere (a server)
makes a name of the folder's path. Called twice with the same folder the factory must open the same logs twice. A store
that keeps its logs in the object says so with `kept_in_memory`, and is not asked what it cannot promise.

For the other ports an option names a function without arguments that returns one of the cases below::

    from polyloop.ports import FinalAnswer
    from tests.contract.cases import ParserCase

    def make_case() -> ParserCase:
        return ParserCase(make=MyParser, actions=('{"tool": "search"}',), finals=("done: 42",), invalids=("", "{"))

Fields without a default are what every adapter has. A promise that needs an optional field is skipped where the
case leaves it out, and the report says which field is missing: fill in all that your adapter has. `make` builds a
fresh adapter each time, all built alike, or gives an async context manager that does; the suite never uses one
adapter for two promises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias, TypeVar

from polyloop.ports import ActionExecutor, DecisionParser, EventSink, ModelCall, ModelPort, RunStore
from polyloop.types import ChatMessage, Event, JSONValue, ModelReply
from tests.contract.promises import Unchecked, opened

PortT = TypeVar("PortT")

Maker: TypeAlias = Callable[[], PortT | AbstractAsyncContextManager[PortT]]
StoreFactory: TypeAlias = Callable[[Path], RunStore | AbstractAsyncContextManager[RunStore]]

_IN_MEMORY = "_kept_in_memory"


def kept_in_memory(factory: StoreFactory) -> StoreFactory:
    """Mark the factory of a store that keeps its logs in the object: a second object knows nothing of them."""
    setattr(factory, _IN_MEMORY, True)
    return factory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreCase:
    """A store's factory and the folder for one promise. Built by the suite, not by an author."""

    make: StoreFactory
    path: Path

    def open(self) -> AbstractAsyncContextManager[RunStore]:
        """One more store object on the folder."""
        return opened(self.make(self.path), "store")

    @property
    def has_medium(self) -> bool:
        """Whether a second object on the same folder sees the same logs."""
        return not getattr(self.make, _IN_MEMORY, False)

    def need_medium(self) -> None:
        """Go on only with a store whose logs outlive the object."""
        if not self.has_medium:
            raise Unchecked("this store keeps its logs in the object: there is no second object on the same logs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCase:
    """A model port, and a call that it can answer."""

    make: Maker[ModelPort]
    """Builds a port that answers."""
    messages: tuple[ChatMessage, ...]
    """A prompt that it answers. The suite puts keys and ids of its own beside it."""
    binding: Mapping[str, str]
    """The `model_binding` that it needs; `{}` for none."""
    prepare: Callable[[ModelCall], ModelCall] = lambda call: call
    """Changes a call of the suite before it is made: for an endpoint that can tell calls apart by their prompt only,
    write `key` and `result_id` into a message."""
    expected: Callable[[ModelCall], ModelReply] | None = None
    """What it replies to a prepared call, where that can be said beforehand: for scripted ports, and for endpoints
    that echo. It must differ for calls that differ in `key` or `result_id`, so that mixed-up replies show."""
    make_failing: Maker[ModelPort] | None = None
    """Builds a port whose calls fail: a closed endpoint, a wrong credential."""
    make_hanging: Maker[ModelPort] | None = None
    """Builds a port whose calls wait until they are cancelled: an endpoint that never answers."""
    secrets: tuple[str, ...] = ()
    """What the ports hold and must not show, such as a credential that they were built with."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParserCase:
    """A decision parser, and replies in its language."""

    make: Maker[DecisionParser]
    actions: tuple[str, ...]
    """Replies that it reads as an action, at least one. Two or more that differ show a parser that mixes them up."""
    finals: tuple[str, ...] = ()
    """Replies that it reads as the final answer. A language may have none."""
    invalids: tuple[str, ...] = ()
    """Replies that fail, each in a way of its own, so that each has a remedy of its own."""
    secrets: tuple[str, ...] = ()
    """What the parser holds and must not show."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionSample:
    """An action as a parser would give it."""

    action_text: str
    tool_name: str | None = None
    """For `ActionKind.TOOL_CALL` the tool's name, for `ActionKind.TEXT` None."""
    arguments: Mapping[str, JSONValue] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCase:
    """An action executor, and actions for its environment."""

    make: Maker[ActionExecutor]
    """Builds an executor on an environment of its own."""
    action: ActionSample
    """An action that runs, does not fail, and does not complete the task."""
    observation: str | None = None
    """What the environment answers to `action`, to the character, where that can be said beforehand."""
    failing: ActionSample | None = None
    """An action that runs and fails: code that raises, bad SQL, an exit code that is not 0."""
    failing_shows: str | None = None
    """A piece of the error that the observation of `failing` must show."""
    refused: ActionSample | None = None
    """An action that never gets to run: an unknown tool, arguments that do not fit."""
    long: ActionSample | None = None
    """An action whose answer is longer than what the executor lets through."""
    long_chars: int | None = None
    """How many characters the environment's answer to `long` has."""
    completing: ActionSample | None = None
    """An action that completes the task."""
    make_broken: Maker[ActionExecutor] | None = None
    """Builds an executor whose environment is gone by the time `action` is executed."""
    make_signal_lost: Maker[ActionExecutor] | None = None
    """Builds an executor on which `action` runs, and the completion signal cannot be had."""
    hanging: ActionSample | None = None
    """An action that runs until it is cancelled."""
    remember: ActionSample | None = None
    """An action that changes what `recall` observes, in this environment and in no other."""
    recall: ActionSample | None = None
    """An action whose observation tells whether `remember` was executed before it."""
    effects: Callable[[], int] | None = None
    """How many actions have taken effect, in all environments of this case together: a count that is kept outside
    the executor. For `hanging` it must grow while the action runs."""
    secrets: tuple[str, ...] = ()
    """What the executors hold and must not show."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkCase:
    """An event sink."""

    make: Maker[EventSink]
    taken: Callable[[EventSink], Sequence[Event]] | None = None
    """The events that a sink has taken, in order, where it can tell. One that thins out events on purpose has none."""
    make_failing: Maker[EventSink] | None = None
    """Builds a sink that fails to take `RunOpened`: a closed connection, a full disk."""
    make_hanging: Maker[EventSink] | None = None
    """Builds a sink that waits on each event until it is cancelled."""
    secrets: tuple[str, ...] = ()
    """What the sinks hold and must not show."""
