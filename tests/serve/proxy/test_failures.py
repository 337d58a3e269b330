"""Proxied requests that fail: clients and upstreams that disconnect, and requests that are refused."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.serve.proxy.proxy_daemon import MESSAGES, ProxyDaemon, begin, error_of, proxy, read_response, shared_proxy
from tests.serve.proxy.raw_upstream import WAIT_S, RawRequest, Wire
from tests.support.daemon import reserve_port

__all__ = ["proxy", "shared_proxy"]


class TestDisconnects:
    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    def test_a_client_that_disconnects_before_the_response_ends_the_upstream_request(
        self, proxy: ProxyDaemon, path: str
    ) -> None:
        requested, closed = threading.Event(), threading.Event()

        def script(_: RawRequest, wire: Wire) -> None:
            requested.set()
            assert wire.is_closed()
            closed.set()

        proxy.upstream.script = script
        with proxy.connect() as client:
            begin(client, path)
            assert requested.wait(WAIT_S)
        assert closed.wait(WAIT_S)

    def test_a_client_that_disconnects_during_its_body_ends_the_upstream_request(self, proxy: ProxyDaemon) -> None:
        body_started, closed = threading.Event(), threading.Event()

        def script(_: RawRequest, wire: Wire) -> None:
            wire.part()
            body_started.set()
            try:
                wire.part()
            except ValueError:
                closed.set()

        proxy.upstream.script_of_head = script
        with proxy.connect() as client:
            head = (
                "POST /proxy/anthropic/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"
            )
            client.sendall(head.encode())
            assert body_started.wait(WAIT_S)
        assert closed.wait(WAIT_S)

    @pytest.mark.parametrize("path", [MESSAGES, "/proxy/openai/v1/x"])
    @pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
    def test_a_response_that_the_upstream_cuts_is_cut_for_the_client(
        self, proxy: ProxyDaemon, path: str, framing: str
    ) -> None:
        before = proxy.metric_series("contextfold_proxy_upstream_errors_total")

        def script(_: RawRequest, wire: Wire) -> None:
            wire.send(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\npart\n\r\n".encode())
            wire.socket.shutdown(socket.SHUT_RDWR)
            wire.socket.close()

        proxy.upstream.script = script
        with proxy.connect() as client:
            begin(client, path)
            answer = read_response(client)
            with pytest.raises(http.client.IncompleteRead):
                answer.read()
            assert client.recv(1) == b""
        name = "anthropic" if path == MESSAGES else "openai"
        cut = f'{{kind="cut",upstream="{name}"}}'
        after = proxy.metric_series("contextfold_proxy_upstream_errors_total")
        assert {series: count - before[series] for series, count in after.items() if count != before[series]} == {
            cut: 1
        }
        # The failure is logged once, with our own message.
        assert '"event":"library"' not in proxy.daemon.log.read_text()

    def test_an_unreachable_upstream_is_a_bad_gateway_and_the_error_names_the_setting(self, tmp_path: Path) -> None:
        with closing(ProxyDaemon(tmp_path)) as proxy:
            proxy.upstream.close()
            reply = proxy.post()
            assert error_of(reply) == (502, "upstream_unreachable")
            assert "anthropic_upstream" in reply.json["error"]["message"]
            assert error_of(proxy.request("GET", "/proxy/openai/v1/x")) == (502, "upstream_unreachable")

    def test_a_daemon_that_stops_cuts_streams_and_finishes_other_responses(self, tmp_path: Path) -> None:
        with closing(ProxyDaemon(tmp_path)) as proxy, ExitStack() as stack:
            stopping = threading.Event()

            def script(request: RawRequest, wire: Wire) -> None:
                if "stream" in request.line:
                    wire.begin("Content-Type: text/event-stream")
                    wire.chunk(b"data: 1\n\n")
                    assert wire.is_closed()
                else:
                    assert stopping.wait(WAIT_S)
                    wire.answer(b"whole")

            proxy.upstream.script = script
            streamed, waiting = (stack.enter_context(proxy.connect()) for _ in range(2))
            begin(streamed, "/proxy/anthropic/stream")
            stream = read_response(streamed)
            assert stream.readline() == b"data: 1\n"
            begin(waiting, "/proxy/anthropic/other")
            proxy.upstream.next(), proxy.upstream.next()
            proxy.daemon.process.terminate()
            with pytest.raises(http.client.IncompleteRead):
                stream.read()
            stopping.set()
            assert read_response(waiting).read() == b"whole"
            assert proxy.daemon.process.wait(WAIT_S) == 0


class TestLimits:
    def test_a_body_over_the_limit_is_refused_with_or_without_content_length(self, tmp_path: Path) -> None:
        with closing(ProxyDaemon(tmp_path, env={"CONTEXT_PROXY_BODY_MAX_BYTES": "2000"})) as proxy:
            assert proxy.request("POST", "/proxy/openai/v1/x", b"x" * 2000).status == 200
            for path in (MESSAGES, "/proxy/openai/v1/x"):
                assert error_of(proxy.request("POST", path, b"x" * 2001)) == (413, "body_too_large")
                connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=WAIT_S)
                with closing(connection):
                    connection.request("POST", path, iter([b"x" * 1000, b"x" * 1001]), encode_chunked=True)
                    assert connection.getresponse().status == 413
            proxy.upstream.next()
            assert proxy.upstream.requests.empty()

    def test_the_body_limit_of_our_own_paths_does_not_apply(self, proxy: ProxyDaemon) -> None:
        body = b"x" * (5 << 20)
        assert proxy.request("PUT", "/proxy/openai/v1/files", body).status == 200
        assert proxy.upstream.next().body == body

    def test_a_browser_cannot_load_a_response_as_a_page_or_script(self, proxy: ProxyDaemon) -> None:
        """A script from such a response would have all rights of the dashboard."""
        for destination in ("document", "iframe", "script", "serviceworker"):
            reply = proxy.request("GET", "/proxy/anthropic/x", sec_fetch_dest=destination)
            assert error_of(reply) == (403, "origin_not_allowed")
        assert proxy.upstream.requests.empty()
        assert proxy.post(sec_fetch_dest="empty", sec_fetch_mode="cors").status == 200

    def test_an_upstream_that_points_to_the_daemon_itself_is_a_loop_error(self, tmp_path: Path) -> None:
        with reserve_port() as reserved:
            port = reserved.getsockname()[1]
            own = f"http://127.0.0.1:{port}/proxy/anthropic"
            with closing(ProxyDaemon(tmp_path, port=port, anthropic=own)) as proxy:
                assert error_of(proxy.post()) == (508, "proxy_loop")
                assert proxy.request("GET", "/proxy/openai/v1/x").status == 200
                assert proxy.upstream.next().header("via") == []
