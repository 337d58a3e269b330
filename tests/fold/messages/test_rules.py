"""The validators and the histories, tried on each other: whole ones are taken, broken ones are not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fold.messages import rules_anthropic, rules_gemini, rules_openai_chat, rules_openai_responses
from tests.fold.messages.elements import cut
from tests.fold.messages.expected import FOLD, KEEP, WAIT, expected, left_out
from tests.fold.messages.histories import FORMATS, LIST, Format, history
from tests.support.machine import times

RULES: dict[Format, Callable[[Any], list[str]]] = {
    "anthropic": rules_anthropic.violations,
    "openai-chat": rules_openai_chat.violations,
    "openai-responses": rules_openai_responses.violations,
    "gemini": rules_gemini.violations,
}
COUNT = times(25, 2000)
every_format = pytest.mark.parametrize("format", FORMATS)


@every_format
def test_every_history_is_a_valid_request(format: Format) -> None:
    for number in range(COUNT):
        told = history(format, f"valid {number}")
        assert RULES[format](json.loads(told.body())) == [], str(told)


@every_format
def test_a_history_is_the_same_for_the_same_seed_and_its_bytes_are_its_messages(format: Format) -> None:
    for number in range(COUNT // 5):
        told, again = history(format, f"same {number}"), history(format, f"same {number}")
        assert told.body() == again.body()
        assert json.loads(told.body())[LIST[format]] == told.messages
        pieces = cut(told.body(), LIST[format])
        assert pieces
        assert list(pieces.texts) == told.texts
        assert pieces.without(frozenset()) == told.body()


@every_format
def test_histories_hold_what_the_laws_are_about(format: Format) -> None:
    found = dict.fromkeys(("branches", "folds", "nested", "shared", "open", "failed", "forced", "words", "stay"), 0)
    for number in range(150):
        told = history(format, f"rich {number}")
        seen = expected(told)
        made = [one for one in seen.closings if one.verdict == FOLD]
        found["branches"] += sum(one.kind == "return" for one in made)
        found["folds"] += sum(one.kind == "fold" for one in made)
        found["nested"] += sum(other.holds(one) for one in made for other in made)
        found["shared"] += sum(len(told.steps[told.owners[one.done_at]].calls) > 1 for one in made)
        found["open"] += len(seen.open)
        calls = [call for step in told.steps for call in step.calls]
        found["failed"] += sum(call.failed and call.kind != "work" for call in calls)
        opened = sum(call.kind == "branch" and not call.failed for call in calls)
        found["forced"] += opened - sum(one.kind == "return" for one in seen.closings) - len(seen.open)
        inside = {place for one in seen.folded for place in range(one.first, one.end)}
        found["words"] += sum(bool(told.words[place]) for place in inside)
        found["stay"] += sum(one.verdict in (KEEP, WAIT) for one in seen.closings)
        assert all(left_out(told, one) for one in made)
    assert min(found.values()) >= 10, found


@every_format
def test_a_history_without_one_result_is_refused(format: Format) -> None:
    for number in range(COUNT // 5):
        told = history(format, f"result {number}")
        for place, answers in enumerate(told.answers):
            if answers:
                kept = [one for one in range(len(told.texts)) if one != place]
                assert RULES[format](json.loads(told.body_of(kept))), f"{told} without {place}"


@every_format
def test_a_history_without_one_call_is_refused(format: Format) -> None:
    for number in range(COUNT // 5):
        told = history(format, f"call {number}")
        for place, message in enumerate(told.messages):
            called = b"functionCall" in told.texts[place] or b"tool_use" in told.texts[place]
            if called or "tool_calls" in message or message.get("type") == "function_call":
                kept = [one for one in range(len(told.texts)) if one != place]
                assert RULES[format](json.loads(told.body_of(kept))), f"{told} without {place}"


ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "tools": [{"name": "t"}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "t", "input": {}},
                {"type": "tool_use", "id": "b", "name": "t", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "2"},
                {"type": "tool_result", "tool_use_id": "a"},
                {"type": "text", "text": "and?"},
            ],
        },
    ],
}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}},
                {"id": "b", "type": "custom", "custom": {"name": "t", "input": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "system", "content": "still"},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "reasoning", "id": "rs2", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ],
}
GEMINI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "hello"}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "t", "args": {}}, "thoughtSignature": "s"},
                {"functionCall": {"name": "u", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "t", "response": {"output": "1"}}},
                {"functionResponse": {"name": "u", "response": {"output": "2"}}},
                {"text": "and?"},
            ],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "t", "id": "x"}, "thoughtSignature": "s"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "t", "id": "x", "response": {}}}]},
    ],
}
WHOLE: dict[Format, dict[str, Any]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
}

# An expression over the list `m` (and the body `b`) that breaks the request, and a word of the complaint.
BROKEN: list[tuple[Format, str, str]] = [
    ("anthropic", "m.pop(0)", "first"),
    ("anthropic", "m.pop()", "without `tool_result`"),
    ("anthropic", "m.insert(2, m[1])", "'system' must"),
    ("anthropic", "m.insert(1, m[0])", "alternate"),
    ("anthropic", "m.append({'role': 'system', 'content': []})", "no content"),
    ("anthropic", "m.insert(0, m.pop(1))", "first"),
    ("anthropic", "m[3]['content'].pop(0)", "without `tool_result`"),
    ("anthropic", "m[3]['content'].reverse()", "first"),
    ("anthropic", "m[3]['content'].insert(1, m[3]['content'][0])", "two results"),
    ("anthropic", "m[3]['content'][0].update(tool_use_id='c')", "unexpected"),
    ("anthropic", "m[2]['content'][1].update(id='b')", "unique"),
    ("anthropic", "m[2]['content'].pop(0)", "thinking first"),
    ("anthropic", "m[2]['content'].append(m[2]['content'][0])", "cannot be thinking"),
    ("anthropic", "m[2]['content'][0].pop('signature')", "signature"),
    ("anthropic", "m[3]['content'][2].update(text=' ')", "empty"),
    ("anthropic", "m[0].update(content=[m[3]['content'][0]])", "unexpected"),
    ("anthropic", "m[0].update(content=[m[2]['content'][0]])", "role user"),
    ("anthropic", "b.pop('tools')", "tools"),
    (
        "anthropic",
        "b.update(system=[{'type': 'text', 'text': 'x', 'cache_control': {'type': 'ephemeral'}}] * 5)",
        "5 blocks",
    ),
    ("anthropic", "m.append({'role': 'assistant', 'content': 'so '})", "whitespace"),
    ("anthropic", "b.update(messages={})", "list"),
    ("openai-chat", "m.pop(2)", "must be a response"),
    ("openai-chat", "m.pop(3)", "did not have"),
    ("openai-chat", "m.insert(4, m[5])", "did not have"),
    ("openai-chat", "m.append(m[2])", "did not have"),
    ("openai-chat", "m.insert(5, m[4])", "must be a response"),
    ("openai-chat", "m[2]['tool_calls'][0].update(id='b')", "one id"),
    ("openai-chat", "m[2].pop('tool_calls')", "no content"),
    ("openai-chat", "m[2].update(tool_calls=[])", "tool_calls"),
    ("openai-chat", "m[1].update(content=None)", "no content"),
    ("openai-chat", "m[1].update(role='human')", "role"),
    ("openai-chat", "m[3].pop('tool_call_id')", "tool_call_id"),
    ("openai-chat", "m.clear()", "list"),
    ("openai-responses", "m.pop(2)", "no tool call found"),
    ("openai-responses", "m.pop(4)", "no tool output found"),
    ("openai-responses", "m.insert(2, m.pop(4))", "no tool call found"),
    ("openai-responses", "m.append(m[2])", "two calls"),
    ("openai-responses", "m.insert(5, m[4])", "two outputs"),
    ("openai-responses", "m.pop()", "required following"),
    ("openai-responses", "m.insert(2, m[0])", "required following"),
    ("openai-responses", "m.append({'type': 'surprise'})", "unknown type"),
    ("openai-responses", "m[2].pop('call_id')", "call_id"),
    ("openai-responses", "m[5].update(output=None)", "neither"),
    ("openai-responses", "m[7].update(content=[{'type': 'input_text'}])", "parts"),
    ("openai-responses", "m.clear()", "input"),
    ("gemini", "m.pop(0)", "first"),
    ("gemini", "m.pop()", "without responses"),
    ("gemini", "m.pop(1)", "alternate"),
    ("gemini", "m.insert(1, m[0])", "alternate"),
    ("gemini", "m[2]['parts'].pop(0)", "do not equal"),
    ("gemini", "m[4]['parts'][0]['functionResponse'].update(id='y')", "do not equal"),
    ("gemini", "m[1]['parts'][0].pop('thoughtSignature')", "thoughtSignature"),
    ("gemini", "m[0].update(parts=[])", "no parts"),
    ("gemini", "m[0].update(role='function')", "role"),
    ("gemini", "m[0].update(parts=m[1]['parts'])", "role user"),
    ("gemini", "m[2]['parts'][0]['functionResponse'].update(response='x')", "no object"),
    ("gemini", "m.clear()", "contents"),
]


@pytest.mark.parametrize(("format", "change", "complaint"), BROKEN)
def test_a_broken_rule_is_named(format: Format, change: str, complaint: str) -> None:
    body = copy.deepcopy(WHOLE[format])
    assert RULES[format](body) == []
    eval(change, {"m": body[LIST[format]], "b": body})
    found = RULES[format](body)
    assert any(complaint in text for text in found), found
