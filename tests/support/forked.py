"""Daemons and commands as forks of one process that has imported their modules: they start in milliseconds.

The fork has the arguments, environment, output and signals that it is given, and runs the same entry point as the
installed command. A test whose subject is the start itself starts the command instead.

Run as a program, this file is the process that forks. It reads requests from a socket: one JSON object each, with the
descriptors of standard input, output and error and of a pipe that the exit status is written to.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

REQUEST_MAX_BYTES = 1 << 20
STATUS = struct.Struct("=i")
# Daemons and commands on a terminal import these beside the modules of the product.
PRELOADED = (
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "rich.console",
    "rich.padding",
    "rich.table",
    "rich.text",
)
# The interpreter reads these when it starts, so they have no effect in a fork.
INTERPRETER_PREFIXES = ("PYTHON", "LC_", "LANG")
# A fork may differ in these, because they change no behaviour.
WITHOUT_EFFECT = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


class Forked:
    """A forked process, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: IO[bytes], status: int) -> None:
        self.pid, self.stdout, self._status = pid, stdout, status
        self.returncode: int | None = None
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._poll(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"the fork {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _poll(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            status = os.read(self._status, STATUS.size)
            self.returncode = STATUS.unpack(status)[0] if status else -signal.SIGKILL
        return self.returncode


class Forker:
    """Starts the process that forks, and sends requests to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = dict(os.environ)
        # Threads of a test may send requests at once, and answers do not say which request they belong to.
        self._request_lock = threading.Lock()
        with theirs:
            argv = [sys.executable, __file__, str(theirs.fileno())]
            # In a session of its own, so that a signal to the group of the tests does not end it.
            self._process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether a fork can have this environment. Without a locale Python uses UTF-8, as it does here with one."""
        return all(
            self._environment.get(name) == env.get(name)
            for name in {*self._environment, *env}
            if name.startswith(INTERPRETER_PREFIXES) and name not in WITHOUT_EFFECT
            if name in env or name.startswith("PYTHON")
        )

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stderr: int,
        *,
        stdin: int | None = None,
        cwd: Path | None = None,
    ) -> Forked:
        """Run the `context` command with these arguments. Without `stdin`, its standard input is empty.

        If the first word is a Python script, the script is run; it prepares something and then calls the command.
        """
        out, their_out = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            standard = (nothing if stdin is None else stdin, their_out, stderr)
            pid, status = self._request(
                {"argv": list(argv), "env": dict(env), "cwd": str(cwd or os.getcwd())}, standard
            )
        finally:
            os.close(nothing)
            os.close(their_out)
        return Forked(pid, os.fdopen(out, "rb"), status)

    def start_on_terminal(self, argv: Sequence[str], env: Mapping[str, str], terminal: int) -> Forked:
        """Run the command in a new session with its own terminal."""
        request = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd(), "has_terminal": True}
        pid, status = self._request(request, (terminal, terminal, terminal))
        return Forked(pid, io.BytesIO(), status)

    def run(
        self,
        argv: Sequence[str],
        timeout_s: float,
        *,
        env: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
        given: bytes = b"",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the `context` command to its end; `given` is what it can read."""
        with tempfile.TemporaryFile() as errors, ExitStack() as stack:
            stdin, source = os.pipe()
            try:
                running = self.start(argv, env, errors.fileno(), stdin=stdin, cwd=cwd)
            finally:
                os.close(stdin)
            writer = threading.Thread(target=_write_all, args=(source, given))
            writer.start()
            stack.callback(writer.join)
            # A process that hangs is killed, and then its output ends.
            timer = threading.Timer(timeout_s, running.kill)
            timer.start()
            stack.callback(timer.cancel)
            with running.stdout:
                out = running.stdout.read()
            code = running.wait(timeout_s)
            errors.seek(0)
            return subprocess.CompletedProcess(argv, code, out, errors.read())

    def _request(self, request: Mapping[str, object], standard: tuple[int, int, int]) -> tuple[int, int]:
        """Returns the process id of the fork, and the descriptor from which its exit status is read."""
        status, their_status = os.pipe()
        with self._request_lock:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [*standard, their_status])
            finally:
                os.close(their_status)
            return json.loads(self._socket.recv(REQUEST_MAX_BYTES))["pid"], status

    def close(self) -> None:
        """End the process that forks, and everything that it has started."""
        self._socket.close()
        self._process.wait()


def _write_all(descriptor: int, text: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(text)


@cache
def forker() -> Forker:
    """The forker of this process, started when it is first needed."""
    return Forker()


def end_forker() -> None:
    if forker.cache_info().currsize:
        forker().close()
        forker.cache_clear()


# ---- the process that forks


def _serve(control: socket.socket) -> dict[str, Any]:
    """Answer requests until the socket is closed. Returns only in a fork, with its request."""
    statuses: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while True:
        ready = select.select([control.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 1024)
            _reap(statuses)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST_MAX_BYTES, 4)
        if not message:
            for pid in statuses:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        standard, status = descriptors[:3], descriptors[3]
        pid = os.fork()
        if pid:
            statuses[pid] = status
            for descriptor in standard:
                os.close(descriptor)
            control.send(json.dumps({"pid": pid}).encode())
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        control.close()
        for descriptor in (*standard, status, woken, wake, *statuses.values()):
            os.close(descriptor)
        request: dict[str, Any] = json.loads(message)
        return request


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        status = statuses.pop(pid)
        try:
            os.write(status, STATUS.pack(os.waitstatus_to_exitcode(code)))
        except BrokenPipeError:
            # No test waits for the status.
            pass
        os.close(status)


def _end(run: Callable[[], object]) -> NoReturn:
    """Call `run`, and end as the interpreter does, but without freeing objects: that would copy all memory."""
    code: object = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The interpreter has this exit code when standard output cannot be written.
        code = 120
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    sys.path.pop(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import contextfold

    product = (module.name for module in pkgutil.walk_packages(contextfold.__path__, "contextfold."))
    for name in PRELOADED:
        # The environment of the quick tests does not have all of them.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in product:
        # Adapters import packages that may not be installed.
        if not name.endswith("__main__") and not name.startswith("contextfold.adapters."):
            importlib.import_module(name)
    from contextfold.cli.main import run
    from contextfold.scrub.scrubber import standard_scrubber

    # Compiled once, before the forks.
    standard_scrubber()
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    if request.get("has_terminal"):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    script = request["argv"][0]
    if script.endswith(".py"):
        sys.path.insert(0, str(Path(__file__).parents[2]))
        _end(lambda: runpy.run_path(script, run_name="__main__"))
    _end(run)


if __name__ == "__main__":
    main()
