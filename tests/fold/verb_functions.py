"""The verbs as plain functions, for tests of the pure core."""

from __future__ import annotations

from typing import Any

from contextfold.fold.events import Event, OperationCompleted, SessionStarted
from contextfold.fold.policy import FoldPolicy
from contextfold.fold.session import SessionLimits, State
from contextfold.fold.verbs import (
    FoldWork,
    OpenBranch,
    RecordOperations,
    ReturnBranch,
    RollBack,
)


def begin(at: str, *, session_id: str = "sess_1", project_path: str = "/p", name: str | None = None) -> SessionStarted:
    return SessionStarted(1, at, session_id, project_path, name)


def branch(
    state: State,
    limits: SessionLimits,
    at: str,
    *,
    branch_id: str,
    description: str,
    prompt: str,
    tokens: int,
    redactions: int,
) -> list[Event]:
    return OpenBranch(branch_id, description, prompt, tokens, redactions, FoldPolicy(limits)).decide(state, at)


def operation(type: str, tokens: int, source: str, *, failed: bool, redactions: int, **more: Any) -> OperationCompleted:
    """An operation that is not recorded yet."""
    return OperationCompleted(0, "", None, type, tokens, source, failed, redactions, **more)


def record(state: State, at: str, *operations: OperationCompleted) -> list[Event]:
    return RecordOperations(operations, [""] * len(operations)).decide(state, at)


def fold(
    state: State, at: str, *, branch_id: str | None, summary: str, summary_tokens: int, redactions: int
) -> list[Event]:
    return ReturnBranch(branch_id, summary, summary_tokens, redactions).decide(state, at)


def fold_recent(
    state: State,
    at: str,
    *,
    branch_id: str = "br_fold",
    summary: str = "s",
    summary_tokens: int = 0,
    redactions: int = 0,
    limits: SessionLimits | None = None,
) -> list[Event]:
    verb = FoldWork(branch_id, summary, summary_tokens, redactions, limits or SessionLimits())
    return verb.decide(state, at)


def rollback(state: State, at: str, *, branch_id: str, restore_state: bool) -> list[Event]:
    return RollBack(branch_id, restore_state).decide(state, at)
