"""How pytest runs a suite: one test for each implementation and promise. All that knows of pytest is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import pytest

from tests.contract.implementations import Implementation
from tests.contract.options import Option, chosen
from tests.contract.promises import Promise, Unchecked

SubjectT = TypeVar("SubjectT")
LoadedT = TypeVar("LoadedT")


def parametrized(
    metafunc: pytest.Metafunc,
    option: Option,
    shipped: Sequence[Implementation[LoadedT]],
    promises: Sequence[Promise[SubjectT]],
) -> None:
    """Every promise for every implementation: those that are shipped, or the one that the option names."""
    if "implementation" not in metafunc.fixturenames:
        return
    implementations = shipped
    if option.name in chosen(metafunc.config):
        name, found = chosen(metafunc.config)[option.name]
        implementations = [Implementation(name=name, load=lambda: cast("LoadedT", found))]
    metafunc.parametrize("implementation", implementations, ids=[each.name for each in implementations])
    if "promise" in metafunc.fixturenames:
        metafunc.parametrize("promise", promises, ids=[each.name for each in promises])


def loaded(implementation: Implementation[LoadedT]) -> LoadedT:
    """The implementation's case or factory; the test is skipped where its package is missing."""
    if (reason := implementation.missing()) is not None:
        pytest.skip(reason)
    return implementation.load()


async def keep(promise: Promise[SubjectT], subject: SubjectT) -> None:
    """The subject keeps the promise; the test is skipped where it gives nothing to check by."""
    try:
        await promise.verify(subject)
    except Unchecked as reason:
        pytest.skip(f"{promise.name}: {reason}")
