"""Folds the JSON of a whole request: parses it, calls `project`, and encodes it again if something was folded.

A request in which nothing folds is sent as the bytes that came. One that is folded is written in one form, whatever the
client's: no spaces, no escape that is not necessary, the shortest spelling of a number. The same messages always give
the same bytes, so everything before the first change is the same from one request of a conversation to the next. When a
conversation folds for the first time, its form changes once. That costs nothing: providers cache what a request says,
not the bytes of its JSON.

A request that cannot be parsed safely and exactly is sent as the bytes that came, too, and the receipt has the reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextfold.common.canonical import DEPTH_MAX
from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.apis import Format, api_of
from contextfold.fold.messages.by_hand import Work, find_last_call, hash_call
from contextfold.fold.messages.cache_life import find_cache_life_s
from contextfold.fold.messages.cold_results import NOTHING_REMEMBERED, Remembered
from contextfold.fold.messages.facts import Api, Members, block_members
from contextfold.fold.messages.own_tools import is_marked, list_definitions, remembered_id, select_our_tools
from contextfold.fold.messages.plan import list_words
from contextfold.fold.messages.projection import NO_MESSAGES, Projection, make_empty_projection, project_and_encode
from contextfold.fold.messages.walk import Fate
from contextfold.fold.messages.weight import encode_json, encode_message, weigh_own_calls, weigh_own_definitions

MESSAGES_MAX = 100_000
# A request has at most this many values and names of members, which limits the memory of a parsed request.
VALUES_MAX = 2_000_000
# A longer number takes long to convert, and no client needs it.
NUMBER_MAX_CHARS = 1_000

# The reasons why a whole request is forwarded unchanged: it is not a JSON object in UTF-8, or has a number that could
# not be written again; a member is repeated, and only the provider knows which value counts; it is nested too deeply;
# it has too many values; it has no list of messages; the provider stores the history.
NOT_JSON = "not_json"
REPEATED_MEMBERS = "repeated_members"
TOO_DEEP = "too_deep"
TOO_MANY_VALUES = "too_many_values"
KEPT_ELSEWHERE = "kept_elsewhere"
REQUEST_REASONS = (NOT_JSON, REPEATED_MEMBERS, TOO_DEEP, TOO_MANY_VALUES, NO_MESSAGES, KEPT_ELSEWHERE)

_VALUE = re.compile(rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"?|[\[{]|[^\s"\[\]{},:]++')


class _UnreadableRequest(ValueError):
    """The request is forwarded unchanged; the message is the reason."""


# ---- parsing


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    body: bytes
    format: Format
    # Empty if the body could not be parsed.
    members: Members
    # Why the messages are not read; else empty.
    reason: str = ""

    @property
    def messages(self) -> Any:  # noqa: ANN401 - a list of any JSON, unless there is a reason
        return self.members.get(api_of(self.format).list_name)


def parse_request(body: bytes, format: Format) -> ParsedRequest:
    """Parse a request. It never raises an error."""
    api = api_of(format)
    try:
        _check_value_count(body)
        members = _DECODER.decode(body.decode("utf-8"))
    except _UnreadableRequest as problem:
        return ParsedRequest(body, format, {}, str(problem))
    except ValueError:
        return ParsedRequest(body, format, {}, NOT_JSON)
    except RecursionError:
        return ParsedRequest(body, format, {}, TOO_DEEP)
    if not isinstance(members, dict):
        return ParsedRequest(body, format, {}, NOT_JSON)
    if _is_too_deep(members, api):
        return ParsedRequest(body, format, {}, TOO_DEEP)
    return ParsedRequest(body, format, members, _find_reason(members, api))


def _find_reason(members: Members, api: Api) -> str:
    """Why the messages of a request are not read, or an empty text."""
    if api.names_stored_history(members):
        return KEPT_ELSEWHERE
    messages = members.get(api.list_name)
    if isinstance(messages, str) and api.takes_text:
        return ""
    if not isinstance(messages, list):
        return NO_MESSAGES
    return TOO_MANY_VALUES if len(messages) > MESSAGES_MAX else ""


def _check_value_count(body: bytes) -> None:
    # A value with its separator has at least two bytes.
    if len(body) <= 2 * VALUES_MAX:
        return
    # Each value follows one of these characters or is the outermost. Characters inside of strings are counted, too.
    if 1 + body.count(b"[") + body.count(b",") + 2 * body.count(b":") <= VALUES_MAX:
        return
    for number, _ in enumerate(_VALUE.finditer(body), 1):
        if number > VALUES_MAX:
            raise _UnreadableRequest(TOO_MANY_VALUES)


def _is_too_deep(members: Members, api: Api) -> bool:
    """Whether a message, a tool or another member is nested too deeply.

    The parser has a limit of its own, but it depends on the interpreter.
    """
    lists = (api.list_name, "tools")
    level: list[Any] = [
        value if name in lists and isinstance(value, list) else [value] for name, value in members.items()
    ]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _parse_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _UnreadableRequest(REPEATED_MEMBERS)
    return members


def _parse_integer(digits: str) -> int:
    if len(digits) > NUMBER_MAX_CHARS:
        raise _UnreadableRequest(NOT_JSON)
    return int(digits)


def _parse_float(digits: str) -> float:
    number = float(digits)
    if len(digits) > NUMBER_MAX_CHARS or not math.isfinite(number):
        raise _UnreadableRequest(NOT_JSON)
    return number


def _refuse_constant(name: str) -> object:
    """`NaN` and `Infinity` are not JSON."""
    raise _UnreadableRequest(NOT_JSON)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_parse_object,
    parse_int=_parse_integer,
    parse_float=_parse_float,
    parse_constant=_refuse_constant,
)


# ---- folding


@dataclass(frozen=True, slots=True)
class BodyProjection(Projection):
    """A request: its messages, what was left out of them, and the body to send. `project_request` makes it."""

    # The body to send; the original object, if nothing was folded.
    body: bytes
    # The original request.
    parsed: ParsedRequest
    model: str
    # The names of our tools in the request's list of tools.
    our_tools: frozenset[str]
    # The tokens of our tools' definitions, calls and results in the original request.
    our_tokens: int
    # The number of content blocks in the original messages, without our calls and results.
    blocks: int
    # The hash of the JSON of everything but the messages.
    head_hash: int = 0

    def encode_original(self, place: int) -> str:
        """The JSON text of an original message."""
        return encode_json(self.parsed.messages[place]).decode("utf-8")

    @property
    def host_tokens(self) -> int:
        """The tokens of the host's own prompt and tools: everything but the conversation's messages."""
        details = self.details
        staying = (n for n, fate in enumerate(details.walk.fates) if fate is Fate.STAYS)
        return tokens_of(details.rest_weight + sum(details.sent_weights[place] for place in staying))

    def removable_tokens(self, branch_id: str | None = None) -> int:
        """The tokens that a return from an open branch would take from the next request; without one, a fold."""
        walk = self.details.walk
        starts = [branch.start for branch in walk.open if branch.branch_id == branch_id]
        return self._weigh(walk.list_removable(starts[0] if starts else walk.work_start))

    def find_work(self) -> Work | None:
        """What a fold by hand would leave out of the next request; None if it is not possible."""
        walk, facts = self.details.walk, self.details.facts
        found = find_last_call(facts, walk)
        removable = [place for place in walk.list_removable(walk.work_start) if place < walk.turns[-1]] if found else []
        if found is None or not removable:
            return None
        call, text = found
        text_tokens = tokens_of(len(encode_json(text)))
        tokens, may_wait = self._weigh(removable) + text_tokens, self.details.binds_thinking
        return Work(remembered_id(call.id), hash_call(call), walk.count + 1, text, text_tokens, tokens, may_wait)

    def _weigh(self, places: Sequence[int]) -> int:
        """The tokens of messages without the user's words."""
        walk, weights = self.details.walk, self.details.sent_weights
        weight = 0
        for place in places:
            weight += weights[place]
            if walk.fates[place] is Fate.MIXED:
                words = list_words(block_members(self.parsed.messages[place]), api_of(self.parsed.format))
                weight -= sum(len(encode_message(part)) + 1 for part in words)
        return tokens_of(max(0, weight))

    def cache_life_s(self, default_s: float | None = None) -> float:
        """The longest life of this prefix in the provider's cache; `default_s` if the request does not say it."""
        return find_cache_life_s(self.parsed.format, self.model, self.parsed.members, default_s=default_s)


def project_body(
    body: bytes, format: Format, *, model: str = "", remembered: Remembered = NOTHING_REMEMBERED
) -> BodyProjection:
    """The request to send, and what was changed in it. It never raises an error.

    `model` is for APIs whose requests do not name the model.
    """
    return project_request(parse_request(body, format), model=model, remembered=remembered)


def project_request(
    parsed: ParsedRequest, *, model: str = "", remembered: Remembered = NOTHING_REMEMBERED
) -> BodyProjection:
    """Fold a parsed request: the request to send, and what was changed in it. It never raises an error."""
    api, request, messages = api_of(parsed.format), parsed.members, parsed.messages
    named = request.get("model")
    model = named if isinstance(named, str) else model
    body, head_hash = parsed.body, 0
    if parsed.reason or isinstance(messages, str):
        projection = make_empty_projection(messages, len(parsed.body), parsed.reason)
    else:
        members = {
            name: encode_json(name) + b":" + (b"" if name == api.list_name else encode_json(value))
            for name, value in request.items()
        }
        head_hash = hash(tuple(members.values()))
        projection, encoded = project_and_encode(
            messages,
            api,
            binds_thinking=api.binds_thinking(model, request.get("thinking")),
            tools=request.get("tools"),
            remembered=remembered,
            other_bytes=len(_join_members(members)),
        )
        if projection.changed:
            assert all(encoded), "what was parsed can be encoded"
            members[api.list_name] += b"[" + b",".join(encoded) + b"]"
            body = _join_members(members)
    facts = projection.details.facts
    definitions = weigh_own_definitions(list_definitions(request.get("tools"), messages))
    our_tools = select_our_tools([name for name, _ in definitions])
    calls = weigh_own_calls(messages, facts) if facts else []
    our_calls = [weight for name, weight in calls if name in our_tools or is_marked(name)]
    our_definitions = [weight for name, weight in definitions if name in our_tools]
    return BodyProjection(
        projection.messages,
        projection.receipt,
        projection.threads,
        projection.details,
        body=body,
        parsed=parsed,
        model=model,
        our_tools=our_tools,
        our_tokens=tokens_of(sum(our_calls) + sum(our_definitions)),
        blocks=_count_blocks(messages, api) - len(our_calls) if facts else 0,
        head_hash=head_hash,
    )


def _join_members(members: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(members.values()) + b"}"


def _count_blocks(messages: Sequence[object], api: Api) -> int:
    parts = [block_members(message).get(api.parts_name) for message in messages]
    return sum(len(each) if isinstance(each, list) else 1 for each in parts)
