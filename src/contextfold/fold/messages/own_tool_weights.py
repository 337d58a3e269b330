"""The weight of our own tools in a request: of their definitions, calls and results. Pure.

The ledger compares with a run without our tools, so it subtracts this weight.
"""

from __future__ import annotations

from collections.abc import Collection

from contextfold.fold.messages.apis.facts import Fact, Members, block_members
from contextfold.fold.messages.own_tools import confirmed_names, definitions_in, name_in, verb_of
from contextfold.fold.messages.weight import encoded

# The members with a message's parts.
_PARTS = ("content", "tool_calls", "parts")


def our_tool_names(names: Collection[str]) -> frozenset[str]:
    """Those names of a request's tools that are ours."""
    return confirmed_names(names) | {name for name in names if is_marked(name)}


def is_marked(name: str) -> bool:
    """Whether the name alone shows that a tool is ours."""
    verb, needs_proof = verb_of(name)
    return bool(verb) and not needs_proof


def definition_weights(tool: object, size: int) -> list[tuple[str, int]]:
    """The definitions in an element of `tools`, which has `size` bytes, that may be ours: their names and weights."""
    members = block_members(tool)
    weights: list[tuple[str, int]] = []
    for definition in definitions_in(members):
        name = name_in(block_members(definition))
        if isinstance(name, str) and "context_" in name:
            weights.append((name, size if definition is members else _weight(definition)))
    return weights


class OwnCallWeights:
    """The weights of calls whose name may be one of ours, and of their results, by name.

    Which names are ours is known only at the end, because the list of tools may come after the messages.
    """

    __slots__ = ("_names", "_parts")

    def __init__(self) -> None:
        # The name and the weight of each call and each result.
        self._parts: list[tuple[str, int]] = []
        # The names of calls by call id.
        self._names: dict[str, str] = {}

    def take(self, message: Members, fact: Fact, size: int) -> None:
        """Add a message of `size` bytes with such a call or with its result."""
        self._names.update((call.id, call.name) for call in fact.calls if call.may_be_ours)
        own = [(call.name, call.part) for call in fact.calls if call.may_be_ours]
        own += [(name, each.part) for each in fact.results if (name := self._names.get(each.id))]
        # Without its only part the whole message would not be there.
        is_only = len(own) == 1 and (own[0][1] is message or _part_count(message) == 1)
        self._parts += [(name, size if is_only else _weight(part)) for name, part in own]

    def total(self, ours: frozenset[str]) -> tuple[int, int]:
        """The weight of the calls and results of our tools, and their number."""
        weights = [weight for name, weight in self._parts if name in ours or is_marked(name)]
        return sum(weights), len(weights)


def _part_count(message: Members) -> int:
    """The number of a message's parts. A text beside calls is a part, too."""
    values = [message.get(name) for name in _PARTS]
    return sum(len(value) if isinstance(value, list) else 1 for value in values if value)


def _weight(value: object) -> int:
    try:
        return len(encoded(value))
    except (TypeError, ValueError, RecursionError):
        return 0
