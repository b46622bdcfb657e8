"""`polyloop watch`: it prints what comes as it comes, ends with the run, and goes quietly."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from typing import IO
from urllib.parse import urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict

from polyloop.types import RunKey
from tests.cli.logs import sound
from tests.cli.places import COMMAND, Place, environment, polyloop, printed
from tests.postgres import server
from tests.seams import append

KEY = RunKey("run")


class Watch:
    """A watch under way."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "watch", place.url, KEY, "--every", "0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment(),
        )

    def read_to(self, words: str) -> str:
        """What it prints up to the line with these words."""
        read = ""
        while words not in read:
            line = self._stdout.readline()
            assert line, f"it ended without {words!r}: {read}"
            read += line
        return read

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@pytest.fixture
def watching(anywhere: Place) -> Iterator[Watch]:
    anywhere.fill({KEY: sound(1)[:1]})
    watch = Watch(anywhere)
    yield watch
    watch.process.kill()
    watch.process.communicate()


def test_records_are_printed_as_they_come_until_the_run_ends(anywhere: Place, watching: Watch) -> None:
    async def drive() -> str:
        told = await asyncio.to_thread(watching.read_to, "started by polyloop")
        async with anywhere.store() as store:
            await store.read_log(KEY)
            for record in sound(1)[1:]:
                await append(store, KEY, record)
                if record.seq == 1:
                    told += await asyncio.to_thread(watching.read_to, "step 0 · model call")
        return told

    told = asyncio.run(drive())
    rest, complaint = watching.process.communicate(timeout=60)
    assert (watching.process.returncode, complaint) == (0, "")
    # What is said of the run as a whole was said when it had only begun.
    assert (told + rest).partition("---- ")[2] == printed("show", anywhere.url, KEY).partition("---- ")[2]


def test_ctrl_c_ends_it_without_a_word(watching: Watch) -> None:
    watching.read_to("started by polyloop")
    watching.process.send_signal(signal.SIGINT)
    _, complaint = watching.process.communicate(timeout=60)
    assert (watching.process.returncode, complaint) == (130, "")


def test_a_run_that_is_deleted_meanwhile_ends_it(anywhere: Place, watching: Watch) -> None:
    watching.read_to("started by polyloop")

    async def delete() -> None:
        async with anywhere.store() as store:
            assert await store.delete(KEY)

    asyncio.run(delete())
    _, complaint = watching.process.communicate(timeout=60)
    assert watching.process.returncode == 2
    assert "the store holds no run 'run'" in complaint


@pytest.mark.slow
def test_a_server_that_goes_away_ends_it_with_one_line() -> None:
    own = server.own()
    try:
        url = f"postgresql://?{urlencode(conninfo_to_dict(own.dsn))}"
        place = Place("postgres", url, lambda: server.MigratedStore(own.dsn))
        place.fill({KEY: sound(1)[:1]})
        watch = Watch(place)
        watch.read_to("started by polyloop")
        own.crash()
        _, complaint = watch.process.communicate(timeout=100)
    finally:
        own.close()
    assert watch.process.returncode == 2
    assert complaint.startswith("polyloop: ")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("every", ["0", "-1", "soon", "nan", "1e9"])
def test_a_pause_that_makes_no_sense_is_refused(on_disk: Place, every: str) -> None:
    done = polyloop("watch", on_disk.url, KEY, f"--every={every}")
    assert done.returncode == 2
    assert "--every: must be between 0.01 and 86400" in done.stderr
