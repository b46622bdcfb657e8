"""A right model port, and wrong ones that differ from it in one fault each."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any, Literal

from polyloop.ports import ModelCall
from polyloop.types import ChatMessage, JSONValue, ModelReply
from tests.contract.cases import ModelCase
from tests.contract.model_suite import PROMISES
from tests.contract.promises import turns
from tests.contract.zoo import Zoo

SECRET = "sk-do-not-show-me"  # noqa: S105 - it opens nothing
Endpoint = Literal["answers", "closed", "silent"]

EVERYTHING = frozenset(promise.name for promise in PROMISES)
CANCELLATION = frozenset(
    {"a_cancellation_passes", "a_cancellation_ends_a_call_that_waits", "a_cancellation_concerns_one_call"}
)


def answer(call: ModelCall) -> ModelReply:
    """What the endpoint says: it shows which call it answers."""
    said = f"{len(call.messages)} messages, {call.key}, {call.call_index}"
    return ModelReply(call_id=f"{call.key}/{call.result_id}", text=said, reasoning=None)


class EchoModel:
    """A right model port: an endpoint in memory that takes two turns of the loop to answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._api_key = SECRET

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"model": "echo", "temperature": 0.0, "stop": ["\n\n"]}

    async def call(self, call: ModelCall, /) -> ModelReply:
        await self.connect()
        return answer(call)

    async def connect(self) -> None:
        """Wait for the endpoint."""
        await turns(2)
        if self.endpoint == "closed":
            raise ConnectionError("the endpoint is closed")
        if self.endpoint == "silent":
            await asyncio.Event().wait()


def case_of(model: type[EchoModel]) -> ModelCase:
    """The case of such a model."""
    return ModelCase(
        make=lambda: model("answers"),
        messages=(ChatMessage(role="system", content="Echo."), ChatMessage(role="user", content="Say something.")),
        binding={"tenant": "t"},
        expected=answer,
        make_failing=lambda: model("closed"),
        make_hanging=lambda: model("silent"),
        secrets=(SECRET,),
    )


MODELS = Zoo[type[EchoModel]]()
wrong = MODELS.breaks

# ---------------------------------------------------------------------------------------------------- params


@wrong("params_are_plain_json", besides=frozenset({"params_stay_the_same", "ports_built_alike_have_equal_params"}))
class ParamsWithASet(EchoModel):
    """Puts a set into its params."""

    @property
    def params(self) -> Any:
        return {"model": "echo", "stop": {"\n"}}


@wrong("params_are_plain_json")
class ParamsWithNaN(EchoModel):
    """Has a number in its params that is no JSON."""

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"model": "echo", "temperature": float("nan")}


@wrong(
    "params_are_plain_json",
    besides=frozenset({"params_stay_the_same", "ports_built_alike_have_equal_params", "params_hold_no_secret"}),
)
class ParamsIsAMethod(EchoModel):
    """Has a method params."""

    def _params(self) -> Mapping[str, JSONValue]:
        return {"model": "echo"}

    params: Any = _params


@wrong("params_hold_no_secret")
class ParamsWithTheUrl(EchoModel):
    """Shows its whole URL, credential and all."""

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"url": f"https://user:{self._api_key}@host/v1"}


@wrong("params_stay_the_same", besides=frozenset({"ports_built_alike_have_equal_params"}))
class ParamsCountCalls(EchoModel):
    """Counts its calls in its params."""

    count = 0

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"model": "echo", "calls": self.count}

    async def call(self, call: ModelCall, /) -> ModelReply:
        self.count += 1
        return await super().call(call)


@wrong("ports_built_alike_have_equal_params")
class ParamsWithAnAddress(EchoModel):
    """Shows an object by its address."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.client = object()

    @property
    def params(self) -> Mapping[str, JSONValue]:
        return {"model": "echo", "client": repr(self.client)}


@wrong("the_repr_shows_no_secret")
class ShowsItself(EchoModel):
    """Has the repr of a dataclass, which shows every field."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(api_key={self._api_key!r})"


# --------------------------------------------------------------------------------------------------- replies


@wrong(
    "a_call_returns_a_model_reply",
    besides=EVERYTHING - {"params_are_plain_json", "params_hold_no_secret", "a_failure_shows_no_secret"},
)
class ReturnsText(EchoModel):
    """Returns the text alone."""

    async def call(self, call: ModelCall, /) -> Any:
        return (await super().call(call)).text


@wrong(
    "a_call_returns_a_model_reply",
    besides=EVERYTHING - {"params_are_plain_json", "params_hold_no_secret", "a_failure_shows_no_secret"},
)
class GivesAnEmptyCallId(EchoModel):
    """Gives an empty call_id where the endpoint has none: no ModelReply can be built with it."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        return dataclasses.replace(await super().call(call), call_id="")


@wrong("a_call_returns_a_model_reply", besides=EVERYTHING)
class IsNotAsync(EchoModel):
    """Answers without being awaited."""

    def call(self, call: ModelCall, /) -> Any:
        return answer(call)


@wrong(
    "a_reply_is_that_of_its_call",
    "one_run_leaves_nothing_for_another",
    besides=frozenset({"a_repeated_call_is_answered", "calls_at_once_do_not_mix", "a_cancellation_concerns_one_call"}),
)
class RepliesFromACache(EchoModel):
    """Keeps replies by the prompt alone."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.cache: dict[object, ModelReply] = {}

    async def call(self, call: ModelCall, /) -> ModelReply:
        return self.cache.setdefault(call.messages, await super().call(call))


@wrong(
    "one_run_leaves_nothing_for_another",
    besides=frozenset({"a_repeated_call_is_answered", "a_cancellation_concerns_one_call"}),
)
class KeepsAConversation(EchoModel):
    """Adds what was said in an earlier run to the prompt."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.last_key: str | None = None
        self.said: tuple[ChatMessage, ...] = ()

    async def call(self, call: ModelCall, /) -> ModelReply:
        reply = await super().call(dataclasses.replace(call, messages=call.messages + self.said))
        if self.last_key is not None and call.key != self.last_key and call.call_index == 0:
            self.said = (ChatMessage(role="assistant", content=reply.text),)
        self.last_key = call.key
        return dataclasses.replace(reply, call_id=f"{call.key}/{call.result_id}")


@wrong("calls_at_once_do_not_mix", "a_cancellation_concerns_one_call")
class MixesCallsAtOnce(EchoModel):
    """Keeps the call in the object while it waits."""

    current: ModelCall

    async def call(self, call: ModelCall, /) -> ModelReply:
        self.current = call
        await self.connect()
        return answer(self.current)


@wrong("calls_at_once_do_not_mix", "a_cancellation_concerns_one_call")
class ServesOneCall(EchoModel):
    """Refuses a call while another one is under way."""

    busy = False

    async def call(self, call: ModelCall, /) -> ModelReply:
        if self.busy:
            raise RuntimeError("one call at a time")
        self.busy = True
        try:
            return await super().call(call)
        finally:
            self.busy = False


@wrong(
    "a_repeated_call_is_answered",
    besides=CANCELLATION | {"one_run_leaves_nothing_for_another", "a_call_does_not_block_the_event_loop"},
)
class RefusesRepeats(EchoModel):
    """Takes a call with a known key and result_id for a mistake."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.seen: set[tuple[str, str]] = set()

    async def call(self, call: ModelCall, /) -> ModelReply:
        name = (call.key, call.result_id)
        if name in self.seen and self.endpoint == "answers":
            raise ValueError("seen before")
        self.seen.add(name)
        return await super().call(call)


# -------------------------------------------------------------------------------------------------- failures


@wrong("a_failed_call_raises_an_exception", besides=frozenset({"a_failure_shows_no_secret"}))
class SaysItsErrors(EchoModel):
    """Returns an error as if the model had said it."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except ConnectionError as error:
            return ModelReply(call_id=None, text=f"error: {error}", reasoning=None)


class Fatal(BaseException):
    """An exception that nobody is to catch."""


@wrong("a_failed_call_raises_an_exception", besides=frozenset({"a_failure_shows_no_secret"}))
class FailsFatally(EchoModel):
    """Raises something that is no Exception."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except ConnectionError as error:
            raise Fatal from error


@wrong("a_failed_call_raises_an_exception", besides=frozenset({"a_failure_shows_no_secret"}))
class FailsByCancelling(EchoModel):
    """Raises CancelledError though nobody has cancelled it."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except ConnectionError as error:
            raise asyncio.CancelledError from error


@wrong("a_failure_shows_no_secret")
class ShowsTheRequest(EchoModel):
    """Shows the request that failed, headers and all."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except ConnectionError as error:
            raise ConnectionError(json.dumps({"authorization": f"Bearer {self._api_key}"})) from error


@wrong("a_failure_shows_no_secret")
class HasATalkativeCause(EchoModel):
    """Raises an error of few words, caused by one that shows the URL."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except ConnectionError:
            raise RuntimeError("the call failed") from ConnectionError(f"https://user:{self._api_key}@host/v1")


# ---------------------------------------------------------------------------------------------- cancellation


@wrong(*CANCELLATION, besides=frozenset({"a_repeated_call_is_answered"}))
class SwallowsCancellations(EchoModel):
    """Answers a cancellation with a reply."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except asyncio.CancelledError:
            return answer(call)


@wrong(*CANCELLATION, besides=frozenset({"a_repeated_call_is_answered"}))
class TranslatesCancellations(EchoModel):
    """Takes a cancellation for a failure of the endpoint."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        try:
            return await super().call(call)
        except asyncio.CancelledError as error:
            raise ConnectionError("interrupted") from error


@wrong("a_cancellation_ends_a_call_that_waits")
class OutwaitsCancellations(EchoModel):
    """Turns a cancellation that comes while it waits for an answer into a time-out."""

    async def call(self, call: ModelCall, /) -> ModelReply:
        if self.endpoint != "silent":
            return await super().call(call)
        try:
            return await super().call(call)
        except asyncio.CancelledError:
            raise TimeoutError("no answer") from None


@wrong("a_cancellation_concerns_one_call")
class SharesARequest(EchoModel):
    """Has calls at once share a connection, which a cancelled one takes with it."""

    connecting: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        if self.connecting is None:
            self.connecting = asyncio.create_task(super().connect())
        try:
            await self.connecting
        finally:
            self.connecting = None


# ------------------------------------------------------------------------------------------ tasks, event loop

_tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@wrong("a_call_works_in_any_task")
class NeedsItsContext(EchoModel):
    """Reads a context variable that it set when it was built."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        _tenant.set("t")

    async def call(self, call: ModelCall, /) -> ModelReply:
        _tenant.get()
        return await super().call(call)


@wrong("a_call_does_not_block_the_event_loop")
class BlocksTheLoop(EchoModel):
    """Calls a synchronous client."""

    calls = 0

    async def call(self, call: ModelCall, /) -> ModelReply:
        self.calls += 1
        if 2 <= self.calls <= 5 and self.endpoint == "answers":
            time.sleep(0.15)  # noqa: ASYNC251 - the fault itself
            return answer(call)
        return await super().call(call)
