"""What `run` and `resume` refuse, in the order in which they look: of two faults at once the earlier one is named."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest

from polyloop.session import AgentDefinition, RunRequest
from polyloop.stores.ephemeral import EphemeralRunStore
from polyloop.types import (
    ActionKind,
    CorruptionReason,
    CorruptRunLog,
    InvalidRequest,
    PolyLoopError,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunIdentityMismatch,
    RunKey,
    RunLog,
    RunNotFound,
)
from tests.builders import KEY, definition, request
from tests.fakes import ScriptedExecutor
from tests.family import renumbered
from tests.recovery.logs import replied
from tests.seams import WatchedStore, append

INVALID, CHANNELS, DRIVEN, EMPTY, DAMAGED, DIFFERENT, ENDED = (
    "invalid request",
    "mismatched channels",
    "driven elsewhere",
    "empty log",
    "damaged log",
    "different snapshot",
    "ended run",
)
RESUME_ORDER = (INVALID, CHANNELS, DRIVEN, EMPTY, DAMAGED, DIFFERENT, ENDED)
ERRORS: dict[str, type[PolyLoopError]] = {
    INVALID: InvalidRequest,
    CHANNELS: InvalidRequest,
    DRIVEN: RunConflict,
    EMPTY: RunNotFound,
    DAMAGED: CorruptRunLog,
    DIFFERENT: RunIdentityMismatch,
}
IMPOSSIBLE = ({EMPTY, DAMAGED}, {EMPTY, DIFFERENT}, {EMPTY, ENDED})


class SlowStore(EphemeralRunStore):
    """A store whose reads do not return while it is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reading = asyncio.Event()

    async def read_log(self, key: RunKey, /) -> RunLog:
        self.reading.set()
        while self.slow:
            await asyncio.Event().wait()
        return await super().read_log(key)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    made: AgentDefinition
    asked: RunRequest
    log: tuple[Record, ...]
    points: list[str]
    store: SlowStore


async def case_of(faults: set[str]) -> Case:
    """A definition, a request and a stored log with these faults."""
    first = definition()
    await first.run(request())
    records = (await first.store.read_log(KEY)).records()
    if ENDED not in faults:
        records = records[:-1]
    if DAMAGED in faults:
        # A second result, in the middle: no store would see it.
        records = renumbered((*records[:3], replied("000000-model_call"), *records[3:]))
    if EMPTY in faults:
        records = ()
    store = SlowStore()
    for record in records:
        await append(store, KEY, record)
    points: list[str] = []
    asked = request()
    if INVALID in faults:
        asked = dataclasses.replace(asked, skills=None)  # type: ignore[arg-type] # the fault
    if CHANNELS in faults:
        asked = dataclasses.replace(asked, executor=ScriptedExecutor(accepts=ActionKind.TOOL_CALL))
    if DIFFERENT in faults:
        asked = dataclasses.replace(asked, finalize_timeout_s=7.0)
    made = dataclasses.replace(definition(), store=WatchedStore(store, points.append))
    return Case(made=made, asked=asked, log=records, points=points, store=store)


async def outcome_of(case: Case, method: str, *, driven: bool) -> PolyLoopError | None:
    """What the call raises, while somebody else drives the key through the same store object or not."""
    other: asyncio.Task[object] | None = None
    if driven:
        case.store.slow = True
        other = asyncio.create_task(case.made.resume(request()))
        await case.store.reading.wait()
        case.store.slow = False
        case.points.clear()
    try:
        await getattr(case.made, method)(case.asked)
    except PolyLoopError as error:
        return error
    finally:
        if other is not None:
            other.cancel()
            await asyncio.wait([other])
    return None


def named(fault: str, error: PolyLoopError | None) -> bool:
    if fault == ENDED:
        return error is None
    if type(error) is not ERRORS[fault]:
        return False
    if isinstance(error, InvalidRequest) and fault in (INVALID, CHANNELS):
        return error.field == ("RunRequest.skills" if fault == INVALID else "RunRequest.executor.accepts")
    return True


PAIRS = [pair for pair in itertools.combinations(RESUME_ORDER, 2) if set(pair) not in IMPOSSIBLE]


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
async def test_of_two_faults_resume_names_the_one_it_looks_for_first(earlier: str, later: str) -> None:
    case = await case_of({earlier, later})
    error = await outcome_of(case, "resume", driven=DRIVEN in (earlier, later))
    assert named(earlier, error), error
    if earlier in (INVALID, CHANNELS, DRIVEN):
        assert case.points == [], "nothing may be read"
    else:
        assert case.points == ["enter read_log", "leave read_log"]
    assert (await case.store.read_log(KEY)).records() == case.log, "nothing may be written"


@pytest.mark.parametrize("fault", RESUME_ORDER)
async def test_each_fault_by_itself_is_named(fault: str) -> None:
    case = await case_of({fault})
    assert named(fault, await outcome_of(case, "resume", driven=fault == DRIVEN))


RUN_ORDER = (INVALID, CHANNELS, DRIVEN, "any record")


@pytest.mark.parametrize(("earlier", "later"), list(itertools.combinations(RUN_ORDER, 2)))
async def test_of_two_faults_run_names_the_one_it_looks_for_first(earlier: str, later: str) -> None:
    faults = {earlier, later} - {"any record"} | (set() if later == "any record" else {EMPTY})
    case = await case_of(faults)
    error = await outcome_of(case, "run", driven=DRIVEN in (earlier, later))
    assert named(earlier, error), error
    assert case.points == [], "nothing may be read"


@pytest.mark.parametrize("faults", [set[str](), {ENDED}, {DAMAGED}, {DIFFERENT}, {DAMAGED, DIFFERENT, ENDED}])
async def test_run_refuses_a_key_that_has_any_record_whatever_the_log_is_like(faults: set[str]) -> None:
    case = await case_of(faults)
    error = await outcome_of(case, "run", driven=False)
    assert isinstance(error, RunAlreadyExists)
    assert error.key == KEY
    assert case.points == ["enter read_log", "leave read_log"]
    assert (await case.store.read_log(KEY)).records() == case.log


async def test_resume_of_an_unknown_key_is_an_invalid_request_that_names_it() -> None:
    made = definition()
    with pytest.raises(RunNotFound) as found:
        await made.resume(request("nobody"))
    assert isinstance(found.value, InvalidRequest)
    assert found.value.key == "nobody"
    assert (await made.store.read_log(RunKey("nobody"))).next_seq == 0


async def test_a_damaged_log_is_named_with_key_position_and_reason() -> None:
    case = await case_of({DAMAGED})
    error = await outcome_of(case, "resume", driven=False)
    assert isinstance(error, CorruptRunLog)
    assert (error.key, error.seq, error.reason) == (KEY, 3, CorruptionReason.SECOND_RESULT)


@pytest.mark.parametrize("method", ["run", "resume"])
async def test_what_a_store_raises_while_it_reads_passes_as_it_is(method: str) -> None:
    damage = CorruptRunLog(CorruptionReason.MALFORMED_LINE, "torn", key=KEY, line=3, offset=99)

    class Damaged(EphemeralRunStore):
        async def read_log(self, key: RunKey, /) -> RunLog:
            raise damage

    made = definition(store=Damaged())
    with pytest.raises(CorruptRunLog) as found:
        await getattr(made, method)(request())
    assert found.value is damage
