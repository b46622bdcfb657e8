"""An endpoint's answer, read: a `ModelReply`, or the error that says what came instead. Knows no SDK and no network.

The bytes are read here, since the SDK builds its objects without validation: every field may be missing, or of any
type. What is wrong is named by field and type, never by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from polyloop.adapters.openai.errors import (
    EmptyCompletionError,
    ErrorAnswerError,
    IncompleteCompletionError,
    MalformedCompletionError,
    RefusalError,
    ToolCallsError,
)
from polyloop.types import ModelReply

Said: TypeAlias = Callable[[str], str]
"""Makes a text of the endpoint fit to be shown: masked, on one line, cut."""

CLEAN_STOP: Final = "stop"
"""The one `finish_reason` of a reply that came to its own end."""
REASONING: Final = ("reasoning_content", "reasoning", "reasoning_text")
"""Where servers put what a model thought. The first that holds text is taken; some servers fill two alike."""
PIECE_CHARS: Final = 8
"""From this length on a piece of a credential is masked. What is shorter altogether is no credential."""
MASKED_CHARS: Final = 2000
"""How much of a text is looked through; what is behind is dropped."""


def reply_in(answer: bytes, said: Said) -> ModelReply:
    """The reply in the body of an answer.

    Raises:
        ChatCompletionError: there is none that can be used.
    """
    completion = _completion(answer)
    choices, call_id = completion.get("choices"), _call_id(completion)
    if completion.get("error") and not choices:
        # Some gateways have no status left when the model behind them fails: they answered 200 already.
        raise error_answer(200, completion["error"], said)
    if not isinstance(choices, list):
        raise MalformedCompletionError(f"`choices` is {_kind(choices)}", call_id=call_id)
    if not choices:
        raise EmptyCompletionError("`choices` is an empty list", call_id=call_id)
    if len(choices) > 1:
        raise MalformedCompletionError(f"it has {len(choices)} choices, one was asked for", call_id=call_id)
    return _chosen(_object(choices[0], "choices[0]", call_id), call_id)


def _chosen(choice: Mapping[str, object], call_id: str | None) -> ModelReply:
    message = _object(choice.get("message"), "choices[0].message", call_id)
    if message.get("tool_calls") or message.get("function_call"):
        raise ToolCallsError(call_id=call_id)
    if refusal := _text(message, "refusal", call_id):
        raise RefusalError(len(refusal), call_id=call_id)
    reasoning = next((text for name in REASONING if (text := _text(message, name, call_id))), None)
    finish_reason, content = _finish_reason(choice), _text(message, "content", call_id)
    if finish_reason != CLEAN_STOP:
        raise IncompleteCompletionError(finish_reason, call_id=call_id)
    if not content:
        beside = "" if reasoning is None else f", beside {len(reasoning)} characters of reasoning"
        raise EmptyCompletionError(f"`content` has no text{beside}", call_id=call_id)
    return ModelReply(call_id=call_id, text=content, reasoning=reasoning)


def _completion(answer: bytes) -> Mapping[str, object]:
    if not answer.strip():
        raise MalformedCompletionError("its body is empty")
    try:
        completion: object = json.loads(answer)
    except (ValueError, RecursionError) as error:
        kind = type(error).__name__
    else:
        return _object(completion, "the body", None)
    # Raised out here, without the body that the decoder's error carries.
    raise MalformedCompletionError(f"its body of {len(answer)} bytes is no JSON ({kind})")


def _call_id(completion: Mapping[str, object]) -> str | None:
    return _text(completion, "id", None) or None


def _finish_reason(choice: Mapping[str, object]) -> str | None:
    found = choice.get("finish_reason")
    return found if isinstance(found, str) else None


def _object(value: object, path: str, call_id: str | None) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise MalformedCompletionError(f"`{path}` is {_kind(value)}", call_id=call_id)
    return value


def _text(owner: Mapping[str, object], name: str, call_id: str | None) -> str:
    """A field that is text or absent; empty where it is absent."""
    value = owner.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedCompletionError(f"`{name}` is {_kind(value)}, not a string", call_id=call_id)
    return value


def _kind(value: object) -> str:
    return "missing" if value is None else f"a JSON {type(value).__name__}"


# ------------------------------------------------------------------------------------------- Errors


def error_answer(status: int, error: object, said: Said) -> ErrorAnswerError:
    """The error that an endpoint reports: its code or type, and what it says.

    Never the whole body, which may quote the request.
    """
    if not isinstance(error, Mapping):
        return ErrorAnswerError(status, None, said(error) if isinstance(error, str) else "")
    named = [error.get(name) for name in ("code", "type")]
    kind = next((said(each) for each in named if isinstance(each, str) and each), None)
    message = error.get("message")
    return ErrorAnswerError(status, kind, said(message) if isinstance(message, str) else "")


def masked(text: str, credentials: Iterable[str]) -> str:
    """The beginning of a text, with every piece of a credential in it replaced."""
    text = text[:MASKED_CHARS]
    hidden = bytearray(len(text))
    for credential in credentials:
        for begin in range(len(text) - PIECE_CHARS + 1):
            if text[begin : begin + PIECE_CHARS] in credential:
                hidden[begin : begin + PIECE_CHARS] = b"\1" * PIECE_CHARS
    shown: list[str] = []
    for index, character in enumerate(text):
        if not hidden[index]:
            shown.append(character)
        elif not (index and hidden[index - 1]):
            shown.append("[masked]")
    return "".join(shown)
