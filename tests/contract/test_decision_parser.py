"""Decision parsers keep the promises of `DecisionParser`."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contract import options
from tests.contract.cases import ParserCase
from tests.contract.implementations import DECISION_PARSERS, Implementation
from tests.contract.parser_suite import PROMISES, a_reply, read
from tests.contract.promises import Promise, opened
from tests.contract.running import keep, loaded, parametrized

OPTION = options.DECISION_PARSER.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrized(metafunc, options.DECISION_PARSER, DECISION_PARSERS, PROMISES)


async def test_decision_parser(implementation: Implementation[ParserCase], promise: Promise[ParserCase]) -> None:
    await keep(promise, loaded(implementation))


def test_any_text_is_read(implementation: Implementation[ParserCase]) -> None:
    """Beside the texts of the suite, those that Hypothesis finds; surrogates and NULs are among them."""
    case = loaded(implementation)

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(text=st.text(st.characters(exclude_categories=())), reasoning=st.none() | st.text())
    @example(text="", reasoning="")
    def any_text(text: str, reasoning: str | None) -> None:
        async def parse() -> None:
            async with opened(case.make(), "parser") as parser:
                await read(parser, a_reply(text, reasoning=reasoning))

        asyncio.run(parse())

    any_text()
