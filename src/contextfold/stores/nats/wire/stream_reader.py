"""Reads a stream in order, every message once, whatever happens to connections, servers and consumers.

A consumer on the server may be deleted, skip messages or stop sending. So its messages are counted: after a gap, or
after some time without any message, another consumer is made that starts after the last good message. Knows nothing of
the content of messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.msg import Msg

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.stores.nats.wire.connection import MessageQueue
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
# The most consumers that are tried for a message that exists.
CONSUMERS_MOST: Final = 3
_NANO: Final = 1_000_000_000


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
            async with aclosing(_delivered(js, query, reached, last)) as messages:
                async for message in messages:
                    if last is not None and message.seq > last:
                        return
                    reached, tried = message.seq, 0
                    yield message
                    if reached == last:
                        return
        except (StoreUnavailable, StoreInvalid):
            if last is not None:
                raise
        if last is None:
            await js.connected()
        elif tried >= CONSUMERS_MOST:
            raise StoreUnavailable(f"NATS: {query.stream} cannot be read now")
        elif not await js.at(query.stream, last):
            newest = await js.last(query.stream, query.subjects)
            last = min(last, newest.seq if newest else 0)
        await asyncio.sleep(RETRY_S)


async def _delivered(js: JetStream, query: StreamQuery, after: int, last: int | None) -> AsyncGenerator[StoredMessage]:
    """The messages of one consumer, until there is an irregularity, or none is left and the last one was deleted."""
    async with js.subscribed() as (inbox, arrived), _consumer(js, query, after) as (path, pending):
        # The messages that were received, that are requested, and that the server says are left.
        count, requested, left = 0, 0, pending
        while True:
            if not requested:
                requested = BATCH
                await js.send(f"CONSUMER.MSG.NEXT.{path}", _request(js), reply=inbox)
            if arrived.empty() and not left and last is not None and not await js.at(query.stream, last):
                return
            message = await _next(arrived)
            if message is None:
                return
            status = "" if message.data or message.reply else (message.headers or {}).get("Status", "")
            if status:
                requested = _after_status(status, message, count, requested)
                if requested < 0:
                    return
                continue
            stored, number, left = _stored(message)
            if number != count + 1:
                return
            count, requested = number, requested - 1
            yield stored


@asynccontextmanager
async def _consumer(js: JetStream, query: StreamQuery, after: int) -> AsyncIterator[tuple[str, int]]:
    """Make a consumer, and delete it at the end. Gives its path, and how many messages the server says it has."""
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
    if query.last_of_each and after == query.after:
        config["deliver_policy"] = "last_per_subject"
    elif after:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    path = f"{query.stream}.{config['name']}"
    created = await js.api(f"CONSUMER.CREATE.{path}.{query.subjects}", {"stream_name": query.stream, "config": config})
    try:
        yield path, int(created.get("num_pending", 1))
    finally:
        with suppress(StoreUnavailable):
            if js.is_ready:
                await js.send(f"CONSUMER.DELETE.{path}")


def _request(js: JetStream) -> dict[str, int]:
    return {
        "batch": BATCH,
        "max_bytes": max(BATCH_BYTES, 2 * js.payload_most),
        "expires": int(EXPIRES_S * _NANO),
        "idle_heartbeat": int(HEARTBEAT_S * _NANO),
    }


def _after_status(status: str, message: Msg, count: int, requested: int) -> int:
    """The number of requested messages that are still expected; -1 if the consumer is unusable."""
    headers = message.headers or {}
    # A heartbeat, with the number of messages that were sent.
    if status == "100":
        return requested if int(headers.get("Nats-Last-Consumer") or 0) <= count else -1
    # This is known, and more messages were requested.
    if status == "409" and "Batch Completed" in str(headers):
        return requested
    return 0 if status in ("404", "408") or (status == "409" and "MaxBytes" in str(headers)) else -1


async def _next(arrived: MessageQueue) -> Msg | None:
    """The next message; None after a timeout, or if the connection is lost."""
    if not arrived.empty():
        return arrived.get_nowait()
    with suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_S):
            return await arrived.get()
    return None


def _stored(message: Msg) -> tuple[StoredMessage, int, int]:
    """The message, its number within the consumer, and the number of messages left."""
    about = message.metadata
    stored = StoredMessage(message.subject, about.sequence.stream, message.headers or {}, message.data)
    return stored, about.sequence.consumer, about.num_pending
