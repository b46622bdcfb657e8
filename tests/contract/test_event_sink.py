"""Event sinks keep the promises of `EventSink`."""

from __future__ import annotations

import pytest

from tests.contract import options
from tests.contract.cases import SinkCase
from tests.contract.implementations import EVENT_SINKS, Implementation
from tests.contract.promises import Promise
from tests.contract.running import keep, loaded, parametrized
from tests.contract.sink_suite import PROMISES

OPTION = options.EVENT_SINK.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrized(metafunc, options.EVENT_SINK, EVENT_SINKS, PROMISES)


async def test_event_sink(implementation: Implementation[SinkCase], promise: Promise[SinkCase]) -> None:
    await keep(promise, loaded(implementation))
