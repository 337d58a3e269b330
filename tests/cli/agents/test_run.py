"""`context run`: starts a program that uses the daemon, and passes on its arguments, signals and exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from contextfold.cli.launch import Launcher
from contextfold.cli.run import summary_lines
from contextfold.hosts.programs import Daemon as Connection
from tests.support.daemon import Daemon
from tests.support.machine import COMMAND, Ran, run_command, write_files
from tests.support.upstream import Upstream
from tests.support.upstream_answers import Fail
from tests.support.waiting import until

URL = "http://127.0.0.1:9100/run/run_0123456789abcdef"
CONNECTION = Connection(URL, "", "fold-afterwards")
WITH_TOKEN = Connection(URL, "CONTEXT_TOKEN", "fold-afterwards")
RUN = re.compile(r"/run/run_[0-9a-f]{16}/")
SUMS: dict[str, Any] = {
    "requests": 3,
    "failed_requests": 0,
    "tokens_sent": 60,
    "tokens_without": 100,
    "cost_saved": 40,
    "cost_without": 100,
    "money": None,
    "outcome": "saved",
    "reasons": [],
    "last_conversation": None,
}
# Sends requests to the provider that the environment names, as many as the first argument says.
ASKS = """
import json, os, sys, urllib.error, urllib.request as u
body = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]})
headers = {"x-api-key": "sk-ant-1", "anthropic-version": "2023-06-01", "content-type": "application/json"}
for name, _, value in (line.partition(": ") for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines()):
    headers[name] = value
for _ in range(int(sys.argv[1])):
    try:
        u.urlopen(u.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body.encode(), headers)).read()
    except urllib.error.HTTPError as problem:
        print(problem.code)
"""

ASKS_OPENAI = """
import json, os, urllib.request as u
body = json.dumps({"model": "gpt-5", "input": "Hello"}).encode()
headers = {"authorization": "Bearer sk-1", "content-type": "application/json"}
u.urlopen(u.Request(os.environ["OPENAI_BASE_URL"] + "/responses", body, headers)).read()
"""

ASKS_GEMINI = """
import json, os, urllib.request as u
body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}).encode()
url = os.environ["GOOGLE_GEMINI_BASE_URL"] + "/v1beta/models/gemini-2.5-pro:generateContent"
name, _, value = os.environ["GEMINI_CLI_CUSTOM_HEADERS"].partition(": ")
headers = {"x-goog-api-key": "k", "content-type": "application/json", name: value}
u.urlopen(u.Request(url, body, headers)).read()
"""
ASKS_OF = {"claude": ASKS.replace("sys.argv[1]", "1"), "codex": ASKS_OPENAI, "gemini": ASKS_GEMINI}


def env_of(home: Path, **variables: str) -> dict[str, str]:
    # A daemon of whoever runs the tests is not used.
    nobody = {"CONTEXT_URL": "http://127.0.0.1:9"}
    return {"PATH": f"{home}/bin:{os.environ['PATH']}", "HOME": str(home), **nobody, **variables}


def run(home: Path, *argv: object, **variables: str) -> Ran:
    return run_command("run", *argv, env=env_of(home, **variables), cwd=home)


def write_program(home: Path, name: str, script: str) -> str:
    """Puts a program of this name on the path."""
    path = home / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return name


def is_listening(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


def test_a_program_gets_base_urls_its_own_arguments_and_a_running_daemon(tmp_path: Path) -> None:
    script = (
        "import os, sys, json, urllib.request as u; url = os.environ['CONTEXT_URL'];"
        "print(json.dumps([sys.argv[1:], json.load(u.urlopen(url + '/v1/daemon'))['version'],"
        " {name: value for name, value in os.environ.items() if name.endswith('BASE_URL')}]))"
    )
    ran = run(tmp_path, sys.executable, "-c", script, "--help", "-V", "--", "x")
    assert ran.code == 0
    arguments, version, variables = json.loads(ran.out)
    assert arguments == ["--help", "-V", "--", "x"]
    assert version
    assert sorted(variables) == ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL"]
    assert all(RUN.search(value) for value in variables.values())
    assert "no request to a model went through the proxy" in ran.err
    assert [path for path in tmp_path.iterdir() if path.name != ".local"] == []


def test_a_running_daemon_is_used_and_keeps_running(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "state")
    try:
        url = f"http://127.0.0.1:{daemon.port}"
        ran = run(tmp_path, "--url", url, sys.executable, "-c", "import os; print(os.environ['OPENAI_BASE_URL'])")
        assert re.fullmatch(f"{url}/run/run_[0-9a-f]{{16}}/proxy/openai/v1", ran.out.decode().strip())
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize("code", [3, 255])
def test_the_exit_status_of_the_program_is_passed_on(code: int, tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, "-c", f"raise SystemExit({code})").code == code


ASKS_DOCUMENTS = """
import json, subprocess, sys
[config] = [word.partition("=")[2] for word in sys.argv if word.startswith("--mcp-config=")]
server = json.load(open(config))["mcpServers"].get("contextfold-docs")
if server:
    call = {"name": "context.ask", "arguments": {"query": "roll back"}}
    lines = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    text = "".join(json.dumps(line) + "\\n" for line in lines)
    done = subprocess.run([server["command"], *server["args"]], input=text, capture_output=True, text=True)
    _, tools, answer = map(json.loads, done.stdout.splitlines())
    print([tool["name"] for tool in tools["result"]["tools"]], answer["result"]["content"][0]["text"])
"""


def test_an_agent_can_ask_the_documents_of_its_project(tmp_path: Path) -> None:
    write_program(tmp_path, "claude", ASKS_DOCUMENTS)
    write_files(tmp_path / "docs", {"deploy.md": "# Deploying\n\nRoll back with the last tag.\n"})
    assert run(tmp_path, "claude").out == b""
    built = run(tmp_path, "--docs", "docs", "claude")
    tools, _, text = built.out.decode().partition("] ")
    assert tools == "['context.ask', 'context.get'"
    assert text.startswith("deploy.md (lines 1-3)\nwhy: ")
    assert f"it can ask the documents in {tmp_path}/docs" in built.err
    # The cache is there now, and a later change is told.
    (tmp_path / "docs" / "deploy.md").write_text("# Deploying\n\nNever roll back.\n")
    again = run(tmp_path, "claude")
    assert "[changed since this cache was built: deploy.md; build it again]" in again.out.decode()


def test_a_missing_program_is_exit_127(tmp_path: Path) -> None:
    ran = run(tmp_path, "no-such-agent")
    assert (ran.code, ran.out) == (127, b"")
    assert "no-such-agent" in ran.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_signal_no_daemon_is_left(number: signal.Signals, tmp_path: Path) -> None:
    script = "import os, time; print(os.environ['CONTEXT_URL'], flush=True); time.sleep(60)"
    argv = [str(COMMAND), "run", sys.executable, "-c", script]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env_of(tmp_path), cwd=tmp_path, start_new_session=True)
    assert process.stdout
    port = int(process.stdout.readline().decode().rpartition(":")[2])
    try:
        process.send_signal(number)
        assert process.wait(60) == (128 + number if number == signal.SIGTERM else -number)
        until(lambda: not is_listening(port))
    finally:
        # After a kill the program is still there.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


class TestSums:
    def test_the_last_line_counts_exactly_the_requests_of_the_run(self, upstream: Upstream, tmp_path: Path) -> None:
        with Daemon(tmp_path / "state", *upstream.argv()) as daemon:
            for count in (1, 2):
                ran = run(tmp_path, "--url", daemon.url, sys.executable, "-c", ASKS, count)
                (line,) = [line for line in ran.err.splitlines() if "sent" in line]
                assert line.startswith(f"note: {count} request{'s' if count > 1 else ''} sent ")
                assert "nothing was saved" in line
                sent = sum(billed.prompt for billed in upstream.billed[-count:])
                assert f"sent {sent:,} tokens" in line

    def test_a_provider_that_fails_is_named(self, upstream: Upstream, tmp_path: Path) -> None:
        upstream.script = lambda _body, _api: Fail(529, "overloaded_error")
        ran = run(tmp_path, sys.executable, "-c", ASKS, 2, CONTEXT_ANTHROPIC_UPSTREAM=upstream.url)
        assert "2 requests to a model went through the proxy and failed at the provider" in ran.err

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"outcome": "no_requests", "requests": 0}, "no request to a model went through the proxy"),
            ({}, "3 requests sent 60 tokens; without folding 100; saved 40 input tokens' worth (40 %)"),
            ({"failed_requests": 1}, "without folding 100; 1 request failed at the provider; saved 40 input"),
            ({"outcome": "cost_more", "cost_saved": -20}, "cost 20 input tokens' worth more (20 %)"),
            ({"money": {"saved_micros": 2_000, "without_micros": 10_000}}, "saved <$0.01 (20 %)"),
            ({"outcome": "no_saving", "reasons": ["Nothing was folded."]}, "nothing was saved: Nothing was folded."),
        ],
    )
    def test_the_last_line_tells_the_outcomes_apart(self, changes: Mapping[str, Any], message: str) -> None:
        (line,) = summary_lines({**SUMS, **changes}, "my-agent", [])
        assert message in line

    @pytest.mark.parametrize(
        ("program", "last", "words"),
        [
            ("claude", {"host_session_id": "b1d2"}, "claude --resume b1d2"),
            ("claude", {"host_session_id": None}, "claude --continue"),
            ("codex", None, "codex resume --last"),
            ("opencode", None, "opencode --continue"),
            ("gemini", None, "gemini --resume latest"),
        ],
    )
    def test_the_way_to_go_on_leads_through_the_proxy(self, program: str, last: object, words: str) -> None:
        _, line = summary_lines({**SUMS, "last_conversation": last}, program, ["--tools", "fold"])
        assert line == f"to go on through the proxy: context run --tools fold {words}"


class TestSecrets:
    def test_only_the_run_knows_the_token_of_its_daemon(self, upstream: Upstream, tmp_path: Path) -> None:
        script = (
            "import os, urllib.request as u, urllib.error\n"
            "url, token = os.environ['CONTEXT_URL'] + '/v1/sessions', os.environ['CONTEXT_TOKEN']\n"
            "print(u.urlopen(u.Request(url, headers={'Authorization': 'Bearer ' + token})).status)\n"
            "try: u.urlopen(url)\n"
            "except urllib.error.HTTPError as problem: print(problem.code)\n"
        )
        write_program(tmp_path, "claude", script + ASKS.replace("sys.argv[1]", "1"))
        ran = run(tmp_path, "claude", CONTEXT_ANTHROPIC_UPSTREAM=upstream.url)
        assert ran.out == b"200\n401\n"
        (got,) = upstream.requests
        assert "x-context-token" not in got.headers
        assert "1 request sent" in ran.err

    def test_the_token_of_a_standing_daemon_goes_with_every_request(self, upstream: Upstream, tmp_path: Path) -> None:
        tokens = tmp_path / "tokens"
        token = run_command("token", "local", "--token-file", tokens).out.decode().strip()
        write_program(tmp_path, "claude", ASKS.replace("sys.argv[1]", "1"))
        with Daemon(tmp_path / "state", *upstream.argv(), "--token-file", str(tokens)) as daemon:
            without = run(tmp_path, "--url", daemon.url, "claude")
            assert without.code == 1
            assert "--token-variable" in without.err
            ran = run(
                tmp_path,
                "--url",
                daemon.url,
                "--token-variable",
                "T",
                "claude",
                T=token,
                ANTHROPIC_CUSTOM_HEADERS="X-Mine: 1",
            )
        assert (ran.code, ran.out) == (0, b"")
        (got,) = upstream.requests
        assert got.headers["x-mine"] == "1"
        assert "1 request sent" in ran.err

    @pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
    @pytest.mark.parametrize("path", ["s3cret", "proxy/s3cret"])
    def test_a_base_url_of_the_users_own_is_used_and_in_no_command_line(
        self, upstream: Upstream, tmp_path: Path, path: str
    ) -> None:
        shows = (
            "import glob\nfor path in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    try: words = open(path).read()\n    except OSError: continue\n"
            "    if 's3' + 'cret' in words: print('seen')\n"
        )
        urls = {"ANTHROPIC_BASE_URL": f"{upstream.url}/{path}", "CONTEXT_ANTHROPIC_UPSTREAM": upstream.url}
        ran = run(tmp_path, sys.executable, "-c", shows + ASKS, 1, **urls)
        assert b"seen" not in ran.out
        # The provider has no such path, so the request arrived there.
        assert "failed at the provider" in ran.err

    @pytest.mark.parametrize(
        ("program", "path", "text"),
        [
            ("claude", ".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "%s"}}'),
            ("claude", ".claude/settings.local.json", '{"env": {"ANTHROPIC_BASE_URL": "%s"}}'),
            ("codex", ".codex/config.toml", 'openai_base_url = "%s/v1"\n'),
            ("gemini", ".gemini/.env", "A=1\nexport GOOGLE_GEMINI_BASE_URL='%s' # ours\n"),
        ],
    )
    def test_a_base_url_in_the_programs_own_settings_is_used(
        self, upstream: Upstream, tmp_path: Path, program: str, path: str, text: str
    ) -> None:
        """Otherwise prompts, and the key of the gateway, would go to another provider."""
        write_program(tmp_path, program, ASKS_OF[program])
        write_files(tmp_path, {path: text % upstream.url})
        nobody = {f"CONTEXT_{name}_UPSTREAM": "http://127.0.0.1:9" for name in ("ANTHROPIC", "OPENAI", "GEMINI")}
        ran = run(tmp_path, program, **nobody)
        assert "1 request sent" in ran.err
        assert len(upstream.requests) == 1

    def test_a_project_cannot_lead_gemini_to_another_provider(self, tmp_path: Path) -> None:
        """Its file may have come with a cloned repository."""
        write_program(tmp_path, "gemini", "")
        write_files(tmp_path / "project", {".env": "GOOGLE_GEMINI_BASE_URL=https://gateway.example\n"})
        ran = run_command("run", "gemini", env=env_of(tmp_path), cwd=tmp_path / "project")
        assert ran.code == 1
        assert f"{tmp_path}/project/.env" in ran.err

    @pytest.mark.parametrize(
        "path",
        [
            *("project/opencode.json", "opencode.jsonc", "project/.opencode/opencode.jsonc", "theirs.json"),
            *(".config/opencode/opencode.jsonc", ".config/opencode/config.json"),
        ],
    )
    def test_a_gateway_in_a_file_of_opencode_stays(
        self, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = (
            '{\n  // of the company\n  "provider": {"openai": {"options": {"baseURL": "https://gateway.example"}},},\n}'
        )
        write_files(tmp_path, {path: own, "project/x": ""})
        monkeypatch.chdir(tmp_path / "project")
        monkeypatch.setenv("HOME", str(tmp_path))
        environment = {"OPENCODE_CONFIG": str(tmp_path / "theirs.json")}
        launched = Launcher(CONNECTION, "", "/tmp/x", environment).launch("opencode")
        providers = json.loads(launched.environment["OPENCODE_CONFIG_CONTENT"])["provider"]
        assert providers.keys() == {"anthropic", "google"}
        assert launched.features == "proxy and tools; openai without the proxy, by your own base URL"

    def test_a_base_url_with_a_password_is_refused_without_showing_it(self, tmp_path: Path) -> None:
        ran = run(tmp_path, sys.executable, "-c", "", ANTHROPIC_BASE_URL="https://me:s3cret@gateway.example")
        assert ran.code == 1
        assert "ANTHROPIC_BASE_URL" in ran.err
        assert "s3cret" not in ran.err


class TestPrograms:
    def test_claude_code_gets_one_server_and_one_plugin_for_this_run(self) -> None:
        launched = Launcher(WITH_TOKEN, "s3cret", "/run/x", {"ANTHROPIC_CUSTOM_HEADERS": "A: b"}).launch("claude")
        assert launched.arguments == (
            "--mcp-config=/run/x/mcp.json",
            "--settings=/run/x/settings.json",
            "--plugin-dir",
            "/run/x/plugin",
        )
        assert launched.environment == {
            "ANTHROPIC_BASE_URL": f"{URL}/proxy/anthropic",
            "ANTHROPIC_CUSTOM_HEADERS": "A: b\nX-Context-Token: s3cret",
        }
        (server,) = json.loads(launched.files["mcp.json"])["mcpServers"].values()
        assert (server["url"], server["alwaysLoad"]) == (f"{URL}/mcp?tools=fold-afterwards", True)
        assert server["headers"] == {"Authorization": "Bearer ${CONTEXT_TOKEN}"}
        assert "plugin/.mcp.json" not in launched.files
        assert f"{URL}/hooks/claude-code" in launched.files["plugin/hooks/hooks.json"]
        assert any(name.endswith("SKILL.md") for name in launched.files)

    def test_codex_gets_its_overrides_and_with_a_token_a_provider_that_sends_it(self) -> None:
        words = Launcher(CONNECTION, "", "/run/x", {}).launch("codex").arguments
        assert words == (
            "-c",
            f'openai_base_url="{URL}/proxy/openai/v1"',
            "-c",
            f'mcp_servers.contextfold={{"url" = "{URL}/mcp?tools=fold-afterwards"}}',
        )
        words = Launcher(WITH_TOKEN, "s3cret", "/run/x", {}).launch("codex").arguments
        assert '"env_http_headers" = {"X-Context-Token" = "CONTEXT_TOKEN"}' in words[3]
        assert "s3cret" not in str(words)

    def test_a_provider_of_the_users_own_stays_in_codex(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CODEX_HOME", str(tmp_path))
        write_files(tmp_path, {"config.toml": 'profile = "work"\n[profiles.work]\nmodel_provider = "azure"\n'})
        for connection, token in ((CONNECTION, ""), (WITH_TOKEN, "s3cret")):
            launched = Launcher(connection, token, "/run/x", {}).launch("codex")
            assert "provider" not in str(launched.arguments)
            assert "mcp_servers.contextfold" in launched.arguments[1]
            assert launched.features.startswith("tools, without the proxy: ")

    def test_opencode_keeps_what_the_user_has_in_its_variable(self) -> None:
        own = {
            "permission": {"bash": "deny"},
            "mcp": {"mine": {"type": "local"}},
            "provider": {"openai": {"name": "x"}},
        }
        environment = {"OPENCODE_CONFIG_CONTENT": json.dumps(own)}
        launched = Launcher(WITH_TOKEN, "s3cret", "/run/x", environment).launch("opencode").environment
        config = json.loads(launched["OPENCODE_CONFIG_CONTENT"])
        assert config["permission"] == {"bash": "deny"}
        assert config["mcp"].keys() == {"mine", "contextfold"}
        assert config["provider"]["openai"]["name"] == "x"
        options = config["provider"]["anthropic"]["options"]
        assert options["baseURL"] == f"{URL}/proxy/anthropic/v1"
        assert options["headers"] == {"X-Context-Token": "{env:CONTEXT_TOKEN}"}

    def test_an_own_variable_of_opencode_that_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        ran = run(tmp_path, write_program(tmp_path, "opencode", ""), OPENCODE_CONFIG_CONTENT="{ // mine\n}")
        assert ran.code == 1
        assert "OPENCODE_CONFIG_CONTENT" in ran.err

    def test_the_settings_of_an_administrator_stay_over_those_of_gemini(self, tmp_path: Path) -> None:
        path = tmp_path / "settings.json"
        path.write_text(
            '{"tools": {"exclude": ["shell"]}, // no shell\n "mcpServers": {"theirs": {"httpUrl": "http://a"}}}'
        )
        environment = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(path), "GEMINI_CLI_CUSTOM_HEADERS": "A: b"}
        launched = Launcher(WITH_TOKEN, "s3cret", "/run/x", environment).launch("gemini")
        assert launched.environment["GEMINI_CLI_SYSTEM_SETTINGS_PATH"] == "/run/x/settings.json"
        assert launched.environment["GEMINI_CLI_CUSTOM_HEADERS"] == "A: b, X-Context-Token: s3cret"
        settings = json.loads(launched.files["settings.json"])
        assert settings["tools"] == {"exclude": ["shell"]}
        assert settings["mcpServers"].keys() == {"theirs", "contextfold"}
        path.write_text("{ours")
        launched = Launcher(CONNECTION, "", "/run/x", environment).launch("gemini")
        assert "GEMINI_CLI_SYSTEM_SETTINGS_PATH" not in launched.environment
        assert "without tools" in launched.features

    def test_gemini_gets_no_settings_where_others_could_write_them(self, tmp_path: Path) -> None:
        (tmp_path / "open" / "run").mkdir(parents=True)
        (tmp_path / "open").chmod(0o1777)
        launched = Launcher(CONNECTION, "", str(tmp_path / "open" / "run"), {}).launch("gemini")
        assert "GEMINI_CLI_SYSTEM_SETTINGS_PATH" not in launched.environment
        assert launched.environment.keys() == {"GOOGLE_GEMINI_BASE_URL"}
        assert f"the proxy, without tools: it reads no settings there, because others may write to {tmp_path}/open" in (
            launched.features
        )

    def test_a_key_that_gemini_would_refuse_with_a_base_url_goes_straight_to_the_provider(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without settings of ours it would end with "Invalid auth method selected"."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "open" / "run").mkdir(parents=True)
        (tmp_path / "open").chmod(0o1777)
        environment = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(tmp_path / "none"), "GEMINI_API_KEY": "k"}
        launched = Launcher(CONNECTION, "", str(tmp_path / "open" / "run"), environment).launch("gemini")
        assert (launched.arguments, launched.environment, launched.files) == ((), {}, {})
        assert launched.features.startswith("neither proxy nor tools: it reads no settings there")

    @pytest.mark.parametrize("path", [".env", ".gemini/.env"])
    def test_a_key_of_gemini_in_a_file_is_found(self, path: str, tmp_path: Path) -> None:
        """Below a folder that others may write to, it goes straight to the provider, as one in the environment does."""
        write_program(tmp_path, "gemini", "")
        write_files(tmp_path, {path: "GEMINI_API_KEY=k"})
        (tmp_path / ".local").mkdir(mode=0o777)
        (tmp_path / ".local").chmod(0o777)
        assert "gemini runs with neither proxy nor tools" in run(tmp_path, "gemini").err

    def test_a_key_of_gemini_is_taken_unless_the_user_has_chosen_another_login(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        environment = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(tmp_path / "none"), "GEMINI_API_KEY": "k"}
        text = Launcher(CONNECTION, "", "/run/x", environment).launch("gemini").files["settings.json"]
        assert json.loads(text)["security"] == {"auth": {"selectedType": "gemini-api-key"}}
        (tmp_path / ".gemini").mkdir()
        (tmp_path / ".gemini" / "settings.json").write_text('{"security": {"auth": {"selectedType": "vertex-ai"}}}')
        text = Launcher(CONNECTION, "", "/run/x", environment).launch("gemini").files["settings.json"]
        assert "security" not in json.loads(text)

    def test_the_files_of_a_run_are_where_nobody_else_can_write(self, tmp_path: Path) -> None:
        write_program(tmp_path, "claude", "import sys\nprint(sys.argv[1].removeprefix('--mcp-config='))\n")
        runtime = tmp_path / "runtime"
        runtime.mkdir(mode=0o700)
        assert run(tmp_path, "claude", XDG_RUNTIME_DIR=str(runtime)).out.decode().startswith(f"{runtime}/contextfold/")
        runtime.chmod(0o777)
        used = run(tmp_path, "claude", XDG_RUNTIME_DIR=str(runtime)).out.decode().strip()
        assert used.startswith(f"{tmp_path}/.local/state/contextfold/")
        assert not os.path.exists(used)


def test_commands_inside_a_run_find_its_daemon(tmp_path: Path) -> None:
    script = (
        "import subprocess\nfor name in ('statusline', 'doctor', 'open'):\n"
        f"    subprocess.run([{str(COMMAND)!r}, name], stdin=subprocess.DEVNULL)\n"
    )
    ran = subprocess.run(
        [str(COMMAND), "run", write_program(tmp_path, "claude", script)],
        env=env_of(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "contextfold: nothing folded here yet" in ran.stdout
    assert "the daemon answers at http://127.0.0.1:" in ran.stdout
    assert "which is not this daemon" not in ran.stdout
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", ran.stdout.splitlines()[-1])


def test_the_page_of_a_run_is_that_of_the_standing_daemon(upstream: Upstream, tmp_path: Path) -> None:
    """A run whose user has set a base URL has a daemon of its own, on a port that changes."""
    script = f"import subprocess\nsubprocess.run([{str(COMMAND)!r}, 'open'], stdin=subprocess.DEVNULL)\n"
    with Daemon(tmp_path / "state") as daemon:
        ran = subprocess.run(
            [str(COMMAND), "run", write_program(tmp_path, "agent", script)],
            env=env_of(tmp_path, CONTEXT_URL=daemon.url, ANTHROPIC_BASE_URL=upstream.url),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"the page: {daemon.url}/\n" in ran.stderr
        assert ran.stdout == f"{daemon.url}/\n"


def test_open_says_how_to_start_a_daemon(tmp_path: Path) -> None:
    ran = run_command("open", "--url", "http://127.0.0.1:9", env=env_of(tmp_path), cwd=tmp_path)
    assert (ran.code, ran.out) == (1, b"")
    assert "context serve" in ran.err
