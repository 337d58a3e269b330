"""A host that reports to a real daemon what its agent does, and a look at what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from contextfold.fold.service.inbox import ALL_SETTLED_TIMEOUT_S
from tests.support.daemon import Daemon, Http, HttpAgent, Reply
from tests.support.waiting import until

OURS = "mcp__contextfold__"


class HookedAgent:
    """An agent whose host has our hooks: it calls our tools over MCP, and every call of any tool is reported."""

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

    def tell(self, event: str, **members: Any) -> Reply:
        common = {"session_id": self.conversation, "cwd": self.folder, "hook_event_name": event, "prompt_id": "p1"}
        return self.post({**common, **members})

    def uses(self, tool: str = "Bash", response: Any = "done", **members: Any) -> Reply:
        self._calls += 1
        told = {"tool_name": tool, "tool_input": {}, "tool_response": response, "tool_use_id": f"use-{self._calls}"}
        return self.tell("PostToolUse", **{**told, **members})

    def fails(self, tool: str = "Bash", error: str = "Exit code 1", **members: Any) -> Reply:
        self._calls += 1
        told = {"tool_name": tool, "tool_input": {}, "error": error, "tool_use_id": f"use-{self._calls}"}
        return self.tell("PostToolUseFailure", **{**told, **members})

    def calls(self, tool: str, project_path: str | None = None, **arguments: Any) -> Any:
        """One of our tools, by MCP; its host reports that too."""
        answer = self.mcp.call(tool, project_path=project_path or self.folder, **arguments)
        self.uses(f"{OURS}{tool}", self.mcp.result["content"], tool_input=arguments)
        return answer

    def close(self) -> None:
        self.http.close()
        self.mcp.close()


class Onlooker:
    """Somebody who looks at the daemon's own JSON."""

    def __init__(self, daemon: Daemon, **headers: str) -> None:
        self.http = Http(daemon.port, **headers)

    def get(self, path: str) -> Any:
        asked_s = time.monotonic()
        reply = self.http.ask("GET", path)
        # A look waits at most this long, so the last reports may be missing.
        if time.monotonic() - asked_s >= ALL_SETTLED_TIMEOUT_S:
            until(lambda: b"contextfold_hook_reports_waiting 0.0" in self.http.ask("GET", "/metrics").body)
            reply = self.http.ask("GET", path)
        assert reply.status == 200, (path, reply.body)
        return reply.json

    def sessions(self) -> list[Any]:
        sessions: list[Any] = self.get("/v1/sessions?limit=100")["sessions"]
        return sessions

    def session(self, project: str, name: str | None = None) -> Any:
        """A project's session, by its row; None if there is none."""
        found = [row for row in self.sessions() if (row["project_path"], row["name"]) == (project, name)]
        assert len(found) <= 1
        return found[0] if found else None

    def view(self, project: str, name: str | None = None) -> Any:
        return self.get(f"/v1/sessions/{self.session(project, name)['session_id']}?limit=500")

    def entries(self, session_id: str, branch_id: str = "") -> list[Any]:
        """All a thread did."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = self.get(f"/v1/sessions/{session_id}/trajectory?budget=100000&branch_id={branch_id}&cursor={cursor}")
            found += page["entries"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def close(self) -> None:
        self.http.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("hooks"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def look(daemon: Daemon) -> Iterator[Onlooker]:
    made = Onlooker(daemon)
    yield made
    made.close()


# The next two are not named as their functions are: tests have folders and agents of their own beside them.


@pytest.fixture(name="folder")
def folder_of_test(request: pytest.FixtureRequest) -> str:
    return f"/home/me/{request.node.name}"


@pytest.fixture(name="agent")
def agent_of_test(daemon: Daemon, folder: str) -> Iterator[HookedAgent]:
    made = HookedAgent(daemon, folder, conversation=folder)
    yield made
    made.close()
