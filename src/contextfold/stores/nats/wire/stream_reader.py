"""Reads a stream in order, every message once, whatever happens to connections, servers and consumers.

A consumer on the server may be deleted, skip messages or stop sending. So its messages are counted: after a gap, or
after some time without any message, another consumer is made that starts after the last good message. Knows nothing of
the content of messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from contextfold.common.dataclass import dataclass
from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage

BATCH: Final = 256
BATCH_BYTES: Final = 4 << 20
# The lifetime of a request for messages. Then another one is sent.
EXPIRES_S: Final = 20.0
HEARTBEAT_S: Final = 1.0
# After this time without any message the consumer is abandoned.
SILENCE_S: Final = 3.0
# After this time the server deletes a consumer that is not used.
CONSUMER_IDLE_S: Final = 60.0
RETRY_S: Final = 0.1
# After this time without the expected message, check whether it still exists.
QUIET_S: Final = 0.3
# The most consumers that are tried for a message that exists.
CONSUMERS_MOST: Final = 3
_NANO: Final = 1_000_000_000
# The parts of a reply subject without a domain.
_PLAIN_REPLY: Final = 9


@dataclass(frozen=True, slots=True)
class StreamQuery:
    stream: str
    subjects: str
    after: int = 0
    headers_only: bool = False
    last_of_each: bool = False


async def read_stored(js: JetStream, query: StreamQuery) -> AsyncGenerator[StoredMessage]:
    """Read what is stored now."""
    last = await js.last(query.stream, query.subjects)
    if last is not None:
        async with aclosing(read_to(js, query, last.seq)) as messages:
            async for message in messages:
                yield message


def follow(js: JetStream, query: StreamQuery) -> AsyncGenerator[StoredMessage]:
    """Read without an end. Waits while NATS is unavailable."""
    return read_to(js, query, None)


async def read_to(js: JetStream, query: StreamQuery, last: int | None) -> AsyncGenerator[StoredMessage]:
    """Read up to a message that existed just now, or to its position if it was deleted meanwhile; None: without an end.

    The number of attempts is limited if there is an end.
    """
    reached, tried = query.after, 0
    while last is None or reached < last:
        tried += 1
        try:
            consumer = await _PullConsumer.make(js, query, reached, is_first=reached == query.after)
            try:
                async with aclosing(consumer.messages(last)) as messages:
                    async for message in messages:
                        if last is not None and message.seq > last:
                            return
                        reached, tried = message.seq, 0
                        yield message
                        if reached == last:
                            return
                if consumer.is_done:
                    return
            finally:
                await consumer.end()
        except (StoreUnavailable, StoreInvalid):
            if last is not None:
                raise
        if last is None:
            await js.connected()
        elif tried >= CONSUMERS_MOST:
            raise StoreUnavailable(f"NATS: {query.stream} cannot be read now")
        await asyncio.sleep(RETRY_S)


class _PullConsumer:
    def __init__(
        self, js: JetStream, path: str, subscription: Subscription, arrived: asyncio.Queue[Msg], left: int
    ) -> None:
        self._js = js
        # The stream and the consumer.
        self._path = path
        self._subscription = subscription
        self._arrived = arrived
        self._count = 0
        # The number of messages that the server has announced.
        self._left = left
        # Whether the expected message was deleted.
        self.is_done = False

    @classmethod
    async def make(cls, js: JetStream, query: StreamQuery, after: int, *, is_first: bool) -> _PullConsumer:
        config: dict[str, Any] = {
            "name": secrets.token_hex(8),
            "ack_policy": "none",
            "deliver_policy": "all",
            "filter_subject": query.subjects,
            "headers_only": query.headers_only,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(CONSUMER_IDLE_S * _NANO),
        }
        if query.last_of_each and is_first:
            config["deliver_policy"] = "last_per_subject"
        elif after:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        path = f"{query.stream}.{config['name']}"
        created = await js.api(
            f"CONSUMER.CREATE.{path}.{query.subjects}", {"stream_name": query.stream, "config": config}
        )
        client = await js.client()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        try:
            subscription = await client.subscribe(client.new_inbox(), cb=arrived.put)
        except (NatsError, OSError) as problem:
            raise StoreUnavailable(f"NATS: {problem}") from problem
        return cls(js, path, subscription, arrived, int(created.get("num_pending", 1)))

    async def messages(self, last: int | None) -> AsyncGenerator[StoredMessage]:
        """Yield messages in order until there is an irregularity, or the last one was deleted."""
        wanted = 0
        while True:
            if not wanted:
                wanted = BATCH
                await self._request()
            message = await self._next(last)
            if message is None:
                return
            status = (message.headers or {}).get("Status", "") if not message.data else ""
            if status and not message.reply:
                wanted = self._after_status(status, message, wanted)
                if wanted < 0:
                    return
                continue
            stored, number, self._left = _stored(message)
            if number != self._count + 1:
                return
            self._count = number
            wanted -= 1
            yield stored

    def _after_status(self, status: str, message: Msg, wanted: int) -> int:
        """The number of requested messages that are still expected; -1 if the consumer is unusable."""
        if status == "100":
            last = (message.headers or {}).get("Nats-Last-Consumer", "")
            return -1 if last and int(last) > self._count else wanted
        text = str(message.headers)
        # This is known, and more messages were requested.
        if status == "409" and "Batch Completed" in text:
            return wanted
        is_over = status in ("404", "408") or (status == "409" and "MaxBytes" in text)
        return 0 if is_over else -1

    async def _request(self) -> None:
        request = {
            "batch": BATCH,
            "max_bytes": max(BATCH_BYTES, 2 * self._js.payload_most),
            "expires": int(EXPIRES_S * _NANO),
            "idle_heartbeat": int(HEARTBEAT_S * _NANO),
        }
        await self._js.send(f"CONSUMER.MSG.NEXT.{self._path}", request, reply=self._subscription.subject)

    async def _next(self, last: int | None) -> Msg | None:
        """The next message; None after a timeout, or if no message is expected."""
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        for wait_s in (SILENCE_S,) if last is None else (QUIET_S, SILENCE_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    return await self._arrived.get()
            if last is not None and not self._left and await self._js.at(self._path.partition(".")[0], last) is None:
                self.is_done = True
                return None
        return None

    async def end(self) -> None:
        with suppress(NatsError, OSError, StoreUnavailable):
            await self._subscription.unsubscribe()
            if self._js.is_ready:
                await self._js.send(f"CONSUMER.DELETE.{self._path}")


def _stored(message: Msg) -> tuple[StoredMessage, int, int]:
    """The message, its number within the consumer, and the number of messages left, from the reply subject."""
    parts = message.reply.split(".")
    first = 5 if len(parts) == _PLAIN_REPLY else 7
    headers = message.headers or {}
    stored = StoredMessage(message.subject, int(parts[first]), headers, message.data)
    return stored, int(parts[first + 1]), int(parts[first + 3])
