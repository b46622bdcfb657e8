"""How a batch of runs is coming along, in one line: the extra `progress`.

::

    async with ProgressSink(total=1000) as events:
        definition = AgentDefinition(events=events, ...)
        await asyncio.gather(*(definition.run(each) for each in requests))

On a terminal it is one line that is drawn again and again, with a bar; elsewhere (a file, a pipe, CI) a plain line
every now and then, and one at the end::

    370/1000 runs, 16 open, 4812 steps, 58.1 steps/s, 0:01:23 gone, 0:02:21 left, task_completed 351, step_budget 19

Why: `research-wiki/design/0022-sinks-and-mcp.md`.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TextIO

from polyloop.types import Event, RunClosed, RunKey, RunOpened, StepEnded, StopReason
from polyloop.types._checks import check_count, check_positive, check_seconds

try:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "rich":
        raise
    raise ModuleNotFoundError(
        "polyloop.adapters.progress needs the extra `progress`: pip install 'polyloop[progress]'", name="rich"
    ) from error

__all__ = ["ProgressSink"]

_DRAW_EVERY_S: Final = 0.25
_RATE_OVER_S: Final = 15.0
_LEAVE_WITHIN_S: Final = 5.0
_BAR_WIDTH: Final = 24


class ProgressSink:
    """Counts what happens to a batch of runs, and shows it.

    A thread of its own draws, so a terminal that is stopped, or slow, holds up no run: `emit` only counts. It works
    inside `async with` only (`RuntimeError` otherwise). Nothing of what models, tools or keys say is shown.

    No event tells of a run that was cancelled, or ended with an exception. It counts as open until its key opens
    again, or the sink is left: then it is counted as `interrupted`, and not as done. A run whose stored result is
    returned emits nothing either: give the number of those in `already_done`, or the bar does not get to its end.

    An output that breaks (a closed pipe, a full disk) is logged once; counting goes on, and no run is disturbed. On a
    terminal, what others print in the meantime ends up beside the line: rich's redirection of the standard streams
    is not switched on, for it changes them for the whole process.

    Args:
        total: how many runs there are; None where that is not known: there is no bar then, and no time left.
        already_done: how many of them were finished before.
        stream: where to write; None for standard error, as it is when the sink is entered.
        plain_every_s: seconds between two lines where the output is no terminal.

    Raises:
        InvalidRequest: a number is none, or out of its range.
    """

    def __init__(
        self,
        *,
        total: int | None,
        already_done: int = 0,
        stream: TextIO | None = None,
        plain_every_s: float = 30.0,
    ) -> None:
        if total is not None:
            check_positive("ProgressSink.total", total)
        check_count("ProgressSink.already_done", already_done)
        check_seconds("ProgressSink.plain_every_s", plain_every_s)
        self._total, self._already_done = total, already_done
        self._stream, self._plain_every_s = stream, plain_every_s
        self._tally = _Tally()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"ProgressSink(total={self._total}, already_done={self._already_done})"

    async def __aenter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this ProgressSink is in use: it cannot be entered again before it was left")
        self._tally, self._stop = _Tally(), threading.Event()
        stream = sys.stderr if self._stream is None else self._stream
        line = _Line(self._tally, self._total, self._already_done, time.monotonic())
        draw = _draw_on_terminal if _can_redraw(stream) else _write_lines
        self._thread = threading.Thread(
            target=_show,
            args=(draw, stream, line, self._stop, self._plain_every_s),
            name="polyloop-progress",
            daemon=True,  # a terminal that never takes another byte does not keep the process alive
        )
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        self._tally.interrupt_all()
        self._stop.set()
        if thread is not None:
            await asyncio.to_thread(thread.join, _LEAVE_WITHIN_S)

    async def emit(self, event: Event, /) -> None:
        """Count the event.

        Raises:
            RuntimeError: the sink was not entered, or was left.
        """
        if self._thread is None:
            raise RuntimeError(f"{self!r} works inside 'async with' only: it was not entered yet, or was left")
        self._tally.take(event)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """What has happened so far."""

    open: int
    """Runs without a closing event."""
    steps: int
    """Steps of all runs, those of earlier processes left out."""
    finished: Mapping[str, int]
    """Runs that stopped, by stop reason, in the order in which the reasons are declared."""
    interrupted: int
    """Runs that were open when their key opened again, or when the sink was left."""


class _Tally:
    """The counters. Any thread may ask; the lock is never held while something is written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[RunKey] = set()
        self._steps = 0
        self._interrupted = 0
        self._finished: dict[str, int] = dict.fromkeys(map(str, StopReason), 0)

    def take(self, event: Event) -> None:
        with self._lock:
            match event:
                case RunOpened(key=key):
                    self._interrupted += key in self._open
                    self._open.add(key)
                case StepEnded():
                    self._steps += 1
                case RunClosed(key=key, stop_reason=reason):
                    self._open.discard(key)
                    self._finished[reason] = self._finished.get(reason, 0) + 1

    def interrupt_all(self) -> None:
        with self._lock:
            self._interrupted += len(self._open)
            self._open.clear()

    def counts(self) -> _Counts:
        with self._lock:
            finished = {reason: number for reason, number in self._finished.items() if number}
            return _Counts(open=len(self._open), steps=self._steps, finished=finished, interrupted=self._interrupted)


class _Line:
    """The line, as it reads at a moment. Its times are the caller's."""

    def __init__(self, tally: _Tally, total: int | None, already_done: int, began: float) -> None:
        self._tally, self._began = tally, began
        self._samples = collections.deque([(began, 0)])
        self.total, self._already_done = total, already_done

    @property
    def done(self) -> int:
        """Runs that are done, those before this batch included."""
        return self._already_done + sum(self._tally.counts().finished.values())

    def at(self, now: float) -> str:
        """The line."""
        counts = self._tally.counts()
        finished = sum(counts.finished.values())
        done = self._already_done + finished
        gone = now - self._began
        parts = [f"{done} runs" if self.total is None else f"{done}/{self.total} runs"]
        parts += [f"{counts.open} open", f"{counts.steps} steps", f"{self._rate(now, counts.steps):.1f} steps/s"]
        parts.append(f"{_clock(gone)} gone")
        if self.total is not None:
            left = max(self.total - done, 0)
            # Nothing is known of the time that a run takes before the first one is done.
            parts.append(f"{_clock(gone / finished * left)} left" if finished else "? left")
        parts += [f"{reason} {number}" for reason, number in counts.finished.items()]
        if counts.interrupted:
            parts.append(f"interrupted {counts.interrupted}")
        return ", ".join(parts)

    def _rate(self, now: float, steps: int) -> float:
        """Steps per second over the last while."""
        self._samples.append((now, steps))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_OVER_S:  # noqa: PLR2004 - both ends stay
            self._samples.popleft()
        since, before = self._samples[0]
        return (steps - before) / (now - since) if now > since else 0.0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _can_redraw(stream: TextIO) -> bool:
    # Not rich's own judgement, which environment variables of CI systems overrule.
    return stream.isatty() and not Console(file=stream).is_dumb_terminal


def _show(
    draw: Callable[[TextIO, _Line, threading.Event, float], None],
    stream: TextIO,
    line: _Line,
    stop: threading.Event,
    plain_every_s: float,
) -> None:
    """The thread: show the line until the end, and log what keeps it from that."""
    try:
        draw(stream, line, stop, plain_every_s)
    except Exception as failure:  # noqa: BLE001 - a display that breaks is told of, and disturbs no run
        from loguru import logger  # noqa: PLC0415 - imported at first use, as everywhere

        logger.error("{}", f"the progress line cannot be written any more: {type(failure).__qualname__}")


def _draw_on_terminal(stream: TextIO, line: _Line, stop: threading.Event, _: float) -> None:
    console = Console(file=stream, force_terminal=True)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        ended = False
        while not ended:
            ended = stop.wait(_DRAW_EVERY_S)
            live.update(_with_bar(line), refresh=True)


def _with_bar(line: _Line) -> Table:
    row = Table.grid(padding=(0, 1))
    text = Text(line.at(time.monotonic()), no_wrap=True, overflow="ellipsis")
    if line.total is None:
        row.add_row(text)
    else:
        row.add_row(ProgressBar(total=line.total, completed=min(line.done, line.total), width=_BAR_WIDTH), text)
    return row


def _write_lines(stream: TextIO, line: _Line, stop: threading.Event, every_s: float) -> None:
    ended = False
    while not ended:
        ended = stop.wait(every_s)
        stream.write(line.at(time.monotonic()) + "\n")
        stream.flush()
