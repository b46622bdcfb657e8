"""Reviews as GovDoc runs them: phases with tools of their own, many tenants, and a database that may be down."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest

from polyloop.session import AgentDefinition
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import (
    ChatMessage,
    Event,
    InvalidRequest,
    RunIdentityMismatch,
    RunResult,
    StepEnded,
    StopReason,
)
from tests.consumers import clock
from tests.consumers.govdoc import PHASES, GovDoc, Transient, undisturbed
from tests.family import timeless

LIMIT_S: Final = 30.0
NOT_EXECUTED: Final = "Not executed: there is no such tool here, or its arguments are wrong."
TOOLS: Final = {
    "explore": ["read_section", "bash"],
    "review": ["read_section", "bash", "submit"],
    "summarize": ["read_section", "submit"],
}


def shown_tools(messages: Sequence[Mapping[str, str]]) -> list[str]:
    """The tools whose description stands in a prompt."""
    return [name for message in messages for name in re.findall(r"^## (\S+)$", message["content"], re.MULTILINE)]


# --- phases


async def test_each_phase_shows_and_runs_its_own_tools_and_no_other(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path / "runs") as store:
        service = GovDoc(store, tmp_path / "documents")
        results = {}
        for phase in PHASES:
            service.client.calls.clear()
            results[phase] = await service.definition.run(service.request("alba", phase))
            for tenant, messages in service.client.calls:
                assert tenant == "alba"
                assert shown_tools(messages) == TOOLS[phase]
        key = results["summarize"].key
        assert service.documents.ledger(key) == ["alba/p1@r1/explore#1", "alba/p1@r1/review#1"]
        refused = results["summarize"].steps[0]
        assert (refused.tool_name, refused.action_status) == ("bash", "not_executed")
        assert (refused.observation, refused.observation_is_synthetic) == (NOT_EXECUTED, True)
        assert "bash" not in str(service.client.calls[0][1]), "no word of it before the model asked for it itself"
        told = [event.outcome for event in service.audit.events if event.key == key]
        assert told[0] is not None
        assert "unknown tool 'bash'" in told[0].observation, "what the executor said is kept for the audit"
    assert [service.verdict(results[phase]) for phase in PHASES] == ["done"] * 3
    assert [results[phase].stop_reason for phase in PHASES] == ["agent_finished", "task_completed", "task_completed"]
    assert [results[phase].usage.executed_actions for phase in PHASES] == [2, 4, 2]
    assert results["explore"].final_answer == "exit code 0: 2\n"
    submitted = service.documents.submitted(key)
    assert list(submitted) == ["alba/p1@r1/review/000003-action", f"{key}/000002-action"]
    assert submitted["alba/p1@r1/review/000003-action"] == ["after Not accepted: there are no findings"]


async def test_a_tool_that_fails_is_an_observation_and_a_service_that_is_down_ends_the_review(tmp_path: Path) -> None:
    service = GovDoc(EphemeralRunStore(), tmp_path)
    result = await service.definition.run(service.request("alba", "review"))
    missing, failed, empty, _ = result.steps
    assert missing.observation == "LookupError: there is no section 'no-such-section'"
    assert failed.observation == "exit code 3: alba pays 7 a month.\nalba pays 9 a year."
    assert empty.observation == "Not accepted: there are no findings"
    assert {step.action_status for step in result.steps} == {"executed"}
    service.documents.down = True
    ended = await service.definition.run(service.request("brin", "explore"))
    assert (ended.stop_reason, ended.detail) == (StopReason.ENV_ERROR, "no route to the documents")
    assert service.verdict(ended) == "again under a new key"


async def test_a_prompt_that_is_narrowed_without_its_executor_is_refused(tmp_path: Path) -> None:
    service = GovDoc(EphemeralRunStore(), tmp_path)
    request = service.request("alba", "summarize")
    wide = dataclasses.replace(request, executor=service.tools.executor(max_observation_chars=20_000))
    with pytest.raises(InvalidRequest):
        await service.definition.run(wide)
    assert (await service.store.read_log(request.key)).next_seq == 0


async def test_a_changed_document_needs_a_revision_of_its_own(tmp_path: Path) -> None:
    service = GovDoc(EphemeralRunStore(), tmp_path)
    request = service.request("alba", "explore")
    first = await service.definition.run(request)
    changed = dataclasses.replace(request, item_segments=(ChatMessage(role="user", content="Changed. This is x."),))
    with pytest.raises(RunIdentityMismatch) as refused:
        await service.definition.resume(changed)
    assert {each.path.partition("[")[0] for each in refused.value.differences} == {"item_segments"}
    assert await service.definition.resume(request) == first
    assert (await service.definition.run(service.request("alba", "explore", "r2"))).stop_reason is first.stop_reason


# --- the gateway


class Busy:
    """A gateway that asks to try again so many times, and whose time passes at once."""

    def __init__(self, times: int) -> None:
        self.asked = 0
        self._times = times

    async def __call__(self, point: str) -> None:
        self.asked += 1
        if self.asked <= self._times:
            # In the next turn of the loop, when the backoff has begun.
            asyncio.get_running_loop().call_soon(clock.jump, 41)
            raise Transient("too many requests")


@pytest.mark.parametrize(("times", "stop_reason"), [(2, "agent_finished"), (3, "llm_error")])
def test_the_gateways_retries_are_one_model_call(tmp_path: Path, times: int, stop_reason: str) -> None:
    async def reviewed() -> None:
        busy = Busy(times)
        service = GovDoc(EphemeralRunStore(), tmp_path, in_model=busy)
        result = await service.definition.run(service.request("alba", "explore"))
        assert result.stop_reason == stop_reason
        assert result.usage.model_calls == len(result.steps) == (3 if times == 2 else 1)
        assert busy.asked == result.usage.model_calls + 2
        assert result.detail == (None if times == 2 else "Transient: too many requests")

    clock.run(reviewed())


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    assert GovDoc(EphemeralRunStore(), tmp_path).page.unused == set()


# --- progress and audit


class Down:
    """A database that is down when certain things are written, each in its own way."""

    def __init__(self) -> None:
        self.failed = 0

    async def __call__(self, point: str) -> None:
        if "step 0" in point:
            self.failed += 1
            raise ConnectionError("the database is down")
        if "step 2" in point or "closed" in point:
            # The page's sink gives up after two seconds.
            self.failed += 1
            clock.jump(3)
            await clock.hang()


def test_a_database_that_is_down_or_does_not_answer_neither_stops_nor_changes_a_review(tmp_path: Path) -> None:
    async def reviewed() -> None:
        down = Down()
        async with JsonlRunStore(tmp_path / "runs") as store:
            service = GovDoc(store, tmp_path / "documents", in_progress=down)
            request = service.request("alba", "review")
            result = await service.definition.run(request)
            assert down.failed == 3
            # The end of a run is told after its end record: that failure is in the log no more.
            assert result.event_sink_failures == 2
            (quiet,) = await undisturbed(tmp_path, ("alba", "review"))
            assert timeless(dataclasses.replace(result, event_sink_failures=0)) == timeless(quiet)
            assert service.progress.steps[request.key] == [1, 3]
            assert service.progress.closed == {}
            assert len(service.audit.events) == 4
            assert await service.definition.resume(request) == result

    clock.run(reviewed())


async def test_an_event_sink_may_start_another_review_on_the_same_definition(tmp_path: Path) -> None:
    class Starts:
        def __init__(self) -> None:
            self.definition: AgentDefinition | None = None
            self.started: list[RunResult] = []

        async def emit(self, event: Event, /) -> None:
            if isinstance(event, StepEnded) and event.key.startswith("alba/") and not self.started:
                assert self.definition is not None
                self.started.append(await self.definition.run(service.request("brin", "review")))

    async with JsonlRunStore(tmp_path / "runs") as store:
        service, sink = GovDoc(store, tmp_path / "documents"), Starts()
        sink.definition = dataclasses.replace(service.definition, events=sink)
        result = await sink.definition.run(service.request("alba", "review"))
    (started,) = sink.started
    quiet = await undisturbed(tmp_path, ("alba", "review"), ("brin", "review"))
    assert [timeless(result), timeless(started)] == [timeless(each) for each in quiet]


# --- tenants


class Watch:
    """Delays everything a little, in an order of its own, and keeps the events by run."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}

    async def delay(self, point: str) -> None:
        for _ in range(len(point) * 7 % 11):
            await asyncio.sleep(0)

    async def emit(self, event: Event, /) -> None:
        await self.delay(event.key)
        self.events.setdefault(event.key, []).append(event)


async def test_fifty_tenants_at_once_on_one_definition_never_see_each_other(tmp_path: Path) -> None:
    watch = Watch()
    tenants = [f"tenant{number:02}" for number in range(50)]
    async with JsonlRunStore(tmp_path / "runs") as store:
        service = GovDoc(store, tmp_path / "documents", in_model=watch.delay, in_tool=watch.delay)
        definition = dataclasses.replace(service.definition, events=watch)
        before, view = ports_of(definition), definition.params_view
        requests = {tenant: service.request(tenant, PHASES[at % 3]) for at, tenant in enumerate(tenants)}
        results = await asyncio.gather(*map(definition.run, requests.values()))
        assert (ports_of(definition), definition.params_view) == (before, view)
        quiet = await undisturbed(tmp_path, *((tenant, PHASES[at % 3]) for at, tenant in enumerate(tenants)))
        assert [timeless(each) for each in results] == [timeless(each) for each in quiet]
        for (tenant, request), result in zip(requests.items(), results, strict=True):
            phase = request.key.rpartition("/")[2]
            others = set(tenants) - {tenant}
            texts = [str(result), *map(str, watch.events[request.key]), str(service.documents.submitted(request.key))]
            texts += [str(messages) for of, messages in service.client.calls if of == tenant]
            assert not [other for other in others for text in texts if other in text]
            ended = [event for event in watch.events[request.key] if isinstance(event, StepEnded)]
            assert tuple(event.step for event in ended) == result.steps
            assert service.documents.ledger(request.key) == ([] if phase == "summarize" else [f"{request.key}#1"])
        assert len(service.client.calls) == sum(len(result.steps) for result in results)


def ports_of(definition: AgentDefinition) -> dict[str, object]:
    return {field.name: getattr(definition, field.name) for field in dataclasses.fields(definition)}


async def test_changing_a_request_or_a_result_afterwards_changes_nothing_that_is_stored(tmp_path: Path) -> None:
    binding = {"tenant": "alba"}
    async with JsonlRunStore(tmp_path / "runs") as store:
        service = GovDoc(store, tmp_path / "documents")
        request = dataclasses.replace(service.request("alba", "explore"), model_binding=binding)
        result = await service.definition.run(request)
        kept = copy.deepcopy(result)
        binding["tenant"] = "brin"
        cast("Any", result.params_snapshot)["model_binding"]["tenant"] = "cora"
        with pytest.raises(RunIdentityMismatch):
            await service.definition.resume(request)
        assert await service.definition.resume(service.request("alba", "explore")) == kept
