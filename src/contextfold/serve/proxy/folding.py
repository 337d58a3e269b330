"""Leaves folded work and old results out of requests to a model, and records what their conversations have sent.

A body is parsed when all of it has arrived. A body that is too large, or cannot be parsed, is forwarded unchanged part
by part, and the receipt has the reason. `fold.messages` decides what is left out.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

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
from contextfold.fold.messages.by_hand import Work
from contextfold.fold.messages.cache_life import SHORTEST_S, find_life_in_usage
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
from contextfold.fold.sent_request import ScrubbedText, Usage, was_warm
from contextfold.fold.service.conversation_records import (
    NEW_CONVERSATION,
    ConversationRecord,
    ConversationRecords,
    ResultOrigin,
)
from contextfold.fold.service.conversations import KnownConversation
from contextfold.fold.store import ArchivedResult, LeftOutDecision
from contextfold.serve.ops.logs import log
from contextfold.serve.ops.metrics import Metrics
from contextfold.serve.proxy.proxied_request import ByteBudget, ProxiedRequest, conversation_of, name_by_headers
from contextfold.serve.proxy.sent_lately import SentConversations, SentLately
from contextfold.serve.proxy.upstream import limit_encodings
from contextfold.settings import ProxySettings

# A larger request is not folded.
FOLDED_MAX_BYTES = 32 << 20
# A longer request is parsed in a thread, so that other requests are answered meanwhile.
INLINE_BYTES = 256 << 10
THREADS = 2
# At most this many records of conversations are being written at the same time.
RECORDINGS_MAX = 1000
# The timeout for reading or writing the record of a conversation; the model's response waits for it.
STORE_S = 2.0
RESULTS_HEADER = b"x-context-fold-results"
# The first request of a conversation is compared with so many others of its owner, the latest: it may be a fork.
FORKS_SEARCHED_MAX = 100
# It has at least so many messages.
FORKED_MESSAGES = 3
# So many conversations can be folded by hand, the latest ones, if the line with the summary is not longer: NATS keeps
# it in a header, which may have 64 KiB with all escapes.
WORKS_MAX, SUMMARY_MAX_BYTES = 100, 16_384
# A command waits for the response to the last request at most so long.
WORK_WAIT_S = 20.0
COLD_SETTINGS = {"cold": ColdSettings(), "auto": AUTO, "batches": BATCHES}

# The reasons why a request was not parsed, in addition to those of `fold.messages`.
TOO_LARGE, BUSY, ENCODED, FAILED = "too_large", "busy", "encoded", "failed"
# The store was away, so results that could be left out, or were left out before, are sent whole.
STORE_UNAVAILABLE = "store_unavailable"
REASONS = (TOO_LARGE, BUSY, ENCODED, FAILED, STORE_UNAVAILABLE)

Answer = TypeVar("Answer")


class NotedWork(NamedTuple):
    """What a conversation's last request could leave out, and the conversation when that request is recorded."""

    work: Work
    reported: asyncio.Future[KnownConversation | None]


class RequestFolding:
    """Leaves folded work out of requests, and old tool results after the provider's prompt cache has expired.

    `records` are those of conversations, in the store. Results are redacted by `scrub` before they are stored; `origin`
    finds the project and session of a request; `prices` are those of a model.
    """

    def __init__(
        self,
        metrics: Metrics,
        settings: ProxySettings,
        records: ConversationRecords,
        scrub: Callable[..., Awaitable[Sequence[ScrubbedText]]],
        *,
        origin: Callable[[ProxiedRequest, BodyProjection], Awaitable[ResultOrigin]],
        clock: Callable[[], float],
        prices: LedgerPrices,
    ) -> None:
        self._metrics = metrics
        self._records = records
        self._scrub = scrub
        self._origin = origin
        self._clock = clock
        self._prices = prices
        self._fold_results, self._prompt_cache_s = settings.fold_results, float(settings.prompt_cache_s) or None
        self._sent = SentConversations()
        self._recordings: set[asyncio.Task[None]] = set()
        # What could be folded by hand in the latest conversations, and where that is being stored.
        self._works: OrderedDict[tuple[str, str], NotedWork] = OrderedDict()
        self._leaving_out: dict[tuple[str, str], asyncio.Event] = {}
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
            await self._parse_and_fold(request, format, body)
        except Exception as problem:
            # After a bug, the request is forwarded unfolded.
            log_failure("proxy.fold_failed", problem)
            return FAILED
        finally:
            self._metrics.projections(format).observe(request.folding_s)
        return ""

    async def _parse_and_fold(self, request: ProxiedRequest, format: Format, body: bytes) -> None:
        """Fold a request that has arrived completely."""
        parsed = await self._work(request, partial(parse_request, body, format))
        request.conversation = conversation_of(request.given_headers, parsed)
        record = await self._load_record(request, has_tools=bool(parsed.members.get("tools")))
        projection = await self._fold_with(request, parsed, record)
        # A request that only counts tokens changes nothing that is known of its conversation.
        conversation = request.conversation.id if request.conversation and not request.is_count else None
        if conversation is not None:
            if record.last_request_at is None and not request.lacks_record:
                record = await self._inherit(request, conversation, record, projection)
                if request.parent:
                    projection = await self._fold_with(request, parsed, record)
            projection = await self._leave_out_results(request, conversation, record, projection)
            request.outcomes = projection.outcomes
            if request.parent:
                request.outcomes = merged_outcomes(record.outcomes, projection.outcomes)
        request.body.projection, request.receipt = projection, projection.receipt
        if request.lacks_record and not projection.receipt.problem:
            request.receipt = replace(projection.receipt, reason=STORE_UNAVAILABLE)
        request.send_body(projection.body)
        if parsed.reason:
            self._note_unread(request)
        elif conversation is not None:
            await self._note_work(request, conversation, projection)
            await self._note_prefix(request, conversation, record, projection)

    async def _fold_with(
        self, request: ProxiedRequest, parsed: ParsedRequest, record: ConversationRecord
    ) -> BodyProjection:
        remembered = Remembered(record.outcomes, by_call(record.results))
        return await self._work(request, partial(project_request, parsed, model=request.model, remembered=remembered))

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

    async def _load_record(self, request: ProxiedRequest, *, has_tools: bool) -> ConversationRecord:
        """The record of a conversation; an empty one if the store is unavailable."""
        if request.conversation is None:
            return NEW_CONVERSATION
        key = (request.owner, request.conversation.id)
        if leaving_out := self._leaving_out.get(key):
            await leaving_out.wait()
        if has_tools and not request.is_count:
            # What it leaves out is decided with what is known now.
            self._works.pop(key, None)
        try:
            return await self._records.load(request.owner, request.conversation.id, timeout_s=STORE_S)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)
            request.lacks_record = True
            return NEW_CONVERSATION

    async def _leave_out_results(
        self, request: ProxiedRequest, conversation: str, record: ConversationRecord, projection: BodyProjection
    ) -> BodyProjection:
        """Leave out more old results: those that the cache does not hold any more, else those where it pays.

        Returns the projection without them.
        """
        cache = request.cache
        cache.lapsed_s = self._lapsed_s(request, record, projection)
        # What a request of an unknown past could leave out, the cache may hold.
        is_unknown = request.lacks_record or bool(projection.parsed.reason)
        settings = None if is_unknown else COLD_SETTINGS.get(self._mode_of(request))
        place = None if settings is None else await self._find_cold_place(request, record, projection)
        if settings is None or place is None:
            return projection
        salt, when = f"{request.owner}\0{conversation}", AFTER_A_PAUSE if cache.lapsed_s else ""
        chosen = projection.cold_results(salt=salt, settings=settings, first_place=place, when=when)
        is_batch = not chosen and settings.has_batches
        if is_batch:
            chosen = await self._work(request, partial(self._choose_batch, projection, record, settings, salt))
        elif chosen and not await self._pays_if_undone(request, conversation, record, projection, chosen):
            return projection
        results = await self._store_results(request, conversation, record, projection, chosen)
        if results == record.results:
            return projection
        new = frozenset(result.result_id for result in results) - {result.result_id for result in record.results}
        cache.tokens_before_cold = None if is_batch else projection.tokens_before(place)
        projection = await self._fold_with(request, projection.parsed, replace(record, results=results))
        cache.tokens_before_batch = projection.tokens_before_stubs(new) if is_batch else None
        if cache.lapsed_s:
            cache.newly_left_out = new
        return projection

    def _lapsed_s(self, request: ProxiedRequest, record: ConversationRecord, projection: BodyProjection) -> float:
        """The seconds since the last request, if its prompt is no longer cached by now; else 0."""
        last_at = self._last_at(request, record, projection)
        if last_at is None:
            return 0.0
        return self._clock() - last_at if self._is_expired(last_at, record, projection) else 0.0

    def _choose_batch(
        self, projection: BodyProjection, record: ConversationRecord, settings: ColdSettings, salt: str
    ) -> list[ColdResult]:
        """What to leave out of a request although the cache holds it, if that is likely to pay."""
        prices, _ = self._prices.of(projection.model)
        return choose_batch(projection, prices, settings, salt=salt, life_s=self._life_s(projection, record))

    async def _pays_if_undone(
        self,
        request: ProxiedRequest,
        conversation: str,
        record: ConversationRecord,
        projection: BodyProjection,
        chosen: Sequence[ColdResult],
    ) -> bool:
        """Whether it pays to leave these results out even if the conversation goes back to another model at once."""
        sent = self._sent.get(request.owner, request.parent or conversation)
        held = self._list_held(sent, record, projection) if sent else []
        if all(before.model == projection.model for before in held):
            return True
        prefix = await self._read_prefix(request, conversation, projection)
        others = find_other_models(projection, prefix, held, min(each.place for each in chosen))
        known = [self._prices.of(model) for model in (projection.model, *others)]
        in_money = all(is_money for _, is_money in known)
        mine, *theirs = [prices if in_money else self._prices.relative for prices, _ in known]
        return pays_if_undone(projection, chosen, mine, theirs, life_s=self._life_s(projection, record))

    def _last_at(self, request: ProxiedRequest, record: ConversationRecord, projection: BodyProjection) -> float | None:
        """When the conversation's last request to this model was answered.

        A model has a cache of its own, and a request for a title has no tools, so it does not make the pause shorter.
        The store has the time of the last request of any kind, which counts if another daemon sent it.
        """
        assert request.conversation is not None
        sent = self._sent.get(request.owner, request.conversation.id)
        at = record.last_request_at
        if at is None or sent is None or sent.is_behind(at):
            return at
        return sent.last_at(projection.model, has_tools=bool(projection.parsed.members.get("tools")))

    def _mode_of(self, request: ProxiedRequest) -> str:
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
        if request.cache.lapsed_s:
            return 0
        named = request.conversation
        if self._mode_of(request) not in ("auto", "batches") or named is None or not named.conversation.is_named:
            return None
        sent = self._sent.get(request.owner, request.parent or named.id)
        if sent is None or not sent.is_trusted or sent.is_behind(record.last_request_at):
            return None
        unknown_at = sent.unknown_at(projection.model)
        if unknown_at and not self._is_expired(unknown_at, record, projection):
            return None
        prefix = await self._read_prefix(request, named.id, projection)
        held = self._list_held(sent, record, projection)
        if not prefix.tools and any(before.tools for before in held):
            # A host asks something beside the conversation, which then goes on with its tools and what is cached.
            return None
        return projection.place_of_sent(count_warm_messages(prefix, held))

    def _list_held(self, sent: SentLately, record: ConversationRecord, projection: BodyProjection) -> list[SentPrefix]:
        """What a cache still holds of a conversation, of all models."""
        return [before for before, at in sent.prefixes if not self._is_expired(at, record, projection)]

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
        if request.cache.prefix is not None and request.cache.prefix_of is projection:
            return request.cache.prefix
        sent = self._sent.get(request.owner, conversation)
        known, before = (sent.known, sent.latest) if sent else (None, None)
        request.cache.prefix_of = projection
        request.cache.prefix = await self._work(request, partial(read_prefix, projection, known, before))
        return request.cache.prefix

    async def _note_prefix(
        self, request: ProxiedRequest, conversation: str, record: ConversationRecord, projection: BodyProjection
    ) -> None:
        """Note what a request leaves in the provider's cache, and how it differs from the request before."""
        try:
            prefix = await self._read_prefix(request, conversation, projection)
            sent = self._sent.get(request.owner, conversation)
            # The comparison may run in a thread, so it gets a copy.
            recent = [] if sent else self._sent.list_recent(request.owner, FORKS_SEARCHED_MAX)
            if sent is None or sent.is_behind(record.last_request_at):
                request.cache.unread_before_at = record.last_request_at or 0.0
            request.cache.comparison = await self._work(
                request, partial(self._compare, request, record, projection, prefix, sent=sent, recent=recent)
            )
        except Exception as problem:
            # Even after a bug, the request is sent as it was folded.
            log_failure("proxy.comparison_failed", problem)
            request.cache.is_unread = request.cache.prefix is None
        request.cache.prefix_of = None
        self._update_sent(request, conversation)

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
        if sent:
            found = sent.find_before(prefix)
        else:
            parent = _find_parent(recent, prefix)
            found = parent[1:] if parent else None
        if found is None:
            return None
        before, at = found
        comparison = compare_with(projection, prefix, before)
        if sent is None and comparison.cause in ("", MissCause.BACK, MissCause.MESSAGE):
            comparison = comparison._replace(cause=MissCause.FORK)
        if request.cache.lapsed_s or self._is_expired(at, record, projection):
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
            parent = _find_parent(self._sent.list_recent(request.owner, FORKS_SEARCHED_MAX), prefix)
            if parent is None:
                return record
            async with asyncio.timeout(STORE_S):
                record = await self._records.inherit(request.owner, parent[0], conversation)
            request.parent = parent[0]
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)
        return record

    def _note_unread(self, request: ProxiedRequest) -> None:
        """Note that a request passes unread, if its conversation is known: it keeps the provider's cache alive."""
        request.conversation = request.conversation or name_by_headers(request.given_headers)
        if request.conversation is None or request.is_count:
            return
        request.cache.is_unread, request.cache.prefix, request.outcomes = True, None, request.outcomes or {}
        self._update_sent(request, request.conversation.id)

    def _update_sent(self, request: ProxiedRequest, conversation: str) -> None:
        """Note what is in the cache now: when the request is sent, and again when it ends."""
        now = self._clock()
        sent = self._sent.open(request.owner, conversation)
        sent.note_unread(now if request.cache.is_unread or request.lacks_record else request.cache.unread_before_at)
        if request.cache.prefix is not None:
            self._sent.add_prefix(request.owner, conversation, request.cache.prefix, now)
        sent.has_cache = sent.has_cache or request.cache.is_in_use
        sent.is_trusted = sent.is_trusted and not request.cache.was_warm

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
                return tuple(await self._records.keep(owner, conversation, stored, origin))
        except Exception as problem:
            log_failure("proxy.results_not_stored", problem)
            request.lacks_record = True
            return record.results

    # ---- work that a person folds

    async def _note_work(self, request: ProxiedRequest, conversation: str, projection: BodyProjection) -> None:
        if not projection.parsed.members.get("tools"):
            # A request beside the conversation, like one for a title.
            return
        work = await self._work(request, projection.find_work)
        if work is not None and not request.lacks_record:
            self._works[request.owner, conversation] = NotedWork(work, request.reported)
            if len(self._works) > WORKS_MAX:
                self._works.popitem(last=False)

    async def find_work(self, owner: str, conversation: str) -> Work | None:
        """What a fold by hand would leave out of the next request; None if nothing, or if it is not known here.

        Waits until the last request is in the records: so are then all messages that are left out.
        """
        noted = self._works.get((owner, conversation))
        if noted is None:
            return None
        await asyncio.wait([noted.reported], timeout=WORK_WAIT_S)
        is_recorded = noted.reported.done() and not noted.reported.cancelled() and noted.reported.result() is not None
        return noted.work if is_recorded else None

    async def leave_work_out(self, owner: str, conversation: str, work: Work, decision: LeftOutDecision) -> bool:
        """Leave work out of every later request; returns whether that was stored. Requests wait for it meanwhile."""
        key = owner, conversation
        (scrubbed,) = await self._scrub(work.text)
        is_long = len(decision.stub.encode("utf-8", "surrogatepass")) > SUMMARY_MAX_BYTES
        noted = self._works.get(key)
        has_gone_on = noted is None or noted.work is not work
        if is_long or scrubbed.redactions or has_gone_on or key in self._leaving_out:
            return False
        self._leaving_out[key] = asyncio.Event()
        try:
            async with asyncio.timeout(STORE_S):
                record = await self._records.load(owner, conversation)
                if any(each.result_id == decision.result_id for each in record.results):
                    # The call is repeated.
                    return True
                sent = self._sent.get(owner, conversation)
                if sent is None or sent.is_behind(record.last_request_at):
                    return False
                stored = await self._records.keep(owner, conversation, [ArchivedResult(decision, work.text)])
            return any(each.result_id == decision.result_id for each in stored)
        except Exception as problem:
            log_failure("proxy.results_not_stored", problem)
            return False
        finally:
            self._leaving_out.pop(key).set()

    def note_usage(self, request: ProxiedRequest, usage: Usage | None, opening_tokens: int) -> None:
        """Note what the usage of a response shows of the provider's cache.

        `opening_tokens` are the request's tokens before the model's first message.
        """
        cache, sent_tokens = request.cache, request.receipt.tokens_after
        if was_warm(usage, sent_tokens, opening_tokens):
            cache.warm_after_s = cache.lapsed_s
        if cache.tokens_before_cold is not None:
            cache.was_warm = was_warm(usage, sent_tokens, max(cache.tokens_before_cold, opening_tokens))
        if usage is not None:
            cache.life_s = find_life_in_usage(usage.cache_write_1h_tokens, cache.warm_after_s)
        self._note_miss(request, usage)

    def _note_miss(self, request: ProxiedRequest, usage: Usage | None) -> None:
        """Note what the provider's cache has lost before an answered request, and why."""
        comparison = request.cache.comparison
        if comparison is None or request.conversation is None:
            return
        tokens = 0
        if usage is not None:
            sent = self._sent.get(request.owner, request.conversation.id)
            request.cache.is_in_use = bool(usage.cache_read_tokens or usage.cache_write_tokens)
            if request.cache.is_in_use or (sent is not None and sent.has_cache):
                tokens = comparison.tokens_lost(usage.prompt_tokens, usage.cache_read_tokens)
        cause, is_ours = comparison.cause or MissCause.PROVIDER, comparison.is_ours
        if cause == MissCause.PAUSE and request.cache.warm_after_s and request.cache.newly_left_out:
            cause, is_ours = MissCause.LEFT_OUT, True
        # A difference of ours is a bug even if it has cost nothing.
        if tokens or cause == MissCause.OURS:
            request.cache.misses = (PrefixMiss(cause, tokens, comparison.place, comparison.detail, is_ours),)

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
        life_s = request.cache.life_s
        self._update_sent(request, conversation)
        try:
            async with asyncio.timeout(STORE_S):
                await self._records.note_request(request.owner, conversation, at, outcomes, cache_life_s=life_s)
        except Exception as problem:
            log_failure("proxy.conversation_unknown", problem)


def _find_parent(recent: Sequence[tuple[str, SentLately]], prefix: SentPrefix) -> tuple[str, SentPrefix, float] | None:
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
