"""Decides which old tool results are left out when a conversation continues after its prompt cache has expired. Pure.

Only then does leaving them out cost nothing, because the whole prefix must be paid for again. The decisions are stored,
and later requests of the conversation get the same stubs (`remembered.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from contextfold.common.dataclass import dataclass
from contextfold.common.token_counter import tokens_of
from contextfold.fold.messages.apis import gemini
from contextfold.fold.messages.apis.facts import CallNumbers, Members, Result, block_members, has_quoted_user, items_of
from contextfold.fold.messages.own_tools import verb_of
from contextfold.fold.messages.remembered import LeftOutResult, Remembered

MIN_TOKENS = 400
SPARED_TURNS = 2
STUB_MAX_BYTES = 240
# At most this many encoded stubs are cached, each of about 240 bytes.
STUBS_ENCODED_MAX = 10_000
ANTHROPIC_CACHE_S = 300.0
LONG_CACHE_S = 3600.0
DAY_CACHE_S = 86_400.0

_OUR_TOOL = re.compile(r"context_(branch|return|fold|rollback|record|branch_status|list_branches|expand|recall)")
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


def cache_life_s(format: str, members: Mapping[str, Any], default_s: float | None = None) -> float:
    """The longest lifetime of this request's prefix in the provider's cache, according to its documentation."""
    if format == "anthropic":
        if _has_long_cache(members):
            return LONG_CACHE_S
        return ANTHROPIC_CACHE_S if default_s is None else default_s
    if format != "gemini" and members.get("prompt_cache_retention") == "24h":
        return DAY_CACHE_S
    return LONG_CACHE_S if default_s is None else default_s


def _has_long_cache(members: Mapping[str, Any]) -> bool:
    """Whether any `cache_control` of the request has a lifetime of an hour. It does not recurse."""
    waiting: list[object] = [members]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            mark = value.get("cache_control")
            if isinstance(mark, Mapping) and mark.get("ttl") == "1h":
                return True
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
    return False


class LocatedResults(NamedTuple):
    """The results of a message."""

    # The hashes of their texts; empty for a result that is not only text.
    hashes: tuple[str, ...]
    # The positions of the contents that are only text, by the number of the result.
    spans: Mapping[int, tuple[int, int]] = MappingProxyType({})
    # The excess of the bytes of the message's files over their weight.
    excess: int = 0


def result_hashes(results: Sequence[Result], *, encoding: str = "utf-8") -> tuple[str, ...]:
    """The hashes of results. `encoding` is that which gives UTF-8 bytes: latin-1 for text decoded as latin-1."""
    texts = [plain_text(result.content) for result in results]
    return tuple("" if text is None else hash_of(text, encoding) for text in texts)


def remembered_stubs(results: Sequence[Result], remembered: Remembered) -> dict[int, LeftOutResult]:
    """The results of a message that earlier requests left out, by their number."""
    stubs: dict[int, LeftOutResult] = {}
    for number, result in enumerate(results):
        known = remembered.results.get(result.id)
        text = plain_text(result.content) if known else None
        if known and text is not None and (found := known.get(hash_of(text))):
            stubs[number] = found
    return stubs


def hash_of(text: str, encoding: str = "utf-8") -> str:
    """The hash of a result's text. It does not depend on the escapes in the request."""
    return hashlib.sha256(text.encode(encoding, "surrogatepass")).hexdigest()


@lru_cache(maxsize=STUBS_ENCODED_MAX)
def encoded_stub(stub: str) -> bytes:
    """The stub as a JSON string. It is cached, because every request of a conversation has the same stubs."""
    return json.dumps(stub).encode("ascii")


@lru_cache(maxsize=STUBS_ENCODED_MAX)
def encoded_object_stub(stub: str) -> bytes:
    """The stub as a JSON object, for APIs whose results are objects."""
    return json.dumps({"output": stub}).encode("ascii")


def cold_results(
    seen: Sequence[SeenResult],
    *,
    turns: Sequence[int],
    messages: int,
    first_movable: int,
    salt: str,
    settings: ColdSettings,
) -> list[ColdResult]:
    """The results to leave out.

    `turns` has the index of the first message of each turn. A change before `first_movable` would invalidate bound
    thinking. `salt` makes the ids unique to one owner's conversation.
    """
    tool_turns = sorted({_turn_of(each.place, turns) for each in seen})
    spared = messages
    if settings.spared_turns:
        spared = tool_turns[-settings.spared_turns] if len(tool_turns) >= settings.spared_turns else 0
    protected = _reads_before_edits(seen)
    chosen: list[ColdResult] = []
    for number, each in enumerate(seen):
        if each.text is None or each.failed or number in protected or _is_ours(each.tool):
            continue
        if _turn_of(each.place, turns) >= spared or each.place < first_movable:
            continue
        tokens = tokens_of(len(each.text.encode("utf-8", "surrogatepass")))
        if tokens < settings.min_tokens:
            continue
        text_hash = hash_of(each.text)
        res_id = "res_" + hashlib.sha256(f"{salt}\0{each.call_id}\0{text_hash}".encode()).hexdigest()[:20]
        stub = stub_of(res_id, each.tool, each.arguments, tokens)
        chosen.append(ColdResult(LeftOutResult(res_id, each.call_id, text_hash, stub, tokens, messages), each.text))
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


def _is_ours(tool: str) -> bool:
    return _OUR_TOOL.search(tool) is not None or bool(verb_of(tool)[0])


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


# ---- Readers of results for each API


def seen_results(messages: Sequence[Members], format: str) -> list[SeenResult]:
    """All results of a request's messages with their calls."""
    calls: dict[str, tuple[str, Members]] = {}
    seen: list[SeenResult] = []
    read, numbers = _READERS[format], CallNumbers()
    for place, message in enumerate(messages):
        for call_id, tool, arguments in read.calls(message):
            calls[numbers.of_call(call_id)] = (tool, arguments)
        if message.get("role") != "model":
            numbers.end_turn()
        for call_id, content, failed in read.results(message):
            numbered = numbers.of_result(call_id)
            tool, arguments = calls.get(numbered, ("", {}))
            text = None if has_quoted_user(content) else plain_text(content)
            seen.append(SeenResult(place, numbered, text, failed, tool, arguments))
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


class _ResultReader(NamedTuple):
    calls: Callable[[Members], list[tuple[str, str, Members]]]
    results: Callable[[Members], list[tuple[str, object, bool]]]


def _arguments(value: object) -> Members:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return block_members(value)


def _anthropic_calls(message: Members) -> list[tuple[str, str, Members]]:
    blocks = [block_members(block) for block in items_of(message.get("content")) or ()]
    return [
        (str(block.get("id")), str(block.get("name")), _arguments(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    ]


def _anthropic_results(message: Members) -> list[tuple[str, object, bool]]:
    blocks = [block_members(block) for block in items_of(message.get("content")) or ()]
    return [
        (str(block.get("tool_use_id")), block.get("content"), block.get("is_error") not in (None, False))
        for block in blocks
        if block.get("type") == "tool_result"
    ]


def _chat_calls(message: Members) -> list[tuple[str, str, Members]]:
    calls = [block_members(call) for call in items_of(message.get("tool_calls")) or ()]
    functions = [(call, block_members(call.get("function"))) for call in calls]
    return [(str(call.get("id")), str(made.get("name")), _arguments(made.get("arguments"))) for call, made in functions]


def _chat_results(message: Members) -> list[tuple[str, object, bool]]:
    is_result = message.get("role") == "tool"
    return [(str(message.get("tool_call_id")), message.get("content"), False)] if is_result else []


def _responses_calls(item: Members) -> list[tuple[str, str, Members]]:
    is_call = item.get("type") == "function_call"
    return [(str(item.get("call_id")), str(item.get("name")), _arguments(item.get("arguments")))] if is_call else []


def _responses_results(item: Members) -> list[tuple[str, object, bool]]:
    is_result = item.get("type") == "function_call_output"
    return [(str(item.get("call_id")), item.get("output"), False)] if is_result else []


def _gemini_parts(content: Members, member_of: Callable[[Members], object]) -> list[Members]:
    parts = [member_of(block_members(part)) for part in items_of(content.get("parts")) or ()]
    return [members for part in parts if gemini.id_of(members := block_members(part))]


def _gemini_calls(content: Members) -> list[tuple[str, str, Members]]:
    calls = _gemini_parts(content, gemini.call_of_part)
    return [(gemini.id_of(call), str(call.get("name")), _arguments(call.get("args"))) for call in calls]


def _gemini_results(content: Members) -> list[tuple[str, object, bool]]:
    found = _gemini_parts(content, gemini.response_of)
    results = [(gemini.id_of(each), each.get("response")) for each in found]
    return [(call_id, response, "error" in block_members(response)) for call_id, response in results]


_READERS = {
    "anthropic": _ResultReader(_anthropic_calls, _anthropic_results),
    "openai-chat": _ResultReader(_chat_calls, _chat_results),
    "openai-responses": _ResultReader(_responses_calls, _responses_results),
    "gemini": _ResultReader(_gemini_calls, _gemini_results),
}
