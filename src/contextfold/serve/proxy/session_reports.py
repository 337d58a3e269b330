"""Reports proxied requests to their sessions, after they are answered.

A request begins the session of its conversation (`fold.service.conversations`). Which conversation that is:

    its headers       `X-Context-Session`, with `X-Context-Project` or in the project of the run
    its host          the host's ids of the conversation and of a subagent
    its content       the first messages, which are the same in every later request

If the history names a session that is no other conversation's, the conversation goes on in that session: its calls of
our tools were not recognised. Nothing here delays a response or makes it fail: what cannot be determined, read or
recorded is left out and logged. Of HTTP it knows only the names of headers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from contextfold.errors import ArgumentInvalid, ContextError, StoreUnavailable
from contextfold.fold.events import ResultLeftOut
from contextfold.fold.messages import BodyProjection, Span
from contextfold.fold.model_catalog import MILLION_CONTEXT
from contextfold.fold.project import Caller, Project, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Share
from contextfold.fold.service.conversation_records import ORIGIN_UNKNOWN, ResultOrigin
from contextfold.fold.service.conversations import KnownConversation, NotedCall, hash_arguments
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.folding import log_failure
from contextfold.serve.proxy.proxied_request import ProxiedRequest
from contextfold.serve.proxy.response_reader import OwnCall, ResponseFacts

# The event in the log if a request cannot be reported.
LOST = "proxy.receipt_lost"
PROJECT_HEADER, SESSION_HEADER = b"x-context-project", b"x-context-session"
# Claude's header for what is in beta, and what it contains for a window of a million tokens.
BETA_HEADER, LONG_CONTEXT = b"anthropic-beta", b"context-1m-"
# At most this many characters of one request's messages are reported, the latest ones.
TEXTS_MAX_CHARS = 8 << 20
# The limits on reports whose session is still being looked up after their requests have ended, and on their bytes.
WAITING_MAX = 1000
WAITING_MAX_BYTES = 64 << 20
# At most this many sizes of conversations are remembered.
CONVERSATIONS_MAX = 10_000


class SessionReports:
    def __init__(self, fold: FoldService) -> None:
        self._fold = fold
        # The waiting reports, each with the number of bytes of its request in memory.
        self._waiting: dict[asyncio.Task[RequestReport | None], int] = {}
        # The number of content blocks in the last request of each conversation.
        self._blocks: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def prepare(self, request: ProxiedRequest, projection: BodyProjection) -> RequestReport | None:
        """Find the session of a request, and make its report except for the response; None if that is not possible."""
        text_chars = 0
        try:
            report = _make_report(request, projection, self._new_blocks(request, projection))
            known = await self._find(request, projection)
            if known is None:
                return None
            request.session = known
            key = known.target.key
            if self._fold.sessions.last_known(key).session_id is None:
                # Without the session's state, more texts than necessary are reported.
                with suppress(StoreUnavailable):
                    await self._fold.sessions.look(key)
            shares = _make_shares(projection, self._fold.messages_known(key))
            text_chars = sum(len(text) for share in shares for text in share.texts)
            return replace(report, shares=shares, compactions=self._fold.compactions_known(key))
        except Exception as problem:
            # Even after a bug, only the report is lost, and the response is not affected.
            log_failure(LOST, problem)
        finally:
            request.body.keep_for_report(text_chars)
        return None

    def note_calls(self, request: ProxiedRequest, calls: list[OwnCall]) -> None:
        """Remember which conversation makes these calls of our tools: over MCP they do not say it."""
        for call in calls:
            hashed = "" if call.arguments is None else hash_arguments(call.arguments)
            noted = NotedCall(call.id, call.tool, hashed, request.run, request.reported)
            self._fold.conversations.note_call(request.owner, noted)

    def report(
        self, request: ProxiedRequest, preparing: asyncio.Task[RequestReport | None], response: ResponseFacts
    ) -> None:
        """Record a request, now or when its report is prepared. Until then its bytes stay in memory."""
        if preparing.done():
            self._complete_report(request, preparing, response)
            return
        size_bytes = request.body.size_bytes
        if len(self._waiting) < WAITING_MAX and sum(self._waiting.values()) + size_bytes <= WAITING_MAX_BYTES:
            self._waiting[preparing] = size_bytes
            self._fold.conversations.note_arriving(request.owner, request.reported)
            preparing.add_done_callback(lambda _: self._complete_report(request, preparing, response))
        else:
            preparing.cancel()
            request.reported.cancel()
            log(LOST, "warning", code="busy")

    def count_failure(self, request: ProxiedRequest) -> None:
        """Count a request that the provider did not answer, or not completely, once for its run."""
        if request.run and request.format is not None and not request.is_count and not request.has_failed:
            request.has_failed = True
            self._fold.conversations.run(request.owner, request.run).failed_requests += 1

    async def close(self) -> None:
        for preparing in self._waiting:
            preparing.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def _complete_report(
        self, request: ProxiedRequest, preparing: asyncio.Task[RequestReport | None], response: ResponseFacts
    ) -> None:
        self._waiting.pop(preparing, None)
        report = None if preparing.cancelled() else preparing.result()
        known = request.session
        try:
            if report is not None and known is not None:
                known.is_answered = True
                report = replace(
                    report,
                    usage=response.usage,
                    our_output_tokens=response.our_output_tokens,
                    only_ours=response.only_ours,
                    # A prefix that was taken to be lost and was not counts as after a pause of a second.
                    warm_after_s=int(request.cache.warm_after_s) or int(request.cache.was_warm),
                    misses=request.cache.misses,
                )
                self._fold.reports.receive(known.target, report)
        except InboxFull:
            log(LOST, "warning", code="busy")
        except Exception as problem:
            # Even after a bug, only the report is lost, and the response is not affected.
            log_failure(LOST, problem)
        finally:
            if not request.reported.done():
                request.reported.set_result(known)

    def _new_blocks(self, request: ProxiedRequest, projection: BodyProjection) -> int:
        """The number of content blocks since the conversation's last request; 0 if it is not known."""
        if request.conversation is None:
            return 0
        key = (request.owner, request.conversation.id)
        before = self._blocks.pop(key, None)
        self._blocks[key] = projection.blocks
        if len(self._blocks) > CONVERSATIONS_MAX:
            self._blocks.popitem(last=False)
        return 0 if before is None else max(0, projection.blocks - before)

    # ---- which session a request belongs to

    async def origin(self, request: ProxiedRequest, projection: BodyProjection) -> ResultOrigin:
        """The project and session of a request, if they are known."""
        try:
            known = await self._find(request, projection)
        except ContextError:
            known = None
        if known is None or not known.target.given_path:
            return ORIGIN_UNKNOWN
        path = await self._fold.scrub_path(known.target)
        session_id = self._fold.sessions.last_known(known.target.key).session_id
        return ResultOrigin(known.target.key.project_hash, path, session_id or projection.session_id or "")

    async def _find(self, request: ProxiedRequest, projection: BodyProjection) -> KnownConversation | None:
        """The session of a request; None if neither a header nor its messages identify one."""
        if request.session is not None:
            return request.session
        project = await self._project_of(request)
        name = _header_value(request, SESSION_HEADER)
        if name is not None and project:
            return KnownConversation(target_of(Caller(request.owner, name), project))
        if request.conversation is None:
            return KnownConversation(target_of(Caller(request.owner), project)) if project else None
        conversation = request.conversation.conversation
        known = await self._fold.conversations.find(
            request.owner,
            conversation,
            project=project,
            name=conversation.agent or None,
            run=request.run,
            is_opening=not projection.details.walk.turns,
            first_turn=_hash_first_turn(projection),
        )
        if projection.session_id and not conversation.agent:
            named = await self._fold.find_target(request.owner, projection.session_id)
            if named is not None:
                self._fold.conversations.adopt(known, named)
        return known

    async def _project_of(self, request: ProxiedRequest) -> Project | None:
        given = _header_value(request, PROJECT_HEADER)
        if given is not None:
            return project_at(given)
        run = await self._fold.conversations.find_run(request.owner, request.run) if request.run else None
        return run.project if run else None


def _model_of(request: ProxiedRequest, projection: BodyProjection) -> str:
    """The model's name, with the suffix of the catalog if a header asks for its window of a million tokens."""
    is_wide = any(LONG_CONTEXT in value for value in request.given_headers.get(BETA_HEADER, ()))
    return projection.model + MILLION_CONTEXT if projection.model and is_wide else projection.model


def _hash_first_turn(projection: BodyProjection) -> int | None:
    """A hash of the model's first message, which holds in one process; None if there is none."""
    details = projection.details
    return details.hashes[details.walk.turns[0]] if details.walk.turns else None


def _header_value(request: ProxiedRequest, header: bytes) -> str | None:
    values = request.given_headers.get(header, [])
    name = header.decode("ascii")
    if len(values) > 1:
        raise ArgumentInvalid(name, "must come once")
    try:
        return values[0].decode("utf-8") if values else None
    except UnicodeDecodeError:
        raise ArgumentInvalid(name, "must be UTF-8") from None


def _make_shares(projection: BodyProjection, known: Mapping[str | None, int]) -> tuple[Share, ...]:
    left_chars = TEXTS_MAX_CHARS
    shares = []
    # The innermost thread is the active one, so its texts come first.
    for span in reversed(projection.threads):
        known_messages = known.get(span.branch_id, 0)
        texts = _list_texts(projection, span, known_messages, left_chars)
        left_chars -= sum(map(len, texts))
        by_user = len(span.places) > known_messages and projection.has_words(span.places[-1])
        is_main = span.branch_id is None
        tokens = max(0, span.tokens - projection.host_tokens) if is_main else span.tokens
        removable = 0 if is_main else projection.removable_tokens(span.branch_id)
        shares.append(Share(span.branch_id, tokens, len(span.places), texts, by_user, removable))
    return tuple(reversed(shares))


def _list_texts(projection: BodyProjection, span: Span, known: int, most_chars: int) -> tuple[str, ...]:
    """The messages of a thread that are not yet recorded; only the latest if they are too long."""
    texts: list[str] = []
    for place in reversed(span.places[known:]):
        text = projection.encode_original(place)
        most_chars -= len(text)
        if most_chars < 0:
            break
        texts.append(text)
    return tuple(reversed(texts))


def _make_report(request: ProxiedRequest, projection: BodyProjection, new_blocks: int) -> RequestReport:
    assert request.format is not None
    return RequestReport(
        id=f"req_{secrets.token_hex(8)}",
        api=request.format,
        model=_model_of(request, projection),
        receipt=request.receipt,
        our_tokens=projection.our_tokens,
        kept_tokens=request.cache.tokens_before_batch,
        new_blocks=new_blocks,
        conversation=request.conversation.id if request.conversation else "",
        run=request.run,
        left_out=tuple(ResultLeftOut(each.result_id, each.tokens) for each in projection.left_out),
        host_tokens=projection.host_tokens,
        has_tools=bool(projection.parsed.members.get("tools")),
        work_tokens=projection.removable_tokens(),
    )
