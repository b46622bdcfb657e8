"""The table of the proof: rows, how they are put together from findings, and how they stand on the page."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Final

BEGIN: Final = "<!-- the table: written by `make verify` -->"
END: Final = "<!-- the end of the table -->"

_HEAD: Final = "| check | store | figures | tests | seconds | seeds | last run |\n|---|---|---|---|---|---|---|"
_COLUMNS: Final = 7
_SEEDS_SHOWN: Final = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one test checked."""

    check: str
    """The kind of check, as the table names it."""
    store: str
    """The store, as the table names it."""
    seed: str
    """What random choices were made from; empty where there were none."""
    counts: Mapping[str, int]
    """What was looked at, by the name of its unit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Row:
    """One row, as text."""

    check: str
    store: str
    figures: str
    tests: str
    seconds: str
    seeds: str
    last_run: str
    """The day, UTC."""

    def __str__(self) -> str:
        return "| " + " | ".join(dataclasses.astuple(self)) + " |"


def rows_of(findings: Iterable[tuple[Finding, float]], day: str) -> list[Row]:
    """One row for each check and store: figures and seconds are sums over the tests."""
    grouped: dict[tuple[str, str], list[tuple[Finding, float]]] = collections.defaultdict(list)
    for finding, seconds in findings:
        grouped[finding.check, finding.store].append((finding, seconds))
    return [_row(check, store, group, day) for (check, store), group in sorted(grouped.items())]


def _row(check: str, store: str, group: list[tuple[Finding, float]], day: str) -> Row:
    counts = collections.Counter[str]()
    for finding, _ in group:
        counts.update(finding.counts)
    seeds = sorted({finding.seed for finding, _ in group if finding.seed}, key=lambda seed: (len(seed), seed))
    shown = ", ".join(seeds[:_SEEDS_SHOWN]) + (", …" if len(seeds) > _SEEDS_SHOWN else "")
    return Row(
        check=check,
        store=store,
        figures=", ".join(f"{count:,} {unit}" for unit, count in counts.items()),
        tests=str(len(group)),
        seconds=f"{sum(seconds for _, seconds in group):,.0f}",
        seeds=shown or "none",
        last_run=day,
    )


def rewritten(page: str, rows: Iterable[Row]) -> str:
    """The page with these rows in its table; rows of other checks and stores stay as they are.

    Raises:
        ValueError: the page has no table, or one that cannot be read.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must hold {BEGIN!r} and {END!r} once each")
    before, _, rest = page.partition(BEGIN)
    old, _, behind = rest.partition(END)
    merged = {(row.check, row.store): row for row in [*_read(old), *rows]}
    lines = "\n".join(str(merged[name]) for name in sorted(merged))
    return f"{before}{BEGIN}\n\n{_HEAD}\n{lines}\n\n{END}{behind}"


def _read(table: str) -> list[Row]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = []
    for line in lines[2:]:
        cells = re.split(r"\s*\|\s*", line.strip())[1:-1]
        if len(cells) != _COLUMNS:
            raise ValueError(f"a row of the table cannot be read: {line}")
        rows.append(Row(**dict(zip((field.name for field in dataclasses.fields(Row)), cells, strict=True))))
    return rows
