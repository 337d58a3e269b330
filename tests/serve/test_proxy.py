"""The proxy of the daemon, between real sockets: what passes, what does not, and what becomes of what is cut."""

from __future__ import annotations

import gzip
import http.client
import json
import queue
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from contextfold.serve.passing import FOLDED_MAX_BYTES
from contextfold.serve.tokens import add
from daemon import Daemon, Http, HttpAgent, Reply, kept_port
from serve.raw_upstream import WAIT_S, Asked, RawUpstream, Wire, fine
from waiting import until

MESSAGES = "/proxy/anthropic/v1/messages"
JSON = {"content-type": "application/json"}
HELLO = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-ant-api03-THE-PROVIDERS-KEY-0123456789"


class Place:
    """A daemon, and the provider that both of its upstreams are."""

    def __init__(
        self, folder: Path, *argv: str, env: dict[str, str] | None = None, port: int = 0, anthropic: str = ""
    ) -> None:
        self.upstream = RawUpstream()
        url = self.upstream.url
        urls = ("--anthropic-upstream", anthropic or url, "--openai-upstream", f"{url}/v1")
        self.daemon = Daemon(folder, *urls, *argv, env=env, port=port)
        self.port = self.daemon.port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        with closing(Http(self.port)) as client:
            return client.ask(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, body: Any = None, path: str = MESSAGES, **headers: str) -> Reply:
        return self.ask("POST", path, json.dumps(HELLO if body is None else body).encode(), **{**JSON, **headers})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def figures(self, name: str) -> dict[str, float]:
        """A figure's series, by their labels."""
        page = self.ask("GET", "/metrics").body.decode()
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return {line.removeprefix(name).rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.daemon.log.read_text(encoding="utf-8").splitlines()]

    def close(self) -> None:
        self.daemon.stop()
        self.upstream.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with closing(Place(tmp_path_factory.mktemp("daemon"))) as made:
        yield made


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    """The daemon that most tests share, its provider well and without anything waiting."""
    yield running
    running.upstream.script, running.upstream.script_of_head = fine, None
    while not running.upstream.asked.empty():
        running.upstream.next()
    assert not running.upstream.failures


def error_of(reply: Reply) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    error = reply.json["error"]
    assert error["message"].endswith(".")
    return reply.status, error["data"]["kind"]


def begin(client: socket.socket, path: str = MESSAGES, body: bytes = b"{}", *headers: str) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    client.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)


def answer_on(client: socket.socket) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response


class TestPaths:
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

    def test_what_is_folded_is_exactly_three_posts(self, place: Place) -> None:
        for path in (
            MESSAGES,
            f"{MESSAGES}?beta=true",
            "/proxy/openai/v1/chat/completions",
            "/proxy/openai/v1/responses",
        ):
            assert json.loads(place.post(path=path).headers["x-context-fold"]).keys() == {
                "tokens_before",
                "tokens_after",
                "turns_dropped",
                "first_changed",
                "reason",
            }
        for path in (
            f"{MESSAGES}/",
            f"{MESSAGES}/count_tokens",
            "/proxy/anthropic/v1/mess%61ges",
            "/proxy/openai/v1/x",
        ):
            assert "x-context-fold" not in place.post(path=path).headers
        assert "x-context-fold" not in place.ask("GET", MESSAGES).headers


class TestHeaders:
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


class TestFolding:
    def test_a_body_without_anything_to_fold_is_the_very_same(self, place: Place) -> None:
        body = b' {"model" : "m", "messages":[ {"role":"user","content":"\\u00e4 \xc3\xa4"} ] , "x":1.50e3 }\n'
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert place.upstream.next().body == body
        assert json.loads(reply.headers["x-context-fold"])["reason"] is None

    def test_a_returned_branch_is_left_out_and_the_receipt_says_what_that_was(self, place: Place) -> None:
        before = place.figures("contextfold_proxy_requests_total")
        body = history("br_1", "sess_unknown")
        reply = place.post(body)
        sent = place.upstream.next().json
        assert sent["messages"] == body["messages"][:3] + body["messages"][5:]
        told = json.loads(reply.headers["x-context-fold"])
        assert (told["turns_dropped"], told["first_changed"], told["reason"]) == (1, 3, None)
        assert told["tokens_after"] < told["tokens_before"]
        folded = '{api="anthropic",outcome="folded"}'
        assert place.figures("contextfold_proxy_requests_total")[folded] == before[folded] + 1

    def test_what_arrives_in_chunks_is_folded_too(self, place: Place) -> None:
        body = json.dumps(history("br_1", "sess_unknown")).encode()
        with place.connect() as client:
            head = f"POST {MESSAGES} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            client.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            assert answer_on(client).status == 200
        asked = place.upstream.next()
        assert len(asked.json["messages"]) == 5
        assert asked.header("content-length") == [str(len(asked.body))]
        assert asked.header("transfer-encoding") == []

    def test_what_is_too_large_passes_as_it_came(self, place: Place) -> None:
        body = json.dumps({**history("br_1", "s"), "filling": "x" * FOLDED_MAX_BYTES}).encode()
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"] == "too_large"
        assert place.upstream.next().body == body

    def test_what_is_too_large_and_does_not_say_so_passes_as_it_came(self, place: Place) -> None:
        body = json.dumps({**history("br_1", "s"), "filling": "x" * FOLDED_MAX_BYTES}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=WAIT_S)
        with closing(connection):
            parts = (body[start : start + (1 << 20)] for start in range(0, len(body), 1 << 20))
            connection.request("POST", MESSAGES, parts, JSON, encode_chunked=True)
            answer = connection.getresponse()
        assert json.loads(str(answer.getheader("x-context-fold")))["reason"] == "too_large"
        asked = place.upstream.next()
        assert (asked.body, asked.header("transfer-encoding")) == (body, ["chunked"])

    def test_what_is_encoded_passes_as_it_came(self, place: Place) -> None:
        body = gzip.compress(json.dumps(history("br_1", "s")).encode())
        reply = place.ask("POST", MESSAGES, body, content_encoding="gzip", **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"] == "encoded"
        asked = place.upstream.next()
        assert (asked.body, asked.header("content-encoding")) == (body, ["gzip"])

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"messages":1}', b'{"messages":[],"messages":[]}'])
    def test_what_cannot_be_read_passes_as_it_came(self, place: Place, body: bytes) -> None:
        reply = place.ask("POST", MESSAGES, body, **JSON)
        assert json.loads(reply.headers["x-context-fold"])["reason"]
        assert place.upstream.next().body == body


class TestSessions:
    def test_the_session_that_the_history_names_is_told_what_the_provider_counted(self, place: Place) -> None:
        session_id, branch_id = branched(place, "/told")
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        assert place.post(history(branch_id, session_id)).status == 200
        assert requests(place, session_id) == 1
        assert total_tokens(place, "/told") > 60_000

    def test_headers_name_a_session_that_begins_with_the_request(self, place: Place) -> None:
        assert place.post(x_context_project="/by-header").status == 200
        with closing(HttpAgent(place.port)) as agent:
            # It is looked for while the answer is read.
            until(lambda: agent.call("context_branch_status", project_path="/by-header")["session_id"] is not None)

    def test_an_answer_that_is_an_error_is_told_to_nobody(self, place: Place) -> None:
        session_id, branch_id = branched(place, "/error")
        before = total_tokens(place, "/error")
        place.upstream.script = lambda _, wire: wire.answer(b"{}", status="400 Bad Request")
        assert place.post(history(branch_id, session_id)).status == 400
        assert (requests(place, session_id), total_tokens(place, "/error")) == (0, before)

    @pytest.mark.parametrize(
        "headers",
        [
            {"x_context_project": "relative"},
            {"x_context_project": "/\xff"},
            {"x_context_project": "/p", "x_context_session": ""},
        ],
    )
    def test_a_session_that_cannot_be_meant_breaks_no_answer(self, place: Place, headers: dict[str, str]) -> None:
        assert place.post(None, MESSAGES, **headers).status == 200
        told = [line for line in place.log() if line["event"] == "proxy.receipt_lost"]
        assert {(line["level"], line["code"]) for line in told} == {("warning", "invalid_argument")}


class TestEnds:
    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    def test_a_client_that_goes_before_the_answer_takes_the_request_with_it(self, place: Place, path: str) -> None:
        asked, closed = threading.Event(), threading.Event()

        def script(_: Asked, wire: Wire) -> None:
            asked.set()
            assert wire.is_closed()
            closed.set()

        place.upstream.script = script
        with place.connect() as client:
            begin(client, path)
            assert asked.wait(WAIT_S)
        assert closed.wait(WAIT_S)

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    def test_a_client_that_goes_within_the_answer_takes_the_rest_with_it(self, place: Place, path: str) -> None:
        closed = threading.Event()

        def script(_: Asked, wire: Wire) -> None:
            wire.begin("Content-Type: text/event-stream")
            wire.chunk(b"data: 1\n\n")
            assert wire.is_closed()
            closed.set()

        place.upstream.script = script
        with place.connect() as client:
            begin(client, path)
            answer = answer_on(client)
            assert answer.readline() == b"data: 1\n"
            answer.close()
        assert closed.wait(WAIT_S)

    def test_a_client_that_goes_within_its_body_takes_the_request_with_it(self, place: Place) -> None:
        begun, closed = threading.Event(), threading.Event()

        def script(_: Asked, wire: Wire) -> None:
            wire.part()
            begun.set()
            try:
                wire.part()
            except ValueError:
                closed.set()

        place.upstream.script_of_head = script
        with place.connect() as client:
            head = (
                "POST /proxy/anthropic/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"
            )
            client.sendall(head.encode())
            assert begun.wait(WAIT_S)
        assert closed.wait(WAIT_S)

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
    def test_an_answer_that_the_upstream_cuts_is_cut(self, place: Place, path: str, framing: str) -> None:
        before = place.figures("contextfold_proxy_upstream_errors_total")

        def script(_: Asked, wire: Wire) -> None:
            wire.send(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\npart\n\r\n".encode())
            wire.socket.shutdown(socket.SHUT_RDWR)
            wire.socket.close()

        place.upstream.script = script
        with place.connect() as client:
            begin(client, path)
            answer = answer_on(client)
            with pytest.raises(http.client.IncompleteRead):
                answer.read()
            assert client.recv(1) == b""
        name = "anthropic" if path == MESSAGES else "openai"
        cut = f'{{kind="cut",upstream="{name}"}}'
        after = place.figures("contextfold_proxy_upstream_errors_total")
        assert {series: count - before[series] for series, count in after.items() if count != before[series]} == {
            cut: 1
        }
        assert '"event":"library"' not in place.daemon.log.read_text()  # told once, in words of our own

    def test_an_upstream_that_says_nothing_and_goes_is_a_bad_gateway(self, place: Place) -> None:
        place.upstream.script = lambda _, wire: wire.socket.shutdown(socket.SHUT_RDWR)
        assert error_of(place.post()) == (502, "upstream_broken")
        failed = [line for line in place.log() if line["event"] == "proxy.upstream_failed"][-1]
        assert failed.keys() == {"at", "level", "event", "upstream", "kind", "exception"}
        assert (failed["upstream"], failed["kind"]) == ("anthropic", "broken")

    @pytest.mark.parametrize(
        "head", [b"HTTP/1.1 700 Odd\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n"]
    )
    def test_an_upstream_that_does_not_speak_http_is_a_bad_gateway(self, place: Place, head: bytes) -> None:
        def script(_: Asked, wire: Wire) -> None:
            wire.send(head)
            wire.is_closed()

        place.upstream.script = script
        assert error_of(place.post()) == (502, "upstream_broken")

    def test_an_upstream_that_is_not_there_is_a_bad_gateway_that_names_the_setting(self, tmp_path: Path) -> None:
        with closing(Place(tmp_path)) as place:
            place.upstream.close()
            reply = place.post()
            assert error_of(reply) == (502, "upstream_unreachable")
            assert "anthropic_upstream" in reply.json["error"]["message"]
            assert error_of(place.ask("GET", "/proxy/openai/v1/x")) == (502, "upstream_unreachable")

    def test_a_daemon_that_stops_cuts_what_is_streamed_and_answers_the_rest(self, tmp_path: Path) -> None:
        with closing(Place(tmp_path)) as place, ExitStack() as stack:
            stopping = threading.Event()

            def script(asked: Asked, wire: Wire) -> None:
                if "stream" in asked.line:
                    wire.begin("Content-Type: text/event-stream")
                    wire.chunk(b"data: 1\n\n")
                    assert wire.is_closed()
                else:
                    assert stopping.wait(WAIT_S)
                    wire.answer(b"whole")

            place.upstream.script = script
            streamed, waiting = (stack.enter_context(place.connect()) for _ in range(2))
            begin(streamed, "/proxy/anthropic/stream")
            stream = answer_on(streamed)
            assert stream.readline() == b"data: 1\n"
            begin(waiting, "/proxy/anthropic/other")
            place.upstream.next(), place.upstream.next()
            place.daemon.process.terminate()
            with pytest.raises(http.client.IncompleteRead):
                stream.read()
            stopping.set()
            assert answer_on(waiting).read() == b"whole"
            assert place.daemon.process.wait(WAIT_S) == 0


class TestLimits:
    def test_a_body_beyond_the_setting_is_refused_whether_it_says_so_or_not(self, tmp_path: Path) -> None:
        with closing(Place(tmp_path, env={"CONTEXT_PROXY_BODY_MAX_BYTES": "2000"})) as place:
            assert place.ask("POST", "/proxy/openai/v1/x", b"x" * 2000).status == 200
            for path in (MESSAGES, "/proxy/openai/v1/x"):
                assert error_of(place.ask("POST", path, b"x" * 2001)) == (413, "body_too_large")
                connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=WAIT_S)
                with closing(connection):
                    connection.request("POST", path, iter([b"x" * 1000, b"x" * 1001]), encode_chunked=True)
                    assert connection.getresponse().status == 413
            place.upstream.next()
            assert place.upstream.asked.empty()

    def test_a_body_that_own_paths_would_refuse_passes(self, place: Place) -> None:
        body = b"x" * (5 << 20)
        assert place.ask("PUT", "/proxy/openai/v1/files", body).status == 200
        assert place.upstream.next().body == body

    @pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
    def test_whoever_may_not_come_in_elsewhere_may_not_here(self, place: Place, headers: dict[str, str]) -> None:
        assert place.post(None, MESSAGES, **headers).status in (403, 421)
        assert place.upstream.asked.empty()

    def test_a_browser_shows_no_answer_as_a_page_of_ours(self, place: Place) -> None:
        """Its scripts could do whatever the dashboard may."""
        for shown_as in ("document", "iframe", "script", "serviceworker"):
            reply = place.ask("GET", "/proxy/anthropic/x", sec_fetch_dest=shown_as)
            assert error_of(reply) == (403, "origin_not_allowed")
        assert place.upstream.asked.empty()
        assert place.post(sec_fetch_dest="empty", sec_fetch_mode="cors").status == 200

    def test_an_upstream_that_leads_back_is_found_out(self, tmp_path: Path) -> None:
        with kept_port() as kept:
            port = kept.getsockname()[1]
            own = f"http://127.0.0.1:{port}/proxy/anthropic"
            with closing(Place(tmp_path, port=port, anthropic=own)) as place:
                assert error_of(place.post()) == (508, "proxy_loop")
                assert place.ask("GET", "/proxy/openai/v1/x").status == 200
                assert place.upstream.next().header("via") == []


class TestTokens:
    @pytest.fixture
    def guarded(self, tmp_path: Path) -> Iterator[tuple[Place, str, str]]:
        alice, bob = (add(str(tmp_path / "tokens"), owner) for owner in ("alice", "bob"))
        with closing(Place(tmp_path / "daemon", "--token-file", str(tmp_path / "tokens"))) as place:
            yield place, alice, bob

    def test_the_token_comes_beside_the_providers_key_and_stays_here(self, guarded: tuple[Place, str, str]) -> None:
        place, alice, _ = guarded
        for headers in ({}, {"authorization": f"Bearer {alice}"}, {"x_context_token": "wrong"}):
            reply = place.post(None, MESSAGES, **headers)
            assert error_of(reply) == (401, "unauthorized")
            assert "X-Context-Token" in reply.json["error"]["message"]
            assert "www-authenticate" not in reply.headers
        assert place.upstream.asked.empty()
        assert place.post(x_context_token=alice, authorization="Bearer provider").status == 200
        asked = place.upstream.next()
        assert (asked.header("authorization"), asked.header("x-context-token")) == (["Bearer provider"], [])
        assert place.ask("GET", "/metrics", x_context_token=alice).status == 401

    def test_a_session_of_somebody_else_is_not_touched(self, guarded: tuple[Place, str, str]) -> None:
        place, alice, bob = guarded
        place.upstream.script = lambda _, wire: wire.answer(
            b'{"usage":{"input_tokens":70000,"output_tokens":11}}', "Content-Type: application/json"
        )
        session_id, branch_id = branched(place, "/p", authorization=f"Bearer {alice}")
        before = total_tokens(place, "/p", authorization=f"Bearer {alice}")
        assert place.post(history(branch_id, session_id), x_context_token=bob).status == 200
        assert requests(place, session_id, authorization=f"Bearer {alice}") == 0
        assert total_tokens(place, "/p", authorization=f"Bearer {alice}") == before
        assert place.post(history(branch_id, session_id), x_context_token=alice).status == 200
        assert requests(place, session_id, authorization=f"Bearer {alice}") > 0


def test_a_key_is_in_no_log_store_or_figure(tmp_path: Path) -> None:
    with closing(Place(tmp_path)) as place:
        session_id, branch_id = branched(place, "/p")
        for headers in ({"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert place.post(history(branch_id, session_id), MESSAGES, **headers).status == 200
            place.upstream.next()
            place.upstream.script = lambda _, wire: wire.socket.shutdown(socket.SHUT_RDWR)
            assert place.post(None, MESSAGES, **headers).status == 502
            assert KEY in str(place.upstream.next().headers)
            place.upstream.script = fine
            assert place.ask("GET", "/proxy/anthropic/../x", None, **headers).status == 400
        page = place.ask("GET", "/metrics").body.decode()
        place.daemon.stop()
        with closing(sqlite3.connect(place.daemon.store)) as store:
            stored = "\n".join(store.iterdump())
        for text in (page, stored, place.daemon.log.read_text()):
            assert len(text) > 100
            assert KEY not in text


# What agents send.


def history(branch_id: str, session_id: str) -> dict[str, Any]:
    """A conversation that went into a branch, did something there, and came back."""

    def used(number: int, tool: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": {}}
        return {"role": "assistant", "content": [call]}

    def result(number: int, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}]}

    named = json.dumps({"branch_id": branch_id, "session_id": session_id})
    return {
        "model": "m-1",
        "messages": [
            {"role": "user", "content": "do it"},
            used(1, "mcp__contextfold__context_branch"),
            result(1, named),
            used(2, "read_file"),
            result(2, "a long text " * 100),
            used(3, "mcp__contextfold__context_return"),
            result(3, named),
        ],
    }


def branched(place: Place, project: str, **headers: str) -> tuple[str, str]:
    """A session with a branch that was returned from: its id, and the branch's."""
    with closing(HttpAgent(place.port, **headers)) as agent:
        branch = agent.call("context_branch", description="d", prompt="p", project_path=project)
        agent.call("context_return", message="done", project_path=project)
    return branch["session_id"], branch["branch_id"]


def total_tokens(place: Place, project: str, **headers: str) -> int:
    with closing(HttpAgent(place.port, **headers)) as agent:
        agent.call("context_branch_status", project_path=project)
        return int(agent.state["total_tokens"])


def requests(place: Place, session_id: str, **headers: str) -> int:
    """How many requests the session was told of."""
    reply = place.ask("GET", f"/v1/sessions/{session_id}/savings", None, **headers)
    assert reply.status == 200, reply.body
    return int(reply.json["requests"])
