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


class LossyProxy:
    """Forwards connections to the server."""

    def __init__(self, port: int, *, lag_s: float = 0) -> None:
        """With a lag, every chunk is delayed by up to that long; the order stays the same."""
        self._server_port = port
        self.lag_s = lag_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._pairs: set[asyncio.StreamWriter] = set()
        self._loss: Loss | None = None
        self._is_for_good = False
        self._request_mark, self.answer_mark = b"", b""
        self.lose_calls = 0
        # The event is set when the message was dropped and the connection cut.
        self.lost = threading.Event()
        self.port = 0

    def __enter__(self) -> LossyProxy:
        self._thread.start()
        self._server = self._run(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
        self.lose_calls += 1
        self._request_mark, self.answer_mark = f"PUB {stream}.".encode(), f'"stream":"{stream}"'.encode()
        self._loss = what

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_S)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
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

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._is_for_good and self.lost.is_set():
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        connection = _Connection(self, writer, server_writer)
        self._pairs |= {writer, server_writer}
        try:
            await asyncio.gather(
                connection.carry(reader, server_writer, connection.may_send),
                connection.carry(server_reader, writer, connection.may_receive),
            )
        finally:
            self._pairs -= {writer, server_writer}
            connection.cut()

    def take_loss(self, seen: bytes) -> Loss | None:
        """What to drop if these bytes contain the message that `lose` named; the answer is given once."""
        if self._loss is None or self._request_mark not in seen:
            return None
        loss, self._loss = self._loss, None
        return loss


class _Connection:
    def __init__(self, proxy: LossyProxy, *writers: asyncio.StreamWriter) -> None:
        self._proxy, self._writers = proxy, writers
        self._seen, self._lose_calls = b"", 0
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

    def may_send(self, chunk: bytes) -> bool:
        # Bytes from before the last call of `lose` are not searched.
        if self._lose_calls != self._proxy.lose_calls:
            self._lose_calls, self._seen = self._proxy.lose_calls, b""
        self._seen = (self._seen + chunk)[-TAIL - len(chunk) :]
        loss = self._proxy.take_loss(self._seen)
        self._loses_answer |= loss == "answer"
        return loss != "request"

    def may_receive(self, chunk: bytes) -> bool:
        return not self._loses_answer or self._proxy.answer_mark not in chunk

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
