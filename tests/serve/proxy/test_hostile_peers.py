"""Hostile upstreams and clients: each costs bounded time and memory, and others are answered in the meantime.

The Anthropic upstream is hostile, the OpenAI upstream is not. The daemon runs as usual, with shorter timeouts.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from itertools import product
from pathlib import Path

import pytest

from tests.serve.proxy.model_clients import KEY, Conversation
from tests.serve.proxy.raw_upstream import RawRequest, RawUpstream, Script, Wire, answer_ok
from tests.serve.proxy.short_timeouts_daemon import shorten_timeouts
from tests.support.daemon import Daemon, Http
from tests.support.machine import SOAK
from tests.support.upstream import Upstream

# Nothing here takes nearly as long.
WAIT_S = 60.0
MIB = 1 << 20
BODY_MAX = 48 * MIB
# A few requests may take this much memory, including what the interpreter does not give back.
SOME_MIB = 48
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
PATH = "/proxy/anthropic/v1/messages"
BODY = json.dumps(Conversation("anthropic").user("Hello").body()).encode()
GOOD_BODY = json.dumps(Conversation("openai-chat").user("Hello").body()).encode()
STREAM = "Content-Type: text/event-stream"
EVENT = b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.fixture(scope="module")
def hostile() -> Iterator[RawUpstream]:
    with closing(RawUpstream()) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def daemon(hostile: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Upstream() as good:
        argv = ["--anthropic-upstream", hostile.url, "--openai-upstream", good.url + "/v1"]
        env = {"CONTEXT_PROXY_BODY_MAX_BYTES": str(BODY_MAX)}
        with Daemon(tmp_path_factory.mktemp("hostile"), *argv, env=env, prepare=shorten_timeouts) as daemon:
            yield daemon
        log = daemon.log.read_text()
        assert '"http.failed"' not in log
        assert '"uncaught"' not in log


@pytest.fixture(autouse=True)
def the_daemon_still_works_afterwards(hostile: RawUpstream, daemon: Daemon) -> Iterator[None]:
    """After each test, the next request to the same upstream succeeds."""
    hostile.script, hostile.script_of_head = answer_ok, None
    check_others_are_answered(daemon)
    yield
    hostile.script, hostile.script_of_head = answer_ok, None
    check_others_are_answered(daemon)
    with closing(Http(daemon.port).within(WAIT_S)) as http:
        assert http.ask("POST", PATH, BODY, HEADERS).json == {"fine": True}
    assert hostile.failures == []


def check_others_are_answered(daemon: Daemon) -> None:
    with closing(Http(daemon.port).within(WAIT_S)) as http:
        path, headers = "/proxy/openai/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
        answer = http.ask("POST", path, GOOD_BODY, {**headers, "content-type": "application/json"})
        assert answer.status == 200
        assert http.ask("GET", "/healthz").status == 200


@contextmanager
def within_memory(daemon: Daemon, most_mib: int = SOME_MIB) -> Iterator[None]:
    """Checks that the daemon's peak memory grew by at most this much."""
    process = Path(f"/proc/{daemon.process.pid}")
    try:
        # This resets the peak of the memory.
        (process / "clear_refs").write_text("5")
    except OSError:
        pytest.skip("this system does not report the peak memory of a process")
    before = _kib(process, "VmRSS")
    yield
    assert (_kib(process, "VmHWM") - before) // 1024 <= most_mib


def _kib(process: Path, name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", (process / "status").read_text())
    assert match
    return int(match[1])


class Client:
    """One request over a connection of its own."""

    def __init__(self, daemon: Daemon, case: str = "") -> None:
        self._connection = HTTPConnection("127.0.0.1", daemon.port, timeout=WAIT_S)
        self._connection.request("POST", PATH, BODY, {**HEADERS, "x-case": case})

    def answer(self) -> tuple[int, bytes]:
        """Status and body; raises IncompleteRead or another error if the answer was cut."""
        with closing(self._connection):
            response = self._connection.getresponse()
            return response.status, response.read()

    def error_kind(self) -> str:
        """The status, and the kind of the error that the daemon reports."""
        status, body = self.answer()
        return f"{status} {json.loads(body)['error']['data']['kind']}"

    def is_cut(self) -> bool:
        try:
            self.answer()
        except (HTTPException, OSError):
            return True
        return False


def by_case(scripts: Iterable[Script]) -> Script:
    """Combines scripts; the client selects one by its name."""
    by_name = {script.__name__: script for script in scripts}
    return lambda request, wire: by_name[request.header("x-case")[0]](request, wire)


def until_closed(send: Callable[[], None], *, pause_s: float = 0.0) -> None:
    """Sends again and again, until the connection is closed."""
    pause = threading.Event()
    with suppress(OSError):
        while not pause.wait(pause_s):
            send()


def silent(_request: RawRequest, wire: Wire) -> None:
    assert wire.is_closed()


def only_hints(_request: RawRequest, wire: Wire) -> None:
    until_closed(lambda: wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), pause_s=0.01)


def endless_head(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    until_closed(lambda: wire.send(b"a" * 65_536))


def many_headers(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\n")
    until_closed(lambda: wire.send(b"X-More: and more\r\n" * 1_000))


def garbage(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"\x16\x03\x01\x02\x00" + bytes(range(256)) * 8 + b"\r\n\r\n")
    wire.socket.close()


def half_a_head(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed()


def reset_at_once(_request: RawRequest, wire: Wire) -> None:
    reset(wire)


def odd_status(_request: RawRequest, wire: Wire) -> None:
    wire.answer(b"{}", status="999 Strange")


def reset(wire: Wire) -> None:
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire._read.close()
    wire.socket.close()


NO_ANSWERS = {
    silent: "504 upstream_timeout",
    only_hints: "504 upstream_timeout",
    endless_head: "502 upstream_broken",
    many_headers: "502 upstream_broken",
    garbage: "502 upstream_broken",
    half_a_head: "502 upstream_broken",
    reset_at_once: "502 upstream_broken",
    odd_status: "502 upstream_broken",
}


def test_an_upstream_without_a_valid_response_is_an_error_for_the_client(hostile: RawUpstream, daemon: Daemon) -> None:
    hostile.script = by_case(NO_ANSWERS)
    with within_memory(daemon):
        clients = {script.__name__: Client(daemon, script.__name__) for script in NO_ANSWERS}
        check_others_are_answered(daemon)
        errors = {name: client.error_kind() for name, client in clients.items()}
    assert errors == {script.__name__: error for script, error in NO_ANSWERS.items()}


def half_closes(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed()


def resets_in_the_middle(_request: RawRequest, wire: Wire) -> None:
    wire.begin(STREAM)
    wire.chunk(EVENT)
    reset(wire)


def stops_in_the_middle(_request: RawRequest, wire: Wire) -> None:
    wire.begin(STREAM)
    wire.chunk(EVENT)
    assert wire.is_closed()


def drips(_request: RawRequest, wire: Wire) -> None:
    """Sends a little all the time, and never ends."""
    wire.begin(STREAM)
    until_closed(lambda: wire.chunk(b":"), pause_s=0.2)


def promises_more(_request: RawRequest, wire: Wire) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}")
    assert wire.is_closed()


def breaks_its_chunks(_request: RawRequest, wire: Wire) -> None:
    wire.begin(STREAM)
    wire.chunk(EVENT)
    wire.send(b"zz\r\nwhat\r\n")
    assert wire.is_closed()


def endless_chunk_size(_request: RawRequest, wire: Wire) -> None:
    wire.begin(STREAM)
    until_closed(lambda: wire.send(b"0" * 65_536))


BAD_ENDS = (
    *(half_closes, resets_in_the_middle, stops_in_the_middle, drips, promises_more),
    *(breaks_its_chunks, endless_chunk_size),
)


def test_a_response_that_does_not_end_properly_is_cut_for_the_client(hostile: RawUpstream, daemon: Daemon) -> None:
    """A proper end would make half an answer look complete."""
    hostile.script = by_case(BAD_ENDS)
    with within_memory(daemon):
        clients = {script.__name__: Client(daemon, script.__name__) for script in BAD_ENDS}
        check_others_are_answered(daemon)
        complete = [name for name, client in clients.items() if not client.is_cut()]
    assert complete == []


def test_a_huge_response_is_forwarded_in_little_memory(hostile: RawUpstream, daemon: Daemon) -> None:
    part, times = b'"' + b"x" * (MIB - 2) + b",", 64

    def huge(_request: RawRequest, wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (times * MIB))
        for _ in range(times):
            wire.send(part)

    hostile.script = huge
    connection = HTTPConnection("127.0.0.1", daemon.port, timeout=WAIT_S)
    with within_memory(daemon), closing(connection):
        connection.request("POST", PATH, BODY, HEADERS)
        response = connection.getresponse()
        assert sum(len(response.read(MIB)) for _ in range(times)) == times * MIB


def bomb(wbits: int) -> bytes:
    """Very many of the lines that an event stream may contain, compressed."""
    compressor = zlib.compressobj(1, wbits=wbits)
    lines = b":\n" * (MIB // 2)
    return b"".join(compressor.compress(lines) for _ in range(2 * SOME_MIB)) + compressor.flush()


def test_a_decompression_bomb_is_forwarded_in_little_memory(hostile: RawUpstream, daemon: Daemon) -> None:
    bombs = {"gzip": bomb(31), "deflate": bomb(15)}
    kinds = ("application/json", "text/event-stream")
    # Decompressing and reading are separate steps: in `make test`, each encoding and each type once.
    pairs = list(product(bombs, kinds)) if SOAK else list(zip(bombs, kinds, strict=True))

    def drop(request: RawRequest, wire: Wire) -> None:
        encoding, _, content_type = request.header("x-case")[0].partition(" ")
        wire.answer(bombs[encoding], f"Content-Type: {content_type}", f"Content-Encoding: {encoding}")

    hostile.script = drop
    with within_memory(daemon):
        clients = [(encoding, Client(daemon, f"{encoding} {content_type}")) for encoding, content_type in pairs]
        check_others_are_answered(daemon)
        assert all(client.answer() == (200, bombs[encoding]) for encoding, client in clients)


def test_a_client_that_does_not_read_delays_only_its_own_upstream(hostile: RawUpstream, daemon: Daemon) -> None:
    sent = threading.Event()

    def floods(_request: RawRequest, wire: Wire) -> None:
        wire.begin(STREAM)
        until_closed(lambda: wire.chunk(EVENT * 1_000))
        sent.set()

    hostile.script = floods
    with within_memory(daemon):
        client = Client(daemon)
        check_others_are_answered(daemon)
        # The connection was cut although the client is still connected.
        assert sent.wait(WAIT_S)
        assert client.is_cut()


def head(length: str, path: str = PATH) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in HEADERS.items())]
    return "\r\n".join([*lines, length, "", ""]).encode()


def read_until_closed(connection: socket.socket) -> bytes:
    """The bytes that the daemon sends until it closes the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(65_536):
            received += part
    return received


def connected(daemon: Daemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S)


def test_a_body_that_does_not_arrive_is_a_timeout(daemon: Daemon) -> None:
    paths, lengths = (PATH, "/proxy/anthropic/v1/files"), ("Content-Length: 1000", "Transfer-Encoding: chunked")
    with within_memory(daemon), ExitStack() as open_connections:
        stalled = [open_connections.enter_context(connected(daemon)) for _ in paths for _ in lengths]
        for client, (path, length) in zip(stalled, product(paths, lengths), strict=True):
            client.sendall(head(length, path) + b"2\r\n{}\r\n")
        slow = open_connections.enter_context(connected(daemon))
        slow.sendall(head("Content-Length: 1000000"))
        check_others_are_answered(daemon)
        pause = threading.Event()
        with suppress(OSError):
            for _ in range(int(WAIT_S / 0.1)):
                slow.sendall(b"x")
                pause.wait(0.1)
            pytest.fail("the connection was not closed")
        for client in stalled:
            answer = read_until_closed(client)
            assert answer == b"" or b" 408 " in answer.partition(b"\r\n")[0]


def test_a_body_without_end_is_cut_at_the_limit(daemon: Daemon) -> None:
    part = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n"
    with within_memory(daemon, 3 * BODY_MAX // MIB), closing(connected(daemon)) as client:
        client.sendall(head("Transfer-Encoding: chunked"))
        until_s = time.monotonic() + WAIT_S
        with suppress(OSError):
            # The daemon reads on for a moment, so that the client can read the refusal.
            while time.monotonic() < until_s:
                client.sendall(part)
            pytest.fail("the connection was not closed")
        check_others_are_answered(daemon)


def test_a_client_that_closes_its_sending_side_is_disconnected(hostile: RawUpstream, daemon: Daemon) -> None:
    hostile.script = silent
    with within_memory(daemon), closing(connected(daemon)) as client:
        client.sendall(head(f"Content-Length: {len(BODY)}") + BODY)
        hostile.next()
        client.shutdown(socket.SHUT_WR)
        # The connection is closed, with or without an answer.
        read_until_closed(client)


def test_a_client_that_disconnects_ends_the_upstream_request(hostile: RawUpstream, daemon: Daemon) -> None:
    ended = threading.Event()

    def answers_for_long(_request: RawRequest, wire: Wire) -> None:
        wire.begin(STREAM)
        wire.chunk(EVENT)
        assert wire.is_closed()
        ended.set()

    hostile.script = answers_for_long
    failed = daemon.log.read_text().count("proxy.upstream_failed")
    with closing(connected(daemon)) as client:
        client.sendall(head(f"Content-Length: {len(BODY)}") + BODY)
        received = b""
        while EVENT not in received:
            received += client.recv(65_536)
    assert ended.wait(WAIT_S)
    # After this, everything that is logged about it has been logged.
    check_others_are_answered(daemon)
    # No timeout has expired.
    assert daemon.log.read_text().count("proxy.upstream_failed") == failed


def test_many_silent_connections_leave_room_for_others(daemon: Daemon) -> None:
    beginnings = [b"", b"POST ", head("Content-Length: 1000")[:-2], head("Content-Length: 1000")]
    with within_memory(daemon, 2 * SOME_MIB), ExitStack() as open_connections:
        for number in range(2_500):
            client = open_connections.enter_context(connected(daemon))
            client.sendall(beginnings[number % len(beginnings)])
        check_others_are_answered(daemon)


def test_many_stalled_requests_leave_room_for_more_of_the_same_owner(hostile: RawUpstream, daemon: Daemon) -> None:
    """Also an event stream and the daemon's own answers, while the provider is silent."""
    hostile.script = lambda request, wire: silent(request, wire) if request.header("x-case") else wire.answer(b"{}")
    with ExitStack() as open_connections:
        for _ in range(300):
            client = open_connections.enter_context(connected(daemon))
            client.sendall(head(f"x-case: silent\r\nContent-Length: {len(BODY)}") + BODY)
        for _ in range(300):
            hostile.next()
        with closing(Http(daemon.port).within(WAIT_S)) as http:
            assert http.ask("POST", PATH, BODY, HEADERS).status == 200
            assert http.ask("GET", "/v1/sessions").status == 200
        with closing(HTTPConnection("127.0.0.1", daemon.port, timeout=WAIT_S)) as dashboard:
            dashboard.request("GET", "/v1/events")
            assert dashboard.getresponse().status == 200
        check_others_are_answered(daemon)


def test_many_streams_at_once_are_all_answered(hostile: RawUpstream, daemon: Daemon) -> None:
    barrier = threading.Barrier(40)

    def slowly(_request: RawRequest, wire: Wire) -> None:
        wire.begin(STREAM)
        barrier.wait(WAIT_S)
        for _ in range(20):
            wire.chunk(EVENT * 100)
        wire.send(b"0\r\n\r\n")

    hostile.script = slowly
    with within_memory(daemon):
        clients = [Client(daemon) for _ in range(barrier.parties)]
        check_others_are_answered(daemon)
        assert [client.answer() for client in clients] == [(200, EVENT * 2_000)] * barrier.parties
