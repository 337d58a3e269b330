"""Leaves folded messages out of the bytes of a request. Knows JSON and the position of the messages in each API.

The body is decoded as latin-1: a character is a byte, so positions in the text are positions in the bytes, and the text
needs no more memory than the bytes. Only one message at a time is parsed. The new body is made of parts of the original
bytes; only words that move, and stubs, are encoded.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from contextfold.common.canonical import DEPTH_MAX
from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages.apis.facts import UNKNOWN, CallNumbers, Result, made
from contextfold.fold.messages.cold_results import (
    ColdResult,
    ColdSettings,
    cache_life_s,
    cold_results,
    encoded_stub,
    hash_of,
    result_hashes,
    seen_results,
)
from contextfold.fold.messages.formats import Format, api_of, binds_thinking, facts_of
from contextfold.fold.messages.own_tools import CallOutcome, confirmed_names, our_tool_names
from contextfold.fold.messages.receipt import Plan, outcome_of, plan_of, untouched
from contextfold.fold.messages.remembered import NOTHING_REMEMBERED, LeftOutResult, Remembered
from contextfold.fold.messages.repeated import KnownMessage, LocatedResults, RepeatedMessages
from contextfold.fold.messages.rewriting import content_spans, splices_of
from contextfold.fold.messages.walk import MIXED, UNCONFIRMED_TOOL, WORDS, FoldRange, Walk, first_movable, is_inside
from contextfold.fold.messages.weight import OwnCallWeights, definition_weights, excess_of

# A list has at most this many messages, because the positions of all messages are stored.
MESSAGES_MAX = 100_000
# A body has at most this many values and names of members, which limits the cost of parsing one message.
VALUES_MAX = 2_000_000
PIECE_BYTES = 65_536
# A shorter message cannot be nested too deeply and has no large file, so it is not checked for them.
SHORT_BYTES = 2 * DEPTH_MAX

# The reasons why a whole body is forwarded unchanged: it is not a JSON object in UTF-8; a member is repeated, and only
# the provider knows which value counts; it is nested too deeply; it has too many values; it has no list of messages;
# the provider stores the history.
NOT_JSON = "not_json"
REPEATED_MEMBERS = "repeated_members"
TOO_DEEP = "too_deep"
TOO_MANY_VALUES = "too_many_values"
NO_MESSAGES = "no_messages"
KEPT_ELSEWHERE = "kept_elsewhere"
BODY_REASONS = (NOT_JSON, REPEATED_MEMBERS, TOO_DEEP, TOO_MANY_VALUES, NO_MESSAGES, KEPT_ELSEWHERE)

_NESTING = frozenset({dict, list})
_LOOKED_AT = frozenset({"model", "thinking", "prompt_cache_retention"})
_CLOSING = {"{": "}", "[": "]"}
_SIGN = re.compile(r"[ \t\n\r]*+(.)[ \t\n\r]*+")
_VALUE = re.compile(rb'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"?|[\[{]|[^\s"\[\]{},:]++')


class _UnreadableBody(ValueError):
    """The body is forwarded unchanged; the message is the reason."""


class BodyProjection:
    """A request: its messages, what was left out of them, and the body to send. `project_body` makes it."""

    def __init__(self, original: bytes, format: Format, model: str, remembered: Remembered) -> None:
        # The body to send; the original object, if nothing was folded.
        self.body = self._original = original
        self._format = format
        self._api = api_of(format)
        self._list_of_parts = "parts" if format == "gemini" else "content"
        self._model, self._remembered = model, remembered
        # The members of the top level that are used.
        self._members: dict[str, object] = {}
        # The names and weights of the definitions of tools that may be ours.
        self._definitions: list[tuple[str, int]] = []
        self._folded: Sequence[FoldRange] = ()
        self._begin(frozenset())

    def _begin(self, confirmed: frozenset[str]) -> None:
        self._walk = Walk(self._remembered.outcomes, confirmed)
        self._numbers = CallNumbers() if self._api.numbers_calls else None
        self._repeated = RepeatedMessages(self._format, len(self._original))
        self._starts, self._ends, self._weights = array("q"), array("q"), array("q")
        self._stubs: dict[int, dict[int, LeftOutResult]] = {}
        self._own_calls = OwnCallWeights()
        # The number of content blocks in the original messages; at the end, without our calls and results.
        self.blocks = 0
        # The weights of the messages that are sent, and of everything else.
        self._sent_weights, self._rest = array("q"), 0
        # The replacements in messages with left-out results, by the index of the message.
        self._stub_splices: dict[int, list[tuple[int, int, bytes]]] = {}

    def _project(self) -> None:
        reason = self._reason_to_pass()
        if reason is None and any(call.reason == UNCONFIRMED_TOOL for call in self._walk.unfolded):
            # The request's tools are known only now, because they may come after the messages.
            confirmed = confirmed_names([name for name, _ in self._definitions])
            if confirmed:
                self._begin(confirmed)
                reason = self._reason_to_pass()
        if reason is not None:
            self._begin(frozenset())
            self.receipt, threads = untouched(len(self._original), reason)
        else:
            self._rest = len(self._original) - (self._ends[-1] - self._starts[0] if self._starts else 0)
            plan = plan_of(
                self._walk, binds_thinking=self._is_bound, merges_words=bool(self._api.parts_name), stubs=self._stubs
            )
            self._folded = plan.folded
            self.body, self._sent_weights = self._applied(plan)
            self.receipt, threads = outcome_of(self._walk, plan, self._weights, self._sent_weights, self._rest)
        # The main thread, then the open branches, the outermost first.
        self.threads = threads
        # The names of our tools in the request's list of tools.
        self.our_tools = our_tool_names([name for name, _ in self._definitions])
        own_weight, own_blocks = self._own_calls.total(self.our_tools)
        own_weight += sum(weight for name, weight in self._definitions if name in self.our_tools)
        # The tokens of our tools' definitions, calls and results in the original request.
        self.our_tokens = tokens_of(own_weight)
        self.blocks -= own_blocks

    @property
    def changed(self) -> bool:
        return self.body is not self._original

    @property
    def model(self) -> str:
        name = self._members.get("model")
        return _as_sent(name) if isinstance(name, str) else self._model

    @property
    def session_id(self) -> str | None:
        """The session id in the last result of our tools."""
        return self._walk.session_id

    @property
    def outcomes(self) -> Mapping[str, CallOutcome]:
        """The outcomes of our calls by call id, to be stored for later requests of the conversation."""
        return self._walk.outcomes

    def original(self, place: int) -> str:
        """The original JSON text of a message."""
        return self._original[self._starts[place] : self._ends[place]].decode("utf-8")

    def has_words(self, place: int) -> bool:
        """Whether the user wrote a part of a message."""
        return self._walk.fates[place] in (WORDS, MIXED)

    @property
    def opening_tokens(self) -> int:
        """The tokens that are sent before the model's first message; all of them if there is none."""
        first = self._walk.turns[0] if self._walk.turns else len(self._sent_weights)
        return tokens_of(self._rest + sum(self._sent_weights[:first]))

    def tokens_before_stubs(self, results: Collection[str]) -> int | None:
        """The tokens that are sent before the first stub of these results; None if none of them is sent."""
        places = [
            place
            for place, those in self._stubs.items()
            if any(each.id in results for each in those.values()) and not is_inside(place, self._folded)
        ]
        return tokens_of(self._rest + sum(self._sent_weights[: min(places)])) if places else None

    def cold_results(self, *, salt: str, settings: ColdSettings) -> list[ColdResult]:
        """The results to leave out after the prompt cache has expired, without those that are already left out."""
        messages = map(_whole_decoder.decode, map(self.original, range(self._walk.count)))
        seen = seen_results(facts_of(messages, self._api))
        known = {(each.call_id, each.text_hash) for those in self._stubs.values() for each in those.values()}
        gone = {(each.call_id, hash_of(each.text or "")) for each in seen if is_inside(each.place, self._folded)}
        movable = first_movable(self._walk) if self._is_bound else 0
        return cold_results(seen, self._walk, known | gone, first_movable=movable, salt=salt, settings=settings)

    def cache_life_s(self, default_s: float | None = None) -> float:
        """The lifetime of this request's prefix in the provider's cache; `default_s` if the request does not say it."""
        retention = self._members.get("prompt_cache_retention")
        return cache_life_s(self._format, self._original, retention, default_s)

    @property
    def _is_bound(self) -> bool:
        return binds_thinking(self._api, self.model, self._members.get("thinking"))

    def _left_out_before(self, results: Sequence[Result]) -> list[Mapping[str, LeftOutResult] | None]:
        """For each result, those that earlier requests left out and that have its call's id."""
        left_out = self._remembered.results
        return [left_out.get(each.id if each.id.isascii() else _as_sent(each.id)) for each in results]

    def _take(self, message: object, text: str, start: int, end: int) -> KnownMessage:
        """Read a message."""
        # The text of a number may be the beginning of a longer one, and numbers of calls depend on earlier messages.
        is_repeated, fact, blocks, located = False, UNKNOWN, 1, None
        if type(message) is dict:
            is_repeated, fact, parts = True, self._api.read(message), message.get(self._list_of_parts)
            blocks = len(parts) if type(parts) is list else 1
        if self._numbers is not None:
            is_repeated = is_repeated and not fact.lacks_ids
            fact = self._numbers.numbered(fact)
        self._walk.take(fact)
        if self._remembered.results and any(self._left_out_before(fact.results)):
            located = self._locate(text[start:end], fact.results)
        excess = _checked_excess(text, start, end, message) if end - start > SHORT_BYTES else 0
        known = made(KnownMessage, (fact, excess, blocks, located))
        if self._walk.has_own and type(message) is dict:
            self._own_calls.take(message, fact, end - start)
        elif is_repeated:
            self._repeated.remember(known)
        return known

    def _must_be_parsed(self, known: KnownMessage) -> bool:
        """Whether the content of a known message is needed: that of our result, or of one that is left out."""
        results = known.fact.results
        for result in results:
            if self._walk.awaits_own(result.id):
                return True
        if not results or not self._remembered.results or known.located is not None:
            return False
        return any(self._left_out_before(results))

    def _note_stubs(self, start: int, results: Sequence[Result], located: LocatedResults) -> None:
        """Record which results of the message at `start` become stubs, and where they are."""
        stubs: dict[int, LeftOutResult] = {}
        splices: list[tuple[int, int, bytes]] = []
        for number, known in enumerate(self._left_out_before(results)):
            found = known.get(located.hashes[number]) if known else None
            if found:
                stubs[number] = found
                first, last = located.spans[number]
                stub = encoded_stub(found.stub, is_object=self._api.has_object_results)
                splices.append((start + first, start + last, stub))
        if stubs:
            place = len(self._starts)
            self._stubs[place], self._stub_splices[place] = stubs, splices

    def _locate(self, text: str, results: Sequence[Result]) -> LocatedResults:
        if "\\u" in text:
            # Some characters are escaped, so not every character is a byte of the client's UTF-8.
            message = _whole_decoder.decode(text.encode("latin-1").decode("utf-8"))
            hashes = result_hashes(self._api.read(message).results)
        else:
            hashes = result_hashes(results, encoding="latin-1")
        numbers = [number for number, text_hash in enumerate(hashes) if text_hash]
        return LocatedResults(hashes, content_spans(text, numbers, self._api))

    def _applied(self, plan: Plan) -> tuple[bytes, array[int]]:
        """The body after the plan was applied, and the weight of each of its messages."""
        if not plan.cuts and not plan.rewrites:
            return self._original, self._weights
        weights = self._weights[:]
        # A cut goes from the start of a message to the start of another, so the commas stay correct.
        splices = [(self._starts[first], self._starts[end], b"") for first, end in plan.cuts]
        for first, end in plan.cuts:
            weights[first:end] = array("q", bytes((end - first) * weights.itemsize))
        for place, rewrite in plan.rewrites.items():
            stubs = self._stub_splices[place] if rewrite.stubs else []
            splices += stubs
            for start, end, stub in stubs:
                weights[place] += len(stub) - (end - start)
            if not (rewrite.without_thinking or rewrite.words_of):
                continue
            begin = self._starts[place]
            sources = [self._text(source) for source in rewrite.words_of]
            for start, end, text, excess in splices_of(self._text(place), rewrite, sources, self._api):
                splices.append((begin + start, begin + end, text.encode("latin-1")))
                weights[place] += len(text) - (end - start) - excess
        splices.sort()
        view, sent_up_to = memoryview(self._original), 0
        pieces: list[bytes | memoryview] = []
        for start, end, replacement in splices:
            pieces += (view[sent_up_to:start], replacement)
            sent_up_to = end
        return b"".join([*pieces, view[sent_up_to:]]), weights

    def _text(self, place: int) -> str:
        return self._original[self._starts[place] : self._ends[place]].decode("latin-1")

    def _reason_to_pass(self) -> str | None:
        try:
            _check(self._original)
            self._read(self._original.decode("latin-1"))
        except _UnreadableBody as problem:
            return str(problem)
        except (ValueError, StopIteration):
            # The parser raises StopIteration if no value begins at a position.
            return NOT_JSON
        except RecursionError:
            return TOO_DEEP
        if any(self._members.get(name) is not None for name in self._api.elsewhere):
            return KEPT_ELSEWHERE
        listed = self._members.get(self._api.list_name)
        if isinstance(listed, str) and self._api.takes_text:
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
            at, _ = _past(text, at, ":")
            if name == self._api.list_name and text.startswith("[", at):
                self._members[name] = []
                at = self._list(text, at)
            elif name == "tools" and text.startswith("[", at):
                at = self._tools(text, at)
            else:
                value, at = _decode_checked(text, at)
                if name in _LOOKED_AT or name in self._api.elsewhere or name == self._api.list_name:
                    self._members[name] = value
            at, sign = _past(text, at, ",}")
        if at != len(text):
            raise _UnreadableBody(NOT_JSON)

    def _tools(self, text: str, at: int) -> int:
        self._definitions = []
        at, sign = _opened(text, at, "[")
        while sign != "]":
            tool, end = _decode_checked(text, at)
            self._definitions += definition_weights(tool, end - at)
            at, sign = _past(text, end, ",]")
        return at

    def _list(self, text: str, at: int) -> int:
        take, repeated, numbers, blocks = self._walk.take, self._repeated, self._numbers, 0
        starts, ends, weights = self._starts.append, self._ends.append, self._weights.append
        at, sign = _opened(text, at, "[")
        while sign != "]":
            if len(self._starts) == MESSAGES_MAX:
                raise _UnreadableBody(TOO_MANY_VALUES)
            start = at
            known = repeated.find(text, start)
            if known is None or self._must_be_parsed(known):
                message, end = _decode(text, start)
                if known is None:
                    repeated.add(text, start, end)
                known = self._take(message, text, start, end)
            else:
                end = start + repeated.length
                take(numbers.numbered(known.fact) if numbers else known.fact)
            blocks += known.blocks
            if known.located is not None:
                self._note_stubs(start, known.fact.results, known.located)
            # The most frequent separators are tested first, which is faster.
            if text.startswith(",{", end):
                at, sign = end + 1, ","
            elif text.startswith(", {", end):
                at, sign = end + 2, ","
            else:
                at, sign = _past(text, end, ",]")
            starts(start)
            ends(end)
            # A cut includes the comma.
            weights((at if sign == "," else end) - start - known.excess)
        self.blocks = blocks
        return at


def project_body(
    body: bytes, format: Format, *, model: str = "", remembered: Remembered = NOTHING_REMEMBERED
) -> BodyProjection:
    """The request to send, and what was changed in it. It never raises an error.

    `model` is for APIs whose requests do not name the model.
    """
    projection = BodyProjection(body, format, model, remembered)
    projection._project()
    return projection


def _as_sent(text: str) -> str:
    """Decode a short text that was decoded as latin-1 to the client's text."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        # The text was written with escapes.
        return text


def _opened(text: str, at: int, bracket: str) -> tuple[int, str]:
    """The position after a bracket, or after its closing bracket if it follows directly; and that character."""
    at, sign = _past(text, at, bracket)
    closing = _CLOSING[bracket]
    return _past(text, at, closing) if text.startswith(closing, at) else (at, sign)


def _past(text: str, at: int, signs: str) -> tuple[int, str]:
    """The position after one of these characters and the white space around it; and that character."""
    match = _SIGN.match(text, at)
    if match is None or match[1] not in signs:
        raise _UnreadableBody(NOT_JSON)
    return match.end(), match[1]


def _decode_checked(text: str, at: int) -> tuple[Any, int]:
    """Decode a value that may be nested too deeply; return its end, too."""
    value, end = _decode(text, at)
    if text.count("[", at, end) + text.count("{", at, end) > DEPTH_MAX:
        _check_depth(value)
    return value, end


def _check(body: bytes) -> None:
    """Check that the bytes are UTF-8 and do not have too many values."""
    if not body.isascii():
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(body), PIECE_BYTES):
            decoder.decode(body[start : start + PIECE_BYTES])
        decoder.decode(b"", final=True)
    # A value with its separator has at least two bytes.
    if len(body) <= 2 * VALUES_MAX:
        return
    # Each value follows one of these characters or is the outermost. Characters inside of strings are counted, too.
    if 1 + body.count(b"[") + body.count(b",") + 2 * body.count(b":") <= VALUES_MAX:
        return
    for number, _ in enumerate(_VALUE.finditer(body), 1):
        if number > VALUES_MAX:
            raise _UnreadableBody(TOO_MANY_VALUES)


def _checked_excess(text: str, start: int, end: int, message: object) -> int:
    """The excess of the bytes of a message's files over their weight. Raises an error if it is nested too deeply."""
    if text.count("[", start, end) + text.count("{", start, end) > DEPTH_MAX:
        _check_depth(message)
    return excess_of(message) if type(message) is dict else 0


def _check_depth(value: object) -> None:
    """Check the nesting of a value with many brackets, because the parser's limit depends on the interpreter."""
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


# Numbers are not used, and converting a long number is slow. So each is replaced by its length.
_decoder: Any = json.JSONDecoder(object_pairs_hook=_object, parse_int=len, parse_float=len, parse_constant=_no_json)
# For a message that was decoded before.
_whole_decoder = json.JSONDecoder(parse_int=len, parse_float=len)
# `raw_decode` would add a function call to each value.
_decode: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once
