"""`ProgressSink`: what it counts, how the line reads, and that no output holds up a run."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from loguru import logger

from polyloop.adapters import progress
from polyloop.adapters.progress import ProgressSink
from polyloop.types import InvalidRequest, ReplayPolicy, RunClosed, RunKey, RunOpened, StepEnded, StopReason, Usage
from tests.builders import definition, request
from tests.contract.records import a_step
from tests.fakes import HANG, ScriptedModel

USAGE = Usage(model_calls=1, executed_actions=1, steps=1, prompt_chars=1, content_chars=1, thinking_chars=0)


def opened(key: str) -> RunOpened:
    return RunOpened(key=RunKey(key), resumed=False, steps=0)


def step(key: str) -> StepEnded:
    return StepEnded(key=RunKey(key), step=a_step())


def closed(key: str, reason: StopReason = StopReason.TASK_COMPLETED) -> RunClosed:
    return RunClosed(key=RunKey(key), stop_reason=reason, usage=USAGE)


def a_line(*events: Any, total: int | None = 10, already_done: int = 0, now: float = 130.0) -> str:
    tally = progress._Tally()
    line = progress._Line(tally, total, already_done, 100.0)
    for event in events:
        tally.take(event)
    return line.at(now)


def test_the_line_tells_runs_steps_speed_times_and_stop_reasons() -> None:
    events = [opened("a"), opened("b"), opened("c"), *3 * [step("a")], *3 * [step("b")], closed("a")]
    events.append(closed("b", StopReason.STEP_BUDGET))
    assert a_line(*events) == (
        "2/10 runs, 1 open, 6 steps, 0.2 steps/s, 0:00:30 gone, 0:02:00 left, task_completed 1, step_budget 1"
    )


def test_the_stop_reasons_stand_in_the_order_of_their_declaration() -> None:
    line = a_line(*(closed(str(number), reason) for number, reason in enumerate(reversed(StopReason))))
    assert line.endswith(", ".join(f"{reason} 1" for reason in StopReason))


def test_no_time_left_is_told_before_a_run_is_done_and_none_without_a_total() -> None:
    assert a_line(opened("a")) == "0/10 runs, 1 open, 0 steps, 0.0 steps/s, 0:00:30 gone, ? left"
    assert a_line(opened("a"), closed("a"), total=None).startswith(
        "1 runs, 0 open, 0 steps, 0.0 steps/s, 0:00:30 gone, task"
    )


def test_runs_that_were_finished_before_count_as_done_but_not_for_the_time_that_a_run_takes() -> None:
    line = a_line(opened("a"), closed("a"), already_done=8)
    assert line.startswith("9/10 runs")
    assert "0:00:30 gone, 0:00:30 left" in line


def test_more_runs_than_were_announced_leave_no_negative_time() -> None:
    assert "12/10 runs, 0 open, 0 steps, 0.0 steps/s, 0:00:30 gone, 0:00:00 left" in a_line(
        closed("a"), already_done=11
    )


def test_a_key_that_opens_again_is_an_interrupted_run_and_an_open_one() -> None:
    assert a_line(opened("a"), opened("a"), opened("b")).endswith(
        "2 open, 0 steps, 0.0 steps/s, 0:00:30 gone, ? left, interrupted 1"
    )


def test_the_speed_is_that_of_the_last_while() -> None:
    tally = progress._Tally()
    line = progress._Line(tally, None, 0, 0.0)
    rates = []
    for second in range(1, 101):
        for _ in range(10 if second <= 50 else 2):
            tally.take(step("a"))
        rates.append(line.at(float(second)).split(", ")[3])
    assert rates[49] == "10.0 steps/s"
    assert rates[-1] == "2.0 steps/s"
    assert len(line._samples) < 20


def test_times_are_told_in_hours_minutes_and_seconds() -> None:
    assert [progress._clock(each) for each in (0, 59.9, 61, 3600 * 30 + 62)] == [
        "0:00:00",
        "0:00:59",
        "0:01:01",
        "30:01:02",
    ]


async def run_some(sink: ProgressSink, number: int) -> None:
    shared = dataclasses.replace(definition(), events=sink)
    results = await asyncio.gather(*(shared.run(request(f"k{each}")) for each in range(number)))
    assert [result.event_sink_failures for result in results] == [0] * number


async def test_where_the_output_is_no_terminal_the_last_line_tells_it_all_without_control_characters() -> None:
    stream = io.StringIO()
    async with ProgressSink(total=4, stream=stream) as sink:
        await run_some(sink, 4)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("4/4 runs, 0 open, 8 steps, ")
    assert line.endswith(" left, agent_finished 4")
    assert line.isprintable()


async def test_plain_lines_come_periodically() -> None:
    enough = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str, /) -> int:
            written = super().write(text)
            if self.getvalue().count("\n") == 3:
                enough.set()
            return written

    stream = Stream()
    async with ProgressSink(total=4, stream=stream, plain_every_s=0.001) as sink:
        await run_some(sink, 2)
        await asyncio.to_thread(enough.wait)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 4
    assert lines[-1].startswith("2/4 runs, 0 open, 4 steps")


async def test_a_line_does_not_wait_in_a_buffer() -> None:
    medium = io.BytesIO()
    with io.TextIOWrapper(medium, encoding="utf-8") as stream:
        async with ProgressSink(total=1, stream=stream):
            pass
        assert medium.getvalue().startswith(b"0/1 runs")


async def on_a_terminal(total: int | None, columns: int) -> str:
    """Everything that two runs write to a real pseudo-terminal."""
    ours, theirs = os.openpty()
    os.environ["COLUMNS"] = str(columns)
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream:
            async with ProgressSink(total=total, stream=stream) as sink:
                await run_some(sink, 2)
        return os.read(ours, 100_000).decode()
    finally:
        del os.environ["COLUMNS"]
        os.close(ours)


async def test_on_a_terminal_one_line_is_drawn_with_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    seen = await on_a_terminal(2, 200)
    assert "━" in seen
    assert "2/2 runs, 0 open, 4 steps" in seen
    assert "agent_finished 2" in seen
    assert "\x1b[" in seen
    assert seen.count("\n") == 1


async def test_on_a_narrow_terminal_it_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    seen = await on_a_terminal(2, 60)
    assert seen.count("\n") == 1
    assert "…" in seen


async def test_without_a_total_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    seen = await on_a_terminal(None, 200)
    assert "━" not in seen
    assert "2 runs, 0 open, 4 steps" in seen


@pytest.mark.parametrize("setting", ["FORCE_COLOR", "TTY_COMPATIBLE"])
async def test_no_variable_makes_a_file_a_terminal(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(setting, "1")
    stream = io.StringIO()
    async with ProgressSink(total=1, stream=stream):
        pass
    assert stream.getvalue().splitlines()[0].isprintable()


async def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in await on_a_terminal(2, 200)


async def test_a_cancelled_run_is_open_until_the_sink_is_left_and_then_interrupted() -> None:
    reached, stream = asyncio.Event(), io.StringIO()

    def ask(_: object) -> object:
        reached.set()
        return HANG

    async with ProgressSink(total=1, stream=stream) as sink:
        run = dataclasses.replace(request(), model_call_replay=ReplayPolicy.SAFE)
        task = asyncio.create_task(dataclasses.replace(definition(), events=sink, model=ScriptedModel(ask)).run(run))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (sink._tally.counts().open, sink._tally.counts().interrupted) == (1, 0)
    assert stream.getvalue().endswith("? left, interrupted 1\n")
    assert stream.getvalue().startswith("0/1 runs, 0 open")


async def test_an_output_that_breaks_is_logged_once_and_disturbs_no_run() -> None:
    class Broken(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError("to whom it may concern")

    said: list[str] = []
    handler = logger.add(said.append, format="{message}")
    try:
        async with ProgressSink(total=2, stream=Broken(), plain_every_s=0.001) as sink:
            await run_some(sink, 2)
    finally:
        logger.remove(handler)
    assert said == ["the progress line cannot be written any more: BrokenPipeError\n"]


async def test_an_output_that_takes_nothing_holds_up_no_run() -> None:
    stuck, let_go = threading.Event(), threading.Event()

    class Stopped(io.StringIO):
        def write(self, text: str, /) -> int:
            stuck.set()
            let_go.wait()
            return super().write(text)

    async with ProgressSink(total=2, stream=Stopped(), plain_every_s=0.001) as sink:
        await asyncio.to_thread(stuck.wait)
        await run_some(sink, 2)
        assert sink._tally.counts().finished == {"agent_finished": 2}
        let_go.set()


async def test_no_thread_stays_behind() -> None:
    before = threading.active_count()
    async with ProgressSink(total=1, stream=io.StringIO()) as sink:
        assert [each.name for each in threading.enumerate()].count("polyloop-progress") == 1
        await run_some(sink, 1)
    assert [each.name for each in threading.enumerate()].count("polyloop-progress") == 0
    assert threading.active_count() <= before + 1, "the loop's own pool may have gained a thread"


async def test_it_works_inside_its_block_only_and_counts_anew_in_each() -> None:
    stream = io.StringIO()
    sink = ProgressSink(total=1, stream=stream)
    with pytest.raises(RuntimeError, match="async with"):
        await sink.emit(opened("a"))
    for _ in range(2):
        async with sink:
            await run_some(sink, 1)
            with pytest.raises(RuntimeError, match="cannot be entered again"):
                await sink.__aenter__()
    with pytest.raises(RuntimeError, match="async with"):
        await sink.emit(opened("a"))
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == ["1/1 runs", "1/1 runs"]


async def test_standard_error_is_looked_up_when_the_sink_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, stream = ProgressSink(total=1), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    async with sink:
        pass
    assert stream.getvalue().startswith("0/1 runs")


@pytest.mark.parametrize(
    ("field", "value"),
    [("total", 0), ("total", True), ("already_done", -1), ("plain_every_s", 0), ("plain_every_s", "1")],
)
def test_wrong_numbers_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ProgressSink(**{"total": 1, field: value})
    assert caught.value.field == f"ProgressSink.{field}"


def test_without_the_extra_the_message_names_it() -> None:
    program = "import sys\nsys.modules['rich'] = None\nimport polyloop.adapters.progress"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'polyloop[progress]'")
