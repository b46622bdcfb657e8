"""The parsers of `examples/parsers.py`: what they read, what they refuse, and that they never raise."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.parsers import MAX_DEPTH, MAX_DIGITS, CodeBlockParser, JsonToolCallParser
from polyloop import (
    ActionDecision,
    ActionKind,
    Decision,
    DecisionParser,
    FinalAnswer,
    InvalidDecision,
    JSONValue,
    ModelReply,
    RunResult,
    StopReason,
    ToolRegistry,
    ToolSpec,
)
from polyloop.types._json import copy_object
from tests.builders import definition, request
from tests.fakes import ScriptedExecutor, ScriptedModel


class _Catalogue:
    """Knows `run` with an optional string `sql`, `note` with anything, and nothing else."""

    schemas: tuple[Mapping[str, JSONValue], ...] = (
        {"name": "run", "description": "Runs.", "parameters": {}},
        {"name": "note", "description": "Notes.", "parameters": {}},
    )

    def validate(self, name: str, arguments: Mapping[str, JSONValue], /) -> str | None:
        if name not in ("run", "note"):
            return f"no tool is called {name}"
        if name == "run" and not isinstance(arguments.get("sql", ""), str):
            return "run: sql must be a string"
        return None


def _json_parser() -> JsonToolCallParser:
    return JsonToolCallParser(
        tools=_Catalogue(),
        tool_key="tool",
        arguments_key="arguments",
        answer_key="answer",
        comment_keys=("thought",),
        blank_history_text="(nothing)",
    )


def _code_parser() -> CodeBlockParser:
    return CodeBlockParser(languages=("python", ""), answer_language="answer", blank_history_text="(nothing)")


def _reply(text: str, reasoning: str | None = None) -> ModelReply:
    return ModelReply(call_id="c", text=text, reasoning=reasoning)


async def _read(parser: DecisionParser, text: str, reasoning: str | None = None) -> Decision:
    return (await parser.parse(_reply(text, reasoning))).decision


async def _reason(parser: DecisionParser, text: str, reasoning: str | None = None) -> str:
    decision = await _read(parser, text, reasoning)
    assert isinstance(decision, InvalidDecision), decision
    return decision.reason


def _call(text: str, tool: str = "run", **arguments: JSONValue) -> ActionDecision:
    return ActionDecision(action_text=text, tool_name=tool, arguments=arguments)


# -- JSON: what is read

PLAIN = '{"tool": "run", "arguments": {"sql": "select 1"}}'
SNIPPET = "Look:\n```python\nprint('~~~')\n```\nand ````more````"
SNIPPET_CALL = json.dumps({"tool": "note", "arguments": {"text": SNIPPET}})


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "\ufeff{}",
        " \n\ufeff {} \n",
        "```json\n{}\n```",
        "```\n{}\n```",
        "````json\n{}\n````",
        "~~~\n{}\n~~~",
        "~~~~json\n{}\n~~~~",
        "I will use `run`, as in ``x``:\n{}",
        "First:\n\n```json\n{}\n```\n\nThen we shall see.",
        "The row {x} of {{region}} is odd.\n{}",
        'The last row was {"region": "north", "refunds": 2}. {}',
        "<think>perhaps {draft}</think>\n{}",
        "<thinking>a</thinking> <THINK>" + '{"answer": "?"}' + "</THINK>{}",
        "```json\n{}",
        "[{}]",
    ],
)
@pytest.mark.parametrize("call", [PLAIN, SNIPPET_CALL])
async def test_a_call_is_read_whole_wherever_it_stands(around: str, call: str) -> None:
    text = call.join(around.rsplit("{}", 1))
    decision = await _read(_json_parser(), text)
    expected = json.loads(call)
    assert decision == ActionDecision(action_text=call, tool_name=expected["tool"], arguments=expected["arguments"])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"tool": "run"}', {}),
        ('{"tool": "run", "arguments": null}', {}),
        ('{"tool": "run", "arguments": {}}', {}),
        ('{"tool": "run", "arguments": ""}', {}),
        ('{"tool": "run", "arguments": " null "}', {}),
        ('{"tool": "run", "sql": "x"}', {"sql": "x"}),
        ('{"sql": "x", "tool": "run", "thought": "hm"}', {"sql": "x"}),
        ('{"tool": "run", "arguments": "{\\"sql\\": \\"x\\"}"}', {"sql": "x"}),
        ('{"tool": "run", "thought": "hm", "arguments": {"sql": "x"}}', {"sql": "x"}),
        ('{"tool": "run", "arguments": {"sql": "x"}, "answer": null}', {"sql": "x"}),
        ('{"tool": "run", "arguments": {"sql": "a\n\tb"}}', {"sql": "a\n\tb"}),
        ('{"tool": "run", "arguments": {"sql": "\\u0000\\ud800"}}', {"sql": "\x00\ud800"}),
        ('{"tool": "note", "text": null}', {"text": None}),
    ],
)
async def test_every_spelling_of_the_arguments_gives_the_same_call(text: str, arguments: dict[str, JSONValue]) -> None:
    decision = await _read(_json_parser(), text)
    tool = "note" if "note" in text else "run"
    assert decision == ActionDecision(action_text=text, tool_name=tool, arguments=arguments)


@pytest.mark.parametrize("text", ['{"answer": "42"}', '{"thought": "done", "answer": "42", "tool": null}'])
async def test_a_final_answer_is_read(text: str) -> None:
    assert await _read(_json_parser(), text) == FinalAnswer(text="42")


async def test_the_history_keeps_what_was_said_without_the_reasoning() -> None:
    parsed = await _json_parser().parse(_reply(f"<think>secret</think>\n\ufeffSo:\n{PLAIN}\n"))
    assert parsed.history_text == f"So:\n{PLAIN}"


# -- JSON: what is refused, each failure with its own remedy


@pytest.mark.parametrize("count", [2, 25])
async def test_several_decisions_are_refused_with_their_number_and_none_is_executed(count: int) -> None:
    blocks = ["```json\n" + PLAIN + "\n```"] * (count - 1) + ['```json\n{"answer": "done"}\n```']
    reason = await _reason(_json_parser(), "\n".join(blocks))
    assert f"{count} decisions" in reason
    assert await _read(_json_parser(), PLAIN) == _call(PLAIN, sql="select 1")


async def test_decisions_in_a_list_are_counted_too() -> None:
    assert "3 decisions" in await _reason(_json_parser(), f"[{PLAIN}, {PLAIN}, {PLAIN}]")


JSON_FAILURES = {
    "empty": ("", None),
    "only reasoning in its field": ("\n", "Let me think."),
    "only a block of reasoning": ("<think>Let me think.</think>", None),
    "a block of reasoning that never ends": (f"<think>Let me think. {PLAIN}", None),
    "prose": ("I would look at the tables first.", None),
    "not a decision": ('{"name": "run"}', None),
    "no keys": ("{}", None),
    "cut off": (PLAIN[:-3], None),
    "single quotes": ("{'tool': 'run'}", None),
    "NaN": ('{"tool": "note", "x": NaN}', None),
    "an infinity": ('{"tool": "note", "x": -Infinity}', None),
    "a float beyond all floats": ('{"tool": "note", "x": 1e400}', None),
    "a duplicate key": ('{"tool": "run", "sql": "a", "sql": "b"}', None),
    "too deep for the log": ('{"tool": "note", "arguments": {"x": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}}", None),
    "too deep to be read": ('{"tool": "note", "x": ' + "[" * 100_000, None),
    "a huge integer": ('{"tool": "note", "x": ' + "9" * (MAX_DIGITS + 1) + "}", None),
    "no tool name": ('{"tool": 7}', None),
    "an empty tool name": ('{"tool": ""}', None),
    "an unknown tool": ('{"tool": "drop"}', None),
    "arguments that the schema refuses": ('{"tool": "run", "arguments": {"sql": 5}}', None),
    "arguments that are a list": ('{"tool": "run", "arguments": ["x"]}', None),
    "arguments that are no JSON": ('{"tool": "run", "arguments": "select 1"}', None),
    "more behind stringified arguments": ('{"tool": "run", "arguments": "{} {}"}', None),
    "arguments inside and outside": ('{"tool": "run", "arguments": {}, "sql": "x"}', None),
    "a call and an answer at once": ('{"tool": "run", "answer": "42"}', None),
    "an empty answer": ('{"answer": " "}', None),
    "an answer that is no string": ('{"answer": 42}', None),
}


@pytest.mark.parametrize("kind", JSON_FAILURES)
async def test_json_that_is_no_single_valid_decision_is_refused(kind: str) -> None:
    assert await _reason(_json_parser(), *JSON_FAILURES[kind])


async def test_no_two_kinds_of_json_failure_share_a_reason() -> None:
    reasons = [await _reason(_json_parser(), *failure) for failure in JSON_FAILURES.values()]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("not a decision", '"name"'),
        ("cut off", "line 1, column"),
        ("NaN", "NaN"),
        ("a float beyond all floats", "1e400"),
        ("a duplicate key", '"sql" twice'),
        ("an empty tool name", "an empty string"),
        ("an unknown tool", "no tool is called drop"),
        ("arguments that the schema refuses", "run: sql must be a string"),
        ("arguments that are a list", "a list"),
        ("arguments inside and outside", '"sql"'),
    ],
)
async def test_a_reason_names_what_is_wrong(kind: str, word: str) -> None:
    assert word in await _reason(_json_parser(), *JSON_FAILURES[kind])


@pytest.mark.parametrize("text", ["", " \u2028\n", "\ufeff", "\ufeff \ufeff\n"])
async def test_every_kind_of_blank_is_an_empty_reply(text: str) -> None:
    for parser in (_json_parser(), _code_parser()):
        parsed = await parser.parse(_reply(text))
        assert isinstance(parsed.decision, InvalidDecision)
        assert parsed.decision.reason.startswith("The reply is empty.")
        assert parsed.history_text == "(nothing)"


async def test_a_call_inside_a_broken_object_is_never_executed() -> None:
    """Taking what is readable out of a damaged answer would carry out a call that was only quoted."""
    quoting = f'{{"answer": "I did not run {PLAIN}, for it is wrong"}}'
    assert "not valid JSON" in await _reason(_json_parser(), quoting)


async def test_arguments_as_deep_as_the_log_takes_are_let_through() -> None:
    text = '{"tool": "note", "x": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    decision = await _read(_json_parser(), text)
    assert isinstance(decision, ActionDecision)
    copy_object(decision.arguments, "arguments")


async def test_an_integer_as_long_as_the_log_takes_is_let_through() -> None:
    decision = await _read(_json_parser(), '{"tool": "note", "x": -' + "9" * MAX_DIGITS + "}")
    assert isinstance(decision, ActionDecision)
    copy_object(decision.arguments, "arguments")


# -- One code block


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("Now:\n\n~~~~ Python title=x\nprint(1)\n\n~~~~~  \nDone.", "print(1)\n"),
        ("````python\na = '''\n```\n'''\n````", "a = '''\n```\n'''"),
        ("~~~python\nx = '```'\n```\n~~~", "x = '```'\n```"),
        ("Use ``x`` and ```y``` here:\n```python\n1\n```", "1"),
        ("```python\r\na\r\nb\r\n```\r\nDone.", "a\r\nb"),
        ("```y``` is a name:\n```python\n1\n```", "1"),
        ("   ```python\n1\n  ```", "1"),
        ("```python\na = '\u2028'\n```", "a = '\u2028'"),
        ("\ufeff<think>```python\n0\n```</think>```python\n1\n```", "1"),
    ],
)
async def test_one_block_is_the_action_to_the_character(text: str, code: str) -> None:
    decision = await _read(_code_parser(), text)
    assert decision == ActionDecision(action_text=code, tool_name=None, arguments={})


async def test_a_block_of_the_answer_language_is_the_final_answer() -> None:
    assert await _read(_code_parser(), "So:\n```answer\nIt was\nMarch.\n```") == FinalAnswer(text="It was\nMarch.")


CODE_FAILURES = {
    "empty": ("", None),
    "only reasoning in its field": ("", "Let me think."),
    "only a block of reasoning": ("<think>```python\n1\n```</think>", None),
    "no block": ("I would print it.", None),
    "two blocks": ("```python\n1\n```\n```python\n2\n```", None),
    "code and answer at once": ("```python\n1\n```\n```python\n2\n```\n```answer\nx\n```", None),
    "not closed": ("```python\nprint(1)\n", None),
    "closed with too short a fence": ("````python\nprint(1)\n```", None),
    "another language": ("```bash\nls\n```", None),
    "no code": ("```python\n \n\t\n```", None),
    "no answer": ("```answer\n```", None),
}


@pytest.mark.parametrize("kind", CODE_FAILURES)
async def test_a_reply_that_is_not_one_whole_block_is_refused(kind: str) -> None:
    assert await _reason(_code_parser(), *CODE_FAILURES[kind])


async def test_no_two_kinds_of_block_failure_share_a_reason() -> None:
    reasons = [await _reason(_code_parser(), *failure) for failure in CODE_FAILURES.values()]
    assert len(set(reasons)) == len(reasons)


async def test_several_blocks_are_refused_with_their_number() -> None:
    many = "\n".join(["```python\n1\n```"] * 24 + ["```answer\n1\n```"])
    assert "25 fenced blocks" in await _reason(_code_parser(), many)


# -- Both


def test_they_declare_their_channel_and_every_setting() -> None:
    json_params = _json_parser().params
    assert _json_parser().produces is ActionKind.TOOL_CALL
    assert copy_object(json_params, "params") == {
        "format": "json_tool_call",
        "tools": list(_Catalogue.schemas),
        "tool_key": "tool",
        "arguments_key": "arguments",
        "answer_key": "answer",
        "comment_keys": ["thought"],
        "blank_history_text": "(nothing)",
    }
    assert _code_parser().produces is ActionKind.TEXT
    assert copy_object(_code_parser().params, "params") == {
        "format": "code_block",
        "languages": ["python", ""],
        "answer_language": "answer",
        "blank_history_text": "(nothing)",
    }


async def test_their_own_instructions_describe_what_they_read() -> None:
    parser = _json_parser()
    call, answer = re.findall(r"\{.*?\}+", parser.instructions)
    assert await _reason(parser, call) == "no tool is called <name>"
    assert await _read(parser, answer) == FinalAnswer(text="<text>")


@pytest.mark.parametrize("comment_keys", [("tool",), ("x", "x")])
def test_keys_that_would_hide_each_other_are_refused(comment_keys: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must differ"):
        JsonToolCallParser(
            tools=_Catalogue(),
            tool_key="tool",
            arguments_key="arguments",
            answer_key="answer",
            comment_keys=comment_keys,
            blank_history_text="",
        )


@pytest.mark.parametrize("languages", [(), ("python", "answer")])
def test_languages_that_leave_no_code_or_no_answer_are_refused(languages: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="at least one language"):
        CodeBlockParser(languages=languages, answer_language="answer", blank_history_text="")


PIECES = ["{", "}", "[", "]", '"', "'", "\\", ":", ",", "```", "````", "~~~", "\n", "\r", " ", "\ufeff", "\ud83d"]
WORDS = ["<think>", "</think>", "tool", "arguments", "answer", "run", "python", "NaN", "1e999", "null", PLAIN, "{}"]
HOSTILE = st.one_of(st.text(), st.lists(st.sampled_from(PIECES + WORDS), max_size=40).map("".join))


@given(text=HOSTILE, reasoning=st.none() | st.text(max_size=5))
async def test_no_text_makes_them_raise(text: str, reasoning: str | None) -> None:
    for parser in (_json_parser(), _code_parser()):
        decision = await _read(parser, text, reasoning)
        if isinstance(decision, ActionDecision):
            copy_object(decision.arguments, "arguments")
            assert decision.action_text in text
        else:
            assert decision.text.strip() if isinstance(decision, FinalAnswer) else decision.reason


JSON_VALUES: st.SearchStrategy[JSONValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["```", "~~~\n{", "</think>", PLAIN]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FENCES = st.sampled_from([("", ""), ("```json\n", "\n```"), ("````\n", "\n````"), ("~~~\n", "\n~~~"), ("So: ", " ok")])


@given(
    arguments=st.dictionaries(
        st.text().filter(lambda key: key not in ("tool", "answer", "arguments", "thought")), JSON_VALUES
    ),
    fence=FENCES,
    form=st.sampled_from(["object", "string", "beside"]),
    ascii_only=st.booleans(),
)
async def test_any_arguments_come_back_equal(
    arguments: dict[str, JSONValue], fence: tuple[str, str], form: str, ascii_only: bool
) -> None:
    call: dict[str, JSONValue] = {"tool": "note"}
    if form == "beside":
        call |= arguments
    else:
        call["arguments"] = arguments if form == "object" else json.dumps(arguments)
    decision = await _read(_json_parser(), fence[0] + json.dumps(call, ensure_ascii=ascii_only) + fence[1])
    assert isinstance(decision, ActionDecision), decision
    assert decision.tool_name == "note"
    assert json.dumps(decision.arguments) == json.dumps(arguments)


@given(code=st.text(alphabet=st.characters(exclude_characters="\r")).filter(str.strip), fence=st.sampled_from("`~"))
async def test_any_code_comes_back_to_the_character_in_a_long_enough_fence(code: str, fence: str) -> None:
    longest = max((len(run) for run in re.findall(f"{fence}+", code)), default=0)
    bar = fence * max(3, longest + 1)
    decision = await _read(_code_parser(), f"Run:\n{bar}python\n{code}\n{bar}")
    assert decision == ActionDecision(action_text=code, tool_name=None, arguments={})


# -- In the loop


async def _run(parser: DecisionParser, *replies: ModelReply | str) -> tuple[RunResult, ScriptedExecutor, ScriptedModel]:
    executor = ScriptedExecutor(accepts=parser.produces)
    model = ScriptedModel(replies)
    agent = dataclasses.replace(definition(), model=model, parser=parser)
    return await agent.run(dataclasses.replace(request(), executor=executor)), executor, model


TWO_CALLS = f"```json\n{PLAIN}\n```\n```json\n{PLAIN}\n```"
TWO_BLOCKS = "```python\n1\n```\n```python\n2\n```"


@pytest.mark.parametrize(
    ("parser", "several", "one"),
    [(_json_parser(), TWO_CALLS, '{"answer": "42"}'), (_code_parser(), TWO_BLOCKS, "```answer\n42\n```")],
    ids=["json", "code"],
)
async def test_several_decisions_execute_nothing_and_the_next_correct_reply_works(
    parser: DecisionParser, several: str, one: str
) -> None:
    result, executor, model = await _run(parser, several, one)
    assert executor.actions == []
    assert [step.parse_ok for step in result.steps] == [False, True]
    assert " 2 " in model.calls[1].messages[-1].content
    assert (result.stop_reason, result.final_answer) == (StopReason.AGENT_FINISHED, "42")


@pytest.mark.parametrize("parser", [_json_parser(), _code_parser()], ids=["json", "code"])
@pytest.mark.parametrize(
    "silence",
    [_reply(""), _reply(" \n\t"), _reply("<think>I am done: 42.</think>"), _reply("", "I am done: 42.")],
    ids=["empty", "blank", "think block", "reasoning field"],
)
async def test_a_reply_without_words_is_a_counted_failure_with_feedback_and_never_an_answer(
    silence: ModelReply, parser: DecisionParser
) -> None:
    result, executor, model = await _run(parser, silence, silence, silence)
    assert result.stop_reason is StopReason.PARSE_FAILED_REPEATEDLY
    assert result.final_answer is None
    assert (len(result.steps), len(model.calls), executor.actions) == (3, 3, [])
    feedback = model.calls[1].messages[-1].content
    assert feedback == f"observed: {result.steps[0].parse_error}"
    assert result.steps[0].parse_error
    assert model.calls[1].messages[-2].content == "(nothing)"


async def test_a_byte_order_mark_before_json_is_no_failure() -> None:
    result, executor, _ = await _run(_json_parser(), "\ufeff" + PLAIN, '\ufeff{"answer": "42"}')
    assert [action.arguments for action in executor.actions] == [{"sql": "select 1"}]
    assert [step.parse_ok for step in result.steps] == [True, True]


async def test_the_registry_of_the_library_is_a_catalogue() -> None:
    async def handler(_: dict[str, JSONValue]) -> str:
        raise AssertionError("validating calls nothing")

    schema: dict[str, JSONValue] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    registry = ToolRegistry([ToolSpec(name="count", description="Counts.", parameters=schema, handler=handler)])
    parser = JsonToolCallParser(
        tools=registry,
        tool_key="tool",
        arguments_key="arguments",
        answer_key="answer",
        comment_keys=(),
        blank_history_text="(nothing)",
    )
    assert await _reason(parser, '{"tool": "count", "n": "5"}') == registry.validate("count", {"n": "5"})
    assert "known tools: count" in await _reason(parser, '{"tool": "cuont", "n": 5}')
    assert isinstance(await _read(parser, '{"tool": "count", "n": 5}'), ActionDecision)
