"""The verbs that change a session. Pure.

    verb.decide(state, at)                      the events, or an error; texts are scrubbed and tokens counted before
    verb.result(before, events, after, health)  the tool's result; `health` is called only if it is part of the result
    verb.identity                               identifies the call; a retry must have the same identity

A service commits the events, and calls `decide` again if another commit came first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from contextfold.common.canonical import JsonObject
from contextfold.errors import BranchNotFound, BranchStateInvalid, ContextLimitExceeded, LimitReached
from contextfold.fold import tool_calls
from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionRolledBack,
    WorkFolded,
)
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.session import Branch, SessionLimits, State
from contextfold.fold.tool_calls import DESCRIPTION_LENGTH_MAX


class Verb(Protocol):
    __slots__ = ()

    # Whether the verb may begin a session; otherwise there must be one.
    begins_session: ClassVar[bool] = False
    # Whether the session's health, which may contain a suggestion, is part of the result.
    has_health: ClassVar[bool] = False

    @property
    def identity(self) -> Sequence[str]: ...
    def decide(self, state: State, at: str) -> list[Event]: ...
    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject: ...
    def texts(self, events: Sequence[Event]) -> Mapping[int, str]:
        """The texts of the operations among these events, for the archive. Most verbs record none."""
        return {}


@dataclass(frozen=True, slots=True)
class OpenBranch(Verb):
    """`context_branch`: begin a branch below the active one."""

    begins_session: ClassVar[bool] = True
    branch_id: str
    description: str
    prompt: str
    tokens: int
    redactions: int
    policy: FoldPolicy

    @property
    def identity(self) -> Sequence[str]:
        return ("branch", self.description, self.prompt)

    def decide(self, state: State, at: str) -> list[Event]:
        limits = self.policy.limits
        if state.depth >= limits.depth:
            raise LimitReached("branch_depth", limits.depth, "return from a branch first")
        _check_branch_count(state, limits)
        total, limit = state.total_tokens + self.tokens, self.policy.context_limit(state)
        if limits.is_hard and total > limit:
            raise ContextLimitExceeded(total, limit, _suggest_way_out(state))
        given = (self.description, self.prompt, self.tokens, self.redactions)
        return [BranchCreated(state.revision + 1, at, self.branch_id, state.active_id, *given)]

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        return tool_calls.branch_result(after.branches[self.branch_id], after)


@dataclass(frozen=True, slots=True)
class ReturnBranch(Verb):
    """`context_return`: fold a branch, by default the active one.

    Open branches below it are folded first, without a summary, beginning with the deepest.
    """

    has_health: ClassVar[bool] = True
    branch_id: str | None
    summary: str
    summary_tokens: int
    redactions: int

    @property
    def identity(self) -> Sequence[str]:
        return ("return", self.summary, self.branch_id or "")

    def decide(self, state: State, at: str) -> list[Event]:
        target = self._target(state)
        events: list[Event] = []
        inner: Branch | None = None
        for n, open_id in enumerate(reversed(state.path[state.path.index(target.id) :]), state.revision + 1):
            branch = state.branches[open_id]
            tokens = _foldable_tokens(branch, inner)
            if branch is target:
                summary = (self.summary, self.summary_tokens, tokens, self.redactions)
                events.append(BranchFolded(n, at, open_id, *summary, forced=False))
            else:
                events.append(BranchFolded(n, at, open_id, "", 0, tokens, 0, forced=True))
            inner = branch
        return events

    def _target(self, state: State) -> Branch:
        target = state.active if self.branch_id is None else state.branches.get(self.branch_id)
        if target is None and self.branch_id is not None:
            raise BranchNotFound(self.branch_id, state.session_id)
        if target is None or target.status != "active":
            data = {"branch_id": target.id if target else None, "current_status": target.status if target else None}
            raise BranchStateInvalid("Cannot fold branch: branch is not active", data)
        return target

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        event = events[-1]
        assert isinstance(event, BranchFolded)
        return tool_calls.fold_result(event, after, health())


@dataclass(frozen=True, slots=True)
class FoldWork(Verb):
    """`context_fold`: fold the recent operations of the active thread, without a branch opened before.

    They are the operations since the user's last prompt, or since a later fold, return or branch point.
    """

    has_health: ClassVar[bool] = True
    branch_id: str
    summary: str
    summary_tokens: int
    redactions: int
    limits: SessionLimits
    # The tokens that leave the next request, if that is known better than from the last one.
    tokens: int | None = None

    @property
    def identity(self) -> Sequence[str]:
        return ("fold", self.summary)

    def decide(self, state: State, at: str) -> list[Event]:
        work = (state.active or state.main).recent
        if not work.operations and not work.tokens:
            raise BranchStateInvalid("Cannot fold: nothing was done since the last fold", {})
        _check_branch_count(state, self.limits)
        tokens = work.tokens if self.tokens is None else self.tokens
        summary = (first_line(self.summary), self.summary, self.summary_tokens, tokens, self.redactions)
        return [WorkFolded(state.revision + 1, at, self.branch_id, state.active_id, *summary, work.since)]

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        (event,) = events
        assert isinstance(event, WorkFolded)
        return {**tool_calls.fold_result(event, after, health()), "session_id": after.session_id}


@dataclass(frozen=True, slots=True)
class RecordOperations(Verb):
    """Record operations of the active thread. They are never refused because of a limit."""

    begins_session: ClassVar[bool] = True
    has_health: ClassVar[bool] = True
    # Operations without number, time and thread, which the log determines; and the text of each.
    operations: Sequence[OperationCompleted]
    contents: Sequence[str]
    # The name of the counter, if it counted the tokens.
    counter: str | None = None

    @property
    def identity(self) -> Sequence[str]:
        operations = zip(self.operations, self.contents, strict=True)
        parts = ((each.type, text, str(each.tokens), str(each.failed), each.source) for each, text in operations)
        return ("record", *(part for operation in parts for part in operation))

    def decide(self, state: State, at: str) -> list[Event]:
        model, host = state.model, state.host
        events: list[Event] = []
        for n, operation in enumerate(self.operations, state.revision + 1):
            # The summary of a compaction belongs to all threads, so it stays when a branch is folded.
            thread_id = None if operation.compacts else state.active_id
            new_model = operation.model if operation.model != model else ""
            new_host = operation.host if operation.host != host else ""
            events.append(operation._replace(n=n, at=at, branch_id=thread_id, model=new_model, host=new_host))
            model, host = operation.model or model, operation.host or host
        return events

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        event = events[-1]
        assert isinstance(event, OperationCompleted)
        return tool_calls.record_result(event, after, health(), self.counter)

    def texts(self, events: Sequence[Event]) -> Mapping[int, str]:
        recorded = (event for event in events if isinstance(event, OperationCompleted))
        return {event.n: text for event, text in zip(recorded, self.contents, strict=True)}


@dataclass(frozen=True, slots=True)
class RollBack(Verb):
    """`context_rollback`: go back to the beginning of a branch and discard every later branch."""

    branch_id: str
    restore_state: bool

    @property
    def identity(self) -> Sequence[str]:
        return ("rollback", self.branch_id, str(self.restore_state))

    def decide(self, state: State, at: str) -> list[Event]:
        target = state.branches.get(self.branch_id)
        if target is None:
            raise BranchNotFound(self.branch_id, state.session_id)
        if target.status == "discarded":
            data = {"branch_id": self.branch_id, "current_status": target.status}
            raise BranchStateInvalid("Cannot roll back: branch is discarded", data)
        created = list(state.branches)
        later = (state.branches[later_id] for later_id in created[created.index(target.id) + 1 :])
        discarded = [branch.id for branch in later if branch.status != "discarded"]
        # The deepest branch is discarded first, as in a fold.
        numbered = enumerate(reversed(discarded), state.revision + 1)
        events: list[Event] = [BranchDiscarded(n, at, branch_id) for n, branch_id in numbered]
        n = state.revision + len(events) + 1
        return [*events, SessionRolledBack(n, at, self.branch_id, self.restore_state)]

    def result(
        self, before: State, events: Sequence[Event], after: State, health: Callable[[], JsonObject]
    ) -> JsonObject:
        return tool_calls.rollback_result(self.branch_id, before, events, after)


def first_line(message: str) -> str:
    """The first line of a message that is not blank, truncated to the length of a description."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return line[:DESCRIPTION_LENGTH_MAX]


def _foldable_tokens(branch: Branch, inner: Branch | None) -> int:
    """The tokens that folding a branch removes, without those of the open branch in it."""
    if branch.removable is None:
        return branch.tokens
    return max(0, branch.removable - (inner.removable or 0 if inner else 0))


def _check_branch_count(state: State, limits: SessionLimits) -> None:
    if len(state.branches) >= limits.branches:
        raise LimitReached("branches_per_session", limits.branches, "continue without branches")


def _suggest_way_out(state: State) -> str:
    """Advice for an agent over the hard limit."""
    if state.path:
        return ContextLimitExceeded.SUGGESTION
    if state.main.recent.operations:
        return "Fold finished work with context_fold before continuing"
    return "Continue without a branch"
