"""What a proxied request leaves behind once it is answered: the session it belongs to is told how large it was.

    named by headers      `X-Context-Project`, perhaps with `X-Context-Session`
    else by the history   the last session that a result of our own tools names, if it is one of the caller's
    else                  nobody is told, and the response's header says it all

Nothing here holds up an answer or fails one: what cannot be found, read or taken is left out, and the log says so. Of
a request only what its session does not know yet is kept while the model works. Knows no HTTP but header names.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from contextfold.common.exception_location import place_of
from contextfold.errors import ArgumentInvalid, FoldError, StoreUnavailable
from contextfold.fold.ledger.sent_request import FoldSeen, Sent, Share, Usage
from contextfold.fold.messages import OPEN_BRANCH, BodyProjection, Format, Receipt, Span
from contextfold.fold.messages.own_share import NO_OWN_OUTPUT, OwnOutput
from contextfold.fold.project import project_at
from contextfold.fold.service.callers import Caller, Target, target_of
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.inbox import InboxFull
from contextfold.serve.ops.logs import log
from contextfold.serve.proxy.ledger_facts import LedgerFacts, LedgerFactsReader

PROJECT_HEADER, SESSION_HEADER = b"x-context-project", b"x-context-session"
TEXTS_MAX_CHARS = 8 << 20  # of one request's messages; of more, the latest
WAITING_MAX = 1000  # receipts whose session is still looked for when their requests are over
WAITING_MAX_BYTES = 64 << 20  # of these requests


@dataclass(frozen=True, slots=True)
class Draft:
    """All of a receipt but what the provider will have counted."""

    target: Target
    api: Format
    model: str
    receipt: Receipt
    shares: tuple[Share, ...]
    compactions: int
    conversation: str
    facts: LedgerFacts
    # The estimated tokens in front of results that this request is the first to leave out.
    kept_tokens: int | None

    @property
    def held_chars(self) -> int:
        return sum(len(text) for share in self.shares for text in share.texts)


class Receipts:
    def __init__(self, fold: FoldService) -> None:
        self._fold = fold
        self._facts = LedgerFactsReader()
        self._waiting: dict[asyncio.Task[None], int] = {}  # and how many bytes of its request each holds

    async def draft(
        self,
        owner: str,
        headers: Mapping[bytes, list[bytes]],
        api: Format,
        projection: BodyProjection,
        *,
        conversation: str = "",
        kept_tokens: int | None = None,
    ) -> Draft | None:
        """None where there is no session to be told."""
        try:
            # Every request of a conversation is read, so that the next one knows what is new in it.
            facts = self._facts.facts(owner, conversation, api, projection)
            target = await self._target(owner, headers, projection.session_id)
            if target is None:
                return None
            if self._fold.sessions.last_known(target.key).session_id is None:
                with suppress(StoreUnavailable):  # then more is handed over than would be needed
                    await self._fold.sessions.look(target.key)
            shares = _shares(projection, self._fold.messages_known(target.key))
            compactions = self._fold.compactions_known(target.key)
            return Draft(
                target,
                api,
                projection.model,
                projection.receipt,
                shares,
                compactions,
                conversation,
                facts,
                kept_tokens,
            )
        except FoldError as problem:
            _tell_lost(code=problem.code)
            return None
        except Exception as problem:  # a bug costs a receipt, not an answer
            _tell_lost(problem)
            return None

    def tell(
        self,
        drafting: asyncio.Task[Draft | None],
        usage: Usage | None,
        held_bytes: int,
        own: OwnOutput = NO_OWN_OUTPUT,
    ) -> None:
        """Hand it over, now if its session is known, else as soon as it is: so many bytes of its request stay here."""
        if drafting.done():
            self._hand_over(drafting.result(), usage, own)
        elif len(self._waiting) < WAITING_MAX and sum(self._waiting.values()) + held_bytes <= WAITING_MAX_BYTES:
            waiting = asyncio.get_running_loop().create_task(self._hand_over_later(drafting, usage, own))
            self._waiting[waiting] = held_bytes
            waiting.add_done_callback(self._waiting.pop)
        else:
            drafting.cancel()
            _tell_lost(code="busy")

    async def close(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _hand_over_later(self, drafting: asyncio.Task[Draft | None], usage: Usage | None, own: OwnOutput) -> None:
        self._hand_over(await drafting, usage, own)

    def _hand_over(self, draft: Draft | None, usage: Usage | None, own: OwnOutput) -> None:
        if draft is None:
            return
        try:
            self._fold.sent(draft.target, _sent(draft, usage, own))
        except InboxFull:
            _tell_lost(code="busy")
        except FoldError as problem:
            _tell_lost(code=problem.code)
        except Exception as problem:  # as above
            _tell_lost(problem)

    async def _target(self, owner: str, headers: Mapping[bytes, list[bytes]], session_id: str | None) -> Target | None:
        projects, names = headers.get(PROJECT_HEADER, []), headers.get(SESSION_HEADER, [])
        if projects:
            if len(projects) > 1 or len(names) > 1:
                raise ArgumentInvalid("X-Context-Project", "must come once")
            try:
                project, name = projects[0].decode("utf-8"), names[0].decode("utf-8") if names else None
            except UnicodeDecodeError:
                raise ArgumentInvalid("X-Context-Project", "must be UTF-8") from None
            return target_of(Caller(owner, name), project_at(project))
        if session_id is None:
            return None
        known = self._fold.address(owner, session_id)
        return known if known is not None else await self._search(owner, session_id)

    async def _search(self, owner: str, session_id: str) -> Target | None:
        key = await self._fold.store.find(owner, session_id)
        state = await self._fold.sessions.look(key) if key else None
        return Target(key, state.project_path, state.name) if key is not None and state is not None else None


def _shares(projection: BodyProjection, known: Mapping[str | None, int]) -> tuple[Share, ...]:
    left_chars = TEXTS_MAX_CHARS
    shares = []
    for span in reversed(projection.threads):  # the innermost is what is worked on
        texts = _texts(projection, span, known.get(span.branch_id, 0), left_chars)
        left_chars -= sum(map(len, texts))
        shares.append(Share(span.branch_id, span.tokens, len(span.places), texts))
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


def _sent(draft: Draft, usage: Usage | None, own: OwnOutput) -> Sent:
    receipt = draft.receipt
    return Sent(
        id=f"req_{secrets.token_hex(8)}",
        api=draft.api,
        model=draft.model,
        tokens_before=receipt.tokens_before,
        tokens_after=receipt.tokens_after,
        turns_dropped=receipt.turns_dropped,
        first_changed=receipt.first_changed,
        reason=receipt.reason if receipt.reason != OPEN_BRANCH else "",
        folds=tuple(FoldSeen(fold.branch_id, fold.tokens, fold.kept_tokens) for fold in receipt.folds),
        shares=draft.shares,
        usage=usage,
        compactions=draft.compactions,
        our_tokens=draft.facts.our_tokens,
        our_output_tokens=own.tokens,
        only_ours=own.is_all,
        results_dropped=receipt.results_left_out,
        kept_tokens=draft.kept_tokens,
        new_blocks=draft.facts.new_blocks,
        conversation=draft.conversation,
    )


def _tell_lost(problem: Exception | None = None, *, code: str = "internal") -> None:
    why = {"exception": type(problem).__name__, "raised_at": place_of(problem)} if problem else {}
    log("proxy.receipt_lost", "error" if problem else "warning", code=code, **why)
