"""The daemon at its limits: too many calls, a full context, a locked store, invalid settings."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from contextfold.serve.mcp.fold_tools import FOLD_TOOLS
from tests.support.daemon import RPC, Daemon, Http, HttpAgent, Refused, Reply
from tests.support.machine import Call
from tests.support.waiting import until

LIMIT_REACHED = -32004


class TestLockedStore:
    def test_writes_fail_soon_and_reads_are_answered(self, tmp_path: Path) -> None:
        """Another program has locked the file. No call waits until other calls have timed out."""
        with Daemon(tmp_path) as daemon, HttpAgent(daemon.port) as agent:
            recorded = agent.call("context_record", project_path="/p", type="t", tokens=1)
            lock = sqlite3.connect(daemon.store, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            refused: list[Refused] = []

            def call() -> None:
                caller = HttpAgent(daemon.port)
                try:
                    caller.call("context_record", project_path="/p", type="t", tokens=1)
                except Refused as error:
                    refused.append(error)
                finally:
                    caller.close()

            threads = [threading.Thread(target=call) for _ in range(12)]
            for thread in threads:
                thread.start()
            assert agent.call("context_branch_status", project_path="/p")["session_id"] == recorded["session_id"]
            for thread in threads:
                thread.join()
            assert [error.message for error in refused] == ["State store is unavailable"] * 12
            lock.execute("ROLLBACK")
            lock.close()
            response = agent.call("context_record", project_path="/p", type="t", tokens=1)
            # None of the refused calls was recorded later.
            assert response["context_state"]["main_thread_tokens"] == 2


def first_refused_reply(daemon: Daemon, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """The first reply that reports the rate limit. After a second without requests, one more is accepted."""
    with Http(daemon.port) as http:
        replies: list[Reply] = []

        def is_refused() -> bool:
            replies.extend(http.ask("POST", path, body, headers) for _ in range(2))
            return bool(replies[-1].json.get("error", {}).get("code") == LIMIT_REACHED)

        until(is_refused)
    return replies[-1]


class TestLimits:
    def refusal(self, agent: HttpAgent) -> Refused | None:
        try:
            agent.call("context_branch_status", project_path="/p")
        except Refused as error:
            return error
        return None

    def test_the_rate_limit_error_has_the_limit_and_its_value(self, tmp_path: Path) -> None:
        env = {"CONTEXT_RATE_PER_SECOND": "1", "CONTEXT_RATE_BURST": "3"}
        with Daemon(tmp_path, env=env) as daemon, HttpAgent(daemon.port) as agent:
            recorded = agent.call("context_record", project_path="/p", type="t", tokens=1)
            refused = [error for _ in range(20) if (error := self.refusal(agent))]
            assert {error.code for error in refused} == {-32004}
            assert agent.state["session_id"] == recorded["session_id"]
            assert refused[0].data == {"limit": "calls_per_second", "value": 1}
            assert "1" in refused[0].message

    def test_every_message_counts_for_the_rate(self, tmp_path: Path) -> None:
        with Daemon(tmp_path, env={"CONTEXT_RATE_PER_SECOND": "1", "CONTEXT_RATE_BURST": "1"}) as daemon:
            ping = b'{"jsonrpc":"2.0","id":"me","method":"ping"}'
            for body, message_id in ((ping, "me"), (b"nonsense", None)):
                response = first_refused_reply(daemon, "/mcp", body, RPC).json
                assert (response["id"], response["error"]["code"]) == (message_id, -32004)
            reply = first_refused_reply(daemon, "/v1/operations", b"{}", {})
            assert reply.status == 429
            assert reply.json["error"]["data"] == {"kind": "limit_reached", "limit": "calls_per_second", "value": 1}

    def test_the_hard_limit_is_an_error_of_its_own_kind(self, tmp_path: Path) -> None:
        with Daemon(tmp_path, env={"CONTEXT_HARD_LIMIT": "on", "CONTEXT_LIMIT_TOKENS": "100"}) as daemon:
            with HttpAgent(daemon.port) as agent:
                agent.call("context_record", project_path="/q", type="t", tokens=90)
                with pytest.raises(Refused) as without_branch:
                    agent.call("context_branch", description="d", prompt="p" * 80, project_path="/q")
                agent.call("context_branch", description="d", prompt="pppp", project_path="/p")
                agent.call("context_record", project_path="/p", type="t", tokens=90)
                with pytest.raises(Refused) as raised:
                    agent.call("context_branch", description="d", prompt="p" * 80, project_path="/p")
            assert without_branch.value.code == -32001
            assert "context_fold" in without_branch.value.data["suggestion"]
            assert (raised.value.code, raised.value.message) == (-32001, "Context limit exceeded: 111/100 tokens")
            assert raised.value.data == {
                "current_tokens": 111,
                "context_limit": 100,
                "suggestion": "Fold current branch before continuing",
                "kind": "context_limit",
            }


class TestStarting:
    @pytest.mark.parametrize(
        ("argv", "message"),
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
    def test_an_invalid_setting_ends_the_daemon_with_a_message(self, call: Call, argv: list[str], message: str) -> None:
        result = call("serve", *argv)
        assert result.code == 1
        assert message in result.err
        assert result.out == b""

    def test_options_override_variables_and_variables_override_the_file(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text('context_limit = 1000\nbranch_depth = 1\ntools = "fold"\n')
        env = {"CONTEXT_LIMIT_TOKENS": "2000", "CONTEXT_TOOLS": "resolve,fold"}
        with (
            Daemon(tmp_path, "--config", str(config), "--tools", "fold", env=env) as daemon,
            HttpAgent(daemon.port) as agent,
        ):
            assert agent.call("context_branch_status", project_path="/p")["context_limit"] == 2000
            assert len(agent.rpc("tools/list", {})["tools"]) == len(FOLD_TOOLS)
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            with pytest.raises(Refused, match="branch depth is 1"):
                agent.call("context_branch", description="d", prompt="p", project_path="/p")
