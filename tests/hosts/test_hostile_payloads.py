"""Payloads that no host sends: any JSON is read or refused, in time and memory proportional to its size."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.errors import ArgumentInvalid
from contextfold.hosts import claude_code
from tests.hosts.payloads import RECORDED, payloads

FILES = [RECORDED, "claude-code-by-hand"]
SHAPES = [
    *({"type": kind, "file": {}} for kind in ("text", "notebook", "image", 1)),
    {"stdout": ""},
    {"filePath": "", "structuredPatch": []},
    {"notebook_path": "", "new_source": ""},
    {"filenames": []},
    {"oldTodos": [], "newTodos": []},
    {"url": "", "result": ""},
    {"query": "", "results": []},
    {"status": "", "agentId": ""},
    {"content": []},
]
# Lone surrogates are included.
TEXT = st.text(st.characters(), max_size=20)
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
NAMES = st.sampled_from(["type", "text", "content", "file", "cells", "outputs", "stdout", "data", "resource"]) | TEXT
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
LONG = 1 << 20
# A line feed may become a line number of at most this many bytes.
GROWTH = 20


def check(payload: Mapping[str, object]) -> None:
    try:
        hook_event = claude_code.read(payload)
    except ArgumentInvalid:
        return
    size = len(json.dumps(payload))
    for operation in (hook_event.done, *hook_event.batch):
        if operation:
            assert 1 <= len(operation.type) <= 64
            assert operation.type.isprintable()
            assert len(operation.content.encode("utf-8")) <= GROWTH * size
            operation.call_id.encode("utf-8")
    for text in (hook_event.event, hook_event.conversation, hook_event.folder, hook_event.session_id):
        assert text is None or text.encode("utf-8")
    assert f"{hook_event.agent_id}{hook_event.agent_type}{hook_event.call_id}".encode() is not None


@given(data=st.data())
def test_any_value_in_any_member_is_read_or_refused(data: st.DataObject) -> None:
    payload = dict(
        data.draw(st.sampled_from([each for name in FILES for each in payloads(name) if len(str(each)) < 5_000]))
    )
    for name in data.draw(st.lists(st.sampled_from([*payload, "agent_id", "agent_type"]), min_size=1, max_size=3)):
        payload[name] = data.draw(VALUE)
    check(payload)


@given(shape=st.sampled_from(SHAPES), members=st.dictionaries(NAMES, VALUE, max_size=4), data=st.data())
def test_any_value_inside_a_known_shape_is_read_or_refused(
    shape: dict[str, object], members: dict[str, object], data: st.DataObject
) -> None:
    response = shape | members | {name: data.draw(VALUE) for name in data.draw(st.sets(st.sampled_from(list(shape))))}
    common = {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "X", "tool_use_id": "t"}
    check({**common, "tool_response": response})
    batch = [{"tool_name": "X", "tool_use_id": "t", "tool_response": response}]
    check({**common, "hook_event_name": "PostToolBatch", "tool_calls": batch})


@pytest.mark.parametrize(
    "members",
    [
        {"tool_name": "mcp_" + "_context_" * (LONG // 9) + "!"},
        {"tool_response": {"type": "text", "file": {"content": "\n" * LONG, "startLine": 1 << 53}}},
        {"tool_response": {"type": "text", "file": {"content": "x", "startLine": 10**5_000}}},
        {"tool_response": {"filenames": ["x"] * LONG}},
        {"tool_response": [{"type": "text", "text": ""}] * (LONG // 8)},
        {"tool_response": {"type": "notebook", "file": {"cells": [{"outputs": [{"text": ""}] * 9}] * (LONG // 99)}}},
        {"tool_response": "\ud800" * LONG},
        {"tool_input": {"x": "\ud800" * LONG}},
        {"tool_name": "\x00" * LONG},
        {"agent_id": "\x00" * LONG, "agent_type": " " * LONG},
    ],
)
def test_a_megabyte_of_one_value_is_read(members: dict[str, object]) -> None:
    common = {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "X", "tool_use_id": "t"}
    hook_event = claude_code.read({**common, **members})
    assert hook_event.done
    assert len(hook_event.done.content.encode("utf-8")) < GROWTH * LONG


def test_deep_nesting_and_huge_numbers_are_refused() -> None:
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    common = {"session_id": "s", "tool_name": "X", "tool_use_id": "t"}
    for value in (deep, {"content": deep}, 10**5_000):
        for member in ("tool_input", "tool_response"):
            with pytest.raises(ArgumentInvalid):
                claude_code.read({**common, "hook_event_name": "PostToolUse", member: value})


def test_a_deeply_nested_result_of_our_tool_names_no_session() -> None:
    hook_event = claude_code.read(
        {
            "hook_event_name": "PostToolUse",
            "session_id": "s",
            "tool_name": "mcp__contextfold__context_branch",
            "tool_response": "[" * 1_000_000,
        }
    )
    assert (hook_event.done, hook_event.session_id) == (None, None)
