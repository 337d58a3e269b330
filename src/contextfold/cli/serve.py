"""`context serve` runs the daemon or the stdio server; `context token` makes a token for the daemon.

`context service ACTION` runs the daemon in the background with systemd (Linux) or launchd (macOS).
"""

from __future__ import annotations

import argparse
import os
import plistlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from contextfold.cli.daemon_client import RUN_TOKEN_VARIABLE, DaemonSilent, add_daemon_options, client_from
from contextfold.cli.host_files import absolute, executable, write_text
from contextfold.cli.output import escape, is_terminal, print_answer, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.setting_options import add_config_option, add_setting, read_setting_options
from contextfold.errors import EXIT_OK, StorageFailed
from contextfold.resolve.files import default_cache_of
from contextfold.settings import NATS, FoldSettings, read_daemon_settings, read_settings

if TYPE_CHECKING:
    # The stdio server makes it when a folding tool is called.
    from contextfold.fold.service.fold_service import FoldService

# The settings that the help of `context serve` lists; `context help settings` has all of them.
SETTINGS_SHOWN = (
    "host",
    "port",
    "cache-root",
    "store",
    "tools",
    "branch-reminder",
    "recall-at-start",
    "token-file",
    "allow-host",
    "allow-other-users",
    "anthropic-upstream",
    "openai-upstream",
    "gemini-upstream",
    "fold-results",
)
READ_BYTES = 4096
DAEMON_ONLY = (
    "host",
    "port",
    "token-file",
    "allow-host",
    "allow-other-users",
    "anthropic-upstream",
    "openai-upstream",
    "gemini-upstream",
)


def declare_serve(parser: CommandParser) -> None:
    parser.describe(
        """
        Without --stdio: the daemon, at http://localhost:9090. It has the folding and resolve tools (/mcp),
        the proxy (/proxy), hooks, and a page to look at (/). `contextd` is the same.
        With --stdio: one agent's server on stdin and stdout, which its host starts; `mcp-context-server`
        is the same.
        """,
        "context serve",
        "context serve --port 9100 --cache-root caches",
        "context serve --host 0.0.0.0 --token-file tokens --allow-host ctx.example.org",
        "context serve --store nats://n1:4222,nats://n2:4222 --nats-creds daemon.creds --nats-replicas 3",
        "context serve --stdio --cache-root caches",
        "context serve --stdio --docs docs",
        more="""
        Every setting can also be a variable or a line of the --config file, and those of NATS can be
        options here: `context help settings` lists them.
        """,
    )
    parser.add_switch("--stdio", "speak on stdin and stdout instead of HTTP")
    parser.add_argument(
        "--docs", metavar="DIR", help="with --stdio: only context.ask and context.get, on the cache of this folder"
    )
    parser.add_switch(
        "--until-stdin-ends", "stop the daemon when its standard input is closed, as that of a child process is"
    )
    for name in SETTINGS_SHOWN:
        add_setting(parser, name)
    for name in ("prompt-cache-s", "trust-clock", *NATS):
        add_setting(parser, name, is_advanced=True)
    add_config_option(parser)
    parser.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> None:
    options = read_setting_options(args)
    if args.stdio:
        if given := [f"--{name}" for name in DAEMON_ONLY if name in options]:
            raise UsageError(f"{given[0]} is for the daemon and means nothing with --stdio; leave one of them out")
        from contextfold.serve.stdio import serve

        only = ""
        if args.docs is not None:
            root, only = os.path.split(os.path.abspath(default_cache_of(args.docs)))
            options = {**options, "cache-root": root}
        serve(read_settings(os.environ, options), _make_fold, only=only)
    elif args.docs is not None:
        raise UsageError("--docs is for the server on stdin and stdout; add --stdio")
    else:
        from contextfold.daemon import serve_daemon

        if args.until_stdin_ends:
            threading.Thread(target=_stop_after_stdin, daemon=True).start()
        # The daemon's own child processes must not inherit the token.
        run_token = os.environ.pop(RUN_TOKEN_VARIABLE, "")
        serve_daemon(read_daemon_settings(os.environ, options), _announce, run_token=run_token)


def _make_fold(settings: FoldSettings) -> FoldService:
    from contextfold.app import make_fold_service

    return make_fold_service(settings)


def _stop_after_stdin() -> None:
    """Stop this process when nobody holds the other end of its standard input any more, even if that was killed."""
    while os.read(sys.stdin.fileno(), READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(url: str) -> None:
    """Print the address: that of the page on a terminal, or one fixed line in a pipe."""
    line = f"contextfold listens on {url}/mcp\n"
    if is_terminal(sys.stdout):
        line = (
            f"contextfold: {url}/\n"
            f"  MCP at {url}/mcp, the proxy below {url}/proxy/. Ctrl-C stops the daemon.\n"
            "  In another terminal: `context run claude` starts Claude Code behind it, `context doctor` checks it.\n"
        )
    try:
        print_answer(line)
    except StorageFailed:
        # Stdout is closed. The log has the address, too.
        pass


def declare_token(parser: CommandParser) -> None:
    parser.describe(
        """
        Make a bearer token for an owner, print it, and add its hash to the file that `context serve` is
        given. The token itself is not stored, so it is shown only now. A running daemon takes the file's
        new state at once: a new line grants access, a removed line revokes it.
        """,
        "context token alice --token-file tokens",
        "context token build-robot --token-file /etc/contextfold/tokens > robot.token",
    )
    parser.add_argument(
        "owner", metavar="OWNER", help="the owner whose sessions the token opens: letters, digits and . _ @ -"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        required=True,
        help="the file of owners and token hashes; created if it is missing",
    )
    parser.set_defaults(run=run_token)


def run_token(args: argparse.Namespace) -> None:
    from contextfold.serve.http.bearer_tokens import add_token

    print_answer(add_token(args.token_file, args.owner) + "\n")
    print_note(
        f"this token is shown once: {escape(args.token_file)} keeps its hash alone; remove that line to revoke it"
    )


# A command of the service manager must end within this time.
MANAGER_TIMEOUT_S = 60
NOT_RUNNING = 3
PATHS = ("cache-root", "config", "store", "token-file")
PASSED_ON = ("host", "port", *PATHS)
UNIT_NAME = "contextfold.service"
AGENT_LABEL = "io.contextfold.daemon"
RESTART_S = 2


def declare_service(parser: CommandParser) -> None:
    parser.describe(
        """
        Manage the daemon as a service of your own user: systemd on Linux, launchd on macOS. It restarts
        when it fails, and its log is where the system keeps logs. Options of install become options of
        the daemon.
        """,
        "context service install",
        "context service install --port 9100 --cache-root ~/caches",
        "context service status",
        "context service uninstall",
    )
    parser.add_choice("action", ("install", "uninstall", "start", "stop", "status"), "what to do")
    for name in ("host", "port", "cache-root", "store", "token-file"):
        add_setting(parser, name)
    add_config_option(parser)
    add_daemon_options(parser)
    parser.set_defaults(run=run_service)


def run_service(args: argparse.Namespace) -> int:
    manager, action = _manager(), args.action
    options = read_setting_options(args)
    given = [f"--{name}" for name in PASSED_ON if name in options]
    if given and action != "install":
        raise UsageError(f"{given[0]} is for `context service install`, which writes it into the service")
    if action == "install":
        write_text(str(manager.path), manager.file_text(_daemon_command(options)))
        print_answer(f"wrote {manager.path}\n")
        manager.enable()
    elif action == "status":
        if not manager.path.exists():
            print_answer("not installed: context service install\n")
            return NOT_RUNNING
        return _report_status(manager.path, manager.state(), args)
    elif not manager.path.exists():
        raise StorageFailed(f"there is no service: {manager.path} is not there; `context service install` makes one")
    elif action == "uninstall":
        manager.uninstall()
        print_answer(f"removed {manager.path}\n")
    else:
        manager.control(action)
    return EXIT_OK


class Systemd:
    """systemd's manager of the user's own services."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self.path = Path(base, "systemd", "user", UNIT_NAME)
        # Whether systemd manages services for the current user.
        self._is_there = bool(shutil.which("systemctl")) and not self._run("show-environment").returncode

    def file_text(self, argv: list[str]) -> str:
        return systemd_unit(argv)

    def enable(self) -> None:
        if not self._is_there:
            print_note("systemd does not run for this user; start the service after log-in: context service start")
            return
        _check(self._run("daemon-reload"))
        _check(self._run("enable", "--now", UNIT_NAME))
        print_answer("the daemon runs now and after each log-in; its log: journalctl --user -u contextfold\n")
        print_note("to keep it running without a log-in: loginctl enable-linger")

    def uninstall(self) -> None:
        if self._is_there:
            _check(self._run("disable", "--now", UNIT_NAME))
        self.path.unlink()
        if self._is_there:
            _check(self._run("daemon-reload"))

    def control(self, action: str) -> None:
        if not self._is_there:
            raise StorageFailed("systemd does not run for this user; log in through it, or run `context serve`")
        _check(self._run(action, UNIT_NAME))

    def state(self) -> str:
        if not self._is_there:
            return "unknown, systemd does not run for this user"
        return self._run("is-active", UNIT_NAME).stdout.strip() or "unknown"

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return _run(["systemctl", "--user", *words])


class Launchd:
    """macOS's manager of the user's own agents. Written after its documentation; not tested on a Mac."""

    def __init__(self) -> None:
        home = os.path.expanduser("~")
        self.path = Path(home, "Library", "LaunchAgents", f"{AGENT_LABEL}.plist")
        self._log = os.path.join(home, "Library", "Logs", "contextfold.log")
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{AGENT_LABEL}"

    def file_text(self, argv: list[str]) -> str:
        return launchd_agent(argv, self._log)

    def enable(self) -> None:
        _check(_run(["launchctl", "bootstrap", self._domain, str(self.path)]))
        print_answer(f"the daemon runs now and after each log-in; its log: {self._log}\n")

    def uninstall(self) -> None:
        # It fails if the agent does not run.
        _run(["launchctl", "bootout", self._target])
        self.path.unlink()

    def control(self, action: str) -> None:
        words = ["kickstart"] if action == "start" else ["kill", "SIGTERM"]
        _check(_run(["launchctl", *words, self._target]))

    def state(self) -> str:
        is_running = "state = running" in _run(["launchctl", "print", self._target]).stdout
        return "active" if is_running else "inactive"


def _manager() -> Systemd | Launchd:
    if sys.platform == "darwin":
        return Launchd()
    if sys.platform == "linux":
        return Systemd()
    raise StorageFailed(f"there is no service for {sys.platform} here; run `context serve` by other means")


def _daemon_command(options: Mapping[str, str]) -> list[str]:
    """The daemon's command line. Paths are made absolute, because a service starts in another folder."""
    argv = [executable(), "serve"]
    for name in PASSED_ON:
        if name in options:
            value = options[name]
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


def _report_status(path: Path, state: str, args: argparse.Namespace) -> int:
    print_answer(f"service: {state} ({path})\n")
    client = client_from(args)
    try:
        status = client.status()
    except DaemonSilent as problem:
        print_answer(f"daemon: {problem}\n")
        return NOT_RUNNING
    print_answer(f"daemon: contextfold {status['version']} at {client.address.url}, since {status['started_at']}\n")
    return EXIT_OK


def _check(ran: subprocess.CompletedProcess[str]) -> None:
    if ran.returncode:
        reason = ran.stderr.strip() or ran.stdout.strip() or ran.returncode
        raise StorageFailed(f"`{' '.join(ran.args)}` failed: {reason}")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=MANAGER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise StorageFailed(f"cannot run {argv[0]}: {problem}") from problem
