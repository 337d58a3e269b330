"""What the ledger must know of a request beside its receipt: our share of it, and how much of it is new.

A conversation's history only grows, so of each request only the new messages are read. Knows no wire and no session.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from contextfold.fold.messages import BodyProjection, Format
from contextfold.fold.messages.own_share import OwnShare, definitions_tokens

CONVERSATIONS_MAX = 1_000


class LedgerFacts(NamedTuple):
    our_tokens: int = 0
    new_blocks: int = 0


class LedgerFactsReader:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], OwnShare] = {}

    def facts(self, owner: str, conversation: str, format: Format, projection: BodyProjection) -> LedgerFacts:
        """Nothing of a request that was not read. Without a conversation, what is new is not known."""
        count = projection.receipt.messages_before
        if not count:
            return LedgerFacts()
        known = self._known.pop((owner, conversation), None) if conversation else None
        if known is not None and known.messages > count:
            # The host compacted the history.
            known = None
        share = known or OwnShare(format)
        before = share.blocks
        for place in range(share.messages, count):
            share.take(json.loads(projection.original(place)))
        if conversation:
            self._known[owner, conversation] = share
            while len(self._known) > CONVERSATIONS_MAX:
                del self._known[next(iter(self._known))]
        ours = share.tokens + definitions_tokens(projection.tools)
        return LedgerFacts(ours, share.blocks - before if known else 0)
