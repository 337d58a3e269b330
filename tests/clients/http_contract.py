"""Tests that every MCP client must pass with the daemon over HTTP: all tools, the life of a branch, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.contract import (
    GUIDE,
    RELEVANCE_INPUTS,
    RESOLVE,
    SCHEMAS,
    Call,
    Client,
    ListTools,
    OtherResult,
    Outcome,
    Refusal,
    ToolAnswer,
    assert_relevance_inputs,
)
from tests.clients.servers import Endpoint, Server

STATE, COUNTER = "contextfold/state", "contextfold/counter"

_PROJECT = {"type": "string", "description": "Absolute path to project directory"}
SEED_SCHEMAS = {
    "context_branch": {
        "type": "object",
        "properties": {
            "description": {"type": "string", "description": "Brief summary of subtask (max 200 chars)"},
            "prompt": {"type": "string", "description": "Detailed instruction for branch execution"},
            "project_path": _PROJECT,
        },
        "required": ["description", "prompt", "project_path"],
    },
    "context_return": {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "Summary of branch outcome"},
            "project_path": _PROJECT,
            "branch_id": {"type": "string", "description": "Branch to fold (defaults to current active branch)"},
        },
        "required": ["message", "project_path"],
    },
}
# For each tool, these are its arguments, then the required ones.
FOLD_INPUTS = {
    "context_branch": (["description", "prompt", "project_path"], ["description", "prompt", "project_path"]),
    "context_return": (["message", "project_path", "branch_id"], ["message", "project_path"]),
    "context_fold": (["message", "project_path"], ["message"]),
    "context_branch_status": (["project_path"], ["project_path"]),
    "context_list_branches": (["project_path"], ["project_path"]),
    "context_rollback": (["project_path", "branch_id", "restore_state"], ["project_path", "branch_id"]),
    "context_record": (["project_path", "type", "content", "tokens", "failed"], ["project_path", "type"]),
    "context_expand": (["project_path", "branch_id", "budget", "cursor"], ["branch_id"]),
    "context_recall": (["query", "project_path", "budget", "since", "format"], ["query"]),
}

RELATIVE = Refusal(-32602, "project_path must be absolute, like /home/me/project", {"field": "project_path"})
TOO_DEEP = Refusal(
    -32004, "Limit reached: branch depth is 1; return from a branch first", {"limit": "branch_depth", "value": 1}
)
NOT_ACTIVE = Refusal(-32003, "Cannot fold branch: branch is not active", {"branch_id": None, "current_status": None})
CONTEXT_FULL = Refusal(
    -32001,
    "Context limit exceeded: 201/100 tokens",
    {"current_tokens": 201, "context_limit": 100, "kind": "context_limit"},
)


def branch(project: str) -> Call:
    return Call("context_branch", {"description": "Look", "prompt": "Go.", "project_path": project})


def fill(project: str) -> Call:
    return Call("context_record", {"project_path": project, "type": "tool_call", "tokens": 200})


def read(outcome: Outcome) -> tuple[Any, Any]:
    """The answer of a fold tool, and the state in its `_meta`."""
    assert isinstance(outcome, ToolAnswer), outcome
    assert not outcome.is_error
    assert list(outcome.meta) == [STATE, COUNTER]
    assert outcome.meta[COUNTER] == "v0"
    return json.loads(outcome.text), outcome.meta[STATE]


def assert_same_refusal(client: Client, result: Outcome, expected: Refusal) -> None:
    """Checks a refusal as the client shows it. The client may put text of its own before the message."""
    assert isinstance(result, Refusal), result
    assert result.message.endswith(expected.message)
    if client.shows_error_codes:
        assert (result.code, result.data) == (expected.code, expected.data)


def without_suggestion(refusal: Outcome) -> Outcome:
    """Removes the suggestion, which depends on the agent's tools."""
    if not isinstance(refusal, Refusal) or not isinstance(refusal.data, dict):
        return refusal
    assert refusal.data["suggestion"]
    return refusal._replace(data={key: value for key, value in refusal.data.items() if key != "suggestion"})


class OverHttp:
    """Tests of the daemon that all tests share."""

    @pytest.fixture
    def server(self, daemon: Endpoint) -> Server:
        return daemon

    def test_the_client_lists_all_tools_in_order_with_the_seeds_schemas(self, client: Client, server: Server) -> None:
        [result] = client(server, ListTools())
        assert isinstance(result, OtherResult)
        assert all(tool["description"] and tool["annotations"] for tool in result.value["tools"])
        schemas = {tool["name"]: tool["inputSchema"] for tool in result.value["tools"]}
        assert list(schemas) == [*SCHEMAS, *RELEVANCE_INPUTS, *FOLD_INPUTS]
        assert schemas == schemas | SCHEMAS | SEED_SCHEMAS
        assert_relevance_inputs(schemas)
        for name, (names, required) in FOLD_INPUTS.items():
            assert (list(schemas[name]["properties"]), schemas[name]["required"]) == (names, required)

    def test_a_branch_can_be_opened_folded_expanded_and_rolled_back_to(
        self, client: Client, server: Server, project: str
    ) -> None:
        """Two connections are used, because the session belongs to the project and not to the connection."""
        [opened] = client(server, branch(project))
        branch_result, state = read(opened)
        branch_id, session_id = branch_result["branch_id"], branch_result["session_id"]
        assert state == {
            "session_id": session_id,
            "active_branch_id": branch_id,
            "branch_depth": 1,
            "total_tokens": 1,
            "folded_tokens": 0,
            "context_usage": 0,
        }
        outcomes = client(
            server,
            Call("context_record", {"project_path": project, "type": "tool_call", "content": "é" * 200}),
            Call("context_branch_status", {"project_path": project}),
            Call("context_list_branches", {"project_path": project}),
            Call("context_return", {"project_path": project, "message": "Found"}),
            Call("context_expand", {"project_path": project, "branch_id": branch_id}),
            Call("context_rollback", {"project_path": project, "branch_id": branch_id}),
        )
        answers, states = zip(*map(read, outcomes), strict=True)
        recorded, status, listed, folded, expanded, reopened = answers
        assert (recorded["branch_id"], recorded["tokens"]) == (branch_id, 100)
        assert status["branch_path"] == ["main", branch_id]
        assert status["token_breakdown"] == {"main_thread": 0, branch_id: 101, "total": 101, "folded_total": 0}
        assert [(row["id"], row["status"]) for row in listed["branches"]] == [(branch_id, "active")]
        assert (folded["summary"]["tokens_folded"], folded["summary"]["tokens_saved"]) == (101, 99)
        assert [entry["text"] for entry in expanded["entries"]] == ["Go.", "é" * 200, "Found"]
        assert (reopened["rolled_back_to"], reopened["tokens_recovered"]) == (branch_id, 1)
        assert {state["session_id"] for state in states} == {session_id}
        assert [(state["active_branch_id"], state["total_tokens"], state["folded_tokens"]) for state in states] == [
            (branch_id, 101, 0)
        ] * 3 + [(None, 2, 101)] * 2 + [(branch_id, 1, 0)]

    def test_every_refusal_has_its_code_message_and_data(
        self, client: Client, guarded_daemon: Endpoint, project: str
    ) -> None:
        message = {"project_path": project, "message": "Found"}
        relative, inactive, opened, unknown, too_deep, filled, full, after = client(
            guarded_daemon,
            Call("context_branch_status", {"project_path": "relative"}),
            Call("context_return", message),
            branch(project),
            Call("context_return", message | {"branch_id": "br_x"}),
            branch(project),
            fill(f"{project}/full"),
            branch(f"{project}/full"),
            Call("context_branch_status", {"project_path": project}),
        )
        session_id = read(opened)[0]["session_id"]
        assert_same_refusal(client, relative, RELATIVE)
        assert_same_refusal(client, inactive, NOT_ACTIVE)
        not_found = Refusal(-32602, "Branch not found: br_x", {"branch_id": "br_x", "session_id": session_id})
        assert_same_refusal(client, unknown, not_found)
        assert_same_refusal(client, too_deep, TOO_DEEP)
        assert read(filled)[1]["total_tokens"] == 200
        assert_same_refusal(client, without_suggestion(full), CONTEXT_FULL)
        assert read(after)[0]["branch_depth"] == 1

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guessed"}], ids=["no token", "a guess"])
    def test_a_client_without_a_valid_token_is_unauthorized(
        self, client: Client, guarded_daemon: Endpoint, headers: dict[str, str]
    ) -> None:
        [refusal] = client(Endpoint(guarded_daemon.url, headers), ListTools())
        assert isinstance(refusal, Refusal)
        assert refusal.code == client.unauthorized


class PersistentOverHttp(OverHttp):
    """Tests for clients that show the codes of errors and accept a timeout."""

    def test_a_full_context_differs_from_a_timeout(
        self, client: Client, guarded_daemon: Endpoint, project: str
    ) -> None:
        """Some clients use the code -32001 for their own timeouts too; the data shows which it is.

        A megabyte never arrives within a millisecond, so that call always times out.
        """
        call_with_short_timeout = Call(
            RESOLVE, GUIDE | {"cache": "big", "query": "page", "budget": 10_000_000}, timeout_ms=1
        )
        _, full, timed_out = client(guarded_daemon, fill(project), branch(project), call_with_short_timeout)
        assert isinstance(full, Refusal)
        assert isinstance(timed_out, Refusal)
        assert full.data["kind"] == "context_limit"
        assert "kind" not in (timed_out.data or {})
        assert "timed out" in timed_out.message
        assert "timed out" not in full.message
