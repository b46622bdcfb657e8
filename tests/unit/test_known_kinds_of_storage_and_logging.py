"""Two kinds of faults that agent loops are known for: storage that grows with the square, secrets in logs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from polyloop import EffectCompleted, Event, ModelCall, ModelReply, RunLog, encode
from polyloop.ports import Action, RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from tests.builders import definition, request
from tests.fakes import RecordingSink, ScriptedExecutor, ScriptedModel, act, final

STEPS = 60
SECRET = "sk-" + "7" * 40


def marked(index: int) -> str:
    """Two kilobytes that stand in no other step."""
    return f"<observation {index}>".ljust(2_000, ".")


def content(folder: Path) -> bytes:
    """What the one file of a folder holds."""
    [file] = folder.iterdir()
    return file.read_bytes()


async def log_of_a_long_run(store: RunStore) -> RunLog:
    made = definition(lambda call: act(f"<action {call.call_index}>"), store=store)
    asked = request()
    executor = ScriptedExecutor(lambda action: marked(action.step_idx))
    budget = dataclasses.replace(asked.budget, max_steps=STEPS, max_executed_actions=STEPS, max_prompt_chars=10**7)
    asked = dataclasses.replace(asked, executor=executor, budget=budget)
    await made.run(asked)
    return await store.read_log(asked.key)


@pytest.mark.parametrize("kind", ["ephemeral", "jsonl"])
async def test_no_record_holds_earlier_steps_and_bytes_a_step_stay_level(kind: str, tmp_path: Path) -> None:
    if kind == "ephemeral":
        log = await log_of_a_long_run(EphemeralRunStore())
    else:
        async with JsonlRunStore(tmp_path) as store:
            log = await log_of_a_long_run(store)
        lines = content(tmp_path).splitlines()
        per_step = [sum(map(len, lines[1 + 5 * index : 6 + 5 * index])) for index in range(STEPS)]
        assert max(per_step[-20:]) <= 1.02 * max(per_step[:20])
    texts = [encode(record) for record in log.records()]
    for index in range(STEPS):
        # An observation stands in its result and in its step; a reply also in the plan that the intent announces.
        assert sum(f"<observation {index}>" in text for text in texts) == 2
        assert sum(f"<action {index}>" in text for text in texts) == 3


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lines.append, level=0, diagnose=True, backtrace=True)
    yield lines
    logger.remove(handler)


class LeakyModel(ScriptedModel):
    """Holds a key in a local variable while it fails."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        api_key = SECRET
        raise ConnectionError(f"refused after {len(api_key)} characters")


class LeakyExecutor(ScriptedExecutor):
    async def execute(self, action: Action, /) -> object:  # type: ignore[override]  # it never answers
        token = SECRET
        raise RuntimeError(f"no session for a token of {len(token)} characters")


class LeakySink(RecordingSink):
    async def emit(self, event: Event, /) -> None:
        await super().emit(event)
        password = SECRET
        raise OSError(f"the database refuses {password}")


async def test_what_a_failing_port_holds_in_its_variables_is_told_to_nobody(logged: list[str]) -> None:
    for model, executor in ((LeakyModel([]), ScriptedExecutor()), (ScriptedModel([act("a")]), LeakyExecutor())):
        sink = LeakySink()
        made = dataclasses.replace(definition(), model=model, events=sink, store=EphemeralRunStore())
        asked = dataclasses.replace(request(), executor=executor)
        result = await made.run(asked)
        log = await made.store.read_log(asked.key)
        assert any(isinstance(each, EffectCompleted) and each.error for each in log.results)
        told = [repr(result), *map(encode, log.records()), *map(repr, sink.events), repr(made), repr(asked)]
        assert not any(SECRET in each for each in told)
        assert result.event_sink_failures > 0
    assert logged, "a failing sink is logged"
    assert not any(SECRET in line for line in logged)


async def test_an_ordinary_run_logs_nothing(logged: list[str]) -> None:
    await definition([act("a"), final("b")]).run(request())
    assert logged == []


def test_the_library_adds_no_handler_to_the_logger_of_its_user() -> None:
    code = (
        "import loguru; before = set(loguru.logger._core.handlers)\n"
        "import polyloop, polyloop.stores.jsonl, polyloop.stores.ephemeral\n"
        "from polyloop.session._failures import log_note; loguru.logger.remove(); log_note('x', 'k')\n"
        "assert not loguru.logger._core.handlers, loguru.logger._core.handlers\n"
        "assert len(before) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_one_very_long_observation_is_stored_as_it_is(tmp_path: Path) -> None:
    long = "x" * 5_000_000
    async with JsonlRunStore(tmp_path) as store:
        made = definition([act("a"), final("b")], store=store)
        asked = dataclasses.replace(request(), executor=ScriptedExecutor([long]))
        budget = dataclasses.replace(asked.budget, max_prompt_chars=10**7)
        result = await made.run(dataclasses.replace(asked, budget=budget))
    assert result.steps[0].observation == long
    assert 2 * len(long) < len(content(tmp_path)) < 2 * len(long) + 10_000
