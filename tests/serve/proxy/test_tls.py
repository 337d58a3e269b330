"""Upstreams with TLS: which certificates are accepted, and connections through a network proxy."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.serve.proxy.raw_upstream import WAIT_S, RawUpstream
from tests.stores.nats.signing import Authority
from tests.support.daemon import Daemon, Http

PIECE = 65_536


class Tunnel:
    """A network proxy that serves CONNECT, and records the requests and all bytes."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.forwarded = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(PIECE)
        self.heads.append(head.decode("latin-1"))
        host, _, port = head.split()[1].decode().rpartition(":")
        with client, socket.create_connection((host, int(port)), WAIT_S) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            responses = threading.Thread(target=self._pipe, args=(server, client), daemon=True)
            responses.start()
            self._pipe(client, server)
            responses.join(WAIT_S)

    def _pipe(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(PIECE):
                self.forwarded += piece
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture
def upstream(authority: Authority) -> Iterator[RawUpstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("provider", "127.0.0.1"))
    with closing(RawUpstream(context)) as upstream:
        yield upstream


def request_status(folder: Path, upstream: RawUpstream, **env: str) -> int:
    """The status of a request to a daemon with this environment."""
    clean = {"NO_PROXY": "", "no_proxy": "", "HTTPS_PROXY": "", "https_proxy": "", **env}
    daemon = Daemon(folder, "--anthropic-upstream", upstream.url, env=clean)
    try:
        with Http(daemon.port) as client:
            return client.ask("GET", "/proxy/anthropic/v1/models", headers={"x-api-key": "the-key"}).status
    finally:
        daemon.stop()


def test_an_upstream_with_a_trusted_certificate_is_accepted(
    tmp_path: Path, upstream: RawUpstream, authority: Authority
) -> None:
    assert request_status(tmp_path, upstream, SSL_CERT_FILE=authority.path) == 200
    assert upstream.next().header("x-api-key") == ["the-key"]


def test_no_key_is_sent_to_an_upstream_with_an_untrusted_certificate(tmp_path: Path, upstream: RawUpstream) -> None:
    assert request_status(tmp_path, upstream) == 502
    assert upstream.requests.empty()


def test_a_network_proxy_sees_only_the_address_of_the_upstream(
    tmp_path: Path, upstream: RawUpstream, authority: Authority
) -> None:
    with closing(Tunnel()) as tunnel:
        assert request_status(tmp_path, upstream, SSL_CERT_FILE=authority.path, HTTPS_PROXY=tunnel.url) == 200
        (head,) = tunnel.heads
        assert head.startswith(f"CONNECT 127.0.0.1:{upstream.port} HTTP/1.1\r\n")
        assert "the-key" not in head
        assert len(tunnel.forwarded) > 500
        assert b"the-key" not in tunnel.forwarded


def test_an_address_in_no_proxy_is_connected_to_directly(
    tmp_path: Path, upstream: RawUpstream, authority: Authority
) -> None:
    with closing(Tunnel()) as tunnel:
        env = {"SSL_CERT_FILE": authority.path, "HTTPS_PROXY": tunnel.url, "NO_PROXY": "example.org, 127.0.0.1"}
        assert request_status(tmp_path, upstream, **env) == 200
        assert tunnel.heads == []
