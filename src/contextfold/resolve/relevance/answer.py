"""The answer to a question: the selected sections, as text and as JSON. Pure.

The text is for a model or a person. Neighbouring sections are one passage with one breadcrumb, and nothing is said
twice: a further passage of a document repeats neither the id nor the headings nor the reasons of the one before, and a
heading that a passage begins with is not in its breadcrumb. The JSON is for programs, and has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contextfold.common.answer_format import join_blocks, name_first
from contextfold.common.canonical import Encodable, encode_plain

SEMANTICS = "v1"
CRUMB = " › "
# Separates a cache's name from a document's id if several caches are asked.
CACHE_JOINT = ":"
# The tokens of the line breaks after a section.
LINE_BREAKS_TOKENS = 2
# Each document has at most this many entries about left-out sections.
LEFT_OUT_MAX = 5
# The text names at most this many reasons for each passage, sections that were left out, and changed documents.
WHY_TERMS_MAX = 2
NAMED_MAX = 3
# What is before a heading in its line.
HEADING_MARKS = "#=* \t\ufeff"
BUDGET_REASON, DUPLICATE_REASON = "budget", "duplicate"


class WhyTerm(NamedTuple):
    term: str
    fields: tuple[str, ...]
    score: int


class AnsweredSection(NamedTuple):
    """A selected section. `tokens` is what it costs in a text alone, its breadcrumb included."""

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
    """A section that is not in the answer, with what it would cost alone."""

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
    # The tokens of the answer in its format, or a little more; 0 if no section was selected.
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
    # The documents of the answer whose files have changed since the cache was built.
    outdated: tuple[str, ...] = ()
    # Documents that match only with text that the answer has from another document.
    copies: tuple[str, ...] = ()

    def as_members(self) -> dict[str, Encodable]:
        members: dict[str, Encodable] = {"semantics": SEMANTICS, **self._asdict()}
        del members["caches_left_out"]
        if self.caches_left_out:
            members["caches_left_out"] = [cache._asdict() for cache in self.caches_left_out]
        return {name: value for name, value in members.items() if value or name not in ("outdated", "copies")}


class AskResult(NamedTuple):
    """The answer to a question. Documents are in the order of their best selected sections.

    `notes` are the lines at the end of the text: what was left out, and what else a reader must know.
    """

    documents: tuple[AnsweredDocument, ...]
    selection: AskSelection
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The answer as one line of JSON."""
        documents = [document.as_members() for document in self.documents]
        return encode_plain({"documents": documents, "selection": self.selection.as_members()}) + "\n"

    def to_text(self) -> str:
        return join_blocks([*map(render, self.documents), "".join(self.notes)])


class GetResult(NamedTuple):
    """A document, or parts of it. `sections_left_out` is the number of wanted sections that did not fit the budget.

    `notes` are the lines at the end of the text.
    """

    document: AnsweredDocument
    budget: int
    tokens_used: int
    sections_left_out: int
    counter: str
    # Whether the document's file has changed since the cache was built.
    is_outdated: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The answer as one line of JSON."""
        members: dict[str, Encodable] = {**self._asdict(), "document": self.document.as_members(with_scores=False)}
        del members["is_outdated"], members["notes"]
        return encode_plain(members | ({"outdated": True} if self.is_outdated else {})) + "\n"

    def to_text(self) -> str:
        return join_blocks([render(self.document), "".join(self.notes)])


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


class Passage(NamedTuple):
    """Neighbouring sections of a document, and their place: the document's id and headings."""

    place: tuple[str, ...]
    sections: Sequence[AnsweredSection]

    def header(self, above: Passage | None) -> str:
        """The lines before the content. `above` is the passage before, in the same document."""
        (first, _), (_, last) = self.sections[0].lines, self.sections[-1].lines
        known = _shared(self.place, above.place) if above else ()
        why = self._why()
        if above and above._why() == why:
            why = ""
        crumb = CRUMB.join((*([""] if known else []), *self.place[len(known) :])).strip() or CRUMB.strip()
        return f"{crumb} (lines {first}-{last})\n{why}\n"

    def _why(self) -> str:
        """The reasons for the best section."""
        best = max(self.sections, key=lambda section: section.score)
        named = ", ".join(reason.term for reason in best.why[:WHY_TERMS_MAX])
        return f"why: {named}\n" if named else ""


def passages_of(document: AnsweredDocument) -> list[Passage]:
    groups: list[list[AnsweredSection]] = []
    for section in document.sections:
        before = groups[-1][-1] if groups else None
        # A long line may be cut into sections; then the lines do not say whether two of them are neighbours.
        if before is not None and section.lines[0] == before.lines[1] + 1 and before.content.endswith("\n"):
            groups[-1].append(section)
        else:
            groups.append([section])
    return [Passage((document.id, *_headings_above(group)), group) for group in groups]


def _headings_above(sections: Sequence[AnsweredSection]) -> tuple[str, ...]:
    """The headings that all of the sections have, without one that the content begins with."""
    shared = sections[0].heading
    for section in sections[1:]:
        shared = _shared(shared, section.heading)
    first_line = sections[0].content.partition("\n")[0].lstrip(HEADING_MARKS)
    return shared[:-1] if shared and first_line.startswith(shared[-1]) else shared


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """What both begin with."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return one[:count]


def render(document: AnsweredDocument) -> str:
    """The selected sections as text."""
    parts = []
    above = None
    for passage in passages_of(document):
        content = "".join(section.content for section in passage.sections)
        parts.append(passage.header(above) + content + ("" if content.endswith("\n") else "\n"))
        above = passage
    return join_blocks(parts)


def left_out_note(count: int, best: Sequence[tuple[str, LeftOutSection]] = ()) -> str:
    """The line about sections that do not fit, which names the best of them with their documents."""
    named = [f"{CRUMB.join((name, *section.heading))} ({section.tokens} tokens)" for name, section in best]
    more = f": {'; '.join(named)}{'; …' if count > len(named) else ''}" if named else ""
    return f"[{count} more {'section does' if count == 1 else 'sections do'} not fit the budget{more}]\n"


def copies_note(documents: Sequence[str], most: int) -> str:
    """The line about documents that have the same text as those in the answer, which names the first of them."""
    return f"[the same text: {name_first(documents, most)}]\n"


def outdated_note(documents: Sequence[str] = ()) -> str:
    """The line about documents that have changed, which names the first of them."""
    named = f": {name_first(documents, NAMED_MAX)}" if documents else ""
    return f"[changed since this cache was built{named}; build it again]\n"
