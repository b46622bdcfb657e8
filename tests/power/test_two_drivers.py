"""Two store objects on one run after a power loss: what one of them writes, the other never takes away."""

from __future__ import annotations

import asyncio
import collections
import json
from pathlib import Path

import pytest

from polyloop.serialization import encode
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunConflict, RunFinished, RunLog
from tests.power.hand_made import KEY, STORY, path_of, zero_last_line
from tests.power.load import NEVER, key_of
from tests.power.test_kill import Load
from tests.seams import append


async def test_a_record_as_long_as_the_torn_tail_in_its_place_is_not_mistaken_for_it(tmp_path: Path) -> None:
    """Both read the torn log. One cuts the tail and announces; the file then has the size that the other remembers."""
    async with JsonlRunStore(tmp_path) as store:
        for record in STORY[:2]:
            await append(store, KEY, record)
    size = path_of(tmp_path).stat().st_size
    zero_last_line(path_of(tmp_path))
    async with JsonlRunStore(tmp_path) as quick, JsonlRunStore(tmp_path) as slow:
        assert (await quick.read_log(KEY)).next_seq == (await slow.read_log(KEY)).next_seq == 1
        await append(quick, KEY, STORY[1])
        assert path_of(tmp_path).stat().st_size == size
        with pytest.raises(RunConflict):
            await append(slow, KEY, STORY[1])
        await append(quick, KEY, STORY[2])
    async with JsonlRunStore(tmp_path) as store:
        assert (await store.read_log(KEY)).records() == STORY[:3]


COUNT = 60


async def read_logs(directory: Path) -> dict[str, RunLog]:
    async with JsonlRunStore(directory) as store:
        return {
            str(path_of(directory, key_of(number))): await store.read_log(key_of(number)) for number in range(COUNT)
        }


def test_two_processes_that_go_on_with_the_same_runs_after_a_power_loss_tell_one_story(tmp_path: Path) -> None:
    """What one of them was told is in the log stays there; what must never happen twice does not."""
    load = Load(tmp_path, COUNT, seed=1)
    load.kill_one()
    for path in load.directory.iterdir():
        zero_last_line(path)
    ledgers = [tmp_path / "first", tmp_path / "second"]
    processes = [load.start(ledger) for ledger in ledgers]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    assert [process.communicate(timeout=60)[1] for process in processes] == ["", ""]
    logs = asyncio.run(read_logs(load.directory))
    assert all(isinstance(log.finished, RunFinished) for log in logs.values())
    effects, refused = collections.Counter[tuple[str, str]](), 0
    for ledger in ledgers:
        entered: dict[str, str] = {}
        for note in map(json.loads, ledger.read_bytes().splitlines()):
            refused += note["what"] == "refused"
            if note["what"] == "effect":
                effects[note["key"], note["effect"]] += 1
            elif note["what"] == "enter":
                entered[note["path"]] = note["record"]
            elif note["what"] == "done":
                assert encode(logs[note["path"]].records()[note["seq"]]) == entered[note["path"]]
    assert not [each for each, count in effects.items() if count > 1 and each[1] in NEVER]
    assert refused, "the processes never met: the test shows nothing"
