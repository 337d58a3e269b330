"""Agents that work on many sessions through several daemons, and record what they sent and what was answered.

A call with an unknown outcome is sent again with the same operation id to another daemon, until it is accepted or
refused.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from contextfold.errors import JSON_RPC_CODES
from contextfold.serve.mcp.fold_tools import META_OPERATION
from tests.stores.nats.history_checker import Attempt, Effect, Outcome
from tests.support.daemon import LEGACY, MODERN, Daemon, HttpAgent, Refused

# After this long without an answer, an agent asks another daemon.
ANSWER_S = 4.0
# No caller should have to wait longer for one call, even during faults.
CALL_TIMEOUT_S = 120.0
RETRY_PAUSE_S = 0.05
# Agents pause between calls so that a small machine keeps up.
PAUSE_MAX_S = 0.04
# Many agents work on these sessions at the same time.
HOT_SESSIONS, HOT_SHARE = 4, 0.4
# After an error with such a code the operation may have been done or not.
UNKNOWN_OUTCOME_CODES = {JSON_RPC_CODES["store_unavailable"]}


@dataclass(slots=True)
class Session:
    """A project and what its agents know about it."""

    project: str
    calls: int = 0
    # These branches were returned by a call, and no rollback has been sent to them.
    branches: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_id(self) -> str:
        with self.lock:
            self.calls += 1
            return f"call {self.calls}"


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: dict[str, Any]
    effect: Effect
    # The function returns the members of an answer that the event has too.
    event_members: Callable[[Any], dict[str, Any]]


def _branch_members(answer: Any) -> dict[str, Any]:
    names = {"session_id": "session_id", "branch_id": "branch_id", "at": "created_at", "parent_id": "parent_branch_id"}
    return {name: answer[other] for name, other in names.items()}


def _record_members(answer: Any) -> dict[str, Any]:
    return {name: answer[name] for name in ("session_id", "branch_id", "tokens")}


def _return_members(answer: Any) -> dict[str, Any]:
    tokens = answer["summary"]["tokens_folded"]
    return {"branch_id": answer["branch_id"], "at": answer["folded_at"], "tokens_folded": tokens}


def _rollback_members(answer: Any) -> dict[str, Any]:
    return {"branch_id": answer["rolled_back_to"]}


def random_call(rng: random.Random, session: Session, operation_id: str) -> Call:
    """A random call; its effect on the log can be distinguished from every other."""
    match rng.choices(["branch", "record", "return", "rollback"], [4, 8, 4, 1])[0]:
        case "branch":
            text = f"b of {operation_id}"
            sent = {"description": text, "prompt": "Look into it."}
            return Call("context_branch", sent, ("branch.created", text), _branch_members)
        case "return":
            text = f"s of {operation_id}"
            return Call("context_return", {"message": text}, ("branch.folded", text), _return_members)
        case "rollback" if branch_id := _take_branch(rng, session):
            target = {"branch_id": branch_id, "restore_state": rng.random() < 0.5}
            return Call("context_rollback", target, ("session.rolled_back", branch_id), _rollback_members)
    text = f"o of {operation_id}"
    sent = {"type": text, "content": "x" * rng.randrange(200)}
    return Call("context_record", sent, ("operation.completed", text), _record_members)


def _take_branch(rng: random.Random, session: Session) -> str | None:
    with session.lock:
        return session.branches.pop(rng.randrange(len(session.branches))) if session.branches else None


class CallRecorder:
    """Records the attempts of all agents, and lets tests wait until more calls were answered."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.failures: list[str] = []
        self._answered = 0
        self._changed = threading.Condition()

    def record(self, attempt: Attempt) -> None:
        with self._changed:
            self.attempts.append(attempt)
            self._answered += attempt.outcome != "unknown"
            self._changed.notify_all()

    def record_failure(self, text: str) -> None:
        with self._changed:
            self.failures.append(text)
            self._changed.notify_all()

    def wait_for(self, more: int, timeout_s: float) -> bool:
        """Waits until this many more calls were answered."""
        with self._changed:
            goal = self._answered + more
            return self._changed.wait_for(lambda: self._answered >= goal or bool(self.failures), timeout_s)


class Agent(threading.Thread):
    """One of many agents that work on the same sessions."""

    def __init__(
        self, name: str, seed: object, daemons: Sequence[Daemon], sessions: Sequence[Session], recorder: CallRecorder
    ) -> None:
        super().__init__(name=name)
        self._rng = random.Random(f"{name} {seed}")
        self._daemons, self._sessions, self._recorder = daemons, sessions, recorder
        self._era = MODERN if self._rng.random() < 0.5 else LEGACY
        self._connections: dict[int, HttpAgent] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                are_hot = self._rng.random() < HOT_SHARE
                self.work(self._rng.choice(self._sessions[:HOT_SESSIONS] if are_hot else self._sessions))
                self.stopping.wait(self._rng.uniform(0, PAUSE_MAX_S))
        except Exception as error:
            # The test reads the failure; without it the test would wait forever.
            self._recorder.record_failure(f"{self.name}: {error!r}")
        finally:
            for connection in self._connections.values():
                connection.close()

    def work(self, session: Session) -> None:
        operation_id = session.next_id()
        call = random_call(self._rng, session, operation_id)
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while time.monotonic() < deadline_s:
            number = self._rng.randrange(len(self._daemons))
            if self._attempt(session, operation_id, call, number) != "unknown":
                return
            time.sleep(RETRY_PAUSE_S)
        raise AssertionError(f"{session.project} {operation_id} was never answered")

    def _attempt(self, session: Session, operation_id: str, call: Call, number: int) -> Outcome:
        sent_s = time.monotonic()
        outcome: Outcome = "unknown"
        members: dict[str, Any] = {}
        try:
            answer = self._connection(number).call(
                call.tool, {META_OPERATION: operation_id}, project_path=session.project, **call.arguments
            )
            outcome, members = "acknowledged", call.event_members(answer)
        except Refused as refusal:
            if refusal.code not in UNKNOWN_OUTCOME_CODES:
                outcome, members = "refused", {"refused": refusal.message}
        except (OSError, http.client.HTTPException, ValueError):
            # The connection was cut, so the operation may have been done or not.
            self._connections.pop(number).close()
        answered_s = time.monotonic()
        if "branch_id" in members and call.tool == "context_branch":
            with session.lock:
                session.branches.append(members["branch_id"])
        self._recorder.record(
            Attempt(session.project, operation_id, call.effect, sent_s, answered_s, outcome, f"d{number}", members)
        )
        return outcome

    def _connection(self, number: int) -> HttpAgent:
        if number not in self._connections:
            self._connections[number] = HttpAgent(self._daemons[number].port, self._era)
            self._connections[number].http.within(ANSWER_S)
        return self._connections[number]
