"""Watchers that follow the events of daemons and reconnect after every cut, and the logs as daemons report them."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from contextfold.common.canonical import encode
from contextfold.fold.events import Event, from_json
from contextfold.fold.service.session_views import BranchRow, branch_view, tree
from contextfold.fold.session import replay
from tests.stores.nats.history import Followed, Got
from tests.support.daemon import Daemon, Http

# After this long without an event, a watcher asks another daemon.
SILENCE_S = 5.0
AGAIN_AFTER_S = 0.1
# This bounds the wait until everything that was committed is seen.
COMPLETE_S = 90.0
BEGINNING = "0"
# The values are revisions by session id.
Wanted = Mapping[str, int]


class CursorRefused(Exception):
    """A cursor that a daemon gave out earlier was refused."""


class Stream:
    """One connection to `/v1/events`."""

    def __init__(self, port: int, after: str, timeout_s: float = SILENCE_S) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        try:
            self._answer = self._begun(after)
        except BaseException:
            self.close()
            raise

    def _begun(self, after: str) -> http.client.HTTPResponse:
        self._connection.request("GET", f"/v1/events?after={after}")
        answer = self._connection.getresponse()
        if answer.status == 400:
            raise CursorRefused(after, answer.read())
        if answer.status != 200:
            raise ConnectionError(f"{answer.status} {answer.read()!r}")
        return answer

    def __iter__(self) -> Iterator[Got]:
        fields: dict[str, str] = {}
        while line := self._answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            if fields.get("event", "following") != "following":
                told = json.loads(fields["data"])
                yield Got(fields["id"], told["session_id"], event_told(told))
            fields = {}

    def close(self) -> None:
        self._connection.close()


def event_told(told: Mapping[str, Any]) -> Event:
    """An event from its JSON, which has the session's id as an extra member."""
    return from_json(encode(dict(told)))


class Watcher(threading.Thread):
    """Follows all events from the beginning, at changing daemons, until it has seen the wanted revisions."""

    def __init__(self, name: str, seed: object, daemons: Sequence[Daemon]) -> None:
        super().__init__(name=name)
        self._dice = random.Random(f"{name} {seed}")
        self._daemons = daemons
        self._wanted: Wanted | None = None
        self._give_up = threading.Event()
        self._reached: dict[str, int] = {}
        self.connections: list[Followed] = []
        self.broken: list[str] = []

    def run(self) -> None:
        after = None
        while not self._is_done():
            got: list[Got] = []
            try:
                self._follow(after, got)
            except CursorRefused as problem:
                self.broken.append(f"{self.name}: a cursor was refused: {problem}")
                return
            except (OSError, http.client.HTTPException, ValueError):
                self._give_up.wait(AGAIN_AFTER_S)
            self.connections.append(Followed(after, got))
            after = got[-1].cursor if got else after

    def _follow(self, after: str | None, got: list[Got]) -> None:
        stream = Stream(self._dice.choice(self._daemons).port, after or BEGINNING)
        try:
            for each in stream:
                got.append(each)
                self._reached[each.session_id] = each.event.n
                if self._is_done():
                    return
        finally:
            stream.close()

    def _is_done(self) -> bool:
        return self._give_up.is_set() or (
            self._wanted is not None and all(self._reached.get(name, 0) >= n for name, n in self._wanted.items())
        )

    def finish(self, wanted: Wanted) -> None:
        """Waits until the watcher has seen these revisions, and ends it."""
        self._wanted = wanted
        self.join(COMPLETE_S)
        self.give_up()

    def give_up(self) -> None:
        self._give_up.set()
        self.join(COMPLETE_S)


def logs_through(daemon: Daemon) -> dict[str, list[Event]]:
    """Every live session's log as a daemon reports it, once it has as many events as the session's revision says.

    If a connection is cut before that, the log is read again from the beginning.
    """
    give_up_s = time.monotonic() + COMPLETE_S
    while True:
        wanted = {row["session_id"]: row["revision"] for row in rows(daemon)}
        logs: dict[str, list[Event]] = {session_id: [] for session_id in wanted}
        with suppress(OSError, http.client.HTTPException):
            _read(daemon, wanted, logs, give_up_s)
        if time.monotonic() > give_up_s or _has_all(logs, wanted):
            return logs
        time.sleep(AGAIN_AFTER_S)


def _read(daemon: Daemon, wanted: Wanted, logs: dict[str, list[Event]], give_up_s: float) -> None:
    stream = Stream(daemon.port, BEGINNING, COMPLETE_S)
    try:
        for each in stream:
            logs.setdefault(each.session_id, []).append(each.event)
            if time.monotonic() > give_up_s or _has_all(logs, wanted):
                break
    finally:
        stream.close()


def _has_all(logs: Mapping[str, Sequence[Event]], wanted: Wanted) -> bool:
    return all(len(logs[name]) >= n for name, n in wanted.items())


def rows(daemon: Daemon) -> list[Any]:
    """Every live session, page by page."""
    http = Http(daemon.port)
    found: list[Any] = []
    cursor = ""
    try:
        while cursor is not None:
            told = _answer(http, f"/v1/sessions?limit=100&cursor={cursor}")
            found += told["sessions"]
            cursor = told["next_cursor"]
    finally:
        http.close()
    return found


def _answer(http: Http, path: str) -> Any:
    """Repeats a request, because a daemon may need a moment to answer again after a fault."""
    give_up_s = time.monotonic() + COMPLETE_S
    while (reply := http.ask("GET", path)).status != 200:
        assert time.monotonic() < give_up_s, (path, reply.body)
        time.sleep(AGAIN_AFTER_S)
    return reply.json


def wrong_views(daemon: Daemon, logs: Mapping[str, Sequence[Event]]) -> Iterator[str]:
    """The differences between a daemon's view of a session and the view that follows from its log."""
    http = Http(daemon.port)
    for session_id, log in logs.items():
        state = replay(log)
        told = _answer(http, f"/v1/sessions/{session_id}?limit=500")
        expected: list[BranchRow] = tree(state)
        if told["branches"] != [branch_view(row) for row in expected][-500:]:
            yield f"{session_id}: the tree at {daemon.url} is not that of the log"
        if told["session"]["revision"] != state.revision:
            yield f"{session_id}: {daemon.url} is at {told['session']['revision']}, the log at {state.revision}"
    http.close()
