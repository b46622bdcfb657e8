"""Every shipped store against an independent model, in any order of appends, reads, leavings and crashes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from polyloop.types import ModelReply, PlannedAction, Record, RunKey, StopReason
from tests.contract.implementations import RUN_STORES, Implementation
from tests.contract.records import acted, action_intent, ended, model_intent, replied, started, stepped
from tests.proof.plugin import Checked
from tests.property import hosts
from tests.property.hosts import Hosts, Life, Local
from tests.property.store_model import Run
from tests.property.wrong_stores import WRONG

KEYS: Final = tuple(map(RunKey, ("a", "A", "a/b", "../a", "é", "e\u0301")))
TEXTS: Final = {"plain": "plain", "strange": "\0 \ud83d \ud83d\ude00 \u2028 \r\n", "long": "long " * 2000}
KINDS: Final = ("start", "model intent", "action intent", "reply", "outcome", "step", "cancelled", "end")
USUAL: Final = ("model intent", "reply", "action intent", "outcome", "step", "step", "cancelled")
OBJECTS: Final = 2

CHECK: Final = "state machine against a model of the port"


def record_of(kind: str, seq: int, step: int, text: str) -> Record:
    """A record of this kind that holds this text."""
    match kind:
        case "start":
            return started({text: [text, seq]}, seq=seq)
        case "model intent":
            return model_intent(seq, step)
        case "action intent":
            planned = PlannedAction(action_text=text, tool_name="t", arguments={text: 1.0}, history_text="")
            return action_intent(seq, step, action=planned)
        case "reply":
            return replied(seq, reply=ModelReply(call_id=None, text=text, reasoning=text))
        case "outcome":
            return acted(seq)
        case "step":
            return stepped(seq, step)
        case _:
            return ended(seq, StopReason.CANCELLED if kind == "cancelled" else StopReason.TASK_COMPLETED)


class Tally:
    """What was done in all examples."""

    def __init__(self) -> None:
        self.schedules = 0
        self.calls = 0
        self.kills = 0


objects: Final = st.integers(0, OBJECTS - 1)
keys: Final = st.sampled_from(KEYS[:3]) | st.sampled_from(KEYS)
offsets: Final = st.sampled_from((0, 0, 0, 0, 0, 0, -1, 1, -2, 3))


class Machine(RuleBasedStateMachine):
    """Two objects on one medium, in one process or in two; one run of the model for each key."""

    store: ClassVar[str]
    hosts: ClassVar[Hosts | None]
    """None for a store that keeps its logs in memory: one object, which cannot be killed."""
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="polyloop-", dir=memory()))
        self.records: list[Record] = []
        self.runs = {key: Run(OBJECTS, self.records) for key in KEYS}
        self.lives: list[Life] = []
        self.places: list[tuple[int, int]] = []
        """Of each object, the life and the place in it."""
        self.numbers = itertools.count()
        self.appended = False
        """Since the last crash: one crash behind the other shows nothing more."""
        self.tally.schedules += 1

    @initialize(together=st.booleans())
    def begin(self, together: bool) -> None:
        if self.hosts is None:
            self.lives, self.places = [Local(self.store, self.folder)], [(0, 0)] * OBJECTS
        else:
            self.places = [(0, 0), (0, 1)] if together else [(0, 0), (1, 0)]
            self.lives = [self.live(life) for life in range(1 if together else OBJECTS)]
        self.can_list, self.can_delete = self.lives[0].ask("can", "runs"), self.lives[0].ask("can", "delete")

    def live(self, life: int) -> Life:
        assert self.hosts is not None
        return self.hosts.start(self.store, self.folder, sum(place[0] == life for place in self.places))

    def side(self, at: int) -> int:
        """Where the model keeps an object: in memory there is only one."""
        return at if self.hosts is not None else 0

    def ask(self, what: str, at: int, *given: object) -> Any:
        life, place = self.places[at]
        self.tally.calls += 1
        return self.lives[life].ask(what, place, *given)

    def made(self, kind: str, at: int, key: RunKey, offset: int, text: str) -> int:
        """The number of a new record for the position that is right, or for one that is so many away."""
        run = self.runs[key]
        seq, step = run.next_seq(self.side(at)), run.next_step(self.side(at))
        if not seq and not offset:
            kind = "start"
        number = next(self.numbers)
        self.appended = True
        record = record_of(kind, max(seq + offset, 0), step, TEXTS[text])
        self.records.append(dataclasses.replace(record, recorded_at=f"2026-03-04T05:06:07.{number:06}+00:00"))
        return number

    @rule(at=objects, key=keys, kind=st.sampled_from(KINDS), offset=offsets, text=st.sampled_from(tuple(TEXTS)))
    def append(self, at: int, key: RunKey, kind: str, offset: int, text: str) -> None:
        """A record at the right or at a wrong position."""
        number = self.made(kind, at, key, offset, text)
        (answer,) = self.ask("append", at, [(key, self.records[number])])
        self.runs[key].append(self.side(at), number, answer)

    @rule(at=objects, key=keys, kinds=st.lists(st.sampled_from(USUAL), min_size=1, max_size=6))
    def go_on(self, at: int, key: RunKey, kinds: list[str]) -> None:
        """Some records one after the other, as a driver would."""
        for kind in kinds:
            self.append_next(at, [key], kind)

    @rule(at=objects, chosen=st.lists(keys, unique=True, min_size=2), kind=st.sampled_from(USUAL))
    def append_at_once(self, at: int, chosen: list[RunKey], kind: str) -> None:
        """The next record of several runs, in one turn of the loop."""
        self.append_next(at, chosen, kind)

    def append_next(self, at: int, chosen: list[RunKey], kind: str) -> None:
        numbers = [self.made(kind, at, key, 0, "plain") for key in chosen]
        pairs = [(key, self.records[number]) for key, number in zip(chosen, numbers, strict=True)]
        for key, number, answer in zip(chosen, numbers, self.ask("append", at, pairs), strict=True):
            self.runs[key].append(self.side(at), number, answer)

    @rule(at=objects, key=keys)
    def read(self, at: int, key: RunKey) -> None:
        self.runs[key].read(self.side(at), self.ask("read", at, key))

    @rule(at=objects)
    def list_runs(self, at: int) -> None:
        if self.can_list:
            listed = dict(self.ask("list", at))
            assert set(listed) <= set(KEYS)
            for key, run in self.runs.items():
                run.list(listed.get(key))

    @rule(at=objects, key=keys)
    def delete(self, at: int, key: RunKey) -> None:
        if self.can_delete:
            self.runs[key].delete(self.side(at), self.ask("delete", at, key))

    @rule(at=objects)
    def leave_and_reopen(self, at: int) -> None:
        if self.hosts is None:
            return
        told = self.ask("leave", at)
        hiding = [run for run in self.runs.values() if run.may_hide_a_failure(at)]
        assert told is None or hiding, f"leaving raised {told}, and nothing had failed"
        for run in self.runs.values():
            run.leave(at, raised=None if told is not None and len(hiding) > 1 else told is not None and run in hiding)

    @rule(at=objects)
    def crash_and_reopen(self, at: int) -> None:
        """The process of an object is killed, with what else lives in it."""
        if self.hosts is None or not self.appended:
            return
        self.appended = False
        life = self.places[at][0]
        self.lives[life].kill()
        gone = [each for each, place in enumerate(self.places) if place[0] == life]
        for run in self.runs.values():
            run.crash(gone)
        self.lives[life] = self.live(life)
        self.tally.kills += 1

    @invariant()
    def the_model_stays_small(self) -> None:
        assert all(run.worlds < 1000 for run in self.runs.values())

    def teardown(self) -> None:
        # What is still in doubt must come out as the model allows.
        for key, run in self.runs.items() if self.lives else ():
            run.read(0, self.lives[0].ask("read", 0, key))
        for life in self.lives:
            life.end()
        shutil.rmtree(self.folder)


def memory() -> str | None:
    """Where folders are made: in memory where there is such a place. A killed process takes nothing from there."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the names in it are made by tempfile


def explore(store: str, on: Hosts | None, number: int, given: settings) -> Tally:
    """Run the machine on this store with this seed."""
    tally = Tally()
    machine = type("StoreMachine", (Machine,), {"store": store, "hosts": on, "tally": tally})
    print(f"{store}, seed {number}: to run it again, call explore() with this seed and these settings: {given}")
    run_state_machine_as_test(seed(number)(machine), settings=given)
    return tally


def check(implementation: Implementation[Any], number: int, given: settings, checked: Checked) -> None:
    """Explore one of the shipped stores."""
    if (reason := implementation.missing()) is not None:
        pytest.skip(reason)
    in_memory = implementation.name == "ephemeral"
    with contextlib.nullcontext() if in_memory else hosts.started(implementation.name) as children:
        tally = explore(implementation.name, children, number, given)
    assert tally.calls > tally.schedules
    assert tally.kills or in_memory
    counts = {"schedules": tally.schedules, "calls": tally.calls, "kills": tally.kills}
    checked(CHECK, implementation.name, seed=number, **counts)


GENERATE: Final = settings(database=None, phases=(Phase.generate,))
"""No shrinking: an example costs processes. The seed, the steps and a blob are printed."""

HUNT: Final = settings(GENERATE, max_examples=200, stateful_step_count=25)


def bounded(store: str, examples: int, steps: int) -> settings:
    """So many examples; fewer where a process needs long to open the store."""
    return settings(GENERATE, max_examples=max(1, examples // SLOWER.get(store, 1)), stateful_step_count=steps)


SLOWER: Final = {"postgres": 2}

stores: Final = pytest.mark.parametrize("implementation", RUN_STORES, ids=lambda each: each.name)


@stores
def test_a_store_does_what_the_port_says_whatever_is_done_to_it(
    implementation: Implementation[Any], checked: Checked
) -> None:
    check(implementation, 1, bounded(implementation.name, 10, 25), checked)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(2, 6))
@stores
def test_a_store_does_what_the_port_says_in_many_schedules(
    implementation: Implementation[Any], number: int, checked: Checked
) -> None:
    check(implementation, number, bounded(implementation.name, 300, 50), checked)


@pytest.fixture(scope="module")
def children() -> Iterator[Hosts]:
    with hosts.started("wrong") as started_hosts:
        yield started_hosts


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_store_is_found(wrong: str, children: Hosts) -> None:
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        explore(wrong, children, 1, HUNT)
    assert "only" in str(found.value) or "came back" in str(found.value) or "nobody wrote" in str(found.value)
