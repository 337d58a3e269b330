"""What a provider says it counted, read from a copy of its answer as that goes by: a JSON object or server-sent events.

The figures are members of objects, never inside an array, so only a skeleton of the answer is kept: no array's content,
no long string. An answer of any length costs a few kilobytes that way. Nothing here raises, and nothing holds up the
answer itself: what cannot be read tells nothing. Knows the three APIs' figures and how bodies are encoded; no socket,
no session.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from contextfold.common.canonical import Malformed, decode
from contextfold.fold.ledger.sent_request import Usage
from contextfold.fold.messages.own_share import NO_OWN_OUTPUT, OwnOutput
from contextfold.serve.proxy.response_calls import ResponseCopy

STRING_BYTES_MAX = 64  # longer ones are no name that we look for
SKELETON_BYTES_MAX = 256 * 1024
INFLATED_CHUNK_MAX = 4 << 20  # that one chunk may grow to; more was made to grow
INFLATED_PIECE_BYTES = 64 * 1024
STEPS_MAX = 2_000_000  # lines, brackets and readings of one answer; seconds of work, spread over all of it
CHUNK_STEPS = 20_000  # of one chunk, beside a step for each of its bytes: others wait meanwhile
READING_STEPS = 10  # that one skeleton's reading counts for
TOKENS_MAX = 1_000_000_000  # as for any one operation

_EVENT_STREAM = "text/event-stream"
_DATA = b"data:"
_EMPTY_LINES = (b"\n\n", b"\r\n\r\n")  # as streams have them; with others, every event is looked at
_TELLS_USAGE = re.compile(rb'"usage(?:Metadata)?"(?!\s*+:\s*+null)')
_LINE_END = re.compile(rb"\r\n|\r|\n")
_NO_MARK = re.compile(rb'[^"\[\]]*+')
# Up to a bracket, or a string that does not end here. No step is ever taken back, so the time is linear.
_NO_BRACKET = re.compile(rb'[^"\[\]]*+(?:"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"[^"\[\]]*+)*+')
_WITHIN_STRING = re.compile(rb'[^"\\]*+(?:\\[\s\S][^"\\]*+)*+')
_HEAD_BYTES = 2  # tell how the rest is packed
_ZLIB_OR_GZIP, _RAW_DEFLATE = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class _Names:
    """How an API calls its figures. `wrapper` is what an event holds `usage` in, where it is not the event itself."""

    wrapper: str
    prompt: str
    details: str  # the member that holds the cache's figures; where there is none, the prompt leaves them out
    read: str
    written: str
    output: str
    container: str = "usage"
    # The member with what was written for a longer time, and its name in there.
    long_writes: tuple[str, str] = ("", "")
    # The prompt's figure includes the cache's, though they stand beside it.
    includes_cache: bool = False


_NAMES = {
    "anthropic": _Names(
        *("message", "input_tokens", "", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"),
        long_writes=("cache_creation", "ephemeral_1h_input_tokens"),
    ),
    "openai-chat": _Names(
        "", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "cache_write_tokens", "completion_tokens"
    ),
    "openai-responses": _Names(
        "response", "input_tokens", "input_tokens_details", "cached_tokens", "cache_write_tokens", "output_tokens"
    ),
    "gemini": _Names(
        *("", "promptTokenCount", "", "cachedContentTokenCount", "", "candidatesTokenCount"),
        container="usageMetadata",
        includes_cache=True,
    ),
}


class UsageReader:
    """Fed with an answer's body as it came, in any pieces; `usage` once it has ended, however it did."""

    __slots__ = ("_copy", "_effort", "_encoding", "_figures", "_reading")

    def __init__(self, api: str, content_type: str, content_encoding: str) -> None:
        self._effort = _Effort()
        self._figures = _Figures(_NAMES.get(api))
        streams = content_type.partition(";")[0].strip().lower() == _EVENT_STREAM
        self._reading: _Reading = (_Events if streams else _Body)(self._figures, self._effort)
        self._encoding: _Encoding = _encoding(content_encoding)
        self._copy = ResponseCopy(api, streams=streams)

    def feed(self, chunk: bytes) -> None:
        self._effort.begin(len(chunk))
        for piece in self._encoding.pieces(chunk):
            self._reading.feed(piece)
            self._copy.feed(piece)

    def own_output(self) -> OwnOutput:
        """What the response has of calls of our tools."""
        return NO_OWN_OUTPUT if self._encoding.is_broken else self._copy.own_output()

    def usage(self) -> Usage | None:
        """What was counted, as far as it was told; None where not even the prompt's count came."""
        self._reading.end()
        return None if self._encoding.is_broken else self._figures.usage()


class _Effort:
    """How many steps may still be taken: once there are none left, there never will be."""

    __slots__ = ("_given", "_of_answer", "left")

    def __init__(self) -> None:
        self._of_answer = STEPS_MAX
        self._given = self.left = CHUNK_STEPS

    def begin(self, chunk_bytes: int) -> None:
        if self.left > 0:
            self._of_answer -= self._given - self.left
            self._given = self.left = min(self._of_answer, CHUNK_STEPS + chunk_bytes)


class _Figures:
    """The largest figure told of each kind: within one answer providers count up, so a later one is never smaller."""

    __slots__ = ("_names", "_told")

    def __init__(self, names: _Names | None) -> None:
        self._names = names
        self._told: dict[str, int] = {}

    def read(self, skeleton: bytes) -> None:
        if self._names is None or self._names.container.encode() not in skeleton:
            return
        try:
            value = decode(skeleton)
        except Malformed:
            return
        if isinstance(value, dict):
            for around in (value, value.get(self._names.wrapper)):
                usage = around.get(self._names.container) if isinstance(around, dict) else None
                if isinstance(usage, dict):
                    self._take(usage, self._names)

    def _take(self, usage: Mapping[str, object], names: _Names) -> None:
        cache = usage.get(names.details) if names.details else usage
        self._note(usage, names.prompt)
        self._note(usage, names.output)
        if isinstance(cache, dict):
            self._note(cache, names.read)
            self._note(cache, names.written)
        long_writes = usage.get(names.long_writes[0])
        if isinstance(long_writes, dict):
            self._note(long_writes, names.long_writes[1])

    def _note(self, figures: Mapping[str, object], name: str) -> None:
        value = figures.get(name)
        if type(value) is int and 0 <= value <= TOKENS_MAX:
            self._told[name] = max(value, self._told.get(name, 0))

    def usage(self) -> Usage | None:
        names, told = self._names, self._told
        if names is None or names.prompt not in told:
            return None
        prompt, output = told[names.prompt], told.get(names.output, 0)
        read, written = told.get(names.read, 0), told.get(names.written, 0)
        if names.details or names.includes_cache:  # parts of the prompt, however a provider adds up
            read = min(read, prompt)
            written = min(written, prompt - read)
            prompt -= read + written
        return Usage(prompt, read, written, output, min(written, told.get(names.long_writes[1], 0)))


class _Skeleton:
    """A JSON text in pieces, without what is inside its arrays and without its long strings."""

    __slots__ = ("_arrays", "_effort", "_escaped", "_in_string", "_kept", "_string", "_too_large")

    def __init__(self, effort: _Effort) -> None:
        self._effort = effort
        self._begin()

    def _begin(self) -> None:
        self._kept = bytearray()
        self._too_large = False
        self._arrays = 0  # how many are open
        self._in_string = self._escaped = False
        self._string: bytes | None = b""  # None once it is too long

    def feed(self, piece: bytes) -> None:
        at = 0
        while at < len(piece) and not self._too_large and self._effort.left > 0:  # each step takes a byte at least
            at = self._through_string(piece, at) if self._in_string else self._up_to_mark(piece, at)

    def taken(self) -> bytes:
        """All of it, and a new one begins. Nothing where it was too large."""
        kept = bytes(self._kept) if self._effort.left > 0 else b""
        self._begin()
        return kept

    def _up_to_mark(self, piece: bytes, at: int) -> int:
        found = (_NO_BRACKET if self._arrays else _NO_MARK).match(piece, at)
        end = found.end() if found else at  # it always matches, if only nothing
        self._keep(piece, at, end)
        if end == len(piece):
            return end
        match piece[end]:
            case 0x22:  # "
                self._in_string, self._string = True, b""
            case 0x5B:  # [
                self._keep(piece, end, end + 1)
                self._arrays += 1
                self._effort.left -= 1
            case _:
                self._arrays = max(0, self._arrays - 1)
                self._keep(piece, end, end + 1)
                self._effort.left -= 1
        return end + 1

    def _through_string(self, piece: bytes, at: int) -> int:
        start, at = at, at + self._escaped
        within = _WITHIN_STRING.match(piece, at)
        end = within.end() if within else at
        self._escaped = piece[end : end + 1] == b"\\"  # the piece's last byte: the next one belongs to it
        self._hold(piece, start, end + self._escaped)
        if end < len(piece) and not self._escaped:
            self._in_string = False
            text = b'"' + (self._string or b"") + b'"'
            self._keep(text, 0, len(text))
        return end + 1

    def _hold(self, piece: bytes, start: int, end: int) -> None:
        if self._string is not None:
            fits = len(self._string) + end - start <= STRING_BYTES_MAX
            self._string = self._string + piece[start:end] if fits else None

    def _keep(self, piece: bytes, start: int, end: int) -> None:
        if self._arrays or self._too_large:
            return
        if len(self._kept) + end - start > SKELETON_BYTES_MAX:
            self._too_large = True
            self._kept.clear()
        else:
            self._kept += memoryview(piece)[start:end]


class _Reading(Protocol):
    def feed(self, piece: bytes) -> None: ...
    def end(self) -> None: ...


class _Body:
    """One JSON object."""

    __slots__ = ("_figures", "_skeleton")

    def __init__(self, figures: _Figures, effort: _Effort) -> None:
        self._figures = figures
        self._skeleton = _Skeleton(effort)

    def feed(self, piece: bytes) -> None:
        self._skeleton.feed(piece)

    def end(self) -> None:
        self._figures.read(self._skeleton.taken())


class _Events:
    """Server-sent events: only their data is looked at. Lines end with CR, LF or both; an empty one ends an event."""

    __slots__ = ("_after_cr", "_effort", "_figures", "_head", "_is_between", "_is_data", "_skeleton")

    def __init__(self, figures: _Figures, effort: _Effort) -> None:
        self._figures, self._effort = figures, effort
        self._skeleton = _Skeleton(effort)
        self._head = b""  # of a line that may still become one of data
        self._is_data: bool | None = None
        self._is_between = True  # events: nothing of the next one has come
        self._after_cr = False

    def feed(self, piece: bytes) -> None:
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        if self._is_between:
            piece = piece[_idle_bytes(piece) :]
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            if self._effort.left <= 0:
                return
            self._part(line)
            self._line_end()
        self._part(rest)

    def end(self) -> None:
        """The last event may lack its empty line."""
        self._line_end()
        self._line_end()

    def _part(self, part: bytes) -> None:
        if part:
            self._is_between = False
        if self._is_data is None:
            self._head += part
            if len(self._head) < len(_DATA):
                return
            self._is_data = self._head.startswith(_DATA)
            part, self._head = self._head[len(_DATA) :], b""
        if self._is_data:
            self._skeleton.feed(part)

    def _line_end(self) -> None:
        self._effort.left -= 1
        if self._is_data:
            self._skeleton.feed(b"\n")  # what lines of data are joined with
        elif self._is_data is None and not self._head and not self._is_between:
            self._effort.left -= READING_STEPS
            self._figures.read(self._skeleton.taken())
            self._is_between = True
        self._is_data, self._head = None, b""


def _idle_bytes(piece: bytes) -> int:
    """How much there is of whole events before the first one that tells figures."""
    telling = _TELLS_USAGE.search(piece)
    end = telling.start() if telling else len(piece)
    return max((at + len(empty) for empty in _EMPTY_LINES if (at := piece.rfind(empty, 0, end)) >= 0), default=0)


class _Encoding(Protocol):
    is_broken: bool  # what was read before that may have ended anywhere, so none of it counts

    def pieces(self, chunk: bytes) -> Iterator[bytes]: ...


def _encoding(name: str) -> _Encoding:
    match name.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip" | "deflate":
            return _Inflating()
        case _:
            return _Unreadable()


class _Plain:
    is_broken = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk


class _Unreadable:
    is_broken = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield from ()


class _Inflating:
    """gzip, or deflate as the standard has it or as some servers send it: without the two bytes in front."""

    __slots__ = ("_head", "_inflater", "is_broken")

    def __init__(self) -> None:
        self._head = b""
        self._inflater: zlib._Decompress | None = None
        self.is_broken = False

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
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
