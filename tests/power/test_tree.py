"""The model of a disk on which files come and go, and syncs fail."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.power.disk import SECTOR
from tests.power.test_disk_model import hexed
from tests.power.trace import parse
from tests.power.tree import Tree

S = SECTOR


class World:
    """A tree, and calls on its files."""

    def __init__(self, at: Path) -> None:
        self.at = at
        (at / "there").write_bytes(b"a" * 3 * S)
        self.tree = Tree(at)
        self._calls = 0

    def call(self, text: str) -> None:
        self._calls += 1
        for event in parse("\n" * self._calls + f"100 17.5 {text}\n"):
            self.tree.touch(event)

    def fd(self, name: str) -> str:
        return f"3<{hexed(self.at / name)}>"

    def write(self, name: str, data: bytes, offset: int, result: str = "") -> None:
        self.call(f'pwrite64({self.fd(name)}, "{hexed(data)}", {len(data)}, {offset}) = {result or len(data)}')

    def sync(self, name: str, result: str = "0") -> None:
        self.call(f"fdatasync({self.fd(name)}) = {result}")

    def sync_directory(self) -> None:
        self.call(f"fdatasync(4<{hexed(self.at)}>) = 0")

    def make(self, name: str) -> None:
        path = hexed(self.at / name)
        self.call(f'openat(AT_FDCWD<{hexed("/")}>, "{path}", O_RDWR|O_CREAT, 0600) = {self.fd(name)}')

    def unlink(self, name: str) -> None:
        self.call(f'unlink("{hexed(self.at / name)}") = 0')

    def found(self, name: str, *, states: int = 600) -> set[bytes | None]:
        """All that was left of a file in many states."""
        dice = random.Random(1)
        return {state.files.get(name) for state in self.tree.states(name, states, dice)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_synced_stays_and_of_what_is_not_any_sectors(world: World) -> None:
    world.write("there", b"b" * S, S)
    world.write("there", b"c" * 10, S)
    world.write("there", b"d" * S, 2 * S)
    kept, middle, last = b"a" * S, (b"a" * S, b"b" * S, b"c" * 10 + b"b" * (S - 10)), (b"a" * S, b"d" * S)
    assert world.found("there") == {kept + two + three for two in middle for three in last}
    world.sync("there")
    assert world.found("there") == {kept + middle[2] + last[1]}
    assert world.tree.open_names() == []


def test_a_name_stands_for_whatever_it_stood_for_since_its_directory_was_synced(world: World) -> None:
    world.unlink("there")
    assert world.found("there") == {None, b"a" * 3 * S}
    world.make("there")
    world.write("there", b"new", 0)
    world.sync("there")
    assert world.found("there") == {None, b"a" * 3 * S, b"new"}
    world.sync_directory()
    assert world.found("there") == {b"new"}


def test_a_file_that_is_made_may_be_missing_until_its_directory_is_synced(world: World) -> None:
    world.make("made")
    world.write("made", b"x", 0)
    world.sync("made")
    assert world.found("made") == {None, b"x"}
    world.sync_directory()
    assert world.found("made") == {b"x"}


def test_what_a_failed_sync_had_to_write_is_not_certain_behind_a_later_one_unless_it_is_written_anew(
    world: World,
) -> None:
    world.write("there", b"b" * 2 * S, 0)
    world.sync("there", "-1 EIO (Input/output error)")
    either = {one + two + b"a" * S for one in (b"a" * S, b"b" * S) for two in (b"a" * S, b"b" * S)}
    assert world.found("there") == either
    world.sync("there")
    assert world.found("there") == either, "the kernel may hold the pages for clean"
    world.write("there", b"b" * S, 0)
    world.sync("there")
    assert world.found("there") == {b"b" * S + two + b"a" * S for two in (b"a" * S, b"b" * S)}


def test_a_write_that_failed_or_was_short_is_as_long_as_the_kernel_said(world: World) -> None:
    world.write("there", b"b" * S, 0, "-1 ENOSPC (No space left on device)")
    assert world.tree.open_names() == []
    world.write("there", b"b" * S, 0, "2")
    assert world.found("there") == {b"a" * 3 * S, b"bb" + b"a" * (3 * S - 2)}


def test_a_cut_to_nothing_leaves_all_or_nothing_until_it_is_synced(world: World) -> None:
    world.call(f"ftruncate({world.fd('there')}, 0) = 0")
    assert world.found("there") == {b"a" * 3 * S, b""}
    world.write("there", b"b" * S, 0)
    assert world.found("there") >= {b"a" * 3 * S, b"", b"b" * S}
    assert not any(data and b"a" in data and b"b" in data for data in world.found("there"))
    world.sync("there")
    assert world.found("there") == {b"b" * S}


def test_shared_memory_is_no_part_of_the_disk(world: World) -> None:
    world.make("db-shm")
    world.call(f"mmap(NULL, 32768, PROT_READ|PROT_WRITE, MAP_SHARED, {world.fd('db-shm')}, 0) = 0x7f0000000000")
    world.write("db-shm", b"x", 4095)
    assert world.tree.open_names() == []


@pytest.mark.parametrize(
    "call",
    [
        'rename("{path}", "{path}") = 0',
        'write(3<{path}>, "{path}", 4) = 4',
        'pwrite64(3<{path}>(deleted), "{path}", 4, 0) = 4',
        "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3<{path}>, 0) = 0x7fd9dbd06000",
    ],
)
def test_a_call_whose_traces_on_the_disk_are_unknown_is_refused(call: str, world: World) -> None:
    with pytest.raises(NotImplementedError, match="does not know what this leaves behind"):
        world.call(call.format(path=hexed(world.at / "there")))
