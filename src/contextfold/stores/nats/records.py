"""Encoding of what is stored on NATS: commits, archive, and the states and events that other programs watch.

Pure. The core of a commit is its events, receipts and summaries. Its texts go to the archive and are read separately,
because they may be long and are not needed to load a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Final

from contextfold.common.canonical import Encodable, Malformed, decode, encode
from contextfold.errors import StoreInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event, EventUnknown, SessionExpired, from_members, members
from contextfold.fold.session import Branch, State
from contextfold.fold.store import (
    Commit,
    CommitReceipt,
    LeftOutDecision,
    ProxiedConversation,
    SessionKey,
    Summary,
    hash_operation_id,
)
from contextfold.fold.store_export import ExportedSession
from contextfold.stores.nats.jetstream import StoredMessage
from contextfold.stores.nats.streams import escape_part, unescape_part

FORMAT: Final = 1
# The most characters of a published text. The complete text is in the archive.
PUBLISHED_MAX: Final = 64_000
CUT: Final = "…"

# The value of this header is escaped as in a subject.
SESSION: Final = "Cf-Session"
BEFORE: Final = "Cf-Before"
REVISION: Final = "Cf-Revision"
LAST_AT: Final = "Cf-Last-At"
ENDED: Final = "Cf-Ended"

_SUMMARY: Final = Summary._fields
_COUNTS: Final = ("tokens", "operations", "failed", "redactions")
_BRANCH: Final = ("id", "description", "prompt", "parent_id", "status", "created_at", *_COUNTS)
_ENDED: Final = ("session_id", "revision", "last_at", "ended_at", "figures")


@dataclass(frozen=True, slots=True)
class ChunkReference:
    """A long content that is stored as chunks."""

    mark: str
    count: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit as stored in the log. Receipts are by the digest of their operation id; long entries are in chunks."""

    session_id: str
    before: int
    events: Sequence[Event]
    receipts: Mapping[str, CommitReceipt]
    summaries: Sequence[Summary] = ()
    retracted: Sequence[str] = ()
    entries: Sequence[ArchiveEntry] = ()
    texts: ChunkReference | None = None
    # The last activity, if it is not the time of an event: in a session that is imported.
    last_at: str = ""

    @property
    def revision(self) -> int:
        return self.before + len(self.events)

    @property
    def is_end(self) -> bool:
        return isinstance(self.events[-1], SessionExpired)

    def to_logged(self, key: SessionKey, active_before: str) -> LoggedCommit:
        """The commit as its headers describe it, in a session whose last activity before it was then."""
        times = [event.at for event in self.events if not self.is_end]
        last_at = self.last_at or max([active_before, *times])
        ended_at = self.events[-1].at if self.is_end else ""
        return LoggedCommit(key, self.session_id, self.before, self.revision, last_at, ended_at)


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A message of a log, as its headers describe it. `ended_at` is set if the commit is the end of its session.

    The data is there if the message was read with it.
    """

    key: SessionKey
    session_id: str
    before: int
    revision: int
    last_at: str
    ended_at: str
    seq: int = 0
    data: bytes = field(default=b"", repr=False)

    def headers(self) -> dict[str, str]:
        headers = {
            SESSION: escape_part(self.session_id),
            BEFORE: str(self.before),
            REVISION: str(self.revision),
            LAST_AT: self.last_at,
        }
        return headers | ({ENDED: self.ended_at} if self.ended_at else {})


def parse_logged(key: SessionKey, stored: StoredMessage) -> LoggedCommit | None:
    """Read the headers of a message in a log; None if it is no commit of this program."""
    headers = stored.headers
    before, revision = header_number(headers, BEFORE), header_number(headers, REVISION)
    if before < 0 or revision < 0 or SESSION not in headers or LAST_AT not in headers:
        return None
    session_id, ended_at = unescape_part(headers[SESSION]), headers.get(ENDED, "")
    return LoggedCommit(key, session_id, before, revision, headers[LAST_AT], ended_at, stored.seq, stored.data)


def header_number(headers: Mapping[str, str], name: str) -> int:
    """The number in a header; -1 if there is none."""
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


def record_of(commit: Commit) -> CommitRecord:
    operation = commit.operation
    receipts = (
        {hash_operation_id(operation.id).hex(): CommitReceipt(operation.fingerprint, commit.answer)}
        if operation
        else {}
    )
    return CommitRecord(
        commit.session_id,
        commit.expected_revision,
        commit.events,
        receipts,
        commit.summaries,
        commit.retracted,
        commit.entries,
    )


# ---- the log


def encode_core(record: CommitRecord) -> bytes:
    """The commit with its texts, or with a reference to them if they are in chunks."""
    document: dict[str, Encodable] = {
        "format": FORMAT,
        "session": record.session_id,
        "before": record.before,
        "events": [members(event) for event in record.events],
    }
    optional: dict[str, Encodable] = {
        "receipts": [[digest, each.fingerprint, each.answer] for digest, each in record.receipts.items()],
        "summaries": [list(_summary_members(summary).values()) for summary in record.summaries],
        "retracted": list(record.retracted),
        "entries": [] if record.texts else _rows(record.entries),
        "texts": [record.texts.mark, record.texts.count] if record.texts else [],
    }
    return _to_bytes(document | {name: value for name, value in optional.items() if value})


def encode_entries(entries: Sequence[ArchiveEntry]) -> bytes:
    return _to_bytes(_rows(entries))


def _rows(entries: Sequence[ArchiveEntry]) -> list[Encodable]:
    # The last member says whether the entry is undone, which follows from the other entries.
    return [entry[:-1] for entry in entries]


def encode_reference(member: str, chunks: ChunkReference, **others: Encodable) -> bytes:
    """What is stored instead of a content that is in chunks."""
    return _to_bytes({"format": FORMAT, member: [chunks.mark, chunks.count], **others})


def parse_record(data: bytes) -> CommitRecord | ChunkReference:
    """The commit, or the chunks that have it if it is too long for one message."""
    with _report_unreadable():
        document = _parse_object(data)
        return _parse_reference(document, "core") or CommitRecord(
            document["session"],
            document["before"],
            [from_members(each) for each in document["events"]],
            {
                digest: CommitReceipt(fingerprint, answer)
                for digest, fingerprint, answer in document.get("receipts", ())
            },
            [Summary(*each) for each in document.get("summaries", ())],
            list(document.get("retracted", ())),
            list(starmap(ArchiveEntry, document.get("entries", ()))),
            _parse_reference(document, "texts"),
        )


def parse_entries(data: bytes) -> list[ArchiveEntry]:
    with _report_unreadable():
        return list(starmap(ArchiveEntry, _parse_list(data)))


# ---- the archive


def encode_archived(entries: Sequence[ArchiveEntry]) -> bytes:
    return _to_bytes({"format": FORMAT, "entries": _rows(entries)})


def parse_archived(data: bytes) -> tuple[list[ArchiveEntry], ChunkReference | None, Sequence[int]]:
    """The entries; or the chunks that have the entries of all threads, and the positions of these among them."""
    with _report_unreadable():
        document = _parse_object(data)
        chunks = _parse_reference(document, "texts")
        if chunks:
            return [], chunks, document["places"]
        return list(starmap(ArchiveEntry, document["entries"])), None, ()


def encode_summary(summary: Summary) -> bytes:
    return _to_bytes({"format": FORMAT, **_summary_members(summary)})


def _summary_members(summary: Summary) -> dict[str, Encodable]:
    """The members of a summary. `undone` is written only if it is true, so that earlier versions can read the rest."""
    return {name: getattr(summary, name) for name in _SUMMARY if name != "undone" or summary.undone}


RETRACTED: Final = b'{"format":1,"retracted":true}'


def parse_summary(data: bytes) -> Summary | None:
    """Decode a summary; None if it was retracted."""
    with _report_unreadable():
        document = _parse_object(data)
        if document.get("retracted") is True:
            return None
        return Summary(**{name: document[name] for name in _SUMMARY if name != "undone" or name in document})


def encode_ended(session: ExportedSession, log: ChunkReference | None) -> bytes:
    """An ended session, with a reference to its log. One that an earlier version ended has figures instead."""
    document: dict[str, Encodable] = {"format": FORMAT, **session.key._asdict()}
    document |= {name: getattr(session, name) for name in _ENDED}
    if log:
        document["log"] = [log.mark, log.count]
    return _to_bytes(document)


def parse_ended(data: bytes) -> ExportedSession:
    with _report_unreadable():
        document = _parse_object(data)
        # The first versions did not record the figures.
        document.setdefault("figures", "")
        key = SessionKey(*(document[name] for name in SessionKey._fields))
        return ExportedSession(key, *(document[name] for name in _ENDED))


def ended_log(data: bytes) -> ChunkReference | None:
    """The chunks of the log of an ended session; None if an earlier version deleted the log."""
    with _report_unreadable():
        return _parse_reference(_parse_object(data), "log")


def encode_log(events: Sequence[Event]) -> bytes:
    return _to_bytes([members(event) for event in events])


def parse_log(data: bytes) -> list[Event]:
    with _report_unreadable():
        return list(map(from_members, _parse_list(data)))


# ---- proxied conversations


def left_out_key(decision: LeftOutDecision) -> bytes:
    return _to_bytes([decision.call_id, decision.text_hash])


def encode_left_out(text: str) -> bytes:
    return _to_bytes({"format": FORMAT, "text": text})


def parse_left_out(data: bytes) -> tuple[str, ChunkReference | None]:
    """The text, or the reference to its chunks."""
    with _report_unreadable():
        document = _parse_object(data)
        chunks = _parse_reference(document, "texts")
        return ("", chunks) if chunks else (document["text"], None)


def encode_conversation(noted: ProxiedConversation) -> bytes:
    """All but the time of the last request, which is in a header."""
    outcomes = [list(pair) for pair in noted.outcomes.items()]
    return _to_bytes({"format": FORMAT, "outcomes": outcomes, "cache_life_s": noted.cache_life_s})


def parse_conversation(last_request_at: str, data: bytes) -> ProxiedConversation:
    with _report_unreadable():
        document = _parse_object(data)
        # Earlier versions did not store the cache's life.
        return ProxiedConversation(last_request_at, dict(document["outcomes"]), int(document.get("cache_life_s", 0)))


# ---- what other programs watch


def encode_event(session_id: str, event: Event) -> bytes:
    document = members(event)
    return _to_bytes({"event": document.pop("event"), "session_id": session_id, **_shorten(document)})


def encode_branch(branch: Branch, prompt: str, summary: str, revision: int) -> bytes:
    """The published document of a branch. A closed branch has more members than an open one."""
    known = branch._asdict() | {"prompt": prompt}
    document = {name: known[name] for name in _BRANCH}
    if branch.status == "folded":
        document |= {"folded_at": branch.closed_at, "summary": summary, "tokens_folded": branch.tokens}
    elif branch.status == "discarded":
        document |= {"discarded_at": branch.closed_at}
    return _to_bytes({**_shorten(document), "revision": revision})


def encode_session(state: State) -> bytes:
    active = state.active
    document: dict[str, Encodable] = {
        "session_id": state.session_id,
        "project_path": state.project_path,
        "name": state.name,
        "active_branch_id": active.id if active else None,
        "branch_depth": state.depth,
        "branch_path": ["main", *state.path],
        "total_tokens": state.total_tokens,
        "main_thread_tokens": state.main.tokens,
        "current_branch_tokens": active.tokens if active else 0,
        "folded_tokens": state.folded_tokens,
        "started_at": state.started_at,
        "last_at": state.last_at,
        "revision": state.revision,
    }
    return _to_bytes(document)


def _shorten(document: Mapping[str, Encodable]) -> dict[str, Encodable]:
    return {
        name: value[:PUBLISHED_MAX] + CUT if isinstance(value, str) and len(value) > PUBLISHED_MAX else value
        for name, value in document.items()
    }


# ---- JSON


def _to_bytes(value: Encodable) -> bytes:
    return encode(value).encode()


def _parse_list(data: bytes) -> list[Any]:
    value = decode(data)
    if not isinstance(value, list):
        raise TypeError("it is not a list")
    return value


def _parse_object(data: bytes) -> dict[str, Any]:
    document = decode(data)
    if not isinstance(document, dict) or type(document.get("format")) is not int or document["format"] < 1:
        raise ValueError("it has no format")
    if document["format"] > FORMAT:
        raise StoreInvalid(
            f"NATS has a record of format {document['format']}, from a newer version; this one reads {FORMAT}"
        )
    return document


def _parse_reference(document: Mapping[str, Any], member: str) -> ChunkReference | None:
    return ChunkReference(*document[member]) if member in document else None


@contextmanager
def _report_unreadable() -> Iterator[None]:
    """Report whatever is wrong with a record as StoreInvalid."""
    try:
        yield
    except (KeyError, TypeError, ValueError, EventUnknown, Malformed) as problem:
        reason = f"NATS has a record that cannot be read: {type(problem).__name__} {problem}"
        raise StoreInvalid(reason[:300]) from problem
