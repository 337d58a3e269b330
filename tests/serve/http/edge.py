"""A daemon of the real edge around a small application, for tests to meet over real sockets.

Run as a program, this file is that daemon.
"""

from __future__ import annotations

import asyncio
import http.client
import json
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

from contextfold.serve.http import server as daemon
from contextfold.serve.http import uvicorn_adapter
from contextfold.serve.http.bearer_tokens import TokenFile
from contextfold.serve.http.exchange import OWNER, Receive, RequestLimits, Scope, Send
from contextfold.serve.http.guard import Guard
from contextfold.serve.http.limits import Buckets, HostRule, RateLimit
from contextfold.serve.ops.logs import log, take_over
from contextfold.serve.ops.metrics import Metrics
from contextfold.settings import SettingsError
from tests.support.forked import forker

WAIT_S = 60.0
MANY = RateLimit(1000, 1000)


# The application inside the daemon. It tells the test on stdout what happens, and is told on stdin to go on.


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Application:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._go_on = asyncio.Event()
        self.metrics = Metrics(["known"])

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        if "fails" in self._settings:
            raise SettingsError(self._settings["fails"])
        asyncio.get_running_loop().add_reader(0, self._hear)
        tell("opened")
        yield
        tell("closed")

    def _hear(self) -> None:
        if not os.read(0, 100):
            asyncio.get_running_loop().remove_reader(0)
        self._go_on.set()

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True}, headers={"Server": "told", "Cache-Control": "public"})

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        return JSONResponse(
            {"bytes": len(body), "owner": request.scope[OWNER], "authorization": "authorization" in request.headers}
        )

    async def slow(self, _: Request) -> Response:
        tell("begun")
        await self._go_on.wait()
        return JSONResponse({"finished": True})

    async def boom(self, request: Request) -> Response:
        raise ValueError(f"{request.url} {await request.body()!r}")

    async def events(self, _: Request) -> Response:
        async def endless() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            tell("begun")
            try:
                await asyncio.Event().wait()
            finally:
                tell("stream ended")

        return StreamingResponse(endless(), media_type="text/event-stream")

    async def deaf(self, _: Scope, __: Receive, send: Send) -> None:
        """A stream that does not listen for a client's end."""
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        tell("begun")
        await asyncio.Event().wait()

    async def big(self, _: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b"x" * 1_000_000

        tell("begun")
        return StreamingResponse(chunks(), media_type="application/octet-stream")

    async def page(self, _: Request) -> Response:
        content, kind = self.metrics.render()
        return Response(content, headers={"content-type": kind})

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
            buckets=Buckets(MANY),
            tokens=TokenFile(path, lambda text: log("tokens", "error", problem=text)) if path else None,
            limits=RequestLimits(**self._settings.get("limits", {})),
        )


def serve(settings: dict[str, Any]) -> None:
    take_over()
    for name, value in settings.get("constants", {}).items():
        assert hasattr(uvicorn_adapter, name)
        setattr(uvicorn_adapter, name, value)
    try:
        daemon.run(
            lambda: Application(settings).guarded(), host=settings["host"], port=settings["port"], on_listening=tell
        )
    except SettingsError as problem:
        sys.exit(str(problem))


# The test's side.


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The code of a refusal, once its shape is right."""
        assert self.headers["content-type"] == "application/json"
        error = json.loads(self.body)["error"]
        assert error.keys() == {"code", "message", "data"}
        assert isinstance(error["code"], int)
        assert error["message"].endswith(".")
        return str(error["data"]["kind"])


class Daemon:
    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        settings |= {"host": host, "port": port}
        self._log = folder / "stderr"
        stdin, self._input = os.pipe()
        try:
            with self._log.open("ab") as stderr:
                argv = [__file__, json.dumps(settings)]
                self.process = forker().start(argv, os.environ, stderr.fileno(), stdin=stdin)
        finally:
            os.close(stdin)
        self._heard = b""

    def start(self) -> Daemon:
        assert self.hear() == "opened"
        self.url = self.hear()
        self.port = int(self.url.rpartition(":")[2])
        return self

    def hear(self) -> str:
        """The next line it says; empty when it has ended."""
        while b"\n" not in self._heard:
            with selectors.DefaultSelector() as selector:
                selector.register(self.process.stdout, selectors.EVENT_READ)
                assert selector.select(WAIT_S), "it says nothing"
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                return ""
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def say_go_on(self) -> None:
        os.write(self._input, b"\n")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def ask(self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            return read(connection.getresponse())
        finally:
            connection.close()

    def raw(self, request: bytes) -> Answer:
        with self.connect() as client:
            client.sendall(request)
            return answer_on(client)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._input)
        self.process.stdout.close()


def read(response: http.client.HTTPResponse) -> Answer:
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def answer_on(client: socket.socket) -> Answer:
    response = http.client.HTTPResponse(client)
    try:
        response.begin()
        return read(response)
    finally:
        response.close()


def begin(running: Daemon, path: str, method: str = "GET") -> socket.socket:
    """A request that is being answered."""
    client = running.connect()
    client.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert running.hear() == "begun"
    return client


def started(stack: ExitStack, folder: Path, **settings: Any) -> Daemon:
    made = Daemon(folder, **settings)
    stack.callback(made.close)
    return made.start()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
