"""What `import polyloop` costs, in fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import Row, at_most, exactly, median_ratio, show

REPEATS: Final = 21
LATE: Final = ("jsonschema", "loguru")
"""What is imported at first use only."""

_PROBE: Final = """
import json, sys, time
started = time.perf_counter()
import {modules}
seconds = time.perf_counter() - started
print(json.dumps([seconds, [name for name in {late} if name in sys.modules]]))
"""


def fresh_import(modules: str) -> tuple[float, list[str]]:
    """Seconds of an import in a fresh process, and which of the late modules came with it."""
    probe = _PROBE.format(modules=modules, late=LATE)
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)  # noqa: S603 - ours
    seconds, late = json.loads(done.stdout)
    return seconds, late


def rows() -> list[Row]:
    """All figures."""
    ours: list[float] = []
    theirs: list[float] = []
    late: list[str] = []
    for turn in range(REPEATS + 1):
        seconds, late = fresh_import("polyloop")
        other, _ = fresh_import("asyncio, json, dataclasses, loguru")
        if turn:
            ours.append(seconds)
            theirs.append(other)
    note = f"{statistics.median(ours) * 1e3:.0f} ms against {statistics.median(theirs) * 1e3:.0f} ms"
    return [
        at_most(
            "import polyloop over import asyncio, json, dataclasses, loguru",
            1.5,
            median_ratio(ours, theirs),
            "x",
            note=note,
        ),
        exactly("of jsonschema and loguru, imported with it", 0, len(late), "modules", note=", ".join(late)),
    ]


if __name__ == "__main__":
    sys.exit(show("Importing", rows()))
