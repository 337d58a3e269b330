"""The facts about a message that folding needs, for all APIs: calls, results, words of the user. Knows no format.

`Api` says what folding must know of an API; each module of `apis` has the knowledge of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

# "model" is a message of the model, "input" is input for it, "standing" is an instruction that is never left out.
Kind = Literal["model", "input", "standing"]
Members = Mapping[str, Any]
NO_MEMBERS: Members = MappingProxyType({})

# The id of a call without an id begins with this; the rest is the tool's name.
BY_NAME = "\0"


class Call(NamedTuple):
    # Empty if the provider runs the call in the same turn.
    id: str
    # The name of its tool, and whether it may be one of ours.
    name: str = ""
    may_be_ours: bool = False
    # "branch", "return", … for our own tools; else empty.
    verb: str = ""
    # Whether the name alone does not show that the tool is ours.
    needs_proof: bool = False
    # The arguments as they are in the request, and the part of the message that is the call.
    arguments: object = None
    part: Members = NO_MEMBERS
    # The tools that it calls itself, if it runs a script.
    called: tuple[str, ...] = ()

    @property
    def tools(self) -> str:
        """Its tool and those that this one calls, as one text."""
        return " ".join((self.name, *self.called))


class Result(NamedTuple):
    # The id of its call.
    id: str
    content: object
    failed: bool = False
    # The part of the message that is the result.
    part: Members = NO_MEMBERS


class Fact(NamedTuple):
    kind: Kind
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    # The reason why no range with this message is folded; empty if there is none.
    flaw: str = ""
    # Whether it has thinking that a provider may have bound to all earlier messages.
    thinks: bool = False
    # Whether its first call is signed; None if it has no calls or the API has no signatures. All calls of the running
    # turn are signed, or none is.
    is_signed: bool | None = None
    # Whether it has only thinking.
    only_thinks: bool = False
    # The parts that are thinking and may be left out of finished turns.
    thoughts: tuple[Members, ...] = ()
    # Whether it gives the model tools that it has searched for, which the model has as long as the turn is there.
    finds_tools: bool = False
    # Whether it belongs to the next message and is left out only together with it.
    leads: bool = False
    # Whether the user wrote a part of it, which stays.
    has_words: bool = False
    # Whether the user wrote it while the model worked, so that the tool loop continues after it.
    is_meanwhile: bool = False
    # Whether it is the provider's summary of everything before it. No fold reaches back beyond it.
    is_compaction: bool = False

    @property
    def lacks_ids(self) -> bool:
        """Whether it has calls or results without ids."""
        ids = [*(call.id for call in self.calls), *(result.id for result in self.results)]
        return any(each.startswith(BY_NAME) for each in ids)


class CallNumbers:
    """Makes ids for calls without ids and for their results: the tool's name and the number of its call.

    A history only grows, so the numbers do not change. The calls of one tool in one turn are answered in their order.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._unanswered: dict[str, list[str]] = {}
        self._is_over = False

    def number(self, fact: Fact) -> Fact:
        """The fact about the next message, with such ids."""
        if fact.kind != "model":
            self._is_over = True
        elif fact.calls and self._is_over:
            # A call without a result before the model's next turn never gets one.
            self._unanswered.clear()
            self._is_over = False
        if not fact.lacks_ids:
            return fact
        calls = tuple(call._replace(id=self._number_call(call.id)) for call in fact.calls)
        results = tuple(each._replace(id=self._number_result(each.id)) for each in fact.results)
        return fact._replace(calls=calls, results=results)

    def _number_call(self, call_id: str) -> str:
        if not call_id.startswith(BY_NAME):
            return call_id
        self._counts[call_id] = number = self._counts.get(call_id, 0) + 1
        unique_id = f"{call_id[len(BY_NAME) :]}#{number}"
        self._unanswered.setdefault(call_id, []).append(unique_id)
        return unique_id

    def _number_result(self, call_id: str) -> str:
        waiting = self._unanswered.get(call_id)
        return waiting.pop(0) if waiting else call_id


@dataclass(frozen=True, slots=True)
class Api:
    # The member of a request with the list of messages.
    list_name: str
    # Reads one message.
    read: Callable[[Members], Fact]
    # The names of the members that lead to the content of a result, from the message or from the part that is a result.
    content_path: Callable[[Members], tuple[str, ...]]
    # The names of the members that lead to the arguments of a call, from the part that is a call; and the member with
    # these parts, empty if the message itself is the call.
    arguments_path: Callable[[Members], tuple[str, ...]]
    calls_name: str
    # Whether a part of a message is a result; None if the message itself is the result.
    is_result: Callable[[Members], bool] | None = None
    # Whether the content of a result must be an object, which then has the stub as a member.
    has_object_results: bool = False
    # The member with the parts of a message.
    parts_name: str = "content"
    # Whether roles must alternate. Then a user's words inside a range that is left out are moved to the user's message
    # before it. In the other APIs words do not move.
    has_alternating_roles: bool = False
    # Whether the user wrote or attached a part; the second argument says whether the message has a result, too.
    is_words: Callable[[Members, bool], bool] = lambda part, beside_result: True
    is_thinking: Callable[[Members], bool] = lambda part: False
    # Whether a model may refuse thinking if the messages before it have changed. The arguments are the model's name and
    # the request's member `thinking`.
    binds_thinking: Callable[[str, object], bool] = lambda model, thinking: False
    # Whether a request names a history that the provider stores, so that its messages are only the newest.
    names_stored_history: Callable[[Members], bool] = lambda request: False
    # Whether a text is allowed instead of the list.
    takes_text: bool = False
    # Whether calls may lack ids, so that they are numbered.
    numbers_calls: bool = False


PROMPT = Fact("input", has_words=True)
WRITTEN_DURING_WORK = Fact("input", has_words=True, is_meanwhile=True)
INSTRUCTION = Fact("input")
STANDING = Fact("standing")
MODEL_TEXT = Fact("model")
UNKNOWN = Fact("input", flaw="unknown_content")

HOSTED = Call("")


def members_of(value: object) -> Members | None:
    """The members of a JSON object or of an object of an official client."""
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    dumped = dump() if callable(dump) else None
    return dumped if isinstance(dumped, dict) else None


def block_members(value: object) -> Members:
    """The members of a part of a message; none if it is not an object."""
    return value if isinstance(value, dict) else members_of(value) or {}


def items_of(value: object) -> Sequence[object] | None:
    return value if isinstance(value, list | tuple) else None


def read_answer(message: Members, call_id: object, content: object) -> Fact:
    """The fact for a message that is a single result."""
    if isinstance(call_id, str) and call_id:
        return Fact("input", results=(Result(call_id, content, part=message),))
    return UNKNOWN
