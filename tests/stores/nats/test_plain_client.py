"""A plain NATS client can follow a session by its subjects; the subjects of owners do not overlap."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contextfold.fold.project import project_at
from contextfold.settings import NatsOptions
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import branch_commit, commit_of, key_of
from tests.stores.nats.subjects import subjects_of
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import run_command
from tests.support.nats_servers import NatsServer, random_prefix

SCRIPT = Path(__file__).parent / "plain_client.py"
PROJECT = "/work/project"
CLIENT_TIMEOUT_S = 120


class Message(NamedTuple):
    subject: str
    data: Any


class PlainClient:
    """Runs plain_client.py in a process of its own, which cannot import our sources."""

    def __init__(self, *argv: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"

    def messages(self) -> list[Message]:
        """Waits for the end of the script, and returns the messages that it printed."""
        try:
            out, err = self._process.communicate(timeout=CLIENT_TIMEOUT_S)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, err.decode()
        return [Message(**json.loads(line)) for line in out.splitlines()]


class Installation(NamedTuple):
    daemon: Daemon
    url: str
    prefix: str


@pytest.fixture
def installation(nats_server: NatsServer, tmp_path: Path) -> Iterator[Installation]:
    prefix = random_prefix()
    daemon = Daemon(tmp_path / "daemon", "--nats-prefix", prefix, store=nats_server.url)
    yield Installation(daemon, nats_server.url, prefix)
    assert daemon.stop() == 0


def work(daemon: Daemon, project: str = PROJECT, **headers: str) -> dict[str, Any]:
    """Opens a branch, records an operation and returns; the value has the results of the tools."""
    agent = HttpAgent(daemon.port, **headers)
    branched = agent.call("context_branch", description="Search logs", prompt="Use grep.", project_path=project)
    agent.call("context_record", type="grep", tokens=100, project_path=project)
    folded = agent.call("context_return", message="Found 3 patterns.", project_path=project)
    agent.close()
    return {"branched": branched, "folded": folded}


def test_a_subscriber_receives_the_events_and_states_of_a_session_live(installation: Installation) -> None:
    daemon, url, prefix = installation
    client = PlainClient(url, f"{prefix}.local.>", "4")
    results = work(daemon)
    session = f"{prefix}.local.{project_at(PROJECT).hash}.{results['branched']['session_id']}"
    messages = client.messages()
    assert all(each.subject.startswith(f"{session}.") for each in messages)
    events = [each for each in messages if ".events." in each.subject]
    kinds = [each.subject.removeprefix(f"{session}.events.") for each in events]
    assert kinds == ["session.started", "branch.created", "operation.completed", "branch.folded"]
    assert kinds == [each.data["event"] for each in events]
    assert [each.data["n"] for each in events] == [1, 2, 3, 4]
    branch_id = results["branched"]["branch_id"]
    states = [each.data for each in messages if each.subject == f"{session}.branches.{branch_id}"]
    assert (
        states[0]
        | {
            "id": branch_id,
            "description": "Search logs",
            "prompt": "Use grep.",
            "parent_id": None,
            "created_at": results["branched"]["created_at"],
        }
        == states[0]
    )
    assert states[-1]["status"] == "folded"
    assert messages[-1].subject == f"{session}.meta.session_state"


def test_a_subscriber_to_one_owner_receives_nothing_of_other_owners(nats_server: NatsServer, tmp_path: Path) -> None:
    prefix, tokens = random_prefix(), tmp_path / "tokens"
    authorizations = {
        owner: "Bearer " + run_command("token", owner, "--token-file", tokens).out.decode().strip()
        for owner in ("ann", "ann.smith", "ann@smith.example")
    }
    argv = ("--nats-prefix", prefix, "--token-file", str(tokens))
    daemon = Daemon(tmp_path / "daemon", *argv, store=nats_server.url)
    try:
        client = PlainClient(nats_server.url, f"{prefix}.ann.>", "4")
        for owner in ("ann.smith", "ann@smith.example", "ann"):
            session_id = work(daemon, authorization=authorizations[owner])["branched"]["session_id"]
        assert {each.subject.split(".")[3] for each in client.messages()} == {session_id}
    finally:
        assert daemon.stop() == 0


ODD_NAMES = ["a.b > *", ">", "*", "", "a.b", "a", "ä ö", "a=2Eb", "\u2028\0", "x" * 64, "$JS.API.>", "a\r\nPUB x 0"]


def test_odd_owners_projects_and_names_stay_in_their_own_subjects(nats_server: NatsServer) -> None:
    prefix = random_prefix()

    async def act() -> None:
        store = NatsStore(NatsOptions(servers=(nats_server.url,), prefix=prefix))
        try:
            for owner in ODD_NAMES:
                for number, (project, name) in enumerate(((owner, owner), ("p", owner), (owner, "n"))):
                    key = key_of(project, owner=owner, name=name)
                    session_id = f"{owner} {number}"
                    await store.commit(commit_of(key, session_id=session_id))
                    await store.commit(branch_commit(key, 1, owner or "br_1", session_id=session_id))
            for owner in ODD_NAMES:
                assert await store.count(owner) == 3
                listed = await store.sessions(owner, limit=100)
                assert {each.key.owner for each in listed} == {owner}
                assert {each.session_id for each in listed} == {f"{owner} {number}" for number in range(3)}
        finally:
            # Closing publishes what is still waiting.
            await store.close()

    asyncio.run(act())
    for stream, parts in (("log", 4), ("events", 7), ("state", 6)):
        subjects = asyncio.run(subjects_of(nats_server.url, f"{prefix}_{stream}"))
        subjects = [subject for subject in subjects if not subject.startswith(f"{prefix}_state.alive.")]
        assert subjects
        assert {len(subject.split(".")) for subject in subjects} == {parts}, subjects
        assert len({subject.split(".")[1] for subject in subjects}) == len(ODD_NAMES)
        assert not any(mark in subject for subject in subjects for mark in "*> ")
