"""The projection of a request's body: other bytes do not change, and an unreadable body passes unchanged."""

from __future__ import annotations

import json

import pytest

from contextfold.common.canonical import DEPTH_MAX
from contextfold.fold.messages import IMAGE_TOKENS, BodyProjection, Format, project, project_body, repeated
from contextfold.fold.messages.body import MESSAGES_MAX, VALUES_MAX
from contextfold.fold.messages.repeated import forget_messages
from tests.fold.messages.histories import FORMATS, generate_history
from tests.fold.messages.short_histories import MODEL, Message, body_of, branch, return_turn, work
from tests.support.machine import times

UNUSUAL_BODY = """\ufeff{
 "system" : [ {"type":"text","text":"é \\u00e9 東京","cache_control":{"type":"ephemeral"}} ] ,"n":%s,
\t"messages"\t:[ %s\n ,%s  ,\r\n%s, %s,%s ,  %s ]
, "x" : -0.0e+1 , "thinking":{"type":"enabled"}}  \n"""


def unusual_body() -> tuple[bytes, bytes]:
    """A body with unusual whitespace and escapes, and the bytes that must be sent of it."""
    texts = [json.dumps(message, indent=1, ensure_ascii=False) for message in (*branch("anthropic", "br_1"),)]
    texts += [
        json.dumps(message, ensure_ascii=False).replace("Bash", "\\u0042ash é😀") for message in work("anthropic", "w")
    ]
    texts += [json.dumps(message, separators=(" , ", " : ")) for message in return_turn("anthropic", "br_1")]
    body = (UNUSUAL_BODY.lstrip("\ufeff") % ("9" * 5000, *texts)).encode()
    first, last = body.index(texts[2].encode()), body.index(texts[4].encode())
    return body, body[:first] + body[last:]


def test_only_the_bytes_of_folded_messages_are_removed() -> None:
    body, expected = unusual_body()
    projected = project_body(body, "anthropic")
    assert projected.body == expected
    assert projected.changed
    again = project_body(expected, "anthropic")
    assert again.body is expected
    assert projected.receipt.tokens_before == -(-len(body) // 4)
    assert again.receipt.tokens_before == projected.receipt.tokens_after == -(-len(expected) // 4)
    assert projected.original(2).encode() in body
    assert "é😀" in projected.original(2)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"nothing", "not_json"),
        (b"[]", "not_json"),
        (b'{"messages":[]', "not_json"),
        (b'{"messages":[]}x', "not_json"),
        (b'{"messages":[],}', "not_json"),
        (b'{"messages":[{},]}', "not_json"),
        (b'{"messages":[{}{}]}', "not_json"),
        (b'{"messages":[{},,{}]}', "not_json"),
        (b'{"messages" []}', "not_json"),
        (b"{1:[]}", "not_json"),
        (b'{"messages":[],"x":NaN}', "not_json"),
        (b'{"messages":[],"x":01}', "not_json"),
        (b'{"messages":[{"content":"\xff"}]}', "not_json"),
        (b'{"messages":[],"x":"\xed\xa0\x80"}', "not_json"),
        (b'{"messages":[],"x":"\xe6"}', "not_json"),
        (b'\xef\xbb\xbf{"messages":[]}', "not_json"),
        ('{"messages":[]}'.encode("utf-16"), "not_json"),
        (b'{"messages":[],"messages":[]}', "repeated_members"),
        (b'{"messages":[],"mess\\u0061ges":[]}', "repeated_members"),
        (b'{"messages":[{"role":"user","role":"user"}]}', "repeated_members"),
        (b'{"messages":[],"x":[{"a":{"b":1,"b":1}}]}', "repeated_members"),
        (b"{}", "no_messages"),
        (b'{"messages":"text"}', "no_messages"),
        (b'{"messages":{"0":{}}}', "no_messages"),
        (b'{"input":[]}', "no_messages"),
        (b'{"messages":[]}', ""),
        (b' {\n"messages"\t: [ ] } ', ""),
    ],
)
def test_an_unreadable_body_passes_unchanged_with_a_reason(body: bytes, reason: str) -> None:
    projected = project_body(body, "anthropic")
    assert projected.body is body
    assert projected.receipt.reason == reason
    assert projected.receipt.header_fields()["reason"] == (reason or None)
    assert projected.receipt.tokens_before == projected.receipt.tokens_after == -(-len(body) // 4)
    assert [span.branch_id for span in projected.threads] == [None]


@pytest.mark.parametrize("location", ["message", "member"])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_a_body_that_is_nested_too_deeply_passes_unchanged(location: str, brackets: tuple[str, str]) -> None:
    for depth, is_deep in ((DEPTH_MAX, False), (DEPTH_MAX + 1, True), (100_000, True)):
        deep = brackets[0] * (depth - 1) + "[]" + brackets[1] * (depth - 1)
        body = '{"messages":[%s],"x":%s}' % ((deep, "1") if location == "message" else ("", deep))
        assert project_body(body.encode(), "anthropic").receipt.reason == ("too_deep" if is_deep else ""), depth


def test_a_body_with_too_many_values_passes_unchanged() -> None:
    flood = b'{"messages":[' + b"[]," * VALUES_MAX + b"[]]}"
    assert project_body(flood, "anthropic").receipt.reason == "too_many_values"
    text = b'{"messages":["' + b"[]" * VALUES_MAX + b'"]}'
    assert project_body(text, "anthropic").receipt.reason == ""
    numbers = b"1," * VALUES_MAX + b"1"
    assert project_body(b'{"messages":[],"x":[' + numbers + b"]}", "anthropic").receipt.reason == "too_many_values"
    assert project_body(b'{"messages":[],"x":["' + numbers + b'"]}', "anthropic").receipt.reason == ""


def test_a_body_with_too_many_messages_passes_unchanged() -> None:
    for number, reason in ((MESSAGES_MAX, ""), (MESSAGES_MAX + 1, "too_many_values")):
        flood = b'{"messages":[' + b",".join([b"1"] * number) + b"]}"
        projected = project_body(flood, "anthropic")
        assert (projected.receipt.reason, projected.body is flood) == (reason, True), number


def test_a_history_that_the_provider_stores_passes_unchanged() -> None:
    messages = [
        *branch("openai-responses", "br_1"),
        *work("openai-responses", "w"),
        *return_turn("openai-responses", "br_1"),
    ]
    for name, value in (("previous_response_id", "resp_1"), ("conversation", {"id": "conv_1"})):
        body = body_of(messages, "openai-responses", stream=True, **{name: value})
        projected = project_body(body, "openai-responses")
        assert projected.body is body
        assert projected.receipt.reason == "kept_elsewhere"
        assert projected.model == MODEL
        assert project_body(body_of(messages, "openai-responses", **{name: None}), "openai-responses").changed


def test_a_text_instead_of_a_list_is_accepted_where_the_api_accepts_one() -> None:
    body = b'{"model":"m","input":"hello"}'
    assert project_body(body, "openai-responses").receipt.reason == ""
    assert project("hello", "openai-responses").messages == "hello"
    assert project("hello", "openai-responses").receipt.reason == ""
    assert project("hello", "anthropic").receipt.reason == "no_messages"
    assert project(None, "anthropic").receipt.reason == "no_messages"  # type: ignore[arg-type]


def test_base64_data_counts_as_one_picture() -> None:
    data = "A" * 100_000
    shown: dict[Format, list[Message]] = {
        "anthropic": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
            {
                "type": "tool_result",
                "tool_use_id": "w",
                "content": [{"type": "image", "source": {"type": "base64", "data": data}}],
            },
        ],
        "openai-chat": [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            {"type": "file", "file": {"file_data": data}},
        ],
        "openai-responses": [{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}],
    }
    for format, parts in shown.items():
        for part in parts:
            messages = [{"role": "user", "content": [part]}]
            for tokens in (
                project(messages, format).receipt.tokens_before,
                project_body(body_of(messages, format), format).receipt.tokens_before,
            ):
                assert IMAGE_TOKENS < tokens < IMAGE_TOKENS + 100
    text = [{"role": "user", "content": [{"type": "text", "text": f"data:image/png;base64,{data}"}]}]
    assert project(text, "anthropic").receipt.tokens_before > 25_000


def test_a_model_name_is_read_with_escapes_and_in_utf8() -> None:
    assert project_body('{"messages":[],"model":"モデル"}'.encode(), "anthropic").model == "モデル"
    assert project_body(b'{"messages":[],"model":"\\u30e2"}', "anthropic").model == "モ"
    assert project_body(b'{"messages":[],"model":7}', "anthropic").model == ""


# ---- the cache of messages


def all_fields(projection: BodyProjection) -> tuple[object, ...]:
    counted = projection.our_tokens, projection.our_tools, projection.blocks, projection.opening_tokens
    known = projection.session_id, projection.model, dict(projection.outcomes)
    return projection.body, projection.receipt, projection.threads, *counted, *known


@pytest.mark.parametrize("format", FORMATS)
def test_the_cache_of_messages_changes_no_projection(format: Format) -> None:
    """Each history is projected as it grows, then once more, then with an empty cache."""
    for number in range(times(3, 2_000)):
        history = generate_history(format, f"repeated {number}")
        bodies = [history.body(count) for count in range(1, len(history.texts) + 1)]
        grown = [all_fields(project_body(body, format)) for body in bodies]
        repeated_projections = [all_fields(project_body(body, format)) for body in bodies]
        for body, first, second in zip(bodies, grown, repeated_projections, strict=True):
            forget_messages()
            assert first == second == all_fields(project_body(body, format)), str(history)


def test_a_cached_message_does_not_match_a_longer_one() -> None:
    for message in ("1", "12", '"a"', '"ab"', '{"role":"user","content":"x"}', '{"role":"user","content":"x"} '):
        body = f'{{"messages":[{message}]}}'.encode()
        for _ in range(2):
            projected = project_body(body, "anthropic")
            assert (projected.receipt.reason, projected.receipt.messages_before) == ("", 1)
    assert project_body(b'{"messages":[{"role":"user","content":"x"}x]}', "anthropic").receipt.reason == "not_json"


def test_a_cached_result_is_read_again_if_its_call_is_ours() -> None:
    """A client may use one id for two calls with the same result, one of another tool and one of ours."""
    opened, result = branch("anthropic", "br_1")
    foreign = json.loads(json.dumps(opened).replace("context_branch", "Bash"))
    for call, threads in ((foreign, 1), (opened, 2), (foreign, 1), (opened, 2)):
        projected = project_body(body_of([call, result], "anthropic"), "anthropic")
        assert len(projected.threads) == threads


def test_the_cache_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MESSAGES_CACHED_MAX", 10)
    body = body_of([{"role": "user", "content": f"words {number}"} for number in range(50)], "anthropic")
    first = all_fields(project_body(body, "anthropic"))
    assert len(repeated._following) <= 10
    assert all_fields(project_body(body, "anthropic")) == first


def test_wrong_guesses_cost_no_more_than_reading_the_request_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many short messages was followed by a long one in an earlier request."""
    hashed = 0

    def counting(text: str) -> int:
        nonlocal hashed
        hashed += len(text)
        return hash(text)

    monkeypatch.setattr(repeated, "hash", counting, raising=False)
    short = [{"role": "user", "content": f"x{number}"} for number in range(100)]
    # Its length is nearly that of the request in which it is the wrong guess.
    long = {"role": "user", "content": "y" * 3_000}
    for message in short:
        project_body(body_of([message, long], "anthropic"), "anthropic")
    body, hashed = body_of(short, "anthropic"), 0
    assert project_body(body, "anthropic").receipt.messages_before == len(short)
    assert hashed <= 4 * len(body)
