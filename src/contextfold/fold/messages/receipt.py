"""What a projection gives beside the messages: a receipt, and which open thread holds what. Knows places, weights."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages.walk import Closed, Walk, decided


@dataclass(frozen=True, slots=True)
class Fold:
    """A branch whose messages were left out."""

    branch_id: str
    first: int  # the place of its first dropped message in the original list
    messages: int
    turns: int  # of the model
    tokens: int  # dropped
    kept_tokens: int  # sent in front of the cut, system prompt and tools included


@dataclass(frozen=True, slots=True)
class Skipped:
    """A branch that was returned from and stays as it is."""

    branch_id: str
    reason: str  # one of REASONS


@dataclass(frozen=True, slots=True)
class Receipt:
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    turns_dropped: int
    first_changed: int | None  # the place of the first message that is not sent
    folds: tuple[Fold, ...]  # outermost ones, in order
    skipped: tuple[Skipped, ...]
    reason: str  # why nothing could be folded, or why the first skipped pair stays; else empty

    def told(self) -> dict[str, int | str | None]:
        return {
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "turns_dropped": self.turns_dropped,
            "first_changed": self.first_changed,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Span:
    """The main thread or an open branch, as far as it is sent."""

    branch_id: str | None  # None: the main thread
    tokens: int  # the main thread's include what is no message
    places: tuple[int, ...]  # of its own messages in the original list: none of a branch in it, open or closed


@dataclass(frozen=True, slots=True)
class Outcome:
    receipt: Receipt
    threads: tuple[Span, ...]  # main first, then open branches, outermost first
    cuts: tuple[tuple[int, int], ...]  # places left out: from, up to


def untouched(weight: int, reason: str, *, messages: int = 0) -> Outcome:
    """Of a list that was not walked."""
    tokens = tokens_of(weight)
    receipt = Receipt(tokens, tokens, messages, messages, 0, None, (), (), reason)
    return Outcome(receipt, (Span(None, tokens, tuple(range(messages))),), ())


def outcome_of(walk: Walk, weights: array[int], rest: int, *, binds_thinking: bool) -> Outcome:
    """`weights` of the messages, `rest` of what is around them."""
    folded, skipped = decided(walk, binds_thinking=binds_thinking)
    folds: list[Fold] = []
    cuts: list[tuple[int, int]] = []
    kept, seen, dropped = rest, 0, 0
    for pair in folded:
        pieces = list(_pieces(pair, walk.standing))
        if not pieces:
            continue
        kept += sum(weights[seen : pieces[0][0]])
        gone = sum(sum(weights[start:end]) for start, end in pieces)
        number = sum(end - start for start, end in pieces)
        turns = bisect_left(walk.turns, pair.end) - bisect_left(walk.turns, pair.start)
        folds.append(Fold(pair.branch_id, pieces[0][0], number, turns, tokens_of(gone), tokens_of(kept)))
        cuts += pieces
        kept += sum(weights[pieces[0][0] : pair.end]) - gone
        seen, dropped = pair.end, dropped + gone
    before = rest + sum(weights)
    receipt = Receipt(
        tokens_before=tokens_of(before),
        tokens_after=tokens_of(before - dropped),
        messages_before=walk.count,
        messages_after=walk.count - sum(fold.messages for fold in folds),
        turns_dropped=sum(fold.turns for fold in folds),
        first_changed=folds[0].first if folds else None,
        folds=tuple(folds),
        skipped=tuple(Skipped(pair.branch_id, pair.flaw) for pair in skipped),
        reason=skipped[0].flaw if skipped else "",
    )
    return Outcome(receipt, tuple(_spans(walk, weights, rest, cuts)), tuple(cuts))


def _pieces(pair: Closed, standing: array[int]) -> Iterator[tuple[int, int]]:
    """The range, without the messages in it that stay."""
    start = pair.start
    for place in standing[bisect_left(standing, pair.start) : bisect_left(standing, pair.end)]:
        if place > start:
            yield start, place
        start = place + 1
    if pair.end > start:
        yield start, pair.end


def _spans(walk: Walk, weights: array[int], rest: int, cuts: list[tuple[int, int]]) -> Iterator[Span]:
    """An open branch owns all that comes after its beginning, but for what the branches opened in it own."""
    starts = [0, *(branch.start for branch in walk.open), walk.count]
    closed = [(pair.start, pair.end) for pair in walk.closed]
    for depth, branch_id in enumerate([None, *(branch.branch_id for branch in walk.open)]):
        start, end = starts[depth], starts[depth + 1]
        gone = sum(sum(weights[first:last]) for first, last in _within(cuts, start, end))
        tokens = tokens_of(sum(weights[start:end]) - gone + (0 if depth else rest))
        places: list[int] = []
        for first, last in _within(closed, start, end):
            places += range(start, first)
            start = last
        yield Span(branch_id, tokens, (*places, *range(start, end)))


def _within(ranges: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Those that begin from `start` on and before `end`; they are in order."""
    return ranges[bisect_left(ranges, (start, 0)) : bisect_left(ranges, (end, 0))]
