"""Hook reports of hosts, posted to a real daemon: tree, figures and answers are right, and bad reports do no harm."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from contextfold import __version__
from contextfold.common.token_counter import COUNTERS
from tests.hosts.payloads import RECORDED, payloads
from tests.serve.reporting import OURS, HookedAgent, Onlooker, agent_of_test, daemon, folder_of_test, look
from tests.support.clauses import covers
from tests.support.daemon import Daemon, Refused
from tests.support.machine import times
from tests.support.waiting import until

__all__ = ["agent_of_test", "daemon", "folder_of_test", "look"]

count = COUNTERS["v0"]
LIMIT = 32_768


def recorded_run() -> list[dict[str, Any]]:
    """The first conversation of the recording: main thread, a branch with failures, a subagent, a compaction."""
    run = payloads(RECORDED)
    return [payload for payload in run if payload["session_id"] == run[0]["session_id"]]


def replayed(agent: HookedAgent, run: list[dict[str, Any]], *, again: bool = False) -> None:
    """Posts a recorded run. Calls of our tools are made again, unless the run is posted for a second time."""
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


def test_the_daemon_says_when_a_host_last_reported(agent: HookedAgent, look: Onlooker) -> None:
    assert agent.uses().status == 200
    # A report is answered before it is processed.
    until(lambda: agent.host in look.get("/v1/daemon")["hosts"])
    about = look.get("/v1/daemon")
    assert about["version"] == __version__
    assert about["hosts"][agent.host] >= about["started_at"]
    assert about["proxy"] == {}


class TestARecordedRun:
    @covers("folding.md#sources", "folding.md#hooks")
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
            "compaction", "compaction_summary",
            "prompt", "Bash", "message",
        ]  # fmt: skip
        session = view["session"]
        # These are the entries that the compaction left, and those after it.
        left = main[-4:]
        assert left[0]["text"] == "<summary>We looked at the app and fixed add().</summary>"
        assert session["main_thread_tokens"] == sum(entry["tokens"] for entry in left)
        assert session["total_tokens"] == session["main_thread_tokens"]
        assert session["folded_tokens"] == branch["tokens"]
        assert session["tokens_saved"] == branch["tokens"] - inside[-1]["tokens"] == branch["tokens_saved"]
        assert (session["operations"], session["failed_operations"]) == (39, 4 + sum(e.get("failed", 0) for e in main))

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

    @pytest.mark.parametrize("seed", range(times(2, 40)))
    def test_with_its_main_thread_out_of_order_comes_to_the_same(
        self, daemon: Daemon, look: Onlooker, folder: str, seed: int
    ) -> None:
        # A compaction removes what came before it, so its result depends on the order.
        run = [
            payload
            for payload in recorded_run()
            if not payload.get("tool_name", "").startswith(OURS) and payload["hook_event_name"] != "PostCompact"
        ]
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


class TestAdvice:
    def test_comes_once_when_folding_would_pay(self, agent: HookedAgent, look: Onlooker) -> None:
        assert agent.uses(response="x" * 4 * 4_000).json == {}
        look.session(agent.folder)
        told = agent.uses(response="x" * 4 * 4_000).json["hookSpecificOutput"]
        assert told["hookEventName"] == "PostToolUse"
        assert told["additionalContext"].startswith("contextfold: the main thread holds ")
        assert "context_fold" in told["additionalContext"]
        assert "\n" not in told["additionalContext"]
        assert agent.uses(response="x" * 4 * 1_000).json == {}

    def test_comes_again_at_the_next_threshold(self, agent: HookedAgent, look: Onlooker) -> None:
        replies = []
        for _ in range(6):
            replies.append(agent.uses(response="x" * 4 * 6_000).json)
            look.session(agent.folder)
        assert [bool(reply) for reply in replies] == [False, True, True, True, False, False]

    def test_is_not_given_where_the_host_would_take_it_for_a_command(self, agent: HookedAgent) -> None:
        for event in ("Stop", "SubagentStop", "PreCompact", "SessionEnd"):
            assert agent.tell(event).json == {}

    def test_is_not_given_around_a_compaction(self, agent: HookedAgent, look: Onlooker) -> None:
        """The host starts its new context before it reports what is in it."""
        agent.uses(response="x" * 4 * 1_000)
        assert agent.tell("SessionStart", source="compact").json == {}
        summary = "s" * 4 * (LIMIT // 2 + 100)
        assert agent.tell("PostCompact", trigger="auto", compact_summary=summary).json == {}
        assert look.session(agent.folder)["main_thread_tokens"] == LIMIT // 2 + 100
        assert agent.uses().json == {}

    def test_is_not_given_when_the_user_has_just_spoken(self, agent: HookedAgent) -> None:
        assert agent.uses(response="x" * 4 * 4_900).json == {}
        assert agent.tell("UserPromptSubmit", prompt="y" * 4 * 4_000).json == {}

    def test_is_about_the_open_branch_with_what_is_not_recorded_yet(self, agent: HookedAgent) -> None:
        begun = agent.calls("context_branch", description="Find the leak", prompt="x" * 40)["branch_id"]
        told = agent.uses(response="y" * 4 * 6_000).json["hookSpecificOutput"]["additionalContext"]
        assert told.startswith(f"contextfold: branch {begun} (Find the leak) is open: 6011 of 16384 tokens. ")
        failed = agent.fails(error="z" * 4 * LIMIT).json["hookSpecificOutput"]
        assert failed["hookEventName"] == "PostToolUseFailure"
        assert "is at its limit: " in failed["additionalContext"]
        agent.calls("context_return", message="m")
        assert agent.uses().json == {}

    def test_cursor_gets_it_where_it_takes_one(self, daemon: Daemon, folder: str) -> None:
        agent = HookedAgent(daemon, folder, conversation=folder, host="cursor")
        agent.mcp.call("context_branch", project_path=folder, description="d", prompt="p")
        output = json.dumps("x" * 4 * 6_000)
        told = {"tool_name": "Shell", "tool_input": {}, "tool_output": output, "tool_use_id": "u1", "cwd": folder}
        common = {"conversation_id": folder, "hook_event_name": "postToolUse"}
        assert agent.post({**common, **told}).json["additional_context"].startswith("contextfold: branch br_")
        agent.close()

    def test_the_window_of_the_model_that_the_host_names_is_the_limit(self, agent: HookedAgent, look: Onlooker) -> None:
        agent.tell("SessionStart", source="startup", model="claude-opus-4-5-20251101")
        agent.uses(response="x")
        assert look.session(agent.folder)["context_limit"] == 174_000


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
