"""The history checker is not blind: it reports one violation of each rule, and nothing for a correct history.

The tests of lost connections and of daemons that race rest on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from contextfold.fold.events import (
    BranchCreated,
    BranchDiscarded,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionRolledBack,
    SessionStarted,
    members,
)
from contextfold.fold.session import replay
from tests.stores.nats.history_checker import (
    Attempt,
    History,
    Published,
    ReceivedEvent,
    WatcherConnection,
    branch_state,
    effect_of,
    excerpt,
    session_state,
    violations,
)

AT = "2026-01-01T12:00:00Z"


def operation(n: int, kind: str, branch_id: str | None = None) -> OperationCompleted:
    return OperationCompleted(n, AT, branch_id, kind, 10, "reported", failed=False, redactions=0)


ONE: list[Event] = [
    SessionStarted(1, AT, "sess_1", "/p/1", None),
    BranchCreated(2, AT, "br_1", None, "first", "Do it.", 2, 0),
    operation(3, "o1", "br_1"),
    BranchCreated(4, AT, "br_2", "br_1", "second", "Do more.", 2, 0),
    BranchFolded(5, AT, "br_2", "", 0, 2, 0, forced=True),
    BranchFolded(6, AT, "br_1", "done", 1, 12, 0, forced=False),
    operation(7, "o2"),
]
TWO: list[Event] = [
    SessionStarted(1, AT, "sess_2", "/p/2", None),
    BranchCreated(2, AT, "br_3", None, "third", "Do it.", 2, 0),
    BranchCreated(3, AT, "br_4", "br_3", "fourth", "Do it.", 2, 0),
    BranchDiscarded(4, AT, "br_4"),
    SessionRolledBack(5, AT, "br_3", restore_state=True),
]
LOGS: dict[str, Sequence[Event]] = {"sess_1": ONE, "sess_2": TWO}


def attempts_for(log: Sequence[Event], project: str) -> list[Attempt]:
    """An attempt for each event; each is acknowledged before the next is sent."""
    return [
        Attempt(
            project, f"op {event.n}", effect, 10.0 * event.n, 10.0 * event.n + 5, "acknowledged", "d1",
            {"branch_id": getattr(event, "branch_id", None)},
        )
        for event in log
        if (effect := effect_of(event))
    ]  # fmt: skip


def received(*wanted: tuple[str, int]) -> list[ReceivedEvent]:
    """Events of the logs; a cursor is the position of its event in the correct order."""
    order = [("sess_1", n) for n in range(1, 5)] + [("sess_2", n) for n in range(1, 6)]
    order += [("sess_1", n) for n in range(5, 8)]
    return [ReceivedEvent(str(order.index((session, n)) + 1), session, LOGS[session][n - 1]) for session, n in wanted]


EVERYTHING = [*(("sess_1", n) for n in range(1, 5)), *(("sess_2", n) for n in range(1, 6))]
EVERYTHING += [("sess_1", n) for n in range(5, 8)]


def published(session_id: str) -> Published:
    log = LOGS[session_id]
    state = replay(log)
    events = [{"session_id": session_id, **members(event)} for event in log]
    branches = {branch.id: branch_state(branch, log) for branch in state.branches.values()}
    return Published(events, branches, session_state(state))


def correct() -> History:
    return History(
        [*attempts_for(ONE, "/p/1"), *attempts_for(TWO, "/p/2")],
        {"d1": LOGS, "d2": dict(LOGS), "nats": dict(LOGS)},
        {"w": [WatcherConnection(None, received(*EVERYTHING[:3])), WatcherConnection("3", received(*EVERYTHING[3:]))]},
        {session_id: published(session_id) for session_id in LOGS},
        {"sess_1": ["op 2", "op 3"], "sess_2": ["op 2", "op 3"]},
    )


def test_a_correct_history_has_no_violations() -> None:
    assert violations(correct()) == []


def with_attempts(*more: Attempt, without: tuple[str, str] = ("", "")) -> History:
    history = correct()
    others = [each for each in history.attempts if (each.project, each.operation_id) != without]
    return replace(history, attempts=[*others, *more])


def attempt(outcome: str, effect: tuple[str, str], operation_id: str, sent_s: float, answered_s: float) -> Attempt:
    return Attempt("/p/1", operation_id, effect, sent_s, answered_s, outcome, "d2")  # type: ignore[arg-type]


O1, O2 = ("operation.completed", "o1"), ("operation.completed", "o2")


def with_log(session_id: str, log: Sequence[Event], *readers: str) -> History:
    history = correct()
    logs = {
        reader: {**theirs, session_id: log} if reader in (readers or history.logs) else theirs
        for reader, theirs in history.logs.items()
    }
    return replace(history, logs=logs, watchers={}, published=None)


def with_watch(*connections: WatcherConnection) -> History:
    return replace(correct(), watchers={"w": connections})


def with_published(change: Callable[[Published], Published | None]) -> History:
    history = correct()
    assert history.published
    changed = change(history.published["sess_1"])
    rest = {session_id: each for session_id, each in history.published.items() if session_id != "sess_1"}
    return replace(history, published={**rest, "sess_1": changed} if changed else rest)


def renumbered(*events: Event) -> list[Event]:
    return [event._replace(n=n) for n, event in enumerate(events, 1)]


def with_branch_state(**changed: Any) -> History:
    return with_published(
        lambda session: replace(session, branches={**session.branches, "br_1": {**session.branches["br_1"], **changed}})
    )


VIOLATIONS = {
    "a lost acknowledgement": (with_log("sess_1", ONE[:6]), "acknowledged but not in the log: /p/1 op 7"),
    "a call applied twice": (with_log("sess_1", [*ONE, operation(8, "o2")]), "applied 2 times: /p/1 op 7"),
    "a refused call with an effect": (
        with_attempts(attempt("refused", O2, "op 7", 70, 71), without=("/p/1", "op 7")),
        "refused but in the log: /p/1 op 7",
    ),
    "an effect without a call": (with_log("sess_1", [*ONE, operation(8, "o3")]), "no call asked for it: /p/1"),
    "an operation id committed twice": (
        replace(correct(), committed={"sess_1": ["op 2", "op 3", "op 2"]}),
        "the operation id op 2 was committed 2 times in sess_1",
    ),
    "a gap in a log": (with_log("sess_1", [*ONE[:4], *ONE[5:]]), "the log of sess_1 has a gap or a duplicate"),
    "a log that cannot be replayed": (
        with_log("sess_1", renumbered(ONE[0], ONE[2])),
        "the log of sess_1 cannot be replayed",
    ),
    "two sessions at a time": (
        with_log("sess_3", [SessionStarted(1, AT, "sess_3", "/p/2", None)]),
        "/p/2 has 2 sessions at a time",
    ),
    "a reader with something else": (
        with_log("sess_1", [*ONE[:6], operation(7, "o3")], "d2"),
        "sess_1 differs at 7",
    ),
    "an answer that differs from the log": (
        with_attempts(
            replace(attempt("acknowledged", O2, "op 7", 70, 71), event_members={"branch_id": "br_9"}),
            without=("/p/1", "op 7"),
        ),
        "answered {'branch_id': 'br_9'}, but the log has",
    ),
    "a call answered earlier, but later in the log": (
        with_attempts(attempt("acknowledged", O2, "op 7", 1, 2), without=("/p/1", "op 7")),
        "('operation.completed', 'o2') was answered before",
    ),
    "a watcher with a gap after it reconnected": (
        with_watch(
            WatcherConnection(None, received(*EVERYTHING[:3])), WatcherConnection("3", received(*EVERYTHING[4:]))
        ),
        "received sess_1/5 after a gap",
    ),
    "a watcher that received an event again": (
        with_watch(
            WatcherConnection(None, received(*EVERYTHING[:3])), WatcherConnection("3", received(*EVERYTHING[2:]))
        ),
        "received sess_1/3 again",
    ),
    "a watcher that missed the end": (
        with_watch(WatcherConnection(None, received(*EVERYTHING[:-1]))),
        "received sess_1 up to 6 of 7",
    ),
    "a session that is not published": (with_published(lambda _: None), "sess_1 is not published"),
    "an event not published": (
        with_published(lambda session: replace(session, events=session.events[:-1])),
        "events of sess_1 are published as [1, 2, 3, 4, 5, 6]",
    ),
    "an old branch state": (with_branch_state(status="active"), "br_1: status is published as 'active'"),
    "a session state that is behind": (
        with_published(
            lambda session: replace(session, session_state={**(session.session_state or {}), "revision": 6})
        ),
        "revision of the session state is published as 6, it is 7",
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_reported(name: str) -> None:
    history, expected = VIOLATIONS[name]
    reported = violations(history)
    assert any(expected in text for text in reported), reported
    assert expected in excerpt(history, reported)
