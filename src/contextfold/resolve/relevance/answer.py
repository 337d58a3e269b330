"""The answer to a question: which sections fit the budget, and the shapes in which they are given. Pure.

The budget is hard. A section costs its text, its breadcrumb line and the line breaks around it; a line about something
left out costs tokens too, and is given only where the rest of the budget allows it.
"""

from __future__ import annotations

from contextfold.common.canonical import encode
from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from contextfold.common.canonical import Encodable

SEMANTICS = "v1"
CRUMB = " › "
CACHE_JOINT = ":"  # between a cache's name and a document's id, where several caches are asked
LINE_BREAKS_TOKENS = 2  # after a section
LEFT_OUT_MAX = 5  # lines about left-out sections, per document
BUDGET_REASON, DUPLICATE_REASON = "budget", "duplicate"


class WhyTerm(Record):
    term: str
    fields: tuple[str, ...]
    score: int

    def as_members(self) -> dict[str, Encodable]:
        return {"term": self.term, "in": list(self.fields), "score": self.score}


class AnsweredSection(Record):
    heading: tuple[str, ...]
    lines: tuple[int, int]
    tokens: int  # the breadcrumb included
    score: int
    content: str
    why: tuple[WhyTerm, ...]

    def as_members(self) -> dict[str, Encodable]:
        return {
            "heading": list(self.heading),
            "lines": list(self.lines),
            "tokens": self.tokens,
            "score": self.score,
            "content": self.content,
            "why": [term.as_members() for term in self.why],
        }


class LeftOutSection(Record):
    heading: tuple[str, ...]
    tokens: int
    reason: str

    def as_members(self) -> dict[str, Encodable]:
        return {"heading": list(self.heading), "tokens": self.tokens, "reason": self.reason}


class AnsweredDocument(Record):
    id: str
    version: str
    title: str
    score: int
    sections: tuple[AnsweredSection, ...]  # by line
    left_out: tuple[LeftOutSection, ...]  # best first

    def as_members(self) -> dict[str, Encodable]:
        return {
            "id": self.id,
            "version": self.version,
            "title": self.title,
            "score": self.score,
            "sections": [section.as_members() for section in self.sections],
            "left_out": [section.as_members() for section in self.left_out],
        }


class AskSelection(Record):
    query: str
    unmatched: tuple[str, ...]  # words of the query that no document has
    budget: int
    tokens_used: int
    counter: str
    documents_considered: int
    sections_matched: int
    sections_selected: int


class AskResult(Record):
    """The answer to a question, documents in the order of their best selected section."""

    documents: tuple[AnsweredDocument, ...]
    selection: AskSelection

    def as_members(self) -> Mapping[str, Encodable]:
        selection = {"semantics": SEMANTICS, **self.selection._asdict()}
        selection["unmatched"] = list(self.selection.unmatched)
        return {"documents": [document.as_members() for document in self.documents], "selection": selection}

    def to_json(self, *, pretty: bool = False) -> str:
        """What `context ask` prints into a pipe, its newline included."""
        return encode(self.as_members(), pretty=pretty) + "\n"

    def to_text(self) -> str:
        """The answer to be read: breadcrumbs, texts, and a line for what was left out."""
        parts = _rendered(self.documents)
        if not parts:
            parts.append(self._nothing())
        if self.selection.unmatched:
            parts.append(f"Not in the cache: {', '.join(self.selection.unmatched)}\n")
        return "\n".join(parts)

    def _nothing(self) -> str:
        if self.selection.sections_matched:
            return f"{self.selection.sections_matched} sections match, but none fits the budget.\n"
        return "Nothing in the cache matches.\n"


class GetResult(Record):
    """A document, or parts of it."""

    document: AnsweredDocument
    budget: int
    tokens_used: int
    counter: str

    def as_members(self) -> Mapping[str, Encodable]:
        return {
            "document": _without_scores(self.document),
            "budget": self.budget,
            "tokens_used": self.tokens_used,
            "counter": self.counter,
        }

    def to_json(self, *, pretty: bool = False) -> str:
        """What `context get` prints into a pipe, its newline included."""
        return encode(self.as_members(), pretty=pretty) + "\n"

    def to_text(self) -> str:
        return "\n".join(_rendered((self.document,)))


def _without_scores(document: AnsweredDocument) -> dict[str, Encodable]:
    members = document.as_members()
    del members["score"]
    members["sections"] = [
        {name: value for name, value in section.as_members().items() if name not in ("score", "why")}
        for section in document.sections
    ]
    return members


def breadcrumb(document_id: str, heading: tuple[str, ...], lines: tuple[int, int]) -> str:
    """The line above a section: where it comes from."""
    return f"{CRUMB.join((document_id, *heading))} (lines {lines[0]}-{lines[1]})\n\n"


def left_out_line(section: LeftOutSection) -> str:
    where = CRUMB.join(section.heading) or "the text before the first heading"
    if section.reason == DUPLICATE_REASON:
        return f"[left out, same text as above: {where}]\n"
    return f"[left out for the budget: {where}, {section.tokens} tokens]\n"


def _rendered(documents: tuple[AnsweredDocument, ...]) -> list[str]:
    parts = []
    for document in documents:
        for section in document.sections:
            ending = "" if section.content.endswith("\n") else "\n"
            parts.append(breadcrumb(document.id, section.heading, section.lines) + section.content + ending)
        parts += map(left_out_line, document.left_out)
    return parts
