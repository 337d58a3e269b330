"""The JSON below `/v1`: sessions, trees, timelines, trajectories, rollbacks, summaries, search."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.serve.reporting import ApiReader, api
from tests.support.daemon import Daemon, Http, HttpAgent, Refused, read_log
from tests.support.machine import ROOT
from tests.support.waiting import until

__all__ = ["api"]

SEED = ROOT / "tests" / "web" / "seed.py"
ENDED_PROJECT = "/home/ana/work/docs-site"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("api"), env={"CONTEXT_BRANCHES_PER_SESSION": "2000"}) as daemon:
        yield daemon


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return f"/home/me/{request.node.name}"


class ProjectAgent:
    """An agent that works in one project."""

    def __init__(self, daemon: Daemon, project: str) -> None:
        self.mcp = HttpAgent(daemon.port)
        self.project = project

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.mcp.call(tool, project_path=self.project, **arguments)

    def branch(self, description: str = "d", tokens: int = 1) -> str:
        branch_id: str = self.call("context_branch", description=description, prompt="pppp" * tokens)["branch_id"]
        return branch_id

    def record(self, tokens: int, **arguments: Any) -> None:
        self.call("context_record", type="tool_call", content="cccc" * tokens, **arguments)

    def fold(self, tokens: int = 1) -> None:
        self.call("context_return", message="mmmm" * tokens)


@pytest.fixture
def agent(daemon: Daemon, project: str) -> Iterator[ProjectAgent]:
    agent = ProjectAgent(daemon, project)
    yield agent
    agent.mcp.close()


@pytest.fixture
def session_id(agent: ProjectAgent, api: ApiReader, project: str) -> str:
    """A session with work on the main thread, a folded branch with a folded child, and an open branch."""
    agent.record(5000)
    agent.branch("Find the patterns", 200)
    agent.branch("Look at one", 100)
    agent.record(300, failed=True)
    agent.fold(50)
    agent.record(8250)
    agent.fold(200)
    agent.branch("Mend it", 10)
    session_id: str = api.session(project)["session_id"]
    return session_id


class TestSessions:
    def test_a_row_has_the_figures_of_a_session(self, api: ApiReader, session_id: str, project: str) -> None:
        row = api.session(project)
        assert row["session_id"] == session_id
        expected = {
            "total_tokens": 5210,
            "main_thread_tokens": 5200,
            "folded_tokens": 8500 + 400,
            "tokens_saved": 8300 + 350,
            "context_limit": 32768,
            "usage_percent": 16,
            "operations": 3,
            "failed_operations": 1,
            "secrets_scrubbed": 0,
            "total_branches": 3,
            "active_branches": 1,
            "folded_branches": 2,
            "discarded_branches": 0,
            "branch_depth": 1,
            "context_health": {"warning": "none", "main_thread_usage": 0.16},
        }
        assert {name: row[name] for name in expected} == expected
        assert row["branch_path"] == ["main", row["active_branch_id"]]

    def test_the_latest_sessions_come_first_and_each_is_on_one_page(
        self, daemon: Daemon, api: ApiReader, project: str
    ) -> None:
        for number in range(7):
            agent = ProjectAgent(daemon, f"{project}/{number}")
            agent.record(1)
            agent.mcp.close()
        all_ids = [row["session_id"] for row in api.sessions()]
        paged_ids: list[str] = []
        cursor = ""
        while cursor is not None:
            page = api.get(f"/v1/sessions?limit=3&cursor={cursor}")
            assert (page["owner"], page["total"]) == ("local", len(all_ids))
            paged_ids += [row["session_id"] for row in page["sessions"]]
            cursor = page["next_cursor"]
        assert paged_ids == all_ids

    @pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=-1", "limit=1.5", "cursor=nothing"])
    def test_an_invalid_query_is_refused(self, api: ApiReader, query: str) -> None:
        reply = api.http.ask("GET", f"/v1/sessions?{query}")
        assert reply.status == 400
        assert reply.json["error"]["data"] == {"kind": "invalid_argument", "field": query.partition("=")[0]}


class TestOneSession:
    def test_the_tree_has_children_below_their_parents(self, api: ApiReader, session_id: str) -> None:
        view = api.get(f"/v1/sessions/{session_id}")
        rows = [(row["depth"], row["description"], row["status"], row["tokens"]) for row in view["branches"]]
        assert rows == [
            (0, "Find the patterns", "folded", 8500),
            (1, "Look at one", "folded", 400),
            (0, "Mend it", "active", 10),
        ]
        assert [row["description"] for row in view["open_branches"]] == ["Mend it"]
        assert (view["first_row"], view["total_rows"], view["counter"]) == (0, 3, "v0")
        outer, inner, _ = view["branches"]
        assert (outer["summary_tokens"], outer["tokens_saved"]) == (200, 8300)
        assert inner["parent_id"] == outer["id"]
        assert (inner["operations"], inner["failed_operations"]) == (1, 1)

    def test_a_branch_opened_after_a_rollback_is_below_its_parent(self, agent: ProjectAgent, api: ApiReader) -> None:
        first = agent.branch("first")
        agent.fold()
        agent.branch("second")
        agent.call("context_rollback", branch_id=first)
        agent.branch("third, in the first")
        view = api.view(agent.project)
        rows = [(row["depth"], row["description"], row["status"]) for row in view["branches"]]
        assert rows == [(0, "first", "active"), (1, "third, in the first", "active"), (0, "second", "discarded")]
        assert view["branches"][0]["summary_tokens"] == 0

    def test_a_large_tree_is_returned_in_pages(self, agent: ProjectAgent, api: ApiReader) -> None:
        for number in range(130):
            agent.branch(f"branch {number}")
            agent.fold()
        session_id = api.session(agent.project)["session_id"]
        view = api.get(f"/v1/sessions/{session_id}")
        assert (view["first_row"], view["total_rows"], len(view["branches"])) == (30, 130, 100)
        earlier = api.get(f"/v1/sessions/{session_id}?before=30&limit=20")
        assert [row["description"] for row in earlier["branches"]] == [f"branch {n}" for n in range(10, 30)]
        assert earlier["first_row"] == 10
        assert api.get(f"/v1/sessions/{session_id}?before=0")["branches"] == []
        assert api.get(f"/v1/sessions/{session_id}?before=999999")["first_row"] == 30

    @pytest.mark.parametrize("path", ["", "/timeline", "/savings", "/trajectory", "/rollback?branch_id=x"])
    def test_an_unknown_session_is_not_found(self, api: ApiReader, path: str) -> None:
        reply = api.http.ask("GET", f"/v1/sessions/sess_0000000000000000{path}")
        assert reply.status == 404
        assert reply.json["error"]["data"]["kind"] == "session_not_found"

    def test_the_row_of_a_named_session_has_its_name(self, daemon: Daemon, api: ApiReader, project: str) -> None:
        with HttpAgent(daemon.port, x_context_session="reviewer") as agent:
            agent.call("context_record", project_path=project, type="t", content="c")
        assert api.session(project, "reviewer")["name"] == "reviewer"


class TestTimeline:
    def test_each_event_is_a_point_and_the_last_has_the_current_figures(
        self, api: ApiReader, session_id: str, project: str
    ) -> None:
        timeline = api.get(f"/v1/sessions/{session_id}/timeline")
        totals = [point["total_tokens"] for point in timeline["points"]]
        assert totals == [0, 5000, 5200, 5300, 5600, 5250, 13500, 5200, 5210]
        mains = [point["main_thread_tokens"] for point in timeline["points"]]
        assert mains == [0, 5000, 5000, 5000, 5000, 5000, 5000, 5200, 5200]
        assert [point["n"] for point in timeline["points"]] == list(range(1, 10))
        assert timeline["context_limit"] == 32768
        assert timeline["points"][-1]["total_tokens"] == api.session(project)["total_tokens"]

    def test_a_timeline_that_is_read_again_has_the_new_points(
        self, agent: ProjectAgent, api: ApiReader, session_id: str
    ) -> None:
        path = f"/v1/sessions/{session_id}/timeline"
        first = api.get(path)["points"]
        assert api.get(path)["points"] == first
        agent.fold(3)
        later = api.get(path)["points"]
        assert later[:-1] == first
        assert (later[-1]["n"], later[-1]["total_tokens"]) == (10, 5203)
        agent.call("context_rollback", branch_id=api.get(f"/v1/sessions/{session_id}")["branches"][0]["id"])
        assert api.get(path)["points"][-1]["total_tokens"] == api.session(agent.project)["total_tokens"] == 5200

    def test_a_long_timeline_has_fewer_points_but_its_peak_and_its_end(
        self, agent: ProjectAgent, api: ApiReader
    ) -> None:
        for number in range(150):
            agent.branch("b", 900 if number == 77 else 1)
            agent.fold()
            agent.record(1)
        session_id = api.session(agent.project)["session_id"]
        points = api.get(f"/v1/sessions/{session_id}/timeline")["points"]
        assert len(points) <= 240
        assert [point["n"] for point in points] == sorted({point["n"] for point in points})
        peak = max(points, key=lambda point: point["total_tokens"])
        assert peak["total_tokens"] - peak["main_thread_tokens"] == 900
        assert points[-1]["total_tokens"] == api.session(agent.project)["total_tokens"]


class TestSavings:
    def test_a_session_without_proxied_requests_has_an_empty_ledger(self, api: ApiReader, session_id: str) -> None:
        ledger = api.get(f"/v1/sessions/{session_id}/savings")
        assert list(ledger) == [
            "session_id", "prices", "requests", "estimated_requests", "extra_requests", "warm_requests", "tokens_sent",
            "tokens_without",
            "tokens_saved", "output_tokens", "output_tokens_without", "cost_sent", "cost_without", "cost_saved",
            "money", "outcome", "results_dropped", "left_out", "failed_open", "folds", "costly_folds", "days",
            "points", "verdict",
        ]  # fmt: skip
        assert (ledger["session_id"], ledger["requests"], ledger["cost_saved"]) == (session_id, 0, 0)
        assert ledger["prices"] == []


class TestTrajectories:
    def test_a_trajectory_has_the_entries_of_its_thread(self, api: ApiReader, session_id: str) -> None:
        outer, inner, _ = api.get(f"/v1/sessions/{session_id}")["branches"]
        kinds = [entry["kind"] for entry in api.entries(session_id, outer["id"])]
        assert kinds == ["prompt", "child", "operation", "summary"]
        kinds = [entry["kind"] for entry in api.entries(session_id)]
        assert kinds == ["operation", "child"]
        page = api.get(f"/v1/sessions/{session_id}/trajectory?branch_id={inner['id']}&budget=2000")
        assert page["branch"] == inner
        assert [entry.get("failed") for entry in page["entries"]] == [None, True, None]

    def test_the_pages_of_a_trajectory_have_all_of_its_text(self, api: ApiReader, session_id: str) -> None:
        text, cursor, pages = "", "", 0
        while cursor is not None:
            page = api.get(f"/v1/sessions/{session_id}/trajectory?budget=400&cursor={cursor}")
            text += "".join(entry["text"] for entry in page["entries"])
            cursor, pages = page["next_cursor"], pages + 1
        assert text == "cccc" * 5000 + "mmmm" * 200
        assert pages > 10

    @pytest.mark.parametrize(
        ("query", "field"), [("budget=1", "budget"), ("cursor=x", "cursor"), ("branch_id=" + "x" * 1001, "branch_id")]
    )
    def test_an_invalid_query_is_refused(self, api: ApiReader, session_id: str, query: str, field: str) -> None:
        reply = api.http.ask("GET", f"/v1/sessions/{session_id}/trajectory?{query}")
        assert (reply.status, reply.json["error"]["data"]["field"]) == (400, field)

    def test_an_unknown_branch_is_not_found(self, api: ApiReader, session_id: str) -> None:
        reply = api.http.ask("GET", f"/v1/sessions/{session_id}/trajectory?branch_id=br_none")
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (404, "branch_not_found")


class TestRollback:
    def test_a_rollback_does_what_its_preview_says(self, api: ApiReader, session_id: str, project: str) -> None:
        outer, inner, last = api.get(f"/v1/sessions/{session_id}")["branches"]
        path = f"/v1/sessions/{session_id}/rollback"
        preview = api.get(f"{path}?branch_id={outer['id']}")
        assert preview["branches_discarded"] == [inner, last]
        assert (preview["reopened"], preview["tokens_recovered"], preview["total_tokens_after"]) == ([outer], 10, 5200)
        assert preview["total_discarded"] == 2
        nested = api.get(f"{path}?branch_id={inner['id']}")
        assert (nested["reopened"], nested["branches_discarded"]) == ([outer, inner], [last])
        assert api.get(f"/v1/sessions/{session_id}")["branches"] == [outer, inner, last]
        body = json.dumps({"branch_id": outer["id"]}).encode()
        result = api.http.ask("POST", path, body, {"content-type": "application/json"}).json
        assert result["branches_discarded"] == [inner["id"], last["id"]]
        assert result["tokens_recovered"] == preview["tokens_recovered"]
        assert result["context_state"]["total_tokens"] == preview["total_tokens_after"]
        assert api.session(project)["total_tokens"] == preview["total_tokens_after"]

    def test_the_preview_without_restoring_the_state_keeps_the_tokens(self, api: ApiReader, session_id: str) -> None:
        outer = api.get(f"/v1/sessions/{session_id}")["branches"][0]
        path = f"/v1/sessions/{session_id}/rollback?branch_id={outer['id']}&restore_state=false"
        assert api.get(path)["total_tokens_after"] == 5200 + 8500

    def test_a_rollback_with_an_idempotency_key_is_done_once(
        self, agent: ProjectAgent, api: ApiReader, session_id: str
    ) -> None:
        outer = api.get(f"/v1/sessions/{session_id}")["branches"][0]
        body = json.dumps({"branch_id": outer["id"], "restore_state": True}).encode()
        headers = {"content-type": "application/json", "idempotency-key": "once"}
        first, second = (
            api.http.ask("POST", f"/v1/sessions/{session_id}/rollback", body, headers).body for _ in range(2)
        )
        assert first == second
        assert agent.call("context_branch_status")["active_branch_id"] == outer["id"]

    @pytest.mark.parametrize(
        ("body", "status", "kind"),
        [
            (b"", 400, "invalid_argument"),
            (b"[]", 400, "invalid_argument"),
            (b"{}", 400, "invalid_argument"),
            (b'{"branch_id": 7}', 400, "invalid_argument"),
            (b'{"branch_id": "br_x", "restore": true}', 400, "invalid_argument"),
            (b'{"branch_id": "br_none"}', 404, "branch_not_found"),
        ],
    )
    def test_an_invalid_rollback_changes_nothing(
        self, api: ApiReader, session_id: str, body: bytes, status: int, kind: str
    ) -> None:
        before = api.get(f"/v1/sessions/{session_id}")
        reply = api.http.ask("POST", f"/v1/sessions/{session_id}/rollback", body, {"content-type": "application/json"})
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (status, kind)
        assert api.get(f"/v1/sessions/{session_id}") == before

    def test_a_rollback_to_a_discarded_branch_is_refused(
        self, agent: ProjectAgent, api: ApiReader, session_id: str
    ) -> None:
        outer, inner, _ = api.get(f"/v1/sessions/{session_id}")["branches"]
        agent.call("context_rollback", branch_id=outer["id"])
        reply = api.http.ask("GET", f"/v1/sessions/{session_id}/rollback?branch_id={inner['id']}")
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (409, "invalid_branch_state")
        with pytest.raises(Refused):
            agent.call("context_rollback", branch_id=inner["id"])


def test_summaries_are_found_by_their_words(api: ApiReader, agent: ProjectAgent) -> None:
    agent.branch("Quokka hunt")
    agent.call("context_return", message="Two quokkas were seen.")
    (summary,) = api.get("/v1/summaries?query=quokka%20seen")["summaries"]
    assert (summary["project_path"], summary["summary"]) == (agent.project, "Two quokkas were seen.")
    assert summary["live"]
    assert api.get("/v1/summaries?query=")["summaries"] == []
    assert api.get("/v1/summaries?query=%22%28%2A")["summaries"] == []


class TestSearch:
    def test_sessions_branches_and_summaries_are_found_by_every_word(
        self, api: ApiReader, agent: ProjectAgent, daemon: Daemon
    ) -> None:
        agent.branch("Numbat survey")
        agent.call("context_return", message="Three numbats were seen.")
        agent.branch("Numbat census")
        results = api.get("/v1/search?query=NUMBAT")
        assert [row["description"] for row in results["branches"]] == ["Numbat census"]
        assert [row["description"] for row in results["summaries"]] == ["Numbat survey"]
        assert results["sessions"] == []
        name = agent.project.rpartition("/")[2]
        (session,) = api.get(f"/v1/search?query={name}")["sessions"]
        assert session["project_path"] == agent.project
        assert api.get("/v1/search?query=numbat%20unicorn")["branches"] == []
        assert api.get("/v1/search?query=") == {"sessions": [], "branches": [], "summaries": []}


def test_the_first_page_of_a_folded_branch_has_its_summary(api: ApiReader, agent: ProjectAgent) -> None:
    branch_id = agent.branch("Find it", 10)
    agent.record(900)
    session = api.session(agent.project)["session_id"]
    path = f"/v1/sessions/{session}/trajectory?branch_id={branch_id}&budget=200"
    assert api.get(path)["summary"] is None
    agent.call("context_return", message="It was the clock.")
    first = api.get(path)
    assert first["summary"] == "It was the clock."
    assert first["next_cursor"] is not None
    assert api.get(f"{path}&cursor={first['next_cursor']}")["summary"] is None


def test_there_is_only_one_demo_session(daemon: Daemon, api: ApiReader) -> None:
    with Http(daemon.port) as http:
        ids = {
            http.ask("POST", "/v1/demo", b"{}", {"content-type": "application/json"}).json["session_id"] for _ in "ab"
        }
    (session_id,) = ids
    session = api.get(f"/v1/sessions/{session_id}")["session"]
    assert (session["name"], session["folded_branches"], session["left_out_results"]) == ("demo", 2, 4)
    savings, latest = session["savings"], session["host_tokens"] + session["total_tokens"]
    assert (savings["requests"], session["context_tokens"]) == (20, latest)
    folds = api.get(f"/v1/sessions/{session_id}/savings")["folds"]
    assert sum(fold["tokens_dropped"] for fold in folds) == session["folded_tokens"]
    assert savings["money"]["saved_micros"] > 0
    # What is made up is in no sum.
    assert all(row["project_path"] != session["project_path"] for row in api.get("/v1/savings?by=session")["groups"])


def test_the_demo_session_shows_the_text_of_a_result_once(daemon: Daemon, api: ApiReader) -> None:
    with Http(daemon.port) as http:
        session_id = http.ask("POST", "/v1/demo", b"{}", {"content-type": "application/json"}).json["session_id"]
    branches = api.get(f"/v1/sessions/{session_id}")["branches"]
    branch_id = next(branch["id"] for branch in branches if branch["failed_operations"])
    page = api.get(f"/v1/sessions/{session_id}/trajectory?branch_id={branch_id}&budget=100000")
    proxied = [entry["text"] for entry in page["entries"] if entry.get("source") == "proxy" and entry["text"]]
    words = "The checkout shows 0.00 for carts with a discount of 1 %. Find out why and fix it, with a test."
    assert proxied == [words]


def test_ended_sessions_are_listed_separately(tmp_path: Path) -> None:
    """The daemon ends a session that was already idle for long when the daemon started."""
    path = tmp_path / "state" / "state.db"
    subprocess.run([sys.executable, SEED, path, "ended"], check=True)
    with Daemon(tmp_path) as daemon, Http(daemon.port) as http:
        until(lambda: bool(http.ask("GET", "/v1/sessions?ended=true").json["sessions"]))
        assert http.ask("GET", "/v1/sessions").json["sessions"] == []
        answer = http.ask("GET", "/v1/sessions?ended=true").json
        (session,) = answer["sessions"]
        assert (session["project_path"], session["folded_branches"], session["savings"]) == (ENDED_PROJECT, 1, None)
        assert session["ended_at"] > session["last_at"]
        assert answer["next_cursor"] is None
        assert http.ask("GET", "/v1/sessions?ended=perhaps").status == 400


def test_a_session_whose_log_is_damaged_is_named_in_the_list_and_once_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.db"
    subprocess.run([sys.executable, SEED, path, "damaged"], check=True)
    with Daemon(tmp_path) as daemon, Http(daemon.port) as http:
        until(lambda: bool(http.ask("GET", "/v1/sessions?ended=true").json["sessions"]))
        # The daemon knows the state of a session, and its log is damaged before its requests are summed up.
        assert len(http.ask("GET", "/v1/search?query=shop").json["sessions"]) == 2
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM events WHERE n = 3 AND session = 4")
        live, ended = (http.ask("GET", f"/v1/sessions?ended={each}").json for each in ("false", "true"))
        assert (len(live["sessions"]), len(live["unreadable"]), live["total"]) == (1, 2, 3)
        assert [row["folded_branches"] for row in ended["sessions"]] == [None]
        assert ended["unreadable"] == [row["session_id"] for row in ended["sessions"]]
        assert not {row["session_id"] for row in live["sessions"]} & set(live["unreadable"])
        assert http.ask("GET", "/v1/savings").status == 200
        # The log is read after the requests, whose lines come after those about the sessions.
        logged = [each["session_id"] for each in read_log(daemon.log) if each["event"] == "session.unreadable"]
        assert sorted(logged) == sorted(live["unreadable"] + ended["unreadable"])
        assert len(logged) == len(set(logged)) == 3


def test_the_dashboard_has_a_strict_content_security_policy(daemon: Daemon) -> None:
    with Http(daemon.port) as http:
        page = http.ask("GET", "/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        rules = page.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(rules)
        assert not any("unsafe" in rule or "*" in rule or "http" in rule for rule in rules)
        assert http.ask("GET", "/web/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
        for absent in (
            "/web/",
            "/web/nothing.js",
            "/web/../app.py",
            "/web/%2e%2e/app.py",
            "/web/__init__.py",
            "/app.js",
        ):
            assert http.ask("GET", absent).status == 404, absent
        assert http.ask("POST", "/").status == 405
