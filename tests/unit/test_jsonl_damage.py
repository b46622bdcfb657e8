"""What is read from a file whose bytes are not as they were written: an honest prefix, or `CorruptRunLog`."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from polyloop.serialization import encode
from polyloop.stores.jsonl.contents import Contents, read_contents
from polyloop.stores.jsonl.format import LineFormat
from polyloop.types import (
    CorruptionReason,
    CorruptRunLog,
    Record,
    StopReason,
    UnsupportedSchemaVersion,
)
from tests.contract.records import acted, action_intent, ended, failed, model_intent, replied, started, stepped
from tests.unit.jsonl_disk import KEY, SECTOR, WrittenLog, is_barrier, story, written

LONG = story(2, finished=True)
OPEN = story(2)


def read(data: bytes, key: str = KEY) -> Contents:
    return read_contents(key, LineFormat(key), data)


def outcome(data: bytes) -> int | CorruptRunLog:
    """How many records are read, or the refusal."""
    try:
        contents = read(data)
    except CorruptRunLog as refused:
        return refused
    return contents.log.next_seq


def check_prefix(data: bytes, records: list[Record]) -> int | CorruptRunLog:
    """Like `outcome`, and whatever is read is what was written."""
    result = outcome(data)
    if isinstance(result, CorruptRunLog):
        assert result.key == KEY
    else:
        assert list(read(data).log.records()) == records[:result]
    return result


def line_at(log: WrittenLog, position: int) -> int:
    """Which line a byte belongs to, its line end included; from 0."""
    return next(index for index, end in enumerate(log.offsets[1:]) if position < end)


def check_refused(result: int | CorruptRunLog, log: WrittenLog, line: int, why: str) -> None:
    assert isinstance(result, CorruptRunLog), why
    assert (result.line, result.offset) == (line + 1, log.offsets[line]), why
    assert result.seq == line, why


# ---------------------------------------------------------------- sound files


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_sound_file_is_read_whole(steps: int) -> None:
    records = story(steps, finished=True)
    log = written(records)
    contents = read(log.data)
    assert list(contents.log.records()) == records
    assert (contents.length, contents.ended) == (len(log.data), True)


def test_an_empty_file_is_the_log_of_no_run() -> None:
    contents = read(b"")
    assert (contents.log.next_seq, contents.length, contents.durable, contents.ended) == (0, 0, 0, False)


@pytest.mark.parametrize("count", range(1, len(OPEN) + 1))
def test_what_is_behind_the_last_barrier_that_was_followed_counts_as_not_yet_durable(count: int) -> None:
    log = written(OPEN[:count])
    followed = [0, *(log.offsets[index + 1] for index in range(count - 1) if is_barrier(OPEN[index]))]
    assert read(log.data).durable == followed[-1]


def test_a_barrier_that_is_followed_by_a_torn_line_counts_as_durable() -> None:
    log = written(OPEN)
    assert read(log.data[: log.offsets[4] + 9]).durable == log.offsets[4]
    assert read(log.data[: log.offsets[3] + 9]).durable == log.offsets[2]


def test_what_a_line_says_of_durability_is_believed() -> None:
    """After a take-over also ordered records are known to be on the disk."""
    lines = LineFormat(KEY)
    data = b""
    records: list[Record] = [started(), model_intent(1), replied(2)]
    for index, record in enumerate(records):
        data += lines.write(encode(record), len(data), first=index == 0)
    durable = len(data)
    data += lines.write(encode(acted(3)), durable, first=False)
    assert read(data).durable == durable


def test_each_line_is_ascii_json_whose_record_can_be_taken_out() -> None:
    records: list[Record] = [started({"nul": "\0", "line": "\u2028\n", "half": "\ud800", "word": "ü"}), model_intent(1)]
    log = written(records)
    for index, line in enumerate(log.data.split(b"\n")[:-1]):
        assert line.isascii()
        assert b"\0" not in line
        plain = json.loads(line)
        assert plain["record"] == json.loads(encode(records[index]))
        assert ("key" in plain) == (index == 0)
    assert list(read(log.data).log.records()) == records


def test_the_writer_makes_the_lines_that_the_format_describes() -> None:
    log = written(LONG)
    lines = LineFormat(KEY)
    made = [lines.write(encode(record), log.acknowledged[index], first=index == 0) for index, record in enumerate(LONG)]
    assert b"".join(made) == log.data


# ---------------------------------------------------------------- cuts


@pytest.mark.parametrize("finished", [True, False])
def test_a_file_cut_anywhere_is_read_up_to_the_last_line_that_is_whole(finished: bool) -> None:
    """A cut inside what was acknowledged cannot be told from one inside a torn tail: an honest prefix either way."""
    records = LONG if finished else OPEN
    log = written(records)
    for size in range(len(log.data)):
        whole = sum(end <= size for end in log.offsets[1:])
        contents = read(log.data[:size])
        assert list(contents.log.records()) == records[:whole], size
        assert contents.length == log.offsets[whole], size


# ---------------------------------------------------------------- single bytes


def flips(byte: int) -> Iterator[int]:
    yield from (byte ^ 0x01, byte ^ 0x80, 0x00, 0x0A, 0x20)


def check_byte(log: WrittenLog, records: list[Record], position: int) -> None:
    """Flip, drop, double and swap one byte: damage on that line. Only the very last line end may be a torn write."""
    data, line = log.data, line_at(log, position)
    last = position == len(data) - 1
    for other in flips(data[position]):
        if other != data[position]:
            result = check_prefix(data[:position] + bytes([other]) + data[position + 1 :], records)
            if last:
                assert result == len(records) - 1
            else:
                check_refused(result, log, line, f"byte {position} became {other:#x}")
    result = check_prefix(data[:position] + data[position + 1 :], records)
    if last:
        assert result == len(records) - 1
    else:
        check_refused(result, log, line, f"byte {position} is gone")
    result = check_prefix(data[:position] + data[position : position + 1] + data[position:], records)
    doubled = line + 1 if data[position] == 0x0A else line
    assert isinstance(result, CorruptRunLog), f"byte {position} stands twice"
    assert result.line == doubled + 1
    if not last and data[position] != data[position + 1]:
        swapped = data[position + 1 : position + 2] + data[position : position + 1]
        result = check_prefix(data[:position] + swapped + data[position + 2 :], records)
        check_refused(result, log, line, f"bytes {position} and {position + 1} are swapped")


def test_a_byte_flipped_dropped_doubled_or_swapped_is_damage_on_its_line() -> None:
    """Every 29th byte, and all of the bytes around line ends."""
    log = written(LONG)
    near = {end + by for end in log.offsets[1:] for by in (-3, -2, -1, 0, 1, 10, 27, 28) if end + by >= 0}
    for position in sorted(near | set(range(0, len(log.data), 29))):
        if position < len(log.data):
            check_byte(log, LONG, position)


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.timeout(600)
def test_every_byte_flipped_dropped_doubled_or_swapped_is_damage_on_its_line(finished: bool) -> None:
    records = LONG if finished else OPEN
    log = written(records)
    for position in range(len(log.data)):
        check_byte(log, records, position)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_bit_of_a_log_is_told() -> None:
    records = story(1)
    log = written(records)
    for position, bit in itertools.product(range(len(log.data) - 1), range(8)):
        data = log.data[:position] + bytes([log.data[position] ^ (1 << bit)]) + log.data[position + 1 :]
        assert isinstance(check_prefix(data, records), CorruptRunLog), (position, bit)


def test_random_damage_is_never_another_story() -> None:
    """Several changes at once, seeded; whatever is read is a prefix of what was written."""
    log = written(LONG)
    for seed in range(300):
        rng = random.Random(seed)
        data = bytearray(log.data)
        for _ in range(rng.randint(1, 4)):
            low = rng.randrange(len(data))
            high = min(len(data), low + rng.choice([1, 7, 100, 512, 1000]))
            match rng.randrange(4):
                case 0:
                    del data[low:high]
                case 1:
                    data[low:high] = bytes(high - low)
                case 2:
                    data[low:low] = data[low:high]
                case _:
                    data[low:high] = rng.randbytes(high - low)
            if not data:
                break
        try:
            check_prefix(bytes(data), LONG)
        except AssertionError:
            raise AssertionError(f"seed {seed}") from None


# ---------------------------------------------------------------- lines


def lines_of(log: WrittenLog) -> list[bytes]:
    return [log.data[low:high] for low, high in itertools.pairwise(log.offsets)]


@pytest.mark.parametrize("index", range(len(LONG) - 1))
def test_a_line_that_is_missing_leaves_a_gap(index: int) -> None:
    lines = lines_of(written(LONG))
    refused = outcome(b"".join(lines[:index] + lines[index + 1 :]))
    assert isinstance(refused, CorruptRunLog)
    if index:
        assert (refused.reason, refused.line, refused.seq) == (CorruptionReason.WRONG_POSITION, index + 1, index)


@pytest.mark.parametrize("index", range(len(LONG)))
def test_a_line_that_stands_twice_is_refused(index: int) -> None:
    log = written(LONG)
    lines = lines_of(log)
    refused = outcome(b"".join(lines[: index + 1] + lines[index:]))
    assert isinstance(refused, CorruptRunLog)
    if index:
        assert (refused.reason, refused.line) == (CorruptionReason.WRONG_POSITION, index + 2)
        assert refused.offset == log.offsets[index + 1]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(OPEN)), 2)))
def test_two_lines_that_changed_places_are_refused(first: int, second: int) -> None:
    lines = lines_of(written(OPEN))
    lines[first], lines[second] = lines[second], lines[first]
    refused = outcome(b"".join(lines))
    assert isinstance(refused, CorruptRunLog)
    assert refused.line == first + 1


def test_the_file_of_another_key_is_refused_by_name() -> None:
    with pytest.raises(CorruptRunLog) as refused:
        read(written(LONG, "other").data)
    assert (refused.value.reason, refused.value.line, refused.value.offset) == (CorruptionReason.WRONG_KEY, 1, 0)


@pytest.mark.parametrize("index", range(1, len(OPEN)))
def test_a_line_of_another_run_does_not_fit(index: int) -> None:
    """Same position, same record: the checksum alone tells them apart."""
    log = written(OPEN)
    lines, others = lines_of(log), lines_of(written(OPEN, "ruN"))
    refused = outcome(b"".join([*lines[:index], others[index], *lines[index + 1 :]]))
    assert isinstance(refused, CorruptRunLog)
    assert refused.reason is CorruptionReason.MALFORMED_LINE


@pytest.mark.parametrize("junk", [b"\n", b"{}\n", b"\r\n", b"x" * 600 + b"\n", b"\xff\n", b" \n"])
@pytest.mark.parametrize("line", [0, 1, 5, len(OPEN)])
def test_a_line_that_no_store_wrote_is_damage_wherever_it_stands(junk: bytes, line: int) -> None:
    log = written(OPEN)
    offset = log.offsets[line]
    check_refused(outcome(log.data[:offset] + junk + log.data[offset:]), log, line, "junk")


@pytest.mark.parametrize("behind", [b"x", b"\0", b"\0" * 600, b'{"check"', b"x\n", b"\0" * 2000 + b"\n"])
def test_nothing_is_taken_for_a_torn_write_behind_the_end_of_a_run(behind: bytes) -> None:
    """Nothing is ever written there."""
    log = written(LONG)
    check_refused(outcome(log.data + behind), log, len(LONG), "behind the end")


def test_behind_a_cancelled_end_a_torn_write_is_dropped() -> None:
    records = [*story(1), ended(6, StopReason.CANCELLED)]
    log = written(records)
    assert check_prefix(log.data + b'{"check"', records) == len(records)


def rechecked(log: WrittenLog, index: int, old: str, new: str) -> bytes:
    """The log with one record's text changed, its checksum made to fit."""
    texts = [encode(record) for record in OPEN]
    assert old in texts[index]
    texts[index] = texts[index].replace(old, new)
    changed = written(OPEN, texts=texts)
    assert changed.data[: log.offsets[index]] == log.data[: log.offsets[index]]
    return changed.data


@pytest.mark.parametrize("index", [1, 4, len(OPEN) - 1])
def test_a_record_that_cannot_be_read_though_its_checksum_fits_is_never_a_tail(index: int) -> None:
    log = written(OPEN)
    with pytest.raises(CorruptRunLog) as refused:
        read(rechecked(log, index, '"schema":"1.0","record":"', '"schema":"1.0","record":"un'))
    assert refused.value.reason is CorruptionReason.MALFORMED_RECORD
    check_refused(refused.value, log, index, "undecodable")


@pytest.mark.parametrize("index", [1, len(OPEN) - 1])
def test_a_record_of_a_newer_library_is_reported_with_its_place(index: int) -> None:
    log = written(OPEN)
    with pytest.raises(UnsupportedSchemaVersion) as refused:
        read(rechecked(log, index, '"schema":"1.0"', '"schema":"2.0"'))
    assert refused.value.__notes__ == [f"in the log of run 'run', line {index + 1}, byte {log.offsets[index]}"]


@pytest.mark.parametrize(
    "rest",
    [
        '","durable":0,"record":{"a":1}}',
        '","durable":-1,"key":"run","record":{"a":1}}',
        '","durable":00,"key":"run","record":{"a":1}}',
        '","durable":0,"key":"run","more":1,"record":{"a":1}}',
        '","durable":0,"key":"run","record":{"a":1} ',
        '","durable":0,"key":run,"record":{"a":1}}',
        '","durable":0,"key":"run","record":{"a":"ü"}}',
        '","key":"run"}',
    ],
)
def test_a_line_that_fits_but_is_laid_out_in_another_way_is_refused(rest: str) -> None:
    checked = LineFormat(KEY)._digest(rest.encode())
    with pytest.raises(CorruptRunLog) as refused:
        read(b'{"check":"' + checked + rest.encode() + b"\n")
    assert refused.value.reason is CorruptionReason.MALFORMED_LINE


# ---------------------------------------------------------------- sectors


def stretch(sizes: tuple[int, int, int], lead: int) -> tuple[list[Record], WrittenLog]:
    """A log that ends in two ordered records and a barrier of these sizes, its acknowledged part moved by `lead`."""
    records: list[Record] = [
        started({"pad": "p" * lead}),
        model_intent(1),
        replied(2),
        action_intent(3),
        failed(4, "e" * sizes[0]),
        failed(5, "f" * sizes[1]),
        ended(6, StopReason.CANCELLED, failures=10 ** (sizes[2] % 15)),
    ]
    return records, written(records)


def sectors(low: int, high: int) -> list[tuple[int, int]]:
    """The parts of the sectors between two bytes."""
    edges = [low, *range(low - low % SECTOR + SECTOR, high, SECTOR), high]
    return list(itertools.pairwise(edges))


def zeroed(data: bytes, parts: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for low, high in parts:
        changed[low:high] = bytes(high - low)
    return bytes(changed)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (700, 100, 3), (100, 700, 5), (300, 300, 7), (1500, 20, 9)])
@pytest.mark.parametrize("lead", [0, 100, 217, 333, 480])
def test_any_subset_of_the_unacknowledged_sectors_may_be_missing(sizes: tuple[int, int, int], lead: int) -> None:
    """Zero-filled in any subset, and the file cut behind any sector: all that was acknowledged is read."""
    records, log = stretch(sizes, lead)
    acknowledged = log.offsets[4]
    parts = sectors(acknowledged, len(log.data))
    for size in range(len(parts) + 1):
        for lost in itertools.combinations(parts, size):
            for _, end in parts:
                data = zeroed(log.data, list(lost))[:end]
                kept = check_prefix(data, records)
                assert isinstance(kept, int), f"{lost} cut at {end}: {kept}"
                assert kept >= 4, f"{lost} cut at {end}"


def test_a_sector_may_be_as_old_as_any_write_of_the_stretch() -> None:
    """The system may write a sector between two writes to it: it then ends in zeros where the later one belongs."""
    for seed in range(400):
        rng = random.Random(seed)
        sizes = (rng.randrange(900), rng.randrange(900), rng.randrange(15))
        records, log = stretch(sizes, rng.randrange(512))
        acknowledged = log.offsets[4]
        data = bytearray(log.data)
        for low, high in sectors(acknowledged, len(data)):
            written_up_to = rng.choice(log.offsets[4:])
            data[low:high] = log.data[low : max(low, min(high, written_up_to))].ljust(high - low, b"\0")
        size = rng.choice([len(data), rng.randrange(acknowledged, len(data) + 1)])
        kept = check_prefix(bytes(data[:size]), records)
        assert isinstance(kept, int), f"seed {seed}: {kept}"
        assert kept >= 4, f"seed {seed}"


@pytest.mark.parametrize("lead", [0, 50, 199, 333, 404])
def test_a_zero_filled_sector_of_the_acknowledged_part_is_damage(lead: int) -> None:
    """Also where it swallows line ends: a later line says that it was durable."""
    records, log = stretch((600, 600, 3), lead)
    acknowledged = log.offsets[4]
    parts = sectors(0, acknowledged)
    for size in (1, 2, 3):
        for lost in itertools.combinations(parts, size):
            result = check_prefix(zeroed(log.data, list(lost)), records)
            check_refused(result, log, line_at(log, lost[0][0]), f"{lost}")


@pytest.mark.parametrize("behind", ["whole", "cut", "zeroed"])
def test_a_torn_line_is_damage_if_a_barrier_behind_it_was_acknowledged(behind: str) -> None:
    """Ordered records, a barrier, and something behind it, none of whose claims can be read any more."""
    records: list[Record] = [*story(1), model_intent(6, 1), replied(7, 1)]
    log = written(records)
    data = zeroed(log.data, [(log.offsets[5], log.offsets[6] - 1)])
    assert check_prefix(data[: log.offsets[7]], records) == 5, "without anything behind the barrier, it may be torn"
    match behind:
        case "cut":
            data = data[: log.offsets[7] + 5]
        case "zeroed":
            data = zeroed(data, [(log.offsets[7], len(data))])
    check_refused(check_prefix(data, records), log, 5, behind)


def test_a_torn_line_before_an_ordered_record_that_follows_a_barrier_is_damage() -> None:
    """The barrier itself is torn too; that the record behind it was written says that it was acknowledged."""
    records: list[Record] = [*story(1), model_intent(6, 1), replied(7, 1)]
    log = written(records)
    data = zeroed(log.data, [(log.offsets[5], log.offsets[7] - 1)])
    check_refused(check_prefix(data, records), log, 5, "claimed")


def test_a_start_record_that_is_torn_is_no_run_and_one_with_something_behind_it_is_damage() -> None:
    records, log = stretch((0, 0, 0), 1200)
    first = zeroed(log.data, [(SECTOR, 2 * SECTOR)])[: log.offsets[1]]
    assert check_prefix(first, records) == 0
    for behind in (b"{", b"\0", b"\n"):
        check_refused(check_prefix(first + behind, records), log, 0, repr(behind))


def test_zeros_that_do_not_fill_a_sector_are_damage() -> None:
    records, log = stretch((1500, 20, 3), 0)
    low, high = log.offsets[4], log.offsets[5]
    inside = low - low % SECTOR + 2 * SECTOR
    assert inside + SECTOR < high - 1
    assert check_prefix(zeroed(log.data, [(inside, inside + SECTOR)]), records) == 4
    for part in [(inside + 1, inside + SECTOR), (inside, inside + SECTOR - 1), (low + 1, low + 100), (low, low + 5)]:
        check_refused(check_prefix(zeroed(log.data, [part]), records), log, 4, f"{part}")


def test_the_position_behind_a_torn_line_must_go_on() -> None:
    """A sound line in a torn stretch that repeats an earlier position is no part of it."""
    lines = LineFormat(KEY)
    records: list[Record] = [started(), model_intent(1)]
    log = written(records)
    torn = b"\0" * 600 + b"\n"
    for seq, kept in ((1, False), (2, False), (3, True), (4, True)):
        line = lines.write(encode(stepped(seq)), log.offsets[2], first=False)
        result = check_prefix(log.data + torn + line, records)
        assert (result == 2) is kept, seq
        if not kept:
            assert isinstance(result, CorruptRunLog)
            assert (result.reason, result.line, result.seq) == (CorruptionReason.WRONG_POSITION, 4, None)
        doubled = check_prefix(
            log.data + torn + lines.write(encode(stepped(9)), log.offsets[2], first=False) + line, records
        )
        assert isinstance(doubled, CorruptRunLog)
        assert (doubled.reason, doubled.line) == (CorruptionReason.WRONG_POSITION, 5)
