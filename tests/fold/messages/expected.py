"""The messages that a projection must send, computed from the script of a history, independently of src.

The expectation for the first messages of a history does not depend on later ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.fold.messages.histories import History, Message
from tests.fold.messages.rules_gemini import signature_faults
from tests.fold.messages.scripts import REMINDER

THOUGHTS = ("thinking", "redacted_thinking")
PARTS = {"anthropic": "content", "gemini": "parts"}
FOLD, KEEP, WAIT = "fold", "keep", "wait"
BY_HAND = "br_00000000000d"
SUMMARY = (
    "[contextfold: folded by hand: All done.\n"
    f'To see it: context_expand "{BY_HAND}", or run: context fold expand {BY_HAND}]'
)


@dataclass(frozen=True, slots=True)
class Closing:
    """A return or a fold, and the messages from `first` up to `end` that it closes."""

    branch_id: str
    kind: str
    first: int
    end: int
    # The message with the last result of the turn.
    closed_at: int
    # From this message on, the range is left out; -1 means that it is not left out yet.
    left_out_from: int
    verdict: str

    def contains(self, other: Closing) -> bool:
        return self is not other and self.first <= other.first and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Expectation:
    # Only those that have something to leave out are listed.
    closings: tuple[Closing, ...]
    # The open branches are listed outermost first.
    open: tuple[str, ...]
    # The last messages of the turns that opened the branches.
    opened_at: tuple[int, ...]

    @property
    def folded(self) -> list[Closing]:
        """The closings that are left out, without those inside another."""
        folded = [closing for closing in self.closings if closing.verdict == FOLD]
        return [
            closing
            for closing in folded
            if not any(other.contains(closing) for other in _possible_containers(folded, closing))
        ]

    @property
    def unfolded(self) -> list[Closing]:
        """The closings that stay and are not inside anything that is left out."""
        folded = [closing for closing in self.closings if closing.verdict == FOLD]
        return [
            closing
            for closing in self.closings
            if closing.verdict != FOLD and not any(other.contains(closing) for other in folded)
        ]


def _possible_containers(folded: list[Closing], closing: Closing) -> list[Closing]:
    """The closings that may contain this one. If two cover the same messages, the later one contains the other."""
    index = next(number for number, each in enumerate(folded) if each is closing)
    earlier = [each for each in folded[:index] if (each.first, each.end) != (closing.first, closing.end)]
    return [*earlier, *folded[index + 1 :]]


def with_fold_by_hand(history: History) -> History:
    """The history with a fold by hand after one of its turns, if there is one that can close it."""
    ends = [indexes[-1] + 1 for _, indexes in _turns(history, len(history.messages)) if _can_close(history, indexes)]
    # A host may append an instruction to the results.
    ends += [end + 1 for end in ends if end < len(history.messages) and _is_instruction(history, end)]
    folds = [replace(history, folded_at=end) for end in ends if end < len(history.messages)]
    ready = [
        each for each in folds if any(one.branch_id == BY_HAND for one in expected(each, each.folded_at + 1).closings)
    ]
    rng = random.Random(f"{history.seed} by hand")
    return rng.choice(ready if ready and rng.random() < 0.8 else [history, *folds])


def _is_instruction(history: History, index: int) -> bool:
    return history.steps[history.step_indexes[index]].kind == "system" and not history.user_texts[index]


def _can_close(history: History, indexes: list[int]) -> bool:
    """Whether the last result of a turn may be replaced with a summary."""
    step = history.steps[history.step_indexes[indexes[0]]]
    call = step.calls[step.order[-1]]
    is_plain = not (call.failed or call.picture or "context_" in call.name)
    is_plain = is_plain and not any(history.user_texts[index] for index in indexes)
    has_found = step.finds_tools and history.format == "anthropic"
    return is_plain and not has_found and all(each.kind == "work" for each in step.calls)


def expected(history: History, count: int | None = None) -> Expectation:
    count = len(history.messages) if count is None else count
    # The id of each open branch, and the first and the last message of the turn that opened it.
    stack: list[tuple[str, int, int]] = []
    closings: list[Closing] = []
    effect_end = -1
    for _, indexes in _turns(history, count):
        step = history.steps[history.step_indexes[indexes[0]]]
        begin, end = _turn_start(history, indexes[0]), indexes[-1]
        spoken = (
            index for index in range(begin) if history.user_texts[index] or is_compaction(history.messages[index])
        )
        since = max([effect_end, *spoken])
        work = next((index for index in range(since + 1, begin) if _is_model_message(history.messages[index])), begin)
        for call in (call for index in indexes for _, call in history.results[index]):
            if call.kind not in ("branch", "return", "fold", "rollback") or call.failed:
                continue
            if call.kind == "rollback":
                stack = [entry for entry in stack if entry[0] not in call.discarded]
                continue
            effect_end = end
            assert call.branch_id
            if call.kind == "branch":
                stack.append((call.branch_id, begin, end))
                work = begin
                continue
            first = read_from = work
            if call.kind == "return":
                depth = next((number for number, entry in enumerate(stack) if entry[0] == call.branch_id), None)
                if depth is None:
                    work = begin
                    continue
                read_from, first = stack[depth][1], stack[depth][2] + 1
                del stack[depth:]
            work = begin
            closing = Closing(call.branch_id, call.kind, first, begin, end, end + 1, FOLD)
            if _dropped_ranges(history, closing):
                is_unknown = any(_is_unknown(history, index) for index in range(read_from, end + 1))
                closings.append(
                    replace(closing, verdict=KEEP)
                    if is_unknown or _mixes_signatures(history, closing, closings)
                    else _with_verdict(history, closing, turn_thinks=step.thinks > 0, count=count)
                )
        by_hand = _close_by_hand(history, range(work, begin), count) if end == anchor_of(history) else None
        if by_hand:
            effect_end = end
            closings.append(by_hand)
    return Expectation(tuple(closings), tuple(each[0] for each in stack), tuple(each[2] for each in stack))


def anchor_of(history: History) -> int:
    """The message with the result that a fold by hand replaces."""
    return max((index for index in range(history.folded_at) if history.results[index]), default=-1)


def _close_by_hand(history: History, work: range, count: int) -> Closing | None:
    """The fold by hand of the work in front of the last turn then; None if nothing is left out, or not yet."""
    # The model has written its next message before it sees the fold.
    last = history.folded_at
    closing = Closing(BY_HAND, "by hand", work.start, work.stop, last, last + 1, FOLD)
    is_unknown = any(_is_unknown(history, n) for n in range(work.start, last))
    if count <= last or is_unknown or not _dropped_ranges(history, closing):
        return None
    thinks = any(_message_has_thinking(history, n) for n in range(work.stop, last + 1))
    return _with_verdict(history, closing, turn_thinks=thinks, count=count)


def _turns(history: History, count: int) -> Iterator[tuple[int, list[int]]]:
    """The turns with calls whose results are all present, with the indexes of their messages."""
    for number, step in enumerate(history.steps):
        indexes = [index for index, owner in enumerate(history.step_indexes) if owner == number]
        if step.kind == "turn" and step.calls and indexes and indexes[-1] < count:
            yield number, indexes


def _with_verdict(history: History, closing: Closing, *, turn_thinks: bool, count: int) -> Closing:
    prompt = max((index for index in range(closing.closed_at) if is_prompt(history, index)), default=0)
    kept_turns = [index for index in range(max(prompt, closing.first), closing.end) if _is_in_kept_turn(history, index)]
    kept_turns_think = any(_message_has_thinking(history, index) for index in kept_turns)
    if not history.binds_thinking or not (turn_thinks or kept_turns_think):
        return closing
    left_out_from = next((index for index in range(closing.closed_at + 1, count) if is_prompt(history, index)), -1)
    return replace(closing, left_out_from=left_out_from, verdict=FOLD if left_out_from >= 0 else WAIT)


def _mixes_signatures(history: History, closing: Closing, earlier: list[Closing]) -> bool:
    """Whether Gemini would refuse the running turn, which reaches further back without the prompts of the closing."""
    closings = [closing, *(each for each in earlier if each.verdict == FOLD)]
    dropped = [{index for each in _dropped_ranges(history, one) for index in each} for one in closings]
    if history.format != "gemini" or not any(is_user_message(history, index) for index in dropped[0]):
        return False
    gone = set[int]().union(*dropped)
    staying = [history.messages[index] for index in range(closing.closed_at + 1) if index not in gone]
    return any(signature_faults(staying))


# Items that say which tools there are. They stay wherever they are.
LISTS_OF_TOOLS = ("tool_search_call", "tool_search_output", "additional_tools")


def is_compaction(message: Mapping[str, Any]) -> bool:
    """Whether the message has the provider's summary of those before it."""
    return message.get("type") == "compaction" or "compaction" in _kinds(message)


def _kinds(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    return [block.get("type", "") for block in content] if isinstance(content, list) else []


def _is_model_message(message: Mapping[str, Any]) -> bool:
    if message.get("type") in (*LISTS_OF_TOOLS, "compaction"):
        return False
    if "role" in message:
        return message["role"] in ("assistant", "model")
    return not message["type"].endswith("_output") and message["type"] != "item_reference"


def _turn_start(history: History, index: int) -> int:
    """The first message of the turn: the Responses API does not mark where one answer ends and the next begins."""
    while history.format == "openai-responses" and index and _is_model_message(history.messages[index - 1]):
        index -= 1
    return index


def _is_unknown(history: History, index: int) -> bool:
    message = history.messages[index]
    if history.format == "anthropic":
        return not {"compaction", "tool_addition", "tool_removal"}.isdisjoint(_kinds(message))
    return is_compaction(message) or history.steps[history.step_indexes[index]].kind == "unknown"


def _is_kept_instruction(history: History, index: int) -> bool:
    """Whether the message is an instruction that stays.

    Anthropic allows one only after a user's message, never two in a row.
    """
    if history.messages[index].get("type") in LISTS_OF_TOOLS:
        return True
    return history.format != "anthropic" and history.messages[index].get("role") in ("system", "developer")


def is_prompt(history: History, index: int) -> bool:
    """Whether it is a text of the user that came after the model had finished, not while it worked."""
    return is_user_message(history, index) and history.messages[index].get("role") != "system"


def is_dropped(history: History, index: int) -> bool:
    return not _is_kept_instruction(history, index) and not is_user_message(history, index)


def is_user_message(history: History, index: int) -> bool:
    """Whether the message has texts of the user and no results."""
    return bool(history.user_texts[index]) and not history.results[index]


def _is_in_kept_turn(history: History, index: int) -> bool:
    """Whether the message belongs to a turn in whose results the host has quoted the user, or that has found tools.

    Such a turn begins with the first message of the model.
    """
    if _is_model_message(history.messages[index]):
        while index + 1 < len(history.messages) and _is_model_message(history.messages[index + 1]):
            index += 1
        index += 1
    step = history.steps[history.step_indexes[index]] if index < len(history.messages) else None
    if step is None or step.kind != "turn" or not step.calls:
        return False
    return bool(step.quoted) or (step.finds_tools and history.format == "anthropic")


def _dropped_ranges(history: History, closing: Closing) -> list[range]:
    """The ranges of messages to leave out: those of the closing, divided at the turns that stay."""
    ranges: list[range] = []
    start = closing.first
    for index in range(closing.first, closing.end + 1):
        if index == closing.end or _is_in_kept_turn(history, index):
            if any(is_dropped(history, each) for each in range(start, index)):
                ranges.append(range(start, index))
            start = index + 1
    return ranges


def has_thinking(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(block["type"] in THOUGHTS for block in content)


def _message_has_thinking(history: History, index: int) -> bool:
    return has_thinking(history.messages[index])


def sent_messages(history: History, count: int | None = None) -> list[Message]:
    """The list that must be sent."""
    count = len(history.messages) if count is None else count
    expectation = expected(history, count)
    folded = [closing for closing in expectation.closings if closing.verdict == FOLD] if history.binds_thinking else []
    changes = [
        (dropped.start, closing.left_out_from) for closing in folded for dropped in _dropped_ranges(history, closing)
    ]
    inside = {
        index for closing in expectation.folded for dropped in _dropped_ranges(history, closing) for index in dropped
    }
    merges = history.format in PARTS
    closed_by_hand = any(each.branch_id == BY_HAND and each.verdict == FOLD for each in expectation.closings)
    sent: list[Message] = []
    for index, message in enumerate(history.messages[:count]):
        if closed_by_hand and index == anchor_of(history) and index not in inside:
            sent.append(_with_summary(message, history.format))
        elif index not in inside:
            is_bare = has_thinking(message) and any(first <= index < left_out_from for first, left_out_from in changes)
            sent.append(_without_thinking(message) if is_bare else message)
        elif merges and history.user_texts[index]:
            name = PARTS[history.format]
            sent[-1] = {**sent[-1], name: [*sent[-1][name], *_user_parts(message[name])]}
        elif not merges and not is_dropped(history, index):
            sent.append(message)
    return sent


def _with_summary(message: Message, format: str) -> Message:
    """The message with the summary as its last result."""
    if format == "openai-chat":
        return {**message, "content": SUMMARY}
    if format == "openai-responses":
        return {**message, "output": SUMMARY}
    parts = list(message[PARTS[format]])
    at = max(n for n, part in enumerate(parts) if part.get("type") == "tool_result" or "functionResponse" in part)
    if format == "anthropic":
        parts[at] = {**parts[at], "content": SUMMARY}
    else:
        parts[at] = {
            **parts[at],
            "functionResponse": {**parts[at]["functionResponse"], "response": {"output": SUMMARY}},
        }
    return {**message, PARTS[format]: parts}


def _without_thinking(message: Message) -> Message:
    return {**message, "content": [block for block in message["content"] if block["type"] not in THOUGHTS]}


def _user_parts(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    results = [part for part in content if part.get("type") == "tool_result" or "functionResponse" in part]
    return [part for part in content if part not in results and not (results and part.get("text") == REMINDER)]


def left_out(history: History, closing: Closing) -> list[int]:
    """The indexes of the messages that are not sent because of this closing."""
    merges = history.format in PARTS
    return [
        index
        for dropped in _dropped_ranges(history, closing)
        for index in dropped
        if is_dropped(history, index) or (merges and is_user_message(history, index))
    ]
