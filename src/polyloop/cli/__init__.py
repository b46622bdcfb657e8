"""The command line: `polyloop runs`, `show`, `watch`, `export`, `verify`, `report`. It reads, and changes nothing.

`python -m polyloop.cli` is the same. What it does is for people; programs use the stores. Its layer is the topmost: no
other part of the package imports it. Why: `research-wiki/design/0023-command-line.md`.
"""

from __future__ import annotations

from polyloop.cli._main import main

__all__ = ["main"]
