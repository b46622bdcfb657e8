"""A pytest plugin that bounds the long tests: `POLYLOOP_VERIFY_SECONDS=600 make verify`.

Once the time is spent, the `slow` tests that have not begun are skipped, with the reason. One that has begun is
finished. So that each kind of check has its share, the files take turns. Without the variable all tests run.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "POLYLOOP_VERIFY_SECONDS"

_LIMIT: Final = pytest.StashKey[float | None]()
_START: Final = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_START] = time.monotonic()
    config.stash[_LIMIT] = limit_from(os.environ.get(VARIABLE))


def limit_from(text: str | None) -> float | None:
    """The limit in seconds; None for none."""
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if limit < 0:
        raise pytest.UsageError(f"{VARIABLE} must be a number of seconds, got {text!r}")
    return limit


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[_LIMIT] is not None:
        items[:] = in_turns(items)


def in_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """The long tests with their files taking turns, behind all others."""
    short = [item for item in items if item.get_closest_marker("slow") is None]
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None:
            files.setdefault(item.path, []).append(item)
    rounds = itertools.zip_longest(*files.values())
    return short + [item for each in rounds for item in each if item is not None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.stash[_LIMIT]
    if limit is None or item.get_closest_marker("slow") is None:
        return
    if time.monotonic() - item.config.stash[_START] > limit:
        pytest.skip(f"the {limit:g} s of {VARIABLE} are spent")
