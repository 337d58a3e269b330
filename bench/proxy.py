"""The time that the proxy adds to a request, compared with a bare reverse proxy on the same HTTP client and server.

Both forward to one stand-in for the provider, which answers at once with the same bytes; the time of a direct request
to it is subtracted from both. All three are measured in turns. The bare proxy reads the request and passes the response
on; ours also parses the history, folds it, reads the usage from the response and records it in the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.daemon import (
    CLIENTS,
    ERAS,
    CallTimes,
    RawHttpClient,
    ServerProcess,
    combined,
    daemon,
    precise_ms,
    request,
    run_concurrently,
)
from bench.figures import Figure, report_progress, show
from bench.stdio import median, p99
from bench.trajectories import EACH, CallTool, TrajectoryRun, branched, generated, rendered

LIMIT = 2.5  # times what the bare proxy adds
# A generated run with this many subtasks has a body of 168 KB.
SUBTASKS = 4
TIMEOUT_S = 30.0
# All clients together send this many requests in a turn.
REQUESTS = 48
PATH = "/v1/messages"

# Answers `POST` with one small message, or with the events of one: the first at once, the others 0.5 ms apart.
UPSTREAM = r"""
import asyncio
import json

USAGE = {"input_tokens": 900, "cache_read_input_tokens": 40000, "cache_creation_input_tokens": 2000, "output_tokens": 9}
TEXT = {"type": "text", "text": "It is in the reader of the session."}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "a-model", "content": [TEXT],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE}
BODY = json.dumps(MESSAGE).encode()
WHOLE = (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nrequest-id: req_1\r\ncontent-length: "
         + str(len(BODY)).encode() + b"\r\n\r\n" + BODY)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"


def event(name, **members):
    text = f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


DELTA = {"type": "text_delta", "text": "It is "}
EVENTS = [
    event("message_start", message={**MESSAGE, "content": [], "stop_reason": None}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *[event("content_block_delta", index=0, delta=DELTA)] * 3,
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 9}),
    event("message_stop") + b"0\r\n\r\n",
]


class BenchProvider(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.received, self.length = transport, bytearray(), None

    def data_received(self, data):
        self.received += data
        if self.length is None and (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            self.length = end + 4 + int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if self.length is not None and len(self.received) >= self.length:
            streams = b'"stream": true' in self.received[:2000]
            del self.received[:self.length]
            self.length = None
            self.transport.write(HEAD + EVENTS[0] if streams else WHOLE)
            if streams:
                for number, event in enumerate(EVENTS[1:], 1):
                    asyncio.get_running_loop().call_later(number / 2000, self.transport.write, event)


async def main():
    server = await asyncio.get_running_loop().create_server(BenchProvider, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

BARE = """
import sys
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

OWN = {"host", "content-length", "connection", "transfer-encoding", "keep-alive", "te", "trailer", "upgrade"}
upstream = sys.argv[1]
client = httpx2.AsyncClient(timeout=60, follow_redirects=False, trust_env=False)

async def forward(request: Request) -> StreamingResponse:
    headers = [(name, value) for name, value in request.headers.items() if name not in OWN]
    url = f"{upstream}/{request.path_params['path']}"
    sent = client.build_request(request.method, url, headers=headers, content=await request.body())
    answer = await client.send(sent, stream=True)
    response_headers = {name: value for name, value in answer.headers.items() if name not in OWN - {"content-length"}}
    return StreamingResponse(answer.aiter_raw(), answer.status_code, response_headers,
                             background=BackgroundTask(answer.aclose))

class BenchProxyServer(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

app = Starlette(routes=[Route("/proxy/anthropic/{path:path}", forward, methods=["POST"])])
BenchProxyServer(uvicorn.Config(app, port=0, http="h11", loop="asyncio", log_level="error", access_log=False)).run()
"""


class ProxyServers(NamedTuple):
    ours: ServerProcess
    bare: ServerProcess
    upstream: ServerProcess


def start(script: str, *arguments: str) -> ServerProcess:
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE)
    assert process.stdout
    return ServerProcess(process, int(process.stdout.readline()))


@contextmanager
def servers(folder: str) -> Iterator[ProxyServers]:
    with ExitStack() as running:

        def stop_at_end(server: ServerProcess) -> ServerProcess:
            running.callback(server.stop)
            return server

        upstream = stop_at_end(start(UPSTREAM))
        url = f"http://127.0.0.1:{upstream.port}"
        bare = stop_at_end(start(BARE, url))
        yield ProxyServers(stop_at_end(daemon(folder, "--anthropic-upstream", url)), bare, upstream)


# ---- requests


def tool_caller(port: int, project: str) -> CallTool:
    """A function that calls the tools of the daemon."""

    async def call_tool(tool: str, arguments: Mapping[str, object]) -> str:
        client = RawHttpClient(port)
        answer = json.loads(client.call(request(ERAS[0], tool, **arguments, project_path=project)))
        client.close()
        return str(answer["result"]["content"][0]["text"])

    return call_tool


class Load(NamedTuple):
    """The requests of the clients: each client sends its own body repeatedly."""

    name: str
    bodies: list[bytes]
    streams: bool = False


def body_of(run: TrajectoryRun, *, streams: bool = False) -> bytes:
    whole = rendered(run, "anthropic", with_tools=len(run.messages) > 1)
    mark = '{"stream": true, "model"' if streams else '{"model"'
    return whole._replace(head=whole.head.replace('{"model"', mark, 1)).last_body()


def loads(port: int, clients: int, subtasks: int) -> list[Load]:
    """A short request, a long one with nothing to fold, one with folded branches; whole and streamed responses."""
    run = generated(0, subtasks=subtasks)
    projects = [f"/bench/{clients}/{number}" for number in range(clients)]
    folded = [asyncio.run(branched(run, EACH, tool_caller(port, project))) for project in projects]
    short = TrajectoryRun("short", [{"role": "user", "content": "Where is the session read? " * 34}])
    size = f"{len(body_of(run)) / 1000:.0f} KB"
    return [
        Load("1 KB", [body_of(short)] * clients),
        Load(f"{size}, nothing to fold", [body_of(run)] * clients),
        Load(f"{size}, folded", [body_of(client_run) for client_run in folded]),
        Load("1 KB, first byte of a stream", [body_of(short, streams=True)] * clients, streams=True),
        Load(
            f"{size}, folded, first byte of a stream",
            [body_of(client_run, streams=True) for client_run in folded],
            streams=True,
        ),
    ]


def post_request(path: str, body: bytes) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "x-api-key: a-key",
        "anthropic-version: 2023-06-01",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class TimingClient:
    """Sends prepared bytes and records when the first and when the last byte of a response's body arrive."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, sent: bytes) -> tuple[float, float]:
        begin = time.perf_counter()
        self._socket.sendall(sent)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a proxy failed: {received[:400]!r}")
        while not body:
            body += self._receive()
        first_s = time.perf_counter() - begin
        _, _, length = head.lower().partition(b"content-length:")
        while len(body) < int(length.split(b"\r\n")[0]) if length else not body.endswith(b"0\r\n\r\n"):
            body += self._receive()
        return first_s, time.perf_counter() - begin

    def _receive(self) -> bytes:
        received = self._socket.recv(65536)
        if not received:
            raise SystemExit("a proxy closed the connection")
        return received

    def close(self) -> None:
        self._socket.close()


def requesting_worker(port: int, sent: bytes, times: int, *, streams: bool) -> Callable[[list[float]], None]:
    def work(seconds: list[float]) -> None:
        reader = TimingClient(port)
        for _ in range(times):
            first_s, whole_s = reader.ask(sent)
            seconds.append(first_s if streams else whole_s)
        reader.close()

    return work


# ---- figures


class ServerTimes(NamedTuple):
    """The wall time and the processor time of one server in one turn."""

    calls: CallTimes
    cpu_s: float


def cpu_s(server: ServerProcess) -> float:
    """The processor time of a process, which is a better measure than wall time on a busy machine."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(server: ServerProcess, path: str, load: Load, times: int) -> ServerTimes:
    sent = [post_request(path, body) for body in load.bodies]
    before_s = cpu_s(server)
    calls = run_concurrently([requesting_worker(server.port, each, times, streams=load.streams) for each in sent])
    return ServerTimes(calls, cpu_s(server) - before_s)


def figure(load: Load, running: ProxyServers, *, turns: int, requests: int) -> Figure:
    clients = len(load.bodies)
    times = max(1, requests // clients)
    paths = (f"/proxy/anthropic{PATH}", f"/proxy/anthropic{PATH}", PATH)
    # The first turn is a warm-up, so it is left out.
    blocks = [
        [measured(server, path, load, times) for server, path in zip(running, paths, strict=True)]
        for _ in range(turns + 1)
    ][1:]
    ours, bare, direct = (combined([turn.calls for turn in column]) for column in zip(*blocks, strict=True))
    ours_cpu, bare_cpu, _ = (
        f"processor {precise_ms(sum(turn.cpu_s for turn in column) / (times * clients * turns))}"
        for column in zip(*blocks, strict=True)
    )
    least_s = median(direct.seconds)
    ours_text, bare_text = (
        f"p50 {precise_ms(median(calls.seconds))}, p99 {precise_ms(p99(calls.seconds))}, {calls.per_second:,.0f}/s"
        for calls in (ours, bare)
    )
    return Figure(
        f"{load.name}, {clients} client{'s' if clients > 1 else ''}: added",
        f"{ours_text}, {ours_cpu}",
        f"bare proxy {bare_text}, {bare_cpu}; direct p50 {precise_ms(least_s)}",
        (median(ours.seconds) - least_s) / (median(bare.seconds) - least_s),
        LIMIT,
    )


def main(turns: int = 7, requests: int = REQUESTS, subtasks: int = SUBTASKS) -> bool:
    report_progress("proxy")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, servers(folder) as running:
        for clients in CLIENTS:
            for load in loads(running.ours.port, clients, subtasks):
                figures.append(figure(load, running, turns=turns, requests=requests))
    return show("proxy", figures)
