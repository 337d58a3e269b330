"""The weight of our own tools in a request: of their definitions, calls and results. Pure.

The ledger compares with a run without our tools, so it subtracts this weight.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from contextfold.fold.messages.apis.facts import Fact, Members, block_members, items_of
from contextfold.fold.messages.own_tools import TOOLS_MAX, confirmed_names, names_in, verb_of

# The members with a message's parts, and the members of a part with the name of its tool or the id of its call.
_PARTS = ("content", "tool_calls", "parts")
_WRAPPERS = ("function", "custom", "functionCall", "function_call", "functionResponse", "function_response")
_CALL_IDS = ("tool_use_id", "tool_call_id", "call_id")


def our_tool_names(tools: object) -> frozenset[str]:
    """The names of our tools in a request's member `tools`."""
    names = names_in(tools)
    return confirmed_names(names) | {name for name in names if is_marked(name)}


def is_marked(name: str) -> bool:
    """Whether the name alone shows that a tool is ours."""
    verb, needs_proof = verb_of(name)
    return bool(verb) and not needs_proof


def definitions_weight(tools: object, ours: frozenset[str]) -> int:
    weight = 0
    for tool in (items_of(tools) or ())[:TOOLS_MAX] if ours else ():
        members = block_members(tool)
        listed = members.get("functionDeclarations") or members.get("function_declarations") or (members,)
        for definition in (items_of(listed) or ())[:TOOLS_MAX]:
            if not ours.isdisjoint(names_in((definition,))):
                weight += _weight(definition)
    return weight


class OwnCallWeights:
    """The weights of calls whose name may be one of ours, and of their results, by name.

    Which names are ours is known only at the end, because the list of tools may come after the messages.
    """

    __slots__ = ("_by_name", "_names", "_parts")

    def __init__(self) -> None:
        self._by_name: Counter[str] = Counter()
        # The number of parts by name.
        self._parts: Counter[str] = Counter()
        # The names of calls by call id.
        self._names: dict[str, str] = {}

    def take(self, message: Members, fact: Fact) -> None:
        """Add a message. For a message without such calls and results only its ids are read."""
        candidates = [call for call in fact.calls if call.name]
        for call in candidates:
            self._names[call.id] = call.name
        if candidates or (self._names and any(result.id in self._names for result in fact.results)):
            for part in _parts_of(message):
                name = self._name_of(part)
                if name:
                    self._by_name[name] += _weight(part)
                    self._parts[name] += 1

    def total(self, ours: frozenset[str]) -> tuple[int, int]:
        """The weight of the calls and results of our tools, and the number of their parts."""
        names = [name for name in self._by_name if name in ours or is_marked(name)]
        return sum(self._by_name[name] for name in names), sum(self._parts[name] for name in names)

    def _name_of(self, part: Members) -> str:
        holder = next((block_members(part[key]) for key in _WRAPPERS if key in part), part)
        name = holder.get("name")
        if isinstance(name, str) and "context_" in name:
            return name
        call_id = next((part[key] for key in _CALL_IDS if isinstance(part.get(key), str)), None)
        return self._names.get(call_id, "") if call_id else ""


def _parts_of(message: Members) -> Iterator[Members]:
    """The parts that may be calls or results; the message itself if the API has one message for each."""
    if any(isinstance(message.get(key), str) for key in _CALL_IDS):
        yield message
        return
    for key in _PARTS:
        for part in items_of(message.get(key)) or ():
            yield block_members(part)


def _weight(value: object) -> int:
    try:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=block_members))
    except (TypeError, ValueError, RecursionError):
        return 0
