"""All promises of `DecisionParser`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from polyloop.ports import ActionDecision, DecisionParser, FinalAnswer, InvalidDecision, ParsedReply
from polyloop.types import ActionKind, ModelReply
from tests.contract.cases import ParserCase
from tests.contract.port_checks import (
    CANCELLATION,
    MANY_RUNS,
    Configured,
    add_params_promises,
    expect_any_task,
    passes_cancellation,
)
from tests.contract.promises import PromiseBroken, Suite, Unchecked, demand, described, opened
from tests.contract.records import difference
from tests.contract.replies import BLANK, FENCES, LARGE, NOT_QUITE_JSON, ODD_TEXTS, TAGS, damaged

SUITE = Suite[ParserCase]("DecisionParser")

SEED = 20260304
"""Of the damage that is done to the case's replies. A failure shows the reply itself."""

ANY_INPUT = "Returns for any input: an unreadable reply is an `InvalidDecision`."
SAME = "The same reply is read the same way every time, whatever was read before it."
KIND = "The kind of action that the decisions hold."
HISTORY = "What enters the history as the assistant's message: the reply, or the part of it that counts."
REMEDY = "What the model reads as this step's observation: the remedy for this very failure, not a fixed text."
NAMED_TOOL = "The tool to call; None for an action that is no tool call."


def a_reply(text: str, *, reasoning: str | None = None, call_id: str | None = "c") -> ModelReply:
    """A reply of the suite."""
    return ModelReply(call_id=call_id, text=text, reasoning=reasoning)


async def read(parser: DecisionParser, reply: ModelReply) -> ParsedReply:
    """The parser reads the reply, and gives what it is to give."""
    shown = f"the reply {reply.text[:120]!a} ({len(reply.text):,} characters)"
    try:
        parsed: object = await parser.parse(reply)
    except Exception as error:
        raise PromiseBroken(f"parse raised {described(error)} for {shown}") from error
    demand(isinstance(parsed, ParsedReply), f"parse returned a {type(parsed).__name__} for {shown}")
    assert isinstance(parsed, ParsedReply)
    return parsed


async def read_all(case: ParserCase, texts: Iterable[str]) -> None:
    """A fresh parser reads each of the texts."""
    async with opened(case.make(), "parser") as parser:
        for text in texts:
            await read(parser, a_reply(text))


def valid_samples(case: ParserCase) -> tuple[str, ...]:
    """The replies of the case that hold a decision."""
    return (*case.actions, *case.finals)


async def _use(case: ParserCase, port: Configured) -> object:
    parser: DecisionParser = port  # type: ignore[assignment]  # a port of this suite is a parser
    return [await parser.parse(a_reply(text)) for text in (*valid_samples(case), *case.invalids, "")]


add_params_promises(SUITE, _use)


# --------------------------------------------------------------------------------- what decisions look like


@SUITE.promise(KIND, look_at="produces: a property that gives a polyloop.ActionKind, always the same")
async def produces_is_a_kind_of_action(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser, opened(case.make(), "parser") as another:
        first: object = parser.produces
        demand(isinstance(first, ActionKind), f"produces is a {type(first).__name__}, no ActionKind")
        for text in (*valid_samples(case), *case.invalids, ""):
            await parser.parse(a_reply(text))
            demand(
                parser.produces is first, f"produces is {parser.produces!r} after a reply was read, it was {first!r}"
            )
        demand(another.produces is first, "two parsers built alike produce different kinds")


@SUITE.promise("Read one reply.", look_at="replies of the language: those of the case that hold an action")
async def actions_are_read(case: ParserCase) -> None:
    demand(case.actions, "the case names no reply with an action")
    async with opened(case.make(), "parser") as parser:
        for text in case.actions:
            decision = (await read(parser, a_reply(text))).decision
            demand(isinstance(decision, ActionDecision), f"{text[:120]!a} was read as {decision!r:.300}")


@SUITE.promise(NAMED_TOOL, look_at="tool_name: a name for ActionKind.TOOL_CALL, None for ActionKind.TEXT")
async def actions_are_of_the_kind_that_is_produced(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        calls = parser.produces is ActionKind.TOOL_CALL
        for text in case.actions:
            decision = (await read(parser, a_reply(text))).decision
            if isinstance(decision, ActionDecision):
                named = decision.tool_name is not None
                demand(named == calls, f"produces is {parser.produces}, and tool_name is {decision.tool_name!r:.80}")
                demand(decision.tool_name != "", "tool_name is empty; give None for an action that is no tool call")


@SUITE.promise("Read one reply.", look_at="replies of the language: those of the case that hold the final answer")
async def final_answers_are_read(case: ParserCase) -> None:
    if not case.finals:
        raise Unchecked("the case names no `finals`")
    async with opened(case.make(), "parser") as parser:
        for text in case.finals:
            decision = (await read(parser, a_reply(text))).decision
            demand(isinstance(decision, FinalAnswer), f"{text[:120]!a} was read as {decision!r:.300}")


@SUITE.promise(ANY_INPUT, look_at="replies that cannot be read: an InvalidDecision, no guess and no empty answer")
async def unreadable_replies_are_invalid_decisions(case: ParserCase) -> None:
    if not case.invalids:
        raise Unchecked("the case names no `invalids`")
    async with opened(case.make(), "parser") as parser:
        for text in case.invalids:
            decision = (await read(parser, a_reply(text))).decision
            demand(isinstance(decision, InvalidDecision), f"{text[:120]!a} was read as {decision!r:.300}")


@SUITE.promise(REMEDY, look_at="reason: the model reads it and nothing else; say what was wrong and what to do")
async def each_failure_has_a_reason_of_its_own(case: ParserCase) -> None:
    if len(case.invalids) < 2:
        raise Unchecked("the case names fewer than two `invalids`")
    reasons: dict[str, str] = {}
    async with opened(case.make(), "parser") as parser:
        for text in case.invalids:
            decision = (await read(parser, a_reply(text))).decision
            if isinstance(decision, InvalidDecision):
                demand(decision.reason.strip(), f"the reason for {text[:120]!a} is blank")
                same = reasons.setdefault(decision.reason, text)
                both = f"{same[:120]!a} and {text[:120]!a}"
                demand(same == text, f"{both} fail in different ways and have one reason: {decision.reason[:200]!r}")


@SUITE.promise(HISTORY, look_at="history_text: the text of this reply, or the part of it that was read; nothing added")
async def the_history_holds_the_reply(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        for text in valid_samples(case):
            parsed = await read(parser, a_reply(text))
            demand(parsed.history_text, f"history_text of {text[:120]!a} is empty")
            what = f"history_text {parsed.history_text[:120]!a} is no part of the reply {text[:120]!a}"
            demand(parsed.history_text in text, what)


# -------------------------------------------------------------------------------------------- any input


@SUITE.promise(ANY_INPUT, look_at="empty and blank replies")
async def blank_replies_are_read(case: ParserCase) -> None:
    await read_all(case, BLANK)


@SUITE.promise(ANY_INPUT, look_at="replies whose text is empty, with reasoning beside it, and reasoning of any content")
async def replies_of_reasoning_alone_are_read(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        for reasoning in (None, "", " ", "I think.", *valid_samples(case), *ODD_TEXTS):
            for text in ("", " ", case.actions[0]):
                await read(parser, a_reply(text, reasoning=reasoning))


@SUITE.promise(ANY_INPUT, look_at="call_id: None where the gateway has no id, otherwise any text")
async def replies_without_a_call_id_are_read(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        for call_id in (None, "\0", "x" * 100_000):
            await read(parser, a_reply(case.actions[0], call_id=call_id))


@SUITE.promise(ANY_INPUT, look_at="NUL characters, lone surrogates (UTF-8 cannot encode them), odd line separators")
async def odd_characters_are_read(case: ParserCase) -> None:
    await read_all(case, ODD_TEXTS)
    await read_all(case, (sample + odd for sample in valid_samples(case) for odd in ODD_TEXTS))
    await read_all(case, (odd + sample for sample in valid_samples(case) for odd in ODD_TEXTS))


@SUITE.promise(ANY_INPUT, look_at="JSON readers: errors of all kinds, huge integers, NaN, values of any other type")
async def broken_json_is_read(case: ParserCase) -> None:
    await read_all(case, NOT_QUITE_JSON)
    await read_all(case, (f"```json\n{text}\n```" for text in NOT_QUITE_JSON))


@SUITE.promise(ANY_INPUT, look_at="fences and tags that are empty, not closed, nested, or of another language")
async def broken_markup_is_read(case: ParserCase) -> None:
    await read_all(case, (*FENCES, *TAGS))
    await read_all(case, (text + sample for text in (*FENCES, *TAGS) for sample in valid_samples(case)))


@SUITE.promise(ANY_INPUT, look_at="100,000 brackets (RecursionError), megabytes, patterns that backtrack for minutes")
async def deep_and_large_replies_are_read(case: ParserCase) -> None:
    await read_all(case, LARGE)


@SUITE.promise("It does not raise.", look_at="replies of the language that are cut short or slightly wrong")
async def damaged_replies_are_read(case: ParserCase) -> None:
    await read_all(case, damaged((*valid_samples(case), *case.invalids), SEED, 400))


# ------------------------------------------------------------------------------------------- no memory


async def expect_same(parser: DecisionParser, text: str, expected: ParsedReply, when: str) -> None:
    """The parser reads a text as before."""
    problem = difference(expected, await read(parser, a_reply(text)), "the parsed reply")
    demand(problem is None, f"{when}, {text[:120]!a} was read differently: {problem}".replace("written", "first"))


@SUITE.promise(SAME, look_at="counters, last replies and random choices that are kept in the parser")
async def the_same_reply_is_read_the_same_way(case: ParserCase) -> None:
    texts = [*valid_samples(case), *case.invalids, *BLANK, *NOT_QUITE_JSON[:12], *FENCES]
    async with opened(case.make(), "parser") as parser:
        first = {text: await read(parser, a_reply(text)) for text in texts}
        for text in (*texts, *reversed(texts)):
            await expect_same(parser, text, first[text], "after other replies were read")
    async with opened(case.make(), "parser") as fresh:
        for text in reversed(texts):
            await expect_same(fresh, text, first[text], "by a fresh parser")


@SUITE.promise(MANY_RUNS, look_at="what is kept in the parser while a reply is being read")
async def replies_read_at_once_do_not_mix(case: ParserCase) -> None:
    texts = [*valid_samples(case), *case.invalids, "one text", "another text"]
    async with opened(case.make(), "parser") as parser:
        first = {text: await read(parser, a_reply(text)) for text in texts}
        for _ in range(3):
            calls = (expect_same(parser, text, first[text], "beside other replies") for text in texts)
            await asyncio.gather(*calls)


@SUITE.promise(
    CANCELLATION, look_at="except BaseException, meant to keep parse from raising: it swallows cancellations"
)
async def a_cancellation_passes(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        for text in (*case.actions[:1], *case.invalids[:1], ""):
            await passes_cancellation(lambda text=text: parser.parse(a_reply(text)))  # type: ignore[misc]  # bound early


@SUITE.promise(
    "It is awaited from one task of the run.",
    look_at="context variables and locks that belong to the task that built the parser",
)
async def a_reply_is_read_in_any_task(case: ParserCase) -> None:
    async with opened(case.make(), "parser") as parser:
        await expect_any_task(lambda: read(parser, a_reply(case.actions[0])))


PROMISES = SUITE.promises
