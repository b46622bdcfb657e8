"""`SqliteRunStore`: any number of runs in one SQLite file, with one sync for all barriers that wait at a time.

One thread writes. What was handed in while it was busy goes into the next transaction together (group commit).
Results and steps are not waited for: they ride with the next barrier of any run, or go by themselves after 70 ms.

A batch gives every run what single appends would have given it: records are judged in order against the run's head
row, under the lock of `begin immediate`, and behind a refused one nothing of that run goes in.
"""

from __future__ import annotations

from polyloop.stores.sqlite.store import SqliteRunStore

__all__ = ["SqliteRunStore"]
