"""All promises of `ModelPort`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine

from polyloop.ports import ModelCall, ModelPort
from polyloop.types import ModelReply, RunKey
from tests.contract.cases import ModelCase
from tests.contract.port_checks import (
    BLOCKING,
    CANCELLATION,
    MANY_RUNS,
    SECRETS,
    Configured,
    add_params_promises,
    expect_any_task,
    expect_failure,
    expect_no_blocking,
    hangs_until_cancelled,
    named_secrets,
    passes_cancellation,
)
from tests.contract.promises import Suite, cut_short, demand, given, moments, opened

SUITE = Suite[ModelCase]("ModelPort")

NO_EXPECTATION = "the case has no `expected`: what the port replies cannot be told beforehand"
NO_FAILING = "the case has no `make_failing`"


def a_call(case: ModelCase, key: str = "run", index: int = 0) -> ModelCall:
    """A call of the suite, with everything of its own."""
    call = ModelCall(
        messages=case.messages,
        call_index=index,
        key=RunKey(key),
        result_id=f"{index:06d}-model_call",
        binding=dict(case.binding),
    )
    return case.prepare(call)


async def expect_reply(port: ModelPort, call: ModelCall) -> ModelReply:
    """The port answers with a `ModelReply`."""
    reply: object = await port.call(call)
    demand(isinstance(reply, ModelReply), f"call returned a {type(reply).__name__}")
    assert isinstance(reply, ModelReply)
    return reply


async def expect_own_reply(case: ModelCase, port: ModelPort, call: ModelCall) -> None:
    """The port answers this call and no other, where that can be told."""
    reply = await expect_reply(port, call)
    if case.expected is not None:
        wanted = case.expected(call)
        what = f"the call {call.result_id} of {call.key} was answered with {reply!r:.300}, expected was {wanted!r:.300}"
        demand(reply == wanted, what)


async def _use(case: ModelCase, port: Configured) -> object:
    return await port.call(a_call(case))  # type: ignore[attr-defined]  # a port of this suite has `call`


add_params_promises(SUITE, _use)


@SUITE.promise(
    "A `ModelReply`; anything else counts as an error.",
    look_at="what call returns: an async method that gives a polyloop.ModelReply; a call_id that is '' must be None",
)
async def a_call_returns_a_model_reply(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        for index in range(2):
            await expect_reply(port, a_call(case, index=index))


@SUITE.promise("Ask the model once.", look_at="which reply belongs to which call: key, result_id and messages")
async def a_reply_is_that_of_its_call(case: ModelCase) -> None:
    given(case.expected, NO_EXPECTATION)
    async with opened(case.make(), "model") as port:
        for index in range(3):
            await expect_own_reply(case, port, a_call(case, index=index))


@SUITE.promise(MANY_RUNS, look_at="state that is kept in the object during a call, and guards against a second call")
async def calls_at_once_do_not_mix(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        calls = [a_call(case, f"run-{number}", number % 3) for number in range(12)]
        await asyncio.gather(*(expect_own_reply(case, port, call) for call in calls))


@SUITE.promise(MANY_RUNS, look_at="conversations, caches and counters in the object: each call brings its whole prompt")
async def one_run_leaves_nothing_for_another(case: ModelCase) -> None:
    given(case.expected, NO_EXPECTATION)
    async with opened(case.make(), "model") as port:
        for key, index in (("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1), ("c", 0), ("a", 0)):
            await expect_own_reply(case, port, a_call(case, key, index))


@SUITE.promise(
    "A call that was interrupted is repeated with the same `result_id` only where both the recorded and the present "
    "`model_call_replay` say `SAFE`.",
    look_at="registers of calls that were seen: a repeated one must be answered, in this object and in a fresh one",
)
async def a_repeated_call_is_answered(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        for moment in (1, 2, 5):
            call = a_call(case, index=moment)
            await cut_short(port.call(call), moment)
            for _ in range(2):
                again = dataclasses.replace(call, binding=dict(call.binding))
                await expect_own_reply(case, port, again)
    async with opened(case.make(), "model") as fresh:
        await expect_own_reply(case, fresh, a_call(case, index=1))


@SUITE.promise(
    "any exception is a failed call: its type and message are recorded, cut at 2,000 characters, and the run stops "
    "with `llm_error`.",
    look_at="failures: raise an Exception; do not return an error as if the model had said it",
)
async def a_failed_call_raises_an_exception(case: ModelCase) -> None:
    make = given(case.make_failing, NO_FAILING)
    async with opened(make(), "model") as port:
        for index in range(2):
            await expect_failure(port.call(a_call(case, index=index)), (), "a call that was to fail")


@SUITE.promise(SECRETS, look_at="texts of exceptions: URLs, headers and request bodies of an SDK hold credentials")
async def a_failure_shows_no_secret(case: ModelCase) -> None:
    make, secrets = given(case.make_failing, NO_FAILING), named_secrets(case.secrets)
    async with opened(make(), "model") as port:
        await expect_failure(port.call(a_call(case)), secrets, "a call that was to fail")


@SUITE.promise(CANCELLATION, look_at="handlers of CancelledError and BaseException, retries, and asyncio.wait_for")
async def a_cancellation_passes(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        await passes_cancellation(lambda: port.call(a_call(case)))


@SUITE.promise(CANCELLATION, look_at="a call that waits for its endpoint: it ends when it is cancelled, at once")
async def a_cancellation_ends_a_call_that_waits(case: ModelCase) -> None:
    make = given(case.make_hanging, "the case has no `make_hanging`")
    async with opened(make(), "model") as port:
        await hangs_until_cancelled(lambda: port.call(a_call(case)))


@SUITE.promise(MANY_RUNS, look_at="connections and requests that calls share: cancelling one call must not end another")
async def a_cancellation_concerns_one_call(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        for moment in moments():
            others: list[Coroutine[object, object, None]] = [
                expect_own_reply(case, port, a_call(case, f"other-{moment}-{number}")) for number in range(2)
            ]
            beside = asyncio.gather(*others)
            try:
                reached = await cut_short(port.call(a_call(case, f"cancelled-{moment}")), moment)
                await beside
            finally:
                beside.cancel()
            if not reached:
                break


@SUITE.promise(
    "The library does not promise that `call` runs in the caller's task",
    look_at="context variables, task-local state, and locks or timeouts that belong to one task",
)
async def a_call_works_in_any_task(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        await expect_any_task(lambda: expect_own_reply(case, port, a_call(case)))


@SUITE.promise(BLOCKING, look_at="synchronous clients: use an async one, or asyncio.to_thread")
async def a_call_does_not_block_the_event_loop(case: ModelCase) -> None:
    async with opened(case.make(), "model") as port:
        await expect_no_blocking(lambda: port.call(a_call(case)))


PROMISES = SUITE.promises
