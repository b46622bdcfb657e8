"""Which answers `OpenAIChatModel` takes for a reply, and how it says what came instead."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from polyloop.adapters.openai import (
    ChatCompletionError,
    EmptyCompletionError,
    ErrorAnswerError,
    IncompleteCompletionError,
    MalformedCompletionError,
    RefusalError,
    ToolCallsError,
)
from polyloop.adapters.openai.answers import masked, reply_in
from polyloop.types import ModelReply, PolyLoopError
from tests.adapters.calls import a_call
from tests.adapters.endpoint import KEY, completion, says, sends, served


def choice(**changed: Any) -> dict[str, Any]:
    """A completion whose choice is changed."""
    answer = completion()
    answer["choices"][0].update(changed)
    return answer


async def replied(answer: object) -> ModelReply:
    async with served(says(answer)) as (port, _):
        return await port.call(a_call())


async def test_a_whole_completion_is_a_reply_with_its_id() -> None:
    assert await replied(completion("Hé \ud83d\udca1\0")) == ModelReply(
        call_id="chatcmpl-1", text="Hé \U0001f4a1\0", reasoning=None
    )


@pytest.mark.parametrize("call_id", ["", None])
async def test_an_id_that_is_empty_or_null_is_none(call_id: str | None) -> None:
    assert (await replied({**completion(), "id": call_id})).call_id is None


async def test_an_id_that_is_missing_is_none() -> None:
    answer = completion()
    del answer["id"]
    assert (await replied(answer)).call_id is None


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, None),
        ({"reasoning_content": "I think"}, "I think"),
        ({"reasoning": "I think"}, "I think"),
        ({"reasoning_text": "I think"}, "I think"),
        ({"reasoning_content": None, "reasoning": "I think"}, "I think"),
        ({"reasoning_content": "", "reasoning": "I think"}, "I think"),
        ({"reasoning_content": "I think", "reasoning": "I think"}, "I think"),
        ({"reasoning_content": ""}, None),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "I think"}]}, None),
    ],
)
async def test_the_reasoning_is_read_from_the_fields_that_servers_use(
    fields: dict[str, Any], reasoning: str | None
) -> None:
    reply = await replied(completion("Hello.", **fields))
    assert (reply.text, reply.reasoning) == ("Hello.", reasoning)


async def test_reasoning_within_the_text_stays_there_for_the_parser() -> None:
    assert (await replied(completion("<think>so</think>Hello."))).text == "<think>so</think>Hello."


async def test_blank_text_is_text() -> None:
    assert (await replied(completion(" \n"))).text == " \n"


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls", "eos", "", "STOP", None, 3, ["stop"]])
async def test_a_completion_that_did_not_come_to_its_own_end_is_no_reply(reason: object) -> None:
    with pytest.raises(IncompleteCompletionError) as raised:
        await replied(choice(finish_reason=reason))
    assert raised.value.finish_reason == (reason if isinstance(reason, str) else None)
    assert raised.value.call_id == "chatcmpl-1"
    assert "chatcmpl-1" in str(raised.value)
    assert "Hello" not in str(raised.value)


async def test_a_completion_that_does_not_say_how_it_ended_is_no_reply() -> None:
    answer = completion()
    del answer["choices"][0]["finish_reason"]
    with pytest.raises(IncompleteCompletionError):
        await replied(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {**completion(), "choices": []},
        completion(""),
        completion(None),
        choice(message={"role": "assistant"}),
        completion("", reasoning_content="much thought"),
    ],
)
async def test_a_completion_without_text_is_no_reply(answer: object) -> None:
    with pytest.raises(EmptyCompletionError) as raised:
        await replied(answer)
    assert "much thought" not in str(raised.value)


async def test_thought_that_used_up_the_limit_is_told_from_silence() -> None:
    answer = choice(finish_reason="length", message={"role": "assistant", "content": None, "reasoning": "hm"})
    with pytest.raises(IncompleteCompletionError):
        await replied(answer)


@pytest.mark.parametrize("text", [None, "", "I call a tool."])
@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
@pytest.mark.parametrize(
    "calls",
    [
        {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "rm", "arguments": "{}"}}]},
        {"function_call": {"name": "rm", "arguments": "{}"}},
    ],
)
async def test_native_tool_calls_are_never_dropped_in_silence(
    text: str | None, reason: str, calls: dict[str, Any]
) -> None:
    with pytest.raises(ToolCallsError):
        await replied(choice(finish_reason=reason, message={"role": "assistant", "content": text, **calls}))


async def test_an_empty_list_of_tool_calls_is_none() -> None:
    assert (await replied(completion("Hello.", tool_calls=[], function_call=None, refusal=None))).text == "Hello."


async def test_a_refusal_is_no_reply_and_is_not_quoted() -> None:
    with pytest.raises(RefusalError) as raised:
        await replied(completion(None, refusal="I will not say 'secret plan'."))
    assert raised.value.chars == 29
    assert "secret plan" not in f"{raised.value!r} {raised.value}"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" \n", b"{", b"null", b"[]", b"7", b'"text"', b"{}", b"\xff\xfe{", b"<html>busy</html>"),
        b'data: {"choices": []}\n\ndata: [DONE]\n\n',
        b"[" * 100_000,
        b'{"choices": ' + b"9" * 10_000 + b"}",
        *(json.dumps(answer).encode() for answer in (
            {"choices": None},
            {"choices": {"0": 1}},
            {"choices": ["Hello."]},
            {"choices": [None]},
            {"choices": completion()["choices"] * 2},
            choice(message=None),
            choice(message="Hello."),
            completion(["Hello."]),
            completion({"text": "Hello."}),
            completion(7),
            completion("Hello.", refusal={"a": 1}),
            completion("Hello.", reasoning=["Hello."]),
            {**completion(), "id": 7},
        )),
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_an_answer_that_is_no_completion_is_malformed_and_not_quoted(body: bytes, kind: str) -> None:
    async with served(sends(body, kind=kind)) as (port, _):
        with pytest.raises(MalformedCompletionError) as raised:
            await port.call(a_call())
    assert "Hello" not in str(raised.value)
    assert "busy" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


async def test_an_error_within_a_successful_answer_is_an_error() -> None:
    with pytest.raises(ErrorAnswerError) as raised:
        await replied({"error": {"code": 502, "type": "upstream", "message": "the provider is gone"}})
    assert (raised.value.status, raised.value.kind) == (200, "upstream")
    assert "the provider is gone" in str(raised.value)


def test_no_answer_whatsoever_raises_anything_but_our_errors() -> None:
    """Random damage to a whole completion: it is a reply, or an error of this module."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    values: list[object] = [None, "", "x", 0, 1.5, True, [], {}, ["x"], {"x": 1}]
    seen: set[type] = set()
    for _ in range(3000):
        answer: Any = completion("Hello.", reasoning="so", refusal=None, tool_calls=None)
        answer["error"] = chance.choice([None, None, "x", {}, {"message": 3, "code": [], "type": "t"}])
        for _ in range(chance.randrange(1, 4)):
            place = chance.choice(_objects(answer))
            place[chance.choice([*place, "x"])] = copy.deepcopy(chance.choice(values))
        body = json.dumps(answer).encode("ascii")
        if chance.random() < 0.2:
            body = body[: chance.randrange(len(body))]
        try:
            outcome: object = reply_in(body, str)
        except ChatCompletionError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - the finding
            pytest.fail(f"seed {seed}: {body!r} raised {error!r}")
        seen.add(type(outcome))
    assert {ModelReply, MalformedCompletionError, EmptyCompletionError, IncompleteCompletionError} <= seen


def _objects(value: object) -> list[dict[str, Any]]:
    """All objects in some JSON, from the outside in."""
    if isinstance(value, dict):
        return [value, *(found for inner in value.values() for found in _objects(inner))]
    return [found for inner in value for found in _objects(inner)] if isinstance(value, list) else []


def test_each_error_is_one_of_the_librarys() -> None:
    assert issubclass(ChatCompletionError, PolyLoopError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nothing of it", "nothing of it"),
        (f"the key {KEY} is wrong", "the key [masked] is wrong"),
        (f"{KEY}{KEY}", "[masked]"),
        (f"Bearer {KEY[:12]}... is wrong", "Bearer [masked]... is wrong"),
        (f"it ends in {KEY[-8:]}", "it ends in [masked]"),
        (f"{KEY[:7]} is too short a piece", f"{KEY[:7]} is too short a piece"),
        ("", ""),
        (KEY, "[masked]"),
        ("x" * 3000, "x" * 2000),
        ("x" * 1990 + KEY, "x" * 1990 + "[masked]"),
    ],
)
def test_pieces_of_a_credential_are_masked(text: str, shown: str) -> None:
    assert masked(text, ("short", KEY)) == shown
