"""Decides which old tool results are left out when a conversation continues after its prompt cache has expired. Pure.

Only then does leaving them out cost nothing, because the whole prefix must be paid for again. Others store the
decisions, and later requests of the conversation get the same stubs (`Remembered`).
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from contextfold.common.tokens import tokens_of
from contextfold.fold.messages.facts import (
    HOSTED,
    Call,
    Fact,
    Members,
    block_members,
    has_quoted_user,
    items_of,
)
from contextfold.fold.messages.own_tools import CallOutcome, may_be_ours
from contextfold.fold.messages.walk import Walk
from contextfold.fold.store import merge_outcomes

# No provider's cache has a shorter usual lifetime.
SHORTEST_CACHE_S = 300.0
MIN_TOKENS = 400
SPARED_TURNS = 2
STUB_MAX_BYTES = 240

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


class SeenResult(NamedTuple):
    """The facts about a tool result of a request."""

    place: int
    call_id: str
    # None if the result has anything except text.
    text: str | None
    failed: bool
    # The call's tool and arguments.
    tool: str
    arguments: Members


class ColdResult(NamedTuple):
    result: LeftOutResult
    # The text must be scrubbed and stored before the stub is sent for the first time.
    text: str


@dataclass(frozen=True, slots=True)
class LeftOutResult:
    """A tool result that every later request of its conversation leaves out, and the stub that replaces it."""

    # The id, which begins with `res_`.
    id: str
    call_id: str
    # The hash of the text in the request, because some clients reuse call ids.
    text_hash: str
    stub: str
    # The tokens of the text.
    tokens: int
    # The number of the conversation's messages at the time of the decision. Bound thinking before is left out, too.
    messages: int


@dataclass(frozen=True, slots=True)
class Remembered:
    # The outcomes by call id. An outcome without a verb is ambiguous, because the client used the id for several calls.
    outcomes: Mapping[str, CallOutcome] = field(default_factory=dict)
    # The results by call id, then by hash of the text.
    results: Mapping[str, Mapping[str, LeftOutResult]] = field(default_factory=dict)


NOTHING_REMEMBERED = Remembered()


def by_call(results: tuple[LeftOutResult, ...]) -> dict[str, dict[str, LeftOutResult]]:
    """Results by call id and hash, for `Remembered`."""
    ordered: dict[str, dict[str, LeftOutResult]] = {}
    for result in results:
        ordered.setdefault(result.call_id, {})[result.text_hash] = result
    return ordered


def merged_outcomes(old: Mapping[str, CallOutcome], new: Mapping[str, CallOutcome]) -> dict[str, CallOutcome]:
    """Merge outcomes; drop the oldest if there are too many. An id of two different calls is ambiguous."""
    return merge_outcomes(old, new, ambiguous=CallOutcome(""))


def find_stubs(facts: Sequence[Fact], remembered: Remembered) -> dict[int, dict[int, LeftOutResult]]:
    """The results that earlier requests left out, by the index of the message, then by the result's number in it."""
    stubs: dict[int, dict[int, LeftOutResult]] = {}
    for place, fact in enumerate(facts):
        for number, result in enumerate(fact.results):
            known = remembered.results.get(result.id)
            text = plain_text(result.content) if known else None
            if known and text is not None and (found := known.get(hash_text(text))):
                stubs.setdefault(place, {})[number] = found
    return stubs


def hash_text(text: str) -> str:
    """The hash of a text. It does not depend on the escapes in the request."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def choose_results(
    seen: Sequence[SeenResult],
    walk: Walk,
    gone: Collection[tuple[str, str]],
    *,
    first_movable: int,
    salt: str,
    settings: ColdSettings,
) -> list[ColdResult]:
    """The results to leave out, except those that are `gone` already, by call id and hash.

    A change before `first_movable` would invalidate bound thinking. `salt` makes the ids unique to one owner's
    conversation.
    """
    tool_turns = sorted({_turn_of(each.place, walk.turns) for each in seen})
    spared = walk.count
    if settings.spared_turns:
        spared = tool_turns[-settings.spared_turns] if len(tool_turns) >= settings.spared_turns else 0
    protected = _reads_before_edits(seen)
    chosen: list[ColdResult] = []
    for number, each in enumerate(seen):
        if each.text is None or each.failed or number in protected or may_be_ours(each.tool):
            continue
        if _turn_of(each.place, walk.turns) >= spared or each.place < first_movable:
            continue
        tokens, text_hash = tokens_of(len(each.text.encode("utf-8", "surrogatepass"))), hash_text(each.text)
        if tokens < settings.min_tokens or (each.call_id, text_hash) in gone:
            continue
        res_id = "res_" + hash_text(f"{salt}\0{each.call_id}\0{text_hash}")[:20]
        stub = stub_of(res_id, each.tool, each.arguments, tokens)
        chosen.append(ColdResult(LeftOutResult(res_id, each.call_id, text_hash, stub, tokens, walk.count), each.text))
    return chosen


def stub_of(res_id: str, tool: str, arguments: Members, tokens: int) -> str:
    """One line that names the call, the size of its result and how to read it again."""
    name = _UNSAFE.sub(" ", tool)[:_NAME_MAX_CHARS].strip() or "a tool"
    path = _UNSAFE.sub(" ", _path_of(arguments)).strip()
    if len(path) > _PATH_MAX_CHARS:
        path = "…" + path[-_PATH_MAX_CHARS:]
    for what in (f"{name} {path}".strip(), name, "a tool"):
        stub = (
            f"[contextfold: result of {what}, {tokens:,} tokens, left out after a pause. "
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
    calls: dict[str, Call] = {}
    seen: list[SeenResult] = []
    for place, fact in enumerate(facts):
        calls.update((call.id, call) for call in fact.calls)
        for call_id, content, failed, _ in fact.results:
            call = calls.get(call_id, HOSTED)
            text = None if has_quoted_user(content) else plain_text(content)
            has_error = failed or (isinstance(content, Mapping) and "error" in content)
            seen.append(SeenResult(place, call_id, text, has_error, call.name, _arguments(call.arguments)))
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


def _arguments(value: object) -> Members:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return block_members(value)
