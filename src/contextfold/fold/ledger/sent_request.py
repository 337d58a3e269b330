"""What one request to a model tells about a session: its size, what folding took out of it, what the provider counted.

Owns the shapes alone. Knows no HTTP, no provider and no store: whoever sends a request fills them in once it is
answered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What the provider says it counted. No token is in two of these: input from or to a cache is in the cache's."""

    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Everything the model was sent."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


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


@dataclass(frozen=True, slots=True)
class Sent:
    """One answered request. `id` is unique among requests: the same one told twice is written once."""

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
    compactions: int | None = None  # that its session had seen when it was made, if that is known
