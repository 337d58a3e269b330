"""The weight of our own tools in a request: of their definitions, calls and results. Pure.

The ledger compares with a run without our tools, so it subtracts this weight.
"""

from __future__ import annotations

from collections.abc import Collection

from contextfold.fold.messages.apis.facts import Fact, Members, block_members, items_of
from contextfold.fold.messages.own_tools import confirmed_names, definitions_in, name_in, verb_of
from contextfold.fold.messages.weight import encoded

# The members with a message's parts, and the members of a part with the name of its tool or the id of its call.
_PARTS = ("content", "tool_calls", "parts")
_WRAPPERS = ("function", "custom", "functionCall", "function_call", "functionResponse", "function_response")
_CALL_IDS = ("tool_use_id", "tool_call_id", "call_id")


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
        for call in fact.calls:
            if call.name:
                self._names[call.id] = call.name
        parts = _parts_of(message)
        if len(parts) == 1:
            # Without the call the whole message would not be there.
            self._parts.append((self._name_of(parts[0]), size))
            return
        for part in parts:
            name = self._name_of(part)
            if name:
                self._parts.append((name, _weight(part)))

    def total(self, ours: frozenset[str]) -> tuple[int, int]:
        """The weight of the calls and results of our tools, and their number."""
        weights = [weight for name, weight in self._parts if name in ours or is_marked(name)]
        return sum(weights), len(weights)

    def _name_of(self, part: Members) -> str:
        holder = part
        for key in _WRAPPERS:
            if key in part:
                holder = block_members(part[key])
                break
        name = holder.get("name")
        if isinstance(name, str) and "context_" in name:
            return name
        for key in _CALL_IDS:
            if key in part:
                call_id = part[key]
                return self._names.get(call_id, "") if isinstance(call_id, str) else ""
        return ""


def _parts_of(message: Members) -> list[Members]:
    """The parts that may be calls or results; the message itself if the API has one message for each."""
    for key in _CALL_IDS:
        if key in message:
            return [message]
    parts: list[Members] = []
    for key in _PARTS:
        value = message.get(key)
        if type(value) is str:
            # A text beside the calls is a part, too.
            parts += ({},) if value else ()
        elif value is not None:
            parts += [part if type(part) is dict else block_members(part) for part in items_of(value) or ()]
    return parts


def _weight(value: object) -> int:
    try:
        return len(encoded(value))
    except (TypeError, ValueError, RecursionError):
        return 0
