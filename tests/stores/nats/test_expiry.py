"""An idle session is deleted from its subjects, with or without a daemon; its archive stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stores.nats.subjects import published, subjects_of
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.nats_servers import NatsServer, random_prefix
from tests.support.waiting import until

# Three calls and a check take less than this, even on a slow machine.
SHORT_LIVED = {"CONTEXT_SESSION_IDLE_SECS": "10"}
# Each poll opens a connection, and expiry takes seconds.
POLL_INTERVAL_S = 0.4
PROJECT = "/expiry"


@pytest.fixture
def prefix() -> str:
    return random_prefix()


@pytest.fixture
def daemon(nats_server: NatsServer, tmp_path: Path, prefix: str) -> Iterator[Daemon]:
    running = Daemon(tmp_path / "daemon", "--nats-prefix", prefix, env=SHORT_LIVED, store=nats_server.url)
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0


def work(daemon: Daemon) -> Any:
    agent = HttpAgent(daemon.port)
    branch = agent.call("context_branch", description="d", prompt="the prompt", project_path=PROJECT)
    agent.call("context_record", type="t", content="the content", project_path=PROJECT)
    agent.call("context_return", message="the outcome", project_path=PROJECT)
    agent.close()
    return branch


def remaining(server: NatsServer, prefix: str, stream: str, session_id: str) -> list[str]:
    """The subjects of a session that still have messages."""
    subjects = asyncio.run(subjects_of(server.url, f"{prefix}_{stream}"))
    return [subject for subject in subjects if session_id in subject.split(".")]


def summaries(daemon: Daemon) -> list[Any]:
    http = Http(daemon.port)
    rows: list[Any] = http.ask("GET", "/v1/summaries?query=outcome").json["summaries"]
    http.close()
    return rows


def check_archive(daemon: Daemon, branch: Any) -> None:
    (row,) = summaries(daemon)
    assert (row["summary"], row["session_id"], row["live"]) == ("the outcome", branch["session_id"], False)
    agent = HttpAgent(daemon.port)
    page = agent.call("context_expand", project_path=PROJECT, branch_id=branch["branch_id"])
    agent.close()
    assert [entry["text"] for entry in page["entries"]] == ["the prompt", "the content", "the outcome"]


def test_an_idle_session_is_deleted_and_its_archive_stays(daemon: Daemon, nats_server: NatsServer, prefix: str) -> None:
    branch = work(daemon)
    session_id = branch["session_id"]
    for stream in ("state", "events"):
        until(
            lambda stream=stream: not remaining(nats_server, prefix, stream, session_id),  # type: ignore[misc]
            every_s=POLL_INTERVAL_S,
        )
    assert asyncio.run(subjects_of(nats_server.url, f"{prefix}_log")) == []
    check_archive(daemon, branch)
    again = work(daemon)
    assert again["session_id"] != session_id
    assert len(summaries(daemon)) == 2


def test_the_session_state_expires_without_a_daemon(
    daemon: Daemon, nats_server: NatsServer, prefix: str, tmp_path: Path
) -> None:
    branch = work(daemon)
    session_id = branch["session_id"]

    def state() -> Any:
        session = asyncio.run(published(nats_server.url, prefix)).get(session_id)
        return session.session_state if session else None

    until(lambda: (state() or {}).get("revision") == 4)
    daemon.kill()
    until(lambda: state() is None, every_s=POLL_INTERVAL_S)
    later = Daemon(tmp_path / "later", "--nats-prefix", prefix, env=SHORT_LIVED, store=nats_server.url)
    try:
        for stream in ("state", "events"):
            until(
                lambda stream=stream: not remaining(nats_server, prefix, stream, session_id),  # type: ignore[misc]
                every_s=POLL_INTERVAL_S,
            )
        check_archive(later, branch)
        assert work(later)["session_id"] != session_id
    finally:
        assert later.stop() == 0
