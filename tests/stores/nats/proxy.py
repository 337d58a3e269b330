"""A proxy between a daemon and NATS that can drop one message or its answer on request.

It runs an event loop of its own in a thread, so that tests can stay synchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

CHUNK = 65_536
JOIN_S = 60.0
# The command that is searched for fits into this many bytes, so it is found even if chunks divide it.
TAIL = 4_096

Loss = Literal["answer", "request"]


class Proxy:
    """Forwards connections to the server."""

    def __init__(self, port: int, *, lag_s: float = 0) -> None:
        """With a lag, every chunk is delayed by up to that long; the order stays the same."""
        self._behind = port
        self.lag_s = lag_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._pairs: set[asyncio.StreamWriter] = set()
        self._loses: Loss | None = None
        self._is_for_good = False
        self._asked, self.answer = b"", b""
        self.orders = 0
        # The event is set when the message was dropped and the connection cut.
        self.lost = threading.Event()
        self.port = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._run(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_used(self) -> bool:
        return bool(self._pairs)

    def lose(self, what: Loss, stream: str, *, for_good: bool = False) -> None:
        """Drops the next message for a stream on its way to the server, or its answer on the way back.

        The connection is cut then, and with `for_good` no new one is accepted.
        """
        self.lost.clear()
        self._is_for_good = for_good
        self.orders += 1
        self._asked, self.answer = f"PUB {stream}.".encode(), f'"stream":"{stream}"'.encode()
        self._loses = what

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_S)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end(self) -> None:
        self._server.close()
        for writer in list(self._pairs):
            writer.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._is_for_good and self.lost.is_set():
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:
            writer.close()
            return
        connection = _Connection(self, writer, back)
        self._pairs |= {writer, back}
        try:
            await asyncio.gather(
                connection.carry(reader, back, connection.may_go), connection.carry(there, writer, connection.may_come)
            )
        finally:
            self._pairs -= {writer, back}
            connection.cut()

    def takes(self, seen: bytes) -> Loss | None:
        """What to drop if these bytes contain the message that is waited for; only once."""
        if self._loses is None or self._asked not in seen:
            return None
        loses, self._loses = self._loses, None
        return loses


class _Connection:
    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self._proxy, self._writers = proxy, writers
        self._seen, self._orders = b"", 0
        self._loses_answer = False

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(CHUNK):
                if not may(chunk):
                    self._proxy.lost.set()
                    self.cut()
                    return
                if self._proxy.lag_s:
                    await asyncio.sleep(random.uniform(0, self._proxy.lag_s))
                writer.write(chunk)
                await writer.drain()
        self.cut()

    def may_go(self, chunk: bytes) -> bool:
        # Bytes from before the last order are not searched.
        if self._orders != self._proxy.orders:
            self._orders, self._seen = self._proxy.orders, b""
        self._seen = (self._seen + chunk)[-TAIL - len(chunk) :]
        loses = self._proxy.takes(self._seen)
        self._loses_answer |= loses == "answer"
        return loses != "request"

    def may_come(self, chunk: bytes) -> bool:
        return not self._loses_answer or self._proxy.answer not in chunk

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
