"""The stores that come with the library. Opt-in: `import polyloop` imports none of them.

Each has a module of its own. What stands here is what they share: how they list their runs, and how a log moves from
one to another. None of it belongs to the port: an adapter may do without.
"""

from polyloop.stores._listing import RunState, RunSummary, copy_run

__all__ = ["RunState", "RunSummary", "copy_run"]
