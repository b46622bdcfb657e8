"""`make bench-peers`: run all peers in turns, and write the section on them in `RESULTS.md` and `chart.svg`.

A measurement is a process of its own, with a fresh directory. In each turn and for each case all peers follow one
another; the median of the turns counts, and ratios are formed within a turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Row, at_least, machine, median_ratio, reported, show, with_peers, work_directory
from benchmarks.peers.chart import Panel, chart
from polyloop import __version__

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE.parent / "RESULTS.md"
CHART: Final = HERE / "chart.svg"

TURNS: Final = 3
SLOW_S: Final = 10.0
"""A measurement that takes longer in the first turn is not repeated, but for those that the target is judged by."""
PATIENCE_S: Final = 180.0

QUIET: Final = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Nobody's telemetry, tracing or greeting is part of the work."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One line of the tables."""

    name: str
    script: str
    options: tuple[str, ...] = ()
    persisted: bool
    settings: str
    crowd: int = 1000
    """Runs at once in the last case: fewer where 1,000 would take minutes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One column: so many runs of so many steps, one after another or all at once."""

    title: str
    steps: int
    runs: int | None
    """None for the peer's crowd, all at once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement."""

    seconds: float
    steps_per_second: float
    bytes_per_step: float | None
    version: str


SQLITE: Final = "PolyLoop, SqliteRunStore"
DBOS: Final = "DBOS, SQLite"
DBOS_WAL: Final = "DBOS, SQLite turned to WAL"

PEERS: Final = (
    Peer(
        name=SQLITE,
        script="peer_polyloop.py",
        options=("--store", "sqlite"),
        persisted=True,
        settings="WAL, synchronous=FULL; registry, JSON schema and parser at work",
    ),
    Peer(
        name="PolyLoop, JsonlRunStore",
        script="peer_polyloop.py",
        options=("--store", "jsonl"),
        persisted=True,
        settings="a file a run, fdatasync; registry, JSON schema and parser at work",
    ),
    Peer(
        name=DBOS,
        script="peer_dbos.py",
        options=("--journal", "delete"),
        persisted=True,
        settings="as it makes the file: rollback journal, synchronous=FULL; each call a step of a workflow",
        crowd=100,
    ),
    Peer(
        name=DBOS_WAL,
        script="peer_dbos.py",
        options=("--journal", "wal"),
        persisted=True,
        settings="the same on a file turned to WAL beforehand, which it does not ask for",
        crowd=100,
    ),
    Peer(
        name="LangGraph, AsyncSqliteSaver",
        script="peer_langgraph.py",
        options=("--store", "sqlite", "--channel", "messages"),
        persisted=True,
        settings='durability="sync", WAL, synchronous=FULL; a graph of two nodes on MessagesState',
        crowd=100,
    ),
    Peer(
        name="LangGraph, the same with DeltaChannel",
        script="peer_langgraph.py",
        options=("--store", "sqlite", "--channel", "delta"),
        persisted=True,
        settings="the same, its messages in the channel that writes only what is new (beta)",
        crowd=100,
    ),
    Peer(
        name="PolyLoop, EphemeralRunStore",
        script="peer_polyloop.py",
        options=("--store", "ephemeral"),
        persisted=False,
        settings="registry, JSON schema and parser at work; keeps the log in memory",
    ),
    Peer(
        name="mini-swe-agent",
        script="peer_mini_swe_agent.py",
        persisted=False,
        settings="DefaultAgent, no limits; synchronous, a thread for each run at once",
    ),
    Peer(
        name="LangGraph",
        script="peer_langgraph.py",
        options=("--store", "none", "--channel", "messages"),
        persisted=False,
        settings="a graph of two nodes on MessagesState, no checkpointer",
        crowd=100,
    ),
    Peer(
        name="smolagents",
        script="peer_smolagents.py",
        persisted=False,
        settings="ToolCallingAgent, LogLevel.OFF; synchronous, a thread for each run at once",
        crowd=100,
    ),
    Peer(
        name="pydantic-ai",
        script="peer_pydantic_ai.py",
        persisted=False,
        settings="Agent with FunctionModel, no limit of requests, no instrumentation",
        crowd=100,
    ),
    Peer(
        name="openai-agents",
        script="peer_openai_agents.py",
        persisted=False,
        settings="Runner.run, tracing off",
        crowd=100,
    ),
)

CASES: Final = (
    Case(title="10 steps", steps=10, runs=20),
    Case(title="200 steps", steps=200, runs=2),
    Case(title="1,000 steps", steps=1000, runs=1),
    Case(title="runs of 10 steps at once", steps=10, runs=None),
)
CROWD: Final = CASES[-1]
LONG: Final = CASES[1]

Key: TypeAlias = tuple[str, str]
"""A peer's name and a case's title."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Found:
    """What was measured, and why something was not."""

    figures: dict[Key, list[Figure]] = dataclasses.field(default_factory=dict)
    syncs: dict[Key, float] = dataclasses.field(default_factory=dict)
    failures: dict[Key, str] = dataclasses.field(default_factory=dict)

    def median(self, key: Key, of: Callable[[Figure], float]) -> float | None:
        """The median of the turns; None if there were none."""
        figures = self.figures.get(key, [])
        return statistics.median(of(figure) for figure in figures) if figures else None


# ------------------------------------------------------------------------------------------- Measuring


class MeasurementError(Exception):
    """A peer's process gave no figures; the text says why."""


def output_of(peer: Peer, case: Case, tracer: Sequence[str] = ()) -> str:
    """What a peer's process prints for one measurement."""
    runs, concurrency = (peer.crowd, peer.crowd) if case.runs is None else (case.runs, 1)
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        command = [*tracer, sys.executable, str(HERE / peer.script), *peer.options, "--directory", folder]
        command += ["--steps", str(case.steps), "--runs", str(runs), "--concurrency", str(concurrency)]
        environment = {**os.environ, **QUIET, "MSWEA_GLOBAL_CONFIG_DIR": folder}
        try:
            done = subprocess.run(  # noqa: S603 - our own script
                command, check=False, capture_output=True, text=True, env=environment, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"no figures within {PATIENCE_S:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise MeasurementError(last.replace(str(HERE.parents[1]), ".").replace("|", "/")[:160])
    return done.stdout


def figure(peer: Peer, case: Case) -> Figure:
    """One measurement."""
    told = json.loads(output_of(peer, case).splitlines()[-1])
    steps = told["runs"] * told["steps"]
    written = told["written_bytes"]
    return Figure(
        seconds=told["seconds"],
        steps_per_second=told["steps_per_second"],
        bytes_per_step=None if written is None else written / steps,
        version=told["version"],
    )


def syncs_per_step(peer: Peer, case: Case, strace: str) -> float:
    """Syncs that the kernel saw between the two marks of `work.mark`, over the steps."""
    with tempfile.TemporaryDirectory(dir=work_directory()) as folder:
        trace = Path(folder) / "trace"
        calls = "trace=fdatasync,fsync,sync_file_range,msync,syncfs,sync"
        output_of(peer, case, [strace, "-f", "--seccomp-bpf", "-qq", "-o", str(trace), "-e", calls])
        lines = trace.read_text("ascii", "replace").splitlines()
    started = [line for line in lines if re.match(r"\d+ +\w+\(", line)]
    marks = [index for index, line in enumerate(started) if "EBADF" in line]
    if len(marks) != 2:
        raise MeasurementError(f"{len(marks)} marks in the trace instead of 2")
    return (marks[1] - marks[0] - 1) / (case.steps * (peer.crowd if case.runs is None else case.runs))


def attempt(found: Found, peer: Peer, case: Case, turn: int) -> None:
    """One measurement, or the reason why there is none."""
    key = (peer.name, case.title)
    earlier = found.figures.get(key, [])
    judged = case is CROWD and peer.name in (SQLITE, DBOS)
    if key in found.failures or (earlier and earlier[0].seconds > SLOW_S and not judged):
        return
    try:
        now = figure(peer, case)
    except MeasurementError as error:
        found.failures[key] = str(error)
        print(f"  {turn + 1}  {case.title:26}{peer.name:40}{error}", flush=True)
        return
    found.figures.setdefault(key, []).append(now)
    print(f"  {turn + 1}  {case.title:26}{peer.name:40}{now.steps_per_second:10,.0f} steps a second", flush=True)


def everything(turns: int) -> Found:
    """All measurements."""
    found = Found()
    for turn in range(turns):
        for case in CASES:
            for peer in PEERS:
                attempt(found, peer, case, turn)
    strace = shutil.which("strace")
    for peer in PEERS if strace else ():
        for case in (LONG, CROWD):
            key = (peer.name, case.title)
            if strace and peer.persisted and key not in found.failures:
                try:
                    found.syncs[key] = syncs_per_step(peer, case, strace)
                except MeasurementError as error:
                    found.failures[peer.name, f"syncs, {case.title}"] = str(error)
    return found


# --------------------------------------------------------------------------------------------- Telling


def shown(value: float | None) -> str:
    """A figure with three digits, or none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def speed_cell(found: Found, peer: Peer, case: Case, turns: int) -> str:
    """Steps a second, and whether they are of fewer turns than the rest."""
    key = (peer.name, case.title)
    if key in found.failures:
        return "failed"
    count = len(found.figures[key])
    return shown(found.median(key, lambda each: each.steps_per_second)) + (
        f" ({count} of {turns} turns)" if count < turns else ""
    )


def bytes_cell(found: Found, peer: Peer, case: Case) -> str:
    """Thousands of bytes a step."""
    figures = [each.bytes_per_step for each in found.figures.get((peer.name, case.title), [])]
    known = [each for each in figures if each is not None]
    return shown(statistics.median(known) / 1000) if known else "-"


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def speeds(found: Found, turns: int, *, persisted: bool) -> list[str]:
    """A table of speeds."""
    titles = ("peer", *(case.title for case in CASES), "runs at once")
    lines = [row(*titles), row(*("---" for _ in titles))]
    lines += [
        row(peer.name, *(speed_cell(found, peer, case, turns) for case in CASES), f"{peer.crowd:,}")
        for peer in PEERS
        if peer.persisted is persisted
    ]
    return lines


def writes(found: Found) -> list[str]:
    """A table of what is written."""
    bytes_titles = (f"KB, {case.title}" for case in CASES)
    titles = ("peer", *bytes_titles, f"syncs, {LONG.title}", f"syncs, {CROWD.title}")
    lines = [row(*titles), row(*("---" for _ in titles))]
    for peer in PEERS:
        if peer.persisted:
            counts = (shown(found.syncs.get((peer.name, case.title))) for case in (LONG, CROWD))
            lines.append(row(peer.name, *(bytes_cell(found, peer, case) for case in CASES), *counts))
    return lines


def settings(found: Found) -> list[str]:
    """A list of what was run, with versions."""
    lines = []
    for peer in PEERS:
        versions = {each.version for case in CASES for each in found.figures.get((peer.name, case.title), [])}
        lines.append(f"- {peer.name} {'/'.join(sorted(versions)) or '(no version: nothing ran)'}: {peer.settings}.")
    return lines


def verdicts(found: Found) -> list[Row]:
    """What is expected, and what is to be known beside it."""

    def ratio(peer: str) -> float | None:
        ours, theirs = (found.figures.get((name, CROWD.title), []) for name in (SQLITE, peer))
        turns = min(len(ours), len(theirs))
        pairs = [[each.steps_per_second for each in side[:turns]] for side in (ours, theirs)]
        return median_ratio(*pairs) if turns else None

    crowds = {peer.name: peer.crowd for peer in PEERS}
    what = f"PolyLoop's SQLite store, {crowds[SQLITE]:,} runs at once, over {DBOS}, {crowds[DBOS]:,} at once"
    over = ratio(DBOS)
    missing = Row(what=what, target="at least 20 x", figure="not measured, see the failures", met=False)
    rows = [missing if over is None else at_least(what, 20, over, "x")]
    for peer in PEERS:
        beside = ratio(peer.name) if peer.persisted and peer.name not in (SQLITE, DBOS) else None
        if beside is not None:
            rows.append(reported(f"the same over {peer.name}, {peer.crowd:,} at once", f"{beside:.3g} x"))
    return rows


def busy(load: float) -> list[str]:
    """A warning, if others had more to do than the machine has cores for one measurement beside them."""
    if load < 1:
        return []
    return [f"The machine was busy (load {load:.1f} before the start): these figures are provisional."]


def section(found: Found, rows: Sequence[Row], load: float, turns: int) -> str:
    """The section of the results."""
    lines = [
        "## What a user would pick instead",
        "",
        "`make bench-peers`, in `benchmarks/peers/`, which says what is compared and how it is kept fair.",
        f"PolyLoop {__version__} on {machine()}. Medians, turns: {turns}; what took over {SLOW_S:.0f} s was run once.",
        *busy(load),
        "",
        "![Steps a second of PolyLoop and its peers](peers/chart.svg)",
        "",
        *("| what | target | measured | verdict |", "|---|---|---|---|"),
        *(row(each.what, each.target, each.figure, each.verdict) for each in rows),
        "",
        "### Every step persisted: steps a second",
        "",
        *speeds(found, turns, persisted=True),
        "",
        "### Every step persisted: written a step",
        "",
        "Bytes are those handed to write calls, in thousands; syncs are counted by strace.",
        "",
        *writes(found),
        "",
        "### Nothing persisted: steps a second",
        "",
        *speeds(found, turns, persisted=False),
        "",
        "### Versions and settings",
        "",
        *settings(found),
    ]
    if found.failures:
        lines += ["", "### Failures", ""]
        lines += [f"- {name}, {case}: {reason}" for (name, case), reason in found.failures.items()]
    return "\n".join(lines) + "\n"


def panels(found: Found) -> list[Panel]:
    """What the chart shows."""

    def bars(case: Case, *, persisted: bool) -> Mapping[str, float]:
        speeds = {
            peer.name: found.median((peer.name, case.title), lambda each: each.steps_per_second)
            for peer in PEERS
            if peer.persisted is persisted
        }
        return {name: speed for name, speed in speeds.items() if speed is not None}

    crowds = sorted({peer.crowd for peer in PEERS if peer.persisted})
    at_once = " or ".join(f"{crowd:,}" for crowd in crowds)
    return [
        Panel(title=f"Every step persisted, {at_once} runs of 10 steps at once", bars=bars(CROWD, persisted=True)),
        Panel(title="Every step persisted, one run of 200 steps", bars=bars(LONG, persisted=True)),
        Panel(title="Nothing persisted, one run of 200 steps", bars=bars(LONG, persisted=False)),
    ]


def main() -> int:
    """Run all, print and write."""
    parser = argparse.ArgumentParser(description="Measure PolyLoop and its peers.")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each is measured; 3 counts")
    turns, load = parser.parse_args().turns, os.getloadavg()[0]
    found = everything(turns)
    rows = verdicts(found)
    CHART.write_text(chart("Steps a second", panels(found), ours="PolyLoop"), encoding="utf-8")
    RESULTS.write_text(with_peers(RESULTS.read_text("utf-8"), section(found, rows, load, turns)), encoding="utf-8")
    return show("What a user would pick instead", rows)


if __name__ == "__main__":
    sys.exit(main())
