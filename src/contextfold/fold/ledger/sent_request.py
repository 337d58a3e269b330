"""The types for an answered request to a model: its size, the folds in it, the provider's usage.

Knows no HTTP, no provider and no store: the sender of a request makes these values after the response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contextfold.fold.messages.receipt import Receipt

# Providers cache no shorter prefix, so reading fewer tokens from the cache is not significant.
CACHEABLE_TOKENS = 1_024
# The error of an estimate of a part of a prompt is at most one in this many.
ESTIMATE_OFF_SHARE = 10
# If the provider's count is more than this many times the estimate, the estimate did not see a part of the request.
ESTIMATE_OFF_MAX = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """The provider's counts. No token is in two of them, except that one-hour writes are also cache writes."""

    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All tokens of the prompt."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


def was_warm(usage: Usage | None, tokens: int, opening_tokens: int) -> bool:
    """Whether the provider read a prefix from its cache that only this conversation can have written.

    `tokens` are those of the request, `opening_tokens` those before the model's first message; both are estimates.
    """
    if usage is None or not tokens:
        return False
    opening = opening_tokens * usage.prompt_tokens // tokens
    return usage.cache_read_tokens >= opening + max(CACHEABLE_TOKENS, opening // ESTIMATE_OFF_SHARE)


@dataclass(frozen=True, slots=True)
class FoldSeen:
    """A branch that was left out of a request: the tokens dropped, and the tokens that are sent before the cut."""

    branch_id: str
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """The number of known messages of a thread; a branch id of None means the main thread."""

    branch_id: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class Share:
    """An open thread's part of a request: its tokens, the number of its messages, and the last of them as JSON text.

    The texts are ordered from the oldest, are not yet scrubbed, and may be fewer than the messages.
    """

    branch_id: str | None
    tokens: int
    messages: int
    texts: tuple[str, ...] = ()
    # Whether the new messages of this request end with a prompt of the user.
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class RequestReport:
    """An answered request that is not yet recorded. `id` is unique, so a repeated report is recorded once."""

    # The name of the reporter, beside those of hosts.
    reporter: ClassVar[str] = "proxy"
    # The tokens by which the session certainly grows: the figures are first compared with the session's.
    tokens: ClassVar[int] = 0

    id: str
    api: str
    model: str
    receipt: Receipt
    usage: Usage | None = None
    shares: tuple[Share, ...] = ()
    # The number of the host's compactions at the time of the request, if it is known.
    compactions: int | None = None
    # The estimated tokens of our tools' definitions, calls and results in the agent's request.
    our_tokens: int = 0
    # The estimated tokens of our calls in the response, and whether it contained no other call and no text.
    our_output_tokens: int = 0
    only_ours: bool = False
    # The estimated tokens before the first new change of this request, if the receipt's folds do not have it.
    kept_tokens: int | None = None
    # The number of new content blocks since the conversation's last request, or 0 if it is not known. A provider
    # searches only a limited number of blocks for a cached prefix.
    new_blocks: int = 0
    # Identifies the conversation within the session; empty if only one is known.
    conversation: str = ""
    # The pause in seconds after which the prompt was still cached, although its cache was taken to have expired; or 0.
    warm_after_s: int = 0

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that may contain secrets: the model's name, then those of the shares."""
        return (self.model, *(text for share in self.shares for text in share.texts))
