"""The daemon at its limits: too many calls, too full a context, a store that hangs, settings that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from contextfold.serve.mcp.fold_tools import FOLD_TOOLS
from tests.support.clauses import covers
from tests.support.daemon import RPC, Daemon, Http, HttpAgent, Refused, Reply
from tests.support.machine import Call
from tests.support.waiting import until

LIMIT_REACHED = -32004


class TestAStoreThatHangs:
    def test_calls_fail_soon_and_who_only_looks_is_answered(self, tmp_path: Path) -> None:
        """Another program has locked the file: no call waits for the timeouts of the others."""
        running = Daemon(tmp_path)
        try:
            agent = HttpAgent(running.port)
            begun = agent.call("context_record", project_path="/p", type="t", tokens=1)
            holder = sqlite3.connect(running.store, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            refused: list[Refused] = []

            def call() -> None:
                caller = HttpAgent(running.port)
                try:
                    caller.call("context_record", project_path="/p", type="t", tokens=1)
                except Refused as problem:
                    refused.append(problem)
                finally:
                    caller.close()

            threads = [threading.Thread(target=call) for _ in range(12)]
            for thread in threads:
                thread.start()
            assert agent.call("context_branch_status", project_path="/p")["session_id"] == begun["session_id"]
            for thread in threads:
                thread.join()
            assert [problem.message for problem in refused] == ["State store is unavailable"] * 12
            holder.execute("ROLLBACK")
            holder.close()
            told = agent.call("context_record", project_path="/p", type="t", tokens=1)
            # None of the refused calls was recorded later.
            assert told["context_state"]["main_thread_tokens"] == 2
            agent.close()
        finally:
            assert running.stop() == 0


def refused(running: Daemon, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """The first reply that reports the rate limit. If a second passes before a request, that request is accepted."""
    http = Http(running.port)
    replies: list[Reply] = []

    def is_refused() -> bool:
        replies.extend(http.ask("POST", path, body, headers) for _ in range(2))
        return bool(replies[-1].json.get("error", {}).get("code") == LIMIT_REACHED)

    until(is_refused)
    http.close()
    return replies[-1]


class TestLimits:
    def refusal(self, agent: HttpAgent) -> Refused | None:
        try:
            agent.call("context_branch_status", project_path="/p")
        except Refused as problem:
            return problem
        return None

    @covers("folding.md#errors")
    def test_calls_beyond_the_rate_are_told_which_limit_and_its_value(self, tmp_path: Path) -> None:
        env = {"CONTEXT_RATE_PER_SECOND": "1", "CONTEXT_RATE_BURST": "3"}
        running = Daemon(tmp_path, env=env)
        try:
            agent = HttpAgent(running.port)
            begun = agent.call("context_record", project_path="/p", type="t", tokens=1)
            refused = [problem for _ in range(20) if (problem := self.refusal(agent))]
            assert {problem.code for problem in refused} == {-32004}
            assert agent.state["session_id"] == begun["session_id"]
            assert refused[0].data == {"limit": "calls_per_second", "value": 1}
            assert "1" in refused[0].message
            agent.close()
        finally:
            assert running.stop() == 0

    def test_every_message_counts_not_only_calls(self, tmp_path: Path) -> None:
        running = Daemon(tmp_path, env={"CONTEXT_RATE_PER_SECOND": "1", "CONTEXT_RATE_BURST": "1"})
        try:
            ping = b'{"jsonrpc":"2.0","id":"me","method":"ping"}'
            for body, message_id in ((ping, "me"), (b"nonsense", None)):
                told = refused(running, "/mcp", body, RPC).json
                assert (told["id"], told["error"]["code"]) == (message_id, -32004)
            reply = refused(running, "/v1/operations", b"{}", {})
            assert reply.status == 429
            assert reply.json["error"]["data"] == {"kind": "limit_reached", "limit": "calls_per_second", "value": 1}
        finally:
            assert running.stop() == 0

    @covers("folding.md#shapes", "folding.md#errors", "seed-004#error-handling")
    def test_the_hard_limit_is_an_error_nobody_mistakes_for_a_timeout(self, tmp_path: Path) -> None:
        running = Daemon(tmp_path, env={"CONTEXT_HARD_LIMIT": "on", "CONTEXT_LIMIT_TOKENS": "100"})
        try:
            with closing(HttpAgent(running.port)) as agent:
                agent.call("context_branch", description="d", prompt="pppp", project_path="/p")
                agent.call("context_record", project_path="/p", type="t", tokens=90)
                with pytest.raises(Refused) as problem:
                    agent.call("context_branch", description="d", prompt="p" * 80, project_path="/p")
            assert (problem.value.code, problem.value.message) == (-32001, "Context limit exceeded: 111/100 tokens")
            assert problem.value.data == {
                "current_tokens": 111,
                "context_limit": 100,
                "suggestion": "Fold current branch before continuing",
                "kind": "context_limit",
            }
        finally:
            assert running.stop() == 0

    @covers("folding.md#errors")
    def test_the_hard_limit_does_not_advise_to_fold_a_branch_that_is_not_open(self, tmp_path: Path) -> None:
        running = Daemon(tmp_path, env={"CONTEXT_HARD_LIMIT": "on", "CONTEXT_LIMIT_TOKENS": "100"})
        try:
            with closing(HttpAgent(running.port)) as agent:
                agent.call("context_record", project_path="/p", type="t", tokens=90)
                with pytest.raises(Refused) as problem:
                    agent.call("context_branch", description="d", prompt="p" * 80, project_path="/p")
            assert problem.value.code == -32001
            assert "context_fold" in problem.value.data["suggestion"]
        finally:
            assert running.stop() == 0


class TestStarting:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["--host", "0.0.0.0"], "--token-file"),
            (["--port", "x"], "--port must be a whole number"),
            (["--tools", "all"], "--tools must be resolve, fold, fold-afterwards or resolve and one of these"),
            (["--store", "redis://x"], "there is no redis store"),
            (["--token-file", "/nowhere/tokens"], "/nowhere/tokens"),
            (["--config", "/nowhere/config"], "/nowhere/config"),
            (["--stdio", "--port", "1"], "--port is for the daemon"),
        ],
    )
    def test_a_setting_that_cannot_be_used_ends_it_with_one_line(self, call: Call, argv: list[str], said: str) -> None:
        ran = call("serve", *argv)
        assert ran.code == 1
        assert said in ran.err
        assert ran.out == b""

    @covers("folding.md#context-branch")
    def test_a_file_of_settings_counts_less_than_a_variable_and_that_less_than_a_flag(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text('context_limit = 1000\nbranch_depth = 1\ntools = "fold"\n')
        env = {"CONTEXT_LIMIT_TOKENS": "2000", "CONTEXT_TOOLS": "resolve,fold"}
        running = Daemon(tmp_path, "--config", str(config), "--tools", "fold", env=env)
        try:
            agent = HttpAgent(running.port)
            assert agent.call("context_branch_status", project_path="/p")["context_limit"] == 2000
            assert len(agent.rpc("tools/list", {})["tools"]) == len(FOLD_TOOLS)
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            with pytest.raises(Refused, match="branch depth is 1"):
                agent.call("context_branch", description="d", prompt="p", project_path="/p")
            agent.close()
        finally:
            assert running.stop() == 0
