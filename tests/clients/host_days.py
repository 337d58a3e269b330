"""`make hosts`: a scripted day of each agent program behind `context run`, and a table of what it got.

A day is five runs of the program, each of which goes on with the conversation of the one before: reading and a fold;
more reading; a pause that is longer than the provider's prompt cache lives; another fold. Then the program ends with
its own exit code, and by a signal. The provider is scripted and checks each request against the rules of its API; some
programs break one themselves, and the proxy must add none. What the program sent to the proxy is recorded, and replayed
through a new daemon: there, too, each request must be valid and have a receipt.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from contextfold.cli.launch import WRITABLE_BY_OTHERS
from tests.clients.test_claude_code_folding import STUB
from tests.hosts.recorded_requests import FOLDER, RecordedRequest, replay, save
from tests.support.daemon import Daemon, ShiftedClockDaemon
from tests.support.machine import COMMAND
from tests.support.prerequisites import HOST_PROGRAMS, NO_CLAUDE
from tests.support.upstream import Upstream
from tests.support.upstream_answers import Call, Say

TIMEOUT_S = 180
# Nothing answers here.
NO_DAEMON = "http://127.0.0.1:9"
# Longer than any provider keeps a prompt.
PAUSE_S = 25 * 3600
FILE_LINES = 400
RECORDED_MIN = 20
# With this option the requests become those that the tests replay.
RECORD = "--record"
HOP_BY_HOP = ("connection", "content-length", "host", "transfer-encoding", "upgrade")
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-local-0123456789",
    "OPENAI_API_KEY": "sk-local-0123456789",
    "CODEX_API_KEY": "sk-local-0123456789",
    "GEMINI_API_KEY": "local-0123456789",
}
QUIET = {"DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


class Host(NamedTuple):
    """How a program is started with a prompt, and how its model reads a file and folds."""

    title: str
    # The folder of the program below `tests/clients/hosts`.
    folder: str
    first: tuple[str, ...]
    later: tuple[str, ...]
    read: Callable[[str, str], Call]
    fold: Callable[[str, str], Call]


def _claude(title: str, folder: str) -> Host:
    options = ("--model", "claude-sonnet-4-5", "--allowedTools", "mcp__contextfold", "Read")
    return Host(
        title,
        folder,
        ("-p", "PROMPT", *options),
        ("--continue", "-p", "PROMPT", *options),
        lambda id, path: Call(id, "Read", {"file_path": path}),
        lambda id, message: Call(id, "mcp__contextfold__context_fold", {"message": message}),
    )


def _codex(
    title: str, model: tuple[str, ...], read: Callable[[str, str], Call], fold: Callable[[str, str], Call]
) -> Host:
    options = ("--skip-git-repo-check", *model)
    return Host(
        title, "codex", ("exec", *options, "PROMPT"), ("exec", "resume", "--last", *options, "PROMPT"), read, fold
    )


HOSTS = (
    _claude("Claude Code", "claude-pinned"),
    _claude("Claude Code", "claude-newest"),
    _codex(
        "Codex, `-m gpt-5`",
        ("-m", "gpt-5"),
        lambda id, path: Call(id, "exec_command", {"cmd": f"cat {path}"}),
        lambda id, message: Call(id, "context_fold", {"message": message}, namespace="mcp__contextfold"),
    ),
    _codex(
        "Codex, default model",
        (),
        lambda id, path: Call(
            id, "exec", {}, "functions", f"text((await tools.exec_command({{cmd: 'cat {path}'}})).output)"
        ),
        lambda id, message: Call(
            id,
            "exec",
            {},
            "functions",
            f"text(await tools.mcp__contextfold__context_fold({{message: '{message}'}}))",
        ),
    ),
    Host(
        "OpenCode",
        "opencode",
        ("run", "-m", "anthropic/claude-sonnet-4-5", "PROMPT"),
        ("run", "--continue", "-m", "anthropic/claude-sonnet-4-5", "PROMPT"),
        lambda id, path: Call(id, "read", {"filePath": path}),
        lambda id, message: Call(id, "contextfold_context_fold", {"message": message}),
    ),
    Host(
        "Gemini CLI",
        "gemini",
        ("-m", "gemini-2.5-pro", "--skip-trust", "--yolo", "-p", "PROMPT"),
        ("--resume", "latest", "-m", "gemini-2.5-pro", "--skip-trust", "--yolo", "-p", "PROMPT"),
        lambda id, path: Call(id, "read_file", {"file_path": path}),
        lambda id, message: Call(id, "mcp_contextfold_context_fold", {"message": message}),
    ),
)


class Recorder(ThreadingHTTPServer):
    """Stands between a program and the daemon, and keeps what the program sends to the proxy."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _RecordingHandler)
        self.daemon_port = port
        self.recorded: list[RecordedRequest] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A program that ends leaves its connections as they are."""


class _RecordingHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.command == "POST" and "/proxy/" in self.path:
            kept = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            self.server.recorded.append(RecordedRequest(re.sub(r"^/run/[^/]+", "", self.path), kept, body))
        connection = http.client.HTTPConnection("127.0.0.1", self.server.daemon_port, timeout=TIMEOUT_S)
        connection.request(self.command, self.path, body or None, dict(self.headers.items()))
        response = connection.getresponse()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        while chunk := response.read1(1 << 16):
            self.wfile.write(chunk)
        connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = _forward  # noqa: N815 - the names of the base class


def is_conversation(body: Any) -> bool:
    """Whether a request offers tools; one for a title does not."""
    return bool(body.get("tools")) or "additional_tools" in str(body.get("input", ""))[:2_000]


def invalid_requests(recorded: Sequence[RecordedRequest]) -> int:
    """How many requests break a rule already as the program makes them."""
    return sum(bool(sent.violations) for sent in recorded)


class Model:
    """Answers a program's conversation with one step after another, and everything else with a title."""

    def __init__(self, host: Host, project: Path) -> None:
        self._host, self._project = host, project
        self._steps: list[Say] = []
        self._calls = 0

    def will(self, *steps: str) -> None:
        """`read NAME`, `fold MESSAGE` or an answer."""
        for step in steps:
            verb, _, rest = step.partition(" ")
            self._calls += 1
            if verb == "read":
                path = self._project / f"{rest}.txt"
                path.write_text("".join(f"{rest} line {number} of a long file\n" for number in range(FILE_LINES)))
                self._steps.append(Say("", (self._host.read(f"call_{self._calls}", str(path)),)))
            elif verb == "fold":
                self._steps.append(Say("", (self._host.fold(f"call_{self._calls}", rest),)))
            else:
                self._steps.append(Say(step))

    def forget(self) -> None:
        """Drop the steps that were not taken."""
        self._steps.clear()

    def will_say(self, say: Say) -> None:
        self._steps.append(say)

    def __call__(self, body: Any, _api: str) -> Say:
        say = self._steps.pop(0) if is_conversation(body) and self._steps else Say("A title")
        return replace(say, thought="Let me think.") if body.get("thinking") else say


class Day:
    """A home, a project, a provider and a daemon whose clock can be advanced, for one program."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.project, self.home = folder / "home" / "project", folder / "home"
        # What the user and the model say.
        self.own_texts = {"Let me think.", "A title"}
        self.project.mkdir(parents=True)
        # Otherwise programs take the repository around it for the project.
        subprocess.run(["git", "init", "-q", self.project], check=True)
        self.upstream = Upstream()
        self.upstream.is_strict = False
        self.model = Model(host, self.project)
        self.upstream.script = self.model
        self.daemon = ShiftedClockDaemon(folder / "daemon", *self.upstream.argv())
        self.recorder = Recorder(self.daemon.port)
        self.program = HOST_PROGRAMS[host.folder]
        path = f"{self.program.parent}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(self.home), **KEYS, **QUIET}

    def argv(self, *words: str) -> list[str]:
        return [str(COMMAND), "run", "--url", self.recorder.url, self.program.name, *words]

    def words(self, template: Sequence[str], text: str) -> list[str]:
        """The program's arguments with a prompt."""
        return [text if word == "PROMPT" else word for word in template]

    def execute(self, argv: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.project,
            env=self.env | variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )

    @contextmanager
    def run_without_end(self, argv: Sequence[str], **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """A run whose model has begun to answer, and only goes on after this block."""
        self.upstream.resume_stream = threading.Event()
        count = len(self.upstream.requests)
        self.model.will("A long answer that never ends.")
        process = subprocess.Popen(
            argv,
            cwd=self.project,
            env=self.env | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline_s = time.monotonic() + TIMEOUT_S
            while len(self.upstream.requests) == count and time.monotonic() < deadline_s:
                time.sleep(0.05)
            yield process
        finally:
            # If `context run` was killed, its program is still there.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.upstream.resume_stream.set()
            self.upstream.resume_stream = None
            self.model.forget()

    def prompt(self, text: str, *steps: str) -> str:
        """One run of the program with a prompt; returns what `context run` says at its end."""
        self.model.will(*steps)
        self.own_texts |= {text, *(step.removeprefix("fold ") for step in steps)}
        argv = self.argv(*self.words(self.host.later if self.upstream.requests else self.host.first, text))
        done = self.execute(argv)
        assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stderr

    def last_request(self) -> str:
        """The last request with a conversation that the provider received."""
        got = next(got for got in reversed(self.upstream.requests) if is_conversation(got.body))
        return str(got.raw, "utf-8")

    def list_left_out(self) -> list[str]:
        """The lines in the place of results in the last request. A program that was resumed may repeat results."""
        return list(dict.fromkeys(STUB.findall(self.last_request())))

    def close(self) -> None:
        self.recorder.shutdown()
        self.recorder.server_close()
        self.daemon.stop()
        self.upstream.close()


def run_day(host: Host, folder: Path, recordings: Path | None = None) -> dict[str, str]:
    """The cells of a program's row. What must be so on every host is asserted.

    The program's requests are stored in `recordings`, if it is given.
    """
    day = Day(host, folder)
    cells = {"host": host.title, "version": version_of(host, day)}
    try:
        said = day.prompt("Look at alpha.", "read alpha", "fold Alpha is fine.", "Alpha is fine.")
        first = day.last_request()
        cells["tools"] = "in every request" if '"Replace your' in first else "by name"
        cells["fold"] = "no" if "alpha line 300" in first else "yes"
        day.prompt("Read on.", *(f"read {name}" for name in ("beta", "gamma", "delta", "epsilon", "zeta")), "Read.")
        before_pause = day.last_request()
        assert "zeta line 300" in before_pause
        assert STUB.findall(before_pause) == []
        if cells["fold"] == "yes" and "alpha line 300" in before_pause:
            cells["fold"] = "until it is resumed"
        paused_at = len(day.recorder.recorded)
        day.daemon.advance_clock(PAUSE_S)
        day.prompt("I am back.", "Welcome back.")
        left_out = day.list_left_out()
        cells["pause"] = f"{len(left_out)} results left out" if left_out else "no"
        day.prompt("Look again.", *(f"read {name}" for name in ("eta", "theta", "iota")), "fold All is fine.", "Fine.")
        if day.list_left_out()[: len(left_out)] != left_out:
            cells["pause"] += ", until it is resumed"
        said = day.prompt("And more.", *(f"read {name}" for name in ("kappa", "lambda", "mu", "nu")), "Done.")
        # Every run went on with the conversation of the first.
        cells["resume"] = "yes" if "Look at alpha." in day.last_request() else "no"
        broken = [got.violations for got in day.upstream.requests if got.violations]
        assert len(broken) <= invalid_requests(day.recorder.recorded), broken
        cells["last line"] = next(line for line in said.splitlines() if " sent " in line).removeprefix("note: ")
        hint = re.search(r"to go on through the proxy: context run (?:--url \S+ )?(.*)", said)
        cells["goes on by"] = f"`context run {re.sub(r'[0-9a-f-]{36}', 'ID', hint[1])}`" if hint else ""
        cells["exit code"] = exit_codes(day)
        cells["signal"] = ended_by_signal(day)
        recorded = list(day.recorder.recorded)
        cells["token"] = run_with_token(day, folder)
        cells["killed"] = run_killed(day)
    finally:
        day.close()
    recorded = [sent._replace(is_after_pause=number >= paused_at) for number, sent in enumerate(recorded)]
    cells["replayed"] = check_replay(recorded, folder / "replay")
    if recordings is not None:
        name = re.sub(r"[^a-z0-9.]+", "-", f"{host.title} {cells['version']}".lower())
        save(recordings / f"{name}.json.xz", recorded, home=day.home, own_texts=day.own_texts)
    return cells


def version_of(host: Host, day: Day) -> str:
    shown = subprocess.run([day.program, "--version"], env=day.env, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", shown)
    return found[0] if found else shown.strip()


def exit_codes(day: Day) -> str:
    """The exit code for an option that no program has, with and without `context run`."""
    argvs = (day.argv("--no-such-option"), [str(day.program), "--no-such-option"])
    codes = [day.execute(argv).returncode for argv in argvs]
    assert codes[0] == codes[1], codes
    return str(codes[0])


def ended_by_signal(day: Day) -> str:
    """How a run ends that gets SIGTERM while the model answers."""
    with day.run_without_end(day.argv(*day.words(day.host.later, "Wait."))) as process:
        process.send_signal(signal.SIGTERM)
        return f"exit {process.wait(TIMEOUT_S)}"


def run_killed(day: Day) -> str:
    """What is left of the daemon of a run that is killed while the model answers."""
    upstreams = {"ANTHROPIC": "", "OPENAI": "/v1", "GEMINI": ""}
    env = {f"CONTEXT_{name}_UPSTREAM": day.upstream.url + path for name, path in upstreams.items()}
    # A daemon of this machine's user would be taken instead of a new one.
    env["CONTEXT_URL"] = NO_DAEMON
    argv = [str(COMMAND), "run", day.program.name, *day.words(day.host.first, "Wait.")]
    with day.run_without_end(argv, **env) as process:
        children = children_of(process.pid)
        daemons = [pid for pid in children if b"--until-stdin-ends" in command_line(pid)]
        assert len(daemons) == 1, children
        process.kill()
        process.wait()
        deadline_s = time.monotonic() + TIMEOUT_S
        while b"--until-stdin-ends" in command_line(daemons[0]) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert b"--until-stdin-ends" not in command_line(daemons[0])
    return "no daemon left"


def children_of(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def run_with_token(day: Day, folder: Path) -> str:
    """One run with a daemon that requires a token; the fold must reach the daemon, and its token no provider."""
    tokens = folder / "tokens"
    made = subprocess.run(
        [COMMAND, "token", "local", "--token-file", tokens], capture_output=True, text=True, check=True
    )
    count = len(day.upstream.requests)
    with Daemon(folder / "with-token", *day.upstream.argv(), "--token-file", str(tokens)) as daemon:
        day.model.will("read alpha", "fold Alpha is fine.", "Fine.")
        options = ("--url", daemon.url, "--token-variable", "MY_TOKEN")
        argv = [str(COMMAND), "run", *options, day.program.name, *day.words(day.host.first, "Look at alpha.")]
        done = day.execute(argv, MY_TOKEN=made.stdout.strip())
    assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    got = [request for request in day.upstream.requests[count:] if is_conversation(request.body)]
    assert len(got) == 3, len(got)
    assert not any(name.startswith("x-context-") for request in got for name in request.headers)
    assert b"alpha line 300" not in got[-1].raw
    return "yes"


def check_replay(recorded: Sequence[RecordedRequest], folder: Path) -> str:
    """Send the recorded requests through a new daemon, with the same pause; all must be valid and have a receipt."""
    assert len(recorded) >= RECORDED_MIN, len(recorded)
    folded, has_paused = 0, False
    with Upstream() as upstream:
        upstream.is_strict = False
        daemon = ShiftedClockDaemon(folder, *upstream.argv())
        try:
            for sent in recorded:
                if sent.is_after_pause and not has_paused:
                    daemon.advance_clock(PAUSE_S)
                    has_paused = True
                (replayed,) = replay([sent], daemon.port)
                assert replayed.status == 200, (sent.path, replayed.status)
                receipt = replayed.receipt
                assert receipt.keys() >= {"tokens_before", "tokens_after", "reason"}
                folded += receipt["tokens_after"] < receipt["tokens_before"]
            broken = [got.violations for got in upstream.requests if got.violations]
            assert len(broken) <= invalid_requests(recorded), broken
        finally:
            daemon.stop()
    return f"{len(recorded)}, {folded} of them folded"


@contextmanager
def day_folder() -> Iterator[Path]:
    """A folder that nobody else can write to, nor to those above it: Gemini CLI reads no settings elsewhere."""
    clone = Path(__file__).parent / "hosts"
    is_open = any(folder.stat().st_mode & WRITABLE_BY_OTHERS for folder in (clone, *clone.parents))
    with tempfile.TemporaryDirectory(dir=Path.home() if is_open else clone, prefix="day-") as name:
        # Programs compare paths with the real ones.
        yield Path(name).resolve()


def main() -> int:
    if not HOST_PROGRAMS:
        print(NO_CLAUDE, file=sys.stderr)
        return 1
    rows, failed = [], 0
    chosen = [word for word in sys.argv[1:] if word != RECORD]
    for host in HOSTS:
        if chosen and host.folder not in chosen:
            continue
        began_s = time.monotonic()
        with day_folder() as folder:
            try:
                cells = run_day(host, folder, FOLDER if RECORD in sys.argv else None)
            except (AssertionError, subprocess.SubprocessError, StopIteration) as problem:
                failed += 1
                print(f"{host.title} ({host.folder}):", file=sys.stderr)
                traceback.print_exception(problem)
                continue
        rows.append(cells | {"seconds": f"{time.monotonic() - began_s:.0f}"})
    if rows:
        print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        print("\n".join("| " + " | ".join(cells.values()) + " |" for cells in rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
