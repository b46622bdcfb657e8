"""The rules of the house hold in every file, and each finds what it is for."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import pytest

from tests.architecture import rules
from tests.architecture.rules import Rule
from tests.architecture.tree import PACKAGE, ROOT, code_files, python_files

PURE: Final = [
    path
    for name in ("_assembly.py", "_stopping.py", "_recovery", "serialization.py", "types")
    for path in (python_files(PACKAGE / name) if (PACKAGE / name).is_dir() else [PACKAGE / name])
]
SOURCE: Final = python_files(PACKAGE)
CORE: Final = [path for path in SOURCE if path.relative_to(PACKAGE).parts[0] not in ("stores", "adapters")]
TESTS: Final = python_files(ROOT / "tests")

CASES: Final[list[tuple[Rule, list[Path], list[str]]]] = [
    # rule, the files that it holds in, what it must find
    (
        rules.dynamic_imports,
        SOURCE,
        [
            "import importlib",
            "from importlib import import_module",
            "def late():\n    import importlib.metadata as metadata",
            "importlib.import_module('polyloop.session')",
            "module = __import__('polyloop.session')",
            "exec('import polyloop.session')",
            "eval(text)",
            "import runpy",
        ],
    ),
    (
        rules.impurities,
        PURE,
        [
            "async def decide(): ...",
            "text = open('/etc/hostname').read()",
            "print('decided')",
            "def count():\n    global calls\n    calls += 1",
            "order = id(step)",
        ],
    ),
    (rules.long_functions, SOURCE, ["def long():\n" + "    pass\n" * 60]),
    (
        rules.silent_handlers,
        SOURCE,
        [
            "try:\n    act()\nexcept:\n    raise",
            "try:\n    act()\nexcept OSError:\n    pass",
            "try:\n    act()\nexcept (OSError, ValueError):\n    ...",
            "for _ in x:\n    try:\n        act()\n    except Exception:\n        continue",
            "try:\n    act()\nexcept BaseException:\n    done = True",
            "try:\n    act()\nexcept asyncio.CancelledError:\n    return None",
            "try:\n    act()\nexcept (ValueError, CancelledError) as error:\n    count += 1",
            "with contextlib.suppress(Exception):\n    act()",
            "with suppress(OSError, asyncio.CancelledError):\n    act()",
        ],
    ),
    (
        rules.bad_exemptions,
        code_files(),
        [
            "x = 1  # noqa",
            "x = 1  # noqa: E501",
            "x = 1  # noqa - long",
            "x = 1  # type: ignore",
            "x = 1  # type: ignore[assignment]",
            "x = 1  # type: ignore # because",
            "x = 1  # type: ignore[misc] # noqa: E501",
            "# ruff: noqa",
            "# mypy: ignore-errors",
            "x = 1  # pragma: no cover",
        ],
    ),
    (
        rules.unexplained_skips,
        TESTS,
        [
            "@pytest.mark.skip\ndef test(): ...",
            "@pytest.mark.skip()\ndef test(): ...",
            "@pytest.mark.skipif(sys.platform == 'win32')\ndef test(): ...",
            "@pytest.mark.xfail\nasync def test(): ...",
            "@pytest.mark.xfail(strict=True)\nclass Test: ...",
            "pytest.skip()",
            "strace = pytest.importorskip('strace')",
        ],
    ),
    (rules.lost_cancellations, SOURCE, ["await asyncio.wait_for(task, 1)", "await wait_for(task, timeout=None)"]),
    (rules.inherited_ports, code_files(), ["class Mine(RunStore): ...", "class Mine(polyloop.ModelPort): ..."]),
    (
        rules.loose_dataclasses,
        CORE,
        [
            "@dataclass\nclass A: ...",
            "@dataclasses.dataclass(frozen=True, slots=True)\nclass A: ...",
            "@dataclasses.dataclass(frozen=True, slots=False, kw_only=True)\nclass A: ...",
        ],
    ),
]


@pytest.mark.parametrize(("rule", "files", "plants"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_holds_in_every_file(rule: Rule, files: list[Path], plants: list[str]) -> None:
    assert files
    found = {str(path.relative_to(ROOT)): broken for path in files if (broken := rule(path.read_text("utf-8")))}
    assert found == {}, f"{rule.__doc__}: {found}"


@pytest.mark.parametrize(
    ("rule", "plant"),
    [(rule, plant) for rule, _, plants in CASES for plant in plants],
    ids=[f"{rule.__name__}-{number}" for rule, _, plants in CASES for number in range(len(plants))],
)
def test_a_rule_finds_what_it_is_for(rule: Rule, plant: str) -> None:
    assert len(rule(plant)) >= 1, plant


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # noqa: E501, PLR2004 - a reason",
        "x = 1  # type: ignore[misc] # a reason",
        "x = 1  # type: ignore[misc,arg-type]  # a reason",
        "x = 1  # type: ignore[misc] # noqa: E501 - a reason",
        "x = 1  # a comment that mentions noqa",
    ],
)
def test_an_exemption_with_code_and_reason_is_accepted(source: str) -> None:
    assert rules.bad_exemptions(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    act()\nexcept OSError:\n    return None",
        "try:\n    act()\nexcept BaseException:\n    close()\n    raise",
        "try:\n    act()\nexcept BaseException as error:\n    outcome = error",
        "with contextlib.suppress(FileNotFoundError):\n    act()",
    ],
)
def test_a_handler_that_hides_nothing_is_accepted(source: str) -> None:
    assert rules.silent_handlers(source) == []


def limit_of(path: Path) -> int | None:
    """How many lines a file may have; None where the house has no limit for it."""
    if path in PURE:
        return 300
    return 400 if path.relative_to(PACKAGE).parts[0] in ("stores", "adapters") else None


def too_long(files: dict[Path, int]) -> list[str]:
    """The files that exceed their limit."""
    limits = {path: limit_of(path) for path in files}
    return [f"{path}: {lines} lines" for path, lines in files.items() if lines > (limits[path] or lines)]


def test_pure_modules_stay_within_300_lines_stores_and_adapters_within_400() -> None:
    assert too_long({path: len(path.read_text("utf-8").splitlines()) for path in SOURCE}) == []
    planted = {PACKAGE / "_stopping.py": 301, PACKAGE / "stores" / "ephemeral.py": 401, PACKAGE / "tools.py": 999}
    assert len(too_long(planted)) == 2


def test_half_of_the_functions_have_up_to_10_lines_and_nine_in_ten_up_to_30() -> None:
    sizes = sorted(size for path in SOURCE for _, _, size in rules.functions(path.read_text("utf-8")))
    assert statistics.median(sizes) <= 10
    assert sizes[int(len(sizes) * 0.9)] <= 30


def test_the_length_of_a_function_is_counted_without_its_decorators() -> None:
    source = "@decorator\ndef f() -> None:\n    '''Docstring.'''\n    act()\n"
    assert list(rules.functions(source)) == [("f", 2, 3)]
