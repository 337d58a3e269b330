"""A request's bytes → the same bytes without what is folded. Knows JSON and where an API keeps its list of messages.

The body is read as latin-1: a character is a byte, so a position in the text is a position in the bytes, and the text
takes no more memory than they do. The list is walked message by message, each forgotten before the next is read. What
is sent is cut out of the original bytes; only words that move, and stubs, are written anew.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from contextfold.common.dataclass import dataclass, field
from contextfold.common.json_depth import DEPTH_MAX
from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages.apis.facts import UNKNOWN, Result
from contextfold.fold.messages.cold_results import (
    ColdResult,
    ColdSettings,
    LocatedResults,
    cache_life_s,
    cold_results,
    encoded_object_stub,
    encoded_stub,
    hash_of,
    result_hashes,
    seen_results,
)
from contextfold.fold.messages.formats import Format, api_of, binds_thinking
from contextfold.fold.messages.own_tool_weights import OwnCallWeights, definitions_weight, our_tool_names
from contextfold.fold.messages.own_tools import CallOutcome, confirmed_names, names_in
from contextfold.fold.messages.receipt import Outcome, Plan, Receipt, Span, outcome_of, plan_of, untouched
from contextfold.fold.messages.remembered import NOTHING_REMEMBERED, LeftOutResult, Remembered
from contextfold.fold.messages.rewriting import Rewrite, splices_of
from contextfold.fold.messages.walk import MIXED, UNCONFIRMED_TOOL, WORDS, FoldRange, Walk, first_movable, is_inside
from contextfold.fold.messages.weight import excess_of

# Of a list: where each message begins, ends and belongs is stored.
MESSAGES_MAX = 100_000
# Of a body, names of members too: what reading one message may cost.
VALUES_MAX = 2_000_000
PIECE_BYTES = 65_536
# What is no longer cannot be too deep, and holds no file worth a look.
SHORT_BYTES = 2 * DEPTH_MAX

# Why a whole body passes as it came.
NOT_JSON = "not_json"  # or not UTF-8, or no object
REPEATED_MEMBERS = "repeated_members"  # which of two members of one name counts is the provider's to say
TOO_DEEP = "too_deep"
TOO_MANY_VALUES = "too_many_values"
NO_MESSAGES = "no_messages"  # no list of them where this API has it
KEPT_ELSEWHERE = "kept_elsewhere"  # the provider keeps the history
BODY_REASONS = (NOT_JSON, REPEATED_MEMBERS, TOO_DEEP, TOO_MANY_VALUES, NO_MESSAGES, KEPT_ELSEWHERE)

_NESTING = frozenset({dict, list})
_LOOKED_AT = frozenset({"model", "stream", "thinking", "tools", "prompt_cache_retention"})
_CLOSING = {"{": "}", "[": "]"}
# Of messages with results that are left out: what is known of each after it was read once. A conversation's requests
# repeat its messages byte for byte. The key is a hash of those bytes that nobody outside of the process can predict.
LOCATED_MAX = 20_000
_located: dict[tuple[str, int, int], LocatedResults] = {}
_SIGN = re.compile(r"[ \t\n\r]*+(.)[ \t\n\r]*+")
_VALUE = re.compile(rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"?|[\[{]|[^\s"\[\]{},:]++')


class _UnreadableBody(ValueError):
    """A body that passes as it came; the text is the reason."""


@dataclass(frozen=True, slots=True)
class BodyProjection:
    # The very object that was given, if nothing was folded.
    body: bytes
    receipt: Receipt
    # Main first, then open branches, outermost first.
    threads: tuple[Span, ...]
    # The last that a result of our tools names.
    session_id: str | None
    model: str
    streams: bool
    # What the results of our calls say, by call id: to be remembered for later requests of the conversation.
    outcomes: Mapping[str, CallOutcome]
    # The names of our tools in the request's list of tools.
    our_tools: frozenset[str]
    # Of our tools' definitions, calls and results in the request as it came.
    our_tokens: int
    # Content blocks of all messages as they came, without our calls and results.
    blocks: int
    _original: bytes = field(repr=False)
    _starts: array[int] = field(repr=False)
    _ends: array[int] = field(repr=False)
    _reading: _BodyReader = field(repr=False)

    @property
    def changed(self) -> bool:
        return self.body is not self._original

    @property
    def tools(self) -> object:
        """The request's list of tools as it was read."""
        return self._reading.members.get("tools")

    def original(self, place: int) -> str:
        """The JSON text of a message as it came."""
        return self._original[self._starts[place] : self._ends[place]].decode("utf-8")

    def has_words(self, place: int) -> bool:
        """Whether a user wrote some of a message."""
        return self._reading.walk.fates[place] in (WORDS, MIXED)

    @property
    def opening_tokens(self) -> int:
        """The tokens that are sent in front of the model's first words: all of them, if it has said nothing."""
        return self._reading.opening_tokens

    def tokens_before_stubs(self, results: Collection[str]) -> int | None:
        """The tokens that are sent in front of the first stub of these results; None if none of them is sent."""
        return self._reading.tokens_before_stubs(results)

    def cold_results(self, *, salt: str, settings: ColdSettings) -> list[ColdResult]:
        """The results to leave out now that the prompt cache has lapsed, without those that are left out already."""
        return self._reading.cold_results(salt, settings)

    def cache_life_s(self, default_s: float | None = None) -> float:
        """How long the provider keeps this request's prefix; `default_s` where the request does not say it."""
        return self._reading.cache_life_s(default_s)


def project_body(
    body: bytes, format: Format, *, model: str = "", remembered: Remembered = NOTHING_REMEMBERED
) -> BodyProjection:
    """The request as it is to be sent, and what was done to it. Raises for no bytes at all.

    `model` is for APIs whose requests do not name it themselves.
    """
    reading = _BodyReader(body, format, model, remembered)
    sent, outcome = reading.projected()
    tools = reading.members.get("tools")
    ours = our_tool_names(tools)
    own_weight, own_blocks = reading.own_calls.total(ours)
    return BodyProjection(
        body=sent,
        receipt=outcome.receipt,
        threads=outcome.threads,
        session_id=reading.walk.session_id,
        model=reading.model,
        streams=reading.members.get("stream") is True,
        outcomes=reading.walk.outcomes,
        our_tools=ours,
        our_tokens=tokens_of(definitions_weight(tools, ours) + own_weight),
        blocks=reading.blocks - own_blocks,
        _original=body,
        _starts=reading.starts,
        _ends=reading.ends,
        _reading=reading,
    )


class _BodyReader:
    """One body being read: where its messages are, what they weigh, and what the walk made of them."""

    def __init__(self, body: bytes, format: Format, model: str, remembered: Remembered) -> None:
        self.body = body
        self.format = format
        self.api = api_of(format)
        self._model, self._remembered = model, remembered
        self._encoded_stub = encoded_object_stub if self.api.results.is_object else encoded_stub
        # Of the top level, those that are looked at.
        self.members: dict[str, object] = {}
        self._folded: list[FoldRange] = []
        self._begin(frozenset())

    def _begin(self, confirmed: frozenset[str]) -> None:
        self.walk = Walk(self._remembered.outcomes, confirmed)
        self.starts, self.ends, self.weights = array("q"), array("q"), array("q")
        self.stubs: dict[int, dict[int, LeftOutResult]] = {}
        self.own_calls, self.blocks = OwnCallWeights(), 0
        # What is sent: the weights of the messages, and of what is around them.
        self._sent_weights, self._rest = array("q"), 0
        # By place: for messages with results that are left out.
        self._stub_splices: dict[int, list[tuple[int, int, bytes]]] = {}

    @property
    def model(self) -> str:
        name = self.members.get("model")
        return _as_sent(name) if isinstance(name, str) else self._model

    def projected(self) -> tuple[bytes, Outcome]:
        reason = self._reason_to_pass()
        if reason is None and any(call.reason == UNCONFIRMED_TOOL for call in self.walk.unfolded):
            # Only now are the request's tools known for sure, which may stand behind the messages.
            confirmed = confirmed_names(names_in(self.members.get("tools")))
            if confirmed:
                self._begin(confirmed)
                reason = self._reason_to_pass()
        if reason is not None:
            self._begin(frozenset())
            return self.body, untouched(len(self.body), reason)
        rest = len(self.body) - (self.ends[-1] - self.starts[0] if self.starts else 0)
        plan = plan_of(
            self.walk, binds_thinking=self._is_bound, merges_words=self.api.parts is not None, stubs=self.stubs
        )
        self._folded = plan.decision.folded
        sent, weights = self._applied(plan)
        self._sent_weights, self._rest = weights, rest
        return sent, outcome_of(self.walk, plan, self.weights, weights, rest)

    @property
    def _is_bound(self) -> bool:
        return binds_thinking(self.api, self.model, self.members.get("thinking"))

    @property
    def opening_tokens(self) -> int:
        first = self.walk.turns[0] if self.walk.turns else len(self._sent_weights)
        return tokens_of(self._rest + sum(self._sent_weights[:first]))

    def tokens_before_stubs(self, results: Collection[str]) -> int | None:
        places = [
            place
            for place, those in self.stubs.items()
            if any(each.id in results for each in those.values()) and not is_inside(place, self._folded)
        ]
        return tokens_of(self._rest + sum(self._sent_weights[: min(places)])) if places else None

    def cold_results(self, salt: str, settings: ColdSettings) -> list[ColdResult]:
        messages = [json.loads(self.body[start:end]) for start, end in zip(self.starts, self.ends, strict=True)]
        seen = seen_results(messages, self.format)
        known = {(each.call_id, each.text_hash) for those in self.stubs.values() for each in those.values()}
        cold = cold_results(
            seen,
            turns=self.walk.turns,
            messages=self.walk.count,
            first_movable=first_movable(self.walk) if self._is_bound else 0,
            salt=salt,
            settings=settings,
        )
        gone = {(each.call_id, hash_of(each.text or "")) for each in seen if is_inside(each.place, self._folded)}
        return [each for each in cold if (each.result.call_id, each.result.text_hash) not in known | gone]

    def cache_life_s(self, default_s: float | None) -> float:
        if self.format == "anthropic" and b'"1h"' in self.body and b'"ttl"' in self.body:
            return cache_life_s(self.format, json.loads(self.body), default_s)
        retention = {"prompt_cache_retention": self.members.get("prompt_cache_retention")}
        return cache_life_s(self.format, retention, default_s)

    def _note_stubs(self, text: str, start: int, end: int, *, message: object, results: Sequence[Result]) -> int:
        """Remember which results of the message become stubs, and where they are.

        Gives how much more the bytes of its files are than what they count for.
        """
        ids = [each.id if each.id.isascii() else _as_sent(each.id) for each in results]
        remembered = [self._remembered.results.get(call_id) for call_id in ids]
        if not any(remembered):
            return _checked_excess(text, start, end, message) if end - start > SHORT_BYTES else 0
        text = text[start:end]
        key = self.format, end - start, hash(text)
        located = _located.get(key)
        if located is None:
            if len(_located) >= LOCATED_MAX:
                _located.clear()
            located = _located[key] = self._locate(text, message, results)
        stubs: dict[int, LeftOutResult] = {}
        splices: list[tuple[int, int, bytes]] = []
        for number, known in enumerate(remembered):
            found = known.get(located.hashes[number]) if known else None
            if found:
                stubs[number] = found
                first, last = located.spans[number]
                splices.append((start + first, start + last, self._encoded_stub(found.stub)))
        if stubs:
            place = len(self.starts)
            self.stubs[place], self._stub_splices[place] = stubs, splices
        return located.excess

    def _locate(self, text: str, message: object, results: Sequence[Result]) -> LocatedResults:
        if "\\u" in text:
            # Some characters were written with escapes, so not every character is a byte of the client's UTF-8.
            sent = self.api.reader()(json.loads(text.encode("latin-1"))).results
            hashes = result_hashes(sent)
        else:
            hashes = result_hashes(results, encoding="latin-1")
        numbers = [number for number, text_hash in enumerate(hashes) if text_hash]
        splices = splices_of(text, Rewrite(stubs=dict.fromkeys(numbers, "")), (), self.api)
        spans = {number: (splice.start, splice.end) for number, splice in zip(numbers, splices, strict=True)}
        return LocatedResults(hashes, spans, _checked_excess(text, 0, len(text), message))

    def _applied(self, plan: Plan) -> tuple[bytes, array[int]]:
        """The body without what goes, and what each of its messages weighs then."""
        if not plan.cuts and not plan.rewrites:
            return self.body, self.weights
        weights = self.weights[:]
        # A cut goes from the start of a message up to the start of another, so the commas come out right.
        splices = [(self.starts[first], self.starts[end], b"") for first, end in plan.cuts]
        for first, end in plan.cuts:
            weights[first:end] = array("q", bytes((end - first) * weights.itemsize))
        for place, rewrite in plan.rewrites.items():
            known = self._stub_splices.get(place)
            if known and not rewrite.words_of:
                splices += known
                for start, end, stub in known:
                    weights[place] += len(stub) - (end - start)
                continue
            begin = self.starts[place]
            sources = [self._text(source) for source in rewrite.words_of]
            for start, end, text, excess in splices_of(self._text(place), rewrite, sources, self.api):
                splices.append((begin + start, begin + end, text.encode("latin-1")))
                weights[place] += len(text) - (end - start) - excess
        splices.sort()
        view, sent_up_to = memoryview(self.body), 0
        pieces: list[bytes | memoryview] = []
        for start, end, replacement in splices:
            pieces += (view[sent_up_to:start], replacement)
            sent_up_to = end
        return b"".join([*pieces, view[sent_up_to:]]), weights

    def _text(self, place: int) -> str:
        return self.body[self.starts[place] : self.ends[place]].decode("latin-1")

    def _reason_to_pass(self) -> str | None:
        try:
            _check(self.body)
            self._read(self.body.decode("latin-1"))
        except _UnreadableBody as problem:
            return str(problem)
        except (ValueError, StopIteration):
            # StopIteration is the parser's, where no value begins.
            return NOT_JSON
        except RecursionError:
            return TOO_DEEP
        if any(self.members.get(name) is not None for name in self.api.elsewhere):
            return KEPT_ELSEWHERE
        listed = self.members.get(self.api.list_name)
        if isinstance(listed, str) and self.api.takes_text:
            return ""
        return None if isinstance(listed, list) else NO_MESSAGES

    def _read(self, text: str) -> None:
        at, sign = _opened(text, 0, "{")
        names: set[str] = set()
        while sign != "}":
            name, at = _decode(text, at)
            if not isinstance(name, str):
                raise _UnreadableBody(NOT_JSON)
            if name in names:
                raise _UnreadableBody(REPEATED_MEMBERS)
            names.add(name)
            at = self._member(name, text, _past(text, at, ":")[0])
            at, sign = _past(text, at, ",}")
        if at != len(text):
            raise _UnreadableBody(NOT_JSON)

    def _member(self, name: str, text: str, at: int) -> int:
        """Reads what is there; gives where it ends."""
        if name == self.api.list_name and text.startswith("[", at):
            self.members[name] = []
            return self._list(text, at)
        value, end = _decode(text, at)
        if text.count("[", at, end) + text.count("{", at, end) > DEPTH_MAX:
            _check_depth(value)
        if name in _LOOKED_AT or name in self.api.elsewhere or name == self.api.list_name:
            self.members[name] = value
        return end

    def _list(self, text: str, at: int) -> int:
        decode, read, take = _decode, self.api.reader(), self.walk.take
        starts, ends, weights = self.starts.append, self.ends.append, self.weights.append
        stubs, own, blocks = self._remembered.results, self.own_calls.take, 0
        list_of_parts = "parts" if self.format == "gemini" else "content"
        at, sign = _opened(text, at, "[")
        while sign != "]":
            if len(self.starts) == MESSAGES_MAX:
                raise _UnreadableBody(TOO_MANY_VALUES)
            start = at
            message, end = decode(text, start)
            fact = read(message) if type(message) is dict else UNKNOWN
            take(fact)
            if fact.calls or fact.results:
                own(message, fact)
            parts = message.get(list_of_parts) if type(message) is dict else None
            blocks += len(parts) if type(parts) is list else 1
            if stubs and fact.results:
                excess = self._note_stubs(text, start, end, message=message, results=fact.results)
            else:
                excess = _checked_excess(text, start, end, message) if end - start > SHORT_BYTES else 0
            # The most usual ways to go on come first, because they cost less.
            if text.startswith(",{", end):
                at, sign = end + 1, ","
            elif text.startswith(", {", end):
                at, sign = end + 2, ","
            else:
                at, sign = _past(text, end, ",]")
            starts(start)
            ends(end)
            # A cut takes the comma too.
            weights((at if sign == "," else end) - start - excess)
        self.blocks = blocks
        return at


def _as_sent(text: str) -> str:
    """A short text that was read as latin-1, as the client sent it."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        # It was written with escapes.
        return text


def _opened(text: str, at: int, bracket: str) -> tuple[int, str]:
    """Behind a bracket, or behind the one that closes it at once; which sign that was."""
    at, sign = _past(text, at, bracket)
    closing = _CLOSING[bracket]
    return _past(text, at, closing) if text.startswith(closing, at) else (at, sign)


def _past(text: str, at: int, signs: str) -> tuple[int, str]:
    """Behind one of these signs and the space around it; which one it was."""
    match = _SIGN.match(text, at)
    if match is None or match[1] not in signs:
        raise _UnreadableBody(NOT_JSON)
    return match.end(), match[1]


def _check(body: bytes) -> None:
    """Checks the bytes: that they are UTF-8, and not more values than one message may have."""
    if not body.isascii():
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(body), PIECE_BYTES):
            decoder.decode(body[start : start + PIECE_BYTES])
        decoder.decode(b"", final=True)
    # No value is shorter than two bytes.
    if len(body) <= 2 * VALUES_MAX:
        return
    # Each stands behind one of these or is the outermost; those inside of text are counted too.
    if 1 + body.count(b"[") + body.count(b",") + 2 * body.count(b":") <= VALUES_MAX:
        return
    for number, _ in enumerate(_VALUE.finditer(body), 1):
        if number > VALUES_MAX:
            raise _UnreadableBody(TOO_MANY_VALUES)


def _checked_excess(text: str, start: int, end: int, message: object) -> int:
    """How much more the bytes of a message's files are than what they count for. Refuses one that is too deep."""
    if text.count("[", start, end) + text.count("{", start, end) > DEPTH_MAX:
        _check_depth(message)
    return excess_of(message) if type(message) is dict else 0


def _check_depth(value: object) -> None:
    """Of what has so many brackets that it may be too deep: how far the parser goes depends on the interpreter."""
    level: list[Any] = [[value]]
    for _ in range(DEPTH_MAX + 1):
        parents = (each.values() if type(each) is dict else each for each in level)
        level = [child for parent in parents for child in parent if type(child) in _NESTING]
        if not level:
            return
    raise _UnreadableBody(TOO_DEEP)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _UnreadableBody(REPEATED_MEMBERS)
    return members


def _no_json(name: str) -> object:
    raise _UnreadableBody(NOT_JSON)


# Numbers are never looked at, and to convert a long one takes time: their length will do.
_decoder: Any = json.JSONDecoder(object_pairs_hook=_object, parse_int=len, parse_float=len, parse_constant=_no_json)
# `raw_decode` adds a function call to each value.
_decode: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once
