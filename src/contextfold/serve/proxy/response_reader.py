"""Reads a model's response while it is forwarded: the provider's usage, and the calls of our tools in it.

A response is one JSON object or a stream of server-sent events. Of the object, and of each event, only the first and
the last bytes are stored, so a response of any length needs little memory. Usage is a member of the object or of the
object that an event wraps, so it can be read from either end. Calls are read only from events that are stored
completely. Nothing here raises an error or delays the response: what cannot be read is left out. Knows the four APIs'
responses and content encodings; no socket and no session.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from contextfold.common.canonical import Malformed, decode
from contextfold.common.dataclass import dataclass
from contextfold.common.token_counter import tokens_of
from contextfold.fold.ledger.sent_request import Usage
from contextfold.fold.messages.apis.facts import block_members, items_of
from contextfold.fold.messages.own_tool_weights import is_marked

# This many bytes of the beginning and of the end of a body or an event are stored.
EXCERPT_BYTES = 48 * 1024
# At most this many positions in an excerpt are tried.
USAGES_TRIED_MAX = 8
# A chunk that is larger after decompression is treated as an attack.
INFLATED_CHUNK_MAX = 4 << 20
INFLATED_PIECE_BYTES = 64 * 1024
# The largest number of lines and parsed events of one response.
STEPS_MAX = 2_000_000
PARSE_STEPS = 10
TOKENS_MAX = 1_000_000_000

_EVENT_STREAM = "text/event-stream"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DATA = b"data:"
# The first bytes of a deflated body, which show its format.
_HEAD_BYTES = 2
_ZLIB_OR_GZIP, _RAW_DEFLATE = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    # None if not even the prompt was counted.
    usage: Usage | None = None
    # The estimated tokens of the calls of our tools, and whether the response had no other call and no text.
    our_output_tokens: int = 0
    only_ours: bool = False


@dataclass(frozen=True, slots=True)
class _UsageNames:
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


_USAGE_NAMES = {
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
_CALL_MARKS: Mapping[str, tuple[bytes, ...]] = {
    "anthropic": (b'"content_block_start"', b'"input_json_delta"'),
    "openai-chat": (b'"delta"',),
    "openai-responses": (b'"response.output_item.done"',),
    "gemini": (b'"candidates"',),
}


class ResponseReader:
    """Reads the chunks of a response's body. `facts` has the result after its end, complete or not."""

    def __init__(
        self, api: str, content_type: str, content_encoding: str, our_tools: Collection[str] = frozenset()
    ) -> None:
        self._names = _USAGE_NAMES.get(api)
        self._figures: dict[str, int] = {}
        self._calls = _CallReader(api, our_tools)
        self._call_marks = _CALL_MARKS.get(api, ()) if our_tools else ()
        self._is_stream = content_type.partition(";")[0].strip().lower() == _EVENT_STREAM
        self._decompressor = _Decompressor(content_encoding)
        self._excerpt = _Excerpt()
        self._line = b""
        # Whether the current line has data; None while it is too short to decide.
        self._is_data: bool | None = None
        self._after_cr = False
        self._steps_left = STEPS_MAX

    def feed(self, chunk: bytes) -> None:
        for piece in self._decompressor.pieces(chunk):
            if self._is_stream:
                self._feed_lines(piece)
            else:
                self._excerpt.add(piece)

    def facts(self) -> ResponseFacts:
        if self._is_stream:
            # The last event may lack its empty line.
            self._end_line()
        self._end_text()
        if self._decompressor.is_broken:
            return ResponseFacts()
        return ResponseFacts(self._usage(), self._calls.our_tokens, self._calls.only_ours)

    # ---- server-sent events

    def _feed_lines(self, piece: bytes) -> None:
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        if not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            self._steps_left -= 1
            if self._steps_left <= 0:
                return
            self._add_to_line(line)
            self._end_line()
        self._add_to_line(rest)

    def _add_to_line(self, part: bytes) -> None:
        if self._is_data is None:
            self._line += part
            if len(self._line) < len(_DATA):
                return
            self._is_data = self._line.startswith(_DATA)
            part, self._line = self._line[len(_DATA) :], b""
        if self._is_data:
            self._excerpt.add(part)

    def _end_line(self) -> None:
        if self._is_data:
            self._excerpt.add(b"\n")
        elif self._is_data is None and not self._line:
            self._end_text()
        self._is_data, self._line = None, b""

    # ---- one body, or the data of one event

    def _end_text(self) -> None:
        excerpt = self._excerpt
        if self._names is None or self._steps_left <= 0 or not excerpt.size:
            excerpt.clear()
            return
        container = b'"%s"' % self._names.container.encode()
        has_usage = excerpt.contains(container)
        has_calls = not self._is_stream or any(map(excerpt.contains, self._call_marks))
        if has_usage or has_calls:
            self._steps_left -= PARSE_STEPS
            whole = excerpt.whole
            if whole is None:
                for text in _around_usage(excerpt.head, bytes(excerpt.tail), container, self._names.wrapper):
                    self._take_usage(text)
            elif isinstance(value := _parsed(whole), dict):
                self._take_usage(value)
                if self._call_marks:
                    self._calls.take(value, is_event=self._is_stream)
        elif excerpt.whole is None and not self._is_stream:
            self._calls.has_others = True
        excerpt.clear()

    def _take_usage(self, value: Mapping[str, Any]) -> None:
        names = self._names
        assert names is not None
        for holder in (value, value.get(names.wrapper)):
            usage = block_members(holder).get(names.container)
            if not isinstance(usage, dict):
                continue
            cache = block_members(usage.get(names.details)) if names.details else usage
            lives = block_members(usage.get("cache_creation"))
            self._count(usage, names.prompt, names.output)
            self._count(cache, names.read, names.written)
            self._count(lives, "ephemeral_1h_input_tokens")

    def _count(self, figures: Mapping[str, Any], *names: str) -> None:
        """Take the largest figure of each name, because figures grow during a response."""
        for name in names:
            value = figures.get(name)
            if type(value) is int and 0 <= value <= TOKENS_MAX:
                self._figures[name] = max(value, self._figures.get(name, 0))

    def _usage(self) -> Usage | None:
        names, figures = self._names, self._figures
        if names is None or names.prompt not in figures:
            return None
        prompt, output = figures[names.prompt], figures.get(names.output, 0)
        read, written = figures.get(names.read, 0), figures.get(names.written, 0)
        if names.includes_cache:
            read = min(read, prompt)
            written = min(written, prompt - read)
            prompt -= read + written
        return Usage(prompt, read, written, output, min(written, figures.get("ephemeral_1h_input_tokens", 0)))


class _Excerpt:
    """The first and the last bytes of a text."""

    __slots__ = ("head", "size", "tail")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.head, self.tail, self.size = b"", bytearray(), 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        view = memoryview(piece)
        room = EXCERPT_BYTES - len(self.head)
        if room > 0:
            self.head += view[:room]
            view = view[room:]
        if view:
            last = view[-EXCERPT_BYTES:]
            del self.tail[: max(0, len(self.tail) + len(last) - EXCERPT_BYTES)]
            self.tail += last

    @property
    def whole(self) -> bytes | None:
        """The complete text; None if a part of it was not stored."""
        return self.head + self.tail if self.size == len(self.head) + len(self.tail) else None

    def contains(self, mark: bytes) -> bool:
        if mark in self.head or mark in self.tail:
            return True
        return mark in self.head[-len(mark) :] + self.tail[: len(mark)]


def _around_usage(head: bytes, tail: bytes, container: bytes, wrapper: str) -> Iterator[Mapping[str, Any]]:
    """Objects that are parsed from either end, without what is missing between.

    A text that begins with a member and ends with the end of the object is an object once it gets its opening bracket;
    one that begins with the object and ends with a member is one with a closing bracket. In both cases it parses only
    if the member belongs to the outermost object, or to the one that an event wraps.
    """
    frames = [(b"{", b"}"), *([(b'{"%s":{' % wrapper.encode(), b"}}")] if wrapper else [])]
    at = len(tail)
    for _ in range(USAGES_TRIED_MAX):
        at = tail.rfind(container, 0, at)
        if at < 0:
            break
        for opening, _closing in frames:
            value = _parsed(opening + tail[at:])
            if isinstance(value, dict):
                yield value
    at = -1
    for _ in range(USAGES_TRIED_MAX):
        at = head.find(container, at + 1)
        end = _usage_end(head, at) if at >= 0 else -1
        if end < 0:
            break
        for _opening, closing in frames:
            value = _parsed(head[:end] + closing)
            if isinstance(value, dict):
                yield value


def _usage_end(text: bytes, at: int) -> int:
    """The position after the next object. It contains no text with brackets, and little nesting."""
    depth = 0
    for match in re.compile(rb"[{}]").finditer(text, at):
        depth += 1 if match[0] == b"{" else -1
        if depth <= 0:
            return match.end() if depth == 0 else -1
    return -1


def _parsed(text: bytes) -> object:
    try:
        return decode(text)
    except Malformed:
        return None


class _CallReader:
    """Finds the calls in a response."""

    def __init__(self, api: str, our_tools: Collection[str]) -> None:
        self._api, self._our_tools = api, our_tools
        self._our_bytes = 0
        self._has_ours = False
        # Whether there is a call of another tool, or text.
        self.has_others = False
        # Whether the block or call that is being streamed is ours, by its index.
        self._streamed: dict[object, bool] = {}

    @property
    def our_tokens(self) -> int:
        return tokens_of(self._our_bytes)

    @property
    def only_ours(self) -> bool:
        return self._has_ours and not self.has_others

    def take(self, value: Mapping[str, Any], *, is_event: bool) -> None:
        match self._api:
            case "anthropic":
                self._anthropic(value, is_event=is_event)
            case "openai-chat":
                for choice in items_of(value.get("choices")) or ():
                    self._chat(block_members(block_members(choice).get("delta" if is_event else "message")))
            case "openai-responses":
                is_item = value.get("type") == "response.output_item.done"
                for item in (value.get("item"),) if is_item else items_of(value.get("output")) or ():
                    self._responses(block_members(item))
            case "gemini":
                for candidate in items_of(value.get("candidates")) or ():
                    content = block_members(block_members(candidate).get("content"))
                    for part in items_of(content.get("parts")) or ():
                        self._gemini(block_members(part))

    def _anthropic(self, value: Mapping[str, Any], *, is_event: bool) -> None:
        if not is_event:
            for block in items_of(value.get("content")) or ():
                self._anthropic_block(block_members(block))
        elif "content_block" in value:
            self._streamed = {value.get("index"): self._anthropic_block(block_members(value["content_block"]))}
        elif self._streamed.get(value.get("index")):
            self._our_bytes += _size(block_members(value.get("delta")).get("partial_json"))

    def _anthropic_block(self, block: Mapping[str, Any]) -> bool:
        kind = block.get("type")
        if kind == "tool_use":
            return self._call(block.get("name"), block.get("input") or "")
        if kind not in ("thinking", "redacted_thinking"):
            self.has_others = True
        return False

    def _chat(self, message: Mapping[str, Any]) -> None:
        if message.get("content"):
            self.has_others = True
        for call in map(block_members, items_of(message.get("tool_calls")) or ()):
            function, index = block_members(call.get("function") or call.get("custom")), call.get("index")
            arguments = function.get("arguments") or function.get("input")
            if function.get("name"):
                is_ours = self._call(function["name"], arguments)
                if isinstance(index, int):
                    self._streamed[index] = is_ours
            elif self._streamed.get(index):
                self._our_bytes += _size(arguments)

    def _responses(self, item: Mapping[str, Any]) -> None:
        if item.get("type") == "function_call":
            self._call(item.get("name"), item.get("arguments"))
        elif item.get("type") != "reasoning":
            self.has_others = True

    def _gemini(self, part: Mapping[str, Any]) -> None:
        call = block_members(part.get("functionCall"))
        if call:
            self._call(call.get("name"), call.get("args"))
        elif not part.get("thought") and (part.get("text") or "text" not in part):
            self.has_others = True

    def _call(self, name: object, arguments: object) -> bool:
        if not isinstance(name, str) or not (name in self._our_tools or is_marked(name)):
            self.has_others = True
            return False
        self._has_ours = True
        self._our_bytes += len(name) + _size(arguments)
        return True


def _size(value: object) -> int:
    return len(value if isinstance(value, str) else str(value)) if value else 0


class _Decompressor:
    """Decompresses gzip, and deflate with or without its two bytes of header."""

    def __init__(self, content_encoding: str) -> None:
        name = content_encoding.strip().lower()
        self._is_plain = name in ("", "identity")
        self._is_readable = self._is_plain or name in ("gzip", "x-gzip", "deflate")
        self._head = b""
        self._inflater: zlib._Decompress | None = None
        # If the data is broken, nothing that was read before counts.
        self.is_broken = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        if self._is_plain:
            yield chunk
        elif self._is_readable:
            yield from self._inflated(chunk)

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._inflater is None:
            self._head += chunk
            if len(self._head) < _HEAD_BYTES:
                return
            self._inflater = zlib.decompressobj(_window_bits(self._head))
            chunk, self._head = self._head, b""
        room = INFLATED_CHUNK_MAX
        limit = piece_bytes = 0
        while (chunk or piece_bytes == limit) and not self._inflater.eof and not self.is_broken:
            limit = min(room, INFLATED_PIECE_BYTES)
            try:
                piece = self._inflater.decompress(chunk, limit)
            except zlib.error:
                self.is_broken = True
                return
            chunk, piece_bytes = self._inflater.unconsumed_tail, len(piece)
            room -= piece_bytes
            self.is_broken = not room
            yield piece


def _window_bits(head: bytes) -> int:
    is_gzip = head.startswith(b"\x1f\x8b")
    is_zlib = head[0] & 0x0F == zlib.DEFLATED and (head[0] << 8 | head[1]) % 31 == 0
    return _ZLIB_OR_GZIP if is_gzip or is_zlib else _RAW_DEFLATE
