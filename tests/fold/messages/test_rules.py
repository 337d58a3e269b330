"""The validators and the generated histories, checked with each other: valid requests pass, broken ones do not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.fold.messages.expected import FOLD, KEEP, WAIT, expected, left_out
from tests.fold.messages.histories import LIST, Format, generate_history
from tests.fold.messages.test_laws import RULES, every_format
from tests.support.machine import times

COUNT = times(25, 2000)


@every_format
def test_every_history_is_a_valid_request(format: Format) -> None:
    for number in range(COUNT):
        history = generate_history(format, f"valid {number}")
        assert RULES[format](json.loads(history.body())) == [], str(history)


@every_format
def test_histories_contain_every_case_of_the_laws(format: Format) -> None:
    counts = dict.fromkeys(("branches", "folds", "nested", "shared", "open", "failed", "forced", "words", "stay"), 0)
    for number in range(150):
        history = generate_history(format, f"rich {number}")
        expectation = expected(history)
        folded = [closing for closing in expectation.closings if closing.verdict == FOLD]
        counts["branches"] += sum(closing.kind == "return" for closing in folded)
        counts["folds"] += sum(closing.kind == "fold" for closing in folded)
        counts["nested"] += sum(other.contains(closing) for closing in folded for other in folded)
        counts["shared"] += sum(
            len(history.steps[history.step_indexes[closing.closed_at]].calls) > 1 for closing in folded
        )
        counts["open"] += len(expectation.open)
        calls = [call for step in history.steps for call in step.calls]
        counts["failed"] += sum(call.failed and call.kind != "work" for call in calls)
        opened = sum(call.kind == "branch" and not call.failed for call in calls)
        counts["forced"] += (
            opened - sum(closing.kind == "return" for closing in expectation.closings) - len(expectation.open)
        )
        inside = {index for closing in expectation.folded for index in range(closing.first, closing.end)}
        counts["words"] += sum(bool(history.user_texts[index]) for index in inside)
        counts["stay"] += sum(closing.verdict in (KEEP, WAIT) for closing in expectation.closings)
        assert all(left_out(history, closing) for closing in folded)
    assert min(counts.values()) >= 10, counts


@every_format
def test_a_history_without_one_result_breaks_a_rule(format: Format) -> None:
    for number in range(COUNT // 5):
        history = generate_history(format, f"result {number}")
        for index, results in enumerate(history.results):
            if results:
                remaining = [other_index for other_index in range(len(history.texts)) if other_index != index]
                assert RULES[format](json.loads(history.body_of(remaining))), f"{history} without {index}"


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


VALID: dict[Format, dict[str, Any]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
}


BROKEN_REQUESTS: list[tuple[Format, str, str]] = [
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


@pytest.mark.parametrize(("format", "change", "complaint"), BROKEN_REQUESTS)
def test_a_broken_request_is_reported_with_its_rule(format: Format, change: str, complaint: str) -> None:
    body = copy.deepcopy(VALID[format])
    assert RULES[format](body) == []
    eval(change, {"m": body[LIST[format]], "b": body})
    violations = RULES[format](body)
    assert any(complaint in text for text in violations), violations
