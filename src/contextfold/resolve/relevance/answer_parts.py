"""Makes the parts of an answer from documents of caches, and counts what they cost. Writes nothing.

The budget is that of the answer as it is sent: of the text, or of the JSON. `TextCosts` and `JsonCosts` say what a
document with some of its sections costs there. The sum of the parts is never less than the whole as `estimate-1` counts
it. An exact counter may find a token more in the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contextfold.common.answer_format import FORMATS
from contextfold.common.canonical import Encodable, Malformed, encode_plain
from contextfold.common.tokens import ESTIMATE, CountTokens, counter_named
from contextfold.errors import CacheInvalid, OptionInvalid
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.index import IndexedDocument, IndexedSection
from contextfold.resolve.index_file import OpenIndex
from contextfold.resolve.outdated import COMPARED_MAX, is_current
from contextfold.resolve.relevance.answer import (
    CACHE_JOINT,
    LINE_BREAKS_TOKENS,
    AnsweredDocument,
    AnsweredSection,
    LeftOutSection,
    WhyTerm,
    left_out_note,
    passages_of,
)
from contextfold.resolve.relevance.ranking import Place, RankedDocument

# If fewer tokens of the budget are left, no further section is tried, and none is listed as left out.
LEAST_SECTION_TOKENS = 8
# The lines at the end of a text have room reserved for them up to this share of the budget.
NOTES_SHARE = 4
# What an index raises whose build recorded it although it is wrong, which only a failing disk or an attacker causes.
DAMAGE = (Malformed, LookupError, ValueError, TypeError, OverflowError)


class NamedIndex(NamedTuple):
    """The index of a cache with its name, and its files. A name is the prefix of the documents' ids if not empty."""

    name: str
    opened: OpenIndex
    folder: CacheFolder


class AnswerParts:
    """Reads from the caches of one question, and counts in its counter. Every document is checked against its hash."""

    def __init__(self, caches: Sequence[NamedIndex], counter: str) -> None:
        self._caches = caches
        self.indexes = [cache.opened.reader for cache in caches]
        self.counter = counter
        # A section is tried if its estimate is at most this many times the budget. An exact counter may count less.
        self.slack = 1 if counter == ESTIMATE else 2
        self.count: CountTokens = counter_named(counter)
        self._documents: dict[Place, IndexedDocument] = {}
        self._contents: dict[Place, bytes] = {}
        self._tokens: dict[str, int] = {}
        # The places of the documents by the ids that they have in answers, and whether their files are unchanged.
        self._places: dict[str, Place] = {}
        self._is_current: dict[str, bool] = {}

    def document(self, place: Place) -> IndexedDocument:
        """A document with the id that it has in answers."""
        if place not in self._documents:
            found, name = self.indexes[place.cache].document(place.document), self._caches[place.cache].name
            self._documents[place] = found._replace(id=f"{name}{CACHE_JOINT}{found.id}") if name else found
        return self._documents[place]

    def content(self, place: Place) -> bytes:
        """The text of a document."""
        if place not in self._contents:
            _, opened, folder = self._caches[place.cache]
            self._contents[place] = folder.document(folder.entry(opened, place.document)).content
        return self._contents[place]

    def count_once(self, text: str) -> int:
        """The tokens of a text that is counted often."""
        if text not in self._tokens:
            self._tokens[text] = self.count(text)
        return self._tokens[text]

    def _text(self, place: Place, section: IndexedSection) -> str:
        text = self.content(place)[section.start : section.end].decode()
        if self.counter == ESTIMATE:
            # The build has counted it.
            self._tokens[text] = section.tokens
        return text

    def make_section(
        self, place: Place, section: IndexedSection, score: int = 0, why: tuple[WhyTerm, ...] = ()
    ) -> AnsweredSection:
        """A section. Its tokens are those of its text alone, with the breadcrumb."""
        lines = (section.first_line, section.last_line)
        answered = AnsweredSection(section.headings, lines, 0, score, self._text(place, section), ())
        tokens = TextCosts(self).document(self.make_document(RankedDocument(place, 0), [answered]))
        return answered._replace(tokens=tokens, why=why)

    def leave_out(self, place: Place, section: IndexedSection, reason: str) -> LeftOutSection:
        return LeftOutSection(section.headings, self.make_section(place, section).tokens, reason)

    def find_outdated(self, documents: Sequence[AnsweredDocument]) -> tuple[str, ...]:
        """The ids of the documents whose files have changed since the cache was built."""
        found = []
        for document in documents[:COMPARED_MAX]:
            cache, number = self._places[document.id]
            if document.id not in self._is_current:
                name = self.indexes[cache].document(number).id
                self._is_current[document.id] = is_current(self._caches[cache].folder.path, name, document.version)
            if not self._is_current[document.id]:
                found.append(document.id)
        return tuple(found)

    def make_document(
        self, ranked: RankedDocument, sections: Sequence[AnsweredSection], left_out: Sequence[LeftOutSection] = ()
    ) -> AnsweredDocument:
        name, version, title = self.document(ranked.place)
        self._places[name] = ranked.place
        return AnsweredDocument(name, version, title, ranked.score, tuple(sections), tuple(left_out))


class TextCosts:
    """The tokens of the parts of an answer as text."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts

    def document(self, document: AnsweredDocument) -> int:
        """The tokens of a document with its sections: those of its passages."""
        tokens = 0
        above = None
        for passage in passages_of(document):
            tokens += self._parts.count_once(passage.header(above))
            tokens += sum(self._parts.count_once(section.content) for section in passage.sections)
            tokens += 0 if passage.sections[-1].content.endswith("\n") else LINE_BREAKS_TOKENS
            above = passage
        return tokens

    def left_out(self, _section: LeftOutSection) -> int:
        """Nothing: the text has one line for all of them."""
        return 0


class JsonCosts:
    """The tokens of the parts of an answer as JSON, each with the comma before it."""

    def __init__(self, parts: AnswerParts, *, with_scores: bool = True) -> None:
        self._count = parts.count
        self._with_scores = with_scores
        self._sections: dict[AnsweredSection, int] = {}

    def document(self, document: AnsweredDocument) -> int:
        tokens = self.encoded(document._replace(sections=()).as_members(with_scores=self._with_scores))
        for section in document.sections:
            if section not in self._sections:
                members = section.as_members()
                if not self._with_scores:
                    del members["score"], members["why"]
                self._sections[section] = self.encoded(members)
            tokens += self._sections[section]
        return tokens

    def left_out(self, section: LeftOutSection) -> int:
        return self.encoded(section._asdict())

    def encoded(self, members: Encodable) -> int:
        return self._count(encode_plain(members) + ",")


Costs = TextCosts | JsonCosts


def check_format(format: object) -> str:
    if not isinstance(format, str) or format not in FORMATS:
        raise OptionInvalid(f"format must be {' or '.join(FORMATS)}")
    return format


def left_out_forms(count: int, best: Sequence[tuple[str, LeftOutSection]]) -> list[str]:
    return [left_out_note(count, best[:names]) for names in range(len(best), -1, -1)]


def choose_notes(parts: AnswerParts, forms: Sequence[Sequence[str]], left: int) -> tuple[tuple[str, ...], int]:
    """The longest form of each note that leaves room for the notes after it, and the rest of the tokens."""
    notes = []
    for at, of_note in enumerate(forms):
        for_others = sum(parts.count(later[-1]) for later in forms[at + 1 :])
        fitting = [form for form in of_note[:-1] if parts.count(form) <= left - for_others]
        note = fitting[0] if fitting else of_note[-1]
        if parts.count(note) <= left:
            notes.append(note)
            left -= parts.count(note)
    return tuple(notes), left


def damaged_index(problem: Exception) -> CacheInvalid:
    """The error for an index with an unchanged fingerprint and invalid content."""
    return CacheInvalid(f"the index contradicts itself ({problem}); build the cache again")


def in_order(sections: Mapping[int, AnsweredSection]) -> list[AnsweredSection]:
    return [sections[number] for number in sorted(sections)]
