"""Two tokens, two owners: no call, header, path or guess of one shows or changes what is the other's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.clauses import covers
from tests.support.daemon import LEGACY, MODERN, Daemon, Http, HttpAgent, Refused
from tests.support.machine import context

PROJECT = "/work/shared-project"


class House(NamedTuple):
    daemon: Daemon
    alice: str
    bob: str

    def agent(self, token: str, era: str = LEGACY, **headers: str) -> HttpAgent:
        return HttpAgent(self.daemon.port, era, authorization=f"Bearer {token}", **headers)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("owners")
    tokens = folder / "tokens"
    alice, bob = (context("token", owner, "--token-file", tokens).out.decode().strip() for owner in ("alice", "bob"))
    assert alice not in tokens.read_text()
    daemon = Daemon(folder, "--token-file", str(tokens))
    yield House(daemon, alice, bob)
    assert daemon.stop() == 0


class Work(NamedTuple):
    session_id: str
    branch_id: str
    folded_id: str


@pytest.fixture
def hers(house: House, request: pytest.FixtureRequest) -> Work:
    """What alice has in a project: a folded branch with a telling text, and an open one."""
    agent = house.agent(house.alice)
    project = _project(request)
    folded = agent.call("context_branch", description="alice's plan", prompt="alice's prompt", project_path=project)
    agent.call("context_record", project_path=project, type="t", content="alice's notes")
    agent.call("context_return", message="alice's summary", project_path=project)
    begun = agent.call("context_branch", description="alice's work", prompt="more", project_path=project)
    agent.close()
    return Work(begun["session_id"], begun["branch_id"], folded["branch_id"])


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return _project(request)


def _project(request: pytest.FixtureRequest) -> str:
    return f"{PROJECT}/{request.node.nodeid}"


def everything(house: House, project: str) -> list[Any]:
    """All that alice can see of her session."""
    agent = house.agent(house.alice)
    seen = [agent.call(tool, project_path=project) for tool in ("context_branch_status", "context_list_branches")]
    agent.close()
    return seen


@pytest.mark.parametrize("era", [LEGACY, MODERN])
class TestTheSameProject:
    @covers("folding.md#owner", "folding.md#reading")
    def test_is_another_session_for_another_owner(self, house: House, hers: Work, project: str, era: str) -> None:
        bob = house.agent(house.bob, era)
        assert bob.call("context_branch_status", project_path=project)["session_id"] is None
        assert bob.call("context_list_branches", project_path=project)["branches"] == []
        assert bob.state["session_id"] is None
        begun = bob.call("context_branch", description="d", prompt="p", project_path=project)
        assert begun["session_id"] != hers.session_id
        assert begun["parent_branch_id"] is None
        bob.close()

    @covers("folding.md#owner", "folding.md#branch", "folding.md#errors")
    @pytest.mark.parametrize("has_session", [True, False])
    def test_a_branch_of_hers_is_not_found_word_for_word_like_one_that_never_was(
        self, house: House, hers: Work, project: str, era: str, has_session: bool
    ) -> None:
        before = everything(house, project)
        bob = house.agent(house.bob, era)
        if has_session:
            bob.call("context_record", project_path=project, type="t", tokens=1)
        for tool, more in (
            ("context_return", {"message": "m"}),
            ("context_rollback", {}),
            ("context_rollback", {"restore_state": False}),
            ("context_expand", {}),
        ):
            told = []
            for branch_id in (hers.branch_id, hers.folded_id, "br_0000000000000000"):
                with pytest.raises(Refused) as problem:
                    bob.call(tool, project_path=project, branch_id=branch_id, **more)
                text = json.dumps([problem.value.code, problem.value.message, problem.value.data, bob.state])
                told.append(text.replace(branch_id, "BRANCH"))
            assert len(set(told)) == 1
            assert hers.session_id not in told[0]
        assert everything(house, project) == before
        bob.close()

    @covers("folding.md#owner")
    def test_what_she_folded_is_recalled_by_nobody_else(self, house: House, hers: Work, project: str, era: str) -> None:
        alice, bob = house.agent(house.alice, era), house.agent(house.bob, era)
        for query in ("alice", "alice's plan", "notes", "summary OR plan", f"{hers.folded_id} plan"):
            scopes: list[dict[str, Any]] = [{}, {"project_path": project}, {"since": "1d"}]
            for scope in scopes:
                told = bob.call("context_recall", query=query, **scope)
                assert (told["folds"], told["selection"]["matched"]) == ([], 0)
        asked = json.dumps({"query": "plan", "undone": True, "project_path": project}).encode()
        assert bob.http.ask("POST", "/v1/recall", asked).json["folds"] == []
        with pytest.raises(Refused):
            bob.call("context_recall", query="plan", owner="alice")
        found = alice.call("context_recall", query="alice's plan", project_path=project)["folds"]
        assert [fold["id"] for fold in found] == [hers.folded_id]
        alice.close()
        bob.close()

    @covers("folding.md#owner")
    def test_her_session_cannot_be_named_or_guessed(self, house: House, hers: Work, project: str, era: str) -> None:
        before = everything(house, project)
        for name in (hers.session_id, "alice", "alice/", f"alice.{hers.session_id}", "../alice", "default", "main"):
            bob = house.agent(house.bob, era, x_context_session=name)
            assert bob.call("context_branch_status", project_path=project)["session_id"] is None
            bob.call("context_record", project_path=project, type="t", tokens=1)
            bob.close()
        bob = house.agent(house.bob, era, x_context_owner="alice", x_owner="alice", x_forwarded_user="alice")
        assert bob.call("context_branch_status", project_path=f"{project}/../{project.rpartition('/')[2]}/x/..")
        bob.close()
        assert everything(house, project) == before

    @covers("folding.md#owner")
    def test_her_operation_ids_are_not_his(self, house: House, project: str, era: str) -> None:
        meta = {"contextfold/operation_id": "same"}
        call: dict[str, Any] = {"description": "d", "prompt": "p", "project_path": project}
        alice, bob = house.agent(house.alice, era), house.agent(house.bob, era)
        first = alice.call("context_branch", meta, **call)
        second = bob.call("context_branch", meta, **call)
        assert first["branch_id"] != second["branch_id"]
        assert first["session_id"] != second["session_id"]
        alice.close()
        bob.close()


class TestWhoeverHasNoToken:
    @covers("folding.md#owner")
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
    def test_is_told_the_same_everywhere(self, house: House, path: str, headers: dict[str, str]) -> None:
        http = Http(house.daemon.port)
        reply = http.ask("POST" if path in ("/mcp", "/v1/operations") else "GET", path, None, headers)
        http.close()
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert b"alice" not in reply.body

    def test_can_still_ask_whether_the_daemon_is_well(self, house: House) -> None:
        http = Http(house.daemon.port)
        assert [http.ask("GET", path).status for path in ("/healthz", "/readyz")] == [200, 200]
        http.close()

    def test_a_token_hash_is_no_token(self, house: House) -> None:
        hashes = [line.split()[1] for line in (house.daemon.folder / "tokens").read_text().splitlines()]
        http = Http(house.daemon.port)
        for digest in hashes:
            for guess in (digest, digest.removeprefix("sha256:")):
                assert http.ask("GET", "/mcp/tools/list", None, {"authorization": f"Bearer {guess}"}).status == 401
        http.close()


@covers("folding.md#owner", "folding.md#record")
def test_operations_go_to_the_callers_own_session(house: House, hers: Work, project: str) -> None:
    before = everything(house, project)
    http = Http(house.daemon.port, authorization=f"Bearer {house.bob}")
    body = json.dumps({"project_path": project, "type": "t", "content": "bob's"}).encode()
    told = http.ask("POST", "/v1/operations", body).json
    http.close()
    assert told["session_id"] != hers.session_id
    assert told["branch_id"] is None
    assert everything(house, project) == before


@covers("folding.md#owner", "folding.md#context-return", "seed-004#context-return")
def test_search_finds_the_owners_summaries_alone(house: House, hers: Work) -> None:
    store = str(house.daemon.store)
    found = json.loads(context("fold", "search", "alice's summary", "--owner", "alice", "--store", store, "--json").out)
    assert hers.folded_id in {summary["branch_id"] for summary in found["summaries"]}
    for owner in ("bob", "local", "alice'--", "%", "*"):
        ran = context("fold", "search", "alice's summary", "--owner", owner, "--store", store, "--json")
        assert json.loads(ran.out) == {"summaries": []}


@covers("folding.md#owner")
def test_metrics_and_logs_name_no_owner_session_or_project(house: House, hers: Work, project: str) -> None:
    http = Http(house.daemon.port, authorization=f"Bearer {house.bob}")
    metrics = http.ask("GET", "/metrics").body.decode()
    http.close()
    for told in (metrics, house.daemon.log.read_text()):
        for name in ("alice", "bob", hers.session_id, hers.branch_id, project, house.alice, house.bob):
            assert name not in told


def test_a_token_taken_out_of_the_file_lets_nobody_in_any_more(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = context("token", "carol", "--token-file", tokens).out.decode().strip()
    daemon = Daemon(tmp_path, "--token-file", str(tokens))
    try:
        http = Http(daemon.port, authorization=f"Bearer {token}")
        assert http.ask("GET", "/mcp/tools/list").status == 200
        tokens.write_text("")
        assert http.ask("GET", "/mcp/tools/list").status == 401
        http.close()
    finally:
        assert daemon.stop() == 0
