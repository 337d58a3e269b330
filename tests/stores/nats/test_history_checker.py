"""The history checker is not blind: it reports a violation of each kind, and nothing for a correct history.

The tests of lost connections and of daemons that race rest on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from contextfold.fold.events import BranchCreated, BranchFolded, Event, OperationCompleted, SessionStarted, members
from contextfold.fold.session import replay
from tests.stores.nats.history_checker import (
    Attempt,
    History,
    Outcome,
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


LOG: list[Event] = [
    SessionStarted(1, AT, "sess_1", "/p/1", None),
    BranchCreated(2, AT, "br_1", None, "first", "Do it.", 2, 0),
    operation(3, "o1", "br_1"),
    BranchFolded(4, AT, "br_1", "done", 1, 12, 0, forced=False),
    operation(5, "o2"),
]
O2 = ("operation.completed", "o2")


def attempts() -> list[Attempt]:
    """An attempt for each event; each is acknowledged before the next is sent."""
    calls = [(event.n, effect) for event in LOG if (effect := effect_of(event))]
    return [Attempt("/p/1", f"op {n}", effect, 10.0 * n, 10.0 * n + 5, "acknowledged") for n, effect in calls]


def received(*numbers: int) -> list[ReceivedEvent]:
    return [ReceivedEvent(str(n), "sess_1", LOG[n - 1]) for n in numbers]


def published(*, status: str = "folded", events: int = 5, revision: int = 5) -> dict[str, Published]:
    state = replay(LOG)
    branches = {"br_1": {**branch_state(state.branches["br_1"], LOG), "status": status}}
    sent = [{"session_id": "sess_1", **members(event)} for event in LOG[:events]]
    return {"sess_1": Published(sent, branches, {**session_state(state), "revision": revision})}


CORRECT = History(
    attempts(),
    {"d1": {"sess_1": LOG}, "nats": {"sess_1": LOG}},
    {"w": [WatcherConnection(None, received(1, 2, 3)), WatcherConnection("3", received(4, 5))]},
    published(),
    {"sess_1": ["op 2", "op 3"]},
)


def with_last(outcome: Outcome, sent_s: float) -> History:
    """The last call with another outcome, or sent at another time."""
    return replace(CORRECT, attempts=[*attempts()[:-1], Attempt("/p/1", "op 5", O2, sent_s, sent_s + 1, outcome)])


def with_log(log: Sequence[Event], *, of_one: bool = False) -> History:
    logs = {"d1": {"sess_1": log}, "nats": {"sess_1": LOG if of_one else log}}
    return replace(CORRECT, logs=logs, watchers={}, published=None)


def with_watch(*second: int) -> History:
    watch = [WatcherConnection(None, received(1, 2, 3)), WatcherConnection("3", received(*second))]
    return replace(CORRECT, watchers={"w": watch})


VIOLATIONS = {
    "acknowledged but not in the log: /p/1 op 5": with_log(LOG[:4]),
    "applied 2 times: /p/1 op 5": with_log([*LOG, operation(6, "o2")]),
    "refused but in the log: /p/1 op 5": with_last("refused", 50),
    "no call asked for it: /p/1": with_log([*LOG, operation(6, "o3")]),
    "the operation id op 2 was committed 2 times": replace(CORRECT, committed={"sess_1": ["op 2", "op 2"]}),
    "has a gap or a duplicate": with_log([*LOG[:2], *LOG[3:]]),
    "sess_1 differs at 5": with_log([*LOG[:4], operation(5, "o3")], of_one=True),
    "('operation.completed', 'o2') was answered before": with_last("acknowledged", 1),
    "received sess_1/5 after a gap": with_watch(5),
    "received sess_1/3 again": with_watch(3, 4, 5),
    "received sess_1 up to 4 of 5": with_watch(4),
    "sess_1 is not published": replace(CORRECT, published={}),
    "events of sess_1 are published as [1, 2, 3, 4]": replace(CORRECT, published=published(events=4)),
    "br_1: status is published as 'active'": replace(CORRECT, published=published(status="active")),
    "revision of the session state is published as 4": replace(CORRECT, published=published(revision=4)),
}


def test_a_correct_history_has_no_violations() -> None:
    assert violations(CORRECT) == []


@pytest.mark.parametrize("expected", VIOLATIONS)
def test_a_violation_is_reported(expected: str) -> None:
    history = VIOLATIONS[expected]
    reported = violations(history)
    assert any(expected in text for text in reported), reported
    assert expected in excerpt(history, reported)
