"""Reads a model's response while it is forwarded: the provider's usage, and the calls of our tools in it.

A response is one JSON object or a stream of server-sent events. Of a long object or event only the last bytes are
stored, so a response of any length needs little memory. There usage can still be read, because it is one of the last
members of the object, or of the object that an event wraps; calls cannot. Nothing here raises an error or delays the
response: what cannot be read is left out. Knows the four APIs' responses and content encodings; no socket and no
session.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from contextfold.common.canonical import Malformed, decode
from contextfold.common.tokens import tokens_of
from contextfold.fold.messages import Format
from contextfold.fold.messages.facts import Members, block_members, items_of
from contextfold.fold.messages.own_tools import NAME_LENGTH_MAX, is_marked, own_name_in, tools_in_script
from contextfold.fold.sent_request import Usage

# This many bytes of the end of a body or an event are stored.
EXCERPT_BYTES = 96 * 1024
# At most this many positions in an excerpt are tried.
USAGES_TRIED_MAX = 8
# A chunk that is larger after decompression is treated as an attack.
INFLATED_CHUNK_MAX = 4 << 20
PIECE_BYTES = 64 * 1024
# Of one response at most this many bytes are decompressed and this many events read, and at most this many events of
# one chunk: the daemon answers others in the same thread. A chunk of a real response has some hundreds.
INFLATED_MAX = 256 << 20
EVENTS_MAX = 1_000_000
CHUNK_EVENTS_MAX = 10_000
TOKENS_MAX = 1_000_000_000
# At most this many calls are read at the same time, and so many characters of the arguments of one. Of others only the
# sizes are counted.
CALLS_MAX = 128
ARGUMENTS_MAX_CHARS = 8 << 20

_EVENT_STREAM = "text/event-stream"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_EVENT_END = re.compile(rb"(?>\r\n|\r|\n){2}")
# The longest end of an event.
_EVENT_END_BYTES = 4
_DATA = b"data:"
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    # None if not even the prompt was counted.
    usage: Usage | None = None
    # The estimated tokens of the calls of our tools, and whether the response had no other call and no text.
    our_output_tokens: int = 0
    only_ours: bool = False


class OwnCall(NamedTuple):
    """A call of one of our tools in a response."""

    id: str
    # As we call it.
    tool: str
    # None if another tool calls ours, as code that the model has written does.
    arguments: Mapping[str, object] | None


@dataclass(slots=True)
class _OpenCall:
    """A call whose arguments still arrive."""

    id: str
    name: str
    is_ours: bool
    parts: list[str]
    # The characters that have arrived.
    size: int = 0


class _UsageNames(NamedTuple):
    """An API's names of the figures. `details` is the member with the cache's figures, if they are nested."""

    wrapper: str
    prompt: str
    details: str
    read: str
    written: str
    output: str
    container: str = "usage"
    # Whether the prompt's figure includes the cache's.
    includes_cache: bool = True


_USAGE_NAMES: Mapping[Format, _UsageNames] = {
    "anthropic": _UsageNames(
        *("message", "input_tokens", "", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"),
        includes_cache=False,
    ),
    "openai-chat": _UsageNames(
        "", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "cache_write_tokens", "completion_tokens"
    ),
    "openai-responses": _UsageNames(
        "response", "input_tokens", "input_tokens_details", "cached_tokens", "cache_write_tokens", "output_tokens"
    ),
    "gemini": _UsageNames(
        *("", "promptTokenCount", "", "cachedContentTokenCount", "", "candidatesTokenCount"),
        container="usageMetadata",
    ),
}
# An event that contains none of these has no information about calls.
_CALL_MARKS: Mapping[Format, tuple[bytes, ...]] = {
    "anthropic": (b'"content_block_start"',),
    "openai-chat": (b'"delta"',),
    "openai-responses": (b'"response.output_item.done"',),
    "gemini": (b'"candidates"',),
}
# After the first text, only an event that contains one of these has more of them.
_LATER_MARKS: Mapping[Format, tuple[bytes, ...]] = {
    **_CALL_MARKS,
    "openai-chat": (b'"tool_calls"',),
    "gemini": (b'"functionCall"',),
}
# An event that contains one of these continues or ends a call.
_OPEN_CALL_MARKS: Mapping[Format, tuple[bytes, ...]] = {
    "anthropic": (b'"input_json_delta"', b'"content_block_stop"'),
    "openai-chat": (b'"delta"',),
    "openai-responses": (),
    "gemini": (),
}


class ResponseReader:
    """Reads the chunks of a response's body. `facts` has the result after its end, complete or not."""

    def __init__(
        self, api: Format, content_type: str, content_encoding: str, our_tools: Collection[str] = frozenset()
    ) -> None:
        self._api, self._our_tools = api, our_tools
        self._names = _USAGE_NAMES[api]
        self._container = b'"%s"' % self._names.container.encode()
        self._figures: dict[str, int] = {}
        self._is_stream = content_type.partition(";")[0].strip().lower() == _EVENT_STREAM
        self._decompressor = _Decompressor(content_encoding)
        # The end of the body or of the current event, and whether it is complete.
        self._text = bytearray()
        self._is_whole = True
        self._events_left = EVENTS_MAX
        self._our_bytes = 0
        self._has_ours = False
        # Whether there is a call of another tool, or text.
        self._has_others = False
        # The calls of our tools that are being streamed, by index.
        self._open: dict[object, _OpenCall] = {}
        self._own_calls: list[OwnCall] = []

    def feed(self, chunk: bytes) -> None:
        events_before = self._events_left
        for piece in self._decompressor.pieces(chunk):
            if events_before - self._events_left > CHUNK_EVENTS_MAX:
                self._events_left = 0
            if self._events_left <= 0:
                return
            # The end of an event may be divided between two pieces.
            searched = max(0, len(self._text) - _EVENT_END_BYTES + 1)
            self._text += piece
            if self._is_stream:
                self._take_events(searched)
            if len(self._text) > EXCERPT_BYTES:
                del self._text[:-EXCERPT_BYTES]
                self._is_whole = False

    def take_own_calls(self) -> list[OwnCall]:
        """The calls of our tools that are complete and were not taken before."""
        calls, self._own_calls = self._own_calls, []
        return calls

    def facts(self) -> ResponseFacts:
        # The last event may lack its empty line.
        self._take_text(self._text)
        self._text.clear()
        self._close_calls()
        if self._decompressor.is_broken:
            return ResponseFacts()
        return ResponseFacts(self._usage(), tokens_of(self._our_bytes), self._has_ours and not self._has_others)

    def _take_events(self, searched: int) -> None:
        begin = 0
        for match in _EVENT_END.finditer(self._text, searched):
            self._take_text(self._text[begin : match.start()])
            self._is_whole = True
            self._events_left -= 1
            begin = match.end()
        del self._text[:begin]

    def _take_text(self, text: bytes | bytearray) -> None:
        """Read a body or an event."""
        has_calls = not self._is_stream or any(mark in text for mark in self._marks())
        if self._container not in text and not has_calls:
            return
        if self._is_stream:
            lines = _LINE_END.split(text)
            # The first line of an incomplete event is the end of a line.
            first = [] if self._is_whole else lines[:1]
            text = b"\n".join([*first, *(line[len(_DATA) :] for line in lines if line.startswith(_DATA))])
        if not self._is_whole:
            for end in _parse_around_usage(bytes(text), self._container, self._names.wrapper):
                self._take_usage(end)
        elif isinstance(value := _parse(bytes(text)), dict):
            self._take_usage(value)
            if has_calls:
                self._take_calls(value)

    # ---- usage

    def _take_usage(self, value: Members) -> None:
        names = self._names
        for holder in (value, value.get(names.wrapper)):
            usage = block_members(holder).get(names.container)
            if not isinstance(usage, dict):
                continue
            cache = block_members(usage.get(names.details)) if names.details else usage
            lives = block_members(usage.get("cache_creation"))
            self._count(usage, names.prompt, names.output)
            self._count(cache, names.read, names.written)
            self._count(lives, "ephemeral_1h_input_tokens")

    def _count(self, figures: Members, *names: str) -> None:
        """Take the largest figure of each name, because figures grow during a response."""
        for name in names:
            value = figures.get(name)
            if type(value) is int and 0 <= value <= TOKENS_MAX:
                self._figures[name] = max(value, self._figures.get(name, 0))

    def _usage(self) -> Usage | None:
        names, figures = self._names, self._figures
        if names.prompt not in figures:
            return None
        prompt, output = figures[names.prompt], figures.get(names.output, 0)
        read, written = figures.get(names.read, 0), figures.get(names.written, 0)
        if names.includes_cache:
            read = min(read, prompt)
            written = min(written, prompt - read)
            prompt -= read + written
        return Usage(prompt, read, written, output, min(written, figures.get("ephemeral_1h_input_tokens", 0)))

    # ---- calls

    def _marks(self) -> Iterator[bytes]:
        yield from (_LATER_MARKS if self._has_others else _CALL_MARKS)[self._api]
        if self._open:
            yield from _OPEN_CALL_MARKS[self._api]

    def _take_calls(self, value: Members) -> None:
        for output in _OUTPUTS[self._api](value, self._is_stream):
            key = output.number if isinstance(output.number, int) else None
            if output.name is not None:
                is_ours = output.name in self._our_tools or is_marked(output.name)
                self._has_ours |= is_ours
                self._has_others |= not is_ours
                self._our_bytes += len(output.name) if is_ours else 0
                # The code of a call that is complete may call our tools.
                is_read = output.is_end or own_name_in(output.name[:NAME_LENGTH_MAX])
                if output.name and is_read and len(self._open) < CALLS_MAX:
                    self._open[key] = _OpenCall(output.id, output.name, is_ours, [])
            if output.arguments and (call := self._open.get(key)):
                text = output.arguments if isinstance(output.arguments, str) else encode_arguments(output.arguments)
                self._our_bytes += len(text) if call.is_ours else 0
                call.size += len(text)
                if call.size <= ARGUMENTS_MAX_CHARS:
                    call.parts.append(text)
            if output.is_end:
                self._close_calls(key)

    def _close_calls(self, *keys: object) -> None:
        """Take the calls that are complete: those with these indexes, or all."""
        for key in keys or tuple(self._open):
            call = self._open.pop(key, None)
            text = "".join(call.parts) if call else ""
            tool = own_name_in(call.name[:NAME_LENGTH_MAX]) if call else ""
            arguments = _parse(text.encode("utf-8", "surrogatepass")) if tool and text else {}
            if call and tool and isinstance(arguments, dict):
                self._own_calls.append(OwnCall(call.id, tool, arguments))
            elif call and (tool := tool or _own_tool_in_script(text)):
                self._own_calls.append(OwnCall(call.id, tool, None))


def _own_tool_in_script(text: str) -> str:
    """The first tool of ours that a script calls. A text that only mentions one, like a file to write, is no call."""
    ours, _ = tools_in_script(text)
    return own_name_in(ours[0]) if ours else ""


def _parse_around_usage(text: bytes, container: bytes, wrapper: str) -> Iterator[Mapping[str, Any]]:
    """Objects that are parsed from the end of a text whose beginning is missing.

    From a member on, the text is an object once it gets an opening bracket. It parses only if the member belongs to
    the outermost object, or to the one that an event wraps.
    """
    openings = [b"{", *([b'{"%s":{' % wrapper.encode()] if wrapper else [])]
    at = len(text)
    for _ in range(USAGES_TRIED_MAX):
        at = text.rfind(container, 0, at)
        if at < 0:
            break
        for opening in openings:
            value = _parse(opening + text[at:])
            if isinstance(value, dict):
                yield value


def _parse(text: bytes) -> object:
    try:
        return decode(text)
    except Malformed:
        return None


def encode_arguments(value: object) -> str:
    return json.dumps(value, default=block_members)


# ---- The outputs of the model in a response or in an event, for each API.


class _Output(NamedTuple):
    """A call, a part of one, or a text."""

    number: object = None
    # The name of the tool; empty for a text; None if an earlier event has it.
    name: str | None = None
    id: str = ""
    arguments: object = None
    # Whether the call is complete.
    is_end: bool = False


_Outputs = Iterator[_Output]


def _anthropic_outputs(value: Members, is_event: bool) -> _Outputs:
    index = value.get("index")
    if is_event and "content_block" not in value:
        is_end = value.get("type") == "content_block_stop"
        yield _Output(index, None, "", block_members(value.get("delta")).get("partial_json"), is_end)
        return
    for block in map(block_members, (value["content_block"],) if is_event else items_of(value.get("content")) or ()):
        kind = block.get("type")
        if kind not in ("thinking", "redacted_thinking"):
            name = str(block.get("name")) if kind == "tool_use" else ""
            yield _Output(index, name, str(block.get("id")), block.get("input"), not is_event)


def _chat_outputs(value: Members, is_event: bool) -> _Outputs:
    for choice in items_of(value.get("choices")) or ():
        message = block_members(block_members(choice).get("delta" if is_event else "message"))
        if message.get("content"):
            yield _Output(name="")
        for call in map(block_members, items_of(message.get("tool_calls")) or ()):
            function = block_members(call.get("function") or call.get("custom"))
            name, arguments = function.get("name"), function.get("arguments") or function.get("input")
            yield _Output(
                call.get("index"), str(name) if name else None, str(call.get("id")), arguments, is_end=not is_event
            )
        if block_members(choice).get("finish_reason"):
            yield from (_Output(index, is_end=True) for index in range(CALLS_MAX))


def _responses_outputs(value: Members, is_event: bool) -> _Outputs:
    for item in map(block_members, (value.get("item"),) if is_event else items_of(value.get("output")) or ()):
        kind = item.get("type")
        if kind not in (None, "reasoning"):
            name = str(item.get("name")) if kind in ("function_call", "custom_tool_call") else ""
            given = item.get("arguments") or item.get("input")
            ours, others = tools_in_script(item.get("input"))
            if ours and not others:
                name = ours[0]
            yield _Output(None, name, str(item.get("call_id")), given, is_end=True)


def _gemini_outputs(value: Members, is_event: bool) -> _Outputs:
    for candidate in items_of(value.get("candidates")) or ():
        content = block_members(block_members(candidate).get("content"))
        for part in map(block_members, items_of(content.get("parts")) or ()):
            call = block_members(part.get("functionCall"))
            if call:
                yield _Output(None, str(call.get("name")), str(call.get("id", "")), call.get("args"), is_end=True)
            elif not part.get("thought") and (part.get("text") or "text" not in part):
                yield _Output(name="")


_OUTPUTS = {
    "anthropic": _anthropic_outputs,
    "openai-chat": _chat_outputs,
    "openai-responses": _responses_outputs,
    "gemini": _gemini_outputs,
}


class _Decompressor:
    """Decompresses gzip and deflate, and divides what is not compressed."""

    def __init__(self, content_encoding: str) -> None:
        name = content_encoding.strip().lower()
        is_compressed = name in ("gzip", "x-gzip", "deflate")
        self._inflater = zlib.decompressobj(_ZLIB_OR_GZIP) if is_compressed else None
        # If the data cannot be decompressed, nothing that was read before counts.
        self.is_broken = not is_compressed and name not in ("", "identity")
        self._room = INFLATED_MAX

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        if self._inflater is None:
            for start in range(0, len(chunk), PIECE_BYTES):
                yield chunk[start : start + PIECE_BYTES]
            return
        room = INFLATED_CHUNK_MAX
        while not self._inflater.eof and not self.is_broken:
            try:
                piece = self._inflater.decompress(chunk, PIECE_BYTES)
            except zlib.error:
                self.is_broken = True
                return
            if not piece:
                return
            chunk = self._inflater.unconsumed_tail
            room -= len(piece)
            self._room -= len(piece)
            self.is_broken = min(room, self._room) <= 0
            yield piece
