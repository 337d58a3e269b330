"""Makes a page of a trajectory within a token budget. A long entry is split into parts. Knows no store."""

from __future__ import annotations

from bisect import bisect_right

from contextfold.common.canonical import encode
from contextfold.common.token_counter import Counter
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.tool_results import Shape, entry_result, expanded

# A token has at most this many characters, because a character has at least one byte.
CHARACTERS_PER_TOKEN_MAX = 4
LONGEST_CURSOR = "9" * 15 + "." + "9" * 15


class TrajectoryPage:
    """Adds entries in order until one does not fit. The complete result is within the budget."""

    def __init__(self, branch_id: str, budget_tokens: int, count: Counter) -> None:
        self._branch_id, self._budget_tokens, self._count = branch_id, budget_tokens, count
        self._entries: list[Shape] = []
        self._left = budget_tokens - count(encode(expanded(branch_id, [], budget_tokens, LONGEST_CURSOR)))

    @property
    def characters(self) -> int:
        """The largest number of further characters that can fit."""
        return max(1, self._left * CHARACTERS_PER_TOKEN_MAX)

    def take(self, entry: ArchiveEntry, offset: int) -> int | None:
        """Add an entry from an offset on. None if all of it fitted, otherwise the offset of the rest."""
        rest = entry.text[offset:]
        length = self._fitting(entry, rest, offset)
        if length is None:
            return offset
        part = _entry(entry, rest[:length], offset)
        self._entries.append(part)
        self._left -= self._cost(part)
        return None if length == len(rest) else offset + length

    def result(self, next_cursor: str | None) -> Shape:
        return expanded(self._branch_id, self._entries, self._budget_tokens - self._left, next_cursor)

    def _fitting(self, entry: ArchiveEntry, rest: str, offset: int) -> int | None:
        """The number of characters of the rest that fit; None if none do."""

        def cost_of(length: int) -> int:
            return self._cost(_entry(entry, rest[:length], offset))

        most = min(len(rest), max(0, self._left) * CHARACTERS_PER_TOKEN_MAX)
        if cost_of(1) > self._left:
            return None
        # A complete entry may take less than one without its last character, which is marked as a part.
        return most if cost_of(most) <= self._left else bisect_right(range(1, most + 1), self._left, key=cost_of)

    def _cost(self, entry: Shape) -> int:
        return self._count(encode(entry) + ",")


def _entry(entry: ArchiveEntry, text: str, offset: int) -> Shape:
    return entry_result(entry, text, is_part=offset + len(text) < len(entry.text) or offset > 0)
