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

from contextfold.common.dataclass import dataclass
from contextfold.errors import StoreUnavailable
from contextfold.fold.ports.store import SessionKey
from contextfold.stores.nats.wire import records
from contextfold.stores.nats.wire.jetstream import JetStream, StoredMessage
from contextfold.stores.nats.wire.names import SubjectNames
from contextfold.stores.nats.wire.stream_reader import StreamQuery, follow
from contextfold.stores.nats.wire.tasks import end_tasks

REACH_TIMEOUT_S: Final = 5.0
# The last message may have been deleted before it was seen.
LOOK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The last commit of a key. `subject` is the session's; `ended_at` is set if the commit is its end."""

    key: SessionKey
    session_id: str
    revision: int
    last_at: str
    seq: int
    subject: str
    ended_at: str = ""


class SessionTable:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names
        self._rows: dict[SessionKey, SessionRow] = {}
        # Live sessions only.
        self._of_owner: dict[str, dict[SessionKey, SessionRow]] = defaultdict(dict)
        # The revision, by the session's subject.
        self._published: dict[str, int] = {}
        # Live sessions that are not completely published, by the session's subject.
        self._behind: dict[str, SessionRow] = {}
        self._reached = 0
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- following

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._follow_logs(), name="contextfold-logs"),
                asyncio.create_task(self._follow_states(), name="contextfold-states"),
            ]

    async def stop(self) -> None:
        await end_tasks(*self._tasks)

    async def _follow_logs(self) -> None:
        reading = StreamQuery(self._names.log, self._names.every_log, headers_only=True, last_of_each=True)
        async for stored in follow(self._js, reading):
            # A subject that was not written by us.
            with suppress(ValueError):
                self.note(self._names.key_of(stored.subject), stored)
            self._reached = max(self._reached, stored.seq)
            async with self._changed:
                self._changed.notify_all()

    async def _follow_states(self) -> None:
        reading = StreamQuery(self._names.state, self._names.every_session_state, headers_only=True, last_of_each=True)
        async for stored in follow(self._js, reading):
            session = stored.subject.removesuffix(".meta.session_state")
            # The server's marker for an expired message has no revision.
            revision = records.revision_in(stored.headers)
            self._published[session] = max(revision, self._published.get(session, -1))
            if session in self._behind and self.is_published(self._behind[session]):
                del self._behind[session]
            async with self._changed:
                self._changed.notify_all()

    def note(self, key: SessionKey, stored: StoredMessage) -> None:
        """Note a commit that was seen or made."""
        before = self._rows.get(key)
        if (before is not None and before.seq >= stored.seq) or not records.is_ours(stored.headers):
            return
        headers = stored.headers
        row = SessionRow(
            key,
            records.session_in(headers),
            int(headers[records.REVISION]),
            headers[records.LAST_AT],
            stored.seq,
            self._names.session(key, records.session_in(headers)),
            headers.get(records.ENDED, ""),
        )
        self._rows[key] = row
        if before is not None and before.subject != row.subject:
            self._published.pop(before.subject, None)
            self._behind.pop(before.subject, None)
        if row.ended_at or self.is_published(row):
            self._behind.pop(row.subject, None)
        else:
            self._behind[row.subject] = row
        if row.ended_at:
            self._of_owner[key.owner].pop(key, None)
        else:
            self._of_owner[key.owner][key] = row

    def forget(self, row: SessionRow) -> None:
        """Forget an ended session whose last event was deleted."""
        if self._rows.get(row.key) == row:
            del self._rows[row.key]
            self._published.pop(row.subject, None)

    async def reach(self) -> None:
        """Wait until everything is seen that is committed now."""
        last = await self._js.last(self._names.log, self._names.every_log)
        self.start()
        until = asyncio.get_running_loop().time() + REACH_TIMEOUT_S
        while last is not None and self._reached < last.seq:
            if asyncio.get_running_loop().time() >= until:
                raise StoreUnavailable("NATS: the list of sessions is behind")
            await self.wait_for(lambda seq=last.seq: self._reached >= seq, LOOK_AGAIN_S)  # type: ignore[misc]
            last = await self._js.last(self._names.log, self._names.every_log)

    async def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(is_so)

    # ---- what is known

    def live(self, owner: str | None = None) -> Iterator[SessionRow]:
        owners = [self._of_owner.get(owner, {})] if owner is not None else list(self._of_owner.values())
        return (row for rows in owners for row in list(rows.values()))

    def count(self, owner: str | None = None) -> int:
        if owner is not None:
            return len(self._of_owner.get(owner, {}))
        return sum(map(len, self._of_owner.values()))

    def find(self, owner: str, session_id: str) -> SessionRow | None:
        return next((row for row in self.live(owner) if row.session_id == session_id), None)

    def ended(self) -> list[SessionRow]:
        return [row for row in self._rows.values() if row.ended_at]

    def behind(self) -> list[SessionRow]:
        """Live sessions that are not completely published, as far as this daemon knows."""
        return list(self._behind.values())

    def is_published(self, row: SessionRow) -> bool:
        return self._published.get(row.subject, -1) >= row.revision
