"""Makes the receipt of a projection, and divides the messages among the open threads. Knows indexes and weights."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.cold_results import LeftOutPart
from contextfold.fold.messages.plan import Plan
from contextfold.fold.messages.walk import Walk, is_inside

# The reason in the receipt if there is no problem, but a branch is still open.
OPEN_BRANCH = "open_branch"


@dataclass(frozen=True, slots=True)
class Fold:
    """A branch or a fold whose messages were left out."""

    branch_id: str
    # The index of its first dropped message in the original list.
    first: int
    messages: int
    # The number of the model's turns.
    turns: int
    # The dropped tokens.
    tokens: int
    # The tokens that are sent before the cut, including system prompt and tools.
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """One of our calls for which nothing was folded."""

    # Empty if the call's result does not have it.
    branch_id: str
    # One of REASONS.
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    tokens_before: int
    tokens_after: int
    messages_before: int = 0
    messages_after: int = 0
    turns_dropped: int = 0
    results_left_out: int = 0
    # The index of the first message that was changed or left out.
    first_changed: int | None = None
    # The outermost folds, in order.
    folds: tuple[Fold, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    # The reason why nothing could be folded, else the first reason in `skipped`, else OPEN_BRANCH or empty.
    reason: str = ""

    @property
    def problem(self) -> str:
        """The reason, or empty if there is none but an open branch."""
        return "" if self.reason == OPEN_BRANCH else self.reason

    def header_fields(self) -> dict[str, int | str | None]:
        return {
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "turns_dropped": self.turns_dropped,
            "results_left_out": self.results_left_out,
            "first_changed": self.first_changed,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Span:
    """The part of the main thread or of an open branch that is sent."""

    # None for the main thread.
    branch_id: str | None
    # Those of the main thread include everything that is not a message.
    tokens: int
    # The indexes of its own messages in the original list, without those of branches in it.
    places: tuple[int, ...]


def make_empty_receipt(weight: int, reason: str) -> tuple[Receipt, tuple[Span, ...]]:
    """The receipt and the threads of a request whose messages were not read."""
    tokens = tokens_of(weight)
    return Receipt(tokens, tokens, reason=reason), (Span(None, tokens, ()),)


def make_receipt(
    walk: Walk, plan: Plan, weights: Sequence[int], sent: Sequence[int], rest: int
) -> tuple[Receipt, tuple[Span, ...]]:
    """The receipt and the threads of a plan. `weights` are those of the original messages, `sent` those that are sent.

    `rest` is the weight of everything else in the request.
    """
    folds = _list_folds(walk, plan, weights, sent, rest)
    skipped = list(dict.fromkeys(Skipped(fold_range.branch_id, fold_range.flaw) for fold_range in plan.skipped))
    skipped += [
        Skipped(call.branch_id, call.reason) for call in walk.unfolded if not is_inside(call.place, plan.folded)
    ]
    changed = [*(start for start, _ in plan.cuts[:1]), *plan.rewrites]
    receipt = Receipt(
        tokens_before=tokens_of(rest + sum(weights)),
        tokens_after=tokens_of(rest + sum(sent)),
        messages_before=walk.count,
        messages_after=walk.count - sum(fold.messages for fold in folds),
        turns_dropped=sum(fold.turns for fold in folds),
        results_left_out=sum(not part.decision.is_fold for part in _list_stubs(plan)),
        first_changed=min(changed, default=None),
        folds=tuple(folds),
        skipped=tuple(skipped),
        reason=skipped[0].reason if skipped else OPEN_BRANCH if walk.open else "",
    )
    return receipt, tuple(_divide(walk, sent, rest))


def _list_folds(walk: Walk, plan: Plan, weights: Sequence[int], sent: Sequence[int], rest: int) -> list[Fold]:
    folds: list[Fold] = []
    in_front, seen, dropped = rest, 0, 0
    for fold_range, cuts in zip(plan.folded, plan.cuts_of_folds, strict=True):
        first = cuts[0][0]
        in_front += sum(sent[seen:first])
        # Words that were moved to the message before the range are not dropped.
        before = fold_range.start - 1
        gets_words = before in plan.rewrites and plan.rewrites[before].words_from
        moved = max(0, sent[before] - weights[before]) if gets_words else 0
        weight = sum(sum(weights[start:end]) for start, end in cuts) - moved
        turns = bisect_left(walk.turns, fold_range.end) - bisect_left(walk.turns, fold_range.start)
        number = sum(end - start for start, end in cuts)
        if folds and folds[-1].branch_id == fold_range.branch_id:
            # A turn that stays inside the branch divides it.
            dropped, earlier = dropped + weight, folds.pop()
            number, turns = number + earlier.messages, turns + earlier.turns
            fold = replace(earlier, messages=number, turns=turns, tokens=tokens_of(max(0, dropped)))
        else:
            dropped = weight
            fold = Fold(fold_range.branch_id, first, number, turns, tokens_of(max(0, weight)), tokens_of(in_front))
        folds.append(fold)
        seen = first
    # A summary by hand is in the place of a result.
    replaced = {part.decision.result_id: part.decision.tokens for part in _list_stubs(plan) if part.decision.is_fold}
    return [replace(fold, tokens=fold.tokens + replaced.get(fold.branch_id, 0)) for fold in folds]


def _list_stubs(plan: Plan) -> list[LeftOutPart]:
    return [part for rewrite in plan.rewrites.values() for part in rewrite.stubs]


def _divide(walk: Walk, sent: Sequence[int], rest: int) -> Iterator[Span]:
    """Divide the messages among the threads: an open branch has all messages since its beginning, except those of the
    branches opened in it.
    """
    starts = [0, *(branch.start for branch in walk.open), walk.count]
    closed = [(fold_range.start, fold_range.end) for fold_range in walk.closed]
    for depth, branch_id in enumerate([None, *(branch.branch_id for branch in walk.open)]):
        start, end = starts[depth], starts[depth + 1]
        tokens = tokens_of(sum(sent[start:end]) + (0 if depth else rest))
        places: list[int] = []
        for first, last in closed[bisect_left(closed, (start, 0)) : bisect_left(closed, (end, 0))]:
            places += range(start, first)
            start = last
        yield Span(branch_id, tokens, (*places, *range(start, end)))
