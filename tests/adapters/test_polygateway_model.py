"""`PolyGatewayModel` on a client with the few members that it needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from polyloop.adapters.polygateway import PolyGatewayModel
from polyloop.types import ChatMessage, InvalidRequest, ModelReply
from tests.adapters.calls import a_call
from tests.adapters.gateway import BINDING, PARAMS, TOKEN, Client, Ledger, Response, gateway_model, ledger


class Says:
    """A client that returns one thing."""

    def __init__(self, response: object) -> None:
        self._response = response

    async def chat(self, messages: object, **keywords: object) -> Any:
        return self._response


def port_on(response: object) -> PolyGatewayModel:
    return PolyGatewayModel(Says(response), params=PARAMS, keywords=lambda _: {})


async def test_messages_go_as_roles_and_contents_and_the_binding_as_the_clients_own_arguments() -> None:
    client = Client()
    messages = (ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="hi"))
    reply = await gateway_model(client).call(a_call(*messages, binding={**BINDING, "item_id": "7"}))
    assert reply == ModelReply(call_id="gw-hi", text="heard: hi", reasoning=None)
    assert client.messages == [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]]
    assert client.entered == [(Ledger.TRIAL, 3, "solve", "7", 1)]


async def test_an_entry_that_a_binding_leaves_out_is_none_for_the_client() -> None:
    client = Client()
    await gateway_model(client).call(a_call(binding=BINDING))
    assert client.entered == [(Ledger.TRIAL, 3, "solve", None, 1)]


@pytest.mark.parametrize(
    ("response", "reply"),
    [
        (Response("t", "r", "c"), ModelReply(call_id="c", text="t", reasoning="r")),
        (Response("t", None, ""), ModelReply(call_id=None, text="t", reasoning=None)),
        (Response("t", "", None), ModelReply(call_id=None, text="t", reasoning=None)),
        (Response("", None, "c"), ModelReply(call_id="c", text="", reasoning=None)),
    ],
)
async def test_a_response_is_a_reply_and_what_is_empty_is_none(response: Response, reply: ModelReply) -> None:
    assert await port_on(response).call(a_call()) == reply


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (Response(None, None, "c"), InvalidRequest),  # type: ignore[arg-type] # what a wrong client returns
        (Response("t", ["r"], "c"), InvalidRequest),  # type: ignore[arg-type] # likewise
        (Response("t", None, 7), InvalidRequest),  # type: ignore[arg-type] # likewise
        ("t", AttributeError),
        (None, AttributeError),
    ],
)
async def test_a_response_that_is_none_is_a_failed_call(response: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        await port_on(response).call(a_call())


@pytest.mark.parametrize(("binding", "error"), [({}, KeyError), ({**BINDING, "round_idx": "x"}, ValueError)])
async def test_a_binding_that_the_project_cannot_turn_is_a_failed_call(
    binding: dict[str, str], error: type[Exception]
) -> None:
    client = Client()
    with pytest.raises(error):
        await gateway_model(client).call(a_call(binding=binding))
    assert client.entered == []


async def test_what_the_client_raises_passes_unchanged() -> None:
    with pytest.raises(ConnectionError, match="the gateway is closed"):
        await gateway_model(Client(does="fail")).call(a_call(binding=BINDING))


def test_the_params_are_a_copy_of_what_was_given_and_the_repr_shows_no_token() -> None:
    given: dict[str, Any] = {"model": "m", "sampling": {"temperature": 0}}
    port = PolyGatewayModel(Client(), params=given, keywords=ledger)
    given["sampling"]["temperature"] = 1
    assert port.params == {"model": "m", "sampling": {"temperature": 0}}
    assert TOKEN not in f"{port!r} {port}"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"params": {"x": {1}}}, "params.x"),
        ({"params": None}, "params"),
        ({"keywords": None}, "keywords"),
        ({"keywords": {"a": 1}}, "keywords"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PolyGatewayModel(Client(), **{"params": PARAMS, "keywords": ledger, **changed})
    assert refused.value.field == f"PolyGatewayModel.{field}"


def test_the_adapter_needs_no_package_of_that_name() -> None:
    program = (
        "import sys\nsys.modules['polygateway'] = None\nimport polyloop.adapters.polygateway\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('polygateway', 'openai', 'httpx', 'httpx2')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['polygateway']"
