"""All promises of `RunStore`."""

from __future__ import annotations

from tests.contract import store_objects, store_positions, store_tasks, store_values
from tests.contract.store_tools import SUITE

PARTS = (store_values, store_positions, store_objects, store_tasks)
"""The modules that hold the promises; importing them adds their promises to the suite."""

PROMISES = SUITE.promises
