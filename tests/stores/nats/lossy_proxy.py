"""A proxy between a daemon and NATS that can drop one message or its answer on request."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Literal

from tests.stores.nats.proxy import Proxy, Wire

# The command that is searched for fits into this many bytes, so it is found even if chunks divide it.
TAIL = 4_096

Loss = Literal["answer", "request"]


class LossyProxy(Proxy):
    """Forwards connections to the server."""

    def __init__(self, port: int, *, lag_s: float = 0) -> None:
        """With a lag, every chunk is delayed by up to that long; the order stays the same."""
        super().__init__()
        self.lag_s = lag_s
        self._loss: Loss | None = None
        self._is_for_good = False
        self._request_mark, self.answer_mark = b"", b""
        self.lose_calls = 0
        # The event is set when the message was dropped and the connection cut.
        self.lost = threading.Event()
        self.url = f"nats://127.0.0.1:{self.listen(port, self._connect)}"

    def __enter__(self) -> LossyProxy:
        return self

    def lose(self, what: Loss, stream: str, *, for_good: bool = False) -> None:
        """Drops the next message for a stream on its way to the server, or its answer on the way back.

        The connection is cut then, and with `for_good` no new one is accepted.
        """
        self.lost.clear()
        self._is_for_good = for_good
        self.lose_calls += 1
        self._request_mark, self.answer_mark = f"PUB {stream}.".encode(), f'"stream":"{stream}"'.encode()
        self._loss = what

    def _connect(self) -> Wire:
        if self._is_for_good and self.lost.is_set():
            raise ConnectionRefusedError
        return _Connection(self)

    def take_loss(self, seen: bytes) -> Loss | None:
        """What to drop if these bytes contain the message that `lose` named; the answer is given once."""
        if self._loss is None or self._request_mark not in seen:
            return None
        loss, self._loss = self._loss, None
        return loss


class _Connection(Wire):
    def __init__(self, proxy: LossyProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._seen, self._lose_calls = b"", 0
        self._loses_answer = False

    async def passes(self, chunk: bytes, *, is_from_caller: bool) -> bool:
        if self._is_lost(chunk) if is_from_caller else self._loses_answer and self._proxy.answer_mark in chunk:
            self._proxy.lost.set()
            self.close()
            return False
        if self._proxy.lag_s:
            await asyncio.sleep(random.uniform(0, self._proxy.lag_s))
        return True

    def _is_lost(self, chunk: bytes) -> bool:
        # Bytes from before the last call of `lose` are not searched.
        if self._lose_calls != self._proxy.lose_calls:
            self._lose_calls, self._seen = self._proxy.lose_calls, b""
        self._seen = (self._seen + chunk)[-TAIL - len(chunk) :]
        loss = self._proxy.take_loss(self._seen)
        self._loses_answer |= loss == "answer"
        return loss == "request"
