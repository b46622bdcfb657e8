"""Calls as the driver makes them."""

from __future__ import annotations

from typing import Any

from polyloop.ports import ModelCall
from polyloop.types import ChatMessage, RunKey


def a_call(*messages: ChatMessage, **changed: Any) -> ModelCall:
    """The first call of a run."""
    arguments: dict[str, Any] = {
        "messages": messages or (ChatMessage(role="user", content="Say something."),),
        "call_index": 0,
        "key": RunKey("run"),
        "result_id": "000000-model_call",
        "binding": {},
    }
    return ModelCall(**{**arguments, **changed})
