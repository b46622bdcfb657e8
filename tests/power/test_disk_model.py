"""The tools of the power loss test: traces are read rightly, and a disk may be in all the states that it may be in."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from tests.power import test_full_disk, trace
from tests.power.disk import SECTOR, Disk, file_states
from tests.power.trace import Begin, End, Gone, parse


def hexed(text: str | bytes | Path) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(text))


def lines(*calls: str) -> str:
    return "".join(f"{100 + number % 2} 17.5 {call}\n" for number, call in enumerate(calls))


def touch(disk: Disk, *calls: str) -> None:
    for event in parse("".join(f"100 17.5 {call}\n" for call in calls)):
        disk.touch(event)


def test_calls_are_read_with_their_begin_and_end_in_order() -> None:
    text = lines(
        f'pwrite64(5<{hexed("/d/f")}>(deleted), "{hexed(b"a, )0")}", 5, 7 <unfinished ...>',
        f"fdatasync(6<{hexed('/d/g')}>) = -1 EIO (Input/output error)",
        "<... pwrite64 resumed>) = 4",
        "--- SIGCHLD {si_signo=SIGCHLD} ---",
        f'openat(AT_FDCWD<{hexed("/d")}>, "{hexed("n")}", O_RDWR|O_CREAT, 0600) = 3<{hexed("/d/n")}>',
        "+++ killed by SIGKILL +++",
    )
    begun, failing, failed, ended, opening, opened, gone = parse(text)
    assert isinstance(begun, Begin)
    assert isinstance(ended, End)
    assert (begun.call.line, begun.call.path(0), begun.call.data(1), begun.call.result) == (1, "/d/f", b"a, )0", None)
    assert (ended.call.line, ended.call.data(1), ended.call.args[3], ended.call.result) == (1, b"a, )0", "7", 4)
    assert isinstance(failing, Begin)
    assert isinstance(failed, End)
    assert (failed.call.path(0), failed.call.result, failed.call.error) == ("/d/g", -1, "EIO")
    assert isinstance(opening, Begin)
    assert isinstance(opened, End)
    assert (opened.call.opened, set(opened.call.paths())) == ("/d/n", {"/d", "n", "/d/n"})
    assert gone == Gone(101)


@pytest.mark.parametrize("line", ["100 pwrite64()", "100 17.5 what is this", f'100 17.5 write(1<{hexed("f")}>, "a") ='])
def test_a_line_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse(line)


def test_arguments_that_strace_cut_are_an_error() -> None:
    (begun, _) = parse(f'100 17.5 write(1<{hexed("f")}>, "{hexed("abc")}"..., 9) = 9')
    assert isinstance(begun, Begin)
    with pytest.raises(ValueError, match="cut an argument short"):
        begun.call.data(1)


def test_what_is_few_is_looked_at_whole() -> None:
    """Two sectors that are new, and the end of the file at each of a few places: compared with a list made here."""
    synced, written = b"s" * 100, b"w" * (SECTOR * 2)
    versions = [synced, synced + written]
    sectors = [(synced.ljust(SECTOR, b"\0"), synced + b"w" * 412), (bytes(SECTOR), b"w" * SECTOR)]
    last = (bytes(SECTOR), b"w" * 100 + bytes(412))
    sizes = [100, 101, 511, 512, 513, 1023, 1024, 1025, 1123, 1124]
    expected = {b"".join(chosen)[:size] for chosen in itertools.product(*sectors, last) for size in sizes}
    found = {state.data for state in file_states(versions, 1000, random.Random(1))}
    assert found == expected


def test_of_what_is_much_the_plain_states_come_first_and_there_are_as_many_as_asked_for() -> None:
    versions = [b"", b"a" * 5000, b"a" * 5000 + b"b" * 5000]
    found = [state.data for state in file_states(versions, 500, random.Random(1))]
    assert len(found) == 500
    assert {b"", b"a" * 5000, versions[2], bytes(SECTOR) + versions[2][SECTOR:]} <= set(found)
    mixed = versions[2][:4608] + b"a" * 392 + bytes(120) + versions[2][5120:]
    assert mixed in found, "a sector as it was between two writes"


def test_a_cut_that_is_not_synced_may_be_undone_in_part() -> None:
    versions = [b"o" * 1000, b"o" * 300, b"o" * 300 + b"n" * 700]
    found = {state.data for state in file_states(versions, 1000, random.Random(1))}
    old_and_new = {b"o" * 512 + b"n" * 488, b"o" * 300 + b"n" * 212 + b"o" * 488, b"o" * 300}
    assert old_and_new <= found


def test_only_what_was_synced_is_there_for_certain(tmp_path: Path) -> None:
    disk, path = Disk(tmp_path), str(tmp_path / "made" / "log")
    fd = f"3<{hexed(path)}>"
    opened = f'openat(AT_FDCWD<{hexed("/")}>, "{hexed(path)}", O_RDWR|O_CREAT, 0600) = {fd}'
    touch(disk, f'mkdir("{hexed(tmp_path / "made")}", 0700) = 0', opened)
    touch(
        disk, f'pwrite64({fd}, "{hexed("abc")}", 3, 0) = 2', f'pwrite64({fd}, "{hexed("x")}", 1, 0) = -1 ENOSPC (Full)'
    )
    assert disk.files[path].versions() == [b"", b"ab"], "a short write is as long as the kernel said"
    touch(disk, f"fdatasync({fd}) = -1 EIO (Input/output error)")
    assert disk.files[path].versions() == [b"", b"ab"], "a sync that failed confirms nothing"
    touch(disk, f"fdatasync({fd}) = 0", f"ftruncate({fd}, 1) = 0")
    assert disk.files[path].versions() == [b"ab", b"a"]
    touch(disk, f"fsync(4<{hexed(tmp_path / 'made')}>) = 0")
    assert disk.may_be_missing(path), "the directory above it is not synced"
    touch(disk, f"fsync(4<{hexed(tmp_path)}>) = 0")
    assert not disk.may_be_missing(path)
    assert not Disk(tmp_path).files, "the model touches no disk"


@pytest.mark.parametrize(
    "call",
    [
        'rename("{path}", "{path}") = 0',
        'unlink("{path}") = 0',
        'write(3<{path}>, "{path}", 4) = 4',
        'openat(AT_FDCWD<{path}>, "{path}", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 3<{path}>',
        "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3<{path}>, 0) = 0x7fd9dbd06000",
    ],
)
def test_a_call_whose_traces_on_the_disk_are_unknown_is_refused(call: str, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="does not know what this leaves behind"):
        touch(Disk(tmp_path), call.format(path=hexed(tmp_path / "log")))
    touch(Disk(tmp_path), call.format(path=hexed("/elsewhere/log")))


def test_without_strace_the_test_is_skipped_with_the_reason_or_fails_if_it_is_demanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(trace.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="strace is not installed"):
        trace.strace()
    monkeypatch.setenv(trace.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match=f"{trace.REQUIRE}=1 demands it"):
        trace.strace()


def test_without_a_mount_the_test_is_skipped_with_the_reason_or_fails_if_it_is_demanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(test_full_disk.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="only root"):
        test_full_disk.refuse("only root may mount file systems")
    monkeypatch.setenv(test_full_disk.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match=f"{test_full_disk.REQUIRE}=1 demands"):
        test_full_disk.refuse("only root may mount file systems")
