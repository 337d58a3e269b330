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
from nats.errors import TimeoutError as NothingCame
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from contextfold.fold.events import Event, from_json
from tests.stores.nats.history import Published
from tests.support.nats_servers import connected

BATCH = 500
ANSWER_S = 10.0
# Daemons that were killed may have published only a part; this bounds the wait for the rest.
CAUGHT_UP_S = 60.0
LOOKED_EVERY_S = 0.2

T = TypeVar("T")


@dataclass(slots=True)
class _Found:
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
    told = await jetstream.add_consumer(stream, config)
    left = told.num_pending or 0
    consumer = await jetstream.pull_subscribe_bind(told.name or "", stream)
    while left > 0:
        for message in await consumer.fetch(min(BATCH, left), timeout=ANSWER_S):
            left -= 1
            yield message
    await consumer.unsubscribe()
    await jetstream.delete_consumer(stream, told.name or "")


async def published(urls: Sequence[str] | str, prefix: str) -> dict[str, Published]:
    """Every session's events and states, by session id. A session state is written last, so it is read first."""
    connection = await connected(urls)
    found: dict[str, _Found] = {}
    try:
        states = messages(connection, f"{prefix}_state", policy=DeliverPolicy.LAST_PER_SUBJECT)
        async for message in states:
            match message.subject.split("."):
                case [_, _, _, session_id, "branches", branch_id] if message.data:
                    found.setdefault(session_id, _Found()).branches[branch_id] = json.loads(message.data)
                case [_, _, _, session_id, "meta", "session_state"] if message.data:
                    found.setdefault(session_id, _Found()).session_state = json.loads(message.data)
        async for message in messages(connection, f"{prefix}_events"):
            found.setdefault(message.subject.split(".")[3], _Found()).events.append(json.loads(message.data))
    finally:
        await connection.close()
    return {name: Published(each.events, each.branches, each.session_state) for name, each in found.items()}


async def _steadily(read: Callable[[], Awaitable[T]]) -> T:
    """Repeats a read until servers that have just come back have a leader and answer."""
    give_up_s = time.monotonic() + CAUGHT_UP_S
    while True:
        try:
            return await read()
        except (nats.errors.Error, TimeoutError, NothingCame):
            if time.monotonic() >= give_up_s:
                raise
        await asyncio.sleep(LOOKED_EVERY_S)


async def published_up_to(urls: Sequence[str] | str, prefix: str, wanted: Mapping[str, int]) -> dict[str, Published]:
    """Like `published`, once every session state is up to date; after a timeout, the current contents."""
    found: dict[str, Published] = {}
    give_up_s = time.monotonic() + CAUGHT_UP_S
    while time.monotonic() < give_up_s:
        found = await _steadily(lambda: published(urls, prefix))
        states = {name: (each.session_state or {}).get("revision") for name, each in found.items()}
        if states == dict(wanted):
            break
        await asyncio.sleep(LOOKED_EVERY_S)
    return found


async def logged(urls: Sequence[str] | str, prefix: str) -> tuple[dict[str, list[Event]], dict[str, list[str]]]:
    """The stored logs, message by message: events, and digests of operation ids, by session id."""
    return await _steadily(lambda: _logged(urls, prefix))


async def _logged(urls: Sequence[str] | str, prefix: str) -> tuple[dict[str, list[Event]], dict[str, list[str]]]:
    connection = await connected(urls)
    logs: dict[str, list[Event]] = {}
    committed: dict[str, list[str]] = {}
    try:
        told_before = await connection.jetstream(timeout=ANSWER_S).stream_info(f"{prefix}_log")
        read = 0
        async for message in messages(connection, f"{prefix}_log"):
            read += 1
            told = json.loads(message.data)
            logs.setdefault(told["session"], []).extend(from_json(json.dumps(event)) for event in told["events"])
            committed.setdefault(told["session"], []).extend(receipt[0] for receipt in told.get("receipts", ()))
        # The consumer is on a server that is not up to date yet.
        if read < told_before.state.messages:
            raise NothingCame
    finally:
        await connection.close()
    return logs, committed


async def subjects_of(urls: Sequence[str] | str, stream: str) -> list[str]:
    """The subjects of a stream that have messages."""
    connection = await connected(urls)
    try:
        told = await connection.jetstream(timeout=ANSWER_S).stream_info(stream, subjects_filter=">")
        return sorted(told.state.subjects or {})
    finally:
        await connection.close()


async def leader_of(urls: Sequence[str] | str, stream: str) -> str:
    """The name of the server that leads a stream, or "" if there is none."""
    connection = await connected(urls)
    try:
        async with asyncio.timeout(ANSWER_S):
            told = await connection.jetstream(timeout=ANSWER_S).stream_info(stream)
            return (told.cluster and told.cluster.leader) or ""
    except (nats.errors.Error, TimeoutError, NothingCame):
        return ""
    finally:
        await connection.close()
