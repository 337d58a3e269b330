"""Two sessions fold work in a project, and a third recalls it days later, with a real daemon and MCP client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from tests.support.clock import set_clock_forward
from tests.support.daemon import Daemon, Http
from tests.support.machine import run_command

TIMEOUT_S = 60
PROJECT = "/work/shop"
SECRET = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


class ClockedDaemon(Daemon):
    """A daemon whose clock is some days ahead."""

    days = 0

    def start(self) -> None:
        self._prepare = partial(set_clock_forward, timedelta(days=self.days))
        super().start()

    def restart_after(self, days: int) -> None:
        assert self.stop() == 0
        self.days += days
        self.start()


@asynccontextmanager
async def connected(daemon: Daemon, session: str) -> AsyncIterator[Any]:
    """Calls tools as one session of the project."""
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    headers = {"X-Context-Session": session}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
        mcp.Client(streamable_http_client(f"{daemon.url}/mcp", http_client=http)) as client,
    ):

        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, {"project_path": PROJECT, **arguments})
            (content,) = result.content
            assert isinstance(content, mcp.types.TextContent)
            return json.loads(content.text)

        yield call


async def fold_branch(daemon: Daemon, session: str, description: str, operations: list[str], summary: str) -> str:
    async with connected(daemon, session) as call:
        opened = await call("context_branch", description=description, prompt=f"{description}, please.")
        for text in operations:
            await call("context_record", type="Bash", content=text)
        await call("context_return", message=summary)
        return str(opened["branch_id"])


def test_a_later_session_can_recall_expand_and_report_folds_of_earlier_ones(tmp_path: Path) -> None:
    daemon = ClockedDaemon(tmp_path)
    try:
        login = asyncio.run(
            fold_branch(
                daemon,
                "monday",
                "Find out why checkout logs users out",
                ["grep -rn session_ttl src/", "src/checkout/session.py:41 ttl=60", "connect failed: ECONNRESET"],
                "Sessions live 60 seconds: src/checkout/session.py:41 passes minutes. Not fixed yet.",
            )
        )
        asyncio.run(
            fold_branch(
                daemon, "tuesday", "Upgrade the payment client", ["pip install pay==4"], "Upgraded to 4.0; tests pass."
            )
        )
        daemon.restart_after(5)
        with Http(daemon.port) as http:

            async def recall_later() -> None:
                async with connected(daemon, "saturday") as call:
                    for query in ("users are logged out at checkout", "where did we see ECONNRESET?"):
                        question = {"query": f"{query} {SECRET}", "budget": 500, "since": "2w", "format": "json"}
                        result = await call("context_recall", **question)
                        assert [fold["id"] for fold in result["folds"]] == [login]
                        assert result["selection"]["tokens_used"] <= 500
                        assert result["folds"][0]["why"]
                    nothing = await call("context_recall", query="checkout", since="1d", format="json")
                    assert nothing["folds"] == []
                    entries = (await call("context_expand", branch_id=login))["entries"]
                    assert [entry["text"] for entry in entries if entry["kind"] == "operation"][-1].endswith(
                        "ECONNRESET"
                    )

            asyncio.run(recall_later())
            ended = http.ask("GET", "/v1/sessions?ended=true").json["sessions"]
            assert len(ended) == 2
            body = {"query": f"checkout {SECRET}", "project_path": PROJECT}
            result = http.ask("POST", "/v1/recall", json.dumps(body).encode(), {"content-type": "application/json"})
            assert [fold["id"] for fold in result.json["folds"]] == [login]
    finally:
        daemon.stop()
    monday = next(row["session_id"] for row in ended if row["name"] == "monday")
    report = run_command("fold", "report", monday, "--store", daemon.store)
    assert report.code == 0, report.err
    assert "src/checkout/session.py:41 passes minutes" in report.out.decode()
    stored = daemon.log.read_text() + "".join(
        path.read_bytes().decode("latin-1") for path in daemon.store.parent.iterdir()
    )
    assert SECRET not in stored
    assert "logged out at" not in stored
