"""How deeply JSON is nested, told from its bytes: interpreters differ in how much they take, and we must not."""

from __future__ import annotations

import re
from itertools import accumulate

DEPTH_MAX = 127

# Unrolled: a choice for each character would make the matcher remember every one of them.
_STRING = rb'"[^"\\]*(?:\\[\s\S][^"\\]*)*"'
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def is_too_deep(raw: bytes) -> bool:
    """Whether arrays and objects are nested deeper than DEPTH_MAX. What is not JSON may be called either."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX:
        return False
    brackets = re.sub(_STRING, b"", raw).translate(None, _NO_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0) > DEPTH_MAX
