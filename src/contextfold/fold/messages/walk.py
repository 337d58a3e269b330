"""Finds the ranges of messages that fold, in one pass from left to right. Knows facts, no format.

A *turn* is a message of the model with the results of its calls. A branch is open after the result of its call. A
return closes the branch in its result and the open branches below it; its range is the turns between the turns of the
two calls. A fold (`context_fold`) has no branch: its range begins after the user's last words, or after a later branch,
return or fold. Turns with a call of our tools stay, with all their other calls; so do turns with a result that has
what the user said, and turns that found tools. They split a range into parts.

A range is determined when the turn of the call that closes it is complete; later messages do not change it. So a longer
history never folds less, and a folded range is sent in the same way again, until a branch around it folds.

A range is not folded if leaving it out could make the request invalid; the last flaw that was found is the reason.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import NamedTuple

from contextfold.fold.messages.facts import Call, Fact, Result
from contextfold.fold.messages.own_tools import CallOutcome, read_result, remembered_id
from contextfold.fold.messages.user_words import has_user_words
from contextfold.fold.store import LeftOutDecision

# At most this many branches are open at once; further ones are not folded.
OPEN_MAX = 256

# The reasons why a range is not folded: a result does not directly follow its call; a call has no result, or a result
# has no call; the range has content that this module does not know; the running turn would have signed and unsigned
# calls; or, for now, the current tool loop has thinking that is bound to messages in the range.
APART = "apart"
UNBALANCED = "unbalanced"
UNKNOWN_CONTENT = "unknown_content"
MIXED_SIGNATURES = "mixed_signatures"
BOUND_THINKING = "bound_thinking"
# The reasons why there is no range: the branch of a return is not open in this history; the result of a call cannot be
# read, and no earlier request has recorded it; the return or fold failed; neither the tools nor the result confirm that
# a tool is ours; too many branches are open; the provider ran the call, so it is in the middle of a message.
NO_BRANCH_POINT = "no_branch_point"
UNREADABLE_RESULT = "unreadable_result"
CALL_FAILED = "call_failed"
UNCONFIRMED_TOOL = "unconfirmed_tool"
TOO_MANY_OPEN = "too_many_open"
HOSTED_CALL = "hosted_call"
FOLD_REASONS = (
    *(APART, UNBALANCED, UNKNOWN_CONTENT, MIXED_SIGNATURES, BOUND_THINKING),
    *(NO_BRANCH_POINT, UNREADABLE_RESULT, CALL_FAILED, UNCONFIRMED_TOOL, TOO_MANY_OPEN, HOSTED_CALL),
)


class Fate(Enum):
    """What becomes of a message inside a range that is folded."""

    LEFT_OUT = auto()
    STAYS = auto()
    # Only the user wrote it, so it stays, or its words are moved.
    WORDS = auto()
    # It has the user's words next to results. The words stay.
    MIXED = auto()


class BranchPoint(NamedTuple):
    branch_id: str
    # The first message of its range.
    start: int
    flaw: str


class FoldRange(NamedTuple):
    branch_id: str
    start: int
    # The first message after the range: the turn of the call that closed it.
    end: int
    # The first message after the last result of that turn.
    decided: int
    flaw: str = ""
    # Whether that turn, or a turn inside the range that stays, has thinking of the current tool loop.
    thinks: bool = False
    # Whether a person folded it (`by_hand`). Then it is decided when the history has so many messages.
    by_hand: bool = False


class Unfolded(NamedTuple):
    """One of our calls that closes no range."""

    branch_id: str
    place: int
    reason: str


class Signature(NamedTuple):
    """Whether the first call of a message is signed; None for a prompt, which begins the running turn."""

    place: int
    is_signed: bool | None
    # The same of all messages of the turn up to here.
    running: frozenset[bool]


@dataclass(slots=True)
class Walk:
    # The outcomes from earlier requests of the conversation, by call id, for results that are no longer readable.
    remembered: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The names of tools that are ours according to the request's list of tools.
    confirmed: Collection[str] = frozenset()
    # The folds by hand, by the place of the result that closes them.
    by_hand: Mapping[int, LeftOutDecision] = field(default_factory=dict)

    # The open branches, the outermost first.
    open: list[BranchPoint] = field(default_factory=list)
    # The ranges in the order in which they were closed.
    ranges: list[FoldRange] = field(default_factory=list)
    # The closed branches that are in no open branch, in order; none is in another.
    closed: list[FoldRange] = field(default_factory=list)
    unfolded: list[Unfolded] = field(default_factory=list)
    session_id: str | None = None
    # The outcomes of our calls in this history, by remembered call id.
    outcomes: dict[str, CallOutcome] = field(default_factory=dict)
    # For each message.
    fates: list[Fate] = field(default_factory=list)
    # The index of the first message of each turn of the model.
    turns: list[int] = field(default_factory=list)
    thinking: list[int] = field(default_factory=list)
    only_thinking: list[int] = field(default_factory=list)
    # The messages that only the user wrote, except behind the results of calls: providers join neighbours of one role,
    # so such words count as a part of the message with the results. A tool loop never continues after a prompt.
    prompts: list[int] = field(default_factory=list)
    count: int = 0

    _turn_end: int = -1
    _results_end: int = -1
    _turn_thinks: bool = False
    # Whether the turn has calls that the client runs.
    _turn_calls: bool = False
    _awaits_item: bool = False
    _is_apart: bool = False
    # The ranges of turns that always stay; the end is exclusive.
    _kept: list[tuple[int, int]] = field(default_factory=list)
    # The calls of the turn that have no result yet, by id.
    _pending: dict[str, Call] = field(default_factory=dict)
    _ours: list[tuple[Call, Result]] = field(default_factory=list)
    # Of the prompts that stay, and of the messages with calls that stay.
    _signatures: list[Signature] = field(default_factory=list)
    # The beginning of the work for a fold, and the first message of the model after it.
    _work_since: int = 0
    _work_start: int = -1
    _flaw: str = ""
    _flaw_at: int = -1

    def take(self, fact: Fact) -> None:
        """Read the next message."""
        place = self.count
        self.count = place + 1
        if fact.flaw:
            self._add_flaw(place, fact.flaw)
        if fact.kind == "model":
            self.fates.append(Fate.LEFT_OUT)
            self._add_turn(place, fact)
            self._keep_turn(place + 1, is_needed=fact.finds_tools)
            if fact.thinks:
                self._turn_thinks = True
                self.thinking.append(place)
                if fact.only_thinks:
                    self.only_thinking.append(place)
            return
        if self._awaits_item and self._turn_end == place:
            # This is reasoning without the item to which it belongs.
            self._add_flaw(place, UNKNOWN_CONTENT)
        has_words = fact.has_words
        if fact.kind == "standing":
            self.fates.append(Fate.STAYS)
        elif fact.results:
            self.fates.append(Fate.MIXED if has_words else Fate.LEFT_OUT)
            says_words = self._add_results(place, fact.results)
            self._keep_turn(place + 1, is_needed=says_words or fact.finds_tools)
            self._complete_turn(place)
            has_words = has_words or says_words
        else:
            self.fates.append(Fate.WORDS if has_words else Fate.LEFT_OUT)
            if has_words and not fact.is_meanwhile and not self._turn_calls:
                self.prompts.append(place)
                self._add_signature(place, None)
        if has_words or fact.is_compaction:
            self._work_since = place + 1

    @property
    def work_start(self) -> int:
        """The first message of the work that a fold would leave out now; the number of messages if there is none."""
        return self._work_start if self._work_start >= self._work_since else self.count

    @property
    def is_answered(self) -> bool:
        """Whether all calls have results."""
        return not self._pending

    def list_removable(self, start: int) -> list[int]:
        """The messages from `start` on that a fold would leave out now, at least in part."""
        if self._flaw_at >= start:
            return []
        kept = {place for first, end in self._kept for place in range(first, end)}
        return [n for n in range(start, self.count) if self.fates[n] in (Fate.LEFT_OUT, Fate.MIXED) and n not in kept]

    def has_dropped(self, start: int, end: int) -> bool:
        """Whether any message of a range is left out."""
        return any(self.fates[place] in (Fate.LEFT_OUT, Fate.MIXED) for place in range(start, end))

    def _add_turn(self, place: int, fact: Fact) -> None:
        if self._turn_end != place:
            if self._pending:
                self._add_flaw(self.turns[-1], UNBALANCED)
                self._apply_outcomes(UNBALANCED)
                self._pending.clear()
            self.turns.append(place)
            self._turn_thinks = self._turn_calls = self._is_apart = False
            if self._work_start < self._work_since:
                self._work_start = place
        self._turn_end = self._results_end = place + 1
        self._awaits_item = fact.leads
        self._turn_calls = self._turn_calls or any(call.id for call in fact.calls)
        if fact.is_signed is not None:
            self._add_signature(place, fact.is_signed)
        if fact.is_compaction:
            self._work_since = place + 1
        pending = self._pending
        for call in fact.calls:
            call_id = call.id
            if call_id in pending:
                self._add_flaw(place, UNBALANCED)
            elif call_id:
                pending[call_id] = call
            elif call.verb in ("branch", "return", "fold"):
                is_ours = not call.needs_proof or call.name in self.confirmed
                self.unfolded.append(Unfolded("", self.turns[-1], HOSTED_CALL if is_ours else UNCONFIRMED_TOOL))

    def _add_results(self, place: int, results: tuple[Result, ...]) -> bool:
        """Take the results of a turn; return whether one of them has what the user said."""
        pending, has_words = self._pending, False
        taken: dict[str, Call] = {}
        for result in results:
            # Gemini CLI sends every result twice after `--resume`, in one message.
            is_repeated = result.id in taken
            call = taken[result.id] if is_repeated else pending.pop(result.id, None)
            tools = call.tools if call else ""
            has_words = has_words or has_user_words(result.content, tools, failed=result.failed)
            if call is None:
                self._add_flaw(place, UNBALANCED)
                continue
            taken[result.id] = call
            if call.verb and not is_repeated:
                self._ours.append((call, result))
        if place != self._results_end:
            self._is_apart = True
        self._results_end = place + 1
        return has_words

    def _keep_turn(self, end: int, *, is_needed: bool) -> None:
        """Keep the whole turn up to here if this part of it, or an earlier one, is needed."""
        turn = self.turns[-1] if self.turns else -1
        if self._kept and self._kept[-1][0] == turn:
            self._kept[-1] = (turn, end)
        elif is_needed and turn >= 0:
            self._kept.append((turn, end))

    def _complete_turn(self, place: int) -> None:
        """Apply the outcomes of our calls, and a fold by hand, when all calls of the turn have results."""
        if self._pending:
            return
        if self._ours:
            self._apply_outcomes("")
        start, turn = self.work_start, self.turns[-1] if self.turns else 0
        if place in self.by_hand and start < turn:
            flaw = APART if self._is_apart else self._flaw if self._flaw_at >= turn else ""
            fold = self.by_hand[place]
            self._close_range(FoldRange(fold.result_id, start, turn, fold.messages, flaw, by_hand=True))
            self._work_since = place + 1

    def _apply_outcomes(self, flaw: str) -> None:
        """Apply the outcomes of our calls after all calls of the turn are answered, or never will be."""
        turn, end = self.turns[-1], self._results_end
        work_start = self._work_start
        if self._is_apart:
            flaw = flaw or APART
        if self._flaw_at >= turn:
            flaw = flaw or self._flaw
        ours, self._ours = self._ours, []
        for call, result in ours:
            outcome = self._read_outcome(call, result, turn)
            if outcome is None:
                continue
            self.session_id = outcome.session_id or self.session_id
            match outcome.verb:
                case "branch":
                    self._open_branch(outcome.branch_id, end, flaw)
                case "return":
                    self._close_branch(outcome.branch_id, turn, end, flaw)
                case "fold":
                    self._close_range(FoldRange(outcome.branch_id, work_start, turn, end, flaw, self._turn_thinks))
                case "rollback":
                    self._roll_back(frozenset(outcome.discarded), turn)
            if outcome.verb in ("branch", "return", "fold"):
                self._work_since, work_start = end, turn

    def _read_outcome(self, call: Call, result: Result, turn: int) -> CallOutcome | None:
        outcome = read_result(call, result, self.confirmed)
        if isinstance(outcome, CallOutcome):
            call_id = remembered_id(call.id)
            earlier = self.outcomes.get(call_id)
            self.outcomes[call_id] = outcome if earlier is None or earlier == outcome else CallOutcome("")
            return outcome
        # Earlier versions remembered the id itself.
        known = self.remembered.get(remembered_id(call.id)) or self.remembered.get(call.id)
        if known is not None and known.verb == call.verb and outcome != "failed":
            return known
        if outcome == "unreadable":
            self.unfolded.append(Unfolded("", turn, UNREADABLE_RESULT))
        elif outcome == "foreign" and call.verb in ("branch", "return", "fold"):
            self.unfolded.append(Unfolded("", turn, UNCONFIRMED_TOOL))
        elif outcome == "failed" and call.verb in ("return", "fold"):
            self.unfolded.append(Unfolded("", turn, CALL_FAILED))
        return None

    def _open_branch(self, branch_id: str, end: int, flaw: str) -> None:
        """Open a branch. If it is already open, its first beginning counts."""
        for each in self.open:
            if each.branch_id == branch_id:
                return
        if len(self.open) < OPEN_MAX:
            self.open.append(BranchPoint(branch_id, end, flaw))
        else:
            self.unfolded.append(Unfolded(branch_id, end, TOO_MANY_OPEN))

    def _close_branch(self, branch_id: str, turn: int, end: int, flaw: str) -> None:
        depth = len(self.open) - 1
        while depth >= 0 and self.open[depth].branch_id != branch_id:
            depth -= 1
        if depth < 0:
            self.unfolded.append(Unfolded(branch_id, turn, NO_BRANCH_POINT))
            return
        branch = self.open[depth]
        del self.open[depth:]
        fold_range = FoldRange(branch_id, branch.start, turn, end, branch.flaw or flaw, self._turn_thinks)
        if fold_range.start < fold_range.end:
            self._close_range(fold_range)
            add_outermost(self.closed, fold_range)

    def _close_range(self, fold_range: FoldRange) -> None:
        flaw = fold_range.flaw or (self._flaw if self._flaw_at >= fold_range.start else "")
        inside = [] if flaw else self._kept[bisect_left(self._kept, (fold_range.start, 0)) :]
        if not (flaw or self._leave_out_signatures(fold_range, inside)):
            flaw, inside = MIXED_SIGNATURES, []
        loop_start = self.prompts[-1] if self.prompts else 0
        running = [place for place in self.thinking if place >= loop_start] if inside else []
        thinks = fold_range.thinks or any(first <= place < end for first, end in inside for place in running)
        start = fold_range.start
        for kept, kept_end in (*inside, (fold_range.end, fold_range.end)):
            if start < kept <= fold_range.end and self.has_dropped(start, kept):
                self.ranges.append(fold_range._replace(start=start, end=kept, flaw=flaw, thinks=thinks))
            start = kept_end

    def _add_signature(self, place: int, is_signed: bool | None) -> None:
        running = frozenset() if is_signed is None else self._running_signatures | {is_signed}
        self._signatures.append(Signature(place, is_signed, running))

    @property
    def _running_signatures(self) -> frozenset[bool]:
        return self._signatures[-1].running if self._signatures else frozenset()

    def _leave_out_signatures(self, fold_range: FoldRange, inside: Sequence[tuple[int, int]]) -> bool:
        """Leave out the signatures of a range, except for those of the turns inside it that stay.

        The words of a prompt inside it move, so that the running turn reaches back to the prompt before. If it would
        then be signed in part, return False and leave out nothing.
        """
        first = bisect_left(self._signatures, fold_range.start, key=attrgetter("place"))
        before, self._signatures[first:] = self._signatures[first:], []
        kept = {place for start, end in inside for place in range(start, end)}
        has_prompt = False
        for place, is_signed, _ in before:
            if place >= fold_range.end or place in kept:
                self._add_signature(place, is_signed)
            elif is_signed is None:
                has_prompt = True
        if has_prompt and len(self._running_signatures) > 1:
            self._signatures[first:] = before
            return False
        return True

    def _roll_back(self, discarded: frozenset[str], turn: int) -> None:
        """Apply a rollback. An open target stays open. A folded one is not opened again, so that the list is stable."""
        left = [n for n, each in enumerate(self.open) if each.branch_id not in discarded]
        innermost = self.open[left[-1] + 1 if left else 0 :]
        if innermost and innermost[0].start < turn:
            add_outermost(self.closed, FoldRange(innermost[0].branch_id, innermost[0].start, turn, turn))
        self.open = [self.open[n] for n in left]

    def _add_flaw(self, place: int, flaw: str) -> None:
        self._flaw, self._flaw_at = flaw, max(place, self._flaw_at)


def add_outermost(outermost: list[FoldRange], fold_range: FoldRange) -> None:
    """Add a range to ranges of which none is in another; it takes the place of those inside it."""
    while outermost and outermost[-1].start >= fold_range.start:
        outermost.pop()
    outermost.append(fold_range)


def walk_messages(
    facts: Iterable[Fact],
    remembered: Mapping[str, CallOutcome],
    confirmed: Collection[str],
    by_hand: Mapping[int, LeftOutDecision],
) -> Walk:
    walk = Walk(remembered, confirmed, by_hand)
    for fact in facts:
        walk.take(fact)
    return walk


def is_inside(place: int, folded: Sequence[FoldRange]) -> bool:
    """Whether a message is in one of the ranges, which are in order."""
    number = bisect_right(folded, place, key=attrgetter("start")) - 1
    return number >= 0 and place < folded[number].end
