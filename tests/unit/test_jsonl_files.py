"""Where the file store may work: directories that are made, refused, or found on a network."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from polyloop.stores._disk import file_system
from polyloop.stores.jsonl import JsonlRunStore, files
from polyloop.types import InvalidRequest
from tests.unit.jsonl_disk import FaultyOs, faulty_store, names_in, raising

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:40 / /net rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /net/local\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/over rw - ext4 /dev/vdc rw
33 32 0:43 / /mnt/over rw - fuse.sshfs me@there: rw
34 22 0:44 / /mnt/under rw - cifs //there/share rw
35 34 0:45 / /mnt/under rw - tmpfs none rw
a row that says nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me/runs", "ext4"),
        ("/net", "nfs4"),
        ("/net/runs", "nfs4"),
        ("/network", "ext4"),
        ("/net/local disk/runs", "xfs"),
        ("/net/local disks", "nfs4"),
        ("/mnt/over/runs", "fuse.sshfs"),
        ("/mnt/under/runs", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_innermost_and_latest_mount(path: str, kind: str) -> None:
    assert file_system(path, MOUNTS) == kind


@pytest.mark.parametrize("mounts", ["", "nonsense\n\n- -"])
def test_a_table_that_does_not_say_gives_no_file_system(mounts: str) -> None:
    assert file_system("/runs", mounts) is None


def mounted(path: Path, kind: str) -> str:
    return f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {path} rw - {kind} there rw\n"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "afs", "ceph", "glusterfs", "fuse.sshfs", "lustre"])
async def test_a_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    store, system = faulty_store(tmp_path / "runs")
    system.fail("mounts", lambda: mounted(tmp_path, kind))
    with pytest.raises(InvalidRequest, match=kind) as refused:
        await store.__aenter__()
    assert refused.value.field == "JsonlRunStore.directory"


async def test_a_link_to_a_network_file_system_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    store, system = faulty_store(tmp_path / "near")
    system.fail("mounts", lambda: mounted(tmp_path / "far", "nfs"))
    with pytest.raises(InvalidRequest, match="nfs"):
        await store.__aenter__()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuse.lxcfs"])
async def test_a_local_file_system_is_not(tmp_path: Path, kind: str) -> None:
    store, system = faulty_store(tmp_path)
    system.fail("mounts", lambda: mounted(tmp_path, kind))
    async with store:
        assert not system.faults["mounts"], "it was asked"


def test_the_table_of_mounts_is_read_where_there_is_one() -> None:
    assert file_system("/", files.Os().mounts())


async def test_a_platform_without_flock_is_refused(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path / "runs")
    system.fail("has_flock", lambda: False)
    with pytest.raises(InvalidRequest, match="flock"):
        await store.__aenter__()
    assert not (tmp_path / "runs").exists()


def _file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"mine")
    return tmp_path / "file"


def _below_a_file(tmp_path: Path) -> Path:
    return _file(tmp_path) / "runs"


def _dangling_link(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    return tmp_path / "link"


def _circle(tmp_path: Path) -> Path:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    return tmp_path / "one"


def _too_long(tmp_path: Path) -> Path:
    return tmp_path / ("x" * 300)


@pytest.mark.parametrize("make", [_file, _below_a_file, _dangling_link, _circle, _too_long])
async def test_a_place_that_cannot_be_a_directory_is_refused_by_name(tmp_path: Path, make: object) -> None:
    assert callable(make)
    path = make(tmp_path)
    before = names_in(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        await JsonlRunStore(path).__aenter__()
    assert refused.value.field == "JsonlRunStore.directory"
    assert names_in(tmp_path) == before


async def test_each_level_that_is_made_is_synced_into_its_parent_before_the_next(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path / "a" / "b" / "c")
    async with store:
        calls = [name for name, _ in system.calls if name in ("mkdir", "fsync")]
    assert calls == ["fsync", *["mkdir", "fsync"] * 3]


async def test_a_level_that_another_process_makes_at_the_same_time_is_no_error(tmp_path: Path) -> None:
    def overtaken(path: Path, mode: int) -> None:
        path.mkdir(mode)
        path.mkdir(mode)

    store, system = faulty_store(tmp_path / "a" / "b")
    system.fail("mkdir", overtaken)
    system.fail("mkdir", overtaken)
    async with store:
        assert (tmp_path / "a" / "b").is_dir()


async def test_a_parent_that_may_not_be_read_is_no_obstacle_for_a_directory_that_exists(tmp_path: Path) -> None:
    store, system = faulty_store(tmp_path)
    system.fail("open", raising(errno.EACCES))
    async with store:
        pass


def test_the_name_of_a_file_begins_readably() -> None:
    names = {key: files.file_name(key).rsplit("-", 1)[0] for key in ("Abc-1/x", "日本", "../..", "-_-", "a" * 500)}
    assert names == {"Abc-1/x": "abc-1_x", "日本": "run", "../..": "run", "-_-": "run", "a" * 500: "a" * 40}


def test_a_wait_for_a_lock_is_short_when_the_lock_is(tmp_path: Path) -> None:
    """Nobody waits half a second for what is held for half a millisecond."""
    system = FaultyOs()
    pauses: list[float] = []
    system.faults["flock"] = [lambda *_, **__: False] * 50
    system.faults["sleep"] = [pauses.append] * 50
    with (tmp_path / "file").open("wb") as file:
        files.lock(system, file.fileno(), "run", shared=True)
    assert pauses[0] < 0.001
    assert max(pauses) <= 0.02
    assert pauses == sorted(pauses)
