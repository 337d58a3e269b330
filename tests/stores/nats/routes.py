"""The connections between the servers of a cluster, through which one server can be cut off and still be reached.

Every server advertises an address that leads here, and from here to the server. The caller is recognised by its first
bytes. A connection that is cut drops everything silently, as networks do, and is closed when the cut is repaired.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

CHUNK = 65_536
# A caller sends its name within this many bytes.
NAME_MAX_BYTES = 16_384
JOIN_S = 60.0
_NAME = re.compile(rb'"server_name":"([^"]+)"')


class Routes:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._servers: list[asyncio.Server] = []
        self._wires: set[_Wire] = set()
        self._cut_off: str | None = None

    def __enter__(self) -> Routes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        self._loop.close()

    def route_ports(self, ports: Mapping[str, int]) -> dict[str, int]:
        """For every server, by name, a port that leads to it."""
        listen_ports: dict[str, int] = self._run(self._listen(ports))
        return listen_ports

    def cut_off(self, name: str) -> None:
        """From now on, a server and the others receive nothing from each other."""
        self._cut_off = name

    def heal(self) -> None:
        self._cut_off = None
        self._run(self._close_cut_wires())

    def is_cut(self, *names: str) -> bool:
        return self._cut_off in names

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_S)

    async def _listen(self, ports: Mapping[str, int]) -> dict[str, int]:
        listen_ports = {}
        for name, port in ports.items():
            server = await asyncio.start_server(self._accept(name, port), "127.0.0.1", 0)
            self._servers.append(server)
            listen_ports[name] = server.sockets[0].getsockname()[1]
        return listen_ports

    def _accept(self, name: str, port: int) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            wire = _Wire(self, name, writer, server_writer)
            self._wires.add(wire)
            try:
                await asyncio.gather(
                    wire.carry(reader, server_writer, is_caller=True), wire.carry(server_reader, writer)
                )
            finally:
                self._wires.discard(wire)
                wire.close()

        return accept

    async def _close_cut_wires(self) -> None:
        for wire in list(self._wires):
            if wire.has_dropped:
                wire.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Wire:
    def __init__(self, routes: Routes, callee: str, *writers: asyncio.StreamWriter) -> None:
        self._routes, self._callee, self._writers = routes, callee, writers
        self._caller = ""
        self._first_bytes = b""
        # This is set when bytes were dropped.
        self.has_dropped = False

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_caller: bool = False
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                if is_caller:
                    self._read_caller_name(chunk)
                self.has_dropped |= self._routes.is_cut(self._callee, self._caller)
                if not self.has_dropped:
                    writer.write(chunk)
                    await writer.drain()
        self.close()

    def _read_caller_name(self, chunk: bytes) -> None:
        if not self._caller and len(self._first_bytes) < NAME_MAX_BYTES:
            self._first_bytes += chunk
            match = _NAME.search(self._first_bytes)
            self._caller = match[1].decode() if match else ""

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
