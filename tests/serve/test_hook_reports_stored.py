"""No hook report that a daemon has received is lost, and each is recorded in the right session."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from contextfold.common.canonical import encode
from contextfold.common.tokens import FOLD_COUNTERS
from contextfold.fold.service import conversations
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import Overview
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve import hooks
from contextfold.serve.ops.metrics import Metrics
from tests.serve.reporting import OURS, ApiReader, HookedAgent, agent_of_test, api, daemon, folder_of_test
from tests.support.daemon import Daemon, Refused, read_log
from tests.support.machine import run_command, times
from tests.support.temporary_store import TemporaryStore
from tests.support.waiting import until

__all__ = ["agent_of_test", "api", "daemon", "folder_of_test"]

count = FOLD_COUNTERS["v0"]


class TestDurability:
    def test_reports_are_stored_before_the_next_tool_call(self, agent: HookedAgent) -> None:
        for turn in range(times(6, 300)):
            branch = agent.calls("context_branch", description="d", prompt="p")
            for _ in range(turn % 7):
                agent.uses(response="x" * 400)
            folded = agent.calls("context_return", message="m")
            assert folded["summary"]["operations_count"] == turn % 7, branch
            assert folded["summary"]["tokens_folded"] == 1 + (turn % 7) * count("{}\n" + "x" * 400)

    def test_reports_survive_a_stop_of_the_daemon(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agents = [HookedAgent(daemon, f"/p/{number}", conversation=f"c{number}") for number in range(8)]
        for agent in agents:
            for _ in range(40):
                assert agent.uses(response="x" * 1000).status == 200
        for agent in agents:
            agent.close()
        assert daemon.stop() == 0
        daemon.start()
        with ApiReader(daemon) as api:
            assert sorted(row["operations"] for row in api.sessions()) == [40] * 8
        assert daemon.stop() == 0
        assert "reports.lost" not in daemon.log.read_text()

    def test_reports_that_cannot_be_stored_are_logged(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agent, healthy = HookedAgent(daemon, "/broken"), HookedAgent(daemon, "/healthy", conversation="c2")
        agent.uses()
        agent.calls("context_branch", description="d", prompt="p")
        assert daemon.stop() == 0
        database = sqlite3.connect(daemon.store, isolation_level=None)
        database.execute("UPDATE events SET body = replace(body, 'branch.created', 'branch.invented')")
        database.close()
        daemon.start()
        for client in (agent, healthy):
            client.close()
        agent, healthy = HookedAgent(daemon, "/broken"), HookedAgent(daemon, "/healthy", conversation="c2")
        assert (agent.uses().status, healthy.uses().status) == (200, 200)
        with ApiReader(daemon) as api:
            assert [(row["project_path"], row["operations"]) for row in api.sessions()] == [("/healthy", 1)]
        for client in (agent, healthy):
            client.close()
        assert daemon.stop() == 0
        lost = [line for line in read_log(daemon.log) if line["event"] == "reports.lost"]
        assert [(line["count"], line["exception"]) for line in lost] == [(1, "StoreInvalid")]

    def test_reports_wait_until_a_locked_store_is_available_again(self, tmp_path: Path) -> None:
        with Daemon(tmp_path) as daemon:
            agent = HookedAgent(daemon, "/p")
            agent.calls("context_branch", description="d", prompt="p")
            lock = sqlite3.connect(daemon.store, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            for _ in range(5):
                assert agent.uses().status == 200
            with pytest.raises(Refused, match="State store is unavailable"):
                agent.mcp.call("context_return", message="m", project_path="/p")
            assert agent.http.ask("GET", "/readyz").status == 503
            assert '"event":"reports.waiting"' in daemon.log.read_text()
            lock.execute("ROLLBACK")
            lock.close()
            with ApiReader(daemon) as api:

                def is_written() -> bool:
                    reply = api.http.ask("GET", "/v1/sessions")
                    return reply.status == 200 and [row["operations"] for row in reply.json["sessions"]] == [5]

                # The daemon tries the store again after a pause.
                until(is_written)
                agent.close()


class TestSessionOfAReport:
    def test_a_conversation_stays_in_its_project_when_the_agent_changes_the_folder(
        self, agent: HookedAgent, api: ApiReader
    ) -> None:
        agent.uses()
        agent.uses(cwd=f"{agent.folder}/src/deep")
        agent.uses(cwd=f"{agent.folder}-other")
        assert api.session(agent.folder)["operations"] == 3
        assert api.session(f"{agent.folder}-other") is None

    def test_each_conversation_of_a_project_has_a_session_of_its_own(
        self, daemon: Daemon, api: ApiReader, folder: str
    ) -> None:
        for number in range(1, 4):
            with HookedAgent(daemon, folder, conversation=f"{folder}-{number}") as agent:
                for _ in range(number):
                    agent.uses()
                # The latest conversation of the project makes the call.
                assert agent.calls("context_fold", message="m")["summary"]["operations_count"] == number
        rows = [row for row in api.sessions() if row["project_path"] == folder]
        assert sorted((row["conversation"], row["operations"]) for row in rows) == [
            (f"{folder}-{number}", number) for number in range(1, 4)
        ]

    def test_a_call_belongs_to_the_conversation_whose_hook_announced_it(
        self, daemon: Daemon, api: ApiReader, folder: str
    ) -> None:
        first = HookedAgent(daemon, folder, conversation=f"{folder}-1")
        with HookedAgent(daemon, folder, conversation=f"{folder}-2") as second:
            first.uses()
            arguments: dict[str, Any] = {"message": "what the first did"}
            first.report("PreToolUse", tool_name=f"{OURS}context_fold", tool_input=arguments, tool_use_id="toolu_1")
            second.uses()
            first.mcp.call("context_fold", **arguments)
        rows = {row["conversation"]: row for row in api.sessions() if row["project_path"] == folder}
        assert [rows[f"{folder}-{number}"]["folded_branches"] for number in (1, 2)] == [1, 0]
        first.close()

    def test_a_conversation_belongs_to_the_session_that_its_calls_name(
        self, daemon: Daemon, api: ApiReader, folder: str
    ) -> None:
        with HookedAgent(daemon, f"{folder}/sub", conversation=folder, x_context_session="mine") as agent:
            agent.uses()
            agent.calls("context_branch", project_path=folder, description="d", prompt="p")
            agent.uses()
            agent.uses()
            agent.calls("context_return", project_path=folder, message="m")
            agent.uses()
            assert api.session(f"{folder}/sub")["operations"] == 1
            (branch,) = api.view(folder, "mine")["branches"]
            assert branch["operations"] == 2
            assert api.session(folder, "mine")["operations"] == 3

    def test_another_conversation_of_the_project_has_its_own_session(
        self, daemon: Daemon, api: ApiReader, folder: str
    ) -> None:
        first = HookedAgent(daemon, folder, conversation=f"{folder}-1", x_context_session="mine")
        with HookedAgent(daemon, folder, conversation=f"{folder}-2") as second:
            first.calls("context_branch", description="d", prompt="p")
            second.uses()
            first.uses()
            assert api.session(folder)["operations"] == 1
            assert api.session(folder, "mine")["operations"] == 1
        first.close()

    def test_a_conversation_is_assigned_to_its_session_again_after_a_restart(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agent = HookedAgent(daemon, "/p", x_context_session="mine")
        branch = agent.calls("context_branch", description="d", prompt="p")
        assert daemon.stop() == 0
        # After the restart the daemon does not know the conversation.
        daemon.start()
        result = [{"type": "text", "text": json.dumps({"session_id": branch["session_id"]})}]
        restarted = HookedAgent(daemon, "/p", conversation=agent.conversation)
        restarted.uses(f"{OURS}context_branch_status", result)
        with ApiReader(daemon) as api:

            def is_assigned() -> bool:
                restarted.uses()
                return bool(api.session("/p", "mine")["operations"])

            until(is_assigned)
            agent.close()
            restarted.close()
        assert daemon.stop() == 0

    def test_no_owner_can_report_to_another_owners_session(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens"
        alice, bob = (
            {"authorization": "Bearer " + run_command("token", owner, "--token-file", tokens).out.decode().strip()}
            for owner in ("alice", "bob")
        )
        with Daemon(tmp_path / "d", "--token-file", str(tokens)) as daemon:
            alices = HookedAgent(daemon, "/p", **alice)
            branch = alices.calls("context_branch", description="d", prompt="p")
            bobs = HookedAgent(daemon, "/p", **bob)
            bobs.uses(
                f"{OURS}context_branch", [{"type": "text", "text": json.dumps({"session_id": branch["session_id"]})}]
            )
            bobs.uses()
            for headers, operations in ((alice, 0), (bob, 1)):
                with ApiReader(daemon, **headers) as api:
                    assert [row["operations"] for row in api.sessions()] == [operations]
            without_token = HookedAgent(daemon, "/p")
            assert without_token.uses().status == 401
            for agent in (alices, bobs, without_token):
                agent.close()

    def test_one_owners_conversations_do_not_displace_those_of_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hooks, "CONVERSATIONS_MAX", 3)
        monkeypatch.setattr(conversations, "CONVERSATIONS_MAX", 3)

        async def scenario() -> list[str]:
            fold = FoldService(TemporaryStore(), standard_scrubber())
            endpoints = hooks.HookEndpoints(fold, Metrics([]))

            async def report(owner: str, conversation: str, folder: str) -> None:
                payload = {"hook_event_name": "Stop", "session_id": conversation, "cwd": folder}
                body = json.dumps({**payload, "last_assistant_message": folder}).encode()
                assert (await endpoints.receive("claude-code", owner, body)).status_code == 200

            await report("alice", "hers", "/home/alice")
            for number in range(10):
                await report("bob", f"his {number}", "/home/bob")
            await report("alice", "hers", "/home/alice/src")
            listed = encode(await Overview(fold).sessions("alice", limit=10))
            await fold.close()
            return [row["project_path"] for row in json.loads(listed)["sessions"]]

        assert asyncio.run(scenario()) == ["/home/alice"]
