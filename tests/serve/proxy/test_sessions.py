"""The proxy of the daemon and the sessions: what is folded, which session records it, and what stays secret."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from contextfold.serve.http.bearer_tokens import add
from contextfold.serve.proxy.forwarding import FOLDED_MAX_BYTES
from tests.serve.proxy.proxying import JSON, KEY, MESSAGES, Place, answer_on, error_of, place, running
from tests.serve.proxy.raw_upstream import WAIT_S, fine
from tests.support.clauses import covers
from tests.support.daemon import HttpAgent
from tests.support.waiting import until

__all__ = ["place", "running"]


class TestFolding:
    def test_a_body_without_anything_to_fold_is_the_very_same(self, place: Place) -> None:
        body = b' {"model" : "m", "messages":[ {"role":"user","content":"\\u00e4 \xc3\xa4"} ] , "x":1.50e3 }\n'
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert place.upstream.next().body == body
        assert json.loads(reply.headers["x-context-fold"])["reason"] is None

    @covers("proxy.md#receipt")
    def test_a_returned_branch_is_left_out_and_the_receipt_says_what_that_was(self, place: Place) -> None:
        before = place.figures("contextfold_proxy_requests_total")
        body = history("br_1", "sess_unknown")
        reply = place.post(body)
        sent = place.upstream.next().json
        assert sent["messages"] == body["messages"][:3] + body["messages"][5:]
        told = json.loads(reply.headers["x-context-fold"])
        assert (told["turns_dropped"], told["first_changed"], told["reason"]) == (1, 3, None)
        assert told["tokens_after"] < told["tokens_before"]
        folded = '{api="anthropic",outcome="folded"}'
        assert place.figures("contextfold_proxy_requests_total")[folded] == before[folded] + 1

    def test_what_arrives_in_chunks_is_folded_too(self, place: Place) -> None:
        body = json.dumps(history("br_1", "sess_unknown")).encode()
        with place.connect() as client:
            head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            client.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert answer_on(client).status == 200
        asked = place.upstream.next()
        assert len(asked.json["messages"]) == 5
        assert asked.header("content-length") == [str(len(asked.body))]
        assert asked.header("transfer-encoding") == []

    def test_what_is_too_large_passes_as_it_came(self, place: Place) -> None:
        body = json.dumps({**history("br_1", "s"), "filling": "x" * FOLDED_MAX_BYTES}).encode()
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"] == "too_large"
        assert place.upstream.next().body == body

    def test_what_is_too_large_and_does_not_say_so_passes_as_it_came(self, place: Place) -> None:
        body = json.dumps({**history("br_1", "s"), "filling": "x" * FOLDED_MAX_BYTES}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=WAIT_S)
        with closing(connection):
            parts = (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))
            connection.request("POST", MESSAGES, parts, JSON, encode_chunked=True)
            answer = connection.getresponse()
        assert json.loads(str(answer.getheader("x-context-fold")))["reason"] == "too_large"
        asked = place.upstream.next()
        assert (asked.body, asked.header("transfer-encoding")) == (body, ["chunked"])

    def test_what_is_encoded_passes_as_it_came(self, place: Place) -> None:
        body = gzip.compress(json.dumps(history("br_1", "s")).encode())
        reply = place.ask("POST", MESSAGES, body, content_encoding="gzip", **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"] == "encoded"
        asked = place.upstream.next()
        assert (asked.body, asked.header("content-encoding")) == (body, ["gzip"])

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"messages":1}', b'{"messages":[],"messages":[]}'])
    def test_what_cannot_be_read_passes_as_it_came(self, place: Place, body: bytes) -> None:
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"]
        assert place.upstream.next().body == body


class TestSessions:
    @covers("proxy.md#ledger")
    def test_the_session_that_the_history_names_is_told_what_the_provider_counted(self, place: Place) -> None:
        session_id, branch_id = branched(place, "/told")
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        assert place.post(history(branch_id, session_id)).status == 200
        assert requests(place, session_id) == 1
        assert total_tokens(place, "/told") > 60_000

    def test_headers_name_a_session_that_begins_with_the_request(self, place: Place) -> None:
        assert place.post(x_context_project="/by-header").status == 200
        with closing(HttpAgent(place.port)) as agent:
            # It is looked for while the answer is read.
            until(lambda: agent.call("context_branch_status", project_path="/by-header")["session_id"] is not None)

    def test_an_answer_that_is_an_error_is_told_to_nobody(self, place: Place) -> None:
        session_id, branch_id = branched(place, "/error")
        before = total_tokens(place, "/error")
        place.upstream.script = lambda _, wire: wire.answer(b"{}", status="400 Bad Request")
        assert place.post(history(branch_id, session_id)).status == 400
        assert (requests(place, session_id), total_tokens(place, "/error")) == (0, before)

    @pytest.mark.parametrize(
        "headers",
        [
            {"x_context_project": "relative"},
            {"x_context_project": "/\xff"},
            {"x_context_project": "/p", "x_context_session": ""},
        ],
    )
    def test_a_session_that_cannot_be_meant_breaks_no_answer(self, place: Place, headers: dict[str, str]) -> None:
        assert place.post(None, MESSAGES, **headers).status == 200
        told = [line for line in place.log() if line["event"] == "proxy.receipt_lost"]
        assert {(line["level"], line["code"]) for line in told} == {("warning", "invalid_argument")}


class TestLedger:
    def test_our_tools_are_not_in_what_a_run_without_us_would_have_sent(self, place: Place) -> None:
        session_id, branch_id = branched(place, "/ledger")
        body = {**history(branch_id, session_id), "tools": [OUR_TOOL, OTHER_TOOL]}
        tokens = len(json.dumps(body)) // 4
        called = [{"type": "tool_use", "id": "c", "name": OUR_TOOL["name"], "input": {"message": "done"}}]
        answered = {"content": called, "usage": {"input_tokens": tokens, "output_tokens": 11}}
        place.upstream.script = lambda _, wire: wire.answer(
            json.dumps(answered).encode(), "Content-Type: application/json"
        )
        assert place.post(body).status == 200
        answered["content"] = [{"type": "text", "text": "so"}]
        assert place.post(body).status == 200
        ledger = savings(place, session_id)
        assert (ledger["requests"], ledger["extra_requests"], ledger["output_tokens_without"]) == (2, 1, 11)
        ours = len(json.dumps(OUR_TOOL)) // 4
        assert ledger["tokens_without"] < ledger["tokens_sent"] - tokens - ours // 2

    def test_a_hosts_session_has_all_requests_from_the_first_on(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":700,"output_tokens":11}}', "Content-Type: application/json"
        )
        host = {"x_claude_code_session_id": "host-1"}
        before = total_requests(place)
        # Nothing says yet which project this is in.
        assert place.post(**host).status == 200
        assert total_requests(place) == before
        hooked(place, "host-1", "/by-hook")
        assert place.post(**host).status == 200
        until(lambda: total_requests(place) == before + 2)

    def test_a_subagent_has_a_session_of_its_own(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        session_id, branch_id = branched(place, "/parent")
        before, tokens = total_requests(place), total_tokens(place, "/parent")
        agent = {"x_claude_code_session_id": "host-2", "x_claude_code_agent_id": "agent-7"}
        hooked(place, "host-2", "/parent")
        assert place.post(**agent).status == 200
        assert place.post(history(branch_id, session_id), **agent).status == 200
        until(lambda: total_requests(place) == before + 2)
        assert requests(place, session_id) == 0
        assert total_tokens(place, "/parent") < tokens + 1_000


class TestTokens:
    @pytest.fixture
    def guarded(self, tmp_path: Path) -> Iterator[tuple[Place, str, str]]:
        alice, bob = (add(str(tmp_path / "tokens"), owner) for owner in ("alice", "bob"))
        with closing(Place(tmp_path / "daemon", "--token-file", str(tmp_path / "tokens"))) as place:
            yield place, alice, bob

    def test_the_token_comes_beside_the_providers_key_and_stays_here(self, guarded: tuple[Place, str, str]) -> None:
        place, alice, _ = guarded
        for headers in ({}, {"authorization": f"Bearer {alice}"}, {"x_context_token": "wrong"}):
            reply = place.post(None, MESSAGES, **headers)
            assert error_of(reply) == (401, "unauthorized")
            assert "X-Context-Token" in reply.json["error"]["message"]
            assert "www-authenticate" not in reply.headers
        assert place.upstream.asked.empty()
        assert place.post(x_context_token=alice, authorization="Bearer provider").status == 200
        asked = place.upstream.next()
        assert (asked.header("authorization"), asked.header("x-context-token")) == (["Bearer provider"], [])
        assert place.ask("GET", "/metrics", x_context_token=alice).status == 401

    def test_a_session_of_somebody_else_is_not_touched(self, guarded: tuple[Place, str, str]) -> None:
        place, alice, bob = guarded
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        session_id, branch_id = branched(place, "/p", authorization=f"Bearer {alice}")
        before = total_tokens(place, "/p", authorization=f"Bearer {alice}")
        assert place.post(history(branch_id, session_id), x_context_token=bob).status == 200
        assert requests(place, session_id, authorization=f"Bearer {alice}") == 0
        assert total_tokens(place, "/p", authorization=f"Bearer {alice}") == before
        assert place.post(history(branch_id, session_id), x_context_token=alice).status == 200
        assert requests(place, session_id, authorization=f"Bearer {alice}") > 0


@covers("proxy.md#credentials")
def test_a_key_is_in_no_log_store_or_figure(tmp_path: Path) -> None:
    with closing(Place(tmp_path)) as place:
        session_id, branch_id = branched(place, "/p")
        for headers in ({"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert place.post(history(branch_id, session_id), MESSAGES, **headers).status == 200
            place.upstream.next()
            place.upstream.script = lambda _, wire: wire.socket.shutdown(socket.SHUT_RDWR)
            assert place.post(None, MESSAGES, **headers).status == 502
            assert KEY in str(place.upstream.next().headers)
            place.upstream.script = fine
            assert place.ask("GET", "/proxy/anthropic/../x", None, **headers).status == 400
        page = place.ask("GET", "/metrics").body.decode()
        place.daemon.stop()
        with closing(sqlite3.connect(place.daemon.store)) as store:
            # Virtual tables keep what they have in others.
            tables = store.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'")
            stored = "\n".join(str(row) for (name,) in tables for row in store.execute(f"SELECT * FROM {name}"))
        for text in (page, stored, place.daemon.log.read_text()):
            assert len(text) > 100
            assert KEY not in text


# What agents send.


def history(branch_id: str, session_id: str) -> dict[str, Any]:
    """A conversation that went into a branch, did something there, and came back."""

    def used(number: int, tool: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": {}}
        return {"role": "assistant", "content": [call]}

    def result(number: int, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}]}

    named = json.dumps({"branch_id": branch_id, "session_id": session_id})
    return {
        "model": "m-1",
        "messages": [
            {"role": "user", "content": "do it"},
            used(1, "mcp__contextfold__context_branch"),
            result(1, named),
            used(2, "read_file"),
            result(2, "a long text " * 100),
            used(3, "mcp__contextfold__context_return"),
            result(3, named),
        ],
    }


def branched(place: Place, project: str, **headers: str) -> tuple[str, str]:
    """A session with a branch that was returned from: its id, and the branch's."""
    with closing(HttpAgent(place.port, **headers)) as agent:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        agent.call("context_return", message="done", project_path=project)
    return branch["session_id"], branch["branch_id"]


def total_tokens(place: Place, project: str, **headers: str) -> int:
    with closing(HttpAgent(place.port, **headers)) as agent:
        agent.call("context_branch_status", project_path=project)
        return int(agent.state["total_tokens"])


OUR_TOOL = {"name": "mcp__contextfold__context_fold", "description": "folds " * 400, "input_schema": {"type": "object"}}
OTHER_TOOL = {"name": "read_file", "description": "reads", "input_schema": {"type": "object"}}


def hooked(place: Place, conversation: str, folder: str) -> None:
    """The host reports that its user wrote something."""
    event = {"hook_event_name": "UserPromptSubmit", "session_id": conversation, "cwd": folder, "prompt": "hello"}
    assert place.ask("POST", "/hooks/claude-code", json.dumps(event).encode(), **JSON).status == 200


def total_requests(place: Place) -> int:
    return int(place.ask("GET", "/v1/savings").json["total"]["requests"])


def savings(place: Place, session_id: str) -> Any:
    return place.ask("GET", f"/v1/sessions/{session_id}/savings").json


def requests(place: Place, session_id: str, **headers: str) -> int:
    """How many requests the session was told of."""
    reply = place.ask("GET", f"/v1/sessions/{session_id}/savings", None, **headers)
    assert reply.status == 200, reply.body
    return int(reply.json["requests"])
