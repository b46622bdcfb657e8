"""How a zoo is judged: a wrong adapter must fail, for the promise that it breaks and for no other.

A right adapter stands beside each zoo. Every wrong one is derived from it and differs in one fault, so what fails
is due to that fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tests.contract.promises import PATIENCE_S, Promise, PromiseBroken, Unchecked

SubjectT = TypeVar("SubjectT")
MakerT = TypeVar("MakerT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wrong(Generic[MakerT]):
    """A wrong adapter."""

    fault: str
    """What is wrong with it, in a sentence."""
    make: MakerT
    """Builds it, or its case."""
    caught_by: frozenset[str]
    """The promises that it breaks: all of them must fail."""
    besides: frozenset[str]
    """Promises that may fail with them, for the same fault; no further one may."""
    patience_s: float
    """How long to wait for a check that must fail. Short for an adapter whose fault is to hang."""

    def __str__(self) -> str:
        return getattr(self.make, "__name__", self.fault)


class Zoo(Generic[MakerT]):
    """Wrong adapters of one port."""

    def __init__(self) -> None:
        self.inmates: list[Wrong[MakerT]] = []

    def breaks(
        self, *promises: str, besides: frozenset[str] = frozenset(), patience_s: float = PATIENCE_S
    ) -> Callable[[MakerT], MakerT]:
        """Put a class or function in: its docstring is the fault, the names are the promises that it breaks."""

        def put_in(make: MakerT) -> MakerT:
            fault = (make.__doc__ or "").strip()
            inmate = Wrong(
                fault=fault, make=make, caught_by=frozenset(promises), besides=besides, patience_s=patience_s
            )
            self.inmates.append(inmate)
            return make

        return put_in


async def broken_promises(
    promises: Sequence[Promise[SubjectT]], subject: Callable[[str], SubjectT], wrong: Wrong[MakerT] | None
) -> dict[str, str]:
    """The promises that a subject breaks, with the message of each. Each has a subject of its own."""
    broken: dict[str, str] = {}
    for promise in promises:
        try:
            patience_s = wrong.patience_s if wrong is not None and promise.name in wrong.caught_by else PATIENCE_S
            await promise.verify(subject(promise.name), patience_s=patience_s)
        except PromiseBroken as failure:
            broken[promise.name] = str(failure)
        except Unchecked as reason:
            raise AssertionError(f"the right adapter of a zoo has everything to check by: {reason}") from reason
    return broken


def judge(wrong: Wrong[MakerT], broken: dict[str, str]) -> None:
    """The adapter was caught for what it does wrong."""
    missed = sorted(wrong.caught_by - broken.keys())
    assert not missed, f"{wrong.fault!r} was not caught by {missed}; it broke {sorted(broken)}"
    besides = sorted(broken.keys() - wrong.caught_by - wrong.besides)
    told = "\n".join(broken[name] for name in besides)
    assert not besides, f"{wrong.fault!r} broke other promises too: {besides}\n{told}"


def never_caught(promises: Iterable[Promise[SubjectT]], zoo: Iterable[Wrong[MakerT]]) -> list[str]:
    """The promises for which no wrong adapter stands."""
    caught = {name for wrong in zoo for name in wrong.caught_by}
    return [promise.name for promise in promises if promise.name not in caught]


def unknown_names(promises: Iterable[Promise[SubjectT]], zoo: Iterable[Wrong[MakerT]]) -> list[str]:
    """The names in a zoo that are no promise."""
    known = {promise.name for promise in promises}
    return [name for wrong in zoo for name in sorted(wrong.caught_by) if name not in known]
