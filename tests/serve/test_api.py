"""The daemon's own JSON: sessions, trees, timelines, trajectories, rollbacks, summaries, as their owner sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.reporting import Onlooker, look
from tests.support.clauses import covers
from tests.support.daemon import Daemon, Http, HttpAgent, Refused
from tests.support.machine import ROOT
from tests.support.waiting import until

__all__ = ["look"]

SEED = ROOT / "tests" / "web" / "seed.py"
ENDED_PROJECT = "/home/ana/work/docs-site"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("api"), env={"CONTEXT_BRANCHES_PER_SESSION": "2000"})
    yield running
    assert running.stop() == 0


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return f"/home/me/{request.node.name}"


class Worker:
    """An agent on one project."""

    def __init__(self, daemon: Daemon, project: str) -> None:
        self.mcp = HttpAgent(daemon.port)
        self.project = project

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.mcp.call(tool, project_path=self.project, **arguments)

    def branch(self, description: str = "d", tokens: int = 1) -> str:
        begun: str = self.call("context_branch", description=description, prompt="pppp" * tokens)["branch_id"]
        return begun

    def record(self, tokens: int, **given: Any) -> None:
        self.call("context_record", type="tool_call", content="cccc" * tokens, **given)

    def fold(self, tokens: int = 1) -> None:
        self.call("context_return", message="mmmm" * tokens)


@pytest.fixture
def agent(daemon: Daemon, project: str) -> Iterator[Worker]:
    made = Worker(daemon, project)
    yield made
    made.mcp.close()


@pytest.fixture
def session_id(agent: Worker, look: Onlooker, project: str) -> str:
    """A session: main thread, a folded branch with a folded child, an open branch."""
    agent.record(5000)
    agent.branch("Find the patterns", 200)
    agent.branch("Look at one", 100)
    agent.record(300, failed=True)
    agent.fold(50)
    agent.record(8250)
    agent.fold(200)
    agent.branch("Mend it", 10)
    found: str = look.session(project)["session_id"]
    return found


class TestSessions:
    def test_a_row_tells_the_figures_of_a_session(self, look: Onlooker, session_id: str, project: str) -> None:
        row = look.session(project)
        assert row["session_id"] == session_id
        told = {
            "total_tokens": 5210,
            "main_thread_tokens": 5200,
            "folded_tokens": 8500 + 400,
            "tokens_saved": 8300 + 350,
            "context_limit": 32768,
            "usage_percent": 15,
            "operations": 3,
            "failed_operations": 1,
            "secrets_scrubbed": 0,
            "total_branches": 3,
            "active_branches": 1,
            "folded_branches": 2,
            "discarded_branches": 0,
            "branch_depth": 1,
            "context_health": {"warning": "none", "main_thread_usage": 0.15},
        }
        assert {name: row[name] for name in told} == told
        assert row["branch_path"] == ["main", row["active_branch_id"]]

    def test_the_latest_come_first_and_pages_have_each_once(self, daemon: Daemon, look: Onlooker, project: str) -> None:
        for number in range(7):
            agent = Worker(daemon, f"{project}/{number}")
            agent.record(1)
            agent.mcp.close()
        whole = [row["session_id"] for row in look.sessions()]
        paged: list[str] = []
        cursor = ""
        while cursor is not None:
            page = look.get(f"/v1/sessions?limit=3&cursor={cursor}")
            assert (page["owner"], page["total"]) == ("local", len(whole))
            paged += [row["session_id"] for row in page["sessions"]]
            cursor = page["next_cursor"]
        assert paged == whole

    @pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=-1", "limit=1.5", "cursor=nothing"])
    def test_a_wrong_question_is_refused(self, look: Onlooker, query: str) -> None:
        reply = look.http.ask("GET", f"/v1/sessions?{query}")
        assert reply.status == 400
        assert reply.json["error"]["data"] == {"kind": "invalid_argument", "field": query.partition("=")[0]}


class TestOneSession:
    def test_its_tree_has_children_below_their_parents(self, look: Onlooker, session_id: str) -> None:
        view = look.get(f"/v1/sessions/{session_id}")
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

    def test_a_branch_opened_after_a_rollback_is_below_its_parent(self, agent: Worker, look: Onlooker) -> None:
        first = agent.branch("first")
        agent.fold()
        agent.branch("second")
        agent.call("context_rollback", branch_id=first)
        agent.branch("third, in the first")
        view = look.view(agent.project)
        rows = [(row["depth"], row["description"], row["status"]) for row in view["branches"]]
        assert rows == [(0, "first", "active"), (1, "third, in the first", "active"), (0, "second", "discarded")]
        assert view["branches"][0]["summary_tokens"] == 0

    def test_a_large_tree_comes_in_windows(self, agent: Worker, look: Onlooker) -> None:
        for number in range(130):
            agent.branch(f"branch {number}")
            agent.fold()
        session_id = look.session(agent.project)["session_id"]
        view = look.get(f"/v1/sessions/{session_id}")
        assert (view["first_row"], view["total_rows"], len(view["branches"])) == (30, 130, 100)
        earlier = look.get(f"/v1/sessions/{session_id}?before=30&limit=20")
        assert [row["description"] for row in earlier["branches"]] == [f"branch {n}" for n in range(10, 30)]
        assert earlier["first_row"] == 10
        assert look.get(f"/v1/sessions/{session_id}?before=0")["branches"] == []
        assert look.get(f"/v1/sessions/{session_id}?before=999999")["first_row"] == 30

    @pytest.mark.parametrize("path", ["", "/timeline", "/savings", "/trajectory", "/rollback?branch_id=x"])
    def test_one_that_is_not_there_is_not_found(self, look: Onlooker, path: str) -> None:
        reply = look.http.ask("GET", f"/v1/sessions/sess_0000000000000000{path}")
        assert reply.status == 404
        assert reply.json["error"]["data"]["kind"] == "session_not_found"

    def test_a_session_by_name_tells_its_name(self, daemon: Daemon, look: Onlooker, project: str) -> None:
        named = HttpAgent(daemon.port, x_context_session="reviewer")
        named.call("context_record", project_path=project, type="t", content="c")
        named.close()
        assert look.session(project, "reviewer")["name"] == "reviewer"


class TestTheTimeline:
    def test_each_event_is_a_point_and_the_last_is_now(self, look: Onlooker, session_id: str, project: str) -> None:
        told = look.get(f"/v1/sessions/{session_id}/timeline")
        totals = [point["total_tokens"] for point in told["points"]]
        assert totals == [0, 5000, 5200, 5300, 5600, 5250, 13500, 5200, 5210]
        mains = [point["main_thread_tokens"] for point in told["points"]]
        assert mains == [0, 5000, 5000, 5000, 5000, 5000, 5000, 5200, 5200]
        assert [point["n"] for point in told["points"]] == list(range(1, 10))
        assert told["context_limit"] == 32768
        assert told["points"][-1]["total_tokens"] == look.session(project)["total_tokens"]

    def test_it_goes_on_where_it_was_read_before(self, agent: Worker, look: Onlooker, session_id: str) -> None:
        path = f"/v1/sessions/{session_id}/timeline"
        first = look.get(path)["points"]
        assert look.get(path)["points"] == first
        agent.fold(3)
        again = look.get(path)["points"]
        assert again[:-1] == first
        assert (again[-1]["n"], again[-1]["total_tokens"]) == (10, 5203)
        agent.call("context_rollback", branch_id=look.get(f"/v1/sessions/{session_id}")["branches"][0]["id"])
        assert look.get(path)["points"][-1]["total_tokens"] == look.session(agent.project)["total_tokens"] == 5200

    def test_a_long_one_is_thinned_but_keeps_its_peak_and_its_end(self, agent: Worker, look: Onlooker) -> None:
        for number in range(150):
            agent.branch("b", 900 if number == 77 else 1)
            agent.fold()
            agent.record(1)
        session_id = look.session(agent.project)["session_id"]
        points = look.get(f"/v1/sessions/{session_id}/timeline")["points"]
        assert len(points) <= 240
        assert [point["n"] for point in points] == sorted({point["n"] for point in points})
        peak = max(points, key=lambda point: point["total_tokens"])
        assert peak["total_tokens"] - peak["main_thread_tokens"] == 900
        assert points[-1]["total_tokens"] == look.session(agent.project)["total_tokens"]


class TestSavings:
    def test_a_session_whose_requests_went_elsewhere_has_nothing_to_compare(
        self, look: Onlooker, session_id: str
    ) -> None:
        told = look.get(f"/v1/sessions/{session_id}/savings")
        assert list(told) == [
            "session_id", "prices", "requests", "estimated_requests", "extra_requests", "warm_requests", "tokens_sent",
            "tokens_without",
            "tokens_saved", "output_tokens", "output_tokens_without", "cost_sent", "cost_without", "cost_saved",
            "money", "results_dropped", "failed_open", "folds", "costly_folds", "days",
            "points", "verdict",
        ]  # fmt: skip
        assert (told["session_id"], told["requests"], told["cost_saved"]) == (session_id, 0, 0)
        assert told["prices"] == []


class TestTrajectories:
    def test_a_branch_and_the_main_thread_tell_what_they_did(self, look: Onlooker, session_id: str) -> None:
        outer, inner, _ = look.get(f"/v1/sessions/{session_id}")["branches"]
        kinds = [entry["kind"] for entry in look.entries(session_id, outer["id"])]
        assert kinds == ["prompt", "child", "operation", "summary"]
        kinds = [entry["kind"] for entry in look.entries(session_id)]
        assert kinds == ["operation", "child"]
        told = look.get(f"/v1/sessions/{session_id}/trajectory?branch_id={inner['id']}&budget=2000")
        assert told["branch"] == inner
        assert [entry.get("failed") for entry in told["entries"]] == [None, True, None]

    def test_pages_together_are_the_whole(self, look: Onlooker, session_id: str) -> None:
        text, cursor, pages = "", "", 0
        while cursor is not None:
            page = look.get(f"/v1/sessions/{session_id}/trajectory?budget=400&cursor={cursor}")
            text += "".join(entry["text"] for entry in page["entries"])
            cursor, pages = page["next_cursor"], pages + 1
        assert text == "cccc" * 5000 + "mmmm" * 200
        assert pages > 10

    @pytest.mark.parametrize(
        ("query", "field"), [("budget=1", "budget"), ("cursor=x", "cursor"), ("branch_id=" + "x" * 1001, "branch_id")]
    )
    def test_a_wrong_question_is_refused(self, look: Onlooker, session_id: str, query: str, field: str) -> None:
        reply = look.http.ask("GET", f"/v1/sessions/{session_id}/trajectory?{query}")
        assert (reply.status, reply.json["error"]["data"]["field"]) == (400, field)

    def test_a_branch_that_is_not_there_is_not_found(self, look: Onlooker, session_id: str) -> None:
        reply = look.http.ask("GET", f"/v1/sessions/{session_id}/trajectory?branch_id=br_none")
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (404, "branch_not_found")


class TestRollingBack:
    def test_the_preview_is_what_then_happens(self, look: Onlooker, session_id: str, project: str) -> None:
        outer, inner, last = look.get(f"/v1/sessions/{session_id}")["branches"]
        path = f"/v1/sessions/{session_id}/rollback"
        told = look.get(f"{path}?branch_id={outer['id']}")
        assert told["branches_discarded"] == [inner, last]
        assert (told["reopened"], told["tokens_recovered"], told["total_tokens_after"]) == ([outer], 10, 5200)
        assert told["total_discarded"] == 2
        nested = look.get(f"{path}?branch_id={inner['id']}")
        assert (nested["reopened"], nested["branches_discarded"]) == ([outer, inner], [last])
        assert look.get(f"/v1/sessions/{session_id}")["branches"] == [outer, inner, last]
        body = json.dumps({"branch_id": outer["id"]}).encode()
        done = look.http.ask("POST", path, body, {"content-type": "application/json"}).json
        assert done["branches_discarded"] == [inner["id"], last["id"]]
        assert done["tokens_recovered"] == told["tokens_recovered"]
        assert done["context_state"]["total_tokens"] == told["total_tokens_after"]
        assert look.session(project)["total_tokens"] == told["total_tokens_after"]

    def test_keeping_what_was_gathered_is_told_apart(self, look: Onlooker, session_id: str) -> None:
        outer = look.get(f"/v1/sessions/{session_id}")["branches"][0]
        path = f"/v1/sessions/{session_id}/rollback?branch_id={outer['id']}&restore_state=false"
        assert look.get(path)["total_tokens_after"] == 5200 + 8500

    def test_sent_twice_with_one_key_it_is_done_once(self, agent: Worker, look: Onlooker, session_id: str) -> None:
        outer = look.get(f"/v1/sessions/{session_id}")["branches"][0]
        body = json.dumps({"branch_id": outer["id"], "restore_state": True}).encode()
        headers = {"content-type": "application/json", "idempotency-key": "once"}
        first, second = (
            look.http.ask("POST", f"/v1/sessions/{session_id}/rollback", body, headers).body for _ in range(2)
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
    def test_a_wrong_one_changes_nothing(
        self, look: Onlooker, session_id: str, body: bytes, status: int, kind: str
    ) -> None:
        before = look.get(f"/v1/sessions/{session_id}")
        reply = look.http.ask("POST", f"/v1/sessions/{session_id}/rollback", body, {"content-type": "application/json"})
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (status, kind)
        assert look.get(f"/v1/sessions/{session_id}") == before

    def test_a_discarded_branch_cannot_be_gone_back_to(self, agent: Worker, look: Onlooker, session_id: str) -> None:
        outer, inner, _ = look.get(f"/v1/sessions/{session_id}")["branches"]
        agent.call("context_rollback", branch_id=outer["id"])
        reply = look.http.ask("GET", f"/v1/sessions/{session_id}/rollback?branch_id={inner['id']}")
        assert (reply.status, reply.json["error"]["data"]["kind"]) == (409, "invalid_branch_state")
        with pytest.raises(Refused):
            agent.call("context_rollback", branch_id=inner["id"])


def test_summaries_are_found_by_their_words(look: Onlooker, agent: Worker) -> None:
    agent.branch("Quokka hunt")
    agent.call("context_return", message="Two quokkas were seen.")
    (found,) = look.get("/v1/summaries?query=quokka%20seen")["summaries"]
    assert (found["project_path"], found["summary"]) == (agent.project, "Two quokkas were seen.")
    assert found["live"]
    assert look.get("/v1/summaries?query=")["summaries"] == []
    assert look.get("/v1/summaries?query=%22%28%2A")["summaries"] == []


class TestSearch:
    def test_sessions_branches_and_summaries_are_found_by_every_word(
        self, look: Onlooker, agent: Worker, daemon: Daemon
    ) -> None:
        agent.branch("Numbat survey")
        agent.call("context_return", message="Three numbats were seen.")
        agent.branch("Numbat census")
        by_word = look.get("/v1/search?query=NUMBAT")
        assert [found["description"] for found in by_word["branches"]] == ["Numbat census"]
        assert [found["description"] for found in by_word["summaries"]] == ["Numbat survey"]
        assert by_word["sessions"] == []
        name = agent.project.rpartition("/")[2]
        (session,) = look.get(f"/v1/search?query={name}")["sessions"]
        assert session["project_path"] == agent.project
        assert look.get("/v1/search?query=numbat%20unicorn")["branches"] == []
        assert look.get("/v1/search?query=") == {"sessions": [], "branches": [], "summaries": []}


def test_the_first_page_of_a_folded_branch_has_its_summary(look: Onlooker, agent: Worker) -> None:
    branch_id = agent.branch("Find it", 10)
    agent.record(900)
    session = look.session(agent.project)["session_id"]
    path = f"/v1/sessions/{session}/trajectory?branch_id={branch_id}&budget=200"
    assert look.get(path)["summary"] is None
    agent.call("context_return", message="It was the clock.")
    first = look.get(path)
    assert first["summary"] == "It was the clock."
    assert first["next_cursor"] is not None
    assert look.get(f"{path}&cursor={first['next_cursor']}")["summary"] is None


def test_there_is_one_demo_session_and_it_is_named(daemon: Daemon, look: Onlooker) -> None:
    http = Http(daemon.port)
    ids = {http.ask("POST", "/v1/demo", b"{}", {"content-type": "application/json"}).json["session_id"] for _ in "ab"}
    http.close()
    (session_id,) = ids
    session = look.get(f"/v1/sessions/{session_id}")["session"]
    assert (session["name"], session["savings"]) == ("demo", None)
    assert session["folded_branches"] == 3


def test_ended_sessions_are_listed_until_they_are_forgotten(tmp_path: Path) -> None:
    """The daemon ends idle sessions by itself; here one that has been idle since before it was started."""
    path = tmp_path / "state" / "state.db"
    subprocess.run([sys.executable, SEED, path, "ended"], check=True)
    daemon = Daemon(tmp_path)
    http = Http(daemon.port)
    until(lambda: bool(http.ask("GET", "/v1/sessions?ended=true").json["sessions"]))
    assert http.ask("GET", "/v1/sessions").json["sessions"] == []
    answer = http.ask("GET", "/v1/sessions?ended=true").json
    (session,) = answer["sessions"]
    assert (session["project_path"], session["folded_branches"], session["savings"]) == (ENDED_PROJECT, 1, None)
    assert session["ended_at"] > session["last_at"]
    assert answer["next_cursor"] is None
    assert http.ask("GET", "/v1/sessions?ended=perhaps").status == 400
    http.close()
    assert daemon.stop() == 0


def test_a_question_gets_the_bytes_that_the_tool_gives(tmp_path: Path) -> None:
    sources, root = tmp_path / "sources", tmp_path / "caches"
    sources.mkdir()
    (sources / "deploy.md").write_text("# Deploy\n\n## Roll back\n\nRun it with the last tag.\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "contextfold", "build", "--sources", sources, "--cache", root / "docs"], check=True
    )
    daemon = Daemon(tmp_path / "daemon", "--cache-root", str(root))
    http, agent = Http(daemon.port), HttpAgent(daemon.port)
    assert [cache["path"] for cache in http.ask("GET", "/v1/caches").json["caches"]] == ["docs"]
    question: dict[str, Any] = {"query": "roll back", "budget": 200}
    json_type = {"content-type": "application/json"}
    answer = http.ask("POST", "/v1/ask", json.dumps(question).encode(), json_type)
    agent.call("context.ask", **question)
    assert answer.body.decode() == agent.result["content"][0]["text"]
    assert answer.status == 200
    odd: list[object] = [{"query": "roll back", "cache": "none"}, {"query": "", "budget": -1}, {"budget": 5}, []]
    for wrong in odd:
        assert http.ask("POST", "/v1/ask", json.dumps(wrong).encode(), json_type).status in (400, 422), wrong
    http.close()
    agent.close()
    assert daemon.stop() == 0


@covers("product.md#serve")
def test_the_page_and_its_files_come_with_strict_rules(daemon: Daemon) -> None:
    http = Http(daemon.port)
    page = http.ask("GET", "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    rules = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(rules)
    assert not any("unsafe" in rule or "*" in rule or "http" in rule for rule in rules)
    assert http.ask("GET", "/web/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for absent in ("/web/", "/web/nothing.js", "/web/../app.py", "/web/%2e%2e/app.py", "/web/__init__.py", "/app.js"):
        assert http.ask("GET", absent).status == 404, absent
    assert http.ask("POST", "/").status == 405
    http.close()
