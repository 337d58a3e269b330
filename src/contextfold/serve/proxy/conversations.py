"""Which conversation a proxied request belongs to, from its first request on, before any call of our tools.

    named by the host     Claude Code sends the ids of its session, of the agent, and of the agent that started it
    else by its content   the texts of its first message, which stay the same in every later request

A subagent is a conversation of its own below its parent. Two conversations that begin with the same words without a
host's name share one record; left-out results are told apart by call id and text all the same. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from contextfold.common.dataclass import dataclass
from contextfold.fold.messages import Format

SESSION_ID_HEADER = b"x-claude-code-session-id"
AGENT_ID_HEADER = b"x-claude-code-agent-id"
PARENT_AGENT_ID_HEADER = b"x-claude-code-parent-agent-id"
# A longer value is no id.
ID_MAX_BYTES = 256
# A first message that ends behind this is not looked at further.
FIRST_MESSAGE_MAX_BYTES = 256 << 10

_LISTS: Mapping[Format, re.Pattern[bytes]] = {
    "anthropic": re.compile(rb'"messages"\s*+:\s*+\[\s*+(?=\{)'),
    "openai-chat": re.compile(rb'"messages"\s*+:\s*+\[\s*+(?=\{)'),
    "openai-responses": re.compile(rb'"input"\s*+:\s*+\[\s*+(?=\{)'),
    "gemini": re.compile(rb'"contents"\s*+:\s*+\[\s*+(?=\{)'),
}
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    # Of the conversation whose agent started this one's.
    parent_id: str | None = None
    # The host's own ids of its session and of a subagent; empty where the host does not name them.
    host_session: str = ""
    agent: str = ""


def conversation_of(headers: Mapping[bytes, list[bytes]], format: Format, body: bytes) -> Conversation | None:
    """None where neither the host nor the content identifies it."""
    session = _id_in(headers, SESSION_ID_HEADER)
    if session:
        agent, parent = _id_in(headers, AGENT_ID_HEADER), _id_in(headers, PARENT_AGENT_ID_HEADER)
        own = _hashed((b"host", session, agent))
        above = _hashed((b"host", session, parent)) if agent else None
        return Conversation(own, above, session.decode("latin-1"), agent.decode("latin-1"))
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
    """Marks for the cache move from message to message, so only texts count."""
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
