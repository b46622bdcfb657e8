"""`polyloop export`: the records as they are, and a document that readers of ATIF take."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import atif
import pytest

from polyloop.serialization import decode, encode
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import ActionKind, JSONValue, RunKey, ToolDocsStyle
from tests.builders import definition, request
from tests.cli.logs import eventful, hostile, sound, timed
from tests.cli.places import Place, polyloop, printed
from tests.contract.records import started
from tests.fakes import ScriptedParser, tool_call


def exported(place: Place, key: str) -> dict[str, Any]:
    """The document, once the readers of the format have taken it."""
    text = printed("export", place.url, key, "--format", "atif")
    assert text.isascii()
    atif.Trajectory.model_validate_json(text)
    document: dict[str, Any] = json.loads(text)
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["session_id"] == document["trajectory_id"] == key
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    assert document["final_metrics"]["total_steps"] == len(document["steps"])
    return document


def test_jsonl_is_a_record_a_line_as_it_is_encoded(anywhere: Place) -> None:
    anywhere.fill({"a": eventful(), "b": hostile()})
    for key, records in (("a", eventful()), ("b", hostile())):
        lines = printed("export", anywhere.url, key, "--format", "jsonl").split("\n")
        assert lines == [*map(encode, records), ""]
        assert [decode(line) for line in lines[:-1]] == records


def run_with_tools(place: Place) -> None:
    async def look(arguments: dict[str, Any]) -> str:
        return f"saw {arguments['at']}"

    parameters: dict[str, JSONValue] = {"type": "object", "properties": {"at": {"type": "string"}}}
    tools = ToolRegistry([ToolSpec(name="look", description="Look.", parameters=parameters, handler=look)])

    async def run() -> None:
        async with place.store() as store:
            agent = definition(("huh", tool_call("look", at="it"), "final: done"), store=store)
            agent = dataclasses.replace(agent, parser=ScriptedParser(produces=ActionKind.TOOL_CALL))
            asked = dataclasses.replace(
                request(),
                key=RunKey("run"),
                tools=tools,
                executor=tools.executor(max_observation_chars=3),
                tool_docs_style=ToolDocsStyle.MARKDOWN,
            )
            await agent.run(asked)

    asyncio.run(run())


def test_a_real_run_becomes_a_document_with_prompts_as_digests(anywhere: Place) -> None:
    run_with_tools(anywhere)
    document = exported(anywhere, "run")
    agent, steps = document["agent"], document["steps"]
    assert (agent["name"], agent["model_name"]) == ("polyloop", "scripted")
    assert agent["tool_definitions"][0]["type"] == "function"
    assert agent["tool_definitions"][0]["function"]["name"] == "look"
    assert agent["extra"]["params_snapshot"]["budget"]["max_steps"] == 20
    prompt, turns = steps[:4], steps[4:]
    assert [(step["source"], step["message"]) for step in prompt] == [
        ("system", ""),
        ("system", ""),
        ("user", ""),
        ("user", ""),
    ]
    named = [step["extra"]["prompt"] for step in prompt]
    assert [each["part"] for each in named] == ["run_segments", "tool_docs", "skills", "item_segments"]
    assert all(len(each["sha256"]) == 64 for each in named)
    assert named[0]["length"] == len("You act.")
    assert "You act." not in json.dumps(document)
    assert [turn["message"] for turn in turns] == ["huh", 'call: look {"at": "it"}', "final: done"]
    assert all(turn["source"] == "agent" and turn["llm_call_count"] == 1 for turn in turns)
    assert "tool_calls" not in turns[0]
    assert turns[0]["observation"]["results"][0]["extra"]["synthetic"] is True
    assert turns[1]["tool_calls"] == [
        {"tool_call_id": "000001-action", "function_name": "look", "arguments": {"at": "it"}}
    ]
    assert turns[1]["observation"]["results"] == [
        {
            "source_call_id": "000001-action",
            "content": "saw",
            "extra": {"synthetic": False, "truncated_chars": 3, "status": "executed"},
        }
    ]
    assert turns[1]["extra"]["call_id"] == "call-1"
    assert "observation" not in turns[2]
    assert turns[2]["extra"]["final_answer"] == "done"
    assert document["extra"]["stop_reason"] == "agent_finished"
    assert document["final_metrics"]["extra"]["steps"] == 3
    assert document["final_metrics"]["extra"]["executed_actions"] == 1


def test_what_happened_to_a_run_is_in_the_document(on_disk: Place) -> None:
    on_disk.fill({"run": eventful()})
    document = exported(on_disk, "run")
    (turn,) = document["steps"]
    assert turn["reasoning_content"] == "Hm.\nLet me see."
    assert turn["message"] == "I look at it"
    assert turn["timestamp"] == "2026-03-05T00:00:02.500000+00:00"
    assert turn["extra"]["history_text"] == "I look"
    assert turn["extra"]["action"] == "look twice"
    assert (turn["extra"]["model_call_attempts"], turn["extra"]["action_attempts"]) == (2, 1)
    assert "tool_calls" not in turn
    assert "source_call_id" not in turn["observation"]["results"][0]
    assert document["extra"]["state"] == "unfinished"
    assert document["extra"]["cancelled_at"] == ["2026-03-04T23:30:00.000000+00:00"]
    assert document["extra"]["open_effect"] == {"result_id": "000001-model_call", "attempt": 1, "replay": "safe"}


def test_a_run_that_has_only_begun_is_a_document_too(on_disk: Place) -> None:
    prompt: dict[str, JSONValue] = {
        "run_segments": [{"role": "assistant", "length": 2, "sha256": "00"}, {"role": "user"}]
    }
    on_disk.fill({"bare": timed((0, started())), "prompted": timed((0, started(prompt)))})
    assert exported(on_disk, "bare")["steps"] == []
    first, second = exported(on_disk, "prompted")["steps"]
    assert (first["source"], first["llm_call_count"]) == ("agent", 0)
    assert second["source"] == "user"


def test_hostile_text_stays_data(on_disk: Place) -> None:
    on_disk.fill({"run": hostile()})
    document = exported(on_disk, "run")
    (turn,) = document["steps"]
    assert "\x1b]0;owned\x07" in turn["message"]
    assert "\ufffd" in turn["message"], "a lone surrogate became the replacement character"


@pytest.mark.parametrize("given", [(), ("--format", "xml")])
def test_a_format_must_be_named(on_disk: Place, given: tuple[str, ...]) -> None:
    on_disk.fill({"run": sound(1)})
    done = polyloop("export", on_disk.url, "run", *given)
    assert done.returncode == 2
    assert "--format" in done.stderr
    assert done.stderr.count("\n") == 1
