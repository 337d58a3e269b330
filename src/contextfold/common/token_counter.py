"""Estimates the number of tokens in a text from its bytes. Uses no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Counter = Callable[[str], int]

BYTES_PER_TOKEN = 4
BYTES_PER_DENSE_TOKEN = 3


def tokens_of(byte_count: int) -> int:
    """The v0 estimate: one token for every four UTF-8 bytes, rounded up."""
    return -(-byte_count // BYTES_PER_TOKEN)


# The counters of folding by the name in the setting. `dense` is for code, and for scripts that need more tokens.
COUNTERS: Mapping[str, Counter] = {
    "v0": lambda text: tokens_of(len(text.encode("utf-8"))),
    "dense": lambda text: -(-len(text.encode("utf-8")) // BYTES_PER_DENSE_TOKEN),
}
