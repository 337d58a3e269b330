"""Checks a history: what clients, watchers and the store report about the same period. Pure.

Clients report what they sent, when, and what they were answered. Every reader reports the final log of each session.
Watchers report which events they received. A NATS client reports what is stored on the subjects. `violations` checks
the history against the rules below, one function each, and returns a sentence for every violation:

- a session's log has the events 1 to k without a gap and can be replayed; a project has one session at a time
- every reader has the same logs
- an acknowledged call is in the log once, a refused call is not, a call with an unknown outcome at most once; every
  event in the log comes from a call; no operation id is committed twice
- an answer agrees with the log
- a call that was answered before another was sent comes before it in the log
- a watcher receives each session's events in order and without a gap; it receives an event again only after it has
  gone back to an earlier cursor
- the events of the log are published in order and once, with the states that follow from them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from contextfold.fold.events import (
    BranchCreated,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionExpired,
    SessionRolledBack,
    SessionStarted,
    kind_of,
    members,
)
from contextfold.fold.session import Branch, LogBroken, State, replay

EXCERPT_LINES = 12

Outcome = Literal["acknowledged", "refused", "unknown"]
# An effect is the kind of an event, and the text that the call put into it.
Effect = tuple[str, str]
# The keys are session ids.
Logs = Mapping[str, Sequence[Event]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call. A retry has the same operation id."""

    project: str
    operation_id: str
    effect: Effect
    sent_s: float
    answered_s: float
    outcome: Outcome
    daemon: str = ""
    # These are the members of the answer that its event has too.
    event_members: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        answer = dict(self.event_members) or ""
        when = f"{self.sent_s:9.3f} … {self.answered_s:9.3f}"
        return f"{when}  {self.daemon:4} {self.project} {self.operation_id} {self.effect} {self.outcome} {answer}"


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event as a watcher received it."""

    cursor: str
    session_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class WatcherConnection:
    """One connection of a watcher: the cursor it began at, and the events it received."""

    # The value is a cursor, or None for the beginning of the log.
    after: str | None
    received: Sequence[ReceivedEvent]


@dataclass(frozen=True, slots=True)
class Published:
    """What a NATS client reads about a session."""

    # The events are in the order of the stream.
    events: Sequence[Mapping[str, Any]]
    # Each branch has its last published state.
    branches: Mapping[str, Mapping[str, Any]]
    session_state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was observed during a test."""

    attempts: Sequence[Attempt]
    # The keys are the names of readers.
    logs: Mapping[str, Logs]
    watchers: Mapping[str, Sequence[WatcherConnection]] = field(default_factory=dict)
    # The keys are session ids.
    published: Mapping[str, Published] | None = None
    # The operation ids are listed by session id.
    committed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def violations(history: History) -> list[str]:
    """Every violation of a rule, as a sentence."""
    sentences = [text for reader, logs in history.logs.items() for text in _check_logs(reader, logs)]
    # The checks below need logs that can be replayed.
    if sentences:
        return sentences
    sentences += _check_readers_agree(history.logs)
    logs = next(iter(history.logs.values()))
    sentences += _check_effects(history.attempts, logs)
    sentences += _check_operation_ids(history)
    sentences += _check_answers(history.attempts, logs)
    sentences += _check_order(history.attempts, logs)
    for watcher, connections in history.watchers.items():
        sentences += _check_watcher(watcher, connections, logs)
    if history.published is not None:
        sentences += _check_published(history.published, logs)
    return sentences


# ---- logs


def effect_of(event: Event) -> Effect | None:
    """The effect by which the sender recognises its event in the log; None for an event that follows from another."""
    match event:
        case BranchCreated():
            return kind_of(event), event.description
        case OperationCompleted():
            return kind_of(event), event.type
        case BranchFolded() if not event.forced:
            return kind_of(event), event.summary
        case SessionRolledBack():
            return kind_of(event), event.branch_id
    return None


def project_of(log: Sequence[Event]) -> str:
    return log[0].project_path if log and isinstance(log[0], SessionStarted) else ""


def _check_logs(reader: str, logs: Logs) -> Iterator[str]:
    live: Counter[str] = Counter()
    for session_id, log in logs.items():
        numbers = [event.n for event in log]
        if numbers != list(range(1, len(log) + 1)):
            yield f"{reader}: the log of {session_id} has a gap or a duplicate: {_numbers_around_gap(numbers)}"
            continue
        if not log or not isinstance(log[0], SessionStarted) or log[0].session_id != session_id:
            yield f"{reader}: the log of {session_id} begins with {log[:1]}"
            continue
        try:
            replay(log)
        except (LogBroken, KeyError) as error:
            yield f"{reader}: the log of {session_id} cannot be replayed: {error!r}"
        live[project_of(log)] += not isinstance(log[-1], SessionExpired)
    yield from (f"{reader}: {project} has {count} sessions at a time" for project, count in live.items() if count > 1)


def _numbers_around_gap(numbers: Sequence[int]) -> str:
    gap = next((position for position, n in enumerate(numbers, 1) if n != position), len(numbers))
    return f"… {list(numbers[max(0, gap - 4) : gap + 4])} …"


def _check_readers_agree(readers: Mapping[str, Logs]) -> Iterator[str]:
    (first, logs), *others = readers.items()
    for reader, theirs in others:
        for session_id in logs.keys() | theirs.keys():
            mine, other = logs.get(session_id), theirs.get(session_id)
            if mine is None or other is None:
                without, with_it = (first, reader) if mine is None else (reader, first)
                yield f"{without} does not have {session_id}, {with_it} does"
            elif list(mine) != list(other):
                pairs = enumerate(zip(mine, other, strict=False))
                index = next((n for n, (one, two) in pairs if one != two), min(len(mine), len(other)))
                has = f"{first} has {mine[index:][:1]}, {reader} has {other[index:][:1]}"
                yield f"{session_id} differs at {index + 1}: {has}"


# ---- calls


@dataclass(slots=True)
class _Operation:
    """A call with all its attempts."""

    attempts: list[Attempt] = field(default_factory=list)

    @property
    def is_acknowledged(self) -> bool:
        return any(attempt.outcome == "acknowledged" for attempt in self.attempts)

    @property
    def is_refused(self) -> bool:
        return all(attempt.outcome == "refused" for attempt in self.attempts)

    @property
    def sent_s(self) -> float:
        return min(attempt.sent_s for attempt in self.attempts)

    @property
    def done_s(self) -> float:
        answered = (attempt.answered_s for attempt in self.attempts if attempt.outcome == "acknowledged")
        return min(answered, default=float("inf"))


def _operations(attempts: Iterable[Attempt]) -> dict[tuple[str, str], _Operation]:
    operations: dict[tuple[str, str], _Operation] = {}
    for attempt in attempts:
        operations.setdefault((attempt.project, attempt.operation_id), _Operation()).attempts.append(attempt)
    return operations


def _operations_by_effect(attempts: Iterable[Attempt]) -> dict[tuple[str, Effect], _Operation]:
    return {
        (project, operation.attempts[0].effect): operation for (project, _), operation in _operations(attempts).items()
    }


def _check_effects(attempts: Sequence[Attempt], logs: Logs) -> Iterator[str]:
    in_logs: Counter[tuple[str, Effect]] = Counter()
    for log in logs.values():
        in_logs.update((project_of(log), effect) for event in log if (effect := effect_of(event)))
    operations = _operations(attempts)
    sent = {(project, operation.attempts[0].effect) for (project, _), operation in operations.items()}
    assert len(sent) == len(operations), "each call must leave an effect of its own"
    for (project, operation_id), operation in operations.items():
        effect = operation.attempts[0].effect
        times = in_logs[project, effect]
        call = f"{project} {operation_id} {effect}"
        if times > 1:
            yield f"applied {times} times: {call}"
        elif operation.is_acknowledged and not times:
            yield f"acknowledged but not in the log: {call}"
        elif operation.is_refused and times:
            yield f"refused but in the log: {call}"
    yield from (
        f"no call asked for it: {project} {effect}" for project, effect in in_logs if (project, effect) not in sent
    )


def _check_operation_ids(history: History) -> Iterator[str]:
    for session_id, ids in history.committed.items():
        for operation_id, times in Counter(ids).items():
            if times > 1:
                yield f"the operation id {operation_id} was committed {times} times in {session_id}"


def _check_answers(attempts: Sequence[Attempt], logs: Logs) -> Iterator[str]:
    events = {
        (project_of(log), effect): {"session_id": session_id, **members(event)}
        for session_id, log in logs.items()
        for event in log
        if (effect := effect_of(event))
    }
    for attempt in attempts:
        event = events.get((attempt.project, attempt.effect))
        if event is None or attempt.outcome != "acknowledged":
            continue
        wrong = {name: value for name, value in attempt.event_members.items() if event.get(name) != value}
        if wrong:
            yield f"answered {wrong}, but the log has {event}: {attempt.project} {attempt.operation_id}"


def _check_order(attempts: Sequence[Attempt], logs: Logs) -> Iterator[str]:
    """Reads a log from its end: nothing later may have been answered before this was sent."""
    operations = _operations_by_effect(attempts)
    for log in logs.values():
        project, done_s, earliest = project_of(log), float("inf"), None
        for event in reversed(log):
            effect = effect_of(event)
            operation = operations.get((project, effect)) if effect else None
            if operation is None:
                continue
            if done_s < operation.sent_s:
                yield f"{project}: {earliest} was answered before {effect} was sent, and comes after it in the log"
            if operation.done_s < done_s:
                done_s, earliest = operation.done_s, effect


# ---- watchers


def _check_watcher(watcher: str, connections: Sequence[WatcherConnection], logs: Logs) -> Iterator[str]:
    # This is the sequence that a single connection would have received.
    trail: list[ReceivedEvent] = []
    for connection in connections:
        length = _events_before(trail, connection.after)
        if length is None:
            yield f"{watcher} continued after {connection.after}, a cursor it never received"
            return
        trail = trail[:length]
        reached: dict[str, int] = {}
        for each in trail:
            reached[each.session_id] = each.event.n
        for received in connection.received:
            session_id, n = received.session_id, received.event.n
            expected = reached.get(session_id, 0) + 1
            if n != expected:
                fault = "again" if n < expected else "after a gap"
                yield f"{watcher} received {session_id}/{n} {fault}, expected {expected} (cursor {received.cursor})"
            reached[session_id] = n
            log = logs.get(session_id, ())
            if log[n - 1 : n] != [received.event]:
                yield f"{watcher} received {received.event}, the log of {session_id} has another event there"
            trail.append(received)
    cursors = Counter(each.cursor for each in trail)
    yield from (
        f"{watcher} received {count} events with the cursor {cursor}" for cursor, count in cursors.items() if count > 1
    )
    ends = {each.session_id: each.event.n for each in trail}
    for session_id, log in logs.items():
        if ends.get(session_id, 0) < len(log):
            yield f"{watcher} received {session_id} up to {ends.get(session_id, 0)} of {len(log)}"


def _events_before(trail: Sequence[ReceivedEvent], after: str | None) -> int | None:
    """How many of the received events come before a connection that begins after this cursor."""
    if after is None:
        return 0
    return next((index + 1 for index in range(len(trail) - 1, -1, -1) if trail[index].cursor == after), None)


# ---- what NATS clients see


def _check_published(published: Mapping[str, Published], logs: Logs) -> Iterator[str]:
    for session_id in published.keys() | logs.keys():
        session, log = published.get(session_id), logs.get(session_id)
        if session is None or log is None:
            yield f"{session_id} is {'not published' if session is None else 'published, but no reader has its log'}"
            continue
        numbers = [event.get("n") for event in session.events]
        if numbers != list(range(1, len(log) + 1)):
            yield f"events of {session_id} are published as {numbers}, the log has {len(log)}"
        for published_event, event in zip(session.events, log, strict=False):
            expected = {"session_id": session_id, **members(event)}
            if published_event != expected:
                yield f"{session_id}/{event.n} is published as {published_event}, it is {expected}"
        yield from _check_states(session_id, session, replay(log), log)


def _check_states(session_id: str, session: Published, state: State, log: Sequence[Event]) -> Iterator[str]:
    if session.branches.keys() != state.branches.keys():
        yield f"{session_id} has the branches {sorted(state.branches)}, published are {sorted(session.branches)}"
    for branch in state.branches.values():
        published = session.branches.get(branch.id, {})
        for name, value in branch_state(branch, log).items():
            if published.get(name) != value:
                yield f"{session_id} {branch.id}: {name} is published as {published.get(name)!r}, it is {value!r}"
    if session.session_state is None:
        yield f"{session_id} has no session state"
        return
    for name, value in session_state(state).items():
        if session.session_state.get(name) != value:
            value_published = session.session_state.get(name)
            yield f"{session_id}: {name} of the session state is published as {value_published!r}, it is {value!r}"


def branch_state(branch: Branch, log: Sequence[Event]) -> dict[str, Any]:
    """The state of a branch's subject that follows from the log."""
    events = [event for event in log if getattr(event, "branch_id", None) == branch.id]
    created = next(event for event in events if isinstance(event, BranchCreated))
    expected: dict[str, Any] = {
        "id": branch.id,
        "description": branch.description,
        "prompt": created.prompt,
        "parent_id": branch.parent_id,
        "status": branch.status,
        "created_at": branch.created_at,
        "tokens": branch.tokens,
    }
    if branch.status == "folded":
        folded = next(event for event in reversed(events) if isinstance(event, BranchFolded))
        expected |= {"folded_at": folded.at, "summary": folded.summary, "tokens_folded": folded.tokens_folded}
    return expected


def session_state(state: State) -> dict[str, Any]:
    return {
        "session_id": state.session_id,
        "revision": state.revision,
        "active_branch_id": state.path[-1] if state.path else None,
        "branch_depth": state.depth,
    }


# ---- report of a failure


def excerpt(history: History, sentences: Sequence[str]) -> str:
    """The report of a failure: the violations, and the attempts in the projects that they name."""
    shown = sentences[:EXCERPT_LINES]
    attempts = [attempt for attempt in history.attempts if any(attempt.project in text for text in shown)]
    lines = ["", f"{len(sentences)} violations", *shown, "", "attempts in these projects:"]
    lines += map(str, sorted(attempts, key=lambda attempt: attempt.sent_s)[: 4 * EXCERPT_LINES])
    logs = next(iter(history.logs.values()), {})
    for session_id, log in logs.items():
        if any(session_id in text or project_of(log) in text for text in shown if project_of(log)):
            lines += ["", f"{session_id} of {project_of(log)}:", *(f"  {event}" for event in log[: 4 * EXCERPT_LINES])]
    return "\n".join(lines)
