"""Two owners with a token each: neither can read or change the other's data, by any call, header, path or guess."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import LEGACY, MODERN, Daemon, Http, HttpAgent, Refused
from tests.support.machine import run_command

PROJECT = "/work/shared-project"


class TwoOwners(NamedTuple):
    daemon: Daemon
    alice: str
    bob: str

    def agent(self, token: str, era: str = LEGACY, **headers: str) -> HttpAgent:
        return HttpAgent(self.daemon.port, era, authorization=f"Bearer {token}", **headers)


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoOwners]:
    folder = tmp_path_factory.mktemp("owners")
    tokens = folder / "tokens"
    alice, bob = (
        run_command("token", owner, "--token-file", tokens).out.decode().strip() for owner in ("alice", "bob")
    )
    assert alice not in tokens.read_text()
    with Daemon(folder, "--token-file", str(tokens)) as daemon:
        yield TwoOwners(daemon, alice, bob)


class AlicesWork(NamedTuple):
    session_id: str
    branch_id: str
    folded_id: str


@pytest.fixture
def alices_work(owners: TwoOwners, request: pytest.FixtureRequest) -> AlicesWork:
    """A session of alice's, with a folded branch and an open one."""
    agent = owners.agent(owners.alice)
    project = _project(request)
    folded = agent.call("context_branch", description="alice's plan", prompt="alice's prompt", project_path=project)
    agent.call("context_record", project_path=project, type="t", content="alice's notes")
    agent.call("context_return", message="alice's summary", project_path=project)
    opened = agent.call("context_branch", description="alice's work", prompt="more", project_path=project)
    agent.close()
    return AlicesWork(opened["session_id"], opened["branch_id"], folded["branch_id"])


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return _project(request)


def _project(request: pytest.FixtureRequest) -> str:
    return f"{PROJECT}/{request.node.nodeid}"


def alices_view(owners: TwoOwners, project: str) -> list[Any]:
    """Status and branches of alice's session."""
    agent = owners.agent(owners.alice)
    views = [agent.call(tool, project_path=project) for tool in ("context_branch_status", "context_list_branches")]
    agent.close()
    return views


@pytest.mark.parametrize("era", [LEGACY, MODERN])
class TestSharedProject:
    def test_each_owner_has_a_session_of_their_own(
        self, owners: TwoOwners, alices_work: AlicesWork, project: str, era: str
    ) -> None:
        bob = owners.agent(owners.bob, era)
        assert bob.call("context_branch_status", project_path=project)["session_id"] is None
        assert bob.call("context_list_branches", project_path=project)["branches"] == []
        assert bob.state["session_id"] is None
        opened = bob.call("context_branch", description="d", prompt="p", project_path=project)
        assert opened["session_id"] != alices_work.session_id
        assert opened["parent_branch_id"] is None
        bob.close()

    @pytest.mark.parametrize("has_session", [True, False])
    def test_a_branch_of_another_owner_gets_the_same_error_as_an_unknown_one(
        self, owners: TwoOwners, alices_work: AlicesWork, project: str, era: str, has_session: bool
    ) -> None:
        before = alices_view(owners, project)
        bob = owners.agent(owners.bob, era)
        if has_session:
            bob.call("context_record", project_path=project, type="t", tokens=1)
        for tool, arguments in (
            ("context_return", {"message": "m"}),
            ("context_rollback", {}),
            ("context_rollback", {"restore_state": False}),
            ("context_expand", {}),
        ):
            responses = []
            for branch_id in (alices_work.branch_id, alices_work.folded_id, "br_0000000000000000"):
                with pytest.raises(Refused) as raised:
                    bob.call(tool, project_path=project, branch_id=branch_id, **arguments)
                text = json.dumps([raised.value.code, raised.value.message, raised.value.data, bob.state])
                responses.append(text.replace(branch_id, "BRANCH"))
            assert len(set(responses)) == 1
            assert alices_work.session_id not in responses[0]
        assert alices_view(owners, project) == before
        bob.close()

    def test_recall_finds_only_the_owners_folds(
        self, owners: TwoOwners, alices_work: AlicesWork, project: str, era: str
    ) -> None:
        alice, bob = owners.agent(owners.alice, era), owners.agent(owners.bob, era)
        for query in ("alice", "alice's plan", "notes", "summary OR plan", f"{alices_work.folded_id} plan"):
            scopes: list[dict[str, Any]] = [{}, {"project_path": project}, {"since": "1d"}]
            for scope in scopes:
                response = bob.call("context_recall", query=query, format="json", **scope)
                assert (response["folds"], response["selection"]["matched"]) == ([], 0)
        body = json.dumps({"query": "plan", "undone": True, "project_path": project}).encode()
        assert bob.http.ask("POST", "/v1/recall", body).json["folds"] == []
        with pytest.raises(Refused):
            bob.call("context_recall", query="plan", owner="alice")
        folds = alice.call("context_recall", query="alice's plan", project_path=project, format="json")["folds"]
        assert [fold["id"] for fold in folds] == [alices_work.folded_id]
        alice.close()
        bob.close()

    def test_another_owners_session_cannot_be_named_or_guessed(
        self, owners: TwoOwners, alices_work: AlicesWork, project: str, era: str
    ) -> None:
        before = alices_view(owners, project)
        for name in (
            alices_work.session_id,
            "alice",
            "alice/",
            f"alice.{alices_work.session_id}",
            "../alice",
            "default",
            "main",
        ):
            bob = owners.agent(owners.bob, era, x_context_session=name)
            assert bob.call("context_branch_status", project_path=project)["session_id"] is None
            bob.call("context_record", project_path=project, type="t", tokens=1)
            bob.close()
        bob = owners.agent(owners.bob, era, x_context_owner="alice", x_owner="alice", x_forwarded_user="alice")
        assert bob.call("context_branch_status", project_path=f"{project}/../{project.rpartition('/')[2]}/x/..")
        bob.close()
        assert alices_view(owners, project) == before

    def test_operation_ids_are_separate_for_each_owner(self, owners: TwoOwners, project: str, era: str) -> None:
        meta = {"contextfold/operation_id": "same"}
        call: dict[str, Any] = {"description": "d", "prompt": "p", "project_path": project}
        alice, bob = owners.agent(owners.alice, era), owners.agent(owners.bob, era)
        first = alice.call("context_branch", meta, **call)
        second = bob.call("context_branch", meta, **call)
        assert first["branch_id"] != second["branch_id"]
        assert first["session_id"] != second["session_id"]
        alice.close()
        bob.close()


class TestWithoutToken:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"authorization": "Bearer"},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic YWxpY2U6YWxpY2U="},
            {"authorization": "Bearer alice"},
            {"x-api-key": "alice"},
        ],
    )
    @pytest.mark.parametrize(
        "path",
        [
            "/mcp",
            "/mcp/tools/list",
            "/v1/operations",
            "/v1/sessions",
            "/v1/daemon",
            "/v1/events",
            "/hooks/claude-code",
            "/metrics",
            "/nothing",
        ],
    )
    def test_every_path_answers_unauthorized(self, owners: TwoOwners, path: str, headers: dict[str, str]) -> None:
        with Http(owners.daemon.port) as http:
            reply = http.ask("POST" if path in ("/mcp", "/v1/operations") else "GET", path, None, headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert b"alice" not in reply.body

    def test_health_needs_no_token(self, owners: TwoOwners) -> None:
        with Http(owners.daemon.port) as http:
            assert [http.ask("GET", path).status for path in ("/healthz", "/readyz")] == [200, 200]


def test_operations_go_to_the_callers_own_session(owners: TwoOwners, alices_work: AlicesWork, project: str) -> None:
    before = alices_view(owners, project)
    with Http(owners.daemon.port, authorization=f"Bearer {owners.bob}") as http:
        body = json.dumps({"project_path": project, "type": "t", "content": "bob's"}).encode()
        response = http.ask("POST", "/v1/operations", body).json
    assert response["session_id"] != alices_work.session_id
    assert response["branch_id"] is None
    assert alices_view(owners, project) == before


def test_search_finds_only_the_owners_summaries(owners: TwoOwners, alices_work: AlicesWork) -> None:
    store = str(owners.daemon.store)
    found = json.loads(
        run_command("fold", "search", "alice's summary", "--owner", "alice", "--store", store, "--json").out
    )
    assert alices_work.folded_id in {summary["branch_id"] for summary in found["summaries"]}
    for owner in ("bob", "local", "alice'--", "%", "*"):
        result = run_command("fold", "search", "alice's summary", "--owner", owner, "--store", store, "--json")
        assert json.loads(result.out) == {"summaries": []}


def test_metrics_and_logs_name_no_owner_session_or_project(
    owners: TwoOwners, alices_work: AlicesWork, project: str
) -> None:
    with Http(owners.daemon.port, authorization=f"Bearer {owners.bob}") as http:
        metrics = http.ask("GET", "/metrics").body.decode()
    for text in (metrics, owners.daemon.log.read_text()):
        for name in ("alice", "bob", alices_work.session_id, alices_work.branch_id, project, owners.alice, owners.bob):
            assert name not in text


def test_a_token_that_was_removed_from_the_file_is_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = run_command("token", "carol", "--token-file", tokens).out.decode().strip()
    with (
        Daemon(tmp_path, "--token-file", str(tokens)) as daemon,
        Http(daemon.port, authorization=f"Bearer {token}") as http,
    ):
        assert http.ask("GET", "/mcp/tools/list").status == 200
        tokens.write_text("")
        assert http.ask("GET", "/mcp/tools/list").status == 401
