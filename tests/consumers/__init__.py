"""Tests that behave as the downstream projects do.

Each project is a small stand-in of its own: a gateway, a session, documents. What joins it to the library is the code
that its page in `migrations/` prints, taken from there and run as printed.
"""
