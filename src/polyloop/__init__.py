"""PolyLoop: an async agent loop with a frozen stop contract, a durable log and exact resume."""
