"""Answers a question from caches: ranks sections, selects those that fit the budget, and reads them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Malformed
from contextfold.common.question import AROUND_MAX, LINE_DIGITS, Question, check_budget, quote_briefly
from contextfold.common.text import lowercase
from contextfold.common.tokens import ESTIMATE, CountTokens, counter_named
from contextfold.errors import CacheInvalid, DocumentMissing, LinesMissing, OptionInvalid, QueryInvalid, SectionMissing
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.cache_format import document_id
from contextfold.resolve.index import Index, IndexedDocument, IndexedSection
from contextfold.resolve.index_file import OpenIndex
from contextfold.resolve.relevance.answer import (
    BUDGET_REASON,
    CACHE_JOINT,
    CRUMB,
    DUPLICATE_REASON,
    LEFT_OUT_MAX,
    LINE_BREAKS_TOKENS,
    AnsweredDocument,
    AnsweredSection,
    AskResult,
    AskSelection,
    GetResult,
    LeftOutSection,
    breadcrumb,
    left_out_line,
)
from contextfold.resolve.relevance.ranking import RankedDocument, RankedSection, Ranking, explain, rank

SECTION_UNIT, DOCUMENT_UNIT = "section", "document"
UNITS = (SECTION_UNIT, DOCUMENT_UNIT)
# If fewer tokens of the budget are left, no further section is tried, and none is listed as left out.
LEAST_SECTION_TOKENS = 8
# What an index raises whose build recorded it although it is wrong, which only a failing disk or an attacker causes.
DAMAGE = (Malformed, LookupError, ValueError, TypeError, OverflowError)


class NamedIndex(NamedTuple):
    """The index of a cache with its name, and its files. A name is the prefix of the documents' ids if not empty."""

    name: str
    opened: OpenIndex
    folder: CacheFolder


class _Shelf:
    """Reads from the caches of one question. Every document is checked against its hash."""

    def __init__(self, caches: Sequence[NamedIndex], counter: str) -> None:
        self._caches = caches
        self.indexes = [cache.opened.reader for cache in caches]
        self.counter = counter
        # A section is tried if its estimate is at most this many times the budget. An exact counter may count less.
        self.slack = 1 if counter == ESTIMATE else 2
        self.count: CountTokens = counter_named(counter)
        self._documents: dict[tuple[int, int], IndexedDocument] = {}
        self._contents: dict[tuple[int, int], bytes] = {}

    def document(self, cache: int, number: int) -> IndexedDocument:
        """A document with the id that it has in answers."""
        if (cache, number) not in self._documents:
            found, name = self.indexes[cache].document(number), self._caches[cache].name
            self._documents[cache, number] = found._replace(id=f"{name}{CACHE_JOINT}{found.id}") if name else found
        return self._documents[cache, number]

    def content(self, cache: int, number: int) -> bytes:
        """The text of a document."""
        if (cache, number) not in self._contents:
            _, opened, folder = self._caches[cache]
            self._contents[cache, number] = folder.document(folder.entry(opened, number)).content
        return self._contents[cache, number]

    def text(self, cache: int, number: int, section: IndexedSection) -> str:
        return self.content(cache, number)[section.start : section.end].decode()

    def answer_section(self, cache: int, number: int, section: IndexedSection, score: int = 0) -> AnsweredSection:
        """A section, not explained yet."""
        content = self.text(cache, number, section)
        lines = (section.first_line, section.last_line)
        tokens = self.cost(cache, number, section, None if self.counter == ESTIMATE else content)
        return AnsweredSection(section.headings, lines, tokens, score, content, ())

    def cost(self, cache: int, number: int, section: IndexedSection, content: str | None = None) -> int:
        """The tokens of a section with its breadcrumb. Without its content, those of the text are estimated."""
        lines = (section.first_line, section.last_line)
        crumb = breadcrumb(self.document(cache, number).id, section.headings, lines)
        text_tokens = section.tokens if content is None else self.count(content)
        return self.count(crumb) + text_tokens + LINE_BREAKS_TOKENS

    def leave_out(self, cache: int, number: int, section: IndexedSection, reason: str) -> tuple[LeftOutSection, int]:
        """A section that is not in the answer, and the tokens of the line about it."""
        content = None if self.counter == ESTIMATE else self.text(cache, number, section)
        found = LeftOutSection(section.headings, self.cost(cache, number, section, content), reason)
        return found, self.count(left_out_line(found)) + LINE_BREAKS_TOKENS

    def answer_document(
        self, place: RankedDocument, sections: Sequence[AnsweredSection], left_out: Sequence[LeftOutSection]
    ) -> AnsweredDocument:
        name, version, title = self.document(place.cache, place.document)
        return AnsweredDocument(name, version, title, place.score, tuple(sections), tuple(left_out))


def ask(
    caches: Sequence[NamedIndex], question: Question, *, unit: str = SECTION_UNIT, counter: str = ESTIMATE
) -> AskResult:
    """The best sections for a question within its budget of tokens; with `unit` "document", the best documents."""
    if unit not in UNITS:
        raise QueryInvalid(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    shelf = _Shelf(caches, counter)
    try:
        ranking = rank(question, shelf.indexes)
        if unit == DOCUMENT_UNIT:
            documents, left, left_out = _whole_documents(shelf, ranking, question.budget)
        else:
            documents, left, left_out = _best_sections(shelf, ranking, question.budget)
    except DAMAGE as problem:
        raise damaged_index(problem) from problem
    return AskResult(
        tuple(documents),
        AskSelection(
            query=question.text,
            unmatched=ranking.unmatched,
            budget=question.budget,
            tokens_used=question.budget - left,
            counter=counter,
            documents_considered=ranking.document_count,
            sections_matched=len(ranking.sections),
            sections_selected=sum(len(document.sections) for document in documents),
            sections_left_out=left_out,
            query_cut=question.is_cut,
        ),
    )


def damaged_index(problem: Exception) -> CacheInvalid:
    """The error for an index with an unchanged fingerprint and invalid content."""
    return CacheInvalid(f"the index contradicts itself ({problem}); build the cache again")


def _best_sections(shelf: _Shelf, ranking: Ranking, left: int) -> tuple[list[AnsweredDocument], int, int]:
    """Select sections in order while they fit. Documents are in the order of their best selected sections.

    Returns the documents, the rest of the budget, and the number of sections that did not fit. Duplicates of selected
    sections do not count.
    """
    taken: dict[tuple[int, int], dict[int, AnsweredSection]] = {}
    # The positions of the selected sections in the ranking.
    taken_at: dict[bytes, int] = {}
    digests = [ranking.sections_of[place.cache, place.document][place.section].digest for place in ranking.sections]
    for at, place in enumerate(ranking.sections):
        if left < LEAST_SECTION_TOKENS:
            break
        _, cache, document, number, score = place
        section = ranking.sections_of[cache, document][number]
        if section.tokens > left * shelf.slack or section.digest in taken_at:
            continue
        if shelf.cost(cache, document, section) > left * shelf.slack:
            continue
        answered = shelf.answer_section(cache, document, section, score)
        if answered.tokens <= left:
            left -= answered.tokens
            explained = answered._replace(why=explain(ranking, shelf.indexes, place))
            taken.setdefault((cache, document), {})[number] = explained
            taken_at[section.digest] = at
    passed = _find_passed_sections(ranking, taken, taken_at)
    ranked = {(found.cache, found.document): found for found in ranking.documents}
    documents = []
    for document_place, sections in taken.items():
        mentioned = []
        for number, reason in passed[document_place]:
            if left < LEAST_SECTION_TOKENS:
                break
            missing, tokens = shelf.leave_out(*document_place, ranking.sections_of[document_place][number], reason)
            if tokens <= left:
                left -= tokens
                mentioned.append(missing)
        by_line = [sections[number] for number in sorted(sections)]
        documents.append(shelf.answer_document(ranked[document_place], by_line, mentioned))
    return documents, left, sum(digest not in taken_at for digest in digests)


def _find_passed_sections(
    ranking: Ranking, taken: Mapping[tuple[int, int], Container[int]], taken_at: Mapping[bytes, int]
) -> dict[tuple[int, int], list[tuple[int, str]]]:
    """The best sections that were not taken, of each document that has one that was, with the reason."""
    passed: dict[tuple[int, int], list[tuple[int, str]]] = {place: [] for place in taken}
    for at, (_, cache, document, number, _) in enumerate(ranking.sections):
        found = passed.get((cache, document))
        if found is not None and len(found) < LEFT_OUT_MAX and number not in taken[cache, document]:
            digest = ranking.sections_of[cache, document][number].digest
            is_double = taken_at.get(digest, at) < at
            found.append((number, DUPLICATE_REASON if is_double else BUDGET_REASON))
    return passed


def _whole_documents(shelf: _Shelf, ranking: Ranking, left: int) -> tuple[list[AnsweredDocument], int, int]:
    """Select whole documents while they fit. Each is one section with the reasons of its best section.

    Returns the documents, the rest of the budget, and the number of matching sections in documents that did not fit.
    """
    best: dict[tuple[int, int], RankedSection] = {}
    for found in ranking.sections:
        best.setdefault((found.cache, found.document), found)
    seen: set[str] = set()
    documents = []
    for place in ranking.documents:
        cache, number, _ = place
        section, version = best.get((cache, number)), shelf.document(cache, number).version
        sections = ranking.sections_of[cache, number]
        if section is None or version in seen or sum(found.tokens for found in sections) > 2 * left:
            continue
        content = shelf.content(cache, number).decode()
        lines = (sections[0].first_line, sections[-1].last_line)
        crumb = breadcrumb(shelf.document(cache, number).id, (), lines)
        tokens = shelf.count(crumb) + shelf.count(content) + LINE_BREAKS_TOKENS
        if tokens > left:
            continue
        left -= tokens
        seen.add(version)
        why = explain(ranking, shelf.indexes, section)
        answered = AnsweredSection((), lines, tokens, section.score, content, why)
        documents.append(shelf.answer_document(place, [answered], ()))
    versions = (shelf.document(found.cache, found.document).version for found in ranking.sections)
    return documents, left, sum(version not in seen for version in versions)


def get(
    cache: NamedIndex,
    document_id: str,
    budget: object,
    *,
    section: str | None = None,
    lines: tuple[int, int] | None = None,
    around: int = 0,
    counter: str = ESTIMATE,
) -> GetResult:
    """A document within a budget: all of it, its sections below a heading, or its sections in a range of lines.

    `document_id` is an id, the path of the document's file, or the breadcrumb of a section. `section` is a heading or a
    breadcrumb. `around` is the number of neighbouring sections to add on each side. Sections that do not fit are
    counted, and listed if there is room for that.
    """
    _check_part(document_id, section, lines, around)
    budget = left = check_budget(budget)
    shelf = _Shelf([cache], counter)
    index = cache.opened.reader
    try:
        number = _document_number(index, document_id)
        if number is None and CRUMB in document_id and section is None and lines is None:
            number, section = _document_number(index, document_id.partition(CRUMB)[0]), document_id
        if number is None:
            name = quote_briefly(document_id)
            raise DocumentMissing(f"the cache has no document {name}; `context ask` shows the ids it has")
        sections = index.sections_of(number)
        wanted = _find_wanted_sections(sections, index.document(number).id, section, lines)
        chosen = _with_neighbours(wanted, around, len(sections)) if around > 0 else wanted
        taken: list[AnsweredSection] = []
        left_out: list[LeftOutSection] = []
        lists_more = True
        for at in chosen:
            may_fit = shelf.cost(0, number, sections[at]) <= left * shelf.slack
            answered = shelf.answer_section(0, number, sections[at]) if may_fit else None
            if answered is not None and answered.tokens <= left:
                left -= answered.tokens
                taken.append(answered)
            elif lists_more and len(left_out) < LEFT_OUT_MAX and left >= LEAST_SECTION_TOKENS:
                missing, tokens = shelf.leave_out(0, number, sections[at], BUDGET_REASON)
                lists_more = tokens <= left
                if lists_more:
                    left -= tokens
                    left_out.append(missing)
        document = shelf.answer_document(RankedDocument(0, number, 0), taken, left_out)
    except DAMAGE as problem:
        raise damaged_index(problem) from problem
    return GetResult(document, budget, budget - left, len(chosen) - len(taken), counter)


def _check_part(document_id: object, section: object, lines: object, around: object) -> None:
    """Raise OptionInvalid if the arguments of `get` do not name a document or a part of it."""
    if not isinstance(document_id, str):
        raise OptionInvalid("the id of a document is text")
    if not isinstance(section, str | None):
        raise OptionInvalid("the heading of a section is text")
    if section is not None and lines is not None:
        raise OptionInvalid("a section and lines exclude each other; give one of them")
    if lines is not None and not _is_line_range(lines):
        raise OptionInvalid("lines are two numbers, the first line and the last one, such as (40, 58)")
    if type(around) is not int or not 0 <= around <= AROUND_MAX:
        raise OptionInvalid(f"the number of neighbouring sections is a whole number from 0 to {AROUND_MAX}")


def _is_line_range(lines: object) -> bool:
    if not isinstance(lines, tuple | list) or [type(line) for line in lines] != [int, int]:
        return False
    first, last = lines
    return bool(1 <= first <= last)


def _document_number(index: Index, name: str) -> int | None:
    """The number of the document with this id, or else of the file with this path."""
    try:
        name.encode()
    except UnicodeEncodeError:
        # No id has a lone surrogate.
        return None
    number = index.document_number(name)
    return index.document_number(document_id(name)) if number is None else number


def table_of_contents(opened: OpenIndex, most: int) -> dict[str, Encodable]:
    """What a cache has, and up to `most` of its documents."""
    index = opened.reader
    count = index.document_count
    try:
        found = [index.document(number) for number in range(min(count, most))]
    except DAMAGE as problem:
        raise damaged_index(problem) from problem
    documents = [{"id": document.id, "title": document.title} for document in found]
    return {"cache_version": opened.record.cache_version, "document_count": count, "documents": documents}


def _find_wanted_sections(
    sections: Sequence[IndexedSection], document_id: str, section: str | None, lines: tuple[int, int] | None
) -> list[int]:
    if lines is not None:
        first, last = lines
        found = [at for at, one in enumerate(sections) if one.first_line <= last and one.last_line >= first]
        if not found:
            raise LinesMissing(f"the last line is {sections[-1].last_line if sections else 0}")
        return found
    if section is not None:
        found = _below(sections, section, document_id)
        if not found:
            raise SectionMissing(f"no heading is {quote_briefly(section)}; get the whole document to see its headings")
        return found
    return list(range(len(sections)))


def _with_neighbours(wanted: list[int], around: int, count: int) -> list[int]:
    """The wanted sections, those between them, and `around` more on each side; none for an empty document."""
    if not wanted:
        return []
    return list(range(max(wanted[0] - around, 0), min(wanted[-1] + around + 1, count)))


def _below(sections: Sequence[IndexedSection], section: str, document_id: str) -> list[int]:
    """The sections below a heading, which is given by its text or by its breadcrumb, with or without the document."""
    wanted = lowercase(section).strip()
    names = [[lowercase(heading) for heading in one.headings] for one in sections]
    found = [at for at, above in enumerate(names) if _is_named(above, wanted)]
    if found:
        return found
    # A breadcrumb as an answer has it: document, headings and lines.
    before, _, lines = wanted.rpartition(" (lines ")
    first_line = lines.removesuffix(")").partition("-")[0]
    has_lines = first_line.isascii() and first_line.isdigit()
    first, *rest = (before if has_lines else wanted).split(CRUMB)
    if first == document_id or first.endswith(CACHE_JOINT + document_id):
        found = [at for at, above in enumerate(names) if above[: len(rest)] == rest and (rest or not above)]
    else:
        found = [at for at, above in enumerate(names) if _is_named(above, before if has_lines else wanted)]
    if has_lines:
        # Several sections may have the same headings.
        found = [at for at in found if sections[at].first_line == int(first_line[:LINE_DIGITS])] or found
    return found


def _is_named(names: list[str], wanted: str) -> bool:
    """Whether the heading is among those above a section, by its text or by its breadcrumb."""
    return wanted in names or any(CRUMB.join(names[: at + 1]) == wanted for at in range(len(names)))
