"""What agents' hosts and requests to models tell: received at once, written behind. Knows no host's format and no wire.

Models do not report honestly, so their hosts do, and their providers count. Neither must be slowed, so what they tell
is taken into the session's inbox and its sender goes on; scrubbing, counting and the commit come after, all in the
order it came. What the log has already is left out.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from contextfold.fold import session
from contextfold.fold.events import Event
from contextfold.fold.ledger.provider_counts import SOURCE, Happened, requested
from contextfold.fold.ledger.sent_request import Sent, Share
from contextfold.fold.project import hashed
from contextfold.fold.service.activity import Noted
from contextfold.fold.service.callers import Target
from contextfold.fold.service.inbox import Batch, Inbox
from contextfold.fold.service.sessions import Decide, Outcome, Tell
from contextfold.fold.session import State
from contextfold.fold.store import Operation, SessionKey

HOOK = "hook"  # the source of a report's figures
PROXY = SOURCE  # and who tells of a request
RECORDED, REPEATED, LOST = "recorded", "repeated", "lost"  # what becomes of a report
CALL_ID_LENGTH = 16  # of a hash's 64 digits: enough among the few hundred it is compared with
UTF8_MOST_BYTES = 4  # of a character
DRAIN_S = 5.0  # at the end, for what has been received
REQUEST_TEXT_MOST = 8 << 20  # characters of one request's messages that are kept, the latest ones


class Scrubbed(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def redactions(self) -> int: ...
    @property
    def rules(self) -> tuple[str, ...]: ...


class Scrub(Protocol):
    async def __call__(self, *texts: str) -> list[Scrubbed]: ...


class Commit(Protocol):
    async def __call__(
        self,
        target: Target,
        operation: Operation | None,
        decide: Decide,
        tell: Tell,
        *,
        begins: bool,
        texts: dict[int, str],
        is_again: bool,
    ) -> Outcome: ...


class Received(Protocol):
    """Something that was told of a session, not yet written."""

    @property
    def target(self) -> Target: ...
    @property
    def told_by(self) -> str:
        """Which host, or that it was a request."""

    @property
    def tokens(self) -> int:
        """By which the session's figures will surely grow."""

    @property
    def texts(self) -> Sequence[str]:
        """Everything in it that may hold secrets."""

    def decided(self, state: State, at: str, scrubbed: Sequence[Scrubbed]) -> Happened:
        """What is to be written of it, given its scrubbed texts; nothing if the log has it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a host says was done."""

    target: Target
    told_by: str  # which host
    type: str
    content: str
    tokens: int
    failed: bool
    call_id: str  # empty if nothing tells two of them apart
    left_tokens: int | None = None  # of a compaction: what the context holds after it

    @property
    def texts(self) -> Sequence[str]:
        return (self.type, self.content)

    def decided(self, state: State, at: str, scrubbed: Sequence[Scrubbed]) -> Happened:
        kind, content = scrubbed
        call_id = _call_id(self.call_id)
        if call_id and call_id in state.calls:
            return Happened()
        redactions = kind.redactions + content.redactions
        work = session.Work(
            kind.text,
            self.tokens if self.left_tokens is None else self.left_tokens,
            HOOK,
            failed=self.failed,
            redactions=redactions,
            call_id=call_id,
            compacts=self.left_tokens is not None,
        )
        events = session.record(state, at, work)
        return Happened(events, [(event.n, content.text) for event in events])


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model that was answered."""

    target: Target
    sent: Sent
    told_by: str = PROXY
    tokens: int = 0  # a level, and not known before it is compared

    @property
    def texts(self) -> Sequence[str]:
        return (self.sent.model, *(text for share in self.sent.shares for text in share.texts))

    def decided(self, state: State, at: str, scrubbed: Sequence[Scrubbed]) -> Happened:
        model, *rest = scrubbed
        messages = iter(rest)
        texts = [[next(messages) for _ in share.texts] for share in self.sent.shares]
        return requested(state, at, self.sent, call_id=_call_id(self.sent.id), model=model.text, texts=texts)


class Reports:
    def __init__(self, commit: Commit, scrub: Scrub, note: Callable[[Noted], None]) -> None:
        self._commit, self._scrub, self._note = commit, scrub, note
        self._inbox: Inbox[Received] = Inbox(
            self._write, lost=self._lost, away=lambda is_away: note(Noted(reports_wait=is_away))
        )
        self._tokens: Counter[SessionKey] = Counter()  # of what waits
        self._compactions: Counter[SessionKey] = Counter()  # that wait
        self._requests: defaultdict[SessionKey, list[Sent]] = defaultdict(list)  # that wait

    @property
    def waiting(self) -> int:
        return self._inbox.waiting

    @property
    def is_away(self) -> bool:
        """Whether some cannot be written for the time being."""
        return self._inbox.is_away

    def receive(self, key: SessionKey, reports: Sequence[Report]) -> None:
        """Take reports of a session, to be written behind; InboxFull, and none is taken, if there is no room."""
        self._put(key, reports)

    def receive_request(self, target: Target, sent: Sent) -> None:
        """The same with a request; of its messages' texts, the latest that fit."""
        request = Request(target, replace(sent, shares=_bounded(sent.shares)))
        self._put(target.key, [request])
        self._requests[target.key].append(request.sent)

    def waiting_tokens(self, key: SessionKey) -> int:
        """What a session's figures do not have yet."""
        return self._tokens[key]

    def waiting_compactions(self, key: SessionKey) -> int:
        """How many will yet make a session's figures shrink."""
        return self._compactions[key]

    def waiting_messages(self, key: SessionKey) -> Mapping[str | None, int]:
        """How many messages each thread has by requests that are not yet written."""
        counts: dict[str | None, int] = {}
        for share in (share for sent in self._requests.get(key, ()) for share in sent.shares):
            counts[share.branch_id] = max(counts.get(share.branch_id, 0), share.messages)
        return counts

    async def settled(self, key: SessionKey) -> None:
        """Wait until what was received for this session by now is written."""
        await self._inbox.settled(key)

    async def all_settled(self, owner: str) -> None:
        await self._inbox.all_settled(owner)

    async def close(self) -> None:
        await self._inbox.close(DRAIN_S)

    def _put(self, key: SessionKey, received: Sequence[Received]) -> None:
        self._inbox.put(key, received, [UTF8_MOST_BYTES * sum(map(len, one.texts)) for one in received])
        for one in received:
            self._tokens[key] += one.tokens
            self._compactions[key] += _compacts(one)

    async def _write(self, batch: Batch[Received]) -> None:
        started_s = time.monotonic()
        received = batch.items
        scrubbed = iter(await self._scrub(*(text for one in received for text in one.texts)))
        parts = [[next(scrubbed) for _ in one.texts] for one in received]
        texts: dict[int, str] = {}
        new: set[int] = set()

        def decide(state: State, at: str) -> list[Event]:
            """Each on the state that those before it leave."""
            texts.clear()
            new.clear()
            events: list[Event] = []
            state = session.drafted(state)
            for place, (one, part) in enumerate(zip(received, parts, strict=True)):
                happened = one.decided(state, at, part)
                for event in happened.events:
                    state = session.apply(state, event)
                    new.add(place)
                events += happened.events
                texts.update(happened.texts)
            return events

        # With an id, a commit whose answer was lost is known when it is tried again.
        operation = Operation(batch.id, batch.id)
        await self._commit(
            received[0].target, operation, decide, lambda *_: {}, begins=True, texts=texts, is_again=batch.is_again
        )
        became = Counter((one.told_by, RECORDED if place in new else REPEATED) for place, one in enumerate(received))
        self._settle(received)
        self._note(Noted(reports=became, reports_took_s=time.monotonic() - started_s))

    def _settle(self, received: Sequence[Received]) -> None:
        for one in received:
            key = one.target.key
            self._tokens[key] -= one.tokens
            self._compactions[key] -= _compacts(one)
            for counted in (self._tokens, self._compactions):
                if not counted[key]:
                    del counted[key]
            if isinstance(one, Request):
                self._requests[key].remove(one.sent)
                if not self._requests[key]:
                    del self._requests[key]

    def _lost(self, received: Sequence[Received], problem: Exception | None) -> None:
        self._settle(received)
        became = Counter((one.told_by, LOST) for one in received)
        self._note(Noted(reports=became, reports_failed=problem))


def _compacts(received: Received) -> bool:
    return isinstance(received, Report) and received.left_tokens is not None


def _call_id(given: str) -> str:
    return hashed(given)[:CALL_ID_LENGTH] if given else ""


def _bounded(shares: Sequence[Share]) -> tuple[Share, ...]:
    """The latest texts of each, the innermost thread's first, as long as there is room."""
    room = REQUEST_TEXT_MOST
    kept: list[Share] = []
    for share in reversed(shares):
        first = len(share.texts)
        while first and len(share.texts[first - 1]) <= room:
            first -= 1
            room -= len(share.texts[first])
        kept.append(replace(share, texts=share.texts[first:]))
    return tuple(reversed(kept))
