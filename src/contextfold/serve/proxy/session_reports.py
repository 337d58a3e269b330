"""Reports proxied requests to the sessions they belong to, once they are answered.

Which session that is:

    named by headers      `X-Context-Project`, perhaps with `X-Context-Session`
    else by the history   the last session that a result of our own tools names, if it is one of the caller's
    else by the host      the session of the host's own session, as its hooks have reported it
    a subagent            the session that is named after the agent, in the same project

Until one of these is known, the requests of a conversation wait, a bounded number of them without their texts. Nothing
here delays or fails a response: what cannot be determined, read or recorded is left out, and the log says so. Knows no
HTTP but header names.
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
# Of one request's messages; of more, the latest.
TEXTS_MAX_CHARS = 8 << 20
# Reports whose session is still being looked up when their requests are over, and the bytes of these requests.
WAITING_MAX = 1000
WAITING_MAX_BYTES = 64 << 20
# Conversations whose session is not known, requests of one of them, and conversations whose size is remembered.
UNASSIGNED_CONVERSATIONS_MAX = 1000
UNASSIGNED_REQUESTS_MAX = 100
CONVERSATIONS_MAX = 10_000

# The session of a host's own session and agent, by owner; None where the host has not reported it.
HostSessions = Callable[[str, str, str | None], Target | None]


@dataclass(frozen=True, slots=True)
class ProxiedReport:
    """A request with all that is known before its response."""

    owner: str
    conversation: Conversation | None
    # None where its session is not known.
    target: Target | None
    sent: Sent

    @property
    def text_chars(self) -> int:
        return sum(len(text) for share in self.sent.shares for text in share.texts)


class SessionReports:
    def __init__(self, fold: FoldService, host_sessions: HostSessions) -> None:
        self._fold, self._host_sessions = fold, host_sessions
        # With the number of bytes of its request that each has in memory.
        self._waiting: dict[asyncio.Task[None], int] = {}
        self._unassigned: OrderedDict[tuple[str, str], list[Sent]] = OrderedDict()
        # How many content blocks the last request of a conversation had.
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
        """None where no report can be made."""
        try:
            sent = _sent(
                api, projection, conversation, newly_left_out, self._new_blocks(owner, conversation, projection)
            )
            sent = replace(sent, lapsed_s=int(lapsed_s))
            target = await self._target(owner, headers, conversation, projection.session_id)
            if target is None and projection.session_id is not None:
                # A session of somebody else's, or one that no longer exists.
                return None
            if target is None:
                return ProxiedReport(owner, conversation, None, sent)
            if self._fold.sessions.last_known(target.key).session_id is None:
                # Without the session, more texts are handed over than would be needed.
                with suppress(StoreUnavailable):
                    await self._fold.sessions.look(target.key)
            shares = _shares(projection, self._fold.messages_known(target.key))
            compactions = self._fold.compactions_known(target.key)
            return ProxiedReport(owner, conversation, target, replace(sent, shares=shares, compactions=compactions))
        except FoldError as problem:
            _log_lost(code=problem.code)
        except Exception as problem:
            # A bug of ours costs a report, not a response.
            _log_lost(problem)
        return None

    def report(self, preparing: asyncio.Task[ProxiedReport | None], response: ResponseFacts, size_bytes: int) -> None:
        """Hand the report over, now or when it is prepared; so many bytes of its request stay in memory until then."""
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
            target = report.target or self._of_host(report.owner, conversation)
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
            # A bug of ours costs a report, not a response.
            _log_lost(problem)

    # ---- requests whose session is not known yet

    def _wait_for_session(self, key: tuple[str, str], sent: Sent) -> None:
        """The texts and the sizes of threads come with the next request, which contains the same messages."""
        waiting = self._unassigned.setdefault(key, [])
        self._unassigned.move_to_end(key)
        if len(waiting) < UNASSIGNED_REQUESTS_MAX:
            waiting.append(replace(sent, shares=()))
        if len(self._unassigned) > UNASSIGNED_CONVERSATIONS_MAX:
            self._unassigned.popitem(last=False)

    def _assigned(self, owner: str, conversation: Conversation | None) -> list[Sent]:
        return self._unassigned.pop((owner, conversation.id), []) if conversation else []

    def _new_blocks(self, owner: str, conversation: Conversation | None, projection: BodyProjection) -> int:
        """The content blocks since the conversation's last request; 0 where that is not known."""
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
        """The project and session of a request, as far as they are known."""
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
            return target if name else _of_agent(target, conversation)
        named = await self._by_id(owner, session_id) if session_id else None
        return _of_agent(named, conversation) if named else self._of_host(owner, conversation)

    async def _by_id(self, owner: str, session_id: str) -> Target | None:
        known = self._fold.address(owner, session_id)
        if known is not None:
            return known
        key = await self._fold.store.find(owner, session_id)
        state = await self._fold.sessions.look(key) if key else None
        return Target(key, state.project_path, state.name) if key is not None and state is not None else None

    def _of_host(self, owner: str, conversation: Conversation | None) -> Target | None:
        if conversation is None or not conversation.host_session:
            return None
        return self._host_sessions(owner, conversation.host_session, conversation.agent or None)


def _of_agent(target: Target, conversation: Conversation | None) -> Target:
    """A subagent has a session of its own, so that its context does not count as its parent's."""
    if conversation is None or not conversation.agent:
        return target
    return target_of(Caller(target.key.owner, conversation.agent[:NAME_LENGTH_MAX]), project_at(target.given_path))


def _shares(projection: BodyProjection, known: Mapping[str | None, int]) -> tuple[Share, ...]:
    left_chars = TEXTS_MAX_CHARS
    shares = []
    # The innermost thread is the one that is worked on, so its texts come first.
    for span in reversed(projection.threads):
        known_messages = known.get(span.branch_id, 0)
        texts = _texts(projection, span, known_messages, left_chars)
        left_chars -= sum(map(len, texts))
        by_user = len(span.places) > known_messages and projection.has_words(span.places[-1])
        shares.append(Share(span.branch_id, span.tokens, len(span.places), texts, by_user))
    return tuple(reversed(shares))


def _texts(projection: BodyProjection, span: Span, known: int, most_chars: int) -> tuple[str, ...]:
    """The thread's messages that are not known yet, the latest if that would be too much."""
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
