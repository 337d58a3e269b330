"""`context service ACTION`: runs the daemon in the background with systemd (Linux) or launchd (macOS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from contextfold.cli.agents.files import ConfigFile, absolute, executable
from contextfold.cli.daemon.client import DaemonSilent, client_from
from contextfold.cli.output import print_answer, print_note
from contextfold.cli.parse import UsageError, Values
from contextfold.error_codes import EXIT_OK
from contextfold.errors import StorageFailed

TIMEOUT_S = 60
NOT_RUNNING = 3
PATHS = ("cache-root", "config", "store", "token-file")
PASSED_ON = ("host", "port", *PATHS)
UNIT_NAME = "contextfold.service"
AGENT_LABEL = "io.contextfold.daemon"
RESTART_S = 2


def run_service(values: Values) -> int:
    manager = _manager()
    action = values["action"]
    given = [f"--{name}" for name in PASSED_ON if name in values]
    if given and action != "install":
        raise UsageError(f"{given[0]} is for `context service install`, which writes it into the service")
    return {
        "install": manager.install,
        "uninstall": manager.uninstall,
        "start": manager.start,
        "stop": manager.stop,
        "status": manager.status,
    }[action](values)


class Systemd:
    """systemd's manager of the user's own services."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self.path = Path(base, "systemd", "user", UNIT_NAME)

    def install(self, values: Values) -> int:
        ConfigFile(str(self.path)).write(systemd_unit(_command(values)))
        print_answer(f"wrote {self.path}\n")
        if not _has_systemd():
            print_note("systemd does not run for this user; start the service after log-in: context service start")
            return EXIT_OK
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", UNIT_NAME)
        print_answer("the daemon runs now and after each log-in; its log: journalctl --user -u contextfold\n")
        print_note("to keep it running without a log-in: loginctl enable-linger")
        return EXIT_OK

    def uninstall(self, _values: Values) -> int:
        if not self.path.exists():
            raise StorageFailed(f"there is no service: {self.path} is not there")
        if _has_systemd():
            self._systemctl("disable", "--now", UNIT_NAME)
        self.path.unlink()
        if _has_systemd():
            self._systemctl("daemon-reload")
        print_answer(f"removed {self.path}\n")
        return EXIT_OK

    def start(self, _values: Values) -> int:
        self._check_installed()
        self._systemctl("start", UNIT_NAME)
        return EXIT_OK

    def stop(self, _values: Values) -> int:
        self._check_installed()
        self._systemctl("stop", UNIT_NAME)
        return EXIT_OK

    def status(self, values: Values) -> int:
        if not self.path.exists():
            print_answer("not installed: context service install\n")
            return NOT_RUNNING
        state = "unknown, systemd does not run for this user"
        if _has_systemd():
            state = _run(["systemctl", "--user", "is-active", UNIT_NAME]).stdout.strip() or "unknown"
        return _report_status(self.path, state, values)

    def _check_installed(self) -> None:
        if not self.path.exists():
            raise StorageFailed(f"there is no service: {self.path} is not there; run `context service install`")
        if not _has_systemd():
            raise StorageFailed("systemd does not run for this user; log in through it, or run `context serve`")

    def _systemctl(self, *words: str) -> None:
        _checked(["systemctl", "--user", *words])


class Launchd:
    """macOS's manager of the user's own agents. Written after its documentation; not tested on a Mac."""

    def __init__(self) -> None:
        home = os.path.expanduser("~")
        self.path = Path(home, "Library", "LaunchAgents", f"{AGENT_LABEL}.plist")
        self._log = os.path.join(home, "Library", "Logs", "contextfold.log")
        self._domain = f"gui/{os.getuid()}"

    def install(self, values: Values) -> int:
        ConfigFile(str(self.path)).write(launchd_agent(_command(values), self._log))
        _checked(["launchctl", "bootstrap", self._domain, str(self.path)])
        print_answer(f"wrote {self.path}; the daemon runs now and after each log-in; its log: {self._log}\n")
        return EXIT_OK

    def uninstall(self, _values: Values) -> int:
        if not self.path.exists():
            raise StorageFailed(f"there is no service: {self.path} is not there")
        _run(["launchctl", "bootout", f"{self._domain}/{AGENT_LABEL}"])
        self.path.unlink()
        print_answer(f"removed {self.path}\n")
        return EXIT_OK

    def start(self, _values: Values) -> int:
        _checked(["launchctl", "kickstart", f"{self._domain}/{AGENT_LABEL}"])
        return EXIT_OK

    def stop(self, _values: Values) -> int:
        _checked(["launchctl", "kill", "SIGTERM", f"{self._domain}/{AGENT_LABEL}"])
        return EXIT_OK

    def status(self, values: Values) -> int:
        if not self.path.exists():
            print_answer("not installed: context service install\n")
            return NOT_RUNNING
        ran = _run(["launchctl", "print", f"{self._domain}/{AGENT_LABEL}"])
        return _report_status(self.path, "active" if "state = running" in ran.stdout else "inactive", values)


def _manager() -> Systemd | Launchd:
    if sys.platform == "darwin":
        return Launchd()
    if sys.platform == "linux":
        return Systemd()
    raise StorageFailed(f"there is no service for {sys.platform} here; run `context serve` by other means")


def _has_systemd() -> bool:
    """Whether systemd manages services for the current user."""
    if not shutil.which("systemctl"):
        return False
    return _run(["systemctl", "--user", "show-environment"]).returncode == 0


def _command(values: Values) -> list[str]:
    """The daemon's command line. Paths are made absolute, because a service starts in another folder."""
    argv = [executable(), "serve"]
    for name in PASSED_ON:
        if name in values:
            value = values[name]
            is_path = name in PATHS and "://" not in value
            argv += [f"--{name}", absolute(value) if is_path else value]
    return argv


def systemd_unit(argv: list[str]) -> str:
    """A unit that runs a command and restarts it when it fails. Its log goes to the journal."""
    return f"""\
[Unit]
Description=contextfold daemon: folds agents' context and answers from documents
StartLimitIntervalSec=60
StartLimitBurst=10

[Service]
ExecStart={" ".join(map(_systemd_word, argv))}
Restart=on-failure
RestartSec={RESTART_S}
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def _systemd_word(word: str) -> str:
    """Quote an argument for systemd; escape specifiers, variables and backslashes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def launchd_agent(argv: list[str], log: str) -> str:
    """An agent that runs a command after log-in and restarts it when it fails."""
    import plistlib

    return plistlib.dumps(
        {
            "Label": AGENT_LABEL,
            "ProgramArguments": argv,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
    ).decode()


def _report_status(path: Path, state: str, values: Values) -> int:
    print_answer(f"service: {state} ({path})\n")
    client = client_from(values)
    try:
        status = client.status()
    except DaemonSilent as problem:
        print_answer(f"daemon: {problem}\n")
        return NOT_RUNNING
    print_answer(f"daemon: contextfold {status['version']} at {client.address.url}, since {status['started_at']}\n")
    return EXIT_OK


def _checked(argv: list[str]) -> None:
    ran = _run(argv)
    if ran.returncode:
        raise StorageFailed(f"`{' '.join(argv)}` failed: {ran.stderr.strip() or ran.stdout.strip() or ran.returncode}")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise StorageFailed(f"cannot run {argv[0]}: {problem}") from problem
