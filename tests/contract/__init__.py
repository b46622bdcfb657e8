"""The authority on the behaviour of the five ports: one suite each, and the zoo of wrong adapters beside it."""
