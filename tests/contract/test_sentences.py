"""Every sentence of the ports' contract has a case or a reason for having none, and no case is without its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from polyloop import ports
from polyloop.types import values
from tests.contract import executor_suite, model_suite, parser_suite, sink_suite, store_suite
from tests.contract.promises import Promise
from tests.contract.sentences import ELSEWHERE, documented, normalised, unclaimed

PROMISES: tuple[Promise[Any], ...] = (
    *store_suite.PROMISES,
    *model_suite.PROMISES,
    *parser_suite.PROMISES,
    *executor_suite.PROMISES,
    *sink_suite.PROMISES,
)

PORTS = ("RunStore", "ModelPort", "DecisionParser", "ActionExecutor", "EventSink")

CONTRACT = {
    owner: text for owner, text in documented(ports) if owner == ports.__name__ or owner.partition(".")[0] in PORTS
}
"""What the suites are about: the module's docstring, those of the five protocols, and those of their members."""

EVERYTHING = " ".join(text for module in (ports, values) for _, text in documented(module))
"""What a promise may quote: also the documentation of what crosses a seam."""


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.port}-{promise.name}")
def test_a_promise_quotes_its_sentence(promise: Promise[Any]) -> None:
    assert normalised(promise.sentence) in EVERYTHING


@pytest.mark.parametrize("owner", CONTRACT)
def test_every_sentence_has_a_case_or_a_reason(owner: str) -> None:
    quotes = [promise.sentence for promise in PROMISES]
    reasons = [sentence for sentences in ELSEWHERE.values() for sentence in sentences]
    assert unclaimed(CONTRACT[owner], [*quotes, *reasons]) == ""


@pytest.mark.parametrize("reason", ELSEWHERE)
def test_what_is_checked_elsewhere_is_still_written(reason: str) -> None:
    written = " ".join(CONTRACT.values())
    assert [sentence for sentence in ELSEWHERE[reason] if normalised(sentence) not in written] == []


def test_names_of_promises_are_unique_within_a_port() -> None:
    names = [(promise.port, promise.name) for promise in PROMISES]
    assert len(set(names)) == len(names)


def test_a_sentence_that_nobody_claims_is_found() -> None:
    """The check above can fail: a new sentence is left over, and so is one that a promise quotes in part only."""
    text = "Returns: An `ActionOutcome`. It is polite. The run goes on."
    assert unclaimed(text, ["An `ActionOutcome`.", "The run"]) == "It is polite. goes on."
