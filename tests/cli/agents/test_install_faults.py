"""`context install` and `context uninstall` where something is in the way: refused with a reason, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from contextfold.cli.agents.files import ConfigFile
from contextfold.errors import StorageFailed
from tests.cli.agents.wiring import KEYS, Project
from tests.support.machine import COMMAND, Call, as_nobody, context, times


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "line 1, column 1: a value is expected"),
            ('{"a": 1', "a comma or } is expected"),
            ('{"a": tru}', "a value is expected"),
            ('{"a": 01}', "a value is expected"),
            ('{"a" 1}', "a colon is expected"),
            ("{a: 1}", "a key in double quotes"),
            ('{"a": "\n"}', "the string that begins here"),
            ('{"a": [1 2]}', "a comma or ] is expected"),
            ("{} {}", "line 1, column 4: the text goes on after its end"),
            ("{,}", "a key in double quotes"),
            ("[" * 300 + "]" * 300, "nested too deeply"),
            ("[]", "top level is not an object"),
            ('"mcpServers"', "top level is not an object"),
            ('{"KEY": []}', "KEY is not an object"),
            ('{"KEY": null}', "KEY is not an object"),
            ('{"KEY": {}, "KEY": {}}', "KEY more than once"),
            ('{"KEY": {"contextfold": {}, "contextf\\u006fld": {}}}', "contextfold more than once"),
            ("{} /* no end", "the text goes on"),
        ],
    )
    def test_a_text_that_cannot_be_edited_safely_is_left_alone(self, text: str, said: str, project: Project) -> None:
        key = KEYS[project.host]
        project.write(text.replace("KEY", key))
        for ran in (project.install(), project.install("--force"), project.uninstall()):
            assert (ran.code, ran.out) == (6, b"")
            assert str(project.file) in ran.err
            assert said.replace("KEY", key) in ran.err
        assert project.text() == text.replace("KEY", key)

    @pytest.mark.parametrize("text", ['{"a": 1,}', '{"a": [1,]}', '{"a": 1} // x', "/* x */ {}"])
    def test_comments_are_refused_where_the_host_reads_none(
        self, text: str, tmp_path: Path, call: Call, caches: Path
    ) -> None:
        project = Project(tmp_path, "claude-code", call, caches)
        project.write(text)
        ran = project.install()
        assert (ran.code, project.text()) == (6, text)
        assert "it is not JSON: line 1" in ran.err

    def test_bytes_that_are_no_text_are_left_alone(self, project: Project) -> None:
        project.write("")
        project.file.write_bytes('{"a": "é"}'.encode("latin-1"))
        ran = project.install()
        assert ran.code == 6
        assert "not UTF-8" in ran.err

    def test_a_folder_or_pipe_in_the_files_place_is_left_alone(self, project: Project) -> None:
        project.file.mkdir(parents=True)
        for ran in (project.install(), project.uninstall()):
            assert ran.code == 6
            assert f"{project.file} is not a file" in ran.err
        project.file.rmdir()
        os.mkfifo(project.file)
        assert project.install().code == 6

    def test_a_file_in_the_folders_place_is_left_alone(self, vscode: Project) -> None:
        (vscode.folder / ".vscode").write_text("x")
        ran = vscode.install()
        assert ran.code == 6
        assert ".vscode is not a folder" in ran.err

    def test_a_read_only_file_is_left_alone(self, project: Project) -> None:
        project.write("{}")
        project.file.chmod(0o444)
        ran = project.install()
        assert (ran.code, project.text()) == (6, "{}")
        assert "read-only" in ran.err
        assert len(project.everything()) == 1

    def test_what_may_not_be_read_or_written_is_told(self, tmp_path: Path, caches: Path) -> None:
        (tmp_path / "project" / ".mcp.json").write_text("{}")
        (tmp_path / "project" / ".mcp.json").chmod(0o600)
        argv = ("install", "claude-code", "--project", f"{tmp_path}/project", "--cache-root", str(caches))
        unreadable = as_nobody(tmp_path, *argv)
        assert unreadable.returncode == 6
        assert "Permission denied; give yourself the permission" in unreadable.stderr
        (tmp_path / "project" / ".mcp.json").unlink()
        assert as_nobody(tmp_path, *argv).returncode == 6

    def test_a_file_that_changes_meanwhile_is_not_overwritten(self, project: Project) -> None:
        project.write("{}")
        file = ConfigFile(str(project.file))
        project.write('{"by": "somebody else"}')
        with pytest.raises(StorageFailed, match="changed by another program"):
            file.write("{ }")
        assert project.text() == '{"by": "somebody else"}'
        assert len(project.everything()) == 1

    def test_a_failure_leaves_neither_folder_nor_half_a_file(
        self, vscode: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        ran = vscode.install()
        assert ran.code == 6
        assert "free some space" in ran.err
        assert vscode.everything() == {}


class TestLinksAndModes:
    def test_a_link_stays_a_link_and_what_it_leads_to_is_edited(self, project: Project) -> None:
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

    def test_behind_a_link_a_file_is_never_removed(self, project: Project) -> None:
        project.install()
        real = project.folder / "dotfiles.json"
        project.file.rename(real)
        project.file.symlink_to(real)
        assert project.uninstall().code == 0
        assert json.loads(real.read_text()) == {}

    def test_a_link_that_leads_nowhere_is_refused(self, project: Project) -> None:
        project.file.parent.mkdir(exist_ok=True)
        project.file.symlink_to("nowhere")
        ran = project.install()
        assert ran.code == 6
        assert "a link that leads nowhere" in ran.err

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
    def test_the_mode_stays(self, mode: int, project: Project) -> None:
        project.write("{}")
        project.file.chmod(mode)
        project.install()
        assert stat.S_IMODE(project.file.stat().st_mode) == mode

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
    def test_the_owner_stays(self, project: Project) -> None:
        project.write("{}")
        os.chown(project.file, 65534, 65534)
        project.install()
        assert (project.file.stat().st_uid, project.file.stat().st_gid) == (65534, 65534)


class TestHostileSurroundings:
    def test_uninstall_leaves_an_entry_that_install_did_not_write(self, project: Project) -> None:
        key = "servers" if project.host == "vscode" else "mcpServers"
        foreign = {"command": "/opt/other", "args": ["serve", "--stdio", "--port", "9"], "env": {"TOKEN": "s"}}
        project.write(json.dumps({key: {"contextfold": foreign}}))
        before = project.everything()
        ran = project.uninstall()
        assert (ran.code, ran.out) == (6, b"")
        assert project.everything() == before

    def test_a_path_through_a_link_means_what_the_system_means(self, tmp_path: Path, call: Call) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "project" / "caches").mkdir(parents=True)
        (tmp_path / "link").symlink_to("a/b")
        through = f"{tmp_path}/link/.."
        caches = f"{through}/project/caches"
        assert call("install", "claude-code", "--project", f"{through}/project", "--cache-root", caches).code == 0
        written = json.loads((tmp_path / "a" / "project" / ".mcp.json").read_text())
        assert written["mcpServers"]["contextfold"]["args"][-1] == "caches"

    def test_a_refusal_prints_no_difference(self, project: Project) -> None:
        project.write("{}")
        project.file.chmod(0o444)
        ran = project.install()
        assert (ran.code, ran.out) == (6, b"")

    @pytest.mark.parametrize("command", ["install", "uninstall"])
    def test_a_current_folder_that_is_gone_is_an_error_with_a_reason(
        self, command: str, tmp_path: Path, caches: Path
    ) -> None:
        root = f"--cache-root {caches}" if command == "install" else ""
        script = f"mkdir gone && cd gone && rmdir ../gone && {COMMAND} {command} claude-code --project . {root}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 6
        assert "the current folder is gone" in done.stderr

    def test_no_home_is_no_place_for_a_users_file(self, tmp_path: Path, caches: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": ""}
        ran = context("install", "cursor", "--user", "--cache-root", caches, "--dry-run", env=env, cwd=tmp_path)
        assert (ran.code, ran.out) == (6, b"")
        assert "HOME" in ran.err

    def test_a_file_with_a_second_name_is_left_alone(self, project: Project) -> None:
        project.write("{}")
        os.link(project.file, project.folder / "second")
        assert project.install().code == 6
        assert project.text() == "{}"

    def test_a_comment_between_key_and_value_stays(self, vscode: Project) -> None:
        vscode.write("{}")
        assert vscode.install().code == 0
        vscode.write(vscode.text().replace('"servers": {', '"servers": /* mine */ {'))
        assert vscode.uninstall().code == 0
        assert "/* mine */" in vscode.text()

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_what_a_killed_run_left_is_taken_over_by_the_next(self, how: signal.Signals, project: Project) -> None:
        before = project.everything()
        script = f"""
import os, sys
real = os.rename
def rename(*arguments):
    os.kill(os.getpid(), {int(how)})
    real(*arguments)
os.rename = rename
sys.argv[0] = {str(COMMAND)!r}
from contextfold.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
        argv = ["install", project.host, "--project", str(project.folder), "--cache-root", str(project.caches)]
        done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, check=False)
        assert done.returncode == -how
        assert project.install().code == 0
        assert not [path for path in project.folder.rglob("*") if "contextfold-new" in path.name]
        assert project.uninstall().code == 0
        left = {path: content for path, content in project.everything().items() if content is not None}
        assert left == before

    def test_two_at_once_leave_a_whole_file(self, project: Project) -> None:
        argv: list[str | Path] = [
            COMMAND,
            "install",
            project.host,
            "--project",
            project.folder,
            "--cache-root",
            project.caches,
        ]
        for _ in range(times(2, 20)):
            racers = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(3)]
            assert {(racer.communicate(), racer.returncode)[1] for racer in racers} <= {0, 6}
            key = "servers" if project.host == "vscode" else "mcpServers"
            assert "contextfold" in json.loads(project.text())[key]
            assert project.uninstall().code == 0
            assert not [path for path in project.folder.rglob("*") if path.is_file()]
