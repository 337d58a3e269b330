"""`context run PROGRAM`: starts an agent program that uses the daemon, for this one process.

If no daemon answers, one is started on a free port with the user's store, and stopped when the program ends, or when
this process is killed. Arguments, terminal, signals and the exit status are those of the program. The last lines on
stderr say what folding saved or cost in this run, and how to go on through the proxy.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from select import select
from shlex import join
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from contextfold.cli.daemon_client import (
    OTHER_USERS_VARIABLE,
    PAGE_VARIABLE,
    RUN_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    DaemonClient,
    DaemonSilent,
    StrangersDaemon,
    add_daemon_options,
    client_from,
    is_local_name,
    is_proxy_url,
)
from contextfold.cli.host_files import absolute, write_tree
from contextfold.cli.launch import (
    ANTHROPIC_URL_VARIABLE,
    GEMINI_URL_VARIABLE,
    OPENAI_URL_VARIABLE,
    WRITABLE_BY_OTHERS,
    Launcher,
    read_environment,
)
from contextfold.cli.output import escape, print_error, print_note
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.answer_format import TOKENS_WORTH, format_count, format_dollars, format_share
from contextfold.common.daemon_proof import SECRET_BYTES, find_proof
from contextfold.common.network_address import Address, parse_daemon_url
from contextfold.common.socket_owner import can_tell_owners
from contextfold.errors import CacheMissing, StorageFailed
from contextfold.hosts.programs import Daemon, Documents
from contextfold.resolve.files import nearest_caches
from contextfold.settings import FOLD_AFTERWARDS, parse_toolsets, path_in_home, proof_folder

DAEMON_START_S = 20.0
DAEMON_STOP_S = 15.0
# The daemon waits up to 5 s for reports that are not written yet.
SUMS_WAIT_S = 10.0
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
# The variables that name a provider, and those of the daemon that take over what a user has set.
UPSTREAMS = {
    ANTHROPIC_URL_VARIABLE: "CONTEXT_ANTHROPIC_UPSTREAM",
    OPENAI_URL_VARIABLE: "CONTEXT_OPENAI_UPSTREAM",
    GEMINI_URL_VARIABLE: "CONTEXT_GEMINI_UPSTREAM",
}


class Program(NamedTuple):
    """How a program goes on with a conversation, with and without its id, and why its requests may not have come."""

    resume: tuple[str, ...]
    latest: tuple[str, ...]
    elsewhere: str


PROGRAMS = {
    "claude": Program(
        ("--resume",),
        ("--continue",),
        "it may use Bedrock, Vertex or the base URL of an administrator, or have made none",
    ),
    "codex": Program(
        ("resume",),
        ("resume", "--last"),
        "it may be logged in with an account, or use another provider of its config.toml, or have made none",
    ),
    "opencode": Program(
        ("--session",),
        ("--continue",),
        "it may use another provider than Anthropic, OpenAI and Gemini or a base URL of its own, or have made none",
    ),
    "gemini": Program(
        ("--resume",),
        ("--resume", "latest"),
        "it may be logged in with an account instead of an API key, or have made none",
    ),
}
# These send the daemon's token with every request. Codex can do so only as another provider, with a history of its own.
SENDS_TOKEN = ("claude", "gemini", "opencode")


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
        "context run --docs docs claude",
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
    parser.add_argument(
        "--docs",
        metavar="DIR",
        help="build a cache of this folder for the agent to ask (default: the nearest cache, if there is one)",
    )
    add_daemon_options(parser)
    parser.set_defaults(run=run_run)


def run_run(args: argparse.Namespace) -> int:
    program = shutil.which(args.program)
    if program is None:
        print_error(f"{args.program} is not on your PATH; install it, or give its path")
        return NOT_FOUND
    name = os.path.basename(program).removesuffix(".exe")
    args.tools = ",".join(parse_toolsets("--tools", args.tools))
    documents = _find_documents(args)
    with _private_folder() as folder:
        environment = read_environment(name)
        with _open_daemon(args, name, environment, folder) as (daemon, page):
            run = _register_run(daemon, name)
            connection = Daemon(f"{daemon.address.url}/run/{run}", TOKEN_VARIABLE if daemon.token else "", args.tools)
            launch = Launcher(connection, daemon.token, folder, environment, documents).launch(name)
            write_tree(folder, launch.files)
            asks = f"; it can ask the documents in {escape(documents.folder)}" if documents and name in PROGRAMS else ""
            print_note(f"{name} runs with {launch.features}{asks}; the page: {page.address.url}/")
            variables = {URL_VARIABLE: daemon.address.url} | ({TOKEN_VARIABLE: daemon.token} if daemon.token else {})
            if page is not daemon:
                variables[PAGE_VARIABLE] = page.address.url
            argv = [program, *launch.arguments, *args.arguments]
            code = _run_program(argv, {**os.environ, **variables, **launch.environment})
            _print_summary(daemon, run, name, args)
            return code


def _find_documents(args: argparse.Namespace) -> Documents | None:
    """The server for the documents of the project, if there is a cache of them, or one is wanted."""
    program = (sys.executable, "-m", "contextfold")
    if args.docs is not None:
        # Few runs build a cache.
        from contextfold.cli.build import build_default_cache

        build_default_cache(args.docs)
        return Documents(program, absolute(args.docs))
    try:
        caches = nearest_caches(os.getcwd())
    except CacheMissing:
        return None
    return Documents(program, caches[0]) if len(caches) == 1 else None


@contextmanager
def _open_daemon(
    args: argparse.Namespace, name: str, environment: Mapping[str, str], folder: str
) -> Iterator[tuple[DaemonClient, DaemonClient]]:
    """The daemon for a program, and the one whose page is shown. One that is started here ends with the program."""
    upstreams = _find_upstreams(environment, client_from(args).address.url)
    running = _running_daemon(args)
    # If the user has set a base URL, a new daemon is needed that forwards to it.
    if running is not None and not upstreams:
        yield running, running
        return
    started = _StartedDaemon(upstreams, folder, has_token=name in SENDS_TOKEN)
    try:
        client = started.client()
        yield client, running or client
    finally:
        started.stop()


def _register_run(daemon: DaemonClient, name: str) -> str:
    run = f"run_{secrets.token_hex(8)}"
    try:
        daemon.put(f"/v1/runs/{run}", {"project_path": absolute("."), "program": escape(name)[:64]})
    except DaemonSilent as problem:
        raise UsageError(f"{problem}; restart the daemon, so that it is of this version") from None
    return run


def _print_summary(daemon: DaemonClient, run: str, name: str, args: argparse.Namespace) -> None:
    try:
        sums = daemon.get(f"/v1/runs/{run}", timeout_s=SUMS_WAIT_S)
    except DaemonSilent as problem:
        print_note(f"what folding saved is not known: {problem}")
        return
    for line in summary_lines(sums, name, _given_options(args)):
        print_note(line)


def _given_options(args: argparse.Namespace) -> list[str]:
    """The options of this command that the next run needs, too."""
    tools = args.tools if args.tools != FOLD_AFTERWARDS else None
    given = {"--url": args.url, "--token-variable": args.token_variable, "--docs": args.docs, "--tools": tools}
    return [word for option, value in given.items() if value is not None for word in (option, value)]


def _private_folder() -> TemporaryDirectory[str]:
    """A folder that nobody else can write to, nor to those above it: Gemini CLI reads no settings elsewhere."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = os.path.join(runtime, "contextfold")
    try:
        if not os.path.isabs(runtime) or os.stat(runtime).st_mode & WRITABLE_BY_OTHERS:
            parent = path_in_home(os.environ, "XDG_STATE_HOME", ".local/state", "runs")
        os.makedirs(parent, mode=0o700, exist_ok=True)
        return TemporaryDirectory(prefix="run-", dir=parent, ignore_cleanup_errors=True)
    except OSError as problem:
        raise StorageFailed(f"no private folder can be made in {parent}: {problem.strerror}") from None


def _run_program(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run the program in this terminal. It receives the signals of keys directly; other signals are forwarded."""
    child: Popen[bytes] | None = None
    early: list[int] = []
    from_terminal = (signal.SIGINT, signal.SIGQUIT)
    forwarded = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    # In a background process group, such as a job of a script, SIGINT comes from `kill` and must be forwarded.
    from_keys = from_terminal if _is_in_foreground() else ()

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        if number in from_keys:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {number: signal.getsignal(number) for number in from_terminal + forwarded}
    try:
        # A signal during the start waits for the program. One that is ignored must be ignored in the program too.
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, forward_signal)
        try:
            child = Popen(argv, env=environment)
        except OSError as problem:
            print_error(f"cannot start {escape(argv[0])}: {problem.strerror}")
            return NOT_EXECUTABLE
        for number in before:
            signal.signal(number, forward_signal)
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
        _require_proof(client.address)
        client.status()
    except StrangersDaemon as problem:
        if args.url is not None:
            raise UsageError(str(problem)) from None
        return None
    except DaemonSilent as problem:
        if args.url is not None or "token" in str(problem):
            raise UsageError(str(problem)) from None
        return None
    return client


def _require_proof(address: Address) -> None:
    """Raise StrangersDaemon if what listens on loopback does not prove that it is this user's.

    Where the system tells whose sockets there are, every request asks it instead.
    """
    if not is_local_name(address.name) or os.environ.get(OTHER_USERS_VARIABLE) == "on" or can_tell_owners():
        return
    challenge = secrets.token_hex(SECRET_BYTES)
    # Without the token, which is not for another user either.
    answer = DaemonClient(address).get_text(f"/healthz?challenge={challenge}")
    proof = find_proof(proof_folder(os.environ), address.port, challenge)
    if not proof or not secrets.compare_digest(answer.partition("\n")[2].strip().encode(), proof.encode()):
        raise StrangersDaemon(address, "another user, or to an older version,")


def _find_upstreams(environment: Mapping[str, str], daemon_url: str) -> dict[str, str]:
    """The base URLs that the user has set, as variables of the daemon: they may be secret, and argv is not."""
    given = {}
    for variable, setting in UPSTREAMS.items():
        url = environment.get(variable, "")
        if "@" in urlsplit(url).netloc:
            raise UsageError(
                f"{variable} has a name or a password in it, which the proxy does not pass on; take it out"
            )
        if url and not is_proxy_url(url, daemon_url):
            given[setting] = url
    return given


class _StartedDaemon:
    """A daemon for this run, on any free port, with the user's store and settings."""

    def __init__(self, upstreams: Mapping[str, str], folder: str, *, has_token: bool) -> None:
        argv = [sys.executable, "-m", "contextfold", "serve", "--host", "127.0.0.1", "--port", "0"]
        environment = {key: value for key, value in os.environ.items() if key not in UPSTREAMS} | dict(upstreams)
        self._token = secrets.token_urlsafe(32) if has_token else ""
        environment[RUN_TOKEN_VARIABLE] = self._token
        self._log = os.path.join(folder, "daemon.log")
        with open(self._log, "wb") as log:
            # The daemon has a process session of its own, so Ctrl-C on the terminal reaches only the program. It ends
            # when its standard input does, which is when this process has ended, however that came.
            self._process = Popen(
                [*argv, "--until-stdin-ends"],
                env=environment,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
            )

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
        return DaemonClient(parse_daemon_url(url), self._token)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(DAEMON_STOP_S)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def summary_lines(sums: Mapping[str, Any], program: str, options: Sequence[str]) -> list[str]:
    """What the run sent and saved, and how its last conversation goes on through the proxy."""
    known = PROGRAMS.get(program)
    if sums["outcome"] == "no_requests":
        why = known.elsewhere if known else f"it may not read {', '.join(UPSTREAMS)}, or have made none"
        return [f"no request to a model went through the proxy, so nothing was saved: {why}"]
    lines = [_savings_line(sums)]
    if known and sums["requests"]:
        last = sums.get("last_conversation") or {}
        words = [*known.resume, last["host_session_id"]] if last.get("host_session_id") else known.latest
        lines.append(f"to go on through the proxy: {join(['context', 'run', *options, program, *words])}")
    return lines


def _savings_line(sums: Mapping[str, Any]) -> str:
    """The tokens sent, the tokens without folding, and the difference in cost, as text."""
    failed = sums["failed_requests"]
    failures = format_count(failed, "request")
    if sums["outcome"] == "failed":
        return f"{failures} to a model went through the proxy and failed at the provider, so nothing was saved"
    requests = format_count(sums["requests"], "request")
    line = f"{requests} sent {sums['tokens_sent']:,} tokens; without folding {sums['tokens_without']:,}"
    line += f"; {failures} failed at the provider" if failed else ""
    if sums["outcome"] == "no_saving":
        return f"{line}; nothing was saved: {' '.join(sums['reasons']) or 'nothing was folded'}"
    if sums["money"]:
        saved, base = (sums["money"][name] for name in ("saved_micros", "without_micros"))
        amount = format_dollars(abs(saved))
    else:
        saved, base = sums["cost_saved"], sums["cost_without"]
        amount = f"{abs(saved):,.0f} {TOKENS_WORTH}"
    share = format_share(abs(saved), base)
    difference = f"saved {amount}" if sums["outcome"] == "saved" else f"cost {amount} more"
    return f"{line}; {difference} ({share})"
