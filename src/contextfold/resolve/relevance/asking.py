"""Answers a question from caches: ranks sections, and selects those that fit the budget.

The answer is put together from parts whose costs are added up. Only with an exact counter the whole may have more
tokens than its parts, so such an answer is counted once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from contextfold.common.answer_format import JSON, TEXT
from contextfold.common.question import TERMS_MAX, Question, quote_briefly
from contextfold.common.tokens import ESTIMATE
from contextfold.errors import QueryInvalid
from contextfold.resolve.relevance.answer import (
    BUDGET_REASON,
    DUPLICATE_REASON,
    LEFT_OUT_MAX,
    NAMED_MAX,
    AnsweredDocument,
    AnsweredSection,
    AskResult,
    AskSelection,
    LeftOutCache,
    LeftOutSection,
    copies_note,
    left_out_note,
    outdated_note,
)
from contextfold.resolve.relevance.ranking import RankedSection, Ranking, explain, rank
from contextfold.resolve.relevance.shelf import (
    DAMAGE,
    LEAST_SECTION_TOKENS,
    NOTES_SHARE,
    Costs,
    JsonCosts,
    NamedIndex,
    Shelf,
    TextCosts,
    check_format,
    choose_notes,
    damaged_index,
    in_order,
    left_out_forms,
)

SECTION_UNIT, DOCUMENT_UNIT = "section", "document"
UNITS = (SECTION_UNIT, DOCUMENT_UNIT)

_Select = Callable[[Shelf, Costs, Ranking, int], "_Chosen"]


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
    shelf = Shelf(caches, counter)
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


def _as_json(shelf: Shelf, select: _Select, ranking: Ranking, selection: AskSelection, room: int) -> AskResult:
    # The largest figures that there may be.
    figures = selection._replace(tokens_used=selection.budget, sections_selected=selection.sections_matched)
    outdated: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    costs = JsonCosts(shelf)
    while True:
        frame = shelf.count(AskResult((), figures._replace(outdated=outdated, copies=copies)).to_json())
        chosen = select(shelf, costs, ranking, room - frame)
        found = shelf.find_outdated(chosen.documents)
        if set(found) <= set(outdated) and set(chosen.copies) <= set(copies):
            break
        # With less room, other documents may be selected.
        outdated = tuple(dict.fromkeys((*outdated, *found)))
        copies = tuple(dict.fromkeys((*copies, *chosen.copies)))
    return AskResult(tuple(chosen.documents), _with_figures(selection, chosen, room - chosen.left, found))


def _as_text(
    shelf: Shelf, select: _Select, ranking: Ranking, selection: AskSelection, room: int, *, has_words: bool
) -> AskResult:
    others = _notes(shelf, selection)
    # How many sections are left out is not known yet.
    kept = shelf.count(left_out_note(len(ranking.sections))) + sum(map(shelf.count, others))
    kept = min(kept, max(room, 0) // NOTES_SHARE)
    chosen = select(shelf, TextCosts(shelf), ranking, room - kept)
    forms = _note_forms(shelf, chosen)
    if forms:
        kept += sum(shelf.count(of_note[-1]) for of_note in forms)
        chosen = select(shelf, TextCosts(shelf), ranking, room - kept)
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
        forms.append(left_out_forms(chosen.left_out, chosen.best_left_out))
    notes, left = choose_notes(shelf, forms, chosen.left + kept)
    return AskResult(tuple(chosen.documents), _with_figures(selection, chosen, room - left, outdated), notes)


def _note_forms(shelf: Shelf, chosen: _Chosen) -> list[list[str]]:
    """The notes about the selected documents, each in its forms, the longest first."""
    outdated, copies = shelf.find_outdated(chosen.documents), chosen.copies
    forms = [[outdated_note(outdated), outdated_note()]] if outdated else []
    if copies:
        forms.append([copies_note(copies[:names], len(copies)) for names in range(min(len(copies), NAMED_MAX), 0, -1)])
    return forms


def _notes(shelf: Shelf, selection: AskSelection) -> list[str]:
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


def _best_sections(shelf: Shelf, costs: Costs, ranking: Ranking, left: int) -> _Chosen:
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
        cost = costs.document(shelf.answer_document(ranked[cache, document], in_order(sections)))
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
        documents.append(shelf.answer_document(ranked[document_place], in_order(sections), mentioned))
    left_out = [place for digest, place in zip(digests, ranking.sections, strict=True) if digest not in taken_at]
    best = []
    for _, cache, document, number, _ in left_out[:NAMED_MAX]:
        section = ranking.sections_of[cache, document][number]
        best.append((shelf.document(cache, document).id, shelf.leave_out(cache, document, section, BUDGET_REASON)))
    return _Chosen(documents, left, len(left_out), _find_copies(shelf, ranking, taken, taken_at), best)


def _find_copies(
    shelf: Shelf, ranking: Ranking, taken: Container[tuple[int, int]], digests: Container[bytes]
) -> tuple[str, ...]:
    """The best documents without a selected section that match only with texts of selected sections."""
    are_copies: dict[tuple[int, int], bool] = {}
    for _, cache, document, number, _ in ranking.sections:
        is_copy = ranking.sections_of[cache, document][number].digest in digests
        are_copies[cache, document] = is_copy and are_copies.get((cache, document), True)
    copies = (place for place, is_copy in are_copies.items() if is_copy and place not in taken)
    return tuple(shelf.document(*place).id for place in islice(copies, LEFT_OUT_MAX))


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


def _whole_documents(shelf: Shelf, costs: Costs, ranking: Ranking, left: int) -> _Chosen:
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
        tokens = TextCosts(shelf).document(shelf.answer_document(place, [whole]))
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
