"""Says why a provider's cache did not hold a prompt: the first difference to the request before, and whose it is. Pure.

What of this request was in the one before, the cache could have had. The provider's usage says what it read. The rest
is lost, and was paid for again.

A difference of ours in front of what was already sent, other than a fold or a result that is left out, is a bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from contextfold.fold.events import MissCause
from contextfold.fold.messages.facts import block_members, items_of
from contextfold.fold.messages.request import BodyProjection
from contextfold.fold.messages.sent_prefix import HeadPart, SentPrefix, count_common
from contextfold.fold.messages.weight import encode_message

# Less than this and than this share of what could have been read is how providers' caches work: they keep whole blocks.
LOST_TOKENS, LOST_SHARE = 1_024, 0.05

# The beginnings of the summaries with which hosts go on after a compaction.
_SUMMARY = re.compile(
    rb"(?i)this session is being continued from a previous conversation|another language model started to solve"
    rb"|<state_snapshot>|what did we do so far\?|conversation (?:was|has been) compacted"
)
_SEARCHED_BYTES = 4_000
_NAME = re.compile(r"[\w.:/-]{1,64}")


class Comparison(NamedTuple):
    """A request beside the one before."""

    # Empty if the one before is wholly in this one.
    cause: str
    # The index of the first message that differs, as the client counts; None if the difference is before the messages.
    place: int | None
    # The name of a tool that was added, removed or changed.
    detail: str
    is_ours: bool
    # The share of this request that was in the one before, by weight.
    shared: float

    def tokens_lost(self, prompt_tokens: int, read_tokens: int) -> int:
        """The tokens that were in the request before and were not read from the cache."""
        # After a compaction, everything new stands for what was in the cache.
        could_read = prompt_tokens if self.cause == MissCause.COMPACTED else round(self.shared * prompt_tokens)
        lost = could_read - read_tokens
        return lost if lost >= max(LOST_TOKENS, LOST_SHARE * could_read) else 0


def find_before(now: SentPrefix, sent: Sequence[SentPrefix]) -> SentPrefix | None:
    """The request before, among what was sent of the same conversation, the oldest first; None if there is none.

    That is the latest, unless more of an earlier one is in this request: hosts ask things beside a conversation, with
    its history and a message of their own.
    """
    line = [each for each in sent if _is_continued(now, each)]
    if not line:
        return None
    latest = line[-1]
    common = count_common(now.messages, latest.messages) if now.head == latest.head else 0
    left = len(latest.messages) - common
    if left == 0:
        return latest
    for each in reversed(line[:-1]):
        length = len(each.messages)
        is_more = length > common or (length == common and left == 1)
        if is_more and now.head == each.head and count_common(now.messages, each.messages) == length:
            return each
    return latest


def _is_continued(now: SentPrefix, before: SentPrefix) -> bool:
    """Whether a request goes on from another one, maybe compacted or with a changed first message."""
    if not now.given or not before.given:
        return False
    mine, theirs = now.given[0], before.given[0]
    if mine.cached == theirs.cached or mine.without_reminders == theirs.without_reminders:
        return True
    return (now.tools == before.tools and now.system == before.system) or _has_later(now, before, 0)


def compare_with(projection: BodyProjection, now: SentPrefix, before: SentPrefix) -> Comparison:
    """Compare a request with the one before."""
    common = count_common(now.messages, before.messages)
    shared = _share_of(projection, now, before, common)
    if now.model != before.model:
        return Comparison(MissCause.MODEL, None, "", False, shared)
    if now.tools != before.tools:
        changed = sorted({*now.tools} ^ {*before.tools}, key=lambda tool: tool.name)
        names = [tool.name for tool in changed]
        is_ours = bool(names) and all(name in projection.our_tools for name in names)
        named = next((name for name in names if _NAME.fullmatch(name)), "")
        return Comparison(MissCause.TOOLS if changed else MissCause.TOOL_ORDER, None, named, is_ours, shared)
    if now.system != before.system:
        return Comparison(MissCause.SYSTEM, None, "", False, shared)
    if common == len(before.messages):
        return Comparison("", None, "", False, shared)
    given = count_common(now.given, before.given)
    place = projection.place_of_sent(common)
    if place < given or given == len(before.given):
        return Comparison(_cause_of_ours(now, before, place), place, "", True, shared)
    return Comparison(_cause_of_host(projection, now, before, given), given, "", False, shared)


def _has_later(now: SentPrefix, before: SentPrefix, place: int) -> bool:
    """Whether messages behind a different one are still in the request."""
    later = {each.cached for each in before.given[place + 1 :]}
    return any(each.cached in later for each in now.given[place + 1 :])


def _cause_of_ours(now: SentPrefix, before: SentPrefix, place: int) -> str:
    """A fold or a left-out result that is new explains a difference at its place and behind it."""
    new = [change for change, first in now.changes.items() if change not in before.changes and first <= place]
    if not new:
        return MissCause.OURS
    is_left_out = any(change.startswith("res_") for change in new)
    return MissCause.LEFT_OUT if is_left_out and not any(change.startswith("br_") for change in new) else MissCause.FOLD


def _cause_of_host(projection: BodyProjection, now: SentPrefix, before: SentPrefix, place: int) -> str:
    mine = now.given[place].without_reminders if place < len(now.given) else -1
    theirs = before.given[place].without_reminders
    if mine == theirs or mine is None or theirs is None:
        return MissCause.REMINDER
    if _is_summary(projection, range(place, len(now.given))):
        return MissCause.COMPACTED
    if _has_later(now, before, place):
        return MissCause.MESSAGE
    if len(now.given) > len(before.given):
        return MissCause.MESSAGE
    # Nothing behind the first message is left: what a compaction does. A user goes back to a later message.
    return MissCause.BACK if place else MissCause.COMPACTED


def _is_summary(projection: BodyProjection, places: Iterable[int]) -> bool:
    messages = items_of(projection.parsed.messages) or ()
    texts = (encode_message(block_members(messages[place]))[:_SEARCHED_BYTES] for place in list(places)[:2])
    return any(_SUMMARY.search(text) for text in texts)


def _share_of(projection: BodyProjection, now: SentPrefix, before: SentPrefix, common: int) -> float:
    """The share of a request that was in the one before, wherever it was there. The first messages are `common`."""
    rest, sent_weights = projection.details.rest_weight, projection.details.sent_weights
    head = _new_weight(now.tools, before.tools) + _new_weight(now.system, before.system)
    weights = [weight for weight in sent_weights[projection.place_of_sent(common) :] if weight]
    known = {each.cached for each in before.messages[common:]}
    new = zip(now.messages[common:], weights, strict=True)
    messages = sum(weight for each, weight in new if each.cached not in known)
    whole = rest + sum(sent_weights)
    return 1 - (min(rest, head) + messages) / whole if whole else 0.0


def _new_weight(now: Sequence[HeadPart], before: Sequence[HeadPart]) -> int:
    if now is before:
        return 0
    known = {part.hash for part in before}
    return sum(part.weight for part in now if part.hash not in known)
