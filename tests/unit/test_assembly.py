"""What the model is shown: the order of a prompt, nothing where there is nothing, history that only grows."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyloop._assembly import PLACEHOLDER, check_template, count_chars, prompt_head, step_tail
from polyloop.ports import ModelCall
from polyloop.session import RunRequest
from polyloop.tools import ToolRegistry, ToolSpec
from polyloop.types import ChatMessage, InjectedEntry, InvalidRequest, JSONValue, Step, ToolDocsStyle
from tests.builders import definition, request
from tests.fakes import ScriptedExecutor, ScriptedModel, act, final
from tests.recovery.logs import step

RUN = (ChatMessage(role="system", content="run 1"), ChatMessage(role="user", content="run 2"))
SKILLS = tuple(
    InjectedEntry(entry_id=str(number), message=ChatMessage(role="user", content=f"skill {number}"))
    for number in (1, 2)
)
ITEMS = (ChatMessage(role="user", content="item 1"), ChatMessage(role="assistant", content="item 2"))


async def _handler(arguments: dict[str, JSONValue]) -> str:
    return "seen"


TOOLS = ToolRegistry([ToolSpec(name="look", description="Looks.", parameters={}, handler=_handler)])


def full_request(tools: ToolRegistry = TOOLS, style: ToolDocsStyle = ToolDocsStyle.MARKDOWN) -> RunRequest:
    return dataclasses.replace(
        request(),
        run_segments=RUN,
        skills=SKILLS,
        item_segments=ITEMS,
        tools=tools,
        tool_docs_style=style,
        executor=ScriptedExecutor(tool_schemas=tools.schemas),
    )


async def prompts_of(asked: RunRequest, *replies: str, template: str = "observed: {observation}") -> list[ModelCall]:
    model = ScriptedModel(replies)
    made = dataclasses.replace(definition(), model=model, observation_template=template)
    await made.run(asked)
    return model.calls


async def test_a_prompt_is_run_segments_tool_docs_skills_item_segments_history() -> None:
    calls = await prompts_of(full_request(), act("a"), final("x"))
    assert calls[1].messages == (
        *RUN,
        ChatMessage(role="system", content=TOOLS.docs(ToolDocsStyle.MARKDOWN)),
        *(entry.message for entry in SKILLS),
        *ITEMS,
        ChatMessage(role="assistant", content="act: a"),
        ChatMessage(role="user", content="observed: did a"),
    )


@pytest.mark.parametrize("style", ToolDocsStyle)
async def test_the_tools_are_described_in_the_style_of_the_request(style: ToolDocsStyle) -> None:
    (call,) = await prompts_of(full_request(style=style), final("x"))
    docs = [ChatMessage(role="system", content=TOOLS.docs(style))] if style is not ToolDocsStyle.NONE else []
    assert list(call.messages) == [*RUN, *docs, *(entry.message for entry in SKILLS), *ITEMS]


@pytest.mark.parametrize("style", ToolDocsStyle)
async def test_without_tools_no_style_leaves_a_trace(style: ToolDocsStyle) -> None:
    (bare,) = await prompts_of(full_request(ToolRegistry(()), ToolDocsStyle.NONE), final("x"))
    (call,) = await prompts_of(full_request(ToolRegistry(()), style), final("x"))
    assert call.messages == bare.messages == (*RUN, *(entry.message for entry in SKILLS), *ITEMS)
    assert repr(call.messages).encode() == repr(bare.messages).encode()


@pytest.mark.parametrize("empty", list(itertools.product([False, True], repeat=4)))
def test_each_part_may_be_missing(empty: tuple[bool, bool, bool, bool]) -> None:
    run, docs, skills, items = empty
    head = prompt_head(
        run_segments=() if run else RUN,
        tool_docs="" if docs else "docs",
        skills=() if skills else SKILLS,
        item_segments=() if items else ITEMS,
    )
    assert [message.content for message in head] == [
        *(() if run else ("run 1", "run 2")),
        *(() if docs else ("docs",)),
        *(() if skills else ("skill 1", "skill 2")),
        *(() if items else ("item 1", "item 2")),
    ]


async def test_a_prompt_of_one_empty_message_is_a_prompt() -> None:
    silent = dataclasses.replace(
        request(), run_segments=(ChatMessage(role="user", content=""),), skills=(), item_segments=()
    )
    (call,) = await prompts_of(silent, final("x"))
    assert call.messages == (ChatMessage(role="user", content=""),)


async def test_history_is_append_only() -> None:
    replies = [act("a"), "unreadable", act("b"), final("x")]
    calls = await prompts_of(full_request(), *replies)
    for before, after in itertools.pairwise(calls):
        assert after.messages[: len(before.messages)] == before.messages
        said, answered = after.messages[len(before.messages) :]
        assert (said.role, answered.role) == ("assistant", "user")
        assert said.content == replies[before.call_index]


@pytest.mark.parametrize(
    "template", ["{observation}", "<{observation}>", "{} {0} {observation} {x!r:>9}", "{{observation}}"]
)
@pytest.mark.parametrize(
    "text", ["{observation}", "a{observation}b", "{0}", "{", "}}{{", "%s \\1 \\g<0>", "{observation.__class__}", ""]
)
async def test_an_observation_is_put_into_the_template_literally(template: str, text: str) -> None:
    made = dataclasses.replace(
        request(),
        executor=ScriptedExecutor([text]),
        budget=dataclasses.replace(request().budget, max_executed_actions=2),
    )
    calls = await prompts_of(made, act("a"), final("x"), template=template)
    before, _, after = template.partition("{observation}")
    assert calls[1].messages[-1] == ChatMessage(role="user", content=before + text + after)


async def test_the_answer_to_an_invalid_decision_stands_in_the_template_too() -> None:
    calls = await prompts_of(request(), "unreadable", final("x"), template="[{observation}]")
    content = calls[1].messages[-1].content
    assert content.startswith("['unreadable' is no decision")
    assert content.endswith("]")


@given(st.text(), st.text().filter(lambda text: "observation" not in text), st.text())
def test_any_template_with_the_placeholder_takes_any_observation(observation: str, before: str, raw: str) -> None:
    template = before + PLACEHOLDER
    made = dataclasses.replace(step(0, "executed").step, observation=observation, raw_output=raw)
    said, answered = step_tail(template, made)
    assert (said.role, said.content) == ("assistant", raw)
    assert (answered.role, answered.content) == ("user", before + observation)


@pytest.mark.parametrize("template", ["{observation}", "a{observation}b", "{{observation}}", "{obs}{observation}"])
def test_a_template_with_one_placeholder_is_taken(template: str) -> None:
    check_template(template)


@pytest.mark.parametrize(
    "template", ["", "observation", "{Observation}", "{ observation }", "{observation}{observation}", b"", None]
)
def test_any_other_template_is_refused(template: object) -> None:
    with pytest.raises(InvalidRequest) as found:
        check_template(template)
    assert found.value.field == "AgentDefinition.observation_template"


async def test_the_size_of_a_prompt_is_the_characters_of_its_contents() -> None:
    model = ScriptedModel([act("a"), act("\U0001f600"), "unreadable", final("x")])
    result = await dataclasses.replace(definition(), model=model).run(full_request())
    assert [each.prompt_chars for each in result.steps] == [
        sum(len(message.content) for message in call.messages) for call in model.calls
    ]
    assert count_chars(()) == 0
    assert count_chars(RUN) == 10


def test_a_step_adds_two_messages_whatever_it_was() -> None:
    kinds: list[Step] = [step(0, kind).step for kind in ("llm_error", "invalid", "final", "executed", "env_error")]
    assert all(len(step_tail("{observation}", made)) == 2 for made in kinds)
