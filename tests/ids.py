"""Names of test cases that are the same in every process: the workers of a test run compare them."""

from __future__ import annotations

import re


def stable_id(value: object) -> str:
    """How a value shows itself, without its address in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(value))[:60]
