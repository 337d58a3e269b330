"""Decides which old tool results, texts of old edits, and old thinking are left out of a conversation. Pure.

Leaving them out costs nothing where the provider's cache does not hold them any more, because that part of the prompt
must be paid for again: all of it after a pause, the part behind the first difference otherwise (`sent_prefix`). The
expected gain of each is its tokens without those of its stub, at the price of writing now and of reading later; what is
shorter than a stub is never chosen. Others store the decisions, and later requests of the conversation get the same
stubs (`Remembered`).
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.facts import (
    HOSTED,
    Call,
    Fact,
    Members,
    block_members,
    items_of,
)
from contextfold.fold.messages.own_tools import CallOutcome, may_be_ours, remembered_id
from contextfold.fold.messages.user_words import has_user_words
from contextfold.fold.messages.walk import Walk
from contextfold.fold.messages.weight import encode_json, weigh_thinking
from contextfold.fold.store import LeftOutDecision, merge_outcomes

MIN_TOKENS, AUTO_MIN_TOKENS = 400, 200
SPARED_TURNS = 2
STUB_MAX_BYTES = 240
AFTER_A_PAUSE = " after a pause"
# Thinking has no call, so it is remembered under this id and the hash of its blocks.
THINKING_ID = remembered_id("\0thinking")

_PATHS = ("file_path", "path", "filePath", "filename", "notebook_path", "absolute_path", "target_file", "file")
_READS = re.compile(r"(?i)read|view|cat|open|get_?file|show")
_EDITS = re.compile(r"(?i)edit|write|patch|replace|insert|update|create|delete|move|rename|apply")
# Characters that are removed from the description of a call: they would end a line, a quotation or the stub itself.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"\[\]]+")
_NAME_MAX_CHARS, _PATH_MAX_CHARS = 32, 48


@dataclass(frozen=True, slots=True)
class ColdSettings:
    min_tokens: int = MIN_TOKENS
    # The results of this many last tool turns stay.
    spared_turns: int = SPARED_TURNS
    # Whether the texts of finished edits, and the thinking of finished turns, are left out, too.
    has_inputs: bool = False
    # Whether much at once is left out while the cache still holds it.
    has_batches: bool = False


# What is left out by default.
AUTO = ColdSettings(min_tokens=AUTO_MIN_TOKENS, has_inputs=True)
# The same, and also batches of what is still cached (`batches`).
BATCHES = ColdSettings(min_tokens=AUTO_MIN_TOKENS, has_inputs=True, has_batches=True)


class SeenResult(NamedTuple):
    """The facts about a tool result of a request, and about its call."""

    place: int
    call_place: int
    call_id: str
    # None if the result has anything except text.
    text: str | None
    failed: bool
    # The call's tool and arguments.
    tool: str
    arguments: Members


class ColdResult(NamedTuple):
    """A result to leave out, with its text, which must be scrubbed and stored before the stub is sent."""

    decision: LeftOutDecision
    text: str
    # The index of its message.
    place: int

    @property
    def gain_tokens(self) -> int:
        """The tokens by which a request becomes smaller."""
        return self.decision.tokens - _count_tokens(self.decision.stub)


@dataclass(frozen=True, slots=True)
class Remembered:
    # The outcomes by remembered call id. One without a verb is ambiguous: the client used the id for several calls.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The results by remembered call id, then by hash of the text.
    results: Mapping[str, Mapping[str, LeftOutDecision]] = field(default_factory=dict)


NOTHING_REMEMBERED = Remembered()


def by_call(results: tuple[LeftOutDecision, ...]) -> dict[str, dict[str, LeftOutDecision]]:
    """Results by call id and hash, for `Remembered`."""
    ordered: dict[str, dict[str, LeftOutDecision]] = {}
    for result in results:
        ordered.setdefault(remembered_id(result.call_id), {})[result.text_hash] = result
    return ordered


def merged_outcomes(old: Mapping[str, CallOutcome], new: Mapping[str, CallOutcome]) -> dict[str, CallOutcome]:
    """Merge outcomes; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    return merge_outcomes(old, new, ambiguous=CallOutcome(""))


class LeftOutPart(NamedTuple):
    """A part of a message that earlier requests left out: a result, an argument of a call, or its thinking."""

    # The index of its message.
    place: int
    decision: LeftOutDecision
    # The result's number in the message; None if it is no result.
    result: int | None = None
    # The call of an argument, and the argument's name.
    call: Call | None = None
    argument: str = ""

    @property
    def is_thinking(self) -> bool:
        return self.result is None and self.call is None


def find_left_out(facts: Sequence[Fact], walk: Walk, remembered: Remembered) -> list[LeftOutPart]:
    """What earlier requests left out.

    The thinking of the running tool loop stays: a client may have gone back to a loop that was finished.
    """
    if not remembered.results:
        return []
    found: list[LeftOutPart] = []
    thoughts, finished_end = remembered.results.get(THINKING_ID, {}), _end_of_finished(walk)
    for place, fact in enumerate(facts):
        for number, result in enumerate(fact.results):
            known = remembered.results.get(remembered_id(result.id))
            text = plain_text(result.content) if known else None
            if known and text is not None and (decision := known.get(hash_text(text))):
                found.append(LeftOutPart(place, decision, number))
        for call in fact.calls:
            known = remembered.results.get(remembered_id(call.id))
            for name, value in read_arguments(call.arguments).items() if known else ():
                if known and isinstance(value, str) and (decision := known.get(hash_text(value))):
                    found.append(LeftOutPart(place, decision, call=call, argument=name))
        if thoughts and fact.thoughts and place < finished_end and (decision := thoughts.get(hash_thinking(fact))):
            found.append(LeftOutPart(place, decision))
    return found


def _end_of_finished(walk: Walk) -> int:
    """The first message that may belong to a running tool loop."""
    return walk.prompts[-1] if walk.prompts else 0


def hash_thinking(fact: Fact) -> str:
    return hash_text(encode_json(fact.thoughts).decode("utf-8"))


def hash_text(text: str) -> str:
    """The hash of a text. It does not depend on the escapes in the request."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def choose_results(
    seen: Sequence[SeenResult],
    walk: Walk,
    gone: Collection[tuple[str, str]],
    *,
    first_place: int,
    salt: str,
    settings: ColdSettings,
    when: str,
) -> list[ColdResult]:
    """The results to leave out, except those that are `gone` already, by call id and hash.

    Nothing changes before `first_place`. `salt` makes the ids unique to one owner's conversation. Stubs say `when` the
    results were left out.
    """
    tool_turns = sorted({_turn_of(each.place, walk.turns) for each in seen})
    spared = walk.count
    if settings.spared_turns:
        spared = tool_turns[-settings.spared_turns] if len(tool_turns) >= settings.spared_turns else 0
    protected = _reads_before_edits(seen)
    found = [
        (each, "result", each.text, each.place)
        for number, each in enumerate(seen)
        if each.text is not None and not (each.failed or number in protected or may_be_ours(each.tool))
        if _turn_of(each.place, walk.turns) < spared and each.place >= first_place
    ]
    if settings.has_inputs:
        found += _list_old_inputs(seen, range(first_place, min(spared, _end_of_finished(walk))))
    chosen = [
        _leave_out(each, what, text, place, messages=walk.count, salt=salt, when=when)
        for each, what, text, place in found
        if _count_tokens(text) >= settings.min_tokens and (remembered_id(each.call_id), hash_text(text)) not in gone
    ]
    # A change that is not expected to gain is not made.
    return [each for each in chosen if each.gain_tokens > 0]


def _list_old_inputs(seen: Sequence[SeenResult], places: range) -> Iterator[tuple[SeenResult, str, str, int]]:
    """The texts of edits in finished turns, with name and place, except those of the newest edit of each file."""
    edits = [each for each in seen if _EDITS.search(each.tool) and not each.failed and not may_be_ours(each.tool)]
    newest = {_path_of(each.arguments): each.call_place for each in sorted(edits, key=attrgetter("call_place"))}
    for each in edits:
        path = _path_of(each.arguments)
        if path and each.call_place in places and each.call_place != newest[path]:
            texts = ((name, value) for name, value in each.arguments.items() if name not in _PATHS)
            yield from ((each, name, value, each.call_place) for name, value in texts if isinstance(value, str))


def choose_thinking(
    facts: Sequence[Fact], walk: Walk, gone: Collection[int], *, first_place: int, salt: str
) -> list[ColdResult]:
    """The thinking of finished turns to leave out, except that of the messages that are `gone`. It needs no stub.

    Its text is kept; its signature is of use to nobody but the provider.
    """
    chosen: list[ColdResult] = []
    for place in range(first_place, _end_of_finished(walk)):
        fact = facts[place]
        if not fact.thoughts or fact.only_thinks or place in gone:
            continue
        text_hash = hash_thinking(fact)
        res_id = "res_" + hash_text(f"{salt}\0{THINKING_ID}\0{text_hash}")[:20]
        tokens = tokens_of(weigh_thinking(fact.thoughts))
        decision = LeftOutDecision(THINKING_ID, text_hash, res_id, "", tokens=tokens, messages=walk.count)
        texts = (text for thought in fact.thoughts if isinstance(text := thought.get("thinking"), str))
        chosen.append(ColdResult(decision, "\n".join(texts), place))
    return chosen


def _leave_out(
    each: SeenResult, what: str, text: str, place: int, *, messages: int, salt: str, when: str
) -> ColdResult:
    text_hash, tokens = hash_text(text), _count_tokens(text)
    res_id = "res_" + hash_text(f"{salt}\0{each.call_id}\0{text_hash}")[:20]
    stub = stub_of(res_id, each.tool, each.arguments, tokens, what=what, when=when)
    call_id = remembered_id(each.call_id)
    return ColdResult(LeftOutDecision(call_id, text_hash, res_id, stub, tokens=tokens, messages=messages), text, place)


def _count_tokens(text: str) -> int:
    return tokens_of(len(text.encode("utf-8", "surrogatepass")))


def stub_of(
    res_id: str, tool: str, arguments: Members, tokens: int, *, what: str = "result", when: str = AFTER_A_PAUSE
) -> str:
    """One line that names the call, the size of what is left out and how to read it again."""
    name = _UNSAFE.sub(" ", tool)[:_NAME_MAX_CHARS].strip() or "a tool"
    path = _UNSAFE.sub(" ", _path_of(arguments)).strip()
    if len(path) > _PATH_MAX_CHARS:
        path = "…" + path[-_PATH_MAX_CHARS:]
    for of in (f"{name} {path}".strip(), name, "a tool"):
        stub = (
            f"[contextfold: {_UNSAFE.sub(' ', what)[:_NAME_MAX_CHARS]} of {of}, {tokens:,} tokens, left out{when}. "
            f'To see it: context_expand "{res_id}", or run: context fold expand {res_id}]'
        )
        if len(stub.encode("utf-8", "surrogatepass")) <= STUB_MAX_BYTES:
            break
    return stub


def _turn_of(place: int, turns: Sequence[int]) -> int:
    """The index of the first message of a result's turn."""
    number = bisect_right(turns, place)
    return turns[number - 1] if number else 0


def _path_of(arguments: Members) -> str:
    return next((value for name in _PATHS if isinstance(value := arguments.get(name), str)), "")


def _reads_before_edits(seen: Sequence[SeenResult]) -> set[int]:
    """The newest read of each file that was edited after it. The model may still need these.

    Failed calls do not count.
    """
    newest: dict[str, int] = {}
    protected: dict[str, int] = {}
    for number, each in enumerate(seen):
        path = _path_of(each.arguments)
        if not path or each.failed:
            continue
        if _EDITS.search(each.tool):
            if path in newest:
                protected[path] = newest[path]
        elif _READS.search(each.tool):
            newest[path] = number
            protected.pop(path, None)
    return set(protected.values())


def list_results(facts: Iterable[Fact]) -> list[SeenResult]:
    """All results of a request's messages with their calls."""
    calls: dict[str, tuple[int, Call]] = {}
    seen: list[SeenResult] = []
    for place, fact in enumerate(facts):
        calls.update((call.id, (place, call)) for call in fact.calls)
        for call_id, content, failed, _ in fact.results:
            call_place, call = calls.get(call_id, (place, HOSTED))
            has_words = has_user_words(content, call.tools, failed=failed)
            text = None if has_words else plain_text(content)
            has_error = failed or (isinstance(content, Mapping) and "error" in content)
            arguments = read_arguments(call.arguments)
            seen.append(SeenResult(place, call_place, call_id, text, has_error, call.name, arguments))
    return seen


def plain_text(content: object) -> str | None:
    """The text of a result that is only text; None for any other result."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        values = list(content.values())
        return values[0] if len(values) == 1 and isinstance(values[0], str) and "error" not in content else None
    blocks = [block_members(block) for block in items_of(content) or ()]
    texts = [block.get("text") for block in blocks if block.get("type") in ("text", "input_text", "output_text")]
    if not blocks or len(texts) != len(blocks) or not all(isinstance(text, str) for text in texts):
        return None
    return "\n".join(str(text) for text in texts)


def read_arguments(value: object) -> Members:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return block_members(value)
