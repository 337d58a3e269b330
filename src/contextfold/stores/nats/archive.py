"""The archive stream: trajectories, the summaries of branches, proxied conversations, and contents of any size.

A long content is stored as chunks, to which a record refers by a mark. Chunks are written before the record. The chunks
of a refused commit are never referred to, and are deleted with the archive of the session.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import Any, Final, NamedTuple

from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry, limit_characters
from contextfold.fold.store import (
    ArchivedResult,
    ArchivedThread,
    LeftOutDecision,
    ProxiedConversation,
    Summary,
    Trajectory,
)
from contextfold.fold.store_export import ExportedConversation, ExportedLeftOut
from contextfold.stores.nats import records
from contextfold.stores.nats.connection import in_batches
from contextfold.stores.nats.jetstream import (
    EXPECTED_OF,
    JetStream,
    StoredMessage,
    StreamQuery,
    new_mark,
    read_stored,
    stored_subjects,
)
from contextfold.stores.nats.records import ChunkReference
from contextfold.stores.nats.streams import NOTHING, SubjectNames, escape_part, session_part, unescape_part

CHUNK_BYTES: Final = 512 << 10
# This many chunks are written at once.
CHUNKS_AT_ONCE: Final = 8
# This many messages are read, and this many left-out results written, at once.
READS_AT_ONCE: Final = 32
RESULTS_AT_ONCE: Final = 16
_LAST_REQUEST_AT: Final = "Cf-Last-Request-At"
_HEADERS: Final = {name: f"Cf-{name.replace('_', '-').title()}" for name in LeftOutDecision._fields}
_NUMBERS: Final = ("tokens", "messages")


def message_bytes_max(js: JetStream) -> int:
    """The size of a message that every server accepts."""
    return min(CHUNK_BYTES, js.payload_max // 2 or CHUNK_BYTES)


async def write_chunks(js: JetStream, archived: str, data: bytes) -> ChunkReference:
    """Write chunks below the archive subject of a session or conversation."""
    size = message_bytes_max(js)
    starts = range(0, len(data), size)
    written = ChunkReference(new_mark(), len(starts))
    pieces = f"{archived}.pieces.{written.mark}"
    chunks = (js.put_last(f"{pieces}.{number}", data[at : at + size]) for number, at in enumerate(starts))
    await in_batches(chunks, CHUNKS_AT_ONCE)
    return written


async def read_chunks(js: JetStream, archived: str, chunks: ChunkReference) -> bytes:
    # The first part of a subject of the archive is the name of its stream.
    query = StreamQuery(archived.partition(".")[0], f"{archived}.pieces.{chunks.mark}.*")
    pieces = {int(stored.subject.rpartition(".")[2]): stored.data async for stored in read_stored(js, query)}
    if len(pieces) != chunks.count:
        raise StoreInvalid(f"NATS has {len(pieces)} of the {chunks.count} pieces of a text")
    return b"".join(pieces[number] for number in range(chunks.count))


@dataclass(slots=True)
class BranchSummary:
    """What the messages about a branch say together: its newest summary, and whether it was retracted after that."""

    subjects: set[str] = field(default_factory=set)
    summary: Summary | None = None
    revision: int = -1
    retracted: int = -1

    def add(self, stored: StoredMessage) -> None:
        self.subjects.add(stored.subject)
        revision = revision_of(stored)
        summary = records.parse_summary(stored.data)
        if summary is None:
            self.retracted = max(self.retracted, revision)
        elif revision > self.revision:
            self.summary, self.revision = summary, revision

    @property
    def current(self) -> Summary | None:
        if self.summary is None or self.retracted < self.revision:
            return self.summary
        return self.summary._replace(undone=True)


class _Item(NamedTuple):
    """What the subject of an archive message says about its entries, in the order in which they are read."""

    first: int
    revision: int
    subject: str
    has_rollback: bool


class ArchiveReader:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names

    async def trajectory(
        self, thread: ArchivedThread, *, after_n: int, limit: int, characters: int | None
    ) -> Trajectory | None:
        names = self._names
        if thread.branch_id is None:
            session = ".".join(map(escape_part, (thread.owner, thread.project_hash, thread.session_id)))
            subjects = f"{names.archive}.{session}.entries.{NOTHING}.>"
        else:
            subjects = names.archived_of(
                thread.owner, thread.project_hash, f"entries.b{escape_part(thread.branch_id)}.>"
            )
        items = sorted(map(_item, await stored_subjects(self._js, names.archive, subjects)))
        if not items:
            return None
        found = await in_batches((self._read(item.subject) for item in items if item.has_rollback), READS_AT_ONCE)
        rollbacks = [(entry.undone_from or 0, entry.n) for entry in chain(*found) if entry.kind == "rollback"]
        page: list[ArchiveEntry] = []
        later = _items_after(items, after_n)
        step = max(1, min(READS_AT_ONCE, limit))
        for start in range(0, len(later), step):
            # No later message has an entry before this one's first.
            sure = [entry for entry in page if entry.n < later[start].first]
            if len(sure) >= limit or sum(len(entry.text) for entry in sure) >= (characters or math.inf):
                page = sure
                break
            reads = (self._read(item.subject) for item in later[start : start + step])
            page += [entry for entry in chain(*await in_batches(reads, READS_AT_ONCE)) if entry.n > after_n]
            page.sort(key=lambda entry: entry.n)
        return Trajectory(list(limit_characters(page[: max(limit, 0)], characters)), sorted(rollbacks))

    async def _read(self, subject: str) -> list[ArchiveEntry]:
        """The entries of one message; none if it has just been deleted."""
        stored = await self._js.last(self._names.archive, subject)
        return await self.entries(stored) if stored else []

    async def entries(self, stored: StoredMessage) -> list[ArchiveEntry]:
        entries, chunks, positions = records.parse_archived(stored.data)
        if chunks is None:
            return entries
        all_entries = records.parse_entries(await read_chunks(self._js, session_part(stored.subject), chunks))
        return [all_entries[position] for position in positions]


def revision_of(stored: StoredMessage) -> int:
    """The revision of the commit that a message of the archive is from, which is the last part of its subject."""
    return int(stored.subject.rpartition(".")[2])


def _item(subject: str) -> _Item:
    first, kind, revision = subject.split(".")[-3:]
    return _Item(int(first), int(revision), subject, kind == "r")


def _items_after(items: Sequence[_Item], after_n: int) -> list[_Item]:
    """Those that may have an entry after `after_n`: of those that start before it, only the last of each session."""
    latest = {session_part(item.subject): item for item in items if item.first <= after_n}
    return [item for item in items if item.first > after_n or latest[session_part(item.subject)] is item]


class NatsConversations:
    """Proxied conversations: their left-out results, last request and call outcomes.

    A left-out result is one message. The decision is in the headers, so that a conversation's decisions are read
    without their texts. The server accepts a message only if there is none yet for the same call and text, so the
    first daemon's decision is everybody's. The last request and the outcomes are one message, replaced each time.
    """

    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names

    async def decisions(self, owner: str, conversation: str) -> list[LeftOutDecision]:
        subjects = f"{self._names.conversation(owner, conversation)}.left_out.>"
        return sorted([decision_of(stored) async for stored in self._headers(subjects)], key=_order)

    async def keep(self, owner: str, conversation: str, items: Sequence[ArchivedResult]) -> None:
        subject = self._names.conversation(owner, conversation)
        await in_batches((self._keep(subject, item) for item in items), RESULTS_AT_ONCE)

    async def text(self, owner: str, result_id: str) -> str | None:
        subjects = f"{self._names.archive}.{escape_part(owner)}.{NOTHING}.*.left_out.*.{escape_part(result_id)}"
        stored = await self._js.last(self._names.archive, subjects)
        return await self._text(stored) if stored else None

    async def read(self, owner: str, conversation: str) -> ProxiedConversation | None:
        stored = await self._js.last(self._names.archive, f"{self._names.conversation(owner, conversation)}.requests")
        return _parse(stored) if stored else None

    async def merge(self, owner: str, conversation: str, noted: ProxiedConversation) -> None:
        subject = f"{self._names.conversation(owner, conversation)}.requests"

        async def attempt() -> None:
            stored = await self._js.last(self._names.archive, subject)
            known = _parse(stored) if stored else None
            merged = known.merge(noted) if known else noted
            if merged == known:
                return
            headers = {_LAST_REQUEST_AT: merged.last_request_at}
            data = records.encode_conversation(merged)
            await self._js.put(subject, data, headers, expected=stored.seq if stored else 0)

        await self._js.repeat(attempt)

    async def retain(self, since: str) -> None:
        """Delete conversations whose last decision and last request were before."""
        for subject, messages in (await self.times()).items():
            if max(at for at, _ in messages) < since:
                # What is stored in this moment has a higher sequence and stays.
                below = max(seq for _, seq in messages) + 1
                for kind in ("left_out.>", "pieces.>", "requests"):
                    await self._js.purge(self._names.archive, f"{subject}.{kind}", below=below)

    async def times(self) -> dict[str, list[tuple[str, int]]]:
        """The times of every conversation, with the sequences of their messages, by its subject."""
        times: dict[str, list[tuple[str, int]]] = defaultdict(list)
        async for stored in self._headers(self._names.every_left_out):
            times[session_part(stored.subject)].append((decision_of(stored).decided_at, stored.seq))
        async for stored in self._headers(self._names.every_conversation):
            times[session_part(stored.subject)].append((stored.headers.get(_LAST_REQUEST_AT, ""), stored.seq))
        return times

    async def export(self) -> AsyncGenerator[ExportedLeftOut | ExportedConversation]:
        results = [stored async for stored in self._headers(self._names.every_left_out)]
        for header in sorted(results, key=lambda stored: (*_owner_of(stored), *_order(decision_of(stored)))):
            stored = await self._js.last(self._names.archive, header.subject)
            if stored is not None:
                result = ArchivedResult(decision_of(stored), await self._text(stored))
                yield ExportedLeftOut(*_owner_of(stored), result)
        conversations = [stored async for stored in self._headers(self._names.every_conversation)]
        for header in sorted(conversations, key=_owner_of):
            stored = await self._js.last(self._names.archive, header.subject)
            if stored is not None:
                yield ExportedConversation(*_owner_of(stored), _parse(stored))

    # ---- one message

    def _headers(self, subjects: str) -> AsyncIterator[StoredMessage]:
        return read_stored(self._js, StreamQuery(self._names.archive, subjects, headers_only=True))

    async def _keep(self, conversation: str, item: ArchivedResult) -> None:
        decision = item.decision
        call = sha256(records.left_out_key(decision)).hexdigest()[:32]
        data = records.encode_left_out(item.text)
        if len(data) > message_bytes_max(self._js):
            chunks = await write_chunks(self._js, conversation, item.text.encode())
            data = records.encode_reference("texts", chunks)
        headers = {header: escape_part(str(getattr(decision, name))) for name, header in _HEADERS.items()}
        results = f"{conversation}.left_out.{call}"
        subject = f"{results}.{escape_part(decision.result_id)}"
        await self._js.put_once(self._names.archive, subject, data, {EXPECTED_OF: f"{results}.*", **headers})

    async def _text(self, stored: StoredMessage) -> str:
        text, chunks = records.parse_left_out(stored.data)
        if chunks is None:
            return text
        return (await read_chunks(self._js, session_part(stored.subject), chunks)).decode()


def _owner_of(stored: StoredMessage) -> tuple[str, str]:
    """The owner and the conversation."""
    _, owner, _, conversation, *_ = stored.subject.split(".")
    return unescape_part(owner), unescape_part(conversation)


def decision_of(stored: StoredMessage) -> LeftOutDecision:
    """The decision in the headers of a message. Earlier versions stored fewer of its members."""
    given = {name: stored.headers[header] for name, header in _HEADERS.items() if header in stored.headers}
    try:
        members: dict[str, Any] = {
            name: int(value) if name in _NUMBERS else unescape_part(value) for name, value in given.items()
        }
        return LeftOutDecision(**members)
    except (TypeError, ValueError) as problem:
        raise StoreInvalid(f"NATS has a left-out result that cannot be read: {problem}") from problem


def _parse(stored: StoredMessage) -> ProxiedConversation:
    return records.parse_conversation(stored.headers.get(_LAST_REQUEST_AT, ""), stored.data)


def _order(decision: LeftOutDecision) -> tuple[str, str]:
    return decision.call_id, decision.text_hash
