"""Identifies the conversation of a proxied request, before any call of our tools. Pure.

    by ids of the host       Claude Code sends the ids of its session and of a subagent
    otherwise by content     the texts of the first message, which are the same in every later request

A subagent has a conversation of its own. Two conversations without ids that begin with the same words
share one record; their left-out results are still distinguished by call id and text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contextfold.fold.messages import FORMATS, Format
from contextfold.fold.messages.formats import api_of

SESSION_ID_HEADER = b"x-claude-code-session-id"
AGENT_ID_HEADER = b"x-claude-code-agent-id"
# A longer value is not accepted as an id.
ID_MAX_BYTES = 256
# Only this many bytes of the body are searched for the first message.
FIRST_MESSAGE_MAX_BYTES = 256 << 10

# The beginning of the list of messages.
_LISTS: Mapping[Format, re.Pattern[bytes]] = {
    format: re.compile(rb'"%s"\s*+:\s*+\[\s*+(?=\{)' % api_of(format).list_name.encode()) for format in FORMATS
}
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    # The host's ids of its session and of a subagent; empty if the host does not send them.
    host_session: str = ""
    agent: str = ""


def conversation_of(headers: Mapping[bytes, list[bytes]], format: Format, body: bytes) -> Conversation | None:
    """The conversation of a request; None if neither the host nor the content identifies it."""
    session = _id_in(headers, SESSION_ID_HEADER)
    if session:
        agent = _id_in(headers, AGENT_ID_HEADER)
        return Conversation(_hashed((b"host", session, agent)), session.decode("latin-1"), agent.decode("latin-1"))
    texts = list(_first_texts(format, body))
    return Conversation(_hashed((b"content", *texts))) if texts else None


def _id_in(headers: Mapping[bytes, list[bytes]], name: bytes) -> bytes:
    values = headers.get(name, [])
    return values[0] if len(values) == 1 and len(values[0]) <= ID_MAX_BYTES else b""


def _hashed(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return f"conv_{digest.hexdigest()[:32]}"


def _first_texts(format: Format, body: bytes) -> Iterable[bytes]:
    """The texts of the first message. Other members change: marks for the cache move between messages."""
    match = _LISTS[format].search(body)
    if match is None:
        return
    window = body[match.end() : match.end() + FIRST_MESSAGE_MAX_BYTES].decode("utf-8", "replace")
    try:
        message, _ = _decoder.raw_decode(window)
    except (ValueError, RecursionError):
        yield window.encode()
        return
    content: Any = message.get("content", message.get("parts"))
    if isinstance(content, str):
        yield content.encode("utf-8", "surrogatepass")
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text.encode("utf-8", "surrogatepass")
