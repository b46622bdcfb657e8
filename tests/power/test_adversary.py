"""What can happen to a store from outside: files that go away, forks, threads that cannot be had, damage."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from polyloop.stores.jsonl import JsonlRunStore, files
from polyloop.types import CorruptRunLog, RunConflict
from tests.power.hand_made import KEY, STORY, line_offsets, path_of
from tests.power.recorded import ROOT
from tests.seams import append


async def test_a_log_that_was_moved_away_is_not_written_on(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        for record in STORY[:2]:
            await append(store, KEY, record)
        moved = path_of(tmp_path).rename(tmp_path / "archived")
        before = moved.read_bytes()
        with pytest.raises(RunConflict):
            await append(store, KEY, STORY[2])
        assert moved.read_bytes() == before
        assert (await store.read_log(KEY)).next_seq == 0


async def test_in_a_log_that_was_replaced_by_a_longer_one_the_driver_that_is_behind_is_refused(tmp_path: Path) -> None:
    """The replacement is moved in after the original was moved away, so that the original never loses its last name."""
    async with JsonlRunStore(tmp_path / "other") as other:
        for record in STORY[:4]:
            await append(other, KEY, record)
    async with JsonlRunStore(tmp_path / "runs") as store:
        for record in STORY[:2]:
            await append(store, KEY, record)
        path_of(tmp_path / "runs").rename(tmp_path / "archived")
        path_of(tmp_path / "other").rename(path_of(tmp_path / "runs"))
        with pytest.raises(RunConflict):
            await append(store, KEY, STORY[2])


async def test_a_directory_that_was_removed_is_an_error_and_not_an_empty_store(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path / "runs") as store:
        await append(store, KEY, STORY[0])
        shutil.rmtree(tmp_path / "runs")
        with pytest.raises(FileNotFoundError):
            await append(store, KEY, STORY[1])
        with pytest.raises(FileNotFoundError):
            await store.read_log(KEY)
        assert not (tmp_path / "runs").exists()


async def test_after_damage_was_read_nothing_is_written_behind_it(tmp_path: Path) -> None:
    async with JsonlRunStore(tmp_path) as store:
        for record in STORY[:5]:
            await append(store, KEY, record)
        path = path_of(tmp_path)
        data = bytearray(path.read_bytes())
        data[line_offsets(bytes(data))[2] + 100] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        with pytest.raises(CorruptRunLog):
            await store.read_log(KEY)
        with pytest.raises(CorruptRunLog):
            await append(store, KEY, STORY[5])
        assert path.read_bytes() == data


async def test_a_thread_that_cannot_be_started_is_an_error_and_not_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with JsonlRunStore(tmp_path) as store:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            keys = [f"run {number}" for number in range(32)]
            outcomes = await asyncio.wait_for(
                asyncio.gather(*(append(store, type(KEY)(key), STORY[0]) for key in keys), return_exceptions=True), 10
            )
        refused = [each for each in outcomes if each is not None]
        assert refused
        assert all(type(each) is RuntimeError for each in refused)
        await append(store, KEY, STORY[0])


# Later Pythons warn of a fork beside threads, which is what these tests are about.
PYTHON: Final = (sys.executable, "-W", "ignore::DeprecationWarning", "-c")

FORKED: Final = """
import asyncio, os, signal, sys
from pathlib import Path
from polyloop.stores.jsonl import JsonlRunStore
from tests.power.hand_made import KEY, STORY
from tests.seams import append

async def use(store):
    await append(store, KEY, STORY[1])

def child(store):
    # The loop of the parent is not running here, though Python believes it is.
    asyncio._set_running_loop(None)
    try:
        asyncio.run(asyncio.wait_for(use(store), 5))
    except RuntimeError as error:
        return 0 if "async with" in str(error) else 1
    return 2

async def leave(store):
    await store.__aexit__(None, None, None)
    async with store:
        await append(store, KEY, STORY[1])

async def main():
    store = JsonlRunStore(sys.argv[1])
    async with store:
        await append(store, KEY, STORY[0])
        pid = os.fork()
        if not pid:
            status = child(store)
            asyncio._set_running_loop(None)
            asyncio.run(asyncio.wait_for(leave(store), 5))
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # The child has entered the store anew, and written.
        assert (await store.read_log(KEY)).next_seq == 2
        await append(store, KEY, STORY[2])
    sys.exit(status)

asyncio.run(main())
"""


def test_a_forked_process_does_not_share_the_store_of_its_parent_but_may_enter_it_anew(tmp_path: Path) -> None:
    """Its threads are not there, so a call would never end; its open files would be unlocked together."""
    ended = subprocess.run(
        [*PYTHON, FORKED, str(tmp_path)], cwd=ROOT, timeout=30, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


KILLED_PARENT: Final = """
import asyncio, os, signal, sys, time
from polyloop.stores.jsonl import JsonlRunStore
from polyloop.stores.jsonl.files import Os
from tests.power.hand_made import KEY, STORY
from tests.seams import append

class Slow(Os):
    syncs = 0
    syncing = False
    def fdatasync(self, fd):
        self.syncs += 1
        if self.syncs == 2:
            self.syncing = True
            time.sleep(60)

async def main():
    store = JsonlRunStore(sys.argv[1])
    store._os = system = Slow()
    async with store:
        await append(store, KEY, STORY[0])
        task = asyncio.create_task(append(store, KEY, STORY[1]))
        while not system.syncing:
            await asyncio.sleep(0.001)
        pid = os.fork()
        if not pid:
            os.close(1)
            os.close(2)
            time.sleep(60)
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_lock_does_not_outlive_a_killed_process_in_its_forked_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock belongs to the open file, which a fork shares: until the last such child ends nobody could resume."""
    ended = subprocess.run(
        [*PYTHON, KILLED_PARENT, str(tmp_path)], cwd=ROOT, timeout=30, capture_output=True, check=False
    )
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.5)

    async def go_on() -> None:
        async with JsonlRunStore(tmp_path) as store:
            await append(store, KEY, STORY[2])

    try:
        asyncio.run(go_on())
    finally:
        os.kill(int(ended.stdout), signal.SIGKILL)
