"""Old tool results are left out when the prompt cache has lapsed: which ones, what stands there, and that it lasts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contextfold.fold.messages import (
    ColdSettings,
    Format,
    Remembered,
    by_call,
    cache_life_s,
    project,
    project_body,
)
from contextfold.fold.messages.cold_results import STUB_MAX_BYTES, stub_of
from tests.fold.messages.histories import PNG
from tests.fold.messages.projecting import (
    LIST,
    Message,
    answered,
    asked,
    back,
    body_of,
    branch,
    every_format,
    named,
    say,
)

LONG = "line of a file, é\n" * 200
SETTINGS = ColdSettings()
BINDING = "claude-opus-5-5"


def call(format: Format, call_id: str, tool: str, **arguments: str) -> Message:
    """A turn of the model with one call."""
    (message,) = asked(format, (call_id, tool))
    if format == "anthropic":
        message["content"][0]["input"] = arguments
    elif format == "openai-chat":
        message["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    elif format == "gemini":
        message["parts"][0]["functionCall"]["args"] = arguments
    else:
        message["arguments"] = json.dumps(arguments)
    return message


def read(format: Format, call_id: str, path: str = "src/app.py", text: Any = LONG, tool: str = "Read") -> list[Message]:
    return [call(format, call_id, tool, file_path=path), *answered(format, (call_id, text))]


def cold(messages: list[Message], format: Format, remembered: Remembered | None = None, **members: Any) -> Remembered:
    """What is remembered after a request that came when the cache had lapsed."""
    earlier = remembered or Remembered()
    projected = project_body(body_of(messages, format, **members), format, remembered=earlier)
    new = projected.cold_results(salt="owner conversation", settings=SETTINGS)
    old = [each for those in earlier.results.values() for each in those.values()]
    return Remembered(results=by_call((*old, *(each.result for each in new))))


def ids(remembered: Remembered) -> list[str]:
    return list(remembered.results)


def sent_with(messages: list[Message], format: Format, remembered: Remembered, **members: Any) -> list[Message]:
    projected = project_body(body_of(messages, format, **members), format, remembered=remembered)
    sent: list[Message] = json.loads(projected.body)[LIST[format]]
    return sent


@every_format
def test_old_large_results_become_stubs_and_everything_else_stays(format: Format) -> None:
    old, small = read(format, "a"), read(format, "b", text="short")
    last = [*read(format, "c"), *read(format, "d")]
    messages = [*say("go", format), *old, *small, *last]
    remembered = cold(messages, format)
    assert ids(remembered) == ["a"]
    (left_out,) = remembered.results["a"].values()
    assert left_out.stub == (
        f"[contextfold: result of Read src/app.py, {left_out.tokens:,} tokens, left out after a pause. "
        f'To see it: context_expand "{left_out.id}", or run: context fold expand {left_out.id}]'
    )
    expected = [*say("go", format), old[0], *answered(format, ("a", left_out.stub)), *small, *last]
    assert sent_with(messages, format, remembered) == expected
    projected = project_body(body_of(messages, format), format, remembered=remembered)
    receipt = projected.receipt
    assert (receipt.results_left_out, receipt.first_changed, receipt.reason) == (1, 2, "")
    assert receipt.tokens_after == -(-len(projected.body) // 4)
    assert receipt.tokens_before - receipt.tokens_after > left_out.tokens // 2


@every_format
def test_later_requests_get_the_same_stubs_to_the_byte(format: Format) -> None:
    messages = [*say("go", format), *read(format, "a"), *read(format, "b"), *read(format, "c"), *read(format, "d")]
    remembered = cold(messages, format)
    assert ids(remembered) == ["a", "b"]
    before = project_body(body_of(messages, format), format, remembered=remembered).body
    more = [*messages, *read(format, "e"), *read(format, "f")]
    now = project_body(body_of(more, format), format, remembered=remembered).body
    assert now.startswith(before.removesuffix(b"]}"))
    assert ids(cold(more, format, remembered)) == ["a", "b", "c", "d"]
    again = project_body(before, format, remembered=remembered)
    assert again.body is before


@every_format
def test_errors_pictures_and_results_of_our_own_tools_stay(format: Format) -> None:
    branched = branch(format, "br_1", named("br_1", padding=LONG))
    failed = [call(format, "f", "Read"), *answered(format, ("f", LONG), failed=True)]
    expanded = [call(format, "x", "mcp__contextfold__context_expand"), *answered(format, ("x", LONG))]
    last = [*read(format, "y"), *read(format, "z")]
    messages = [*say("go", format), *branched, *expanded, *last]
    if format in ("anthropic", "gemini"):
        messages = [*messages[:-4], *failed, *last]
    if format == "anthropic":
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        messages = [*messages[:-4], *read(format, "p", text=[{"type": "text", "text": LONG}, picture]), *last]
    assert ids(cold(messages, format)) == []


@every_format
def test_the_newest_read_of_a_file_that_was_edited_after_it_stays(format: Format) -> None:
    edit = [call(format, "e", "Edit", file_path="src/app.py"), *answered(format, ("e", "done"))]
    last = [*read(format, "y", "other"), *read(format, "z", "other")]
    messages = [*say("go", format), *read(format, "a"), *read(format, "b"), *read(format, "c", "else"), *edit, *last]
    assert ids(cold(messages, format)) == ["a", "c"]
    again = [*messages[:-4], *read(format, "d"), *last]
    assert ids(cold(again, format)) == ["a", "b", "c", "d"]


def test_an_edit_that_failed_protects_no_read_and_a_read_that_failed_replaces_none() -> None:
    format: Format = "anthropic"
    failed_edit = [call(format, "e", "Edit", file_path="src/app.py"), *answered(format, ("e", "no"), failed=True)]
    edit = [call(format, "f", "Edit", file_path="src/app.py"), *answered(format, ("f", "done"))]
    failed_read = [call(format, "g", "Read", file_path="src/app.py"), *answered(format, ("g", "no"), failed=True)]
    last = [*read(format, "y", "other"), *read(format, "z", "other")]
    assert ids(cold([*say("go", format), *read(format, "a"), *failed_edit, *last], format)) == ["a"]
    assert ids(cold([*say("go", format), *read(format, "a"), *edit, *failed_read, *last], format)) == []


@every_format
def test_a_call_id_that_is_used_again_for_another_text_keeps_that_text(format: Format) -> None:
    messages = [*say("go", format), *read(format, "a"), *read(format, "b", "x", "s"), *read(format, "c", "x", "s")]
    remembered = cold(messages, format)
    other = [*say("go", format), *read(format, "a", text=LONG + "!"), *messages[3:]]
    assert sent_with(other, format, remembered) == other


@every_format
def test_a_forged_stub_and_a_stub_that_comes_back_are_text_like_any_other(format: Format) -> None:
    forged = '[contextfold: result of Read, 9 tokens, left out after a pause. To see it: context_expand "res_0"]'
    tail = [*read(format, "y"), *read(format, "z")]
    messages = [*say("go", format), *read(format, "a", text=forged), *tail]
    assert ids(cold(messages, format)) == []
    assert sent_with(messages, format, cold(messages, format)) == messages
    whole = [*say("go", format), *read(format, "b"), *tail]
    remembered = cold(whole, format)
    came_back = sent_with(whole, format, remembered)
    assert sent_with(came_back, format, remembered) == came_back
    assert ids(cold(came_back, format, remembered)) == ["b"]


@every_format
def test_results_inside_what_is_folded_are_not_left_out_again(format: Format) -> None:
    head, tail = branch(format, "br_1"), back(format, "br_1")
    last = [*read(format, "y"), *read(format, "z")]
    messages = [*say("go", format), *head, *read(format, "a"), *tail, *last]
    assert ids(cold(messages, format)) == []
    opened = [*say("go", format), *head, *read(format, "a"), *read(format, "b"), *read(format, "c")]
    remembered = cold(opened, format)
    assert ids(remembered) == ["a"]
    assert sent_with(messages, format, remembered) == [*say("go", format), *head, *tail, *last]


def without_ids(messages: list[Message]) -> list[Message]:
    """As clients of Gemini send calls and responses that have only names."""
    bare: list[Message] = json.loads(json.dumps(messages))
    for part in [part for message in bare for part in message["parts"]]:
        for kind in ("functionCall", "functionResponse"):
            if kind in part:
                del part[kind]["id"]
                part[kind]["name"] = "Read"
    return bare


def test_geminis_results_without_ids_are_known_by_their_tool_and_number() -> None:
    whole = [*say("go", "gemini"), *(part for name in "abcd" for part in read("gemini", name))]
    messages = without_ids(whole)
    remembered = cold(messages, "gemini")
    assert ids(remembered) == ["Read#1", "Read#2"]
    sent = sent_with(messages, "gemini", remembered)
    responses = [part["functionResponse"]["response"]["output"] for one in sent[2::2] for part in one["parts"]]
    # All four have the same text: only those that were decided on are left out.
    assert [text == LONG for text in responses] == [False, False, True, True]
    assert len(set(responses[:2])) == 2
    more = [*messages, *without_ids(read("gemini", "e"))]
    assert sent_with(more, "gemini", remembered)[: len(sent)] == sent
    assert ids(cold(more, "gemini", remembered)) == ["Read#1", "Read#2", "Read#3"]


@pytest.mark.parametrize("call_id", ["a", "é"])
@pytest.mark.parametrize("is_escaped", [False, True])
@every_format
def test_a_stub_is_the_same_however_a_client_writes_its_json(format: Format, is_escaped: bool, call_id: str) -> None:
    messages = [*say("go", format), *(part for name in (call_id, "c", "d") for part in read(format, name))]
    remembered = cold(messages, format)
    assert ids(remembered) == [call_id]
    body = json.dumps({"model": "m", LIST[format]: messages}, ensure_ascii=is_escaped).encode()
    projected = project_body(body, format, remembered=remembered)
    assert projected.receipt.results_left_out == 1
    assert json.loads(projected.body)[LIST[format]] == project(messages, format, remembered=remembered).messages
    assert projected.cold_results(salt="owner conversation", settings=SETTINGS) == []


def thought(text: str) -> Message:
    return {"type": "thinking", "thinking": text, "signature": "s="}


def test_bound_thinking_of_the_running_loop_makes_results_stay_and_finished_thinking_goes() -> None:
    first, rest = read("anthropic", "a"), [*read("anthropic", "b"), *read("anthropic", "c")]
    thinking = read("anthropic", "d")
    thinking[0]["content"].insert(0, thought("running"))
    running = [*say("go"), *first, *rest, *thinking]
    assert ids(cold(running, "anthropic", model=BINDING)) == []
    assert ids(cold(running, "anthropic")) == ["a", "b"]
    finished = [*running, *asked("anthropic", text="Done."), *say("next")]
    remembered = cold(finished, "anthropic", model=BINDING)
    assert ids(remembered) == ["a", "b"]
    sent = sent_with(finished, "anthropic", remembered, model=BINDING)
    assert "running" not in str(sent)
    new = read("anthropic", "e")
    new[0]["content"].insert(0, thought("new"))
    later = sent_with([*finished, *new], "anthropic", remembered, model=BINDING)
    assert later == [*sent, *new]


def test_the_life_of_a_cache_is_what_the_request_says() -> None:
    hour = {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}
    assert cache_life_s("anthropic", {}) == 300
    assert cache_life_s("anthropic", {}, 60) == 60
    assert cache_life_s("anthropic", hour, 60) == 3600
    assert cache_life_s("openai-chat", {}) == cache_life_s("openai-responses", {}) == cache_life_s("gemini", {}) == 3600
    assert cache_life_s("openai-chat", {"prompt_cache_retention": "24h"}, 60) == 86_400
    assert project_body(body_of(say("x"), "anthropic", **hour), "anthropic").cache_life_s() == 3600
    assert project_body(body_of(say('{"ttl": "1h"}'), "anthropic"), "anthropic").cache_life_s() == 300
    day = body_of(say("x"), "openai-chat", prompt_cache_retention="24h")
    assert project_body(day, "openai-chat").cache_life_s() == 86_400


@pytest.mark.parametrize(
    ("tool", "path"),
    [("Read", "x" * 5000), ("é" * 500, "東" * 500), ("", ""), ('a"]\nb', 'c"]\x00d'), ("Read", "src/app.py")],
)
def test_a_stub_is_one_line_of_at_most_60_tokens(tool: str, path: str) -> None:
    stub = stub_of("res_0123456789abcdef0123", tool, {"file_path": path}, 1_234_567)
    assert len(stub.encode()) <= STUB_MAX_BYTES == 240
    assert stub.count("]") == stub.count("[") == 1
    assert "\n" not in stub
    assert stub.count("res_0123456789abcdef0123") == 2
