"""Answers a question from caches: ranks sections, and selects those that fit the budget.

The answer is put together from parts whose costs are added up. Only with an exact counter the whole may have more
tokens than its parts, so such an answer is counted once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from contextfold.common.answer_format import JSON, TEXT, name_first
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
from contextfold.resolve.relevance.ranking import Place, RankedSection, Ranking, explain, rank

SECTION_UNIT, DOCUMENT_UNIT = "section", "document"
UNITS = (SECTION_UNIT, DOCUMENT_UNIT)

_Select = Callable[[AnswerParts, Costs, Ranking, int], "_Chosen"]


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
    parts = AnswerParts(caches, counter)
    try:
        ranking = rank(question, parts.indexes)
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
        select = _select_documents if unit == DOCUMENT_UNIT else _select_sections
        room = question.budget
        while True:
            if format == JSON:
                result = _answer_json(parts, select, ranking, selection, room)
                text = result.to_json()
            else:
                result = _answer_text(parts, select, ranking, selection, room, has_words=bool(question.terms))
                text = result.to_text()
            over = parts.count(text) - question.budget if counter != ESTIMATE and result.documents else 0
            if over <= 0:
                return result
            room -= over
    except DAMAGE as problem:
        raise damaged_index(problem) from problem


def _answer_json(
    parts: AnswerParts, select: _Select, ranking: Ranking, selection: AskSelection, room: int
) -> AskResult:
    # The largest figures that there may be.
    figures = selection._replace(tokens_used=selection.budget, sections_selected=selection.sections_matched)
    outdated: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    costs = JsonCosts(parts)
    while True:
        frame = parts.count(AskResult((), figures._replace(outdated=outdated, copies=copies)).to_json())
        chosen = select(parts, costs, ranking, room - frame)
        found = parts.find_outdated(chosen.documents)
        if set(found) <= set(outdated) and set(chosen.copies) <= set(copies):
            break
        # With less room, other documents may be selected.
        outdated = tuple(dict.fromkeys((*outdated, *found)))
        copies = tuple(dict.fromkeys((*copies, *chosen.copies)))
    return AskResult(tuple(chosen.documents), _set_figures(selection, chosen, room - chosen.left, found))


def _answer_text(
    parts: AnswerParts, select: _Select, ranking: Ranking, selection: AskSelection, room: int, *, has_words: bool
) -> AskResult:
    others = _make_notes(parts, selection)
    # How many sections are left out is not known yet.
    kept = parts.count(left_out_note(len(ranking.sections))) + sum(map(parts.count, others))
    kept = min(kept, max(room, 0) // NOTES_SHARE)
    chosen = select(parts, TextCosts(parts), ranking, room - kept)
    forms = _note_forms(parts, chosen)
    if forms:
        kept += sum(parts.count(of_note[-1]) for of_note in forms)
        chosen = select(parts, TextCosts(parts), ranking, room - kept)
        forms = _note_forms(parts, chosen)
    outdated = parts.find_outdated(chosen.documents)
    if not chosen.documents:
        if not has_words:
            why = "The question has no words to search for; words such as `how` and `the` are not searched.\n"
        elif selection.sections_matched:
            why = f"{selection.sections_matched} sections match, but none fits the budget.\n"
        else:
            why = "Nothing in the cache matches.\n"
        return AskResult((), _set_figures(selection, chosen, 0), (why, *others))
    forms += [[note] for note in others]
    if chosen.left_out:
        forms.append(left_out_forms(chosen.left_out, chosen.best_left_out))
    notes, left = choose_notes(parts, forms, chosen.left + kept)
    return AskResult(tuple(chosen.documents), _set_figures(selection, chosen, room - left, outdated), notes)


def _note_forms(parts: AnswerParts, chosen: _Chosen) -> list[list[str]]:
    """The notes about the selected documents, each in its forms, the longest first."""
    outdated, copies = parts.find_outdated(chosen.documents), chosen.copies
    forms = [[outdated_note(outdated), outdated_note()]] if outdated else []
    if copies:
        forms.append([copies_note(copies, most) for most in range(min(len(copies), NAMED_MAX), 0, -1)])
    return forms


def _make_notes(parts: AnswerParts, selection: AskSelection) -> list[str]:
    """What a reader must know beside the number of left-out sections."""
    notes = []
    if selection.unmatched:
        most = len(selection.unmatched)
        while most > 1 and parts.count(", ".join(selection.unmatched[:most])) > selection.budget // NOTES_SHARE // 2:
            most //= 2
        notes.append(f"[not in the cache: {name_first(selection.unmatched, most)}]\n")
    if selection.query_cut:
        notes.append(f"[the question has more than {TERMS_MAX} terms; the rest was not searched]\n")
    for cache in selection.caches_left_out:
        notes.append(f"[the cache {quote_briefly(cache.cache)} was not asked: {cache.reason}]\n")
    return notes


def _set_figures(
    selection: AskSelection, chosen: _Chosen, tokens_used: int, outdated: Sequence[str] = ()
) -> AskSelection:
    return selection._replace(
        outdated=tuple(outdated),
        copies=chosen.copies,
        tokens_used=tokens_used if chosen.documents else 0,
        sections_selected=sum(len(document.sections) for document in chosen.documents),
        sections_left_out=chosen.left_out,
    )


def _select_sections(parts: AnswerParts, costs: Costs, ranking: Ranking, left: int) -> _Chosen:
    """Select sections in order while they fit. Documents are in the order of their best selected sections.

    Duplicates of selected sections do not count as left out.
    """
    documents = {document.place: document for document in ranking.documents}
    taken: dict[Place, dict[int, AnsweredSection]] = {}
    spent: dict[Place, int] = {}
    # The positions of the selected sections in the ranking, by their digests.
    taken_at: dict[bytes, int] = {}
    for at, ranked in enumerate(ranking.sections):
        if left < LEAST_SECTION_TOKENS:
            break
        place, section = ranked.place, ranking.indexed_section(ranked)
        least = section.tokens
        if place not in taken:
            # Most sections that do not fit are passed over here, before their documents are read.
            least += parts.count_once(parts.document(place).id)
        if least > left * parts.slack or section.digest in taken_at:
            continue
        why = explain(ranking, parts.indexes, ranked)
        answered = parts.make_section(place, section, ranked.score, why)
        sections = taken.get(place, {}) | {ranked.section: answered}
        cost = costs.document(parts.make_document(documents[place], in_order(sections)))
        more = cost - spent.get(place, 0)
        if more <= left:
            left -= more
            taken[place], spent[place] = sections, cost
            taken_at[section.digest] = at
    passed = _find_passed_sections(ranking, taken, taken_at)
    answered_documents = []
    for place, sections in taken.items():
        listed = []
        for number, reason in passed[place]:
            missing = parts.leave_out(place, ranking.sections_of[place][number], reason)
            tokens = costs.left_out(missing)
            if tokens <= left:
                left -= tokens
                listed.append(missing)
        answered_documents.append(parts.make_document(documents[place], in_order(sections), listed))
    left_out = [ranked for ranked in ranking.sections if ranking.indexed_section(ranked).digest not in taken_at]
    best = [
        (parts.document(ranked.place).id, parts.leave_out(ranked.place, ranking.indexed_section(ranked), BUDGET_REASON))
        for ranked in left_out[:NAMED_MAX]
    ]
    copies = _find_copies(parts, ranking, taken, taken_at)
    return _Chosen(answered_documents, left, len(left_out), copies, best)


def _find_copies(
    parts: AnswerParts, ranking: Ranking, taken: Container[Place], digests: Container[bytes]
) -> tuple[str, ...]:
    """The best documents without a selected section that match only with texts of selected sections."""
    are_copies: dict[Place, bool] = {}
    for ranked in ranking.sections:
        is_copy = ranking.indexed_section(ranked).digest in digests
        are_copies[ranked.place] = is_copy and are_copies.get(ranked.place, True)
    copies = (place for place, is_copy in are_copies.items() if is_copy and place not in taken)
    return tuple(parts.document(place).id for place in islice(copies, LEFT_OUT_MAX))


def _find_passed_sections(
    ranking: Ranking, taken: Mapping[Place, Container[int]], taken_at: Mapping[bytes, int]
) -> dict[Place, list[tuple[int, str]]]:
    """The best sections that were not taken, of each document that has one that was, with the reason."""
    passed: dict[Place, list[tuple[int, str]]] = {place: [] for place in taken}
    for at, ranked in enumerate(ranking.sections):
        in_document = passed.get(ranked.place)
        if in_document is not None and len(in_document) < LEFT_OUT_MAX and ranked.section not in taken[ranked.place]:
            is_double = taken_at.get(ranking.indexed_section(ranked).digest, at) < at
            in_document.append((ranked.section, DUPLICATE_REASON if is_double else BUDGET_REASON))
    return passed


def _select_documents(parts: AnswerParts, costs: Costs, ranking: Ranking, left: int) -> _Chosen:
    """Select whole documents while they fit. Each is one section with the reasons of its best section.

    Matching sections of documents that did not fit count as left out.
    """
    best: dict[Place, RankedSection] = {}
    for section in ranking.sections:
        best.setdefault(section.place, section)
    seen: set[str] = set()
    documents, copies = [], []
    for ranked in ranking.documents:
        place, best_section = ranked.place, best.get(ranked.place)
        name, version, _ = parts.document(place)
        sections = ranking.sections_of[place]
        if version in seen:
            copies.append(name)
        if best_section is None or version in seen or sum(section.tokens for section in sections) > 2 * left:
            continue
        content = parts.content(place).decode()
        lines = (sections[0].first_line, sections[-1].last_line)
        whole = AnsweredSection((), lines, 0, best_section.score, content, ())
        tokens = TextCosts(parts).document(parts.make_document(ranked, [whole]))
        whole = whole._replace(tokens=tokens, why=explain(ranking, parts.indexes, best_section))
        answered = parts.make_document(ranked, [whole])
        cost = costs.document(answered)
        if cost <= left:
            left -= cost
            seen.add(version)
            documents.append(answered)
    left_out = sum(parts.document(section.place).version not in seen for section in ranking.sections)
    return _Chosen(documents, left, left_out, tuple(copies[:LEFT_OUT_MAX]))
