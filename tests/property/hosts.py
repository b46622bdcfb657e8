"""Store objects in processes of their own, which can be killed in the middle of their lives.

One process that has everything imported forks a child for each life, as in `tests/crash/server.py`: it starts neither
threads nor event loops, so a child begins with a clean slate. A child holds some objects on one medium, and answers
one request at a time, while its event loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from polyloop.types import PolyLoopError, Record, RunAlreadyExists, RunConflict, RunKey
from tests.contract.implementations import RUN_STORES
from tests.contract.promises import opened
from tests.property.wrong_stores import WRONG
from tests.seams import append

ROOT: Final = Path(__file__).parents[2]

Append: TypeAlias = "tuple[RunKey, Record]"


def factory_of(name: str) -> Callable[[Path], Any]:
    """How a store of this name is made."""
    if name in WRONG:
        return WRONG[name]
    (found,) = (each for each in RUN_STORES if each.name == name)
    return found.load()


class Objects:
    """Some objects of one store on one medium."""

    def __init__(self, store: str, folder: Path, count: int) -> None:
        self._store = store
        self._folder = folder
        self._scopes = [self._made() for _ in range(count)]
        self._stores: list[Any] = []

    def _made(self) -> AbstractAsyncContextManager[Any]:
        return opened(factory_of(self._store)(self._folder), "store")

    async def enter(self) -> None:
        """Enter all of them."""
        self._stores = [await scope.__aenter__() for scope in self._scopes]

    async def append(self, at: int, appends: Sequence[Append]) -> list[str | None]:
        """Append records of different runs in one turn of the loop; the error of each."""
        calls = (append(self._stores[at], key, record) for key, record in appends)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [None if answer is None else _named(answer) for answer in answers]

    async def read(self, at: int, key: RunKey) -> tuple[Record, ...] | str:
        """A run's log; the error if a refusal was raised."""
        try:
            records: tuple[Record, ...] = (await self._stores[at].read_log(key)).records()
        except (RunConflict, RunAlreadyExists) as error:
            return _named(error)
        return records

    async def list(self, at: int) -> list[tuple[str, tuple[str, int, object]]]:
        """The runs, each with its state, steps and stop reason."""
        runs = self._stores[at].runs()
        return [(each.key, (str(each.state), each.steps, each.stop_reason)) async for each in runs]

    async def delete(self, at: int, key: RunKey) -> bool | str:
        """Delete a run; the error if one was raised."""
        try:
            return bool(await self._stores[at].delete(key))
        except PolyLoopError as error:
            return _named(error)

    async def can(self, what: str) -> bool:
        """Whether the store has a method beyond the port's."""
        return hasattr(self._stores[0], what)

    async def leave(self, at: int) -> str | None:
        """Leave one, and enter another in its place; the error that leaving raised."""
        told: str | None = None
        try:
            await self._scopes[at].__aexit__(None, None, None)
        except PolyLoopError as error:
            told = _named(error)
        self._scopes[at] = self._made()
        self._stores[at] = await self._scopes[at].__aenter__()
        return told

    async def close(self) -> None:
        """Leave all of them, whatever they have to say."""
        for scope in self._scopes:
            with contextlib.suppress(PolyLoopError):
                await scope.__aexit__(None, None, None)


def _named(error: BaseException) -> str:
    # Anything but a refusal is a failure of the store or of the test.
    return type(error).__name__ if isinstance(error, PolyLoopError) else f"{type(error).__name__}: {error}"


class Life(Protocol):
    """Objects that live somewhere."""

    def ask(self, what: str, *given: object) -> Any:
        """Call one of the methods of `Objects`."""
        ...

    def end(self) -> None:
        """Leave them."""
        ...

    def kill(self) -> None:
        """Let them be no more, without a warning."""
        ...


class Local:
    """Objects in this process: for a store that keeps its logs in memory. They cannot be killed."""

    def __init__(self, store: str, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._objects = Objects(store, folder, 1)
        self._loop.run_until_complete(self._objects.enter())

    def ask(self, what: str, *given: object) -> Any:
        call: Coroutine[Any, Any, Any] = getattr(self._objects, what)(*given)
        return self._loop.run_until_complete(call)

    def end(self) -> None:
        self.ask("close")
        self._loop.close()

    def kill(self) -> None:
        raise NotImplementedError("what is in memory is gone with its process")


class Remote:
    """Objects in a child."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._child: int = connection.recv()
        self._answer()

    def ask(self, what: str, *given: object) -> Any:
        self._connection.send((what, given))
        return self._answer()

    def _answer(self) -> Any:
        failed, answer = self._connection.recv()
        assert not failed, answer
        return answer

    def end(self) -> None:
        self.ask("close")
        self._connection.close()

    def kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)
        with contextlib.suppress(EOFError, ConnectionResetError):
            self._connection.recv()
        self._connection.close()


class Hosts:
    """Makes children."""

    def __init__(self, orders: Any, folder: Path) -> None:
        self._orders = orders
        self._address = str(folder / "socket")
        self._listener = Listener(self._address)

    def start(self, store: str, folder: Path, count: int) -> Remote:
        """Have a child with some objects."""
        pickle.dump((store, folder, count, self._address), self._orders)
        self._orders.flush()
        return Remote(self._listener.accept())

    def close(self) -> None:
        """Make no more."""
        self._listener.close()


@contextlib.contextmanager
def started(store: str) -> Iterator[Hosts]:
    """For as long as they are needed. Children use the database server of this process."""
    variables = {}
    if store == "postgres":
        from tests.postgres import server  # the package psycopg need not be installed

        variables["POLYLOOP_TEST_POSTGRES"] = server.dsn()
    # Not `-m`: what is pickled must not belong to a module called `__main__`.
    command = [sys.executable, "-c", "from tests.property.hosts import serve; serve()"]
    with (
        tempfile.TemporaryDirectory(prefix="polyloop-") as folder,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env={**os.environ, **variables}) as process,
    ):
        hosts = Hosts(process.stdin, Path(folder))
        try:
            yield hosts
        finally:
            hosts.close()


def serve() -> None:
    """Fork a child for each order until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            store, folder, count, address = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
        except EOFError:
            return
        if store == "postgres":
            # Here and not in each child: what it imports takes longer than all that a child does.
            importlib.import_module("tests.postgres.server")
        if not os.fork():
            try:
                asyncio.run(_live(store, folder, count, address))
            finally:
                os._exit(0)


async def _live(store: str, folder: Path, count: int, address: str) -> None:
    with Client(address) as connection:
        connection.send(os.getpid())
        objects = Objects(store, folder, count)
        try:
            await objects.enter()
            connection.send((False, "entered"))
            while True:
                what, given = await asyncio.get_running_loop().run_in_executor(None, connection.recv)
                connection.send((False, await getattr(objects, what)(*given)))
                if what == "close":
                    return
        except EOFError:
            return
        except BaseException:  # noqa: BLE001 - told to the test, which fails with it
            connection.send((True, traceback.format_exc()))
