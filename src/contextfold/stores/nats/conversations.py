"""Proxied conversations on NATS, in the archive stream: their left-out results, last request and call outcomes.

A left-out result is one message. The decision is in the headers, so that a conversation's decisions are read without
their texts. The server accepts a message only if there is none yet for the same call and text, so the first daemon's
decision is everybody's. The last request and the outcomes are one more message, replaced with each request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from hashlib import sha256
from typing import Any, Final

from contextfold.errors import StoreInvalid, StoreUnavailable
from contextfold.fold.store import ArchivedResult, LeftOutDecision, ProxiedConversation
from contextfold.fold.store_export import ExportedConversation, ExportedLeftOut
from contextfold.stores.nats import records
from contextfold.stores.nats.archive import message_bytes_max, read_chunks, write_chunks
from contextfold.stores.nats.connection import in_batches
from contextfold.stores.nats.jetstream import JetStream, SequenceConflict, StoredMessage, StreamQuery, read_stored
from contextfold.stores.nats.streams import NOTHING, SubjectNames, escape_part, session_part, unescape_part

AT_ONCE: Final = 16
_LAST_REQUEST_AT: Final = "Cf-Last-Request-At"
_HEADERS: Final = {name: f"Cf-{name.replace('_', '-').title()}" for name in LeftOutDecision._fields}
_NUMBERS: Final = ("tokens", "messages")


class NatsConversations:
    def __init__(self, js: JetStream, names: SubjectNames) -> None:
        self._js = js
        self._names = names

    async def decisions(self, owner: str, conversation: str) -> list[LeftOutDecision]:
        subjects = f"{self._names.conversation(owner, conversation)}.left_out.>"
        return sorted([decision_of(stored) async for stored in self._headers(subjects)], key=_order)

    async def keep(self, owner: str, conversation: str, items: Sequence[ArchivedResult]) -> None:
        subject = self._names.conversation(owner, conversation)
        await in_batches((self._keep(subject, item) for item in items), AT_ONCE)

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
            try:
                await self._js.put(subject, data, expected=stored.seq if stored else 0, headers=headers)
            except SequenceConflict as problem:
                raise StoreUnavailable("NATS: many daemons write to one conversation") from problem

        await self._js.repeat(attempt)

    async def retain(self, since: str) -> None:
        """Delete conversations whose last decision and last request were before."""
        times: dict[str, list[tuple[str, int]]] = defaultdict(list)
        async for stored in self._headers(self._names.every_left_out):
            times[session_part(stored.subject)].append((decision_of(stored).decided_at, stored.seq))
        async for stored in self._headers(self._names.every_conversation):
            times[session_part(stored.subject)].append((stored.headers.get(_LAST_REQUEST_AT, ""), stored.seq))
        for subject, messages in times.items():
            if max(at for at, _ in messages) < since:
                # What is stored in this moment has a higher sequence and stays.
                below = max(seq for _, seq in messages) + 1
                for kind in ("left_out.>", "pieces.>", "requests"):
                    await self._js.purge(self._names.archive, f"{subject}.{kind}", below=below)

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
        await self._js.put_once(self._names.archive, subject, data, expected_of=f"{results}.*", headers=headers)

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
