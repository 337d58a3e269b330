"""Limits the nesting of JSON before it is parsed. The limit of the parser depends on the version of Python."""

from __future__ import annotations

DEPTH_MAX = 127

# A complete or truncated string, or a bracket. The quantifiers are possessive, so there is no backtracking.
_TOKEN = rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]'


def is_too_deep(raw: bytes) -> bool:
    """Whether arrays and objects are nested deeper than DEPTH_MAX. For invalid JSON either result is possible."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX:
        return False
    import re

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
