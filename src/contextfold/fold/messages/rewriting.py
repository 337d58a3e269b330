"""Changes messages that stay: removes parts and inserts words. Works on objects and on the bytes of a request.

On bytes, a change is a list of splices; all other bytes stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from contextfold.fold.messages.apis.facts import Members, block_members, items_of
from contextfold.fold.messages.formats import Api
from contextfold.fold.messages.remembered import LeftOutResult
from contextfold.fold.messages.weight import excess_in

_SPACE = re.compile(r"[ \t\n\r]*+")
_TEXT_PART = '{"type":"text","text":%s}'
_decoder: Any = json.JSONDecoder(parse_int=len, parse_float=len)
_decode: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once


class Rewrite(NamedTuple):
    """The changes of one message that stays. A request may have hundreds of them."""

    without_thinking: bool = False
    # The messages that are left out and whose words are added after its parts.
    words_of: tuple[int, ...] = ()
    # The texts that replace the contents of results, by the number of the result in the message.
    stubs: Mapping[int, LeftOutResult] = MappingProxyType({})


class Splice(NamedTuple):
    """The replacement of a range of positions in the text of a message."""

    start: int
    end: int
    replacement: str
    # The excess of the replacement's bytes over its weight.
    excess: int = 0


# ---- Changes of objects


def rewritten(message: Members, rewrite: Rewrite, sources: Sequence[Members], api: Api) -> dict[str, Any]:
    if not api.parts_name:
        return _with_content(message, rewrite.stubs[0].stub, api) if rewrite.stubs else dict(message)
    content: list[object] = list(_parts_of(message, api))
    if rewrite.stubs and api.is_result:
        numbers = [n for n, part in enumerate(content) if api.is_result(block_members(part))]
        for number, result in rewrite.stubs.items():
            part = block_members(content[numbers[number]])
            content[numbers[number]] = _with_content(part, result.stub, api)
    if rewrite.without_thinking:
        content = [part for part in content if not api.is_thinking(block_members(part))]
    for source in sources:
        content += _words_of(source, api)
    return {**message, api.parts_name: content}


def _with_content(holder: Members, stub: str, api: Api) -> dict[str, Any]:
    *outer, name = api.content_path(holder)
    content: dict[str, Any] = {name: {"output": stub} if api.has_object_results else stub}
    for each in reversed(outer):
        content = {each: {**holder[each], **content}}
    return {**holder, **content}


def _parts_of(message: Members, api: Api) -> Sequence[object]:
    content = message.get(api.parts_name)
    return ({"type": "text", "text": content},) if isinstance(content, str) else items_of(content) or ()


def _words_of(message: Members, api: Api) -> list[object]:
    content = _parts_of(message, api)
    return [content[number] for number in _word_numbers(content, api)]


def _word_numbers(content: Sequence[object], api: Api) -> list[int]:
    """The numbers of the parts with the user's words. A host's text counts as the user's unless there is a result."""
    members = [block_members(part) for part in content]
    has_results = any(not api.is_words(part, False) for part in members)
    return [number for number, part in enumerate(members) if api.is_words(part, has_results)]


# ---- Changes of bytes. A message's text is its bytes decoded as latin-1, so positions in both are the same.


def splices_of(text: str, rewrite: Rewrite, sources: Sequence[str], api: Api) -> Iterator[Splice]:
    """The changes of one message except for stubs, in order. `sources` are the messages whose words are added."""
    elements = list(_elements(text, _member_start(text, 0, api.parts_name)))
    if rewrite.without_thinking:
        yield from _removed(elements, [api.is_thinking(block_members(each.value)) for each in elements])
    added: list[str] = []
    excess = 0
    for source in sources:
        for raw, value in _words_in(source, api):
            added.append(raw)
            excess += excess_in(value)
    if added:
        end = elements[-1].end
        yield Splice(end, end, "".join("," + raw for raw in added), excess)


def content_spans(text: str, numbers: Iterable[int], api: Api) -> dict[int, tuple[int, int]]:
    """The positions of the contents of a message's results, by the number of the result in the message."""
    holders: list[tuple[int, Members]] = [(0, {})]
    if api.is_result:
        elements = _elements(text, _member_start(text, 0, api.parts_name))
        parts = [(each.start, block_members(each.value)) for each in elements]
        holders = [(start, part) for start, part in parts if api.is_result(part)]
    spans: dict[int, tuple[int, int]] = {}
    for number in numbers:
        at, holder = holders[number]
        for name in api.content_path(holder):
            at = _member_start(text, at, name)
        spans[number] = at, _decode(text, at)[1]
    return spans


def _removed(elements: Sequence[_Element], gone: Sequence[bool]) -> Iterator[Splice]:
    """Remove elements, each up to the start of the next element that stays, so the commas stay correct."""
    for number, element in enumerate(elements):
        if not gone[number] or (number and gone[number - 1]):
            continue
        later = next((n for n in range(number + 1, len(elements)) if not gone[n]), None)
        if later is None:
            yield Splice(elements[number - 1].end, elements[-1].end, "")
        else:
            yield Splice(element.start, elements[later].start, "")


def _words_in(text: str, api: Api) -> list[tuple[str, Members]]:
    at = _member_start(text, 0, api.parts_name)
    if text.startswith('"', at):
        return [(_TEXT_PART % text[at : _decode(text, at)[1]], {})]
    elements = list(_elements(text, at))
    chosen = [elements[number] for number in _word_numbers([each.value for each in elements], api)]
    return [(text[each.start : each.end], block_members(each.value)) for each in chosen]


class _Element(NamedTuple):
    start: int
    end: int
    value: object


def _elements(text: str, at: int) -> Iterator[_Element]:
    """The elements of the array at `at`. The text is valid JSON, because it was parsed before."""
    at = _past_space(text, at + 1)
    while not text.startswith("]", at):
        value, end = _decode(text, at)
        yield _Element(at, end, value)
        at = _past_space(text, end)
        if text.startswith(",", at):
            at = _past_space(text, at + 1)


def _member_start(text: str, at: int, wanted: str) -> int:
    """The position of the value of a member in the object at `at`, which must have the member."""
    at = _past_space(text, at + 1)
    while True:
        name, end = _decode(text, at)
        at = _past_space(text, _past_space(text, end) + 1)
        if name == wanted:
            return at
        _, end = _decode(text, at)
        at = _past_space(text, _past_space(text, end) + 1)


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
