"""The listing of runs, page by page: no query is left open between two of them."""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from typing import Final

from polyloop.stores._listing import Listing, RunState, RunSummary, place
from polyloop.stores.sqlite.file import STATE
from polyloop.types import RunKey, StopReason
from polyloop.types._checks import MAX_KEY_CHARS

PAGE_ROWS: Final = 200
"""How many rows a query gives at most."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_REASONS: Final = ", ".join(f"'{reason}'" for reason in StopReason)
_SOUND: Final = (
    f"({STATE}) <> 'damaged' and (stop_reason is null or stop_reason in ({_REASONS})) and started_at <> ''"
    " and typeof(started_at) = 'text' and typeof(last_record_at) = 'text' and typeof(steps) = 'integer' and steps >= 0"
)
"""What must hold of a row for its summary to make sense."""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """One statement and its values."""

    sql: str
    """The statement, without its limit."""
    values: tuple[str | int, ...]
    """Its values."""


def read_page(connection: sqlite3.Connection, listing: Listing) -> list[RunSummary]:
    """The first runs of a listing: a page of them, fewer only where there are no more."""
    wanted = PAGE_ROWS if listing.limit is None else min(listing.limit, PAGE_ROWS)
    found: list[RunSummary] = []
    for query in queries(listing):
        if len(found) < wanted:
            rows = connection.execute(f"{query.sql} limit ?", (*query.values, wanted - len(found)))
            found += map(_summary, rows)
    return found


def queries(listing: Listing) -> list[Query]:
    """What a listing asks, one after the other: damaged rows have no start, and stand before all others."""
    after = None if listing.after is None else place(listing.after)
    asked = []
    if listing.state in (None, RunState.DAMAGED) and (not (after and after[0]) or listing.newest_first):
        beyond = after[1:] if after and not after[0] else ()
        asked.append(_query(listing, "'damaged'", f"not ({_SOUND})", ("key",), beyond))
    if listing.state is not RunState.DAMAGED and (not after or after[0] or not listing.newest_first):
        condition = f"({STATE}) = '{listing.state}' and {_SOUND}" if listing.state else _SOUND
        asked.append(_query(listing, STATE, condition, ("started_at", "key"), after or ()))
    return asked[::-1] if listing.newest_first else asked


def _query(listing: Listing, state: str, condition: str, order: tuple[str, ...], beyond: tuple[str, ...]) -> Query:
    # Plain values: with an expression in their place SQLite would look up the start alone.
    values: list[str | int] = [_bindable(text) for text in beyond]
    if beyond:
        marks = ", ".join(["?"] * len(beyond))
        condition += f" and ({', '.join(order)}) {'<' if listing.newest_first else '>'} ({marks})"
    if listing.prefix:
        condition += " and substr(key, 1, ?) = ?"
        values += [len(listing.prefix), _bindable(listing.prefix)]
    by = ", ".join(f"{column} {'desc' if listing.newest_first else 'asc'}" for column in order)
    # Nothing that a caller hands in stands in the text of the statement.
    columns = f"key, {state}, started_at, last_record_at, steps, stop_reason"
    return Query(f"select {columns} from runs where {condition} order by {by}", tuple(values))  # noqa: S608 - see above


def _bindable(given: str) -> str:
    # SQLite takes no lone surrogates. No text that it holds lies between them and the code points below.
    found = _SURROGATE.search(given)
    return given if found is None else given[: found.start()] + "\ud7ff" + "\U0010ffff" * (MAX_KEY_CHARS + 1)


def _summary(row: tuple[str, str, str, str, int, str | None]) -> RunSummary:
    key, state, started_at, last_record_at, steps, reason = row
    damaged = state == RunState.DAMAGED
    return RunSummary(
        key=RunKey(key),
        state=RunState(state),
        started_at=None if damaged else started_at,
        last_record_at=None if damaged else last_record_at,
        steps=None if damaged else steps,
        stop_reason=None if damaged or reason is None else StopReason(reason),
    )
