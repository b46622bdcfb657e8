"""What a store may do, written from the docstring of `polyloop.ports.RunStore` and from nothing else: dicts and lists.

Ordered records may be handed to the medium at any time until the next barrier, and a refusal among them may be told as
late as that. So the model does not know one state but all that fit what was seen: a `World` each. Whatever the store
answers takes away those that it does not fit; an answer that fits none is wrong.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from polyloop.types import EffectIntended, Record, RunFinished, RunStarted, StepCompleted, StopReason
from tests.contract.records import difference

CONFLICT: Final = "RunConflict"
EXISTS: Final = "RunAlreadyExists"
REFUSALS: Final = frozenset((CONFLICT, EXISTS))


class Failure(enum.Enum):
    """Whether a key is blocked for an object."""

    NONE = enum.auto()
    UNTOLD = enum.auto()
    """An ordered record was refused, and nobody was told of it yet."""
    TOLD = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One store object's side of one run."""

    queue: tuple[int, ...] = ()
    """Ordered records that were accepted and need not be on the medium yet."""
    failure: Failure = Failure.NONE
    driven: bool = False
    """Whether its last append was taken and was no end record: such a run is not deleted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One state that fits what was seen of one run. Records are numbers here."""

    log: tuple[int, ...] = ()
    sides: tuple[Side, ...]

    def with_side(self, at: int, **changes: object) -> World:
        """The same with another side of one object."""
        side = dataclasses.replace(self.sides[at], **changes)  # type: ignore[arg-type] # by name
        return dataclasses.replace(self, sides=(*self.sides[:at], side, *self.sides[at + 1 :]))


class Run:
    """All that may be the case of one run."""

    def __init__(self, objects: int, records: Sequence[Record]) -> None:
        self._records = records
        """All records that were ever handed to a store, by their numbers."""
        self._worlds = {World(sides=(Side(),) * objects)}

    @property
    def worlds(self) -> int:
        """How many states fit what was seen."""
        return len(self._worlds)

    def next_seq(self, at: int) -> int:
        """A position that the next record through an object may stand at."""
        return len(self._likely(at))

    def next_step(self, at: int) -> int:
        """A number that the next step through an object may have."""
        return sum(isinstance(self._records[number], StepCompleted) for number in self._likely(at))

    def _likely(self, at: int) -> tuple[int, ...]:
        return max((world.log + world.sides[at].queue for world in self._worlds), key=lambda log: (len(log), log))

    # --- what is seen

    def append(self, at: int, number: int, answer: str | None) -> None:
        """A record was appended; the answer is the error that was raised, None for none."""
        self._see(f"the append of {self._records[number]}", answer, lambda world: self._appended(world, at, number))

    def read(self, at: int, found: Sequence[Record] | str) -> None:
        """A log was read. It holds the object's own ordered records; the key is free again.

        If an ordered record was refused, this may be the call at which that surfaces.
        """

        def read(world: World) -> Iterable[tuple[object, World]]:
            after = self._handed(world, at)
            if after.sides[at].failure is Failure.UNTOLD:
                yield from ((name, after.with_side(at, failure=Failure.TOLD, driven=False)) for name in REFUSALS)
            yield after.log, after.with_side(at, failure=Failure.NONE)

        self._see("the log", found if isinstance(found, str) else self._numbers(found), read)

    def list(self, summary: tuple[str, int, StopReason | None] | None) -> None:
        """The run was listed with this state, these steps and this stop reason, or was not listed."""
        steps = 0 if summary is None else summary[1]
        self._see("the listing", summary, lambda world: [(self._summary(world, steps), world)])

    def delete(self, at: int, answer: bool | str) -> None:
        """The run was deleted; whether there was one, or the error that was raised."""
        self._see("the deletion", answer, lambda world: self._deleted(world, at))

    def leave(self, at: int, *, raised: bool | None) -> None:
        """An object was left, and its ordered records are durable.

        `raised` says whether leaving raised something; None if that was because of another run.
        """

        def left(world: World) -> Iterable[tuple[object, World]]:
            after = self._handed(world, at)
            waited = after.sides[at].failure is Failure.UNTOLD
            yield (None if raised is None else waited), self._forgotten(after, [at])

        self._see("leaving", raised, left)

    def may_hide_a_failure(self, at: int) -> bool:
        """Whether leaving an object may raise because of this run."""
        return any(self._handed(each, at).sides[at].failure is Failure.UNTOLD for each in self._possible())

    def crash(self, objects: Iterable[int]) -> None:
        """Objects are gone, with what they had not handed to the medium."""
        gone = tuple(objects)
        self._worlds = {self._forgotten(world, gone) for world in self._possible()}

    # --- what may happen

    def _see(self, what: str, seen: object, step: Callable[[World], Iterable[tuple[object, World]]]) -> None:
        ends = [end for world in self._possible() for end in step(world)]
        fitting = {world for answer, world in ends if answer == seen}
        allowed = {str(answer) for answer, _ in ends}
        assert fitting, f"{what}: {seen}, but by the port only {' or '.join(sorted(allowed))}"
        self._worlds = fitting

    def _possible(self) -> set[World]:
        """Every world, after any part of any queue was handed over in any order."""
        known, new = set(self._worlds), list(self._worlds)
        while new:
            world = new.pop()
            for at, side in enumerate(world.sides):
                if side.queue and (after := self._hand_one(world, at)) not in known:
                    known.add(after)
                    new.append(after)
        return known

    def _hand_one(self, world: World, at: int) -> World:
        number, *rest = world.sides[at].queue
        if self._refusals(world.log, number):
            return world.with_side(at, queue=(), failure=Failure.UNTOLD)
        return dataclasses.replace(world, log=(*world.log, number)).with_side(at, queue=tuple(rest))

    def _handed(self, world: World, at: int) -> World:
        while world.sides[at].queue:
            world = self._hand_one(world, at)
        return world

    def _refusals(self, log: Sequence[int], number: int) -> frozenset[str]:
        """How a record is refused at the end of a log; empty if it is taken."""
        record = self._records[number]
        if isinstance(record, RunStarted):
            if not log:
                return frozenset((CONFLICT,)) if record.seq else frozenset()
            return REFUSALS if record.seq else frozenset((EXISTS,))
        last = self._records[log[-1]] if log else None
        ended = isinstance(last, RunFinished) and last.stop_reason is not StopReason.CANCELLED
        return frozenset((CONFLICT,)) if last is None or ended or record.seq != len(log) else frozenset()

    def _appended(self, world: World, at: int, number: int) -> Iterable[tuple[object, World]]:
        record, side = self._records[number], world.sides[at]
        refused = world.with_side(at, queue=(), failure=Failure.TOLD, driven=False)
        barrier = isinstance(record, RunStarted | EffectIntended | RunFinished)
        if side.failure is Failure.TOLD:
            yield CONFLICT, refused
            return
        if not barrier:
            # Accepted, to be handed over later; behind a failure that is still to be told, dropped.
            queue = (*side.queue, number) if side.failure is Failure.NONE else ()
            yield None, world.with_side(at, queue=queue, driven=True)
        before = self._handed(world, at)
        refused = before.with_side(at, queue=(), failure=Failure.TOLD, driven=False)
        if before.sides[at].failure is Failure.UNTOLD:
            yield from ((name, refused) for name in REFUSALS)
        elif names := self._refusals(before.log, number):
            yield from ((name, refused) for name in names)
        elif barrier:
            driven = not isinstance(record, RunFinished)
            yield None, dataclasses.replace(before, log=(*before.log, number)).with_side(at, driven=driven)

    def _deleted(self, world: World, at: int) -> Iterable[tuple[object, World]]:
        before = self._handed(world, at)
        untold = before.sides[at].failure is Failure.UNTOLD
        if untold:
            yield from ((name, before.with_side(at, failure=Failure.TOLD, driven=False)) for name in REFUSALS)
        elif before.sides[at].driven:
            yield CONFLICT, before
        if not before.sides[at].driven or untold:
            # Whether it frees a blocked key is not said.
            for failure in {before.sides[at].failure, Failure.NONE}:
                after = dataclasses.replace(before, log=()).with_side(at, failure=failure, driven=False)
                yield bool(before.log), after

    @staticmethod
    def _forgotten(world: World, objects: Iterable[int]) -> World:
        for at in objects:
            world = world.with_side(at, queue=(), failure=Failure.NONE, driven=False)
        return world

    def _summary(self, world: World, seen: int) -> tuple[str, int, StopReason | None] | None:
        """How a log is listed. Steps may be told by their numbers; where those are wrong, by any that is seen."""
        if not world.log:
            return None
        records = [self._records[number] for number in world.log]
        steps, right = 0, True
        for record in records:
            if isinstance(record, StepCompleted):
                right = right and record.step.step_idx == steps
                steps += 1
            elif isinstance(record, EffectIntended):
                right = right and record.step_idx == steps
        if not right:
            steps = seen
        last = records[-1]
        if not isinstance(last, RunFinished):
            return "unfinished", steps, None
        return "cancelled" if last.stop_reason is StopReason.CANCELLED else "ended", steps, last.stop_reason

    def _numbers(self, found: Sequence[Record]) -> tuple[int, ...]:
        # Each record has a time of its own: it says which one it is. That it is wholly that one is compared then.
        by_time: Mapping[str, int] = {record.recorded_at: number for number, record in enumerate(self._records)}
        numbers = tuple(by_time.get(record.recorded_at, -1) for record in found)
        for number, record in zip(numbers, found, strict=True):
            assert number >= 0, f"nobody wrote {record}"
            written = self._records[number]
            assert (unlike := difference(written, record, "record")) is None, f"it came back as another: {unlike}"
        return numbers
