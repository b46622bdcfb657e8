"""`PostgresRunStore`: the runs of many processes and machines in one Postgres database. Needs the extra `postgres`.

What all runs of a process have to append at a time goes to the server as one statement, which takes or refuses each
run's part by itself: one round trip and one commit for however many barriers wait. Results and steps wait for their
run's next barrier, or go by themselves after 50 ms.

The statement advances a run's head row only from the position where the records begin, and puts in only what belongs
to a head row that was advanced. So of two drivers of one run the one behind gets nothing in, wherever they run.
"""

from __future__ import annotations

from polyloop.stores.postgres.store import PostgresRunStore

__all__ = ["PostgresRunStore"]
