"""A request on its way to a model: its head as the provider gets it, its body as it comes or without what is folded.

A body is looked into only when it is here, whole. How much of all bodies may be here at once is bounded; what does not
fit, or cannot be read, goes on part by part as it came, and the receipt says why. Knows ASGI and header names; what is
left out is `fold.messages`' to say.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import httpx2

from contextfold.common.exception_location import place_of
from contextfold.common.token_counter import tokens_of
from contextfold.errors import ContextError
from contextfold.fold.left_out_results import NEW_CONVERSATION, ConversationRecord, LeftOutResults, StoredResult
from contextfold.fold.messages import (
    OPEN_BRANCH,
    BodyProjection,
    CallOutcome,
    ColdSettings,
    Format,
    LeftOutResult,
    Receipt,
    Remembered,
    by_call,
    project_body,
)
from contextfold.fold.messages.cold_results import stub_of
from contextfold.fold.messages.own_share import common_prefix
from contextfold.fold.service.reports import ScrubbedText
from contextfold.serve.http.exchange import OWNER, ClientGone, Headers, Receive, Scope
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.conversations import Conversation, conversation_of
from contextfold.serve.proxy.upstream import sent_on, with_body, with_readable_encoding

FOLDED_MAX_BYTES = 32 << 20  # a larger request is not looked into
FOLDED_ALL_MAX_BYTES = 256 << 20  # of all that are looked into or kept for their sessions at a time
FOLDED_OWNER_MAX_BYTES = 128 << 20  # of these, an owner's
INLINE_BYTES = 256 << 10  # a longer request is looked into in a thread, so that others are answered meanwhile
PART_BYTES = 256 << 10  # of a body that is here, sent at once: each has the upstream's time to be taken
LANES = 2  # threads
# Conversations whose last request is being noted.
NOTES_MAX = 1000
# For the store to say or take what is remembered of a conversation: a model's answer waits for it.
STORE_S = 2.0
RESULTS_HEADER = b"x-context-fold-results"
RequestHeaders = Mapping[bytes, list[bytes]]

TOO_LARGE, MANY, ENCODED, FAILED = "too_large", "busy", "encoded", "failed"
REASONS = (TOO_LARGE, MANY, ENCODED, FAILED)  # ours, beside those of `fold.messages`


class Passing:
    """A request on its way: its head as the upstream gets it, its body as it comes."""

    def __init__(self, scope: Scope, target: bytes, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.owner: str = scope[OWNER]
        self.target = target
        self.given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.given.setdefault(name, []).append(value)
        self.headers: Headers = sent_on(scope["headers"])
        self.incoming = Incoming(receive)
        self.body: httpx2.AsyncByteStream = self.incoming

    def claimed_bytes(self) -> int:
        """The length that the head tells; 0 if none."""
        claimed = self.given.get(b"content-length", [b"0"])[0]
        return int(claimed) if claimed.isdigit() else 0


class Incoming(httpx2.AsyncByteStream):
    """The client's body, part by part; first those that somebody has read and given back."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._given_back: deque[bytes] = deque()
        self._taken: Callable[[], None] = lambda: None
        self.is_over = asyncio.Event()

    def give_back(self, parts: Iterable[bytes], taken: Callable[[], None]) -> None:
        """Have these come first; `taken` is called when they are no longer here."""
        self._given_back, self._taken = deque(parts), taken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._given_back:
            yield self._given_back.popleft()
        self._taken()
        while not self.is_over.is_set():
            yield await self.next()

    async def next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self.is_over.set()
        part: bytes = message.get("body", b"")
        return part


class _Whole(httpx2.AsyncByteStream):
    """A body that is here, in parts that a slow line can take. It is sent once and then forgotten."""

    def __init__(self, body: bytes, taken: Callable[[], None]) -> None:
        self._body, self._taken = body, taken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body, self._body = self._body, b""
        for start in range(0, len(body), PART_BYTES):
            yield body[start : start + PART_BYTES]
        del body
        self._taken()


class Held:
    """What is kept of a request while it is answered, of a budget that all share.

    Once it is sent, nothing more is needed but what was taken out of it for its session.
    """

    def __init__(self, folding: Folding, owner: str) -> None:
        self._folding, self._owner = folding, owner
        self.size_bytes = 0
        self._is_sent = False
        self._noted_bytes: int | None = None
        self.receipt = _unread("")
        self.projection: BodyProjection | None = None
        self.conversation: Conversation | None = None
        # Of a request that counts as one of its conversation.
        self.outcomes: Mapping[str, CallOutcome] | None = None
        # The estimated tokens in front of results that this request is the first to leave out.
        self.kept_tokens: int | None = None

    def take(self, more: int) -> bool:
        """Whether there is room for so many bytes."""
        if not self._folding.has_room_for(self._owner, more):
            return False
        self.size_bytes += more
        self._folding.hold(self._owner, more)
        return True

    def sent(self) -> None:
        self._is_sent = True
        self._let_go()

    def noted(self, size: int) -> None:
        """So much was taken out of it."""
        self._noted_bytes = size
        self._let_go()

    def _let_go(self) -> None:
        if self._is_sent and self._noted_bytes is not None:
            self.release(but=self._noted_bytes)

    def release(self, but: int = 0) -> None:
        freed = max(0, self.size_bytes - but)
        self.size_bytes -= freed
        self._folding.hold(self._owner, -freed)
        self.projection = None


@dataclass(frozen=True, slots=True)
class ProxiedCall:
    """What a request asks of an API whose list of messages is folded."""

    format: Format
    # Where the request's path names the model.
    model: str = ""
    # The provider only counts its tokens: nothing is decided for it, and no session is told of it.
    is_count: bool = False


class ResultFolding:
    """Leaves old tool results out of a request once the provider's prompt cache has lapsed."""

    def __init__(
        self,
        store: LeftOutResults,
        scrub: Callable[..., Awaitable[Sequence[ScrubbedText]]],
        *,
        is_on: bool,
        prompt_cache_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._scrub, self._clock = store, scrub, clock
        self._is_on, self._prompt_cache_s = is_on, prompt_cache_s
        self._settings = ColdSettings()

    async def record(self, owner: str, conversation: Conversation | None) -> ConversationRecord:
        """Nothing where the store cannot be asked: the request then passes without what was remembered."""
        if conversation is None:
            return NEW_CONVERSATION
        try:
            async with asyncio.timeout(STORE_S):
                return await self._store.remembered(owner, conversation.id)
        except Exception as problem:
            _log_store_failure("proxy.conversation_unknown", problem)
            return NEW_CONVERSATION

    def is_cold(self, record: ConversationRecord, projection: BodyProjection, headers: RequestHeaders) -> bool:
        chosen = headers.get(RESULTS_HEADER, [b"cold" if self._is_on else b"off"])[-1].strip().lower()
        if chosen != b"cold" or record.last_request_at is None:
            return False
        return self._clock() - record.last_request_at > projection.cache_life_s(self._prompt_cache_s)

    async def left_out(
        self, owner: str, conversation: Conversation, record: ConversationRecord, projection: BodyProjection
    ) -> tuple[LeftOutResult, ...]:
        """All results that are left out from now on. New ones are stored first; if they cannot be, there are none."""
        cold = projection.cold_results(salt=f"{owner}\0{conversation.id}", settings=self._settings)
        if not cold:
            return record.results
        try:
            scrubbed = await self._scrub(*(each.text for each in cold), *(each.result.stub for each in cold))
            texts, stubs = scrubbed[: len(cold)], scrubbed[len(cold) :]
            stored = [
                StoredResult(_without_description(each.result) if stub.redactions else each.result, text.text)
                for each, text, stub in zip(cold, texts, stubs, strict=True)
            ]
            async with asyncio.timeout(STORE_S):
                return tuple(await self._store.keep(owner, conversation.id, stored))
        except Exception as problem:
            _log_store_failure("proxy.results_not_stored", problem)
            return record.results

    async def note(self, owner: str, conversation: Conversation, outcomes: Mapping[str, CallOutcome]) -> None:
        try:
            async with asyncio.timeout(STORE_S):
                await self._store.note_request(owner, conversation.id, self._clock(), outcomes)
        except Exception as problem:
            _log_store_failure("proxy.conversation_unknown", problem)


def _log_store_failure(event: str, problem: Exception) -> None:
    """Whatever is wrong with the store, or with our code for it, costs what is remembered and never a request."""
    if isinstance(problem, ContextError):
        log(event, "warning", code=problem.code)
    else:
        log(event, "error", exception=type(problem).__name__, raised_at=place_of(problem))


def _without_description(result: LeftOutResult) -> LeftOutResult:
    """The call's arguments hold a secret, so the stub does not repeat them."""
    return replace(result, stub=stub_of(result.id, "", {}, result.tokens))


class Folding:
    """Looks into requests, a bounded number of bytes at a time."""

    def __init__(self, metrics: Metrics, results: ResultFolding) -> None:
        self._metrics, self._results = metrics, results
        self._notes: set[asyncio.Task[None]] = set()
        self._lane = ThreadPoolExecutor(LANES, "contextfold-project")
        self.held_bytes = 0
        self.held_of: Counter[str] = Counter()

    def has_room_for(self, owner: str, more: int) -> bool:
        is_fair = self.held_of[owner] + more <= FOLDED_OWNER_MAX_BYTES
        return is_fair and self.held_bytes + more <= FOLDED_ALL_MAX_BYTES

    def hold(self, owner: str, more: int) -> None:
        self.held_bytes += more
        self.held_of[owner] += more
        if not self.held_of[owner]:
            del self.held_of[owner]

    async def close(self) -> None:
        self._lane.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*self._notes, return_exceptions=True)

    def note(self, held: Held, owner: str) -> None:
        """Have it remembered that a request of the conversation was answered, behind the answer."""
        if held.conversation is None or held.outcomes is None or len(self._notes) >= NOTES_MAX:
            return
        work = self._results.note(owner, held.conversation, held.outcomes)
        noting = asyncio.get_running_loop().create_task(work)
        self._notes.add(noting)
        noting.add_done_callback(self._notes.discard)

    async def fold(self, call: ProxiedCall, passing: Passing) -> Held:
        """Have the request pass without what is folded, or as it comes where that cannot be known."""
        api = call.format
        held = Held(self, passing.owner)
        try:
            reason = await self._read(call, passing, held)
        except BaseException:
            held.release()
            raise
        passing.headers = with_readable_encoding(passing.headers)
        if reason:
            held.noted(0)
            held.receipt = _unread(reason)
        dropped = held.receipt.tokens_before - held.receipt.tokens_after
        self._metrics.proxied(
            api,
            tokens_dropped=max(0, dropped),
            is_folded=held.receipt.first_changed is not None,
            reason=held.receipt.reason if held.receipt.reason != OPEN_BRANCH else "",
        )
        return held

    async def _read(self, call: ProxiedCall, passing: Passing, held: Held) -> str:
        """Empty, or why the request was not looked into."""
        if any(value.strip().lower() != b"identity" for value in passing.given.get(b"content-encoding", ())):
            return ENCODED
        if passing.claimed_bytes() > FOLDED_MAX_BYTES:
            return TOO_LARGE
        parts: list[bytes] = []
        size = 0
        while not passing.incoming.is_over.is_set():
            part = await passing.incoming.next()
            parts.append(part)
            size += len(part)
            if size > FOLDED_MAX_BYTES or not held.take(len(part)):
                passing.incoming.give_back(parts, held.sent)
                return TOO_LARGE if size > FOLDED_MAX_BYTES else MANY
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        del parts
        passing.body, passing.headers = _Whole(body, held.sent), with_body(passing.headers, len(body))
        held.conversation = conversation_of(passing.given, call.format, body)
        record = await self._results.record(passing.owner, held.conversation)
        remembered = Remembered(record.outcomes, by_call(record.results))
        projection = await self._projected(call, body, remembered)
        if projection is None:
            return FAILED
        if held.conversation and not call.is_count:
            held.outcomes = projection.outcomes
            if self._results.is_cold(record, projection, passing.given):
                results = await self._results.left_out(passing.owner, held.conversation, record, projection)
                if len(results) > len(record.results):
                    again = await self._projected(call, body, Remembered(record.outcomes, by_call(results)))
                    if again is not None:
                        held.kept_tokens = tokens_of(common_prefix(projection.body, again.body))
                        projection = again
        held.projection, held.receipt = projection, projection.receipt
        passing.body = _Whole(projection.body, held.sent)
        passing.headers = with_body(passing.headers, len(projection.body))
        return ""

    async def _projected(self, call: ProxiedCall, body: bytes, remembered: Remembered) -> BodyProjection | None:
        began_s = time.perf_counter()
        work = partial(project_body, body, call.format, model=call.model, remembered=remembered)
        try:
            if len(body) <= INLINE_BYTES:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._lane, work)
        except Exception as problem:  # a bug folds nothing, and breaks no request
            log("proxy.fold_failed", "error", exception=type(problem).__name__, raised_at=place_of(problem))
            return None
        finally:
            self._metrics.projection_took(call.format, time.perf_counter() - began_s)


def _unread(reason: str) -> Receipt:
    return Receipt(0, 0, 0, 0, 0, 0, None, (), (), reason)
