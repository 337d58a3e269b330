"""What recall's index stores of a document, and what a question asks of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from contextfold.common.relevance.question import Question, read_question
from contextfold.errors import ArgumentInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.events import timestamp
from contextfold.fold.ports.store import ArchivedResult, ArchivedThread, RecallSource, Summary
from contextfold.fold.recall.documents import (
    FOLD,
    RESULT,
    DocumentTerms,
    count_terms,
    document_number,
    fold_fields,
    result_fields,
)
from contextfold.fold.recall.ranking import RecallScope
from contextfold.fold.tool_arguments import RecallRequest

# This many documents are indexed in one step.
STEP_DOCUMENTS = 16
# A question waits for the index at most this long.
CATCH_UP_S = 10.0
INDEX_INCOMPLETE = "the index of what was folded is still being built: ask again in a minute"
# The operations of a fold are read in pages of this many characters.
PAGE_CHARACTERS = 1 << 16
REDACTION_START = "[REDACTED:"


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
        return source, count_terms(number, result_fields(decision.stub, document.text))
    number = document_number(document.folded_at, source.owner, FOLD, document.session_id, document.branch_id)
    fields = fold_fields(document.description, document.summary, entries, undone=document.undone)
    return source, count_terms(number, fields)
