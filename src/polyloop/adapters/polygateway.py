"""A model behind the in-house gateway, PolyGateway.

The package is on no public index, so this module imports nothing of it: it is written against the few members that
it uses, `GatewayClient` and `GatewayReply`, and has been tried against objects that have them. **What could not be
tried is the real package**: neither the names of these members in its current version, nor which exceptions it raises,
nor that a cancelled call closes its connection there. Run the contract suite against the assembled client before
anything depends on it: `pytest tests/contract --model-port my_project.models:make_case`.

What the gateway does not tell, as far as is known, and what follows:

- There is no `finish_reason`. A reply that was cut off by a limit of output looks like a whole one, and is parsed as
  one. Let the parser demand an end that a cut-off reply lacks: the closing fence of a block, the last brace.
- The cost is always None, and the usage object is not to be trusted for counts. Neither is read here. Characters are
  counted by the loop; join the gateway's ledger by `Step.call_id` for the rest.

Why: `research-wiki/design/0021-model-adapters.md`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from polyloop.ports import ModelCall
from polyloop.types import JSONValue, ModelReply
from polyloop.types._checks import reject
from polyloop.types._json import copy_object

__all__ = ["GatewayClient", "GatewayReply", "PolyGatewayModel"]


class GatewayReply(Protocol):
    """What is read of the gateway's response. It may have more."""

    @property
    def text(self) -> str:
        """What the model said."""
        ...

    @property
    def reasoning(self) -> str | None:
        """What it thought, where that is told apart."""
        ...

    @property
    def call_id(self) -> str | None:
        """The gateway's id of the call. An empty string counts as none: two of those would join in a ledger."""
        ...


class GatewayClient(Protocol):
    """What is used of the gateway's client, or of a project's own wrapper around it."""

    @property
    def chat(self) -> Callable[..., Awaitable[GatewayReply]]:
        """`await client.chat(messages, **keywords)`.

        `messages` is a list of `{"role": …, "content": …}`; `keywords` is what the project's function made of the
        binding. Retries, quotas and time limits are the gateway's.
        """
        ...


class PolyGatewayModel:
    """A `ModelPort` on the gateway. It keeps nothing between calls and closes nothing: the client is the caller's.

    What the client raises passes unchanged, and its type and message are recorded: they must hold no secrets.

    Args:
        client: The assembled client.
        params: Everything that shapes the replies: model name, scope, sampling, as plain JSON without secrets. Take it
            from the assembled client where it can tell; nothing is read from it behind the caller's back.
        keywords: Turns a run's `model_binding` into the client's own keyword arguments; called once for each call. A
            binding holds strings only, so this is where numbers and enums are turned back::

                def ledger(binding: Mapping[str, str]) -> dict[str, object]:
                    return {
                        "ledger": Ledger(binding["ledger"]),
                        "round_idx": int(binding["round_idx"]),
                        "phase": binding["phase"],
                        "item_id": binding.get("item_id"),
                        "attempt_idx": int(binding["attempt_idx"]),
                    }

            It must be pure: a call that is made again after a crash must be booked alike. What it raises is a failed
            call.

    Raises:
        InvalidRequest: `params` is not plain JSON, or `keywords` cannot be called.
    """

    def __init__(
        self,
        client: GatewayClient,
        *,
        params: Mapping[str, JSONValue],
        keywords: Callable[[Mapping[str, str]], Mapping[str, object]],
    ) -> None:
        if not callable(keywords):
            reject("PolyGatewayModel.keywords", "a function of the binding", keywords)
        self._client = client
        self._params = copy_object(params, "PolyGatewayModel.params")
        self._keywords = keywords

    @property
    def params(self) -> Mapping[str, JSONValue]:
        """What was given."""
        return copy_object(self._params, "params")

    async def call(self, call: ModelCall, /) -> ModelReply:
        """Ask once.

        Raises:
            InvalidRequest: the response is not what `GatewayReply` says.
        """
        messages = [{"role": message.role, "content": message.content} for message in call.messages]
        response = await self._client.chat(messages, **self._keywords(call.binding))
        return ModelReply(call_id=response.call_id or None, text=response.text, reasoning=response.reasoning or None)
