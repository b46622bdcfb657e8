"""Mutation testing of the pure modules: `python -m tests.mutation.run [MODULE ...]`.

mutmut changes one thing at a time in a copy of the sources and runs the tests that reach it. Every mutant must be
killed, or stand in `equivalent.toml` with the reason why no test can tell it from the original. The command fails
with the difference of each survivor that does not, and with each entry of that file that no longer survives.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent.toml")

MODULES = {
    "src/polyloop/_stopping.py": ["tests/unit/test_stopping.py", "tests/unit/test_pure_messages.py"],
    "src/polyloop/_assembly.py": ["tests/unit/test_assembly.py", "tests/unit/test_pure_messages.py"],
    "src/polyloop/_recovery": [
        "tests/recovery/test_table.py",
        "tests/recovery/test_grammar.py",
        "tests/recovery/test_identity.py",
        "tests/recovery/test_words.py",
    ],
    "src/polyloop/serialization.py": ["tests/unit/test_serialization.py", "tests/unit/test_pure_messages.py"],
}
"""Each pure module, with the tests that are to kill its mutants."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change, told apart by its lines: numbers and names change with the code around them."""

    module: str
    before: str
    after: str


def main(modules: list[str]) -> int:
    """Run the given modules, or all."""
    chosen = [name for name in MODULES if not modules or any(wanted in name for wanted in modules)]
    survivors: list[Mutant] = []
    total = 0
    for module in chosen:
        found, count = survivors_of(module)
        survivors += found
        total += count
        print(f"{module}: {count} mutants, {len(found)} not killed", flush=True)
    excused = {mutant: reason for mutant, reason in read_excuses().items() if mutant.module in chosen}
    unexcused = [mutant for mutant in survivors if mutant not in excused]
    stale = [mutant for mutant in excused if mutant not in survivors]
    for mutant in unexcused:
        print(f"\nsurvived: {mutant.module}\n{mutant.before}\n{mutant.after}")
    for mutant in stale:
        print(f"\nlisted as equivalent, but killed or gone: {mutant.module}\n{mutant.before}\n{mutant.after}")
    print(f"\n{total} mutants, {total - len(survivors)} killed, {len(survivors) - len(unexcused)} equivalent")
    return 1 if unexcused or stale or not total else 0


def read_excuses() -> dict[Mutant, str]:
    """The mutants that no test can kill, with the reasons."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    return {
        Mutant(module=entry["module"], before=entry["before"], after=entry["after"]): entry["reason"]
        for entry in entries
    }


def survivors_of(module: str) -> tuple[list[Mutant], int]:
    """Mutate one module in a copy of the project; what survives, and how many mutants there were."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "project"
        copy_project(copy, module)
        log = copy / "mutmut.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "mutmut", "run"], cwd=copy, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        text = log.read_text(encoding="utf-8", errors="replace")
        counts = re.findall(r"(\d+)/(\d+)", text)
        if done.returncode or not counts or counts[-1][0] != counts[-1][1]:
            raise SystemExit(f"mutmut failed on {module}:\n{text[-3000:]}")
        names = re.findall(r"^\s*(\S+): (?!killed)", mutmut(copy, "results"), re.MULTILINE)
        return [shown(copy, module, name) for name in names], int(counts[-1][1])


def copy_project(copy: pathlib.Path, module: str) -> None:
    """The sources and tests, with mutmut set up for one module."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for folder in ("src", "tests", "examples"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for file in ("README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    selection = [*MODULES[module], "-p", "no:cacheprovider", "-m", "not slow"]
    settings += (
        f"\n[tool.mutmut]\nsource_paths = [{module!r}]\nalso_copy = ['src', 'tests', 'examples']\n"
        f"pytest_add_cli_args_test_selection = {selection!r}\n"
    )
    (copy / "pyproject.toml").write_text(settings, encoding="utf-8")


def shown(copy: pathlib.Path, module: str, name: str) -> Mutant:
    """The lines that a mutant changes."""
    difference = mutmut(copy, "show", name).splitlines()
    before = [line[1:].strip() for line in difference if line.startswith("-") and not line.startswith("---")]
    after = [line[1:].strip() for line in difference if line.startswith("+") and not line.startswith("+++")]
    return Mutant(module=module, before="\n".join(before), after="\n".join(after))


def mutmut(copy: pathlib.Path, *arguments: str) -> str:
    """What a command of mutmut prints."""
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments], cwd=copy, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
