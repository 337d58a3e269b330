"""The proxy of the daemon, between real sockets: which paths, headers and answers pass, and how."""

from __future__ import annotations

import gzip
import http.client
import json
import queue
from contextlib import closing

import pytest

from tests.serve.proxy.proxying import KEY, MESSAGES, Place, answer_on, begin, error_of, place, running
from tests.serve.proxy.raw_upstream import WAIT_S, Asked, Wire
from tests.support.clauses import covers
from tests.support.daemon import Http

__all__ = ["place", "running"]


class TestPaths:
    @covers("proxy.md#routes", "proxy.md#upstreams")
    @pytest.mark.parametrize(
        ("asked", "target"),
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
    def test_a_path_goes_below_the_upstreams_as_it_was_written(self, place: Place, asked: str, target: str) -> None:
        assert place.ask("GET", asked).status == 200
        assert place.upstream.next().line == f"GET {target} HTTP/1.1"

    @covers("proxy.md#upstreams")
    @pytest.mark.parametrize("prefix", ["/proxy/anthropic/", "/proxy/openai/v1/"])
    @pytest.mark.parametrize(
        "path",
        [
            "..", "../x", "a/../b", "a/./b", ".", "a/..", "%2e%2e/x", "a/%2E./x", ".%2e", "a%2f..%2fb", "a%2F%2e%2E",
            "%252e%252e/x", "a%252f..%252fb", "a\\..\\b", "a%5c..%5cb", "..;/x", "..%3bx=1/y", "%25252525252e/x",
        ],
    )  # fmt: skip
    def test_a_path_that_could_lead_out_is_refused_and_not_sent(self, place: Place, prefix: str, path: str) -> None:
        assert error_of(place.ask("GET", prefix + path)) == (400, "bad_request")
        assert place.upstream.asked.empty()

    @pytest.mark.parametrize("path", ["/proxy%2fanthropic/x", "/proxy/anthropi%63/x", "/pro%78y/openai/v1/x"])
    def test_the_beginning_must_be_spelled_plainly(self, place: Place, path: str) -> None:
        assert error_of(place.ask("GET", path)) == (400, "bad_request")
        assert place.upstream.asked.empty()

    @covers("proxy.md#upstreams")
    @pytest.mark.parametrize("path", ["/proxy/", "/proxy/x/y", "/proxy/openai/models", "/proxy"])
    def test_there_is_no_other_upstream(self, place: Place, path: str) -> None:
        assert error_of(place.ask("GET", path)) == (404, "not_found")
        assert place.upstream.asked.empty()

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
    def test_every_method_passes(self, place: Place, method: str) -> None:
        reply = place.ask(method, "/proxy/anthropic/v1/files/1")
        assert (reply.status, "x-context-fold" in reply.headers) == (200, False)
        assert place.upstream.next().line == f"{method} /v1/files/1 HTTP/1.1"

    def test_no_tunnel_is_made(self, place: Place) -> None:
        with place.connect() as client:
            client.sendall(b"CONNECT /proxy/anthropic/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_on(client).status == 405
        assert place.upstream.asked.empty()

    @covers("proxy.md#routes")
    def test_what_is_folded_is_what_the_page_says(self, place: Place) -> None:
        for path in (
            MESSAGES,
            f"{MESSAGES}?beta=true",
            "/proxy/openai/v1/chat/completions",
            "/proxy/openai/v1/responses",
            f"{MESSAGES}/count_tokens",
        ):
            assert json.loads(place.post(path=path).headers["x-context-fold"]).keys() == {
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
            assert "x-context-fold" not in place.post(path=path).headers
        assert "x-context-fold" not in place.ask("GET", MESSAGES).headers


class TestHeaders:
    @covers("proxy.md#credentials")
    def test_a_request_keeps_its_headers_but_those_of_the_connection_and_ours(self, place: Place) -> None:
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
        with closing(Http(place.port)) as client:
            assert client.ask("PUT", "/proxy/openai/v1/x", b"body", sent).status == 200
        assert sorted(place.upstream.next().headers) == [
            ("accept-encoding", "br, gzip;q=0.8, zstd"),
            ("anthropic-beta", "a,b"),
            ("authorization", "Bearer provider"),
            ("content-length", "4"),
            ("cookie", "a=1"),
            ("host", f"127.0.0.1:{place.upstream.port}"),
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
    def test_where_we_read_along_only_what_we_can_read_is_accepted(
        self, place: Place, accepted: str, sent: str
    ) -> None:
        place.post(accept_encoding=accepted)
        assert place.upstream.next().header("accept-encoding") == [sent]

    @covers("proxy.md#streams")
    def test_an_answer_keeps_all_but_those_of_the_connection(self, place: Place) -> None:
        given = (
            "Date: Thu, 01 Jan 1970 00:00:00 GMT",
            "Server: theirs",
            "Cache-Control: public",
            "Set-Cookie: a=1",
            "Set-Cookie: b=2",
            "request-id: req_1",
            "x-ratelimit-left: 7",
        )
        of_connection = (
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "Proxy-Authenticate: Basic",
        )
        place.upstream.script = lambda _, wire: wire.answer(b"{}", *given, *of_connection)
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=WAIT_S)
        with closing(connection):
            connection.request("GET", "/proxy/anthropic/x")
            answer = connection.getresponse()
            names = [f"{name}: {value}" for name, value in answer.getheaders()]
        assert sorted(name.lower() for name in names) == sorted(name.lower() for name in (*given, "Content-Length: 2"))

    def test_cookies_are_not_kept(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.answer(b"{}", "Set-Cookie: a=1; Path=/")
        for _ in range(2):
            place.ask("GET", "/proxy/anthropic/x")
            assert place.upstream.next().header("cookie") == []

    def test_a_receipt_of_somebody_else_is_not_taken_for_ours(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.answer(b"{}", "X-Context-Fold: theirs")
        assert json.loads(place.post().headers["x-context-fold"])["reason"] is None
        assert place.ask("GET", "/proxy/anthropic/x").headers["x-context-fold"] == "theirs"


class TestAnswers:
    @covers("proxy.md#streams")
    @pytest.mark.parametrize(
        ("status", "kind", "body"),
        [
            ("529 Overloaded", "application/json", b'{"type":"error","error":{"type":"overloaded_error"}}'),
            ("500 Internal Server Error", "text/plain; charset=utf-8", b"Internal Server Error"),
            ("400 Bad Request", "text/html", b"<html>\xff\xfe"),
            ("429 Too Many Requests", "application/json", b"{}"),
            ("201 Created", "application/octet-stream", bytes(range(256))),
        ],
    )
    def test_an_answer_is_the_upstreams_to_the_byte(self, place: Place, status: str, kind: str, body: bytes) -> None:
        headers = (f"Content-Type: {kind}", "Retry-After: 7")
        place.upstream.script = lambda _, wire: wire.answer(body, *headers, status=status)
        for reply in (place.post(), place.post(path="/proxy/openai/v1/x")):
            assert (reply.status, reply.body) == (int(status[:3]), body)
            assert (reply.headers["content-type"], reply.headers["retry-after"]) == (kind, "7")
            assert "x-content-type-options" not in reply.headers

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("length", [3, 30])
    def test_of_two_lengths_that_an_answer_has_the_one_that_counts_is_told(
        self, place: Place, path: str, length: int
    ) -> None:
        def script(_: Asked, wire: Wire) -> None:
            wire.begin(f"Content-Length: {length}")
            wire.chunk(b"hello")
            wire.chunk(b"")

        place.upstream.script = script
        reply = place.post(path=path)
        assert (reply.status, reply.body, "content-length" in reply.headers) == (200, b"hello", False)

    @covers("proxy.md#upstreams")
    def test_a_redirect_is_told_and_not_followed(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.answer(
            b"", "Location: /elsewhere", status="307 Temporary Redirect"
        )
        reply = place.post()
        assert (reply.status, reply.headers["location"]) == (307, "/elsewhere")
        place.upstream.next()
        assert place.upstream.asked.empty()

    def test_an_encoded_answer_stays_encoded(self, place: Place) -> None:
        body = gzip.compress(b"{}")
        place.upstream.script = lambda _, wire: wire.answer(body, "Content-Encoding: gzip")
        assert place.post(accept_encoding="gzip").body == body

    @covers("proxy.md#streams")
    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
    def test_each_part_of_an_answer_arrives_before_the_next_is_sent(self, place: Place, path: str, kind: str) -> None:
        arrived = queue.Queue[bytes]()

        def script(_: Asked, wire: Wire) -> None:
            wire.begin(f"Content-Type: {kind}")
            for number in range(3):
                wire.chunk(b"part %d\n" % number)
                assert arrived.get(timeout=WAIT_S) == b"part %d\n" % number
            wire.chunk(b"")

        place.upstream.script = script
        with place.connect() as client:
            begin(client, path)
            answer = answer_on(client)
            for _ in range(3):
                arrived.put(answer.readline())
            assert answer.read() == b""

    def test_each_part_of_a_request_arrives_before_the_next_is_sent(self, place: Place) -> None:
        arrived = queue.Queue[bytes]()

        def script(_asked: Asked, wire: Wire) -> None:
            for _ in range(3):
                arrived.put(wire.part())
            assert wire.part() == b""
            wire.answer()

        place.upstream.script_of_head = script
        with place.connect() as client:
            head = "POST /proxy/anthropic/v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.sendall(head.encode())
            for number in range(3):
                client.sendall(b"6\r\npart %d\r\n" % number)
                assert arrived.get(timeout=WAIT_S) == b"part %d" % number
            client.sendall(b"0\r\n\r\n")
            assert answer_on(client).status == 200

    def test_connections_to_the_upstream_are_used_again(self, place: Place) -> None:
        place.post()
        before = place.upstream.connections
        for path in (MESSAGES, "/proxy/anthropic/x", MESSAGES):
            assert place.post(path=path).status == 200
        assert place.upstream.connections == before
