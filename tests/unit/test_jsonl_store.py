"""`JsonlRunStore`: files, keys, torn tails, positions between objects and processes, syncs, open files."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polyloop.stores.jsonl import JsonlRunStore, files
from polyloop.stores.jsonl.runs import OPEN_FILES_PER_THREAD
from polyloop.stores.jsonl.store import THREADS
from polyloop.types import (
    CorruptRunLog,
    InvalidRequest,
    Record,
    RunAlreadyExists,
    RunConflict,
    RunKey,
    RunLog,
    StopReason,
    StoreBusy,
)
from tests.contract.records import acted, action_intent, ended, model_intent, replied, started, stepped
from tests.seams import append
from tests.unit.jsonl_disk import (
    KEY,
    faulty_store,
    is_barrier,
    names_in,
    open_descriptors,
    path_of,
    place_for,
    story,
    written,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JsonlRunStore]:
    async with JsonlRunStore(tmp_path) as entered:
        yield entered


async def write(store: JsonlRunStore, records: list[Record], key: RunKey = KEY) -> None:
    for record in records:
        await append(store, key, record)


# ---------------------------------------------------------------- what is stored


@pytest.mark.parametrize("finished", [True, False])
async def test_the_file_is_what_the_format_describes_and_is_read_back(tmp_path: Path, finished: bool) -> None:
    records = story(3, finished=finished)
    async with JsonlRunStore(tmp_path) as store:
        await write(store, records)
        assert list((await store.read_log(KEY)).records()) == records
    assert path_of(tmp_path).read_bytes() == written(records).data
    async with JsonlRunStore(tmp_path) as store:
        assert list((await store.read_log(KEY)).records()) == records


async def test_every_record_is_in_the_file_when_the_call_returns(tmp_path: Path, store: JsonlRunStore) -> None:
    records = story(2, finished=True)
    log = written(records)
    for index, record in enumerate(records):
        await append(store, KEY, record)
        assert path_of(tmp_path).read_bytes() == log.data[: log.offsets[index + 1]]


async def test_the_file_is_for_the_owner_alone_and_so_is_a_directory_that_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    async with JsonlRunStore(directory) as store:
        await append(store, KEY, started())
    assert path_of(directory).stat().st_mode & 0o777 == 0o600
    assert [each.stat().st_mode & 0o777 for each in (directory, directory.parent)] == [0o700, 0o700]


async def test_a_relative_directory_is_the_one_of_the_moment_of_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = JsonlRunStore("runs")
    monkeypatch.chdir("/")
    async with store:
        await append(store, KEY, started())
    assert path_of(tmp_path / "runs").exists()


def test_the_repr_shows_the_directory_and_nothing_else(tmp_path: Path) -> None:
    assert repr(JsonlRunStore(tmp_path)) == f"JsonlRunStore({str(tmp_path)!r})"


# ---------------------------------------------------------------- keys

HOSTILE = [
    "run", "Run", "RUN", "../x", "..", ".", "/etc/x", "a/b", "a\\b", "a_b", "a b", "CON", "con", "nul.jsonl",
    "a.", "a..", "a ", " a", "a", "a\n", "-rf", "~", "$HOME", "*", "%2e%2e", "_", "__",
    "\u00e9", "e\u0301", "\u00df", "\u1e9e", "\u0130", "\u65e5\u672c", "\u2028", "\ud7ff", "\U0001f600",
    "x" * 1024, "x" * 1023 + "y", "\U0001f600" * 1024, "a" * 300 + "/",
]  # fmt: skip


async def test_keys_of_any_spelling_are_runs_of_their_own_inside_the_directory(tmp_path: Path) -> None:
    assert len(set(HOSTILE)) == len(HOSTILE)
    directory = tmp_path / "runs"
    outside = names_in(Path("/"))
    async with JsonlRunStore(directory) as store:
        for number, key in enumerate(HOSTILE):
            await append(store, RunKey(key), started({"number": number}))
    names = [path.name for path in directory.iterdir()]
    assert len({name.lower() for name in names}) == len(HOSTILE)
    for name in names:
        assert name.isascii()
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-.")
        assert name[0] not in "-."
        assert len(name) <= 40 + 1 + 64 + len(".jsonl")
    assert names_in(tmp_path) == ["runs"]
    assert names_in(Path("/")) == outside
    async with JsonlRunStore(directory) as store:
        for number, key in enumerate(HOSTILE):
            log = await store.read_log(RunKey(key))
            assert log.started is not None
            assert log.started.params_snapshot == {"number": number}
            assert json.loads(path_of(directory, key).read_bytes())["key"] == key


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "x" * 1025])
async def test_a_key_outside_the_rules_is_refused_before_any_call_for_a_file(tmp_path: Path, key: str) -> None:
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        with pytest.raises(InvalidRequest) as refused:
            await store.append_run_start(RunKey(key), started())
        assert refused.value.field == "RunRequest.key"
        with pytest.raises(InvalidRequest):
            await store.read_log(RunKey(key))
        assert system.calls == []


async def test_a_symlink_in_the_place_of_a_log_is_not_followed(tmp_path: Path, store: JsonlRunStore) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    (tmp_path / files.file_name(KEY)).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        await append(store, KEY, started())
    with pytest.raises(OSError, match="symbolic"):
        await store.read_log(KEY)
    assert target.read_bytes() == b""


@pytest.mark.parametrize("kind", ["directory", "fifo"])
async def test_what_is_no_regular_file_in_the_place_of_a_log_is_an_error(
    tmp_path: Path, store: JsonlRunStore, kind: str
) -> None:
    place = tmp_path / files.file_name(KEY)
    place.mkdir() if kind == "directory" else os.mkfifo(place)
    with pytest.raises(OSError, match=r"directory|regular|No such device"):
        await append(store, KEY, started())
    with pytest.raises(OSError, match=r"directory|regular"):
        await store.read_log(KEY)


# ---------------------------------------------------------------- torn tails


async def test_a_torn_record_is_dropped_and_the_run_goes_on_wherever_it_was_cut(tmp_path: Path) -> None:
    """Every length of the last record, the one without its line end included."""
    records = story(1)
    log = written(records)
    for size in range(log.offsets[-2], log.offsets[-1]):
        key = RunKey(f"run-{size}")
        mine = written(records, key)
        place_for(tmp_path, mine.data[: mine.offsets[-2] + size - log.offsets[-2]], key)
    async with JsonlRunStore(tmp_path) as store:
        for size in range(log.offsets[-2], log.offsets[-1]):
            key = RunKey(f"run-{size}")
            read = await store.read_log(key)
            assert list(read.records()) == records[:-1], size
            other = stepped(5, 7)
            await append(store, key, other)
            await append(store, key, model_intent(6, 1))
            assert list((await store.read_log(key)).records()) == [*records[:-1], other, model_intent(6, 1)], size


async def test_reading_leaves_a_torn_file_as_it_is(tmp_path: Path, store: JsonlRunStore) -> None:
    path = place_for(tmp_path, written(story(1)).data[:-3])
    before = path.read_bytes()
    assert (await store.read_log(KEY)).next_seq == 5
    assert path.read_bytes() == before


async def test_a_torn_tail_is_cut_and_synced_before_anything_is_written(tmp_path: Path) -> None:
    records = story(1)
    place_for(tmp_path, written(records).data[:-3])
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        await append(store, KEY, records[-1])
        changes = [name for name, _ in system.calls if name in ("ftruncate", "pwrite", "fdatasync", "fsync")]
        # Cut; write again what may not be on the disk; sync; only then the record, which is ordered.
        assert changes == ["ftruncate", "pwrite", "fdatasync", "pwrite"]


async def test_a_file_whose_start_record_is_torn_begins_anew(tmp_path: Path, store: JsonlRunStore) -> None:
    place_for(tmp_path, written(story(0)).data[:-3])
    assert await store.read_log(KEY) == RunLog.from_records(())
    await write(store, story(1, finished=True))
    assert path_of(tmp_path).read_bytes() == written(story(1, finished=True)).data


@pytest.mark.parametrize("line", [0, 2, 5])
async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, store: JsonlRunStore, line: int) -> None:
    log = written(story(2))
    at = log.offsets[line] + 60
    path = place_for(tmp_path, log.data[:at] + b"#" + log.data[at + 1 :])
    before = path.read_bytes()
    for call in (store.read_log(KEY), append(store, KEY, stepped(11)), append(store, KEY, started())):
        with pytest.raises(CorruptRunLog) as refused:
            await call
        assert (refused.value.line, refused.value.offset, refused.value.key) == (line + 1, log.offsets[line], KEY)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- positions


async def test_two_objects_on_one_run_never_interleave(tmp_path: Path) -> None:
    """Whoever is behind is refused, and nothing of it is written."""
    async with JsonlRunStore(tmp_path) as one, JsonlRunStore(tmp_path) as two:
        await write(one, [started(), model_intent(1)])
        assert (await two.read_log(KEY)).next_seq == 2
        await append(two, KEY, replied(2))
        with pytest.raises(RunConflict) as refused:
            await append(one, KEY, replied(2, reply=None))
        assert (refused.value.seq, refused.value.next_seq) == (2, 3)
        with pytest.raises(RunConflict):
            await append(one, KEY, action_intent(3))
        await append(two, KEY, action_intent(3))
        assert (await one.read_log(KEY)).next_seq == 4
        await append(one, KEY, acted(4))
        with pytest.raises(RunConflict):
            await append(two, KEY, acted(4))
        assert list((await two.read_log(KEY)).records()) == story(1)[:5]


async def test_a_run_is_started_once(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as one, JsonlRunStore(tmp_path) as two:
        outcomes = await asyncio.gather(
            *(append(each, KEY, started()) for each in (one, two) * 3), return_exceptions=True
        )
        assert outcomes.count(None) == 1
        assert {type(each) for each in outcomes if each} == {RunAlreadyExists, RunConflict}
        assert (await one.read_log(KEY)).next_seq == 1


async def test_a_refused_record_makes_no_file(tmp_path: Path, store: JsonlRunStore) -> None:
    with pytest.raises(RunConflict):
        await append(store, KEY, model_intent(0))
    with pytest.raises(RunConflict):
        await append(store, RunKey("other"), started(seq=1))
    assert names_in(tmp_path) == []


RACER = """
import asyncio, sys
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.types import RunConflict, RunKey
from tests.contract.records import failed, started
from tests.seams import append

async def main():
    key, name = RunKey("run"), sys.argv[2]
    written = 0
    async with JsonlRunStore(sys.argv[1]) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            log = await store.read_log(key)
            if log.next_seq > 200:
                break
            try:
                for seq in range(log.next_seq, log.next_seq + 3):
                    await append(store, key, failed(seq, f"{name} {written}"))
                    written += 1
            except RunConflict:
                pass
    print(written)

asyncio.run(main())
"""


def race(directory: Path) -> dict[str, int]:
    """Let two processes write at once; how many records each was told are written."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return dict(zip("ab", (int(racer.communicate(timeout=60)[0]) for racer in racers), strict=True))


async def test_two_processes_on_one_run_never_interleave(tmp_path: Path) -> None:
    """Each counts what it was told is written; the log holds just that, in the order of each."""
    async with JsonlRunStore(tmp_path) as store:
        await append(store, KEY, started())
    counts = race(tmp_path)
    async with JsonlRunStore(tmp_path) as store:
        errors = [result.error for result in (await store.read_log(KEY)).results]
    for name, count in counts.items():
        assert [error for error in errors if error and error[0] == name] == [f"{name} {each}" for each in range(count)]
    assert len(errors) == sum(counts.values()) >= 200


async def test_a_log_that_another_process_holds_is_waited_for_and_then_the_store_is_busy(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    async with store:
        await append(store, KEY, started())
        for call in (lambda: append(store, KEY, model_intent(1)), lambda: store.read_log(KEY)):
            system.reset()
            system.faults["flock"] = [lambda *_, **__: False] * 100_000
            system.faults["monotonic"] = [lambda: clock[0]] * 100_000
            system.faults["sleep"] = [pause] * 100_000
            begun = clock[0]
            with pytest.raises(StoreBusy) as busy:
                await call()
            assert busy.value.key == KEY
            assert busy.value.waited_s == pytest.approx(files.LOCK_WAIT_S, abs=0.1)
            assert clock[0] - begun == pytest.approx(files.LOCK_WAIT_S, abs=0.1)
            system.reset()
        with pytest.raises(StoreBusy):
            await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 1
        system.faults["flock"] = [lambda *_, **__: False] * 3
        system.faults["sleep"] = [pause] * 3
        await append(store, KEY, model_intent(1))
        assert (await store.read_log(KEY)).next_seq == 2


async def test_a_directory_that_is_gone_is_an_error_and_not_an_empty_log(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    async with JsonlRunStore(directory) as store:
        directory.rmdir()
        with pytest.raises(FileNotFoundError):
            await store.read_log(KEY)
        with pytest.raises(FileNotFoundError):
            await append(store, KEY, started())
        with pytest.raises(FileNotFoundError):
            await append(store, RunKey("other"), model_intent(1))


async def test_leaving_says_so_if_the_directory_of_un_synced_records_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "runs"

    async def use() -> None:
        async with JsonlRunStore(directory) as store:
            await write(store, story(1))
            directory.rename(tmp_path / "elsewhere")

    with pytest.raises(FileNotFoundError):
        await use()


async def test_a_log_that_was_moved_away_is_not_written_on(tmp_path: Path) -> None:
    """Nor one that another was moved over, though it is as long."""
    async with JsonlRunStore(tmp_path) as store:
        await write(store, story(1)[:3])
        path = path_of(tmp_path)
        moved = path.rename(tmp_path / "moved")
        before = moved.read_bytes()
        with pytest.raises(RunConflict):
            await append(store, KEY, story(1)[3])
        path.write_bytes(before)
        assert (await store.read_log(KEY)).next_seq == 3
        (tmp_path / "copy").write_bytes(before)
        (tmp_path / "copy").rename(path)
        await append(store, KEY, story(1)[3])
        assert path.read_bytes().startswith(before)
        assert moved.read_bytes() == before
        assert list((await store.read_log(KEY)).records()) == story(1)[:4]


async def test_a_log_that_was_deleted_is_an_empty_one_and_leaving_does_not_mind(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        await write(store, story(1))
        path_of(tmp_path).unlink()
        with pytest.raises(RunConflict):
            await append(store, KEY, model_intent(6, 1))
        assert await store.read_log(KEY) == RunLog.from_records(())
        await write(store, story(1))
        path_of(tmp_path).unlink()
    assert names_in(tmp_path) == []


# ---------------------------------------------------------------- syncs


async def test_there_are_two_syncs_a_step_and_the_directory_is_synced_once(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    steps = 10
    async with store:
        system.reset()
        for record in story(steps, finished=True):
            before = system.count("fdatasync")
            await append(store, KEY, record)
            assert system.count("fdatasync") - before == is_barrier(record), record
        assert (system.count("fdatasync"), system.count("fsync")) == (1 + 2 * steps + 1, 1)
        assert system.count("pwrite") == 1 + 5 * steps + 1
        assert system.count("pread") == 0
        assert system.count("open") == system.count("close")


async def test_a_start_record_in_an_existing_empty_file_syncs_the_directory_too(tmp_path: Path) -> None:
    place_for(tmp_path, b"")
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        await append(store, KEY, started())
        assert system.count("fsync") == 1


@pytest.mark.parametrize("count", range(1, 7))
async def test_an_object_that_takes_a_run_over_writes_and_syncs_first_what_may_not_be_durable(
    tmp_path: Path, count: int
) -> None:
    """A start record may also have lost its name."""
    records = story(2)
    log = written(records)
    place_for(tmp_path, log.data[: log.offsets[count]])
    store, system = faulty_store(tmp_path)
    rewritten: list[tuple[bytes, int]] = []

    def remember(fd: int, data: bytes, offset: int) -> int:
        rewritten.append((data, offset))
        return os.pwrite(fd, data, offset)

    async with store:
        assert (await store.read_log(KEY)).next_seq == count
        system.reset()
        system.fail("pwrite", remember)
        await append(store, KEY, records[count])
        durable = ([0] + [log.offsets[at + 1] for at in range(count - 1) if is_barrier(records[at])])[-1]
        assert rewritten == [(log.data[durable : log.offsets[count]], durable)]
        assert system.count("fdatasync") == 1 + is_barrier(records[count])
        assert system.count("fsync") == (count == 1)
        assert system.count("pread") == 0, "what was read before is not read again"
        system.reset()
        await write(store, records[count + 1 :])
        assert system.count("fdatasync") == sum(map(is_barrier, records[count + 1 :]))


# ---------------------------------------------------------------- open files


async def test_open_files_are_bounded_and_evicting_one_does_not_have_it_read_again(tmp_path: Path) -> None:
    """Evicted also with un-synced records, which are then written once more, through the new file, before its sync."""
    store, system = faulty_store(tmp_path)
    runs = [RunKey(f"run {number}") for number in range(3 * OPEN_FILES_PER_THREAD * THREADS)]
    async with store:
        system.reset()
        most = 0
        for record in story(2):
            await asyncio.gather(*(append(store, key, record) for key in runs))
            most = max(most, system.count("open") - system.count("close"))
        assert most <= OPEN_FILES_PER_THREAD * THREADS
        assert open_descriptors() < OPEN_FILES_PER_THREAD * THREADS + 50
        assert system.count("pread") == 0
        assert system.count("fdatasync") == len(runs) * sum(map(is_barrier, story(2)))
        log = written(story(2))
        for key in runs[::17]:
            assert list((await store.read_log(key)).records()) == story(2)
        assert len(path_of(tmp_path, runs[0]).read_bytes()) == len(log.data) + len(runs[0]) - len(KEY)


async def test_the_file_that_was_used_longest_ago_is_the_one_to_be_closed(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    neighbours = (RunKey(f"run {number}") for number in itertools.count())
    async with store:
        await append(store, KEY, started())
        for seq in range(1, 2 * OPEN_FILES_PER_THREAD):
            neighbour = next(key for key in neighbours if hash(key) % THREADS == hash(KEY) % THREADS)
            await append(store, neighbour, started())
            system.reset()
            await append(store, KEY, stepped(seq))
            assert system.count("open") == 0, seq


async def test_records_whose_file_was_closed_un_synced_are_written_again_before_the_next_sync(tmp_path: Path) -> None:
    """An error of the disk that came between would have gone with the file that was closed."""
    async with JsonlRunStore(tmp_path) as store:
        await write(store, story(1))
        log = written([*story(1), model_intent(6, 1)])
        crowd = [RunKey(f"run {number}") for number in range(2 * OPEN_FILES_PER_THREAD * THREADS)]
        await asyncio.gather(*(append(store, key, started()) for key in crowd))
        path = path_of(tmp_path)
        with path.open("r+b") as file:
            file.seek(log.offsets[4])
            file.write(bytes(log.offsets[6] - log.offsets[4]))
        await append(store, KEY, model_intent(6, 1))
        assert path.read_bytes() == log.data
        await append(store, KEY, replied(7, 1))
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"#" * size)
        await append(store, KEY, action_intent(8, 1))
        assert path.read_bytes().startswith(b"#" * size), "and only then"


async def test_leaving_writes_them_again_too(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        await write(store, story(1))
        log = written(story(1))
        crowd = [RunKey(f"run {number}") for number in range(2 * OPEN_FILES_PER_THREAD * THREADS)]
        await asyncio.gather(*(append(store, key, started()) for key in crowd))
        path = path_of(tmp_path)
        with path.open("r+b") as file:
            file.seek(log.offsets[4])
            file.write(bytes(log.offsets[6] - log.offsets[4]))
    assert path.read_bytes() == log.data


async def test_what_was_only_looked_at_and_what_ended_is_not_remembered(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        await store.read_log(RunKey("unknown"))
        await write(store, story(1, finished=True))
        await store.read_log(KEY)
        assert store._pool is not None
        assert [runs._runs for runs in store._pool.workers() if runs._runs] == []


@pytest.mark.parametrize("reason", [StopReason.TASK_COMPLETED, StopReason.CANCELLED])
async def test_a_run_that_ended_is_forgotten(tmp_path: Path, reason: StopReason) -> None:
    """Its file is closed; its end is found again in the file."""
    store, system = faulty_store(tmp_path)
    async with store:
        system.reset()
        await write(store, [started(), ended(1, reason)])
        assert system.count("open") == system.count("close")
        if reason is StopReason.CANCELLED:
            await append(store, KEY, model_intent(2))
        else:
            with pytest.raises(RunConflict):
                await append(store, KEY, model_intent(2))
        assert system.count("pread") == 1
