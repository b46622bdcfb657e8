"""What the benchmarks share: timing in turns, rows with a verdict, and a description of the machine.

Machines are noisy, so nothing here is judged by an absolute time. What is compared is timed in turns within one
process, a ratio is formed for each turn, and the median of the ratios counts.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from polyloop.stores._disk import file_system

Work: TypeAlias = Callable[[], Awaitable[object]]

PEERS_BEGIN: Final = "<!-- peers: begin -->"
PEERS_END: Final = "<!-- peers: end -->"
"""Around what `make bench-peers` writes in the results, which `make bench` keeps."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, and what was expected of it."""

    what: str
    target: str
    """In words; empty for a figure that is only reported."""
    figure: str
    met: bool | None
    """None for a figure that is only reported."""

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "met", False: "MISSED", None: "reported"}[self.met]


def at_most(what: str, limit: float, figure: float, unit: str, *, note: str = "") -> Row:
    """A figure that must not be above its limit."""
    return Row(
        what=what, target=f"at most {limit:g} {unit}", figure=_shown(figure, unit, note), met=bool(figure <= limit)
    )


def at_least(what: str, limit: float, figure: float, unit: str, *, note: str = "") -> Row:
    """A figure that must not be below its limit."""
    return Row(
        what=what, target=f"at least {limit:g} {unit}", figure=_shown(figure, unit, note), met=bool(figure >= limit)
    )


def exactly(what: str, expected: float, figure: float, unit: str, *, note: str = "") -> Row:
    """A count that must be just this."""
    return Row(
        what=what, target=f"exactly {expected:g} {unit}", figure=_shown(figure, unit, note), met=figure == expected
    )


def reported(what: str, figure: str) -> Row:
    """A figure without a target."""
    return Row(what=what, target="", figure=figure, met=None)


def _shown(figure: float, unit: str, note: str) -> str:
    shown = f"{figure:,.0f}" if figure >= 1000 or float(figure).is_integer() else f"{figure:.3g}"
    return f"{shown} {unit}" + (f" ({note})" if note else "")


async def timed(work: Work) -> float:
    """Seconds that it takes, begun with a clean heap so that nobody pays for another's garbage."""
    gc.collect()
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


async def in_turns(works: Mapping[str, Work], repeats: int) -> dict[str, list[float]]:
    """Seconds of each work, `repeats` times, one after another and then from the start again.

    A first turn warms up and is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            seconds = await timed(work)
            if turn:
                times[name].append(seconds)
    return times


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def show(title: str, rows: Sequence[Row]) -> int:
    """Print rows for people, or for `run.py` with `--json`; the exit status tells whether a target was missed."""
    if "--json" in sys.argv[1:]:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        print(title)
        for row in rows:
            print(f"  {row.verdict:8}  {row.what}: {row.figure}" + (f"; target: {row.target}" if row.target else ""))
    return int(any(row.met is False for row in rows))


def peers_section(results: str) -> str:
    """The section on the peers in a text of results, without its marks; empty if there is none.

    Raises:
        ValueError: it has a mark without the other.
    """
    marks = (results.count(PEERS_BEGIN), results.count(PEERS_END))
    if marks == (0, 0):
        return ""
    if marks != (1, 1):
        raise ValueError(f"the results have not one pair of marks: {PEERS_BEGIN} {marks[0]}, {PEERS_END} {marks[1]}")
    return results.partition(PEERS_BEGIN)[2].partition(PEERS_END)[0].strip("\n") + "\n"


def with_peers(results: str, section: str) -> str:
    """A text of results with this section on the peers at its end, instead of the one that it may have.

    Raises:
        ValueError: it has a mark without the other.
    """
    if peers_section(results):
        before, _, rest = results.partition(PEERS_BEGIN)
        results = before.rstrip("\n") + "\n" + rest.partition(PEERS_END)[2]
    return results.rstrip("\n") + (f"\n\n{PEERS_BEGIN}\n\n{section.rstrip()}\n\n{PEERS_END}\n" if section else "\n")


def work_directory() -> Path:
    """Where the file store's benchmarks write: beside this file, since a temporary folder may lie in memory."""
    folder = Path(__file__).resolve().parent / ".work"
    folder.mkdir(exist_ok=True)
    return folder


def machine() -> str:
    """The machine, without anything that names it."""
    release = re.match(r"\d+\.\d+", platform.release())
    kernel = f"{platform.system()} {release[0] if release else ''}".strip()
    mounts = Path("/proc/self/mountinfo")
    disk = file_system(str(work_directory()), mounts.read_text("utf-8")) if mounts.exists() else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores, {platform.machine()}, {platform.python_implementation()} {platform.python_version()}, "
        f"{kernel}, file system {disk or 'unknown'}"
    )
