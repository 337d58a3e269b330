"""Starts daemons for the scenarios, as forks of a process that has imported the product.

A scenario connects to a socket and writes one line of JSON, {"argv": […], "env": {…}, "log": path}. It reads one line,
{"pid": …, "line": the first line of the daemon}, and the connection is closed when the daemon has ended.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import ForkedProcess, run_context


class DaemonStarter(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        process = ForkedProcess(run_context, request["argv"], log=Path(request["log"]), env=request["env"])
        with process.stdout:
            answer = {"pid": process.pid, "line": process.stdout.readline().decode()}
            self.wfile.write(json.dumps(answer).encode() + b"\n")
            process.wait()


class DaemonServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def daemon_server(path: Path) -> Iterator[None]:
    """Serves a socket at this path."""
    with DaemonServer(str(path), DaemonStarter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
