"""Answers a question from caches: ranks sections, selects those that fit the budget, and reads them.

The budget is that of the answer as it is sent: of the text, or of the JSON. `_TextCosts` and `_JsonCosts` say what a
document with some of its sections costs there. The sum of the parts is never less than the whole as `estimate-1` counts
it. An exact counter may find a token more in the whole, so such an answer is counted once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from contextfold.common.answer_format import FORMATS, JSON, TEXT
from contextfold.common.canonical import Encodable, Malformed, encode_plain
from contextfold.common.question import (
    AROUND_MAX,
    LINE_DIGITS,
    TERMS_MAX,
    Question,
    check_budget,
    quote_briefly,
)
from contextfold.common.text import lowercase
from contextfold.common.tokens import ESTIMATE, CountTokens, counter_named
from contextfold.errors import CacheInvalid, DocumentMissing, LinesMissing, OptionInvalid, QueryInvalid, SectionMissing
from contextfold.resolve.cache import CacheFolder
from contextfold.resolve.cache_format import document_id
from contextfold.resolve.index import Index, IndexedDocument, IndexedSection
from contextfold.resolve.index_file import OpenIndex
from contextfold.resolve.outdated import COMPARED_MAX, is_current
from contextfold.resolve.relevance.answer import (
    BUDGET_REASON,
    CACHE_JOINT,
    CRUMB,
    DUPLICATE_REASON,
    LEFT_OUT_MAX,
    LINE_BREAKS_TOKENS,
    NAMED_MAX,
    AnsweredDocument,
    AnsweredSection,
    AskResult,
    AskSelection,
    GetResult,
    LeftOutCache,
    LeftOutSection,
    WhyTerm,
    copies_note,
    left_out_note,
    outdated_note,
    passages_of,
)
from contextfold.resolve.relevance.ranking import RankedDocument, RankedSection, Ranking, explain, rank

SECTION_UNIT, DOCUMENT_UNIT = "section", "document"
UNITS = (SECTION_UNIT, DOCUMENT_UNIT)
# If fewer tokens of the budget are left, no further section is tried, and none is listed as left out.
LEAST_SECTION_TOKENS = 8
# An error names at most this many documents that may have been meant by a name of at most this many characters.
SIMILAR_MAX, NAME_LENGTH_MAX = 3, 200
# The lines at the end of a text have room reserved for them up to this share of the budget.
NOTES_SHARE = 4
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
        self._tokens: dict[str, int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._is_current: dict[str, bool] = {}

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

    def count_once(self, text: str) -> int:
        """The tokens of a text that is counted often."""
        if text not in self._tokens:
            self._tokens[text] = self.count(text)
        return self._tokens[text]

    def text(self, cache: int, number: int, section: IndexedSection) -> str:
        text = self.content(cache, number)[section.start : section.end].decode()
        if self.counter == ESTIMATE:
            self._tokens[text] = section.tokens
        return text

    def answer_section(
        self, cache: int, number: int, section: IndexedSection, score: int = 0, why: tuple[WhyTerm, ...] = ()
    ) -> AnsweredSection:
        """A section. Its tokens are those of its text alone, with the breadcrumb."""
        lines = (section.first_line, section.last_line)
        answered = AnsweredSection(section.headings, lines, 0, score, self.text(cache, number, section), ())
        place = RankedDocument(cache, number, 0)
        tokens = _TextCosts(self).document(self.answer_document(place, [answered]))
        return answered._replace(tokens=tokens, why=why)

    def leave_out(self, cache: int, number: int, section: IndexedSection, reason: str) -> LeftOutSection:
        return LeftOutSection(section.headings, self.answer_section(cache, number, section).tokens, reason)

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

    def answer_document(
        self, place: RankedDocument, sections: Sequence[AnsweredSection], left_out: Sequence[LeftOutSection] = ()
    ) -> AnsweredDocument:
        name, version, title = self.document(place.cache, place.document)
        self._places[name] = (place.cache, place.document)
        return AnsweredDocument(name, version, title, place.score, tuple(sections), tuple(left_out))


class _TextCosts:
    """The tokens of the parts of an answer as text."""

    def __init__(self, shelf: _Shelf) -> None:
        self._shelf = shelf

    def document(self, document: AnsweredDocument) -> int:
        """The tokens of a document with its sections: those of its passages."""
        tokens = 0
        above = None
        for passage in passages_of(document):
            tokens += self._shelf.count_once(passage.header(above))
            tokens += sum(self._shelf.count_once(section.content) for section in passage.sections)
            tokens += 0 if passage.sections[-1].content.endswith("\n") else LINE_BREAKS_TOKENS
            above = passage
        return tokens

    def left_out(self, _section: LeftOutSection) -> int:
        """Nothing: the text has one line for all of them."""
        return 0


class _JsonCosts:
    """The tokens of the parts of an answer as JSON, each with the comma before it."""

    def __init__(self, shelf: _Shelf, *, with_scores: bool = True) -> None:
        self._count = shelf.count
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


_Costs = _TextCosts | _JsonCosts


_Select = Callable[[_Shelf, "_Costs", Ranking, int], "_Chosen"]


class _Chosen(NamedTuple):
    """Selected documents, the rest of the budget, the number of sections that did not fit, and the best of these.

    `copies` has the ids of the best documents that match only with text of the selected ones.
    """

    documents: list[AnsweredDocument]
    left: int
    left_out: int
    copies: tuple[str, ...]
    best_left_out: Sequence[tuple[str, LeftOutSection]] = ()


def ask(
    caches: Sequence[NamedIndex],
    question: Question,
    *,
    unit: str = SECTION_UNIT,
    counter: str = ESTIMATE,
    format: str = TEXT,
    caches_left_out: tuple[LeftOutCache, ...] = (),
) -> AskResult:
    """The best sections for a question within its budget of tokens; with `unit` "document", the best documents."""
    if unit not in UNITS:
        raise QueryInvalid(f"there is no unit {unit!r}; choose one of {', '.join(UNITS)}")
    check_format(format)
    shelf = _Shelf(caches, counter)
    try:
        ranking = rank(question, shelf.indexes)
        selection = AskSelection(
            query=question.text,
            unmatched=ranking.unmatched,
            budget=question.budget,
            tokens_used=0,
            counter=counter,
            documents_considered=ranking.document_count,
            sections_matched=len(ranking.sections),
            sections_selected=0,
            sections_left_out=len(ranking.sections),
            query_cut=question.is_cut,
            caches_left_out=caches_left_out,
        )
        select = _whole_documents if unit == DOCUMENT_UNIT else _best_sections
        room = question.budget
        while True:
            if format == JSON:
                result = _as_json(shelf, select, ranking, selection, room)
                text = result.to_json()
            else:
                result = _as_text(shelf, select, ranking, selection, room, has_words=bool(question.terms))
                text = result.to_text()
            over = shelf.count(text) - question.budget if counter != ESTIMATE and result.documents else 0
            if over <= 0:
                return result
            room -= over
    except DAMAGE as problem:
        raise damaged_index(problem) from problem


def check_format(format: object) -> str:
    if not isinstance(format, str) or format not in FORMATS:
        raise OptionInvalid(f"format must be {' or '.join(FORMATS)}")
    return format


def _as_json(shelf: _Shelf, select: _Select, ranking: Ranking, selection: AskSelection, room: int) -> AskResult:
    # The largest figures that there may be.
    figures = selection._replace(tokens_used=selection.budget, sections_selected=selection.sections_matched)
    outdated: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    while True:
        frame = shelf.count(AskResult((), figures._replace(outdated=outdated, copies=copies)).to_json())
        chosen = select(shelf, _JsonCosts(shelf), ranking, room - frame)
        found = shelf.find_outdated(chosen.documents)
        if set(found) <= set(outdated) and set(chosen.copies) <= set(copies):
            break
        # With less room, other documents may be selected.
        outdated = tuple(dict.fromkeys((*outdated, *found)))
        copies = tuple(dict.fromkeys((*copies, *chosen.copies)))
    return AskResult(tuple(chosen.documents), _with_figures(selection, chosen, room - chosen.left, found))


def _as_text(
    shelf: _Shelf, select: _Select, ranking: Ranking, selection: AskSelection, room: int, *, has_words: bool
) -> AskResult:
    others = _notes(shelf, selection)
    # How many sections are left out is not known yet.
    kept = shelf.count(left_out_note(len(ranking.sections))) + sum(map(shelf.count, others))
    kept = min(kept, max(room, 0) // NOTES_SHARE)
    chosen = select(shelf, _TextCosts(shelf), ranking, room - kept)
    forms = _note_forms(shelf, chosen)
    if forms:
        kept += sum(shelf.count(of_note[-1]) for of_note in forms)
        chosen = select(shelf, _TextCosts(shelf), ranking, room - kept)
        forms = _note_forms(shelf, chosen)
    outdated = shelf.find_outdated(chosen.documents)
    if not chosen.documents:
        if not has_words:
            why = "The question has no words to search for; words such as `how` and `the` are not searched.\n"
        elif selection.sections_matched:
            why = f"{selection.sections_matched} sections match, but none fits the budget.\n"
        else:
            why = "Nothing in the cache matches.\n"
        return AskResult((), _with_figures(selection, chosen, 0), (why, *others))
    forms += [[note] for note in others]
    if chosen.left_out:
        forms.append(_left_out_forms(chosen.left_out, chosen.best_left_out))
    notes, left = _fitting_notes(shelf, forms, chosen.left + kept)
    return AskResult(tuple(chosen.documents), _with_figures(selection, chosen, room - left, outdated), notes)


def _note_forms(shelf: _Shelf, chosen: _Chosen) -> list[list[str]]:
    """The notes about the selected documents, each in its forms, the longest first."""
    outdated, copies = shelf.find_outdated(chosen.documents), chosen.copies
    forms = [[outdated_note(outdated), outdated_note()]] if outdated else []
    if copies:
        forms.append([copies_note(copies[:names], len(copies)) for names in range(min(len(copies), NAMED_MAX), 0, -1)])
    return forms


def _left_out_forms(count: int, best: Sequence[tuple[str, LeftOutSection]]) -> list[str]:
    return [left_out_note(count, best[:names]) for names in range(len(best), -1, -1)]


def _fitting_notes(shelf: _Shelf, forms: Sequence[Sequence[str]], left: int) -> tuple[tuple[str, ...], int]:
    """The longest form of each note that leaves room for the notes after it, and the rest of the tokens."""
    notes = []
    for at, of_note in enumerate(forms):
        for_others = sum(shelf.count(later[-1]) for later in forms[at + 1 :])
        fitting = [form for form in of_note[:-1] if shelf.count(form) <= left - for_others]
        note = fitting[0] if fitting else of_note[-1]
        if shelf.count(note) <= left:
            notes.append(note)
            left -= shelf.count(note)
    return tuple(notes), left


def _notes(shelf: _Shelf, selection: AskSelection) -> list[str]:
    """What a reader must know beside the number of left-out sections."""
    notes = []
    if selection.unmatched:
        named = list(selection.unmatched)
        while len(named) > 1 and shelf.count(", ".join(named)) > selection.budget // NOTES_SHARE // 2:
            del named[len(named) // 2 :]
        more = ", …" if len(named) < len(selection.unmatched) else ""
        notes.append(f"[not in the cache: {', '.join(named)}{more}]\n")
    if selection.query_cut:
        notes.append(f"[the question has more than {TERMS_MAX} terms; the rest was not searched]\n")
    for cache in selection.caches_left_out:
        notes.append(f"[the cache {quote_briefly(cache.cache)} was not asked: {cache.reason}]\n")
    return notes


def _with_figures(
    selection: AskSelection, chosen: _Chosen, tokens_used: int, outdated: Sequence[str] = ()
) -> AskSelection:
    return selection._replace(
        outdated=tuple(outdated),
        copies=chosen.copies,
        tokens_used=tokens_used if chosen.documents else 0,
        sections_selected=sum(len(document.sections) for document in chosen.documents),
        sections_left_out=chosen.left_out,
    )


def damaged_index(problem: Exception) -> CacheInvalid:
    """The error for an index with an unchanged fingerprint and invalid content."""
    return CacheInvalid(f"the index contradicts itself ({problem}); build the cache again")


def _best_sections(shelf: _Shelf, costs: _Costs, ranking: Ranking, left: int) -> _Chosen:
    """Select sections in order while they fit. Documents are in the order of their best selected sections.

    Duplicates of selected sections do not count as left out.
    """
    ranked = {(found.cache, found.document): found for found in ranking.documents}
    taken: dict[tuple[int, int], dict[int, AnsweredSection]] = {}
    spent: dict[tuple[int, int], int] = {}
    # The positions of the selected sections in the ranking.
    taken_at: dict[bytes, int] = {}
    digests = [ranking.sections_of[place.cache, place.document][place.section].digest for place in ranking.sections]
    for at, place in enumerate(ranking.sections):
        if left < LEAST_SECTION_TOKENS:
            break
        _, cache, document, number, score = place
        section = ranking.sections_of[cache, document][number]
        least = section.tokens
        if (cache, document) not in taken:
            # Most sections that do not fit are passed over here, before their documents are read.
            least += shelf.count_once(shelf.document(cache, document).id)
        if least > left * shelf.slack or section.digest in taken_at:
            continue
        why = explain(ranking, shelf.indexes, place)
        sections = taken.get((cache, document), {}) | {
            number: shelf.answer_section(cache, document, section, score, why)
        }
        cost = costs.document(shelf.answer_document(ranked[cache, document], _by_number(sections)))
        more = cost - spent.get((cache, document), 0)
        if more <= left:
            left -= more
            taken[cache, document], spent[cache, document] = sections, cost
            taken_at[section.digest] = at
    passed = _find_passed_sections(ranking, taken, taken_at)
    documents = []
    for document_place, sections in taken.items():
        mentioned = []
        for number, reason in passed[document_place]:
            missing = shelf.leave_out(*document_place, ranking.sections_of[document_place][number], reason)
            tokens = costs.left_out(missing)
            if tokens <= left:
                left -= tokens
                mentioned.append(missing)
        documents.append(shelf.answer_document(ranked[document_place], _by_number(sections), mentioned))
    left_out = [place for digest, place in zip(digests, ranking.sections, strict=True) if digest not in taken_at]
    best = []
    for _, cache, document, number, _ in left_out[:NAMED_MAX]:
        section = ranking.sections_of[cache, document][number]
        best.append((shelf.document(cache, document).id, shelf.leave_out(cache, document, section, BUDGET_REASON)))
    return _Chosen(documents, left, len(left_out), _find_copies(shelf, ranking, taken, taken_at), best)


def _find_copies(
    shelf: _Shelf, ranking: Ranking, taken: Container[tuple[int, int]], digests: Container[bytes]
) -> tuple[str, ...]:
    """The best documents without a selected section that match only with texts of selected sections."""
    are_copies: dict[tuple[int, int], bool] = {}
    for _, cache, document, number, _ in ranking.sections:
        is_copy = ranking.sections_of[cache, document][number].digest in digests
        are_copies[cache, document] = is_copy and are_copies.get((cache, document), True)
    copies = (place for place, is_copy in are_copies.items() if is_copy and place not in taken)
    return tuple(shelf.document(*place).id for place in islice(copies, LEFT_OUT_MAX))


def _by_number(sections: Mapping[int, AnsweredSection]) -> list[AnsweredSection]:
    return [sections[number] for number in sorted(sections)]


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


def _whole_documents(shelf: _Shelf, costs: _Costs, ranking: Ranking, left: int) -> _Chosen:
    """Select whole documents while they fit. Each is one section with the reasons of its best section.

    Matching sections of documents that did not fit count as left out.
    """
    best: dict[tuple[int, int], RankedSection] = {}
    for found in ranking.sections:
        best.setdefault((found.cache, found.document), found)
    seen: set[str] = set()
    documents, copies = [], []
    for place in ranking.documents:
        cache, number, _ = place
        section, version = best.get((cache, number)), shelf.document(cache, number).version
        sections = ranking.sections_of[cache, number]
        if version in seen:
            copies.append(shelf.document(cache, number).id)
        if section is None or version in seen or sum(found.tokens for found in sections) > 2 * left:
            continue
        content = shelf.content(cache, number).decode()
        lines = (sections[0].first_line, sections[-1].last_line)
        whole = AnsweredSection((), lines, 0, section.score, content, ())
        tokens = _TextCosts(shelf).document(shelf.answer_document(place, [whole]))
        whole = whole._replace(tokens=tokens, why=explain(ranking, shelf.indexes, section))
        answered = shelf.answer_document(place, [whole])
        cost = costs.document(answered)
        if cost <= left:
            left -= cost
            seen.add(version)
            documents.append(answered)
    versions = (shelf.document(found.cache, found.document).version for found in ranking.sections)
    left_out = sum(version not in seen for version in versions)
    return _Chosen(documents, left, left_out, tuple(copies[:LEFT_OUT_MAX]))


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
    shelf = _Shelf([cache], counter)
    index = cache.opened.reader
    try:
        number = _document_number(index, document_id)
        if number is None and CRUMB in document_id and section is None and lines is None:
            number, section = _document_number(index, document_id.partition(CRUMB)[0]), document_id
        if number is None:
            similar = [
                f"{cache.name}{CACHE_JOINT}{found}" if cache.name else found for found in _similar(index, document_id)
            ]
            name = quote_briefly(document_id)
            raise DocumentMissing(f"the cache has no document {name}; `context ls` lists those it has", similar)
        sections = index.sections_of(number)
        wanted = _find_wanted_sections(sections, index.document(number).id, section, lines)
        chosen = _with_neighbours(wanted, around, len(sections)) if around > 0 else wanted
        part = _Part(shelf, number, sections, chosen, budget)
        room = budget
        while True:
            result = part.as_json(room) if format == JSON else part.as_text(room)
            over = 0
            if counter != ESTIMATE and result.document.sections:
                over = shelf.count(result.to_json() if format == JSON else result.to_text()) - budget
            if over <= 0:
                return result
            room -= over
    except DAMAGE as problem:
        raise damaged_index(problem) from problem


class _Part:
    """What `get` was asked for: some sections of a document, by their numbers."""

    def __init__(
        self, shelf: _Shelf, document: int, sections: Sequence[IndexedSection], chosen: Sequence[int], budget: int
    ) -> None:
        self._shelf, self._sections, self._chosen, self._budget = shelf, sections, chosen, budget
        self._place = RankedDocument(0, document, 0)
        self._is_outdated = bool(shelf.find_outdated([shelf.answer_document(self._place, ())]))

    def as_json(self, room: int) -> GetResult:
        costs = _JsonCosts(self._shelf, with_scores=False)
        left = room - self._shelf.count(self._result({}, self._budget).to_json())
        taken, left = self._take(costs, left)
        listed: list[LeftOutSection] = []
        for missing in self._missing(taken):
            if costs.left_out(missing) <= left:
                left -= costs.left_out(missing)
                listed.append(missing)
        return self._result(taken, room - left if taken else 0, listed)

    def as_text(self, room: int) -> GetResult:
        outdated = [outdated_note()] if self._is_outdated else []
        count = self._shelf.count
        kept = sum(map(count, outdated))
        taken, left = self._take(_TextCosts(self._shelf), room - kept)
        if len(taken) < len(self._chosen):
            kept += min(count(left_out_note(len(self._chosen))), room // NOTES_SHARE)
            taken, left = self._take(_TextCosts(self._shelf), room - kept)
        missing = self._missing(taken)
        forms = [[note] for note in outdated]
        if missing:
            name = self._shelf.document(0, self._place.document).id
            named = [(name, each) for each in missing[:NAMED_MAX]]
            forms.append(_left_out_forms(len(self._chosen) - len(taken), named))
        if not self._chosen:
            return self._result({}, 0, notes=("The document is empty.\n", *outdated))
        if not taken:
            return self._result({}, 0, missing, tuple(of_note[-1] for of_note in forms))
        notes, left = _fitting_notes(self._shelf, forms, left + kept)
        return self._result(taken, room - left, missing, notes)

    def _take(self, costs: _Costs, left: int) -> tuple[dict[int, AnsweredSection], int]:
        """Those of the chosen sections that fit, in their order, and the rest of the tokens."""
        shelf, sections = self._shelf, self._sections
        taken: dict[int, AnsweredSection] = {}
        spent = 0
        if sum(sections[at].tokens for at in self._chosen) <= left * shelf.slack:
            # Most documents fit as a whole, and then there is no need to try each section.
            everything = {at: shelf.answer_section(0, self._place.document, sections[at]) for at in self._chosen}
            cost = costs.document(self._document(everything)) if everything else 0
            if cost <= left:
                return everything, left - cost
        for at in self._chosen:
            if left - spent < LEAST_SECTION_TOKENS:
                break
            if sections[at].tokens > (left - spent) * shelf.slack:
                continue
            more = taken | {at: shelf.answer_section(0, self._place.document, sections[at])}
            cost = costs.document(self._document(more))
            if cost <= left:
                taken, spent = more, cost
        return taken, left - spent

    def _missing(self, taken: Container[int]) -> list[LeftOutSection]:
        """The first sections that did not fit."""
        passed = islice((at for at in self._chosen if at not in taken), LEFT_OUT_MAX)
        document = self._place.document
        return [self._shelf.leave_out(0, document, self._sections[at], BUDGET_REASON) for at in passed]

    def _document(
        self, taken: Mapping[int, AnsweredSection], left_out: Sequence[LeftOutSection] = ()
    ) -> AnsweredDocument:
        return self._shelf.answer_document(self._place, _by_number(taken), left_out)

    def _result(
        self,
        taken: Mapping[int, AnsweredSection],
        tokens_used: int,
        left_out: Sequence[LeftOutSection] = (),
        notes: tuple[str, ...] = (),
    ) -> GetResult:
        left_out_count = len(self._chosen) - len(taken)
        document = self._document(taken, left_out)
        counter = self._shelf.counter
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
