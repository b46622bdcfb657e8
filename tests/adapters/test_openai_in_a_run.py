"""A run on `OpenAIChatModel`: what is cut off is never executed, and the log holds no credential."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from polyloop.adapters.openai import OpenAIChatModel
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import ReplayPolicy, RunIdentityMismatch, StopReason
from tests import builders
from tests.adapters.endpoint import KEY, Asked, Behaviour, Endpoint, a_client, completion, model, says, served
from tests.fakes import ScriptedExecutor

CUT: dict[str, Any] = completion("act: rm -r build")
CUT["choices"][0]["finish_reason"] = "length"


def says_in_turn(*answers: Any) -> Behaviour:
    """One answer for each number of messages that the model has said."""

    async def behaviour(asked: Asked) -> None:
        said = sum(message["role"] == "assistant" for message in asked.json["messages"])
        await says(answers[said])(asked)

    return behaviour


def a_run(port: OpenAIChatModel, store: JsonlRunStore) -> tuple[AgentDefinition, RunRequest, ScriptedExecutor]:
    executor = ScriptedExecutor(lambda _: "done")
    definition = dataclasses.replace(builders.definition(store=store), model=port)
    request = dataclasses.replace(
        builders.request(), executor=executor, model_binding={}, model_call_replay=ReplayPolicy.SAFE
    )
    return definition, request, executor


def written(folder: Path) -> str:
    """All that stands in the store's files."""
    return "".join(path.read_text("utf-8") for path in folder.rglob("*") if path.is_file())


async def test_a_run_goes_through_and_its_steps_have_the_endpoints_ids(tmp_path: Path) -> None:
    turns = says_in_turn(completion("act: look", reasoning="so"), {**completion("final: 42"), "id": "chatcmpl-2"})
    async with served(turns) as (port, endpoint), JsonlRunStore(tmp_path) as store:
        definition, request, executor = a_run(port, store)
        result = await definition.run(request)
    assert (result.stop_reason, result.final_answer) == (StopReason.AGENT_FINISHED, "42")
    assert [step.call_id for step in result.steps] == ["chatcmpl-1", "chatcmpl-2"]
    assert [step.thinking_chars for step in result.steps] == [2, 0]
    assert len(executor.actions) == 1
    first, second = (asked.json["messages"] for asked in endpoint.asked)
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (CUT, "IncompleteCompletionError"),
        ({"error": {"message": f"Bearer {KEY} is out of money"}}, "[masked]"),
        (completion(None, tool_calls=[{"id": "1"}]), "ToolCallsError"),
        ("nonsense", "MalformedCompletionError"),
    ],
    ids=["cut off", "quotes the key", "tool call", "malformed"],
)
async def test_what_is_no_whole_reply_stops_the_run_unexecuted_and_the_log_says_why(
    answer: Any, detail: str, tmp_path: Path
) -> None:
    async with served(says(answer)) as (port, _), JsonlRunStore(tmp_path) as store:
        definition, request, executor = a_run(port, store)
        result = await definition.run(request)
        assert await definition.resume(request) == result
    assert result.stop_reason is StopReason.LLM_ERROR
    assert detail in str(result.detail)
    assert executor.actions == []
    assert "llm_error" in written(tmp_path)
    assert KEY not in written(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 0.5}, {"max_retries": 1}, {"timeout_s": 61.0}, {"extra_body": {"top_k": 1}}],
    ids=json.dumps,
)
async def test_a_run_is_not_resumed_with_other_parameters(changed: dict[str, Any], tmp_path: Path) -> None:
    async with (
        Endpoint(says(completion("final: 42"))) as endpoint,
        JsonlRunStore(tmp_path) as store,
        a_client(endpoint.url) as client,
    ):
        definition, request, _ = a_run(model(client), store)
        await definition.run(request)
        other = dataclasses.replace(definition, model=model(client, **changed))
        with pytest.raises(RunIdentityMismatch) as refused:
            await other.resume(request)
    assert KEY not in str(refused.value)
