"""The walk that finds what folds: from left to right, one message at a time, never back. Knows facts, no format.

A branch is open once its call's result names it. A return closes the branch that its result names, and what is open in
it. Its range is what stands between: from behind the branch's result up to the turn that calls return. Whether that is
folded is decided when the return's result is read, by nothing that comes later. So a longer history never folds less,
and what was sent folded is sent the same way again, until a branch around it folds.

A pair stays as it is where leaving its range out could break the request: the first flaw found is its reason.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from contextfold.fold.messages.facts import Call, Fact, Told, told

OPEN_MAX = 256  # branches open at once; what is opened beyond that is not folded

# Why a pair stays as it is.
SHARED_TURN = "shared_turn"  # the branch or the return was called beside other calls
SHARED_RESULT = "shared_result"  # its result stands beside other results, or behind something else
APART = "apart"  # its result does not follow its call at once
UNBALANCED = "unbalanced"  # a call without its result, or a result without its call
UNKNOWN_CONTENT = "unknown_content"  # something in there that we do not know
BOUND_THINKING = "bound_thinking"  # the return's turn holds thinking that the model takes only behind what was dropped
PAIR_REASONS = (SHARED_TURN, SHARED_RESULT, APART, UNBALANCED, UNKNOWN_CONTENT, BOUND_THINKING)


class Open(NamedTuple):
    branch_id: str
    start: int  # the first message of its range
    flaw: str


class Closed(NamedTuple):
    branch_id: str
    start: int
    end: int  # the first message behind its range
    flaw: str = ""
    thinks: bool = False  # the turn that called return does


@dataclass(slots=True)
class Walk:
    open: list[Open] = field(default_factory=list)  # outermost first
    returned: list[Closed] = field(default_factory=list)  # in order of their returns
    closed: list[Closed] = field(default_factory=list)  # in order, none in another: what no open branch owns any more
    session_id: str | None = None
    standing: array[int] = field(default_factory=lambda: array("q"))
    turns: array[int] = field(default_factory=lambda: array("q"))  # where each of the model's turns begins
    count: int = 0
    _turn_end: int = -1
    _turn_calls: int = 0
    _turn_thinks: bool = False
    _turn_leads: bool = False
    _pending: dict[str, Call] = field(default_factory=dict)
    _flaw: str = ""  # the last one seen, and where
    _flaw_at: int = -1

    def take(self, fact: Fact) -> None:
        place = self.count
        self.count += 1
        if fact.flaw:
            self._flawed(place, fact.flaw)
        if fact.kind == "model":
            self._said(place, fact)
            return
        if self._turn_leads and self._turn_end == place:
            self._flawed(place, UNKNOWN_CONTENT)  # reasoning with nothing behind it that it belongs to
        if fact.kind == "standing":
            self.standing.append(place)
        elif fact.results:
            self._answered(place, fact)

    def _said(self, place: int, fact: Fact) -> None:
        if self._turn_end != place:
            self.turns.append(place)
            self._turn_calls, self._turn_thinks = 0, False
        self._turn_end = place + 1
        self._turn_leads = fact.leads
        self._turn_thinks |= fact.thinks
        self._turn_calls += len(fact.calls)
        for call in fact.calls:
            if call.id in self._pending:
                self._flawed(place, UNBALANCED)
            if call.id:
                self._pending[call.id] = call

    def _answered(self, place: int, fact: Fact) -> None:
        ours: list[tuple[str, Told, bool]] = []
        for result in fact.results:
            call = self._pending.pop(result.id, None)
            if call is None:
                self._flawed(place, UNBALANCED)
            elif call.verb:
                ours.append((call.verb, told(call.verb, result), result.is_alone))
        for verb, said, is_alone in ours:
            self.session_id = said.session_id or self.session_id
            if verb == "branch" and said.branch_id:
                self._branched(place, said.branch_id, is_alone)
            elif verb == "return" and said.branch_id:
                self._returned(place, said.branch_id, is_alone)
            elif said.discarded:
                self._rolled_back(said.discarded)

    def _branched(self, place: int, branch_id: str, is_alone: bool) -> None:
        """A branch that is open already was asked for again; it began the first time."""
        if len(self.open) < OPEN_MAX and all(each.branch_id != branch_id for each in self.open):
            self.open.append(Open(branch_id, place + 1, self._flaw_of_turn(place, is_alone)))

    def _returned(self, place: int, branch_id: str, is_alone: bool) -> None:
        depth = next((n for n, each in enumerate(self.open) if each.branch_id == branch_id), None)
        if depth is None:
            return
        branch = self.open[depth]
        del self.open[depth:]
        pair = Closed(
            branch_id,
            branch.start,
            self.turns[-1],
            branch.flaw or self._flaw_of_turn(place, is_alone) or (self._flaw if self._flaw_at >= branch.start else ""),
            self._turn_thinks,
        )
        if pair.start < pair.end:
            self.returned.append(pair)
            _put_around(self.closed, pair)

    def _rolled_back(self, discarded: frozenset[str]) -> None:
        """The target stays open, if it is. One that was folded is not opened again: what is sent stays as it is."""
        kept = [n for n, each in enumerate(self.open) if each.branch_id not in discarded]
        innermost = self.open[kept[-1] + 1 if kept else 0 :]
        if innermost and innermost[0].start < self.turns[-1]:
            _put_around(self.closed, Closed(innermost[0].branch_id, innermost[0].start, self.turns[-1]))
        self.open = [self.open[n] for n in kept]

    def _flaw_of_turn(self, place: int, is_alone: bool) -> str:
        """What is wrong with the turn that called, or with the place of its result."""
        if self._turn_calls != 1:
            return SHARED_TURN
        if not is_alone:
            return SHARED_RESULT
        if self._turn_end != place:
            return APART
        if self._pending:
            return UNBALANCED
        return self._flaw if self._flaw_at >= self.turns[-1] else ""

    def _flawed(self, place: int, flaw: str) -> None:
        self._flaw, self._flaw_at = flaw, place


def decided(walk: Walk, *, binds_thinking: bool) -> tuple[list[Closed], list[Closed]]:
    """What is folded, in order and none in another, and what is skipped and in nothing folded."""
    folded: list[Closed] = []
    skipped: list[Closed] = []
    for pair in walk.returned:
        if pair.flaw:
            skipped.append(pair)
        elif pair.thinks and binds_thinking:
            skipped.append(pair._replace(flaw=BOUND_THINKING))
        else:
            _put_around(folded, pair)
            while skipped and skipped[-1].start >= pair.start:
                skipped.pop()
    return folded, skipped


def _put_around(kept: list[Closed], pair: Closed) -> None:
    while kept and kept[-1].start >= pair.start:
        kept.pop()
    kept.append(pair)
