"""A random history of calls has the same outcome on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import ArchivedThread, KnownRevision, StaleRevision, Store
from contextfold.stores.nats.store import NatsStore
from tests.contract.sessions import commit_of, key_of, summary_of, take, watching
from tests.contract.stores import options_on
from tests.support.machine import times
from tests.support.nats_servers import NatsServer, delete_streams
from tests.support.temporary_store import TemporaryStore

STEPS_MAX = 40
HOURS = [f"2026-01-{day:02}T{hour:02}:00:00Z" for day in (1, 2, 3) for hour in (0, 8, 16)]
KEYS = [
    key_of(project, owner=owner, name=name) for owner in ("ann", "bob") for project, name in (("p", ""), ("q", "n"))
]
BRANCHES = ["br_1", "br_2"]
WORDS = ["alpha", "beta", "alphabet", "Beta-gamma"]

# The first item is the name of a call, the others are its arguments.
Step = tuple[Any, ...]

keys = st.sampled_from(KEYS)
hours = st.sampled_from(HOURS)
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)

steps = st.one_of(
    st.tuples(
        st.just("commit"),
        keys,
        # This is the difference from the current revision.
        st.integers(-1, 1),
        st.integers(1, 3),
        st.one_of(st.none(), st.sampled_from(["op 1", "op 2"])),
        hours,
        st.sampled_from(BRANCHES),
        texts,
    ),
    st.tuples(st.just("load"), keys, st.integers(0, 4)),
    st.tuples(st.just("receipt"), keys, st.sampled_from(["op 1", "op 2"])),
    st.tuples(st.just("search"), keys, texts),
    st.tuples(st.just("trajectory"), keys, st.sampled_from(BRANCHES), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("ended"), keys),
    st.tuples(st.just("expire"), hours, hours),
    st.tuples(st.just("retain"), hours, hours),
)


async def _commit(store: Store, number: int, step: Step) -> object:
    _, key, offset, events, operation_id, at, branch_id, text = step
    log = await store.load(key)
    revision = len(log.events) if log else 0
    session_id = log.session_id if log else f"sess_{number}"
    expected = max(0, revision + offset)
    entry = ArchiveEntry(
        branch_id, expected + 1, at, "rollback" if "beta" in text else "prompt", text, undone_from=number
    )
    summary = summary_of(key, branch_id, text, session_id=session_id, at=at)
    commit = commit_of(
        key,
        expected,
        session_id=session_id,
        operation_id=operation_id or f"op of {number}",
        at=at,
        events=events,
        entries=[entry],
        summaries=[summary],
    )
    try:
        return await store.commit(commit)
    except StaleRevision:
        return "stale"


async def _do(store: Store, number: int, step: Step) -> object:
    outcome: object = None
    match step:
        case ("commit", *_):
            outcome = await _commit(store, number, step)
        case ("load", key, revision):
            log = await store.load(key)
            rest = await store.load(key, KnownRevision(log.session_id, revision)) if log else None
            outcome = log and rest and (log.session_id, list(log.events), list(rest.events))
        case ("receipt", key, operation_id):
            outcome = await store.receipt(key, operation_id)
        case ("search", key, text):
            summaries = await store.search(key.owner, text, key.project_hash, 100)
            # The ranking is left to each store.
            outcome = sorted(map(repr, summaries))
        case ("trajectory", key, branch_id, after_n, limit):
            part = await store.trajectory(
                ArchivedThread(key.owner, key.project_hash, branch_id), after_n=after_n, limit=limit
            )
            outcome = part and ([entry.n for entry in part.entries], sorted(part.rollbacks))
        case ("ended", key):
            ended = await store.ended_sessions(key.owner, limit=100)
            outcome = [(each, list(await store.ended_log(each.key, each.session_id))) for each in ended]
        case ("expire", idle_since, at):
            outcome = await store.expire(idle_since, at), await store.count()
        case ("retain", archive_since, summaries_since):
            await store.retain(archive_since, summaries_since)
    return outcome


async def _watched(store: Store, owner: str) -> list[object]:
    """Everything that a watcher from the beginning receives, up to a final event that is added here."""
    last = key_of("the last", owner=owner)
    await store.commit(commit_of(last, session_id="sess_last"))
    events: list[object] = []
    async with watching(store, owner, "0") as watch:
        for _ in range(STEPS_MAX * 4):
            (watched,) = await take(watch, 1)
            events.append((watched.key, watched.session_id, watched.event))
            if watched.key == last:
                break
    return events


async def _outcomes(store: Store, history: Sequence[Step]) -> list[object]:
    try:
        outcomes = [await _do(store, number, step) for number, step in enumerate(history)]
        return [*outcomes, await _watched(store, "ann"), await _watched(store, "bob")]
    finally:
        await store.close()


@settings(max_examples=times(40, 500))
@given(st.lists(steps, max_size=STEPS_MAX))
def test_sqlite_and_nats_agree_on_any_history(nats_server: NatsServer, history: list[Step]) -> None:
    options = options_on(nats_server)
    try:
        outcomes = asyncio.run(_outcomes(NatsStore(options), history))
    finally:
        asyncio.run(delete_streams(options))
    assert outcomes == asyncio.run(_outcomes(TemporaryStore(), history))
