"""Settings: their effects, their rules, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contextfold.cli.commands import parse_command_line
from contextfold.cli.setting_options import read_setting_options
from contextfold.errors import SettingsError
from contextfold.settings import SETTINGS, NatsOptions, read_daemon_settings, read_fold_settings, read_settings
from tests.support.daemon import Daemon, Http, HttpAgent
from tests.support.machine import COMMAND, SOURCE, run_command, run_program
from tests.support.waiting import until

ENVIRONMENT = {"HOME": "/home/me"}


@contextmanager
def serving_agent(folder: Path, *argv: str, **env: str) -> Iterator[HttpAgent]:
    running = Daemon(folder, *argv, env=env)
    agent = HttpAgent(running.port)
    try:
        yield agent
    finally:
        agent.close()
        assert running.stop() == 0


def report_tool_call(agent: HttpAgent) -> Any:
    """What the daemon answers to the report of a tool call in the project /p."""
    hook = {"hook_event_name": "PostToolUse", "session_id": "s", "cwd": "/p", "tool_name": "Read"}
    body = json.dumps({**hook, "tool_response": "", "tool_use_id": "u"}).encode()
    return agent.http.ask("POST", "/hooks/claude-code", body, {"content-type": "application/json"}).json


class TestEffects:
    def test_the_chosen_token_counter_is_used_and_named(self, tmp_path: Path) -> None:
        with serving_agent(tmp_path, CONTEXT_TOKEN_COUNTER="dense") as agent:
            result = agent.call("context_record", project_path="/p", type="t", content="123456789")
            assert (result["tokens"], result["counter"]) == (3, "dense")
            assert agent.result["_meta"]["contextfold/counter"] == "dense"

    def test_the_warning_follows_the_limit_and_the_thresholds(self, tmp_path: Path) -> None:
        env = {
            "CONTEXT_LIMIT_TOKENS": "100",
            "CONTEXT_WARN_MEDIUM_PERCENT": "10",
            "CONTEXT_WARN_HIGH_PERCENT": "20",
        }
        with serving_agent(tmp_path, **env) as agent:
            warnings = [
                agent.call("context_record", project_path="/p", type="t", tokens=tokens)["context_health"]["warning"]
                for tokens in (10, 1, 9, 1)
            ]
            assert warnings == ["none", "medium", "medium", "high"]

    def test_the_reminder_of_a_branch_follows_its_limit_and_can_be_switched_off(self, tmp_path: Path) -> None:
        with serving_agent(tmp_path / "limited", CONTEXT_BRANCH_LIMIT_TOKENS="7") as agent:
            # Only a conversation that hooks or the proxy see gets advice.
            report_tool_call(agent)
            agent.call("context_branch", description="d", prompt="p" * 40, project_path="/p")
            assert "is at its limit: 10 of 7 tokens" in agent.result["content"][0]["text"]
        with serving_agent(tmp_path / "silent", "--branch-reminder", "off") as agent:
            agent.call("context_branch", description="d", prompt="p" * 40, project_path="/p")
            assert "reminder" not in agent.result["content"][0]["text"]
            assert report_tool_call(agent) == {}

    def test_a_branch_beyond_the_limit_per_session_is_refused(self, tmp_path: Path) -> None:
        with serving_agent(tmp_path, CONTEXT_BRANCHES_PER_SESSION="1") as agent:
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            with pytest.raises(Exception, match="branches per session is 1"):
                agent.call("context_branch", description="d", prompt="p", project_path="/p")

    def test_a_session_ends_after_the_configured_idle_time(self, tmp_path: Path) -> None:
        with serving_agent(tmp_path, CONTEXT_SESSION_IDLE_SECS="1") as agent:
            agent.call("context_branch", description="d", prompt="p", project_path="/p")
            until(lambda: b"contextfold_sessions_open 0.0" in agent.http.ask("GET", "/metrics").body)
            assert agent.call("context_branch_status", project_path="/p")["session_id"] is None

    def test_a_value_on_the_allowlist_is_not_redacted(self, tmp_path: Path) -> None:
        value = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
        allowed = tmp_path / "allowed"
        allowed.write_text(f"# of the documentation\n{value}\n")
        with serving_agent(tmp_path, CONTEXT_SCRUB_ALLOWLIST=str(allowed)) as agent:
            result = agent.call("context_record", project_path="/p", type="t", content=f"use {value}")
            assert result["secrets_scrubbed"] == 0

    def test_without_the_fold_tools_no_store_is_opened_and_operations_are_refused(self, tmp_path: Path) -> None:
        with Daemon(tmp_path, "--tools", "resolve") as running, Http(running.port) as http:
            assert http.ask("POST", "/v1/operations", b"{}").status == 404
            assert http.ask("GET", "/readyz").status == 200
        assert not running.store.exists()

    def test_a_daemon_reads_caches_from_the_users_data_folder_by_default(self, tmp_path: Path) -> None:
        (tmp_path / "sources").mkdir()
        (tmp_path / "sources" / "a.md").write_text("text")
        caches = tmp_path / "data" / "contextfold" / "caches"
        caches.mkdir(parents=True)
        assert run_command("build", "--sources", tmp_path / "sources", "--cache", caches / "mine").code == 0
        with serving_agent(tmp_path) as agent:
            (listed,) = agent.call("context.list_caches")["caches"]
            assert "mine" in listed.values()


class TestContextd:
    def test_contextd_is_context_serve_on_the_default_store(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": "not/absolute", "CONTEXT_PORT": "0"}
        process = subprocess.Popen(
            [COMMAND.parent / "contextd"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout
        line = process.stdout.readline().decode()
        assert line.startswith("contextfold listens on http://127.0.0.1:")
        with Http(int(line.split(":")[-1].split("/")[0])) as http:
            assert http.ask("GET", "/readyz").status == 200
        assert (tmp_path / ".local" / "state" / "contextfold" / "state.db").stat().st_mode & 0o777 == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        process.stdout.close()

    def test_the_store_is_in_the_users_state_folder(self) -> None:
        store = read_daemon_settings({"XDG_STATE_HOME": "/state"}, {}).fold.store
        assert store == "/state/contextfold/state.db"


class TestRules:
    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("CONTEXT_PORT", "65536"),
            ("CONTEXT_PORT", "-1"),
            ("CONTEXT_PORT", "٣"),
            ("CONTEXT_LIMIT_TOKENS", "-1"),
            ("CONTEXT_LIMIT_TOKENS", "9" * 5000),
            ("CONTEXT_HARD_LIMIT", "yes"),
            ("CONTEXT_BRANCH_DEPTH", ""),
            ("CONTEXT_BRANCH_REMINDER", "yes"),
            ("CONTEXT_BRANCH_LIMIT_TOKENS", "half"),
            ("CONTEXT_WARN_HIGH_PERCENT", "10"),
            ("CONTEXT_TOKEN_COUNTER", "tiktoken"),
            ("CONTEXT_TOOLS", "fold,fold"),
            ("CONTEXT_STORE", "natz://server"),
            ("CONTEXT_STORE", "nats://"),
            ("CONTEXT_STORE", "nats://server:0"),
            ("CONTEXT_STORE", "nats://server/path"),
            ("CONTEXT_STORE", "nats://server,server"),
            ("CONTEXT_STORE", "nats://a b"),
            ("CONTEXT_STORE", ",".join(["nats://server"] * 17)),
            ("CONTEXT_STORE", "wss://server"),
            ("CONTEXT_STORE", "sqlite:"),
            ("CONTEXT_STORE", ""),
            ("CONTEXT_TOKEN_FILE", ""),
            ("CONTEXT_BRANCHES_PER_SESSION", "10001"),
        ],
    )
    def test_an_invalid_value_is_refused_with_one_line(self, variable: str, value: str) -> None:
        with pytest.raises(SettingsError) as raised:
            read_daemon_settings({variable: value}, {})
        assert "\n" not in str(raised.value)

    def test_a_setting_without_a_value_has_its_default(self) -> None:
        settings = read_daemon_settings(ENVIRONMENT, {})
        assert (settings.host, settings.port, settings.token_file) == ("127.0.0.1", 9090, "")
        assert settings.server.tools == ("resolve", "fold")
        assert settings.fold.context_limit == 0
        assert read_settings({"CONTEXT_CACHE_ROOT": "x"}, {}).tools == ("resolve",)

    @pytest.mark.parametrize("variable", ["CONTEXT_CONFIG", "CONTEXT_MODELS_FILE", "CONTEXT_SCRUB_ALLOWLIST"])
    def test_a_file_without_an_end_is_refused(self, variable: str) -> None:
        done = run_command("serve", "--port", "0", env={**os.environ, variable: "/dev/zero"})
        assert done.code == 1
        assert "is larger than 1 MiB" in done.err

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = 1\n", "x in the configuration file"),
            ("port = 'x'\n", "port in the configuration file"),
            ("port = 1.5\n", "port in the configuration file"),
            ("port =\n", "is not TOML"),
            ("[port]\n", "port in the configuration file"),
        ],
    )
    def test_an_invalid_configuration_file_is_refused_with_the_reason(
        self, tmp_path: Path, text: str, message: str
    ) -> None:
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(SettingsError, match=message):
            read_daemon_settings(ENVIRONMENT, {"config": str(tmp_path / "config.toml")})

    def test_every_setting_is_in_the_help_with_its_variable(self) -> None:
        page = run_command("help", "settings").out.decode()
        for setting in SETTINGS.values():
            assert setting.variable in page
            assert setting.help in page


class TestUpstreams:
    def test_the_defaults_are_the_addresses_of_the_providers(self) -> None:
        proxy = read_daemon_settings(ENVIRONMENT, {}).proxy
        assert (proxy.anthropic.url, proxy.openai.url) == ("https://api.anthropic.com", "https://api.openai.com/v1")
        assert proxy.body_max_bytes == 512 << 20

    @pytest.mark.parametrize(
        ("value", "url"),
        [
            ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
            ("https://models.example.org", "https://models.example.org"),
            ("HTTPS://models.example.org/V1", "https://models.example.org/V1"),
            ("http://[::1]:9/x/y", "http://[::1]:9/x/y"),
            ("http://10.0.0.1", "http://10.0.0.1"),
        ],
    )
    def test_an_upstream_is_a_url_with_or_without_a_path(self, value: str, url: str) -> None:
        assert read_daemon_settings(ENVIRONMENT, {"openai-upstream": value}).proxy.openai.url == url

    @pytest.mark.parametrize(
        "value",
        [
            "", "localhost:8000", "ftp://h", "http://", "http:///x", "http://user:pw@h", "http://h?x=1", "http://h/#x",
            "http://h:0", "http://h:65536", "http://h:", "http://h:x", "http://h/../x", "http://h/./x", "http://h/%2e%2e",
            "http://h/a b", "http://h\\x", "http://[::1", "http://::1", "http://h\n", "http://hö",
        ],
    )  # fmt: skip
    def test_a_url_that_cannot_be_an_upstream_is_refused(self, value: str) -> None:
        for name in ("anthropic-upstream", "openai-upstream"):
            with pytest.raises(SettingsError, match=f"--{name} must be a URL"):
                read_daemon_settings(ENVIRONMENT, {name: value})

    @pytest.mark.parametrize(
        ("environment", "through"),
        [
            ({}, ""),
            ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
            ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://q:2"}, "http://q:2"),
            ({"HTTP_PROXY": "http://p:1", "ALL_PROXY": "http://p:1"}, ""),
            ({"HTTPS_PROXY": "socks5://p:1"}, ""),
            ({"HTTPS_PROXY": "p:1"}, "http://p:1"),
            ({"HTTPS_PROXY": "http://p:99999"}, ""),
            ({"HTTPS_PROXY": "http://p:one"}, ""),
            ({"HTTPS_PROXY": "http://"}, ""),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x.org,.example.org"}, ""),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "models.example.org"}, ""),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
            ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "ample.org, example.com"}, "http://p:1"),
        ],
    )
    def test_a_network_proxy_is_used_only_for_https(self, environment: dict[str, str], through: str) -> None:
        options = {
            "anthropic-upstream": "https://models.example.org:8443/x",
            "openai-upstream": "http://models.example.org",
        }
        proxy = read_daemon_settings({**ENVIRONMENT, **environment}, options).proxy
        assert (proxy.anthropic.through, proxy.openai.through) == (through, "")
        unusable = {"socks5://p:1", "http://p:99999", "http://p:one", "http://"}
        assert (proxy.anthropic.goes_direct, proxy.openai.goes_direct) == (
            environment.get("HTTPS_PROXY") in unusable,
            False,
        )

    def test_an_upstream_is_refused_for_a_stdio_server(self) -> None:
        ran = run_command("serve", "--stdio", "--cache-root", "x", "--openai-upstream", "http://h")
        assert (ran.code, "--openai-upstream is for the daemon" in ran.err) == (1, True)


ON_NATS = {"store": "nats://one:4222"}
PASSWORD = "geheim-47-pw"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{PASSWORD}\nnot this\n")
    return str(path)


class TestNats:
    def test_only_the_servers_are_required(self) -> None:
        fold = read_fold_settings(ENVIRONMENT, {"store": "nats://one, nats://[::1]:4300/,nats://one:4222"})
        assert fold.store == ""
        assert fold.nats == NatsOptions(
            ("nats://one:4222", "nats://[::1]:4300"), "contextfold", "", 0, "", "", "", "", "", "", ""
        )

    def test_every_nats_setting_is_read(self, secret: str) -> None:
        options = {
            "store": "tls://one",
            "nats-prefix": "team-1",
            "nats-domain": "Hub_1",
            "nats-replicas": "3",
            "nats-user": "me",
            "nats-password-file": secret,
            "nats-tls-ca": __file__,
            "nats-tls-cert": secret,
            "nats-tls-key": secret,
        }
        settings = read_fold_settings(ENVIRONMENT, options).nats
        location = (("tls://one:4222",), "team-1", "Hub_1", 3)
        assert settings == NatsOptions(*location, "", "", "me", PASSWORD, __file__, secret, secret)
        for name in ("creds", "nkey"):
            assert getattr(read_fold_settings({f"CONTEXT_NATS_{name.upper()}": secret}, ON_NATS).nats, name) == secret

    def test_a_url_may_contain_a_user_whose_password_is_not_printed(self) -> None:
        settings = read_daemon_settings({"CONTEXT_STORE": f"nats://me%40here:{PASSWORD}@one,nats://two"}, {})
        assert settings.fold.nats
        assert (settings.fold.nats.user, settings.fold.nats.password) == ("me@here", PASSWORD)
        assert settings.fold.nats.servers == ("nats://one:4222", "nats://two:4222")
        assert PASSWORD not in f"{settings!r} {settings} {settings.fold.nats}"

    @pytest.mark.parametrize(
        "store",
        [
            f"natz://me:{PASSWORD}@one",
            f"nats://me:{PASSWORD}@one/path",
            f"nats://me:{PASSWORD},x@one",
            f"nats://{PASSWORD}@one",
            f"nats://me:{PASSWORD}@one,tls://two",
            f"nats://me:{PASSWORD}@one,nats://you:{PASSWORD}@two",
            f"nats://me:{PASSWORD}%ff@one",
            f"nats://me:{PASSWORD}@one:99999",
            f"nats://me:{PASSWORD}@",
            f"nats://me:x/{PASSWORD}@one",
            f"NATS:me:{PASSWORD}@one",
        ],
    )
    def test_an_invalid_store_url_is_refused_without_printing_its_password(self, store: str) -> None:
        done = run_command(
            "serve", "--store", store, "--port", "0", env={"HOME": "/nowhere", "PATH": os.environ["PATH"]}
        )
        assert (done.code, done.out) == (1, b"")
        assert "--store" in done.err
        assert done.err.count("\n") == 1
        assert PASSWORD not in done.err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"nats-user": "me"}, "need each other"),
            ({"nats-password-file": "SECRET"}, "need each other"),
            ({"nats-user": "me", "nats-password-file": "SECRET", "nats-nkey": "SECRET"}, "give one of"),
            ({"nats-creds": "SECRET", "nats-nkey": "SECRET"}, "give one of"),
            ({"store": "nats://me:pw@one", "nats-creds": "SECRET"}, "give one of"),
            ({"store": "nats://me:pw@one", "nats-user": "me"}, "given twice"),
            ({"nats-tls-ca": "SECRET"}, "tls://"),
            ({"store": "tls://one", "nats-tls-cert": "SECRET"}, "need each other"),
            ({"nats-creds": "/nowhere/file"}, "--nats-creds names /nowhere/file, which cannot be read: No such file"),
            ({"nats-nkey": ""}, "--nats-nkey is empty"),
            ({"nats-user": ""}, "--nats-user is empty"),
            ({"nats-user": "me", "nats-password-file": "/dev/null"}, "whose first line is no password"),
            ({"nats-prefix": "under_score"}, "lowercase letters, digits and dashes"),
            ({"nats-prefix": "x" * 33}, "lowercase letters, digits and dashes"),
            ({"nats-domain": "a.b"}, "letters, digits, - and _"),
            ({"nats-replicas": "6"}, "from 0 to 5"),
        ],
    )
    def test_contradicting_nats_settings_are_refused_with_one_line(
        self, secret: str, options: Mapping[str, str], message: str
    ) -> None:
        values = {name: secret if value == "SECRET" else value for name, value in options.items()}
        with pytest.raises(SettingsError, match=message) as raised:
            read_fold_settings(ENVIRONMENT, ON_NATS | values)
        assert "\n" not in str(raised.value)
        assert PASSWORD not in str(raised.value)

    def test_a_nats_option_is_refused_with_a_store_in_a_file(self) -> None:
        with pytest.raises(SettingsError, match="--nats-prefix is for a store on NATS"):
            read_fold_settings(ENVIRONMENT, {"store": "/here/state.db", "nats-prefix": "x"})

    def test_nats_variables_are_ignored_with_a_store_in_a_file(self) -> None:
        fold = read_fold_settings(ENVIRONMENT | {"CONTEXT_NATS_CREDS": "/nowhere"}, {"store": "/here/state.db"})
        assert (fold.nats, fold.store) == (None, "/here/state.db")

    def test_nats_variables_are_refused_without_a_store(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="CONTEXT_NATS_PREFIX is for a store on NATS"):
            read_fold_settings(ENVIRONMENT | {"CONTEXT_NATS_PREFIX": "x"}, {})
        (tmp_path / "config.toml").write_text("nats_replicas = 3\n")
        with pytest.raises(SettingsError, match="nats_replicas in the configuration file is for a store on NATS"):
            read_fold_settings(ENVIRONMENT, {"config": str(tmp_path / "config.toml")})

    def test_every_nats_setting_is_an_option_of_serve(self) -> None:
        options = {name: "3" for name in SETTINGS if name.startswith("nats-")}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        assert read_setting_options(parse_command_line(["serve", *words])) == options

    def test_without_the_package_the_error_names_the_extra(self, tmp_path: Path) -> None:
        """The module raises the error of a machine where only the package itself is installed."""
        (tmp_path / "nats.py").write_text("raise ModuleNotFoundError(\"No module named 'nats'\", name='nats')\n")
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCE}"}
        for words in (["serve", "--port", "0"], ["fold", "status"]):
            done = run_program(*words, "--store", "nats://127.0.0.1:1", env=env)
            assert (done.code, done.out) == (1, b"")
            assert "pip install 'contextfold[nats]'" in done.err


def test_a_stdio_server_reports_an_unusable_store(tmp_path: Path) -> None:
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
