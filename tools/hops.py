"""Count the functions that one operation passes, for each of the walks of docs/architecture.md.

    python tools/hops.py                    all walks of this checkout
    python tools/hops.py branch --list      one walk, with the functions on its way
    python tools/hops.py --root DIR         another checkout, which has its own .venv

The operation runs in a real process, after others of its kind have warmed it up, while `sys.setprofile` notes every
call. Of each walk are counted:

    entered     the functions of contextfold that are called, and their modules
    way         of those, the functions that a reader passes to follow the operation: the ones on the call stack at one
                of the walk's moments (WALKS), which are the points where something is decided, written or sent
    libraries   the functions of other packages on these stacks, without the HTTP server and the standard library
    depth       the functions of contextfold that run or wait at the last write: the writer's stack and, joined to it,
                the stacks of the tasks that wait for it

Comprehensions, generated code and everything that is called by an import are left out. A stack begins at the event
loop, the thread or the command's entry point.
"""

from __future__ import annotations

import argparse
import dis
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

SQL, SENT, PUBLISHED, WRITTEN = "sql", "sent", "published", "written"
# The calls that leave the process: built-in functions by the type or module they belong to, and one of nats-py.
OUTSIDE = {
    ("Connection", "execute"): SQL,
    ("Connection", "executemany"): SQL,
    ("socket", "send"): SENT,
    ("posix", "write"): WRITTEN,
    ("BufferedWriter", "write"): WRITTEN,
}
PUBLISH = ("nats/aio/client.py", "Client.publish")
# The moments of each walk, and the names that their functions have or had. A name without a dot is an outside call.
WALKS: dict[str, dict[str, tuple[str, ...]]] = {
    "resolve": {
        "the command line is parsed": ("cli.parse:parse",),
        "query and budget are checked": ("resolve.selection:ask",),
        "the cache is accounted for": ("resolve.files:fingerprints",),
        "documents are counted": ("resolve.pack:Pack.measure",),
        "documents are chosen": ("resolve.selection:Measures.chosen", "resolve.selection:choose"),
        "documents are read": ("resolve.document:decode_document",),
        "the selection is printed": (WRITTEN,),
    },
    "branch": {
        "the caller is known": ("serve.http.guard:Guard._owner", "serve.guard:Guard._owner"),
        "the message is parsed": ("serve.mcp.jsonrpc:parse", "serve.mcp:McpEndpoint._call"),
        "arguments are checked": ("fold.tool_arguments:ArgumentFields.text", "fold.requests:branch_request"),
        "texts are redacted": ("scrub.scrubber:Scrubber.scrub",),
        "events are decided": ("fold.verbs:OpenBranch.decide", "fold.session:branch"),
        "the state is computed": ("fold.session:_apply", "fold.session:apply"),
        "the result is made": ("fold.tool_results:branched", "fold.answers:branched"),
        "the commit is handed over": ("stores.sqlite.threads:_result_of", "stores.sqlite_threads:_answer"),
        "the commit is written": (SQL,),
        "the state beside it is made": ("fold.tool_results:state_summary", "fold.answers:state_told"),
        "advice is chosen": ("fold.advice:advice_for", "fold.reminder:branch_line"),
        "the response is sent": (SENT,),
    },
    "proxied": {
        "the caller is known": ("serve.http.guard:Guard._owner", "serve.guard:Guard._owner"),
        "a part of the body arrives": ("serve.http.exchange:HttpExchange._next_part", "serve.exchange:_Parts.next"),
        "a message is read": ("fold.messages.apis.anthropic:read", "fold.messages.anthropic:read"),
        "what folds is decided": ("fold.messages.walk:decide", "fold.messages.walk:decided"),
        "its tokens are counted": ("fold.messages.receipt:outcome_of",),
        "its session is found": ("fold.service.fold_service:FoldService.address", "fold.service:FoldService.address"),
        "request and response are sent": (SENT,),
        "the response is read": (
            "serve.proxy.response_reader:ResponseReader._take_usage",
            "serve.usage:_Figures._take",
        ),
        "the report is accepted": ("fold.service.inbox:Inbox.put", "fold.inbox:Inbox.put"),
        "texts are redacted": ("scrub.scrubber:Scrubber.scrub",),
        "the count is divided": ("fold.ledger.provider_counts:requested", "fold.levels:requested"),
        "the commit is written": (SQL,),
    },
    "nats": {
        "the session's log is known": ("stores.nats.log:SessionLogs._append", "stores.nats_log:Logs._append"),
        "the record is encoded": ("stores.nats.wire.records:encode_core", "stores.nats_records:core_of"),
        "the state is computed": ("fold.session:_apply", "fold.session:apply"),
        "log, archive and states are written": (PUBLISHED,),
    },
}
# Where a walk begins, if it is not at the first call.
BEGINS = {"nats": ("stores.nats.store:NatsStore.commit", "stores.nats:NatsStore.commit")}

INSTALLED = "site-packages/"
SERVER = ("uvicorn/", "h11/")
# The flags of coroutines and of asynchronous generators, and the instruction at which they wait.
CO_WAITS = 0x80 | 0x200
YIELD = dis.opmap["YIELD_VALUE"]

PROJECT = "/home/agent/project"
JSON_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
MODEL = "claude-sonnet-4-5"
RESPONSE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Fine."}], "usage": {"input_tokens": 100, "output_tokens": 5},
}  # fmt: skip
DOCUMENTS = 5
# What an operation leaves to be done later, such as a report to its session, is done within this time.
AFTERWARDS_S = 1.2
ANSWER_S = 60.0
POLL_S = 0.05


class RecordedCall(NamedTuple):
    """A call of a function of ours, or one that leaves the process. `stack` is from the outermost to the callee."""

    # "call", "return" if a coroutine ends, or a value of OUTSIDE.
    kind: str
    thread: str
    # Module and function, whether it is ours, and whether it is a coroutine that waits for what it calls.
    stack: Sequence[tuple[str, bool, bool]]


# ---- the process that is measured


class Recorder:
    """Notes the calls between SIGUSR1 and SIGUSR2, or all of them, and writes them to a file."""

    def __init__(self, path: Path, package: Path, *, from_start: bool) -> None:
        self._path, self._package, self._is_on = path, f"{package}/", from_start
        self._calls: list[RecordedCall] = []

    def run(self, entry: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: self._begin())
        signal.signal(signal.SIGUSR2, lambda *_: self.write())
        exit_at_once = os._exit

        def write_and_exit(code: int) -> None:
            self.write()
            exit_at_once(code)

        os._exit = write_and_exit  # type: ignore[assignment]  # A command may end in this way.
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            entry()
        finally:
            self.write()

    def _begin(self) -> None:
        self._calls.clear()
        self._is_on = True

    def write(self) -> None:
        if self._is_on:
            self._is_on = False
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self._calls))
            partial.rename(self._path)

    def _profile(self, frame: FrameType, event: str, function: object) -> None:
        if not self._is_on:
            return
        kind = ""
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(self._package):
            kind = event if event == "call" or _has_ended(frame) else ""
        elif event == "call" and code.co_filename.endswith(PUBLISH[0]) and code.co_qualname == PUBLISH[1]:
            kind = PUBLISHED
        elif event == "c_call":
            owner = getattr(function, "__self__", None)
            name = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__
            kind = OUTSIDE.get((name, getattr(function, "__name__", "")), "")
        if kind and (event == "c_call" or _is_function(code)):
            stack = self._stack(frame)
            if stack is not None:
                self._calls.append(RecordedCall(kind, threading.current_thread().name, stack))

    def _stack(self, frame: FrameType | None) -> list[tuple[str, bool, bool]] | None:
        """The functions on the stack; None during an import."""
        stack = []
        while frame is not None and not _is_root(frame.f_code):
            code = frame.f_code
            is_ours = code.co_filename.startswith(self._package)
            if is_ours and code.co_name == "<module>":
                return None
            if _is_function(code) and (is_ours or _is_library(code)):
                path = code.co_filename
                module = path.removeprefix(self._package) if is_ours else path.rpartition(INSTALLED)[2]
                name = f"{module.removesuffix('.py').replace('/', '.')}:{code.co_qualname}"
                stack.append((name, is_ours, bool(code.co_flags & CO_WAITS)))
            frame = frame.f_back
        return stack[::-1]


def _is_root(code: CodeType) -> bool:
    return code.co_filename == __file__ or code.co_qualname in ("Handle._run", "Thread.run", "_WorkItem.run")


def _is_function(code: CodeType) -> bool:
    return not code.co_name.startswith("<") or code.co_name == "<lambda>"


def _is_library(code: CodeType) -> bool:
    _, is_installed, path = code.co_filename.rpartition(INSTALLED)
    return bool(is_installed) and not path.startswith(SERVER)


def _has_ended(frame: FrameType) -> bool:
    """Whether a coroutine has ended, and does not only wait."""
    is_waiting = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == YIELD
    return bool(frame.f_code.co_flags & CO_WAITS) and not is_waiting


def record(path: Path, argv: list[str], *, from_start: bool) -> None:
    import contextfold
    from contextfold.cli.main import run

    sys.argv = ["context", *argv]
    Recorder(path, Path(contextfold.__file__).parent, from_start=from_start).run(run)


# ---- the operations


class Measured:
    """A checkout whose processes are measured, with a folder for their files."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._bin, self.folder = root / ".venv" / "bin", folder
        self._calls = folder / "calls.json"
        self._env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}

    def command(self, *argv: str) -> list[str]:
        return [str(self._bin / "python"), __file__, "--record", str(self._calls), *argv]

    def resolve(self) -> list[RecordedCall]:
        sources, cache = self.folder / "documents", self.folder / "cache"
        sources.mkdir()
        for n in range(DOCUMENTS):
            (sources / f"{n}.md").write_text(f"# Part {n}\n\nHow the tokens of part {n} are counted.\n")
        build = [str(self._bin / "context"), "build", "--sources", str(sources), "--cache", str(cache)]
        subprocess.run(build, check=True, capture_output=True, env=self._env)
        argv = ["resolve", "--cache", str(cache), "--query", "tokens counted", "--budget", "500"]
        for _ in range(2):
            subprocess.run(self.command("--from-start", *argv), check=True, capture_output=True, env=self._env)
        return self._recorded()

    def branch(self) -> list[RecordedCall]:
        with self._daemon("--store", str(self.folder / "state.db")) as (daemon, port):
            return self._branch(daemon, port)

    def nats(self) -> list[RecordedCall]:
        with self._nats() as url, self._daemon("--store", url) as (daemon, port):
            return self._branch(daemon, port)

    def _branch(self, daemon: subprocess.Popen[bytes], port: int) -> list[RecordedCall]:
        client = Client(port)
        for n in range(2):
            client.call("context_branch", description=f"subtask {n}", prompt="look", project_path=PROJECT)
            client.call("context_return", message="done", project_path=PROJECT)
        with self._recording(daemon):
            client.call("context_branch", description="search", prompt="find where tokens are", project_path=PROJECT)
        return self._recorded()

    def proxied(self) -> list[RecordedCall]:
        with ProviderStub() as provider:
            options = ("--store", str(self.folder / "state.db"), "--anthropic-upstream", provider.url)
            with self._daemon(*options) as (daemon, port):
                client = Client(port)
                client.use("context_branch", description="search", prompt="find it", project_path=PROJECT)
                client.read("a.py", lines=500)
                client.use("context_return", message="It is in a.py.", project_path=PROJECT)
                for name in ("b.py", "c.py"):
                    assert client.ask()["turns_dropped"] == 1
                    time.sleep(AFTERWARDS_S)
                    client.read(name, lines=20)
                with self._recording(daemon):
                    client.ask()
        return self._recorded()

    @contextmanager
    def _daemon(self, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        log = self.folder / "log"
        command = self.command("serve", "--port", "0", *options)
        with log.open("wb") as stderr:
            daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=self._env)
        try:
            assert daemon.stdout
            line = daemon.stdout.readline().decode()
            if "listens on" not in line:
                raise SystemExit(log.read_text())
            yield daemon, int(line.split()[-1].removesuffix("/mcp").rpartition(":")[2])
        finally:
            daemon.terminate()
            daemon.communicate(timeout=ANSWER_S)

    @contextmanager
    def _nats(self) -> Iterator[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [str(self._bin / "nats-server"), "-js", "-a", "127.0.0.1", "-p", port, "-sd", str(self.folder / "js")]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(ANSWER_S)

    @contextmanager
    def _recording(self, daemon: subprocess.Popen[bytes]) -> Iterator[None]:
        time.sleep(AFTERWARDS_S)
        daemon.send_signal(signal.SIGUSR1)
        # The daemon takes a signal at its next step; it is asked for nothing until it has.
        time.sleep(POLL_S)
        yield
        time.sleep(AFTERWARDS_S)
        daemon.send_signal(signal.SIGUSR2)

    def _recorded(self) -> list[RecordedCall]:
        deadline_s = time.monotonic() + ANSWER_S
        while not self._calls.exists() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        calls = json.loads(self._calls.read_text())
        return [
            RecordedCall(kind, thread, [(name, ours, waits) for name, ours, waits in stack])
            for kind, thread, stack in calls
        ]


class Client:
    """Calls tools, and sends a growing history to a model through the proxy."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
        self._messages: list[object] = [{"role": "user", "content": "Find the bug."}]

    def call(self, tool: str, **arguments: str) -> str:
        params = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        self._connection.request("POST", "/mcp", json.dumps(body), JSON_HEADERS)
        text: str = json.loads(self._connection.getresponse().read())["result"]["content"][0]["text"]
        return text

    def use(self, tool: str, **arguments: str) -> None:
        self._add(f"mcp__contextfold__{tool}", arguments, self.call(tool, **arguments))

    def read(self, name: str, *, lines: int) -> None:
        self._add("Read", {"file": name}, "x = 1\n" * lines)

    def _add(self, name: str, arguments: object, result: str) -> None:
        call_id = f"toolu_{len(self._messages)}"
        call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        self._messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]

    def ask(self) -> dict[str, Any]:
        """The fold receipt of the request."""
        body = json.dumps({"model": MODEL, "max_tokens": 100, "messages": self._messages})
        self._connection.request("POST", "/proxy/anthropic/v1/messages", body, {**JSON_HEADERS, "x-api-key": "key"})
        response = self._connection.getresponse()
        response.read()
        receipt: dict[str, Any] = json.loads(response.headers["x-context-fold"])
        return receipt


class ProviderStub:
    """A model's provider that answers every request with the same message."""

    def __enter__(self) -> ProviderStub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _ProviderHandler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ProviderHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(RESPONSE).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


# ---- counting


class Hops(NamedTuple):
    entered: set[str]
    # Each function with the first moment at which it is on the stack.
    way: dict[str, str]
    libraries: set[str]
    depth: int


def hops(walk: str, calls: Sequence[RecordedCall]) -> Hops:
    """Count a recorded operation. Raises SystemExit for a moment that was not seen: its name has changed."""
    begins = BEGINS.get(walk, ())
    first = next(n for n, call in enumerate(calls) if not begins or call.stack[-1][0] in begins)
    calls = [_below(call, begins) for call in calls[first:] if call.stack]
    moments = {name: moment for moment, names in WALKS[walk].items() for name in names}
    way: dict[str, str] = {name: "the entry" for name, is_ours, _ in calls[0].stack if is_ours}
    libraries: set[str] = set()
    seen: set[str] = set()
    for call in calls:
        moment = moments.get(call.stack[-1][0] if call.kind == "call" else call.kind)
        ours = [name for name, is_ours, _ in call.stack if is_ours]
        # A thread that sends only wakes the event loop.
        if moment and ours and (call.kind != SENT or call.thread == threading.main_thread().name):
            seen.add(moment)
            libraries.update(name for name, is_ours, _ in call.stack if not is_ours)
            for name in ours:
                way.setdefault(name, moment)
    if unseen := WALKS[walk].keys() - seen:
        raise SystemExit(f"{walk}: not seen: {', '.join(sorted(unseen))}")
    entered = {call.stack[-1][0] for call in calls if call.kind == "call"}
    return Hops(entered, way, libraries, _depth(calls))


def _below(call: RecordedCall, begins: Sequence[str]) -> RecordedCall:
    """The call with its stack from the walk's beginning on, if that is part of it."""
    at = next((n for n, entry in enumerate(call.stack) if entry[0] in begins), 0)
    return call._replace(stack=call.stack[at:])


def _depth(calls: Sequence[RecordedCall]) -> int:
    last = max(n for n, call in enumerate(calls) if call.kind in (SQL, PUBLISHED, WRITTEN) and _is_write(call))
    # The number of coroutines that wait for one another in each task, by the task's first.
    waiting: dict[str, int] = {}
    for call in calls[: last + 1]:
        waits = [name for name, is_ours, waits in call.stack if is_ours and waits]
        if waits:
            waiting[waits[0]] = len(waits) - (call.kind == "return")
    writer = [name for name, is_ours, _ in calls[last].stack if is_ours]
    waiting.pop(writer[0], None)
    return len(writer) + sum(waiting.values())


def _is_write(call: RecordedCall) -> bool:
    """Log lines are not what an operation writes."""
    return not any(".logs:" in name for name, _, _ in call.stack)


def modules(functions: Sequence[str] | set[str] | dict[str, str]) -> int:
    return len({name.partition(":")[0] for name in functions})


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        argv = sys.argv[3:]
        record(Path(sys.argv[2]), argv[argv[:1] == ["--from-start"] :], from_start=argv[:1] == ["--from-start"])
        return
    parser = argparse.ArgumentParser(description="Count the functions that an operation passes.")
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="which walks, all if none is named")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout to measure")
    parser.add_argument("--list", action="store_true", help="list the functions on the way, by moment")
    given = parser.parse_args()
    print("| walk | on the way | of libraries | depth | entered |\n|---|---|---|---|---|")
    for walk in given.walks or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            counted = hops(walk, getattr(Measured(given.root, Path(folder)), walk)())
        way, entered = counted.way, counted.entered
        print(
            f"| {walk} | {len(way)} in {modules(way)} | {len(counted.libraries)} | {counted.depth} "
            f"| {len(entered)} in {modules(entered)} |",
            flush=True,
        )
        if given.list:
            for name, moment in way.items():
                print(f"    {name:75} {moment}")
            for name in sorted(counted.libraries):
                print(f"    {name:75} (library)")


if __name__ == "__main__":
    main()
