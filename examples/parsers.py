"""Two decision parsers to copy: `JsonToolCallParser` for tool calls, `CodeBlockParser` for code.

The library brings no parser: a parser is the language in which a model acts, and that belongs to the project.
Copy the one that is nearer to yours and change it; both are run through `tests/contract`, and so can your
version be: `pytest tests/contract --decision-parser my_pkg.parsers:make_case`.

What both hold to:

- **One reply, one decision.** Two decisions in a reply are refused with their number. Taking the first and
  dropping the rest in silence is how agents lose their final answer.
- **Nothing is guessed.** What cannot be read is not repaired and not read in part: an action that the model
  did not mean is worse than a turn spent on saying it again.
- **Every failure says its own remedy.** The reason of an `InvalidDecision` is what the model reads next; a
  fixed text would teach it nothing.
- **Reasoning is no answer.** A reply of nothing but reasoning is a failed reply, in the field for it
  (`ModelReply.reasoning`) as in a leading `<think>` block. Such a block is not kept in the history.
- **Never an exception**, whatever the text is. An exception out of `parse` is a bug, and passes out of `run`.
- **No hidden settings.** Every constructor argument is required and stands in `params`, which is stored with the
  run: resuming it with another parser is then refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol, cast

from polyloop import (
    ActionDecision,
    ActionKind,
    Decision,
    FinalAnswer,
    InvalidDecision,
    JSONValue,
    ModelReply,
    ParsedReply,
)

MAX_DEPTH = 100
"""How deep arguments may be nested. The log takes no more."""

MAX_DIGITS = 640
"""The longest integer that the log takes."""

_BLANKS = "\ufeff" + "".join(filter(str.isspace, map(chr, range(0x3001))))
"""Everything that counts as blank around a reply: white space of any script, and the byte order mark."""

_REASONING = re.compile(r"\s*<(think|thinking|reasoning)>.*?(?P<end></\1>|\Z)", re.DOTALL | re.IGNORECASE)


class _UnreadableError(Exception):
    """Control flow within this module: its message becomes the reason of an `InvalidDecision`."""


class ToolCatalogue(Protocol):
    """What the JSON parser needs of a `polyloop.ToolRegistry`, which has it all."""

    @property
    def schemas(self) -> tuple[Mapping[str, JSONValue], ...]:
        """Every tool as `{name, description, parameters}`."""
        ...

    def validate(self, name: str, arguments: Mapping[str, JSONValue], /) -> str | None:
        """What is wrong with a call, in words for the model; None where nothing is."""
        ...


# ---------------------------------------------------------------------------------------- JSON tool calls


class JsonToolCallParser:
    r"""Reads one JSON object as a tool call or as the final answer.

    With `tool_key="tool"`, `arguments_key="arguments"` and `answer_key="final_answer"`::

        {"tool": "run_sql", "arguments": {"sql": "select 1"}}       a call
        {"tool": "run_sql", "arguments": "{\"sql\": \"select 1\"}"} the same, arguments as a string of JSON
        {"tool": "run_sql", "sql": "select 1"}                      the same, arguments beside the name
        {"tool": "list_tables"}                                     no arguments
        {"final_answer": "42"}                                      the answer

    The object may stand alone, in prose, or in fences of any kind: it is found by reading JSON, not by looking
    for fences, so a fence inside a string cuts nothing. Line breaks inside strings are let through, for models
    write their SQL and code that way. JSON objects without any of the keys are prose; null under one of the three
    keys is the same as leaving it out.

    Refused, each with its own reason: an object that begins like JSON and cannot be read (nothing inside it is
    taken instead), several decisions, duplicate keys, NaN and infinities (`1e400` is one), integers of more than
    640 digits, nesting deeper than 100, keys that nobody would read, an empty answer, and a call that
    `tools.validate` finds wrong.

    Args:
        tools: The registry whose `validate` judges each call. It may hold more tools than a run is given: a call
            of one that the run lacks is then a well-formed decision, which the run's executor refuses.
        tool_key: Where the tool's name stands.
        arguments_key: Where the arguments stand.
        answer_key: Where the final answer stands, a string.
        comment_keys: Keys in which the model may think aloud beside its decision. Nobody reads them.
        blank_history_text: What enters the history for a reply without any text. Some providers refuse an empty
            message, and the run with it.

    Raises:
        ValueError: two of the keys are the same.
    """

    def __init__(
        self,
        *,
        tools: ToolCatalogue,
        tool_key: str,
        arguments_key: str,
        answer_key: str,
        comment_keys: Sequence[str],
        blank_history_text: str,
    ) -> None:
        keys = (tool_key, arguments_key, answer_key, *comment_keys)
        if len(set(keys)) != len(keys):
            raise ValueError(f"the keys must differ from each other, got {', '.join(keys)}")
        self._tools = tools
        self._tool_key = tool_key
        self._arguments_key = arguments_key
        self._answer_key = answer_key
        self._comment_keys = tuple(comment_keys)
        self._blank_history_text = blank_history_text

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """What shapes the decisions. The tools are among it, for they decide which calls are let through."""
        return {
            "format": "json_tool_call",
            "tools": self._tools.schemas,
            "tool_key": self._tool_key,
            "arguments_key": self._arguments_key,
            "answer_key": self._answer_key,
            "comment_keys": self._comment_keys,
            "blank_history_text": self._blank_history_text,
        }

    @property
    def produces(self) -> ActionKind:
        """Tool calls."""
        return ActionKind.TOOL_CALL

    @property
    def instructions(self) -> str:
        """The format in words, for the system message: so that the prompt and the parser never disagree."""
        call = json.dumps({self._tool_key: "<name>", self._arguments_key: {}})
        answer = json.dumps({self._answer_key: "<text>"})
        return f"Reply with exactly one JSON object: {call} to call a tool, or {answer} to finish."

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        """Read one reply. Returns for any text."""
        spoken = _spoken(reply)
        try:
            decision = self._decision(_required(spoken, reply.reasoning, self.instructions))
        except _UnreadableError as failure:
            decision = InvalidDecision(reason=str(failure))
        return ParsedReply(history_text=spoken.text or self._blank_history_text, decision=decision)

    def _decision(self, text: str) -> Decision:
        objects = [self._stated(each) for each in _json_objects(text)]
        candidates = [each for each in objects if self._tool_key in each.value or self._answer_key in each.value]
        if len(candidates) > 1:
            raise _UnreadableError(
                f"The reply holds {len(candidates)} decisions, and none of them was carried out. Send one at a time, "
                "and wait for what came of it."
            )
        if not candidates:
            raise _UnreadableError(self._no_candidate(objects))
        found = candidates[0]
        return self._answer(found.value) if self._answer_key in found.value else self._call(found)

    def _stated(self, found: _JsonObject) -> _JsonObject:
        """Models that fill in a form say null for what they leave out: then it is left out."""
        reserved = (self._tool_key, self._arguments_key, self._answer_key)
        value = {key: inner for key, inner in found.value.items() if inner is not None or key not in reserved}
        return found._replace(value=value)

    def _no_candidate(self, objects: Sequence[_JsonObject]) -> str:
        if not objects:
            return f"The reply holds no JSON object. {self.instructions}"
        keys = _listed(objects[-1].value) or "none at all"
        return (
            f'The JSON object has neither the key "{self._tool_key}" nor "{self._answer_key}"; its keys: {keys}. '
            f"{self.instructions}"
        )

    def _answer(self, value: Mapping[str, JSONValue]) -> FinalAnswer:
        self._refuse_beside(value, self._answer_key)
        answer = value[self._answer_key]
        if not isinstance(answer, str):
            raise _UnreadableError(f'The value of "{self._answer_key}" must be a string, got {_kind(answer)}.')
        if not answer.strip():
            raise _UnreadableError(f'The value of "{self._answer_key}" is empty. Put the whole answer there.')
        return FinalAnswer(text=answer)

    def _call(self, found: _JsonObject) -> ActionDecision:
        name = found.value[self._tool_key]
        if not isinstance(name, str) or not name:
            raise _UnreadableError(f'The value of "{self._tool_key}" must be the name of a tool, got {_kind(name)}.')
        arguments = self._arguments(found.value)
        if _nested_deeper(arguments, MAX_DEPTH):
            raise _UnreadableError(f"The arguments are nested deeper than {MAX_DEPTH} levels. Flatten them.")
        problem = self._tools.validate(name, arguments)
        if problem is not None:
            raise _UnreadableError(problem)
        return ActionDecision(action_text=found.text, tool_name=name, arguments=arguments)

    def _arguments(self, value: Mapping[str, JSONValue]) -> Mapping[str, JSONValue]:
        if self._arguments_key not in value:
            taken = {self._tool_key, *self._comment_keys}
            return {key: inner for key, inner in value.items() if key not in taken}
        self._refuse_beside(value, self._tool_key, self._arguments_key)
        arguments = value[self._arguments_key]
        if isinstance(arguments, str):
            arguments = _stringified(arguments, self._arguments_key)
        if not isinstance(arguments, Mapping):
            raise _UnreadableError(f'The value of "{self._arguments_key}" must be an object, got {_kind(arguments)}.')
        return arguments

    def _refuse_beside(self, value: Mapping[str, JSONValue], *read: str) -> None:
        stray = [key for key in value if key not in read and key not in self._comment_keys]
        if stray:
            raise _UnreadableError(
                f"The JSON object holds {_listed(read)} and beside it {_listed(stray)}, which would be lost. "
                f'Put arguments inside "{self._arguments_key}", and send one decision at a time.'
            )


class _JsonObject(NamedTuple):
    value: Mapping[str, JSONValue]
    text: str


# A brace opens an object if what follows could be meant as a key, or closes it. Any other is prose ("{x}").
_OBJECT_START = re.compile(r"""\{(?=\s*(?:["'}“]|\w+\s*:))""")


def _json_objects(text: str) -> list[_JsonObject]:
    """Every outermost JSON object in a text, in order."""
    found: list[_JsonObject] = []
    position = 0
    while (start := _OBJECT_START.search(text, position)) is not None:
        # If this fails, nothing inside is tried: a call quoted within a broken answer must not be carried out.
        value, position = _decoded(text, start.start(), "The JSON object")
        found.append(_JsonObject(cast("Mapping[str, JSONValue]", value), text[start.start() : position]))
    return found


def _stringified(text: str, key: str) -> JSONValue:
    stripped = text.strip()
    if not stripped:
        return {}
    value, end = _decoded(stripped, 0, f'The string in "{key}"')
    if end != len(stripped):
        raise _UnreadableError(f'The string in "{key}" holds something after its JSON. Give an object, not a string.')
    return {} if value is None else value


def _decoded(text: str, start: int, subject: str) -> tuple[JSONValue, int]:
    """The JSON value at a position, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _UnreadableError(
            f"{subject} is not valid JSON: {error.msg} at {where}, near {_excerpt(text, error.pos)}. "
            "Check quotes, commas and braces."
        ) from None
    except RecursionError:
        raise _UnreadableError(f"{subject} is nested too deeply to be read. Flatten it.") from None
    return cast("JSONValue", value), end


def _excerpt(text: str, position: int) -> str:
    return ascii(text[max(0, position - 20) : position + 20])


def _without_duplicates(pairs: list[tuple[str, JSONValue]]) -> dict[str, JSONValue]:
    value: dict[str, JSONValue] = {}
    for key, inner in pairs:
        if key in value:
            raise _UnreadableError(f"The JSON object has the key {_shown(key)} twice. Say which one is meant.")
        value[key] = inner
    return value


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        _not_a_number(literal)
    return value


def _integer(literal: str) -> int:
    # Interpreters refuse to read very long ones, each at its own length: judged here, it is the same everywhere.
    if len(literal.lstrip("-")) > MAX_DIGITS:
        raise _UnreadableError(f"An integer has more than {MAX_DIGITS} digits. Give it as a string.")
    return int(literal)


def _not_a_number(literal: str) -> NoReturn:
    raise _UnreadableError(f"{_shown(literal)} is no number that JSON can hold. Give a finite one, or null.")


_DECODER = json.JSONDecoder(
    strict=False,
    object_pairs_hook=_without_duplicates,
    parse_float=_finite,
    parse_int=_integer,
    parse_constant=_not_a_number,
)


def _nested_deeper(value: JSONValue, limit: int) -> bool:
    """Level by level, since a recursive look at hostile nesting is the failure that it is to prevent."""
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, Mapping | list)]
        if not level:
            return False
    return True


def _inner(value: JSONValue) -> Iterable[JSONValue]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _kind(value: JSONValue) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "an empty string" if not value else "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(_shown(key) for key in list(keys)[:10])


def _shown(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else text[:57] + "...")  # noqa: PLR2004 - reasons stay short


# ---------------------------------------------------------------------------------------- One code block


class CodeBlockParser:
    """Reads exactly one fenced block as code to be executed, or as the final answer.

    With `languages=("python", "")` and `answer_language="answer"`, a reply is prose around one of::

        ```python                ```answer
        print(df.describe())     The refunds of March were booked twice.
        ```                      ```

    Fences are Markdown's: three or more backticks or tildes, at most three blanks before them, closed by at
    least as many of the same. So code that holds a fence is written in a longer one, and arrives whole. The
    code is the text between the fences, to the character, without its last line break.

    ================================ ===================================================================
    the reply                        what the model is told
    ================================ ===================================================================
    is empty                         to write a block
    is nothing but reasoning         to act outside its reasoning
    has no fenced block              to put its code into one; how to finish
    has several                      how many; to send one at a time, or to use a longer fence
    has one that is not closed       to close it; perhaps the reply was too long
    has one of another language      which one it was, and which are taken
    has one without content          to write the code, or the answer
    ================================ ===================================================================

    Args:
        languages: The words after the opening fence that mark code, in lower case; "" lets a bare fence through.
        answer_language: The word that marks the final answer.
        blank_history_text: What enters the history for a reply without any text. Some providers refuse an empty
            message, and the run with it.

    Raises:
        ValueError: no language is given, or the answer's is among them.
    """

    def __init__(self, *, languages: Sequence[str], answer_language: str, blank_history_text: str) -> None:
        if not languages or answer_language in languages:
            raise ValueError("languages must name at least one language, and not that of the answer")
        self._languages = tuple(languages)
        self._answer_language = answer_language
        self._blank_history_text = blank_history_text

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """What shapes the decisions."""
        return {
            "format": "code_block",
            "languages": self._languages,
            "answer_language": self._answer_language,
            "blank_history_text": self._blank_history_text,
        }

    @property
    def produces(self) -> ActionKind:
        """Text: the code itself is the action."""
        return ActionKind.TEXT

    @property
    def instructions(self) -> str:
        """The format in words, for the system message: so that the prompt and the parser never disagree."""
        return (
            f"Reply with exactly one fenced block: ```{self._languages[0]} with code to run it, "
            f"or ```{self._answer_language} with the final answer to finish."
        )

    async def parse(self, reply: ModelReply, /) -> ParsedReply:
        """Read one reply. Returns for any text."""
        spoken = _spoken(reply)
        try:
            decision = self._decision(_required(spoken, reply.reasoning, self.instructions))
        except _UnreadableError as failure:
            decision = InvalidDecision(reason=str(failure))
        return ParsedReply(history_text=spoken.text or self._blank_history_text, decision=decision)

    def _decision(self, text: str) -> Decision:
        blocks = _fenced_blocks(text)
        if not blocks:
            raise _UnreadableError(f"The reply has no fenced block, so nothing was run. {self.instructions}")
        if len(blocks) > 1:
            raise _UnreadableError(
                f"The reply has {len(blocks)} fenced blocks, and none of them was run. Send one at a time; if the code "
                "itself holds a fence, put it into a longer one (````)."
            )
        block = blocks[0]
        if not block.closed:
            raise _UnreadableError(
                f"The fenced block is not closed, so it may be cut off, and nothing was run. End it with {block.fence} "
                "on a line of its own; if the reply ran out of room, write less."
            )
        return self._block_decision(block)

    def _block_decision(self, block: _Block) -> Decision:
        is_answer = block.language == self._answer_language
        if not is_answer and block.language not in self._languages:
            taken = _listed((*self._languages, self._answer_language))
            raise _UnreadableError(
                f"A block marked {_shown(block.language)} is not taken here. Mark it as one of: {taken}."
            )
        if not block.content.strip():
            missing = "the answer" if is_answer else "the code"
            raise _UnreadableError(f"The fenced block is empty. Write {missing} between its fences.")
        if is_answer:
            return FinalAnswer(text=block.content)
        return ActionDecision(action_text=block.content, tool_name=None, arguments={})


class _Block(NamedTuple):
    fence: str
    language: str
    content: str
    closed: bool


# Not `\s`: a fence must not swallow the line break. The info string of a backtick fence holds no backtick.
_OPENING = re.compile(r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[ \t]*(?P<word>[^\s`]*)[^\n]*(?:\n|\Z)", re.MULTILINE)


def _fenced_blocks(text: str) -> list[_Block]:
    """Every fenced block of a text, in order; the last may be unclosed."""
    blocks = []
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        fence = opening["fence"]
        closing = re.compile(rf"^ {{0,3}}{fence[0]}{{{len(fence)},}}[ \t\r]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        content = text[opening.end() : len(text) if end is None else end.start()]
        blocks.append(_Block(fence, opening["word"].lower(), _without_last_break(content), end is not None))
        position = len(text) if end is None else end.end()
    return blocks


def _without_last_break(content: str) -> str:
    return content.removesuffix("\n").removesuffix("\r") if content.endswith("\n") else content


# ---------------------------------------------------------------------------------------- What both share


class _Spoken(NamedTuple):
    text: str
    """The reply without byte order mark, leading blocks of reasoning and outer blanks."""
    block: str | None
    """How the last of those blocks ended; None where there was none."""


def _spoken(reply: ModelReply) -> _Spoken:
    text, start, block = reply.text.strip(_BLANKS), 0, None
    while (found := _REASONING.match(text, start)) is not None:
        start, block = found.end(), found["end"]
    return _Spoken(text[start:].strip(_BLANKS), block)


def _required(spoken: _Spoken, reasoning: str | None, instructions: str) -> str:
    """The text, if there is any; else a failure that tells silence from reasoning."""
    if spoken.text:
        return spoken.text
    if spoken.block is not None:
        remedy = "Act outside it." if spoken.block else "Close it, and keep it shorter."
        raise _UnreadableError(f"The reply holds a block of reasoning and nothing else. {remedy} {instructions}")
    if reasoning and reasoning.strip(_BLANKS):
        raise _UnreadableError(f"There was reasoning, but the reply itself is empty. {instructions}")
    raise _UnreadableError(f"The reply is empty. {instructions}")
