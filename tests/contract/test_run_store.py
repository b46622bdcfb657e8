"""Run stores keep the promises of `RunStore`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import options
from tests.contract.cases import StoreCase, StoreFactory
from tests.contract.implementations import RUN_STORES, Implementation
from tests.contract.promises import Promise
from tests.contract.running import keep, loaded, parametrized
from tests.contract.store_suite import PROMISES

OPTION = options.RUN_STORE.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrized(metafunc, options.RUN_STORE, RUN_STORES, PROMISES)


async def test_run_store(
    implementation: Implementation[StoreFactory], promise: Promise[StoreCase], tmp_path: Path
) -> None:
    await keep(promise, StoreCase(make=loaded(implementation), path=tmp_path))
