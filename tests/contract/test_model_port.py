"""Model ports keep the promises of `ModelPort`."""

from __future__ import annotations

import pytest

from tests.contract import options
from tests.contract.cases import ModelCase
from tests.contract.implementations import MODEL_PORTS, Implementation
from tests.contract.model_suite import PROMISES
from tests.contract.promises import Promise
from tests.contract.running import keep, loaded, parametrized

OPTION = options.MODEL_PORT.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrized(metafunc, options.MODEL_PORT, MODEL_PORTS, PROMISES)


async def test_model_port(implementation: Implementation[ModelCase], promise: Promise[ModelCase]) -> None:
    await keep(promise, loaded(implementation))
