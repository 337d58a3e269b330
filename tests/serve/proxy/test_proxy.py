"""Which paths, headers and responses the proxy forwards, over real sockets."""

from __future__ import annotations

import http.client
import json
import queue
from contextlib import closing

import pytest

from tests.serve.proxy.proxy_daemon import (
    KEY,
    MESSAGES,
    ProxyDaemon,
    begin,
    error_of,
    proxy,
    read_response,
    shared_proxy,
)
from tests.serve.proxy.raw_upstream import WAIT_S, RawRequest, Wire
from tests.support.daemon import Http

__all__ = ["proxy", "shared_proxy"]


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "target"),
        [
            ("/proxy/anthropic/v1/models", "/v1/models"),
            ("/proxy/anthropic/", "/"),
            ("/proxy/anthropic/a%20b/%C3%A4?x=%2F..%2F&y=/../", "/a%20b/%C3%A4?x=%2F..%2F&y=/../"),
            ("/proxy/anthropic//evil.example/x", "//evil.example/x"),
            ("/proxy/anthropic/.../..a/a..", "/.../..a/a.."),
            ("/proxy/openai/v1/models/m:1?limit=3", "/v1/models/m:1?limit=3"),
            ("/proxy/openai/v1/v1/x", "/v1/v1/x"),
        ],
    )
    def test_a_path_is_appended_to_the_upstreams_unchanged(self, proxy: ProxyDaemon, path: str, target: str) -> None:
        assert proxy.request("GET", path).status == 200
        assert proxy.upstream.next().line == f"GET {target} HTTP/1.1"

    @pytest.mark.parametrize("prefix", ["/proxy/anthropic/", "/proxy/openai/v1/"])
    @pytest.mark.parametrize(
        "path",
        [
            "..", "../x", "a/../b", "a/./b", ".", "a/..", "%2e%2e/x", "a/%2E./x", ".%2e", "a%2f..%2fb", "a%2F%2e%2E",
            "%252e%252e/x", "a%252f..%252fb", "a\\..\\b", "a%5c..%5cb", "..;/x", "..%3bx=1/y", "%25252525252e/x",
        ],
    )  # fmt: skip
    def test_a_path_that_could_leave_the_upstreams_is_refused(self, proxy: ProxyDaemon, prefix: str, path: str) -> None:
        assert error_of(proxy.request("GET", prefix + path)) == (400, "bad_request")
        assert proxy.upstream.requests.empty()

    @pytest.mark.parametrize("path", ["/proxy%2fanthropic/x", "/proxy/anthropi%63/x", "/pro%78y/openai/v1/x"])
    def test_an_escaped_path_prefix_is_refused(self, proxy: ProxyDaemon, path: str) -> None:
        assert error_of(proxy.request("GET", path)) == (400, "bad_request")
        assert proxy.upstream.requests.empty()

    @pytest.mark.parametrize("path", ["/proxy/", "/proxy/x/y", "/proxy/openai/models", "/proxy"])
    def test_an_unknown_upstream_is_not_found(self, proxy: ProxyDaemon, path: str) -> None:
        assert error_of(proxy.request("GET", path)) == (404, "not_found")
        assert proxy.upstream.requests.empty()

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
    def test_every_method_is_forwarded(self, proxy: ProxyDaemon, method: str) -> None:
        reply = proxy.request(method, "/proxy/anthropic/v1/files/1")
        assert (reply.status, "x-context-fold" in reply.headers) == (200, False)
        assert proxy.upstream.next().line == f"{method} /v1/files/1 HTTP/1.1"

    def test_connect_is_refused(self, proxy: ProxyDaemon) -> None:
        with proxy.connect() as client:
            client.sendall(b"CONNECT /proxy/anthropic/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_response(client).status == 405
        assert proxy.upstream.requests.empty()

    def test_a_websocket_is_refused_so_that_the_client_falls_back_to_http(self, proxy: ProxyDaemon) -> None:
        head = (
            "GET /proxy/openai/v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with proxy.connect() as client:
            client.sendall(head.encode())
            assert read_response(client).status == 426
        assert proxy.upstream.requests.empty()

    def test_only_the_documented_paths_are_folded(self, proxy: ProxyDaemon) -> None:
        for path in (
            MESSAGES,
            f"{MESSAGES}?beta=true",
            "/proxy/openai/v1/chat/completions",
            "/proxy/openai/v1/responses",
            "/proxy/openai/v1/responses/compact",
            "/proxy/openai/v1/responses/input_tokens",
            f"{MESSAGES}/count_tokens",
        ):
            assert json.loads(proxy.post(path=path).headers["x-context-fold"]).keys() == {
                "tokens_before",
                "tokens_after",
                "turns_dropped",
                "results_left_out",
                "first_changed",
                "reason",
            }
        for path in (
            f"{MESSAGES}/",
            f"{MESSAGES}/count_tokens/x",
            "/proxy/anthropic/v1/mess%61ges",
            "/proxy/openai/v1/x",
        ):
            assert "x-context-fold" not in proxy.post(path=path).headers
        assert "x-context-fold" not in proxy.request("GET", MESSAGES).headers

    def test_a_request_whose_history_the_provider_stores_passes_with_a_reason(self, proxy: ProxyDaemon) -> None:
        body = {"model": "gemini-3-pro", "previous_interaction_id": "i_1", "input": "go on"}
        answer = proxy.post(body, path="/proxy/gemini/v1beta/interactions")
        assert json.loads(answer.headers["x-context-fold"])["reason"] == "kept_elsewhere"
        assert json.loads(proxy.upstream.next().body) == body


class TestHeaders:
    def test_a_request_loses_only_the_connections_headers_and_ours(self, proxy: ProxyDaemon) -> None:
        sent = {
            "Authorization": "Bearer provider",
            "x-api-key": KEY,
            "anthropic-beta": "a,b",
            "User-Agent": "agent/1",
            "Cookie": "a=1",
            "Accept-Encoding": "br, gzip;q=0.8, zstd",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "Keep-Alive": "1",
            "TE": "trailers",
            "Proxy-Authorization": "Basic eDp5",
            "X-Context-Project": "/p",
            "X-Context-Session": "s",
            "X-Context-Token": "t",
            "x-context-anything": "u",
        }
        with Http(proxy.port) as client:
            assert client.ask("PUT", "/proxy/openai/v1/x", b"body", sent).status == 200
        assert sorted(proxy.upstream.next().headers) == [
            ("accept-encoding", "br, gzip;q=0.8, zstd"),
            ("anthropic-beta", "a,b"),
            ("authorization", "Bearer provider"),
            ("content-length", "4"),
            ("cookie", "a=1"),
            ("host", f"127.0.0.1:{proxy.upstream.port}"),
            ("user-agent", "agent/1"),
            ("x-api-key", KEY),
        ]

    @pytest.mark.parametrize(
        ("accepted", "sent"),
        [
            ("gzip, deflate, br, zstd", "gzip, deflate"),
            ("br", "identity"),
            ("*", "identity"),
            ("gzip;q=0.5", "gzip;q=0.5"),
        ],
    )
    def test_only_encodings_that_the_proxy_can_read_are_accepted_on_folded_paths(
        self, proxy: ProxyDaemon, accepted: str, sent: str
    ) -> None:
        proxy.post(accept_encoding=accepted)
        assert proxy.upstream.next().header("accept-encoding") == [sent]

    def test_a_response_loses_only_the_connections_headers(self, proxy: ProxyDaemon) -> None:
        passed_headers = (
            "Date: Thu, 01 Jan 1970 00:00:00 GMT",
            "Server: theirs",
            "Cache-Control: public",
            "Set-Cookie: a=1",
            "Set-Cookie: b=2",
            "request-id: req_1",
            "x-ratelimit-left: 7",
        )
        connection_headers = (
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "Proxy-Authenticate: Basic",
        )
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", *passed_headers, *connection_headers)
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=WAIT_S)
        with closing(connection):
            connection.request("GET", "/proxy/anthropic/x")
            answer = connection.getresponse()
            names = [f"{name}: {value}" for name, value in answer.getheaders()]
        assert sorted(name.lower() for name in names) == sorted(
            name.lower() for name in (*passed_headers, "Content-Length: 2")
        )

    def test_cookies_are_not_stored(self, proxy: ProxyDaemon) -> None:
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", "Set-Cookie: a=1; Path=/")
        for _ in range(2):
            proxy.request("GET", "/proxy/anthropic/x")
            assert proxy.upstream.next().header("cookie") == []

    def test_an_upstreams_fold_receipt_is_replaced_on_folded_paths_only(self, proxy: ProxyDaemon) -> None:
        proxy.upstream.script = lambda _, wire: wire.answer(b"{}", "X-Context-Fold: theirs")
        assert json.loads(proxy.post().headers["x-context-fold"])["reason"] is None
        assert proxy.request("GET", "/proxy/anthropic/x").headers["x-context-fold"] == "theirs"


class TestResponses:
    @pytest.mark.parametrize(
        ("status", "content_type", "body"),
        [
            ("529 Overloaded", "application/json", b'{"type":"error","error":{"type":"overloaded_error"}}'),
            ("500 Internal Server Error", "text/plain; charset=utf-8", b"Internal Server Error"),
            ("400 Bad Request", "text/html", b"<html>\xff\xfe"),
            ("429 Too Many Requests", "application/json", b"{}"),
            ("201 Created", "application/octet-stream", bytes(range(256))),
        ],
    )
    def test_a_response_passes_unchanged(self, proxy: ProxyDaemon, status: str, content_type: str, body: bytes) -> None:
        headers = (f"Content-Type: {content_type}", "Retry-After: 7")
        proxy.upstream.script = lambda _, wire: wire.answer(body, *headers, status=status)
        for reply in (proxy.post(), proxy.post(path="/proxy/openai/v1/x")):
            assert (reply.status, reply.body) == (int(status[:3]), body)
            assert (reply.headers["content-type"], reply.headers["retry-after"]) == (content_type, "7")
            assert "x-content-type-options" not in reply.headers

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("length", [3, 30])
    def test_a_content_length_beside_chunked_encoding_is_dropped(
        self, proxy: ProxyDaemon, path: str, length: int
    ) -> None:
        def script(_: RawRequest, wire: Wire) -> None:
            wire.begin(f"Content-Length: {length}")
            wire.chunk(b"hello")
            wire.chunk(b"")

        proxy.upstream.script = script
        reply = proxy.post(path=path)
        assert (reply.status, reply.body, "content-length" in reply.headers) == (200, b"hello", False)

    def test_a_redirect_is_passed_on_and_not_followed(self, proxy: ProxyDaemon) -> None:
        proxy.upstream.script = lambda _, wire: wire.answer(
            b"", "Location: /elsewhere", status="307 Temporary Redirect"
        )
        reply = proxy.post()
        assert (reply.status, reply.headers["location"]) == (307, "/elsewhere")
        proxy.upstream.next()
        assert proxy.upstream.requests.empty()

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
    def test_each_part_of_a_response_arrives_before_the_next_is_sent(
        self, proxy: ProxyDaemon, path: str, content_type: str
    ) -> None:
        arrived = queue.Queue[bytes]()

        def script(_: RawRequest, wire: Wire) -> None:
            wire.begin(f"Content-Type: {content_type}")
            for number in range(3):
                wire.chunk(b"part %d\n" % number)
                assert arrived.get(timeout=WAIT_S) == b"part %d\n" % number
            wire.chunk(b"")

        proxy.upstream.script = script
        with proxy.connect() as client:
            begin(client, path)
            answer = read_response(client)
            for _ in range(3):
                arrived.put(answer.readline())
            assert answer.read() == b""

    def test_each_part_of_a_request_arrives_before_the_next_is_sent(self, proxy: ProxyDaemon) -> None:
        arrived = queue.Queue[bytes]()

        def script(_request: RawRequest, wire: Wire) -> None:
            for _ in range(3):
                arrived.put(wire.part())
            assert wire.part() == b""
            wire.answer()

        proxy.upstream.script_of_head = script
        with proxy.connect() as client:
            head = "POST /proxy/anthropic/v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.sendall(head.encode())
            for number in range(3):
                client.sendall(b"6\r\npart %d\r\n" % number)
                assert arrived.get(timeout=WAIT_S) == b"part %d" % number
            client.sendall(b"0\r\n\r\n")
            assert read_response(client).status == 200

    def test_requests_in_turn_use_one_connection_to_the_upstream(self, proxy: ProxyDaemon) -> None:
        assert proxy.post().status == 200
        before = proxy.upstream.connections
        for path in (MESSAGES, "/proxy/anthropic/x", MESSAGES):
            assert proxy.post(path=path).status == 200
        assert proxy.upstream.connections == before
