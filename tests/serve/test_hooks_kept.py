"""Reports of hosts that a real daemon has received: none is lost, and each is recorded in the right session."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from contextfold.common.canonical import encode
from contextfold.common.token_counter import COUNTERS
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.overview import Overview
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve import hooks
from contextfold.serve.ops.metrics import Metrics
from contextfold.stores.memory import MemoryStore
from tests.serve.reporting import OURS, HookedAgent, Onlooker, agent_of_test, daemon, folder_of_test, look
from tests.support.clauses import covers
from tests.support.daemon import Daemon, Refused
from tests.support.machine import context, times
from tests.support.waiting import until

__all__ = ["agent_of_test", "daemon", "folder_of_test", "look"]

count = COUNTERS["v0"]


class TestWhatWasReceived:
    @covers("folding.md#hooks")
    def test_is_there_for_the_next_call_of_a_tool(self, agent: HookedAgent) -> None:
        for turn in range(times(6, 300)):
            begun = agent.calls("context_branch", description="d", prompt="p")
            for _ in range(turn % 7):
                agent.uses(response="x" * 400)
            folded = agent.calls("context_return", message="m")
            assert folded["summary"]["operations_count"] == turn % 7, begun
            assert folded["summary"]["tokens_folded"] == 1 + (turn % 7) * count("{}\n" + "x" * 400)

    @covers("folding.md#hooks")
    def test_survives_the_end_of_the_daemon(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agents = [HookedAgent(daemon, f"/p/{number}", conversation=f"c{number}") for number in range(8)]
        for agent in agents:
            for _ in range(40):
                assert agent.uses(response="x" * 1000).status == 200
        for agent in agents:
            agent.close()
        assert daemon.stop() == 0
        daemon.start()
        look = Onlooker(daemon)
        assert sorted(row["operations"] for row in look.sessions()) == [40] * 8
        look.close()
        assert daemon.stop() == 0
        assert "reports.lost" not in daemon.log.read_text()

    def test_survives_the_end_of_the_daemon_however_much_it_is(self, tmp_path: Path) -> None:
        # This makes many commits, but few enough for a slow disk.
        reports = times(300, 3000)
        daemon = Daemon(tmp_path)
        agent = HookedAgent(daemon, "/p")
        for _ in range(reports):
            assert agent.uses(response="x").status == 200
        agent.close()
        assert daemon.stop() == 0
        daemon.start()
        look = Onlooker(daemon)
        assert look.session("/p")["operations"] == reports
        look.close()
        assert daemon.stop() == 0

    def test_that_cannot_be_written_at_all_is_told_to_the_operator(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agent, healthy = HookedAgent(daemon, "/broken"), HookedAgent(daemon, "/healthy", conversation="c2")
        agent.calls("context_branch", description="d", prompt="p")
        assert daemon.stop() == 0
        other = sqlite3.connect(daemon.store, isolation_level=None)
        other.execute("UPDATE events SET body = replace(body, 'branch.created', 'branch.invented')")
        other.close()
        daemon.start()
        for each in (agent, healthy):
            each.close()
        agent, healthy = HookedAgent(daemon, "/broken"), HookedAgent(daemon, "/healthy", conversation="c2")
        assert (agent.uses().status, healthy.uses().status) == (200, 200)
        look = Onlooker(daemon)
        assert [(row["project_path"], row["operations"]) for row in look.sessions()] == [("/healthy", 1)]
        look.close()
        for each in (agent, healthy):
            each.close()
        assert daemon.stop() == 0
        lost = [json.loads(line) for line in daemon.log.read_text().splitlines() if "reports.lost" in line]
        assert [(line["count"], line["exception"]) for line in lost] == [(1, "StoreInvalid")]

    def test_waits_while_the_store_is_away_and_is_written_when_it_is_back(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agent = HookedAgent(daemon, "/p")
        agent.calls("context_branch", description="d", prompt="p")
        other = sqlite3.connect(daemon.store, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(5):
            assert agent.uses().status == 200
        with pytest.raises(Refused, match="State store is unavailable"):
            agent.mcp.call("context_return", message="m", project_path="/p")
        assert agent.http.ask("GET", "/readyz").status == 503
        assert '"event":"reports.waiting"' in daemon.log.read_text()
        other.execute("ROLLBACK")
        other.close()
        look = Onlooker(daemon)

        def is_written() -> bool:
            reply = look.http.ask("GET", "/v1/sessions")
            return reply.status == 200 and [row["operations"] for row in reply.json["sessions"]] == [5]

        # The daemon tries the store again after a pause.
        until(is_written)
        agent.close()
        look.close()
        assert daemon.stop() == 0


class TestWhereAReportBelongs:
    @covers("folding.md#hooks")
    def test_a_subfolder_is_the_same_project_and_another_folder_is_another(
        self, agent: HookedAgent, look: Onlooker
    ) -> None:
        agent.uses()
        agent.uses(cwd=f"{agent.folder}/src/deep")
        agent.uses(cwd=f"{agent.folder}-other")
        # This folder is below the first one again.
        agent.uses(cwd=f"{agent.folder}/elsewhere")
        assert look.session(agent.folder)["operations"] == 3
        assert look.session(f"{agent.folder}-other")["operations"] == 1

    @covers("folding.md#hooks")
    def test_a_conversation_is_tied_to_the_session_that_its_calls_name(
        self, daemon: Daemon, look: Onlooker, folder: str
    ) -> None:
        agent = HookedAgent(daemon, f"{folder}/sub", conversation=folder, x_context_session="mine")
        agent.uses()
        agent.calls("context_branch", project_path=folder, description="d", prompt="p")
        agent.uses()
        agent.uses()
        agent.calls("context_return", project_path=folder, message="m")
        agent.uses()
        assert look.session(f"{folder}/sub")["operations"] == 1
        (branch,) = look.view(folder, "mine")["branches"]
        assert branch["operations"] == 2
        assert look.session(folder, "mine")["operations"] == 3
        agent.close()

    @covers("folding.md#hooks")
    def test_another_conversation_in_the_same_project_is_not_tied_with_it(
        self, daemon: Daemon, look: Onlooker, folder: str
    ) -> None:
        first = HookedAgent(daemon, folder, conversation=f"{folder}-1", x_context_session="mine")
        second = HookedAgent(daemon, folder, conversation=f"{folder}-2")
        first.calls("context_branch", description="d", prompt="p")
        second.uses()
        first.uses()
        assert look.session(folder)["operations"] == 1
        assert look.session(folder, "mine")["operations"] == 1
        first.close()
        second.close()

    def test_a_tie_to_a_session_that_the_daemon_has_to_look_for_holds_soon(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path)
        agent = HookedAgent(daemon, "/p", x_context_session="mine")
        begun = agent.calls("context_branch", description="d", prompt="p")
        assert daemon.stop() == 0
        # After the restart the daemon does not know the conversation.
        daemon.start()
        told = [{"type": "text", "text": json.dumps({"session_id": begun["session_id"]})}]
        again = HookedAgent(daemon, "/p", conversation=agent.conversation)
        again.uses(f"{OURS}context_branch_status", told)
        look = Onlooker(daemon)

        def holds() -> bool:
            again.uses()
            return bool(look.session("/p", "mine")["operations"])

        until(holds)
        agent.close()
        again.close()
        look.close()
        assert daemon.stop() == 0

    def test_no_owner_can_tie_a_conversation_to_anothers_session(self, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens"
        alice, bob = (
            {"authorization": "Bearer " + context("token", owner, "--token-file", tokens).out.decode().strip()}
            for owner in ("alice", "bob")
        )
        daemon = Daemon(tmp_path / "d", "--token-file", str(tokens))
        hers = HookedAgent(daemon, "/p", **alice)
        begun = hers.calls("context_branch", description="d", prompt="p")
        his = HookedAgent(daemon, "/p", **bob)
        his.uses(f"{OURS}context_branch", [{"type": "text", "text": json.dumps({"session_id": begun["session_id"]})}])
        his.uses()
        for mine, operations in ((alice, 0), (bob, 1)):
            look = Onlooker(daemon, **mine)
            assert [row["operations"] for row in look.sessions()] == [operations]
            look.close()
        nobody = HookedAgent(daemon, "/p")
        assert nobody.uses().status == 401
        for agent in (hers, his, nobody):
            agent.close()
        assert daemon.stop() == 0

    def test_one_owners_conversations_push_out_nobody_elses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hooks, "CONVERSATIONS_MAX", 3)

        async def scenario() -> list[str]:
            fold = FoldService(MemoryStore(), standard_scrubber())
            taken = hooks.HookEndpoints(fold, Metrics([]))

            async def report(owner: str, conversation: str, folder: str) -> None:
                payload = {"hook_event_name": "Stop", "session_id": conversation, "cwd": folder}
                body = json.dumps({**payload, "last_assistant_message": folder}).encode()
                assert (await taken.receive("claude-code", owner, body)).status_code == 200

            await report("alice", "hers", "/home/alice")
            for number in range(10):
                await report("bob", f"his {number}", "/home/bob")
            await report("alice", "hers", "/home/alice/src")
            listed = encode(await Overview(fold).sessions("alice", limit=10))
            await fold.close()
            return [row["project_path"] for row in json.loads(listed)["sessions"]]

        assert asyncio.run(scenario()) == ["/home/alice"]
