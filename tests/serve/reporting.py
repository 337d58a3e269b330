"""A host whose hooks report to a real daemon, and a reader of what the daemon has recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest

from contextfold.fold.service.inbox import ALL_SETTLED_TIMEOUT_S
from tests.support.daemon import Daemon, Http, HttpAgent, Reply
from tests.support.waiting import until

OURS = "mcp__contextfold__"


class HookedAgent:
    """An agent whose host has our hooks: it calls our tools over MCP, and its host reports every tool call."""

    def __init__(
        self,
        daemon: Daemon,
        folder: str,
        conversation: str = "conversation-1",
        host: str = "claude-code",
        **headers: str,
    ) -> None:
        self.http = Http(daemon.port, **headers)
        self.mcp = HttpAgent(daemon.port, **headers)
        self.folder, self.conversation, self.host = folder, conversation, host
        self._calls = 0

    def post(self, payload: Mapping[str, Any] | bytes) -> Reply:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return self.http.ask("POST", f"/hooks/{self.host}", body, {"content-type": "application/json"})

    def report(self, event: str, **members: Any) -> Reply:
        common = {"session_id": self.conversation, "cwd": self.folder, "hook_event_name": event, "prompt_id": "p1"}
        return self.post({**common, **members})

    def uses(self, tool: str = "Bash", response: Any = "done", **members: Any) -> Reply:
        self._calls += 1
        payload = {"tool_name": tool, "tool_input": {}, "tool_response": response, "tool_use_id": f"use-{self._calls}"}
        return self.report("PostToolUse", **{**payload, **members})

    def fails(self, tool: str = "Bash", error: str = "Exit code 1", **members: Any) -> Reply:
        self._calls += 1
        payload = {"tool_name": tool, "tool_input": {}, "error": error, "tool_use_id": f"use-{self._calls}"}
        return self.report("PostToolUseFailure", **{**payload, **members})

    def calls(self, tool: str, project_path: str | None = None, **arguments: Any) -> Any:
        """Calls one of our tools over MCP; the host reports the call."""
        answer = self.mcp.call(tool, project_path=project_path or self.folder, **arguments)
        self.uses(f"{OURS}{tool}", self.mcp.result["content"], tool_input=arguments)
        return answer

    def close(self) -> None:
        self.http.close()
        self.mcp.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ApiReader:
    """Reads the JSON below `/v1`."""

    def __init__(self, daemon: Daemon, **headers: str) -> None:
        self.http = Http(daemon.port, **headers)

    def get(self, path: str) -> Any:
        started_s = time.monotonic()
        reply = self.http.ask("GET", path)
        # The daemon waits at most this long for reports to be written, so the last ones may be missing.
        if time.monotonic() - started_s >= ALL_SETTLED_TIMEOUT_S:
            until(lambda: b"contextfold_hook_reports_waiting 0.0" in self.http.ask("GET", "/metrics").body)
            reply = self.http.ask("GET", path)
        assert reply.status == 200, (path, reply.body)
        return reply.json

    def sessions(self) -> list[Any]:
        sessions: list[Any] = self.get("/v1/sessions?limit=100")["sessions"]
        return sessions

    def session(self, project: str, name: str | None = None) -> Any:
        """The row of a project's session; None if there is none."""
        rows = [row for row in self.sessions() if (row["project_path"], row["name"]) == (project, name)]
        assert len(rows) <= 1
        return rows[0] if rows else None

    def view(self, project: str, name: str | None = None) -> Any:
        return self.get(f"/v1/sessions/{self.session(project, name)['session_id']}?limit=500")

    def entries(self, session_id: str, branch_id: str = "") -> list[Any]:
        """All entries of a thread."""
        entries: list[Any] = []
        cursor = ""
        while True:
            page = self.get(f"/v1/sessions/{session_id}/trajectory?budget=100000&branch_id={branch_id}&cursor={cursor}")
            entries += page["entries"]
            cursor = page["next_cursor"]
            if cursor is None:
                return entries

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("hooks")) as daemon:
        yield daemon


@pytest.fixture
def api(daemon: Daemon) -> Iterator[ApiReader]:
    with ApiReader(daemon) as api:
        yield api


# These functions have other names than their fixtures, because tests use the names for variables.


@pytest.fixture(name="folder")
def folder_of_test(request: pytest.FixtureRequest) -> str:
    return f"/home/me/{request.node.name}"


@pytest.fixture(name="agent")
def agent_of_test(daemon: Daemon, folder: str) -> Iterator[HookedAgent]:
    with HookedAgent(daemon, folder, conversation=folder) as agent:
        yield agent
