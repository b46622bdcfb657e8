"""A place for what is read back thousands of times: in memory where there is such a place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory, in memory if possible."""
    place = Path("/dev/shm")  # noqa: S108 - the names in it are made by tempfile
    if not os.access(place, os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="polyloop-", dir=place) as made:
        yield Path(made)
