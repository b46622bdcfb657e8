"""Which runs are being driven in this process, through which store object."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from polyloop.types import RunConflict

_lock = threading.Lock()
_driven: set[tuple[int, str]] = set()


@contextlib.contextmanager
def driven(store: object, key: str) -> Iterator[None]:
    """Hold a run while it is driven. Event loops in several threads may share a store, hence the lock.

    Raises:
        RunConflict: if it is held already.
    """
    entry = (id(store), key)
    with _lock:
        if entry in _driven:
            raise RunConflict(key, "it is being driven through this store object already")
        _driven.add(entry)
    try:
        yield
    finally:
        with _lock:
            _driven.discard(entry)
