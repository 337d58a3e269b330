"""Results that requests leave out, on NATS: one message in the archive stream for each.

The decision is in the headers, so that a conversation's decisions are read without their texts. The server accepts a
message only if there is none yet for the same call and text, so the first daemon's decision is everybody's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Final

from contextfold.errors import StoreInvalid
from contextfold.fold.store import LeftOutDecision, LeftOutResult
from contextfold.fold.store_export import ExportedLeftOut
from contextfold.stores.nats import records
from contextfold.stores.nats.chunks import most_in_one, read_chunks, write_chunks
from contextfold.stores.nats.connection import OutcomeUnknown
from contextfold.stores.nats.jetstream import JetStream, SequenceConflict, StoredMessage
from contextfold.stores.nats.names import NOTHING, SubjectNames, escaped, unescaped
from contextfold.stores.nats.stream_reader import StreamQuery, read_to

AT_ONCE: Final = 16
TRIES: Final = 3
_HEADERS: Final = {field.name: f"Cf-{field.name.replace('_', '-').title()}" for field in fields(LeftOutDecision)}


class LeftOutResults:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names

    async def decisions(self, owner: str, conversation: str) -> list[LeftOutDecision]:
        subjects = f"{self._names.conversation(owner, conversation)}.left_out.>"
        return sorted([_decision(stored) async for stored in self._headers(subjects)], key=_order)

    async def keep(self, owner: str, conversation: str, items: Sequence[LeftOutResult]) -> None:
        subject = self._names.conversation(owner, conversation)
        for start in range(0, len(items), AT_ONCE):
            await asyncio.gather(*(self._keep(subject, item) for item in items[start : start + AT_ONCE]))

    async def text(self, owner: str, result_id: str) -> str | None:
        subjects = f"{self._names.archive}.{escaped(owner)}.{NOTHING}.*.left_out.*.{escaped(result_id)}"
        stored = await self._js.last(self._names.archive, subjects)
        return await self._text(stored) if stored else None

    async def retain(self, since: str) -> None:
        """Delete conversations whose last decision was before."""
        conversations: dict[str, list[StoredMessage]] = defaultdict(list)
        async for stored in self._headers(self._names.every_left_out):
            conversations[_conversation(stored)].append(stored)
        for subject, messages in conversations.items():
            if max(_decision(stored).decided_at for stored in messages) < since:
                # A decision that is made in this moment has a higher sequence and stays.
                below = max(stored.seq for stored in messages) + 1
                await self._js.purge(self._names.archive, f"{subject}.left_out.>", below=below)
                await self._js.purge(self._names.archive, f"{subject}.pieces.>", below=below)

    async def export(self) -> AsyncIterator[ExportedLeftOut]:
        listed = [stored async for stored in self._headers(self._names.every_left_out)]
        for header in sorted(listed, key=lambda stored: (*_owner_of(stored), *_order(_decision(stored)))):
            stored = await self._js.last(self._names.archive, header.subject)
            if stored is not None:
                result = LeftOutResult(_decision(stored), await self._text(stored))
                yield ExportedLeftOut(*_owner_of(stored), result)

    # ---- one message

    async def _headers(self, subjects: str) -> AsyncIterator[StoredMessage]:
        last = await self._js.last(self._names.archive, subjects)
        if last is not None:
            query = StreamQuery(self._names.archive, subjects, headers_only=True)
            async for stored in read_to(self._js, query, last.seq):
                yield stored

    async def _keep(self, conversation: str, item: LeftOutResult) -> None:
        decision = item.decision
        call = sha256(records.left_out_key(decision)).hexdigest()[:32]
        data = records.encode_left_out(item.text)
        if len(data) > most_in_one(self._js):
            data = records.encode_left_out_reference(await write_chunks(self._js, conversation, item.text.encode()))
        headers = {header: escaped(getattr(decision, name)) for name, header in _HEADERS.items()}
        for left in reversed(range(TRIES)):
            try:
                await self._js.put(
                    f"{conversation}.left_out.{call}.{escaped(decision.result_id)}",
                    data,
                    expected=0,
                    expected_of=f"{conversation}.left_out.{call}.*",
                    headers=headers,
                )
            except SequenceConflict:
                return
            except OutcomeUnknown:
                if not left:
                    raise
            else:
                return

    async def _text(self, stored: StoredMessage) -> str:
        text, chunks = records.left_out_from(stored.data)
        if chunks is None:
            return text
        return (await read_chunks(self._js, self._names.archive, _conversation(stored), chunks)).decode()


def _conversation(stored: StoredMessage) -> str:
    return ".".join(stored.subject.split(".")[:4])


def _owner_of(stored: StoredMessage) -> tuple[str, str]:
    """The owner and the conversation."""
    _, owner, _, conversation, *_ = stored.subject.split(".")
    return unescaped(owner), unescaped(conversation)


def _decision(stored: StoredMessage) -> LeftOutDecision:
    try:
        return LeftOutDecision(**{name: unescaped(stored.headers[header]) for name, header in _HEADERS.items()})
    except (KeyError, ValueError) as problem:
        raise StoreInvalid(f"NATS has a left-out result that cannot be read: {problem}") from problem


def _order(decision: LeftOutDecision) -> tuple[str, str]:
    return decision.call_id, decision.text_hash
