"""The real HTTP server and guard around a small application, as a process that tests connect to."""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from contextfold import daemon
from contextfold.errors import SettingsError
from contextfold.serve.http.bearer_tokens import TokenFile
from contextfold.serve.http.capacity import RequestLimits
from contextfold.serve.http.exchange import OWNER, Receive, Scope, Send
from contextfold.serve.http.guard import Buckets, Guard, HostRule
from contextfold.serve.ops.logs import log, take_over
from contextfold.serve.ops.metrics import Metrics
from tests.support.daemon import read_log
from tests.support.processes import ForkedProcess

WAIT_S = 60.0


# The application inside the daemon. It writes on stdout what happens, and a line on stdin lets it continue.


def print_line(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Application:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._resumed = asyncio.Event()
        self.metrics = Metrics(["known"])

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        if "fails" in self._settings:
            raise SettingsError(self._settings["fails"])
        asyncio.get_running_loop().add_reader(0, self._on_input)
        print_line("opened")
        yield
        print_line("closed")

    def _on_input(self) -> None:
        if not os.read(0, 100):
            asyncio.get_running_loop().remove_reader(0)
        self._resumed.set()

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True}, headers={"Server": "application", "Cache-Control": "public"})

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        return JSONResponse(
            {"bytes": len(body), "owner": request.scope[OWNER], "authorization": "authorization" in request.headers}
        )

    async def slow(self, _: Request) -> Response:
        print_line("begun")
        await self._resumed.wait()
        return JSONResponse({"finished": True})

    async def boom(self, request: Request) -> Response:
        raise ValueError(f"{request.url} {await request.body()!r}")

    async def events(self, _: Request) -> Response:
        async def endless() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            print_line("begun")
            try:
                await asyncio.Event().wait()
            finally:
                print_line("stream ended")

        return StreamingResponse(endless(), media_type="text/event-stream")

    async def deaf(self, _: Scope, __: Receive, send: Send) -> None:
        """A stream that does not notice when its client disconnects."""
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        print_line("begun")
        await asyncio.Event().wait()

    async def big(self, _: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b"x" * 1_000_000

        print_line("begun")
        return StreamingResponse(chunks(), media_type="application/octet-stream")

    async def page(self, _: Request) -> Response:
        content, content_type = self.metrics.render()
        return Response(content, headers={"content-type": content_type})

    def guarded(self) -> Guard:
        routes: list[Route | Mount] = [
            Route("/healthz", self.healthz),
            Route("/echo/{name}", self.echo, methods=["GET", "POST"]),
            Route("/slow", self.slow),
            Route("/boom", self.boom, methods=["POST"]),
            Route("/events", self.events),
            Route("/big", self.big),
            Route("/metrics", self.page),
            Mount("/deaf", self.deaf),
        ]
        path = self._settings.get("tokens")
        return Guard(
            Starlette(routes=routes, lifespan=self.lifespan),
            hosts=HostRule(self._settings["host"]),
            metrics=self.metrics,
            buckets=Buckets(1000, 1000),
            tokens=TokenFile(path, lambda text: log("tokens", "error", problem=text)) if path else None,
            limits=RequestLimits(**self._settings.get("limits", {})),
        )


def serve(settings: dict[str, Any]) -> None:
    take_over()
    for name, value in settings.get("constants", {}).items():
        assert hasattr(daemon, name)
        setattr(daemon, name, value)
    try:
        daemon.run(
            lambda: Application(settings).guarded(),
            host=settings["host"],
            port=settings["port"],
            on_listening=print_line,
        )
    except SettingsError as error:
        sys.exit(str(error))


# What tests use.


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """Checks the form of the error, and returns its kind."""
        assert self.headers["content-type"] == "application/json"
        error = json.loads(self.body)["error"]
        assert error.keys() == {"code", "message", "data"}
        assert isinstance(error["code"], int)
        assert error["message"].endswith(".")
        return str(error["data"]["kind"])


class EdgeDaemon:
    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        settings |= {"host": host, "port": port}
        self._log = folder / "stderr"
        stdin, self._input = multiprocessing.Pipe(duplex=False)
        self.process = ForkedProcess(serve, settings, log=self._log, stdin=stdin)
        stdin.close()
        self._unread = b""

    def start(self) -> EdgeDaemon:
        assert self.read_line() == "opened"
        self.url = self.read_line()
        self.port = int(self.url.rpartition(":")[2])
        return self

    def read_line(self) -> str:
        """The next line of its output; empty if it has ended."""
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                assert selector.select(WAIT_S), "the daemon wrote nothing"
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                return ""
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def resume(self) -> None:
        os.write(self._input.fileno(), b"\n")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def ask(self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return read(connection.getresponse())
        finally:
            connection.close()

    def raw(self, request: bytes) -> Answer:
        with self.connect() as client:
            client.sendall(request)
            return read_answer(client)

    def log(self) -> list[dict[str, Any]]:
        return read_log(self._log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._input.close()
        self.process.stdout.close()


def read(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def read_answer(client: socket.socket) -> Answer:
    response = http.client.HTTPResponse(client)
    try:
        response.begin()
        return read(response)
    finally:
        response.close()


def begin(daemon: EdgeDaemon, path: str, method: str = "GET") -> socket.socket:
    """Sends a request, and waits until the application has begun to answer it."""
    client = daemon.connect()
    client.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert daemon.read_line() == "begun"
    return client


def start_daemon(stack: ExitStack, folder: Path, **settings: Any) -> EdgeDaemon:
    daemon = EdgeDaemon(folder, **settings)
    stack.callback(daemon.close)
    return daemon.start()
