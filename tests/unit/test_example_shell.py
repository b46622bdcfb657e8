"""The shell of the examples: it ends whole commands, waits for no stray descendant, and reads any bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.parsers import CodeBlockParser
from examples.shell import Ended, NoCommandError, Shell, ShellExecutor, _Output
from polyloop import Action, ActionOutcome, ActionStatus, RunKey, StopReason
from tests import builders
from tests.fakes import ScriptedModel

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
HELD_UP_S = 10.0
"""Longer than any of these commands may take, and shorter than what they leave behind would."""


def shell_in(directory: Path, *, time_limit_s: float = 30.0, max_output_chars: int = 10_000) -> Shell:
    return Shell(
        directory=directory,
        workspace="desk",
        environment=ENVIRONMENT,
        time_limit_s=time_limit_s,
        max_output_chars=max_output_chars,
    )


def an_action(command: str) -> Action:
    return Action(action_text=command, tool_name=None, arguments={}, key=RunKey("k"), step_idx=0, result_id="r")


async def execute(directory: Path, command: str) -> ActionOutcome:
    return await ShellExecutor(shell_in(directory)).execute(an_action(command))


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other processes do, which takes time and no turns of this loop."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


def is_alive(pid: int) -> bool:
    """Whether it still runs; one that has ended and that nobody has asked for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells which processes run")

# Two levels of children, one of them detached from the shell; each enters its number into the file `pids`.
FAMILY = (
    "echo early; echo $$ >> pids; (echo $(exec sh -c 'echo $PPID') >> pids; sleep 600) & sleep 600 & echo $! >> pids; "
)


# --- what is observed


@pytest.mark.parametrize(
    ("command", "how", "output"),
    [
        ("echo hello", "exit code 0", "hello\n"),
        ("true", "exit code 0", ""),
        ("echo out; echo err >&2; exit 3", "exit code 3", "out\nerr\n"),
        ("no-such-program-here; echo went on", "exit code 0", None),
        ("kill -9 $$", "killed by signal 9", ""),
        ("cat", "exit code 0", ""),
        ("echo $SECRET; env | sort | head -1", "exit code 0", "\nLC_ALL=C\n"),
        ("if", "exit code 2", None),
    ],
)
async def test_an_action_that_ran_is_executed_whatever_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, how: str, output: str | None
) -> None:
    monkeypatch.setenv("SECRET", "the key of this process")
    outcome = await execute(tmp_path, command)
    first, _, rest = outcome.observation.partition("\n")
    assert (outcome.status, outcome.completed, first) == (ActionStatus.EXECUTED, False, f"[{how}]")
    assert rest == output if output is not None else rest


async def test_a_command_starts_in_the_directory_of_its_run(tmp_path: Path) -> None:
    outcome = await execute(tmp_path, "test . -ef $0 && pwd; echo x > made".replace("$0", str(tmp_path)))
    assert outcome.observation.endswith(f"{tmp_path.name}\n")
    assert (tmp_path / "made").read_text() == "x\n"


@pytest.mark.parametrize(
    "command", ["echo a\0b", "echo \ud83d", "true " + "x" * 3_000_000], ids=["NUL", "half a character", "too long"]
)
async def test_what_no_shell_can_be_given_is_not_executed(tmp_path: Path, command: str) -> None:
    outcome = await execute(tmp_path, command)
    assert outcome.status is ActionStatus.NOT_EXECUTED
    assert outcome.observation.startswith("the command ")


async def test_without_its_directory_the_environment_can_serve_no_more(tmp_path: Path) -> None:
    outcome = await execute(tmp_path / "gone", "true")
    assert outcome.status is ActionStatus.ENV_ERROR
    assert "No such file or directory" in outcome.observation


async def test_what_is_beyond_the_limit_is_counted_and_not_kept(tmp_path: Path) -> None:
    long = "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done"
    ended = await shell_in(tmp_path, max_output_chars=100).run(long)
    assert (len(ended.output), ended.cut_chars) == (100, 3000 * 41 - 100)
    outcome = await ShellExecutor(shell_in(tmp_path, max_output_chars=5)).execute(an_action("echo 1234567"))
    assert (outcome.observation, outcome.truncated_chars) == ("[exit code 0]\n12345", 3)


# --- bytes that are no text


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (r"printf '\360\377'", "\ufffd\ufffd"),
        (r"printf 'a\000b'", "a\0b"),
        (r"printf '\360\237\230'", "\ufffd"),
        (r"printf '\360\237'; sleep 0.1; printf '\230\200'", "\U0001f600"),
        (r"printf '\303'; sleep 0.1; printf 'x'", "\ufffdx"),
        (r"printf 'r\r\n'", "r\r\n"),
    ],
)
async def test_any_bytes_are_an_observation_and_no_boundary_of_a_read_damages_a_character(
    tmp_path: Path, command: str, output: str
) -> None:
    ended = await shell_in(tmp_path).run(command)
    assert ended == Ended("exit code 0", output, 0)


@pytest.mark.parametrize("before", [4094, 4095, 65_533, 65_534, 65_535, 65_536])
async def test_characters_across_the_boundaries_of_the_pipe_arrive_whole(tmp_path: Path, before: int) -> None:
    (tmp_path / "text").write_bytes(b"x" * before + "\U0001f600\u20ac".encode() * 50_000)
    ended = await shell_in(tmp_path, max_output_chars=200_000).run("cat text")
    assert ended.output == "x" * before + "\U0001f600\u20ac" * 50_000


async def test_a_run_goes_on_after_output_that_is_no_text(tmp_path: Path) -> None:
    replies = ["```sh\nprintf '\\360\\377'; exit 7\n```", "```sh\necho on\n```", "```answer\ndone\n```"]
    parser = CodeBlockParser(languages=("sh",), answer_language="answer", blank_history_text="(empty)")
    definition = dataclasses.replace(builders.definition(), model=ScriptedModel(replies), parser=parser)
    request = dataclasses.replace(builders.request(), executor=ShellExecutor(shell_in(tmp_path)))
    result = await definition.run(request)
    assert (result.stop_reason, result.final_answer) == (StopReason.AGENT_FINISHED, "done")
    observed = ["[exit code 7]\n\ufffd\ufffd", "[exit code 0]\non\n", ""]
    assert [step.observation for step in result.steps] == observed


# --- ends


@needs_proc
async def test_out_of_time_a_command_ends_with_all_that_it_started_and_its_output_is_kept(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    ended = await shell_in(tmp_path, time_limit_s=1.0).run(FAMILY + "wait")
    assert time.monotonic() - began < HELD_UP_S
    assert ended == Ended("killed after 1 s", "early\n", 0)
    assert len(pids_in(pids)) == 3
    await until(lambda: not any(map(is_alive, pids_in(pids))))


@needs_proc
async def test_cancelled_a_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.create_task(shell_in(tmp_path).run(FAMILY + "while :; do echo more >> ledger; done"))
    await until(lambda: len(pids_in(pids)) == 3 and (tmp_path / "ledger").exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    size, leader = (tmp_path / "ledger").stat().st_size, pids_in(pids)[0]
    assert not os.access(f"/proc/{leader}", os.F_OK), "the shell was not waited for"
    await until(lambda: not any(map(is_alive, pids_in(pids))))
    assert (tmp_path / "ledger").stat().st_size == size, "it went on after the cancellation had passed"


@needs_proc
async def test_what_a_command_leaves_in_the_background_ends_with_it_and_holds_up_nobody(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = await shell_in(tmp_path).run(FAMILY + "echo late")
    assert time.monotonic() - began < HELD_UP_S
    assert (ended.how, ended.output) == ("exit code 0", "early\nlate\n")
    await until(lambda: not any(map(is_alive, pids_in(tmp_path / "pids"))))


@needs_proc
@pytest.mark.parametrize(("end", "how"), [("echo late", "exit code 0"), ("sleep 600", "killed after 1 s")])
async def test_a_descendant_out_of_reach_that_holds_the_pipe_holds_up_nobody(
    tmp_path: Path, end: str, how: str
) -> None:
    """One that made a session of its own lives on, as the example says; the call returns all the same."""
    stray = "setsid sh -c 'echo $$ > stray; exec sleep 600' & while [ ! -s stray ]; do sleep 0.01; done; echo early; "
    began = time.monotonic()
    ended = await shell_in(tmp_path, time_limit_s=1.0 if "sleep" in end else 30).run(stray + end)
    assert time.monotonic() - began < HELD_UP_S
    assert ended.how == how
    assert ended.output.startswith("early\n")
    (pid,) = pids_in(tmp_path / "stray")
    os.kill(pid, 9)


async def test_what_is_in_the_pipe_when_a_command_ends_is_read_though_the_loop_did_not_turn() -> None:
    source, sink = os.pipe()
    output = _Output(source, 100)
    os.write(sink, b"late")
    os.close(sink)
    assert output.close() == ("late", 0)


async def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = _Output._read

    def counted(output: _Output) -> None:
        nonlocal reads
        reads += 1
        read(output)

    monkeypatch.setattr(_Output, "_read", counted)
    ended = await shell_in(tmp_path).run("echo shown; exec >&- 2>&-; sleep 0.1; echo x > file; exit 4")
    assert ended == Ended("exit code 4", "shown\n", 0)
    assert reads <= 3, "once closed, the pipe is read again and again"
    assert (tmp_path / "file").exists()


async def test_an_endless_writer_is_stopped_in_time(tmp_path: Path) -> None:
    ended = await shell_in(tmp_path, time_limit_s=0.3, max_output_chars=10).run("yes")
    assert (ended.how, ended.output) == ("killed after 0.3 s", "y\ny\ny\ny\ny\n")
    assert ended.cut_chars > 0


async def test_many_commands_run_at_once(tmp_path: Path) -> None:
    """More than a pool of threads would have: each of them waits until all have begun."""
    count = 40
    shell = shell_in(tmp_path)
    waits = "while [ $(ls begun | wc -l) -lt {count} ]; do sleep 0.05; done; echo {number}"
    (tmp_path / "begun").mkdir()
    ended = await asyncio.gather(
        *(shell.run(f": > begun/{n}; " + waits.format(count=count, number=n)) for n in range(count))
    )
    assert [each.output for each in ended] == [f"{number}\n" for number in range(count)]


async def test_cancelled_at_any_turn_nothing_is_left_behind(tmp_path: Path) -> None:
    descriptors = open_descriptors()
    for turns in range(12):
        task = asyncio.create_task(shell_in(tmp_path).run("echo x >> ledger; sleep 600"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert open_descriptors() == descriptors


async def test_a_text_that_no_shell_can_be_given_leaves_nothing_behind(tmp_path: Path) -> None:
    descriptors = open_descriptors()
    with pytest.raises(NoCommandError):
        await shell_in(tmp_path).run("\0")
    with pytest.raises(FileNotFoundError):
        await shell_in(tmp_path / "gone").run("true")
    assert open_descriptors() == descriptors


def test_the_params_hold_all_that_shapes_the_output_and_nothing_of_the_process(tmp_path: Path) -> None:
    executor = ShellExecutor(shell_in(tmp_path))
    assert executor.params == {
        "shell": ("/bin/sh", "-c"),
        "workspace": "desk",
        "environment": ENVIRONMENT,
        "time_limit_s": 30.0,
        "max_output_chars": 10_000,
    }
    assert not re.search("LC_ALL", repr(executor))
