"""Stores that are wrong on purpose, for the state machine to find."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.sqlite import SqliteRunStore
from polyloop.types import EffectIntended, RunAlreadyExists, RunConflict, RunKey, RunLog, RunStarted


class Early(SqliteRunStore):
    """Acknowledges an announcement before it is durable."""

    _under_way: asyncio.Task[None] | None = None

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        log = await super().read_log(key)
        if record.seq != log.next_seq or log.finished is not None:
            await super().append_intent(key, record)
            return
        self._under_way = asyncio.create_task(self._later(key, record))

    async def _later(self, key: RunKey, record: EffectIntended) -> None:
        await asyncio.sleep(0.2)
        await super().append_intent(key, record)


class Renumbering(JsonlRunStore):
    """Takes an announcement at whatever position is the next."""

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        try:
            await super().append_intent(key, record)
        except RunConflict:
            log = await super().read_log(key)
            await super().append_intent(key, dataclasses.replace(record, seq=log.next_seq))


class CaseBlind(JsonlRunStore):
    """Keeps runs whose keys differ in case in one log."""

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        await super().append_run_start(RunKey(key.lower()), record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        return await super().read_log(RunKey(key.lower()))


class Forgiving(SqliteRunStore):
    """Does not keep a key blocked after a refusal."""

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        try:
            await super().append_intent(key, record)
        except (RunConflict, RunAlreadyExists):
            await super().read_log(key)
            raise


class Reopening(JsonlRunStore):
    """Begins a run anew after its end."""

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        log = await super().read_log(key)
        if log.finished is not None:
            await super().delete(key)
        await super().append_run_start(key, record)


def _in_a_file(store: type[SqliteRunStore]) -> Callable[[Path], SqliteRunStore]:
    return lambda folder: store(folder / "runs.sqlite")


WRONG: Final[Mapping[str, Callable[[Path], Any]]] = {
    "acknowledges before it is durable": _in_a_file(Early),
    "takes any position": Renumbering,
    "does not tell keys apart": CaseBlind,
    "forgets that a key is blocked": _in_a_file(Forgiving),
    "begins again after the end": Reopening,
}
