"""The loop. One function that only sequences named moves; a resumed run enters it elsewhere, nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from polyloop._recovery import (
    CallModel,
    Execute,
    Finish,
    Move,
    NextIteration,
    ReadReply,
    RecordAction,
    RecordModelError,
    differences,
    next_move,
)
from polyloop._version import __version__
from polyloop.session._assembled import Assembly
from polyloop.session._cancellation import Gate, guarded
from polyloop.session._driven import driven
from polyloop.session._effects import Effects, timestamp
from polyloop.session._run import Run
from polyloop.types import (
    CorruptRunLog,
    RunAlreadyExists,
    RunIdentityMismatch,
    RunLog,
    RunNotFound,
    RunOpened,
    RunResult,
    RunStarted,
)


async def drive(run: Run, opening: Callable[[], Awaitable[Move]]) -> RunResult:
    """Make moves until the run ends. Which order they have, and why, stands in `_stopping` and `_recovery`."""
    try:
        move = await opening()
        while True:
            match move:
                case NextIteration():
                    move = await run.begin_iteration()
                case CallModel():
                    move = await run.call_model(move)
                case ReadReply():
                    move = await run.read_reply(move)
                case RecordModelError():
                    move = await run.record_model_error(move)
                case Execute():
                    move = await run.execute(move)
                case RecordAction():
                    move = await run.record_action(move)
                case Finish():
                    return await run.finish(move)
    except asyncio.CancelledError:
        await run.effects.close_cancelled()
        raise


async def start_run(assembly: Assembly) -> RunResult:
    """`AgentDefinition.run`, once the request was checked."""
    with driven(assembly.ports.store, assembly.key):
        gate = Gate(assembly.key, assembly.finalize_timeout_s)
        return await guarded(gate, lambda: _start(assembly, gate))


async def resume_run(assembly: Assembly) -> RunResult:
    """`AgentDefinition.resume`, once the request was checked."""
    with driven(assembly.ports.store, assembly.key):
        gate = Gate(assembly.key, assembly.finalize_timeout_s)
        return await guarded(gate, lambda: _resume(assembly, gate))


async def _start(assembly: Assembly, gate: Gate) -> RunResult:
    effects = Effects(assembly, gate)
    if (await effects.read_log()).next_seq:
        raise RunAlreadyExists(assembly.key)
    started = RunStarted(seq=0, recorded_at=timestamp(), params_snapshot=assembly.snapshot, library_version=__version__)
    run = Run(assembly, effects, RunLog.from_records((started,)))

    async def opening() -> Move:
        await effects.write_start(started)
        await effects.emit(RunOpened(key=assembly.key, resumed=False, steps=0))
        return NextIteration()

    return await drive(run, opening)


async def _resume(assembly: Assembly, gate: Gate) -> RunResult:
    effects = Effects(assembly, gate)
    log = await effects.read_log()
    if log.started is None:
        raise RunNotFound(assembly.key)
    move = _entry(assembly, log)
    if found := differences(log.started.params_snapshot, assembly.snapshot):
        raise RunIdentityMismatch(assembly.key, found)
    run = Run(assembly, effects, log)
    if move is None:
        return run.stored_result(log)
    effects.next_seq = log.next_seq
    entry = move

    async def opening() -> Move:
        await effects.emit(RunOpened(key=assembly.key, resumed=True, steps=len(log.steps)))
        return entry

    return await drive(run, opening)


def _entry(assembly: Assembly, log: RunLog) -> Move | None:
    """Where a resumed run enters the loop; None where it has ended for good."""
    try:
        # A store may have built its log in a way of its own: a gap is damage whoever left it.
        RunLog.from_records(log.records())
        return next_move(log, model_call_replay=assembly.model_call_replay, tool_replay=assembly.tool_replay)
    except CorruptRunLog as damage:
        raise damage.located(key=assembly.key) from None
