"""The daemon's process over real sockets: what it refuses, what it logs, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from contextfold.serve.http.bearer_tokens import add
from contextfold.serve.http.server import check_may_listen, listen
from contextfold.settings import SettingsError
from tests.serve.http.edge import WAIT_S, Daemon, answer_on, begin, started
from tests.support.clauses import covers

LAST_MAX = 100


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def running(tmp_path: Path, stack: ExitStack) -> Daemon:
    return started(stack, tmp_path)


class TestWhatComesIn:
    def test_every_answer_is_private_and_names_no_server(self, running: Daemon) -> None:
        answers = [
            running.ask("GET", "/healthz"),
            running.ask("GET", "/nowhere"),
            running.ask("POST", "/boom"),
            running.ask("GET", "/healthz", Host="evil.example"),
            running.raw(b"nonsense\r\n\r\n"),
        ]
        assert [answer.status for answer in answers] == [200, 404, 500, 421, 400]
        for answer in answers:
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers

    def test_a_host_that_is_not_ours_is_refused_on_every_path(self, running: Daemon) -> None:
        for path in ("/healthz", "/echo/x", "/nowhere"):
            assert running.ask("GET", path, Host="evil.example").error == "host_not_allowed"
        assert running.ask("GET", "/echo/x", Host="LocalHost:1").status == 200

    def test_two_hosts_or_none_are_refused(self, running: Daemon) -> None:
        two = running.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        assert (two.status, two.error) == (400, "bad_request")
        assert running.raw(b"GET /healthz HTTP/1.0\r\n\r\n").error == "host_not_allowed"

    def test_a_body_with_two_ends_is_refused_and_the_connection_closed(self, running: Daemon) -> None:
        sent = b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        two = running.raw(sent + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (two.status, two.error, two.headers["connection"]) == (400, "bad_request", "close")

    def test_whoever_asks_for_health_need_send_no_body_and_can_hold_up_nobody(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        running = started(stack, tmp_path, limits={"in_flight": 1})
        clients = []
        for method in (b"GET", b"POST"):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            client.sendall(method + b" /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
            clients.append(client)
        assert [answer_on(client).status for client in clients] == [200, 405]
        assert running.ask("GET", "/echo/x").status == 200

    def test_a_page_from_elsewhere_is_refused(self, running: Daemon) -> None:
        for origin in ("null", "https://evil.example", "http://localhost.evil.example"):
            assert running.ask("POST", "/echo/x", b"", Origin=origin).error == "origin_not_allowed"
        other_port = {"Origin": "http://localhost:3000"}
        assert running.ask("POST", "/echo/x", b"", **other_port).error == "origin_not_allowed"
        json_too = {**other_port, "Content-Type": "application/json; charset=utf-8"}
        assert running.ask("POST", "/echo/x", b"", **json_too).status == 200

    def test_a_body_is_refused_by_the_length_it_claims_and_by_the_length_it_has(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        running = started(stack, tmp_path, limits={"body_bytes": 100_000})
        claimed = running.raw(b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n")
        assert (claimed.status, claimed.error) == (413, "body_too_large")
        chunked = running.ask("POST", "/echo/x", iter([b"x" * 60_000, b"x" * 60_000]))
        assert (chunked.status, chunked.error) == (413, "body_too_large")
        whole = running.ask("POST", "/echo/x", iter([b"x" * 50_000, b"x" * 50_000]))
        assert json.loads(whole.body)["bytes"] == 100_000

    def test_a_body_that_does_not_arrive_costs_its_own_request_alone(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, limits={"body_timeout_s": 0.2})
        with running.connect() as client:
            client.sendall(b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
            assert running.ask("GET", "/healthz").status == 200
            late = answer_on(client)
            assert (late.status, late.error) == (408, "body_timeout")
            assert client.recv(1) == b""

    def test_a_head_that_does_not_arrive_ends_its_connection(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"HEAD_TIMEOUT_S": 2.0})
        with running.connect() as silent, running.connect() as slow, running.connect() as second:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_on(second).status == 200
            second.sendall(b"GET /hea")
            for client in (silent, slow, second):
                assert ended(client)

    def test_a_refused_body_is_not_read_for_ever(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, limits={"body_bytes": 10}, constants={"HEAD_TIMEOUT_S": 2.0})
        with running.connect() as client:
            client.sendall(b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"b\r\nhello world\r\n")
            assert answer_on(client).status == 413
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                send_for_ever(client, b"b\r\nhello world\r\n" * 10)

    def test_an_answer_that_nobody_reads_is_given_up(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"STALLED_S": 0.2})
        with begin(running, "/big"):
            assert running.stop() == 0
        assert running.hear() == "closed"
        assert "daemon.requests_cut" not in {line["event"] for line in running.log()}

    def test_more_requests_at_once_than_there_is_room_for_are_told_to_come_back(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        running = started(stack, tmp_path, limits={"in_flight": 1})
        with begin(running, "/slow") as client:
            refused = running.ask("GET", "/echo/x")
            assert (refused.status, refused.error, refused.headers["retry-after"]) == (503, "busy", "1")
            # A busy daemon is still healthy.
            assert running.ask("GET", "/healthz").status == 200
            running.say_go_on()
            assert answer_on(client).status == 200
        assert running.ask("GET", "/healthz").status == 200

    def test_open_streams_leave_room_for_requests_and_have_a_bound_of_their_own(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        running = started(stack, tmp_path, limits={"in_flight": 1, "streams": 1})
        with begin(running, "/events"):
            assert running.ask("GET", "/healthz").status == 200
            refused = running.ask("GET", "/events")
            assert (refused.status, refused.error) == (503, "busy")

    def test_more_connections_than_there_is_room_for_are_closed(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"CONNECTIONS_MAX": 1})
        with running.connect() as first, running.connect() as second:
            assert answer_on(second).error == "busy"
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_on(first).status == 200

    def test_an_address_cannot_use_up_the_connections_without_a_request(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"CONNECTIONS_MAX": 4})
        silent = [stack.enter_context(running.connect()) for _ in range(3)]
        assert answer_on(silent[-1]).error == "busy"
        address = ("127.0.0.1", running.port)
        with socket.create_connection(address, WAIT_S, source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_on(other).status == 200

    def test_connections_that_wait_for_their_next_request_make_room(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"CONNECTIONS_MAX": 2})
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        clients = []
        for _ in range(4):
            clients.append(stack.enter_context(running.connect()))
            clients[-1].sendall(request)
            assert answer_on(clients[-1]).status == 200
        assert [client.recv(1) for client in clients[:2]] == [b"", b""]
        clients[-1].sendall(request)
        assert answer_on(clients[-1]).status == 200

    def test_a_client_that_closes_its_sending_side_is_answered(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path)
        client = stack.enter_context(begin(running, "/slow"))
        client.shutdown(socket.SHUT_WR)
        running.say_go_on()
        assert json.loads(answer_on(client).body) == {"finished": True}
        assert client.recv(1) == b""

    @covers("folding.md#owner")
    def test_a_token_gives_the_owner_and_goes_no_further(self, tmp_path: Path, stack: ExitStack) -> None:
        file = tmp_path / "tokens"
        token = add(str(file), "alice")
        running = started(stack, tmp_path, tokens=str(file))
        answer = running.ask("GET", "/echo/x", Authorization=f"Bearer {token}")
        assert json.loads(answer.body) == {"bytes": 0, "owner": "alice", "authorization": False}
        for given in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {token}"}):
            refused = running.ask("GET", "/echo/x", None, **given)
            assert (refused.status, refused.error) == (401, "unauthorized")
            assert refused.headers["www-authenticate"] == "Bearer"
        assert running.ask("GET", "/healthz").status == 200
        file.write_text("")
        assert running.ask("GET", "/echo/x", Authorization=f"Bearer {token}").status == 401

    def test_a_websocket_gets_an_ordinary_answer(self, running: Daemon) -> None:
        answer = running.ask("GET", "/events/x", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="x")
        assert answer.status == 404

    def test_an_answer_streams_while_it_is_made(self, running: Daemon) -> None:
        with begin(running, "/events") as client:
            response = http.client.HTTPResponse(client)
            response.begin()
            assert response.readline() == b"data: 1\n"
            response.close()
        # The stream ended because the client disconnected.
        assert running.hear() == "stream ended"


def send_for_ever(client: socket.socket, content: bytes) -> None:
    pause = threading.Event()
    # It sends without long pauses, and leaves the processor to others in between.
    while not pause.wait(0.01):
        client.sendall(content)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


class TestTheLog:
    @covers("folding.md#scrubbed-text")
    def test_nothing_a_caller_sends_is_logged_or_counted(self, tmp_path: Path, stack: ExitStack) -> None:
        file = tmp_path / "tokens"
        token = add(str(file), "alice")
        running = started(stack, tmp_path, tokens=str(file))
        authorization: dict[str, Any] = {"Authorization": f"Bearer {token}"}
        running.ask("POST", "/echo/hush-path?hush-query=1", b"hush-body", X_Hush="hush-header", **authorization)
        running.ask("POST", "/boom?hush-query=1", b"hush-body", **authorization)
        running.ask("GET", "/nowhere/hush-path", **authorization)
        running.ask("GET", "/hush-path", Authorization="Bearer hush-token")
        running.ask("GET", "/hush-path", Host="hush.example", Origin="https://hush.example")
        running.ask("HUSH", "/echo/x", **authorization)
        running.raw(b"GET /hush-path\r\nhush-header\r\n\r\n")
        page = running.ask("GET", "/metrics", **authorization).body.decode()
        assert running.stop() == 0
        logged = json.dumps(running.log())
        for text in (logged, page):
            assert "hush" not in text.lower()
            assert token not in text
            assert "alice" not in text
        assert 'contextfold_http_requests_total{method="POST",route="/echo/{name}",status="200"} 1.0' in page
        assert 'contextfold_http_refusals_total{reason="unauthorized"} 1.0' in page

    def test_there_is_a_line_for_each_request_and_for_each_turn_of_the_daemon(self, running: Daemon) -> None:
        running.ask("POST", "/echo/x", b"")
        running.ask("POST", "/boom")
        assert running.stop() == 0
        events = [line["event"] for line in running.log()]
        assert events == [
            "daemon.listening",
            "http.request",
            "http.failed",
            "http.request",
            "daemon.stopping",
            "daemon.stopped",
        ]
        request, failed = running.log()[1:3]
        assert request.items() >= {"method": "POST", "route": "/echo/{name}", "status": 200, "level": "info"}.items()
        assert failed["exception"] == "ValueError"
        assert failed["raised_at"].startswith("http/edge.py:")

    @covers("folding.md#errors")
    def test_an_exception_becomes_json_that_says_nothing_of_it(self, running: Daemon) -> None:
        answer = running.ask("POST", "/boom", b"hush")
        assert (answer.status, answer.error) == (500, "internal_error")
        assert b"hush" not in answer.body


class TestTheEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_well_and_the_store_is_closed(self, running: Daemon, number: int) -> None:
        assert running.stop(number) == 0
        assert running.hear() == "closed"

    def test_what_was_taken_is_finished_and_nothing_new_is_taken(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S})
        with begin(running, "/slow") as client, running.connect() as idle:
            running.process.send_signal(signal.SIGTERM)
            assert ended(idle)
            with pytest.raises(ConnectionRefusedError):
                running.connect()
            running.say_go_on()
            answer = answer_on(client)
            assert (answer.status, json.loads(answer.body)) == (200, {"finished": True})
        assert running.hear() == "closed"
        assert running.process.wait(WAIT_S) == 0

    def test_whoever_was_accepted_last_is_let_go_too(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S, "CONNECTIONS_MAX": 1_000_000})
        with begin(running, "/slow") as client:
            running.process.send_signal(signal.SIGTERM)
            last: deque[socket.socket] = deque()
            # The daemon accepts no more connections.
            with suppress(ConnectionError):
                while True:
                    last.append(stack.enter_context(running.connect()))
                    if len(last) > LAST_MAX:
                        last.popleft().close()
            for idle in last:
                # A full queue may have dropped a connection unseen. Its client learns of that only when it sends.
                with suppress(ConnectionError):
                    idle.sendall(b"G")
            assert all(ended(idle) for idle in last)
            running.say_go_on()
            assert answer_on(client).status == 200

    def test_a_request_that_does_not_end_is_told_so_when_the_time_is_over(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        running = started(stack, tmp_path, constants={"GRACE_S": 0.2})
        with begin(running, "/slow") as client:
            assert running.stop() == 0
            assert (answer := answer_on(client)).error == "stopping"
            assert answer.status == 503
        assert running.hear() == "closed"

    @pytest.mark.parametrize("path", ["/events", "/deaf/"])
    def test_an_open_stream_gets_a_proper_end_and_holds_nothing_up(
        self, tmp_path: Path, stack: ExitStack, path: str
    ) -> None:
        running = started(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S})
        with begin(running, path) as client:
            assert running.stop() == 0
            # This fails if the last chunk is missing.
            answer = answer_on(client)
            assert (answer.status, answer.body) == (200, b"data: 1\n\n")

    def test_a_second_signal_ends_it_at_once(self, tmp_path: Path, stack: ExitStack) -> None:
        running = started(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S})
        with begin(running, "/slow"), running.connect() as idle:
            running.process.send_signal(signal.SIGTERM)
            # This shows that the first signal has been handled.
            assert ended(idle)
            assert running.stop(signal.SIGINT) == -signal.SIGINT


class TestTheAddress:
    def test_an_address_in_use_is_told_before_the_application_is_made(
        self, running: Daemon, tmp_path: Path, stack: ExitStack
    ) -> None:
        (tmp_path / "second").mkdir()
        second = Daemon(tmp_path / "second", port=running.port)
        stack.callback(second.close)
        assert second.hear() == ""
        assert second.process.wait(WAIT_S) == 1
        told = (tmp_path / "second" / "stderr").read_text()
        assert told == (
            f"127.0.0.1:{running.port} is in use, perhaps by another daemon: stop that one, or give another --port\n"
        )

    def test_an_application_that_cannot_start_says_why_in_its_own_words(self, tmp_path: Path, stack: ExitStack) -> None:
        failing = Daemon(tmp_path, fails="the store is newer than this program; install the newest")
        stack.callback(failing.close)
        assert failing.hear() == ""
        assert failing.process.wait(WAIT_S) == 1
        *logged, told = (tmp_path / "stderr").read_text().splitlines()
        assert told == "the store is newer than this program; install the newest"
        assert "newer" not in "".join(logged)

    def test_the_default_address_answers_clients_that_resolve_localhost_to_ipv6(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this system has no IPv6 loopback")
        running = started(stack, tmp_path)
        with socket.create_connection(("::1", running.port), WAIT_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_on(client).status == 200

    def test_localhost_is_both_of_its_addresses_on_one_port(self) -> None:
        sockets = listen("localhost", 0)
        try:
            addresses = [bound.getsockname()[:2] for bound in sockets]
            assert addresses[0][0] == "127.0.0.1"
            assert {host for host, _ in addresses} <= {"127.0.0.1", "::1"}
            assert len({port for _, port in addresses}) == 1
            # With another protocol number, asyncio leaves Nagle's algorithm on.
            assert {bound.proto for bound in sockets} == {socket.IPPROTO_TCP}
        finally:
            for bound in sockets:
                bound.close()

    @pytest.mark.parametrize(
        ("host", "port", "told"),
        [
            ("no-such-host.invalid", 0, "no address is known for no-such-host.invalid"),
            ("192.0.2.1", 0, "this machine has no address 192.0.2.1"),
            ("127.0.0.1", 65536, "--port is a number from 0 to 65535"),
            ("a" * 70, 0, "no address is known for"),
        ],
    )
    def test_an_address_that_cannot_be_had_is_one_line(self, host: str, port: int, told: str) -> None:
        with pytest.raises(SettingsError, match=told) as problem:
            listen(host, port)
        assert "\n" not in str(problem.value)

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
    def test_this_machine_needs_no_tokens(self, host: str) -> None:
        check_may_listen(host, has_tokens=False)

    @covers("product.md#serve")
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.example.org", ""])
    def test_other_machines_need_tokens(self, host: str) -> None:
        with pytest.raises(SettingsError, match="give --token-file FILE"):
            check_may_listen(host, has_tokens=False)
        check_may_listen(host, has_tokens=True)
