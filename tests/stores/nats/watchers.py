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
from tests.stores.nats.history_checker import ReceivedEvent, WatcherConnection
from tests.support.daemon import Daemon, Http

# After this long without an event, a watcher connects to another daemon.
SILENCE_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.1
# This bounds the wait until everything that was committed is seen.
COMPLETE_TIMEOUT_S = 90.0
BEGINNING = "0"
# The values are revisions by session id.
Wanted = Mapping[str, int]


class CursorRefused(Exception):
    """A cursor that a daemon gave out earlier was refused."""


class Stream:
    """One connection to `/v1/events`."""

    def __init__(self, port: int, after: str, timeout_s: float = SILENCE_TIMEOUT_S) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        try:
            self._response = self._open(after)
        except BaseException:
            self.close()
            raise

    def _open(self, after: str) -> http.client.HTTPResponse:
        self._connection.request("GET", f"/v1/events?after={after}")
        response = self._connection.getresponse()
        if response.status == 400:
            raise CursorRefused(after, response.read())
        if response.status != 200:
            raise ConnectionError(f"{response.status} {response.read()!r}")
        return response

    def __iter__(self) -> Iterator[ReceivedEvent]:
        fields: dict[str, str] = {}
        while line := self._response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            if fields.get("event", "following") != "following":
                data = json.loads(fields["data"])
                yield ReceivedEvent(fields["id"], data["session_id"], event_from(data))
            fields = {}

    def close(self) -> None:
        self._connection.close()


def event_from(data: Mapping[str, Any]) -> Event:
    """An event from its JSON, which has the session's id as an extra member."""
    return from_json(encode(dict(data)))


class Watcher(threading.Thread):
    """Follows all events from the beginning, at changing daemons, until it has seen the wanted revisions."""

    def __init__(self, name: str, seed: object, daemons: Sequence[Daemon]) -> None:
        super().__init__(name=name)
        self._rng = random.Random(f"{name} {seed}")
        self._daemons = daemons
        self._wanted: Wanted | None = None
        self._give_up = threading.Event()
        self._reached: dict[str, int] = {}
        self.connections: list[WatcherConnection] = []
        self.failures: list[str] = []

    def run(self) -> None:
        after = None
        while not self._is_done():
            received: list[ReceivedEvent] = []
            try:
                self._follow(after, received)
            except CursorRefused as error:
                self.failures.append(f"{self.name}: a cursor was refused: {error}")
                return
            except (OSError, http.client.HTTPException, ValueError):
                self._give_up.wait(RETRY_PAUSE_S)
            self.connections.append(WatcherConnection(after, received))
            after = received[-1].cursor if received else after

    def _follow(self, after: str | None, received: list[ReceivedEvent]) -> None:
        stream = Stream(self._rng.choice(self._daemons).port, after or BEGINNING)
        try:
            for each in stream:
                received.append(each)
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
        self.join(COMPLETE_TIMEOUT_S)
        self.give_up()

    def give_up(self) -> None:
        self._give_up.set()
        self.join(COMPLETE_TIMEOUT_S)


def logs_through(daemon: Daemon) -> dict[str, list[Event]]:
    """Every live session's log as a daemon reports it, once it has as many events as the session's revision says.

    If a connection is cut before that, the log is read again from the beginning.
    """
    deadline_s = time.monotonic() + COMPLETE_TIMEOUT_S
    while True:
        wanted = {row["session_id"]: row["revision"] for row in session_rows(daemon)}
        logs: dict[str, list[Event]] = {session_id: [] for session_id in wanted}
        with suppress(OSError, http.client.HTTPException):
            _read(daemon, wanted, logs, deadline_s)
        if time.monotonic() > deadline_s or _has_all(logs, wanted):
            return logs
        time.sleep(RETRY_PAUSE_S)


def _read(daemon: Daemon, wanted: Wanted, logs: dict[str, list[Event]], deadline_s: float) -> None:
    stream = Stream(daemon.port, BEGINNING, COMPLETE_TIMEOUT_S)
    try:
        for each in stream:
            logs.setdefault(each.session_id, []).append(each.event)
            if time.monotonic() > deadline_s or _has_all(logs, wanted):
                break
    finally:
        stream.close()


def _has_all(logs: Mapping[str, Sequence[Event]], wanted: Wanted) -> bool:
    return all(len(logs[name]) >= n for name, n in wanted.items())


def session_rows(daemon: Daemon) -> list[Any]:
    """Every live session, page by page."""
    http = Http(daemon.port)
    sessions: list[Any] = []
    cursor = ""
    try:
        while cursor is not None:
            page = _get(http, f"/v1/sessions?limit=100&cursor={cursor}")
            sessions += page["sessions"]
            cursor = page["next_cursor"]
    finally:
        http.close()
    return sessions


def _get(http: Http, path: str) -> Any:
    """Repeats a request, because a daemon may need a moment to answer again after a fault."""
    deadline_s = time.monotonic() + COMPLETE_TIMEOUT_S
    while (reply := http.ask("GET", path)).status != 200:
        assert time.monotonic() < deadline_s, (path, reply.body)
        time.sleep(RETRY_PAUSE_S)
    return reply.json


def wrong_views(daemon: Daemon, logs: Mapping[str, Sequence[Event]]) -> Iterator[str]:
    """The differences between a daemon's view of a session and the view that follows from its log."""
    http = Http(daemon.port)
    for session_id, log in logs.items():
        state = replay(log)
        view = _get(http, f"/v1/sessions/{session_id}?limit=500")
        expected: list[BranchRow] = tree(state)
        if view["branches"] != [branch_view(state, row) for row in expected][-500:]:
            yield f"{session_id}: the tree at {daemon.url} is not that of the log"
        if view["session"]["revision"] != state.revision:
            yield f"{session_id}: {daemon.url} is at {view['session']['revision']}, the log at {state.revision}"
    http.close()
