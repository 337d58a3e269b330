"""Receives hook reports and requests to models at once and records them later. Knows no host's format, no protocol.

Models do not report reliably, so hosts report and providers count. A report must not delay its sender, so it is put
into the session's inbox; scrubbing and committing follow later, in the order of arrival. Reports that are already in
the log are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from contextfold.common.canonical import JsonObject
from contextfold.fold.events import Event, OperationCompleted
from contextfold.fold.project import Target
from contextfold.fold.sent_request import RecordedEvents, RequestReport, ScrubbedText, call_id_of, record_request
from contextfold.fold.service.inbox import Inbox
from contextfold.fold.service.sessions import VerbOutcome
from contextfold.fold.session import Replay, State
from contextfold.fold.store import Operation, SessionKey
from contextfold.fold.verbs import RecordOperations, Verb

# The source of the figures of a hook report.
HOOK = "hook"
# The outcomes of a report.
RECORDED, REPEATED, LOST = "recorded", "repeated", "lost"
CHARACTER_BYTES_MAX = 4


@dataclass(frozen=True, slots=True)
class Activity:
    """What the service did, for metrics and traces: numbers and fixed names, no texts."""

    events: Sequence[Event] = ()
    # The rules that redacted something.
    rules: Sequence[str] = ()
    conflicts: int = 0
    store_failed: bool = False
    # The number of reports by host and outcome.
    reports: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reports_took_s: float | None = None
    # The error because of which reports were lost.
    reports_failed: Exception | None = None
    # Whether reports wait for an unavailable store; set only when that changes.
    reports_wait: bool | None = None


class HookReport(NamedTuple):
    """An operation that a host has reported."""

    # The host's name.
    reporter: str
    type: str
    content: str
    # The tokens by which the session's figures will certainly grow.
    tokens: int
    failed: bool
    # Empty if repeated reports cannot be recognised.
    call_id: str
    # Only for a compaction: the tokens in the context after it.
    left_tokens: int | None = None
    by_user: bool = False
    model: str = ""

    @property
    def texts(self) -> Sequence[str]:
        """All texts that may contain secrets."""
        return (self.type, self.content, self.model) if self.model else (self.type, self.content)

    def operation(self, scrubbed: Sequence[ScrubbedText]) -> OperationCompleted:
        """The operation without number, time and thread."""
        kind, content = scrubbed[:2]
        return OperationCompleted(
            0,
            "",
            None,
            kind.text,
            self.tokens if self.left_tokens is None else self.left_tokens,
            HOOK,
            self.failed,
            kind.redactions + content.redactions,
            call_id_of(self.call_id),
            compacts=self.left_tokens is not None,
            by_user=self.by_user,
            model=scrubbed[2].text if self.model else "",
            host=self.reporter,
        )


# What is received and not yet recorded.
Received = HookReport | RequestReport


class RecordReports:
    """The verb that records a batch of reports. `scrubbed` has the texts of each."""

    begins_session: ClassVar[bool] = True
    has_health: ClassVar[bool] = False

    def __init__(self, batch_id: str, received: Sequence[Received], scrubbed: Sequence[Sequence[ScrubbedText]]) -> None:
        self.identity = (batch_id,)
        self._received, self._scrubbed = received, scrubbed
        # The indexes of the reports that the log did not have, and the texts of their operations.
        self.new: set[int] = set()
        self._texts: dict[int, str] = {}

    def decide(self, state: State, at: str) -> list[Event]:
        """Decide successive reports together, and each request on the state after the items before it."""
        self._texts.clear()
        self.new.clear()
        events: list[Event] = []
        calls = set(state.calls)
        operations: list[tuple[OperationCompleted, str]] = []
        replay = Replay(state)

        def take(recorded: RecordedEvents) -> None:
            replay.apply(recorded.events)
            events.extend(recorded.events)
            self._texts.update(recorded.texts)

        for index, (report, scrubbed) in enumerate(zip(self._received, self._scrubbed, strict=True)):
            if isinstance(report, HookReport):
                operation = report.operation(scrubbed)
                if not operation.call_id or operation.call_id not in calls:
                    calls.add(operation.call_id)
                    operations.append((operation, scrubbed[1].text))
                    self.new.add(index)
                continue
            recorded, operations = _record_operations(operations, replay.state, at), []
            take(recorded)
            request = record_request(replay.state, at, report, scrubbed)
            take(request)
            if request.events:
                self.new.add(index)
        take(_record_operations(operations, replay.state, at))
        return events

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        return {}

    def texts(self, events: Sequence[Event]) -> Mapping[int, str]:
        return self._texts


@dataclass(slots=True)
class WaitingSums:
    """The sums over the waiting reports of one session, and the target of the first, which may begin the session."""

    target: Target
    count: int = 0
    tokens: int = 0
    compactions: int = 0
    prompts: int = 0
    requests: list[RequestReport] = field(default_factory=list)

    def add(self, report: Received, sign: int = 1) -> None:
        """Add a report, or subtract it again."""
        self.count += sign
        self.tokens += sign * report.tokens
        if isinstance(report, HookReport):
            self.compactions += sign * (report.left_tokens is not None)
            self.prompts += sign * report.by_user
        elif sign > 0:
            self.requests.append(report)
        else:
            self.requests.remove(report)


class Reports(Inbox[Received]):
    """The inbox of the service. What it receives is scrubbed, then committed as one verb for each batch."""

    def __init__(
        self,
        scrub: Callable[..., Awaitable[Sequence[ScrubbedText]]],
        commit: Callable[[Target, Verb, Operation], Awaitable[VerbOutcome]],
        note: Callable[[Activity], None],
    ) -> None:
        super().__init__()
        self._scrub, self._commit, self._note = scrub, commit, note
        # The waiting reports by session.
        self._sessions: dict[SessionKey, WaitingSums] = {}

    def receive(self, target: Target, *received: Received) -> None:
        """Accept reports of a session; they are recorded later. Raises InboxFull and accepts none if it is full."""
        key = target.key
        self.put(key, received, [CHARACTER_BYTES_MAX * sum(map(len, report.texts)) for report in received])
        for report in received:
            self._sessions.setdefault(key, WaitingSums(target)).add(report)

    def waiting_for(self, key: SessionKey) -> WaitingSums | None:
        """The sums over what is not yet in a session's figures; None if nothing waits."""
        return self._sessions.get(key)

    async def write(self, key: SessionKey, batch_id: str, items: Sequence[Received]) -> None:
        started_s = time.monotonic()
        # Many reports have texts in common, such as the names of tools.
        distinct = dict.fromkeys(text for report in items for text in report.texts)
        clean = dict(zip(distinct, await self._scrub(*distinct), strict=True))
        verb = RecordReports(batch_id, items, [[clean[text] for text in report.texts] for report in items])
        # With an operation id, a retry after a lost response does not record the batch twice.
        await self._commit(self._sessions[key].target, verb, Operation(batch_id, batch_id))
        outcomes = Counter(
            (report.reporter, RECORDED if index in verb.new else REPEATED) for index, report in enumerate(items)
        )
        self._subtract(key, items)
        self._note(Activity(reports=outcomes, reports_took_s=time.monotonic() - started_s))

    def _subtract(self, key: SessionKey, received: Sequence[Received]) -> None:
        sums = self._sessions[key]
        for report in received:
            sums.add(report, -1)
        if not sums.count:
            del self._sessions[key]

    def lose(self, key: SessionKey, items: Sequence[Received], problem: Exception | None) -> None:
        self._subtract(key, items)
        outcomes = Counter((report.reporter, LOST) for report in items)
        self._note(Activity(reports=outcomes, reports_failed=problem))

    def note_unavailable(self, is_unavailable: bool) -> None:
        self._note(Activity(reports_wait=is_unavailable))


def _record_operations(operations: Sequence[tuple[OperationCompleted, str]], state: State, at: str) -> RecordedEvents:
    verb = RecordOperations([operation for operation, _ in operations], [text for _, text in operations])
    events = verb.decide(state, at)
    return RecordedEvents(events, list(verb.texts(events).items()))
