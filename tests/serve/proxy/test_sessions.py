"""The proxy folds requests and records them in sessions. It stores no keys."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contextfold.serve.http.bearer_tokens import add_token
from contextfold.serve.proxy.folding import FOLDED_MAX_BYTES
from tests.serve.proxy.proxy_daemon import (
    JSON,
    KEY,
    MESSAGES,
    ProxyDaemon,
    error_of,
    proxy,
    read_response,
    shared_proxy,
)
from tests.serve.proxy.raw_upstream import WAIT_S, RawRequest, Wire, answer_ok
from tests.support.daemon import HttpAgent
from tests.support.waiting import until

__all__ = ["proxy", "shared_proxy"]


class TestFolding:
    def test_a_body_with_nothing_to_fold_is_forwarded_unchanged(self, proxy: ProxyDaemon) -> None:
        body = b' {"model" : "m", "messages":[ {"role":"user","content":"\\u00e4 \xc3\xa4"} ] , "x":1.50e3 }\n'
        reply = proxy.request("POST", MESSAGES, body, **JSON)
        assert proxy.upstream.next().body == body
        assert json.loads(reply.headers["x-context-fold"])["reason"] is None

    def test_a_returned_branch_is_folded_and_the_receipt_counts_it(self, proxy: ProxyDaemon) -> None:
        before = proxy.metric_series("contextfold_proxy_requests_total")
        body = history("br_1", "sess_unknown")
        reply = proxy.post(body)
        sent = proxy.upstream.next().json
        assert sent["messages"] == body["messages"][:3] + body["messages"][5:]
        receipt = json.loads(reply.headers["x-context-fold"])
        assert (receipt["turns_dropped"], receipt["first_changed"], receipt["reason"]) == (1, 3, None)
        assert receipt["tokens_after"] < receipt["tokens_before"]
        folded = '{api="anthropic",outcome="folded"}'
        assert proxy.metric_series("contextfold_proxy_requests_total")[folded] == before[folded] + 1

    def test_a_chunked_request_is_folded(self, proxy: ProxyDaemon) -> None:
        body = json.dumps(history("br_1", "sess_unknown")).encode()
        with proxy.connect() as client:
            head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            client.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert read_response(client).status == 200
        request = proxy.upstream.next()
        assert len(request.json["messages"]) == 5
        assert request.header("content-length") == [str(len(request.body))]
        assert request.header("transfer-encoding") == []

    @pytest.mark.parametrize("is_chunked", [False, True])
    def test_a_body_too_large_to_fold_is_forwarded_unchanged(self, proxy: ProxyDaemon, is_chunked: bool) -> None:
        body = json.dumps({**history("br_1", "s"), "filling": "x" * FOLDED_MAX_BYTES}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=WAIT_S)
        with closing(connection):
            parts = (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))
            connection.request("POST", MESSAGES, parts if is_chunked else body, JSON, encode_chunked=is_chunked)
            answer = connection.getresponse()
        assert json.loads(str(answer.getheader("x-context-fold")))["reason"] == "too_large"
        request = proxy.upstream.next()
        assert (request.body, request.header("transfer-encoding")) == (body, ["chunked"] if is_chunked else [])

    def test_a_compressed_body_is_forwarded_unchanged(self, proxy: ProxyDaemon) -> None:
        body = gzip.compress(json.dumps(history("br_1", "s")).encode())
        reply = proxy.request("POST", MESSAGES, body, content_encoding="gzip", **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"] == "encoded"
        request = proxy.upstream.next()
        assert (request.body, request.header("content-encoding")) == (body, ["gzip"])

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"messages":1}', b'{"messages":[],"messages":[]}'])
    def test_an_invalid_body_is_forwarded_unchanged(self, proxy: ProxyDaemon, body: bytes) -> None:
        reply = proxy.request("POST", MESSAGES, body, **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"]
        assert proxy.upstream.next().body == body


class TestSessions:
    def test_the_session_named_in_the_history_records_the_providers_usage(self, proxy: ProxyDaemon) -> None:
        session_id, branch_id = session_with_branch(proxy, "/usage")
        proxy.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        assert proxy.post(history(branch_id, session_id)).status == 200
        assert recorded_requests(proxy, session_id) == 1
        assert total_tokens(proxy, "/usage") > 60_000

    def test_a_project_header_starts_a_session(self, proxy: ProxyDaemon) -> None:
        assert proxy.post(x_context_project="/by-header").status == 200
        with HttpAgent(proxy.port) as agent:
            # The session is created in the background, while the answer is read.
            until(lambda: agent.call("context_branch_status", project_path="/by-header")["session_id"] is not None)

    def test_an_error_response_is_not_recorded(self, proxy: ProxyDaemon) -> None:
        session_id, branch_id = session_with_branch(proxy, "/error")
        before = total_tokens(proxy, "/error")
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", status="400 Bad Request")
        assert proxy.post(history(branch_id, session_id)).status == 400
        assert (recorded_requests(proxy, session_id), total_tokens(proxy, "/error")) == (0, before)

    @pytest.mark.parametrize(
        "headers",
        [
            {"x_context_project": "relative"},
            {"x_context_project": "/\xff"},
            {"x_context_project": "/p", "x_context_session": ""},
        ],
    )
    def test_invalid_session_headers_are_logged_and_the_request_succeeds(
        self, proxy: ProxyDaemon, headers: dict[str, str]
    ) -> None:
        assert proxy.post(None, MESSAGES, **headers).status == 200
        warnings = [line for line in proxy.log() if line["event"] == "proxy.receipt_lost"]
        assert {(line["level"], line["code"]) for line in warnings} == {("warning", "invalid_argument")}


class TestLedger:
    def test_tokens_without_folding_exclude_our_tools(self, proxy: ProxyDaemon) -> None:
        session_id, branch_id = session_with_branch(proxy, "/ledger")
        body = {**history(branch_id, session_id), "tools": [OUR_TOOL, OTHER_TOOL]}
        tokens = len(json.dumps(body)) // 4
        calls = [{"type": "tool_use", "id": "c", "name": OUR_TOOL["name"], "input": {"message": "done"}}]
        response = {"content": calls, "usage": {"input_tokens": tokens, "output_tokens": 11}}
        proxy.upstream.script = lambda _, wire: wire.answer(
            json.dumps(response).encode(), "Content-Type: application/json"
        )
        assert proxy.post(body).status == 200
        response["content"] = [{"type": "text", "text": "so"}]
        assert proxy.post(body).status == 200
        ledger = savings(proxy, session_id)
        assert (ledger["requests"], ledger["extra_requests"], ledger["output_tokens_without"]) == (2, 1, 11)
        ours = len(json.dumps(OUR_TOOL)) // 4
        assert ledger["tokens_without"] < ledger["tokens_sent"] - tokens - ours // 2

    def test_a_request_begins_the_session_and_a_hook_names_its_project_later(self, proxy: ProxyDaemon) -> None:
        proxy.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":700,"output_tokens":11}}', "Content-Type: application/json"
        )
        host = {"x_claude_code_session_id": "host-1"}
        assert proxy.post(**host).status == 200
        begun = conversation(proxy, "host-1", requests=1)
        assert begun["project_path"] == ""
        report_prompt(proxy, "host-1", "/by-hook")
        assert proxy.post(**host).status == 200
        later = conversation(proxy, "host-1", requests=2)
        assert (later["session_id"], later["project_path"]) == (begun["session_id"], "/by-hook")

    def test_a_subagent_has_a_session_of_its_own(self, proxy: ProxyDaemon) -> None:
        proxy.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        session_id, branch_id = session_with_branch(proxy, "/parent")
        tokens = total_tokens(proxy, "/parent")
        agent = {"x_claude_code_session_id": "host-2", "x_claude_code_agent_id": "agent-7"}
        report_prompt(proxy, "host-2", "/parent")
        assert proxy.post(**agent).status == 200
        assert proxy.post(history(branch_id, session_id), **agent).status == 200
        conversation(proxy, "host-2", agent="agent-7", requests=2)
        assert recorded_requests(proxy, session_id) == 0
        assert total_tokens(proxy, "/parent") < tokens + 1_000


def test_a_header_that_asks_for_a_million_tokens_sets_the_limit(proxy: ProxyDaemon) -> None:
    proxy.upstream.script = lambda _, wire: wire.answer(
        b'{"usage":{"input_tokens":700,"output_tokens":11}}', "Content-Type: application/json"
    )
    sonnet = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "hello"}]}
    for beta, model, limit in (
        ("other", "claude-sonnet-4-5", 200_000),
        ("other,context-1m-2025-08-07", "claude-sonnet-4-5[1m]", 1_000_000),
    ):
        assert proxy.post(sonnet, x_claude_code_session_id=beta, anthropic_beta=beta).status == 200
        row = conversation(proxy, beta, requests=1)
        assert (row["model"], row["context_limit"]) == (model, limit - row["host_tokens"])
        assert row["savings"]["money"], "the prices are those of the model"


RUN = "run_0123456789abcdef"
FORMATS = {
    "anthropic": (MESSAGES, "messages", "mcp__contextfold__context_fold"),
    "openai-chat": ("/proxy/openai/v1/chat/completions", "messages", "contextfold_context_fold"),
    "openai-responses": ("/proxy/openai/v1/responses", "input", "context_fold"),
}


class TestCallsOfOurTools:
    """A call over MCP belongs to the conversation in whose response the proxy saw it."""

    @pytest.mark.parametrize("api", FORMATS)
    def test_a_first_call_of_context_fold_folds_the_conversation_that_makes_it(
        self, proxy: ProxyDaemon, api: str
    ) -> None:
        path, member, tool = FORMATS[api]
        sessions: list[Any] = []
        for words in (f"{api} one", f"{api} two"):
            prompt = [{"role": "user", "content": words}]
            work = [{"role": "assistant", "content": "It was long. " * 50}]
            assert proxy.post({"model": "m", member: prompt}, path).status == 200
            reply = answer_with_call(api, tool, {"message": f"done with {words}"})
            proxy.upstream.script = partial(answer_json, reply)
            assert proxy.post({"model": "m", member: [*prompt, *work]}, path).status == 200
            sessions.append(words)
        with HttpAgent(proxy.port) as agent:
            # The calls come in another order than the responses.
            answers = [agent.call("context_fold", message=f"done with {words}") for words in reversed(sessions)]
        assert len({answer["session_id"] for answer in answers}) == 2
        assert {answer["summary"]["operations_count"] for answer in answers} == {1}

    def test_a_call_that_nothing_identifies_belongs_to_the_latest_conversation_of_its_run(
        self, proxy: ProxyDaemon
    ) -> None:
        announced = json.dumps({"project_path": "/in-the-run", "program": "codex"}).encode()
        assert proxy.request("PUT", f"/v1/runs/{RUN}", announced, **JSON).status == 200
        work = [{"role": "user", "content": "in a run"}, {"role": "assistant", "content": "So."}]
        for messages in (work[:1], work):
            assert proxy.post({"model": "m", "messages": messages}, f"/run/{RUN}{MESSAGES}").status == 200
        with HttpAgent(proxy.port, path=f"/run/{RUN}/mcp") as agent:
            folded = agent.call("context_fold", message="done")
        row = proxy.request("GET", f"/v1/sessions/{folded['session_id']}").json["session"]
        assert (row["project_path"], row["folded_branches"]) == ("/in-the-run", 1)

    def test_conversations_with_the_same_first_words_are_apart_and_go_on(self, proxy: ProxyDaemon) -> None:
        opening = [{"role": "user", "content": "the same words"}]
        first, second = (
            [*opening, {"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]
            for text in ("Yes.", "No.")
        )
        for messages in (opening, first, opening, second, first, second):
            assert proxy.post({"model": "m", "messages": messages}, x_context_project="/same-words").status == 200
        rows = [row for row in live_sessions(proxy) if row["project_path"] == "/same-words"]
        assert sorted(row["savings"]["requests"] for row in rows) == [3, 3]


class TestRuns:
    def test_a_run_has_the_sums_of_its_own_requests(self, proxy: ProxyDaemon) -> None:
        first, second = "run_00000000000000a1", "run_00000000000000a2"
        proxy.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":700,"output_tokens":11}}', "Content-Type: application/json"
        )
        host = {"x_claude_code_session_id": "in-two-runs"}
        for run in (first, second, second):
            announced = json.dumps({"project_path": "/runs", "program": "claude"}).encode()
            assert proxy.request("PUT", f"/v1/runs/{run}", announced, **JSON).status == 200
            assert proxy.post(None, f"/run/{run}{MESSAGES}", **host).status == 200
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", status="429 Too Many Requests")
        assert proxy.post(None, f"/run/{second}{MESSAGES}", **host).status == 429
        sums = [proxy.request("GET", f"/v1/runs/{run}").json for run in (first, second)]
        figures = ("conversations", "requests", "failed_requests", "tokens_sent", "outcome")
        assert [tuple(each[name] for name in figures) for each in sums] == [
            (1, 1, 0, 700, "no_saving"),
            (1, 2, 1, 1400, "no_saving"),
        ]
        assert sums[0]["last_conversation"]["host_session_id"] == "in-two-runs"
        assert sums[0]["project_path"] == "/runs"
        assert sums[1]["reasons"]

    def test_a_conversation_that_begins_after_a_restart_is_in_the_project_of_its_run(self, proxy: ProxyDaemon) -> None:
        run = "run_00000000000000c1"
        announced = json.dumps({"project_path": "/restarted", "program": "codex"}).encode()
        assert proxy.request("PUT", f"/v1/runs/{run}", announced, **JSON).status == 200
        for words in ("before the restart", "after the restart"):
            body = {"model": "m", "messages": [{"role": "user", "content": words}]}
            assert proxy.post(body, f"/run/{run}{MESSAGES}").status == 200
            assert proxy.request("GET", f"/v1/runs/{run}").json["project_path"] == "/restarted"
            proxy.daemon.stop()
            proxy.daemon.start()
        assert [row["project_path"] for row in live_sessions(proxy)].count("/restarted") == 2

    def test_a_run_without_answered_requests_says_so(self, proxy: ProxyDaemon) -> None:
        run = "run_00000000000000b1"
        assert proxy.request("GET", f"/v1/runs/{run}").status == 404
        announced = json.dumps({"project_path": "/empty", "program": "claude"}).encode()
        assert proxy.request("PUT", f"/v1/runs/{run}", announced, **JSON).status == 200
        assert proxy.request("GET", f"/v1/runs/{run}").json["outcome"] == "no_requests"
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", status="529 Overloaded")
        assert proxy.post(None, f"/run/{run}{MESSAGES}").status == 529
        assert proxy.request("GET", f"/v1/runs/{run}").json["outcome"] == "failed"

    def test_an_invalid_run_is_refused(self, proxy: ProxyDaemon) -> None:
        assert proxy.post(None, f"/run/other{MESSAGES}").status == 404
        for name, body in (("run_1", {"project_path": "/p", "program": "x"}), (RUN, {"project_path": "p"})):
            reply = proxy.request("PUT", f"/v1/runs/{name}", json.dumps(body).encode(), **JSON)
            assert (reply.status, reply.json["error"]["data"]["kind"]) == (400, "invalid_argument")


class TestTokens:
    @pytest.fixture
    def guarded(self, tmp_path: Path) -> Iterator[tuple[ProxyDaemon, str, str]]:
        alice, bob = (add_token(str(tmp_path / "tokens"), owner) for owner in ("alice", "bob"))
        with closing(ProxyDaemon(tmp_path / "daemon", "--token-file", str(tmp_path / "tokens"))) as proxy:
            yield proxy, alice, bob

    def test_our_token_has_a_header_of_its_own_and_is_not_forwarded(
        self, guarded: tuple[ProxyDaemon, str, str]
    ) -> None:
        proxy, alice, _ = guarded
        for headers in ({}, {"authorization": f"Bearer {alice}"}, {"x_context_token": "wrong"}):
            reply = proxy.post(None, MESSAGES, **headers)
            assert error_of(reply) == (401, "unauthorized")
            assert "X-Context-Token" in reply.json["error"]["message"]
            assert "www-authenticate" not in reply.headers
        assert proxy.upstream.requests.empty()
        assert proxy.post(x_context_token=alice, authorization="Bearer provider").status == 200
        request = proxy.upstream.next()
        assert (request.header("authorization"), request.header("x-context-token")) == (["Bearer provider"], [])
        assert proxy.request("GET", "/metrics", x_context_token=alice).status == 401

    def test_a_request_changes_no_session_of_another_owner(self, guarded: tuple[ProxyDaemon, str, str]) -> None:
        proxy, alice, bob = guarded
        proxy.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        session_id, branch_id = session_with_branch(proxy, "/p", authorization=f"Bearer {alice}")
        before = total_tokens(proxy, "/p", authorization=f"Bearer {alice}")
        assert proxy.post(history(branch_id, session_id), x_context_token=bob).status == 200
        assert recorded_requests(proxy, session_id, authorization=f"Bearer {alice}") == 0
        assert total_tokens(proxy, "/p", authorization=f"Bearer {alice}") == before
        assert proxy.post(history(branch_id, session_id), x_context_token=alice).status == 200
        assert recorded_requests(proxy, session_id, authorization=f"Bearer {alice}") > 0


def test_a_providers_key_is_in_no_log_store_or_metric(tmp_path: Path) -> None:
    with closing(ProxyDaemon(tmp_path)) as proxy:
        session_id, branch_id = session_with_branch(proxy, "/p")
        for headers in ({"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert proxy.post(history(branch_id, session_id), MESSAGES, **headers).status == 200
            proxy.upstream.next()
            proxy.upstream.script = lambda _, wire: wire.socket.shutdown(socket.SHUT_RDWR)
            assert proxy.post(None, MESSAGES, **headers).status == 502
            assert KEY in str(proxy.upstream.next().headers)
            proxy.upstream.script = answer_ok
            assert proxy.request("GET", "/proxy/anthropic/../x", None, **headers).status == 400
        page = proxy.request("GET", "/metrics").body.decode()
        proxy.daemon.stop()
        with closing(sqlite3.connect(proxy.daemon.store)) as store:
            # The contents of virtual tables are in other tables.
            tables = store.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'")
            stored = "\n".join(str(row) for (name,) in tables for row in store.execute(f"SELECT * FROM {name}"))
        for text in (page, stored, proxy.daemon.log.read_text()):
            assert len(text) > 100
            assert KEY not in text


def history(branch_id: str, session_id: str) -> dict[str, Any]:
    """A conversation that opened a branch, called a tool in it and returned."""

    def tool_call(number: int, tool: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": {}}
        return {"role": "assistant", "content": [call]}

    def result(number: int, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}]}

    ids = json.dumps({"branch_id": branch_id, "session_id": session_id})
    return {
        "model": "m-1",
        "messages": [
            {"role": "user", "content": "do it"},
            tool_call(1, "mcp__contextfold__context_branch"),
            result(1, ids),
            tool_call(2, "read_file"),
            result(2, "a long text " * 100),
            tool_call(3, "mcp__contextfold__context_return"),
            result(3, ids),
        ],
    }


def session_with_branch(proxy: ProxyDaemon, project: str, **headers: str) -> tuple[str, str]:
    """Opens and returns a branch in a new session. Returns the ids of session and branch."""
    with HttpAgent(proxy.port, **headers) as agent:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        agent.call("context_return", message="done", project_path=project)
    return branch["session_id"], branch["branch_id"]


def total_tokens(proxy: ProxyDaemon, project: str, **headers: str) -> int:
    with HttpAgent(proxy.port, **headers) as agent:
        agent.call("context_branch_status", project_path=project)
        return int(agent.state["total_tokens"])


OUR_TOOL = {"name": "mcp__contextfold__context_fold", "description": "folds " * 400, "input_schema": {"type": "object"}}
OTHER_TOOL = {"name": "read_file", "description": "reads", "input_schema": {"type": "object"}}


def report_prompt(proxy: ProxyDaemon, conversation: str, folder: str) -> None:
    """Sends a hook report: the user has written a prompt."""
    event = {"hook_event_name": "UserPromptSubmit", "session_id": conversation, "cwd": folder, "prompt": "hello"}
    assert proxy.request("POST", "/hooks/claude-code", json.dumps(event).encode(), **JSON).status == 200


def live_sessions(proxy: ProxyDaemon) -> list[Any]:
    rows: list[Any] = proxy.request("GET", "/v1/sessions?limit=100").json["sessions"]
    return rows


def conversation(proxy: ProxyDaemon, host_id: str, *, requests: int, agent: str = "") -> Any:
    """The session of a host's conversation, once it has recorded this many requests."""

    def rows() -> list[Any]:
        named = [row for row in live_sessions(proxy) if (row["conversation"], row["agent"] or "") == (host_id, agent)]
        return [row for row in named if row["savings"]["requests"] == requests]

    until(lambda: len(rows()) == 1)
    return rows()[0]


def answer_json(body: bytes, _request: RawRequest, wire: Wire) -> None:
    wire.answer(body, "Content-Type: application/json")


def answer_with_call(api: str, tool: str, arguments: dict[str, str]) -> bytes:
    if api == "anthropic":
        return json.dumps({"content": [{"type": "tool_use", "id": "c", "name": tool, "input": arguments}]}).encode()
    call = {"name": tool, "arguments": json.dumps(arguments)}
    if api == "openai-responses":
        return json.dumps({"output": [{"type": "function_call", "call_id": "c", **call}]}).encode()
    calls = [{"id": "c", "type": "function", "function": call}]
    return json.dumps({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}).encode()


def savings(proxy: ProxyDaemon, session_id: str) -> Any:
    return proxy.request("GET", f"/v1/sessions/{session_id}/savings").json


def recorded_requests(proxy: ProxyDaemon, session_id: str, **headers: str) -> int:
    """How many requests the session has recorded."""
    reply = proxy.request("GET", f"/v1/sessions/{session_id}/savings", None, **headers)
    assert reply.status == 200, reply.body
    return int(reply.json["requests"])
