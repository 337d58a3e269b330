"""The list of live sessions, from the last commit of each log and the published revision of each session.

It is used only for queries over several sessions. Before each it waits until everything is seen that was committed by
then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from contextfold.errors import StoreUnavailable
from contextfold.fold.ports.store import SessionKey
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames, unescaped
from contextfold.stores.nats.wire.records import LoggedCommit
from contextfold.stores.nats.wire.stream_reader import StreamQuery, follow
from contextfold.stores.nats.wire.tasks import end_tasks

REACH_TIMEOUT_S: Final = 5.0
# The last message may have been deleted before it was seen.
LOOK_AGAIN_S: Final = 0.5


class SessionTable:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names
        # The last commit of each key.
        self._rows: dict[SessionKey, LoggedCommit] = {}
        # Live sessions only.
        self._of_owner: dict[str, dict[SessionKey, LoggedCommit]] = defaultdict(dict)
        # The published revision, by owner, project and session.
        self._published: dict[tuple[str, ...], int] = {}
        self._reached = 0
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- following

    def start(self) -> None:
        if not self._tasks:
            names = self._names
            self._tasks = [
                asyncio.create_task(self._follow(names.log, names.every_log, self._note_log)),
                asyncio.create_task(self._follow(names.state, names.every_session_state, self._note_state)),
            ]

    async def stop(self) -> None:
        await end_tasks(*self._tasks)

    async def _follow(self, stream: str, subjects: str, note: Callable[[StoredMessage], None]) -> None:
        query = StreamQuery(stream, subjects, headers_only=True, last_of_each=True)
        async for stored in follow(self._js, query):
            # A subject that was not written by us.
            with suppress(ValueError):
                note(stored)
            async with self._changed:
                self._changed.notify_all()

    def _note_log(self, stored: StoredMessage) -> None:
        self._reached = max(self._reached, stored.seq)
        commit = records.logged(self._names.key_of(stored.subject), stored)
        if commit is not None:
            self.note(commit)

    def _note_state(self, stored: StoredMessage) -> None:
        session = tuple(map(unescaped, stored.subject.split(".")[-5:-2]))
        # The server's marker for an expired message has no revision.
        revision = records.number_in(stored.headers, records.REVISION)
        self._published[session] = max(revision, self._published.get(session, -1))

    def note(self, commit: LoggedCommit) -> None:
        """Note a commit that was seen or made."""
        key, before = commit.key, self._rows.get(commit.key)
        if before is not None and before.seq >= commit.seq:
            return
        self._rows[key] = commit
        if before is not None and before.session_id != commit.session_id:
            self._published.pop(_session(before), None)
        if commit.ended_at:
            self._of_owner[key.owner].pop(key, None)
        else:
            self._of_owner[key.owner][key] = commit

    def forget(self, row: LoggedCommit) -> None:
        """Forget an ended session whose last event was deleted."""
        if self._rows.get(row.key) == row:
            del self._rows[row.key]
            self._published.pop(_session(row), None)

    async def reach(self) -> None:
        """Wait until everything is seen that is committed now."""
        self.start()
        try:
            async with asyncio.timeout(REACH_TIMEOUT_S):
                while (last := await self._js.last(self._names.log, self._names.every_log)) is not None:
                    if self._reached >= last.seq:
                        return
                    await self.wait_for(lambda seq=last.seq: self._reached >= seq, LOOK_AGAIN_S)  # type: ignore[misc]
        except TimeoutError:
            raise StoreUnavailable("NATS: the list of sessions is behind") from None

    async def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(is_so)

    # ---- what is known

    def live(self, owner: str | None = None) -> Iterator[LoggedCommit]:
        owners = [self._of_owner.get(owner, {})] if owner is not None else list(self._of_owner.values())
        return (row for rows in owners for row in list(rows.values()))

    def ended(self) -> list[LoggedCommit]:
        return [row for row in self._rows.values() if row.ended_at]

    def behind(self) -> list[LoggedCommit]:
        """Live sessions that are not completely published, as far as this daemon knows."""
        return [row for row in self.live() if not self.is_published(row)]

    def is_published(self, row: LoggedCommit) -> bool:
        return self._published.get(_session(row), -1) >= row.revision


def _session(commit: LoggedCommit) -> tuple[str, ...]:
    return commit.key.owner, commit.key.project_hash, commit.session_id
