"""`context install` and `context uninstall` when something is wrong: they refuse with a reason and lose nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from contextfold.cli.host_files import ConfigFile
from contextfold.errors import StorageFailed
from tests.cli.agents.wiring import KEYS, HostProject
from tests.support.machine import COMMAND, Call, as_nobody, run_command, times


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "line 1, column 1: "),
            ('{"a": 1', "line 1, column 8: "),
            ('{"a": tru}', "line 1, column 7: "),
            ('{"a": 01}', "line 1, column "),
            ('{"a": NaN}', "NaN is not JSON"),
            ('{"a" 1}', "line 1, column 6: "),
            ("{a: 1}", "line 1, column 2: "),
            ('{"a": "\n"}', "line 1, column 8: "),
            ('{"a": [1 2]}', "line 1, column 10: "),
            ("{} {}", "line 1, column 4: "),
            ("{,}", "line 1, column 2: "),
            ('{"a": [/**/,]}', "line 1, column "),
            ("[" * 300 + "]" * 300, "nested too deeply"),
            ("[]", "top level is not an object"),
            ('"mcpServers"', "top level is not an object"),
            ('{"KEY": []}', "KEY is not an object"),
            ('{"KEY": null}', "KEY is not an object"),
            ('{"KEY": {}, "KEY": {}}', "KEY more than once"),
            ('{"KEY": {"contextfold": {}, "contextf\\u006fld": {}}}', "contextfold more than once"),
            ("{} /* no end", "line 1, column 4: "),
        ],
    )
    def test_an_invalid_or_ambiguous_file_is_refused_and_unchanged(
        self, text: str, message: str, project: HostProject
    ) -> None:
        key = KEYS[project.host]
        project.write(text.replace("KEY", key))
        for ran in (project.install(), project.install("--force"), project.uninstall()):
            assert (ran.code, ran.out) == (6, b"")
            assert str(project.file) in ran.err
            assert message.replace("KEY", key) in ran.err
        assert project.text() == text.replace("KEY", key)

    @pytest.mark.parametrize("text", ['{"a": 1,}', '{"a": [1,]}', '{"a": 1} // x', "/* x */ {}"])
    def test_comments_are_refused_if_the_host_cannot_read_them(
        self, text: str, tmp_path: Path, call: Call, caches: Path
    ) -> None:
        project = HostProject(tmp_path, "claude-code", call, caches)
        project.write(text)
        ran = project.install()
        assert (ran.code, project.text()) == (6, text)
        assert "it is not JSON: line 1" in ran.err

    def test_a_file_that_is_not_utf_8_is_refused(self, project: HostProject) -> None:
        project.write("")
        project.file.write_bytes('{"a": "é"}'.encode("latin-1"))
        ran = project.install()
        assert ran.code == 6
        assert "not UTF-8" in ran.err

    def test_a_folder_or_pipe_instead_of_the_file_is_refused(self, project: HostProject) -> None:
        project.file.mkdir(parents=True)
        for ran in (project.install(), project.uninstall()):
            assert ran.code == 6
            assert f"{project.file} is not a file" in ran.err
        project.file.rmdir()
        os.mkfifo(project.file)
        assert project.install().code == 6

    def test_a_file_instead_of_the_folder_is_refused(self, vscode: HostProject) -> None:
        (vscode.folder / ".vscode").write_text("x")
        ran = vscode.install()
        assert ran.code == 6
        assert ".vscode is not a folder" in ran.err

    def test_a_read_only_file_is_refused_and_unchanged(self, project: HostProject) -> None:
        project.write("{}")
        project.file.chmod(0o444)
        ran = project.install()
        assert (ran.code, project.text()) == (6, "{}")
        assert "read-only" in ran.err
        assert len(project.everything()) == 1

    def test_missing_permissions_are_an_error(self, tmp_path: Path, caches: Path) -> None:
        (tmp_path / "project" / ".mcp.json").write_text("{}")
        (tmp_path / "project" / ".mcp.json").chmod(0o600)
        argv = ("install", "claude-code", "--project", f"{tmp_path}/project", "--cache-root", str(caches))
        unreadable = as_nobody(tmp_path, *argv)
        assert unreadable.returncode == 6
        assert "Permission denied; give yourself the permission" in unreadable.stderr
        (tmp_path / "project" / ".mcp.json").unlink()
        assert as_nobody(tmp_path, *argv).returncode == 6

    def test_a_file_that_another_program_changed_is_not_overwritten(self, project: HostProject) -> None:
        project.write("{}")
        file = ConfigFile(str(project.file))
        project.write('{"by": "somebody else"}')
        with pytest.raises(StorageFailed, match="changed by another program"):
            file.change("{ }")
        assert project.text() == '{"by": "somebody else"}'
        assert len(project.everything()) == 1

    def test_a_failed_write_leaves_neither_a_folder_nor_a_partial_file(
        self, vscode: HostProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        ran = vscode.install()
        assert ran.code == 6
        assert "free some space" in ran.err
        assert vscode.everything() == {}


class TestLinksAndModes:
    def test_a_link_remains_and_its_target_is_edited(self, project: HostProject) -> None:
        project.write("{}")
        real = project.folder / "dotfiles.json"
        project.file.rename(real)
        project.file.symlink_to(real)
        project.install()
        assert project.file.is_symlink()
        assert KEYS[project.host] in json.loads(real.read_text())
        project.uninstall()
        assert project.file.is_symlink()
        assert real.read_text() == "{}"

    def test_the_target_of_a_link_is_never_removed(self, project: HostProject) -> None:
        project.install()
        real = project.folder / "dotfiles.json"
        project.file.rename(real)
        project.file.symlink_to(real)
        assert project.uninstall().code == 0
        assert json.loads(real.read_text()) == {}

    def test_a_dangling_link_is_refused(self, project: HostProject) -> None:
        project.file.parent.mkdir(exist_ok=True)
        project.file.symlink_to("nowhere")
        ran = project.install()
        assert ran.code == 6
        assert "a link that leads nowhere" in ran.err

    def test_a_link_out_of_the_project_is_left_alone(self, project: HostProject, tmp_path: Path) -> None:
        outside = tmp_path / "outside.json"
        outside.write_text("{}")
        project.file.parent.mkdir(exist_ok=True)
        project.file.symlink_to(outside)
        ran = project.install()
        assert ran.code == 6
        assert "outside of the project" in ran.err
        assert outside.read_text() == "{}"

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
    def test_the_mode_is_preserved(self, mode: int, project: HostProject) -> None:
        project.write("{}")
        project.file.chmod(mode)
        project.install()
        assert stat.S_IMODE(project.file.stat().st_mode) == mode

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
    def test_the_owner_is_preserved(self, project: HostProject) -> None:
        project.write("{}")
        os.chown(project.file, 65534, 65534)
        project.install()
        assert (project.file.stat().st_uid, project.file.stat().st_gid) == (65534, 65534)


class TestUnusualSurroundings:
    def test_dot_dot_after_a_link_is_resolved_as_by_the_system(self, tmp_path: Path, call: Call) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "project" / "caches").mkdir(parents=True)
        (tmp_path / "link").symlink_to("a/b")
        parent = f"{tmp_path}/link/.."
        caches = f"{parent}/project/caches"
        assert call("install", "claude-code", "--project", f"{parent}/project", "--cache-root", caches).code == 0
        written = json.loads((tmp_path / "a" / "project" / ".mcp.json").read_text())
        assert written["mcpServers"]["contextfold"]["args"][-1] == "caches"

    @pytest.mark.parametrize("command", ["install", "uninstall"])
    def test_a_deleted_current_folder_is_an_error_with_a_reason(
        self, command: str, tmp_path: Path, caches: Path
    ) -> None:
        root = f"--cache-root {caches}" if command == "install" else ""
        script = f"mkdir gone && cd gone && rmdir ../gone && {COMMAND} {command} claude-code --project . {root}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 6
        assert "the current folder is gone" in done.stderr

    def test_a_users_file_needs_a_home_folder(self, tmp_path: Path, caches: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": ""}
        ran = run_command("install", "cursor", "--user", "--cache-root", caches, "--dry-run", env=env, cwd=tmp_path)
        assert (ran.code, ran.out) == (6, b"")
        assert "HOME" in ran.err

    def test_a_file_with_a_second_hard_link_is_refused(self, project: HostProject) -> None:
        project.write("{}")
        os.link(project.file, project.folder / "second")
        assert project.install().code == 6
        assert project.text() == "{}"

    def test_a_comment_between_key_and_value_remains(self, vscode: HostProject) -> None:
        vscode.write("{}")
        assert vscode.install().code == 0
        vscode.write(vscode.text().replace('"servers": {', '"servers": /* mine */ {'))
        assert vscode.uninstall().code == 0
        assert "/* mine */" in vscode.text()

    @pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_temporary_files_of_a_killed_run_are_removed_by_the_next(
        self, signal_number: signal.Signals, project: HostProject
    ) -> None:
        before = project.everything()
        script = f"""
import os, sys
real = os.rename
def rename(*arguments):
    os.kill(os.getpid(), {int(signal_number)})
    real(*arguments)
os.rename = rename
sys.argv[0] = {str(COMMAND)!r}
from contextfold.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
        argv = [sys.executable, "-c", script, *project.install_argv]
        done = subprocess.run(argv, capture_output=True, check=False)
        assert done.returncode == -signal_number
        assert project.install().code == 0
        assert not [path for path in project.folder.rglob("*") if "contextfold-new" in path.name]
        assert project.uninstall().code == 0
        left = {path: content for path, content in project.everything().items() if content is not None}
        assert left == before

    def test_concurrent_installs_leave_a_valid_file(self, project: HostProject) -> None:
        argv = [str(COMMAND), *project.install_argv]
        for _ in range(times(2, 20)):
            processes = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(3)]
            assert {(process.communicate(), process.returncode)[1] for process in processes} <= {0, 6}
            key = "servers" if project.host == "vscode" else "mcpServers"
            assert "contextfold" in json.loads(project.text())[key]
            assert project.uninstall().code == 0
            assert not [path for path in project.folder.rglob("*") if path.is_file()]
