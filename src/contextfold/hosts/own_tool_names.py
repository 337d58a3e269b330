"""Recognises this product's tools by the names that hosts give them, and the session in their results."""

from __future__ import annotations

import json
import re

# Matching a longer name takes too long: the pattern's time grows faster than linearly.
NAME_LENGTH_MAX = 256

# Hosts write `mcp__SERVER__TOOL`, `MCP:TOOL` or `mcp_SERVER_TOOL`.
_OURS = re.compile(r"(?i:mcp)[_:](?:.*[_:./-])?context_(\w+)", re.DOTALL)
_SESSION_ID = re.compile(r"sess_[0-9a-f]{16}")

# The service counts the tokens of these tools itself. The other tools only read; hooks report them as operations.
ACCOUNTED = frozenset({"branch", "return", "fold", "rollback", "record"})
NAMING_SESSION = ACCOUNTED | {"branch_status"}

_JSON = json.JSONDecoder()


def _verb(tool_name: str) -> str:
    match = _OURS.fullmatch(tool_name) if len(tool_name) <= NAME_LENGTH_MAX else None
    return match[1] if match else ""


def accounts_for_itself(tool_name: str) -> bool:
    return _verb(tool_name) in ACCOUNTED


def session_named(tool_name: str, result: str) -> str | None:
    """The session id in the result of one of this product's tools. Hosts may add lines after the result."""
    if _verb(tool_name) not in NAMING_SESSION:
        return None
    try:
        members, _end = _JSON.raw_decode(result.lstrip())
    except (ValueError, RecursionError):
        return None
    session_id = members.get("session_id") if isinstance(members, dict) else None
    return session_id if isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) else None
