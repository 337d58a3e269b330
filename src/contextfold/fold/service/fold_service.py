"""What each tool does: scrub, then look or change, then tell. Knows no wire and no database.

Nothing is kept, answered or passed on before it went through the scrubber; if that fails, the call fails. Tokens are
those of the text as the agent has it: that is what fills its context.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from contextfold.common.canonical import encode
from contextfold.common.token_counter import COUNTERS
from contextfold.errors import (
    BranchNotFound,
    ContextError,
    FoldError,
    InternalError,
    ScrubFailed,
    StoreInvalid,
    StoreUnavailable,
)
from contextfold.fold import session
from contextfold.fold import tool_results as answers
from contextfold.fold.accounting import Thresholds, health
from contextfold.fold.archive import mark_undone
from contextfold.fold.events import BranchFolded, Event, OperationCompleted
from contextfold.fold.ledger.savings import Prices
from contextfold.fold.ledger.sent_request import Sent
from contextfold.fold.paging import Page
from contextfold.fold.project import Project, displayed, hashed
from contextfold.fold.reminder import Reminding, branch_line, state_line
from contextfold.fold.service.activity import Noted
from contextfold.fold.service.callers import Caller, Target, target_of
from contextfold.fold.service.reports import Reports, Scrubbed
from contextfold.fold.service.sessions import Change, Decide, Outcome, Sessions, Tell, moment_told
from contextfold.fold.session import EMPTY, Beginning, Branch, Limits, State
from contextfold.fold.store import Operation, SessionKey, Store, Summary
from contextfold.fold.tool_arguments import (
    BranchRequest,
    ExpandRequest,
    LookRequest,
    RecordRequest,
    ReturnRequest,
    RollbackRequest,
    check_operation_id,
    cursor_of,
)
from contextfold.fold.tool_results import Shape

SCRUB_INLINE_LENGTH = 16_384  # a longer text is scrubbed in a thread, so that others are answered meanwhile
SCRUB_LONG_LENGTH = 1_000_000  # and one longer than this in lanes of its own, so that it holds up nobody but its like
PAGE_ENTRIES = 64
SEARCH_LIMIT = 20
ADDRESSES_MAX = 10_000  # of the sessions that were called last
NO_REMINDER = Reminding(is_on=False)


class Scrubs(Protocol):
    def scrub(self, text: str) -> Scrubbed: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """What a user may set about folding."""

    limits: Limits = field(default_factory=Limits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    counter: str = "v0"
    idle_s: int = 24 * 3600
    archive_days: int = 30
    summary_days: int = 365
    reminding: Reminding = field(default_factory=Reminding)
    prices: Prices = field(default_factory=Prices)


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


class FoldService:
    def __init__(
        self,
        store: Store,
        scrubber: Scrubs,
        policy: Policy | None = None,
        *,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[str], str] = _new_id,
        note: Callable[[Noted], None] = lambda _noted: None,
    ) -> None:
        self.store = store
        self.policy = policy or Policy()
        self.sessions = Sessions(store, self.policy.limits, self.policy.idle_s, clock, lambda: note(Noted(conflicts=1)))
        self._scrubber = scrubber
        self.count = COUNTERS[self.policy.counter]
        self._clock = clock
        self._new_id = new_id
        self._note = note
        self._addresses: OrderedDict[str, Target] = OrderedDict()
        self.reports = Reports(self.commit, self.scrub, note)
        self._lanes = (ThreadPoolExecutor(4, "contextfold-scrub"), ThreadPoolExecutor(2, "contextfold-scrub-long"))

    async def branch(self, caller: Caller, request: BranchRequest) -> Outcome:
        description, prompt = await self.scrub(request.description, request.prompt)
        branch_id = self._new_id("br")

        def decide(state: State, at: str) -> list[Event]:
            return session.branch(
                state,
                self.policy.limits,
                at,
                branch_id=branch_id,
                description=description.text,
                prompt=prompt.text,
                tokens=self.count(request.prompt),
                redactions=description.redactions + prompt.redactions,
            )

        def tell(_before: State, _events: Sequence[Event], after: State) -> Shape:
            return answers.branched(after.branches[branch_id], after)

        asked = ["branch", description.text, prompt.text]
        return await self._change(
            target_of(caller, request.project), caller.operation_id, asked, decide, tell, begins=True
        )

    async def fold(self, caller: Caller, request: ReturnRequest) -> Outcome:
        (summary,) = await self.scrub(request.message)
        target = target_of(caller, request.project)

        def decide(state: State, at: str) -> list[Event]:
            return session.fold(
                state,
                at,
                branch_id=request.branch_id,
                summary=summary.text,
                summary_tokens=self.count(request.message),
                redactions=summary.redactions,
            )

        def tell(_before: State, events: Sequence[Event], after: State) -> Shape:
            event = events[-1]
            assert isinstance(event, BranchFolded)
            return answers.folded(event, after, self._health(after, after.branches[event.branch_id]))

        asked = ["return", summary.text, request.branch_id or ""]
        return await self._change(target, caller.operation_id, asked, decide, tell)

    async def record(self, caller: Caller, request: RecordRequest, source: str) -> Outcome:
        kind, content = await self.scrub(request.type, request.content)
        tokens = self.count(request.content) if request.tokens is None else request.tokens
        redactions = kind.redactions + content.redactions

        texts: dict[int, str] = {}

        def decide(state: State, at: str) -> list[Event]:
            events = session.record(
                state, at, session.Work(kind.text, tokens, source, failed=request.failed, redactions=redactions)
            )
            texts[events[-1].n] = content.text
            return events

        def tell(_before: State, events: Sequence[Event], after: State) -> Shape:
            event = events[-1]
            assert isinstance(event, OperationCompleted)
            counter = self.policy.counter if request.tokens is None else None
            return answers.recorded(event, after, self._health(after, after.active), counter)

        asked = ["record", kind.text, content.text, str(tokens), str(request.failed), source]
        target = target_of(caller, request.project)
        return await self._change(target, caller.operation_id, asked, decide, tell, begins=True, texts=texts)

    async def rollback(self, caller: Caller, request: RollbackRequest) -> Outcome:
        target = target_of(caller, request.project)
        return await self.roll_back(target, request.branch_id, request.restore_state, caller.operation_id)

    async def roll_back(
        self, target: Target, branch_id: str, restore_state: bool, operation_id: str | None = None
    ) -> Outcome:
        def decide(state: State, at: str) -> list[Event]:
            return session.rollback(state, at, branch_id=branch_id, restore_state=restore_state)

        def tell(before: State, events: Sequence[Event], after: State) -> Shape:
            return answers.rolled_back(branch_id, before, events, after)

        asked = ["rollback", branch_id, str(restore_state)]
        return await self._change(target, operation_id, asked, decide, tell)

    async def status(self, caller: Caller, request: LookRequest) -> Outcome:
        target = target_of(caller, request.project)
        state = await self.look(target.key)
        self._remember(target)
        return self._looked(answers.status(state, self.policy.limits), state)

    async def list_branches(self, caller: Caller, request: LookRequest) -> Outcome:
        state = await self.look(target_of(caller, request.project).key)
        return self._looked(answers.listed(state), state)

    async def expand(self, caller: Caller, request: ExpandRequest) -> Outcome:
        """A branch's trajectory from the archive, as much of it as the budget holds."""
        key = target_of(caller, request.project).key
        state = await self.look(key)
        position = (request.after_n, request.offset)
        shape = await self.page(key, request.branch_id, state.session_id, request.budget_tokens, position)
        return self._looked(shape, state)

    async def page(
        self,
        key: SessionKey,
        branch_id: str | None,
        session_id: str | None,
        budget_tokens: int,
        position: tuple[int, int],
    ) -> Shape:
        """What a thread did, from a position on; None is the main thread of the session."""
        page = Page(branch_id or "", budget_tokens, self.count)
        after_n, offset = position
        while True:
            found = await self.store.trajectory(
                key.owner,
                key.project_hash,
                branch_id,
                session_id=session_id or "",
                after_n=after_n,
                limit=PAGE_ENTRIES,
                characters=offset + page.characters,
            )
            if found is None and branch_id is not None:
                raise BranchNotFound(branch_id, session_id)
            entries = mark_undone(found.entries, found.rollbacks) if found else []
            for entry in entries:
                stopped_at = page.take(entry, offset)
                if stopped_at is not None:
                    return page.answer(cursor_of(after_n, stopped_at))
                after_n, offset = entry.n, 0
            if not entries:
                return page.answer(None)

    async def search(self, owner: str, query: str, project: Project | None, limit: int = SEARCH_LIMIT) -> list[Summary]:
        return list(await self.store.search(owner, query, project.hash if project else None, limit))

    async def end_idle(self) -> int:
        """End the sessions without activity; their number."""
        return await self.store.expire(self._ago(seconds=self.policy.idle_s), self._ago(seconds=0))

    async def forget(self) -> None:
        """Forget what is past its retention."""
        await self.store.retain(self._ago(days=self.policy.archive_days), self._ago(days=self.policy.summary_days))

    def _ago(self, **span: int) -> str:
        return moment_told(self._clock() - timedelta(**span))

    async def close(self) -> None:
        """Write what was received, then let the store go."""
        await self.reports.close()
        await self.store.close()

    # ---- requests to models

    def sent(self, target: Target, sent: Sent) -> None:
        """Take what a request tells of a session, to be written behind; InboxFull if there is no room."""
        self.reports.receive_request(target, sent)

    def messages_known(self, key: SessionKey) -> Mapping[str | None, int]:
        """How many messages of each open thread were handed over, by what is known at once: only newer ones matter."""
        state, waiting = self.sessions.last_known(key), self.reports.waiting_messages(key)
        known: dict[str | None, int] = {open_id: state.branches[open_id].messages for open_id in state.path}
        known[None] = state.main.messages
        return {thread: max(known.get(thread, 0), waiting.get(thread, 0)) for thread in {**known, **waiting}}

    def compactions_known(self, key: SessionKey) -> int:
        """Of a session, by what is known at once."""
        return self.sessions.last_known(key).compactions + self.reports.waiting_compactions(key)

    # ---- what every answer carries

    @property
    def no_state(self) -> str:
        """The state told where there is no session."""
        return self.sessions.told(EMPTY)

    async def state_after_failure(self, caller: Caller, project: Project, problem: Exception) -> str:
        """The session's state, or the empty one if even that cannot be had. A store that failed is not asked again."""
        try:
            key = target_of(caller, project).key
            is_store = isinstance(problem, StoreUnavailable | StoreInvalid)
            state = self.sessions.last_known(key) if is_store else await self.sessions.look(key)
        except ContextError:
            return self.no_state
        return self.sessions.told(state)

    def reminder(self, outcome: Outcome) -> str:
        """A line about the branch that is open after a call; empty where there is none."""
        return branch_line(outcome.now, 0, self.policy.limits, self.policy.reminding)

    def line(self, key: SessionKey, *, reminds: bool = True) -> str:
        """What is known of a session without asking anybody, in a line, if there is something to say."""
        if self.reports.waiting_compactions(key):
            return ""  # its figures are about to shrink, to what nobody has counted yet
        policy, state = self.policy, self.sessions.last_known(key)
        reminding = policy.reminding if reminds else NO_REMINDER
        return state_line(state, self.reports.waiting_tokens(key), policy.limits, policy.thresholds, reminding)

    def told_safely(self, problem: FoldError) -> tuple[str, Shape]:
        """An error's message and data, scrubbed: they repeat what the caller sent."""
        try:
            data = {
                name: self._scrubber.scrub(value).text if isinstance(value, str) else value
                for name, value in problem.data.items()
            }
            return self._scrubber.scrub(problem.message).text, data
        except Exception:  # what cannot be scrubbed is not told
            return InternalError.message, {}

    # ----

    async def look(self, key: SessionKey) -> State:
        """A session as it is now, with all that was reported before."""
        await self.reports.settled(key)
        return await self.sessions.look(key)

    async def _change(
        self,
        target: Target,
        operation_id: str | None,
        asked: list[str],
        decide: Decide,
        tell: Tell,
        *,
        begins: bool = False,
        texts: Mapping[int, str] | None = None,
    ) -> Outcome:
        operation = None
        if operation_id is not None:
            operation = Operation(hashed(check_operation_id(operation_id)), hashed(encode(asked)))
        await self.reports.settled(target.key)
        return await self.commit(target, operation, decide, tell, begins=begins, texts={} if texts is None else texts)

    async def commit(
        self,
        target: Target,
        operation: Operation | None,
        decide: Decide,
        tell: Tell,
        *,
        begins: bool,
        texts: Mapping[int, str],
        is_again: bool = True,
    ) -> Outcome:
        given, name = await self.scrub(target.given_path, target.given_name or "")
        (path,) = await self.scrub(displayed(given.text))
        beginning = Beginning(self._new_id("sess"), path.text, name.text or None)
        try:
            outcome = await self.sessions.change(
                Change(target.key, beginning, begins, operation, decide, tell, texts, is_again)
            )
        except (StoreUnavailable, StoreInvalid):
            self._note(Noted(store_failed=True))
            raise
        self._note(Noted(events=outcome.events))
        self._remember(target)
        return outcome

    def address(self, owner: str, session_id: str) -> Target | None:
        """Where one of the latest sessions is, without asking anybody."""
        target = self._addresses.get(session_id)
        return target if target and target.key.owner == owner else None

    def _remember(self, target: Target) -> None:
        session_id = self.sessions.last_known(target.key).session_id
        if session_id is not None:
            self._addresses[session_id] = target
            self._addresses.move_to_end(session_id)
            if len(self._addresses) > ADDRESSES_MAX:
                self._addresses.popitem(last=False)

    def _looked(self, shape: Shape, state: State) -> Outcome:
        return Outcome(encode(shape), self.sessions.told(state), now=state)

    def _health(self, state: State, branch: Branch | None) -> Shape:
        return answers.health_told(health(state, self.policy.limits, self.policy.thresholds, branch))

    async def scrub(self, *texts: str) -> list[Scrubbed]:
        try:
            length = sum(map(len, texts))
            if length <= SCRUB_INLINE_LENGTH:
                scrubbed = [self._scrubber.scrub(text) for text in texts]
            else:
                lane = self._lanes[length > SCRUB_LONG_LENGTH]
                loop = asyncio.get_running_loop()
                scrubbed = await loop.run_in_executor(lane, lambda: [self._scrubber.scrub(text) for text in texts])
        except Exception as problem:  # fail closed: whatever went wrong, nothing unscrubbed goes on
            raise ScrubFailed(type(problem).__name__) from None
        if rules := [rule for one in scrubbed for rule in one.rules]:
            self._note(Noted(rules=rules))
        return scrubbed
