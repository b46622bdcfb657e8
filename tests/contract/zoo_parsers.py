"""A right decision parser, and wrong ones that differ from it in one fault each."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from polyloop.ports import ActionDecision, Decision, FinalAnswer, InvalidDecision, ParsedReply
from polyloop.types import ActionKind, JSONValue, ModelReply
from tests.contract.cases import ParserCase
from tests.contract.parser_suite import ANY_INPUT, PROMISES
from tests.contract.zoo import Zoo

SECRET = "seed-do-not-show-me"  # noqa: S105 - it opens nothing

EVERYTHING = frozenset(promise.name for promise in PROMISES)
READING = frozenset(promise.name for promise in PROMISES if promise.sentence in {ANY_INPUT, "It does not raise."})
"""The promises about texts of all kinds; most faults in reading show in several of them."""
USING = frozenset({"params_stay_the_same", "produces_is_a_kind_of_action", "the_same_reply_is_read_the_same_way"})
"""The promises whose checks read a blank or an invalid reply on their way."""


class LineParser:
    """A right parser: a reply is one JSON object, `{"tool": ..., "arguments": {...}}` or `{"answer": ...}`."""

    def __init__(self) -> None:
        self._seed = SECRET

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"language": "one object", "keys": ("tool", "arguments", "answer")}

    @property
    def produces(self) -> ActionKind:
        return ActionKind.TOOL_CALL

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        await asyncio.sleep(0)
        return ParsedReply(history_text=reply.text or "(nothing)", decision=self.decide(reply.text))

    def decide(self, text: str) -> Decision:
        """The decision in a text."""
        if not text.strip():
            return InvalidDecision(reason="The reply is empty. Send one object.")
        try:
            value = self.value(text)
        except (ValueError, RecursionError) as error:
            return InvalidDecision(reason=f"The reply is no JSON: {type(error).__name__}: {str(error)[:200]}")
        return self.judge(text, value)

    def value(self, text: str) -> Any:
        """The JSON in a text."""
        return json.loads(text)

    def judge(self, text: str, value: Any) -> Decision:
        """The decision that a JSON value holds."""
        if not isinstance(value, dict):
            return InvalidDecision(reason=f"The reply must be an object, not a {type(value).__name__}.")
        if isinstance(value.get("answer"), str):
            return FinalAnswer(text=value["answer"])
        if not isinstance(value.get("tool"), str) or not value["tool"]:
            return InvalidDecision(reason='The object has neither a "tool" nor an "answer".')
        if not isinstance(value.get("arguments", {}), dict):
            return InvalidDecision(reason='"arguments" must be an object.')
        return ActionDecision(action_text=text, tool_name=value["tool"], arguments=value.get("arguments", {}))


def case_of(parser: type[LineParser]) -> ParserCase:
    """The case of such a parser."""
    return ParserCase(
        make=parser,
        actions=('{"tool": "search", "arguments": {"query": "x"}}', '{"tool": "look"}'),
        finals=('{"answer": "42"}', '{"answer": ""}'),
        invalids=("", "I would rather not.", "[]", "{}", '{"tool": "look", "arguments": 7}'),
        secrets=(SECRET,),
    )


PARSERS = Zoo[type[LineParser]]()
wrong = PARSERS.breaks

# ---------------------------------------------------------------------------------------------------- params


@wrong("params_are_plain_json")
class ParamsWithInfinity(LineParser):
    """Has a number in its params that is no JSON."""

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"limit": float("inf")}


@wrong("params_hold_no_secret")
class ParamsWithTheSeed(LineParser):
    """Shows what it was to keep to itself."""

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"language": f"one object, salted with {self._seed}"}


@wrong("params_stay_the_same")
class ParamsCountFailures(LineParser):
    """Counts failures in its params."""

    failures = 0

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"failures": self.failures}

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        parsed = await super().parse(reply)
        self.failures += isinstance(parsed.decision, InvalidDecision)
        return parsed


@wrong("ports_built_alike_have_equal_params")
class ParamsWithAnAddress(LineParser):
    """Shows a function by its address."""

    def __init__(self) -> None:
        super().__init__()
        self.repair = object()

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"repair": str(self.repair)}


@wrong("the_repr_shows_no_secret")
class ShowsItself(LineParser):
    """Shows all its fields."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"


# -------------------------------------------------------------------------------------------------- decisions


@wrong("produces_is_a_kind_of_action", "actions_are_of_the_kind_that_is_produced")
class ProducesAString(LineParser):
    """Gives the literal of a kind."""

    @property
    def produces(self) -> Any:
        return "tool_call"


@wrong("produces_is_a_kind_of_action", besides=frozenset({"actions_are_of_the_kind_that_is_produced"}))
class ProducesWhatItLastRead(LineParser):
    """Changes its kind with what it reads."""

    last: Decision | None = None

    @property
    def produces(self) -> ActionKind:
        return ActionKind.TEXT if isinstance(self.last, FinalAnswer) else ActionKind.TOOL_CALL

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        parsed = await super().parse(reply)
        self.last = parsed.decision
        return parsed


@wrong("actions_are_of_the_kind_that_is_produced")
class NamesNoTool(LineParser):
    """Leaves the tool's name in the text of the action."""

    def decide(self, text: str) -> Decision:
        decision = super().decide(text)
        if isinstance(decision, ActionDecision):
            return dataclasses.replace(decision, tool_name=None)
        return decision


@wrong("actions_are_read")
class NeedsArguments(LineParser):
    """Reads no action that has no arguments."""

    def judge(self, text: str, value: Any) -> Decision:
        if isinstance(value, dict) and "tool" in value and "arguments" not in value:
            return InvalidDecision(reason='The object has no "arguments".')
        return super().judge(text, value)


@wrong("final_answers_are_read")
class TakesEmptyAnswersForNone(LineParser):
    """Tests the answer for truth."""

    def judge(self, text: str, value: Any) -> Decision:
        if isinstance(value, dict) and value.get("answer") == "":
            return InvalidDecision(reason="The answer is empty.")
        return super().judge(text, value)


@wrong("unreadable_replies_are_invalid_decisions")
class GuessesAnAnswer(LineParser):
    """Takes a reply that it cannot read for the final answer."""

    def decide(self, text: str) -> Decision:
        decision = super().decide(text)
        return FinalAnswer(text=text) if isinstance(decision, InvalidDecision) else decision


@wrong("each_failure_has_a_reason_of_its_own")
class HasOneReason(LineParser):
    """Says the same of every failure."""

    def decide(self, text: str) -> Decision:
        decision = super().decide(text)
        return InvalidDecision(reason="Invalid.") if isinstance(decision, InvalidDecision) else decision


@wrong("each_failure_has_a_reason_of_its_own")
class HasBlankReasons(LineParser):
    """Has nothing to say of a failure that it did not expect."""

    def judge(self, text: str, value: Any) -> Decision:
        return InvalidDecision(reason="\n") if isinstance(value, list) else super().judge(text, value)


@wrong("the_history_holds_the_reply")
class WritesItsOwnHistory(LineParser):
    """Puts the decision into the history as it would have written it."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        parsed = await super().parse(reply)
        if isinstance(parsed.decision, ActionDecision):
            return dataclasses.replace(parsed, history_text=f"Action: {parsed.decision.tool_name}")
        return parsed


@wrong("the_history_holds_the_reply")
class EmptiesTheHistory(LineParser):
    """Leaves the final answer out of the history."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        parsed = await super().parse(reply)
        return dataclasses.replace(parsed, history_text="") if isinstance(parsed.decision, FinalAnswer) else parsed


@wrong("actions_are_read", besides=EVERYTHING)
class ReturnsTheDecision(LineParser):
    """Returns the decision without its history text."""

    async def parse(self, reply: ModelReply, /) -> Any:
        return (await super().parse(reply)).decision


@wrong(
    "unreadable_replies_are_invalid_decisions",
    besides=READING | USING | {"each_failure_has_a_reason_of_its_own"} | {"replies_read_at_once_do_not_mix"},
)
class ReturnsNothing(LineParser):
    """Returns None for what it cannot read."""

    async def parse(self, reply: ModelReply, /) -> Any:
        parsed = await super().parse(reply)
        return None if isinstance(parsed.decision, InvalidDecision) else parsed


# -------------------------------------------------------------------------------------------------- any input


@wrong(
    "blank_replies_are_read",
    "replies_of_reasoning_alone_are_read",
    besides=READING
    | USING
    | {"each_failure_has_a_reason_of_its_own", "replies_read_at_once_do_not_mix", "a_cancellation_passes"},
)
class LooksAtTheFirstCharacter(LineParser):
    """Takes the first character of an empty reply."""

    def decide(self, text: str) -> Decision:
        _ = text[0]
        return super().decide(text)


@wrong("replies_of_reasoning_alone_are_read")
class ReadsReasoningAlone(LineParser):
    """Reads the reasoning where the text is empty, without the care that it has for texts."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        if not reply.text and reply.reasoning:
            json.loads(reply.reasoning)
        return await super().parse(reply)


@wrong("replies_without_a_call_id_are_read")
class NeedsACallId(LineParser):
    """Logs the id of each call."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        if not reply.call_id:
            raise ValueError("a reply without an id")
        return await super().parse(reply)


@wrong("odd_characters_are_read", besides=READING)
class EncodesReplies(LineParser):
    """Encodes a reply as UTF-8."""

    def value(self, text: str) -> Any:
        try:
            return json.loads(text.encode())
        except UnicodeEncodeError as error:
            raise RuntimeError(str(error)) from error


@wrong(
    "broken_json_is_read",
    besides=READING
    | USING
    | {"each_failure_has_a_reason_of_its_own", "replies_read_at_once_do_not_mix"}
    | {"a_cancellation_passes"},
)
class LetsJsonErrorsOut(LineParser):
    """Lets the errors of the JSON reader out."""

    def value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise RuntimeError("no JSON") from error


@wrong(
    "broken_json_is_read",
    besides=READING | USING | {"each_failure_has_a_reason_of_its_own", "replies_read_at_once_do_not_mix"},
)
class ExpectsAnObject(LineParser):
    """Takes any JSON value for an object."""

    def judge(self, text: str, value: Any) -> Decision:
        _ = value.keys()
        return super().judge(text, value)


@wrong("broken_json_is_read", besides=READING)
class TrustsTypes(LineParser):
    """Takes the tool for a string."""

    def judge(self, text: str, value: Any) -> Decision:
        if isinstance(value, dict) and value.get("tool") is not None:
            _ = value["tool"].strip()
        return super().judge(text, value)


@wrong("broken_markup_is_read", besides=READING | {"the_same_reply_is_read_the_same_way"})
class LooksForTheEndOfAFence(LineParser):
    """Expects a fence to be closed."""

    def decide(self, text: str) -> Decision:
        if text.startswith("```python\n"):
            _ = text.index("\n```", 10)
        return super().decide(text)


@wrong("deep_and_large_replies_are_read")
class LetsRecursionErrorsOut(LineParser):
    """Does not expect 100,000 brackets."""

    def value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except RecursionError as error:
            raise RuntimeError("too deep") from error


@wrong("damaged_replies_are_read")
class ExpectsWholeReplies(LineParser):
    """Expects what begins like a call to end like one."""

    def decide(self, text: str) -> Decision:
        if text.startswith('{"tool": "search"') and "}" not in text:
            raise IndexError("no end")
        return super().decide(text)


# --------------------------------------------------------------------------------------------------- no memory


@wrong("the_same_reply_is_read_the_same_way", besides=frozenset({"replies_read_at_once_do_not_mix"}))
class CountsFailures(LineParser):
    """Grows more urgent with each failure."""

    failures = 0

    def decide(self, text: str) -> Decision:
        decision = super().decide(text)
        if isinstance(decision, InvalidDecision):
            self.failures += 1
            return InvalidDecision(reason=f"{decision.reason} Failure {self.failures}!")
        return decision


@wrong(
    "the_same_reply_is_read_the_same_way",
    besides=READING | {"replies_read_at_once_do_not_mix", "each_failure_has_a_reason_of_its_own"},
)
class RepeatsItself(LineParser):
    """Takes the last action again where it can read none."""

    last: Decision | None = None

    def decide(self, text: str) -> Decision:
        decision = super().decide(text)
        if isinstance(decision, InvalidDecision) and self.last is not None:
            return self.last
        self.last = decision
        return decision


@wrong("replies_read_at_once_do_not_mix")
class KeepsTheReply(LineParser):
    """Keeps the reply in the parser while it reads."""

    text = ""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        self.text = reply.text
        await asyncio.sleep(0)
        return ParsedReply(history_text=self.text or "(nothing)", decision=self.decide(self.text))


# ------------------------------------------------------------------------------------------ tasks, cancellation


@wrong("a_cancellation_passes")
class CatchesEverything(LineParser):
    """Makes sure that nothing is raised, not even what must pass."""

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        try:
            return await super().parse(reply)
        except BaseException as error:  # noqa: BLE001 - the fault itself
            return ParsedReply(history_text=reply.text, decision=InvalidDecision(reason=repr(error)))


_language: contextvars.ContextVar[str] = contextvars.ContextVar("language")


@wrong("a_reply_is_read_in_any_task")
class NeedsItsContext(LineParser):
    """Reads a context variable that it set when it was built."""

    def __init__(self) -> None:
        super().__init__()
        _language.set("one object")

    def decide(self, text: str) -> Decision:
        _language.get()
        return super().decide(text)
