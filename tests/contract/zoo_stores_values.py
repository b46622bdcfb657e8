"""Wrong run stores that do not give back what was written. Each differs from `DictStore` in one fault."""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
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
    RunFinished,
    RunKey,
    RunLog,
    RunStarted,
    StepCompleted,
)
from tests.contract.right_store import DictStore, Medium
from tests.contract.zoo import Zoo
from tests.contract.zoo_groups import CANCELLATION, KEYS, VALUES

VALUE_STORES = Zoo[Callable[[Medium], Any]]()
wrong = VALUE_STORES.breaks

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
