"""Compares what clients, watchers and the store report about the same period, and finds contradictions. Pure.

Clients report what they sent, when, and what they were answered. Every reader reports the final log of each session.
Watchers report which events they received. A NATS client reports what is stored on the subjects. `violations` checks
all of it against the laws below, one function each, and returns a sentence for every violation:

- a session's log is one line of events, 1 to k, that can be replayed; a project has one session at a time
- every reader has the same logs
- what was acknowledged is in the log once; what was refused is not; what is unknown is there once at most;
  nothing is there that nobody asked for; no operation id was committed twice
- an answer says what the log says
- what was answered before something else was sent comes before it in the log
- a watcher gets each session's events in order, without a gap, again only where it went back to an earlier cursor
- what is published is the log's events in order, once, and the states that follow from them
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
    members,
)
from contextfold.fold.session import Branch, LogBroken, State, replay

EXCERPT = 12  # lines

Outcome = Literal["acknowledged", "refused", "unknown"]
# An effect is the kind of an event, and the text that the call put into it.
Effect = tuple[str, str]
# The keys are session ids.
Logs = Mapping[str, Sequence[Event]]


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a call. A retry has the same operation id."""

    project: str
    operation_id: str
    effect: Effect
    sent_s: float
    answered_s: float
    outcome: Outcome
    where: str = ""
    # These are the members of the answer that its event has too.
    told: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        told = dict(self.told) or ""
        when = f"{self.sent_s:9.3f} … {self.answered_s:9.3f}"
        return f"{when}  {self.where:4} {self.project} {self.operation_id} {self.effect} {self.outcome} {told}"


@dataclass(frozen=True, slots=True)
class Got:
    """An event as a watcher received it."""

    cursor: str
    session_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Followed:
    """One connection of a watcher: where it began, and which events it received."""

    # The value is a cursor, or None for the beginning of the log.
    after: str | None
    got: Sequence[Got]


@dataclass(frozen=True, slots=True)
class Published:
    """What a NATS client reads about a session."""

    # The events are in the order of the stream.
    events: Sequence[Mapping[str, Any]]
    # Each branch has its last published state.
    branches: Mapping[str, Mapping[str, Any]]
    session_state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Account:
    tries: Sequence[Try]
    # The keys are the names of readers.
    logs: Mapping[str, Logs]
    watchers: Mapping[str, Sequence[Followed]] = field(default_factory=dict)
    # The keys are session ids.
    published: Mapping[str, Published] | None = None
    # The operation ids are listed by session id.
    committed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def violations(account: Account) -> list[str]:
    """Every violation of a law, as a sentence."""
    found = [text for reader, logs in account.logs.items() for text in _linear(reader, logs)]
    # The checks below need logs that can be replayed.
    if found:
        return found
    found += _agreeing(account.logs)
    logs = next(iter(account.logs.values()))
    found += _effects(account.tries, logs)
    found += _committed(account)
    found += _answers(account.tries, logs)
    found += _order(account.tries, logs)
    for watcher, connections in account.watchers.items():
        found += _watched(watcher, connections, logs)
    if account.published is not None:
        found += _published(account.published, logs)
    return found


# ---- logs


def effect_of(event: Event) -> Effect | None:
    """The effect by which the sender recognises its event in the log; None for an event that follows from another."""
    match event:
        case BranchCreated():
            return event.kind, event.description
        case OperationCompleted():
            return event.kind, event.type
        case BranchFolded() if not event.forced:
            return event.kind, event.summary
        case SessionRolledBack():
            return event.kind, event.branch_id
    return None


def project_of(log: Sequence[Event]) -> str:
    return log[0].project_path if log and isinstance(log[0], SessionStarted) else ""


def _linear(reader: str, logs: Logs) -> Iterator[str]:
    live: Counter[str] = Counter()
    for session_id, log in logs.items():
        numbers = [event.n for event in log]
        if numbers != list(range(1, len(log) + 1)):
            yield f"{reader}: the log of {session_id} is no line: {_around(numbers)}"
            continue
        if not log or not isinstance(log[0], SessionStarted) or log[0].session_id != session_id:
            yield f"{reader}: the log of {session_id} begins with {log[:1]}"
            continue
        try:
            replay(log)
        except (LogBroken, KeyError) as problem:
            yield f"{reader}: the log of {session_id} cannot be replayed: {problem!r}"
        live[project_of(log)] += not isinstance(log[-1], SessionExpired)
    yield from (f"{reader}: {project} has {count} sessions at a time" for project, count in live.items() if count > 1)


def _around(numbers: Sequence[int]) -> str:
    off = next((at for at, n in enumerate(numbers, 1) if n != at), len(numbers))
    return f"… {list(numbers[max(0, off - 4) : off + 4])} …"


def _agreeing(readers: Mapping[str, Logs]) -> Iterator[str]:
    (first, logs), *others = readers.items()
    for reader, theirs in others:
        for session_id in logs.keys() | theirs.keys():
            mine, other = logs.get(session_id), theirs.get(session_id)
            if mine is None or other is None:
                less, more = (first, reader) if mine is None else (reader, first)
                yield f"{less} does not have {session_id}, {more} does"
            elif list(mine) != list(other):
                n = next((at for at, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]), None)
                at = min(len(mine), len(other)) if n is None else n
                yield f"{session_id} differs at {at + 1}: {first} has {mine[at:][:1]}, {reader} has {other[at:][:1]}"


# ---- calls


@dataclass(slots=True)
class _Operation:
    """A call with all its attempts."""

    tries: list[Try] = field(default_factory=list)

    @property
    def is_acknowledged(self) -> bool:
        return any(one.outcome == "acknowledged" for one in self.tries)

    @property
    def is_refused(self) -> bool:
        return all(one.outcome == "refused" for one in self.tries)

    @property
    def sent_s(self) -> float:
        return min(one.sent_s for one in self.tries)

    @property
    def done_s(self) -> float:
        return min((one.answered_s for one in self.tries if one.outcome == "acknowledged"), default=float("inf"))


def _operations(tries: Iterable[Try]) -> dict[tuple[str, str], _Operation]:
    found: dict[tuple[str, str], _Operation] = {}
    for one in tries:
        found.setdefault((one.project, one.operation_id), _Operation()).tries.append(one)
    return found


def _by_effect(tries: Iterable[Try]) -> dict[tuple[str, Effect], _Operation]:
    return {(project, operation.tries[0].effect): operation for (project, _), operation in _operations(tries).items()}


def _effects(tries: Sequence[Try], logs: Logs) -> Iterator[str]:
    there: Counter[tuple[str, Effect]] = Counter()
    for log in logs.values():
        there.update((project_of(log), effect) for event in log if (effect := effect_of(event)))
    operations = _operations(tries)
    asked = {(project, operation.tries[0].effect) for (project, _), operation in operations.items()}
    assert len(asked) == len(operations), "each call must leave an effect of its own"
    for (project, operation_id), operation in operations.items():
        effect = operation.tries[0].effect
        times = there[project, effect]
        told = f"{project} {operation_id} {effect}"
        if times > 1:
            yield f"applied {times} times: {told}"
        elif operation.is_acknowledged and not times:
            yield f"acknowledged and not there: {told}"
        elif operation.is_refused and times:
            yield f"refused and yet there: {told}"
    yield from (
        f"nobody asked for it: {project} {effect}" for project, effect in there if (project, effect) not in asked
    )


def _committed(account: Account) -> Iterator[str]:
    for session_id, ids in account.committed.items():
        for operation_id, times in Counter(ids).items():
            if times > 1:
                yield f"the operation id {operation_id} was committed {times} times in {session_id}"


def _answers(tries: Sequence[Try], logs: Logs) -> Iterator[str]:
    events = {
        (project_of(log), effect): {"session_id": session_id, **members(event)}
        for session_id, log in logs.items()
        for event in log
        if (effect := effect_of(event))
    }
    for one in tries:
        event = events.get((one.project, one.effect))
        if event is None or one.outcome != "acknowledged":
            continue
        wrong = {name: value for name, value in one.told.items() if event.get(name) != value}
        if wrong:
            yield f"answered {wrong}, but the log has {event}: {one.project} {one.operation_id}"


def _order(tries: Sequence[Try], logs: Logs) -> Iterator[str]:
    """Reads a log from its end: nothing later may have been answered before this was sent."""
    operations = _by_effect(tries)
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


def _watched(watcher: str, connections: Sequence[Followed], logs: Logs) -> Iterator[str]:
    # This is the sequence that a single connection would have received.
    trail: list[Got] = []
    for connection in connections:
        back = _position(trail, connection.after)
        if back is None:
            yield f"{watcher} went on after {connection.after}, a cursor it never had"
            return
        trail = trail[:back]
        reached: dict[str, int] = {}
        for got in trail:
            reached[got.session_id] = got.event.n
        for got in connection.got:
            expected = reached.get(got.session_id, 0) + 1
            if got.event.n != expected:
                what = "again" if got.event.n < expected else "after a gap"
                yield f"{watcher} got {got.session_id}/{got.event.n} {what}, expected {expected} (cursor {got.cursor})"
            reached[got.session_id] = got.event.n
            log = logs.get(got.session_id, ())
            if log[got.event.n - 1 : got.event.n] != [got.event]:
                yield f"{watcher} got {got.event}, the log of {got.session_id} has another one there"
            trail.append(got)
    cursors = Counter(got.cursor for got in trail)
    yield from (
        f"{watcher} got {count} events with the cursor {cursor}" for cursor, count in cursors.items() if count > 1
    )
    ends = {got.session_id: got.event.n for got in trail}
    for session_id, log in logs.items():
        if ends.get(session_id, 0) < len(log):
            yield f"{watcher} got {session_id} up to {ends.get(session_id, 0)} of {len(log)}"


def _position(trail: Sequence[Got], after: str | None) -> int | None:
    """How many of the received events come before a connection that begins there."""
    if after is None:
        return 0
    return next((place + 1 for place in range(len(trail) - 1, -1, -1) if trail[place].cursor == after), None)


# ---- what NATS clients see


def _published(published: Mapping[str, Published], logs: Logs) -> Iterator[str]:
    for session_id in published.keys() | logs.keys():
        found, log = published.get(session_id), logs.get(session_id)
        if found is None or log is None:
            yield f"{session_id} is {'not published' if found is None else 'published, and nobody has its log'}"
            continue
        numbers = [event.get("n") for event in found.events]
        if numbers != list(range(1, len(log) + 1)):
            yield f"events of {session_id} are published as {numbers}, the log has {len(log)}"
        for told, event in zip(found.events, log, strict=False):
            expected = {"session_id": session_id, **members(event)}
            if told != expected:
                yield f"{session_id}/{event.n} is published as {told}, it is {expected}"
        yield from _states(session_id, found, replay(log), log)


def _states(session_id: str, found: Published, state: State, log: Sequence[Event]) -> Iterator[str]:
    if found.branches.keys() != state.branches.keys():
        yield f"{session_id} has the branches {sorted(state.branches)}, published are {sorted(found.branches)}"
    for branch in state.branches.values():
        told = found.branches.get(branch.id, {})
        for name, value in branch_state(branch, log).items():
            if told.get(name) != value:
                yield f"{session_id} {branch.id}: {name} is published as {told.get(name)!r}, it is {value!r}"
    if found.session_state is None:
        yield f"{session_id} has no session state"
        return
    for name, value in session_state(state).items():
        if found.session_state.get(name) != value:
            said = found.session_state.get(name)
            yield f"{session_id}: {name} of the session state is published as {said!r}, it is {value!r}"


def branch_state(branch: Branch, log: Sequence[Event]) -> dict[str, Any]:
    """The state of a branch's subject that follows from the log."""
    of_it = [event for event in log if getattr(event, "branch_id", None) == branch.id]
    created = next(event for event in of_it if isinstance(event, BranchCreated))
    told: dict[str, Any] = {
        "id": branch.id,
        "description": branch.description,
        "prompt": created.prompt,
        "parent_id": branch.parent_id,
        "status": branch.status,
        "created_at": branch.created_at,
        "tokens": branch.tokens,
    }
    if branch.status == "folded":
        folded = next(event for event in reversed(of_it) if isinstance(event, BranchFolded))
        told |= {"folded_at": folded.at, "summary": folded.summary, "tokens_folded": folded.tokens_folded}
    return told


def session_state(state: State) -> dict[str, Any]:
    return {
        "session_id": state.session_id,
        "revision": state.revision,
        "active_branch_id": state.path[-1] if state.path else None,
        "branch_depth": state.depth,
    }


# ---- for people


def excerpt(account: Account, found: Sequence[str]) -> str:
    """What to read first when a law was violated: the violations, and the attempts in the projects that they name."""
    named = [one for one in account.tries if any(one.project in text for text in found[:EXCERPT])]
    lines = ["", f"{len(found)} breaches", *found[:EXCERPT], "", "what was tried there:"]
    lines += map(str, sorted(named, key=lambda one: one.sent_s)[: 4 * EXCERPT])
    logs = next(iter(account.logs.values()), {})
    for session_id, log in logs.items():
        if any(session_id in text or project_of(log) in text for text in found[:EXCERPT] if project_of(log)):
            lines += ["", f"{session_id} of {project_of(log)}:", *(f"  {event}" for event in log[: 4 * EXCERPT])]
    return "\n".join(lines)
