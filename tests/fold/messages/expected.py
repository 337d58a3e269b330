"""What a projection must leave out, read from the script of a history and never from its messages.

Plain on purpose. What is known of a shorter history is what was done in it: nothing later changes that. Where the rules
leave a choice (items an implementation need not know), both choices are right, but only as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tests.fold.messages.histories import History

FOLD, KEEP, EITHER = "fold", "keep", "either"


@dataclass(frozen=True, slots=True)
class Pair:
    """A branch and the return that closed it."""

    branch_id: str
    branch_step: int
    return_step: int
    done_at: int  # the message with the return's result
    verdict: str
    inside: frozenset[int]  # the messages that go if it is folded


@dataclass(frozen=True, slots=True)
class Known:
    pairs: tuple[Pair, ...]
    open: tuple[tuple[str, int], ...]  # open branches and the steps of their calls, outermost first


def known(history: History) -> Known:
    """What is closed and what is open, in the order in which the results came."""
    stack: list[tuple[str, int]] = []
    pairs = []
    for place, answers in enumerate(history.answers):
        for step, call in answers:
            if call.failed:
                continue
            if call.kind == "branch" and call.branch_id:
                stack.append((call.branch_id, step))
            elif call.kind == "rollback":
                stack = [one for one in stack if one[0] not in call.discarded]
            elif call.kind == "return" and any(one[0] == call.branch_id for one in stack):
                while True:
                    branch_id, branch_step = stack.pop()
                    if branch_id == call.branch_id:
                        break
                pairs.append(_pair(history, branch_id, branch_step, step, place))
    return Known(tuple(pairs), tuple(stack))


def _pair(history: History, branch_id: str, branch_step: int, return_step: int, done_at: int) -> Pair:
    steps = history.steps
    between = range(branch_step + 1, return_step)
    verdict = FOLD
    if len(steps[branch_step].calls) != 1 or len(steps[return_step].calls) != 1:
        verdict = KEEP
    elif history.binds_thinking and steps[return_step].thinks:
        verdict = KEEP  # what the model thought when it returned is taken behind the whole branch only
    elif any(steps[one].kind == "strange" for one in between):
        verdict = KEEP if history.format == "openai-responses" else EITHER
    elif history.format == "openai-responses" and branch_step and steps[branch_step - 1].kind == "strange":
        verdict = EITHER  # nothing tells where the reference ends and the branch's turn begins
    inside = [place for place, owner in enumerate(history.owners) if owner in between and not _stays(history, place)]
    return Pair(branch_id, branch_step, return_step, done_at, verdict, frozenset(inside))


def _stays(history: History, place: int) -> bool:
    """Instructions stay where they may stand anywhere; Anthropic takes one after the user's message, and no two."""
    return history.format != "anthropic" and history.messages[place].get("role") in ("system", "developer")


def wrong_choice(pairs: Iterable[Pair], dropped: Collection[int]) -> str:
    """What is wrong with leaving these messages out where these pairs are done."""
    pairs, gone = list(pairs), set(dropped)
    chosen = [one for one in pairs if one.verdict == FOLD or (one.verdict == EITHER and one.inside <= gone)]
    due = set[int]().union(*(one.inside for one in chosen))
    if missing := sorted(due - gone):
        return f"still there: {missing}"
    if extra := sorted(gone - due):
        return f"left out without need: {extra}"
    return ""


def outermost(pairs: Collection[Pair]) -> Iterator[Pair]:
    for one in pairs:
        if not any(other.branch_step < one.branch_step and one.return_step < other.return_step for other in pairs):
            yield one
