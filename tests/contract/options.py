"""The options by which an author runs a suite against an adapter of their own.

::

    pytest tests/contract --run-store my_pkg.stores:make_store

Each names a factory, `module:callable`, that Python can import: from an installed package, or from a folder on
PYTHONPATH. An option runs its suite against that implementation alone; everything else is deselected.
"""

from __future__ import annotations

import dataclasses
import importlib
import traceback
from collections.abc import Callable
from typing import Final, cast

import pytest

from tests.contract.cases import ExecutorCase, ModelCase, ParserCase, SinkCase


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, and what it must lead to."""

    name: str
    """As it is written, with the dashes."""
    gives: str
    """What its callable takes and gives."""
    case: type | None
    """The class of the case that it gives; None for a store's factory, which is called with a folder later."""


RUN_STORE: Final = Option(name="--run-store", gives="(tmp_path) -> RunStore or async context manager", case=None)
MODEL_PORT: Final = Option(name="--model-port", gives="() -> ModelCase", case=ModelCase)
DECISION_PARSER: Final = Option(name="--decision-parser", gives="() -> ParserCase", case=ParserCase)
ACTION_EXECUTOR: Final = Option(name="--action-executor", gives="() -> ExecutorCase", case=ExecutorCase)
EVENT_SINK: Final = Option(name="--event-sink", gives="() -> SinkCase", case=SinkCase)

OPTIONS: Final = (RUN_STORE, MODEL_PORT, DECISION_PARSER, ACTION_EXECUTOR, EVENT_SINK)

_CHOSEN: Final = pytest.StashKey[dict[str, tuple[str, object]]]()


def add_options(parser: pytest.Parser) -> None:
    """Add the five options."""
    group = parser.getgroup("polyloop", "contract suites of polyloop (tests/contract/cases.py says more)")
    for option in OPTIONS:
        text = f"run the suite of this port against this implementation alone; {option.gives}"
        group.addoption(option.name, metavar="MODULE:CALLABLE", help=text)


def load_options(config: pytest.Config) -> None:
    """Import what the options name, so that a wrong value ends the session before its first test.

    Raises:
        pytest.UsageError: saying which option is wrong, and what it should be.
    """
    values = {option: config.getoption(option.name) for option in OPTIONS}
    config.stash[_CHOSEN] = {
        option.name: (value, load(option, value)) for option, value in values.items() if value is not None
    }


def chosen(config: pytest.Config) -> dict[str, tuple[str, object]]:
    """What the options name: by option its value, and the case or the store's factory that it leads to."""
    return config.stash[_CHOSEN]


def load(option: Option, value: str) -> object:
    """What an option's value leads to: the case, or the store's factory.

    Raises:
        pytest.UsageError: saying what is wrong with the value.
    """
    factory = _callable(option, value)
    if option.case is None:
        return factory
    try:
        case = factory()
    except Exception as error:
        raise _wrong(option, value, f"calling it failed with {_told(error)}") from error
    if not isinstance(case, option.case):
        raise _wrong(option, value, f"it gave {type(case).__name__}, must be {option.gives}")
    return case


def _callable(option: Option, value: str) -> Callable[[], object]:
    module_name, _, name = value.partition(":")
    if not (module_name and name):
        raise _wrong(option, value, "must be MODULE:CALLABLE, such as my_pkg.adapters:make_it")
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        remedy = "is the package installed, or its folder on PYTHONPATH?"
        raise _wrong(option, value, f"importing {module_name} failed, {remedy} {_told(error)}") from error
    if not hasattr(found, name):
        raise _wrong(option, value, f"{module_name} has no {name}")
    found = getattr(found, name)
    if not callable(found):
        raise _wrong(option, value, f"{name} is not callable, must be {option.gives}")
    return cast("Callable[[], object]", found)


def _wrong(option: Option, value: str, problem: str) -> pytest.UsageError:
    return pytest.UsageError(f"{option.name} {value}: {problem}")


def _told(error: Exception) -> str:
    return "".join(["\n", *traceback.format_exception(error)[-6:]])
