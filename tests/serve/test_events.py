"""The event stream `/v1/events`: in order, resumable, limited to the owner, and properly ended."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import ANSWER_TIMEOUT_S, Daemon, Http, HttpAgent
from tests.support.machine import run_command


class SentEvent(NamedTuple):
    id: str
    event: str
    data: Any


class Follower:
    """A client of the event stream."""

    def __init__(self, daemon: Daemon, query: str = "", **headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=ANSWER_TIMEOUT_S)
        sent = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self._socket.sendall(f"GET /v1/events{query} HTTP/1.1\r\nhost: localhost\r\n{sent}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(self._file.readline, b"\r\n"))

    def next(self) -> SentEvent | None:
        """The next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        while True:
            line = self._line()
            if line is None:
                return None
            if not line and fields:
                return SentEvent(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            name, _, value = line.partition(": ")
            fields[name] = value

    def _line(self) -> str | None:
        """A line from the chunks of the stream; each chunk of ours consists of whole lines."""
        while True:
            line = self._file.readline()
            if not line or line == b"0\r\n":
                return None
            if line.endswith(b"\r\n"):
                # The line is the length of a chunk, or the end of one.
                continue
            return line.decode().rstrip("\n")

    def take(self, count: int) -> list[SentEvent]:
        events = [self.next() for _ in range(count)]
        assert None not in events
        return [event for event in events if event]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "daemon")
    yield daemon
    if daemon.process.poll() is None:
        assert daemon.stop() == 0


def work(daemon: Daemon, project: str, **headers: str) -> str:
    """A branch and its return, which make four events. Returns the session's id."""
    with HttpAgent(daemon.port, **headers) as agent:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        agent.call("context_record", type="t", content="c", project_path=project)
        agent.call("context_return", message="m", project_path=project)
    session_id: str = branch["session_id"]
    return session_id


WORK = ["session.started", "branch.created", "operation.completed", "branch.folded"]


def test_a_follower_receives_events_from_its_connection_on(daemon: Daemon) -> None:
    work(daemon, "/before")
    follower = Follower(daemon)
    assert (follower.status, follower.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    (first,) = follower.take(1)
    assert (first.event, first.data) == ("following", {})
    session_id = work(daemon, "/p")
    events = follower.take(4)
    assert [event.event for event in events] == WORK
    assert [event.data["n"] for event in events] == [1, 2, 3, 4]
    assert {event.data["session_id"] for event in events} == {session_id}
    assert [int(event.id) for event in events] == sorted(int(event.id) for event in events)
    follower.close()


def test_a_follower_can_continue_after_a_disconnect_and_a_restart(daemon: Daemon) -> None:
    follower = Follower(daemon)
    follower.take(1)
    work(daemon, "/p")
    first_events = follower.take(2)
    follower.close()
    work(daemon, "/q")
    daemon.kill()
    daemon.start()
    work(daemon, "/r")
    again = Follower(daemon, last_event_id=first_events[-1].id)
    rest = again.take(1 + 2 + 4 + 4)
    assert [event.event for event in rest[1:]] == WORK[2:] + WORK + WORK
    again.close()
    by_query = Follower(daemon, f"?after={first_events[-1].id}")
    assert [event.id for event in by_query.take(3)[1:]] == [event.id for event in rest[1:3]]
    by_query.close()


def test_a_follower_can_follow_one_session(daemon: Daemon) -> None:
    session_id = work(daemon, "/p")
    follower = Follower(daemon, f"?session={session_id}&after=0")
    work(daemon, "/other")
    work(daemon, "/p")
    events = follower.take(1 + 4 + 3)[1:]
    assert [event.event for event in events] == WORK + WORK[1:]
    assert {event.data["session_id"] for event in events} == {session_id}
    follower.close()


@pytest.mark.parametrize("cursor", ["999999", "x", "-1", "9" * 40])
def test_an_invalid_cursor_is_refused(daemon: Daemon, cursor: str) -> None:
    with Http(daemon.port) as http:
        reply = http.ask("GET", "/v1/events", headers={"last-event-id": cursor})
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (400, "invalid_argument")


def test_a_daemon_that_stops_ends_its_streams_properly(daemon: Daemon) -> None:
    followers = [Follower(daemon) for _ in range(5)]
    for follower in followers:
        follower.take(1)
    assert daemon.stop() == 0
    for follower in followers:
        assert follower.next() is None
        follower.close()


def test_a_hook_report_is_an_event_when_it_is_stored(daemon: Daemon) -> None:
    follower = Follower(daemon)
    follower.take(1)
    with Http(daemon.port) as http:
        payload = {"hook_event_name": "Stop", "session_id": "c", "cwd": "/p", "last_assistant_message": "Ready."}
        http.ask("POST", "/hooks/claude-code", json.dumps(payload).encode())
        started, operation = follower.take(2)
        assert (started.event, operation.data["type"], operation.data["source"]) == (
            "session.started",
            "message",
            "hook",
        )
    follower.close()


class TestWithTokens:
    @pytest.fixture
    def tokens(self, tmp_path: Path) -> Path:
        return tmp_path / "tokens"

    @pytest.fixture
    def authorizations(self, tokens: Path) -> dict[str, str]:
        return {
            owner: "Bearer " + run_command("token", owner, "--token-file", tokens).out.decode().strip()
            for owner in ("alice", "bob")
        }

    @pytest.fixture
    def daemon(self, tmp_path: Path, tokens: Path, authorizations: dict[str, str]) -> Iterator[Daemon]:
        with Daemon(tmp_path / "daemon", "--token-file", str(tokens)) as daemon:
            yield daemon

    def test_each_owner_receives_only_their_own_events(self, daemon: Daemon, authorizations: dict[str, str]) -> None:
        alices, bobs = (Follower(daemon, authorization=authorizations[owner]) for owner in ("alice", "bob"))
        alices.take(1)
        bobs.take(1)
        work(daemon, "/p", authorization=authorizations["alice"])
        session_id = work(daemon, "/p", authorization=authorizations["bob"])
        assert {event.data["session_id"] for event in bobs.take(4)} == {session_id}
        assert session_id not in {event.data["session_id"] for event in alices.take(4)}
        without_token = Follower(daemon)
        assert without_token.status == 401
        for follower in (alices, bobs, without_token):
            follower.close()

    def test_removing_a_token_ends_its_streams(
        self, daemon: Daemon, tokens: Path, authorizations: dict[str, str]
    ) -> None:
        second = "Bearer " + run_command("token", "alice", "--token-file", tokens).out.decode().strip()
        follower = Follower(daemon, authorization=authorizations["alice"])
        follower.take(1)
        lines = tokens.read_text().splitlines(keepends=True)
        # This removes the first of alice's two tokens.
        tokens.write_text("".join(lines[1:]))
        work(daemon, "/p", authorization=second)
        assert follower.next() is None
        follower.close()
