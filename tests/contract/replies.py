"""Replies that are hard to read, and damage done to readable ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.contract.records import LINE_TEXTS, NUL_TEXTS, OTHER_TEXTS, PAIR_TEXTS, SURROGATE_TEXTS

BLANK = ("", " ", "\n", "\r\n\t \n", "\u200b", "\ufeff", "\xa0\u2003", "\0")

ODD_TEXTS = (*NUL_TEXTS, *SURROGATE_TEXTS, *PAIR_TEXTS, *LINE_TEXTS, *OTHER_TEXTS)

NOT_QUITE_JSON = (
    "{",
    "}",
    "{}",
    "[]",
    "[{}]",
    "null",
    "true",
    "0",
    '""',
    '{"a"',
    '{"a":',
    '{"a": }',
    '{"a": 1,}',
    "{'a': 1}",
    '{"a": NaN}',
    '{"a": Infinity, "b": -Infinity, "c": 1e999}',
    '{"a": 1, "a": 2}',
    '{"a": "\n"}',
    '{"a": "\\ud800"}',
    '{"a": "\\u12"}',
    '{"a": "\\x"}',
    '{"a": 1} {"b": 2}',
    '{"tool": null, "arguments": null}',
    '{"tool": 7, "arguments": "{"}',
    '{"tool": ["x"], "arguments": [1, 2]}',
    '{"name": {"name": "x"}, "arguments": {"": {}}}',
    f'{{"a": {"9" * 5000}}}',
    f'{{"a": -{"9" * 5000}.0e-{"9" * 500}}}',
)

FENCES = (
    "```",
    "``````",
    "```\n```",
    "```python",
    "```python\n",
    "```python\nprint(1)",
    "```python\n```",
    "~~~\nx\n~~~",
    "````\n```\nx\n```\n````",
    "```json\n{}\n```",
    '```json\n{"a": "```"}\n```',
    "```a\n1\n```\n```a\n2\n```",
    "`code`",
    "```\r\nx\r\n```",
    "```\u2028x\u2028```",
    " " * 5000 + "```\nx\n```",
)

TAGS = (
    "<think>",
    "</think>",
    "<think></think>",
    "<think>only this",
    "only this</think>",
    "<think><think></think>",
    "<tool_call>",
    "<tool_call>{}</tool_call>",
    "<function=x><parameter=y>",
    "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    "Thought: x\nAction: y\nAction Input:",
    "Final Answer:",
)

LARGE = (
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":[' * 50_000 + "]}" * 50_000,
    "(" * 50_000,
    "<think>" * 50_000,
    "`" * 100_000,
    "```\n" * 25_000,
    "{" + " " * 100_000,
    '"' * 50_001,
    "\\" * 100_001,
    "9" * 100_000,
    "a" * 1_000_000,
    "\n" * 200_000,
    "\ud800" * 100_000,
    '{"a": "' + "x" * 1_000_000,
    "é\u2028😀 " * 100_000,
)

_FRAGMENTS = (
    *("{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n", " ", "`", "```", "~~~", "<", ">", "</", "/>", "(", ")"),
    *(
        "null",
        "NaN",
        "1e999",
        "-",
        "0",
        "9" * 700,
        "\\u",
        "\\ud83d",
        "\ud83d",
        "\ude00",
        "\0",
        "\u2028",
        "\x85",
        "\ufeff",
    ),
    *(
        "think",
        "json",
        "python",
        "tool",
        "name",
        "arguments",
        "final",
        "answer",
        "act: ",
        "call: ",
        "final: ",
        "%",
        "{}",
    ),
)


def damaged(samples: Sequence[str], seed: int, rounds: int) -> Iterator[str]:
    """Readable replies cut, doubled, spliced and sprinkled with what means something to a reader."""
    chance = random.Random(seed)
    for sample in samples:
        cuts = sorted({chance.randrange(len(sample) + 1) for _ in range(40)} | set(range(min(len(sample), 40))))
        for cut in cuts:
            yield sample[:cut]
            yield sample[cut:]
    for _ in range(rounds):
        text = chance.choice(samples)
        for _ in range(chance.randrange(1, 5)):
            text = _changed(text, chance, samples)
        yield text
    for _ in range(rounds):
        yield "".join(chance.choices(_FRAGMENTS, k=chance.randrange(1, 30)))


def _changed(text: str, chance: random.Random, samples: Sequence[str]) -> str:
    begin = chance.randrange(len(text) + 1)
    end = min(len(text), begin + chance.randrange(4))
    match chance.randrange(4):
        case 0:
            return text[:begin] + text[end:]
        case 1:
            return text[:begin] + chance.choice(_FRAGMENTS) + text[end:]
        case 2:
            return text[:begin] + chance.choice(samples)
        case _:
            return text + text[begin:]
