"""Reads a document of a cache within a budget: all of it, or the sections below a heading or in a range of lines."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import islice

from contextfold.common.answer_format import JSON, TEXT
from contextfold.common.canonical import Encodable
from contextfold.common.question import AROUND_MAX, LINE_DIGITS, check_budget, quote_briefly
from contextfold.common.text import lowercase
from contextfold.common.tokens import ESTIMATE
from contextfold.errors import DocumentMissing, LinesMissing, OptionInvalid, SectionMissing
from contextfold.resolve.cache_format import document_id
from contextfold.resolve.index import Index, IndexedDocument, IndexedSection
from contextfold.resolve.index_file import OpenIndex
from contextfold.resolve.relevance.answer import (
    BUDGET_REASON,
    CACHE_JOINT,
    CRUMB,
    LEFT_OUT_MAX,
    NAMED_MAX,
    AnsweredDocument,
    AnsweredSection,
    GetResult,
    LeftOutSection,
    left_out_note,
    outdated_note,
)
from contextfold.resolve.relevance.answer_parts import (
    DAMAGE,
    LEAST_SECTION_TOKENS,
    NOTES_SHARE,
    AnswerParts,
    Costs,
    JsonCosts,
    NamedIndex,
    TextCosts,
    check_format,
    choose_notes,
    damaged_index,
    in_order,
    left_out_forms,
)
from contextfold.resolve.relevance.ranking import Place, RankedDocument

# An error names at most this many documents that may have been meant by a name of at most this many characters.
SIMILAR_MAX, NAME_LENGTH_MAX = 3, 200
# The end of a breadcrumb as an answer has it.
_LINES = re.compile(rf" \(lines ([0-9]{{1,{LINE_DIGITS}}})-([0-9]{{1,{LINE_DIGITS}}})\)$")


def get(
    cache: NamedIndex,
    document_id: str,
    budget: object,
    *,
    section: str | None = None,
    lines: tuple[int, int] | None = None,
    around: int = 0,
    counter: str = ESTIMATE,
    format: str = TEXT,
) -> GetResult:
    """A document within a budget: all of it, its sections below a heading, or its sections in a range of lines.

    `document_id` is an id, the path of the document's file, or the breadcrumb of a section. `section` is a heading or a
    breadcrumb. `around` is the number of neighbouring sections to add on each side. Sections that do not fit are
    counted, and listed if there is room for that.
    """
    _check_part(document_id, section, lines, around)
    budget = check_budget(budget)
    check_format(format)
    parts = AnswerParts([cache], counter)
    index = cache.opened.reader
    try:
        number = _document_number(index, document_id)
        if number is None and section is None and lines is None:
            breadcrumb, _ = _split_lines(document_id)
            number, section = _document_number(index, breadcrumb.partition(CRUMB)[0]), document_id
        if number is None:
            similar = [
                f"{cache.name}{CACHE_JOINT}{found}" if cache.name else found for found in _similar(index, document_id)
            ]
            name = quote_briefly(document_id)
            raise DocumentMissing(f"the cache has no document {name}; `context ls` lists those it has", similar)
        sections = index.sections_of(number)
        wanted = _find_wanted_sections(sections, index.document(number).id, section, lines)
        chosen = _with_neighbours(wanted, around, len(sections)) if around > 0 else wanted
        request = _SectionRequest(parts, number, sections, chosen, budget)
        room = budget
        while True:
            result = request.as_json(room) if format == JSON else request.as_text(room)
            over = 0
            if counter != ESTIMATE and result.document.sections:
                over = parts.count(result.to_json() if format == JSON else result.to_text()) - budget
            if over <= 0:
                return result
            room -= over
    except DAMAGE as problem:
        raise damaged_index(problem) from problem


class _SectionRequest:
    """What `get` was asked for: some sections of a document, by their numbers."""

    def __init__(
        self, parts: AnswerParts, document: int, sections: Sequence[IndexedSection], chosen: Sequence[int], budget: int
    ) -> None:
        self._parts, self._sections, self._chosen, self._budget = parts, sections, chosen, budget
        self._place = Place(0, document)
        self._is_outdated = bool(parts.find_outdated([self._document({})]))

    def as_json(self, room: int) -> GetResult:
        costs = JsonCosts(self._parts, with_scores=False)
        left = room - self._parts.count(self._result({}, self._budget).to_json())
        taken, left = self._take(costs, left)
        listed: list[LeftOutSection] = []
        for missing in self._missing(taken):
            if costs.left_out(missing) <= left:
                left -= costs.left_out(missing)
                listed.append(missing)
        return self._result(taken, room - left if taken else 0, listed)

    def as_text(self, room: int) -> GetResult:
        outdated = [outdated_note()] if self._is_outdated else []
        count = self._parts.count
        kept = sum(map(count, outdated))
        taken, left = self._take(TextCosts(self._parts), room - kept)
        if len(taken) < len(self._chosen):
            kept += min(count(left_out_note(len(self._chosen))), room // NOTES_SHARE)
            taken, left = self._take(TextCosts(self._parts), room - kept)
        missing = self._missing(taken)
        forms = [[note] for note in outdated]
        if missing:
            name = self._parts.document(self._place).id
            named = [(name, each) for each in missing[:NAMED_MAX]]
            forms.append(left_out_forms(len(self._chosen) - len(taken), named))
        if not self._chosen:
            return self._result({}, 0, notes=("The document is empty.\n", *outdated))
        if not taken:
            return self._result({}, 0, missing, tuple(of_note[-1] for of_note in forms))
        notes, left = choose_notes(self._parts, forms, left + kept)
        return self._result(taken, room - left, missing, notes)

    def _take(self, costs: Costs, left: int) -> tuple[dict[int, AnsweredSection], int]:
        """Those of the chosen sections that fit, in their order, and the rest of the tokens."""
        parts, sections = self._parts, self._sections
        taken: dict[int, AnsweredSection] = {}
        spent = 0
        if sum(sections[at].tokens for at in self._chosen) <= left * parts.slack:
            # Most documents fit as a whole, and then there is no need to try each section.
            everything = {at: parts.make_section(self._place, sections[at]) for at in self._chosen}
            cost = costs.document(self._document(everything)) if everything else 0
            if cost <= left:
                return everything, left - cost
        for at in self._chosen:
            if left - spent < LEAST_SECTION_TOKENS:
                break
            if sections[at].tokens > (left - spent) * parts.slack:
                continue
            more = taken | {at: parts.make_section(self._place, sections[at])}
            cost = costs.document(self._document(more))
            if cost <= left:
                taken, spent = more, cost
        return taken, left - spent

    def _missing(self, taken: Container[int]) -> list[LeftOutSection]:
        """The first sections that did not fit."""
        passed = islice((at for at in self._chosen if at not in taken), LEFT_OUT_MAX)
        return [self._parts.leave_out(self._place, self._sections[at], BUDGET_REASON) for at in passed]

    def _document(
        self, taken: Mapping[int, AnsweredSection], left_out: Sequence[LeftOutSection] = ()
    ) -> AnsweredDocument:
        return self._parts.make_document(RankedDocument(self._place, 0), in_order(taken), left_out)

    def _result(
        self,
        taken: Mapping[int, AnsweredSection],
        tokens_used: int,
        left_out: Sequence[LeftOutSection] = (),
        notes: tuple[str, ...] = (),
    ) -> GetResult:
        left_out_count = len(self._chosen) - len(taken)
        document = self._document(taken, left_out)
        counter = self._parts.counter
        return GetResult(document, self._budget, tokens_used, left_out_count, counter, self._is_outdated, notes)


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


def _similar(index: Index, name: str) -> list[str]:
    """The ids of documents that may be meant by a name that no document has: by path, then title, then spelling."""
    wanted = lowercase(name[:NAME_LENGTH_MAX]).strip("/")
    stem, found = _stem(wanted), []
    if not stem:
        return []
    documents = index.documents()
    for document in documents:
        tests = (
            _stem(document.id) == stem,
            stem in _stem(document.id),
            stem in document.id,
            stem in document.title.lower(),
        )
        if any(tests):
            found.append((tests.index(True), len(document.id), document.id))
    if found:
        return [found_id for *_, found_id in sorted(found)[:SIMILAR_MAX]]
    # Only mistakes need it.
    from difflib import get_close_matches

    of_stem = {_stem(document.id): document.id for document in reversed(documents)}
    return [of_stem[close] for close in get_close_matches(stem, of_stem, SIMILAR_MAX)]


def _stem(path: str) -> str:
    """The name of a file without its folder and its ending."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def list_documents(cache: NamedIndex) -> list[IndexedDocument]:
    try:
        return cache.opened.reader.documents()
    except DAMAGE as problem:
        raise damaged_index(problem) from problem


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
        found = [at for at, one in enumerate(sections) if _has_any(one, lines)]
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
    breadcrumb, lines = _split_lines(wanted)
    first, *rest = breadcrumb.split(CRUMB)
    if first == document_id or first.endswith(CACHE_JOINT + document_id):
        found = [at for at, above in enumerate(names) if above[: len(rest)] == rest and (rest or lines or not above)]
    else:
        # A further passage of a document begins with the joint, and need not have a heading.
        rest = list(filter(None, [breadcrumb.removeprefix(CRUMB.strip()).strip()]))
        found = [at for at, above in enumerate(names) if (_is_named(above, rest[0]) if rest else lines)]
    # Several sections may have the same headings.
    within = [at for at in found if lines and _has_any(sections[at], lines)]
    return within or (found if rest or not lines else [])


def _split_lines(breadcrumb: str) -> tuple[str, tuple[int, int] | None]:
    """A breadcrumb without the lines at its end, and the lines if it has them."""
    found = _LINES.search(breadcrumb)
    return (breadcrumb[: found.start()], (int(found[1]), int(found[2]))) if found else (breadcrumb, None)


def _has_any(section: IndexedSection, lines: tuple[int, int]) -> bool:
    return section.first_line <= lines[1] and section.last_line >= lines[0]


def _is_named(names: list[str], wanted: str) -> bool:
    """Whether the headings above a section have this one, or these neighbouring ones."""
    return wanted != "" and f"{CRUMB}{wanted}{CRUMB}" in f"{CRUMB}{CRUMB.join(names)}{CRUMB}"
