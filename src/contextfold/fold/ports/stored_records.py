"""The records that a store returns: sessions, summaries, trajectories, left-out results, what recall finds.

They are apart from the port because most commands only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event
from contextfold.fold.recall.ranking import RankedFold, RecallRanking

# The owner of what commands and a daemon without tokens do.
LOCAL_OWNER = "local"
# The most summaries that one search returns.
SEARCH_MOST = 1_000


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Identifies the live session of a project. Project and name are hashes, so any path or name is a safe key.

    `name_hash` is empty for the project's default session.
    """

    owner: str
    project_hash: str
    name_hash: str


@dataclass(frozen=True, slots=True)
class KnownRevision:
    """The part of a log that the caller already has and that `load` may leave out."""

    session_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class SessionLog:
    """The events of a session: those after the known revision if the session is the same, otherwise all."""

    session_id: str
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A live session in a list."""

    key: SessionKey
    session_id: str
    last_at: str


@dataclass(frozen=True, slots=True)
class EndedSession:
    """An ended session in a list.

    `figures` is its last state as JSON, as `stores.session_document` writes it. It is empty for a session that was
    ended by a version that did not record it.
    """

    key: SessionKey
    session_id: str
    last_at: str
    ended_at: str
    figures: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A folded branch in the main collection.

    `undone` says that a rollback took the fold back, or discarded the branch before it was folded. Such a summary is
    found by a recall that asks for it and by nothing else.
    """

    project_hash: str
    project_path: str
    session_id: str
    branch_id: str
    description: str
    summary: str
    tokens_folded: int
    folded_at: str
    undone: bool = False


@dataclass(frozen=True, slots=True)
class ArchivedThread:
    """A branch, or the main thread of a session if `branch_id` is None."""

    owner: str
    project_hash: str
    branch_id: str | None
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Entries of a branch, and the rollbacks of the whole branch as (undone from, at)."""

    entries: Sequence[ArchiveEntry]
    rollbacks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LeftOutDecision:
    """A tool result that requests of a conversation leave out, and the stub that is sent in its place.

    Call ids may repeat within a conversation, so a decision is identified by call id and hash of the result's text.
    """

    call_id: str
    text_hash: str
    result_id: str
    stub: str
    decided_at: str
    # The tokens of the text; 0 if an earlier version did not store it, as for `messages`.
    tokens: int = 0
    # The number of the conversation's messages at the time of the decision.
    messages: int = 0
    # The project and session of the conversation, if they were known.
    project_hash: str = ""
    project_path: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class ArchivedResult:
    """A decision and the scrubbed text that it leaves out."""

    decision: LeftOutDecision
    text: str


@dataclass(frozen=True, slots=True)
class RecallSource:
    """A document that recall's index lacks: a summary, a left-out result, or None if it was deleted.

    `ref` identifies its current state; only the store reads it.
    """

    ref: str
    owner: str
    document: Summary | ArchivedResult | None = None


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A document that answers a question: a folded branch or a left-out result."""

    ranked: RankedFold
    source: Summary | LeftOutDecision


@dataclass(frozen=True, slots=True)
class Recalled:
    """The best documents for a question, best first. `ranking` may have more, which were deleted since it was made."""

    hits: Sequence[RecallHit]
    ranking: RecallRanking
