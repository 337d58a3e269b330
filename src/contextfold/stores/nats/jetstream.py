"""JetStream as far as the store needs it: conditional writes, reads, counts, deletions. Knows nothing of sessions.

Every request goes to the leader of the stream. A request that changes nothing is repeated while that may help.

A stream is read in order, every message once, whatever happens to connections, servers and consumers. A consumer on the
server may be deleted, skip messages or stop sending. So its messages are counted: after a gap, or after some time
without any message, another consumer is made that starts after the last good message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.settings import NatsOptions
from contextfold.stores.nats.connection import (
    MessageQueue,
    NatsConnection,
    OnConnectionChange,
    OutcomeUnknown,
    first_line,
)

AGAIN_S: Final = 0.05
# Attempts are made for this time, in which the servers may elect a leader.
PATIENCE_S: Final = 3.0

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
TTL: Final = "Nats-TTL"
NO_MESSAGE: Final = 10037
# JetStream's codes for a message that is already deleted.
GONE: Final = frozenset({10037, 10043, 10057})
NO_STREAM: Final = 10059
STREAM_THERE: Final = 10058
# Temporary errors: too few servers, or no leader.
TEMPORARY: Final = frozenset({10005, 10008, 10009, 10118})
CONFLICTS: Final = frozenset({10071, 10164})
ApiResponse = dict[str, Any]
Result = TypeVar("Result")
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


class SequenceConflict(Exception):
    """The last message is not the expected one."""


class JetStreamError(StoreUnavailable):
    """An error response of JetStream: the server has refused the request, and would refuse it again."""

    def __init__(self, err_code: int, text: str) -> None:
        super().__init__(f"NATS: {text}")
        self.err_code = err_code
        self.text = text


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a stream."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


class JetStream(NatsConnection):
    def __init__(
        self,
        options: NatsOptions,
        prepare: Callable[[JetStream], Awaitable[None]],
        on_change: OnConnectionChange = lambda _: None,
    ) -> None:
        super().__init__(options, lambda: prepare(self), on_change)
        self._api = f"$JS.{options.domain}.API" if options.domain else "$JS.API"

    async def api(
        self, what: str, body: Mapping[str, Any] | None = None, *, ignored: Container[int] = ()
    ) -> ApiResponse:
        """Send a request, and repeat it if that may help. The response is empty after an error that is ignored."""
        return await self.repeat(lambda: self._request_api(what, body, ignored))

    async def _request_api(self, what: str, body: Mapping[str, Any] | None, ignored: Container[int]) -> ApiResponse:
        try:
            return self._check_response(await self.request(f"{self._api}.{what}", _json(body)))
        except JetStreamError as problem:
            if problem.err_code in ignored:
                return {}
            raise

    async def repeat(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make attempts for a while. A second one must do no harm."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await attempt()
            except StoreUnavailable as problem:
                if not self.may_help(problem) or asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(AGAIN_S)

    def may_help(self, problem: StoreUnavailable) -> bool:
        """Whether another attempt may succeed: there was no leader, or the connection broke."""
        # Without a connection `client` has already waited for one. One that is not prepared is made anew.
        is_possible = self._is_prepared and (self.is_ready or isinstance(problem, OutcomeUnknown))
        return is_possible and not isinstance(problem, JetStreamError)

    def _check_response(self, message: Msg) -> ApiResponse:
        """Return the response, or raise its error."""
        response: ApiResponse = json.loads(message.data)
        error = response.get("error", {})
        err_code, text = int(error.get("err_code", 0)), str(error.get("description", "no reason given"))
        # A server that knows no leader may be behind.
        is_led = bool(response.get("cluster", {"leader": True}).get("leader"))
        if not is_led or err_code in TEMPORARY:
            self._note_failure()
            raise StoreUnavailable(f"NATS: {text if error else 'the stream has no leader now'}")
        self._failing_since_s = None
        if error:
            raise SequenceConflict(text) if err_code in CONFLICTS else JetStreamError(err_code, text)
        return response

    async def send(self, what: str, body: Mapping[str, Any] | None = None, *, reply: str = "") -> None:
        """Send a request without waiting. Responses go to `reply`."""
        client = await self.client()
        try:
            await client.publish(f"{self._api}.{what}", _json(body), reply=reply)
        except (NatsError, OSError) as problem:
            raise StoreUnavailable(f"NATS: {first_line(problem)}") from problem

    # ---- messages in streams

    async def put(
        self,
        subject: str,
        data: bytes,
        *,
        expected: int | None = None,
        expected_of: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Store a message and return its sequence.

        Raises SequenceConflict if the last message of the subject is not the expected one (0: none).
        """
        all_headers = dict(headers or {})
        if expected is not None:
            all_headers[EXPECTED] = str(expected)
        if expected_of:
            all_headers[EXPECTED_OF] = expected_of
        seq: int = self._check_response(await self.request(subject, data, all_headers))["seq"]
        return seq

    async def put_last(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store a message until a server acknowledges it, in a stream that has the last message of each subject."""
        await self.repeat(lambda: self.put(subject, data, headers=headers))

    async def put_once(
        self,
        stream: str,
        subject: str,
        data: bytes,
        *,
        expected_of: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Store a message unless its subject, or one of `expected_of`, has one already."""

        async def attempt() -> None:
            try:
                await self.put(subject, data, expected=0, expected_of=expected_of, headers=headers)
            except SequenceConflict as problem:
                # A leader also refuses while another write is in flight, which may still be lost.
                if await self.last(stream, expected_of or subject) is None:
                    raise StoreUnavailable(f"NATS: {problem}") from problem

        await self.repeat(attempt)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of a subject, which may have wildcards, from the leader of the stream."""
        return await self._get(stream, {"last_by_subj": subject})

    async def at(self, stream: str, seq: int) -> StoredMessage | None:
        return await self._get(stream, {"seq": seq})

    async def next_after(self, stream: str, subject: str, seq: int) -> StoredMessage | None:
        """The first message of a subject after a sequence."""
        return await self._get(stream, {"seq": seq + 1, "next_by_subj": subject})

    async def _get(self, stream: str, which: Mapping[str, Any]) -> StoredMessage | None:
        found = (await self.api(f"STREAM.MSG.GET.{stream}", which, ignored=(NO_MESSAGE,))).get("message")
        if found is None:
            return None
        headers = _headers(base64.b64decode(found.get("hdrs", "")))
        return StoredMessage(found["subject"], found["seq"], headers, base64.b64decode(found.get("data", "")))

    async def counts(self, stream: str, subjects: str) -> dict[str, int]:
        """The number of messages of each subject that matches."""
        counted: dict[str, int] = {}
        while True:
            info = await self.api(f"STREAM.INFO.{stream}", {"subjects_filter": subjects, "offset": len(counted)})
            page = info["state"].get("subjects") or {}
            counted |= page
            if not page or len(counted) >= info.get("total", 0):
                return counted

    async def last_seq(self, stream: str) -> int:
        seq: int = (await self.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        return seq

    async def check_room(self, stream: str, size: int) -> None:
        """Raise StoreUnavailable if a message of this size exceeds a limit."""
        info = await self.api(f"STREAM.INFO.{stream}")
        config, state = info["config"], info["state"]
        # A stream that discards old messages is never full.
        limits = (("max_msgs", "messages", 1), ("max_bytes", "bytes", size)) if config["discard"] == "new" else ()
        for limit, used, more in limits:
            if 0 < config.get(limit, -1) < state[used] + more:
                raise StoreUnavailable(f"NATS: {stream} is full: it may have {config[limit]} {used}")
        if 0 < config.get("max_msg_size", -1) < size:
            raise StoreUnavailable(f"NATS: {stream} accepts messages of {config['max_msg_size']} bytes only")

    async def purge(self, stream: str, subjects: str, *, below: int = 0) -> None:
        """Delete the messages that match, or those of them before a sequence."""
        await self.api(f"STREAM.PURGE.{stream}", {"filter": subjects} | ({"seq": below} if below else {}))

    async def delete(self, stream: str, seq: int) -> None:
        await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True}, ignored=GONE)


def new_mark() -> str:
    """A mark that no other message has."""
    return secrets.token_hex(16)


def _json(body: Mapping[str, Any] | None) -> bytes:
    return json.dumps(body).encode() if body else b""


def _headers(block: bytes) -> dict[str, str]:
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


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
            async with aclosing(_read_consumer(js, query, reached, last)) as messages:
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
            await js.wait_connected()
        elif tried >= CONSUMERS_MOST:
            raise StoreUnavailable(f"NATS: {query.stream} cannot be read now")
        elif not await js.at(query.stream, last):
            newest = await js.last(query.stream, query.subjects)
            last = min(last, newest.seq if newest else 0)
        await asyncio.sleep(RETRY_S)


async def _read_consumer(
    js: JetStream, query: StreamQuery, after: int, last: int | None
) -> AsyncGenerator[StoredMessage]:
    """The messages of one consumer, until there is an irregularity, or none is left and the last one was deleted."""
    async with js.subscribe() as (inbox, arrived), _consumer(js, query, after) as (path, pending):
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
            stored, number, left = _parse_message(message)
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


def _parse_message(message: Msg) -> tuple[StoredMessage, int, int]:
    """The message, its number within the consumer, and the number of messages left."""
    about = message.metadata
    stored = StoredMessage(message.subject, about.sequence.stream, message.headers or {}, message.data)
    return stored, about.sequence.consumer, about.num_pending
