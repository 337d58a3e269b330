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
# What daemons and commands on a terminal import beside the modules of the product.
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
# The interpreter reads these when it starts, so a fork would not heed them; except those that change no behaviour.
INTERPRETERS_OWN = ("PYTHON", "LC_", "LANG")
UNIMPORTANT = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")


class Forked:
    """A process that was forked: what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[bytes], status: int) -> None:
        self.pid, self.stdout, self._status = pid, stdout, status
        self.returncode: int | None = None
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
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

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, STATUS.size)
            self.returncode = STATUS.unpack(told)[0] if told else -signal.SIGKILL
        return self.returncode


class Forker:
    """The process that forks, and asking it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = dict(os.environ)
        # Threads of a test ask at once, and answers carry no name.
        self._asking = threading.Lock()
        with theirs:
            argv = [sys.executable, __file__, str(theirs.fileno())]
            # In a session of its own, so that a signal to the group of the tests does not end it.
            self._process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether a fork heeds this environment. Without a locale Python uses UTF-8, as it does here with one."""
        return all(
            self._environment.get(name) == env.get(name)
            for name in {*self._environment, *env}
            if name.startswith(INTERPRETERS_OWN) and name not in UNIMPORTANT
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
        """Run the `context` command with these arguments; without a standard input there is nothing to read.

        Where the first word is a script of Python, that is run; it calls the command when it has prepared something.
        """
        out, their_out = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            standard = (nothing if stdin is None else stdin, their_out, stderr)
            pid, status = self._ask({"argv": list(argv), "env": dict(env), "cwd": str(cwd or os.getcwd())}, standard)
        finally:
            os.close(nothing)
            os.close(their_out)
        return Forked(pid, os.fdopen(out, "rb"), status)

    def start_on_terminal(self, argv: Sequence[str], env: Mapping[str, str], terminal: int) -> Forked:
        """Run the command in a session of its own, on a terminal that is its own."""
        request = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd(), "has_terminal": True}
        pid, status = self._ask(request, (terminal, terminal, terminal))
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
            impatience = threading.Timer(timeout_s, running.kill)
            impatience.start()
            stack.callback(impatience.cancel)
            with running.stdout:
                out = running.stdout.read()
            code = running.wait(timeout_s)
            errors.seek(0)
            return subprocess.CompletedProcess(argv, code, out, errors.read())

    def _ask(self, request: Mapping[str, object], standard: tuple[int, int, int]) -> tuple[int, int]:
        """The process that was forked, and where its exit status is read."""
        status, their_status = os.pipe()
        with self._asking:
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [*standard, their_status])
            finally:
                os.close(their_status)
            return json.loads(self._socket.recv(REQUEST_MAX_BYTES))["pid"], status

    def close(self) -> None:
        """End it and whatever it has started."""
        self._socket.close()
        self._process.wait()


def _write_all(descriptor: int, text: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(text)


@cache
def forker() -> Forker:
    """One for this process, started when it is first needed."""
    return Forker()


def end_forker() -> None:
    if forker.cache_info().currsize:
        forker().close()
        forker.cache_clear()


# ---- the process that forks


def _serve(control: socket.socket) -> dict[str, Any]:
    """Answer requests until nobody asks any more. Returns in a fork only, with its request."""
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
        told, descriptors, _, _ = socket.recv_fds(control, REQUEST_MAX_BYTES, 4)
        if not told:
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
        request: dict[str, Any] = json.loads(told)
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
            # Nobody waits for it.
            pass
        os.close(status)


def _end(run: Callable[[], object]) -> NoReturn:
    """Run that, and end as the interpreter does, but without freeing each object: that would copy all memory."""
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
        # As the interpreter does where nobody reads any more.
        code = 120
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def main() -> None:
    sys.path.pop(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import contextfold

    product = (module.name for module in pkgutil.walk_packages(contextfold.__path__, "contextfold."))
    for name in PRELOADED:
        # The environments of the quick tests have not all of them.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in product:
        # Adapters import packages that need not be there.
        if not name.endswith("__main__") and not name.startswith("contextfold.adapters."):
            importlib.import_module(name)
    from contextfold.cli.main import run
    from contextfold.scrub.standard import standard_scrubber

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
