"""A request on its way through the proxy to a model: its body, its conversation, the provider's cache of its prompt.

The bytes of all bodies in memory are limited. Knows ASGI and header names.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import NamedTuple

import httpx2

from contextfold.fold.events import PrefixMiss
from contextfold.fold.messages import BodyProjection, CallOutcome, Format, ParsedRequest, Receipt
from contextfold.fold.messages.prefix_miss import Comparison
from contextfold.fold.messages.sent_prefix import SentPrefix
from contextfold.fold.project import Conversation
from contextfold.fold.service.conversations import KnownConversation
from contextfold.serve.http.exchange import OWNER, RUN, ClientGone, Headers, Receive, Scope
from contextfold.serve.proxy.upstream import select_request_headers, set_length

# The limits on the bytes of all requests that are being read or reported, in total and for one owner.
FOLDED_ALL_MAX_BYTES = 256 << 20
FOLDED_OWNER_MAX_BYTES = 128 << 20
# A part in memory is sent in pieces of this size at most. The upstream's timeout applies to each.
PART_BYTES = 256 << 10
# The headers with the ids of Claude Code's session and of a subagent.
SESSION_ID_HEADER = b"x-claude-code-session-id"
AGENT_ID_HEADER = b"x-claude-code-agent-id"
# The headers with the ids of OpenCode's session, which may be a subagent's, and of the one above it. Other programs use
# these names for other things, so an id must look like OpenCode's.
OPENCODE_ID_HEADER, OPENCODE_PARENT_HEADER = b"x-session-id", b"x-parent-session-id"
_OPENCODE_ID = re.compile(rb"ses_[0-9A-Za-z]+")
# A longer value is not accepted as an id.
ID_MAX_BYTES = 256
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The text in which Gemini CLI describes where it runs, and the absolute paths in it.
_SURROUNDINGS = "<session_context>"
_PATH = re.compile(r"(?<!\S)/\S+")


class PromptCache:
    """What is known of the provider's cache of a request's prompt: before it is sent, and from the response's usage."""

    def __init__(self) -> None:
        # What this request leaves in the cache, and how it differs from the request before, if there is one.
        self.prefix: SentPrefix | None = None
        # The projection that the prefix was read from, until the request is sent.
        self.prefix_of: BodyProjection | None = None
        self.comparison: Comparison | None = None
        # The seconds since the conversation's last request, if its prompt is taken to have expired; or 0.
        self.lapsed_s = 0.0
        # The ids of results that this request is the first to leave out, if it does so after a pause.
        self.newly_left_out: frozenset[str] = frozenset()
        # The estimated tokens before the part of the request that the cache was taken not to hold, if something was
        # left out there.
        self.tokens_before_cold: int | None = None
        # The estimated tokens before the first result of a batch that was left out although the cache holds it.
        self.tokens_before_batch: int | None = None
        # Whether the request leaves something in the cache that is not known. And when the conversation's last request
        # did so that this daemon has not sent, or 0.
        self.is_unread = False
        self.unread_before_at = 0.0
        # What the usage shows: whether there is a cache at all; whether it held more than was taken to be lost; the
        # pause after which it still held the prompt, or 0; how long it lives, or 0; and what it has lost, at most one.
        self.is_in_use = False
        self.was_warm = False
        self.warm_after_s = 0.0
        self.life_s = 0.0
        self.misses: tuple[PrefixMiss, ...] = ()


class ProxiedRequest:
    """A request to a model, from its arrival to the end of its response.

    `headers` are sent to the upstream.
    """

    def __init__(self, scope: Scope, target: bytes, receive: Receive, budget: ByteBudget) -> None:
        # The format of the messages; None if the request is not folded.
        self.format: Format | None = None
        # The model, if the path names it.
        self.model = ""
        # Whether the provider only counts the tokens. Then no new results are left out, and nothing is recorded.
        self.is_count = False
        self.method: str = scope["method"]
        self.owner: str = scope[OWNER]
        # The name of its run, or empty.
        self.run: str = scope.get(RUN, "")
        # The conversation that its own is a fork of, if this is the first request of a fork.
        self.parent: str | None = None
        self.target = target
        self.given_headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.given_headers.setdefault(name, []).append(value)
        self.headers: Headers = select_request_headers(scope["headers"])
        self.body = RequestBody(self.owner, receive, budget)
        self.receipt = Receipt(0, 0)
        self.cache = PromptCache()
        self.conversation: RequestConversation | None = None
        # Whether the record of its conversation could not be read or written.
        self.lacks_record = False
        # The outcomes to record, if the request counts as one of its conversation.
        self.outcomes: Mapping[str, CallOutcome] | None = None
        # Its conversation's session, when it is found; and the same when the request is reported, or None.
        self.session: KnownConversation | None = None
        self.reported: asyncio.Future[KnownConversation | None] = asyncio.get_running_loop().create_future()
        # Whether it was counted as one that the provider did not answer.
        self.has_failed = False
        # The time for parsing and folding.
        self.folding_s = 0.0

    def send_body(self, body: bytes) -> None:
        """Send this body to the upstream."""
        self.body.send_parts([body])
        self.headers = set_length(self.headers, len(body))


class RequestBody(httpx2.AsyncByteStream):
    """The body of a request, as the stream that is sent: the parts in memory, then what still arrives from the client.

    Its bytes count against a budget that all requests share. After it was sent, only those that were taken for the
    report of its session still count.
    """

    def __init__(self, owner: str, receive: Receive, budget: ByteBudget) -> None:
        self._owner, self._receive, self._budget = owner, receive, budget
        # Set when the body has arrived completely, or the rest is not needed.
        self.is_read = asyncio.Event()
        # The parsed and folded body, while its bytes count.
        self.projection: BodyProjection | None = None
        self.size_bytes = 0
        self._stored: deque[bytes] = deque()
        # Whether no part of the body is in memory any more.
        self._is_sent = False
        self._report_bytes: int | None = None

    async def next_part(self) -> bytes:
        """The next part of the body from the client."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self.is_read.set()
        part: bytes = message.get("body", b"")
        return part

    def send_parts(self, parts: Iterable[bytes]) -> None:
        """Send these parts to the upstream, before those that still arrive."""
        self._stored = deque(parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._stored:
            part = self._stored.popleft()
            for start in range(0, len(part), PART_BYTES):
                yield part[start : start + PART_BYTES]
            del part
        self._is_sent = True
        self._release_unneeded()
        while not self.is_read.is_set():
            yield await self.next_part()

    def reserve(self, size: int) -> bool:
        """Count bytes against the budget; False if they exceed it."""
        if not self._budget.reserve(self._owner, size):
            return False
        self.size_bytes += size
        return True

    def keep_for_report(self, size: int) -> None:
        """Count the bytes that were taken from the request for its session's report."""
        self._report_bytes = size
        self._release_unneeded()

    def _release_unneeded(self) -> None:
        if self._is_sent and self._report_bytes is not None:
            self.release(but=self._report_bytes)

    def release(self, but: int = 0) -> None:
        freed = max(0, self.size_bytes - but)
        self.size_bytes -= freed
        self._budget.release(self._owner, freed)
        self.projection = None


class ByteBudget:
    """The number of bytes of requests in memory, by owner."""

    def __init__(self) -> None:
        self.by_owner: Counter[str] = Counter()

    def reserve(self, owner: str, size: int) -> bool:
        size_of_owner, size_of_all = self.by_owner[owner] + size, self.by_owner.total() + size
        if size_of_owner > FOLDED_OWNER_MAX_BYTES or size_of_all > FOLDED_ALL_MAX_BYTES:
            return False
        self.by_owner[owner] = size_of_owner
        return True

    def release(self, owner: str, size: int) -> None:
        self.by_owner[owner] -= size
        if not self.by_owner[owner]:
            del self.by_owner[owner]


class RequestConversation(NamedTuple):
    """The conversation of a request. A subagent has a conversation of its own.

    Two conversations without ids that begin with the same words share one record; their left-out results are still
    distinguished by call id and text.
    """

    # The id of the record.
    id: str
    conversation: Conversation


def conversation_of(headers: Mapping[bytes, list[bytes]], request: ParsedRequest) -> RequestConversation | None:
    """The conversation of a request; None if neither the host's ids nor the texts of the first message identify it.

    Those texts are the same in every later request. Some clients give all their conversations one key for the cache;
    only a unique id names one.
    """
    named = name_by_headers(headers)
    if named is not None:
        return named
    cache_key = request.members.get("prompt_cache_key")
    if isinstance(cache_key, str) and _UUID.fullmatch(cache_key):
        return RequestConversation(_hash_parts((b"key", cache_key.encode())), Conversation(cache_key))
    texts = list(_first_texts(request.messages))
    if not texts:
        return None
    content_id = _hash_parts((b"content", *texts))
    return RequestConversation(content_id, Conversation(content_id, is_named=False))


def name_by_headers(headers: Mapping[bytes, list[bytes]]) -> RequestConversation | None:
    session, agent = _id_in(headers, SESSION_ID_HEADER), _id_in(headers, AGENT_ID_HEADER)
    if not session and _OPENCODE_ID.fullmatch(own := _id_in(headers, OPENCODE_ID_HEADER)):
        parent = _id_in(headers, OPENCODE_PARENT_HEADER)
        session, agent = (parent, own) if _OPENCODE_ID.fullmatch(parent) else (own, b"")
    if not session:
        return None
    named = Conversation(session.decode("latin-1"), agent.decode("latin-1"))
    return RequestConversation(_hash_parts((b"host", session, agent)), named)


def _id_in(headers: Mapping[bytes, list[bytes]], name: bytes) -> bytes:
    values = headers.get(name, [])
    return values[0] if len(values) == 1 and len(values[0]) <= ID_MAX_BYTES else b""


def _hash_parts(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return f"conv_{digest.hexdigest()[:32]}"


def _first_texts(messages: object) -> Iterator[bytes]:
    """The texts of the first message. Other members change: marks for the cache move between messages.

    Gemini CLI puts the date and the project's files there, which are others when a conversation is resumed. Only the
    paths in such a text stay the same.
    """
    texts = list(_texts_of_first(messages))
    described = [text for text in texts if text.startswith(_SURROUNDINGS) and len(texts) > 1]
    for text in texts:
        kept = "\n".join(_PATH.findall(text)) if text in described else text
        yield kept.encode("utf-8", "surrogatepass")


def _texts_of_first(messages: object) -> Iterator[str]:
    first = messages[0] if isinstance(messages, list) and messages else None
    if not isinstance(first, dict):
        return
    content = first.get("content", first.get("parts"))
    parts = content if isinstance(content, list) else [{"text": content}]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text
