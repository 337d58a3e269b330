"""Usage and tool calls are read from responses of each API: streamed, compressed, split anywhere, hostile."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from contextfold.fold.messages import FORMATS, Format
from contextfold.fold.sent_request import Usage
from contextfold.serve.proxy.response_reader import (
    EXCERPT_BYTES,
    INFLATED_CHUNK_MAX,
    OwnCall,
    ResponseFacts,
    ResponseReader,
)
from tests.support.machine import times

JSON, SSE = "application/json", "text/event-stream; charset=utf-8"
MIB = 1 << 20
PIECE_BYTES = 64 * 1024


def read(api: Format, pieces: bytes | Sequence[bytes], content_type: str = JSON, encoding: str = "") -> Usage | None:
    reader = ResponseReader(api, content_type, encoding)
    for piece in [pieces] if isinstance(pieces, bytes) else pieces:
        reader.feed(piece)
    return reader.facts().usage


def event(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def named(*values: dict[str, Any]) -> bytes:
    return b"".join(event(value, value["type"]) for value in values)


ANTHROPIC_USAGE = {
    "input_tokens": 31,
    "cache_creation_input_tokens": 220,
    "cache_read_input_tokens": 5_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 2,
    "service_tier": "standard",
}
# A member `usage` in a tool's input is not the provider's usage.
ANTHROPIC_BODY = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": 'He said \\"usage\\": {"input_tokens": 9}' * 40},
            {"type": "tool_use", "id": "t", "name": "n", "input": {"usage": {"input_tokens": 999_999}}},
        ],
        "stop_reason": "tool_use",
        "usage": {**ANTHROPIC_USAGE, "output_tokens": 77},
    }
).encode()
ANTHROPIC_STREAM = (
    named({"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": ANTHROPIC_USAGE}})
    + event({"type": "ping"}, "ping")
    + named(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 'usage "[{ ü \\'}},
        {"type": "something_new", "usage_of": [1, [2, "]"]]},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 40}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 31, "cache_read_input_tokens": 5_000, "output_tokens": 77},
        },
        {"type": "message_stop"},
    )
)
ANTHROPIC = Usage(31, 5_000, 220, 77, 200)

CHAT_USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 50,
    "total_tokens": 1_050,
    "prompt_tokens_details": {"cached_tokens": 768, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 20, "cached_tokens": 9_999},
}
CHAT_BODY = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"message": {"content": "x" * 500, "usage": {"prompt_tokens": 5}}, "logprobs": {"content": [[]]}}],
        "usage": CHAT_USAGE,
    },
    indent=2,
).encode()
CHAT_STREAM = (
    b": hello\n\n"
    + event({"choices": [{"delta": {"content": "H\n\r\u2028i"}}], "usage": None})
    + event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    + event({"choices": [], "usage": CHAT_USAGE})
    + b"data: [DONE]\n\n"
)
CHAT = Usage(232, 768, 0, 50)

RESPONSES_USAGE = {
    "input_tokens": 900,
    "input_tokens_details": {"cached_tokens": 512, "cache_write_tokens": 300},
    "output_tokens": 64,
    "output_tokens_details": {"reasoning_tokens": 32},
    "total_tokens": 964,
}
RESPONSES_BODY = json.dumps(
    {
        "object": "response",
        "output": [{"type": "function_call", "arguments": '{"usage": {"input_tokens": 3}}'}],
        "metadata": {"usage": "none"},
        "usage": RESPONSES_USAGE,
    }
).encode()
RESPONSES_STREAM = named(
    {"type": "response.created", "response": {"output": [], "usage": None}},
    {"type": "response.output_text.delta", "delta": "text"},
    {"type": "response.completed", "response": {"output": [{"text": "t" * 300}], "usage": RESPONSES_USAGE}},
)
RESPONSES = Usage(88, 512, 300, 64)

ANSWERS = [
    pytest.param("anthropic", JSON, ANTHROPIC_BODY, ANTHROPIC, id="messages"),
    pytest.param("anthropic", SSE, ANTHROPIC_STREAM, ANTHROPIC, id="messages-streamed"),
    pytest.param("openai-chat", JSON, CHAT_BODY, CHAT, id="chat"),
    pytest.param("openai-chat", SSE, CHAT_STREAM, CHAT, id="chat-streamed"),
    pytest.param("openai-responses", JSON, RESPONSES_BODY, RESPONSES, id="responses"),
    pytest.param("openai-responses", SSE, RESPONSES_STREAM, RESPONSES, id="responses-streamed"),
]


ENCODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    (" X-GZIP ", gzip.compress),
    ("deflate", zlib.compress),
]


@pytest.mark.parametrize(("api", "content_type", "answer", "usage"), ANSWERS)
@pytest.mark.parametrize(("encoding", "compress"), ENCODINGS)
def test_usage_is_read_from_every_kind_of_response(  # noqa: PLR0917
    api: Format, content_type: str, answer: bytes, usage: Usage, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    compressed = compress(answer)
    assert read(api, compressed, content_type, encoding) == usage
    assert read(api, [compressed[at : at + 1] for at in range(len(compressed))], content_type, encoding) == usage


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("api", "content_type", "answer", "usage"), [case for case in ANSWERS if case.values[1] == SSE]
)
def test_lines_of_a_stream_may_end_in_any_way(
    api: Format, content_type: str, answer: bytes, usage: Usage, end: bytes
) -> None:
    stream = answer.replace(b"\n", end)
    assert read(api, stream, content_type) == usage
    assert read(api, [stream[at : at + 1] for at in range(len(stream))], content_type) == usage
    # The last event has no blank line after it.
    assert read(api, stream.rstrip(b"\r\n"), content_type) == usage


def test_an_events_data_may_have_several_lines() -> None:
    lines = json.dumps({"usage": CHAT_USAGE}, indent=1).splitlines()
    for end in ("\n", "\r\n", "\r"):
        stream = "".join(f"data:{line}{end}" for line in lines) + end
        assert read("openai-chat", stream.encode(), SSE) == CHAT


def test_a_stream_that_is_cut_has_the_usage_read_so_far() -> None:
    first = ANTHROPIC_STREAM[: ANTHROPIC_STREAM.index(b"event: message_delta")]
    assert read("anthropic", first, SSE) == Usage(31, 5_000, 220, 2, 200)
    assert read("anthropic", gzip.compress(first)[:-12], SSE, "gzip") == Usage(31, 5_000, 220, 2, 200)


def test_usage_is_read_from_an_incomplete_response() -> None:
    cut = named({"type": "response.incomplete", "response": {"status": "incomplete", "usage": RESPONSES_USAGE}})
    assert read("openai-responses", cut, SSE) == RESPONSES


def test_usage_in_the_last_event_replaces_zeros_in_the_first() -> None:
    late = named(
        {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
        {"type": "message_delta", "usage": ANTHROPIC_USAGE},
    )
    assert read("anthropic", late, SSE) == Usage(31, 5_000, 220, 2, 200)


def test_cached_tokens_beyond_the_prompts_count_as_the_whole_prompt() -> None:
    body = {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 5}}}
    assert read("openai-chat", json.dumps(body).encode()) == Usage(0, 10, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"usage":null}',
        b'{"usage":{"input_tokens":"7"}}',
        b'{"usage":{"input_tokens":true}}',
        b'{"usage":{"input_tokens":-7}}',
        b'{"usage":{"input_tokens":7.5}}',
        b'{"usage":{"input_tokens":NaN}}',
        b'{"usage":{"input_tokens":' + b"9" * 10_000 + b"}}",
        b'{"usage":{"output_tokens":7}}',
        b'{"usage":{"input_tokens":7}',
        b'{"usage":{"input_tokens":7}}]',
        b'[{"usage":{"input_tokens":7}}]',
        b'{"\xff":1,"usage":{"input_tokens":7}}',
        b'{"content":[{"usage":{"input_tokens":7}}]}',
        b'{"a":' * 1_000 + b'{"usage":{"input_tokens":7}}',
        b"<html>usage</html>",
    ],
)
@pytest.mark.parametrize("api", ["anthropic", "openai-responses"])
def test_a_response_without_valid_figures_has_no_usage(api: Format, answer: bytes) -> None:
    assert read(api, answer) is None
    assert read(api, b"data: " + answer + b"\n\n", SSE) is None


def test_an_unknown_encoding_or_damaged_data_has_no_usage() -> None:
    compressed = gzip.compress(CHAT_BODY)
    for encoding in ("br", "zstd", "gzip, gzip", "identity, gzip"):
        assert read("openai-chat", compressed, JSON, encoding) is None
    # This changes a bit of the checksum.
    damaged = compressed[:-5] + bytes([compressed[-5] ^ 1]) + compressed[-4:]
    assert read("openai-chat", damaged, JSON, "gzip") is None
    assert read("openai-chat", [damaged[at : at + 1] for at in range(len(damaged))], JSON, "gzip") is None
    assert read("openai-chat", CHAT_BODY, JSON, "deflate") is None


def huge(around: tuple[bytes, bytes], inside: bytes) -> Iterator[bytes]:
    yield around[0]
    for _ in range(8):
        yield inside * (PIECE_BYTES // len(inside))
    yield around[1]


def usage_within_memory(limit: int, pieces: Iterator[bytes], content_type: str, encoding: str = "") -> Usage | None:
    """The answer's figures; fails if reading used more than this many bytes in addition to a piece itself."""
    tracemalloc.start()
    try:
        reader = ResponseReader("openai-chat", content_type, encoding)
        peak = 0
        for piece in pieces:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            reader.feed(piece)
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
        usage = reader.facts().usage
    finally:
        tracemalloc.stop()
    assert peak <= limit
    return usage


TAIL = b'"usage":' + json.dumps(CHAT_USAGE).encode() + b"}"


@pytest.mark.parametrize(
    ("around", "inside"),
    [
        pytest.param((b'{"text":"', b'",' + TAIL), b"a string ", id="one-long-string"),
        pytest.param((b'{"text":"', b'",' + TAIL), b'\\"\\\\', id="escapes"),
        pytest.param((b'{"choices":[', b"0]," + TAIL), b'{"token":"a","top":[1,2,3]},', id="logprobs"),
    ],
)
def test_a_long_response_is_read_in_little_memory(around: tuple[bytes, bytes], inside: bytes) -> None:
    limit = 4 * PIECE_BYTES
    assert usage_within_memory(limit, huge(around, inside), JSON) == CHAT
    assert usage_within_memory(limit, huge((b"data: " + around[0], around[1] + b"\n\n"), inside), SSE) == CHAT


@pytest.mark.parametrize("inside", [b'"a":{},', b"{", b"7", b" "])
def test_a_long_event_needs_little_memory_and_does_not_affect_others(inside: bytes) -> None:
    limit = 4 * PIECE_BYTES
    usage_within_memory(limit, huge((b"{", TAIL), inside), JSON)
    stream = [*huge((b"data: {", b"\n\n"), inside), CHAT_STREAM]
    assert usage_within_memory(limit, iter(stream), SSE) == CHAT


def test_usage_inside_the_text_of_a_long_response_is_ignored() -> None:
    inside = json.dumps({"usage": CHAT_USAGE})
    body = {"choices": ["x" * 4 * EXCERPT_BYTES, {"message": {"usage": CHAT_USAGE, "content": inside}}]}
    assert read("openai-chat", json.dumps(body).encode()) is None
    assert read("openai-chat", json.dumps({**body, "usage": CHAT_USAGE}).encode()) == CHAT


def test_a_stream_of_too_many_events_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    # A smaller bound is reached sooner.
    monkeypatch.setattr("contextfold.serve.proxy.response_reader.EVENTS_MAX", 5_000)
    noise = b'data:{"usage":1}\n\n'
    pieces = [CHAT_STREAM, *[noise * (PIECE_BYTES // len(noise))] * 8]
    following = event({"usage": {**CHAT_USAGE, "completion_tokens": 60}})
    assert read("openai-chat", [CHAT_STREAM, b"\n\n", following], SSE) == Usage(232, 768, 0, 60)
    assert read("openai-chat", [*pieces, b"\n\n", following], SSE) == CHAT


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
def test_a_decompression_bomb_needs_little_memory_and_has_no_usage(encoding: str, wbits: int) -> None:
    compressor = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(compressor.compress(b" " * MIB) for _ in range(2 * INFLATED_CHUNK_MAX // MIB))
    bomb += compressor.compress(b"{" + TAIL) + compressor.flush()
    assert len(bomb) < 128 * 1024
    assert usage_within_memory(1 << 20, iter([bomb]), JSON, encoding) is None
    small = zlib.compressobj(9, wbits=wbits)
    honest = small.compress(b" " * MIB + b"{") + small.compress(TAIL[:20]) + small.compress(TAIL[20:]) + small.flush()
    assert usage_within_memory(1 << 20, iter([honest]), JSON, encoding) == CHAT


FRAGMENTS = [
    *(b"data:", b"data: ", b"event: message_start", b"\n", b"\r", b"\r\n", b"\n\n", b":", b"{", b"}", b"[", b"]", b'"'),
    *(
        b"\\",
        b",",
        b'"usage"',
        b'"usage":{',
        b'"input_tokens":',
        b'"prompt_tokens":',
        b"12",
        b"-1",
        b"null",
        b" ",
        b"\xff",
    ),
    *(b'"message":{', b'"response":{', b"\xef\xbb\xbf", b"\x00", b"x" * 70, b'"type":"message_delta",'),
    *(b'{"usage":{"input_tokens":5,"prompt_tokens":6}}', b'"input_tokens_details":{"cached_tokens":2}'),
]


def mutated(draw: random.Random, answer: bytes) -> bytes:
    damaged = bytearray(answer)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(damaged) + 1)
        match draw.randrange(4):
            case 0:
                damaged[at:at] = draw.choice(FRAGMENTS)
            case 1:
                del damaged[at : at + draw.randrange(1, 40)]
            case 2:
                damaged[at : at + 1] = draw.randbytes(1)
            case _:
                damaged[at:at] = damaged[draw.randrange(len(damaged) + 1) :][: draw.randrange(200)]
    return bytes(damaged)


def cut(draw: random.Random, whole: bytes) -> list[bytes]:
    offsets = sorted(draw.randrange(len(whole) + 1) for _ in range(draw.randrange(1, 12)))
    return [whole[start:end] for start, end in zip([0, *offsets], [*offsets, len(whole)], strict=True)]


def test_random_responses_raise_nothing_however_they_are_split() -> None:
    draw = random.Random(7)
    readable = 0
    for _ in range(times(600, 200_000)):
        api, content_type, answer, _ = draw.choice(ANSWERS).values
        assert api in FORMATS
        assert isinstance(content_type, str)
        assert isinstance(answer, bytes)
        if draw.random() < 0.3:
            answer = b"".join(draw.choice(FRAGMENTS) for _ in range(draw.randrange(60)))
        encoding, compress = draw.choice(ENCODINGS)
        whole = (
            mutated(draw, compress(mutated(draw, answer))) if draw.random() < 0.3 else compress(mutated(draw, answer))
        )
        usage = read(api, whole, content_type, encoding)
        assert usage == read(api, cut(draw, whole), content_type, encoding), (api, content_type, encoding, whole)
        readable += usage is not None
    # Many of the mutated answers can still be read.
    assert readable > 100


FOLD, BASH = "mcp__contextfold__context_fold", "Bash"
SUMMARY = "done " * 80


def responses_with(api: Format, *calls: str | None) -> tuple[bytes, bytes]:
    """A whole and a streamed response with these calls; None stands for a text."""
    arguments = json.dumps({"message": SUMMARY})
    halves = arguments[:9], arguments[9:]
    match api:
        case "anthropic":
            blocks = [
                {"type": "tool_use", "id": "c", "name": name, "input": {"message": SUMMARY}}
                if name
                else {"type": "text", "text": "so"}
                for name in calls
            ]
            events: list[Any] = [{"type": "message_start", "message": {"content": [], "usage": ANTHROPIC_USAGE}}]
            for index, block in enumerate([{"type": "thinking", "thinking": ""}, *blocks]):
                empty = {**block, "input": {}} if "input" in block else block
                events.append({"type": "content_block_start", "index": index, "content_block": empty})
                if "input" in block:
                    deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
                    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            return json.dumps({"content": blocks, "usage": ANTHROPIC_USAGE}).encode(), named(*events)
        case "openai-chat":
            functions = [{"name": name, "arguments": arguments} for name in calls if name]
            text = "so" if None in calls else None
            message = {"content": text, "tool_calls": [{"id": "c", "function": function} for function in functions]}
            chat_deltas: list[dict[str, Any]] = [{"content": text}]
            for index, function in enumerate(functions):
                first = {"index": index, "id": "c", "function": {**function, "arguments": ""}}
                following = [{"index": index, "function": {"arguments": half}} for half in halves]
                chat_deltas += [{"tool_calls": [call]} for call in (first, *following)]
            stream = b"".join(event({"choices": [{"delta": delta}]}) for delta in chat_deltas)
            return json.dumps({"choices": [{"message": message}]}).encode(), stream
        case "openai-responses":
            items = [
                {"type": "function_call", "name": name, "arguments": arguments} if name else {"type": "message"}
                for name in calls
            ]
            output = [{"type": "reasoning"}, *items]
            done = [{"type": "response.output_item.done", "item": item} for item in output]
            completed = {"type": "response.completed", "response": {"output": output, "usage": RESPONSES_USAGE}}
            return json.dumps({"output": output}).encode(), named(*done, completed)
    parts = [{"functionCall": {"name": n, "args": {"message": SUMMARY}}} if n else {"text": "so"} for n in calls]
    thought = {"text": "hm", "thought": True}
    chunks = [{"candidates": [{"content": {"parts": [part]}}]} for part in [thought, *parts]]
    return json.dumps({"candidates": [{"content": {"parts": parts}}]}).encode(), b"".join(map(event, chunks))


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize(
    ("calls", "has_ours", "only_ours"),
    [
        ([FOLD], True, True),
        ([FOLD, BASH], True, False),
        ([None, FOLD], True, False),
        ([BASH], False, False),
        ([None], False, False),
    ],
)
def test_calls_of_our_tools_are_recognised_in_every_kind_of_response(
    api: Format, calls: list[str | None], has_ours: bool, only_ours: bool
) -> None:
    for body, content_type in zip(responses_with(api, *calls), (JSON, SSE), strict=True):
        reader = ResponseReader(api, content_type, "", {FOLD})
        for at in range(0, len(body), 7):
            reader.feed(body[at : at + 7])
        facts: ResponseFacts = reader.facts()
        assert facts.only_ours == only_ours
        assert (90 <= facts.our_output_tokens <= 130) == has_ours


@pytest.mark.parametrize(
    ("script", "only_ours", "has_call"),
    [
        (f"text(await tools.{FOLD}({{message: 'x'}}))", True, True),
        (f"await tools.exec_command({{}}); text(await tools.{FOLD}({{message: 'x'}}))", False, True),
        ("text(await tools.exec_command({}))", False, False),
    ],
)
def test_a_script_that_calls_one_of_our_tools_is_a_call_with_unknown_arguments(
    script: str, only_ours: bool, has_call: bool
) -> None:
    item = {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": script}
    reader = ResponseReader("openai-responses", SSE, "", set())
    reader.feed(named({"type": "response.output_item.done", "item": item}))
    assert reader.take_own_calls() == ([OwnCall("c", "context_fold", None)] if has_call else [])
    assert reader.facts().only_ours == only_ours


@pytest.mark.parametrize("arguments", [{"path": "README.md", "text": "Use context_fold to fold."}, "Use context_fold."])
def test_a_call_of_another_tool_whose_text_mentions_ours_is_no_call_of_ours(arguments: object) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "write_file", "arguments": arguments}
    reader = ResponseReader("openai-responses", JSON, "")
    reader.feed(json.dumps({"output": [item]}).encode())
    assert reader.facts() == ResponseFacts()
    assert reader.take_own_calls() == []


def test_calls_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contextfold.serve.proxy.response_reader.CALLS_MAX", 3)
    monkeypatch.setattr("contextfold.serve.proxy.response_reader.ARGUMENTS_MAX_CHARS", 50)
    reader = ResponseReader("openai-chat", "text/event-stream", "identity", frozenset({"context_fold"}))

    def send(index: int, name: str | None, arguments: str, reason: str | None = None) -> None:
        call = {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": arguments}}
        choice = {"delta": {"tool_calls": [call]}, "finish_reason": reason}
        reader.feed(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())

    for index in range(10):
        send(index, "context_fold", '{"message": "')
    for _ in range(100):
        send(0, None, "x")
    send(1, None, 'y"}', "tool_calls")
    calls = {call.id: call.arguments for call in reader.take_own_calls()}
    assert calls == {"c0": None, "c1": {"message": "y"}, "c2": None}
