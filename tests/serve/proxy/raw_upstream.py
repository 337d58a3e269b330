"""A provider that sends exactly the bytes that a test asks for. It runs in threads of its own."""

from __future__ import annotations

import json
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

WAIT_S = 60.0


class RawRequest(NamedTuple):
    """A request as it was received."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    # Connections are numbered in the order of arrival.
    connection: int

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection, from the provider's side."""

    # The answer to a HEAD request has no body, whatever its length says.
    is_head = False

    def __init__(self, client: socket.socket) -> None:
        client.settimeout(WAIT_S)
        self.socket = client
        self._read = client.makefile("rb")

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def answer(self, body: bytes = b"{}", *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if self.is_head else body))

    def begin(self, *headers: str) -> None:
        """Sends the head of a chunked answer."""
        lines = ["HTTP/1.1 200 OK", *headers, "Transfer-Encoding: chunked"]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def chunk(self, content: bytes) -> None:
        self.send(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def head(self) -> tuple[str, list[tuple[str, str]]] | None:
        line = self._read.readline().decode("latin-1").rstrip("\r\n")
        if not line:
            return None
        headers = []
        while text := self._read.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = text.partition(":")
            headers.append((name, value.strip()))
        return line, headers

    def body(self, headers: list[tuple[str, str]]) -> bytes:
        by_name = {name.lower(): value for name, value in headers}
        if "content-length" in by_name:
            return self._read.read(int(by_name["content-length"]))
        parts = []
        while by_name.get("transfer-encoding") == "chunked":
            part = self.part()
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def part(self) -> bytes:
        """Reads the next chunk of a chunked body."""
        part = self._read.read(int(self._read.readline(), 16))
        self._read.readline()
        return part

    def is_closed(self) -> bool:
        """Waits until the other side closes the connection."""
        try:
            return self._read.read(1) == b""
        except ConnectionError:
            return True


Script = Callable[[RawRequest, Wire], None]


def answer_ok(_request: RawRequest, wire: Wire) -> None:
    wire.answer(b'{"fine":true}', "Content-Type: application/json")


class RawUpstream:
    """Reads each request and calls `script`; or `script_of_head`, if it is set, before the body is read."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.script: Script = answer_ok
        self.script_of_head: Script | None = None
        self.requests: queue.Queue[RawRequest] = queue.Queue()
        self.connections = 0
        self.failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def next(self) -> RawRequest:
        return self.requests.get(timeout=WAIT_S)

    def close(self) -> None:
        # The socket may be closed already.
        with suppress(OSError):
            # Otherwise the thread that waits in `accept` keeps the socket open.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._open:
            client.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client, self.connections), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        try:
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
                self._open.append(client)
            wire = Wire(client)
            while head := wire.head():
                line, headers = head
                wire.is_head = line.startswith("HEAD ")
                if self.script_of_head is not None:
                    self.script_of_head(RawRequest(line, headers, b"", number), wire)
                    break
                request = RawRequest(line, headers, wire.body(headers), number)
                self.requests.put(request)
                self.script(request, wire)
        except (OSError, ValueError):
            # The test has closed the connection.
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            client.close()
