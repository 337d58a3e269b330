"""`context run PROGRAM`: starts an agent program that uses the daemon, for this one process.

If no daemon answers, one is started on a free port with the user's store, and stopped when the program ends. Arguments,
terminal, signals and the exit status are those of the program. The last line on stderr says what folding saved or cost.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

from contextfold import hosts
from contextfold.cli.daemon_client import DaemonClient, DaemonSilent, add_daemon_options, client_from
from contextfold.cli.output import plain, print_error, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.network_address import DAEMON_URL, MCP_PATH, parse_daemon_url
from contextfold.errors import StorageFailed
from contextfold.hosts.programs import SERVER
from contextfold.settings import FOLD_AFTERWARDS, parse_toolsets

DAEMON_START_S = 20.0
DAEMON_STOP_S = 15.0
MICROS = 1_000_000
CENT = 10_000  # micros
PLUGIN_FILES_MAX = 50
PLUGIN_FOLDER = "plugin"
SETTINGS_FILE = "settings.json"
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
UPSTREAMS = {
    "ANTHROPIC_BASE_URL": "--anthropic-upstream",
    "OPENAI_BASE_URL": "--openai-upstream",
    "GOOGLE_GEMINI_BASE_URL": "--gemini-upstream",
}


def declare_run(parser: CommandParser) -> None:
    parser.describe(
        """
        Start a program with the daemon behind it. Claude Code gets the proxy, the tools, the hooks and
        the skill; codex, opencode and gemini get the proxy and the tools; any other program gets the
        proxy by ANTHROPIC_BASE_URL, OPENAI_BASE_URL and GOOGLE_GEMINI_BASE_URL. No file of the project
        or of yours changes. If no daemon answers, one runs for as long as the program does. Everything
        behind the program's name is passed on to it, and its exit status is that of this command.
        """,
        "context run claude",
        "context run claude -p 'why does the build fail?'",
        "context run codex",
        "context run --tools fold,resolve claude",
        "context run python my_agent.py",
    )
    parser.add_argument("program", metavar="PROGRAM", help="the program to start")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.add_argument(
        "--tools",
        metavar="LIST",
        # Few definitions, because every request pays for them.
        default=FOLD_AFTERWARDS,
        help="the tools to offer: resolve, fold or both (default: context_fold and context_expand)",
    )
    add_daemon_options(parser)


def run_run(args: argparse.Namespace) -> int:
    program = shutil.which(args.program)
    if program is None:
        print_error(f"{args.program} is not on your PATH; install it, or give its path")
        return NOT_FOUND
    tools = ",".join(parse_toolsets("--tools", args.tools))
    with _new_folder() as folder:
        elsewhere = _own_upstreams()
        daemon = _running_daemon(args)
        # If the user has set a base URL, a new daemon is needed that forwards to it.
        if daemon is not None and not elsewhere:
            return _run_with(daemon, program, args.arguments, folder, tools)
        own = _OwnDaemon(elsewhere, folder)
        try:
            return _run_with(own.client(), program, args.arguments, folder, tools)
        finally:
            own.stop()


def _run_with(daemon: DaemonClient, program: str, arguments: Sequence[str], folder: str, tools: str) -> int:
    """Run the program with a daemon; print what folding saved meanwhile."""
    before = _read_totals(daemon)
    launched = launch(_name(program), daemon.address.url, folder, plugin_files(), tools=tools)
    for name, text in launched.files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    print_note(f"{_name(program)} runs with {launched.wired}; daemon and page: {daemon.address.url}/")
    code = _run_program([program, *launched.arguments, *arguments], os.environ | launched.environment)
    print_note(savings_line(before, _read_totals(daemon)))
    return code


class Launch(NamedTuple):
    """Arguments before the user's own, additional variables, and temporary files.

    The names of files are relative to a temporary folder; the arguments and variables already contain its path.
    `wired` describes what the program uses.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    wired: str


def launch(program: str, daemon_url: str, folder: str, plugin: Mapping[str, str], *, tools: str) -> Launch:
    """How to start a program of this name. `plugin` has the texts of the plugin's files by name; `tools` names the
    toolsets that it is offered."""
    mcp = f"{daemon_url}/mcp?tools={tools}"
    anthropic = {"ANTHROPIC_BASE_URL": f"{daemon_url}/proxy/anthropic"}
    gemini = {"GOOGLE_GEMINI_BASE_URL": f"{daemon_url}/proxy/gemini"}
    openai_url = f"{daemon_url}/proxy/openai/v1"
    every_base_url = anthropic | {"OPENAI_BASE_URL": openai_url} | gemini
    match program:
        case "claude":
            # Claude Code can load a plugin folder for one session; it has the MCP server, the hooks and the skill.
            files = {
                f"{PLUGIN_FOLDER}/{name}": text.replace(DAEMON_URL + MCP_PATH, mcp).replace(DAEMON_URL, daemon_url)
                for name, text in plugin.items()
            }
            arguments = ("--plugin-dir", f"{folder}/{PLUGIN_FOLDER}")
            return Launch(arguments, anthropic, files, "proxy, tools, hooks and skill")
        case "codex":
            # Codex accepts overrides of its configuration with -c, each a TOML value.
            overrides = {"openai_base_url": openai_url, f"mcp_servers.{SERVER}.url": mcp}
            words = [word for key, value in overrides.items() for word in ("-c", f"{key}={json.dumps(value)}")]
            return Launch(tuple(words), every_base_url, {}, "proxy and tools")
        case "opencode":
            # OpenCode merges a configuration from a variable over its files.
            providers = {"anthropic": f"{daemon_url}/proxy/anthropic/v1", "openai": openai_url}
            config = {
                "mcp": {SERVER: {"type": "remote", "url": mcp}},
                "provider": {name: {"options": {"baseURL": url}} for name, url in providers.items()},
            }
            return Launch((), {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, {}, "proxy and tools")
        case "gemini":
            # Gemini CLI reads an additional settings file that a variable names.
            settings = json.dumps({"mcpServers": {SERVER: {"httpUrl": mcp}}})
            variables = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": f"{folder}/{SETTINGS_FILE}"} | gemini
            return Launch((), variables, {SETTINGS_FILE: settings}, "proxy and tools")
    return Launch((), every_base_url, {}, "the proxy (by base URL); for tools and hooks see `context install`")


def _new_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="contextfold-run-", ignore_cleanup_errors=True)
    except OSError:
        raise StorageFailed("no folder for temporary files can be written to: set TMPDIR to one") from None


def _name(program: str) -> str:
    return os.path.basename(program).removesuffix(".exe")


def _run_program(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run the program in this terminal. It receives the signals of keys directly; other signals are forwarded."""
    child: Popen[bytes] | None = None
    early: list[int] = []
    from_terminal = (signal.SIGINT, signal.SIGQUIT)
    passed_on = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    # In a background process group, such as a job of a script, SIGINT comes from `kill` and must be forwarded.
    from_keys = from_terminal if _is_in_foreground() else ()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in from_keys:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {number: signal.getsignal(number) for number in from_terminal + passed_on}
    try:
        # A signal during the start waits for the program. One that is ignored must be ignored in the program too.
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        try:
            child = Popen(argv, env=environment)
        except OSError as problem:
            print_error(f"cannot start {plain(argv[0])}: {problem.strerror}")
            return NOT_EXECUTABLE
        for number in before:
            signal.signal(number, pass_on)
        for waiting in early:
            child.send_signal(waiting)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else BY_SIGNAL - code


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _running_daemon(args: argparse.Namespace) -> DaemonClient | None:
    """The daemon that answers, if any. A daemon that the user has named must answer."""
    client = client_from(args)
    try:
        client.status()
    except DaemonSilent as problem:
        if args.url is not None or "token" in str(problem):
            raise UsageError(str(problem)) from None
        return None
    return client


def _own_upstreams() -> list[str]:
    """The base URLs that the user has set, as upstream options of the daemon."""
    given = []
    for variable, option in UPSTREAMS.items():
        url = os.environ.get(variable, "")
        if url and "/proxy/" not in url:
            given += [option, url]
    return given


class _OwnDaemon:
    """A daemon for this run, on any free port, with the user's store and settings."""

    def __init__(self, upstreams: list[str], folder: str) -> None:
        argv = [sys.executable, "-m", "contextfold", "serve", "--host", "127.0.0.1", "--port", "0", *upstreams]
        environment = {key: value for key, value in os.environ.items() if key not in UPSTREAMS}
        self._log = os.path.join(folder, "daemon.log")
        with open(self._log, "wb") as log:
            # The daemon has a process session of its own, so Ctrl-C on the terminal reaches only the program.
            self._process = Popen(argv, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=log, start_new_session=True)

    def client(self) -> DaemonClient:
        """Wait until it prints its address as its first line."""
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline() if select([stdout], [], [], DAEMON_START_S)[0] else b""
        if not line.endswith(b"\n"):
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().strip().splitlines()
            raise StorageFailed(f"the daemon did not start: {lines[-1] if lines else 'no reason given'}")
        url = next(word for word in line.decode("utf-8", "replace").split() if word.startswith("http"))
        return DaemonClient(parse_daemon_url(url))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(DAEMON_STOP_S)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def plugin_files() -> dict[str, str]:
    """The texts of the files of the plugin for Claude Code, by path."""
    plugin = Path(hosts.__file__).parent / PLUGIN_FOLDER
    paths = [path for path in plugin.rglob("*") if path.is_file()]
    return {path.relative_to(plugin).as_posix(): path.read_text("utf-8") for path in paths[:PLUGIN_FILES_MAX]}


def _read_totals(daemon: DaemonClient) -> Mapping[str, Any] | None:
    """The total cost of the requests of all the owner's sessions; None if the daemon does not answer."""
    try:
        totals: Mapping[str, Any] = daemon.get("/v1/savings")["total"]
    except (DaemonSilent, KeyError, TypeError):
        return None
    return totals


def savings_line(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """The tokens sent during the run, the tokens without folding, and the difference in cost, as text."""
    if before is None or after is None:
        return "what folding saved is not known: the daemon did not answer"
    requests, sent, without = (after[name] - before[name] for name in ("requests", "tokens_sent", "tokens_without"))
    if requests <= 0:
        return "no request to a model went through the proxy, so nothing was saved"
    count = f"{requests:,} request{'' if requests == 1 else 's'}"
    line = f"{count} sent {sent:,} tokens; without folding {without:,}"
    if after["money"]:
        earlier = before["money"] or {"saved_micros": 0, "without_micros": 0}
        saved, base = (after["money"][name] - earlier[name] for name in ("saved_micros", "without_micros"))
        # Less than a cent is shown as it is.
        amount = f"${abs(saved) / MICROS:,.{2 if abs(saved) >= CENT else 4}f}"
    else:
        saved, base = (after[name] - before[name] for name in ("cost_saved", "cost_without"))
        amount = f"{abs(saved):,.0f} input tokens' worth"
    if not saved:
        return f"{line}; no difference in cost"
    percent = f" ({100 * abs(saved) / base:.0f} %)" if base else ""
    return f"{line}; {'saved' if saved > 0 else 'cost more by'} {amount}{percent}"
