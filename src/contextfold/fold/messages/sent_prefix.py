"""What a provider's cache holds of a conversation: the prefixes that were sent, as fingerprints. Pure.

A prompt's cached prefix is lost after a pause, but also with another model, a changed system prompt, list of tools or
early message. Behind the first difference to everything that was sent lately there is nothing warm to lose, so old
results can be left out there at no cost.

A fingerprint is a hash, and holds in one process only. Clients move marks for the cache from message to message, and
write a text as a block to mark it; neither is part of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from contextfold.fold.messages.facts import Members, block_members, items_of
from contextfold.fold.messages.own_tools import name_of
from contextfold.fold.messages.request import BodyProjection
from contextfold.fold.messages.weight import MARK, encode_json

# The members of a request, beside its messages, that come before them in the prompt. Others may count, too; what is not
# here is taken to keep the cache.
_HEAD = ("system", "instructions", "systemInstruction", "system_instruction", "cachedContent")
# So many messages are compared at once.
STEP = 32
# Claude Code's first block of the system prompt is for the bill and changes all the time. The provider removes it.
_NOT_CACHED = "x-anthropic-billing-header"
_ONE_TEXT = re.compile(rb'(.*"content":)\[\{"type":"text","text":("(?:[^"\\]++|\\.)*+")\}\](.*)', re.DOTALL)
# The markup of the texts that hosts add to messages, to remind the model of something.
_REMINDER_TAGS = (b"system-reminder", b"system_reminder")
# A line feed, as JSON writes it.
_LINE_FEED = rb"\n"
# What is left of a block, and of a message, when the reminder in it is gone.
_EMPTY_BLOCK = re.compile(rb',?\{"type":"text","text":""\}')
_EMPTY_MESSAGE = re.compile(rb'\{"role":"[a-z]+","content":(?:\[\]|"")\}')


class Fingerprint(NamedTuple):
    """Of a message: equal where a provider's cache takes the messages for equal."""

    # Of the message as the client wrote it.
    written: int
    # Of what the provider's cache compares.
    cached: int
    # Of that without the host's reminders; None if there is nothing else in the message.
    without_reminders: int | None


class HeadPart(NamedTuple):
    """A tool or a block of the system prompt."""

    # Empty for a block.
    name: str
    hash: int
    weight: int


class SentPrefix(NamedTuple):
    model: str
    tools: tuple[HeadPart, ...]
    system: tuple[HeadPart, ...]
    # The messages as they are sent, and as the client wrote them; the same object if nothing is left out.
    messages: tuple[Fingerprint, ...]
    given: tuple[Fingerprint, ...]
    # The folds, left-out results and removed thinking in it: the index of the first original message that each
    # changes, by its id.
    changes: Mapping[str, int] = {}
    # The hash of everything but the messages, as it is written.
    head_hash: int = 0

    @property
    def head(self) -> tuple[object, ...]:
        """What comes before the messages."""
        return self.model, self.tools, self.system


def read_prefix(
    projection: BodyProjection, known: Mapping[int, Fingerprint] | None = None, before: SentPrefix | None = None
) -> SentPrefix:
    """The prefix that a request leaves in the cache.

    Most of it was in the request before. What is `known` of messages, by the hash of how they are written, and the head
    of a prefix `before` are not computed again.
    """
    known = known or {}
    details, request = projection.details, projection.parsed.members
    given = _read_messages(details.hashes, items_of(projection.parsed.messages) or (), known)
    messages = given
    if projection.changed:
        as_written = {each.written: each for each in given}
        messages = _read_messages(details.sent_hashes, projection.messages, {**known, **as_written})
    if before is not None and before.head_hash == projection.head_hash:
        tools, system = before.tools, before.system
    else:
        tools, system = _read_tools(request), _read_system(request)
    # What the user said in a fold goes to the message before it.
    changes = {fold.branch_id: max(0, fold.first - 1) for fold in projection.receipt.folds}
    if projection.changed:
        changes |= {part.decision.result_id: part.place for part in projection.left_out_parts}
    # Behind a fold, a model's finished thinking is no longer valid. It goes when the user has spoken again.
    rewrites = details.plan.rewrites
    changes |= {f"thinking {place}": place for place in rewrites if rewrites[place].without_thinking}
    return SentPrefix(
        projection.model,
        tools,
        system,
        messages,
        given,
        changes,
        projection.head_hash,
    )


def count_warm_messages(now: SentPrefix, held: Iterable[SentPrefix]) -> int:
    """The number of a request's first messages that the cache holds, if it holds these prefixes."""
    return max((count_common(now.messages, each.messages) for each in held if each.head == now.head), default=0)


def find_other_models(projection: BodyProjection, now: SentPrefix, held: Iterable[SentPrefix], place: int) -> set[str]:
    """The other models whose caches hold an original message of this request, and all in front of it."""
    others = [each for each in held if each.model != now.model]
    return {
        each.model for each in others if projection.place_of_sent(count_common(now.messages, each.messages)) > place
    }


def count_common(now: tuple[Fingerprint, ...], before: tuple[Fingerprint, ...]) -> int:
    """The number of the first messages that are equal."""
    count = 0
    while count + STEP <= len(before) and now[count : count + STEP] == before[count : count + STEP]:
        count += STEP
    for mine, theirs in zip(now[count:], before[count:], strict=False):
        if mine.cached != theirs.cached:
            break
        count += 1
    return count


def _read_messages(
    hashes: Sequence[int], messages: Sequence[object], known: Mapping[int, Fingerprint]
) -> tuple[Fingerprint, ...]:
    found = list(map(known.get, hashes))
    return tuple(
        each or make_fingerprint(hashes[place], encode_json(messages[place])) for place, each in enumerate(found)
    )


def _read_tools(request: Members) -> tuple[HeadPart, ...]:
    tools = [tool for tool in items_of(request.get("tools")) or () if not block_members(tool).get("defer_loading")]
    return tuple(_make_part(str(name_of(block_members(tool)) or ""), tool) for tool in tools)


def _read_system(request: Members) -> tuple[HeadPart, ...]:
    parts: list[HeadPart] = []
    for value in (request[name] for name in _HEAD if request.get(name) is not None):
        # A text is the same prompt as one block with it.
        blocks = items_of([{"type": "text", "text": value}] if isinstance(value, str) else value)
        listed = [value] if blocks is None else blocks
        texts = [block for block in listed if not str(block_members(block).get("text")).startswith(_NOT_CACHED)]
        parts += [_make_part("", block) for block in texts]
    return tuple(parts)


def _make_part(name: str, value: object) -> HeadPart:
    encoded = MARK.sub(b"", encode_json(value))
    return HeadPart(name, hash(encoded), len(encoded))


# ---- the fingerprint of a message


def make_fingerprint(written: int, encoded: bytes) -> Fingerprint:
    """The fingerprint of a message whose JSON is given, as `weight.encode_json` writes it."""
    unmarked = MARK.sub(b"", encoded)
    cached = hash(_join_text(unmarked))
    rest = unmarked
    for tag in _REMINDER_TAGS:
        rest = _remove_elements(rest, b"<%s>" % tag, b"</%s>" % tag)
    if len(rest) == len(unmarked):
        return Fingerprint(written, cached, cached)
    rest = _EMPTY_BLOCK.sub(b"", rest).replace(b"[,", b"[")
    return Fingerprint(written, cached, None if _EMPTY_MESSAGE.fullmatch(rest) else hash(_join_text(rest)))


def _remove_elements(encoded: bytes, opening: bytes, closing: bytes) -> bytes:
    """A message without the texts between two tags, the tags, and the line feeds around them.

    Anyone can write such tags into a tool's result, so the time must stay linear: a regular expression would search the
    whole rest again for each opening without an end.
    """
    kept: list[bytes] = []
    at = 0
    while (begin := encoded.find(opening, at)) >= 0 and (end := encoded.find(closing, begin)) >= 0:
        while encoded.endswith(_LINE_FEED, at, begin):
            begin -= len(_LINE_FEED)
        kept.append(encoded[at:begin])
        at = end + len(closing)
        while encoded.startswith(_LINE_FEED, at):
            at += len(_LINE_FEED)
    return b"".join([*kept, encoded[at:]])


def _join_text(encoded: bytes) -> bytes:
    """A message whose content is one block of text, with the text as its content."""
    one = _ONE_TEXT.fullmatch(encoded)
    return one[1] + one[2] + one[3] if one else encoded
