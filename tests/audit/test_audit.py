"""`context audit`: the bill is the provider's, the saving is the real folding's, and nothing is given away."""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contextfold.audit.transcripts import LINE_MAX_BYTES
from tests.audit.transcripts import MODEL, ClaudeTranscript, call_of, long_session, moment, result
from tests.support.machine import Call, as_nobody

RECORDED = Path(__file__).parent / "recorded"
# Dollars for a token of Claude Sonnet 4.5.
INPUT, OUTPUT, READ, WRITE_5M, WRITE_1H = (price / 1e6 for price in (3, 15, 0.3, 3.75, 6))


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Claude Code keeps its transcripts, in an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    return tmp_path / "home" / ".claude" / "projects" / "-home-me-project"


def audit(call: Call, *words: object) -> dict[str, Any]:
    ran = call("audit", "--json", *words)
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


class TestBill:
    def test_the_bill_is_the_recorded_usage_at_list_prices(self, projects: Path, call: Call) -> None:
        transcript = ClaudeTranscript()
        transcript.asked(0, "hello")
        transcript.answered(3, wrote=20_000)
        transcript.asked(60, "and?")
        transcript.answered(63, read=20_000, wrote=500, hour=True)
        transcript.write(projects)
        first = 10 * INPUT + 20_000 * WRITE_5M + 100 * OUTPUT
        second = 10 * INPUT + 20_000 * READ + 500 * WRITE_1H + 100 * OUTPUT
        report = audit(call)
        assert report["spent_dollars"] == pytest.approx(first + second, abs=1e-4)
        assert sum(report["parts_dollars"].values()) == pytest.approx(first + second, abs=1e-3)
        (day,) = report["days"]
        assert (day["day"], day["requests"], day["spent_dollars"], day["saved_dollars"]) == (
            "2026-03-01",
            2,
            report["spent_dollars"],
            0.0,
        )

    def test_a_response_of_several_lines_is_one_request(self, projects: Path, call: Call) -> None:
        """Results of the first calls may stand between the lines of one response."""
        transcript = ClaudeTranscript()
        transcript.asked(0, "hello")
        transcript.answered(3, call_block("a"), wrote=20_000)
        transcript.asked(4, result("a", "text"))
        transcript.answered(5, call_block("b"), wrote=20_000, id=transcript.last)
        transcript.asked(6, result("b", "text"))
        transcript.answered(9, read=20_010, wrote=50)
        transcript.write(projects)
        assert audit(call)["requests"] == 2

    def test_a_history_that_was_copied_when_it_was_resumed_is_counted_once(self, projects: Path, call: Call) -> None:
        original = long_session("s1", pause_s=10)
        path = original.write(projects)
        os.utime(path, (1_000, 1_000))
        copied = [line.replace('"sessionId": "s1"', '"sessionId": "s2"') for line in original.lines]
        resumed = ClaudeTranscript("s2")
        resumed.asked(100, "go on")
        resumed.answered(105, read=32_000, wrote=100)
        resumed.lines = [*copied, *resumed.lines]
        before = audit(call)["requests"]
        resumed.write(projects)
        assert audit(call)["requests"] == before + 1

    def test_a_result_that_a_resumed_history_repeats_is_not_listed_twice(self, projects: Path, call: Call) -> None:
        original = long_session("s1", pause_s=10)
        os.utime(original.write(projects), (1_000, 1_000))
        before = audit(call, "--names")["results"]
        copied = [line.replace('"sessionId": "s1"', '"sessionId": "s2"') for line in original.lines]
        resumed = ClaudeTranscript("s2")
        resumed.lines = copied
        resumed.write(projects)
        assert audit(call, "--names")["results"] == before
        # What the resumed conversation pays for them is its own.
        resumed.asked(100, "go on")
        resumed.answered(105, read=32_000, wrote=100)
        resumed.write(projects)
        results = audit(call, "--names")["results"]
        assert len(results) == 2 * len(before)
        read_again = sum(each["dollars"] for each in results) - sum(each["dollars"] for each in before)
        assert read_again == pytest.approx(sum(each["tokens"] for each in before) * READ, rel=0.1)

    def test_subagents_are_conversations_of_their_own(self, projects: Path, call: Call) -> None:
        """Older versions of Claude Code wrote their lines into the file of the parent, newer ones into files."""
        parent = long_session("s1", pause_s=10)
        for name in ("s2", "s3"):
            parent.lines += long_session(name, pause_s=10, isSidechain=True).lines
        parent.write(projects)
        long_session("s4", pause_s=10, isSidechain=True, agentId="a7").write(projects / "s1/subagents", "agent-a7")
        rows = audit(call)["largest_conversations"]
        assert sorted((row["subagent"], row["requests"]) for row in rows) == [
            (False, 7),
            (True, 7),
            (True, 7),
            (True, 7),
        ]

    def test_a_rewrite_while_the_cache_was_alive_has_a_likely_cause(self, projects: Path, call: Call) -> None:
        transcript = ClaudeTranscript(version="2.1.0")
        transcript.asked(0, "hello")
        transcript.answered(3, wrote=30_000)
        transcript.asked(60, "and?")
        transcript.answered(63, wrote=30_100, model="claude-opus-4-5")
        transcript.asked(90, "and?")
        transcript.answered(93, read=1_000, wrote=30_000, model="claude-opus-4-5")
        transcript.write(projects)
        causes = {each["likely_cause"]: each["events"] for each in audit(call)["rewritten_while_alive"]}
        assert causes == {"another model": 1, "system prompt or tools changed": 1}

    def test_a_compaction_begins_the_history_again(self, projects: Path, call: Call) -> None:
        transcript = ClaudeTranscript()
        transcript.asked(0, "hello")
        transcript.answered(3, wrote=100_000)
        transcript.line("system", 60, subtype="compact_boundary")
        transcript.asked(61, "summary of what was done", isCompactSummary=True)
        transcript.answered(65, read=20_000, wrote=2_000)
        transcript.write(projects)
        report = audit(call)
        assert report["rewritten_while_alive"] == []
        assert report["parts_dollars"]["rewritten_after_compaction"] == pytest.approx(2_010 * WRITE_5M, rel=0.01)

    def test_the_results_that_cost_most_are_named(self, projects: Path, call: Call) -> None:
        long_session("s1", pause_s=10).write(projects)
        largest = audit(call, "--names")["results"][0]
        assert (largest["tool"], largest["requests"]) == ("Read", 6)
        assert largest["subject"] == "project/file0"
        # It is written twice, the second time because the provider had lost its cache, and read four times.
        expected = largest["tokens"] * (2 * WRITE_5M + 4 * READ)
        assert largest["dollars"] == pytest.approx(expected, rel=0.02)


class TestSaving:
    def test_results_are_left_out_after_a_pause(self, projects: Path, call: Call) -> None:
        """Two of the five results are old enough: about 6,000 tokens are not written again."""
        long_session("s1", pause_s=400).write(projects)
        saved = audit(call)["with_proxy"]
        assert saved["saved_dollars"] == pytest.approx(3 * 2_950 * WRITE_5M, rel=0.05)
        assert saved["conversations_dearer"] == 0

    def test_results_are_left_out_when_the_prefix_is_broken_anyway(self, projects: Path, call: Call) -> None:
        """The cache was alive, but the host had changed its system prompt or tools, so all was written again."""
        long_session("s1", pause_s=10).write(projects)
        saved = audit(call)["with_proxy"]
        assert saved["saved_dollars"] == pytest.approx(3 * 2_950 * WRITE_5M, rel=0.05)

    def test_nothing_is_left_out_while_the_cache_is_alive(self, projects: Path, call: Call) -> None:
        with_kept_cache(long_session("s1", pause_s=400, hour=True)).write(projects)
        report = audit(call)
        assert report["with_proxy"]["saved_dollars"] == 0
        # The same conversation with a cache of five minutes would have paid for the pause.
        lives = report["by_cache_life"]
        assert lives["5m"]["saved_percent"] > 5 + lives["1h"]["saved_percent"]

    def test_nothing_is_left_out_for_another_model(self, projects: Path, call: Call) -> None:
        """The cache of the model before still holds the results, and the next request may go back to it."""
        transcript = long_session("s1", pause_s=10)
        *lines, last = transcript.lines
        transcript.lines = [*lines, last.replace(MODEL, "claude-opus-4-5")]
        transcript.write(projects)
        assert audit(call)["with_proxy"]["saved_dollars"] == 0

    def test_a_conversation_that_would_have_cost_more_is_reported(self, projects: Path, call: Call) -> None:
        """The provider had kept its cache longer than it promises, so leaving results out would have cost money."""
        with_kept_cache(long_session("s1", pause_s=400)).write(projects)
        saved = audit(call)["with_proxy"]
        assert saved["conversations_dearer"] == 1
        assert saved["saved_dollars"] < 0 < saved["worst_percent"]

    def test_the_simulation_is_compared_with_the_bill(self, projects: Path, call: Call) -> None:
        long_session("s1", pause_s=400).write(projects)
        simulation = audit(call)["simulation"]
        assert simulation["with_recorded_breaks_percent"] == pytest.approx(100, abs=1)
        assert simulation["median_error_percent"] < 1


class TestCodex:
    def test_a_rollout_is_read_with_its_usage(self, projects: Path, call: Call, tmp_path: Path) -> None:
        rollout = tmp_path / "home" / ".codex" / "sessions" / "2026" / "03" / "01" / "rollout-1.jsonl"
        output = "text " * 3_000
        items: list[tuple[str, object]] = [
            ("session_meta", {"id": "c1", "cwd": "/home/me/project", "cli_version": "0.169.0"}),
            ("turn_context", {"model": "gpt-5"}),
            ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
            (
                "response_item",
                {"type": "function_call", "call_id": "f1", "name": "shell", "arguments": '{"command": ["ls"]}'},
            ),
            ("event_msg", token_count(10_000, 0, 50, total=10_050)),
            ("event_msg", token_count(10_000, 0, 50, total=10_050)),
            ("response_item", {"type": "function_call_output", "call_id": "f1", "output": output}),
            (
                "response_item",
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
            ),
            ("event_msg", token_count(13_800, 10_000, 20, total=23_870)),
            ("turn_context", {"model": "gpt-5.6"}),
            (
                "response_item",
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
            ),
            ("event_msg", token_count(13_900, 13_000, 20, total=37_790, cache_write_input_tokens=800)),
        ]
        write_rollout(rollout, items)
        report = audit(call, "--names")
        spent = (10_000 + 3_800) * 1.25e-6 + 10_000 * 0.125e-6 + 70 * 10e-6
        # Newer models charge for writing to the cache.
        spent += 100 * 4e-6 + 13_000 * 0.4e-6 + 800 * 5e-6 + 20 * 20e-6
        assert report["spent_dollars"] == pytest.approx(spent, abs=1e-4)
        assert (report["requests"], report["results"][0]["subject"]) == (3, "ls")

    def test_a_fork_that_repeats_its_parents_usage_is_counted_once(
        self, projects: Path, call: Call, tmp_path: Path
    ) -> None:
        """Codex copied a parent's lines into its forks and subagents, with the time of the copy; the parent goes on."""
        sessions = tmp_path / "home" / ".codex" / "sessions"
        first, second, third = (token_count(10_000 * n, 5_000, n, total=10_000 * n) for n in (1, 2, 3))
        parent = [("session_meta", {"id": "p", "cwd": "/p"}), *with_usage(first, second)]
        copied = [("session_meta", {"id": "p", "cwd": "/p"}), *with_usage(first, second)]
        # The second subagent's own first request is as large as one of its parent's.
        for name, own in (("c1", token_count(9_000, 0, 9, total=9_000)), ("c2", first)):
            source = {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}
            meta = ("session_meta", {"id": name, "cwd": "/p", "forked_from_id": "p", "source": source})
            write_rollout(sessions / f"rollout-2-{name}.jsonl", [meta, *copied, *with_usage(own)], at_s=1_000)
        write_rollout(sessions / "rollout-1-p.jsonl", [*parent, *with_usage(third)])
        report = audit(call, "--names")
        rows = {row["id"]: (row["subagent"], row["requests"]) for row in report["largest_conversations"]}
        assert rows == {"p": (False, 3), "c1": (True, 1), "c2": (True, 1)}

    def test_a_fork_carries_the_results_of_its_parent(self, projects: Path, call: Call, tmp_path: Path) -> None:
        """Codex names the parent and the end of what it took, which may itself be in a parent."""
        sessions = tmp_path / "home" / ".codex" / "sessions"
        names = [f"01a1f5ce-0000-7000-8000-00000000000{number}" for number in range(3)]
        read: list[tuple[str, object]] = [
            ("response_item", {"type": "function_call", "call_id": "f1", "name": "shell", "arguments": "{}"}),
            ("event_msg", token_count(10_000, 0, 50, total=10_050)),
            ("response_item", {"type": "function_call_output", "call_id": "f1", "output": "text " * 3_000}),
            ("event_msg", token_count(13_800, 10_000, 20, total=23_870)),
        ]
        for number, name in enumerate(names):
            base = {"thread_id": names[max(0, number - 1)], "end_ordinal_exclusive": 20 * number}
            meta = {"id": name, "cwd": "/p"} | ({"forked_from_id": names[0], "history_base": base} if number else {})
            own = with_usage(token_count(13_900 + number, 13_800, 9, total=40_000 + number))
            lines = [("session_meta", meta), *(own if number else [*own[:1], *read, *own[1:]])]
            write_rollout(sessions / f"rollout-{number}-{name}.jsonl", lines, ordinal=20 * number)
        report = audit(call, "--names")
        assert report["requests"] == 2 + 3
        (result,) = {(each["tool"], each["tokens"]) for each in report["results"]}
        assert result == ("shell", pytest.approx(3_800, rel=0.1))
        assert sorted(each["requests"] for each in report["results"]) == [1, 1, 2]

    def test_a_compressed_rollout_is_counted_as_unreadable(self, projects: Path, call: Call, tmp_path: Path) -> None:
        sessions = tmp_path / "home" / ".codex" / "sessions"
        sessions.mkdir(parents=True)
        (sessions / "rollout-1.jsonl.zst").write_bytes(b"(\xb5/\xfd")
        assert audit(call)["left_out"]["unreadable_files"] == 1


class TestRules:
    def test_the_rules_add_up_to_what_the_proxy_saves(self, projects: Path, call: Call) -> None:
        long_session("s1", pause_s=400).write(projects)
        long_session("s2", pause_s=10).write(projects)
        report = audit(call, "--names")
        saved = {each["rule"]: each["saved_dollars"] for each in report["rules"]}
        assert sum(saved.values()) == pytest.approx(report["with_proxy"]["saved_dollars"], abs=1e-3)
        rows = {row["id"].strip(): row["saved_dollars_by_rule"] for row in report["largest_conversations"]}
        # After the pause the first rule does it; behind a broken prefix the second.
        assert rows["s1"]["results_after_a_pause"] == pytest.approx(3 * 2_950 * WRITE_5M, rel=0.05)
        assert rows["s1"]["results_behind_a_broken_prefix"] == 0
        assert rows["s2"]["results_after_a_pause"] == 0
        assert rows["s2"]["results_behind_a_broken_prefix"] == pytest.approx(3 * 2_950 * WRITE_5M, rel=0.05)

    def test_the_conversations_that_would_have_cost_more_are_listed(self, projects: Path, call: Call) -> None:
        with_kept_cache(long_session("s1", pause_s=400)).write(projects)
        long_session("s2", pause_s=400).write(projects)
        (dearer,) = audit(call, "--names")["dearer_conversations"]
        assert (dearer["id"].strip(), dearer["saved_dollars"] < 0) == ("s1", True)


class TestRealPrograms:
    """Transcripts that the programs have written, with a scripted provider: resumed, forked, compacted, a subagent.

    All longer texts in them are replaced by as many letters. The bills are what the provider has counted.
    """

    # Claude Code does not record the usage of the request for a summary.
    BILLS: ClassVar = {
        "claude-code-2.1.327": (11, 0.334398 - 0.014649, 1, 3),
        "claude-code-2.1.197": (10, 0.404440 - 0.015719, 1, 3),
        "codex-0.169.0": (7, 0.065442, 0, 2),
    }

    @pytest.mark.parametrize("name", BILLS)
    def test_the_bill_is_the_providers(self, name: str, projects: Path, call: Call, tmp_path: Path) -> None:
        files = json.loads(lzma.decompress((RECORDED / f"{name}.json.xz").read_bytes()))
        for path, file in files.items():
            below = tmp_path / "home" / path
            below.parent.mkdir(parents=True, exist_ok=True)
            below.write_text(file["text"])
            os.utime(below, (file["mtime"], file["mtime"]))
        report = audit(call)
        requests, dollars, compactions, conversations = self.BILLS[name]
        assert (report["requests"], report["conversations"]) == (requests, conversations)
        assert report["spent_dollars"] == pytest.approx(dollars, abs=1e-4)
        left_out = {reason: count for reason, count in report["left_out"].items() if count}
        assert left_out == ({"compactions": compactions} if compactions else {})


class TestBadInput:
    def test_broken_and_long_lines_are_counted_and_skipped(self, projects: Path, call: Call) -> None:
        transcript = long_session("s1", pause_s=10)
        transcript.lines.insert(3, "{not json")
        transcript.lines.insert(5, json.dumps([1, 2]))
        transcript.lines.insert(6, '{"type": "user", "message": "' + "x" * LINE_MAX_BYTES + '"}')
        transcript.lines.insert(7, json.dumps({"type": "assistant", "message": {"content": 7, "usage": {"x": -1}}}))
        transcript.lines.insert(8, "[" * 100_000)
        transcript.write(projects, tail='{"type": "assistant", "mess')
        report = audit(call)
        assert report["requests"] == 7
        assert report["left_out"]["broken_lines"] == 4
        assert report["left_out"]["long_lines"] == 1

    def test_values_that_no_host_writes_are_read_or_left_out(self, projects: Path, call: Call, tmp_path: Path) -> None:
        """Half of a character is what is left of a text that was cut; the others are another program's mistakes."""
        for number, at in enumerate(("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "soon")):
            transcript = ClaudeTranscript(f"time{number}")
            transcript.asked(0, "hello")
            transcript.answered(3, wrote=20_000)
            transcript.lines = [line.replace(line.split('"timestamp": "')[1][:20], at) for line in transcript.lines]
            transcript.write(projects)
        empty = ClaudeTranscript("empty")
        for _ in range(2):
            empty.line("assistant", 0, message={"id": "m", "model": MODEL, "content": [], "usage": {}})
        empty.write(projects)
        odd = ClaudeTranscript("odd\ud800", cwd="/home/me/\ud800")
        odd.asked(0, "\udfff" * 100)
        odd.answered(
            3, call_of("a", "Read\ud800", file_path="/\ud800"), call_of("b", "WebFetch", url="https://exa\u2100mple/")
        )
        odd.asked(6, [*result("a", "text \ud800" * 500), *result("b", "more " * 500)])
        odd.answered(9, read=20_000, wrote=10**30)
        odd.write(projects, "odd")
        page = tmp_path / "page.html"
        report = audit(call, "--names", "--html", page)
        assert (report["requests"], report["left_out"]["requests_without_usage"]) == (2, 4)
        assert len(report["results"]) == 2
        assert "/home/me/" in page.read_text(encoding="utf-8")
        assert "/home/me/" in call("audit").out.decode()

    def test_a_file_that_is_no_file_is_not_read(self, tmp_path: Path, call: Call) -> None:
        """Nobody may ever write into a pipe."""
        os.mkfifo(tmp_path / "pipe.jsonl")
        assert call("audit", tmp_path / "pipe.jsonl").code == 6
        ran = call("audit", tmp_path)
        assert (ran.code, str(tmp_path) in ran.err) == (0, True)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_what_cannot_be_read_is_counted(self, tmp_path: Path) -> None:
        folder = tmp_path / "transcripts"
        long_session("s1", pause_s=10).write(folder)
        long_session("s2", pause_s=10).write(folder).chmod(0)
        long_session("s3", pause_s=10).write(folder / "closed")
        (folder / "closed").chmod(0)
        report = json.loads(as_nobody(tmp_path, "audit", "--json", str(folder)).stdout)
        assert (report["requests"], report["left_out"]["unreadable_files"]) == (7, 2)

    def test_links_to_transcripts_are_read(self, projects: Path, call: Call, tmp_path: Path) -> None:
        path = long_session("s1", pause_s=10).write(tmp_path / "elsewhere")
        projects.mkdir(parents=True)
        (projects / "a.jsonl").symlink_to(path)
        (projects / "b.jsonl").symlink_to(path)
        (projects / "gone.jsonl").symlink_to(tmp_path / "nothing")
        (projects / "round").symlink_to(projects)
        assert audit(call)["requests"] == 7

    def test_transcripts_are_where_the_hosts_variables_say(
        self, projects: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long_session("s0", pause_s=10).write(projects)
        for name in ("one", "two"):
            long_session(name, pause_s=10).write(tmp_path / name / "projects" / "-p")
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", f"{tmp_path}/one, {tmp_path}/two,{tmp_path}/none,{tmp_path}/one")
        monkeypatch.setenv("CODEX_HOME", f"{tmp_path}/codex")
        write_rollout(tmp_path / "codex/archived_sessions/rollout-1.jsonl", with_usage(token_count(9, 0, 9, total=18)))
        assert audit(call)["requests"] == 7 + 7 + 1

    def test_a_transcript_of_a_version_without_usage_is_counted(self, projects: Path, call: Call) -> None:
        """The first versions of Codex wrote the items alone."""
        sessions = projects.parents[2] / ".codex" / "sessions"
        sessions.mkdir(parents=True)
        lines = [{"id": "c1", "timestamp": moment(0)}, {"type": "message", "role": "user", "content": "hello"}]
        (sessions / "rollout-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = audit(call)
        assert (report["requests"], report["left_out"]["transcripts_without_requests"]) == (0, 1)

    def test_a_model_without_a_price_is_left_out_of_the_total(self, projects: Path, call: Call) -> None:
        transcript = ClaudeTranscript()
        transcript.asked(0, "hello")
        transcript.answered(3, wrote=20_000, model="claude-fable-99")
        transcript.write(projects)
        report = audit(call)
        assert (report["requests"], report["left_out"]["requests_of_unknown_models"]) == (0, 1)

    def test_without_transcripts_it_says_where_it_looked(self, projects: Path, call: Call) -> None:
        ran = call("audit")
        assert (ran.code, ran.out) == (0, b"")
        assert "CLAUDE_CONFIG_DIR" in ran.err

    def test_a_path_that_is_not_there_is_an_error(self, projects: Path, call: Call) -> None:
        assert call("audit", projects / "nothing").code == 6

    def test_a_page_that_exists_is_not_replaced(self, projects: Path, call: Call, tmp_path: Path) -> None:
        long_session("s1", pause_s=10).write(projects)
        page = tmp_path / "page.html"
        page.write_text("mine")
        assert call("audit", "--html", page).code == 6
        assert page.read_text() == "mine"


class TestNames:
    SECRET = "sk-ant-api03-" + "k" * 40

    @pytest.fixture
    def planted(self, projects: Path) -> None:
        transcript = ClaudeTranscript("s-private", cwd="/home/ann/acme-merger")
        transcript.asked(0, f"<script>alert(1)</script> our plan {self.SECRET}")
        transcript.answered(
            3, call_of("a", "mcp__acme__lookup", file_path="/home/ann/acme-merger/<b>salaries.csv"), wrote=9_000
        )
        transcript.asked(4, result("a", f"salaries {self.SECRET} " * 500))
        block = call_of("b", "Bash", command=f"curl -H 'Authorization: Bearer {self.SECRET}' https://acme.example")
        transcript.answered(9, block, read=9_000, wrote=6_000)
        transcript.asked(10, result("b", "more " * 2_000))
        transcript.answered(15, read=15_000, wrote=4_000)
        transcript.write(projects)

    @pytest.mark.usefixtures("planted")
    def test_json_and_page_name_nothing_by_default(self, call: Call, tmp_path: Path) -> None:
        text = json.dumps(audit(call))
        page = tmp_path / "page.html"
        assert call("audit", "--html", page).code == 0
        for output in (text, page.read_text()):
            for planted in ("acme", "ann", "salaries", "curl", "plan", "alert", "s-private", self.SECRET):
                assert planted not in re.sub(r"<style>.*</style>", "", output, flags=re.DOTALL).lower().replace(
                    "planned", ""
                ), planted

    @pytest.mark.usefixtures("planted")
    def test_names_are_escaped_on_the_page_and_no_secret_is_among_them(self, call: Call, tmp_path: Path) -> None:
        page = tmp_path / "page.html"
        assert call("audit", "--names", "--html", page).code == 0
        text = page.read_text()
        assert "acme-merger/&lt;b&gt;salaries.csv" in text
        assert "<b>" not in text
        assert self.SECRET not in text
        assert self.SECRET not in call("audit").out.decode()

    def test_a_models_name_tells_no_account_and_a_command_no_variable(self, projects: Path, call: Call) -> None:
        transcript = ClaudeTranscript()
        transcript.asked(0, "hello")
        model = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
        command = call_of("a", "Bash", command="GITHUB_TOKEN=hunter2 gh pr list")
        transcript.answered(3, command, wrote=20_000, model=model)
        transcript.asked(6, result("a", "text " * 500))
        transcript.answered(9, read=20_000, wrote=700, model=model)
        transcript.write(projects)
        report = audit(call, "--names")
        assert [row["model"] for row in report["models"]] == ["claude-sonnet-4-5"]
        assert report["results"][0]["subject"] == ""

    @pytest.mark.usefixtures("planted")
    def test_nothing_is_written(self, call: Call, tmp_path: Path) -> None:
        before = sorted(tmp_path.rglob("*"))
        assert call("audit").code == 0
        assert sorted(tmp_path.rglob("*")) == before


def with_kept_cache(transcript: ClaudeTranscript) -> ClaudeTranscript:
    """A long session whose last request read everything from the cache."""
    *lines, last = transcript.lines
    counts = {"cache_read_input_tokens": 32_000, "cache_creation_input_tokens": 200}
    for name, count in counts.items():
        last = re.sub(rf'"{name}": \d+', f'"{name}": {count}', last)
    transcript.lines = [*lines, last]
    return transcript


def call_block(call_id: str) -> dict[str, Any]:
    return call_of(call_id, file_path=f"/home/me/project/{call_id}")


def with_usage(*counts: object) -> list[tuple[str, object]]:
    """The items of a turn for each count."""
    turn: list[tuple[str, object]] = [
        ("turn_context", {"model": "gpt-5"}),
        ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
    ]
    return [item for count in counts for item in (*turn, ("event_msg", count))]


def write_rollout(path: Path, items: Sequence[tuple[str, object]], *, at_s: float = 0, ordinal: int = 0) -> None:
    lines = [
        json.dumps({"timestamp": moment(at_s + number), "ordinal": ordinal + number, "type": kind, "payload": payload})
        for number, (kind, payload) in enumerate(items)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def token_count(input_tokens: int, cached: int, output: int, *, total: int, **more: int) -> object:
    usage = {"input_tokens": input_tokens, "cached_input_tokens": cached, "output_tokens": output, **more}
    info = {"last_token_usage": usage, "total_token_usage": {"total_tokens": total}}
    return {"type": "token_count", "info": info}
