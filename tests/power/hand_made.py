"""Logs written by hand through a store, and the damage that a power loss does to their files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from polyloop.stores.jsonl.files import file_name
from polyloop.types import Record, RunKey
from tests.recovery.logs import MODEL, intent, replied, start, step

KEY: Final = RunKey("run")
MODEL_ID: Final = "000000-model_call"


def numbered(*records: Record) -> tuple[Record, ...]:
    """The records with their positions."""
    return tuple(dataclasses.replace(record, seq=seq) for seq, record in enumerate(records))


STORY: Final = numbered(
    start(),
    intent(0, MODEL),
    replied(MODEL_ID),
    step(0, "invalid"),
    intent(1, MODEL),
    replied("000001-model_call"),
    step(1, "invalid"),
    intent(2, MODEL),
)
"""Two steps and the intent of a third: barriers at 0, 1, 4 and 7."""


def path_of(directory: Path, key: str = KEY) -> Path:
    """The file of a run."""
    return directory / file_name(key)


def line_offsets(data: bytes) -> list[int]:
    """Where each line begins, and where the last one ends."""
    offsets = [0]
    while (end := data.find(b"\n", offsets[-1])) >= 0:
        offsets.append(end + 1)
    return offsets


def zero_last_line(path: Path) -> None:
    """Leave of the last line only its length, as a file system does that has extended a file and not written to it."""
    data = path.read_bytes()
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    path.write_bytes(data[:begin] + bytes(len(data) - begin))
