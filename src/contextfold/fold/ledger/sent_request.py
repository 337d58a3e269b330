"""What one request to a model says about a session: its size, what folding took out of it, what the provider counted.

Owns the shapes alone. Knows no HTTP, no provider and no store: the sender of a request fills them in once it is
answered.
"""

from __future__ import annotations

from contextfold.common.dataclass import dataclass

# Providers cache nothing shorter; a prefix must have this many tokens before its being read says something.
CACHEABLE_TOKENS = 1_024
# An estimate of a part of a prompt is off by at most one in so many.
ESTIMATE_OFF_SHARE = 10


@dataclass(frozen=True, slots=True)
class Usage:
    """What the provider says it counted. No token is in two of these, but one-hour writes are also cache writes."""

    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cache_write_1h_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Everything the model was sent."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


def was_warm(usage: Usage | None, tokens: int, opening_tokens: int) -> bool:
    """Whether the provider had in its cache what only this conversation can have put there.

    `tokens` are those of the request and `opening_tokens` those in front of the model's first words, both estimated.
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
    """How many messages of a thread are known by now; None is the main thread."""

    branch_id: str | None
    messages: int


@dataclass(frozen=True, slots=True)
class Share:
    """An open thread's part of a request: its tokens, how many messages it has by now, the last of them as JSON text.

    The texts are oldest first, not scrubbed yet, and may be fewer than the messages.
    """

    branch_id: str | None
    tokens: int
    messages: int
    texts: tuple[str, ...] = ()
    # Whether the messages that are new in this request end with words of the user.
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """One answered request. `id` is unique among requests: one that is handed over twice is recorded once."""

    id: str
    api: str
    model: str
    tokens_before: int
    tokens_after: int
    turns_dropped: int
    first_changed: int | None
    reason: str
    folds: tuple[FoldSeen, ...]
    shares: tuple[Share, ...]
    usage: Usage | None
    # How often the session's host had compacted when it was made, if that is known.
    compactions: int | None = None
    # The estimated tokens of our tools' definitions, calls and results in the request as it came from the agent.
    our_tokens: int = 0
    # The estimated tokens of our calls in the response, and whether it contained no other call and no text.
    our_output_tokens: int = 0
    only_ours: bool = False
    # How many old results were replaced by a stub.
    results_dropped: int = 0
    # The estimated tokens in front of the first change that is new in this request, where `folds` does not say it.
    kept_tokens: int | None = None
    # How many content blocks are new since the conversation's last request: a provider looks back only so far for a
    # cached prefix. 0 where it is not known.
    new_blocks: int = 0
    # Identifies the conversation within the session; empty where only one is known.
    conversation: str = ""
    # The seconds since the conversation's last request, where its prompt's cache was taken to have lapsed; or 0.
    lapsed_s: int = 0
    # The estimated tokens that are sent in front of the model's first words. Other conversations may have the same.
    opening_tokens: int = 0
