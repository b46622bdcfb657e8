"""A gateway's client as far as it is known: what the in-house package is said to have, and no more.

The package itself is on no public index, so this stands in for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Mapping, Sequence

from polyloop.adapters.polygateway import PolyGatewayModel
from polyloop.ports import ModelCall
from polyloop.types import ChatMessage, JSONValue, ModelReply
from tests.contract.cases import ModelCase

TOKEN = "gw-token-do-not-show-4711"  # noqa: S105 - it opens nothing


class Ledger(enum.Enum):
    """Which book a call is entered in."""

    MAIN = "main"
    TRIAL = "trial"


@dataclasses.dataclass
class UntrustedUsage:
    """Counts that nobody may rely upon."""

    prompt_chars: int = -1
    completion_chars: int = 10**9


@dataclasses.dataclass
class Response:
    """What the client returns. There is no `finish_reason`."""

    text: str
    reasoning: str | None
    call_id: str | None
    cost: None = None
    usage: UntrustedUsage = dataclasses.field(default_factory=UntrustedUsage)


class Client:
    """Answers by telling what it was asked; `hang` waits, `fail` raises."""

    def __init__(self, *, does: str = "answer") -> None:
        self._token = TOKEN
        self._does = does
        self.entered: list[tuple[Ledger, int, str, str | None, int]] = []
        self.messages: list[Sequence[Mapping[str, str]]] = []

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        ledger: Ledger,
        round_idx: int,
        phase: str,
        item_id: str | None,
        attempt_idx: int,
    ) -> Response:
        """Ask once."""
        await asyncio.sleep(0)
        if self._does == "fail":
            raise ConnectionError("the gateway is closed")
        if self._does == "hang":
            await asyncio.Event().wait()
        self.entered.append((ledger, round_idx, phase, item_id, attempt_idx))
        self.messages.append(messages)
        said = messages[-1]["content"]
        return Response(text=f"heard: {said}", reasoning=None, call_id=f"gw-{said}")


def ledger(binding: Mapping[str, str]) -> dict[str, object]:
    """A binding, turned back into the client's own arguments."""
    return {
        "ledger": Ledger(binding["ledger"]),
        "round_idx": int(binding["round_idx"]),
        "phase": binding["phase"],
        "item_id": binding.get("item_id"),
        "attempt_idx": int(binding["attempt_idx"]),
    }


BINDING: Mapping[str, str] = {"ledger": "trial", "round_idx": "3", "phase": "solve", "attempt_idx": "1"}
PARAMS: Mapping[str, JSONValue] = {"model": "reviewer-large", "scope": "research"}


def gateway_model(client: Client) -> PolyGatewayModel:
    """The adapter on such a client."""
    return PolyGatewayModel(client, params=PARAMS, keywords=ledger)


def gateway_case() -> ModelCase:
    """The adapter's contract case."""

    def prepared(call: ModelCall) -> ModelCall:
        told = ChatMessage(role="user", content=f"{call.key} {call.result_id}")
        return dataclasses.replace(call, messages=(*call.messages, told))

    def expected(call: ModelCall) -> ModelReply:
        said = f"{call.key} {call.result_id}"
        return ModelReply(call_id=f"gw-{said}", text=f"heard: {said}", reasoning=None)

    return ModelCase(
        make=lambda: gateway_model(Client()),
        messages=(ChatMessage(role="user", content="Say something."),),
        binding=BINDING,
        prepare=prepared,
        expected=expected,
        make_failing=lambda: gateway_model(Client(does="fail")),
        make_hanging=lambda: gateway_model(Client(does="hang")),
        secrets=(TOKEN,),
    )
