"""The order of a prompt, and its size. Pure.

``run_segments`` → tool docs → ``skills`` → ``item_segments`` → history, from what changes least to what changes
most, so that a provider's prompt cache sees one growing prefix. History is append-only: the prompt of step n is
the prompt of step n-1 plus a tail.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyloop.types import ChatMessage, InjectedEntry, InvalidRequest, Step

PLACEHOLDER = "{observation}"


def check_template(template: object) -> None:
    """Refuse an observation template that does not hold the placeholder exactly once."""
    if not isinstance(template, str):
        raise InvalidRequest("AgentDefinition.observation_template", f"must be a string, got {type(template).__name__}")
    found = template.count(PLACEHOLDER)
    if found != 1:
        raise InvalidRequest(
            "AgentDefinition.observation_template", f"must contain {PLACEHOLDER} exactly once, found {found} times"
        )


def prompt_head(
    *,
    run_segments: tuple[ChatMessage, ...],
    tool_docs: str,
    skills: tuple[InjectedEntry, ...],
    item_segments: tuple[ChatMessage, ...],
) -> tuple[ChatMessage, ...]:
    """Everything before the history. Empty `tool_docs` leave no trace, not even an empty message."""
    docs = (ChatMessage(role="system", content=tool_docs),) if tool_docs else ()
    return (*run_segments, *docs, *(entry.message for entry in skills), *item_segments)


def step_tail(template: str, step: Step) -> tuple[ChatMessage, ChatMessage]:
    """What a step adds to the history: what the model said, and what it reads in answer."""
    # Literal substitution: observations contain braces, and str.format would read them.
    answer = template.replace(PLACEHOLDER, step.observation)
    return ChatMessage(role="assistant", content=step.raw_output), ChatMessage(role="user", content=answer)


def count_chars(messages: Iterable[ChatMessage]) -> int:
    """The size of a prompt: the characters of its messages' contents."""
    return sum(len(message.content) for message in messages)
