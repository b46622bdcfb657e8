"""Action executors keep the promises of `ActionExecutor`."""

from __future__ import annotations

import pytest

from tests.contract import options
from tests.contract.cases import ExecutorCase
from tests.contract.executor_suite import PROMISES
from tests.contract.implementations import ACTION_EXECUTORS, Implementation
from tests.contract.promises import Promise
from tests.contract.running import keep, loaded, parametrized

OPTION = options.ACTION_EXECUTOR.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrized(metafunc, options.ACTION_EXECUTOR, ACTION_EXECUTORS, PROMISES)


async def test_action_executor(implementation: Implementation[ExecutorCase], promise: Promise[ExecutorCase]) -> None:
    await keep(promise, loaded(implementation))
