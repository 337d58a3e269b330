"""`context install` adds one entry to a host's file; `context uninstall` restores every byte."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.hosts.programs import HOSTS
from tests.cli.agents.random_json import COMMENTED, NAMES, VALUES, json_text
from tests.cli.agents.wiring import KEYS, HostProject, entry, parse_commented_json, umask
from tests.support.machine import COMMAND, Call, Ran, read_terminal, run_command


@pytest.mark.usefixtures("quick_disk")
class TestUninstallRestoresTheFile:
    @given(data=st.data())
    def test_only_our_entry_is_removed_even_if_moved_and_reformatted(
        self, vscode: HostProject, data: st.DataObject
    ) -> None:
        servers: dict[str, Any] = {"contextfold": entry("vscode", vscode.caches)}
        servers |= data.draw(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
        servers = dict(data.draw(st.permutations(list(servers.items()))))
        vscode.write(json_text(data.draw, {"servers": servers}, COMMENTED, last_commas=True))
        assert vscode.uninstall().code == 0
        del servers["contextfold"]
        assert parse_commented_json(vscode.text()) == {"servers": servers}

    def test_a_created_file_is_removed(self, project: HostProject) -> None:
        assert project.install().code == 0
        assert json.loads(project.text()) == {KEYS[project.host]: {"contextfold": entry(project.host, project.caches)}}
        assert stat.S_IMODE(project.file.stat().st_mode) == 0o666 & ~umask()
        assert project.uninstall().code == 0
        assert project.everything() == {}

    def test_entries_of_others_in_a_created_file_remain(self, project: HostProject) -> None:
        project.install()
        key = KEYS[project.host]
        project.write(project.text().replace('"contextfold"', '"other": {"command": "x"},\n    "contextfold"'))
        assert project.uninstall().code == 0
        assert json.loads(project.text()) == {key: {"other": {"command": "x"}}}

    def test_a_second_install_changes_only_the_folder_and_is_removed_completely(self, project: HostProject) -> None:
        project.install()
        first = project.text()
        other = project.caches.parent / "other"
        other.mkdir()
        first_caches, project.caches = project.caches, other
        assert project.install().code == 0
        assert project.text() == first.replace(first_caches.name, other.name)
        project.uninstall()
        assert project.everything() == {}

    def test_comments_stay_at_their_entries_and_ours_comes_first(self, vscode: HostProject) -> None:
        vscode.write('{\n  "servers": {\n    // "b": {}\n    "a": {} // mine\n  }\n}\n')
        vscode.install()
        assert vscode.text().startswith('{\n  "servers": {\n    "contextfold": {\n      "type": "stdio",\n')
        assert vscode.text().endswith('"\n      ]\n    },\n    // "b": {}\n    "a": {} // mine\n  }\n}\n')

    def test_an_entry_that_comes_last_is_removed_with_the_comma_before_it(self, vscode: HostProject) -> None:
        ours = json.dumps(entry("vscode", vscode.caches))
        vscode.write(f'{{\n  "servers": {{\n    "a": {{}}, // mine\n    "contextfold": {ours}\n  }}\n}}\n')
        assert vscode.uninstall().code == 0
        assert vscode.text() == '{\n  "servers": {\n    "a": {} // mine\n  }\n}\n'

    def test_uninstall_without_install_changes_nothing(self, project: HostProject) -> None:
        code, out, err = project.uninstall()
        assert (code, out) == (0, b"")
        assert err.startswith("note: nothing to do: ")
        assert project.everything() == {}
        project.write('{"other": 1}')
        assert project.uninstall()[:2] == (0, b"")
        assert project.text() == '{"other": 1}'


class TestExistingEntries:
    FOREIGN = '{"mcpServers": {"contextfold": {"url": "http://localhost:9090/sse"}}}'

    @pytest.fixture
    def cursor(self, tmp_path: Path, call: Call, caches: Path) -> HostProject:
        return HostProject(tmp_path / "project", "cursor", call, caches)

    def test_a_foreign_entry_is_replaced_only_with_force(self, cursor: HostProject) -> None:
        cursor.write(self.FOREIGN)
        refused = cursor.install()
        assert refused.code == 6
        assert "--force" in refused.err
        assert cursor.text() == self.FOREIGN
        forced = cursor.install("--force")
        assert (forced.code, json.loads(cursor.text())["mcpServers"]["contextfold"]) == (
            0,
            entry("cursor", cursor.caches),
        )
        assert "cannot bring it back" in forced.err
        assert b"-" + self.FOREIGN.encode() in forced.out

    def test_a_foreign_entry_is_not_removed(self, cursor: HostProject) -> None:
        cursor.write(self.FOREIGN)
        ran = cursor.uninstall()
        assert (ran.code, cursor.text()) == (6, self.FOREIGN)
        assert "by hand" in ran.err

    def test_an_edited_entry_is_accepted_if_it_works_and_otherwise_refused(self, cursor: HostProject) -> None:
        added = entry("cursor", cursor.caches) | {"env": {"A": "b"}}
        cursor.write(json.dumps({"mcpServers": {"contextfold": added}}))
        assert cursor.install() == (0, b"", "")
        cursor.write(json.dumps({"mcpServers": {"contextfold": added | {"command": "/gone/context"}}}))
        assert cursor.install().code == 6
        before = cursor.text()
        assert cursor.uninstall().code == 6
        assert cursor.text() == before


class TestFileChoice:
    def run(self, home: Path, *argv: str | Path, **variables: str) -> Ran:
        return run_command(*argv, env={"PATH": os.environ["PATH"], "HOME": str(home), **variables}, cwd=home)

    @pytest.mark.parametrize("config_home", ["", "relative", "ABSOLUTE"])
    def test_claude_desktop_has_one_file_per_user(self, config_home: str, tmp_path: Path, caches: Path) -> None:
        if sys.platform == "darwin":
            pytest.skip("the file is elsewhere on macOS")
        home = tmp_path / "home"
        home.mkdir()
        variables = {"XDG_CONFIG_HOME": config_home.replace("ABSOLUTE", f"{tmp_path}/config")}
        ran = self.run(home, "install", "claude-desktop", "--cache-root", caches, **variables)
        assert ran.code == 0
        base = tmp_path / "config" if config_home == "ABSOLUTE" else home / ".config"
        file = base / "Claude" / "claude_desktop_config.json"
        assert json.loads(file.read_text()) == {
            "mcpServers": {"contextfold": entry("claude-desktop", caches, is_shared=False)}
        }
        assert self.run(home, "uninstall", "claude-desktop", **variables).code == 0
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_claude_desktop_on_macos_is_below_application_support(
        self, tmp_path: Path, call: Call, caches: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CONFIG_HOME", "/elsewhere")
        assert call("install", "claude-desktop", "--cache-root", caches).code == 0
        assert (tmp_path / "Library/Application Support/Claude/claude_desktop_config.json").is_file()
        assert call("uninstall", "claude-desktop").code == 0
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_an_unknown_operating_system_is_an_error(
        self, caches: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "platform", "plan9")
        ran = call("install", "claude-desktop", "--cache-root", caches)
        assert ran.code == 6
        assert "not known to us" in ran.err

    @pytest.mark.parametrize("host", sorted(host.name for host in HOSTS.values() if host.user_file))
    def test_the_users_file_is_the_default_if_the_host_has_one(self, host: str, tmp_path: Path, caches: Path) -> None:
        written = self.run(tmp_path, "install", host, "--cache-root", caches)
        assert written.code == 0
        below_home = HOSTS[host].user_file
        assert (tmp_path / below_home).is_file()
        assert str(caches) in (tmp_path / below_home).read_text()
        assert self.run(tmp_path, "uninstall", host).code == 0
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    @pytest.mark.parametrize("host", sorted(host.name for host in HOSTS.values() if host.takes_http))
    def test_the_daemons_address_is_written_and_removed_for_every_http_host(self, host: str, tmp_path: Path) -> None:
        assert self.run(tmp_path, "install", host).code == 0
        written = [path for path in tmp_path.rglob("*") if path.is_file() and "9090/mcp" in path.read_text()]
        assert len(written) == 1
        assert self.run(tmp_path, "uninstall", host).code == 0
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_an_empty_toml_file_behind_a_link_stays_toml(self, tmp_path: Path) -> None:
        (tmp_path / ".codex").mkdir()
        (tmp_path / "dotfile.toml").write_bytes(b"")
        (tmp_path / ".codex" / "config.toml").symlink_to(tmp_path / "dotfile.toml")
        assert self.run(tmp_path, "install", "codex").code == 0
        assert self.run(tmp_path, "uninstall", "codex").code == 0
        assert (tmp_path / "dotfile.toml").read_bytes() == b""

    @pytest.mark.parametrize("text", ["", 'model = "x"\n', 'model = "x"', "[mcp_servers.other]\nurl = 'http://a'\n"])
    def test_a_toml_file_is_restored_to_the_byte(self, text: str, tmp_path: Path) -> None:
        file = tmp_path / ".codex" / "config.toml"
        file.parent.mkdir()
        file.write_text(text)
        assert self.run(tmp_path, "install", "codex").code == 0
        value = tomllib.loads(file.read_text())
        assert value["mcp_servers"].pop("contextfold") == {"url": "http://localhost:9090/mcp"}
        assert self.run(tmp_path, "install", "codex", "--url", "http://localhost:9100").code == 0
        assert self.run(tmp_path, "uninstall", "codex").code == 0
        assert (file.read_text() if file.exists() else "") == text

    def test_the_skill_is_installed_and_an_edited_skill_is_not_removed(self, tmp_path: Path) -> None:
        skill = tmp_path / ".claude" / "skills" / "context-folding" / "SKILL.md"
        assert self.run(tmp_path, "install", "claude-code").code == 0
        assert skill.read_text().startswith("---\nname: context-folding\n")
        skill.write_text("mine")
        assert self.run(tmp_path, "uninstall", "claude-code").code == 0
        assert skill.read_text() == "mine"

    def test_shared_files_have_no_path_of_this_machine(self, project: HostProject) -> None:
        for ran in (project.install(), project.install_daemon()):
            assert ran.code == 0
            for path, content in project.everything().items():
                assert path.endswith("settings.local.json") or str(project.folder).encode() not in content
                assert path.endswith("settings.local.json") or os.path.dirname(COMMAND).encode() not in content

    def test_caches_outside_the_project_are_refused_in_shared_files(self, project: HostProject) -> None:
        project.caches = project.folder.parent
        ran = project.install()
        assert (ran.code, ran.out) == (6, b"")
        assert "outside the project" in ran.err

    def test_an_address_without_a_daemon_is_reported(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, "install", "zed", "--url", "http://127.0.0.1:9")
        assert ran.code == 0
        assert "nothing answers at http://127.0.0.1:9" in ran.err

    def test_the_written_command_has_a_full_path_even_if_install_is_run_as_a_module(
        self, tmp_path: Path, caches: Path
    ) -> None:
        argv: list[str | Path] = [sys.executable, "-m", "contextfold", "install", "claude-code", "--cache-root", caches]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, env=env)
        written = json.loads((tmp_path / ".claude.json").read_text())["mcpServers"]["contextfold"]
        version_command = [written["command"], "--version"]
        assert subprocess.run(version_command, cwd="/", check=True, capture_output=True).stdout.startswith(
            b"contextfold "
        )

    def test_the_written_command_starts_a_server_that_answers(self, project: HostProject) -> None:
        project.install()
        written = json.loads(project.text().replace("${workspaceFolder}", str(project.folder)))
        written = written[KEYS[project.host]]["contextfold"]
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        initialize = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode() + b"\n"
        argv = [written["command"], *written["args"]]
        env = {**os.environ, "PATH": f"{os.path.dirname(COMMAND)}:{os.environ['PATH']}"}
        ran = subprocess.run(
            argv, input=initialize, cwd=project.folder, env=env, capture_output=True, timeout=60, check=False
        )
        answer = ran.stdout
        assert json.loads(answer)["result"]["protocolVersion"] == "2025-06-18"

    @pytest.mark.parametrize(
        ("argv", "code", "message"),
        [
            (["install"], 1, "missing host"),
            (["install", "emacs"], 1, "host is one of claude-code"),
            (["install", "cursor", "--stdio"], 1, "missing --cache-root DIR"),
            (["install", "claude-desktop"], 1, "missing --cache-root DIR"),
            (["install", "cursor", "--cache-root", ""], 1, "missing --cache-root DIR"),
            (["install", "cursor", "--cache-root", "nowhere"], 6, "there is no folder nowhere"),
            (["install", "cursor", "--cache-root", "/", "--project", "nowhere"], 6, "give --project the folder"),
            (["install", "cursor", "--cache-root", "/", "--project", ".", "--user"], 1, "exclude each other"),
            (["uninstall", "claude-desktop", "--project", "."], 1, "--project is not for"),
            (["uninstall", "vscode", "--user"], 1, "--user is not for vscode"),
            (["uninstall", "codex", "--project", "."], 1, "leave it out"),
        ],
    )
    def test_arguments_that_name_no_file_are_an_error(
        self, argv: list[str], code: int, message: str, tmp_path: Path
    ) -> None:
        ran = self.run(tmp_path, *argv)
        assert (ran.code, ran.out) == (code, b"")
        assert message in ran.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", [b"caf\xe9", b"${HOME}"])
    def test_a_path_that_the_host_would_misread_is_refused(self, name: bytes, tmp_path: Path) -> None:
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        ran = run_command("install", "claude-code", "--cache-root", name, cwd=tmp_path)
        assert ran.code == 6
        assert "choose another path" in ran.err


class TestShownDifference:
    @pytest.mark.skipif(not shutil.which("patch"), reason="patch is not on this machine")
    @pytest.mark.parametrize("text", ['{\r\n\t"a": 1\r\n}', '{"a": "\u2028\x7f"}', "{}\n"])
    def test_the_difference_can_be_applied_with_patch(self, text: str, project: HostProject, tmp_path: Path) -> None:
        project.write(text)
        (tmp_path / "copy").write_bytes(project.file.read_bytes())
        patch = project.install().out
        subprocess.run(["patch", "--binary", "-s", tmp_path / "copy"], input=patch, check=True)
        assert (tmp_path / "copy").read_bytes() == project.file.read_bytes()

    def test_control_characters_of_the_file_do_not_reach_the_terminal(self, vscode: HostProject) -> None:
        vscode.write('{\r\n\t"a": "\x7f\x9b2J" // \x1b[2J\r\n}')
        terminal, end = pty.openpty()
        process = subprocess.Popen([COMMAND, *vscode.install_argv], stdout=end, stderr=end)
        os.close(end)
        output = read_terminal(terminal)
        assert process.wait() == 0
        shown = output.replace("\r\n", "\n")
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
        assert '+        "contextfold": {\n' in shown
        assert f"contextfold is in {vscode.file}; start the server" in shown
