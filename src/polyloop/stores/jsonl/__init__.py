"""The file store: a JSON-lines file a run."""

from __future__ import annotations

from polyloop.stores.jsonl.store import JsonlRunStore

__all__ = ["JsonlRunStore"]
