"""How deeply JSON is nested, told from its bytes: interpreters differ in how much they take, and we must not."""

from __future__ import annotations

import re

DEPTH_MAX = 127

# A string, ended or cut off, or a bracket. No step is ever taken back, so the time is linear and nothing is remembered.
_TOKEN = rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]'


def is_too_deep(raw: bytes) -> bool:
    """Whether arrays and objects are nested deeper than DEPTH_MAX. What is not JSON may be called either."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    for token in re.finditer(_TOKEN, raw):
        match raw[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth > DEPTH_MAX:
                    return True
            case 0x5D | 0x7D:  # ] }
                depth -= 1
    return False
