"""Wrong run stores about what comes back, positions, keys and blocks. Each differs from `DictStore` in one fault.

Those about several objects, tasks and cancellation are in `zoo_stores_at_once`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
import posixpath
import unicodedata
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from polyloop.types import (
    ActionOutcome,
    ActionStatus,
    EffectCompleted,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
    StopReason,
)
from tests.contract import store_objects, store_tools, store_values
from tests.contract.promises import settled
from tests.contract.records import ended
from tests.contract.right_store import DictStore, Medium
from tests.contract.store_suite import PROMISES
from tests.contract.zoo import Zoo

STORES = Zoo[Callable[[Medium], Any]]()
wrong = STORES.breaks

EVERYTHING = frozenset(promise.name for promise in PROMISES)
VALUES = EVERYTHING & vars(store_values).keys()
OBJECTS = EVERYTHING & vars(store_objects).keys()
KEYS = frozenset(promise.name for promise in PROMISES if promise.sentence == store_tools.KEYS)
CANCELLATION = frozenset({"a_cancelled_append_is_whole_or_nothing", "an_append_cancelled_twice_is_whole_or_nothing"})


# --------------------------------------------------------------------------------------- what comes back


def rebuilt(value: Any, leaf: Callable[[Any], Any], mapping: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """A record with every scalar, key and mapping changed."""
    if isinstance(value, enum.Enum):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: rebuilt(getattr(value, field.name), leaf, mapping)
            for field in dataclasses.fields(value)
            if field.name not in {"seq", "recorded_at"}
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return mapping({leaf(key): rebuilt(inner, leaf, mapping) for key, inner in value.items()})
    if isinstance(value, list):
        return [rebuilt(inner, leaf, mapping) for inner in value]
    return leaf(value)


class ChangingStore(DictStore):
    """Gives back records in which something was changed on the way."""

    def leaf(self, value: Any) -> Any:
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        return text

    def mapping(self, mapping: dict[str, Any]) -> Any:
        return mapping

    def restored(self, data: bytes) -> Record:
        return cast("Record", rebuilt(super().restored(data), self.leaf, self.mapping))


@wrong("nul_characters_come_back")
class LosesNuls(ChangingStore):
    """Loses NUL characters."""

    def text(self, text: str) -> str:
        return text.replace("\0", "")


@wrong("nul_characters_come_back")
class StopsAtNul(ChangingStore):
    """Ends a text at its first NUL, as a C string."""

    def text(self, text: str) -> str:
        return text.partition("\0")[0] or text


@wrong("lone_surrogates_come_back", "surrogate_pairs_held_as_two_characters_come_back")
class ReplacesSurrogates(ChangingStore):
    """Encodes as UTF-8 and replaces what that refuses."""

    def text(self, text: str) -> str:
        return text.encode("utf-8", "replace").decode("utf-8")


@wrong("surrogate_pairs_held_as_two_characters_come_back")
class JoinsPairs(ChangingStore):
    """Goes through plain JSON, which joins two surrogates into one character."""

    def text(self, text: str) -> str:
        return cast("str", json.loads(json.dumps(text)))


@wrong("line_separators_of_all_kinds_come_back", "any_other_text_comes_back")
class SplitsLines(ChangingStore):
    """Reads its medium with splitlines, so that U+2028 and U+0085 become line feeds."""

    def text(self, text: str) -> str:
        return "\n".join(text.splitlines()) or text


@wrong("line_separators_of_all_kinds_come_back", "any_other_text_comes_back")
class TranslatesNewlines(ChangingStore):
    """Opens its file in text mode: carriage returns become line feeds."""

    def text(self, text: str) -> str:
        return text.replace("\r\n", "\n").replace("\r", "\n")


@wrong("any_other_text_comes_back", "line_separators_of_all_kinds_come_back", "mappings_with_strange_keys_come_back")
class Trims(ChangingStore):
    """Strips blanks around texts."""

    def text(self, text: str) -> str:
        return text.strip()


@wrong("any_other_text_comes_back", "mappings_with_strange_keys_come_back")
class Normalises(ChangingStore):
    """Brings texts into a normal form."""

    def text(self, text: str) -> str:
        return unicodedata.normalize("NFC", text)


@wrong("megabytes_come_back")
class CutsTexts(ChangingStore):
    """Keeps the first 65,535 characters of a text."""

    def text(self, text: str) -> str:
        return text[:65_535]


@wrong("nothing_and_empty_are_told_apart", "any_other_text_comes_back")
class TakesEmptyForMissing(DictStore):
    """Tests for truth where a test for None is meant."""

    def restored(self, data: bytes) -> Record:
        record = super().restored(data)
        if isinstance(record, StepCompleted):
            return dataclasses.replace(record, final_answer=record.final_answer or None)
        if isinstance(record, RunFinished):
            return dataclasses.replace(record, final_answer=record.final_answer or None)
        return record


@wrong("nothing_and_empty_are_told_apart")
class TakesUnknownForNo(DictStore):
    """Keeps `completed` as a bool: that the signal could not be had is lost."""

    def restored(self, data: bytes) -> Record:
        record = super().restored(data)
        if isinstance(record, EffectCompleted) and record.outcome is not None:
            outcome = dataclasses.replace(record.outcome, completed=bool(record.outcome.completed))
            return dataclasses.replace(record, outcome=outcome)
        return record


@wrong("numbers_come_back_by_value_and_type", "nothing_and_empty_are_told_apart")
class BoolsAreNumbers(ChangingStore):
    """Keeps a bool in a column of integers."""

    def leaf(self, value: Any) -> Any:
        return value

    def mapping(self, mapping: dict[str, Any]) -> Any:
        return {key: int(value) if isinstance(value, bool) else value for key, value in mapping.items()}


@wrong("numbers_come_back_by_value_and_type")
class WholeFloatsAreInts(ChangingStore):
    """Writes 1.0 as 1, as a binary JSON column does."""

    def leaf(self, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@wrong("numbers_come_back_by_value_and_type")
class LosesTheSignOfZero(ChangingStore):
    """Turns -0.0 into 0.0."""

    def leaf(self, value: Any) -> Any:
        return 0.0 if isinstance(value, float) and value == 0 else value


@wrong("numbers_come_back_by_value_and_type")
class LargeIntsAreFloats(ChangingStore):
    """Keeps integers beyond 63 bits as floating-point numbers."""

    def leaf(self, value: Any) -> Any:
        large = isinstance(value, int) and not isinstance(value, bool) and 2**63 <= abs(value) < 10**300
        return float(value) if large else value


@wrong("numbers_come_back_by_value_and_type")
class RoundsFloats(ChangingStore):
    """Writes floating-point numbers with 15 digits."""

    def leaf(self, value: Any) -> Any:
        return float(f"{value:.15g}") if isinstance(value, float) and abs(value) < 1e300 else value


@wrong("the_order_of_keys_comes_back")
class SortsKeys(ChangingStore):
    """Sorts the keys of mappings."""

    def mapping(self, mapping: dict[str, Any]) -> Any:
        return dict(sorted(mapping.items()))


@wrong("mappings_with_strange_keys_come_back")
class UsesAKeyItself(ChangingStore):
    """Takes a key of the record's mapping for a mark of its own."""

    def mapping(self, mapping: dict[str, Any]) -> Any:
        return {key: value for key, value in mapping.items() if not key.startswith(("$", "__"))}


@wrong("containers_come_back_as_dicts_and_lists", besides=VALUES)
class GivesProxies(ChangingStore):
    """Gives mappings that cannot be changed, and that dataclasses.asdict cannot copy."""

    def mapping(self, mapping: dict[str, Any]) -> Any:
        return mapping if len(mapping) == 1 else MappingProxyType(mapping)


@wrong("deep_nesting_comes_back")
class GivesUpAtDepth(ChangingStore):
    """Refuses what is nested deeper than 64."""

    def stored(self, record: Record) -> bytes:
        if isinstance(record, RunStarted) and json.dumps(record.params_snapshot).count("[") > 32:
            raise ValueError("nested too deep")
        return super().stored(record)


@wrong("every_field_comes_back")
class ForgetsFieldsWithDefaults(DictStore):
    """Writes the fields of an outcome that stood in its first version."""

    def restored(self, data: bytes) -> Record:
        record = super().restored(data)
        if isinstance(record, EffectCompleted) and record.outcome is not None:
            kept = record.outcome
            outcome = ActionOutcome(status=kept.status, observation=kept.observation, completed=kept.completed)
            return dataclasses.replace(record, outcome=outcome)
        return record


@wrong("every_member_of_every_enumeration_comes_back")
class KnowsTwoStatuses(DictStore):
    """Keeps whether an action ran, and forgets why it did not."""

    def restored(self, data: bytes) -> Record:
        record = super().restored(data)
        if isinstance(record, EffectCompleted) and record.outcome and record.outcome.status is ActionStatus.ENV_ERROR:
            outcome = dataclasses.replace(record.outcome, status=ActionStatus.NOT_EXECUTED)
            return dataclasses.replace(record, outcome=outcome)
        return record


@wrong("times_are_kept_and_mean_nothing")
class SortsByTime(DictStore):
    """Orders records by the time at which they were built."""

    def records(self, key: str) -> list[Record]:
        return sorted(super().records(key), key=lambda record: record.recorded_at)


@wrong("times_are_kept_and_mean_nothing")
class KeepsWholeSeconds(DictStore):
    """Keeps times in a column of seconds."""

    def restored(self, data: bytes) -> Record:
        record = super().restored(data)
        return dataclasses.replace(record, recorded_at=f"{record.recorded_at[:19]}.000000+00:00")


@wrong("a_log_of_a_thousand_records_comes_back_whole")
class ReadsOnePage(DictStore):
    """Reads the first 500 records of a run."""

    def records(self, key: str) -> list[Record]:
        return super().records(key)[:500]


@wrong("changing_what_was_handed_in_changes_no_record")
class KeepsWhatItIsHanded(DictStore):
    """Keeps the caller's own objects, of the last two records."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.kept: list[tuple[str, int, Record]] = []

    def write(self, key: str, record: Record, data: bytes) -> None:
        self.kept.append((key, record.seq, record))
        super().write(key, record, data)

    def lines(self, key: str) -> list[bytes]:
        lines = super().lines(key)
        for kept, seq, record in self.kept[-2:]:
            if kept == key and seq < len(lines):
                lines[seq] = pickle.dumps(record)
        return lines


@wrong("changing_what_was_handed_out_changes_no_record")
class GivesTheSameObjectTwice(DictStore):
    """Keeps what it has read, and gives it again."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.read: dict[bytes, Record] = {}

    def restored(self, data: bytes) -> Record:
        return self.read.setdefault(data, super().restored(data))


# ----------------------------------------------------------------------------------------------- reading


@wrong(
    "an_unknown_key_is_an_empty_log",
    "reading_an_unknown_key_does_not_make_it_exist",
    besides=KEYS
    | CANCELLATION
    | {
        "a_first_record_that_is_no_start_is_refused",
        "a_start_record_for_another_position_is_refused",
        "a_run_goes_on_in_a_fresh_object",
        "of_two_objects_that_start_a_run_one_wins",
        "a_reader_never_sees_half_a_record",
    },
)
class RaisesForUnknownKeys(DictStore):
    """Answers an unknown key with an exception."""

    def records(self, key: str) -> list[Record]:
        if not self.lines(key):
            raise KeyError(key)
        return super().records(key)


@wrong("reading_an_unknown_key_does_not_make_it_exist", besides=CANCELLATION)
class ReadingMakesARun(DictStore):
    """Makes an entry for every key that is read, and takes any entry for a run."""

    def __init__(self, medium: Medium) -> None:
        super().__init__(medium)
        self.seen: dict[str, int] = {}

    def lift(self, key: str) -> None:
        super().lift(key)
        self.seen[key] = self.seen.get(key, 0) + 1

    def check(self, key: str, record: Record) -> None:
        # Twice: most runs are read once before they begin.
        if isinstance(record, RunStarted) and self.seen.get(key, 0) > 1 and not self.lines(key):
            raise RunAlreadyExists(key)
        super().check(key, record)


@wrong("a_log_holds_each_record_in_its_place", "a_cancelled_run_goes_on")
class ForgetsCancellations(DictStore):
    """Drops the cancelled end records of a run that went on."""

    async def read_log(self, key: RunKey, /) -> RunLog:
        return dataclasses.replace(await super().read_log(key), cancellations=())


# ---------------------------------------------------------------------------------------------- positions

REFUSALS = frozenset(
    {
        "a_refusal_blocks_the_key_until_it_is_read",
        "a_refusal_blocks_no_other_key",
        "a_refusal_blocks_no_other_object",
        "a_blocked_key_refuses_every_append",
        "a_refusal_among_calls_at_once_concerns_one_run",
        "the_refusal_of_an_ordered_append_surfaces",
        "a_fresh_object_refuses_without_having_read",
        "a_stale_position_is_refused",
        "an_object_that_is_behind_is_refused",
        "a_stale_stretch_of_records_is_refused_whole",
        "of_two_tasks_at_one_position_one_wins",
        "of_two_objects_at_one_position_one_wins",
    }
)


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
