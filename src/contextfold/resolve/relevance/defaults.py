"""What a question or a reading gets that nobody has said otherwise for. Data, for the command line and the tools."""

from __future__ import annotations

ASK_BUDGET = 4_000  # tokens
GET_BUDGET = 8_000
AROUND_MAX = 100  # neighbouring sections on each side
CACHES_MAX = 64  # that one question may go to
