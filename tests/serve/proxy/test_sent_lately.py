"""The bounds of what is kept of sent requests: one owner's requests never push out another's."""

from __future__ import annotations

import pytest

from contextfold.fold.messages.sent_prefix import Fingerprint, SentPrefix
from contextfold.serve.proxy import sent_lately
from contextfold.serve.proxy.sent_lately import SentConversations


def prefix(first: int, messages: int = 9) -> SentPrefix:
    given = tuple(Fingerprint(number, number, number) for number in range(first, first + messages))
    return SentPrefix("m", (), (), given, given)


@pytest.mark.parametrize(("limit", "most"), [("SENT_PARTS_MAX", 50), ("SENT_CONVERSATIONS_MAX", 5)])
def test_the_owner_that_has_most_gives_up_its_oldest_conversation(
    limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_lately, limit, most)
    sent = SentConversations()
    sent.add_prefix("bob", "b1", prefix(0), 0.0)
    for number in range(1, 20):
        sent.add_prefix("ann", f"a{number}", prefix(100 * number), float(number))
    assert [name for name, _ in sent.list_recent("ann", 9)] == ["a19", "a18", "a17", "a16"]
    assert sent.get("bob", "b1") is not None
    sent.add_prefix("bob", "b2", prefix(5_000), 20.0)
    assert [name for name, _ in sent.list_recent("ann", 9)] == ["a19", "a18", "a17"]
    assert [name for name, _ in sent.list_recent("bob", 9)] == ["b2", "b1"]


def test_a_conversation_that_is_too_long_gives_up_its_oldest_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_lately, "SENT_PARTS_MAX", 35)
    sent = SentConversations()
    for number in range(3):
        sent.add_prefix("ann", "a", prefix(0, 9 + number), float(number))
    kept = sent.get("ann", "a")
    assert kept is not None
    # What is given up is still in a later prefix, so nothing is unknown.
    assert ([at for _, at in kept.prefixes], kept.unknown_at("m")) == ([0.0, 1.0, 2.0], 0.0)
    sent.add_prefix("ann", "a", prefix(500), 3.0)
    assert ([at for _, at in kept.prefixes], kept.unknown_at("m")) == ([1.0, 2.0, 3.0], 0.0)
    sent.add_prefix("ann", "a", prefix(900, 20), 4.0)
    assert ([at for _, at in kept.prefixes], kept.unknown_at("m")) == ([3.0, 4.0], 2.0)
    sent.add_prefix("ann", "a", prefix(2_000, 40), 5.0)
    assert sent.get("ann", "a") is None
