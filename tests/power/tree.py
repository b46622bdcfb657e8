"""What a disk may hold if the power fails, for files that also come and go: SQLite's. A model; it does no I/O.

What `disk.py` says of sectors and lengths holds here too; a sector is written wholly or not at all, and what a write
does not reach it does not change (SQLite's "power-safe overwrite", which it too takes for granted). Beyond that:

- A cut to nothing happens wholly or not at all, and what is written behind it is written into new sectors, as on every
  file system with a journal. SQLite takes that for granted: of a write-ahead log that is in the database, a part that
  is left would bring back old pages.
- A name stands for any of the files, or for none, that it stood for since its directory was last synced.
- A sync that failed confirms nothing, and no later one confirms what was written before it: the kernel may hold pages
  for clean that never reached the disk. Only what is written anew and synced is certain again.
- The shared memory of the write-ahead log (`-shm`) holds anything or is gone: SQLite makes it anew after a power loss.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.power.disk import SECTOR, FileState, OpenSectors, changed
from tests.power.trace import Call, End, Event, Gone

SHARED_MEMORY: Final = "-shm"

_HARMLESS: Final = frozenset(("flock", "close"))


class Inode:
    """One file, whatever it is called."""

    def __init__(self, data: bytes = b"", *, is_cut: bool = False) -> None:
        self.is_cut = is_cut
        """Whether it is what a cut has left of the one before it, and that is not certain yet."""
        self._bases = [data]
        """What it held when it was last synced: of each sector, any of these."""
        self._changes: list[Call] = []
        """What was written and cut since, in order."""

    @property
    def is_certain(self) -> bool:
        """Whether a power loss changes nothing."""
        return len(self._bases) == 1 and not self._changes

    def versions(self) -> list[bytes]:
        """What each sector may hold: what it holds in any of these, oldest first."""
        versions = list(self._bases)
        for call in self._changes:
            versions.append(changed(versions[-1], call))
        return versions

    def begin(self, call: Call) -> None:
        """A write or a cut is under way."""
        self._changes.append(call)

    def end(self, call: Call) -> None:
        """It has ended: only now it is known how much was written."""
        at = next(at for at, begun in enumerate(self._changes) if begun.line == call.line)
        self._changes[at : at + 1] = [call] if call.error is None else []

    def promised(self) -> tuple[Call, ...]:
        """What a sync that begins now will confirm."""
        return tuple(self._changes)

    def end_sync(self, promised: Sequence[Call], *, failed: bool) -> None:
        """A sync has returned."""
        count = len(promised)
        assert tuple(self._changes[:count]) == tuple(promised), "a file was written while the write was synced"
        if failed:
            versions = self.versions()
            self._bases = versions[: len(self._bases) + count]
        else:
            newest = _after(self._bases[-1], promised)
            written = {sector for call in promised for sector in _sectors(call)}
            self._bases = list(dict.fromkeys([*(_kept(each, newest, written) for each in self._bases[:-1]), newest]))
        del self._changes[:count]


def _after(data: bytes, calls: Sequence[Call]) -> bytes:
    for call in calls:
        data = changed(data, call)
    return data


def _sectors(call: Call) -> range:
    """The sectors that a write has reached."""
    if call.name == "ftruncate":
        return range(0)
    begin = int(call.args[3])
    return range(begin // SECTOR, -(-(begin + len(call.data(1)[: call.result])) // SECTOR))


def _kept(base: bytes, newest: bytes, written: Container[int]) -> bytes:
    """The newest, and where nothing was written what an older version holds there."""
    sectors = []
    for at in range(0, len(newest), SECTOR):
        held = newest[at : at + SECTOR]
        sectors.append(held if at // SECTOR in written else base[at : at + len(held)].ljust(len(held), b"\0"))
    return b"".join(sectors)


@dataclasses.dataclass(frozen=True, slots=True)
class DiskState:
    """All files after a power loss."""

    files: Mapping[str, bytes]
    """By their names; what is missing is not in it."""
    how: str
    """How the disk came to hold just that."""


class Tree:
    """The files of one directory. Whatever is there at the beginning counts as synced."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._names: dict[str, list[Inode | None]] = {}
        """What each name may stand for: what it stood for at the last sync first, what it stands for now last."""
        self._promises: dict[int, Mapping[str, int] | tuple[Inode, tuple[Call, ...]]] = {}
        """What each sync under way, by its line, will have confirmed when it returns."""
        for path in Path(self._root).iterdir():
            self._names[path.name] = [Inode(path.read_bytes())]

    def holds(self, path: str) -> bool:
        """Whether this disk is concerned with a path."""
        return path == self._root or path.startswith(self._root + os.sep)

    def touch(self, event: Event) -> str | None:
        """Let an event happen; the name of the file that a power loss may now leave in another state than before.

        Raises:
            NotImplementedError: if this model does not know what the call does to a disk.
        """
        if isinstance(event, Gone) or event.call.name in _HARMLESS:
            return None
        call, ended = event.call, isinstance(event, End)
        paths = [path for path in call.paths() if self.holds(path)]
        if not paths or all(path.endswith(SHARED_MEMORY) for path in paths):
            return None
        path = paths[-1]
        match call.name:
            case "openat" if "O_TRUNC" not in call.args[2]:
                return self._open(call) if ended and call.opened is not None else None
            case "unlink":
                return self._unlink(path) if ended and call.result == 0 else None
            case "pwrite64" | "ftruncate" if "(deleted)" not in call.args[0]:
                inode = self._now(path)
                return self._change(inode, path, call, ended=ended)
            case "fdatasync" | "fsync":
                return self._sync(call, path, ended=ended)
            case _:
                raise NotImplementedError(f"the model of the disk does not know what this leaves behind: {call}")

    def _now(self, path: str) -> Inode:
        inode = self._names[Path(path).name][-1]
        assert inode is not None, f"{path} is written to, and is not there"
        return inode

    def _open(self, call: Call) -> str | None:
        name = Path(call.opened or "").name
        if "O_CREAT" not in call.args[2] or self._names.get(name, [None])[-1] is not None:
            return None
        self._names.setdefault(name, [None]).append(Inode())
        return name

    def _unlink(self, path: str) -> str:
        self._names[Path(path).name].append(None)
        return Path(path).name

    def _change(self, inode: Inode, path: str, call: Call, *, ended: bool) -> str | None:
        if call.name == "ftruncate" and call.args[1] == "0":
            if ended and call.result == 0:
                self._names[Path(path).name].append(Inode(is_cut=True))
            return Path(path).name if ended else None
        if ended:
            inode.end(call)
        else:
            inode.begin(call)
        return Path(path).name

    def _sync(self, call: Call, path: str, *, ended: bool) -> str | None:
        if ended:
            return self._end_sync(call, path)
        if path == self._root:
            self._promises[call.line] = {name: len(entries) for name, entries in self._names.items()}
        else:
            inode = self._now(path)
            self._promises[call.line] = inode, inode.promised()
        return None

    def _end_sync(self, call: Call, path: str) -> str | None:
        promise, failed = self._promises.pop(call.line), call.result != 0
        if isinstance(promise, tuple):
            inode, promised = promise
            inode.end_sync(promised, failed=failed)
            if not failed:
                self._cut_for_certain(self._names[Path(path).name], inode)
            return Path(path).name
        if not failed:
            for name, count in promise.items():
                del self._names[name][: count - 1]
        return None

    @staticmethod
    def _cut_for_certain(entries: list[Inode | None], inode: Inode) -> None:
        while inode.is_cut:
            at = entries.index(inode)
            before = entries[at - 1]
            assert before is not None
            del entries[at - 1]
            inode.is_cut = before.is_cut

    def open_names(self) -> list[str]:
        """The names of which a power loss may leave more than one state."""
        return [
            name
            for name, entries in self._names.items()
            if len(entries) > 1 or not (entries[0] is None or entries[0].is_certain)
        ]

    def states(self, touched: str | None, limit: int, dice: random.Random) -> Iterator[DiskState]:
        """What a power loss may leave: the newest, the oldest, and as many as asked for, plain ones more often.

        `touched` is the file whose states are varied most.
        """
        fates = {name: [_Fate(inode) for inode in entries] for name, entries in self._names.items()}
        yield _state(fates, {name: (len(options) - 1, "newest") for name, options in fates.items()}, dice)
        if not self.open_names():
            return
        yield _state(fates, dict.fromkeys(fates, (0, "oldest")), dice)
        for _ in range(limit):
            others = dice.choice(("newest", "oldest", "any"))
            chosen = {name: (_entry(options, others, dice), others) for name, options in fates.items()}
            if touched is not None:
                options = fates[touched]
                how = dice.choice(("cut", "one missing", "one there", "any"))
                chosen[touched] = (len(options) - 1 if dice.randrange(4) else dice.randrange(len(options)), how)
            yield _state(fates, chosen, dice)


def _entry(options: Sequence[_Fate], how: str, dice: random.Random) -> int:
    return {"newest": len(options) - 1, "oldest": 0}.get(how, dice.randrange(len(options)))


class _Fate:
    """What a power loss may leave of one file that a name may stand for."""

    def __init__(self, inode: Inode | None) -> None:
        self._versions = [] if inode is None else inode.versions()
        self._sectors: OpenSectors | None = None

    def state(self, how: str, dice: random.Random) -> FileState:
        """One state."""
        if not self._versions:
            return FileState(None, "missing")
        if len(self._versions) == 1 or how == "newest":
            return FileState(self._versions[-1], "as written last")
        if how == "oldest":
            return FileState(self._versions[0], "as synced last")
        self._sectors = self._sectors or OpenSectors(self._versions)
        return _some_state(self._sectors, how, dice)


def _some_state(sectors: OpenSectors, how: str, dice: random.Random) -> FileState:
    newest, longest = sectors.newest(), sectors.longest
    undecided = [at for at, choices in enumerate(sectors.choices) if len(choices) > 1]
    if how == "cut" or not undecided:
        ends = sorted({*sectors.lengths, *range(sectors.shortest // SECTOR * SECTOR, longest, SECTOR)})
        size = dice.choice(ends) + dice.randint(-1, 1)
        return sectors.state(newest, min(max(size, sectors.shortest), longest))
    at = dice.choice(undecided)
    if how == "one missing":
        newest[at] = dice.randrange(len(sectors.choices[at]))
        return sectors.state(newest, longest)
    if how == "one there":
        return sectors.state([index if each == at else 0 for each, index in enumerate(newest)], longest)
    size = dice.choice([*sectors.lengths, longest, dice.randint(sectors.shortest, longest)])
    return sectors.state([dice.randrange(len(choices)) for choices in sectors.choices], size)


def _state(
    fates: Mapping[str, Sequence[_Fate]], chosen: Mapping[str, tuple[int, str]], dice: random.Random
) -> DiskState:
    files, told = {}, []
    for name, (entry, how) in chosen.items():
        state = fates[name][entry].state(how, dice)
        if state.data is not None:
            files[name] = state.data
        told.append(f"{name} ({entry + 1} of {len(fates[name])}): {state.how}")
    return DiskState(files, "; ".join(told))
