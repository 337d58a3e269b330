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

from contextfold.error_codes import JSON_RPC_CODES
from contextfold.serve.mcp.fold_tools import META_OPERATION
from tests.stores.nats.history import Effect, Outcome, Try
from tests.support.daemon import LEGACY, MODERN, Daemon, HttpAgent, Refused

# After this long without an answer, an agent asks another daemon.
ANSWER_S = 4.0
# No caller should have to wait longer for one call, even during faults.
GIVE_UP_S = 120.0
AGAIN_AFTER_S = 0.05
# Agents pause between calls so that a small machine keeps up.
PAUSE_MOST_S = 0.04
# Many agents work on these sessions at the same time.
HOT_SESSIONS, HOT_SHARE = 4, 0.4
# After such an error the operation may have been done or not.
TELLING_NOTHING = {JSON_RPC_CODES["store_unavailable"]}


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
    told: Callable[[Any], dict[str, Any]]


def _branch_told(answer: Any) -> dict[str, Any]:
    names = {"session_id": "session_id", "branch_id": "branch_id", "at": "created_at", "parent_id": "parent_branch_id"}
    return {name: answer[other] for name, other in names.items()}


def _record_told(answer: Any) -> dict[str, Any]:
    return {name: answer[name] for name in ("session_id", "branch_id", "tokens")}


def _return_told(answer: Any) -> dict[str, Any]:
    tokens = answer["summary"]["tokens_folded"]
    return {"branch_id": answer["branch_id"], "at": answer["folded_at"], "tokens_folded": tokens}


def _rollback_told(answer: Any) -> dict[str, Any]:
    return {"branch_id": answer["rolled_back_to"]}


def random_call(dice: random.Random, session: Session, operation_id: str) -> Call:
    """A random call; its effect on the log can be distinguished from every other."""
    match dice.choices(["branch", "record", "return", "rollback"], [4, 8, 4, 1])[0]:
        case "branch":
            text = f"b of {operation_id}"
            sent = {"description": text, "prompt": "Look into it."}
            return Call("context_branch", sent, ("branch.created", text), _branch_told)
        case "return":
            text = f"s of {operation_id}"
            return Call("context_return", {"message": text}, ("branch.folded", text), _return_told)
        case "rollback" if branch_id := _taken(dice, session):
            back = {"branch_id": branch_id, "restore_state": dice.random() < 0.5}
            return Call("context_rollback", back, ("session.rolled_back", branch_id), _rollback_told)
    text = f"o of {operation_id}"
    sent = {"type": text, "content": "x" * dice.randrange(200)}
    return Call("context_record", sent, ("operation.completed", text), _record_told)


def _taken(dice: random.Random, session: Session) -> str | None:
    with session.lock:
        return session.branches.pop(dice.randrange(len(session.branches))) if session.branches else None


class Book:
    """The calls of all agents, and the number of those that were answered, for tests that wait for more."""

    def __init__(self) -> None:
        self.tries: list[Try] = []
        self.broken: list[str] = []
        self._answered = 0
        self._changed = threading.Condition()

    def write(self, one: Try) -> None:
        with self._changed:
            self.tries.append(one)
            self._answered += one.outcome != "unknown"
            self._changed.notify_all()

    def complain(self, text: str) -> None:
        with self._changed:
            self.broken.append(text)
            self._changed.notify_all()

    def wait_for(self, more: int, timeout_s: float) -> bool:
        """Waits until this many more calls were answered."""
        with self._changed:
            goal = self._answered + more
            return self._changed.wait_for(lambda: self._answered >= goal or bool(self.broken), timeout_s)


class Agent(threading.Thread):
    """One of many agents that work on the same sessions."""

    def __init__(
        self, name: str, seed: object, daemons: Sequence[Daemon], sessions: Sequence[Session], book: Book
    ) -> None:
        super().__init__(name=name)
        self._dice = random.Random(f"{name} {seed}")
        self._daemons, self._sessions, self._book = daemons, sessions, book
        self._era = MODERN if self._dice.random() < 0.5 else LEGACY
        self._connections: dict[int, HttpAgent] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                are_hot = self._dice.random() < HOT_SHARE
                self.work(self._dice.choice(self._sessions[:HOT_SESSIONS] if are_hot else self._sessions))
                self.stopping.wait(self._dice.uniform(0, PAUSE_MOST_S))
        except Exception as problem:
            # The test reads this; otherwise it would wait forever.
            self._book.complain(f"{self.name}: {problem!r}")
        finally:
            for connection in self._connections.values():
                connection.close()

    def work(self, session: Session) -> None:
        operation_id = session.next_id()
        call = random_call(self._dice, session, operation_id)
        give_up_s = time.monotonic() + GIVE_UP_S
        while time.monotonic() < give_up_s:
            number = self._dice.randrange(len(self._daemons))
            if self._try(session, operation_id, call, number) != "unknown":
                return
            time.sleep(AGAIN_AFTER_S)
        raise AssertionError(f"{session.project} {operation_id} was never answered")

    def _try(self, session: Session, operation_id: str, call: Call, number: int) -> Outcome:
        sent_s = time.monotonic()
        outcome: Outcome = "unknown"
        told: dict[str, Any] = {}
        try:
            answer = self._connection(number).call(
                call.tool, {META_OPERATION: operation_id}, project_path=session.project, **call.arguments
            )
            outcome, told = "acknowledged", call.told(answer)
        except Refused as refusal:
            if refusal.code not in TELLING_NOTHING:
                outcome, told = "refused", {"refused": refusal.message}
        except (OSError, http.client.HTTPException, ValueError):
            # The connection was cut, so the operation may have been done or not.
            self._connections.pop(number).close()
        answered_s = time.monotonic()
        if "branch_id" in told and call.tool == "context_branch":
            with session.lock:
                session.branches.append(told["branch_id"])
        self._book.write(
            Try(session.project, operation_id, call.effect, sent_s, answered_s, outcome, f"d{number}", told)
        )
        return outcome

    def _connection(self, number: int) -> HttpAgent:
        if number not in self._connections:
            self._connections[number] = HttpAgent(self._daemons[number].port, self._era)
            self._connections[number].http.within(ANSWER_S)
        return self._connections[number]
