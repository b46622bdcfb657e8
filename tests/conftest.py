"""The options of the contract suites, and the limit of time for the long tests.

The options are added here and not in `tests/contract`, since pytest reads this file before it parses the command line,
whichever folder it is started for.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests import verify_limit
from tests.contract import options
from tests.proof import plugin as proof

# No limits of time within a test: a busy machine is no fault of the code. The timeout of pytest bounds each test.
settings.register_profile(
    "polyloop", parent=settings(), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("polyloop")


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    options.load_options(config)
    config.pluginmanager.register(verify_limit)
    config.pluginmanager.register(proof)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With an option only its suite runs: a test module says by `OPTION` which suite it is."""
    names = options.chosen(config).keys()
    if not names:
        return
    asked = [item for item in items if getattr(getattr(item, "module", None), "OPTION", None) in names]
    config.hook.pytest_deselected(items=[item for item in items if item not in asked])
    items[:] = asked
