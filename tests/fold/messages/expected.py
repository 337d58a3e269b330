"""The messages that a projection must send, computed from the script of a history, independently of src.

What was done in a shorter history is known from it alone: nothing that comes later changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.fold.messages.histories import History, Message
from tests.fold.messages.scripts import REMINDER

THOUGHTS = ("thinking", "redacted_thinking")
PARTS = {"anthropic": "content", "gemini": "parts"}
FOLD, KEEP, WAIT = "fold", "keep", "wait"


@dataclass(frozen=True, slots=True)
class Closing:
    """A return or a fold, and the messages from `first` up to `end` that it closes."""

    branch_id: str
    kind: str
    first: int
    end: int
    # This is the message with the last result of the turn.
    done_at: int
    # From this message on, the range is left out; -1 means that it is not left out yet.
    made_at: int
    verdict: str

    def holds(self, other: Closing) -> bool:
        return self is not other and self.first <= other.first and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Expectation:
    # Only those that have something to leave out are listed.
    closings: tuple[Closing, ...]
    # The open branches are listed outermost first.
    open: tuple[str, ...]
    # These are the last messages of the turns that opened the branches.
    opened_at: tuple[int, ...]
    # This counts the returns and folds that failed or named no open branch.
    failures: int

    @property
    def folded(self) -> list[Closing]:
        """The closings that are left out, without those inside another."""
        made = [one for one in self.closings if one.verdict == FOLD]
        return [one for one in made if not any(other.holds(one) for other in _later(made, one))]

    @property
    def unfolded(self) -> list[Closing]:
        """The closings that stay and are not inside anything that is left out."""
        made = [one for one in self.closings if one.verdict == FOLD]
        return [one for one in self.closings if one.verdict != FOLD and not any(other.holds(one) for other in made)]


def _later(made: list[Closing], one: Closing) -> list[Closing]:
    """The closings that may hold this one. If two cover the same messages, only the later one may hold the other."""
    place = next(number for number, each in enumerate(made) if each is one)
    earlier = [each for each in made[:place] if (each.first, each.end) != (one.first, one.end)]
    return [*earlier, *made[place + 1 :]]


def expected(history: History, count: int | None = None) -> Expectation:
    count = len(history.messages) if count is None else count
    stack: list[tuple[str, int]] = []
    closings: list[Closing] = []
    effect_end, failures = -1, 0
    for _, places in _turns(history, count):
        step = history.steps[history.owners[places[0]]]
        begin, end = _turn_start(history, places[0]), places[-1]
        since = max([effect_end, *(place for place in range(begin) if history.words[place])])
        work = next((place for place in range(since + 1, begin) if _is_models(history.messages[place])), begin)
        for call in (call for place in places for _, call in history.answers[place]):
            if call.kind not in ("branch", "return", "fold", "rollback") or call.failed:
                failures += call.kind in ("return", "fold")
                continue
            if call.kind == "rollback":
                stack = [one for one in stack if one[0] not in call.discarded]
                continue
            effect_end = end
            assert call.branch_id
            if call.kind == "branch":
                stack.append((call.branch_id, end))
                work = begin
                continue
            first = work
            if call.kind == "return":
                depth = next((number for number, one in enumerate(stack) if one[0] == call.branch_id), None)
                if depth is None:
                    failures += 1
                    work = begin
                    continue
                first = stack[depth][1] + 1
                del stack[depth:]
            work = begin
            one = Closing(call.branch_id, call.kind, first, begin, end, end + 1, FOLD)
            if _ranges(history, one):
                closings.append(_judged(history, one, thinks=step.thinks > 0, count=count))
    return Expectation(tuple(closings), tuple(one for one, _ in stack), tuple(at for _, at in stack), failures)


def _turns(history: History, count: int) -> Iterator[tuple[int, list[int]]]:
    """The turns with calls whose results are all present, with the indexes of their messages."""
    for number, step in enumerate(history.steps):
        places = [place for place, owner in enumerate(history.owners) if owner == number]
        if step.kind == "turn" and step.calls and places and places[-1] < count:
            yield number, places


def _judged(history: History, one: Closing, *, thinks: bool, count: int) -> Closing:
    if any(_is_strange(history, place) for place in range(one.first, one.done_at + 1)):
        return replace(one, verdict=KEEP)
    prompt = max((place for place in range(one.done_at) if is_prompt(history, place)), default=0)
    kept = [place for place in range(max(prompt, one.first), one.end) if _is_kept(history, place)]
    has_thinking = any(_thinks(history, place) for place in kept)
    if not history.binds_thinking or not (thinks or has_thinking):
        return one
    made_at = next((place for place in range(one.done_at + 1, count) if is_prompt(history, place)), -1)
    return replace(one, made_at=made_at, verdict=FOLD if made_at >= 0 else WAIT)


def _is_models(message: Mapping[str, Any]) -> bool:
    if "role" in message:
        return message["role"] in ("assistant", "model")
    return not message["type"].endswith("_output") and message["type"] != "item_reference"


def _turn_start(history: History, place: int) -> int:
    """The first message of the turn: the Responses API does not mark where one answer ends and the next begins."""
    while history.format == "openai-responses" and place and _is_models(history.messages[place - 1]):
        place -= 1
    return place


def _is_strange(history: History, place: int) -> bool:
    return history.format != "anthropic" and history.steps[history.owners[place]].kind == "strange"


def _stays(history: History, place: int) -> bool:
    """Whether it is an instruction that stays. Anthropic allows one only after a user's message, never two in a row."""
    return history.format != "anthropic" and history.messages[place].get("role") in ("system", "developer")


def is_prompt(history: History, place: int) -> bool:
    """Whether the user said it after the model had finished, not while it worked."""
    return is_spoken(history, place) and history.messages[place].get("role") != "system"


def goes(history: History, place: int) -> bool:
    return not _stays(history, place) and not is_spoken(history, place)


def is_spoken(history: History, place: int) -> bool:
    """Whether the message has words of the user and no results."""
    return bool(history.words[place]) and not history.answers[place]


def _is_kept(history: History, place: int) -> bool:
    """Whether the message belongs to a turn in whose results the host has put the user's words.

    Such a turn begins with the first message of the model.
    """
    if _is_models(history.messages[place]):
        while place + 1 < len(history.messages) and _is_models(history.messages[place + 1]):
            place += 1
        place += 1
    step = history.steps[history.owners[place]] if place < len(history.messages) else None
    return step is not None and step.kind == "turn" and bool(step.quoted) and bool(step.calls)


def _ranges(history: History, one: Closing) -> list[range]:
    """The ranges of messages to leave out: those of the closing, divided at the turns that stay."""
    ranges: list[range] = []
    start = one.first
    for place in range(one.first, one.end + 1):
        if place == one.end or _is_kept(history, place):
            if any(goes(history, each) for each in range(start, place)):
                ranges.append(range(start, place))
            start = place + 1
    return ranges


def thinks(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(block["type"] in THOUGHTS for block in content)


def _thinks(history: History, place: int) -> bool:
    return thinks(history.messages[place])


def sent_messages(history: History, count: int | None = None) -> list[Message]:
    """The list that must be sent."""
    count = len(history.messages) if count is None else count
    seen = expected(history, count)
    made = [one for one in seen.closings if one.verdict == FOLD] if history.binds_thinking else []
    changes = [(places.start, one.made_at) for one in made for places in _ranges(history, one)]
    inside = {place for one in seen.folded for places in _ranges(history, one) for place in places}
    merges = history.format in PARTS
    sent: list[Message] = []
    for place, message in enumerate(history.messages[:count]):
        if place not in inside:
            is_bare = thinks(message) and any(first <= place < made_at for first, made_at in changes)
            sent.append(_without_thinking(message) if is_bare else message)
        elif merges and history.words[place]:
            name = PARTS[history.format]
            sent[-1] = {**sent[-1], name: [*sent[-1][name], *_words(message[name])]}
        elif not merges and not goes(history, place):
            sent.append(message)
    return sent


def _without_thinking(message: Message) -> Message:
    return {**message, "content": [block for block in message["content"] if block["type"] not in THOUGHTS]}


def _words(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    results = [part for part in content if part.get("type") == "tool_result" or "functionResponse" in part]
    return [part for part in content if part not in results and not (results and part.get("text") == REMINDER)]


def left_out(history: History, one: Closing) -> list[int]:
    """The indexes of the messages that are not sent because of it."""
    merges = history.format in PARTS
    return [
        place
        for places in _ranges(history, one)
        for place in places
        if goes(history, place) or (merges and is_spoken(history, place))
    ]
