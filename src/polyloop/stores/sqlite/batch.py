"""One transaction with the records of many runs."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from typing import Final, TypeAlias

from polyloop.stores.sqlite.file import transaction
from polyloop.stores.sqlite.heads import Heads, insert_rows
from polyloop.stores.sqlite.rows import Item, record_row
from polyloop.types import CorruptionReason, CorruptRunLog, PolyLoopError

Refused: TypeAlias = list[tuple[Item, Exception]]
"""The records that did not go in, each with its reason."""

_ONE_RUNS_FAULT: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)
"""A row stands where none should, or a text is longer than SQLite takes: that of one run, and not of the medium."""


def put_in(connection: sqlite3.Connection, heads: Heads, batch: Sequence[Item]) -> Refused:
    """Put in each run's records up to the first that is refused, durably; the refused ones, each with its reason."""
    try:
        with transaction(connection, "begin immediate"):
            refused = _put(connection, heads, batch)
    except _ONE_RUNS_FAULT:
        # It must not take the others' records with it.
        refused = _put_run_by_run(connection, heads, batch)
    else:
        heads.committed()
    return refused


def _put(connection: sqlite3.Connection, heads: Heads, batch: Sequence[Item]) -> Refused:
    heads.refresh(connection, (item.key for item in batch))
    rows: list[tuple[object, ...]] = []
    refused: Refused = []
    failures: dict[str, PolyLoopError] = {}
    for item in batch:
        if item.key not in failures:
            try:
                heads.move(item.key, item.record)
            except PolyLoopError as failure:
                failures[item.key] = failure
            else:
                rows.append(record_row(item.key, item.record, item.text or ""))
                continue
        refused.append((item, failures[item.key]))
    insert_rows(connection, "insert into records", rows)
    heads.write(connection)
    return refused


def _put_run_by_run(connection: sqlite3.Connection, heads: Heads, batch: Sequence[Item]) -> Refused:
    runs: dict[str, list[Item]] = {}
    for item in batch:
        runs.setdefault(item.key, []).append(item)
    refused: Refused = []
    heads.forget()
    try:
        with transaction(connection, "begin immediate"):
            for key, items in runs.items():
                refused += _put_in_savepoint(connection, heads, key, items)
    finally:
        heads.forget()
    return refused


def _put_in_savepoint(connection: sqlite3.Connection, heads: Heads, key: str, items: list[Item]) -> Refused:
    connection.execute("savepoint run")
    try:
        return _put(connection, heads, items)
    except _ONE_RUNS_FAULT as error:
        connection.execute("rollback to run")
        failure: Exception = error
        if isinstance(error, sqlite3.IntegrityError):
            problem = "its head row is missing or behind its records"
            failure = CorruptRunLog(CorruptionReason.WRONG_POSITION, problem, key=key)
        return list(zip(items, itertools.repeat(failure)))
    finally:
        # An error that has ended the whole transaction has ended this with it.
        if connection.in_transaction:
            connection.execute("release run")
