"""Hook reports to a real daemon: the session they make, the advice they get, and invalid reports."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from contextfold import __version__
from contextfold.common.tokens import FOLD_COUNTERS
from tests.hosts.payloads import RECORDED, payloads
from tests.serve.reporting import OURS, ApiReader, HookedAgent, agent_of_test, api, daemon, folder_of_test
from tests.support.daemon import Daemon, Refused
from tests.support.machine import times
from tests.support.waiting import until

__all__ = ["agent_of_test", "api", "daemon", "folder_of_test"]

count = FOLD_COUNTERS["v0"]
LIMIT = 32_768


def recorded_run() -> list[dict[str, Any]]:
    """The first conversation of the recording: main thread, a branch with failures, a subagent, a compaction."""
    run = payloads(RECORDED)
    return [payload for payload in run if payload["session_id"] == run[0]["session_id"]]


def replay(agent: HookedAgent, run: list[dict[str, Any]], *, again: bool = False) -> None:
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


def test_the_daemon_shows_when_a_host_last_reported(agent: HookedAgent, api: ApiReader) -> None:
    assert agent.uses().status == 200
    # A report is answered before it is processed.
    until(lambda: agent.host in api.get("/v1/daemon")["hosts"])
    about = api.get("/v1/daemon")
    assert about["version"] == __version__
    assert about["hosts"][agent.host] >= about["started_at"]
    assert about["proxy"] == {}


class TestRecordedRun:
    def test_a_recorded_run_gives_the_right_tree_and_figures(self, agent: HookedAgent, api: ApiReader) -> None:
        replay(agent, recorded_run())
        view = api.view(agent.folder)
        (branch,) = view["branches"]
        assert (branch["status"], branch["operations"], branch["failed_operations"]) == ("folded", 14, 4)
        branch_entries = api.entries(view["session"]["session_id"], branch["id"])
        assert [entry.get("type", entry["kind"]) for entry in branch_entries] == [
            "prompt", "Bash", "Read", "Edit", "Edit", "Write", "Read", "Bash", "Read", "Read", "Write", "Read", "Read",
            "TodoWrite", f"{OURS}context_branch_status", "summary",
        ]  # fmt: skip
        assert [entry["type"] for entry in branch_entries if entry.get("failed")] == [
            "Bash",
            "Read",
            "Edit",
            "TodoWrite",
        ]
        assert branch["tokens"] == sum(entry["tokens"] for entry in branch_entries if entry["kind"] != "summary")
        assert all(entry["tokens"] == count(entry["text"]) for entry in branch_entries)
        assert {entry["source"] for entry in branch_entries if entry["kind"] == "operation"} == {"hook"}
        main_entries = api.entries(view["session"]["session_id"])
        assert [entry.get("type", entry["kind"]) for entry in main_entries] == [
            "prompt", "Read", "Bash", "Grep", "Glob", "Bash",
            "child", "Agent", "Grep", "Grep", "Grep", "Bash", "prompt", "Bash", "Bash", "WebFetch", "NoSuchTool",
            "Bash", "message", "prompt", "message",
            "compaction", "compaction_summary",
            "prompt", "Bash", "message",
        ]  # fmt: skip
        session = view["session"]
        # These are the entries that the compaction left, and those after it.
        remaining = main_entries[-4:]
        assert remaining[0]["text"] == "<summary>We looked at the app and fixed add().</summary>"
        assert session["main_thread_tokens"] == sum(entry["tokens"] for entry in remaining)
        assert session["total_tokens"] == session["main_thread_tokens"]
        assert session["folded_tokens"] == branch["tokens"]
        assert session["tokens_saved"] == branch["tokens"] - branch_entries[-1]["tokens"] == branch["tokens_saved"]
        assert (session["operations"], session["failed_operations"]) == (
            39,
            4 + sum(e.get("failed", 0) for e in main_entries),
        )

    def test_a_subagent_has_a_session_of_its_own(self, agent: HookedAgent, api: ApiReader) -> None:
        replay(agent, recorded_run())
        agents = {payload["agent_id"] for payload in recorded_run() if payload.get("agent_id")}
        subagent_rows = [row for row in api.sessions() if row["project_path"] == agent.folder and row["name"]]
        (row,) = [row for row in subagent_rows if row["operations"]]
        assert row["name"].split()[0] == "general-purpose"
        assert row["name"].split()[1] in agents
        assert (row["operations"], row["failed_operations"]) == (2, 1)

    def test_a_run_that_is_posted_again_changes_nothing(self, agent: HookedAgent, api: ApiReader) -> None:
        replay(agent, recorded_run())
        before = api.view(agent.folder)
        replay(agent, recorded_run(), again=True)
        after = api.view(agent.folder)
        assert after["session"] == before["session"]
        assert after["branches"] == before["branches"]

    @pytest.mark.parametrize("seed", range(times(2, 40)))
    def test_the_order_of_reports_on_the_main_thread_does_not_matter(
        self, daemon: Daemon, api: ApiReader, folder: str, seed: int
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
            with HookedAgent(daemon, f"{folder}/{order}", conversation=f"{folder}/{order}") as agent:
                replay(agent, posted)
                row = api.session(agent.folder)
                figures.append([row[name] for name in ("total_tokens", "operations", "failed_operations", "revision")])
        assert figures[0] == figures[1]


class TestInvalidReports:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (b"", "body"),
            (b"[]", "body"),
            (b"[" * 100_000, "body"),
            (b"\xff\xfe{}", "body"),
            (b"{}", "hook_event_name"),
            (b'{"hook_event_name": 7, "session_id": "s", "cwd": "/p"}', "hook_event_name"),
            (b'{"hook_event_name": "PostToolUse", "cwd": "/p", "tool_name": "Bash"}', "session_id"),
            (b'{"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash"}', "cwd"),
            (
                b'{"hook_event_name": "PostToolUse", "session_id": "s", "cwd": "relative", "tool_name": "B"}',
                "project_path",
            ),
            (b'{"hook_event_name": "PostToolUse", "session_id": "s", "cwd": "/p"}', "tool_name"),
        ],
    )
    def test_an_invalid_report_is_refused_and_changes_nothing(
        self, agent: HookedAgent, api: ApiReader, body: bytes, field: str
    ) -> None:
        agent.uses()
        before = api.get("/v1/sessions?limit=100")
        reply = agent.post(body)
        assert reply.status == 400
        assert reply.json["error"]["data"] == {"kind": "invalid_argument", "field": field}
        after = api.get("/v1/sessions?limit=100")
        assert (after["total"], after["events_cursor"]) == (before["total"], before["events_cursor"])

    def test_a_conversation_continues_after_invalid_reports(self, agent: HookedAgent, api: ApiReader) -> None:
        for folder in ("relative", "", "x" * 5000, "/a\x00b", "/" + "x" * 100_000):
            assert agent.uses(cwd=folder).status == 400
        assert agent.uses().status == 200
        assert api.session(agent.folder)["operations"] == 1

    def test_a_report_over_the_limit_is_refused(self, agent: HookedAgent, api: ApiReader) -> None:
        agent.uses()
        assert agent.uses(response="x" * (5 << 20)).status == 413
        assert api.session(agent.folder)["operations"] == 1

    def test_a_report_of_several_megabytes_is_counted(self, agent: HookedAgent, api: ApiReader) -> None:
        assert agent.uses(response="word " * 700_000).status == 200
        assert api.session(agent.folder)["main_thread_tokens"] == count("{}\n" + "word " * 700_000)

    @pytest.mark.parametrize("event", ["Notification", "SubagentStop", "SessionEnd", "MadeUp", "x" * 200])
    def test_an_irrelevant_event_is_accepted_and_ignored(self, agent: HookedAgent, api: ApiReader, event: str) -> None:
        reply = agent.report(event, something={"new": [1, 2, 3]}, tool_name=7)
        assert (reply.status, reply.json) == (200, {})
        assert api.session(agent.folder) is None

    def test_half_a_surrogate_pair_is_stored_as_a_replacement_character(
        self, agent: HookedAgent, api: ApiReader
    ) -> None:
        assert agent.uses(response="cut \ud83d here").status == 200
        (entry,) = api.entries(api.session(agent.folder)["session_id"])
        assert entry["text"].endswith("cut \ufffd here")


class TestAdvice:
    def test_advice_comes_once_when_folding_would_pay(self, agent: HookedAgent, api: ApiReader) -> None:
        # A conversation of less than 25,000 tokens gets none.
        assert agent.uses(response="x" * 4 * 20_000).json == {}
        api.session(agent.folder)
        advice = agent.uses(response="x" * 4 * 6_000).json["hookSpecificOutput"]
        assert advice["hookEventName"] == "PostToolUse"
        assert advice["additionalContext"].startswith("contextfold: the main thread holds ")
        assert "context_fold" in advice["additionalContext"]
        assert "\n" not in advice["additionalContext"]
        assert agent.uses(response="x" * 4 * 1_000).json == {}

    def test_advice_comes_again_at_the_next_threshold(self, agent: HookedAgent, api: ApiReader) -> None:
        agent.report("SessionStart", source="startup", model="claude-opus-4-5-20251101")
        replies = []
        for _ in range(6):
            replies.append(agent.uses(response="x" * 4 * 26_000).json)
            api.session(agent.folder)
        # The first report begins the session. The limit is 174,000 tokens: 104,000 are medium, 130,000 are high.
        assert [bool(reply) for reply in replies] == [False, True, False, True, True, False]

    def test_advice_is_not_given_for_events_whose_answer_is_a_command(self, agent: HookedAgent) -> None:
        for event in ("Stop", "SubagentStop", "PreCompact", "SessionEnd"):
            assert agent.report(event).json == {}

    def test_advice_is_not_given_around_a_compaction(self, agent: HookedAgent, api: ApiReader) -> None:
        """The host starts its new context before it reports the summary."""
        agent.uses(response="x" * 4 * 1_000)
        assert agent.report("SessionStart", source="compact").json == {}
        summary = "s" * 4 * (LIMIT // 2 + 100)
        assert agent.report("PostCompact", trigger="auto", compact_summary=summary).json == {}
        assert api.session(agent.folder)["main_thread_tokens"] == LIMIT // 2 + 100
        assert agent.uses().json == {}

    def test_advice_is_not_given_with_a_user_prompt(self, agent: HookedAgent) -> None:
        assert agent.uses(response="x" * 4 * 4_900).json == {}
        assert agent.report("UserPromptSubmit", prompt="y" * 4 * 4_000).json == {}

    def test_advice_about_the_open_branch_counts_reports_that_are_not_stored_yet(self, agent: HookedAgent) -> None:
        branch_id = agent.calls("context_branch", description="Find the leak", prompt="x" * 40)["branch_id"]
        assert agent.uses(response="y" * 4 * 20_000).json == {}
        failed = agent.fails(error="z" * 4 * 6_000).json["hookSpecificOutput"]
        assert failed["hookEventName"] == "PostToolUseFailure"
        situation = f"branch {branch_id} (Find the leak) is at its limit: 26012 of 16384 tokens. "
        assert situation in failed["additionalContext"]
        agent.calls("context_return", message="m")
        assert agent.uses().json == {}

    def test_the_context_limit_is_the_window_of_the_hosts_model(self, agent: HookedAgent, api: ApiReader) -> None:
        agent.report("SessionStart", source="startup", model="claude-opus-4-5-20251101")
        agent.uses(response="x")
        assert api.session(agent.folder)["context_limit"] == 174_000


class TestOtherHosts:
    def test_an_unknown_host_is_not_found(self, agent: HookedAgent) -> None:
        assert agent.http.ask("POST", "/hooks/emacs", b"{}").status == 404
        assert agent.http.ask("GET", "/hooks/claude-code").status == 405
