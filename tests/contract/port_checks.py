"""What the ports other than the store have in common: `params`, secrets, cancellation, tasks, the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Protocol, TypeVar

from polyloop.types import JSONValue
from tests.contract.cases import Maker
from tests.contract.promises import Suite, Unchecked, cut_short, demand, described, moments, opened, turns

PARAMS_ARE_JSON = "`params` is plain JSON, holds no secrets, and is the same every time while the object lives"
ALIKE = "Two objects built alike have equal `params`, or no other process could resume a run."
SECRETS = (
    "No secret stands in a port's `repr` either, nor in the text of an exception that leaves it or of that one's "
    "causes."
)
MANY_RUNS = "A definition's ports serve many runs at once; nothing that they keep may leak from one run into another."
BLOCKING = "No port blocks the event loop, which other runs share."
CANCELLATION = "`CancelledError` must pass through it."

PortT_co = TypeVar("PortT_co", covariant=True)


class Configured(Protocol):
    """A port with parameters."""

    @property
    def params(self) -> Mapping[str, JSONValue]: ...


class Case(Protocol[PortT_co]):
    """What the cases of these ports have in common."""

    @property
    def make(self) -> Maker[PortT_co]: ...
    @property
    def secrets(self) -> tuple[str, ...]: ...


CaseT = TypeVar("CaseT", bound=Case[Configured])


def not_json(value: object, path: str, depth: int = 0) -> str | None:
    """What about a value is no plain JSON; None where it is."""
    if value is None or isinstance(value, bool | str):
        return None
    if isinstance(value, int):
        return None if abs(value) < 10**640 else f"{path} is an integer of more than 640 digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path} is {value}, which is no JSON"
    if depth == 100:
        return f"{path[:80]} is nested deeper than 100"
    if isinstance(value, Mapping):
        return _first_not_json({f"{path}.{key!s}": inner for key, inner in value.items()}, depth) or next(
            (f"{path} has a key of type {type(key).__name__}" for key in value if not isinstance(key, str)), None
        )
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return _first_not_json({f"{path}[{index}]": inner for index, inner in enumerate(value)}, depth)
    return f"{path} is a {type(value).__name__}, which is no JSON"


def _first_not_json(parts: Mapping[str, object], depth: int) -> str | None:
    return next((found for path, inner in parts.items() if (found := not_json(inner, path, depth + 1))), None)


def canonical(params: Mapping[str, JSONValue]) -> str:
    """The text by which params are compared."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [plain(inner) for inner in value]
        return value

    return json.dumps(plain(params), sort_keys=True)


def named_secrets(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """The secrets to look for."""
    if not secrets:
        raise Unchecked("the case names no secrets")
    return secrets


def demand_no_secret(text: str, secrets: tuple[str, ...], where: str) -> None:
    """No secret stands in a text, not even in part of it."""
    for number, secret in enumerate(secrets):
        # A message about a secret that shows it would be one more leak.
        demand(secret not in text, f"secrets[{number}] of the case stands in {where}")


def add_params_promises(suite: Suite[CaseT], use: Callable[[CaseT, Configured], Awaitable[object]]) -> None:
    """The promises about `params`; `use` calls the port once."""

    @suite.promise(PARAMS_ARE_JSON, look_at="params: a property, a mapping of strings, numbers, lists and mappings")
    async def params_are_plain_json(case: CaseT) -> None:
        async with opened(case.make(), suite.port) as port:
            params: object = port.params
            demand(isinstance(params, Mapping), f"params is a {type(params).__name__}, no mapping")
            problem = not_json(params, "params")
            demand(problem is None, str(problem))

    @suite.promise(PARAMS_ARE_JSON, look_at="params: leave credentials out, also those inside of URLs and headers")
    async def params_hold_no_secret(case: CaseT) -> None:
        secrets = named_secrets(case.secrets)
        async with opened(case.make(), suite.port) as port:
            demand_no_secret(repr(port.params), secrets, "params")

    @suite.promise(PARAMS_ARE_JSON, look_at="params: nothing in it may count, expire, or change by being used")
    async def params_stay_the_same(case: CaseT) -> None:
        async with opened(case.make(), suite.port) as port:
            first = canonical(port.params)
            demand(canonical(port.params) == first, "params differ when they are read twice")
            await use(case, port)
            demand(canonical(port.params) == first, "params differ after the port was used")

    @suite.promise(ALIKE, look_at="params: addresses, times, random names and process ids are never the same")
    async def ports_built_alike_have_equal_params(case: CaseT) -> None:
        async with opened(case.make(), suite.port) as one, opened(case.make(), suite.port) as other:
            demand(canonical(one.params) == canonical(other.params), "two ports built alike have different params")

    add_repr_promise(suite)


SecretCaseT = TypeVar("SecretCaseT", bound=Case[object])


def add_repr_promise(suite: Suite[SecretCaseT]) -> None:
    """The promise about `repr`."""

    @suite.promise(SECRETS, look_at="__repr__: that of a dataclass shows every field, give credentials repr=False")
    async def the_repr_shows_no_secret(case: SecretCaseT) -> None:
        secrets = named_secrets(case.secrets)
        async with opened(case.make(), suite.port) as port:
            demand_no_secret(f"{port!r} {port}", secrets, "the repr of the port")


# ------------------------------------------------------------------------------------- used by each suite


async def expect_failure(call: Coroutine[object, object, object], secrets: tuple[str, ...], what: str) -> Exception:
    """The call raises an `Exception` whose text, and whose causes' texts, hold no secret."""
    try:
        returned = await call
    except Exception as error:  # noqa: BLE001 - any is right
        told: BaseException | None = error
        while told is not None:
            demand_no_secret(f"{told!r} {told} {getattr(told, '__notes__', '')}", secrets, f"a {type(told).__name__}")
            told = told.__cause__
        return error
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            raise
        demand(isinstance(error, Exception), f"{what} raised {described(error)}, which is no Exception")
        raise
    demand(condition=False, seen=f"{what} raised nothing, it returned {returned!r:.200}")
    raise AssertionError


async def expect_no_blocking(call: Callable[[], Coroutine[object, object, object]]) -> None:
    """The event loop turns while a call takes its time.

    The first call is not judged: it may import and connect. One that turned the loop, or was quick, is enough, for
    a machine under load makes any call slow now and then.
    """
    await call()
    took = [await _seconds_without_a_turn(call) for _ in range(4)]
    demand(min(took) < 0.1, f"the event loop did not turn for {min(took):.2f} s, all that a call took")


async def _seconds_without_a_turn(call: Callable[[], Coroutine[object, object, object]]) -> float:
    """How long a call took, if the loop did not turn meanwhile; else nothing."""
    began = time.monotonic()
    turned = asyncio.create_task(turns(1))
    await call()
    elapsed = time.monotonic() - began
    alone = not turned.done()
    await turned
    return elapsed if alone else 0.0


async def expect_any_task(call: Callable[[], Coroutine[object, object, object]]) -> None:
    """The call works in a task of its own, without the context variables of the one that built the port."""
    await asyncio.create_task(call(), context=contextvars.Context())


async def hangs_until_cancelled(call: Callable[[], Coroutine[object, object, object]]) -> None:
    """A call that waits for ever ends when it is cancelled, whenever that is."""
    for moment in (0, 1, 2, 3, 5, 8, 13, 50):
        for again in (False, True):
            demand(await cut_short(call(), moment, again=again), "the call that was to wait for ever had ended")


async def passes_cancellation(call: Callable[[], Coroutine[object, object, object]]) -> None:
    """A fresh call, cancelled at each turn of the loop until one ends before it is cancelled."""
    for again in (False, True):
        for moment in moments():
            if not await cut_short(call(), moment, again=again):
                break
