"""Recall between its index and its caller: what is indexed of a document, the question, and the answer to it. Pure.

The answer has the best documents that fit the budget: the estimated tokens of the complete text, or JSON, never exceed
it. A fold whose summary does not fit is included without it, and skipped if even that is too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from contextfold.common.answer_format import JSON, join_blocks
from contextfold.common.canonical import Encodable, encode
from contextfold.common.question import Question, read_question
from contextfold.common.tokens import ESTIMATE, ChunkUnits, estimate
from contextfold.errors import ArgumentInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import timestamp
from contextfold.fold.recall_ranking import (
    FIELDS,
    FOLD,
    OPERATIONS,
    RESULT,
    DocumentTerms,
    RecallReason,
    RecallScope,
    count_terms,
    document_number,
    fold_fields,
    result_fields,
)
from contextfold.fold.store import ArchivedResult, ArchivedThread, Recalled, RecallHit, RecallSource, Summary
from contextfold.fold.tool_calls import RecallRequest

# This many documents are indexed in one step.
STEP_DOCUMENTS = 16
# A question waits for the index at most this long.
CATCH_UP_S = 10.0
INDEX_INCOMPLETE = "the index of what was folded is still being built: ask again in a minute"
# The operations of a fold are read in pages of this many characters.
PAGE_CHARACTERS = 1 << 16
REDACTION_START = "[REDACTED:"
SEMANTICS = "v1"
_TURNING = (0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNSEEN = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *_TURNING), " ")
HOW_TO_EXPAND = "context_expand with branch_id and project_path, or `context fold expand ID`"
HOW_TO_EXPAND_NOTE = "[context_expand with an id as branch_id, or `context fold expand ID`, reads what was done]\n"
# The text names at most this many words that a fold was found by.
WHY_TERMS_MAX = 3
# The tokens of the comma before an item of JSON, and of the line breaks before a fold in a text.
ITEM_TOKENS, BREAK_TOKENS = 1, 2
# The line at a session's start names at most this many folds. Each must have a share of the prompt's terms, and of the
# score of a document that is full of them; its description is cut to a number of characters.
MEMORY_FOLDS = 3
MEMORY_TERMS_MIN = 3
MEMORY_PERCENT_MIN = 35
MEMORY_DESCRIPTION_LENGTH = 60
_WRITTEN = frozenset(FIELDS[FOLD][:OPERATIONS])
# After this many documents that do not fit, no further ones are tried.
PASSED_MAX = 8


def parse_question(request: RecallRequest, query: str) -> Question:
    """The question of a request, whose text was scrubbed if others may have written it."""
    question = read_question(without_redactions(query), request.budget_tokens)
    if not question.terms:
        raise ArgumentInvalid("query", "must have a word to look for: it has none, or only words like `the`")
    return question


def without_redactions(text: str) -> str:
    """A query without what replaced its secrets: the names of rules are no words to look for."""
    parts = text.split(REDACTION_START)
    return " ".join([parts[0], *(part.partition("]")[2] for part in parts[1:])])


def scope_of(request: RecallRequest, now: datetime) -> RecallScope:
    since = request.since
    if isinstance(since, int):
        since = timestamp(now - timedelta(seconds=since))
    return RecallScope(request.project.hash if request.project else None, since, request.undone)


def operations_thread(source: RecallSource) -> ArchivedThread | None:
    """The thread with the operations of a fold; None if the document is something else, or was deleted."""
    fold = source.document
    if not isinstance(fold, Summary):
        return None
    return ArchivedThread(source.owner, fold.project_hash, fold.branch_id, fold.session_id)


def index_document(source: RecallSource, entries: Sequence[ArchiveEntry]) -> tuple[RecallSource, DocumentTerms | None]:
    """The terms of a document, with the entries of its thread if it is a fold; None if it was deleted."""
    document = source.document
    if document is None:
        return source, None
    if isinstance(document, ArchivedResult):
        decision = document.decision
        number = document_number(decision.decided_at, source.owner, RESULT, decision.result_id, decision.call_id)
        return source, count_terms(number, result_fields(decision.stub, decision.decided_at, document.text))
    number = document_number(document.folded_at, source.owner, FOLD, document.session_id, document.branch_id)
    fields = fold_fields(document.description, document.summary, document.folded_at, entries, undone=document.undone)
    return source, count_terms(number, fields)


class RecalledFold(NamedTuple):
    """One document of the answer. `summary` is None for a left-out result, and if it did not fit."""

    kind: str
    id: str
    at: str
    project_path: str
    session_id: str
    description: str
    summary: str | None
    tokens: int
    undone: bool
    score: int
    why: tuple[RecallReason, ...]

    def as_members(self) -> Mapping[str, Encodable]:
        members: dict[str, Encodable] = {
            "id": self.id,
            "kind": self.kind,
            "at": self.at,
            "project_path": self.project_path or None,
            "session_id": self.session_id or None,
            "description": self.description,
            "summary": self.summary,
            "tokens": self.tokens,
            "score": self.score,
            "why": [{"term": each.term, "in": list(each.fields), "score": each.score} for each in self.why],
        }
        return {**members, "undone": True} if self.undone else members

    def to_text(self) -> str:
        """A line about what it is, a line about why it was found, and the summary."""
        facts = [self.at[:10], self.project_path, f"{self.tokens:,} tokens", "undone" if self.undone else ""]
        why = ", ".join(reason.term for reason in self.why[:WHY_TERMS_MAX])
        head = f"{self.id} › {_flatten(self.description)} ({', '.join(filter(None, facts))})\nwhy: {why}\n"
        return join_blocks([head, f"{self.summary.rstrip()}\n" if self.summary else ""])


class RecallAnswer(NamedTuple):
    """The answer. `documents` is the number of documents, `matched` the number of those with a word of the query.

    `unmatched` has the words of the query that are in no document.
    """

    folds: tuple[RecalledFold, ...]
    unmatched: tuple[str, ...]
    budget: int
    tokens_used: int
    documents: int
    matched: int

    def as_members(self) -> Mapping[str, Encodable]:
        selection: dict[str, Encodable] = {
            "semantics": SEMANTICS,
            "unmatched": list(self.unmatched),
            "budget": self.budget,
            "tokens_used": self.tokens_used,
            "counter": ESTIMATE,
            "documents": self.documents,
            "matched": self.matched,
            "selected": len(self.folds),
        }
        return {
            "folds": [fold.as_members() for fold in self.folds],
            "selection": selection,
            **({"expand": HOW_TO_EXPAND} if self.folds else {}),
        }

    def to_text(self) -> str:
        left_out = self.matched - len(self.folds)
        notes = []
        if not self.folds and left_out:
            notes.append(f"{left_out} match, but none fits the budget.\n")
        elif not self.folds:
            notes.append("Nothing that was folded matches.\n")
        elif left_out:
            notes.append(f"[{left_out} more {'matches' if left_out == 1 else 'match'}]\n")
        if self.unmatched:
            notes.append(f"[in no fold: {', '.join(self.unmatched)}]\n")
        if self.folds:
            notes.append(HOW_TO_EXPAND_NOTE)
        return join_blocks([*(fold.to_text() for fold in self.folds), "".join(notes)])


def answer(found: Recalled, request: RecallRequest) -> RecallAnswer:
    """Select the best documents that fit."""
    budget, is_json = request.budget_tokens, request.format == JSON
    chosen: list[RecalledFold] = []
    # The folds have most of their words in common.
    known = ChunkUnits()
    # Unmatched words are left out first, because a long query must not fill the budget.
    unmatched = found.ranking.unmatched
    while unmatched and _frame_tokens(unmatched, request, found) > budget // 2:
        unmatched = unmatched[: len(unmatched) // 2]
    left = budget - _frame_tokens(unmatched, request, found)
    passed = 0
    for hit in found.hits:
        for fold in _forms(hit):
            if is_json:
                tokens = estimate(encode(fold.as_members()), known=known) + ITEM_TOKENS
            else:
                tokens = estimate(fold.to_text(), known=known) + BREAK_TOKENS
            if tokens <= left:
                chosen.append(fold)
                left -= tokens
                break
        else:
            passed += 1
        if passed == PASSED_MAX:
            break
    used = budget - left
    return RecallAnswer(tuple(chosen), unmatched, budget, used, found.ranking.documents, found.ranking.matched)


def memory_line(found: Recalled) -> str:
    """One line that names earlier folds which fit a prompt well; empty if none does."""
    fitting = [
        hit.source
        for hit in found.hits
        if isinstance(hit.source, Summary)
        and sum(1 for reason in hit.ranked.why if set(reason.fields) & _WRITTEN) >= MEMORY_TERMS_MIN
        and hit.ranked.score * 100 >= MEMORY_PERCENT_MIN * found.ranking.score_most
    ][:MEMORY_FOLDS]
    if not fitting:
        return ""
    named = "; ".join(
        f"{_flatten(fold.description)[:MEMORY_DESCRIPTION_LENGTH]} ({fold.branch_id}, {fold.folded_at[:10]})"
        for fold in fitting
    )
    return f"contextfold: earlier work here that may help: {named}. context_expand with an id reads it."


def _flatten(text: str) -> str:
    """A text without control characters and without those that turn the direction of what follows."""
    return " ".join(text.translate(_UNSEEN).split())


def _frame_tokens(unmatched: tuple[str, ...], request: RecallRequest, found: Recalled) -> int:
    """The tokens of an answer without its folds, with the longest possible numbers."""
    budget, documents = request.budget_tokens, found.ranking.documents
    frame = RecallAnswer((), unmatched, budget, budget, documents, documents)
    if request.format == JSON:
        return estimate(encode({**frame.as_members(), "expand": HOW_TO_EXPAND})) + ITEM_TOKENS
    return estimate(frame.to_text() + HOW_TO_EXPAND_NOTE) + BREAK_TOKENS


def _forms(hit: RecallHit) -> Sequence[RecalledFold]:
    """The possible forms of a document, the longest first."""
    source, why = hit.source, (hit.ranked.score, hit.ranked.why)
    if isinstance(source, Summary):
        origin = (source.branch_id, source.folded_at, source.project_path, source.session_id, source.description)
        figures = (source.tokens_folded, source.undone, *why)
        return [RecalledFold(FOLD, *origin, summary, *figures) for summary in (source.summary, None)]
    origin = (source.result_id, source.decided_at, source.project_path, source.session_id, source.stub)
    return [RecalledFold(RESULT, *origin, None, source.tokens, False, *why)]
