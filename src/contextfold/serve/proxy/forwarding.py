"""Identifies the conversation of a request to a model, and leaves folded work out of the request.

A body is parsed when all of it has arrived. The bytes of all bodies in memory are limited. A body that does not fit, or
cannot be parsed, is forwarded unchanged part by part, and the receipt has the reason. Knows ASGI and header names;
`fold.messages` decides what is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import httpx2

from contextfold.errors import ContextError, place_of
from contextfold.fold.events import MissCause, PrefixMiss
from contextfold.fold.messages import (
    BodyProjection,
    CallOutcome,
    ColdResult,
    ColdSettings,
    Format,
    ParsedRequest,
    Receipt,
    Remembered,
    by_call,
    merged_outcomes,
    parse_request,
    project_request,
)
from contextfold.fold.messages.batches import choose_batch, pays_if_undone
from contextfold.fold.messages.cache_life import SHORTEST_S
from contextfold.fold.messages.cold_results import AFTER_A_PAUSE, AUTO, BATCHES, stub_of
from contextfold.fold.messages.prefix_miss import Comparison, compare_with
from contextfold.fold.messages.sent_prefix import (
    SentPrefix,
    count_common,
    count_warm_messages,
    find_other_models,
    read_prefix,
)
from contextfold.fold.model_catalog import LedgerPrices
from contextfold.fold.project import Conversation
from contextfold.fold.sent_request import ScrubbedText, Usage
from contextfold.fold.service.conversations import KnownConversation
from contextfold.fold.service.stored_results import (
    NEW_CONVERSATION,
    ConversationRecord,
    ConversationRecords,
    ResultOrigin,
)
from contextfold.fold.store import ArchivedResult, LeftOutDecision
from contextfold.serve.http.exchange import OWNER, RUN, ClientGone, Headers, Receive, Scope
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.sent_lately import SentConversations, SentLately
from contextfold.serve.proxy.upstream import limit_encodings, select_request_headers, set_length
from contextfold.settings import ProxySettings

# A larger request is not folded.
FOLDED_MAX_BYTES = 32 << 20
# The limits on the bytes of all requests that are being read or reported, in total and for one owner.
FOLDED_ALL_MAX_BYTES = 256 << 20
FOLDED_OWNER_MAX_BYTES = 128 << 20
# A longer request is parsed in a thread, so that other requests are answered meanwhile.
INLINE_BYTES = 256 << 10
# A part in memory is sent in pieces of this size at most. The upstream's timeout applies to each.
PART_BYTES = 256 << 10
THREADS = 2
# At most this many records of conversations are being written at the same time.
RECORDINGS_MAX = 1000
# The timeout for reading or writing the record of a conversation; the model's response waits for it.
STORE_S = 2.0
RESULTS_HEADER = b"x-context-fold-results"
# The headers with the ids of Claude Code's session and of a subagent.
SESSION_ID_HEADER = b"x-claude-code-session-id"
AGENT_ID_HEADER = b"x-claude-code-agent-id"
# A longer value is not accepted as an id.
ID_MAX_BYTES = 256
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The text in which Gemini CLI describes where it runs, and the absolute paths in it.
_SURROUNDINGS = "<session_context>"
_PATH = re.compile(r"(?<!\S)/\S+")

# The first request of a conversation is compared with so many others of its owner, the latest: it may be a fork.
FORKS_SEARCHED_MAX = 100
# It has at least so many messages.
FORKED_MESSAGES = 3
# Stored times are rounded up to seconds.
CLOCK_S = 1.0
COLD_SETTINGS = {"cold": ColdSettings(), "auto": AUTO, "batches": BATCHES}

# The reasons why a request was not parsed, in addition to those of `fold.messages`.
TOO_LARGE, BUSY, ENCODED, FAILED = "too_large", "busy", "encoded", "failed"
# The store was away, so results that could be left out, or were left out before, are sent whole.
STORE_AWAY = "store_unavailable"
REASONS = (TOO_LARGE, BUSY, ENCODED, FAILED, STORE_AWAY)

Answer = TypeVar("Answer")


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
    named = _named_by_headers(headers)
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


def _named_by_headers(headers: Mapping[bytes, list[bytes]]) -> RequestConversation | None:
    session = _id_in(headers, SESSION_ID_HEADER)
    if not session:
        return None
    agent = _id_in(headers, AGENT_ID_HEADER)
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
        self._session_bytes: int | None = None

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
        self._session_bytes = size
        self._release_unneeded()

    def _release_unneeded(self) -> None:
        if self._is_sent and self._session_bytes is not None:
            self.release(but=self._session_bytes)

    def release(self, but: int = 0) -> None:
        freed = max(0, self.size_bytes - but)
        self.size_bytes -= freed
        self._budget.release(self._owner, freed)
        self.projection = None


class ProxiedRequest:
    """A request and what is known about it, from its arrival to the end of its response.

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
        self.body = RequestBody(self.owner, receive, budget)
        self.target = target
        self.given_headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.given_headers.setdefault(name, []).append(value)
        self.headers: Headers = select_request_headers(scope["headers"])
        self.receipt = Receipt(0, 0)
        self.conversation: RequestConversation | None = None
        # The name of its run, or empty.
        self.run: str = scope.get(RUN, "")
        # The conversation that its own is a fork of, if this is the first request of a fork.
        self.forked: str | None = None
        # Its conversation's session, when it is found; and the same when the request is reported, or None.
        self.session: KnownConversation | None = None
        self.reported: asyncio.Future[KnownConversation | None] = asyncio.get_running_loop().create_future()
        # Whether it was counted as one that the provider did not answer.
        self.has_failed = False
        # Whether the record of its conversation could not be read or written.
        self.lacks_record = False
        # The outcomes to record, if the request counts as one of its conversation.
        self.outcomes: Mapping[str, CallOutcome] | None = None
        # The ids of results that this request is the first to leave out, if it does so after a pause.
        self.newly_left_out: frozenset[str] = frozenset()
        # The estimated tokens before the first result of a batch that was left out although the cache holds it.
        self.batch_after_tokens: int | None = None
        # The seconds since the conversation's last request, if its prompt's cache is taken to have expired; or 0. The
        # same, if the provider's usage shows that it had not.
        self.lapsed_s = 0.0
        self.warm_after_s = 0.0
        # The life of the prompt's cache that the response has shown, or 0.
        self.cache_life_s = 0.0
        # Whether it leaves something in the provider's cache that is not known; and when the conversation's last
        # request did so that this daemon has not sent, or 0.
        self.is_unread = False
        self.unread_before_at = 0.0
        # What this request leaves in the provider's cache, and how it differs from the request before, if there is one.
        self.prefix: SentPrefix | None = None
        # The projection that it was read from, until the request is sent.
        self.prefix_of: BodyProjection | None = None
        self.comparison: Comparison | None = None
        # Whether the provider's usage shows a cache, and what that has lost; at most one.
        self.was_cached = False
        self.misses: tuple[PrefixMiss, ...] = ()
        # The estimated tokens before the part of the request that the cache was taken not to hold, if something was
        # left out there; and whether the provider's usage shows that it held more.
        self.lost_after_tokens: int | None = None
        self.was_warm = False
        # The time for parsing and folding.
        self.folding_s = 0.0

    def send_body(self, body: bytes) -> None:
        """Send this body to the upstream."""
        self.body.send_parts([body])
        self.headers = set_length(self.headers, len(body))


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


class RequestFolding:
    """Leaves folded work out of requests, and old tool results after the provider's prompt cache has expired.

    `store` has the records of conversations. Results are redacted by `scrub` before they are stored; `origin` finds the
    project and session of a request; `prices` are those of a model.
    """

    def __init__(
        self,
        metrics: Metrics,
        settings: ProxySettings,
        store: ConversationRecords,
        scrub: Callable[..., Awaitable[Sequence[ScrubbedText]]],
        *,
        origin: Callable[[ProxiedRequest, BodyProjection], Awaitable[ResultOrigin]],
        clock: Callable[[], float],
        prices: LedgerPrices,
    ) -> None:
        self._metrics, self._store, self._scrub, self._origin, self._clock = metrics, store, scrub, origin, clock
        self._prices = prices
        self._fold_results, self._prompt_cache_s = settings.fold_results, float(settings.prompt_cache_s) or None
        self._sent = SentConversations()
        self._recordings: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(THREADS, "contextfold-project")
        self.budget = ByteBudget()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*self._recordings, return_exceptions=True)

    async def fold(self, request: ProxiedRequest, format: Format) -> None:
        """Leave folded work out of the request; forward it unchanged if it cannot be parsed."""
        reason = await self._read_and_fold(request, format)
        request.headers = limit_encodings(request.headers)
        if reason:
            request.body.keep_for_report(0)
            request.receipt = Receipt(0, 0, reason=reason)
            self._note_unread(request)
        receipt = request.receipt
        self._metrics.count_proxied(
            format,
            tokens_dropped=max(0, receipt.tokens_before - receipt.tokens_after),
            is_folded=receipt.first_changed is not None,
            reason=receipt.problem,
        )

    async def _read_and_fold(self, request: ProxiedRequest, format: Format) -> str:
        """Parse and fold the request; return the reason if that was not possible, else an empty text."""
        encodings = request.given_headers.get(b"content-encoding", ())
        if any(value.strip().lower() != b"identity" for value in encodings):
            return ENCODED
        claimed = request.given_headers.get(b"content-length", [b""])[0]
        if claimed.isdigit() and int(claimed) > FOLDED_MAX_BYTES:
            return TOO_LARGE
        parts: list[bytes] = []
        size = 0
        while not request.body.is_read.is_set():
            part = await request.body.next_part()
            parts.append(part)
            size += len(part)
            if size > FOLDED_MAX_BYTES or not request.body.reserve(len(part)):
                request.body.send_parts(parts)
                return TOO_LARGE if size > FOLDED_MAX_BYTES else BUSY
        body = b"".join(parts)
        del parts
        request.send_body(body)
        try:
            await self._project(request, format, body)
        except Exception as problem:
            # After a bug, the request is forwarded unfolded.
            log_failure("proxy.fold_failed", problem)
            return FAILED
        finally:
            self._metrics.projection_took(format, request.folding_s)
        return ""

    async def _project(self, request: ProxiedRequest, format: Format, body: bytes) -> None:
        """Fold a request that has arrived completely."""
        parsed = await self._work(request, partial(parse_request, body, format))
        request.conversation = conversation_of(request.given_headers, parsed)
        record = await self._load_record(request)

        async def project_with(results: tuple[LeftOutDecision, ...]) -> BodyProjection:
            remembered = Remembered(record.outcomes, by_call(results))
            work = partial(project_request, parsed, model=request.model, remembered=remembered)
            return await self._work(request, work)

        projection = await project_with(record.results)
        is_new = record.last_request_at is None and not request.lacks_record
        if request.conversation and not request.is_count and is_new:
            record = await self._inherit(request, request.conversation.id, record, projection)
            projection = await project_with(record.results) if request.forked else projection
        if request.conversation and not request.is_count:
            request.lapsed_s = self._lapsed_s(request, record, projection)
            # What a request of an unknown past could leave out, the cache may hold.
            is_unknown = request.lacks_record or bool(parsed.reason)
            settings = None if is_unknown else COLD_SETTINGS.get(self._wanted(request))
            place, cold = None, list[ColdResult]()
            if settings is not None:
                place, cold = await self._choose_results(request, record, projection, settings)
            results = await self._store_results(request, request.conversation.id, record, projection, cold)
            if results != record.results:
                known = {result.result_id for result in record.results}
                new = frozenset(result.result_id for result in results) - known
                request.lost_after_tokens = None if place is None else projection.tokens_before(place)
                projection = await project_with(results)
                request.batch_after_tokens = projection.tokens_before_stubs(new) if place is None else None
                request.newly_left_out = new if request.lapsed_s else request.newly_left_out
            request.outcomes = (
                merged_outcomes(record.outcomes, projection.outcomes) if request.forked else projection.outcomes
            )
        request.body.projection, request.receipt = projection, projection.receipt
        if request.lacks_record and not projection.receipt.problem:
            request.receipt = replace(projection.receipt, reason=STORE_AWAY)
        request.send_body(projection.body)
        if parsed.reason:
            self._note_unread(request)
        elif request.conversation and not request.is_count:
            await self._note_prefix(request, request.conversation.id, record, projection)

    async def _work(self, request: ProxiedRequest, work: Callable[[], Answer]) -> Answer:
        """Do some work on a request, in a thread if the request is long."""
        began_s = time.perf_counter()
        try:
            if request.body.size_bytes <= INLINE_BYTES:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            request.folding_s += time.perf_counter() - began_s

    # ---- the record of a conversation, and results that are left out after a pause

    async def _load_record(self, request: ProxiedRequest) -> ConversationRecord:
        """The record of a conversation; an empty one if the store is unavailable."""
        if request.conversation is None:
            return NEW_CONVERSATION
        try:
            return await self._store.load(request.owner, request.conversation.id, timeout_s=STORE_S)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)
            request.lacks_record = True
            return NEW_CONVERSATION

    def _lapsed_s(self, request: ProxiedRequest, record: ConversationRecord, projection: BodyProjection) -> float:
        """The seconds since the last request, if its prompt is no longer cached by now; else 0."""
        last_at = self._last_at(request, record, projection.model)
        if last_at is None:
            return 0.0
        return self._clock() - last_at if self._is_expired(last_at, record, projection) else 0.0

    async def _choose_results(
        self,
        request: ProxiedRequest,
        record: ConversationRecord,
        projection: BodyProjection,
        settings: ColdSettings,
    ) -> tuple[int | None, list[ColdResult]]:
        """What to leave out, and the first message that the cache does not hold; None for a batch, which it holds."""
        assert request.conversation is not None
        place = await self._find_cold_place(request, record, projection)
        if place is None:
            return None, []
        salt = f"{request.owner}\0{request.conversation.id}"
        when = AFTER_A_PAUSE if request.lapsed_s else ""
        cold = projection.cold_results(salt=salt, settings=settings, first_place=place, when=when)
        if cold:
            pays = await self._pays_if_undone(request, record, projection, cold)
            return place, cold if pays else []
        if settings.has_batches:
            work = partial(self._choose_batch, projection, record, settings, salt)
            return None, await self._work(request, work)
        return place, []

    def _choose_batch(
        self, projection: BodyProjection, record: ConversationRecord, settings: ColdSettings, salt: str
    ) -> list[ColdResult]:
        """What to leave out of a request although the cache holds it, if that is likely to pay."""
        prices, _ = self._prices.of(projection.model)
        life_s = self._life_s(projection, record)
        return choose_batch(projection, prices, settings, salt=salt, life_s=life_s)

    async def _pays_if_undone(
        self,
        request: ProxiedRequest,
        record: ConversationRecord,
        projection: BodyProjection,
        cold: Sequence[ColdResult],
    ) -> bool:
        """Whether it pays to leave these results out even if the conversation goes back to another model at once."""
        named = request.conversation
        sent = self._sent.get(request.owner, request.forked or named.id) if named else None
        if named is None or sent is None:
            return True
        held = [before for before, at in sent.prefixes if not self._is_expired(at, record, projection)]
        if all(before.model == projection.model for before in held):
            return True
        prefix = await self._read_prefix(request, named.id, projection)
        others = find_other_models(projection, prefix, held, min(each.place for each in cold))
        known = [self._prices.of(model) for model in (projection.model, *others)]
        in_money = all(is_money for _, is_money in known)
        mine, *theirs = [prices if in_money else self._prices.relative for prices, _ in known]
        return pays_if_undone(projection, cold, mine, theirs, life_s=self._life_s(projection, record))

    def _last_at(self, request: ProxiedRequest, record: ConversationRecord, model: str) -> float | None:
        """When the conversation's last request to this model was answered.

        A model has a cache of its own, so a request for a title does not make the pause of another model shorter. The
        store has the time of the last request to any model, which counts if another daemon sent it.
        """
        assert request.conversation is not None
        sent = self._sent.get(request.owner, request.conversation.id)
        at = record.last_request_at
        if at is None or sent is None or at > sent.latest_at + CLOCK_S:
            return at
        return sent.last_at(model)

    def _wanted(self, request: ProxiedRequest) -> str:
        """Which results are left out of a request: "off", "cold", "auto" or "batches"."""
        given = request.given_headers.get(RESULTS_HEADER, [self._fold_results.encode()])[-1]
        return given.strip().lower().decode("latin-1")

    async def _find_cold_place(
        self, request: ProxiedRequest, record: ConversationRecord, projection: BodyProjection
    ) -> int | None:
        """The first message that the provider's cache does not hold any more, except the newest; None if not known.

        After a pause that is the first one. Otherwise it is the first difference to what was sent lately of a named
        conversation, if this daemon has sent it: another one on the same store may have sent more since.
        """
        if request.lapsed_s:
            return 0
        named = request.conversation
        if self._wanted(request) not in ("auto", "batches") or named is None or not named.conversation.is_named:
            return None
        sent = self._sent.get(request.owner, request.forked or named.id)
        if sent is None or not sent.is_trusted or (record.last_request_at or 0.0) > sent.latest_at + CLOCK_S:
            return None
        unknown_at = sent.unknown_at(projection.model)
        if unknown_at and not self._is_expired(unknown_at, record, projection):
            return None
        prefix = await self._read_prefix(request, named.id, projection)
        held = [before for before, at in sent.prefixes if not self._is_expired(at, record, projection)]
        if not prefix.tools and any(before.tools for before in held):
            # A host asks something beside the conversation, which then goes on with its tools and what is cached.
            return None
        return projection.place_of_sent(count_warm_messages(prefix, held))

    def _is_expired(self, at: float, record: ConversationRecord, projection: BodyProjection) -> bool:
        """Whether a prompt that was answered at some time is no longer cached."""
        pause_s = self._clock() - at
        if pause_s <= min(SHORTEST_S, self._prompt_cache_s or SHORTEST_S):
            # No request has a shorter lifetime. To find its own, the whole request is searched.
            return False
        return pause_s > self._life_s(projection, record)

    def _life_s(self, projection: BodyProjection, record: ConversationRecord) -> float:
        return max(projection.cache_life_s(self._prompt_cache_s), record.cache_life_s)

    async def _read_prefix(self, request: ProxiedRequest, conversation: str, projection: BodyProjection) -> SentPrefix:
        if request.prefix is not None and request.prefix_of is projection:
            return request.prefix
        sent = self._sent.get(request.owner, conversation)
        known, before = (sent.known, sent.latest) if sent else (None, None)
        request.prefix_of = projection
        request.prefix = await self._work(request, partial(read_prefix, projection, known, before))
        return request.prefix

    async def _note_prefix(
        self, request: ProxiedRequest, conversation: str, record: ConversationRecord, projection: BodyProjection
    ) -> None:
        """Note what a request leaves in the provider's cache, and how it differs from the request before."""
        try:
            prefix = await self._read_prefix(request, conversation, projection)
            sent = self._sent.get(request.owner, conversation)
            # The comparison may run in a thread, so it gets a copy.
            recent = [] if sent else self._sent.list_recent(request.owner, FORKS_SEARCHED_MAX)
            at = record.last_request_at or 0.0
            request.unread_before_at = at if sent is None or at > sent.latest_at + CLOCK_S else 0.0
            request.comparison = await self._work(
                request, partial(self._compare, request, record, projection, prefix, sent=sent, recent=recent)
            )
        except Exception as problem:
            # Even after a bug, the request is sent as it was folded.
            log_failure("proxy.comparison_failed", problem)
            request.is_unread = request.prefix is None
        request.prefix_of = None
        self._note_sent(request, conversation)

    def _compare(
        self,
        request: ProxiedRequest,
        record: ConversationRecord,
        projection: BodyProjection,
        prefix: SentPrefix,
        *,
        sent: SentLately | None,
        recent: Sequence[tuple[str, SentLately]],
    ) -> Comparison | None:
        """How a request differs from the one before; None if there is none."""
        forked = None if sent else _find_forked(recent, prefix)
        found = sent.find_before(prefix) if sent else forked and forked[1:]
        if found is None:
            return None
        before, at = found
        comparison = compare_with(projection, prefix, before)
        if sent is None and comparison.cause in ("", MissCause.BACK, MissCause.MESSAGE):
            comparison = comparison._replace(cause=MissCause.FORK)
        if request.lapsed_s or self._is_expired(at, record, projection):
            # What differs does not matter: nothing is in the cache any more.
            return comparison._replace(cause=MissCause.PAUSE, place=None, detail="", is_ours=False)
        if comparison.cause == MissCause.OURS:
            log("proxy.own_difference", "error", message=comparison.place)
        return comparison

    async def _inherit(
        self, request: ProxiedRequest, conversation: str, record: ConversationRecord, projection: BodyProjection
    ) -> ConversationRecord:
        """The record of a new conversation, which may be a fork.

        The history of a fork was sent with the stubs of its parent, so they are its own from now on.
        """
        if len(projection.details.facts) < FORKED_MESSAGES or self._sent.get(request.owner, conversation):
            return record
        try:
            prefix = await self._read_prefix(request, conversation, projection)
            forked = _find_forked(self._sent.list_recent(request.owner, FORKS_SEARCHED_MAX), prefix)
            if forked is None:
                return record
            async with asyncio.timeout(STORE_S):
                record = await self._store.inherit(request.owner, forked[0], conversation)
            request.forked = forked[0]
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)
        return record

    def _note_unread(self, request: ProxiedRequest) -> None:
        """Note that a request passes unread, if its conversation is known: it keeps the provider's cache alive."""
        request.conversation = request.conversation or _named_by_headers(request.given_headers)
        if request.conversation is None or request.is_count:
            return
        request.is_unread, request.prefix, request.outcomes = True, None, request.outcomes or {}
        self._note_sent(request, request.conversation.id)

    def _note_sent(self, request: ProxiedRequest, conversation: str) -> None:
        """Note what a request has sent, and later when it was answered."""
        now = self._clock()
        sent = self._sent.open(request.owner, conversation)
        sent.note_unread(now if request.is_unread or request.lacks_record else request.unread_before_at)
        if request.prefix is not None:
            self._sent.add(request.owner, conversation, request.prefix, now)
        sent.has_cache = sent.has_cache or request.was_cached
        if request.was_warm:
            sent.is_trusted = False

    async def _store_results(
        self,
        request: ProxiedRequest,
        conversation: str,
        record: ConversationRecord,
        projection: BodyProjection,
        cold: Sequence[ColdResult],
    ) -> tuple[LeftOutDecision, ...]:
        """All results that are left out from now on. New ones are stored first; if that fails, they stay.

        A text in which something would be redacted stays, too: what comes back must be what went out.
        """
        if not cold:
            return record.results
        owner = request.owner
        try:
            scrubbed = await self._scrub(*(each.text for each in cold), *(each.decision.stub for each in cold))
            texts, stubs = scrubbed[: len(cold)], scrubbed[len(cold) :]
            stored = [
                ArchivedResult(_without_description(each.decision) if stub.redactions else each.decision, each.text)
                for each, text, stub in zip(cold, texts, stubs, strict=True)
                if not text.redactions
            ]
            if not stored:
                return record.results
            async with asyncio.timeout(STORE_S):
                origin = await self._origin(request, projection)
                return tuple(await self._store.keep(owner, conversation, stored, origin))
        except Exception as problem:
            log_failure("proxy.results_not_stored", problem)
            request.lacks_record = True
            return record.results

    def note_usage(self, request: ProxiedRequest, usage: Usage | None) -> None:
        """Note what the provider's cache has lost before an answered request, and why."""
        comparison = request.comparison
        if comparison is None or request.conversation is None:
            return
        tokens = 0
        if usage is not None:
            sent = self._sent.get(request.owner, request.conversation.id)
            request.was_cached = bool(usage.cache_read_tokens or usage.cache_write_tokens)
            if request.was_cached or (sent is not None and sent.has_cache):
                tokens = comparison.tokens_lost(usage.prompt_tokens, usage.cache_read_tokens)
        cause, is_ours = comparison.cause or MissCause.PROVIDER, comparison.is_ours
        if cause == MissCause.PAUSE and request.warm_after_s and request.newly_left_out:
            cause, is_ours = MissCause.LEFT_OUT, True
        # A difference of ours is a bug even if it has cost nothing.
        if tokens or cause == MissCause.OURS:
            request.misses = (PrefixMiss(cause, tokens, comparison.place, comparison.detail, is_ours),)

    def record_end(self, request: ProxiedRequest) -> None:
        """Record when a request of the conversation ended, answered or not, and its outcomes, in the background."""
        if request.conversation is None or request.outcomes is None or len(self._recordings) >= RECORDINGS_MAX:
            return
        work = self._record_end(request, request.conversation.id, request.outcomes, self._clock())
        recording = asyncio.get_running_loop().create_task(work)
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)

    async def _record_end(
        self, request: ProxiedRequest, conversation: str, outcomes: Mapping[str, CallOutcome], at: float
    ) -> None:
        life_s = request.cache_life_s
        self._note_sent(request, conversation)
        try:
            async with asyncio.timeout(STORE_S):
                await self._store.note_request(request.owner, conversation, at, outcomes, cache_life_s=life_s)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)


def _find_forked(recent: Sequence[tuple[str, SentLately]], prefix: SentPrefix) -> tuple[str, SentPrefix, float] | None:
    """The conversation and request that a new conversation with an old history goes on from."""
    if len(prefix.given) < FORKED_MESSAGES:
        return None
    for conversation, sent in recent:
        found = sent.find_before(prefix)
        if found is not None and count_common(prefix.given, found[0].given) >= FORKED_MESSAGES - 1:
            return conversation, *found
    return None


def log_failure(event: str, problem: Exception) -> None:
    """Log a failure that affects no request: an expected one with its code, a bug with the place in the source."""
    if isinstance(problem, ContextError):
        log(event, "warning", code=problem.code)
    else:
        log(event, "error", code="internal", exception=type(problem).__name__, raised_at=place_of(problem))


def _without_description(decision: LeftOutDecision) -> LeftOutDecision:
    """Remove the call's arguments from the stub, because they contain a secret."""
    return decision._replace(stub=stub_of(decision.result_id, "", {}, decision.tokens))
