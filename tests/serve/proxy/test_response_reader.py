"""What is read from a response that passes: each API, streamed or not, compressed or not, cut anywhere, hostile."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from contextfold.fold.ledger.sent_request import Usage
from contextfold.serve.proxy.response_reader import (
    EXCERPT_BYTES,
    INFLATED_CHUNK_MAX,
    ResponseFacts,
    ResponseReader,
)
from tests.support.machine import times

JSON, SSE = "application/json", "text/event-stream; charset=utf-8"
MIB = 1 << 20
PIECE_BYTES = 64 * 1024


def read(api: str, pieces: bytes | Sequence[bytes], kind: str = JSON, encoding: str = "") -> Usage | None:
    reader = ResponseReader(api, kind, encoding)
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
# A tool's input may be called anything; it is no figure of the provider's.
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


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    (" X-GZIP ", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
]


@pytest.mark.parametrize(("api", "kind", "answer", "counted"), ANSWERS)
@pytest.mark.parametrize(("encoding", "pack"), PACKED)
def test_figures_are_read_from_every_kind_of_answer(  # noqa: PLR0917
    api: str, kind: str, answer: bytes, counted: Usage, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(answer)
    assert read(api, packed, kind, encoding) == counted
    assert read(api, [packed[at : at + 1] for at in range(len(packed))], kind, encoding) == counted


@pytest.mark.parametrize(("api", "kind", "answer", "counted"), ANSWERS)
def test_an_answer_may_be_cut_at_any_place(api: str, kind: str, answer: bytes, counted: Usage) -> None:
    assert all(read(api, [answer[:at], b"", answer[at:]], kind) == counted for at in range(len(answer)))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("api", "kind", "answer", "counted"), [each for each in ANSWERS if each.values[1] == SSE])
def test_lines_of_a_stream_may_end_in_any_way(api: str, kind: str, answer: bytes, counted: Usage, end: bytes) -> None:
    stream = answer.replace(b"\n", end)
    assert read(api, stream, kind) == counted
    assert read(api, [stream[at : at + 1] for at in range(len(stream))], kind) == counted
    # The last event has no blank line after it.
    assert read(api, stream.rstrip(b"\r\n"), kind) == counted


def test_data_in_several_lines_is_one_event() -> None:
    lines = json.dumps({"usage": CHAT_USAGE}, indent=1).splitlines()
    for end in ("\n", "\r\n", "\r"):
        stream = "".join(f"data:{line}{end}" for line in lines) + end
        assert read("openai-chat", stream.encode(), SSE) == CHAT


def test_a_stream_that_breaks_off_tells_what_it_told() -> None:
    begun = ANTHROPIC_STREAM[: ANTHROPIC_STREAM.index(b"event: message_delta")]
    assert read("anthropic", begun, SSE) == Usage(31, 5_000, 220, 2, 200)
    assert read("anthropic", gzip.compress(begun)[:-12], SSE, "gzip") == Usage(31, 5_000, 220, 2, 200)


def test_an_answer_cut_short_by_the_limit_of_output_still_tells_its_usage() -> None:
    cut = named({"type": "response.incomplete", "response": {"status": "incomplete", "usage": RESPONSES_USAGE}})
    assert read("openai-responses", cut, SSE) == RESPONSES


def test_a_provider_that_counts_only_at_the_end_is_believed() -> None:
    late = named(
        {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
        {"type": "message_delta", "usage": ANTHROPIC_USAGE},
    )
    assert read("anthropic", late, SSE) == Usage(31, 5_000, 220, 2, 200)


def test_more_cached_than_sent_is_taken_as_all_of_it() -> None:
    odd = {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 5}}}
    assert read("openai-chat", json.dumps(odd).encode()) == Usage(0, 10, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b"[]",
        b'"usage"',
        b"{}",
        b'{"usage":null}',
        b'{"usage":[]}',
        b'{"usage":{}}',
        b'{"usage":{"input_tokens":"7"}}',
        b'{"usage":{"input_tokens":true}}',
        b'{"usage":{"input_tokens":-7}}',
        b'{"usage":{"input_tokens":7.5}}',
        b'{"usage":{"input_tokens":1e3}}',
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
def test_what_is_no_figure_tells_nothing(api: str, answer: bytes) -> None:
    assert read(api, answer) is None
    assert read(api, b"data: " + answer + b"\n\n", SSE) is None


def test_what_was_packed_in_an_unknown_way_or_badly_tells_nothing() -> None:
    packed = gzip.compress(CHAT_BODY)
    for encoding in ("br", "zstd", "gzip, gzip", "identity, gzip"):
        assert read("openai-chat", packed, JSON, encoding) is None
    # This changes a bit of the checksum.
    spoiled = packed[:-5] + bytes([packed[-5] ^ 1]) + packed[-4:]
    assert read("openai-chat", spoiled, JSON, "gzip") is None
    assert read("openai-chat", [spoiled[at : at + 1] for at in range(len(spoiled))], JSON, "gzip") is None
    assert read("openai-chat", CHAT_BODY, JSON, "deflate") is None
    assert read("no-such-api", CHAT_BODY) is None


def huge(around: tuple[bytes, bytes], inside: bytes) -> Iterator[bytes]:
    yield around[0]
    for _ in range(8):
        yield inside * (PIECE_BYTES // len(inside))
    yield around[1]


def counted_within(limit: int, pieces: Iterator[bytes], kind: str, encoding: str = "") -> Usage | None:
    """The answer's figures; fails if reading used more than this many bytes in addition to a piece itself."""
    tracemalloc.start()
    try:
        reader = ResponseReader("openai-chat", kind, encoding)
        held = 0
        for piece in pieces:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            reader.feed(piece)
            held = max(held, tracemalloc.get_traced_memory()[1] - before)
        usage = reader.facts().usage
    finally:
        tracemalloc.stop()
    assert held <= limit
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
def test_an_answer_of_any_length_is_read_in_little_memory(around: tuple[bytes, bytes], inside: bytes) -> None:
    limit = 2 * PIECE_BYTES + 4_096
    assert counted_within(limit, huge(around, inside), JSON) == CHAT
    assert counted_within(limit, huge((b"data: " + around[0], around[1] + b"\n\n"), inside), SSE) == CHAT


@pytest.mark.parametrize("inside", [b'"a":{},', b"{", b"7", b" "])
def test_a_long_event_of_any_kind_costs_little_memory_and_spoils_no_other(inside: bytes) -> None:
    limit = 4 * PIECE_BYTES
    counted_within(limit, huge((b"{", TAIL), inside), JSON)
    stream = [*huge((b"data: {", b"\n\n"), inside), CHAT_STREAM]
    assert counted_within(limit, iter(stream), SSE) == CHAT


def test_usage_in_front_of_a_long_text_is_read_too() -> None:
    head = b'{"usage":' + json.dumps(CHAT_USAGE).encode()
    nested = b'{"x":{"usage":' + json.dumps(CHAT_USAGE).encode() + b"}"
    for begin, counted in ((head, CHAT), (nested, None)):
        assert read("openai-chat", begin + b',"choices":["' + b"x" * 4 * EXCERPT_BYTES + b'"]}') == counted


def test_usage_inside_a_long_answers_text_is_no_figure() -> None:
    inside = json.dumps({"usage": CHAT_USAGE})
    body = {"choices": ["x" * 4 * EXCERPT_BYTES, {"message": {"usage": CHAT_USAGE, "content": inside}}]}
    assert read("openai-chat", json.dumps(body).encode()) is None
    assert read("openai-chat", json.dumps({**body, "usage": CHAT_USAGE}).encode()) == CHAT


@pytest.mark.parametrize("noise", [b":\n", b'data:{"usage":1}\n\n'])
def test_an_answer_made_to_keep_the_reader_busy_is_given_up(noise: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # A smaller bound is reached sooner.
    monkeypatch.setattr("contextfold.serve.proxy.response_reader.STEPS_MAX", 50_000)
    pieces = [CHAT_STREAM, *[noise * (PIECE_BYTES // len(noise))] * 8]
    later = event({"usage": {**CHAT_USAGE, "completion_tokens": 60}})
    assert read("openai-chat", [CHAT_STREAM, b"\n\n", later], SSE) == Usage(232, 768, 0, 60)
    assert read("openai-chat", [*pieces, b"\n\n", later], SSE) == CHAT


def test_endless_lines_that_are_no_data_are_passed_over() -> None:
    noise = [b"x" * MIB] * 8
    assert counted_within(MIB // 2, iter([b"event: ", *noise, b"\n\n", CHAT_STREAM]), SSE) == CHAT


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_a_bomb_costs_little_and_tells_nothing(encoding: str, wbits: int) -> None:
    packer = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(packer.compress(b" " * MIB) for _ in range(2 * INFLATED_CHUNK_MAX // MIB))
    bomb += packer.compress(b"{" + TAIL) + packer.flush()
    assert len(bomb) < 128 * 1024
    assert counted_within(1 << 20, iter([bomb]), JSON, encoding) is None
    small = zlib.compressobj(9, wbits=wbits)
    honest = small.compress(b" " * MIB + b"{") + small.compress(TAIL[:20]) + small.compress(TAIL[20:]) + small.flush()
    assert counted_within(1 << 20, iter([honest]), JSON, encoding) == CHAT


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
    spoiled = bytearray(answer)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(spoiled) + 1)
        match draw.randrange(4):
            case 0:
                spoiled[at:at] = draw.choice(FRAGMENTS)
            case 1:
                del spoiled[at : at + draw.randrange(1, 40)]
            case 2:
                spoiled[at : at + 1] = draw.randbytes(1)
            case _:
                spoiled[at:at] = spoiled[draw.randrange(len(spoiled) + 1) :][: draw.randrange(200)]
    return bytes(spoiled)


def cut(draw: random.Random, whole: bytes) -> list[bytes]:
    places = sorted(draw.randrange(len(whole) + 1) for _ in range(draw.randrange(1, 12)))
    return [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]


def test_whatever_comes_nothing_is_raised_and_the_pieces_do_not_matter() -> None:
    draw = random.Random(7)
    told = 0
    for _ in range(times(600, 200_000)):
        api, kind, answer, _ = draw.choice(ANSWERS).values
        assert isinstance(api, str)
        assert isinstance(kind, str)
        assert isinstance(answer, bytes)
        if draw.random() < 0.3:
            answer = b"".join(draw.choice(FRAGMENTS) for _ in range(draw.randrange(60)))
        encoding, pack = draw.choice(PACKED)
        whole = mutated(draw, pack(mutated(draw, answer))) if draw.random() < 0.3 else pack(mutated(draw, answer))
        usage = read(api, whole, kind, encoding)
        assert usage == read(api, cut(draw, whole), kind, encoding), (api, kind, encoding, whole)
        told += usage is not None
    # Many of the mutated answers can still be read.
    assert told > 100


FOLD, BASH = "mcp__contextfold__context_fold", "Bash"
SUMMARY = "done " * 80


def calls_in(api: str, *said: str | None) -> tuple[bytes, bytes]:
    """A whole and a streamed response with these calls; None stands for a text."""
    arguments = json.dumps({"message": SUMMARY})
    halves = arguments[:9], arguments[9:]
    match api:
        case "anthropic":
            blocks = [
                {"type": "tool_use", "id": "c", "name": name, "input": {"message": SUMMARY}}
                if name
                else {"type": "text", "text": "so"}
                for name in said
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
            functions = [{"name": name, "arguments": arguments} for name in said if name]
            text = "so" if None in said else None
            message = {"content": text, "tool_calls": [{"id": "c", "function": one} for one in functions]}
            said_so: list[dict[str, Any]] = [{"content": text}]
            for index, one in enumerate(functions):
                begun = {"index": index, "id": "c", "function": {**one, "arguments": ""}}
                later = [{"index": index, "function": {"arguments": half}} for half in halves]
                said_so += [{"tool_calls": [call]} for call in (begun, *later)]
            stream = b"".join(event({"choices": [{"delta": delta}]}) for delta in said_so)
            return json.dumps({"choices": [{"message": message}]}).encode(), stream
        case "openai-responses":
            items = [
                {"type": "function_call", "name": name, "arguments": arguments} if name else {"type": "message"}
                for name in said
            ]
            output = [{"type": "reasoning"}, *items]
            done = [{"type": "response.output_item.done", "item": item} for item in output]
            completed = {"type": "response.completed", "response": {"output": output, "usage": RESPONSES_USAGE}}
            return json.dumps({"output": output}).encode(), named(*done, completed)
    parts = [{"functionCall": {"name": n, "args": {"message": SUMMARY}}} if n else {"text": "so"} for n in said]
    thought = {"text": "hm", "thought": True}
    chunks = [{"candidates": [{"content": {"parts": [part]}}]} for part in [thought, *parts]]
    return json.dumps({"candidates": [{"content": {"parts": parts}}]}).encode(), b"".join(map(event, chunks))


@pytest.mark.parametrize("api", ["anthropic", "openai-chat", "openai-responses", "gemini"])
@pytest.mark.parametrize(
    ("said", "has_ours", "only_ours"),
    [
        ([FOLD], True, True),
        ([FOLD, BASH], True, False),
        ([None, FOLD], True, False),
        ([BASH], False, False),
        ([None], False, False),
    ],
)
def test_calls_of_our_tools_are_seen_in_every_kind_of_response(
    api: str, said: list[str | None], has_ours: bool, only_ours: bool
) -> None:
    for body, kind in zip(calls_in(api, *said), (JSON, SSE), strict=True):
        reader = ResponseReader(api, kind, "", {FOLD})
        for at in range(0, len(body), 7):
            reader.feed(body[at : at + 7])
        facts: ResponseFacts = reader.facts()
        assert facts.only_ours == only_ours
        assert (90 <= facts.our_output_tokens <= 130) == has_ours
