"""Wrong run stores about positions, keys and blocks. Each differs from `DictStore` in one fault."""

from __future__ import annotations

import dataclasses
import posixpath
import unicodedata
from collections.abc import Callable
from typing import Any

from polyloop.types import (
    EffectCompleted,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunStarted,
    StepCompleted,
    StopReason,
)
from tests.contract.promises import settled
from tests.contract.records import ended
from tests.contract.right_store import DictStore, Medium
from tests.contract.zoo import Zoo
from tests.contract.zoo_groups import REFUSALS, VALUES

POSITION_STORES = Zoo[Callable[[Medium], Any]]()
wrong = POSITION_STORES.breaks

# ---------------------------------------------------------------------------------------------- positions


@wrong("a_gap_is_refused", besides=REFUSALS)
class TakesGaps(DictStore):
    """Takes any position beyond the last."""

    def check(self, key: str, record: Record) -> None:
        expected = len(self.lines(key))
        if expected and record.seq > expected:
            record = dataclasses.replace(record, seq=expected)
        super().check(key, record)


@wrong("a_repeated_position_is_refused", besides=REFUSALS)
class TakesRepeats(DictStore):
    """Takes a record for the last position once more, in place of the one there."""

    def check(self, key: str, record: Record) -> None:
        lines = self.lines(key)
        if record.seq == len(lines) - 1 and record.seq > 0 and not self.is_end(self.restored(lines[-1])):
            del lines[-1]
        super().check(key, record)


@wrong("a_repeated_position_is_refused", besides=REFUSALS)
class TakesEqualRepeats(DictStore):
    """Takes a record that equals the last one for a retry, and acknowledges it."""

    async def append(self, key: RunKey, record: Record) -> None:
        lines = self.lines(key)
        if len(lines) > 2 and lines[-1] == self.stored(record):
            return
        await super().append(key, record)


@wrong("a_stale_position_is_refused", besides=REFUSALS)
class TakesStalePositions(DictStore):
    """Compares with the last position alone, and puts older records behind it."""

    def check(self, key: str, record: Record) -> None:
        expected = len(self.lines(key))
        if record.seq < expected - 1 and not isinstance(record, RunStarted):
            record = dataclasses.replace(record, seq=expected)
        super().check(key, record)


@wrong("a_gap_is_refused", "a_repeated_position_is_refused", "a_stale_position_is_refused", besides=REFUSALS)
class Renumbers(DictStore):
    """Gives each record the next position, whatever it says."""

    async def append(self, key: RunKey, record: Record) -> None:
        if not isinstance(record, RunStarted) and (length := len(self.lines(key))):
            record = dataclasses.replace(record, seq=length)
        await super().append(key, record)


@wrong(
    "a_gap_is_refused",
    "a_repeated_position_is_refused",
    "a_stale_position_is_refused",
    "nothing_follows_the_end_of_a_run",
    "an_object_that_missed_the_end_is_refused",
    besides=REFUSALS,
)
class WritesWhatItRefuses(DictStore):
    """Writes first and judges afterwards."""

    def check(self, key: str, record: Record) -> None:
        try:
            super().check(key, record)
        except RunConflict:
            if lines := self.lines(key):
                lines.append(self.stored(dataclasses.replace(record, seq=len(lines))))
            raise


@wrong(
    "a_gap_is_refused",
    "a_repeated_position_is_refused",
    "a_stale_position_is_refused",
    "nothing_follows_the_end_of_a_run",
    "of_two_tasks_at_one_position_one_wins",
    besides=REFUSALS
    | {
        "a_first_record_that_is_no_start_is_refused",
        "a_start_record_for_another_position_is_refused",
        "an_object_that_missed_the_end_is_refused",
    },
)
class RefusesWithAnotherError(DictStore):
    """Refuses with a ValueError."""

    def check(self, key: str, record: Record) -> None:
        try:
            super().check(key, record)
        except RunConflict as error:
            raise ValueError(str(error)) from None


@wrong(
    "the_refusal_of_an_ordered_append_surfaces",
    "a_barrier_tells_of_every_ordered_record_before_it",
    "a_gap_is_refused",
    "a_repeated_position_is_refused",
    "a_stale_position_is_refused",
    "an_object_that_is_behind_is_refused",
    "a_stale_stretch_of_records_is_refused_whole",
    "a_fresh_object_refuses_without_having_read",
    "a_blocked_key_refuses_every_append",
    besides=frozenset({"an_object_that_missed_the_end_is_refused", "a_refusal_blocks_the_key_until_it_is_read"}),
)
class LosesOrderedRefusals(DictStore):
    """Drops an ordered record that it cannot take, and tells nobody."""

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._drop(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._drop(key, record)

    async def _drop(self, key: RunKey, record: Record) -> None:
        blocked = key in self.blocked
        if isinstance(await settled(self.append(key, record)), RunConflict) and not blocked:
            self.blocked.discard(key)


@wrong(
    "a_barrier_tells_of_every_ordered_record_before_it",
    besides=REFUSALS | {"a_stale_stretch_of_records_is_refused_whole"},
)
class ForgetsARefusalForTheNextRecord(DictStore):
    """Keeps the refusal of an ordered record for the next barrier, and drops it when another ordered one comes."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.untold: set[str] = set()

    async def append_result(self, key: RunKey, record: EffectCompleted, /) -> None:
        await self._take(key, record)

    async def append_step(self, key: RunKey, record: StepCompleted, /) -> None:
        await self._take(key, record)

    async def _take(self, key: RunKey, record: Record) -> None:
        if key in self.untold:
            self.untold.discard(key)
            self.blocked.discard(key)
        elif key in self.blocked:
            await self.append(key, record)
        if isinstance(await settled(self.append(key, record)), RunConflict):
            self.untold.add(key)


@wrong("a_first_record_that_is_no_start_is_refused")
class BeginsWithAnything(DictStore):
    """Takes any record as the first."""

    def check(self, key: str, record: Record) -> None:
        if self.lines(key) or record.seq:
            super().check(key, record)


@wrong("a_start_record_for_another_position_is_refused")
class StartsAnywhere(DictStore):
    """Does not look at the position of a start record."""

    def check(self, key: str, record: Record) -> None:
        super().check(key, dataclasses.replace(record, seq=0) if isinstance(record, RunStarted) else record)


@wrong("a_second_start_is_refused", besides=REFUSALS | {"of_two_objects_that_start_a_run_one_wins"})
class StartsAgain(DictStore):
    """Begins the log anew when a run is started again."""

    def check(self, key: str, record: Record) -> None:
        if isinstance(record, RunStarted):
            self.lines(key).clear()
        super().check(key, record)


@wrong("a_second_start_is_refused")
class StartsAnEndedRunAgain(DictStore):
    """Lets a key be used again once its run has ended."""

    def check(self, key: str, record: Record) -> None:
        lines = self.lines(key)
        if isinstance(record, RunStarted) and lines and self.is_end(self.restored(lines[-1])):
            lines.clear()
        super().check(key, record)


@wrong(
    "a_second_start_is_refused",
    "of_two_objects_that_start_a_run_one_wins",
    besides=frozenset({"a_fresh_object_refuses_without_having_read"}),
)
class ConflictsOnStart(DictStore):
    """Refuses a second start as any other record."""

    def check(self, key: str, record: Record) -> None:
        try:
            super().check(key, record)
        except RunAlreadyExists:
            raise RunConflict(key, "there is a record", seq=record.seq) from None


@wrong("nothing_follows_the_end_of_a_run")
class KnowsOneEnd(DictStore):
    """Holds a run for ended that is completed, and no other."""

    def is_end(self, record: Record) -> bool:
        return isinstance(record, RunFinished) and record.stop_reason is StopReason.TASK_COMPLETED


@wrong("nothing_follows_the_end_of_a_run", "an_object_that_missed_the_end_is_refused")
class KnowsNoEnd(DictStore):
    """Takes records after the end of a run."""

    def check(self, key: str, record: Record) -> None:
        lines = self.lines(key)
        if lines and self.is_end(self.restored(lines[-1])) and record.seq == len(lines):
            raise_if_start(key, record)
            lines[-1] = self.stored(ended(len(lines) - 1, StopReason.CANCELLED))
            return
        super().check(key, record)


def raise_if_start(key: str, record: Record) -> None:
    """A second start is refused also here."""
    if isinstance(record, RunStarted):
        raise RunAlreadyExists(key)


@wrong("a_cancelled_run_goes_on", "a_log_holds_each_record_in_its_place")
class CancelledIsTheEnd(DictStore):
    """Holds a cancelled run for ended."""

    def is_end(self, record: Record) -> bool:
        return isinstance(record, RunFinished)


@wrong(
    "records_that_do_not_fit_together_are_taken",
    besides=VALUES,
)
class JudgesRecords(DictStore):
    """Refuses a second result for one effect."""

    def check(self, key: str, record: Record) -> None:
        super().check(key, record)
        if isinstance(record, EffectCompleted):
            earlier = self.restored(self.lines(key)[-1])
            if isinstance(earlier, EffectCompleted) and earlier.result_id == record.result_id:
                raise RunConflict(key, "a second result", seq=record.seq)


# --------------------------------------------------------------------------------------------------- keys


@wrong("keys_that_differ_in_case_are_two_runs", besides=frozenset({"keys_that_differ_in_normal_form_are_two_runs"}))
class FoldsCase(DictStore):
    """Lower-cases keys."""

    def place(self, key: str) -> str:
        return key.lower()


@wrong("keys_that_differ_in_normal_form_are_two_runs")
class ComposesKeys(DictStore):
    """Brings keys into composed form."""

    def place(self, key: str) -> str:
        return unicodedata.normalize("NFC", key)


@wrong(
    "keys_that_differ_in_normal_form_are_two_runs",
    besides=frozenset(
        {"keys_that_differ_in_blanks_and_dots_are_runs_of_their_own", "keys_that_differ_in_case_are_two_runs"}
    ),
)
class DropsWhatIsNotAscii(DictStore):
    """Drops the characters of a key that a file name may not have."""

    def place(self, key: str) -> str:
        return unicodedata.normalize("NFKD", key)


@wrong("keys_that_differ_in_blanks_and_dots_are_runs_of_their_own")
class TrimsKeys(DictStore):
    """Strips trailing blanks and dots of keys, as some file systems do."""

    def place(self, key: str) -> str:
        return key.rstrip(" .") or key


@wrong("keys_are_no_paths", besides=frozenset({"keys_that_differ_in_blanks_and_dots_are_runs_of_their_own"}))
class JoinsPaths(DictStore):
    """Makes a path of a key."""

    def place(self, key: str) -> str:
        return posixpath.normpath(posixpath.join("/runs", key))


@wrong("keys_are_no_paths", besides=frozenset({"a_key_is_not_the_runs_that_begin_with_it"}))
class ReplacesSeparators(DictStore):
    """Replaces what may not stand in a file name by an underscore."""

    def place(self, key: str) -> str:
        return key.replace("/", "_").replace("\\", "_").replace(":", "_")


@wrong("keys_are_no_patterns_and_no_numbers")
class TakesKeysForNumbers(DictStore):
    """Keeps keys in a column that prefers numbers."""

    def place(self, key: str) -> str:
        return str(int(key)) if key.isascii() and key.isdigit() else key


@wrong("keys_are_no_patterns_and_no_numbers")
class QueriesByPattern(DictStore):
    """Looks keys up by LIKE."""

    def lines(self, key: str) -> list[bytes]:
        if key == "a_":
            return super().lines("ab") or super().lines(key)
        return super().lines(key)


@wrong("long_keys_are_kept_to_the_last_character")
class CutsKeys(DictStore):
    """Keeps the first 255 characters of a key."""

    def place(self, key: str) -> str:
        return key[:255]


@wrong("long_keys_are_kept_to_the_last_character")
class RefusesLongKeys(DictStore):
    """Uses keys as names of files, which may have 255 bytes."""

    def place(self, key: str) -> str:
        if len(key.encode()) > 1100:
            raise OSError(36, "File name too long")
        return key


@wrong("a_key_is_not_the_runs_that_begin_with_it")
class MatchesPrefixes(DictStore):
    """Reads every entry that begins with the key and a separator."""

    def records(self, key: str) -> list[Record]:
        own = super().records(key)
        return own or [
            record for name in self.medium.logs if name.startswith(f"{key}-") for record in super().records(name)
        ]


# ------------------------------------------------------------------------------------------------- blocks


@wrong("a_refusal_blocks_the_key_until_it_is_read", "a_blocked_key_refuses_every_append", besides=REFUSALS)
class NeverBlocks(DictStore):
    """Goes on after a refusal as if nothing had been."""

    def block(self, key: str) -> None:
        return


@wrong("a_refusal_blocks_the_key_until_it_is_read")
class BlocksAfterConflictsOnly(DictStore):
    """Does not block the key after RunAlreadyExists."""

    async def append_run_start(self, key: RunKey, record: RunStarted, /) -> None:
        try:
            await super().append_run_start(key, record)
        except RunAlreadyExists:
            self.blocked.discard(key)
            raise


@wrong(
    "a_refusal_blocks_the_key_until_it_is_read",
    "a_gap_is_refused",
    "a_first_record_that_is_no_start_is_refused",
    "a_start_record_for_another_position_is_refused",
    "a_second_start_is_refused",
    besides=REFUSALS,
)
class BlocksForEver(DictStore):
    """Never lifts a block."""

    def lift(self, key: str) -> None:
        return


@wrong("a_blocked_key_refuses_every_append")
class BlockedWithoutAType(DictStore):
    """Refuses appends to a blocked key with a RuntimeError."""

    async def append(self, key: RunKey, record: Record) -> None:
        if self.is_blocked(key):
            raise RuntimeError("blocked")
        await super().append(key, record)


@wrong(
    "a_refusal_blocks_no_other_key",
    "a_refusal_among_calls_at_once_concerns_one_run",
    besides=REFUSALS | {"of_two_objects_that_start_a_run_one_wins"},
)
class BlocksAllKeys(DictStore):
    """Blocks the whole object after a refusal."""

    def is_blocked(self, key: str) -> bool:
        return bool(self.blocked)


@wrong("a_refusal_blocks_no_other_key")
class AnyReadOrWriteLifts(DictStore):
    """Lifts every block as soon as another key is used."""

    def write(self, key: str, record: Record, data: bytes) -> None:
        super().write(key, record, data)
        self.blocked.clear()


@wrong("a_refusal_blocks_no_other_object", besides=frozenset({"a_refusal_blocks_the_key_until_it_is_read"}))
class BlocksOnTheMedium(DictStore):
    """Keeps the block on the medium, where it meets other objects, and where they lift it."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        if not hasattr(medium, "blocked"):
            medium.blocked = set()  # type: ignore[attr-defined]  # the fault itself
        self.blocked = medium.blocked  # type: ignore[attr-defined]  # likewise
