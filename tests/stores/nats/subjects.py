"""Reads the subjects of an installation with a NATS client, without the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from contextfold.fold.events import Event, from_json
from tests.stores.nats.history_checker import Published
from tests.support.nats_servers import connect

BATCH = 500
ANSWER_S = 10.0
# Daemons that were killed may have published only a part; this bounds the wait for the rest.
CATCH_UP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.2

T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    events: list[Mapping[str, Any]] = field(default_factory=list)
    branches: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    session_state: Mapping[str, Any] | None = None


async def messages(
    connection: Client, stream: str, *, subject: str = ">", policy: DeliverPolicy = DeliverPolicy.ALL
) -> AsyncIterator[Msg]:
    """All messages of a stream that match a filter, or the last one of each subject."""
    config = ConsumerConfig(
        deliver_policy=policy,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=60,
        filter_subject=subject,
        mem_storage=True,
    )
    jetstream = connection.jetstream(timeout=ANSWER_S)
    consumer = await jetstream.add_consumer(stream, config)
    pending = consumer.num_pending or 0
    subscription = await jetstream.pull_subscribe_bind(consumer.name or "", stream)
    while pending > 0:
        for message in await subscription.fetch(min(BATCH, pending), timeout=ANSWER_S):
            pending -= 1
            yield message
    await subscription.unsubscribe()
    await jetstream.delete_consumer(stream, consumer.name or "")


async def published(urls: Sequence[str] | str, prefix: str) -> dict[str, Published]:
    """Every session's events and states, by session id. A session state is written last, so it is read first."""
    connection = await connect(urls)
    sessions: dict[str, _Session] = {}
    try:
        states = messages(connection, f"{prefix}_state", policy=DeliverPolicy.LAST_PER_SUBJECT)
        async for message in states:
            match message.subject.split("."):
                case [_, _, _, session_id, "branches", branch_id] if message.data:
                    sessions.setdefault(session_id, _Session()).branches[branch_id] = json.loads(message.data)
                case [_, _, _, session_id, "meta", "session_state"] if message.data:
                    sessions.setdefault(session_id, _Session()).session_state = json.loads(message.data)
        async for message in messages(connection, f"{prefix}_events"):
            sessions.setdefault(message.subject.split(".")[3], _Session()).events.append(json.loads(message.data))
    finally:
        await connection.close()
    return {name: Published(each.events, each.branches, each.session_state) for name, each in sessions.items()}


async def _with_retries(read: Callable[[], Awaitable[T]]) -> T:
    """Repeats a read until servers that have just restarted have a leader and answer."""
    deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S
    while True:
        try:
            return await read()
        except (nats.errors.Error, TimeoutError, NatsTimeout):
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(POLL_INTERVAL_S)


async def published_up_to(urls: Sequence[str] | str, prefix: str, wanted: Mapping[str, int]) -> dict[str, Published]:
    """Like `published`, once every session state is up to date; after a timeout, the current contents."""
    sessions: dict[str, Published] = {}
    deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S
    while time.monotonic() < deadline_s:
        sessions = await _with_retries(lambda: published(urls, prefix))
        states = {name: (each.session_state or {}).get("revision") for name, each in sessions.items()}
        if states == dict(wanted):
            break
        await asyncio.sleep(POLL_INTERVAL_S)
    return sessions


async def stored_logs(urls: Sequence[str] | str, prefix: str) -> tuple[dict[str, list[Event]], dict[str, list[str]]]:
    """The stored logs, message by message: events, and digests of operation ids, by session id."""
    return await _with_retries(lambda: _read_logs(urls, prefix))


async def _read_logs(urls: Sequence[str] | str, prefix: str) -> tuple[dict[str, list[Event]], dict[str, list[str]]]:
    connection = await connect(urls)
    logs: dict[str, list[Event]] = {}
    committed: dict[str, list[str]] = {}
    try:
        info = await connection.jetstream(timeout=ANSWER_S).stream_info(f"{prefix}_log")
        read = 0
        async for message in messages(connection, f"{prefix}_log"):
            read += 1
            record = json.loads(message.data)
            session_id = record["session"]
            logs.setdefault(session_id, []).extend(from_json(json.dumps(event)) for event in record["events"])
            committed.setdefault(session_id, []).extend(receipt[0] for receipt in record.get("receipts", ()))
        # The server of the consumer is not up to date yet.
        if read < info.state.messages:
            raise NatsTimeout
    finally:
        await connection.close()
    return logs, committed


async def subjects_of(urls: Sequence[str] | str, stream: str) -> list[str]:
    """The subjects of a stream that have messages."""
    connection = await connect(urls)
    try:
        info = await connection.jetstream(timeout=ANSWER_S).stream_info(stream, subjects_filter=">")
        return sorted(info.state.subjects or {})
    finally:
        await connection.close()


async def leader_of(urls: Sequence[str] | str, stream: str) -> str:
    """The name of the server that leads a stream, or "" if there is none."""
    connection = await connect(urls)
    try:
        async with asyncio.timeout(ANSWER_S):
            info = await connection.jetstream(timeout=ANSWER_S).stream_info(stream)
            return (info.cluster and info.cluster.leader) or ""
    except (nats.errors.Error, TimeoutError, NatsTimeout):
        return ""
    finally:
        await connection.close()
