"""Identifies the conversation of a request to a model, and leaves folded work out of the request.

A body is parsed when all of it has arrived. The bytes of all bodies in memory are limited. A body that does not fit, or
cannot be parsed, is forwarded unchanged part by part, and the receipt has the reason. Knows ASGI and header names;
`fold.messages` decides what is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import httpx2

from contextfold.errors import ContextError, place_of
from contextfold.fold.messages import (
    BodyProjection,
    CallOutcome,
    ColdSettings,
    Format,
    LeftOutResult,
    ParsedRequest,
    Receipt,
    Remembered,
    by_call,
    parse_request,
    project_request,
)
from contextfold.fold.messages.cold_results import SHORTEST_CACHE_S, stub_of
from contextfold.fold.project import Target
from contextfold.fold.sent_request import ScrubbedText
from contextfold.fold.service.stored_results import (
    NEW_CONVERSATION,
    ConversationRecord,
    ConversationRecords,
    ResultOrigin,
    StoredResult,
)
from contextfold.serve.http.exchange import OWNER, ClientGone, Headers, Receive, Scope
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
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

# The reasons why a request was not parsed, in addition to those of `fold.messages`.
TOO_LARGE, BUSY, ENCODED, FAILED = "too_large", "busy", "encoded", "failed"
REASONS = (TOO_LARGE, BUSY, ENCODED, FAILED)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A subagent has a conversation of its own. Two conversations without ids that begin with the same words share one
    record; their left-out results are still distinguished by call id and text.
    """

    id: str
    # The host's ids of its session and of a subagent; empty if the host does not send them.
    host_session: str = ""
    agent: str = ""


def conversation_of(headers: Mapping[bytes, list[bytes]], request: ParsedRequest) -> Conversation | None:
    """The conversation of a request; None if neither the host's ids nor the texts of the first message identify it.

    Those texts are the same in every later request.
    """
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


class ProxiedRequest(httpx2.AsyncByteStream):
    """A request from its arrival to the end of its response.

    `headers` are sent to the upstream. The request itself is the stream of its body: the parts in memory, then what
    still arrives from the client. The bytes of the body count against a budget that all requests share. After the
    request was sent, only the parts for its session's report still count.
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
        self.target = target
        self.given_headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.given_headers.setdefault(name, []).append(value)
        self.headers: Headers = select_request_headers(scope["headers"])
        # Set when the body has arrived completely, or the rest is not needed.
        self.is_read = asyncio.Event()
        self._receive = receive
        self._stored: deque[bytes] = deque()
        self.receipt = Receipt(0, 0)
        self.projection: BodyProjection | None = None
        self.conversation: Conversation | None = None
        # The session that the request belongs to, when it is found.
        self.session: Target | None = None
        # The outcomes to record, if the request counts as one of its conversation.
        self.outcomes: Mapping[str, CallOutcome] | None = None
        # The ids of results that this request is the first to leave out.
        self.newly_left_out: frozenset[str] = frozenset()
        # The seconds since the conversation's last request, if its prompt's cache is taken to have expired; or 0. The
        # same, if the provider's usage shows that it had not.
        self.lapsed_s = 0.0
        self.warm_after_s = 0.0
        self.size_bytes = 0
        # The time for parsing and folding.
        self.folding_s = 0.0
        self._budget = budget
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

    def send_body(self, body: bytes) -> None:
        """Send this body to the upstream."""
        self.send_parts([body])
        self.headers = set_length(self.headers, len(body))

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
        if not self._budget.reserve(self.owner, size):
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
        self._budget.release(self.owner, freed)
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


class RequestFolding:
    """Leaves folded work out of requests, and old tool results after the provider's prompt cache has expired.

    `store` has the records of conversations. Results are redacted by `scrub` before they are stored; `origin` finds the
    project and session of a request.
    """

    def __init__(
        self,
        metrics: Metrics,
        settings: ProxySettings,
        store: ConversationRecords,
        scrub: Callable[..., Awaitable[Sequence[ScrubbedText]]],
        *,
        origin: Callable[[ProxiedRequest, str | None], Awaitable[ResultOrigin]],
        clock: Callable[[], float],
    ) -> None:
        self._metrics, self._store, self._scrub, self._origin, self._clock = metrics, store, scrub, origin, clock
        self._folds_results, self._prompt_cache_s = settings.folds_results, float(settings.prompt_cache_s) or None
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
            request.keep_for_report(0)
            request.receipt = Receipt(0, 0, reason=reason)
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
        while not request.is_read.is_set():
            part = await request.next_part()
            parts.append(part)
            size += len(part)
            if size > FOLDED_MAX_BYTES or not request.reserve(len(part)):
                request.send_parts(parts)
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

        async def project_with(results: tuple[LeftOutResult, ...]) -> BodyProjection:
            remembered = Remembered(record.outcomes, by_call(results))
            work = partial(project_request, parsed, model=request.model, remembered=remembered)
            return await self._work(request, work)

        projection = await project_with(record.results)
        if request.conversation and not request.is_count:
            request.lapsed_s = self._lapsed_s(record, projection)
            results = await self._leave_out_results(request, request.conversation.id, record, projection)
            new = results[len(record.results) :]
            if new:
                projection = await project_with(results)
                request.newly_left_out = frozenset(result.id for result in new)
            request.outcomes = projection.outcomes
        request.projection, request.receipt = projection, projection.receipt
        request.send_body(projection.body)

    async def _work(self, request: ProxiedRequest, work: Callable[[], Answer]) -> Answer:
        """Do some work on a request, in a thread if the request is long."""
        began_s = time.perf_counter()
        try:
            if request.size_bytes <= INLINE_BYTES:
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
            async with asyncio.timeout(STORE_S):
                return await self._store.load(request.owner, request.conversation.id)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)
            return NEW_CONVERSATION

    def _lapsed_s(self, record: ConversationRecord, projection: BodyProjection) -> float:
        """The seconds since the last request, if its prompt is no longer cached by now; else 0."""
        if record.last_request_at is None:
            return 0.0
        pause_s = self._clock() - record.last_request_at
        if pause_s <= min(SHORTEST_CACHE_S, self._prompt_cache_s or SHORTEST_CACHE_S):
            # No request has a shorter lifetime. To find its own, the whole request is searched.
            return 0.0
        life_s = max(projection.cache_life_s(self._prompt_cache_s), record.cache_life_s)
        return pause_s if pause_s > life_s else 0.0

    async def _leave_out_results(
        self, request: ProxiedRequest, conversation: str, record: ConversationRecord, projection: BodyProjection
    ) -> tuple[LeftOutResult, ...]:
        """All results that are left out from now on. New ones are stored first; if that fails, they stay."""
        owner, default = request.owner, b"cold" if self._folds_results else b"off"
        is_wanted = request.given_headers.get(RESULTS_HEADER, [default])[-1].strip().lower() == b"cold"
        if not is_wanted or not request.lapsed_s:
            return record.results
        try:
            cold = projection.cold_results(salt=f"{owner}\0{conversation}", settings=ColdSettings())
            if not cold:
                return record.results
            scrubbed = await self._scrub(*(each.text for each in cold), *(each.result.stub for each in cold))
            texts, stubs = scrubbed[: len(cold)], scrubbed[len(cold) :]
            stored = [
                StoredResult(_without_description(each.result) if stub.redactions else each.result, text.text)
                for each, text, stub in zip(cold, texts, stubs, strict=True)
            ]
            async with asyncio.timeout(STORE_S):
                origin = await self._origin(request, projection.session_id)
                return tuple(await self._store.keep(owner, conversation, stored, origin))
        except Exception as problem:
            log_failure("proxy.results_not_stored", problem)
            return record.results

    def record_end(self, request: ProxiedRequest) -> None:
        """Record when a request of the conversation ended, answered or not, and its outcomes, in the background."""
        if request.conversation is None or request.outcomes is None or len(self._recordings) >= RECORDINGS_MAX:
            return
        work = self._record_end(request, request.conversation.id, request.outcomes)
        recording = asyncio.get_running_loop().create_task(work)
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)

    async def _record_end(
        self, request: ProxiedRequest, conversation: str, outcomes: Mapping[str, CallOutcome]
    ) -> None:
        at, life_s = self._clock(), request.warm_after_s
        try:
            async with asyncio.timeout(STORE_S):
                await self._store.note_request(request.owner, conversation, at, outcomes, cache_life_s=life_s)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)


def log_failure(event: str, problem: Exception) -> None:
    """Log a failure that affects no request: an expected one with its code, a bug with the place in the source."""
    if isinstance(problem, ContextError):
        log(event, "warning", code=problem.code)
    else:
        log(event, "error", code="internal", exception=type(problem).__name__, raised_at=place_of(problem))


def _without_description(result: LeftOutResult) -> LeftOutResult:
    """Remove the call's arguments from the stub, because they contain a secret."""
    return replace(result, stub=stub_of(result.id, "", {}, result.tokens))
