"""A stand-in for the review service *GovDoc*, moved over by its page: documents in folders, commands by a real shell.

The service behind it: a gateway whose model reviews by a script that quotes what it saw, documents of which each tenant
has a folder, progress and audit that may be down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote

from examples import parsers
from examples.shell import Shell
from polyloop.ports import RunStore
from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.tools import ToolRegistry, current_action
from polyloop.types import ActionEnded, ChatMessage, JSONValue, RunResult
from tests.consumers.pages import Page

PHASES: Final = ("explore", "review", "summarize")
SECTIONS: Final = {"scope": "The works of {tenant}.", "fees": "{tenant} pays 7 a month.\n{tenant} pays 9 a year."}

Hook: TypeAlias = Callable[[str], Awaitable[None]]
"""Is told of what begins: `"<key>#<turn>"` for a model call, `"<key> <tool>"` for a tool."""


async def nothing(_: str) -> None:
    """The hook that does nothing."""


# ----------------------------------------------------------------------------------------- govdoc.gateway


class Transient(Exception):  # noqa: N818 - the project's name for it
    """The gateway asks to try again."""


class Reply(NamedTuple):
    """What the gateway gives."""

    id: str
    text: str
    reasoning: str | None


class ChatClient:
    """The gateway. Its model follows the script of its phase."""

    def __init__(self, hook: Hook = nothing) -> None:
        self.calls: list[tuple[str, Sequence[Mapping[str, str]]]] = []
        """Tenant and messages of each call."""
        self.hook = hook

    async def chat(self, *, model: str, messages: Sequence[Mapping[str, str]], tenant: str) -> Reply:
        """Ask the model."""
        assert model == "reviewer-large"
        self.calls.append((tenant, messages))
        turn = sum(message["role"] == "assistant" for message in messages)
        (key,) = {found[1] for message in messages if (found := re.search(r"This is (\S+)\.", message["content"]))}
        await self.hook(f"{key}#{turn}")
        said = script(key, messages[-1]["content"])[turn]
        return Reply(f"{key}#{turn}", json.dumps(said), None)


def script(key: str, seen: str) -> list[dict[str, JSONValue]]:
    """What the model says in a phase, turn by turn."""
    quoted = seen.removeprefix("Result:\n")

    def call(tool: str, **arguments: JSONValue) -> dict[str, JSONValue]:
        return {"thought": f"I saw {quoted}", "tool": tool, "arguments": arguments}

    phases: dict[str, list[dict[str, JSONValue]]] = {
        "explore": [
            call("read_section", section="scope"),
            call("bash", command=f"echo '{key}#1' >> ledger; grep -c pays fees.txt"),
            {"final_answer": quoted},
        ],
        "review": [
            call("read_section", section="no-such-section"),
            call("bash", command=f"echo '{key}#1' >> ledger; cat fees.txt; exit 3"),
            call("submit", findings=[]),
            call("submit", findings=[f"after {quoted}"]),
        ],
        "summarize": [
            call("bash", command=f"echo '{key}#0' >> ledger"),
            call("read_section", section="fees"),
            call("submit", findings=[quoted]),
        ],
    }
    return phases[key.rpartition("/")[2]]


# --------------------------------------------------------------------------------------- govdoc.documents


class DocumentServiceDown(Exception):  # noqa: N818 - the project's name for it
    """The service cannot be reached."""


class Documents:
    """A folder for each tenant. Whose turn it is, the action that is being executed says."""

    def __init__(self, root: Path, hook: Hook = nothing) -> None:
        self.root = root
        self.hook = hook
        self.down = False

    async def section(self, name: str) -> str:
        """The text of a section."""
        folder = await self._begin("read_section")
        if self.down:
            raise DocumentServiceDown("no route to the documents")
        try:
            return await asyncio.to_thread((folder / f"{name}.txt").read_text)
        except FileNotFoundError:
            raise LookupError(f"there is no section {name!r}") from None

    async def shell(self, command: str) -> str:
        """What a command does in the tenant's folder."""
        folder = await self._begin("bash")
        shell = Shell(
            directory=folder,
            workspace="documents",
            environment={"PATH": os.defpath},
            time_limit_s=3600,
            max_output_chars=1000,
        )
        ended = await shell.run(command)
        return f"{ended.how}: {ended.output}"

    async def submit(self, findings: Sequence[str], *, idempotency_key: str) -> str | None:
        """Store findings, once for each key; what is wrong with them, or None."""
        folder = await self._begin("submit")
        if not findings:
            return "there are no findings"
        path = folder / "submitted" / quote(idempotency_key, safe="")
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            json.dump(list(findings), file)
        await self.hook(f"{current_action().key} submitted")
        return None

    async def _begin(self, tool: str) -> Path:
        action = current_action()
        assert action.tool_name == tool
        await self.hook(f"{action.key} {tool}")
        return self.folder(action.key)

    def folder(self, key: str) -> Path:
        """The folder of the tenant of a review point."""
        folder = self.root / key.partition("/")[0]
        if not folder.exists():
            folder.mkdir(parents=True)
            for name, text in SECTIONS.items():
                (folder / f"{name}.txt").write_text(text.format(tenant=folder.name))
        return folder

    def ledger(self, key: str) -> list[str]:
        """The commands that were really run in a tenant's folder."""
        path = self.folder(key) / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def submitted(self, key: str) -> dict[str, list[str]]:
        """What a tenant has submitted, by its idempotency key."""
        paths = sorted((self.folder(key) / "submitted").glob("*"))
        return {unquote(path.name): json.loads(path.read_text()) for path in paths}


# ---------------------------------------------------------------------------------------- govdoc.progress


class Progress:
    """Where one looks how far a review is."""

    def __init__(self, hook: Hook = nothing) -> None:
        self.steps: dict[str, list[int]] = {}
        self.closed: dict[str, str] = {}
        self._hook = hook

    async def write(self, key: str, step_idx: int) -> None:
        """A step was taken."""
        await self._hook(f"{key} step {step_idx}")
        self.steps.setdefault(key, []).append(step_idx)

    async def close(self, key: str, stop_reason: str) -> None:
        """It is over."""
        await self._hook(f"{key} closed")
        self.closed[key] = stop_reason


class Audit:
    """Keeps what was done."""

    def __init__(self) -> None:
        self.events: list[ActionEnded] = []

    async def write(self, event: ActionEnded) -> None:
        """Keep it."""
        self.events.append(event)


# ---------------------------------------------------------------------------------------- the page's code


class GovDoc:
    """The service on a store."""

    def __init__(
        self,
        store: RunStore,
        root: Path,
        *,
        in_model: Hook = nothing,
        in_tool: Hook = nothing,
        in_progress: Hook = nothing,
    ) -> None:
        self.store = store
        self.client = ChatClient(in_model)
        self.documents = Documents(root, in_tool)
        self.progress = Progress(in_progress)
        self.audit = Audit()
        self.page = Page("govdoc.md", self._project())
        for marker in ("ALL_TOOLS = ToolRegistry", "parser = JsonToolCallParser", "class GatewayModel"):
            self.page.run(marker)
        self.page.run("class GovDocEvents")
        self.page.run("def request_for", client=self.client, store=store)
        self.page.run("async def review")
        self.page.run("def verdict")

    def _project(self) -> Mapping[str, Mapping[str, object]]:
        return {
            "govdoc.documents": {"DocumentServiceDown": DocumentServiceDown, "documents": self.documents},
            "govdoc.parsers": {"JsonToolCallParser": parsers.JsonToolCallParser},
            "govdoc.gateway": {"ChatClient": ChatClient, "Transient": Transient},
            "govdoc.progress": {"audit": self.audit, "progress": self.progress},
        }

    @property
    def definition(self) -> AgentDefinition:
        return cast("AgentDefinition", self.page["definition"])

    @property
    def tools(self) -> ToolRegistry:
        """All tools, of whatever phase."""
        return cast("ToolRegistry", self.page["ALL_TOOLS"])

    def request(self, tenant: str, phase: str, revision: str = "r1") -> RunRequest:
        """The page's request for a review point."""
        key = f"{tenant}/p1@{revision}/{phase}"
        prompt = (ChatMessage(role="user", content=f"Review what {tenant} has. This is {key}."),)
        return cast("RunRequest", self.page["request_for"](tenant, "p1", revision, phase, prompt))

    async def review(self, request: RunRequest, limit_s: float = 1000.0) -> RunResult | None:
        """The page's way to schedule a review point."""
        return cast("RunResult | None", await self.page["review"](request, limit_s))

    def verdict(self, result: RunResult) -> str:
        """The page's reading of a stop reason."""
        verdict: Any = self.page["verdict"]
        return str(verdict(result))


async def undisturbed(root: Path, *asked: tuple[str, str]) -> list[RunResult]:
    """The same reviews, by tenant and phase, in peace: one after the other on documents and a store of their own."""
    service = GovDoc(EphemeralRunStore(), root / "undisturbed")
    return [await service.definition.run(service.request(tenant, phase)) for tenant, phase in asked]
