"""The export format: the whole content of a store as lines of JSON. Opens no file; docs/daemon.md describes it.

The order of lines is the same for every store, so two stores are equal if and only if their exports are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from contextfold.common.canonical import Encodable, Malformed, decode, encode
from contextfold.errors import ExportInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event, EventUnknown, from_members, members
from contextfold.fold.store import ArchivedResult, LeftOutDecision, ProxiedConversation, SessionKey, Summary

FORMAT: Final = "contextfold-export"
VERSION: Final = 4
# Version 1 had no conversations, version 2 no undone summaries and no origin of left-out results, version 3 no events
# of ended sessions.
VERSIONS_READ: Final = (1, 2, 3, VERSION)
KINDS: Final = ("session", "event", "receipt", "summary", "entry", "left_out", "conversation")

# The records in other records, by the names of their fields. Their members are written in their place.
_INNER: Final = {
    "key": SessionKey,
    "result": ArchivedResult,
    "decision": LeftOutDecision,
    "noted": ProxiedConversation,
}
# A summary belongs to the session before it. Which entries are undone follows from the rollbacks among them.
_NOT_WRITTEN: Final = {"summary": ("project_hash", "session_id"), "entry": ("undone",)}


class ExportedSession(NamedTuple):
    """A session. Its events, receipts, summaries and entries follow; only a live one has receipts.

    One that an earlier version ended has figures instead of events (`fold.ended_session`).
    """

    key: SessionKey
    session_id: str
    revision: int
    last_at: str
    ended_at: str | None
    figures: str

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


class ExportedReceipt(NamedTuple):
    """The receipt of an operation. `operation` is the SHA-256 of the operation id in hex."""

    operation: str
    fingerprint: str
    answer: str


class ExportedLeftOut(NamedTuple):
    """A left-out result of a conversation."""

    owner: str
    conversation: str
    result: ArchivedResult


class ExportedConversation(NamedTuple):
    """The last request of a proxied conversation and the outcomes of our calls in it."""

    owner: str
    conversation: str
    noted: ProxiedConversation


ExportRecord = (
    ExportedSession | Event | ExportedReceipt | Summary | ArchiveEntry | ExportedLeftOut | ExportedConversation
)


def entry_order(entry: ArchiveEntry) -> tuple[int, bool, str]:
    """The order of a session's entries: by event, the main thread first, then by branch."""
    return entry.n, entry.branch_id is not None, entry.branch_id or ""


_CLASSES: Final = {
    "session": ExportedSession,
    "receipt": ExportedReceipt,
    "summary": Summary,
    "entry": ArchiveEntry,
    "left_out": ExportedLeftOut,
    "conversation": ExportedConversation,
}
_KINDS_BY_CLASS: Final = {record: kind for kind, record in _CLASSES.items()}


def kind_of(record: ExportRecord) -> str:
    return _KINDS_BY_CLASS.get(type(record), "event")


def _members(record: Any) -> dict[str, Encodable]:  # noqa: ANN401 - any record
    """The members of a record, and in the place of a record in it the members of that."""
    found: dict[str, Encodable] = {}
    for name, value in record._asdict().items():
        found |= _members(value) if name in _INNER else {name: value}
    return found


def _from_members(record: type[Any], value: dict[str, Any]) -> Any:  # noqa: ANN401 - any record
    """The reverse of `_members`. Takes the members out of the value."""
    names = record._fields
    nested = {name: _from_members(_INNER[name], value) for name in names if name in _INNER}
    return record(**nested, **{name: value.pop(name) for name in names if name in value})


def encode_record(record: ExportRecord) -> bytes:
    kind = kind_of(record)
    value = dict(members(cast("Event", record))) if kind == "event" else _members(record)
    for name in _NOT_WRITTEN.get(kind, ()):
        del value[name]
    if isinstance(record, ExportedConversation):
        value["outcomes"] = list(map(list, record.noted.outcomes.items()))
        if not record.noted.cache_life_s:
            del value["cache_life_s"]
    return _line({kind: value})


def encode_header(counts: Mapping[str, int], made_at: str) -> bytes:
    return _line(
        {"format": FORMAT, "version": VERSION, "made_at": made_at, "counts": {kind: counts[kind] for kind in KINDS}}
    )


def encode_trailer(digest: str) -> bytes:
    return _line({"sha256": digest})


def hash_records(records: Iterable[ExportRecord], digest: hashlib._Hash) -> Iterator[ExportRecord]:
    """Yield the records and add each as a line to the digest, to compare two stores."""
    for record in records:
        digest.update(encode_record(record))
        yield record


def _expected_counts(line: bytes) -> Mapping[str, int]:
    """The counts in the header."""
    try:
        header = decode(line)
    except Malformed:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ExportInvalid("the file is not an export of contextfold")
    version, counts = header.get("version"), header.get("counts")
    if type(version) is int and version > VERSION:
        raise ExportInvalid(f"the file has export format {version}; this version of contextfold reads {VERSION}")
    kinds = {kind for kind in KINDS if kind != "conversation" or version != 1}
    if version not in VERSIONS_READ or not isinstance(counts, dict) or set(counts) != kinds:
        raise ExportInvalid("the header of the export file is damaged")
    return cast("Mapping[str, int]", counts)


def read_export(lines: Iterable[bytes]) -> Iterator[ExportRecord]:
    """The records of a complete, unaltered export. The last check is made after the last record."""
    counts: Counter[str] = Counter()
    session: ExportedSession | None = None
    expected: Mapping[str, int] | None = None
    digest = hashlib.sha256()
    trailer: str | None = None
    for number, line in enumerate(lines, 1):
        if trailer is not None:
            raise ExportInvalid("the export file has lines after its end")
        if not line.endswith(b"\n"):
            raise ExportInvalid("the export file ends in the middle of a line")
        if expected is None:
            expected = _expected_counts(line)
        else:
            kind, value = _decode_line(number, line)
            if kind == "sha256":
                trailer = str(value)
                continue
            counts[kind] += 1
            record = _record(number, kind, value, session)
            session = record if isinstance(record, ExportedSession) else session
            yield record
        digest.update(line)
    if trailer is None or expected is None:
        raise ExportInvalid("the export file ends before its last line")
    if trailer != digest.hexdigest() or any(counts[kind] != expected.get(kind, 0) for kind in KINDS):
        raise ExportInvalid("the export file was altered: its content does not match its checksum")


def _decode_line(number: int, line: bytes) -> tuple[str, Any]:
    try:
        value = decode(line)
    except Malformed as problem:
        raise ExportInvalid(f"line {number} of the export file is not JSON: {problem}") from problem
    if not isinstance(value, dict) or len(value) != 1 or not set(value) <= {*KINDS, "sha256"}:
        raise ExportInvalid(f"line {number} of the export file is of no known kind")
    return next(iter(value.items()))


def _record(number: int, kind: str, value: dict[str, Any], session: ExportedSession | None) -> ExportRecord:
    if session is None and kind not in ("session", "left_out", "conversation"):
        raise ExportInvalid(f"line {number} of the export file belongs to no session")
    try:
        if kind == "event":
            return from_members(value)
        if kind == "summary" and session is not None:
            value |= {"project_hash": session.key.project_hash, "session_id": session.session_id}
        if kind == "conversation":
            value["outcomes"] = dict(value["outcomes"])
        record: ExportRecord = _from_members(_CLASSES[kind], value)
    except (KeyError, TypeError, ValueError, AttributeError, EventUnknown) as problem:
        raise ExportInvalid(f"line {number} of the export file cannot be read: {problem}") from problem
    if value:
        raise ExportInvalid(f"line {number} of the export file has the unknown member {min(value)!r}")
    return record


def _line(value: Encodable) -> bytes:
    return encode(value).encode() + b"\n"
