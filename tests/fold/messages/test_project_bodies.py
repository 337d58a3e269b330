"""The projection of a request's body: how it is written again, and which bodies pass unchanged."""

from __future__ import annotations

import json

import pytest

from contextfold.common.canonical import DEPTH_MAX
from contextfold.fold.messages import IMAGE_TOKENS, Format, project, project_body
from contextfold.fold.messages.request import MESSAGES_MAX, NUMBER_MAX_CHARS, VALUES_MAX
from tests.fold.messages.short_histories import MODEL, Message, body_of, branch, return_turn, say, work


def folded_body(written: str, *, before: str = "") -> bytes:
    """A request with a branch that folds; `written` is the client's text of another member."""
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *return_turn("anthropic", "br_1")]
    listed = json.dumps(messages, separators=(",", ":"))
    return f'{{"model":"{MODEL}",{before}"messages":{listed},"other":{written}}}'.encode()


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        # White space between the tokens goes, that inside of strings stays.
        ('{ "a" :\t[ 1 ,\r\n2 ] }', '{"a":[1,2]}'),
        ('" a \\n b "', '" a \\n b "'),
        # Escapes that are not necessary go. Those that are necessary stay, and so does half a surrogate pair.
        (r'"\u00e9 é \u6771 \ud83d\ude00 \/ \u0041"', '"é é 東 😀 / A"'),
        (r'"\" \\ \b \f \n \r \t \u0000 \u001F \u007f"', '"\\" \\\\ \\b \\f \\n \\r \\t \\u0000 \\u001f \x7f"'),
        (r'["\uD800","x\udc00y","\ud800\ud83d\ude00"]', r'["\ud800","x\udc00y","\ud800😀"]'),
        (r'{"\ud800":1,"\u0061":2}', r'{"\ud800":1,"a":2}'),
        # A number keeps its value: an integer every digit, any other number as much as a double has.
        ("[0,-7,123456789012345678901234567890]", "[0,-7,123456789012345678901234567890]"),
        ("[1.0,1.0e2,1E-7,2.50,-0.0e+1,0.1]", "[1.0,100.0,1e-07,2.5,-0.0,0.1]"),
        ("[1e300]", "[1e+300]"),
        ("0.10000000000000000555", "0.1"),
        # The order of members stays.
        ('{"z":1,"a":{"y":null,"b":true},"m":false}', '{"z":1,"a":{"y":null,"b":true},"m":false}'),
    ],
)
def test_a_folded_request_is_written_in_one_form(written: str, sent: str) -> None:
    projected = project_body(folded_body(written), "anthropic")
    assert projected.changed
    assert projected.body.endswith(f',"other":{sent}}}'.encode())
    assert json.loads(projected.body)["other"] == json.loads(written)
    again = project_body(projected.body, "anthropic")
    assert again.body is projected.body
    assert again.receipt.tokens_before == projected.receipt.tokens_after == -(-len(projected.body) // 4)


def test_a_request_in_which_nothing_folds_is_sent_as_the_bytes_that_came() -> None:
    body = b' {"messages" : [ {"role":"user","content":"\\u00e9 \xc3\xa9"} ] ,\n"x":1.0e2} '
    projected = project_body(body, "anthropic")
    assert projected.body is body
    assert (projected.receipt.reason, projected.changed) == ("", False)
    assert projected.encode_original(0) == '{"role":"user","content":"é é"}'


def test_everything_before_the_first_change_is_the_same_in_later_requests() -> None:
    """However the client writes it: as JSON it is what came, and as bytes it is what was sent before."""
    opening = [*say("go é \ud800"), *branch("anthropic", "br_1")]
    folded = [*opening, *work("anthropic", "w"), *return_turn("anthropic", "br_1")]
    longer = [*folded, *say("next"), *branch("anthropic", "br_2"), *work("anthropic", "x")]
    members = {"model": MODEL, "system": "é", "temperature": 1.50}
    bodies = [json.dumps({**members, "messages": each}, indent=1).encode() for each in (opening, folded, longer)]
    first, second, third = (project_body(body, "anthropic") for body in bodies)
    # Nothing folds yet, so the form is the client's. The content is the same when something folds.
    assert first.body is bodies[0]
    assert second.receipt.first_changed == third.receipt.first_changed == len(opening)
    for projected, messages in ((second, folded), (third, longer)):
        assert json.loads(projected.body)["messages"][: len(opening)] == messages[: len(opening)]
    assert third.body.startswith(second.body.removesuffix(b"]}"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"nothing", "not_json"),
        (b"[]", "not_json"),
        (b'{"messages":[]', "not_json"),
        (b'{"messages":[]}x', "not_json"),
        (b'{"messages":[],}', "not_json"),
        (b'{"messages" []}', "not_json"),
        (b'{"messages":[],"x":NaN}', "not_json"),
        (b'{"messages":[],"x":-Infinity}', "not_json"),
        (b'{"messages":[],"x":1e400}', "not_json"),
        (b'{"messages":[],"x":' + b"9" * (NUMBER_MAX_CHARS + 1) + b"}", "not_json"),
        (b'{"messages":[],"x":0.' + b"9" * NUMBER_MAX_CHARS + b"}", "not_json"),
        (b'{"messages":[],"x":' + b"9" * NUMBER_MAX_CHARS + b"}", ""),
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


@pytest.mark.parametrize(
    ("thread", "reason"),
    [
        ({"type": "continue", "previous_message_id": "msg_1"}, "kept_elsewhere"),
        ({"type": "of another kind"}, "kept_elsewhere"),
        ({"type": "create"}, ""),
        (None, ""),
    ],
)
def test_a_request_that_continues_a_thread_passes_and_one_that_creates_it_folds(
    thread: Message | None, reason: str
) -> None:
    messages = [*say("go"), *branch("anthropic", "br_1"), *work("anthropic", "w"), *return_turn("anthropic", "br_1")]
    body = body_of(messages, "anthropic", thread=thread)
    projected = project_body(body, "anthropic")
    assert (projected.receipt.reason, projected.body is body) == (reason, bool(reason))


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
