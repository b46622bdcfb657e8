"""`SqliteRunStore` against a dict, in any order of appends, reads, leaving, and crashes."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import Record, RunAlreadyExists, RunConflict, RunFinished, RunKey, StepCompleted
from tests.contract.records import started
from tests.seams import append
from tests.unit.jsonl_disk import is_barrier, story

R = TypeVar("R")

KEYS: Final = (RunKey("a"), RunKey("A"), RunKey("ä"))
STORY: Final = story(2, finished=True)


class Machine(RuleBasedStateMachine):
    """The model: for each key the records written, and how many of them a barrier has acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.copies = 0
        self.loop = asyncio.new_event_loop()
        self.model: dict[RunKey, list[Record]] = {key: [] for key in KEYS}
        self.durable = dict.fromkeys(KEYS, 0)
        self.open(self.folder / "0")

    def open(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "runs.sqlite"
        self.store = SqliteRunStore(self.path)
        self.await_(self.store.__aenter__())
        self.driven: set[RunKey] = set()

    def await_(self, call: Coroutine[Any, Any, R]) -> R:
        return self.loop.run_until_complete(call)

    @rule(keys=st.lists(st.sampled_from(KEYS), unique=True, min_size=1))
    def append_at_once(self, keys: list[RunKey]) -> None:
        """The next record of several runs, in one turn of the loop."""
        due = [(key, STORY[len(self.model[key])]) for key in keys if len(self.model[key]) < len(STORY)]

        async def together() -> None:
            await asyncio.gather(*(append(self.store, key, record) for key, record in due))

        self.await_(together())
        for key, record in due:
            self.model[key].append(record)
            if isinstance(record, RunFinished):
                self.driven.discard(key)
            else:
                self.driven.add(key)
            if is_barrier(record):
                self.durable[key] = len(self.model[key])

    @rule(key=st.sampled_from(KEYS), ahead=st.integers(1, 3))
    def append_what_is_refused(self, key: RunKey, ahead: int) -> None:
        record = started() if self.model[key] else STORY[ahead]
        try:
            self.await_(append(self.store, key, record))
            # An ordered record's refusal may come with the next call.
            self.await_(append(self.store, key, STORY[1]))
        except (RunConflict, RunAlreadyExists):
            self.driven.discard(key)
            self.read(key)
        else:
            raise AssertionError("a record at a wrong position was taken")

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: RunKey) -> None:
        log = self.await_(self.store.read_log(key))
        assert list(log.records()) == self.model[key]
        self.durable[key] = len(self.model[key])

    @rule(newest_first=st.booleans())
    def list_all(self, newest_first: bool) -> None:
        async def listed() -> list[tuple[str, int | None, str | None]]:
            found = self.store.runs(newest_first=newest_first)
            return [(summary.key, summary.steps, summary.stop_reason) async for summary in found]

        expected = []
        # All runs of the story start at one time, so their keys give the order.
        for key in sorted(KEYS, reverse=newest_first):
            records = self.model[key]
            self.durable[key] = len(records)
            if records:
                last = records[-1]
                steps = sum(isinstance(record, StepCompleted) for record in records)
                expected.append((key, steps, last.stop_reason if isinstance(last, RunFinished) else None))
        assert self.await_(listed()) == expected

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: RunKey) -> None:
        """A run that has ended goes; one that this object last wrote to stays; one that it only knows of goes."""
        try:
            deleted = self.await_(self.store.delete(key))
        except RunConflict:
            assert key in self.driven
        else:
            assert key not in self.driven
            assert deleted == bool(self.model[key])
            self.model[key], self.durable[key] = [], 0

    @rule()
    def leave_and_enter(self) -> None:
        self.await_(self.store.__aexit__(None, None, None))
        self.open(self.path.parent)

    @rule()
    def crash_and_reopen(self) -> None:
        """Go on from a copy of the files as they lie there; the old store is left afterwards, unseen."""
        old, self.copies = self.store, self.copies + 1
        folder = self.folder / str(self.copies)
        guard = sqlite3.connect(self.path, isolation_level=None)
        guard.execute("begin immediate")
        folder.mkdir()
        for name in ("runs.sqlite", "runs.sqlite-wal"):
            shutil.copy(self.path.with_name(name), folder / name)
        guard.execute("rollback")
        guard.close()
        self.await_(old.__aexit__(None, None, None))
        self.open(folder)
        for key, records in self.model.items():
            found = list(self.await_(self.store.read_log(key)).records())
            assert found == records[: len(found)]
            assert len(found) >= self.durable[key]
            self.model[key], self.durable[key] = found, len(found)

    @invariant()
    def the_files_are_named_after_the_path(self) -> None:
        assert all(re.fullmatch(r"runs\.sqlite(-wal|-shm)?", file.name) for file in self.path.parent.iterdir())

    def teardown(self) -> None:
        self.await_(self.store.__aexit__(None, None, None))
        self.loop.close()
        shutil.rmtree(self.folder)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
