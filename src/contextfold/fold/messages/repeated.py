"""A cache of what was read from messages, because each request of a conversation repeats those of the one before.

A message is found without parsing it: the message before it says how long it was, and a hash of that many characters
says whether it is the same one. The hash cannot be predicted outside of this process. Only what a message's text alone
determines is cached, and no text of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contextfold.fold.messages.apis.facts import NO_MEMBERS, Fact

# At most this many messages are cached, each in less than a kilobyte.
MESSAGES_CACHED_MAX = 20_000

# The format, the length of the text, and its hash.
MessageKey = tuple[str, int, int]


class LocatedResults(NamedTuple):
    """The results of a message, with the positions in it."""

    # The hashes of their texts; empty for a result that is not only text.
    hashes: tuple[str, ...]
    # The positions of the contents that are only text, by the number of the result.
    spans: Mapping[int, tuple[int, int]]


class KnownMessage(NamedTuple):
    # In the cache, without arguments and contents.
    fact: Fact
    # The excess of the bytes of its files over their weight.
    excess: int
    # The number of its content blocks.
    blocks: int
    # The positions of its results; None if none of them has been left out yet.
    located: LocatedResults | None = None


# The key of the message that came last after each message, and what is known of it; None if it must always be parsed.
_following: dict[MessageKey, tuple[MessageKey, KnownMessage | None]] = {}


def forget_messages() -> None:
    _following.clear()


class RepeatedMessages:
    """Finds and adds the messages of one request, in order."""

    __slots__ = ("_before", "_chars_left", "key")

    def __init__(self, format: str, chars: int) -> None:
        # The characters that may still be hashed in vain. Else many short messages, each of which was once followed by
        # a long one, would take time that grows with the square of a request's length.
        self._chars_left = chars
        # The key of the last message that was found or added, and of the one before it.
        self.key: MessageKey = (format, 0, 0)
        self._before = self.key

    @property
    def length(self) -> int:
        """The length of the last message."""
        return self.key[1]

    def find(self, text: str, start: int) -> KnownMessage | None:
        """The message at `start`; None if it must be parsed."""
        key, known = _following.get(self.key, (self.key, None))
        _, length, text_hash = key
        if known is None or length > self._chars_left:
            return None
        if hash(text[start : start + length]) != text_hash:
            self._chars_left -= length
            return None
        self._before, self.key = self.key, key
        return known

    def add(self, text: str, start: int, end: int) -> None:
        """Add the message after the last one."""
        if len(_following) >= MESSAGES_CACHED_MAX:
            forget_messages()
        key = (self.key[0], end - start, hash(text[start:end]))
        _following[self.key] = (key, None)
        self._before, self.key = self.key, key

    def remember(self, known: KnownMessage) -> None:
        """Remember what was read from the last message. A message for which this is not called is always parsed."""
        fact = known.fact
        if fact.calls or fact.results:
            calls = tuple([call._replace(arguments=None, part=NO_MEMBERS) for call in fact.calls])
            results = tuple([result._replace(content=None, part=NO_MEMBERS) for result in fact.results])
            known = known._replace(fact=fact._replace(calls=calls, results=results))
        _following[self._before] = (self.key, known)
