"""Fingerprints of messages: equal where a provider's cache takes the messages for equal. Pure.

A fingerprint is a hash, and holds in one process only. Clients move marks for the cache from message to message, and
write a text as a block to mark it; neither is part of the prompt.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MARK = re.compile(rb',"(?:cache_control|prompt_cache_breakpoint)":\{[^{}]*\}')
_ONE_TEXT = re.compile(rb'(.*"content":)\[\{"type":"text","text":("(?:[^"\\]++|\\.)*+")\}\](.*)', re.DOTALL)
# The markup of the texts that hosts add to messages, to remind the model of something.
_REMINDER_TAGS = (b"system-reminder", b"system_reminder")
# A line feed, as JSON writes it.
_LINE_FEED = rb"\n"
# What is left of a block, and of a message, when the reminder in it is gone.
_EMPTY_BLOCK = re.compile(rb',?\{"type":"text","text":""\}')
_EMPTY_MESSAGE = re.compile(rb'\{"role":"[a-z]+","content":(?:\[\]|"")\}')


class Fingerprint(NamedTuple):
    # Of the message as the client wrote it.
    written: int
    # Of what the provider's cache compares.
    cached: int
    # Of that without the host's reminders; None if there is nothing else in the message.
    without_reminders: int | None


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
