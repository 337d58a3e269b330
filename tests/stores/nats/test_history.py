"""The checker of histories finds what is wrong with one, and nothing where nothing is."""

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
    SessionExpired,
    SessionRolledBack,
    SessionStarted,
    members,
)
from contextfold.fold.session import replay
from tests.stores.nats.history import (
    Account,
    Followed,
    Got,
    Published,
    Try,
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


def tries_for(log: Sequence[Event], project: str) -> list[Try]:
    """One after the other, each acknowledged before the next is sent."""
    return [
        Try(
            project, f"op {event.n}", effect, 10.0 * event.n, 10.0 * event.n + 5, "acknowledged", "d1",
            {"branch_id": getattr(event, "branch_id", None)},
        )
        for event in log
        if (effect := effect_of(event))
    ]  # fmt: skip


def got(*wanted: tuple[str, int]) -> list[Got]:
    """Events of the logs; a cursor says where in the clean order one stands."""
    order = [("sess_1", n) for n in range(1, 5)] + [("sess_2", n) for n in range(1, 6)]
    order += [("sess_1", n) for n in range(5, 8)]
    return [Got(str(order.index((session, n)) + 1), session, LOGS[session][n - 1]) for session, n in wanted]


EVERYTHING = [*(("sess_1", n) for n in range(1, 5)), *(("sess_2", n) for n in range(1, 6))]
EVERYTHING += [("sess_1", n) for n in range(5, 8)]


def published(session_id: str) -> Published:
    log = LOGS[session_id]
    state = replay(log)
    events = [{"session_id": session_id, **members(event)} for event in log]
    branches = {branch.id: branch_state(branch, log) for branch in state.branches.values()}
    return Published(events, branches, session_state(state))


def clean() -> Account:
    return Account(
        [*tries_for(ONE, "/p/1"), *tries_for(TWO, "/p/2")],
        {"d1": LOGS, "d2": dict(LOGS), "nats": dict(LOGS)},
        {"w": [Followed(None, got(*EVERYTHING[:3])), Followed("3", got(*EVERYTHING[3:]))]},
        {session_id: published(session_id) for session_id in LOGS},
        {"sess_1": ["op 2", "op 3"], "sess_2": ["op 2", "op 3"]},
    )


def test_a_clean_history_breaks_no_law() -> None:
    assert violations(clean()) == []


# ---- histories that are clean, though they look odd


def with_tries(*more: Try, without: tuple[str, str] = ("", "")) -> Account:
    account = clean()
    kept = [one for one in account.tries if (one.project, one.operation_id) != without]
    return replace(account, tries=[*kept, *more])


def a_try(outcome: str, effect: tuple[str, str], operation_id: str, sent_s: float, answered_s: float) -> Try:
    return Try("/p/1", operation_id, effect, sent_s, answered_s, outcome, "d2")  # type: ignore[arg-type]


O1, O2 = ("operation.completed", "o1"), ("operation.completed", "o2")


@pytest.mark.parametrize(
    "account",
    [
        pytest.param(with_tries(a_try("unknown", O2, "op 7", 61, 62)), id="sent again until it was answered"),
        pytest.param(with_tries(a_try("unknown", ("operation.completed", "x"), "op x", 1, 2)), id="never done"),
        pytest.param(
            with_tries(a_try("unknown", O2, "op 7", 61, 62), without=("/p/1", "op 7")), id="done and not answered"
        ),
        pytest.param(with_tries(a_try("refused", ("branch.folded", "x"), "op x", 1, 2)), id="refused"),
        pytest.param(
            with_tries(
                a_try("unknown", O2, "op 7", 5, 6), a_try("acknowledged", O2, "op 7", 70, 71), without=("/p/1", "op 7")
            ),
            id="done late, sent early",
        ),
    ],
)
def test_what_may_happen_breaks_no_law(account: Account) -> None:
    assert violations(account) == []


def test_whoever_goes_back_to_an_earlier_cursor_gets_it_again() -> None:
    twice = [Followed(None, got(*EVERYTHING[:6])), Followed("2", got(*EVERYTHING[2:]))]
    assert violations(replace(clean(), watchers={"w": twice})) == []


def test_a_project_may_have_one_session_after_another() -> None:
    ended = [*TWO, SessionExpired(6, AT, "sess_2")]
    started = SessionStarted(1, AT, "sess_3", "/p/2", None)
    logs: dict[str, Sequence[Event]] = {"sess_1": ONE, "sess_2": ended, "sess_3": [started]}
    assert violations(Account(clean().tries, {"d1": logs})) == []


# ---- one breach planted for each law


def with_log(session_id: str, log: Sequence[Event], *readers: str) -> Account:
    account = clean()
    logs = {
        reader: {**held, session_id: log} if reader in (readers or account.logs) else held
        for reader, held in account.logs.items()
    }
    return replace(account, logs=logs, watchers={}, published=None)


def with_watch(*connections: Followed) -> Account:
    return replace(clean(), watchers={"w": connections})


def with_published(change: Callable[[Published], Published | None]) -> Account:
    account = clean()
    assert account.published
    changed = change(account.published["sess_1"])
    rest = {session_id: found for session_id, found in account.published.items() if session_id != "sess_1"}
    return replace(account, published={**rest, "sess_1": changed} if changed else rest)


def renumbered(*events: Event) -> list[Event]:
    return [replace(event, n=n) for n, event in enumerate(events, 1)]


def branch_said(**changed: Any) -> Account:
    return with_published(
        lambda found: replace(found, branches={**found.branches, "br_1": {**found.branches["br_1"], **changed}})
    )


BREACHES = {
    "a lost acknowledgement": (with_log("sess_1", ONE[:6]), "acknowledged and not there: /p/1 op 7"),
    "a call applied twice": (with_log("sess_1", [*ONE, operation(8, "o2")]), "applied 2 times: /p/1 op 7"),
    "a refused call with an effect": (
        with_tries(a_try("refused", O2, "op 7", 70, 71), without=("/p/1", "op 7")),
        "refused and yet there: /p/1 op 7",
    ),
    "an unknown call applied twice": (
        replace(
            with_log("sess_1", [*ONE, operation(8, "o2")]),
            tries=with_tries(a_try("unknown", O2, "op 7", 70, 71), without=("/p/1", "op 7")).tries,
        ),
        "applied 2 times: /p/1 op 7",
    ),
    "an effect of nobody": (with_log("sess_1", [*ONE, operation(8, "o3")]), "nobody asked for it: /p/1"),
    "an operation id committed twice": (
        replace(clean(), committed={"sess_1": ["op 2", "op 3", "op 2"]}),
        "the operation id op 2 was committed 2 times in sess_1",
    ),
    "a gap in a log": (with_log("sess_1", [*ONE[:4], *ONE[5:]]), "the log of sess_1 is no line"),
    "a number twice in a log": (with_log("sess_1", [*ONE[:4], *ONE[3:]]), "the log of sess_1 is no line"),
    "a log of another session": (with_log("sess_1", TWO), "the log of sess_1 begins with"),
    "a log that has lost its beginning": (with_log("sess_1", ONE[1:]), "the log of sess_1 is no line"),
    "an empty log": (with_log("sess_1", []), "the log of sess_1 begins with"),
    "a log that cannot be replayed": (
        with_log("sess_1", renumbered(ONE[0], ONE[2])),
        "the log of sess_1 cannot be replayed",
    ),
    "two sessions at a time": (
        with_log("sess_3", [SessionStarted(1, AT, "sess_3", "/p/2", None)]),
        "/p/2 has 2 sessions at a time",
    ),
    "a reader with less": (with_log("sess_1", ONE[:6], "d2"), "sess_1 differs at 7"),
    "a reader with something else": (
        with_log("sess_1", [*ONE[:6], operation(7, "o3")], "d2"),
        "sess_1 differs at 7",
    ),
    "a reader without a session": (
        replace(clean(), logs={"d1": LOGS, "d2": {"sess_1": ONE}}),
        "d2 does not have sess_2, d1 does",
    ),
    "an answer that tells something else": (
        with_tries(
            replace(a_try("acknowledged", O2, "op 7", 70, 71), told={"branch_id": "br_9"}), without=("/p/1", "op 7")
        ),
        "answered {'branch_id': 'br_9'}, but the log has",
    ),
    "what was answered before, later in the log": (
        with_tries(a_try("acknowledged", O2, "op 7", 1, 2), without=("/p/1", "op 7")),
        "('operation.completed', 'o2') was answered before",
    ),
    "a watcher with a gap": (with_watch(Followed(None, got(*EVERYTHING[:2], *EVERYTHING[3:]))), "sess_1/4 after a gap"),
    "a watcher with a gap where it came back": (
        with_watch(Followed(None, got(*EVERYTHING[:3])), Followed("3", got(*EVERYTHING[4:]))),
        "got sess_1/5 after a gap",
    ),
    "a watcher that got something again": (
        with_watch(Followed(None, got(*EVERYTHING[:3])), Followed("3", got(*EVERYTHING[2:]))),
        "got sess_1/3 again",
    ),
    "a watcher out of order": (
        with_watch(Followed(None, got(EVERYTHING[1], EVERYTHING[0], *EVERYTHING[2:]))),
        "got sess_1/2 after a gap",
    ),
    "a watcher that missed the end": (with_watch(Followed(None, got(*EVERYTHING[:-1]))), "got sess_1 up to 6 of 7"),
    "a watcher that missed a session": (with_watch(Followed(None, got(*EVERYTHING[:4]))), "got sess_2 up to 0 of 5"),
    "a watcher with another event": (
        with_watch(Followed(None, [*got(*EVERYTHING[:-1]), Got("12", "sess_1", operation(7, "o3"))])),
        "the log of sess_1 has another one there",
    ),
    "a watcher with one cursor twice": (
        with_watch(Followed(None, [replace(each, cursor="1") for each in got(*EVERYTHING)])),
        "got 12 events with the cursor 1",
    ),
    "a watcher from nowhere": (with_watch(Followed("99", got(*EVERYTHING))), "a cursor it never had"),
    "a session that is not published": (with_published(lambda _: None), "sess_1 is not published"),
    "an event published twice": (
        with_published(lambda found: replace(found, events=[*found.events, found.events[-1]])),
        "events of sess_1 are published as [1, 2, 3, 4, 5, 6, 7, 7]",
    ),
    "an event not published": (
        with_published(lambda found: replace(found, events=found.events[:-1])),
        "events of sess_1 are published as [1, 2, 3, 4, 5, 6]",
    ),
    "events published out of order": (
        with_published(lambda found: replace(found, events=found.events[::-1])),
        "events of sess_1 are published as [7",
    ),
    "an event published as another": (
        with_published(lambda found: replace(found, events=[*found.events[:-1], {**found.events[-1], "type": "x"}])),
        "sess_1/7 is published as",
    ),
    "an old branch state": (branch_said(status="active"), "br_1: status is published as 'active'"),
    "an old summary": (branch_said(summary="old"), "br_1: summary is published as 'old'"),
    "a branch state that is missing": (
        with_published(lambda found: replace(found, branches={})),
        "sess_1 has the branches ['br_1', 'br_2'], published are []",
    ),
    "a session state that is missing": (
        with_published(lambda found: replace(found, session_state=None)),
        "sess_1 has no session state",
    ),
    "a session state that is behind": (
        with_published(lambda found: replace(found, session_state={**(found.session_state or {}), "revision": 6})),
        "revision of the session state is published as 6, it is 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_a_planted_breach_is_found(name: str) -> None:
    account, expected = BREACHES[name]
    found = violations(account)
    assert any(expected in text for text in found), found
    assert expected in excerpt(account, found)
