"""Every implementation that the library and its examples ship, and the fakes that the tests use instead.

An implementation is loaded when a test asks for it. One whose package is not installed is skipped by name.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from polyloop.ports import ModelCall, RunStore
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import ChatMessage, ModelReply
from tests.contract.cases import ModelCase, StoreFactory, kept_in_memory
from tests.fakes import HANG, ScriptedModel

SubjectT = TypeVar("SubjectT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Implementation(Generic[SubjectT]):
    """One adapter: a name for the reports, and how to come by its case, or for a store by its factory."""

    name: str
    load: Callable[[], SubjectT]
    requires: str | None = None
    """The package that must be installed for it; None where the library's own dependencies do."""

    def missing(self) -> str | None:
        """Why it cannot be loaded here; None where it can."""
        if self.requires is None or importlib.util.find_spec(self.requires) is not None:
            return None
        return f"{self.name}: the package {self.requires} is not installed"


# ------------------------------------------------------------------------------------------- run stores


@kept_in_memory
def ephemeral(_: Path) -> RunStore:
    """The store that forgets."""
    return EphemeralRunStore()


def jsonl(folder: Path) -> JsonlRunStore:
    """The file store."""
    return JsonlRunStore(folder)


def _store(name: str, factory: StoreFactory, requires: str | None = None) -> Implementation[StoreFactory]:
    return Implementation(name=name, load=lambda: factory, requires=requires)


RUN_STORES: tuple[Implementation[StoreFactory], ...] = (_store("ephemeral", ephemeral), _store("jsonl", jsonl))


# ------------------------------------------------------------------------------------------------ models


def scripted_model() -> ModelCase:
    """The scripted model of the tests."""

    def said(call: ModelCall) -> str:
        return f"{call.key} {call.result_id}"

    def fails(_: ModelCall) -> ConnectionError:
        return ConnectionError("the endpoint is closed")

    return ModelCase(
        make=lambda: ScriptedModel(said),
        messages=(ChatMessage(role="user", content="Say something."),),
        binding={},
        expected=lambda call: ModelReply(call_id=f"call-{call.call_index}", text=said(call), reasoning=None),
        make_failing=lambda: ScriptedModel(fails),
        make_hanging=lambda: ScriptedModel(lambda _: HANG),
    )


MODEL_PORTS: tuple[Implementation[ModelCase], ...] = (Implementation(name="scripted", load=scripted_model),)
