"""A daemon whose upstreams are a provider that the test controls, and requests to it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.serve.proxy.raw_upstream import WAIT_S, RawUpstream, answer_ok
from tests.support.daemon import Daemon, Http, Reply, read_log

MESSAGES = "/proxy/anthropic/v1/messages"
JSON = {"content-type": "application/json"}
HELLO = {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-ant-api03-THE-PROVIDERS-KEY-0123456789"


class ProxyDaemon:
    """A daemon, and the one provider that all of its upstreams point to."""

    def __init__(
        self,
        folder: Path,
        *argv: str,
        env: dict[str, str] | None = None,
        port: int = 0,
        anthropic: str = "",
        program: Sequence[str | Path] = (),
    ) -> None:
        self.upstream = RawUpstream()
        url = self.upstream.url
        urls = ("--anthropic-upstream", anthropic or url, "--openai-upstream", f"{url}/v1", "--gemini-upstream", url)
        self.daemon = Daemon(folder, *urls, *argv, env=env, port=port, program=program)
        self.port = self.daemon.port

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        with Http(self.port) as client:
            return client.ask(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, body: Any = None, path: str = MESSAGES, **headers: str) -> Reply:
        return self.request("POST", path, json.dumps(HELLO if body is None else body).encode(), **{**JSON, **headers})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def metric_series(self, name: str) -> dict[str, float]:
        """The values of a metric, by labels."""
        page = self.request("GET", "/metrics").body.decode()
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return {line.removeprefix(name).rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def log(self) -> list[dict[str, Any]]:
        return read_log(self.daemon.log)

    def close(self) -> None:
        self.daemon.stop()
        self.upstream.close()


@pytest.fixture(scope="module")
def shared_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyDaemon]:
    with closing(ProxyDaemon(tmp_path_factory.mktemp("daemon"))) as daemon:
        yield daemon


@pytest.fixture
def proxy(shared_proxy: ProxyDaemon) -> Iterator[ProxyDaemon]:
    """The daemon that most tests share. Afterwards its provider answers as usual again and has no request left."""
    yield shared_proxy
    shared_proxy.upstream.script, shared_proxy.upstream.script_of_head = answer_ok, None
    while not shared_proxy.upstream.requests.empty():
        shared_proxy.upstream.next()
    assert not shared_proxy.upstream.failures


def error_of(reply: Reply) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    error = reply.json["error"]
    assert error["message"].endswith(".")
    return reply.status, error["data"]["kind"]


def begin(client: socket.socket, path: str = MESSAGES, body: bytes = b"{}", *headers: str) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    client.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)


def read_response(client: socket.socket) -> http.client.HTTPResponse:
    response = http.client.HTTPResponse(client)
    response.begin()
    return response
