"""The stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.places import KINDS, ON_DISK, Place, place


@pytest.fixture(params=KINDS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store."""
    return place(request.param, tmp_path)


@pytest.fixture(params=ON_DISK)
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind that is files."""
    return place(request.param, tmp_path)
