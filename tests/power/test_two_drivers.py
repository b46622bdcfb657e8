"""Two store objects on one run after a power loss: what one of them writes, the other never takes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunConflict
from tests.power.hand_made import KEY, STORY, path_of, zero_last_line
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
