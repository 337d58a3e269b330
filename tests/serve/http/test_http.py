"""The routes of the daemon, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextfold import __version__
from tests.support.daemon import LEGACY, MODERN, RPC, Daemon, Http, HttpAgent, Refused, read_log
from tests.support.machine import run_command

NO_STATE = {
    "session_id": None,
    "active_branch_id": None,
    "branch_depth": 0,
    "total_tokens": 0,
    "folded_tokens": 0,
    "context_usage": 0,
}
FOLD_NAMES = [
    "context_branch", "context_return", "context_fold", "context_branch_status", "context_list_branches",
    "context_rollback", "context_record", "context_expand", "context_recall",
]  # fmt: skip
RESOLVE_NAMES = ["context.resolve", "context.list_caches", "context.inspect_cache", "context.ask", "context.get"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("http")
    sources = folder / "sources"
    sources.mkdir()
    (sources / "deploy.md").write_text("How to deploy.\n")
    caches = folder / "caches"
    caches.mkdir()
    assert run_command("build", "--sources", sources, "--cache", caches / "docs").code == 0
    with Daemon(folder, "--cache-root", str(caches)) as daemon:
        yield daemon


@pytest.fixture
def http(daemon: Daemon) -> Iterator[Http]:
    with Http(daemon.port) as client:
        yield client


@pytest.fixture(params=[LEGACY, MODERN])
def agent(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[HttpAgent]:
    with HttpAgent(daemon.port, request.param) as client:
        yield client


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return f"/projects/{request.node.nodeid}"


class TestStateHeader:
    def test_a_call_returns_the_state_after_it(self, agent: HttpAgent, project: str) -> None:
        branch = agent.call("context_branch", description="d", prompt="p" * 400, project_path=project)
        assert agent.last
        assert "\n" not in agent.last.headers["x-context-state"]
        assert ", " not in agent.last.headers["x-context-state"]
        assert agent.state == {
            "session_id": branch["session_id"],
            "active_branch_id": branch["branch_id"],
            "branch_depth": 1,
            "total_tokens": 100,
            "folded_tokens": 0,
            "context_usage": 0,
        }
        assert list(agent.state) == list(NO_STATE)

    def test_a_refused_call_returns_the_state_too(self, agent: HttpAgent, project: str) -> None:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        for arguments in ({"branch_id": "br_none"}, {"branch_id": 5}, {"nonsense": 1}):
            with pytest.raises(Refused):
                agent.call("context_return", message="m", project_path=project, **arguments)
            assert agent.state["active_branch_id"] == branch["branch_id"]

    def test_the_state_is_empty_without_a_project(self, agent: HttpAgent) -> None:
        agent.rpc("tools/list", {})
        assert agent.state == NO_STATE
        agent.call("context.list_caches")
        assert agent.state == NO_STATE
        with pytest.raises(Refused):
            agent.call("context_return", message="m", project_path="not/absolute")
        assert agent.state == NO_STATE
        with pytest.raises(Refused):
            agent.call("no_such_tool")
        assert agent.state == NO_STATE

    @pytest.mark.parametrize(
        ("method", "path", "body", "headers", "status"),
        [
            ("POST", "/mcp", b"{", RPC, 400),
            ("POST", "/mcp", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', RPC, 202),
            ("POST", "/mcp", b"{}", RPC, 400),
            ("POST", "/mcp", b"{}", {"content-type": "text/plain"}, 400),
            ("POST", "/mcp", b"{}", {**RPC, "host": "evil.example"}, 421),
            ("POST", "/mcp", b"{}", {**RPC, "origin": "http://evil.example"}, 403),
            ("POST", "/mcp", b"x" * (5 << 20), RPC, 413),
            ("GET", "/mcp", None, {"accept": "text/event-stream"}, 405),
            ("DELETE", "/mcp", None, {}, 405),
            ("PUT", "/mcp", b"", {}, 405),
            ("GET", "/mcp/tools/list", None, {}, 200),
            ("GET", "/mcp/nothing", None, {}, 404),
        ],
    )
    def test_every_response_below_mcp_has_the_header(  # noqa: PLR0917 - the parts of a request
        self, daemon: Daemon, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
    ) -> None:
        with Http(daemon.port) as http:
            reply = http.ask(method, path, body, headers)
        assert reply.status == status
        assert json.loads(reply.headers["x-context-state"]) == NO_STATE

    def test_other_paths_have_no_state_header(self, http: Http) -> None:
        assert "x-context-state" not in http.ask("GET", "/healthz").headers


def test_the_error_for_tools_call_names_the_right_path(http: Http) -> None:
    reply = http.ask("POST", "/mcp/tools/call", b"{}", RPC)
    assert (reply.status, reply.json["error"]["data"]["kind"]) == (404, "not_found")
    assert "POST /mcp" in reply.json["error"]["message"]


def test_no_page_can_frame_or_embed_a_response(http: Http) -> None:
    for path in ("/v1/sessions", "/healthz", "/mcp/tools/list", "/"):
        headers = http.ask("GET", path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_an_unusable_network_proxy_is_logged_for_every_provider(tmp_path: Path) -> None:
    local = [f"--{name}-upstream=http://localhost:9" for name in ("anthropic", "openai")]
    daemon = Daemon(tmp_path, *local, env={"HTTPS_PROXY": "socks5://p:1"})
    assert daemon.stop() == 0
    assert [line["variable"] for line in read_log(daemon.log) if line["event"] == "proxy.variable_ignored"] == [
        "HTTPS_PROXY"
    ]


class TestSessionNames:
    def test_a_session_name_in_the_header_has_a_session_of_its_own(self, daemon: Daemon, project: str) -> None:
        for era in (LEGACY, MODERN):
            without_name, with_name = (
                HttpAgent(daemon.port, era),
                HttpAgent(daemon.port, era, x_context_session=f"review {era}"),
            )
            unnamed_session = without_name.call("context_record", project_path=project, type="t", tokens=1)
            named_session = with_name.call("context_record", project_path=project, type="t", tokens=1)
            assert unnamed_session["session_id"] != named_session["session_id"]
            assert with_name.state["session_id"] == named_session["session_id"]
            without_name.close()
            with_name.close()

    def test_a_name_may_end_in_a_character_whose_last_byte_is_white_space_in_latin_1(
        self, daemon: Daemon, project: str
    ) -> None:
        for name in ("là", "Å"):
            with HttpAgent(daemon.port, MODERN, x_context_session=name.encode().decode("latin-1")) as agent:
                by_header = agent.call("context_record", project_path=project, type="t", tokens=1)
            with HttpAgent(daemon.port, MODERN) as without_name:
                by_meta = without_name.call(
                    "context_record", {"contextfold/session": name}, project_path=project, type="t", tokens=1
                )
            assert by_header["session_id"] == by_meta["session_id"]

    def test_an_invalid_session_name_is_refused(self, agent: HttpAgent, project: str) -> None:
        for name in (5, "", "x" * 201, "a\x00b", "\ud800"):
            with pytest.raises(Refused) as raised:
                agent.call("context_record", {"contextfold/session": name}, project_path=project, type="t", tokens=1)
            assert raised.value.code == -32602


class TestDiscovery:
    def test_get_lists_every_tool_as_the_seed_shows_it(self, http: Http) -> None:
        reply = http.ask("GET", "/mcp/tools/list")
        assert reply.headers["content-type"] == "application/json"
        tools = reply.json["tools"]
        assert [tool["name"] for tool in tools] == [*RESOLVE_NAMES, *FOLD_NAMES]
        assert all(list(tool) == ["name", "description", "inputSchema"] for tool in tools)
        descriptions = {tool["name"]: tool["description"] for tool in tools}
        assert descriptions["context_branch"] == "Create sub-trajectory for focused subtask"
        assert descriptions["context_return"] == "Fold branch and return to parent with summary"

    def test_mcp_lists_the_same_tools(self, agent: HttpAgent) -> None:
        listed = agent.rpc("tools/list", {})["tools"]
        discovered = agent.http.ask("GET", "/mcp/tools/list").json["tools"]
        assert [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in listed] == discovered
        assert {
            tool["name"]
            for tool in listed
            if not tool["annotations"].get("readOnlyHint") and tool["annotations"].get("destructiveHint", True)
        } == {"context_rollback"}

    @pytest.mark.parametrize(
        ("tools", "names"),
        [
            ("fold-afterwards", ["context_fold", "context_expand"]),
            ("fold", FOLD_NAMES),
            ("resolve,fold-afterwards", [*RESOLVE_NAMES, "context_fold", "context_expand"]),
            ("", [*RESOLVE_NAMES, *FOLD_NAMES]),
        ],
    )
    def test_a_client_can_choose_toolsets_in_the_query(self, http: Http, tools: str, names: list[str]) -> None:
        message = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        answer = http.ask("POST", f"/mcp?tools={tools}", message, RPC)
        assert [tool["name"] for tool in answer.json["result"]["tools"]] == names

    def test_a_tool_outside_the_chosen_toolsets_is_unknown(self, http: Http, project: str) -> None:
        params = {"name": "context_branch_status", "arguments": {"project_path": project}}
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        assert "result" in http.ask("POST", "/mcp?tools=fold", message, RPC).json
        assert http.ask("POST", "/mcp?tools=resolve", message, RPC).json["error"]["code"] == -32602
        assert http.ask("POST", "/mcp?tools=everything", message, RPC).json["error"]["code"] == -32600


class TestResolveTools:
    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("context.resolve", {"cache": "docs", "query": "deploy", "budget": 100}),
            ("context.resolve", {"cache": "docs", "query": "ünï \u2028 🗺", "budget": 0}),
            ("context.resolve", {"cache": "nowhere", "query": "deploy", "budget": 100}),
            ("context.ask", {"query": "how to deploy"}),
            ("context.ask", {"cache": "docs", "query": "ünï \u2028 🗺", "budget": 0, "unit": "document"}),
            ("context.get", {"cache": "docs", "id": "deploy.md"}),
            ("context.get", {"cache": "docs", "id": "deploy.md", "lines": "1-1", "around": 1, "budget": 100}),
            ("context.get", {"cache": "docs", "id": "\ud800"}),
        ],
    )
    def test_the_text_is_the_same_as_over_stdio(
        self, agent: HttpAgent, daemon: Daemon, tool: str, arguments: dict[str, Any]
    ) -> None:
        from tests.serve.stdio_client import after_handshake, call, text_of

        (expected,) = after_handshake(daemon.folder / "caches", call(tool, arguments))
        result = agent.rpc("tools/call", {"name": tool, "arguments": arguments})
        assert result["content"][0]["text"] == text_of(expected)
        assert result.get("isError", False) == expected["result"]["isError"]


class TestOperations:
    def test_a_reported_operation_counts_in_the_active_branch(self, agent: HttpAgent, http: Http, project: str) -> None:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        body = {"project_path": project, "type": "file_read", "content": "12345678", "failed": True}
        reply = http.ask("POST", "/v1/operations", json.dumps(body).encode())
        assert reply.status == 200
        response = reply.json
        assert list(response) == [
            "session_id", "branch_id", "tokens", "source", "counter", "secrets_scrubbed", "context_state",
            "context_health",
        ]  # fmt: skip
        assert (response["branch_id"], response["tokens"], response["source"]) == (branch["branch_id"], 2, "reported")
        assert response["counter"] == "v0"
        # Too few operations give no rate.
        rates = [response["context_health"].get("failure_rate")]
        for failed in (True, True, True, False):
            more = json.dumps({**body, "failed": failed}).encode()
            rates.append(http.ask("POST", "/v1/operations", more).json["context_health"].get("failure_rate"))
        assert rates == [None, None, None, None, 0.8]

    def test_session_name_and_idempotency_key_work_as_for_tools(self, http: Http, project: str) -> None:
        body = json.dumps({"project_path": project, "type": "t", "tokens": 5}).encode()
        headers = {"x-context-session": "nächtlich".encode().decode("latin-1"), "idempotency-key": "once"}
        first, again = (http.ask("POST", "/v1/operations", body, headers) for _ in range(2))
        assert first.body == again.body
        assert first.json["context_state"]["main_thread_tokens"] == 5
        other = http.ask("POST", "/v1/operations", body)
        assert other.json["session_id"] != first.json["session_id"]

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b"", "body"),
            (b"[1]", "body"),
            (b'{"project_path":"/p"', "body"),
            (b"\xff", "body"),
            (b"[" * 500 + b"]" * 500, "body"),
            (b'{"project_path":"p","type":"t","tokens":1}', "project_path"),
            (b'{"project_path":"/p","type":"t"}', "content"),
            (b'{"project_path":"/p","type":"t","tokens":1,"source":"hook"}', "source"),
            (b'{"project_path":"/p","type":"t","content":"\\ud800"}', "body"),
        ],
    )
    def test_an_invalid_body_is_refused_and_the_field_is_named(self, http: Http, body: bytes, field: str) -> None:
        reply = http.ask("POST", "/v1/operations", body)
        assert reply.status == 400
        assert reply.json["error"]["code"] == -32602
        assert reply.json["error"]["data"] == {"kind": "invalid_argument", "field": field}
        assert reply.json["error"]["message"].startswith(f"{field} ")

    def test_an_invalid_session_name_in_the_header_is_refused(self, http: Http, project: str) -> None:
        body = json.dumps({"project_path": project, "type": "t", "tokens": 5}).encode()
        for name in ("\xff", " ", "x" * 201):
            reply = http.ask("POST", "/v1/operations", body, {"x-context-session": name})
            assert reply.status == 400, name


class TestHealth:
    def test_the_daemon_is_healthy_ready_and_has_metrics(self, agent: HttpAgent, project: str) -> None:
        agent.call("context_branch", description="d", prompt="p" * 40, project_path=project)
        agent.call("context_return", message="m", project_path=project)
        assert agent.http.ask("GET", "/healthz").body == b"ok\n"
        assert agent.http.ask("GET", "/readyz").body == b"ready\n"
        page = agent.http.ask("GET", "/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        metrics = page.body.decode()
        assert f'contextfold_build_info{{version="{__version__}"}} 1.0' in metrics
        assert 'contextfold_tool_calls_total{outcome="ok",tool="context_branch"}' in metrics
        assert "contextfold_tokens_folded_total" in metrics
        assert project not in metrics

    def test_the_daemon_is_not_ready_when_its_store_takes_no_commits(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        try:
            with HttpAgent(daemon.port) as agent:
                agent.call("context_branch", description="d", prompt="p", project_path="/p")
                for path in daemon.store.parent.iterdir():
                    path.rename(path.with_suffix(f"{path.suffix}.away"))
                assert agent.http.ask("GET", "/healthz").status == 200
                assert agent.http.ask("GET", "/readyz").status == 503
                with pytest.raises(Refused) as raised:
                    agent.call("context_branch", description="d", prompt="p", project_path="/p")
                assert (raised.value.code, raised.value.message) == (-32603, "State store is unavailable")
                assert raised.value.data == {"retry": True}
        finally:
            daemon.stop()


class TestResolvingMessages:
    """What a client that is older, terse or of another script may send."""

    def ask(self, http: Http, body: dict[str, Any], **headers: str) -> Any:
        reply = http.ask("POST", "/mcp", json.dumps(body, ensure_ascii=False).encode(), RPC | headers)
        return reply.json

    def test_a_client_that_does_not_say_what_it_accepts_is_answered(self, http: Http) -> None:
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        assert http.ask("POST", "/mcp", body, {"content-type": "application/json"}).status == 200
        assert http.ask("POST", "/mcp", body, {**RPC, "accept": "text/html"}).status == 406

    def test_an_unknown_version_is_answered_with_every_supported_one(self, http: Http) -> None:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = self.ask(http, request, **{"mcp-protocol-version": "1999-01-01"})
        assert answer["error"]["data"]["supported"] == [
            "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28",
        ]  # fmt: skip

    def test_resources_have_the_members_of_the_clients_era(self, http: Http) -> None:
        for method, member in (("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")):
            answer = self.ask(http, {"jsonrpc": "2.0", "id": 1, "method": method})
            assert list(answer["result"]) == [member]
        request = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "context://caches/docs"}}
        assert list(self.ask(http, request)["result"]) == ["contents"]

    @pytest.mark.parametrize("ensure_ascii", [True, False], ids=["escaped", "raw"])
    def test_a_long_question_in_another_script_gets_the_answer_of_stdio(
        self, http: Http, daemon: Daemon, *, ensure_ascii: bool
    ) -> None:
        from tests.serve.stdio_client import after_handshake

        # As many as fit into a line of stdio with escapes.
        arguments = {"cache": "docs", "query": "🦊" * 87_000, "budget": 100}
        params = {"name": "context.resolve", "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        body = json.dumps(message, ensure_ascii=ensure_ascii).encode()
        (over_stdio,) = after_handshake(daemon.folder / "caches", body)
        assert http.ask("POST", "/mcp", body, RPC).json == over_stdio
        assert over_stdio["result"]["isError"] is False

    def test_a_new_installation_lists_no_caches(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path, env={"XDG_DATA_HOME": str(tmp_path / "data")})
        try:
            with Http(daemon.port) as http:
                params = {"name": "context.list_caches", "arguments": {}}
                answer = self.ask(http, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                assert answer["result"]["isError"] is False
                assert self.ask(http, {"jsonrpc": "2.0", "id": 2, "method": "resources/list"})["result"] == {
                    "resources": []
                }
            root = tmp_path / "data" / "contextfold" / "caches"
            assert root.stat().st_mode & 0o777 == 0o700
        finally:
            daemon.stop()

    def test_a_named_root_that_is_not_there_has_no_resources_and_stays_an_error_of_the_tool(
        self, tmp_path: Path
    ) -> None:
        daemon = Daemon(tmp_path, "--cache-root", str(tmp_path / "missing"))
        try:
            with Http(daemon.port) as http:
                assert self.ask(http, {"jsonrpc": "2.0", "id": 1, "method": "resources/list"})["result"] == {
                    "resources": []
                }
                params = {"name": "context.list_caches", "arguments": {}}
                answer = self.ask(http, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                assert json.loads(answer["result"]["content"][0]["text"])["error"]["code"] == "io_error"
                params = {"name": "context.ask", "arguments": {"query": "deploy"}}
                answer = self.ask(http, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                assert "does not exist" in answer["result"]["content"][0]["text"]
                assert '"event":"cache_root.missing"' in daemon.log.read_text()
        finally:
            daemon.stop()
