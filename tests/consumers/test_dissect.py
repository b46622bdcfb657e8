"""An experiment as dissect runs it: two hundred rollouts at once on one definition and one directory.

Each acts by code in a Python process of its own; each is compared, field by field and call by call, with the loop that
the harness had before, which is written from the order of judgement alone.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunResult, StopReason
from tests.consumers.dissect import Dissect, old_trajectory
from tests.consumers.harness import LedgerClient, Message, Response, Row, Trajectory
from tests.consumers.rollouts import ITEMS, KINDS, Item
from tests.consumers.sessions import Episode

BY_ID: Final = {item.item_id: item for item in ITEMS}
SESSIONS_AT_ONCE: Final = 30
THIRTEEN: Final = [
    "step_idx",
    "raw_output",
    "content_chars",
    "thinking_chars",
    "action",
    "parse_ok",
    "parse_error",
    "observation",
    "observation_is_synthetic",
    "observation_truncated_chars",
    "prompt_chars",
    "call_id",
    "step_wall_ms",
]
FOUR: Final = ["tool_name", "tool_arguments_json", "action_status", "schema_version"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The same rollouts, by the old loop and by the new one."""

    old: dict[str, Trajectory]
    old_calls: list[Row]
    new: dict[str, RunResult]
    new_calls: list[Row]
    view: Any
    """The definition's part of the snapshot, taken before the first rollout."""
    directory: Path
    wall_ms: float
    at_once: int


def say(item_id: str, turn: int, messages: Sequence[Message]) -> Response | Exception:
    return BY_ID[item_id].reply(turn, messages)


class Together:
    """The model, which holds each rollout's first call back until all those that make one have made it."""

    def __init__(self) -> None:
        self._missing = {item.item_id for item in ITEMS if item.kind.steps}
        self._all = asyncio.Event()
        self.at_once = 0

    async def say(self, item_id: str, turn: int, messages: Sequence[Message]) -> Response | Exception:
        if turn == 0:
            self._missing.discard(item_id)
            self.at_once += 1
            if not self._missing:
                self._all.set()
            await self._all.wait()
        return say(item_id, turn, messages)


async def run_old(client: LedgerClient) -> dict[str, Trajectory]:
    places = asyncio.Semaphore(SESSIONS_AT_ONCE)

    async def run(item: Item) -> Trajectory:
        async with places:
            return await old_trajectory(client, item)

    done = await asyncio.gather(*map(run, ITEMS))
    return dict(zip(BY_ID, done, strict=True))


async def run_new(directory: Path, old: dict[str, Trajectory], old_calls: list[Row]) -> Experiment:
    together = Together()
    client = LedgerClient(together.say)
    async with JsonlRunStore(directory) as store:
        project = Dissect(client, store)
        view = project.definition.params_view

        async def run(item: Item) -> RunResult:
            async with Episode(item.goal) as episode:
                return await project.definition.run(project.request(item, episode))

        began = asyncio.get_running_loop().time()
        done = await asyncio.gather(*map(run, ITEMS))
        wall_ms = (asyncio.get_running_loop().time() - began) * 1000
    return Experiment(
        old=old,
        old_calls=old_calls,
        new=dict(zip(BY_ID, done, strict=True)),
        new_calls=client.rows,
        view=view,
        directory=directory,
        wall_ms=wall_ms,
        at_once=together.at_once,
    )


def the_old_loop_stops_where_each_kind_of_rollout_is_meant_to(experiment: Experiment) -> None:
    """A yardstick that stopped all of them alike would compare nothing."""
    for item in ITEMS:
        old = experiment.old[item.item_id]
        assert (old.stop_reason, len(old.rows)) == (item.kind.stop_reason, item.kind.steps), item
    assert {kind.stop_reason for kind in KINDS} == {
        reason.value for reason in StopReason if reason not in ("agent_finished", "cancelled", "resume_state_unknown")
    }


def two_hundred_rollouts_were_under_way_at_once(experiment: Experiment) -> None:
    assert len(ITEMS) == 200
    assert experiment.at_once == sum(item.kind.steps > 0 for item in ITEMS)


def every_trajectory_equals_the_old_one_in_all_thirteen_fields(experiment: Experiment) -> None:
    for item_id, new in experiment.new.items():
        rows = [dataclasses.asdict(step) for step in new.steps]
        old = experiment.old[item_id]
        assert new.stop_reason == old.stop_reason, item_id
        for row in rows:
            assert list(row) == THIRTEEN + FOUR
            wall_ms = row.pop("step_wall_ms")
            assert type(wall_ms) is int
            assert 0 <= wall_ms <= experiment.wall_ms
        assert [{name: row[name] for name in THIRTEEN[:-1]} for row in rows] == old.rows, item_id


def every_field_was_put_to_the_test(experiment: Experiment) -> None:
    """Comparing fields that are the same in every row would say little."""
    seen = collections.defaultdict(set)
    for result in experiment.new.values():
        for step in result.steps:
            for name, value in dataclasses.asdict(step).items():
                seen[name].add(value)
    constant = {name for name in THIRTEEN if len(seen[name]) < 2}
    assert constant <= {"step_wall_ms"}
    assert seen["action_status"] == {None, "executed", "env_error"}
    assert (seen["tool_name"], seen["tool_arguments_json"], seen["schema_version"]) == ({None}, {None}, {"1.0"})


def every_call_had_the_messages_and_the_five_dimensions_that_it_had_before(experiment: Experiment) -> None:
    def by_item(rows: Sequence[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: (str(row["item_id"]), str(row["turn"])))

    assert by_item(experiment.new_calls) == by_item(experiment.old_calls)


def each_step_that_has_a_call_id_joins_one_row_of_the_ledger(experiment: Experiment) -> None:
    for item_id, result in experiment.new.items():
        rows = [row for row in experiment.new_calls if row["item_id"] == item_id]
        assert result.usage.model_calls == len(rows)
        named = [step for step in result.steps if step.call_id is not None]
        for step in named:
            assert step.call_id in (f"{item_id}#{step.step_idx}", f"id-{BY_ID[item_id].number}")
        assert len({step.call_id for step in named}) == len(named)


def the_binding_stands_in_the_snapshot_as_strings(experiment: Experiment) -> None:
    for item_id, result in experiment.new.items():
        item = BY_ID[item_id]
        assert result.params_snapshot["model_binding"] == {
            "ledger": "main",
            "round_idx": str(item.number % 5),
            "phase": "train",
            "item_id": item_id,
            "attempt_idx": str(item.attempt_idx),
        }


def the_models_name_is_readable_before_the_first_rollout_and_stands_in_each_snapshot(experiment: Experiment) -> None:
    assert experiment.view["model"] == {"model": "small-1", "scope": "experiment-7"}
    for result in experiment.new.values():
        assert {name: result.params_snapshot[name] for name in experiment.view} == experiment.view


def tables_made_of_steps_and_results_answer_the_queries_that_dissect_has(experiment: Experiment) -> None:
    with sqlite3.connect(":memory:") as database:
        database.execute("create table rollouts (item_id primary key, stop_reason)")
        database.execute(f"create table steps (item_id, {', '.join(THIRTEEN + FOUR)})")
        for item_id, result in experiment.new.items():
            database.execute("insert into rollouts values (?, ?)", (item_id, result.stop_reason))
            rows = [(item_id, *dataclasses.asdict(step).values()) for step in result.steps]
            database.executemany(f"insert into steps values ({', '.join('?' * 18)})", rows)  # noqa: S608 - question marks
        expected = collections.Counter(old.stop_reason for old in experiment.old.values())
        counted = database.execute("select stop_reason, count(*) from rollouts group by stop_reason").fetchall()
        assert dict(counted) == expected
        for query in ("stop_reason = 'step_budget'", "stop_reason in ('llm_error', 'env_error')"):
            (count,) = database.execute(f"select count(*) from rollouts where {query}").fetchone()  # noqa: S608 - ours
            assert count == sum(number for reason, number in expected.items() if f"'{reason}'" in query) > 0
        (synthetic,) = database.execute("select count(*) from steps where observation_is_synthetic").fetchone()
        assert synthetic == sum(
            row["observation_is_synthetic"] is True for old in experiment.old.values() for row in old.rows
        )
    database.close()


async def test_two_hundred_rollouts_at_once_are_what_the_old_loop_makes_of_them(tmp_path: Path) -> None:
    """One test, since the rollouts are what costs time; it names every check that fails."""
    client = LedgerClient(say)
    experiment = await run_new(tmp_path, await run_old(client), client.rows)
    failures = []
    for check in CHECKS:
        try:
            check(experiment)
        except AssertionError as failure:
            failure.add_note(check.__name__)
            failures.append(failure)
    if failures:
        raise ExceptionGroup("the old loop and the new one", failures)
    await each_rollout_is_a_file_and_comes_back_whole_without_a_call(experiment)


CHECKS: Final = (
    the_old_loop_stops_where_each_kind_of_rollout_is_meant_to,
    two_hundred_rollouts_were_under_way_at_once,
    every_trajectory_equals_the_old_one_in_all_thirteen_fields,
    every_field_was_put_to_the_test,
    every_call_had_the_messages_and_the_five_dimensions_that_it_had_before,
    each_step_that_has_a_call_id_joins_one_row_of_the_ledger,
    the_binding_stands_in_the_snapshot_as_strings,
    the_models_name_is_readable_before_the_first_rollout_and_stands_in_each_snapshot,
    tables_made_of_steps_and_results_answer_the_queries_that_dissect_has,
)


async def each_rollout_is_a_file_and_comes_back_whole_without_a_call(experiment: Experiment) -> None:
    assert len([path for path in experiment.directory.iterdir() if path.suffix == ".jsonl"]) == len(ITEMS)
    client = LedgerClient(lambda *_: AssertionError("no call may be made"))
    async with JsonlRunStore(experiment.directory) as store:
        project = Dissect(client, store)
        for item_id, result in experiment.new.items():
            item = BY_ID[item_id]
            # The episode is not open: a finished rollout needs none.
            assert await project.definition.resume(project.request(item, Episode(item.goal))) == result
    assert client.rows == []
