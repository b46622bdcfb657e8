"""`EphemeralRunStore`: no recovery, visibly chosen."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from polyloop.stores._listing import DRIVEN, Listing, RunState, RunSummary, place, summary_of
from polyloop.stores._positions import check_position
from polyloop.types import (
    EffectCompleted,
    EffectIntended,
    PolyLoopError,
    Record,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from polyloop.types._checks import check_run_key
from polyloop.types.records import detached, is_terminal


class EphemeralRunStore:
    """Keeps logs in memory: all of the port's promises, within one process and for as long as it lives.

    For tests, and for runs that nobody needs to resume after a crash. A run that was cancelled can be resumed
    while the object lives. Serves several event loops and threads. Works with and without `async with`; leaving
    does not forget anything. Keys stay until the object is dropped.
    """

    def __init__(self) -> None:
        self._logs: dict[str, list[Record]] = {}
        self._blocked: set[str] = set()
        self._driven: set[str] = set()
        """The runs whose last append here was taken and was no end record."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"EphemeralRunStore({len(self._logs)} runs)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        """Write a run's first record. See `polyloop.ports.RunStore`."""
        self._append(key, record)

    async def append_intent(self, key: RunKey, record: EffectIntended, /) -> None:
        """Announce an effect. See `polyloop.ports.RunStore`."""
        self._append(key, record)

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        """Write what came of an effect. See `polyloop.ports.RunStore`."""
        self._append(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        """Write a step. See `polyloop.ports.RunStore`."""
        self._append(key, record)

    async def finish(self, key: RunKey, record: RunFinished, /) -> None:
        """Write an end record. See `polyloop.ports.RunStore`."""
        self._append(key, record)

    async def read_log(self, key: RunKey, /) -> RunLog:
        """Read a run's log; unblocks the key. See `polyloop.ports.RunStore`."""
        check_run_key(key)
        with self._lock:
            self._blocked.discard(key)
            records = tuple(self._logs.get(key, ()))
        return RunLog.from_records(map(detached, records))

    def runs(
        self,
        *,
        state: RunState | None = None,
        prefix: str = "",
        limit: int | None = None,
        after: RunSummary | None = None,
        newest_first: bool = False,
    ) -> AsyncGenerator[RunSummary, None]:
        """List the runs, by their start and then by their key, as they are when the first is asked for.

        Args:
            state: Only runs in this state; None for all.
            prefix: Only runs whose key begins with this.
            limit: At most so many; None for all.
            after: Only runs behind this one, which need not exist any more: the last of the page before.
            newest_first: The reverse order.

        Raises:
            InvalidRequest: an argument is not of its type, or negative.
        """
        listing = Listing(state=state, prefix=prefix, limit=limit, after=after, newest_first=newest_first)
        return self._listed(listing)

    async def _listed(self, listing: Listing) -> AsyncGenerator[RunSummary, None]:
        with self._lock:
            found = [summary_of(key, RunLog.from_records(records)) for key, records in self._logs.items()]
        for summary in sorted(filter(listing.wants, found), key=place, reverse=listing.newest_first)[: listing.limit]:
            yield summary

    async def delete(self, key: RunKey, /) -> bool:
        """Forget a run and its log.

        Args:
            key: The run.

        Returns:
            Whether there was one.

        Raises:
            RunConflict: the run is driven in this object: its last append here was taken, and was no end record.
        """
        check_run_key(key)
        with self._lock:
            if key in self._driven:
                raise RunConflict(key, DRIVEN)
            self._blocked.discard(key)
            return self._logs.pop(key, None) is not None

    def _append(self, key: RunKey, record: Record) -> None:
        check_run_key(key)
        copy = detached(record)
        with self._lock:
            if key in self._blocked:
                raise RunConflict(key, "an earlier record was refused", seq=record.seq)
            log = self._logs.get(key, [])
            try:
                check_position(key, copy, len(log), ended=bool(log) and is_terminal(log[-1]))
            except PolyLoopError:
                self._blocked.add(key)
                self._driven.discard(key)
                raise
            log.append(copy)
            if isinstance(copy, RunFinished):
                self._driven.discard(key)
            else:
                self._driven.add(key)
            self._logs[key] = log
