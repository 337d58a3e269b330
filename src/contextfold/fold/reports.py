"""What agents' hosts say was done: received at once, written behind. Knows no host's format and no wire.

Models do not report honestly, so their hosts do. A host must not be slowed, so a report is taken into the session's
inbox and its sender is answered; scrubbing, counting and the commit come after. What the log has already is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from contextfold.fold import session
from contextfold.fold.callers import Target
from contextfold.fold.events import Event
from contextfold.fold.inbox import Batch, Inbox
from contextfold.fold.notes import Noted
from contextfold.fold.project import hashed
from contextfold.fold.session import State
from contextfold.fold.sessions import Decide, Outcome, Tell
from contextfold.fold.store import Operation, SessionKey

HOOK = "hook"  # the source of these figures
RECORDED, REPEATED, LOST = "recorded", "repeated", "lost"  # what becomes of a report
CALL_ID_LENGTH = 16  # of a hash's 64 digits: enough among the few hundred it is compared with
UTF8_MOST_BYTES = 4  # of a character
DRAIN_S = 5.0  # at the end, for what has been received


@dataclass(frozen=True, slots=True)
class Report:
    target: Target
    told_by: str  # which host
    type: str
    content: str
    tokens: int
    failed: bool
    call_id: str  # empty if nothing tells two of them apart


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


class Reports:
    def __init__(self, commit: Commit, scrub: Scrub, note: Callable[[Noted], None]) -> None:
        self._commit, self._scrub, self._note = commit, scrub, note
        self._inbox: Inbox[Report] = Inbox(
            self._write, lost=self._lost, away=lambda is_away: note(Noted(reports_wait=is_away))
        )
        self._tokens: Counter[SessionKey] = Counter()  # of what waits

    @property
    def waiting(self) -> int:
        return self._inbox.waiting

    @property
    def is_away(self) -> bool:
        """Whether some cannot be written for the time being."""
        return self._inbox.is_away

    def receive(self, key: SessionKey, reports: Sequence[Report]) -> None:
        """Take reports of a session, to be written behind; InboxFull, and none is taken, if there is no room."""
        self._inbox.put(key, reports, [UTF8_MOST_BYTES * len(report.content) for report in reports])
        for report in reports:
            self._tokens[key] += report.tokens

    def waiting_tokens(self, key: SessionKey) -> int:
        """What a session's figures do not have yet."""
        return self._tokens[key]

    async def settled(self, key: SessionKey) -> None:
        """Wait until what was received for this session by now is written."""
        await self._inbox.settled(key)

    async def all_settled(self, owner: str) -> None:
        await self._inbox.all_settled(owner)

    async def close(self) -> None:
        await self._inbox.close(DRAIN_S)

    async def _write(self, batch: Batch[Report]) -> None:
        started_s = time.monotonic()
        reports = batch.items
        scrubbed = await self._scrub(*(text for report in reports for text in (report.type, report.content)))
        kinds, contents = scrubbed[::2], scrubbed[1::2]
        works = [_work(*each) for each in zip(reports, kinds, contents, strict=True)]
        texts: dict[int, str] = {}
        new: list[int] = []

        def decide(state: State, at: str) -> list[Event]:
            new[:] = session.unrepeated(state, works)
            events = session.record(state, at, *(works[place] for place in new))
            texts.clear()
            texts.update((event.n, contents[place].text) for event, place in zip(events, new, strict=True))
            return events

        # With an id, a commit whose answer was lost is known when it is tried again.
        operation = Operation(batch.id, batch.id)
        await self._commit(
            reports[0].target, operation, decide, lambda *_: {}, begins=True, texts=texts, is_again=batch.is_again
        )
        recorded = set(new)
        became = Counter(
            (report.told_by, RECORDED if place in recorded else REPEATED) for place, report in enumerate(reports)
        )
        self._settle(reports)
        self._note(Noted(reports=became, reports_took_s=time.monotonic() - started_s))

    def _settle(self, reports: Sequence[Report]) -> None:
        for report in reports:
            key = report.target.key
            self._tokens[key] -= report.tokens
            if not self._tokens[key]:
                del self._tokens[key]

    def _lost(self, reports: Sequence[Report], problem: Exception | None) -> None:
        self._settle(reports)
        became = Counter((report.told_by, LOST) for report in reports)
        self._note(Noted(reports=became, reports_failed=problem))


def _work(report: Report, kind: Scrubbed, content: Scrubbed) -> session.Work:
    return session.Work(
        kind.text,
        report.tokens,
        HOOK,
        failed=report.failed,
        redactions=kind.redactions + content.redactions,
        call_id=hashed(report.call_id)[:CALL_ID_LENGTH] if report.call_id else "",
    )
