"""`context install` gives a host our server, by the host's own commands or in its file; `context uninstall` undoes it.

Here the hosts' commands are scripts that record how they are called. `make hosts` does the same with the real programs.
"""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from contextfold.hosts.programs import HOSTS, PLUGIN, is_our_entry
from tests.support.machine import COMMAND, Ran, read_terminal, run_command

BY_FILE = sorted(host.name for host in HOSTS.values() if not host.program)
# A file of its own for each user, in plain JSON.
CURSOR = Path(".cursor/mcp.json")
OURS = {"url": "http://localhost:9090/mcp"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "caches").mkdir(parents=True)
    return home


def run(home: Path, *argv: object, stdin: bytes = b"", **variables: str) -> Ran:
    env = {"PATH": f"{home.parent}/bin:{os.environ['PATH']}", "HOME": str(home), **variables}
    return run_command(*argv, env=env, cwd=home, stdin=stdin)


def files_below(folder: Path) -> dict[str, str]:
    paths = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def folders_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()} - {"caches"}


def record_calls(home: Path, program: str) -> Path:
    """Puts a program on the path that writes down its arguments, and returns the file."""
    calls, script = home.parent / "calls", home.parent / "bin" / program
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\necho "{program} $*" >> {calls}\n')
    script.chmod(0o755)
    calls.touch()
    return calls


class TestFiles:
    @pytest.mark.parametrize("host", BY_FILE)
    def test_the_entry_comes_and_goes_with_its_file_and_folders(self, host: str, home: Path) -> None:
        option = ["--cache-root", "caches"] if not HOSTS[host].takes_http else []
        ran = run(home, "install", host, *option)
        assert ran.code == 0, ran.err
        ((_, text),) = files_below(home).items()
        assert is_our_entry(json.loads(text)[HOSTS[host].key]["contextfold"])
        again = run(home, "install", host, *option)
        assert (again.code, files_below(home)) == (0, files_below(home))
        assert b"nothing to do" in again.out
        assert run(home, "uninstall", host).code == 0
        assert (files_below(home), folders_below(home)) == ({}, set())
        assert run(home, "uninstall", host).err.startswith("note: nothing to do")

    def test_everything_else_in_a_file_stays_with_its_order_indentation_and_mode(self, home: Path) -> None:
        before = '{\n\t"z": 1,\n\t"mcpServers": {\n\t\t"other": {\n\t\t\t"command": "é"\n\t\t}\n\t},\n\t"a": 1.0\n}\n'
        (home / CURSOR).parent.mkdir()
        (home / CURSOR).write_text(before)
        (home / CURSOR).chmod(0o600)
        assert run(home, "install", "cursor").code == 0
        assert json.loads((home / CURSOR).read_text())["mcpServers"]["contextfold"] == OURS
        assert stat.S_IMODE((home / CURSOR).stat().st_mode) == 0o600
        assert run(home, "uninstall", "cursor").code == 0
        assert (home / CURSOR).read_text() == before

    @pytest.mark.parametrize(
        "text", ["", "{", "{} // mine", '{"a": 1,}', '{"a": 1, "a": 2}', "[]", '{"mcpServers": []}']
    )
    def test_a_file_that_is_not_plain_json_is_left_alone_and_the_entry_printed(self, text: str, home: Path) -> None:
        (home / CURSOR).parent.mkdir()
        (home / CURSOR).write_text(text)
        ran = run(home, "install", "cursor")
        assert ran.code == 6
        assert str(CURSOR) in ran.err
        if "mcpServers" not in text:
            assert json.loads(ran.out) == {"mcpServers": {"contextfold": OURS}}
        assert run(home, "install", "cursor", "--force").code == 6
        assert run(home, "uninstall", "cursor").code in (0, 6)
        assert (home / CURSOR).read_text() == text

    @pytest.mark.parametrize("entry", [{"url": "http://localhost:9090/sse"}, OURS | {"env": {"A": "b"}}, 5])
    def test_an_entry_of_somebody_else_is_replaced_only_with_force(self, entry: object, home: Path) -> None:
        (home / CURSOR).parent.mkdir()
        (home / CURSOR).write_text(foreign := json.dumps({"mcpServers": {"contextfold": entry}}))
        assert "--force" in run(home, "install", "cursor").err
        assert run(home, "uninstall", "cursor").code == 6
        assert (home / CURSOR).read_text() == foreign
        assert run(home, "install", "cursor", "--force").code == 0
        assert json.loads((home / CURSOR).read_text())["mcpServers"]["contextfold"] == OURS

    def test_a_link_of_the_user_stays_and_its_target_is_edited(self, home: Path) -> None:
        (home / "dotfile.json").write_text("{}\n")
        (home / CURSOR).parent.mkdir()
        (home / CURSOR).symlink_to("../dotfile.json")
        assert run(home, "install", "cursor").code == 0
        assert "contextfold" in (home / "dotfile.json").read_text()
        assert run(home, "uninstall", "cursor").code == 0
        assert (home / CURSOR).is_symlink()
        assert (home / "dotfile.json").read_text() == "{}\n"

    @pytest.mark.parametrize(
        ("host", "link"), [("cursor", ".cursor"), ("vscode", ".vscode"), ("claude-code", ".claude")]
    )
    def test_a_link_out_of_the_project_is_left_alone(self, host: str, link: str, home: Path) -> None:
        """It may have come with a cloned repository."""
        outside, project = home / "outside", home / "project"
        outside.mkdir()
        project.mkdir()
        (project / link).symlink_to(outside)
        calls = record_calls(home, "claude")
        for command in (
            ["install", host, "--proxy"] if host == "claude-code" else ["install", host],
            ["uninstall", host],
        ):
            ran = run(home, *command, "--project", "project")
            assert ran.code == 6
            assert "outside of the project" in ran.err
        assert (files_below(outside), calls.read_text()) == ({}, "")

    def test_a_read_only_file_is_refused(self, home: Path) -> None:
        (home / CURSOR).parent.mkdir()
        (home / CURSOR).write_text("{}")
        (home / CURSOR).chmod(0o444)
        ran = run(home, "install", "cursor")
        assert (ran.code, (home / CURSOR).read_text()) == (6, "{}")
        assert "read-only" in ran.err
        assert len(files_below(home)) == 1

    def test_a_failed_write_leaves_no_partial_file(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        (home / CURSOR).parent.mkdir()
        (home / CURSOR).write_text("{}")
        monkeypatch.setattr(os, "fsync", fail)
        ran = run(home, "install", "cursor")
        assert (ran.code, files_below(home)) == (6, {str(CURSOR): "{}"})
        assert "free some space" in ran.err

    def test_files_that_a_team_shares_name_no_path_of_this_machine(self, home: Path) -> None:
        (home / "project" / "caches").mkdir(parents=True)
        for option in ([], ["--cache-root", "project/caches"]):
            assert run(home, "install", "cursor", "--project", "project", *option).code == 0
            text = (home / "project" / CURSOR).read_text()
            assert str(home) not in text
            assert str(COMMAND.parent) not in text
        ran = run(home, "install", "cursor", "--project", "project", "--cache-root", "caches")
        assert ran.code == 6
        assert "outside the project" in ran.err

    def test_the_command_in_an_entry_starts_a_server_that_answers(self, home: Path) -> None:
        assert run(home, "install", "cursor", "--cache-root", "caches").code == 0
        written = json.loads((home / CURSOR).read_text())["mcpServers"]["contextfold"]
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        initialize = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode() + b"\n"
        argv = [written["command"], *written["args"]]
        done = subprocess.run(argv, input=initialize, cwd="/", capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["result"]["protocolVersion"] == "2025-06-18"

    @pytest.mark.parametrize("name", [b"caf\xe9", b"${HOME}"])
    def test_a_path_that_the_host_would_misread_is_refused(self, name: bytes, home: Path) -> None:
        os.mkdir(os.path.join(os.fsencode(home), name))
        assert run(home, "install", "cursor", "--cache-root", name).code == 6
        assert files_below(home) == {}


class TestCommands:
    @pytest.mark.parametrize(
        ("program", "argv", "called"),
        [
            ("codex", ["codex"], "codex mcp add contextfold --url http://localhost:9090/mcp?tools=fold-afterwards"),
            (
                "codex",
                ["codex", "--token-variable", "T", "--tools", "fold,resolve"],
                "codex mcp add contextfold --url http://localhost:9090/mcp?tools=resolve,fold --bearer-token-env-var T",
            ),
            (
                "gemini",
                ["gemini", "--token-variable", "T", "--url", "https://a.example"],
                "gemini mcp add --scope user --transport http contextfold https://a.example/mcp?tools=fold-afterwards"
                " -H Authorization: Bearer $T",
            ),
            (
                "claude",
                ["claude", "--cache-root", "caches"],
                "claude mcp add --scope user contextfold -- COMMAND serve --stdio --cache-root HOME/caches",
            ),
            (
                "code",
                ["vscode"],
                'code --add-mcp {"name": "contextfold", "type": "http", "url": "http://localhost:9090/mcp"}',
            ),
        ],
    )
    def test_a_host_with_a_command_for_it_is_asked_by_that(
        self, program: str, argv: list[str], called: str, home: Path
    ) -> None:
        calls = record_calls(home, program)
        expected = called.replace("COMMAND", str(COMMAND)).replace("HOME", str(home))
        ran = run(home, "install", *argv, "--dry-run")
        assert (ran.code, calls.read_text()) == (0, "")
        assert shutil.which(program, path=f"{home.parent}/bin")
        ran = run(home, "install", *argv)
        assert (ran.code, calls.read_text()) == (0, f"{expected}\n")
        assert files_below(home) == {}

    def test_a_host_that_is_not_installed_is_named(self, home: Path) -> None:
        ran = run(home, "install", "codex", PATH="/usr/bin:/bin")
        assert ran.code == 6
        assert "codex is not on your PATH" in ran.err
        ran = run(home, "install", "vscode", PATH="/nowhere")
        assert (ran.code, json.loads(ran.out)["servers"]["contextfold"]["type"]) == (6, "http")
        assert "vscode:mcp/install?" in ran.err

    def test_a_link_has_the_entry_that_install_would_make(self, home: Path) -> None:
        url = "http://localhost:9090/mcp"
        shown = run(home, "install", "cursor", "--dry-run").err
        (config,) = re.findall(r"cursor://anysphere\.cursor-deeplink/mcp/install\?name=contextfold&config=(\S+)", shown)
        assert json.loads(base64.b64decode(unquote(config))) == {"url": url}
        shown = run(home, "install", "vscode", "--dry-run", PATH="/nowhere").err
        (config,) = re.findall(r"vscode:mcp/install\?(\S+)", shown)
        assert json.loads(unquote(config)) == {"name": "contextfold", "type": "http", "url": url}

    def test_a_command_that_fails_is_reported_with_its_reason(self, home: Path) -> None:
        record_calls(home, "codex").parent.joinpath("bin", "codex").write_text(
            "#!/bin/sh\necho no such scope >&2\nexit 3\n"
        )
        ran = run(home, "install", "codex")
        assert ran.code == 6
        assert "no such scope" in ran.err

    def test_only_our_entry_of_a_host_with_commands_is_removed(self, home: Path) -> None:
        calls, config = record_calls(home, "codex"), home / ".codex" / "config.toml"
        config.parent.mkdir()
        config.write_text('[mcp_servers.contextfold]\nurl = "http://localhost:9090/sse"\n')
        assert run(home, "install", "codex").code == 6
        assert run(home, "uninstall", "codex").code == 6
        config.write_text('# mine\n[mcp_servers.contextfold]\nurl = "http://localhost:9090/mcp"\n')
        assert run(home, "uninstall", "codex").code == 0
        assert calls.read_text() == "codex mcp remove contextfold\n"
        config.unlink()
        assert "nothing to do" in run(home, "uninstall", "codex").err
        assert calls.read_text() == "codex mcp remove contextfold\n"

    @pytest.mark.parametrize(
        ("program", "host", "variable", "text"),
        [
            ("codex", "codex", "CODEX_HOME", 'mcp_servers.contextfold.url = "http://localhost:9090/mcp"'),
            ("gemini", "gemini-cli", "GEMINI_CLI_HOME", json.dumps({"mcpServers": {"contextfold": OURS}})),
        ],
    )
    def test_an_entry_in_a_folder_that_a_variable_names_is_removed(
        self, program: str, host: str, variable: str, text: str, home: Path
    ) -> None:
        calls, other = record_calls(home, program), home / "other"
        path = other / ("config.toml" if program == "codex" else ".gemini/settings.json")
        path.parent.mkdir(parents=True)
        path.write_text(text)
        assert run(home, "uninstall", host, stdin=b"", **{variable: str(other)}).code == 0
        assert calls.read_text().startswith(f"{program} mcp remove ")


class TestClaudeCode:
    def settings(self, home: Path) -> Path:
        (home / ".claude").mkdir(exist_ok=True)
        return home / ".claude" / "settings.json"

    def test_claude_code_gets_the_plugin_with_the_daemons_address_and_token(self, home: Path) -> None:
        calls = record_calls(home, "claude")
        ran = run(home, "install", "claude-code", "--url", "http://localhost:9100", "--token-variable", "T")
        assert ran.code == 0
        folder = home / ".local" / "share" / "contextfold" / "claude-code"
        assert calls.read_text() == (
            f"claude plugin marketplace add {folder}\nclaude plugin install {PLUGIN} --scope user\n"
        )
        (server,) = json.loads((folder / "plugin" / ".mcp.json").read_text())["mcpServers"].values()
        assert (server["url"], server["alwaysLoad"]) == ("http://localhost:9100/mcp?tools=fold-afterwards", True)
        assert server["headers"] == {"Authorization": "Bearer ${T}"}
        hooks = json.loads((folder / "plugin" / "hooks" / "hooks.json").read_text())["hooks"]
        (start,), (stop,) = (hooks[event][0]["hooks"] for event in ("SessionStart", "Stop"))
        assert start["command"] == f"{COMMAND} hook claude-code --url http://localhost:9100 --token-variable T"
        assert (stop["url"], stop["allowedEnvVars"]) == ("http://localhost:9100/hooks/claude-code", ["T"])
        assert "localhost:9090" not in json.dumps([server, hooks])

    def test_uninstall_removes_the_plugin_and_our_folder(self, home: Path) -> None:
        calls = record_calls(home, "claude")
        assert run(home, "install", "claude-code").code == 0
        self.settings(home).write_text(json.dumps({"enabledPlugins": {PLUGIN: True}}))
        calls.write_text("")
        assert run(home, "uninstall", "claude-code").code == 0
        assert calls.read_text() == (
            f"claude plugin uninstall {PLUGIN} --scope user\nclaude plugin list --json\n"
            "claude plugin marketplace remove contextfold\n"
        )
        assert "contextfold" not in str(folders_below(home))

    def test_an_install_without_the_program_leaves_no_file(self, home: Path) -> None:
        before = folders_below(home)
        ran = run(home, "install", "claude-code")
        assert (ran.code, "claude is not on your PATH" in ran.err) == (6, True)
        assert folders_below(home) == before

    def test_without_the_proxy_install_says_that_nothing_is_saved(self, home: Path) -> None:
        record_calls(home, "claude")
        ran = run(home, "install", "claude-code", "--url", "http://127.0.0.1:9")
        assert "nothing is saved yet" in ran.err
        assert "context run claude" in ran.err
        assert "nothing answers at http://127.0.0.1:9" in ran.err

    @pytest.mark.parametrize("url", ["http://localhost:9090", "https://ctx.example.org/team"])
    def test_the_proxy_is_set_in_the_settings_and_taken_out_again(self, url: str, home: Path) -> None:
        record_calls(home, "claude")
        self.settings(home).write_text('{"model": "opus"}\n')
        ran = run(home, "install", "claude-code", "--proxy", "--url", url)
        assert "while the daemon is down" in ran.err
        assert json.loads(self.settings(home).read_text()) == {
            "model": "opus",
            "env": {"ANTHROPIC_BASE_URL": f"{url}/proxy/anthropic"},
        }
        assert run(home, "uninstall", "claude-code").code == 0
        assert json.loads(self.settings(home).read_text()) == {"model": "opus"}

    def test_a_gateway_of_the_users_own_stays_whatever_its_path(self, home: Path) -> None:
        record_calls(home, "claude")
        own = {"env": {"ANTHROPIC_BASE_URL": "https://gateway.example/proxy/anthropic"}}
        self.settings(home).write_text(json.dumps(own))
        assert run(home, "uninstall", "claude-code").code == 0
        assert json.loads(self.settings(home).read_text()) == own

    @pytest.mark.parametrize("place", ["settings", "environment"])
    def test_a_base_url_of_the_users_own_is_never_replaced(self, place: str, home: Path) -> None:
        calls, own = record_calls(home, "claude"), {"env": {"ANTHROPIC_BASE_URL": "https://gateway.example"}}
        if place == "settings":
            self.settings(home).write_text(json.dumps(own))
        url = own["env"]["ANTHROPIC_BASE_URL"] if place == "environment" else ""
        ran = run(home, "install", "claude-code", "--proxy", ANTHROPIC_BASE_URL=url)
        assert (ran.code, calls.read_text()) == (6, "")
        assert "--anthropic-upstream" in ran.err
        assert not self.settings(home).exists() or json.loads(self.settings(home).read_text()) == own

    def test_settings_that_do_not_parse_stop_everything(self, home: Path) -> None:
        calls = record_calls(home, "claude")
        self.settings(home).write_text("{ // mine\n}")
        for command in (
            ["install", "claude-code"],
            ["install", "claude-code", "--proxy"],
            ["uninstall", "claude-code"],
        ):
            assert run(home, *command).code == 6
        assert (calls.read_text(), self.settings(home).read_text()) == ("", "{ // mine\n}")


class TestConsent:
    @pytest.mark.parametrize("command", ["install", "uninstall"])
    @pytest.mark.parametrize("answer", [b"n\n", b"no", b"N\n"])
    def test_no_on_standard_input_is_a_no(self, command: str, answer: bytes, home: Path) -> None:
        if command == "uninstall":
            run(home, "install", "cursor")
        before = files_below(home)
        ran = run(home, command, "cursor", stdin=answer)
        assert (ran.code, files_below(home)) == (0, before)
        assert "nothing was done" in ran.err

    def test_a_dry_run_writes_nothing(self, home: Path) -> None:
        ran = run(home, "install", "cursor", "--dry-run")
        assert (ran.code, files_below(home)) == (0, {})
        assert b"mcpServers.contextfold" in ran.out

    @pytest.mark.parametrize(("answer", "is_written"), [("y", True), ("", False), ("maybe", False)])
    def test_on_a_terminal_only_yes_is_a_yes(self, answer: str, is_written: bool, home: Path) -> None:
        ours, theirs = pty.openpty()
        env = {"PATH": os.environ["PATH"], "HOME": str(home)}
        argv = [str(COMMAND), "install", "cursor"]
        process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=home)
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        read_terminal(ours)
        assert process.wait(60) == 0
        assert bool(files_below(home)) is is_written


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["install"], 1, "missing host"),
        (["install", "emacs"], 1, "host is one of claude-code"),
        (["install", "cursor", "--stdio"], 1, "missing --cache-root DIR"),
        (["install", "claude-desktop"], 1, "missing --cache-root DIR"),
        (["install", "claude-desktop", "--url", "http://localhost:1"], 1, "only starts servers itself"),
        (["install", "cursor", "--cache-root", "nowhere"], 6, "there is no folder nowhere"),
        (["install", "cursor", "--cache-root", "/", "--url", "http://localhost:1"], 1, "--url is for the daemon"),
        (["install", "cursor", "--project", "nowhere"], 6, "give --project the folder"),
        (["install", "cursor", "--project", ".", "--user"], 1, "exclude each other"),
        (["install", "cursor", "--token-variable", "a b"], 1, "a variable's name"),
        (["install", "zed", "--token-variable", "T"], 1, "cannot refer to a variable"),
        (["install", "cursor", "--proxy"], 1, "--proxy is for claude-code"),
        (["install", "claude-code", "--proxy", "--token-variable", "T"], 1, "asks for no token"),
        (["install", "cursor", "--url", "ftp://x"], 1, "--url cannot be used"),
        (["uninstall", "claude-desktop", "--project", "."], 1, "--project is not for"),
    ],
)
def test_arguments_that_cannot_be_meant_are_an_error(argv: list[str], code: int, message: str, home: Path) -> None:
    ran = run(home, *argv)
    assert (ran.code, ran.out) == (code, b"")
    assert message in ran.err
    assert files_below(home) == {}


def test_claude_desktop_on_macos_is_below_application_support(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run(home, "install", "claude-desktop", "--cache-root", "caches", XDG_CONFIG_HOME="/elsewhere").code == 0
    assert list(files_below(home)) == ["Library/Application Support/Claude/claude_desktop_config.json"]


def test_the_users_configuration_folder_is_used(home: Path) -> None:
    assert run(home, "install", "zed", XDG_CONFIG_HOME=f"{home}/etc").code == 0
    assert list(files_below(home)) == ["etc/zed/settings.json"]
