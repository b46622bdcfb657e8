"""`make bench`: run every benchmark in a process of its own, and write `RESULTS.md`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

# So that the other files are found when this one is started as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measuring import Row, machine, peers_section, show, with_peers
from polyloop import __version__

HERE: Final = Path(__file__).resolve().parent

SCRIPTS: Final = {
    "overhead.py": "The loop",
    "jsonl_single.py": "One run on the file store",
    "jsonl_many.py": "A thousand runs on the file store",
    "postgres.py": "Runs on Postgres",
    "sqlite.py": "Runs on the SQLite store",
    "resume.py": "Resuming a long run",
    "adapters.py": "The adapters",
    "report.py": "The report",
    "cli.py": "The command line",
    "imports.py": "Importing",
}

HEADING: Final = """\
# Results

Written by `make bench`, which measures anew and overwrites this file but for the last section, on what a user would
pick instead: that is `make bench-peers`. Each script runs alone, too: `python benchmarks/overhead.py`. What each figure
is and how it is taken stands in the script.

Targets are ratios: what is compared is timed in turns within one process, and the median of the turns counts. The
absolute times are those of one machine on one day, with whatever else it had to do.
"""


def measured(script: str) -> list[Row]:
    """The rows of one script."""
    command = [sys.executable, str(HERE / script), "--json"]
    # Exit status 1 tells of a missed target, which the rows tell as well.
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own script
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{script} failed with exit status {done.returncode}")
    return [Row(**row) for row in json.loads(done.stdout)]


def table(title: str, script: str, rows: list[Row]) -> str:
    """One section of the results."""
    lines = [
        f"## {title}",
        "",
        f"`benchmarks/{script}`",
        "",
        "| what | target | measured | verdict |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.what} | {row.target} | {row.figure} | {row.verdict} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all, print and write."""
    missed = 0
    sections = [HEADING, f"PolyLoop {__version__} on {machine()}.\n"]
    for script, title in SCRIPTS.items():
        rows = measured(script)
        missed |= show(title, rows)
        sections.append(table(title, script, rows))
    results = HERE / "RESULTS.md"
    kept = peers_section(results.read_text("utf-8")) if results.exists() else ""
    results.write_text(with_peers("\n".join(sections), kept), encoding="utf-8")
    return missed


if __name__ == "__main__":
    sys.exit(main())
