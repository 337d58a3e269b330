"""Folds work by hand, for a model that does not fold: a tool call that is already answered closes the range. Pure.

The last call that a request has the result of counts as if it were a call of `context_fold`: the turns between the
user's last words and its turn are left out, and a line with the summary replaces its result. So calls and results,
roles, words and thinking follow the rules of every other fold (`walk`, `plan`).

What is decided is a `LeftOutDecision` with the id of the fold. It is found again by the call's id, tool and arguments
and by its place, because hosts mask old results, and some use an id again. At that time its result was the last one,
and the model's next message was made behind the unchanged request. So the fold counts as decided behind that one:
`messages` is one more than the request had.

A rollback undoes it as long as no request has left it out. Then it stays, as every fold does: what the model has
thought since may be bound to it. So the outcomes of a conversation say which folds were undone and which were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from contextfold.fold.messages.cold_results import LeftOutPart, Remembered, hash_text, list_results, read_arguments
from contextfold.fold.messages.facts import Call, Fact
from contextfold.fold.messages.own_tools import CallOutcome, remembered_id
from contextfold.fold.messages.walk import Walk
from contextfold.fold.messages.weight import encode_json
from contextfold.fold.store import LeftOutDecision

FOLDED, UNDONE = "fold", "undone"
# The text of the result stays in memory until the next request.
TEXT_MAX_CHARS = 100_000


class Work(NamedTuple):
    """The work that a fold by hand leaves out: the call that closes it, the text of its result, and all tokens."""

    call_id: str
    call_hash: str
    messages: int
    text: str
    text_tokens: int
    tokens: int
    # Whether it may have to wait for the user's next words, because of bound thinking.
    may_wait: bool

    def decide(self, branch_id: str, summary: str) -> LeftOutDecision:
        stub = (
            f"[contextfold: folded by hand: {summary}\n"
            f'To see it: context_expand "{branch_id}", or run: context fold expand {branch_id}]'
        )
        text_hash = _hash_fold(branch_id, self.call_hash)
        return LeftOutDecision(
            self.call_id, text_hash, branch_id, stub, tokens=self.text_tokens, messages=self.messages
        )


def find_last_call(facts: Sequence[Fact], walk: Walk) -> tuple[Call, str] | None:
    """The call that would close a fold by hand now, and the text of its result; None if nothing can be folded.

    Its result is the last one, no message of the model comes after it, and it has only text of a program.
    """
    is_answered = walk.is_answered and _find_results(facts) is not None and bool(walk.turns)
    if not is_answered or walk.work_start >= walk.turns[-1]:
        return None
    last = list_results(facts[walk.turns[-1] :])[-1]
    call = _find_call(facts, last.call_id)
    if call is None or call.may_be_ours or last.text is None or last.failed or len(last.text) > TEXT_MAX_CHARS:
        return None
    return call, last.text


def hash_call(call: Call) -> str:
    return hash_text(encode_json([call.name, read_arguments(call.arguments)]).decode("utf-8"))


def _hash_fold(branch_id: str, call_hash: str) -> str:
    """The decision's `text_hash`. It has the id: after a fold was undone, the same call may close another one."""
    return hash_text(f"{branch_id} {call_hash}")


def note_outcomes(branch_ids: Iterable[str], verb: str) -> dict[str, CallOutcome]:
    """What to remember of folds by hand that were sent or undone. Both is ambiguous, which means sent."""
    return {remembered_id(branch_id): CallOutcome(verb, branch_id) for branch_id in branch_ids}


def find_folds(facts: Sequence[Fact], remembered: Remembered) -> dict[int, list[LeftOutPart]]:
    """The results that close folds by hand in this history, by place."""
    found: dict[int, list[LeftOutPart]] = {}
    for decision in (each for same in remembered.results.values() for each in same.values() if each.is_fold):
        if remembered.outcomes.get(remembered_id(decision.result_id)) == CallOutcome(UNDONE, decision.result_id):
            continue
        known = facts[: decision.messages - 1]
        place = _find_results(known) if len(known) == decision.messages - 1 else None
        if place is None:
            continue
        results = facts[place].results
        numbers = [number for number, each in enumerate(results) if remembered_id(each.id) == decision.call_id]
        call = _find_call(facts[:place], results[numbers[0]].id) if numbers else None
        if call is not None and _hash_fold(decision.result_id, hash_call(call)) == decision.text_hash:
            found[place] = [LeftOutPart(place, decision, number) for number in numbers]
    return found


def _find_results(facts: Sequence[Fact]) -> int | None:
    """The place of the last results; None if there are none since the model's last message."""
    for place in reversed(range(len(facts))):
        if facts[place].results:
            return place
        if facts[place].kind == "model":
            break
    return None


def _find_call(facts: Sequence[Fact], call_id: str) -> Call | None:
    return next((call for fact in reversed(facts) for call in fact.calls if call.id == call_id), None)
