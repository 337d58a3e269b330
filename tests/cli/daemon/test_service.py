"""`context service`: a valid systemd unit, a valid launchd agent, and the files that the command writes."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from contextfold.cli.serve import AGENT_LABEL, launchd_agent, systemd_unit
from tests.support.machine import COMMAND, run_command

ODD_COMMAND = ["/opt/my tools/context", "serve", "--store", '/x/50% "a"/$HOME\\b']


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "contextfold.service"
    unit.write_text(systemd_unit([str(COMMAND), "serve", "--port", "9100"]))
    argv = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert unit.name not in done.stderr
    assert done.returncode == 0 or "contextfold" not in done.stderr


def test_arguments_are_quoted_for_systemd() -> None:
    line = next(line for line in systemd_unit(ODD_COMMAND).splitlines() if line.startswith("ExecStart="))
    assert line == r'ExecStart="/opt/my tools/context" "serve" "--store" "/x/50%% \"a\"/$$HOME\\b"'


def test_the_launchd_agent_has_the_command_and_restarts_on_failure() -> None:
    agent = plistlib.loads(launchd_agent(ODD_COMMAND, "/log").encode())
    assert (agent["Label"], agent["ProgramArguments"]) == (AGENT_LABEL, ODD_COMMAND)
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="systemd is Linux's")
class TestOnLinux:
    def run(self, home: Path, *argv: str) -> tuple[int, str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        ran = run_command("service", *argv, env=env, cwd=home)
        return ran.code, ran.out.decode() + ran.err

    def test_install_writes_a_unit_with_absolute_paths_and_uninstall_removes_it(self, tmp_path: Path) -> None:
        code, _ = self.run(tmp_path, "install", "--port", "9100", "--cache-root", "caches")
        unit = tmp_path / ".config" / "systemd" / "user" / "contextfold.service"
        assert code == 0
        assert f'"--cache-root" "{tmp_path}/caches"' in unit.read_text()
        assert self.run(tmp_path, "uninstall")[0] == 0
        assert not unit.exists()

    def test_a_service_that_is_not_installed_is_reported(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "status") == (3, "not installed: context service install\n")
        assert self.run(tmp_path, "start")[0] == 6
        assert self.run(tmp_path, "uninstall")[0] == 6

    def test_daemon_options_are_accepted_only_by_install(self, tmp_path: Path) -> None:
        code, text = self.run(tmp_path, "status", "--port", "9")
        assert code == 1
        assert "context service install" in text
