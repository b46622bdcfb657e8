"""`runs()`: the head rows, a page at a time."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg

from polyloop.stores._listing import Listing, RunState, RunSummary
from polyloop.stores.postgres.server import Connection
from polyloop.types import InvalidRequest, RunKey, StopReason

PAGE: Final = 200
"""How many summaries are in memory at a time."""

_COLUMNS: Final = """
select key, to_char(started_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    to_char(last_record_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'), steps, stop_reason, ended
from polyloop_runs where starts_with(key, %(prefix)s)
"""

_NO_KEY: Final = re.compile("[\0\ud800-\udfff]")

_REASONS: Final = [reason.value for reason in StopReason]

_KNOWN: Final = "(stop_reason is null or stop_reason = any(%(reasons)s))"

_STATES: Final = {
    None: "true",
    RunState.UNFINISHED: "stop_reason is null",
    RunState.CANCELLED: "stop_reason = 'cancelled'",
    RunState.ENDED: "ended",
    RunState.DAMAGED: "false",
}

# The first condition is for the index, the second for runs that started in the same microsecond.
_BEHIND: Final = {
    False: "and started_at >= %(start)s::timestamptz and (started_at, key) > (%(start)s::timestamptz, %(key)s)",
    True: "and started_at <= %(start)s::timestamptz and (started_at, key) < (%(start)s::timestamptz, %(key)s)",
}


def reader(listing: Listing, size: int) -> Callable[[Connection], Awaitable[list[RunSummary]]]:
    """What reads one page of at most so many summaries."""

    async def read(connection: Connection) -> list[RunSummary]:
        found: list[RunSummary] = []
        for statement in _statements(listing):
            if len(found) < size:
                found += await _page(connection, statement, listing, size - len(found))
        return found

    return read


def _statements(listing: Listing) -> list[str]:
    """What to ask, in this order. A damaged run has no start: its place is before all others, by its key."""
    after, down = listing.after, listing.newest_first
    order = " desc" if down else ""
    among_damaged = after is not None and after.started_at is None
    wanted: list[str] = []
    if listing.state in (None, RunState.DAMAGED) and (after is None or among_damaged or down):
        here = f"and key {'<' if down else '>'} %(key)s" if among_damaged else ""
        wanted.append(f"{_COLUMNS} and not {_KNOWN} {here} order by key{order} limit %(limit)s")
    if listing.state is not RunState.DAMAGED and not (among_damaged and down):
        here = "" if after is None or among_damaged else _BEHIND[down]
        wanted.append(
            f"{_COLUMNS} and {_KNOWN} and {_STATES[listing.state]} {here}"
            f" order by started_at{order}, key{order} limit %(limit)s"
        )
    return wanted[::-1] if down else wanted


def can_match(prefix: str) -> bool:
    """Whether a key can begin so: none has NUL characters or lone surrogates, nor can the server be asked for them."""
    return _NO_KEY.search(prefix) is None


def _comparable(key: str, *, newest_first: bool) -> str:
    """Text that lies among the keys where this does, if it has characters that no key has."""
    if (found := _NO_KEY.search(key)) is None:
        return key
    before = key[: found.start()]
    if found[0] == "\0":
        # Right behind the key that ends here.
        return before + "\x01" if newest_first else before
    # Behind whatever goes on with the last character before the surrogates.
    return before + "\ud7ff" + "\U0010ffff" * 1024


async def _page(connection: Connection, statement: str, listing: Listing, limit: int) -> list[RunSummary]:
    """At most so many summaries."""
    after = listing.after
    values = {
        "prefix": listing.prefix,
        "reasons": _REASONS,
        "limit": limit,
        "start": None if after is None else after.started_at,
        "key": None if after is None else _comparable(after.key, newest_first=listing.newest_first),
    }
    try:
        cursor = await connection.execute(statement, values)
    except psycopg.DataError:
        # All else in the statement can be held by the server. Its words would quote what was given.
        raise InvalidRequest("runs.after", "must have a start that is a time, or none") from None
    return [_summary(row) for row in await cursor.fetchall()]


def _summary(row: tuple[Any, ...]) -> RunSummary:
    key, started_at, last_record_at, steps, reason, ended = row
    if reason is not None and reason not in _REASONS:
        return RunSummary(
            key=RunKey(key),
            state=RunState.DAMAGED,
            started_at=None,
            last_record_at=None,
            steps=None,
            stop_reason=None,
        )
    stopped = RunState.ENDED if ended else RunState.CANCELLED
    return RunSummary(
        key=RunKey(key),
        state=RunState.UNFINISHED if reason is None else stopped,
        started_at=started_at,
        last_record_at=last_record_at,
        steps=steps,
        stop_reason=None if reason is None else StopReason(reason),
    )
