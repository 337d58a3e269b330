"""The default budgets and the limits of a question, for the command line and the tools."""

from __future__ import annotations

ASK_BUDGET = 4_000  # tokens
GET_BUDGET = 8_000
# At most this many neighbouring sections are added on each side.
AROUND_MAX = 100
# One question goes to at most this many caches.
CACHES_MAX = 64
