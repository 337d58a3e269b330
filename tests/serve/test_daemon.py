"""The daemon's process over real sockets: what it refuses, what it logs, and how it stops."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from contextfold.daemon import check_may_listen, listen
from contextfold.errors import SettingsError
from contextfold.serve.http.bearer_tokens import add_token
from tests.serve.http.edge import WAIT_S, EdgeDaemon, begin, read_answer, start_daemon
from tests.support.waiting import until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def daemon(tmp_path: Path, stack: ExitStack) -> EdgeDaemon:
    return start_daemon(stack, tmp_path)


class TestRequests:
    def test_every_answer_has_security_headers_and_no_server_header(self, daemon: EdgeDaemon) -> None:
        answers = [
            daemon.ask("GET", "/healthz"),
            daemon.ask("GET", "/nowhere"),
            daemon.ask("POST", "/boom"),
            daemon.ask("GET", "/healthz", Host="evil.example"),
        ]
        assert [answer.status for answer in answers] == [200, 404, 500, 421]
        for answer in answers:
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers

    def test_a_foreign_host_is_refused_on_every_path(self, daemon: EdgeDaemon) -> None:
        for path in ("/healthz", "/echo/x", "/nowhere"):
            assert daemon.ask("GET", path, Host="evil.example").error == "host_not_allowed"
        assert daemon.ask("GET", "/echo/x", Host="LocalHost:1").status == 200

    def test_two_hosts_or_none_are_refused(self, daemon: EdgeDaemon) -> None:
        assert daemon.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n").status == 400
        assert daemon.raw(b"GET /healthz HTTP/1.0\r\n\r\n").error == "host_not_allowed"

    def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(self, daemon: EdgeDaemon) -> None:
        sent = b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = daemon.raw(sent + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (answer.status, answer.error, answer.headers["connection"]) == (400, "bad_request", "close")

    def test_health_requests_are_answered_without_waiting_for_their_body(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        daemon = start_daemon(stack, tmp_path, limits={"requests": 1})
        clients = []
        for method in (b"GET", b"POST"):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
            client.sendall(method + b" /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
            clients.append(client)
        assert [read_answer(client).status for client in clients] == [200, 405]
        assert daemon.ask("GET", "/echo/x").status == 200

    def test_a_body_over_the_limit_is_refused_with_or_without_content_length(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        daemon = start_daemon(stack, tmp_path, limits={"body_bytes": 100_000})
        claimed = daemon.raw(b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n")
        assert (claimed.status, claimed.error) == (413, "body_too_large")
        chunked = daemon.ask("POST", "/echo/x", iter([b"x" * 60_000, b"x" * 60_000]))
        assert (chunked.status, chunked.error) == (413, "body_too_large")
        whole = daemon.ask("POST", "/echo/x", iter([b"x" * 50_000, b"x" * 50_000]))
        assert json.loads(whole.body)["bytes"] == 100_000

    def test_a_body_that_does_not_arrive_is_a_timeout_of_its_request_only(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        daemon = start_daemon(stack, tmp_path, limits={"body_timeout_s": 0.2})
        with daemon.connect() as client:
            client.sendall(b"POST /echo/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
            assert daemon.ask("GET", "/healthz").status == 200
            late = read_answer(client)
            assert (late.status, late.error) == (408, "body_timeout")
            assert client.recv(1) == b""

    def test_a_request_whose_answer_nobody_reads_is_ended(self, tmp_path: Path, stack: ExitStack) -> None:
        limits = {"requests": 1, "response_timeout_s": 0.2}
        daemon = start_daemon(stack, tmp_path, limits=limits, constants={"GRACE_S": 0.2})
        with begin(daemon, "/big"):
            until(lambda: daemon.ask("GET", "/echo/x").status == 200)
            assert daemon.stop() == 0
        assert {"http.failed", "uncaught"}.isdisjoint(line["event"] for line in daemon.log())

    def test_requests_over_the_limit_are_refused_with_retry_after(self, tmp_path: Path, stack: ExitStack) -> None:
        daemon = start_daemon(stack, tmp_path, limits={"requests": 1})
        with begin(daemon, "/slow") as client:
            refused = daemon.ask("GET", "/echo/x")
            assert (refused.status, refused.error, refused.headers["retry-after"]) == (503, "busy", "1")
            # A busy daemon is still healthy.
            assert daemon.ask("GET", "/healthz").status == 200
            daemon.resume()
            assert read_answer(client).status == 200
        assert daemon.ask("GET", "/healthz").status == 200

    def test_streams_have_a_limit_apart_from_requests(self, tmp_path: Path, stack: ExitStack) -> None:
        daemon = start_daemon(stack, tmp_path, limits={"requests": 1, "streams": 1})
        with begin(daemon, "/events"):
            assert daemon.ask("GET", "/healthz").status == 200
            refused = daemon.ask("GET", "/events")
            assert (refused.status, refused.error) == (503, "busy")

    def test_a_stream_is_sent_part_by_part_and_ends_with_its_client(self, daemon: EdgeDaemon) -> None:
        with begin(daemon, "/events") as client:
            response = http.client.HTTPResponse(client)
            response.begin()
            assert response.readline() == b"data: 1\n"
            response.close()
        # The stream ended because the client disconnected.
        assert daemon.read_line() == "stream ended"


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


class TestLog:
    def test_nothing_that_a_caller_sends_is_in_log_or_metrics(self, tmp_path: Path, stack: ExitStack) -> None:
        file = tmp_path / "tokens"
        token = add_token(str(file), "alice")
        daemon = start_daemon(stack, tmp_path, tokens=str(file))
        authorization: dict[str, Any] = {"Authorization": f"Bearer {token}"}
        daemon.ask("POST", "/echo/hush-path?hush-query=1", b"hush-body", X_Hush="hush-header", **authorization)
        daemon.ask("POST", "/boom?hush-query=1", b"hush-body", **authorization)
        daemon.ask("GET", "/nowhere/hush-path", **authorization)
        daemon.ask("GET", "/hush-path", Authorization="Bearer hush-token")
        daemon.ask("GET", "/hush-path", Host="hush.example", Origin="https://hush.example")
        daemon.ask("HUSH", "/echo/x", **authorization)
        daemon.raw(b"GET /hush-path\r\nhush-header\r\n\r\n")
        page = daemon.ask("GET", "/metrics", **authorization).body.decode()
        assert daemon.stop() == 0
        logged = json.dumps(daemon.log())
        for text in (logged, page):
            assert "hush" not in text.lower()
            assert token not in text
            assert "alice" not in text
        assert 'contextfold_http_requests_total{method="POST",route="/echo/{name}",status="200"} 1.0' in page
        assert 'contextfold_http_refusals_total{reason="unauthorized"} 1.0' in page

    def test_an_exception_is_an_internal_error_without_its_text(self, daemon: EdgeDaemon) -> None:
        answer = daemon.ask("POST", "/boom", b"hush")
        assert (answer.status, answer.error) == (500, "internal_error")
        assert b"hush" not in answer.body


class TestShutdown:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_stops_the_daemon_and_closes_the_application(self, daemon: EdgeDaemon, number: int) -> None:
        assert daemon.stop(number) == 0
        assert daemon.read_line() == "closed"

    def test_a_stopping_daemon_finishes_requests_and_accepts_no_connection(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        daemon = start_daemon(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S})
        with begin(daemon, "/slow") as client, daemon.connect() as idle:
            daemon.process.send_signal(signal.SIGTERM)
            assert is_closed(idle)
            with pytest.raises(ConnectionRefusedError):
                daemon.connect()
            daemon.resume()
            answer = read_answer(client)
            assert (answer.status, json.loads(answer.body)) == (200, {"finished": True})
        assert daemon.read_line() == "closed"
        assert daemon.process.wait(WAIT_S) == 0

    def test_a_request_that_is_not_finished_in_time_gets_an_error(self, tmp_path: Path, stack: ExitStack) -> None:
        daemon = start_daemon(stack, tmp_path, constants={"GRACE_S": 0.2})
        with begin(daemon, "/slow") as client:
            assert daemon.stop() == 0
            assert (answer := read_answer(client)).error == "stopping"
            assert answer.status == 503
        assert daemon.read_line() == "closed"

    @pytest.mark.parametrize(("path", "grace_s"), [("/events", 10 * WAIT_S), ("/deaf/", 0.2)])
    def test_an_open_stream_is_ended_properly_and_does_not_delay_shutdown(
        self, tmp_path: Path, stack: ExitStack, path: str, grace_s: float
    ) -> None:
        daemon = start_daemon(stack, tmp_path, constants={"GRACE_S": grace_s})
        with begin(daemon, path) as client:
            assert daemon.stop() == 0
            # This fails if the last chunk is missing.
            answer = read_answer(client)
            assert (answer.status, answer.body) == (200, b"data: 1\n\n")

    def test_a_second_signal_ends_the_daemon_at_once(self, tmp_path: Path, stack: ExitStack) -> None:
        daemon = start_daemon(stack, tmp_path, constants={"GRACE_S": 10 * WAIT_S})
        with begin(daemon, "/slow"), daemon.connect() as idle:
            daemon.process.send_signal(signal.SIGTERM)
            # This shows that the first signal has been handled.
            assert is_closed(idle)
            assert daemon.stop(signal.SIGINT) == -signal.SIGINT


class TestAddress:
    def test_an_address_in_use_is_an_error_before_the_application_starts(
        self, daemon: EdgeDaemon, tmp_path: Path, stack: ExitStack
    ) -> None:
        (tmp_path / "second").mkdir()
        second = EdgeDaemon(tmp_path / "second", port=daemon.port)
        stack.callback(second.close)
        assert second.read_line() == ""
        assert second.process.wait(WAIT_S) == 1
        message = (tmp_path / "second" / "stderr").read_text()
        assert message == (
            f"127.0.0.1:{daemon.port} is in use, perhaps by another daemon: stop that one, or give another --port\n"
        )

    def test_an_application_that_cannot_start_ends_the_daemon_with_its_message(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        failing = EdgeDaemon(tmp_path, fails="the store is newer than this program; install the newest")
        stack.callback(failing.close)
        assert failing.read_line() == ""
        assert failing.process.wait(WAIT_S) == 1
        *logged, message = (tmp_path / "stderr").read_text().splitlines()
        assert message == "the store is newer than this program; install the newest"
        assert "newer" not in "".join(logged)

    def test_the_default_address_answers_clients_that_resolve_localhost_to_ipv6(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this system has no IPv6 loopback")
        daemon = start_daemon(stack, tmp_path)
        with socket.create_connection(("::1", daemon.port), WAIT_S) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(client).status == 200

    @pytest.mark.parametrize(
        ("host", "port", "message"),
        [
            ("no-such-host.invalid", 0, "no address is known for no-such-host.invalid"),
            ("192.0.2.1", 0, "this machine has no address 192.0.2.1"),
            ("a" * 70, 0, "no address is known for"),
        ],
    )
    def test_an_unusable_address_is_an_error_of_one_line(self, host: str, port: int, message: str) -> None:
        with pytest.raises(SettingsError, match=message) as raised:
            listen(host, port)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
    def test_listening_on_loopback_needs_no_tokens(self, host: str) -> None:
        check_may_listen(host, has_tokens=False)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.example.org", ""])
    def test_listening_elsewhere_needs_tokens(self, host: str) -> None:
        with pytest.raises(SettingsError, match="give --token-file FILE"):
            check_may_listen(host, has_tokens=False)
        check_may_listen(host, has_tokens=True)
