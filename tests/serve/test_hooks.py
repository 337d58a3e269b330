"""What hosts report, posted to a real daemon: the right tree, the right figures, and nothing wrong by what is wrong."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capture.payloads import RECORDED, payloads
from contextfold.canonical import encode
from contextfold.fold.overview import Overview
from contextfold.fold.service import FoldService
from contextfold.scrub.standard import standard_scrubber
from contextfold.serve import hooks
from contextfold.serve.metrics import Metrics
from contextfold.stores.memory import MemoryStore
from contextfold.tokens import COUNTERS
from daemon import Daemon, Refused
from machine import context, times
from serve.reporting import OURS, HookedAgent, Onlooker
from waiting import until

count = COUNTERS["v0"]
LIMIT = 32_768


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


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    return f"/home/me/{request.node.name}"


@pytest.fixture
def agent(daemon: Daemon, folder: str) -> Iterator[HookedAgent]:
    made = HookedAgent(daemon, folder, conversation=folder)
    yield made
    made.close()


def recorded_run() -> list[dict[str, Any]]:
    """The first conversation of the recording: main thread, a branch with failures, a subagent, a compaction."""
    run = payloads(RECORDED)
    return [payload for payload in run if payload["session_id"] == run[0]["session_id"]]


def replayed(agent: HookedAgent, run: list[dict[str, Any]], *, again: bool = False) -> None:
    """Post a recorded run. Its calls of our tools are made anew, unless it is all posted a second time."""
    for payload in run:
        tool = payload.get("tool_name", "")
        sent = {**payload, "session_id": agent.conversation, "cwd": agent.folder}
        if tool.startswith(OURS) and not again:
            arguments = {**payload["tool_input"], "project_path": agent.folder}
            arguments.pop("branch_id", None)
            try:
                answer = agent.mcp.call(tool.removeprefix(OURS), **arguments)
                sent["tool_response"] = [{"type": "text", "text": json.dumps(answer)}]
            except Refused:
                assert payload["hook_event_name"] == "PostToolUseFailure"
        assert agent.post(sent).status == 200


class TestARecordedRun:
    def test_gives_the_right_tree_and_figures(self, agent: HookedAgent, look: Onlooker) -> None:
        replayed(agent, recorded_run())
        view = look.view(agent.folder)
        (branch,) = view["branches"]
        assert (branch["status"], branch["operations"], branch["failed_operations"]) == ("folded", 14, 4)
        inside = look.entries(view["session"]["session_id"], branch["id"])
        assert [entry.get("type", entry["kind"]) for entry in inside] == [
            "prompt", "Bash", "Read", "Edit", "Edit", "Write", "Read", "Bash", "Read", "Read", "Write", "Read", "Read",
            "TodoWrite", f"{OURS}context_branch_status", "summary",
        ]  # fmt: skip
        assert [entry["type"] for entry in inside if entry.get("failed")] == ["Bash", "Read", "Edit", "TodoWrite"]
        assert branch["tokens"] == sum(entry["tokens"] for entry in inside if entry["kind"] != "summary")
        assert all(entry["tokens"] == count(entry["text"]) for entry in inside)
        assert {entry["source"] for entry in inside if entry["kind"] == "operation"} == {"hook"}
        main = look.entries(view["session"]["session_id"])
        assert [entry.get("type", entry["kind"]) for entry in main] == [
            "prompt", "Read", "Bash", "Grep", "Glob", "Bash",
            "child", "Agent", "Grep", "Grep", "Grep", "Bash", "prompt", "Bash", "Bash", "WebFetch", "NoSuchTool",
            "Bash", "message", "prompt", "message",
            "compaction",
            "prompt", "Bash", "message",
        ]  # fmt: skip
        session = view["session"]
        assert session["main_thread_tokens"] == sum(entry["tokens"] for entry in main)
        assert session["total_tokens"] == session["main_thread_tokens"]
        assert session["folded_tokens"] == branch["tokens"]
        assert session["tokens_saved"] == branch["tokens"] - inside[-1]["tokens"] == branch["tokens_saved"]
        assert (session["operations"], session["failed_operations"]) == (38, 4 + sum(e.get("failed", 0) for e in main))

    def test_counts_a_subagent_apart(self, agent: HookedAgent, look: Onlooker) -> None:
        replayed(agent, recorded_run())
        agents = {payload["agent_id"] for payload in recorded_run() if payload.get("agent_id")}
        own = [row for row in look.sessions() if row["project_path"] == agent.folder and row["name"]]
        (row,) = [row for row in own if row["operations"]]
        assert row["name"].split()[0] == "general-purpose"
        assert row["name"].split()[1] in agents
        assert (row["operations"], row["failed_operations"]) == (2, 1)

    def test_posted_a_second_time_changes_nothing(self, agent: HookedAgent, look: Onlooker) -> None:
        replayed(agent, recorded_run())
        before = look.view(agent.folder)
        replayed(agent, recorded_run(), again=True)
        after = look.view(agent.folder)
        assert after["session"] == before["session"]
        assert after["branches"] == before["branches"]

    @pytest.mark.parametrize("seed", range(times(3, 40)))
    def test_with_its_main_thread_out_of_order_comes_to_the_same(
        self, daemon: Daemon, look: Onlooker, folder: str, seed: int
    ) -> None:
        run = [payload for payload in recorded_run() if not payload.get("tool_name", "").startswith(OURS)]
        shuffled = random.Random(seed).sample(run, len(run))
        figures = []
        for order, posted in enumerate((run, shuffled)):
            agent = HookedAgent(daemon, f"{folder}/{order}", conversation=f"{folder}/{order}")
            replayed(agent, posted)
            row = look.session(agent.folder)
            figures.append([row[name] for name in ("total_tokens", "operations", "failed_operations", "revision")])
            agent.close()
        assert figures[0] == figures[1]


class TestWhatIsWrong:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b"", "body"),
            (b"{", "body"),
            (b"[]", "body"),
            (b"null", "body"),
            (b'"text"', "body"),
            (b"[" * 100_000, "body"),
            (b"\xff\xfe{}", "body"),
            (b"{}", "hook_event_name"),
            (b'{"hook_event_name": 7, "session_id": "s", "cwd": "/p"}', "hook_event_name"),
            (b'{"hook_event_name": "PostToolUse", "cwd": "/p", "tool_name": "Bash"}', "session_id"),
            (
                b'{"hook_event_name": "PostToolUse", "session_id": ["s"], "cwd": "/p", "tool_name": "Bash"}',
                "session_id",
            ),
            (b'{"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash"}', "cwd"),
            (b'{"hook_event_name": "PostToolUse", "session_id": "s", "cwd": 7, "tool_name": "Bash"}', "cwd"),
            (
                b'{"hook_event_name": "PostToolUse", "session_id": "s", "cwd": "relative", "tool_name": "B"}',
                "project_path",
            ),
            (b'{"hook_event_name": "PostToolUse", "session_id": "s", "cwd": "/p"}', "tool_name"),
        ],
    )
    def test_is_named_and_changes_nothing(self, agent: HookedAgent, look: Onlooker, body: bytes, field: str) -> None:
        agent.uses()
        before = look.get("/v1/sessions?limit=100")
        reply = agent.post(body)
        assert reply.status == 400
        assert reply.json["error"]["data"] == {"kind": "invalid_argument", "field": field}
        after = look.get("/v1/sessions?limit=100")
        assert (after["total"], after["events_cursor"]) == (before["total"], before["events_cursor"])

    def test_a_conversation_goes_on_after_a_report_that_was_none(self, agent: HookedAgent, look: Onlooker) -> None:
        for folder in ("relative", "", "x" * 5000, "/a\x00b", "/" + "x" * 100_000):
            assert agent.uses(cwd=folder).status == 400
        assert agent.uses().status == 200
        assert look.session(agent.folder)["operations"] == 1

    def test_a_report_that_is_too_large_is_refused_whole(self, agent: HookedAgent, look: Onlooker) -> None:
        agent.uses()
        assert agent.uses(response="x" * (5 << 20)).status == 413
        assert look.session(agent.folder)["operations"] == 1

    def test_a_report_of_megabytes_is_counted(self, agent: HookedAgent, look: Onlooker) -> None:
        assert agent.uses(response="word " * 700_000).status == 200
        assert look.session(agent.folder)["main_thread_tokens"] == count("{}\n" + "word " * 700_000)

    @pytest.mark.parametrize("event", ["Notification", "SubagentStop", "SessionEnd", "MadeUp", "x" * 200])
    def test_an_event_that_says_nothing_of_the_context_is_received_and_ignored(
        self, agent: HookedAgent, look: Onlooker, event: str
    ) -> None:
        reply = agent.tell(event, something={"new": [1, 2, 3]}, tool_name=7)
        assert (reply.status, reply.json) == (200, {})
        assert look.session(agent.folder) is None

    def test_half_a_surrogate_pair_is_counted_and_kept_as_text(self, agent: HookedAgent, look: Onlooker) -> None:
        assert agent.uses(response="cut \ud83d here").status == 200
        (entry,) = look.entries(look.session(agent.folder)["session_id"])
        assert entry["text"].endswith("cut \ufffd here")


class TestWhatWasReceived:
    def test_is_there_for_the_next_call_of_a_tool(self, agent: HookedAgent) -> None:
        for turn in range(times(20, 300)):
            begun = agent.calls("context_branch", description="d", prompt="p")
            for _ in range(turn % 7):
                agent.uses(response="x" * 400)
            folded = agent.calls("context_return", message="m")
            assert folded["summary"]["operations_count"] == turn % 7, begun
            assert folded["summary"]["tokens_folded"] == 1 + (turn % 7) * count("{}\n" + "x" * 400)

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
        reports = times(1000, 3000)  # many commits, and yet few enough for a slow disk
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

        until(is_written)  # the store is asked again after a pause
        agent.close()
        look.close()
        assert daemon.stop() == 0


class TestWhereAReportBelongs:
    def test_a_subfolder_is_the_same_project_and_another_folder_is_another(
        self, agent: HookedAgent, look: Onlooker
    ) -> None:
        agent.uses()
        agent.uses(cwd=f"{agent.folder}/src/deep")
        agent.uses(cwd=f"{agent.folder}-other")
        agent.uses(cwd=f"{agent.folder}/elsewhere")  # back below where it began
        assert look.session(agent.folder)["operations"] == 3
        assert look.session(f"{agent.folder}-other")["operations"] == 1

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
        daemon.start()  # and knows nothing of the conversation any more
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
            taken = hooks.Hooks(fold, Metrics([]))

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


class TestTheLineOfState:
    def test_comes_back_when_the_main_thread_fills_up(self, agent: HookedAgent) -> None:
        assert agent.uses(response="x" * 4 * (LIMIT // 2 - 100)).json == {}
        reply = agent.uses(response="x" * 4 * 200)
        told = reply.json["hookSpecificOutput"]
        assert told["hookEventName"] == "PostToolUse"
        assert told["additionalContext"].startswith("contextfold: the main thread holds ")
        assert "of 32768 tokens (50 %, medium). Do the next subtask in a branch" in told["additionalContext"]
        assert "\n" not in told["additionalContext"]

    def test_is_not_told_where_the_host_would_take_it_for_a_command(self, agent: HookedAgent) -> None:
        agent.uses(response="x" * 4 * LIMIT)
        assert agent.uses().json
        for event in ("Stop", "SubagentStop", "PreCompact", "SessionEnd"):
            assert agent.tell(event).json == {}

    def test_work_in_a_branch_does_not_fill_the_main_thread(self, agent: HookedAgent) -> None:
        agent.calls("context_branch", description="d", prompt="p")
        agent.uses(response="x" * 4 * LIMIT)
        assert "main thread" not in agent.uses().json["hookSpecificOutput"]["additionalContext"]

    def test_tells_of_the_open_branch_with_what_is_not_written_yet(self, agent: HookedAgent) -> None:
        begun = agent.calls("context_branch", description="Find the leak", prompt="x" * 40)["branch_id"]
        told = agent.uses(response="y" * 4 * 100).json["hookSpecificOutput"]["additionalContext"]
        # 10 of the prompt, and `{}`, a newline and 400 characters of the call
        assert told.startswith(f"contextfold: branch {begun} (Find the leak) is open: 111 of 16384 tokens. ")
        assert told.endswith("call context_return with all that is needed.")
        failed = agent.fails(error="z" * 4 * LIMIT).json["hookSpecificOutput"]
        assert failed["hookEventName"] == "PostToolUseFailure"
        assert "is at its limit: " in failed["additionalContext"]
        assert "Call context_return now" in failed["additionalContext"]
        agent.calls("context_return", message="m")
        assert agent.uses().json == {}

    def test_is_one_line_where_the_main_thread_is_full_too(self, agent: HookedAgent) -> None:
        agent.uses(response="x" * 4 * (LIMIT // 2 + 100))
        agent.calls("context_branch", description="d", prompt="p")
        told = agent.uses().json["hookSpecificOutput"]["additionalContext"]
        assert told.startswith("contextfold: branch br_")
        assert told.endswith("tokens (50 %, medium).")
        assert "\n" not in told

    def test_is_not_told_twice_with_a_result_that_has_it(self, agent: HookedAgent) -> None:
        agent.calls("context_branch", description="d", prompt="p")
        answer = agent.mcp.call("context_list_branches", project_path=agent.folder)
        assert answer["active_branches"] == 1
        assert len(agent.mcp.result["content"]) == 2
        assert agent.uses(f"{OURS}context_list_branches", agent.mcp.result["content"]).json == {}
        assert agent.uses("Read").json

    def test_cursor_gets_it_where_it_takes_one(self, daemon: Daemon, folder: str) -> None:
        agent = HookedAgent(daemon, folder, conversation=folder, host="cursor")
        agent.mcp.call("context_branch", project_path=folder, description="d", prompt="p")
        told = {"tool_name": "Shell", "tool_input": {}, "tool_output": "{}", "tool_use_id": "u1", "cwd": folder}
        common = {"conversation_id": folder, "hook_event_name": "postToolUse"}
        assert agent.post({**common, **told}).json["additional_context"].startswith("contextfold: branch br_")
        agent.close()


class TestOtherHosts:
    @pytest.mark.parametrize("host", ["cursor", "vscode"])
    def test_their_documented_payloads_are_recorded(self, daemon: Daemon, look: Onlooker, host: str) -> None:
        agent = HookedAgent(daemon, "/unused", host=host)
        for payload in payloads(f"{host}-by-hand"):
            assert agent.post(payload).status == 200
        look.sessions()
        page = look.http.ask("GET", "/metrics").body.decode()
        (line,) = [line for line in page.splitlines() if f'{{host="{host}",outcome="recorded"}}' in line]
        assert float(line.split()[-1]) > 0
        agent.close()

    def test_a_host_that_nobody_knows_is_not_found(self, agent: HookedAgent) -> None:
        assert agent.http.ask("POST", "/hooks/emacs", b"{}").status == 404
        assert agent.http.ask("GET", "/hooks/claude-code").status == 405
