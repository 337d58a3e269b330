"""Reports proxied requests to their sessions, after they are answered.

The session of a request is determined by, in this order:

    its headers       `X-Context-Project`, with or without `X-Context-Session`
    its history       the last session that a result of our tools names, if it belongs to the caller
    its host          the session for the host's session, as reported by its hooks
    a subagent        the session that is named after the agent, in the same project

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

from contextfold.common.dataclass import dataclass, replace
from contextfold.common.exception_location import place_of
from contextfold.errors import ArgumentInvalid, FoldError, StoreUnavailable
from contextfold.fold.ledger.sent_request import FoldSeen, Sent, Share
from contextfold.fold.messages import OPEN_BRANCH, BodyProjection, Format, Span
from contextfold.fold.ports.left_out_results import ORIGIN_UNKNOWN, ResultOrigin
from contextfold.fold.project import NAME_LENGTH_MAX, project_at
from contextfold.fold.service.callers import Caller, Target, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.conversations import Conversation
from contextfold.serve.proxy.response_reader import ResponseFacts

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


@dataclass(frozen=True, slots=True)
class ProxiedReport:
    """The facts about a request that are known before its response."""

    owner: str
    conversation: Conversation | None
    # None if the session is not known.
    target: Target | None
    sent: Sent

    @property
    def text_chars(self) -> int:
        return sum(len(text) for share in self.sent.shares for text in share.texts)


class SessionReports:
    def __init__(self, fold: FoldService, host_sessions: HostSessions) -> None:
        self._fold, self._host_sessions = fold, host_sessions
        # The waiting reports, each with the number of bytes of its request in memory.
        self._waiting: dict[asyncio.Task[None], int] = {}
        self._unassigned: OrderedDict[tuple[str, str], list[Sent]] = OrderedDict()
        # The number of content blocks in the last request of each conversation.
        self._blocks: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def prepare(
        self,
        owner: str,
        headers: Mapping[bytes, list[bytes]],
        api: Format,
        *,
        projection: BodyProjection,
        conversation: Conversation | None,
        newly_left_out: frozenset[str],
        lapsed_s: float = 0.0,
    ) -> ProxiedReport | None:
        """Prepare the report of a request; None if that is not possible."""
        try:
            sent = _sent(
                api, projection, conversation, newly_left_out, self._new_blocks(owner, conversation, projection)
            )
            sent = replace(sent, lapsed_s=int(lapsed_s))
            target = await self._target(owner, headers, conversation, projection.session_id)
            if target is None and projection.session_id is not None:
                # The session belongs to another owner, or no longer exists.
                return None
            if target is None:
                return ProxiedReport(owner, conversation, None, sent)
            if self._fold.sessions.last_known(target.key).session_id is None:
                # Without the session's state, more texts than necessary are reported.
                with suppress(StoreUnavailable):
                    await self._fold.sessions.look(target.key)
            shares = _shares(projection, self._fold.messages_known(target.key))
            compactions = self._fold.compactions_known(target.key)
            return ProxiedReport(owner, conversation, target, replace(sent, shares=shares, compactions=compactions))
        except FoldError as problem:
            _log_lost(code=problem.code)
        except Exception as problem:
            # After a bug, the report is lost and the response is not affected.
            _log_lost(problem)
        return None

    def report(self, preparing: asyncio.Task[ProxiedReport | None], response: ResponseFacts, size_bytes: int) -> None:
        """Record the report, now or when it is prepared. Until then `size_bytes` of its request stay in memory."""
        if preparing.done():
            self._hand_over(preparing.result(), response)
        elif len(self._waiting) < WAITING_MAX and sum(self._waiting.values()) + size_bytes <= WAITING_MAX_BYTES:
            waiting = asyncio.get_running_loop().create_task(self._hand_over_later(preparing, response))
            self._waiting[waiting] = size_bytes
            waiting.add_done_callback(self._waiting.pop)
        else:
            preparing.cancel()
            _log_lost(code="busy")

    async def close(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _hand_over_later(self, preparing: asyncio.Task[ProxiedReport | None], response: ResponseFacts) -> None:
        self._hand_over(await preparing, response)

    def _hand_over(self, report: ProxiedReport | None, response: ResponseFacts) -> None:
        if report is None:
            return
        sent = replace(
            report.sent,
            usage=response.usage,
            our_output_tokens=response.our_output_tokens,
            only_ours=response.only_ours,
        )
        conversation = report.conversation
        try:
            # A hook may have reported the host's session while the model worked.
            target = report.target or self._host_target(report.owner, conversation)
            if target is not None:
                for earlier in self._assigned(report.owner, conversation):
                    self._fold.sent(target, earlier)
                self._fold.sent(target, sent)
            elif conversation is not None:
                self._wait_for_session((report.owner, conversation.id), sent)
        except InboxFull:
            _log_lost(code="busy")
        except FoldError as problem:
            _log_lost(code=problem.code)
        except Exception as problem:
            # After a bug, the report is lost and the response is not affected.
            _log_lost(problem)

    # ---- requests whose session is not known yet

    def _wait_for_session(self, key: tuple[str, str], sent: Sent) -> None:
        """Store a request until its session is known, without texts: the next request contains the same messages."""
        waiting = self._unassigned.setdefault(key, [])
        self._unassigned.move_to_end(key)
        if len(waiting) < UNASSIGNED_REQUESTS_MAX:
            waiting.append(replace(sent, shares=()))
        if len(self._unassigned) > UNASSIGNED_CONVERSATIONS_MAX:
            self._unassigned.popitem(last=False)

    def _assigned(self, owner: str, conversation: Conversation | None) -> list[Sent]:
        return self._unassigned.pop((owner, conversation.id), []) if conversation else []

    def _new_blocks(self, owner: str, conversation: Conversation | None, projection: BodyProjection) -> int:
        """The number of content blocks since the conversation's last request; 0 if it is not known."""
        if conversation is None:
            return 0
        key = (owner, conversation.id)
        before = self._blocks.pop(key, None)
        self._blocks[key] = projection.blocks
        if len(self._blocks) > CONVERSATIONS_MAX:
            self._blocks.popitem(last=False)
        return 0 if before is None else max(0, projection.blocks - before)

    # ---- which session a request belongs to

    async def origin(
        self,
        owner: str,
        headers: Mapping[bytes, list[bytes]],
        conversation: Conversation,
        session_id: str | None,
    ) -> ResultOrigin:
        """The project and session of a request, if they are known."""
        try:
            target = await self._target(owner, headers, conversation, session_id)
        except FoldError:
            target = None
        if target is None:
            return ORIGIN_UNKNOWN
        path = await self._fold.shown_path(target)
        known = self._fold.sessions.last_known(target.key).session_id
        return ResultOrigin(target.key.project_hash, path, known or session_id or "")

    async def _target(
        self,
        owner: str,
        headers: Mapping[bytes, list[bytes]],
        conversation: Conversation | None,
        session_id: str | None,
    ) -> Target | None:
        projects, names = headers.get(PROJECT_HEADER, []), headers.get(SESSION_HEADER, [])
        if projects:
            if len(projects) > 1 or len(names) > 1:
                raise ArgumentInvalid("X-Context-Project", "must come once")
            try:
                project, name = projects[0].decode("utf-8"), names[0].decode("utf-8") if names else None
            except UnicodeDecodeError:
                raise ArgumentInvalid("X-Context-Project", "must be UTF-8") from None
            target = target_of(Caller(owner, name), project_at(project))
            return target if name else _agent_target(target, conversation)
        named = await self._by_id(owner, session_id) if session_id else None
        return _agent_target(named, conversation) if named else self._host_target(owner, conversation)

    async def _by_id(self, owner: str, session_id: str) -> Target | None:
        known = self._fold.address(owner, session_id)
        if known is not None:
            return known
        key = await self._fold.store.find(owner, session_id)
        state = await self._fold.sessions.look(key) if key else None
        return Target(key, state.project_path, state.name) if key is not None and state is not None else None

    def _host_target(self, owner: str, conversation: Conversation | None) -> Target | None:
        if conversation is None or not conversation.host_session:
            return None
        return self._host_sessions(owner, conversation.host_session, conversation.agent or None)


def _agent_target(target: Target, conversation: Conversation | None) -> Target:
    """A subagent has a session of its own, so that its context does not count as its parent's."""
    if conversation is None or not conversation.agent:
        return target
    return target_of(Caller(target.key.owner, conversation.agent[:NAME_LENGTH_MAX]), project_at(target.given_path))


def _shares(projection: BodyProjection, known: Mapping[str | None, int]) -> tuple[Share, ...]:
    left_chars = TEXTS_MAX_CHARS
    shares = []
    # The innermost thread is the active one, so its texts come first.
    for span in reversed(projection.threads):
        known_messages = known.get(span.branch_id, 0)
        texts = _texts(projection, span, known_messages, left_chars)
        left_chars -= sum(map(len, texts))
        by_user = len(span.places) > known_messages and projection.has_words(span.places[-1])
        shares.append(Share(span.branch_id, span.tokens, len(span.places), texts, by_user))
    return tuple(reversed(shares))


def _texts(projection: BodyProjection, span: Span, known: int, most_chars: int) -> tuple[str, ...]:
    """The messages of a thread that are not yet recorded; only the latest if they are too long."""
    texts: list[str] = []
    for place in reversed(span.places[known:]):
        text = projection.original(place)
        most_chars -= len(text)
        if most_chars < 0:
            break
        texts.append(text)
    return tuple(reversed(texts))


def _sent(
    api: Format,
    projection: BodyProjection,
    conversation: Conversation | None,
    newly_left_out: frozenset[str],
    new_blocks: int,
) -> Sent:
    receipt = projection.receipt
    return Sent(
        id=f"req_{secrets.token_hex(8)}",
        api=api,
        model=projection.model,
        tokens_before=receipt.tokens_before,
        tokens_after=receipt.tokens_after,
        turns_dropped=receipt.turns_dropped,
        first_changed=receipt.first_changed,
        reason=receipt.reason if receipt.reason != OPEN_BRANCH else "",
        folds=tuple(FoldSeen(fold.branch_id, fold.tokens, fold.kept_tokens) for fold in receipt.folds),
        shares=(),
        usage=None,
        our_tokens=projection.our_tokens,
        results_dropped=receipt.results_left_out,
        kept_tokens=projection.tokens_before_stubs(newly_left_out) if newly_left_out else None,
        new_blocks=new_blocks,
        opening_tokens=projection.opening_tokens,
        conversation=conversation.id if conversation else "",
    )


def _log_lost(problem: Exception | None = None, *, code: str = "internal") -> None:
    reason = {"exception": type(problem).__name__, "raised_at": place_of(problem)} if problem else {}
    log("proxy.receipt_lost", "error" if problem else "warning", code=code, **reason)
