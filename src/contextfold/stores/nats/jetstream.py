"""JetStream as the store uses it, through nats-py: conditional writes, reads, counts, deletions, ordered consumers.

Every request goes to the leader of the stream. A request that changes nothing is repeated while that may help.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, DiscardPolicy, RawStreamMsg, StreamInfo
from nats.js.errors import APIError

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.settings import NatsOptions
from contextfold.stores.nats.connection import (
    NatsConnection,
    OnConnectionChange,
    OutcomeUnknown,
    first_line,
)

RETRY_S: Final = 0.05
# Attempts are made for this time, in which the servers may elect a leader.
RETRIES_S: Final = 3.0

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID: Final = "Nats-Msg-Id"
TTL: Final = "Nats-TTL"
NO_MESSAGE: Final = 10037
# JetStream's codes for a message that is already deleted.
GONE: Final = frozenset({10037, 10043, 10057})
NO_STREAM: Final = 10059
STREAM_THERE: Final = 10058
# Temporary errors: too few servers, no leader, or the same message is being stored at this moment.
NO_LEADER: Final = 10008
TEMPORARY: Final = frozenset({NO_LEADER, 10005, 10009, 10118, 10158})
CONFLICTS: Final = frozenset({10071, 10164})
Result = TypeVar("Result")
HEARTBEAT_S: Final = 1.0
# After this time without a message a reader looks whether it has missed one.
SILENCE_S: Final = 2.0
# The server deletes a consumer that is not read for this time.
CONSUMER_IDLE_S: Final = 2.0
# A reader that is this far behind starts again after the last message that it has read.
WAITING_MAX: Final = 2_000
WAITING_BYTES_MAX: Final = 64 << 20
FOLLOW_PAUSE_S: Final = 0.1
# The most consumers that are tried for a message that exists.
CONSUMERS_MAX: Final = 3


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

    def full_subject(self, subject: str) -> str:
        """The complete subject. One that begins with `API.` is one of JetStream's own."""
        domain = f"{self.options.domain}." if self.options.domain else ""
        return f"$JS.{domain}{subject}" if subject.startswith("API.") else subject

    async def call(self, subject: str, work: Callable[[JetStreamContext], Awaitable[Result]]) -> Result:
        """Do work that sends one request to this subject."""
        try:
            result = await self.send(self.full_subject(subject), lambda client: work(client.context))
        except APIError as problem:
            raise await self._problem_of(problem) from problem
        except (NatsError, OSError) as problem:
            raise OutcomeUnknown(f"NATS: {first_line(problem)}") from problem
        self.note_success()
        return result

    async def _problem_of(self, error: APIError) -> SequenceConflict | StoreUnavailable:
        text = str(error.description or "no server responds for JetStream now")
        if error.err_code in CONFLICTS:
            return SequenceConflict(text)
        if error.err_code is None or error.err_code in TEMPORARY:
            await self.note_failure()
            return NoResponder(f"NATS: {text}") if error.err_code is None else StoreUnavailable(f"NATS: {text}")
        return JetStreamError(error.err_code, text)

    async def repeat(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make attempts for a while. Another one must do no harm, and after a conflict look at what is stored."""
        until = asyncio.get_running_loop().time() + RETRIES_S
        while True:
            try:
                return await attempt()
            except SequenceConflict as problem:
                if asyncio.get_running_loop().time() >= until:
                    raise StoreUnavailable(f"NATS: too many conflicts with other writes: {problem}") from problem
            except StoreUnavailable as problem:
                # Without a connection `client` has already waited for one. One that is not prepared is made anew.
                is_possible = self._is_prepared and (self.is_ready or isinstance(problem, OutcomeUnknown))
                if not is_possible or isinstance(problem, JetStreamError) or asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(RETRY_S)

    # ---- messages in streams

    async def put(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, expected: int | None = None
    ) -> int:
        """Store a message and return its sequence.

        Raises SequenceConflict if the last message of the subject is not the expected one (0: none). A message whose
        id is that of an earlier one is not stored again; the sequence is that of the earlier one.
        """
        all_headers = dict(headers or {})
        if expected is not None:
            all_headers[EXPECTED] = str(expected)
        return (await self.call(subject, lambda js: js.publish(subject, data, headers=all_headers))).seq

    async def put_last(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store a message until a server acknowledges it, in a stream that has the last message of each subject."""
        await self.repeat(lambda: self.put(subject, data, headers))

    async def put_once(self, stream: str, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store a message unless its subject, or one of those in the header EXPECTED_OF, has one already."""
        expected_of = (headers or {}).get(EXPECTED_OF, subject)

        async def attempt() -> None:
            try:
                await self.put(subject, data, headers, expected=0)
            except SequenceConflict as problem:
                # A leader also refuses while another write is in flight, which may still be lost.
                if await self.last(stream, expected_of) is None:
                    raise StoreUnavailable(f"NATS: {problem}") from problem

        await self.repeat(attempt)

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message of a subject, which may have wildcards, from the leader of the stream."""
        return await self._get(stream, lambda js: js.get_last_msg(stream, subject))

    async def at(self, stream: str, seq: int) -> StoredMessage | None:
        return await self._get(stream, lambda js: js.get_msg(stream, seq))

    async def next_after(self, stream: str, subject: str, seq: int) -> StoredMessage | None:
        """The first message of a subject after a sequence."""
        return await self._get(stream, lambda js: js.get_msg(stream, seq + 1, subject, next=True))

    async def _get(
        self, stream: str, request: Callable[[JetStreamContext], Awaitable[RawStreamMsg]]
    ) -> StoredMessage | None:
        try:
            found = await self.repeat(lambda: self.call(f"API.STREAM.MSG.GET.{stream}", request))
        except JetStreamError as problem:
            if problem.err_code == NO_MESSAGE:
                return None
            raise
        return StoredMessage(found.subject or "", found.seq or 0, found.headers or {}, found.data or b"")

    # ---- streams

    async def info(self, stream: str) -> StreamInfo:
        async def request(js: JetStreamContext) -> StreamInfo:
            info = await js.stream_info(stream)
            # A server that knows no leader may be behind.
            if info.cluster is not None and not info.cluster.leader:
                raise APIError(err_code=NO_LEADER, description="the stream has no leader now")
            return info

        return await self.repeat(lambda: self.call(f"API.STREAM.INFO.{stream}", request))

    async def last_seq(self, stream: str) -> int:
        return (await self.info(stream)).state.last_seq

    async def check_room(self, stream: str, size: int) -> None:
        """Raise StoreUnavailable if a message of this size exceeds a limit."""
        info = await self.info(stream)
        config, state = info.config, info.state
        # A stream that discards old messages is never full.
        if config.discard == DiscardPolicy.NEW:
            if 0 < (config.max_msgs or -1) < state.messages + 1:
                raise StoreUnavailable(f"NATS: {stream} is full: it may have {config.max_msgs} messages")
            if 0 < (config.max_bytes or -1) < state.bytes + size:
                raise StoreUnavailable(f"NATS: {stream} is full: it may have {config.max_bytes} bytes")
        if 0 < (config.max_msg_size or -1) < size:
            raise StoreUnavailable(f"NATS: {stream} accepts messages of {config.max_msg_size} bytes only")

    async def purge(self, stream: str, subjects: str, *, below: int = 0) -> None:
        """Delete the messages that match, or those of them before a sequence."""
        api = f"API.STREAM.PURGE.{stream}"
        await self.repeat(
            lambda: self.call(api, lambda js: js.purge_stream(stream, seq=below or None, subject=subjects))
        )

    async def delete(self, stream: str, seq: int) -> None:
        try:
            api = f"API.STREAM.MSG.DELETE.{stream}"
            await self.repeat(lambda: self.call(api, lambda js: js.delete_msg(stream, seq)))
        except JetStreamError as problem:
            if problem.err_code not in GONE:
                raise


class NoResponder(StoreUnavailable):
    """No server answers requests to JetStream."""


def new_mark() -> str:
    """A mark that no other message has."""
    return secrets.token_hex(16)


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


async def stored_subjects(js: JetStream, stream: str, subjects: str) -> list[str]:
    """The subject of each message that matches, without its content."""
    query = StreamQuery(stream, subjects, headers_only=True)
    return [stored.subject async for stored in read_stored(js, query)]


async def read_to(js: JetStream, query: StreamQuery, last: int) -> AsyncGenerator[StoredMessage]:
    """Read up to a message that existed just now, or to its position if it was deleted meanwhile."""
    reached, tried = query.after, 0
    while reached < last:
        tried += 1
        async with aclosing(_read_consumer(js, query, reached)) as messages:
            async for stored, left in messages:
                if stored is not None:
                    if stored.seq > last:
                        return
                    reached, tried = stored.seq, 0
                    yield stored
                # A consumer may be on a server that is behind, which has none left too early.
                if reached >= last or stored is None or (not left and not await js.at(query.stream, last)):
                    break
        if reached < last and not await js.at(query.stream, last):
            newest = await js.last(query.stream, query.subjects)
            last = min(last, newest.seq if newest else 0)
        elif tried >= CONSUMERS_MAX:
            raise StoreUnavailable(f"NATS: {query.stream} cannot be read now")


async def follow(js: JetStream, query: StreamQuery) -> AsyncGenerator[StoredMessage]:
    """Read without an end. Waits while NATS is unavailable."""
    reached = query.after
    while not js.is_closed:
        with suppress(StoreUnavailable, StoreInvalid):
            async with aclosing(_read_consumer(js, query, reached)) as messages:
                async for stored, _ in messages:
                    if stored is not None:
                        reached = stored.seq
                        yield stored
                        continue
                    newest = await js.last(query.stream, query.subjects)
                    if newest is not None and newest.seq > reached:
                        break
        await asyncio.sleep(FOLLOW_PAUSE_S)


async def _read_consumer(
    js: JetStream, query: StreamQuery, after: int
) -> AsyncGenerator[tuple[StoredMessage | None, int]]:
    """The messages after a sequence, each with the number of those that are left; None after a silence.

    nats-py makes another consumer after a gap or without heartbeats. It drops messages if too many wait, so they are
    counted here: after such a gap, or the loss of the connection, the iteration ends.
    """
    client, reached, count, name = await js.client(), after, 0, ""
    config = ConsumerConfig(headers_only=query.headers_only or None, inactive_threshold=CONSUMER_IDLE_S)
    if query.last_of_each and after == query.after:
        config.deliver_policy = DeliverPolicy.LAST_PER_SUBJECT
    elif after:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, after + 1
    arrived = asyncio.Queue[Msg](WAITING_MAX)
    subscription = await js.call(
        f"API.CONSUMER.CREATE.{query.stream}",
        lambda _: client.consumers.subscribe(
            query.subjects,
            stream=query.stream,
            cb=arrived.put,
            ordered_consumer=True,
            idle_heartbeat=HEARTBEAT_S,
            config=config,
            pending_msgs_limit=WAITING_MAX,
            pending_bytes_limit=WAITING_BYTES_MAX,
        ),
    )
    try:
        while client is await js.client():
            try:
                async with asyncio.timeout(SILENCE_S):
                    message = await arrived.get()
            except TimeoutError:
                yield None, 0
                continue
            metadata = message.metadata
            name = metadata.consumer
            if metadata.sequence.consumer not in (count + 1, 1):
                return
            count = metadata.sequence.consumer
            # The library's next consumer begins with the first message if none was received from the one before.
            if metadata.sequence.stream > reached:
                reached = metadata.sequence.stream
                yield StoredMessage(message.subject, reached, message.headers or {}, message.data), metadata.num_pending
    finally:
        # The server would delete the consumer later, and has a limit of them. Nobody waits for the response.
        with suppress(NatsError, OSError):
            await subscription.unsubscribe()
            if name:
                await client.publish(js.full_subject(f"API.CONSUMER.DELETE.{query.stream}.{name}"))
