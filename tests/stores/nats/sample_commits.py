"""Sample commits for the tests of the NATS store, and what is stored on its subjects."""

from __future__ import annotations

import json
from typing import Any

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import (
    BranchCreated,
    BranchFolded,
    Event,
    OperationCompleted,
    SessionStarted,
    members,
)
from contextfold.fold.store import Commit, SessionKey
from contextfold.settings import NatsOptions
from contextfold.stores.nats.jetstream import JetStream, StoredMessage, StreamQuery, read_to
from contextfold.stores.nats.store import NatsStore
from contextfold.stores.nats.streams import SubjectNames, prepare_streams
from tests.contract.sessions import NOON, key_of, summary_of

KEY = key_of()
Pair = tuple[NatsStore, NatsStore]


async def stored_messages(options: NatsOptions, stream: str, subjects: str) -> list[StoredMessage]:
    """Everything that is stored on these subjects of a stream."""
    wire = JetStream(options, prepare_streams)
    try:
        await wire.open()
        last = await wire.last(stream, subjects)
        return [each async for each in read_to(wire, StreamQuery(stream, subjects), last.seq)] if last else []
    finally:
        await wire.close()


def parsed(stored: StoredMessage) -> Any:
    return json.loads(stored.data)


def branch_commits(key: SessionKey, session_id: str = "sess_1") -> list[Commit]:
    """A session in four commits, as the service makes them."""
    events: list[list[Event]] = [
        [
            SessionStarted(1, NOON, session_id, "/work/project", None),
            BranchCreated(2, NOON, "br_1", None, "Look", "Look into it.", 4, 0),
        ],
        [OperationCompleted(3, NOON, "br_1", "tool", 10, "hook", failed=False, redactions=0)],
        [BranchFolded(4, NOON, "br_1", "Found it", 2, 14, 0, forced=False)],
        [OperationCompleted(5, NOON, None, "tool", 3, "hook", failed=True, redactions=1)],
    ]
    texts = [ArchiveEntry("br_1", 2, NOON, "prompt", "Look into it."), ArchiveEntry("br_1", 3, NOON, "operation", "ls")]
    summary = summary_of(key, "br_1", "Found it", session_id=session_id)
    return [
        Commit(key, session_id, 0, events[0], None, "", texts[:1]),
        Commit(key, session_id, 2, events[1], None, "", texts[1:]),
        Commit(key, session_id, 3, events[2], None, "", [], [summary]),
        Commit(key, session_id, 4, events[3], None, "", []),
    ]


async def check_published(options: NatsOptions, session_id: str = "sess_1") -> None:
    """Checks that everything of a session is published once and in order."""
    names = SubjectNames(options.prefix)
    session = names.session(KEY, session_id)
    seen = [parsed(each) for each in await stored_messages(options, names.events, f"{session}.events.>")]
    expected = [
        members(event) | {"session_id": session_id}
        for commit in branch_commits(KEY, session_id)
        for event in commit.events
    ]
    assert seen == expected
    (branch,) = await stored_messages(options, names.state, f"{session}.branches.>")
    assert parsed(branch).items() >= {"id": "br_1", "status": "folded", "summary": "Found it", "tokens": 14}.items()
    (state,) = await stored_messages(options, names.state, f"{session}.meta.>")
    assert parsed(state).items() >= {"revision": 5, "main_thread_tokens": 5, "active_branch_id": None}.items()
    assert len(await stored_messages(options, names.archive, f"{names.archived(KEY, session_id)}.entries.>")) == 2
    assert len(await stored_messages(options, names.archive, f"{names.archived(KEY, session_id)}.summaries.>")) == 1
