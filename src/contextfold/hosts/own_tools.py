"""Our own tools, as hosts name them, and what their results tell: which session of ours the host works in."""

from __future__ import annotations

import json
import re

NAME_LENGTH_MAX = 256  # the pattern's time grows faster than the name

# `mcp__SERVER__TOOL`, `MCP:TOOL`, `mcp_SERVER_TOOL`
_OURS = re.compile(r"(?i:mcp)[_:](?:.*[_:./-])?context_(\w+)", re.DOTALL)
_SESSION_ID = re.compile(r"sess_[0-9a-f]{16}")

# These account for themselves. What only looks is an operation like any other: its answer fills the context.
ACCOUNTED = frozenset({"branch", "return", "rollback", "record"})
TELLING = ACCOUNTED | {"branch_status"}
REMINDING = TELLING | {"list_branches", "expand"}

_JSON = json.JSONDecoder()


def _verb(tool_name: str) -> str:
    found = _OURS.fullmatch(tool_name) if len(tool_name) <= NAME_LENGTH_MAX else None
    return found[1] if found else ""


def accounts_for_itself(tool_name: str) -> bool:
    return _verb(tool_name) in ACCOUNTED


def reminds_itself(tool_name: str) -> bool:
    """Whether a result of this tool has a line about the open branch beside it."""
    return _verb(tool_name) in REMINDING


def session_named(tool_name: str, result: str) -> str | None:
    """The session that the result of such a call names. Other lines may follow the answer itself."""
    if _verb(tool_name) not in TELLING:
        return None
    try:
        told, _end = _JSON.raw_decode(result.lstrip())
    except (ValueError, RecursionError):
        return None
    session_id = told.get("session_id") if isinstance(told, dict) else None
    return session_id if isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id) else None
