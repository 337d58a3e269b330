"""The daemon's proxy when a request does not succeed: clients and upstreams that disconnect, and what is refused."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.serve.proxy.proxying import MESSAGES, Place, answer_on, begin, error_of, place, running
from tests.serve.proxy.raw_upstream import WAIT_S, Asked, Wire
from tests.support.clauses import covers
from tests.support.daemon import kept_port

__all__ = ["place", "running"]


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

    @covers("proxy.md#bounds")
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
        # The failure is logged once, with our own message.
        assert '"event":"library"' not in place.daemon.log.read_text()

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
    @covers("proxy.md#bounds")
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

    @covers("proxy.md#upstreams")
    @pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
    def test_whoever_may_not_come_in_elsewhere_may_not_here(self, place: Place, headers: dict[str, str]) -> None:
        assert place.post(None, MESSAGES, **headers).status in (403, 421)
        assert place.upstream.asked.empty()

    def test_a_browser_shows_no_answer_as_a_page_of_ours(self, place: Place) -> None:
        """Scripts in such a page would have all rights of the dashboard."""
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
