"""dissect, moved over by its page: the definition, the requests, and the runner that awaits many rollouts at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, cast

from polyloop.ports import ActionExecutor, RunStore
from polyloop.session import AgentDefinition, RunRequest
from polyloop.types import Budget, ChatMessage, InjectedEntry, RunKey, RunResult
from tests.consumers.harness import HARNESS, OBSERVATION_LIMIT, CodeParser, LedgerClient, OldLoop, Trajectory
from tests.consumers.pages import Page
from tests.consumers.rollouts import Item
from tests.consumers.sessions import Episode

Continue: TypeAlias = Callable[[AgentDefinition, RunRequest], Awaitable[RunResult | None]]


class Dissect:
    """The page's code on a store."""

    def __init__(self, client: LedgerClient, store: RunStore) -> None:
        self.page = Page("dissect.md", HARNESS)
        for marker in ("class LedgerModel", "class CodeDecisions", "class EpisodeExecutor", "class NoEvents"):
            self.page.run(marker)
        self.page.run("definition = AgentDefinition", client=client, code_parser=CodeParser(), store=store)
        self.page.run("def continue_rollout")

    @property
    def definition(self) -> AgentDefinition:
        return cast("AgentDefinition", self.page["definition"])

    @property
    def continue_rollout(self) -> Continue:
        return cast("Continue", self.page["continue_rollout"])

    def executor(self, episode: Episode, session_id: str) -> ActionExecutor:
        """The page's wrapper around an open episode."""
        made = self.page["EpisodeExecutor"](episode, session_id=session_id, max_observation_chars=OBSERVATION_LIMIT)
        return cast("ActionExecutor", made)

    def request(self, item: Item, episode: Episode, session_id: str | None = None) -> RunRequest:
        """The page's request for a rollout, with the limits and texts of this experiment."""
        session_id = session_id or f"session of {item.item_id}"
        run, skill, asked = (ChatMessage(role="user", content=part["content"]) for part in item.head)
        self.page.run(
            "template = RunRequest",
            executor=self.executor(episode, session_id),
            run_segments=(dataclasses.replace(run, role="system"),),
            injected=(InjectedEntry(entry_id="skill", message=skill),),
            item_segments=(asked,),
            experiment="experiment-7",
            arm="a",
            episode=episode,
            session_id=session_id,
            **{name: value for name, value in item.dimensions.items() if name != "ledger"},
        )
        limits = item.kind.limits
        request = cast("RunRequest", self.page["request"])
        return dataclasses.replace(
            request,
            executor=self.executor(episode, session_id),
            budget=Budget(
                max_steps=limits.max_steps,
                max_executed_actions=limits.max_actions,
                max_prompt_chars=limits.max_prompt_chars,
                max_consecutive_parse_failures=limits.max_failures,
            ),
        )

    def key(self, item: Item) -> RunKey:
        """The key of a rollout, from its six dimensions."""
        return self.request(item, Episode(item.goal)).key


async def old_trajectory(client: LedgerClient, item: Item, ledger: Path | None = None) -> Trajectory:
    """The rollout as the old loop has it, in a session of its own."""
    async with Episode(item.goal, ledger) as episode:
        return await OldLoop(client, episode, item.kind.limits, item.dimensions).run(item.head)
