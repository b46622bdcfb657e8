"""The process whose system calls are recorded: `python -m tests.power.workload PHASE DIRECTORY LEDGER`.

`begin` starts many runs at once in one directory. Some end, one is cancelled and resumed, some meet a disk that breaks
down in the middle of a line, and when the others stand still at several places, the process kills itself. `resume`
goes on with all of them, or runs those that have not begun. `recover` does that in many directories, one run in each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from polyloop.ports import RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl.files import Os
from polyloop.types import (
    Event,
    JSONValue,
    ModelCallEnded,
    ModelCallStarted,
    ReplayPolicy,
    RunKey,
    StopReason,
)
from tests.fakes import HANG, RecordingSink, tool_call
from tests.family import FAMILY, LOOK, TOOLS, Assembled, Scenario, assemble, check_resumed
from tests.power.faulty import KillingOs, Skipped, SkippingOs, TearingOs
from tests.power.hand_made import path_of
from tests.power.ledger import Ledger, noted_store

LONG: Final = Scenario(
    name="works long",
    stop_reason=StopReason.TASK_COMPLETED,
    replies=(tool_call("look", query="here " * 250), tool_call("look", query="there"), tool_call("submit")),
    tools=TOOLS,
    model_call_replay=ReplayPolicy.SAFE,
)
"""Seventeen records, of which some are longer than a sector and some are not."""

TORN: Final = {f"torn in write {write}": write for write in (0, 1, 2, 3, 4, 5, 6, 8, 16)}
"""Which write of each of these runs stops in the middle."""

PAUSED: Final = ("in the model", "in the tool", "behind the reply", "behind the step")
"""Where these runs stand still. Two of them have announced an effect; two have records that are not synced."""

CANCELLED: Final = ("cancelled", "cancelled and resumed")
FEW: Final = ("answers after work, model calls safe", "has no model")
"""What is enough of the family for the short test."""


def scenario_of(key: str) -> Scenario:
    """What the run of this key does."""
    return {scenario.name: scenario for scenario in FAMILY}.get(key, LONG)


def everything(keys: str) -> list[str]:
    """The keys of all runs; with `few`, of some of each kind."""
    if keys == "few":
        return [*FEW, *list(TORN)[:5:2], *PAUSED, *CANCELLED]
    return [*(scenario.name for scenario in FAMILY), *TORN, *PAUSED, *CANCELLED]


class PausingSink(RecordingSink):
    """Stands still at one event for good."""

    def __init__(self, at: Callable[[Event], bool], reached: asyncio.Event) -> None:
        super().__init__()
        self._at = at
        self._reached = reached

    async def emit(self, event: Event, /) -> None:
        await super().emit(event)
        if self._at(event):
            self._reached.set()
            await asyncio.Event().wait()


def pausing(key: str, store: RunStore, reached: asyncio.Event) -> Assembled:
    """The run of this key, which stands still at the place that the key names."""
    scenario, sink = scenario_of(key), RecordingSink()

    def stand_still(_: object) -> object:
        reached.set()
        return HANG

    async def look(arguments: dict[str, JSONValue]) -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    match key:
        case "in the model":
            scenario = dataclasses.replace(scenario, replies=(scenario.replies[0], stand_still))
        case "behind the reply":
            sink = PausingSink(lambda event: isinstance(event, ModelCallEnded) and event.step_idx == 1, reached)
        case "behind the step":
            sink = PausingSink(lambda event: isinstance(event, ModelCallStarted) and event.step_idx == 1, reached)
        case _:
            tools = (dataclasses.replace(LOOK, handler=look), *TOOLS[1:])
            scenario = dataclasses.replace(scenario, tools=tools)
    return assemble(scenario, store, sink=sink, key=RunKey(key))


async def run_whole(key: str, store: RunStore) -> None:
    """Run to the end."""
    scenario = scenario_of(key)
    assembled = assemble(scenario, store, key=RunKey(key))
    result = await assembled.definition.run(assembled.request)
    assert result.stop_reason is scenario.stop_reason


async def run_torn(key: str, store: RunStore) -> None:
    """Run until the disk breaks down."""
    assembled = assemble(scenario_of(key), store, key=RunKey(key))
    with pytest.raises(OSError, match="Input/output error"):
        await assembled.definition.run(assembled.request)


async def run_and_cancel(key: str, store: RunStore) -> None:
    """Run, be cancelled in the middle of an action, and go on if the key says so."""
    reached = asyncio.Event()
    assembled = pausing(key, store, reached)
    task = asyncio.create_task(assembled.definition.run(assembled.request))
    await reached.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if "resumed" in key:
        await go_on(key, store)


async def go_on(key: str, store: RunStore) -> None:
    """Resume, or run what has not begun. It comes to what the run comes to that nothing interrupts."""
    scenario = scenario_of(key)
    whole = assemble(scenario, EphemeralRunStore(), key=RunKey(key))
    uninterrupted = await whole.definition.run(whole.request)
    assembled = assemble(scenario, store, key=RunKey(key))
    log = await store.read_log(RunKey(key))
    if log.started is None:
        result = await assembled.definition.run(assembled.request)
    else:
        result = await assembled.definition.resume(assembled.request)
    check_resumed(scenario, log, result, uninterrupted)


async def begin(directory: Path, ledger: Ledger, keys: list[str]) -> None:
    """Run them all at once, and be killed."""
    tears = {str(path_of(directory, RunKey(key))): TORN[key] for key in keys if key in TORN}
    reached = {key: asyncio.Event() for key in keys if key in PAUSED}
    standing = []
    async with noted_store(directory, ledger, TearingOs(tears)) as store:
        for key, event in reached.items():
            assembled = pausing(key, store, event)
            standing.append(asyncio.create_task(assembled.definition.run(assembled.request)))
        async with asyncio.TaskGroup() as group:
            for key in keys:
                if key in TORN:
                    group.create_task(run_torn(key, store))
                elif key in CANCELLED:
                    group.create_task(run_and_cancel(key, store))
                elif key not in PAUSED:
                    group.create_task(run_whole(key, store))
            for event in reached.values():
                group.create_task(event.wait())
        os.kill(os.getpid(), signal.SIGKILL)


async def resume(directory: Path, ledger: Ledger, keys: list[str], system: Os) -> None:
    """Go on with them all at once, to their ends."""
    async with noted_store(directory, ledger, system) as store, asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(go_on(key, store))


async def recover(directories: list[Path], ledger: Ledger) -> None:
    """Go on with the runs of many directories; the name of each says behind a number which run is in it."""
    for each in directories:
        async with noted_store(each, ledger, Os()) as store:
            await go_on(each.name.partition(" ")[2], store)


def main() -> None:
    """Do one phase."""
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", choices=("begin", "resume", "recover"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--skip", nargs=3, metavar=("WHAT", "KEY", "NUMBER"), default=None)
    parser.add_argument("--kill", nargs=2, metavar=("CALL", "NUMBER"), default=None)
    given = parser.parse_args()
    ledger = Ledger(given.ledger)
    if given.phase == "begin":
        asyncio.run(begin(given.directory, ledger, given.keys))
    elif given.phase == "recover":
        asyncio.run(recover(sorted(given.directory.iterdir()), ledger))
    else:
        system = _system(given)
        asyncio.run(resume(given.directory, ledger, given.keys, system))
        assert given.kill is None, "there was no such call to be killed behind"
        assert not isinstance(system, SkippingOs) or system.skipped, "there was no such sync to skip"


def _system(given: argparse.Namespace) -> Os:
    if given.kill is not None:
        call, number = given.kill
        return KillingOs(call, int(number))
    if given.skip is not None:
        what, key, number = given.skip
        path = given.directory if what == "directory" else path_of(given.directory, RunKey(key))
        return SkippingOs(Skipped(what, str(path), int(number)))
    return Os()


if __name__ == "__main__":
    main()
