"""The answer to a question: the selected sections, as JSON and as text. Pure.

An answer never exceeds its budget. A section costs the tokens of its text, of its breadcrumb and of the line breaks
around it. A line about a left-out section costs tokens, too, and is included only if the budget allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contextfold.common.canonical import Encodable, encode, encode_plain

SEMANTICS = "v1"
CRUMB = " › "
# Separates a cache's name from a document's id if several caches are asked.
CACHE_JOINT = ":"
# The tokens of the line breaks after a section.
LINE_BREAKS_TOKENS = 2
# Each document has at most this many lines about left-out sections.
LEFT_OUT_MAX = 5
BUDGET_REASON, DUPLICATE_REASON = "budget", "duplicate"


class WhyTerm(NamedTuple):
    term: str
    fields: tuple[str, ...]
    score: int


class AnsweredSection(NamedTuple):
    """A selected section. `tokens` includes its breadcrumb."""

    heading: tuple[str, ...]
    lines: tuple[int, int]
    tokens: int
    score: int
    content: str
    why: tuple[WhyTerm, ...]

    def as_members(self) -> dict[str, Encodable]:
        why = [{"term": term, "in": fields, "score": score} for term, fields, score in self.why]
        return {**self._asdict(), "why": why}


class LeftOutSection(NamedTuple):
    """A section that is not in the answer. `tokens` is what it would cost, its breadcrumb included."""

    heading: tuple[str, ...]
    tokens: int
    reason: str


class AnsweredDocument(NamedTuple):
    """A document with selected sections, ordered by line, and left-out sections, the best first."""

    id: str
    version: str
    title: str
    score: int
    sections: tuple[AnsweredSection, ...]
    left_out: tuple[LeftOutSection, ...]

    def as_members(self, *, with_scores: bool = True) -> dict[str, Encodable]:
        members: dict[str, Encodable] = self._asdict()
        sections = [section.as_members() for section in self.sections]
        if not with_scores:
            del members["score"]
            for section in sections:
                del section["score"], section["why"]
        return members | {"sections": sections, "left_out": [section._asdict() for section in self.left_out]}


class LeftOutCache(NamedTuple):
    """A cache that could not be asked. `reason` also says what to do."""

    cache: str
    reason: str


class AskSelection(NamedTuple):
    query: str
    # The words of the query that no document has.
    unmatched: tuple[str, ...]
    budget: int
    tokens_used: int
    counter: str
    documents_considered: int
    sections_matched: int
    sections_selected: int
    # The sections that match and did not fit the budget. Duplicates of selected sections do not count.
    sections_left_out: int
    # Whether the query has more terms than are used.
    query_cut: bool
    caches_left_out: tuple[LeftOutCache, ...] = ()


class AskResult(NamedTuple):
    """The answer to a question. Documents are in the order of their best selected sections."""

    documents: tuple[AnsweredDocument, ...]
    selection: AskSelection

    def to_json(self, *, pretty: bool = False) -> str:
        """The output of `context ask` in a pipe, with its newline."""
        selection = {"semantics": SEMANTICS, **self.selection._asdict()}
        left_out = selection.pop("caches_left_out")
        if left_out:
            selection["caches_left_out"] = [cache._asdict() for cache in left_out]
        documents = [document.as_members() for document in self.documents]
        members: Encodable = {"documents": documents, "selection": selection}
        return (encode(members, pretty=True) if pretty else encode_plain(members)) + "\n"

    def to_text(self) -> str:
        """The answer as text: breadcrumbs, contents, and lines about left-out sections. It is within the budget.

        If there is no document in the answer, the text says why.
        """
        if self.documents:
            return _render(self.documents)
        if self.selection.sections_matched:
            return f"{self.selection.sections_matched} sections match, but none fits the budget.\n"
        parts = ["Nothing in the cache matches.\n"]
        if self.selection.unmatched:
            parts.append(f"Not in the cache: {', '.join(self.selection.unmatched)}\n")
        return "\n".join(parts)


class GetResult(NamedTuple):
    """A document, or parts of it. `sections_left_out` is the number of wanted sections that did not fit the budget."""

    document: AnsweredDocument
    budget: int
    tokens_used: int
    sections_left_out: int
    counter: str

    def to_json(self, *, pretty: bool = False) -> str:
        """The output of `context get` in a pipe, with its newline."""
        members = {**self._asdict(), "document": self.document.as_members(with_scores=False)}
        return encode(members, pretty=pretty) + "\n"

    def to_text(self) -> str:
        return _render((self.document,))


def places_of(document_id: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The caches that a document may be in, each with the document's id there, in the order to try them.

    Before the id is the name of its cache, unless there is only one. A name and an id may both contain the joint, so
    the longest name is first.
    """
    prefixed = [name for name in sorted(names, key=len, reverse=True) if document_id.startswith(name + CACHE_JOINT)]
    places = [(name, document_id.removeprefix(name + CACHE_JOINT)) for name in prefixed if name]
    return [(names[0], document_id), *places] if len(names) == 1 else places


def breadcrumb(document_id: str, heading: tuple[str, ...], lines: tuple[int, int]) -> str:
    """The line above a section: document, headings and lines."""
    return f"{CRUMB.join((document_id, *heading))} (lines {lines[0]}-{lines[1]})\n\n"


def left_out_line(section: LeftOutSection) -> str:
    where = CRUMB.join(section.heading) or "the text before the first heading"
    if section.reason == DUPLICATE_REASON:
        return f"[left out, same text as above: {where}]\n"
    return f"[left out for the budget: {where}, {section.tokens} tokens]\n"


def _render(documents: tuple[AnsweredDocument, ...]) -> str:
    parts = []
    for document in documents:
        for section in document.sections:
            ending = "" if section.content.endswith("\n") else "\n"
            parts.append(breadcrumb(document.id, section.heading, section.lines) + section.content + ending)
        parts += map(left_out_line, document.left_out)
    return "\n".join(parts)
