"""`python -m polyloop.cli`."""

from __future__ import annotations

import sys

from polyloop.cli import main

sys.exit(main())
