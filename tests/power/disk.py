"""What a disk may hold if the power fails, as the system calls of a run leave it open. A model; it does no I/O.

- What a sync has confirmed is there.
- Of what was written or cut since, each sector of 512 bytes is there or is not: it holds what it held at the last
  sync or after any later call. A sector that is new since then may also hold zeros.
- A file ends anywhere between the shortest and the longest that it was since its last sync.
- A file or directory whose entry was not synced may be missing, and all that is in it.
- A call that is under way may have happened.

That is more than ext4 with `data=ordered` does, and includes it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.power.trace import Call, End, Event, Gone

SECTOR: Final = 512

_HARMLESS: Final = frozenset(("flock", "close"))


@dataclasses.dataclass(slots=True)
class File:
    """One file."""

    synced: bytes = b""
    entry_synced: bool = False
    changes: list[Call] = dataclasses.field(default_factory=list)
    """What was written and cut since the last sync, in order."""

    def versions(self) -> list[bytes]:
        """What processes have read in it since the last sync, oldest first."""
        versions = [self.synced]
        for call in self.changes:
            versions.append(changed(versions[-1], call))
        return versions


def changed(data: bytes, call: Call) -> bytes:
    """A file after one more write or cut."""
    if call.name == "ftruncate":
        length = int(call.args[1])
        return data[:length] + bytes(max(0, length - len(data)))
    offset, written = int(call.args[3]), call.data(1)[: call.result]
    before = data[:offset] + bytes(max(0, offset - len(data)))
    return before + written + data[offset + len(written) :]


class Disk:
    """The files below one directory. Whatever is there at the beginning counts as synced."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self.files: dict[str, File] = {}
        self._directories: dict[str, bool] = {}
        """Whether the entry of each was synced."""
        self._promises: dict[int, Sequence[str | Call]] = {}
        """What each sync under way, by its line, will have confirmed when it returns."""
        for parent, directories, names in os.walk(self._root):
            self._directories.update((str(Path(parent, each)), True) for each in directories)
            for path in (Path(parent, name) for name in names):
                self.files[str(path)] = File(path.read_bytes(), entry_synced=True)

    def holds(self, path: str) -> bool:
        """Whether this disk is concerned with a path."""
        return path == self._root or path.startswith(self._root + os.sep)

    def may_be_missing(self, path: str) -> bool:
        """Whether a power loss may leave no file at this path."""
        parents = itertools.takewhile(lambda each: each != self._root, map(str, Path(path).parents))
        return not (self.files[path].entry_synced and all(self._directories[each] for each in parents))

    def touch(self, event: Event) -> list[str]:
        """Let an event happen; the files that a power loss may now leave in another state than before.

        Raises:
            NotImplementedError: if this model does not know what the call does to a disk.
        """
        if isinstance(event, Gone) or event.call.name in _HARMLESS or not any(map(self.holds, event.call.paths())):
            return []
        call, ended = event.call, isinstance(event, End)
        match call.name:
            case "openat" if not {"O_TRUNC", "__O_TMPFILE", "O_TMPFILE"} & set(call.args[2].split("|")):
                return self._open(call) if ended and call.opened is not None else []
            case "mkdir" if Path(os.fsdecode(call.data(0))).is_absolute():
                return self._make_directory(call) if ended and call.result == 0 else []
            case "pwrite64" | "ftruncate":
                return self._change(call, ended=ended)
            case "fdatasync" | "fsync":
                return self._end_sync(call) if ended else self._begin_sync(call)
            case _:
                raise NotImplementedError(f"the model of the disk does not know what this leaves behind: {call}")

    def _open(self, call: Call) -> list[str]:
        path = call.opened or ""
        if "O_CREAT" not in call.args[2] or path in self.files:
            return []
        self.files[path] = File()
        return [path]

    def _make_directory(self, call: Call) -> list[str]:
        self._directories[os.fsdecode(call.data(0))] = False
        return []

    def _change(self, call: Call, *, ended: bool) -> list[str]:
        path = call.path(0)
        changes = self.files[path].changes
        if ended:
            # Its end says how much was really written, or that it failed.
            begun = changes.pop()
            assert begun.line == call.line, f"two threads change one log at the same time: {begun}; {call}"
        if call.error is None:
            changes.append(call)
        return [path]

    def _begin_sync(self, call: Call) -> list[str]:
        path = call.path(0)
        if path in self.files:
            self._promises[call.line] = tuple(self.files[path].changes)
        else:
            self._promises[call.line] = [each for each in self._entries() if str(Path(each).parent) == path]
        return []

    def _end_sync(self, call: Call) -> list[str]:
        promised = self._promises.pop(call.line)
        if call.result != 0:
            return []
        path = call.path(0)
        if path not in self.files:
            return self._entries_synced(promised)
        file = self.files[path]
        assert tuple(file.changes[: len(promised)]) == promised, f"a log was changed while it was synced: {call}"
        file.synced = file.versions()[len(promised)]
        del file.changes[: len(promised)]
        return [path]

    def _entries(self) -> Iterator[str]:
        yield from self._directories
        yield from self.files

    def _entries_synced(self, promised: Sequence[str | Call]) -> list[str]:
        for path in promised:
            if isinstance(path, str) and path in self.files:
                self.files[path].entry_synced = True
            elif isinstance(path, str):
                self._directories[path] = True
        return list(self.files)


@dataclasses.dataclass(frozen=True, slots=True)
class FileState:
    """One file after a power loss."""

    data: bytes | None
    """None if it is missing."""
    how: str
    """How the disk came to hold just that."""


class OpenSectors:
    """All that a power loss may leave of a file that is there."""

    def __init__(self, versions: Sequence[bytes]) -> None:
        self._newest = len(versions) - 1
        self.lengths = [len(version) for version in versions]
        self.shortest, self.longest = min(self.lengths), max(self.lengths)
        count = -(-self.longest // SECTOR)
        self.choices = [self._choices(versions, index * SECTOR) for index in range(count)]
        """What each sector may hold: oldest first, zeros last."""
        self._data = versions[-1]

    def _choices(self, versions: Sequence[bytes], begin: int) -> list[bytes]:
        held = [version[begin : begin + SECTOR].ljust(SECTOR, b"\0") for version in versions]
        if begin >= self.shortest:
            held.append(bytes(SECTOR))
        return list(dict.fromkeys(held))

    def count(self, sizes: int) -> int:
        """How many states there are if this many sizes are looked at."""
        return math.prod(map(len, self.choices)) * sizes

    def sizes(self) -> list[int]:
        """Where the file may end: the ends of sectors and lines, and the bytes around them."""
        ends = {*self.lengths, *range(0, self.longest, SECTOR)}
        ends.update(found.end() for found in re.finditer(rb"\n", self._data))
        near = {end + by for end in ends for by in (-1, 0, 1)}
        return sorted(size for size in near if self.shortest <= size <= self.longest)

    def newest(self) -> list[int]:
        """The choice by which every sector holds what it held last."""
        last = [self._data[at : at + SECTOR].ljust(SECTOR, b"\0") for at in range(0, self.longest, SECTOR)]
        return [choices.index(held) for choices, held in zip(self.choices, last, strict=True)]

    def state(self, chosen: Sequence[int], size: int) -> FileState:
        """The file with this choice for each sector, ending here."""
        sectors = b"".join(choices[index] for choices, index in zip(self.choices, chosen, strict=True))
        open_ones = {at: f"{index + 1} of {len(self.choices[at])}" for at, index in enumerate(chosen)}
        shown = ", ".join(f"{at}: {text}" for at, text in open_ones.items() if len(self.choices[at]) > 1)
        return FileState(sectors[:size], f"of {self.shortest} to {self.longest} bytes {size}; sectors {{{shown}}}")


def file_states(versions: Sequence[bytes], limit: int, dice: random.Random) -> Iterator[FileState]:
    """What a power loss may leave of a file: all there is if that is not more than `limit`, else a choice of it."""
    if len(versions) == 1:
        yield FileState(versions[0], "as synced")
        return
    sectors = OpenSectors(versions)
    sizes = sectors.sizes()
    if sectors.count(len(sizes)) <= limit:
        for chosen in itertools.product(*(range(len(choices)) for choices in sectors.choices)):
            yield from (sectors.state(chosen, size) for size in sizes)
        return
    yield from itertools.islice(_telling_states(sectors, sizes, dice), limit)


def _telling_states(sectors: OpenSectors, sizes: Sequence[int], dice: random.Random) -> Iterator[FileState]:
    """First the plain ones: cut at any place, one sector missing, one sector there. Then whatever the dice say."""
    newest, longest = sectors.newest(), sectors.longest
    open_ones = [at for at, choices in enumerate(sectors.choices) if len(choices) > 1]
    plain = [(newest, size) for size in sizes]
    for at in open_ones:
        for index in range(len(sectors.choices[at])):
            plain.append(([*newest[:at], index, *newest[at + 1 :]], longest))
            plain.append(([newest[each] if each == at else 0 for each in range(len(newest))], longest))
    yield from (sectors.state(*each) for each in plain)
    while True:
        chosen = [dice.randrange(len(choices)) for choices in sectors.choices]
        size = dice.choice([*sizes, longest, longest, dice.randint(sectors.shortest, longest)])
        yield sectors.state(chosen, size)
