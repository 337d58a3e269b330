"""The folding tools as a service: scrubs texts, then reads or changes a session. Knows no protocol and no database.

No text is stored or returned before it was scrubbed; if scrubbing fails, the call fails. Tokens are counted in the
original text, because that is what fills the agent's context.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from typing import Any, Protocol

from contextfold.common.answer_format import TEXT
from contextfold.common.bounded_cache import BoundedCache
from contextfold.common.canonical import JsonObject, encode
from contextfold.common.tokens import FOLD_COUNTERS
from contextfold.errors import (
    ArgumentInvalid,
    BranchNotFound,
    ContextError,
    FoldError,
    InternalError,
    ScrubFailed,
    SessionNotFound,
    StoreInvalid,
    StoreUnavailable,
)
from contextfold.fold import tool_calls
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event, OperationCompleted, SessionStarted
from contextfold.fold.messages.by_hand import UNDONE, Work, note_outcomes
from contextfold.fold.policy import Advice, FoldPolicy, GivenAdvice, choose_advice
from contextfold.fold.project import Caller, Conversation, Project, Target, display_path, hash_text, target_of
from contextfold.fold.sent_request import ScrubbedText
from contextfold.fold.service.conversation_records import encode_outcome
from contextfold.fold.service.conversations import Conversations
from contextfold.fold.service.recall import Recall
from contextfold.fold.service.reports import Activity, Reports
from contextfold.fold.service.session_views import FoundSession
from contextfold.fold.service.sessions import SessionChange, Sessions, VerbOutcome
from contextfold.fold.service.stored_sessions import read_page
from contextfold.fold.session import EMPTY, State
from contextfold.fold.store import (
    ArchivedThread,
    LeftOutDecision,
    Operation,
    ProxiedConversation,
    SessionKey,
    Store,
    WatchedEvent,
)
from contextfold.fold.tool_calls import (
    DESCRIPTION_LENGTH_MAX,
    MESSAGE_LENGTH_MAX,
    PROMPT_LENGTH_MAX,
    RESULT_PREFIX,
    RESULT_UNKNOWN,
    TOKENS_MAX,
    TYPE_LENGTH_MAX,
    ArgumentFields,
    Arguments,
    TrajectoryPage,
    check_operation_id,
    cursor_of,
    parse_recall_request,
)
from contextfold.fold.verbs import (
    FoldWork,
    OpenBranch,
    RecordOperations,
    ReturnBranch,
    RollBack,
    Verb,
)

# A longer text is scrubbed in a thread, so that other calls are answered meanwhile.
SCRUB_INLINE_LENGTH = 16_384
# Even longer texts have threads of their own, so that they do not delay shorter ones.
SCRUB_LONG_LENGTH = 1_000_000
SCRUB_THREADS, SCRUB_LONG_THREADS = 4, 2
# At most this many targets of sessions are remembered.
TARGETS_CACHED_MAX = 10_000


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(8).hex()}"


class TextScrubber(Protocol):
    def scrub(self, text: str) -> ScrubbedText: ...


class RequestFolding(Protocol):
    """Leaves work that a person folds out of the requests of a conversation."""

    async def find_work(self, owner: str, conversation: str) -> Work | None: ...

    async def leave_work_out(self, owner: str, conversation: str, work: Work, decision: LeftOutDecision) -> bool: ...


class FoldService:
    def __init__(
        self,
        store: Store,
        scrubber: TextScrubber,
        policy: FoldPolicy | None = None,
        *,
        clock: Callable[[], datetime] = _now,
        new_id: Callable[[str], str] = _new_id,
        note: Callable[[Activity], None] = lambda _activity: None,
    ) -> None:
        self.store = store
        self.policy = policy or FoldPolicy()
        # Counts the tokens of a text.
        self.count = FOLD_COUNTERS[self.policy.counter]
        self._scrubber = scrubber
        self._clock = clock
        self.sessions = Sessions(
            store, self.policy, clock, health_of=self._health, on_conflict=lambda: note(Activity(conflicts=1))
        )
        self._new_id = new_id
        self._note = note
        self._targets = BoundedCache[str, Target](TARGETS_CACHED_MAX)
        self._given_advice = GivenAdvice()
        self.reports = Reports(self.scrub, self._commit, note)
        self.recalls = Recall(store, self.scrub, clock)
        self.conversations = Conversations(
            store, self.sessions.look, clock=lambda: clock().timestamp(), idle_s=self.policy.idle_s
        )
        # Set by the proxy.
        self.request_folding: RequestFolding | None = None
        # A thread is started when there is the first text for it.
        self._scrub_threads = ThreadPoolExecutor(SCRUB_THREADS, "contextfold-scrub")
        self._scrub_long_threads = ThreadPoolExecutor(SCRUB_LONG_THREADS, "contextfold-scrub-long")

    def with_clock(self, clock: Callable[[], datetime]) -> FoldService:
        """A service on the same store whose time is another. Only this one may be closed."""
        return FoldService(self.store, self._scrubber, self.policy, clock=clock, new_id=self._new_id)

    # ---- which session

    async def identify(self, caller: Caller, tool: str, arguments: Arguments) -> Caller:
        """The caller of a tool with the session of its conversation, if that is known and the caller names no other."""
        run = await self.conversations.find_run(caller.owner, caller.run) if caller.run else None
        caller = caller._replace(project=run.project if run else None)
        await self.conversations.wait_for_arriving(caller.owner)
        if caller.session_name is not None:
            return caller
        known = await self.conversations.session_of_call(
            caller.owner, tool, arguments, call_id=caller.call_id, run=caller.run
        )
        project = _given_project(arguments) or caller.project
        if known is None and project:
            known = self.conversations.latest_of(caller.owner, project)
        if known is None:
            return caller
        if project:
            self.conversations.set_project(known, project)
        return caller._replace(session=known.target)

    # ---- verbs

    async def open_branch(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        fields = ArgumentFields(arguments, "description", "prompt", "project_path")
        given_description = fields.text("description", length_max=DESCRIPTION_LENGTH_MAX, may_be_blank=False)
        given_prompt = fields.text("prompt", length_max=PROMPT_LENGTH_MAX, may_be_blank=False)
        target = target_of(caller, fields.project())
        description, prompt = await self.scrub(given_description, given_prompt)
        verb = OpenBranch(
            self._new_id("br"),
            description.text,
            prompt.text,
            self.count(given_prompt),
            description.redactions + prompt.redactions,
            self.policy,
        )
        return await self.change(target, verb, caller.operation_id)

    async def return_branch(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        fields = ArgumentFields(arguments, "message", "project_path", "branch_id")
        message = fields.text("message", length_max=MESSAGE_LENGTH_MAX)
        target = target_of(caller, fields.project())
        branch_id = fields.branch_id() if fields.has("branch_id") else None
        (summary,) = await self.scrub(message)
        verb = ReturnBranch(branch_id, summary.text, self.count(message), summary.redactions)
        return await self.change(target, verb, caller.operation_id)

    async def fold_work(self, caller: Caller, arguments: Arguments, *, tokens: int | None = None) -> VerbOutcome:
        fields = ArgumentFields(arguments, "message", "project_path")
        message = fields.text("message", length_max=MESSAGE_LENGTH_MAX, may_be_blank=False)
        target = target_of(caller, fields.optional_project())
        (summary,) = await self.scrub(message)
        figures = (summary.text, self.count(message), summary.redactions)
        verb = FoldWork(self._new_id("br"), *figures, self.policy.limits, tokens)
        return await self.change(target, verb, caller.operation_id)

    async def fold_session(
        self, owner: str, session_id: str, arguments: Arguments, operation_id: str | None = None
    ) -> Mapping[str, Any]:
        """The result of a fold by a person, in a session that was found in a list, for a model that does not fold.

        Its member `requests` has the tokens that later requests leave out, or is null if they stay as they are.
        """
        await self.conversations.wait_for_arriving(owner)
        found = await self.find(owner, session_id)
        folding, conversation = self.request_folding, found.state.proxied_id
        work = await folding.find_work(owner, conversation) if folding else None
        caller = Caller(owner, None, operation_id, session=found.target)
        outcome = await self.fold_work(caller, arguments, tokens=work.tokens if work else None)
        requests: JsonObject | None = None
        if folding and work:
            (summary,) = await self.scrub(str(arguments["message"]))
            decision = work.decide(outcome.answer["branch_id"], summary.text)
            if await folding.leave_work_out(owner, conversation, work, decision):
                requests = {"tokens": work.tokens, "may_wait": work.may_wait}
        return {**outcome.answer, "requests": requests}

    async def record(self, caller: Caller, arguments: Arguments, source: str = "reported") -> VerbOutcome:
        fields = ArgumentFields(arguments, "project_path", "type", "content", "tokens", "failed")
        if not fields.has("content") and not fields.has("tokens"):
            raise ArgumentInvalid("content", "or tokens must be given")
        target = target_of(caller, fields.project())
        given_type = fields.word("type", length_max=TYPE_LENGTH_MAX)
        given_content = fields.text("content") if fields.has("content") else ""
        is_counted = not fields.has("tokens")
        tokens = self.count(given_content) if is_counted else fields.number("tokens", 0, TOKENS_MAX)
        failed = fields.flag("failed", default=False)
        kind, content = await self.scrub(given_type, given_content)
        redactions = kind.redactions + content.redactions
        operation = OperationCompleted(0, "", None, kind.text, tokens, source, failed, redactions)
        verb = RecordOperations((operation,), (content.text,), self.policy.counter if is_counted else None)
        return await self.change(target, verb, caller.operation_id)

    async def roll_back(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        fields = ArgumentFields(arguments, "project_path", "branch_id", "restore_state")
        return await self.change(target_of(caller, fields.project()), _parse_rollback(fields), caller.operation_id)

    async def roll_back_session(
        self, owner: str, session_id: str, arguments: Arguments, operation_id: str | None = None
    ) -> Mapping[str, Any]:
        """The result of a rollback by a person, in a session that was found in a list."""
        verb = _parse_rollback(ArgumentFields(arguments, "branch_id", "restore_state"))
        found = await self.find(owner, session_id)
        return (await self.change(found.target, verb, operation_id)).answer

    # ---- reading

    async def follow(self, owner: str, after: str, session_id: str | None = None) -> AsyncGenerator[WatchedEvent]:
        """Yield events after a cursor, of one session or of all, without end."""
        async for seen in self.store.watch(owner, after):
            if session_id in (None, seen.session_id):
                yield seen

    async def branch_status(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        target = target_of(caller, ArgumentFields(arguments, "project_path").project())
        state = await self.look(target.key)
        self._remember(target)
        return VerbOutcome(tool_calls.status_result(state, self.policy.context_limit(state)), state)

    async def list_branches(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        state = await self.look(target_of(caller, ArgumentFields(arguments, "project_path").project()).key)
        return VerbOutcome(tool_calls.list_result(state), state)

    async def expand(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        """A page of a branch's trajectory, or of a left-out result, within the budget."""
        fields = ArgumentFields(arguments, "project_path", "branch_id", "budget", "cursor")
        position = fields.position()
        project = fields.optional_project()
        key = target_of(caller, project).key
        thread_id, budget_tokens = fields.branch_id(), fields.budget()
        state = await self.look(key)
        if thread_id.startswith(RESULT_PREFIX):
            return VerbOutcome(await self._result_page(key.owner, thread_id, budget_tokens, *position), state)
        try:
            page = await self.page(key, thread_id, state.session_id, budget_tokens, position)
        except BranchNotFound:
            if project is None or project.hash == key.project_hash:
                raise
            # A session that began before its project was known has another key than the project's other sessions.
            elsewhere = key._replace(project_hash=project.hash)
            page = await self.page(elsewhere, thread_id, state.session_id, budget_tokens, position)
        return VerbOutcome(page, state)

    async def _result_page(
        self, owner: str, result_id: str, budget_tokens: int, after_n: int, offset: int
    ) -> JsonObject:
        """A tool result that the proxy left out, as one entry. An id of another owner is not found."""
        text = await self.store.left_out_text(owner, result_id)
        if text is None:
            raise ArgumentInvalid("branch_id", f"{result_id} {RESULT_UNKNOWN}")
        page = TrajectoryPage(result_id, budget_tokens, self.count)
        entry = ArchiveEntry(None, 1, "", "result", text, self.count(text))
        if offset > len(text) or after_n >= entry.n:
            raise ArgumentInvalid("cursor", "is behind the end of this result")
        stopped_at = page.take(entry, offset)
        return page.result(None if stopped_at is None else cursor_of(0, stopped_at))

    async def recall(self, caller: Caller, arguments: Arguments) -> VerbOutcome:
        """Folded work and left-out results of all sessions that answer a question."""
        request = parse_recall_request(arguments)
        is_known = request.project or caller.session
        state = await self.look(target_of(caller, request.project).key) if is_known else EMPTY
        answer = await self.recalls.answer(caller.owner, request)
        return VerbOutcome(answer.as_members(), state, text=answer.to_text() if request.format == TEXT else "")

    async def page(
        self,
        key: SessionKey,
        branch_id: str | None,
        session_id: str | None,
        budget_tokens: int,
        position: tuple[int, int],
    ) -> JsonObject:
        """A page of a thread's trajectory from a position on. A branch id of None means the main thread."""
        thread = ArchivedThread(key.owner, key.project_hash, branch_id, session_id or "")
        return await read_page(self.store, thread, budget_tokens, position, self.count)

    # ---- housekeeping

    async def end_idle(self) -> int:
        """End the sessions without activity; returns their number."""
        return await self.sessions.end_idle()

    async def forget(self) -> None:
        """Delete data after the end of its retention."""
        await self.sessions.observe_clock()
        archive, summaries = timedelta(days=self.policy.archive_days), timedelta(days=self.policy.summary_days)
        await self.store.retain(self.sessions.ago(archive), self.sessions.ago(summaries))
        await self.recalls.maintain()

    async def close(self) -> None:
        """Write the received reports, then close the store."""
        await self.reports.close()
        await self.store.close()

    # ---- requests to models

    def messages_known(self, key: SessionKey) -> Mapping[str | None, int]:
        """The number of messages of each open thread that are recorded or waiting. Does not read the store."""
        state, waiting = self.sessions.last_known(key), self.reports.waiting_for(key)
        known: dict[str | None, int] = {open_id: state.branches[open_id].messages for open_id in state.path}
        known[None] = state.main.messages
        for share in (share for report in waiting.requests for share in report.shares) if waiting else ():
            known[share.branch_id] = max(known.get(share.branch_id, 0), share.messages)
        return known

    def compactions_known(self, key: SessionKey) -> int:
        """The number of the host's compactions. Does not read the store."""
        waiting = self.reports.waiting_for(key)
        return self.sessions.last_known(key).compactions + (waiting.compactions if waiting else 0)

    # ---- state and advice beside every result

    def describe_state(self, state: State) -> JsonObject:
        """What every response says about the session beside its result."""
        return tool_calls.state_result(state, self.policy.context_limit(state))

    async def state_after_failure(self, caller: Caller, arguments: Arguments, problem: Exception) -> State:
        """The session's state, or an empty state if it cannot be read. A store that failed is not read again."""
        try:
            key = target_of(caller, _given_project(arguments)).key
            is_store = isinstance(problem, StoreUnavailable | StoreInvalid)
            return self.sessions.last_known(key) if is_store else await self.sessions.look(key)
        except (ContextError, OSError):
            return EMPTY

    def advice_line(self, key: SessionKey) -> str:
        """Advice for an agent whose host has just sent a report. Does not read the store."""
        # During a compaction the new figures are not yet known. After a prompt of the user there is nothing to fold.
        waiting = self.reports.waiting_for(key)
        if waiting and (waiting.compactions or waiting.prompts):
            return ""
        state = self.sessions.last_known(key)
        return self.advise(state, waiting.tokens if waiting and not state.last_request_n else 0)

    def advise(self, state: State, waiting_tokens: int = 0) -> str:
        """The advice for a session's state, in a line; empty if there is none, or it was given before."""
        advice = self._new_advice(state, waiting_tokens)
        if advice is None:
            return ""
        self._given_advice.add(state, advice)
        return advice.line

    def _new_advice(self, state: State, waiting_tokens: int = 0) -> Advice | None:
        advice = choose_advice(state, self.policy, waiting_tokens=waiting_tokens) if state.session_id else None
        return None if advice is None or self._given_advice.has(state, advice) else advice

    def safe_error(self, problem: FoldError) -> tuple[str, JsonObject]:
        """An error's message and data, scrubbed, because they repeat the caller's input."""
        try:
            data = {
                name: self._scrubber.scrub(value).text if isinstance(value, str) else value
                for name, value in problem.data.items()
            }
            return self._scrubber.scrub(problem.message).text, data
        except Exception:
            # A text that cannot be scrubbed must not be sent.
            return InternalError.message, {}

    # ---- reading and changing sessions

    async def settle_reports(self, owner: str, timeout_s: float | None = None) -> None:
        """Wait until what was reported is written. A waiting report may begin a session."""
        await self.conversations.wait_for_arriving(owner)
        await self.reports.settle_all(owner, timeout_s)

    async def find(self, owner: str, session_id: str) -> FoundSession:
        """A live session of an owner."""
        key = await self.store.find(owner, session_id)
        state = await self.look(key) if key else EMPTY
        if key is None or state.session_id != session_id:
            raise SessionNotFound(session_id)
        return FoundSession(key, state)

    async def look(self, key: SessionKey) -> State:
        """The current state of a session, with everything that was reported before."""
        await self.reports.settle(key)
        return await self.sessions.look(key)

    async def change(self, target: Target, verb: Verb, operation_id: str | None = None) -> VerbOutcome:
        """Change a session after everything that was reported for it before."""
        operation = None
        if operation_id is not None:
            operation = Operation(hash_text(check_operation_id(operation_id)), hash_text(encode(verb.identity)))
        await self.reports.settle(target.key)
        if isinstance(verb, RollBack):
            await self._take_folds_back(target.key, verb)
        outcome = await self._commit(target, verb, operation)
        # The answer has the advice as a suggestion (`_health`), so that it counts as given.
        if outcome.events and verb.has_health and (advice := self._suggestion(outcome.state)):
            self._given_advice.add(outcome.state, advice)
        return outcome

    async def _take_folds_back(self, key: SessionKey, verb: RollBack) -> None:
        """Undo folds by hand that no request has left out yet. The others stay in requests, as every fold does."""
        state = await self.sessions.look(key)
        later = dropwhile(lambda each: each.id != verb.branch_id, state.branches.values())
        new = [each.id for each in later if each.folded_afterwards_n and each.id not in state.folds_seen]
        if new and state.proxied_id:
            undone = {call_id: encode_outcome(each) for call_id, each in note_outcomes(new, UNDONE).items()}
            await self.store.note_conversation(key.owner, state.proxied_id, ProxiedConversation("", undone))

    async def _commit(self, target: Target, verb: Verb, operation: Operation | None) -> VerbOutcome:
        """Change a session without waiting for what was reported for it."""
        begin = (lambda: self._begin_session(target)) if verb.begins_session else None
        find_project = (lambda: self.scrub_path(target)) if target.given_path else None
        try:
            outcome = await self.sessions.change(SessionChange(target.key, verb, begin, find_project, operation))
        except (StoreUnavailable, StoreInvalid):
            self._note(Activity(store_failed=True))
            raise
        self._note(Activity(events=outcome.events))
        self._remember(target)
        return outcome

    def _health(self, events: Sequence[Event], after: State) -> JsonObject:
        """The health of a session after events, for the branch that the last of them names."""
        branch_id = getattr(events[-1], "branch_id", None)
        advice = self._suggestion(after)
        return self.policy.health(after, after.branches.get(branch_id or ""), advice.suggestion if advice else None)

    def _suggestion(self, state: State) -> Advice | None:
        """New advice for the main thread; None while a branch is open, whose advice is a reminder."""
        return None if state.path else self._new_advice(state)

    async def scrub_path(self, target: Target) -> str:
        """The path of a session's project, as it is stored and shown.

        It is scrubbed in the original and in the displayed form, because either may hide a secret from the rules.
        """
        (path,) = await self.scrub(target.given_path)
        (displayed,) = await self.scrub(display_path(path.text))
        return displayed.text

    async def _begin_session(self, target: Target) -> SessionStarted:
        """The first event of a new session, without its time."""
        path = await self.scrub_path(target) if target.given_path else ""
        conversation = target.conversation or Conversation("", is_named=False)
        name, host_id, agent = await self.scrub(target.given_name or "", conversation.id, conversation.agent)
        return SessionStarted(
            1, "", self._new_id("sess"), path, name.text or None, host_id.text, agent.text, conversation.is_named
        )

    async def find_target(self, owner: str, session_id: str) -> Target | None:
        """The target of a session of this owner, from the store if necessary; None if there is none."""
        target = self._targets.get(session_id)
        if target and target.key.owner == owner:
            return target
        # Received reports are not waited for: they may wait for the store to accept writes again.
        key = await self.store.find(owner, session_id)
        state = await self.sessions.look(key) if key else EMPTY
        return FoundSession(key, state).target if key and state.session_id == session_id else None

    def _remember(self, target: Target) -> None:
        session_id = self.sessions.last_known(target.key).session_id
        if session_id is not None:
            self._targets.put(session_id, target)

    async def scrub(self, *texts: str) -> list[ScrubbedText]:
        length = sum(map(len, texts))
        if length <= SCRUB_INLINE_LENGTH:
            scrubbed = self._scrub_all(*texts)
        else:
            threads = self._scrub_long_threads if length > SCRUB_LONG_LENGTH else self._scrub_threads
            scrubbed = await asyncio.get_running_loop().run_in_executor(threads, lambda: self._scrub_all(*texts))
        if rules := [rule for one in scrubbed for rule in one.rules]:
            self._note(Activity(rules=rules))
        return scrubbed

    def _scrub_all(self, *texts: str) -> list[ScrubbedText]:
        try:
            return [self._scrubber.scrub(text) for text in texts]
        except Exception as problem:
            # After any error, no unscrubbed text is used.
            raise ScrubFailed(type(problem).__name__) from None


def _given_project(arguments: Arguments) -> Project | None:
    """The project that a call names; None if it names none. The tool refuses an invalid one."""
    try:
        return ArgumentFields({"project_path": arguments.get("project_path")}, "project_path").project()
    except ArgumentInvalid:
        return None


def _parse_rollback(fields: ArgumentFields) -> RollBack:
    return RollBack(fields.branch_id(), fields.flag("restore_state", default=True))
