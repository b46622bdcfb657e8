"""The code of a migration page, run as printed."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PAGES: Final = Path(__file__).parents[2] / "migrations"


class Page:
    """The Python blocks of a page, and the names that those which were run have defined.

    Args:
        name: The page's file.
        project: The project that the page speaks of: what its blocks import, by module and name.
    """

    def __init__(self, name: str, project: Mapping[str, Mapping[str, object]]) -> None:
        text = (PAGES / name).read_text(encoding="utf-8")
        self._name = name
        self._blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        self._project = project
        self.names: dict[str, Any] = {"__name__": name}
        self.unused = set(range(len(self._blocks)))
        """The blocks that were not run yet."""

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def run(self, marker: str, **given: object) -> None:
        """Run the one block that holds the marker, with these names given."""
        code = self._compiled(marker, 0)
        self.names.update(given)
        with _importable(self._project):
            exec(code, self.names)  # noqa: S102 - the page's code is what is tested

    async def run_async(self, marker: str, **given: object) -> None:
        """The same for a block that awaits at its top level, as it would within a function."""
        code = self._compiled(marker, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        self.names.update(given)
        with _importable(self._project):
            running = eval(code, self.names)  # noqa: S307 - the page's code is what is tested
        assert inspect.isawaitable(running), "the block awaits nothing"
        await running

    def _compiled(self, marker: str, flags: int) -> Any:
        (number,) = [number for number, block in enumerate(self._blocks) if marker in block]
        self.unused.discard(number)
        source = self._blocks[number]
        return compile(source, f"{self._name}, block {number}", "exec", flags=flags, dont_inherit=True)


@contextmanager
def _importable(project: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """The project's modules can be imported, with the packages around them."""
    modules: dict[str, ModuleType] = {}
    for name, members in project.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:length]), ModuleType(".".join(parts[:length])))
        vars(modules[name]).update(members)
    before = {name: sys.modules.get(name) for name in modules}
    assert not any(before.values()), "a stand-in would hide a real module"
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
