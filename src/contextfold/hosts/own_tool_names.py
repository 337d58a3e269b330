"""Our own tools, as hosts name them, and the session of ours that their results name."""

from __future__ import annotations

import json
import re

NAME_LENGTH_MAX = 256  # the pattern's time grows faster than the name

# `mcp__SERVER__TOOL`, `MCP:TOOL`, `mcp_SERVER_TOOL`
_OURS = re.compile(r"(?i:mcp)[_:](?:.*[_:./-])?context_(\w+)", re.DOTALL)
_SESSION_ID = re.compile(r"sess_[0-9a-f]{16}")

# These are accounted for by the service itself. A tool that only reads is an operation like any other.
ACCOUNTED = frozenset({"branch", "return", "fold", "rollback", "record"})
NAMING_SESSION = ACCOUNTED | {"branch_status"}

_JSON = json.JSONDecoder()


def _verb(tool_name: str) -> str:
    found = _OURS.fullmatch(tool_name) if len(tool_name) <= NAME_LENGTH_MAX else None
    return found[1] if found else ""


def accounts_for_itself(tool_name: str) -> bool:
    return _verb(tool_name) in ACCOUNTED


def session_named(tool_name: str, result: str) -> str | None:
    """The session that the result of a call of ours names. Hosts may add lines after the result."""
    if _verb(tool_name) not in NAMING_SESSION:
        return None
    try:
        members, _end = _JSON.raw_decode(result.lstrip())
    except (ValueError, RecursionError):
        return None
    session_id = members.get("session_id") if isinstance(members, dict) else None
    return session_id if isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) else None
