"""Starts daemons and writes seeded stores for the scenarios. Forks and copies cost a tenth of new processes.

A scenario connects, writes one line of JSON and reads lines of JSON.

    {"argv": […], "env": {…}, "log": path}   starts `context` with these arguments → {"pid": …, "line": its first line};
                                             the connection is closed when the process has ended
    {"store": path, "scene": [name, …]}      writes a store as seed.py does → {}
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.forked import forker
from tests.web import seed

_LOCK = threading.Lock()


@contextmanager
def forked_daemons(folder: Path) -> Iterator[Path]:
    """Gives the path of a socket in the folder and serves it inside the context."""
    path = folder / "daemons"
    templates = folder / "stores"

    @cache
    def template(*scene: object) -> Path:
        store = templates / "-".join(map(str, scene)) / "state.db"
        asyncio.run(seed.main(str(store), *map(str, scene)))
        return store

    class DaemonRequestHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request = json.loads(self.rfile.readline())
            if "scene" in request:
                store = Path(request["store"])
                store.parent.mkdir(parents=True, exist_ok=True)
                with _LOCK:
                    shutil.copy(template(*request["scene"]), store)
                self.answer({})
                return
            with open(request["log"], "ab") as log, _LOCK:
                process = forker().start(["context", *request["argv"]], request["env"], log.fileno())
            with process.stdout:
                self.answer({"pid": process.pid, "line": process.stdout.readline().decode()})
                process.wait()

        def answer(self, value: dict[str, Any]) -> None:
            self.wfile.write(json.dumps(value).encode() + b"\n")

    class DaemonSocketServer(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with DaemonSocketServer(str(path), DaemonRequestHandler) as server:
        server_thread = threading.Thread(target=server.serve_forever, daemon=True)
        server_thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            server_thread.join()
