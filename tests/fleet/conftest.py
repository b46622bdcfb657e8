"""The database of a fleet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.postgres import server


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    """The tables of a store and of a queue, of one's own."""
    from examples.fleet import fleet

    found = server.schema(str(tmp_path))
    assert asyncio.run(fleet.setup(found)) == "the tables are there"
    return found
