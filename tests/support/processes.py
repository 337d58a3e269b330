"""Daemons, and commands that a test kills or that run beside it, in processes of their own.

`multiprocessing` forks them from a server process that has imported the product, so that they start in milliseconds. A
test whose subject is the start itself runs the installed program.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import contextfold
from contextfold.cli.main import main
from tests.support.machine import COMMAND_TIMEOUT_S, Ran, set_environment

_FORKS = multiprocessing.get_context("forkserver")
# What cannot be imported is left out. The adapters import packages of others, which take long.
_FORKS.set_forkserver_preload(
    [
        "tests.support.processes",
        "uvicorn.lifespan.on",
        "uvicorn.protocols.http.h11_impl",
        *(
            module.name
            for module in pkgutil.walk_packages(contextfold.__path__, "contextfold.")
            if not module.name.startswith(("contextfold.adapters", "contextfold.__main__"))
        ),
    ]
)


class ForkedProcess:
    """A function that runs in a process of its own, with the methods of `subprocess.Popen` that the tests use.

    Without `stdin`, its standard input is empty. Its standard error goes to the end of the file `log`. The function is
    found by its name, so it must be one of a module.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: Connection | None = None,
    ) -> None:
        self._output, theirs = _FORKS.Pipe(duplex=False)
        standard = _Standard(stdin, theirs, log, dict(os.environ if env is None else env), os.getcwd())
        self._process = _FORKS.Process(target=_run, args=(standard, function, arguments))
        self._process.start()
        theirs.close()
        self.stdout = os.fdopen(self._output.fileno(), "rb", closefd=False)
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"the process {self.pid}", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Standard(NamedTuple):
    """What a process begins with."""

    stdin: Connection | None
    stdout: Connection
    log: Path
    env: dict[str, str]
    folder: str


def _run(standard: _Standard, function: Callable[..., object], arguments: Sequence[object]) -> None:
    os.chdir(standard.folder)
    set_environment(standard.env)
    with open(os.devnull, "rb") as nothing, standard.log.open("ab") as log, standard.stdout:
        for number, source in enumerate((standard.stdin or nothing, standard.stdout, log)):
            os.dup2(source.fileno(), number)
    if standard.stdin:
        standard.stdin.close()
    function(*arguments)


def run_context(argv: Sequence[str], prepare: Callable[[], None] | None = None) -> None:
    """What a process of the command does. `prepare` changes something of the product before."""
    if prepare:
        prepare()
    sys.exit(main(argv))


def run_in_fork(*argv: object, prepare: Callable[[], None] | None = None) -> Ran:
    """Run `context` to its end in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        process = ForkedProcess(run_context, list(map(str, argv)), prepare, log=log)
        with process.stdout:
            out = process.stdout.read()
        return Ran(process.wait(COMMAND_TIMEOUT_S), out, log.read_text("utf-8", "surrogateescape"))


def end_processes() -> None:
    """Kill what tests have started and not ended."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
