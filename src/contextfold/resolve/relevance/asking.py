"""Answers a question from caches: ranks sections, selects those that fit the budget, and reads them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from contextfold.common.canonical import Encodable, Malformed
from contextfold.common.question import AROUND_MAX, LINE_DIGITS, Question, check_budget, quote_briefly
from contextfold.common.text import lowercase
from contextfold.common.tokens import ESTIMATE, CountTokens, counter_named
from contextfold.errors import CacheInvalid, DocumentMissing, LinesMissing, OptionInvalid, QueryInvalid, SectionMissing
from contextfold.resolve.cache_format import HASH_PREFIX, document_id
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
from contextfold.resolve.relevance.index_entries import section_digest
from contextfold.resolve.relevance.index_file import MappedIndex
from contextfold.resolve.relevance.index_format import IndexView
from contextfold.resolve.relevance.ranking import RankedDocument, RankedSection, Ranking, explain, rank

SECTION_UNIT, DOCUMENT_UNIT = "section", "document"
UNITS = (SECTION_UNIT, DOCUMENT_UNIT)
# If fewer tokens of the budget are left, no further section is tried, and none is listed as left out.
LEAST_SECTION_TOKENS = 8
# Few breadcrumbs take more tokens.
CRUMB_TOKENS_MOST = 64


class NamedIndex(NamedTuple):
    """An index with the name of its cache. If it is not empty, the name is the prefix of the documents' ids."""

    name: str
    mapped: MappedIndex


class _Shelf:
    """Reads from the indexes of one question. Every text is checked against its hash."""

    def __init__(self, indexes: Sequence[NamedIndex], counter: str) -> None:
        self._indexes = indexes
        self.views = [index.mapped.view for index in indexes]
        self.counter = counter
        # A section is tried if its estimate is at most this many times the budget. An exact counter may count less.
        self.slack = 1 if counter == ESTIMATE else 2
        self.count: CountTokens = counter_named(counter)
        self._least: dict[tuple[int, int], int] = {}

    def document_id(self, index: int, document: int) -> str:
        name, found = self._indexes[index].name, self.views[index].document_id(document)
        return f"{name}{CACHE_JOINT}{found}" if name else found

    def content(self, index: int, document: int, section: int) -> str:
        start, end = self.views[index].section_range(document, section)
        contents = self._indexes[index].mapped.contents
        if not 0 <= start <= end <= len(contents):
            raise Malformed("a section lies outside the contents")
        raw = bytes(contents[start:end])
        if section_digest(raw) != self.views[index].section_digest(section):
            raise Malformed("a section's text is not what was built")
        return raw.decode()

    def lines(self, index: int, section: int, content: str) -> tuple[int, int]:
        first = self.views[index].column("section_lines")[section]
        return first, first + max(content.count("\n") - content.endswith("\n"), 0)

    def may_fit(self, index: int, document: int, section: int, left: int) -> bool:
        """Whether a section is worth reading. Of the many that are nearly too long, most are recognised without that.

        Every section of a document costs at least a breadcrumb without headings beside its text: an estimate adds what
        it gives for each word.
        """
        estimated: int = self.views[index].column("section_tokens")[section]
        if self.counter != ESTIMATE or estimated > left or estimated + CRUMB_TOKENS_MOST <= left:
            return estimated <= left * self.slack
        place = (index, document)
        if place not in self._least:
            crumb = breadcrumb(self.document_id(index, document), (), (1, 1))
            self._least[place] = self.count(crumb) + LINE_BREAKS_TOKENS
        return estimated + self._least[place] <= left

    def answer_section(self, place: RankedSection) -> AnsweredSection:
        """A section, not explained yet."""
        _, index, document, section, score = place
        content = self.content(index, document, section)
        heading, lines = self.views[index].headings(section), self.lines(index, section, content)
        crumb = breadcrumb(self.document_id(index, document), heading, lines)
        if self.counter == ESTIMATE:
            text_tokens = self.views[index].column("section_tokens")[section]
        else:
            text_tokens = self.count(content)
        tokens = self.count(crumb) + text_tokens + LINE_BREAKS_TOKENS
        return AnsweredSection(heading, lines, tokens, score, content, ())

    def leave_out(self, place: RankedSection, reason: str) -> tuple[LeftOutSection, int]:
        """A section that is not in the answer, and the tokens of the line about it."""
        missing = self.answer_section(place)
        found = LeftOutSection(missing.heading, missing.tokens, reason)
        return found, self.count(left_out_line(found)) + LINE_BREAKS_TOKENS

    def document(
        self, place: RankedDocument, sections: Sequence[AnsweredSection], left_out: Sequence[LeftOutSection]
    ) -> AnsweredDocument:
        view = self.views[place.cache]
        return AnsweredDocument(
            self.document_id(place.cache, place.document),
            HASH_PREFIX + view.version(place.document).hex(),
            view.title(place.document),
            place.score,
            tuple(sections),
            tuple(left_out),
        )


def ask(
    indexes: Sequence[NamedIndex], question: Question, *, unit: str = SECTION_UNIT, counter: str = ESTIMATE
) -> AskResult:
    """The best sections for a question within its budget of tokens; with `unit` "document", the best documents."""
    if unit not in UNITS:
        raise QueryInvalid(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    shelf = _Shelf(indexes, counter)
    try:
        ranking = rank(question, shelf.views)
        if unit == DOCUMENT_UNIT:
            documents, left, left_out = _whole_documents(shelf, ranking, question.budget)
        else:
            documents, left, left_out = _best_sections(shelf, ranking, question.budget)
    except (Malformed, IndexError, ValueError, OverflowError) as problem:
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
            sections_matched=len(ranking.rows),
            sections_selected=sum(len(document.sections) for document in documents),
            sections_left_out=left_out,
            query_cut=question.is_cut,
        ),
    )


def damaged_index(problem: Exception) -> CacheInvalid:
    """The error for an index with an unchanged fingerprint and invalid content, which only a failing disk causes."""
    return CacheInvalid(f"the relevance index contradicts itself ({problem}); build the cache again")


def _best_sections(shelf: _Shelf, ranking: Ranking, left: int) -> tuple[list[AnsweredDocument], int, int]:
    """Select sections in order while they fit. Documents are in the order of their best selected sections.

    Returns the documents, the rest of the budget, and the number of sections that did not fit. Duplicates of selected
    sections do not count.
    """
    taken: dict[tuple[int, int], dict[int, AnsweredSection]] = {}
    # The positions of the selected sections in the ranking.
    taken_at: dict[bytes, int] = {}
    digests = [view.section_digest for view in shelf.views]
    for at, row in enumerate(ranking.rows):
        if left < LEAST_SECTION_TOKENS:
            break
        _, index, document, section, _ = row
        if not shelf.may_fit(index, document, section, left) or digests[index](section) in taken_at:
            continue
        place = RankedSection._make(row)
        answered = shelf.answer_section(place)
        if answered.tokens <= left:
            left -= answered.tokens
            explained = answered._replace(why=explain(ranking, shelf.views, place))
            taken.setdefault((index, document), {})[section] = explained
            taken_at[digests[index](section)] = at
    passed = _find_passed_sections(shelf, ranking, taken, taken_at)
    scores = {(found.cache, found.document): found for found in ranking.documents}
    documents = []
    for document_place, sections in taken.items():
        mentioned = []
        for section_place, reason in passed[document_place]:
            if left < LEAST_SECTION_TOKENS:
                break
            missing, tokens = shelf.leave_out(section_place, reason)
            if tokens <= left:
                left -= tokens
                mentioned.append(missing)
        by_line = [sections[number] for number in sorted(sections)]
        documents.append(shelf.document(scores[document_place], by_line, mentioned))
    return documents, left, sum(digests[row[1]](row[3]) not in taken_at for row in ranking.rows)


def _find_passed_sections(
    shelf: _Shelf,
    ranking: Ranking,
    taken: Mapping[tuple[int, int], Container[int]],
    taken_at: Mapping[bytes, int],
) -> dict[tuple[int, int], list[tuple[RankedSection, str]]]:
    """The best sections that were not taken, of each document that has one that was, with the reason."""
    passed: dict[tuple[int, int], list[tuple[RankedSection, str]]] = {place: [] for place in taken}
    for at, row in enumerate(ranking.rows):
        _, index, document, section, _ = row
        found = passed.get((index, document))
        if found is not None and len(found) < LEFT_OUT_MAX and section not in taken[index, document]:
            is_double = taken_at.get(shelf.views[index].section_digest(section), at) < at
            found.append((RankedSection._make(row), DUPLICATE_REASON if is_double else BUDGET_REASON))
    return passed


def _whole_documents(shelf: _Shelf, ranking: Ranking, left: int) -> tuple[list[AnsweredDocument], int, int]:
    """Select whole documents while they fit. Each is one section with the reasons of its best section.

    Returns the documents, the rest of the budget, and the number of matching sections in documents that did not fit.
    """
    best: dict[tuple[int, int], RankedSection] = {}
    for found in ranking.sections:
        best.setdefault((found.cache, found.document), found)
    seen: set[bytes] = set()
    documents = []
    for place in ranking.documents:
        section = best.get((place.cache, place.document))
        version = shelf.views[place.cache].version(place.document)
        if section is None or version in seen:
            continue
        numbers = shelf.views[place.cache].sections_of(place.document)
        estimates = shelf.views[place.cache].column("section_tokens")
        if sum(estimates[number] for number in numbers) > 2 * left:
            continue
        content = "".join(shelf.content(place.cache, place.document, number) for number in numbers)
        lines = shelf.lines(place.cache, numbers[0], content)
        crumb = breadcrumb(shelf.document_id(place.cache, place.document), (), lines)
        tokens = shelf.count(crumb) + shelf.count(content) + LINE_BREAKS_TOKENS
        if tokens > left:
            continue
        left -= tokens
        seen.add(version)
        why = explain(ranking, shelf.views, section)
        documents.append(shelf.document(place, [AnsweredSection((), lines, tokens, section.score, content, why)], ()))
    versions = (shelf.views[row[1]].version(row[2]) for row in ranking.rows)
    return documents, left, sum(version not in seen for version in versions)


def get(
    index: NamedIndex,
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
    shelf = _Shelf([index], counter)
    view = index.mapped.view
    try:
        number = _document_number(view, document_id)
        if number is None and CRUMB in document_id and section is None and lines is None:
            number, section = _document_number(view, document_id.partition(CRUMB)[0]), document_id
        if number is None:
            name = quote_briefly(document_id)
            raise DocumentMissing(f"the cache has no document {name}; `context ask` shows the ids it has")
        wanted = _find_wanted_sections(view, shelf, number, section, lines)
        chosen = _with_neighbours(wanted, around, view.sections_of(number)) if around > 0 else wanted
        taken: list[AnsweredSection] = []
        left_out: list[LeftOutSection] = []
        lists_more = True
        for at in chosen:
            place = RankedSection(0, 0, number, at, 0)
            answered = shelf.answer_section(place) if shelf.may_fit(0, number, at, left) else None
            if answered is not None and answered.tokens <= left:
                left -= answered.tokens
                taken.append(answered)
            elif lists_more and len(left_out) < LEFT_OUT_MAX and left >= LEAST_SECTION_TOKENS:
                missing, tokens = shelf.leave_out(place, BUDGET_REASON)
                lists_more = tokens <= left
                if lists_more:
                    left -= tokens
                    left_out.append(missing)
        document = shelf.document(RankedDocument(0, number, 0), taken, left_out)
    except (Malformed, IndexError, ValueError, OverflowError) as problem:
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


def _document_number(view: IndexView, name: str) -> int | None:
    """The number of the document with this id, or else of the file with this path."""
    # No id has a lone surrogate; "replace" would turn it into a question mark, which an id may have.
    number = view.document_number(name.encode("utf-8", "surrogatepass"))
    if number is None:
        number = view.document_number(document_id(name).encode("utf-8", "surrogatepass"))
    return number


def table_of_contents(index: MappedIndex, most: int) -> dict[str, Encodable]:
    """What a cache has, and up to `most` of its documents."""
    view = index.view
    count = view.head.document_count
    try:
        documents = [{"id": view.document_id(at), "title": view.title(at)} for at in range(min(count, most))]
    except (Malformed, IndexError, ValueError) as problem:
        raise damaged_index(problem) from problem
    return {"cache_version": index.cache_version, "document_count": count, "documents": documents}


def _find_wanted_sections(
    view: IndexView, shelf: _Shelf, document: int, section: str | None, lines: tuple[int, int] | None
) -> list[int]:
    numbers = view.sections_of(document)
    if lines is not None:
        first, last = lines
        starts = view.column("section_lines")
        found = [
            number
            for number in numbers
            if starts[number] <= last and shelf.lines(0, number, shelf.content(0, document, number))[1] >= first
        ]
        if not found:
            length = shelf.lines(0, numbers[-1], shelf.content(0, document, numbers[-1]))[1] if numbers else 0
            raise LinesMissing(f"the last line is {length}")
        return found
    if section is not None:
        found = _below(view, numbers, section, view.document_id(document))
        if not found:
            raise SectionMissing(f"no heading is {quote_briefly(section)}; get the whole document to see its headings")
        return found
    return list(numbers)


def _with_neighbours(wanted: list[int], around: int, numbers: range) -> list[int]:
    """The wanted sections, those between them, and `around` more on each side; none for an empty document."""
    if not wanted:
        return []
    first = max(wanted[0] - around, numbers.start)
    last = min(wanted[-1] + around, numbers.stop - 1)
    return list(range(first, last + 1))


def _below(view: IndexView, numbers: range, section: str, document_id: str) -> list[int]:
    """The sections below a heading, which is given by its text or by its breadcrumb, with or without the document."""
    wanted = lowercase(section).strip()
    names = {number: [lowercase(heading) for heading in view.headings(number)] for number in numbers}
    found = [number for number in numbers if _is_named(names[number], wanted)]
    if found:
        return found
    # A breadcrumb as an answer has it: document, headings and lines.
    before, _, lines = wanted.rpartition(" (lines ")
    first_line = lines.removesuffix(")").partition("-")[0]
    has_lines = first_line.isascii() and first_line.isdigit()
    first, *rest = (before if has_lines else wanted).split(CRUMB)
    if first == document_id or first.endswith(CACHE_JOINT + document_id):
        found = [number for number in numbers if names[number][: len(rest)] == rest and (rest or not names[number])]
    else:
        found = [number for number in numbers if _is_named(names[number], before if has_lines else wanted)]
    if has_lines:
        # Several sections may have the same headings.
        starts = view.column("section_lines")
        found = [number for number in found if starts[number] == int(first_line[:LINE_DIGITS])] or found
    return found


def _is_named(names: list[str], wanted: str) -> bool:
    """Whether the heading is among those above a section, by its text or by its breadcrumb."""
    return wanted in names or any(CRUMB.join(names[: at + 1]) == wanted for at in range(len(names)))
