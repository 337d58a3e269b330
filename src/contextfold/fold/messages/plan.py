"""What to change in a list of messages, and the changed list.

A plan is made of the ranges that fold and of the results that are left out. It says which messages are not sent, and
what changes inside of those that stay: words of the user are added, thinking is removed, results become stubs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contextfold.fold.messages.cold_results import LeftOutPart, read_arguments
from contextfold.fold.messages.facts import Api, Call, Members, block_members, items_of
from contextfold.fold.messages.walk import BOUND_THINKING, Fate, FoldRange, Walk, add_outermost, is_inside
from contextfold.fold.messages.weight import encode_json


class Rewrite(NamedTuple):
    """The changes inside of one message that stays."""

    without_thinking: bool = False
    # The messages that are left out and whose words are added after its parts.
    words_from: tuple[int, ...] = ()
    # The results and the arguments of calls that become stubs.
    stubs: tuple[LeftOutPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of a list of messages."""

    # The ranges that are folded, and those that are not, both in order.
    folded: Sequence[FoldRange] = ()
    skipped: Sequence[FoldRange] = ()
    # The ranges of indexes that are left out for each folded range, in order; the end is exclusive.
    cuts_of_folds: Sequence[Sequence[tuple[int, int]]] = ()
    # The changes inside messages that stay, by index.
    rewrites: Mapping[int, Rewrite] = field(default_factory=dict)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        return [cut for cuts in self.cuts_of_folds for cut in cuts]


def make_plan(walk: Walk, api: Api, left_out: Sequence[LeftOutPart], *, binds_thinking: bool) -> Plan:
    others = [part for part in left_out if not part.decision.is_fold]
    folded, skipped, without_thinking = _choose_ranges(walk, others, binds_thinking=binds_thinking)
    folds = {fold_range.branch_id for fold_range in folded}
    left_out = [part for part in left_out if not part.decision.is_fold or part.decision.result_id in folds]
    # Words that cannot stay where they are move to the message before the range.
    moves_words = api.has_alternating_roles
    staying = (Fate.STAYS,) if moves_words else (Fate.STAYS, Fate.WORDS)
    cuts_of_folds = [list(_cut_around(fold_range, walk.fates, staying)) for fold_range in folded]
    rewrites = {place: Rewrite(without_thinking=True) for place in without_thinking}
    for fold_range in folded if moves_words else ():
        words = tuple(n for n in range(fold_range.start, fold_range.end) if walk.fates[n] in (Fate.WORDS, Fate.MIXED))
        if words:
            rewrites[fold_range.start - 1] = Rewrite(words_from=words)
    for part in left_out:
        if not is_inside(part.place, folded):
            rewrite = rewrites.get(part.place, Rewrite())
            rewrites[part.place] = (
                rewrite._replace(without_thinking=True)
                if part.is_thinking
                else rewrite._replace(stubs=(*rewrite.stubs, part))
            )
    return Plan(folded, skipped, cuts_of_folds, rewrites)


def _choose_ranges(
    walk: Walk, left_out: Sequence[LeftOutPart], *, binds_thinking: bool
) -> tuple[list[FoldRange], list[FoldRange], list[int]]:
    """Choose what is folded now. With bound thinking some ranges wait, and old thinking after a change is left out.

    Returns the folded ranges, in order, none in another; the other ranges that are in no folded one; and the indexes of
    messages that stay without their thinking.
    """
    folded: list[FoldRange] = []
    skipped: list[FoldRange] = []
    # The index of the first message that each change concerns, and the number of messages when it was made.
    changes = [(part.place, part.decision.messages) for part in left_out] if binds_thinking else []
    for fold_range in walk.ranges:
        if fold_range.by_hand and walk.count < fold_range.decided:
            # The host repeats a request that it sent before the fold.
            continue
        flaw = fold_range.flaw
        if not flaw and binds_thinking:
            folded_at = _count_messages_at_fold(walk, fold_range)
            if folded_at is None:
                flaw = BOUND_THINKING
            else:
                changes.append((fold_range.start, folded_at))
        if flaw:
            skipped.append(fold_range._replace(flaw=flaw))
            continue
        add_outermost(folded, fold_range)
        while skipped and skipped[-1].start >= fold_range.start:
            skipped.pop()
    return folded, skipped, _find_old_thinking(walk, changes, folded)


def _count_messages_at_fold(walk: Walk, fold_range: FoldRange) -> int | None:
    """The number of messages with which a range is folded: at once, or after the user's next words; None if not yet."""
    folded_at = fold_range.decided
    thinks = fold_range.thinks
    if fold_range.by_hand:
        # Since the range, everything up to the decision was made in one tool loop, behind the unchanged messages.
        thinks = thinks or bisect_left(walk.thinking, fold_range.end) < bisect_left(walk.thinking, folded_at)
    if thinks:
        number = bisect_left(walk.prompts, fold_range.decided)
        if number == len(walk.prompts):
            return None
        folded_at = walk.prompts[number]
    # A message with only thinking cannot be sent without it.
    is_stuck = bisect_left(walk.only_thinking, fold_range.end) < bisect_left(walk.only_thinking, folded_at)
    return None if is_stuck else folded_at


def _find_old_thinking(walk: Walk, changes: list[tuple[int, int]], folded: list[FoldRange]) -> list[int]:
    """The messages with thinking that was made before a change, comes after the change, and is still sent."""
    places: list[int] = []
    reached = 0
    for start, folded_at in sorted(changes):
        first = bisect_left(walk.thinking, max(start, reached))
        places += walk.thinking[first : bisect_left(walk.thinking, folded_at)]
        reached = max(reached, folded_at)
    return [place for place in places if not is_inside(place, folded)]


def find_first_movable(walk: Walk) -> int:
    """The first index at which a change does not precede bound thinking that must stay."""
    loop_start = walk.prompts[-1] if walk.prompts else 0
    running = walk.thinking[bisect_left(walk.thinking, loop_start) :]
    return max([-1, *running[-1:], *walk.only_thinking[-1:]]) + 1


def _cut_around(fold_range: FoldRange, fates: Sequence[Fate], staying: Sequence[Fate]) -> Iterator[tuple[int, int]]:
    """The parts of a range without the messages that stay."""
    start = fold_range.start
    for place in range(fold_range.start, fold_range.end):
        if fates[place] in staying:
            if place > start:
                yield start, place
            start = place + 1
    if fold_range.end > start:
        yield start, fold_range.end


def rewrite_messages(messages: Sequence[Any], plan: Plan, api: Api) -> list[Any]:
    """The messages with the changes inside of those that stay. Those that are left out are still among them."""
    changed: list[Any] = list(messages)
    for place, rewrite in plan.rewrites.items():
        sources = [block_members(messages[source]) for source in rewrite.words_from]
        changed[place] = _rewrite_message(block_members(messages[place]), rewrite, sources, api)
    return changed


def leave_out(messages: list[Any], plan: Plan) -> list[Any]:
    """The messages that are sent."""
    sent = list(messages)
    for start, end in reversed(plan.cuts):
        del sent[start:end]
    return sent


def _rewrite_message(message: Members, rewrite: Rewrite, sources: Sequence[Members], api: Api) -> dict[str, Any]:
    results = {each.result: each.decision.stub for each in rewrite.stubs if each.result is not None}
    if len(results) < len(rewrite.stubs):
        message = _replace_inputs(message, rewrite.stubs, api)
    if api.is_result is None:
        # The message itself is a result or a turn of the model, and nothing else in it changes.
        return _replace_content(message, results[0], api) if results else dict(message)
    parts: list[object] = list(_parts_of(message, api))
    numbers = [number for number, part in enumerate(parts) if api.is_result(block_members(part))]
    for number, stub in results.items():
        parts[numbers[number]] = _replace_content(block_members(parts[numbers[number]]), stub, api)
    if rewrite.without_thinking:
        parts = [part for part in parts if not api.is_thinking(block_members(part))]
    for source in sources:
        parts += list_words(source, api)
    return {**message, api.parts_name: parts}


def _replace_inputs(message: Members, left_out: Sequence[LeftOutPart], api: Api) -> dict[str, Any]:
    """A copy of a turn of the model with stubs as arguments of its calls."""
    calls = {id(each.call.part): each.call for each in left_out if each.call}
    stubs: dict[int, dict[str, str]] = {}
    for each in left_out:
        if each.call:
            stubs.setdefault(id(each.call.part), {})[each.argument] = each.decision.stub
    changed = {part: _replace_arguments(call, stubs[part], api) for part, call in calls.items()}
    if not api.calls_name:
        return changed.get(id(message), dict(message))
    parts = items_of(message.get(api.calls_name)) or ()
    return {**message, api.calls_name: [changed.get(id(part), part) for part in parts]}


def _replace_arguments(call: Call, stubs: Mapping[str, str], api: Api) -> dict[str, Any]:
    *outer, name = api.arguments_path(call.part)
    holder = call.part
    for each in outer:
        holder = holder[each]
    arguments: object = {**read_arguments(call.arguments), **stubs}
    if isinstance(holder[name], str):
        arguments = encode_json(arguments).decode("utf-8")
    content: dict[str, Any] = {name: arguments}
    for each in reversed(outer):
        content = {each: {**call.part[each], **content}}
    return {**call.part, **content}


def _replace_content(holder: Members, stub: str, api: Api) -> dict[str, Any]:
    """A copy of a result with a stub as its content."""
    *outer, name = api.content_path(holder)
    content: dict[str, Any] = {name: {"output": stub} if api.has_object_results else stub}
    for each in reversed(outer):
        content = {each: {**holder[each], **content}}
    return {**holder, **content}


def _parts_of(message: Members, api: Api) -> Sequence[object]:
    content = message.get(api.parts_name)
    return ({"type": "text", "text": content},) if isinstance(content, str) else items_of(content) or ()


def list_words(message: Members, api: Api) -> list[object]:
    """The parts with the user's words. A host's text counts as the user's unless there is a result."""
    parts = _parts_of(message, api)
    members = [block_members(part) for part in parts]
    has_results = any(not api.is_words(each, False) for each in members)
    return [part for part, each in zip(parts, members, strict=True) if api.is_words(each, has_results)]
