"""Whatever a power loss leaves of a recorded run holds all that was acknowledged, and nothing that was not written."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.power import trace
from tests.power.check import Reader, Walk
from tests.power.disk import Disk
from tests.power.workload import everything

ROOT = Path(__file__).parents[2]
WORKLOAD = (sys.executable, "-m", "tests.power.workload")


async def test_every_state_that_a_power_loss_may_leave_is_an_honest_prefix(tmp_path: Path) -> None:
    disk_at = tmp_path / "disk"
    disk_at.mkdir()
    disk = Disk(disk_at)
    ledger, trace_at = tmp_path / "ledger", tmp_path / "trace"
    runs = disk_at / "made" / "runs"
    keys = everything("few")
    trace.record([*WORKLOAD, "begin", str(runs), str(ledger), *keys], trace_at, cwd=ROOT, status=-9)
    trace.record([*WORKLOAD, "resume", str(runs), str(ledger), *keys], trace_at, cwd=ROOT)
    events = trace.parse(trace_at.read_text("ascii"))
    walk = Walk(disk, ledger, Reader(tmp_path / "scratch"), limit=40, seed=1)
    await walk.along(events)
    print(len(events), walk.looked_at, walk._reader.distinct)
    assert not walk.broken, "\n".join(walk.broken)
