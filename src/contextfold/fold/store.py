"""The store port: what folding requires of a store, and the records that a store takes and returns.

One contract suite runs over every implementation. A commit is atomic. It is accepted only on the revision it was
decided on, and only once for each operation id. Every query is limited to one owner's data.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from contextfold.common.question import Question
from contextfold.errors import ArgumentInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import Event
from contextfold.fold.recall_ranking import DocumentTerms, RankedFold, RecallRanking, RecallScope
from contextfold.fold.store_clock import StoreClock

# The owner of what commands and a daemon without tokens do.
LOCAL_OWNER = "local"
# The most summaries that one search returns.
SEARCH_MAX = 1_000
# The largest number of digits in a cursor; enough for a 64-bit number.
CURSOR_DIGITS = 18
# The outcome of a call id that a client used for several calls.
AMBIGUOUS_OUTCOME = ""
# The most outcomes that are kept of a conversation.
OUTCOMES_MAX = 2_000

Outcome = TypeVar("Outcome")


class SessionKey(NamedTuple):
    """Identifies the live session of a project. Project and name are hashes, so any path or name is a safe key.

    `name_hash` is empty for the project's default session.
    """

    owner: str
    project_hash: str
    name_hash: str


class KnownRevision(NamedTuple):
    """The part of a log that the caller already has and that `load` may leave out."""

    session_id: str
    revision: int


class SessionLog(NamedTuple):
    """The events of a session: those after the known revision if the session is the same, otherwise all."""

    session_id: str
    events: Sequence[Event]


class ListedSession(NamedTuple):
    """A live session in a list."""

    key: SessionKey
    session_id: str
    last_at: str


class EndedSession(NamedTuple):
    """An ended session in a list.

    `figures` is what an earlier version stored instead of its log (`fold.ended_session`), otherwise empty.
    """

    key: SessionKey
    session_id: str
    last_at: str
    ended_at: str
    figures: str


class Summary(NamedTuple):
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


class ArchivedThread(NamedTuple):
    """A branch, or the main thread of a session if `branch_id` is None."""

    owner: str
    project_hash: str
    branch_id: str | None
    session_id: str = ""


class Trajectory(NamedTuple):
    """Entries of a branch, and the rollbacks of the whole branch as (undone from, at)."""

    entries: Sequence[ArchiveEntry]
    rollbacks: Sequence[tuple[int, int]]


class LeftOutDecision(NamedTuple):
    """The decision that every later request of a conversation leaves out a tool result and sends a stub in its place.

    Call ids may repeat within a conversation, so a decision is identified by call id and hash of the result's text.
    """

    call_id: str
    text_hash: str
    # Begins with `res_`.
    result_id: str
    stub: str
    # Empty until it is stored.
    decided_at: str = ""
    # The tokens of the text; 0 if an earlier version did not store it, as for `messages`.
    tokens: int = 0
    # The number of the conversation's messages at the time of the decision. Bound thinking before is left out, too.
    messages: int = 0
    # The project and session of the conversation, if they were known.
    project_hash: str = ""
    project_path: str = ""
    session_id: str = ""

    @property
    def is_fold(self) -> bool:
        """Whether a person folded the work in front of this call (`fold.messages.by_hand`); the id is the fold's."""
        return self.result_id.startswith("br_")


class ArchivedResult(NamedTuple):
    """A decision and the scrubbed text that it leaves out."""

    decision: LeftOutDecision
    text: str


class RecallSource(NamedTuple):
    """A document that recall's index lacks: a summary, a left-out result, or None if it was deleted.

    `ref` identifies its current state; only the store reads it.
    """

    ref: str
    owner: str
    document: Summary | ArchivedResult | None = None


class RecallHit(NamedTuple):
    """A document that answers a question: a folded branch or a left-out result."""

    ranked: RankedFold
    source: Summary | LeftOutDecision


class Recalled(NamedTuple):
    """The best documents for a question, best first. `ranking` may have more, which were deleted since it was made."""

    hits: Sequence[RecallHit]
    ranking: RecallRanking


class StaleRevision(Exception):
    """Another commit came first: load the session again and decide again."""


class Operation(NamedTuple):
    """A call that must take effect once. The fingerprint is a hash of its arguments: one id, one set of arguments."""

    id: str
    fingerprint: str


def hash_operation_id(operation_id: str) -> bytes:
    """What is stored of an operation id, which callers choose and which may be long."""
    return sha256(operation_id.encode("utf-8", "surrogatepass")).digest()


class CommitReceipt(NamedTuple):
    """The response to a commit, returned again whenever the same operation id is committed again.

    `repeated` says that the receipt is that of an earlier commit.
    """

    fingerprint: str
    answer: str
    repeated: bool = False


class Commit(NamedTuple):
    """Events to append to a session, with what else must be stored in the same step.

    An expected revision of 0 starts a session. Without an operation no receipt is stored. `retracted` names branches
    whose summaries are marked as undone, because a rollback undid their folds.
    """

    key: SessionKey
    session_id: str
    expected_revision: int
    events: Sequence[Event]
    operation: Operation | None
    answer: str
    entries: Sequence[ArchiveEntry] = ()
    summaries: Sequence[Summary] = ()
    retracted: Sequence[str] = ()

    def check(self) -> None:
        """Raise ValueError for a log with a gap, which could never be read again. A store calls it first."""
        numbers = [event.n for event in self.events]
        if not numbers or numbers != list(range(self.expected_revision + 1, self.revision + 1)):
            raise ValueError(f"events {numbers} do not follow revision {self.expected_revision}")
        session = (self.key.project_hash, self.session_id)
        if any((summary.project_hash, summary.session_id) != session for summary in self.summaries):
            raise ValueError("a summary of another session")

    @property
    def revision(self) -> int:
        """The session's revision after this commit."""
        return self.expected_revision + len(self.events)


class WatchedEvent(NamedTuple):
    """An event as a watcher receives it. A watch after `cursor` continues with the next event."""

    cursor: str
    key: SessionKey
    session_id: str
    event: Event


def cursor_number(text: str) -> int:
    """Parse a number of a cursor. Raises ArgumentInvalid for anything that no store has returned."""
    if not (text.isascii() and text.isdigit() and len(text) <= CURSOR_DIGITS):
        raise cursor_unknown()
    return int(text)


def cursor_unknown() -> ArgumentInvalid:
    return ArgumentInvalid("cursor", "must be one that this store has given out")


class ProxiedConversation(NamedTuple):
    """The time of a conversation's last response, and the outcomes of our calls.

    Outcomes are by call id, in the order in which they were first seen, as text that the store does not parse.
    """

    last_request_at: str
    outcomes: Mapping[str, str] = MappingProxyType({})
    # The longest pause after which the provider still had the conversation's prompt in its cache; 0 where none was
    # longer than the cache was thought to live.
    cache_life_s: int = 0

    def merge(self, later: "ProxiedConversation") -> "ProxiedConversation":
        outcomes = merge_outcomes(self.outcomes, later.outcomes, ambiguous=AMBIGUOUS_OUTCOME)
        life_s = max(self.cache_life_s, later.cache_life_s)
        return ProxiedConversation(max(self.last_request_at, later.last_request_at), outcomes, life_s)


def merge_outcomes(old: Mapping[str, Outcome], new: Mapping[str, Outcome], *, ambiguous: Outcome) -> dict[str, Outcome]:
    """Merge outcomes by call id; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    merged = dict(old)
    for call_id, outcome in new.items():
        earlier = merged.get(call_id, outcome)
        merged[call_id] = outcome if earlier == outcome else ambiguous
    for call_id in list(merged)[: max(0, len(merged) - OUTCOMES_MAX)]:
        del merged[call_id]
    return merged


class Store(Protocol):
    async def load(self, key: SessionKey, known: KnownRevision | None = None) -> SessionLog | None:
        """Return the live session of this key, or None."""

    async def sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int
    ) -> Sequence[ListedSession]:
        """List the owner's live sessions, the most recently active first, after a `(last_at, session_id)`."""

    async def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]:
        """List the owner's ended sessions in the same order, until their archive and summaries are forgotten.

        With a session id only that one.
        """

    async def ended_log(self, key: SessionKey, session_id: str) -> Sequence[Event]:
        """Return the log of an ended session; empty if an earlier version deleted it, or if there is none."""

    async def find(self, owner: str, session_id: str) -> SessionKey | None:
        """Return the key of the owner's live session with this id."""

    async def cursor(self) -> str:
        """Return the current position. A watch after a cursor taken before a load misses nothing."""

    async def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        """Return summaries with every word of the query, the last as a prefix, best first; at most SEARCH_MAX."""

    async def summaries(self, owner: str, project_hash: str | None) -> Sequence[Summary]:
        """Return every summary that was not undone, of a project or of all, ordered by session and branch."""

    async def unindexed(self, owner: str | None, limit: int) -> Sequence[RecallSource]:
        """Return the documents that recall's index lacks, of an owner or of all.

        These are the changes by every commit, rollback, deletion and import. A store that indexes an owner's documents
        only for a question returns none for all owners.
        """

    async def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        """Add documents to recall's index, or remove them. A document whose source has changed meanwhile is skipped."""

    async def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        """Rank the indexed documents (`fold.recall_ranking`). Every store returns the same for the same content."""

    async def trajectory(
        self, thread: ArchivedThread, *, after_n: int = 0, limit: int, characters: int | None = None
    ) -> Trajectory | None:
        """Return entries of a thread in order, or None if the archive has nothing of it.

        The page ends with the entry that brings the texts to `characters`. Entries are returned as committed;
        `archive.apply_ranges` applies rollbacks.
        """

    async def left_out_text(self, owner: str, result_id: str) -> str | None:
        """Return the text that was left out under this id."""

    async def count(self, owner: str | None = None) -> int:
        """Return the number of live sessions, of an owner or of all."""

    async def close(self) -> None:
        """Finish the calls that were accepted and release the store."""

    async def commit(self, commit: Commit) -> CommitReceipt:
        """Append the commit, or return the receipt of the earlier commit with this operation id.

        Raises StaleRevision if the expected revision is not the current one. A branch has one summary: a branch that
        is folded again replaces its summary.
        """

    async def receipt(self, key: SessionKey, operation_id: str) -> CommitReceipt | None:
        """Return the receipt of an operation of the live session."""

    async def check_cursor(self, cursor: str) -> None:
        """Raise ArgumentInvalid for a cursor that this store cannot have returned."""

    def watch(self, owner: str, after: str | None = None) -> AsyncIterator[WatchedEvent]:
        """Iterate over the owner's events in order until the store is closed.

        After a cursor, events that are still stored come first. Without one, iteration starts at the position of the
        first `anext`. Raises ArgumentInvalid for an unknown cursor, immediately or with the first event.
        """

    async def left_out(self, owner: str, conversation: str) -> Sequence[LeftOutDecision]:
        """Return what requests of the conversation leave out, ordered by call id and text hash."""

    async def keep_left_out(self, owner: str, conversation: str, items: Sequence[ArchivedResult]) -> None:
        """Store decisions and texts. A decision that is already stored stays: the first writer wins.

        After this returns, `left_out` gives the decision that counts, which may be another daemon's.
        """

    async def conversation(self, owner: str, conversation: str) -> ProxiedConversation | None:
        """Return what `note_conversation` stored, or None."""

    async def note_conversation(self, owner: str, conversation: str, noted: ProxiedConversation) -> None:
        """Merge this into what is stored of the conversation (`ProxiedConversation.merge`)."""

    async def expire(self, idle_since: str, at: str) -> int:
        """End every session without activity after `idle_since` and return how many were ended.

        Each gets a `session.expired` event, which watchers can see at least until a later call with `idle_since` after
        it. Its log is kept (`ended_log`), its receipts are deleted. Activity later than `at` comes from a clock that
        was wrong; it counts as activity at the first call that sees it.
        """

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        """Delete archive entries and summaries of ended sessions that were last active before these times.

        The prompts in a log are deleted with the archive. When archive and summaries are gone, so are the log and the
        session. What is stored of a proxied conversation is deleted when its last request and its last decision were
        before `archive_since`.
        """

    async def read_clock(self) -> StoreClock:
        """Return what `write_clock` stored. A store without it has seen the latest time of anything in it."""

    async def write_clock(self, clock: StoreClock) -> None:
        """Replace the record of the time that the store has seen."""

    async def reach(self) -> None:
        """Connect. Raises StoreInvalid if the store refuses us, StoreUnavailable if it may become available."""

    async def settle(self) -> None:
        """Wait until the background work of every commit made here is done."""

    async def check(self) -> None:
        """Raise StoreUnavailable if a commit of ordinary size would fail now."""


class StoreReader(Protocol):
    """The methods of a store that commands need, for a process that does one thing at a time.

    They mean the same as the methods of `Store`, and return when they are done.
    """

    def load(self, key: SessionKey) -> SessionLog | None: ...

    def sessions(self, owner: str, *, after: tuple[str, str] | None = None, limit: int) -> Sequence[ListedSession]: ...

    def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]: ...

    def ended_log(self, key: SessionKey, session_id: str) -> Sequence[Event]: ...

    def find(self, owner: str, session_id: str) -> SessionKey | None: ...

    def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]: ...

    def summaries(self, owner: str, project_hash: str | None) -> Sequence[Summary]: ...

    def unindexed(self, owner: str | None, limit: int) -> Sequence[RecallSource]: ...

    def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None: ...

    def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled: ...

    def trajectory(
        self, thread: ArchivedThread, *, after_n: int = 0, limit: int, characters: int | None = None
    ) -> Trajectory | None: ...

    def left_out_text(self, owner: str, result_id: str) -> str | None: ...

    def close(self) -> None: ...
