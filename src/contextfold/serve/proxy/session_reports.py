"""Reports proxied requests to their sessions, after they are answered.

The session of a request is determined by, in this order:

    its headers       `X-Context-Project`, with or without `X-Context-Session`
    its history       the last session that a result of our tools names, if it belongs to the caller
    its host          the session for the host's session, as reported by its hooks

A request of a subagent then gets the session that is named after the agent, in the same project, unless
`X-Context-Session` names one.

Until one of these is known, the requests of a conversation wait without their texts, up to a limit. Nothing here delays
a response or makes it fail: what cannot be determined, read or recorded is left out and logged. Of HTTP it knows only
the names of headers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from contextfold.errors import ArgumentInvalid, FoldError, StoreUnavailable
from contextfold.fold.messages import BodyProjection, Span
from contextfold.fold.project import NAME_LENGTH_MAX, Caller, Target, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Share
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.fold.service.stored_results import ORIGIN_UNKNOWN, ResultOrigin
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.forwarding import Conversation, ProxiedRequest, log_failure
from contextfold.serve.proxy.response_reader import ResponseFacts

# The event in the log if a request cannot be reported.
LOST = "proxy.receipt_lost"
PROJECT_HEADER, SESSION_HEADER = b"x-context-project", b"x-context-session"
# At most this many characters of one request's messages are reported, the latest ones.
TEXTS_MAX_CHARS = 8 << 20
# The limits on reports whose session is still being looked up after their requests have ended, and on their bytes.
WAITING_MAX = 1000
WAITING_MAX_BYTES = 64 << 20
# The limits on conversations without a known session, on requests of one of them, and on remembered sizes.
UNASSIGNED_CONVERSATIONS_MAX = 1000
UNASSIGNED_REQUESTS_MAX = 100
CONVERSATIONS_MAX = 10_000

# Finds the session for an owner and a host's session and agent; None if the host has not reported it.
HostSessions = Callable[[str, str, str | None], Target | None]


class SessionReports:
    def __init__(self, fold: FoldService, host_sessions: HostSessions) -> None:
        self._fold, self._host_sessions = fold, host_sessions
        # The waiting reports, each with the number of bytes of its request in memory.
        self._waiting: dict[asyncio.Task[RequestReport | None], int] = {}
        self._unassigned: OrderedDict[tuple[str, str], list[RequestReport]] = OrderedDict()
        # The number of content blocks in the last request of each conversation.
        self._blocks: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def prepare(self, request: ProxiedRequest, projection: BodyProjection) -> RequestReport | None:
        """Find the session of a request, and make its report except for the response; None if that is not possible."""
        text_chars = 0
        try:
            report = _make_report(request, projection, self._new_blocks(request, projection))
            request.session = await self._session_of(request, projection.session_id)
            if request.session is None:
                # The session belongs to another owner, or no longer exists; or it is not known yet.
                return None if projection.session_id is not None else report
            key = request.session.key
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
            request.keep_for_report(text_chars)
        return None

    def report(
        self, request: ProxiedRequest, preparing: asyncio.Task[RequestReport | None], response: ResponseFacts
    ) -> None:
        """Record a request, now or when its report is prepared. Until then its bytes stay in memory."""
        if preparing.done():
            self._hand_over(request, preparing, response)
        elif len(self._waiting) < WAITING_MAX and sum(self._waiting.values()) + request.size_bytes <= WAITING_MAX_BYTES:
            self._waiting[preparing] = request.size_bytes
            preparing.add_done_callback(lambda _: self._hand_over(request, preparing, response))
        else:
            preparing.cancel()
            log(LOST, "warning", code="busy")

    async def close(self) -> None:
        for preparing in self._waiting:
            preparing.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def _hand_over(
        self, request: ProxiedRequest, preparing: asyncio.Task[RequestReport | None], response: ResponseFacts
    ) -> None:
        self._waiting.pop(preparing, None)
        report = None if preparing.cancelled() else preparing.result()
        if report is None:
            return
        report = replace(
            report,
            usage=response.usage,
            our_output_tokens=response.our_output_tokens,
            only_ours=response.only_ours,
            warm_after_s=int(request.warm_after_s),
        )
        try:
            # A hook may have reported the host's session while the model worked.
            target = request.session or self._host_session(request)
            if target is not None:
                conversation = request.conversation
                for earlier in self._unassigned.pop((request.owner, conversation.id), []) if conversation else []:
                    self._fold.reports.receive(target, earlier)
                self._fold.reports.receive(target, report)
            elif request.conversation is not None:
                self._wait_for_session((request.owner, request.conversation.id), report)
        except InboxFull:
            log(LOST, "warning", code="busy")
        except Exception as problem:
            # Even after a bug, only the report is lost, and the response is not affected.
            log_failure(LOST, problem)

    # ---- requests whose session is not known yet

    def _wait_for_session(self, key: tuple[str, str], report: RequestReport) -> None:
        """Store a request until its session is known, without texts: the next request contains the same messages."""
        waiting = self._unassigned.setdefault(key, [])
        self._unassigned.move_to_end(key)
        if len(waiting) < UNASSIGNED_REQUESTS_MAX:
            waiting.append(replace(report, shares=()))
        if len(self._unassigned) > UNASSIGNED_CONVERSATIONS_MAX:
            self._unassigned.popitem(last=False)

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

    async def origin(self, request: ProxiedRequest, session_id: str | None) -> ResultOrigin:
        """The project and session of a request, if they are known. `session_id` is the one that its history names."""
        try:
            target = await self._session_of(request, session_id)
        except FoldError:
            target = None
        if target is None:
            return ORIGIN_UNKNOWN
        path = await self._fold.scrub_path(target)
        known = self._fold.sessions.last_known(target.key).session_id
        return ResultOrigin(target.key.project_hash, path, known or session_id or "")

    async def _session_of(self, request: ProxiedRequest, session_id: str | None) -> Target | None:
        headers, conversation = request.given_headers, request.conversation
        projects, names = headers.get(PROJECT_HEADER, []), headers.get(SESSION_HEADER, [])
        if projects:
            if len(projects) > 1 or len(names) > 1:
                raise ArgumentInvalid("X-Context-Project", "must come once")
            try:
                project, name = projects[0].decode("utf-8"), names[0].decode("utf-8") if names else None
            except UnicodeDecodeError:
                raise ArgumentInvalid("X-Context-Project", "must be UTF-8") from None
            target = target_of(Caller(request.owner, name), project_at(project))
            return target if name else _agent_target(target, conversation)
        named = await self._fold.find_target(request.owner, session_id) if session_id else None
        return _agent_target(named, conversation) if named else self._host_session(request)

    def _host_session(self, request: ProxiedRequest) -> Target | None:
        conversation = request.conversation
        if conversation is None or not conversation.host_session:
            return None
        return self._host_sessions(request.owner, conversation.host_session, conversation.agent or None)


def _agent_target(target: Target, conversation: Conversation | None) -> Target:
    """A subagent has a session of its own, so that its context does not count as its parent's."""
    if conversation is None or not conversation.agent:
        return target
    return target_of(Caller(target.key.owner, conversation.agent[:NAME_LENGTH_MAX]), project_at(target.given_path))


def _make_shares(projection: BodyProjection, known: Mapping[str | None, int]) -> tuple[Share, ...]:
    left_chars = TEXTS_MAX_CHARS
    shares = []
    # The innermost thread is the active one, so its texts come first.
    for span in reversed(projection.threads):
        known_messages = known.get(span.branch_id, 0)
        texts = _list_texts(projection, span, known_messages, left_chars)
        left_chars -= sum(map(len, texts))
        by_user = len(span.places) > known_messages and projection.has_words(span.places[-1])
        shares.append(Share(span.branch_id, span.tokens, len(span.places), texts, by_user))
    return tuple(reversed(shares))


def _list_texts(projection: BodyProjection, span: Span, known: int, most_chars: int) -> tuple[str, ...]:
    """The messages of a thread that are not yet recorded; only the latest if they are too long."""
    texts: list[str] = []
    for place in reversed(span.places[known:]):
        text = projection.original(place)
        most_chars -= len(text)
        if most_chars < 0:
            break
        texts.append(text)
    return tuple(reversed(texts))


def _make_report(request: ProxiedRequest, projection: BodyProjection, new_blocks: int) -> RequestReport:
    newly_left_out = request.newly_left_out
    assert request.format is not None
    return RequestReport(
        id=f"req_{secrets.token_hex(8)}",
        api=request.format,
        model=projection.model,
        receipt=projection.receipt,
        our_tokens=projection.our_tokens,
        kept_tokens=projection.tokens_before_stubs(newly_left_out) if newly_left_out else None,
        new_blocks=new_blocks,
        conversation=request.conversation.id if request.conversation else "",
    )
