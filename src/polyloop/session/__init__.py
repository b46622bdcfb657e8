"""Where a run begins: a definition, a request, `run` and `resume`.

The only owner of a run's lifecycle, of what is written to the store, and of the cancellation path.
"""

from __future__ import annotations

from polyloop.session.definition import AgentDefinition
from polyloop.session.request import RunRequest

__all__ = ["AgentDefinition", "RunRequest"]
