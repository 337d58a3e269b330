"""What was sent lately of each conversation, in memory, to say what the provider's cache holds.

The memory is bounded for all owners together. The owner that has most gives something up first, the oldest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from itertools import islice
from operator import attrgetter

from contextfold.fold.messages.prefix_miss import find_before
from contextfold.fold.messages.sent_prefix import Fingerprint, SentPrefix, count_common

# Of a conversation so many prefixes of each of so many models are compared: hosts ask other things in between.
SENT_PREFIXES_MAX = 8
SENT_MODELS_MAX = 4
# Stored times are rounded up to seconds.
STORED_TIME_STEP_S = 1.0
# The limits for all owners together: conversations, and the messages, tools and other parts in their prefixes.
SENT_CONVERSATIONS_MAX = 1_000
SENT_PARTS_MAX = 500_000


class SentLately:
    """What was sent lately of one conversation, and when."""

    def __init__(self) -> None:
        self.prefixes: list[tuple[SentPrefix, float]] = []
        # The fingerprints of the messages in the latest prefix, by the hash of how they were written.
        self.known: Mapping[int, Fingerprint] = {}
        # When something was last sent that was not read; and to a model, something that is not in a prefix any more.
        self.unread_at = 0.0
        self._forgotten_at: dict[str, float] = {}
        # False after a usage has shown that the cache held more than these prefixes say.
        self.is_trusted = True
        # Whether the provider has said that it read or wrote a cache.
        self.has_cache = False

    @property
    def latest_at(self) -> float:
        return max((at for _, at in self.prefixes), default=self.unread_at)

    def is_behind(self, stored_at: float | None) -> bool:
        """Whether another daemon has sent something later, according to the stored time of the last request."""
        return stored_at is not None and stored_at > self.latest_at + STORED_TIME_STEP_S

    @property
    def latest(self) -> SentPrefix | None:
        return self.prefixes[-1][0] if self.prefixes else None

    @property
    def size(self) -> int:
        return sum(map(_size_of, (prefix for prefix, _ in self.prefixes)))

    def last_at(self, model: str, *, has_tools: bool) -> float | None:
        """When the last request to a model, with tools or without, was answered, if it may be known."""
        same = (at for prefix, at in self.prefixes if prefix.model == model and bool(prefix.tools) == has_tools)
        return max(*same, self.unknown_at(model), 0.0) or None

    def unknown_at(self, model: str) -> float:
        """When something was last sent to a model that these prefixes do not say; 0 if they say all."""
        return max(self.unread_at, self._forgotten_at.get(model, 0.0))

    def note_unread(self, at: float) -> None:
        self.unread_at = max(self.unread_at, at)

    def add_prefix(self, prefix: SentPrefix, at: float) -> None:
        if prefix is not self.latest:
            messages = prefix.given if prefix.messages is prefix.given else (*prefix.given, *prefix.messages)
            self.known = dict(zip(map(attrgetter("written"), messages), messages, strict=True))
        # A comparison in a thread may read the list meanwhile, so it is never changed.
        self.prefixes = [*(each for each in self.prefixes if each[0] is not prefix), (prefix, at)]
        same = [place for place, (each, _) in enumerate(self.prefixes) if each.model == prefix.model]
        if len(same) > SENT_PREFIXES_MAX:
            self._forget(same[0])
        models = dict.fromkeys(each.model for each, _ in reversed(self.prefixes))
        if len(models) > SENT_MODELS_MAX:
            self._forget_model([*models][-1])

    def forget_oldest(self) -> None:
        self._forget(0)

    def find_before(self, prefix: SentPrefix) -> tuple[SentPrefix, float] | None:
        """The request before, and when it was answered."""
        prefixes = self.prefixes
        before = find_before(prefix, [each for each, _ in prefixes])
        return next(((each, at) for each, at in prefixes if each is before), None)

    def _forget(self, place: int) -> None:
        gone, at = self.prefixes[place]
        self.prefixes = [each for each in self.prefixes if each[0] is not gone]
        same = (each.messages for each, _ in self.prefixes if each.head == gone.head)
        if not any(count_common(gone.messages, each) == len(gone.messages) for each in same):
            self._forgotten_at[gone.model] = max(at, self._forgotten_at.get(gone.model, 0.0))

    def _forget_model(self, model: str) -> None:
        self.note_unread(max(self.last_at(model, has_tools=each) or 0.0 for each in (False, True)))
        self.prefixes = [each for each in self.prefixes if each[0].model != model]
        self._forgotten_at.pop(model, None)


class SentConversations:
    """What was sent lately of the conversations of each owner."""

    def __init__(self) -> None:
        # The latest conversation of an owner is the last one.
        self._by_owner: dict[str, OrderedDict[str, SentLately]] = {}
        self._sizes: Counter[str] = Counter()

    def get(self, owner: str, conversation: str) -> SentLately | None:
        return self._by_owner[owner].get(conversation) if owner in self._by_owner else None

    def list_recent(self, owner: str, limit: int) -> list[tuple[str, SentLately]]:
        """An owner's conversations, the latest first."""
        return list(islice(reversed(self._by_owner[owner].items()), limit)) if owner in self._by_owner else []

    def open(self, owner: str, conversation: str) -> SentLately:
        """What was sent of a conversation, which is the latest of its owner now."""
        conversations = self._by_owner.setdefault(owner, OrderedDict())
        sent = conversations.setdefault(conversation, SentLately())
        conversations.move_to_end(conversation)
        while sum(map(len, self._by_owner.values())) > SENT_CONVERSATIONS_MAX:
            self._forget_oldest(max(self._by_owner, key=lambda each: len(self._by_owner[each])))
        return sent

    def add_prefix(self, owner: str, conversation: str, prefix: SentPrefix, at: float) -> None:
        sent = self.open(owner, conversation)
        before = sent.size
        sent.add_prefix(prefix, at)
        self._sizes[owner] += sent.size - before
        while self._sizes.total() > SENT_PARTS_MAX:
            ((largest, _),) = self._sizes.most_common(1)
            self._forget_part(largest)

    def _forget_part(self, owner: str) -> None:
        """Give up the oldest conversation of an owner; of its only one, the oldest prefix."""
        (oldest, *others) = self._by_owner[owner].values()
        if others or len(oldest.prefixes) == 1:
            self._forget_oldest(owner)
            return
        before = oldest.size
        oldest.forget_oldest()
        self._sizes[owner] += oldest.size - before

    def _forget_oldest(self, owner: str) -> None:
        _, sent = self._by_owner[owner].popitem(last=False)
        self._sizes[owner] -= sent.size
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._sizes[owner]


def _size_of(prefix: SentPrefix) -> int:
    messages = len(prefix.messages) if prefix.messages is not prefix.given else 0
    return 1 + len(prefix.tools) + len(prefix.system) + len(prefix.given) + messages + len(prefix.changes)
