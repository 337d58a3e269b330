"""Identifies the conversation of a proxied request, before any call of our tools. Pure.

    by ids of the host       Claude Code sends the ids of its session and of a subagent
    otherwise by content     the texts of the first message, which are the same in every later request

A subagent has a conversation of its own. Two conversations without ids that begin with the same words
share one record; their left-out results are still distinguished by call id and text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from contextfold.fold.messages import ParsedRequest

SESSION_ID_HEADER = b"x-claude-code-session-id"
AGENT_ID_HEADER = b"x-claude-code-agent-id"
# A longer value is not accepted as an id.
ID_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    # The host's ids of its session and of a subagent; empty if the host does not send them.
    host_session: str = ""
    agent: str = ""


def conversation_of(headers: Mapping[bytes, list[bytes]], request: ParsedRequest) -> Conversation | None:
    """The conversation of a request; None if neither the host nor the content identifies it."""
    session = _id_in(headers, SESSION_ID_HEADER)
    if session:
        agent = _id_in(headers, AGENT_ID_HEADER)
        return Conversation(_hash_parts((b"host", session, agent)), session.decode("latin-1"), agent.decode("latin-1"))
    texts = list(_first_texts(request.messages))
    return Conversation(_hash_parts((b"content", *texts))) if texts else None


def _id_in(headers: Mapping[bytes, list[bytes]], name: bytes) -> bytes:
    values = headers.get(name, [])
    return values[0] if len(values) == 1 and len(values[0]) <= ID_MAX_BYTES else b""


def _hash_parts(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return f"conv_{digest.hexdigest()[:32]}"


def _first_texts(messages: object) -> Iterator[bytes]:
    """The texts of the first message. Other members change: marks for the cache move between messages."""
    first = messages[0] if isinstance(messages, list) and messages else None
    if not isinstance(first, dict):
        return
    content = first.get("content", first.get("parts"))
    parts = content if isinstance(content, list) else [{"text": content}]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text.encode("utf-8", "surrogatepass")
