"""What a server is told from outside, and what that changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from contextfold.settings import SETTINGS, SettingsError, daemon_settings_from, settings_from
from daemon import Daemon, Http, HttpAgent
from machine import COMMAND, context

HERE = {"HOME": "/home/me"}


@contextmanager
def served(folder: Path, *argv: str, **env: str) -> Iterator[HttpAgent]:
    running = Daemon(folder, *argv, env=env)
    agent = HttpAgent(running.port)
    try:
        yield agent
    finally:
        agent.close()
        assert running.stop() == 0


class TestWhatTheyChange:
    def test_another_counter_counts_and_is_named(self, tmp_path: Path) -> None:
        with served(tmp_path, CONTEXT_TOKEN_COUNTER="dense") as agent:
            told = agent.call("context_record", project_path="/p", type="t", content="123456789")
            assert (told["tokens"], told["counter"]) == (3, "dense")
            assert agent.result["_meta"]["contextfold/counter"] == "dense"

    def test_limit_and_thresholds_of_the_warning(self, tmp_path: Path) -> None:
        env = {
            "CONTEXT_LIMIT_TOKENS": "100",
            "CONTEXT_WARN_MEDIUM_PERCENT": "10",
            "CONTEXT_WARN_HIGH_PERCENT": "20",
        }
        with served(tmp_path, **env) as agent:
            told = [
                agent.call("context_record", project_path="/p", type="t", tokens=tokens)["context_health"]["warning"]
                for tokens in (10, 1, 9, 1)
            ]
            assert told == ["none", "medium", "medium", "high"]

    def test_branches_per_session(self, tmp_path: Path) -> None:
        with served(tmp_path, CONTEXT_BRANCHES_PER_SESSION="1") as agent:
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            with pytest.raises(Exception, match="branches per session is 1"):
                agent.call("context_branch", description="d", prompt="p", project_path="/p")

    def test_an_idle_session_ends_by_itself(self, tmp_path: Path) -> None:
        with served(tmp_path, CONTEXT_SESSION_IDLE_SECS="1") as agent:
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            ended = False
            while not ended:  # the test's own time-out is the bound
                ended = "contextfold_sessions_open 0.0" in agent.http.ask("GET", "/metrics").body.decode()
            assert agent.call("context_branch_status", project_path="/p")["session_id"] is None

    def test_what_is_on_the_allowlist_is_no_secret(self, tmp_path: Path) -> None:
        value = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
        allowed = tmp_path / "allowed"
        allowed.write_text(f"# of the documentation\n{value}\n")
        with served(tmp_path, CONTEXT_SCRUB_ALLOWLIST=str(allowed)) as agent:
            told = agent.call("context_record", project_path="/p", type="t", content=f"use {value}")
            assert told["secrets_scrubbed"] == 0

    def test_the_flag_goes_before_the_variable_for_the_resolve_tools_too(self, tmp_path: Path) -> None:
        caches = tmp_path / "caches"
        caches.mkdir()
        config = tmp_path / "odd.toml"
        config.write_text('tools = "fold"\n')
        env = {"CONTEXT_TOOLS": "fold", "CONTEXT_CACHE_ROOT": "/nowhere", "CONTEXT_CONFIG": str(config)}
        with served(tmp_path, "--tools", "resolve,fold", "--cache-root", str(caches), **env) as agent:
            assert agent.call("context.list_caches") == {"caches": []}

    def test_without_the_fold_tools_no_store_is_opened_and_nothing_is_taken(self, tmp_path: Path) -> None:
        running = Daemon(tmp_path, "--tools", "resolve")
        http = Http(running.port)
        assert http.ask("POST", "/v1/operations", b"{}").status == 404
        assert http.ask("GET", "/readyz").status == 200
        http.close()
        assert running.stop() == 0
        assert not running.store.exists()

    def test_a_daemons_caches_are_by_default_in_the_users_data_folder(self, tmp_path: Path) -> None:
        (tmp_path / "sources").mkdir()
        (tmp_path / "sources" / "a.md").write_text("text")
        caches = tmp_path / "data" / "contextfold" / "caches"
        caches.mkdir(parents=True)
        assert context("build", "--sources", tmp_path / "sources", "--cache", caches / "mine").code == 0
        with served(tmp_path) as agent:
            (listed,) = agent.call("context.list_caches")["caches"]
            assert "mine" in listed.values()


class TestContextd:
    def test_it_is_context_serve_on_the_default_store(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": "not/absolute", "CONTEXT_PORT": "0"}
        process = subprocess.Popen(
            [COMMAND.parent / "contextd"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout
        line = process.stdout.readline().decode()
        assert line.startswith("contextfold listens on http://127.0.0.1:")
        http = Http(int(line.split(":")[-1].split("/")[0]))
        assert http.ask("GET", "/readyz").status == 200
        http.close()
        assert (tmp_path / ".local" / "state" / "contextfold" / "state.db").stat().st_mode & 0o777 == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        process.stdout.close()

    def test_the_store_is_in_the_users_state_folder(self) -> None:
        told = daemon_settings_from({"XDG_STATE_HOME": "/state"}, {}).fold.store
        assert told == "/state/contextfold/state.db"


class TestRules:
    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("CONTEXT_PORT", "65536"),
            ("CONTEXT_PORT", "-1"),
            ("CONTEXT_PORT", "٣"),
            ("CONTEXT_LIMIT_TOKENS", "0"),
            ("CONTEXT_LIMIT_TOKENS", "9" * 5000),
            ("CONTEXT_HARD_LIMIT", "yes"),
            ("CONTEXT_BRANCH_DEPTH", ""),
            ("CONTEXT_WARN_HIGH_PERCENT", "10"),
            ("CONTEXT_TOKEN_COUNTER", "tiktoken"),
            ("CONTEXT_TOOLS", "fold,fold"),
            ("CONTEXT_STORE", "nats://server"),
            ("CONTEXT_STORE", "sqlite:"),
            ("CONTEXT_STORE", ""),
            ("CONTEXT_TOKEN_FILE", ""),
            ("CONTEXT_BRANCHES_PER_SESSION", "10001"),
        ],
    )
    def test_a_value_that_breaks_its_rule_is_one_line_that_says_so(self, variable: str, value: str) -> None:
        with pytest.raises(SettingsError) as refused:
            daemon_settings_from({variable: value}, {})
        assert "\n" not in str(refused.value)

    def test_a_setting_nobody_gave_has_its_default(self) -> None:
        settings = daemon_settings_from(HERE, {})
        assert (settings.host, settings.port, settings.token_file) == ("127.0.0.1", 9090, "")
        assert settings.server.tools == ("resolve", "fold")
        assert settings.fold.context_limit == 32_768
        assert settings_from({"CONTEXT_CACHE_ROOT": "x"}, {}).tools == ("resolve",)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("x = 1\n", "x in the configuration file"),
            ("port = 'x'\n", "port in the configuration file"),
            ("port = 1.5\n", "port in the configuration file"),
            ("port =\n", "is not TOML"),
            ("[port]\n", "port in the configuration file"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(SettingsError, match=said):
            daemon_settings_from(HERE, {"config": str(tmp_path / "config.toml")})

    def test_every_setting_is_in_the_help_with_its_variable(self) -> None:
        page = context("serve", "--help").out.decode()
        for setting in SETTINGS.values():
            assert setting.variable in page
            assert setting.help in page


def test_a_store_that_cannot_be_used_is_told_on_stdio_too(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("this is no database, and was here before")
    argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--tools", "fold", "--store", tmp_path / "state.db"]
    call = {"name": "context_branch_status", "arguments": {"project_path": "/p"}}
    lines: list[Mapping[str, object]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}},
        *({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call} for number in (1, 2)),
    ]
    sent = "".join(json.dumps(line) + "\n" for line in lines).encode()
    done = subprocess.run(argv, input=sent, capture_output=True, check=True, timeout=60)
    for answer in [json.loads(line) for line in done.stdout.splitlines()][1:]:
        assert answer["error"] == {"code": -32603, "message": "State store is unavailable", "data": {"retry": False}}
    assert b"move it away" in done.stderr
