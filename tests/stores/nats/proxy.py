"""A TCP proxy in front of servers, for tests that lose messages.

It runs an event loop of its own in a thread, so that tests can stay synchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

CHUNK = 65_536
JOIN_S = 60.0


class Wire:
    """A connection of a caller to a server. What it does with a chunk is decided by a subclass."""

    def __init__(self) -> None:
        self.writers: tuple[asyncio.StreamWriter, ...] = ()

    async def passes(self, chunk: bytes, *, is_from_caller: bool) -> bool:
        """Whether to forward a chunk."""
        raise NotImplementedError

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_from_caller: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                if await self.passes(chunk, is_from_caller=is_from_caller):
                    writer.write(chunk)
                    await writer.drain()
        self.close()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class Proxy:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self.wires: set[Wire] = set()

    def close(self) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        self._loop.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, port: int, new_wire: Callable[[], Wire]) -> int:
        """Returns a port that leads to a server's. `new_wire` may refuse a caller by an OSError."""
        listening: int = self.run(self._listen(port, new_wire))
        return listening

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_S)

    async def _listen(self, port: int, new_wire: Callable[[], Wire]) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                wire = new_wire()
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            wire.writers = (writer, server_writer)
            self.wires.add(wire)
            try:
                await asyncio.gather(
                    wire.carry(reader, server_writer, is_from_caller=True),
                    wire.carry(server_reader, writer, is_from_caller=False),
                )
            finally:
                self.wires.discard(wire)
                wire.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        listening: int = server.sockets[0].getsockname()[1]
        return listening

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
