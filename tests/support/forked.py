"""Daemons as forks of one process that has imported their modules: each starts in milliseconds instead of a second.

The fork has the arguments, environment, output and signals that it is given, and runs the same entry point as the
installed command. A test whose subject is the start itself starts the command instead.

Run as a program, this file is the process that forks. It reads requests from a socket: one JSON object each, with the
descriptors of standard input, output and error and of a pipe that the exit status is written to.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any

REQUEST_MAX_BYTES = 1 << 20
STATUS = struct.Struct("=i")
# What a daemon imports beside the modules of the product.
PRELOADED = ("anyio._backends._asyncio", "uvicorn.lifespan.on", "uvicorn.protocols.http.h11_impl")
# The interpreter reads these when it starts, so a fork would not heed them.
INTERPRETERS_OWN = ("PYTHON", "LC_", "LANG")


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
        with theirs:
            argv = [sys.executable, __file__, str(theirs.fileno())]
            # In a session of its own, so that a signal to the group of the tests does not end it.
            self._process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def can_start(self, env: Mapping[str, str]) -> bool:
        return all(
            self._environment.get(name) == env.get(name)
            for name in {*self._environment, *env}
            if name.startswith(INTERPRETERS_OWN)
        )

    def start(self, argv: Sequence[str], env: Mapping[str, str], stderr: int) -> Forked:
        """Run the `context` command with these arguments."""
        out, their_out = os.pipe()
        status, their_status = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd()}
        try:
            given = [nothing, their_out, stderr, their_status]
            socket.send_fds(self._socket, [json.dumps(request).encode()], given)
        finally:
            for descriptor in (nothing, their_out, their_status):
                os.close(descriptor)
        pid = json.loads(self._socket.recv(REQUEST_MAX_BYTES))["pid"]
        return Forked(pid, os.fdopen(out, "rb"), status)

    def run(
        self, argv: Sequence[str], timeout_s: float, *, env: Mapping[str, str] = os.environ
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the `context` command to its end."""
        with tempfile.TemporaryFile() as errors:
            running = self.start(argv, env, errors.fileno())
            # A process that hangs is killed, and then its output ends.
            impatience = threading.Timer(timeout_s, running.kill)
            impatience.start()
            try:
                with running.stdout:
                    out = running.stdout.read()
                code = running.wait(timeout_s)
            finally:
                impatience.cancel()
            errors.seek(0)
            return subprocess.CompletedProcess(argv, code, out, errors.read())

    def close(self) -> None:
        """End it and whatever it has started."""
        self._socket.close()
        self._process.wait()


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


def main() -> None:
    sys.path.pop(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import contextfold

    product = (module.name for module in pkgutil.walk_packages(contextfold.__path__, "contextfold."))
    for name in (*PRELOADED, *product):
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
    run()


if __name__ == "__main__":
    main()
