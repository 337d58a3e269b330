"""The projection by example: which pairs of branch and return stay and why, and what stays where a pair folds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contextfold.fold.messages import FORMATS, Format, project, project_body
from tests.fold.messages.projecting import (
    Message,
    answered,
    asked,
    back,
    body_of,
    branch,
    every_format,
    named,
    reasons,
    say,
    sent,
    work,
)

BINDING = "claude-opus-5-5"


@every_format
def test_a_shared_turn_stays_whole_and_what_is_between_still_folds(format: Format) -> None:
    both = [("b", "context_branch"), ("w", "Bash")]
    shared = [*asked(format, *both), *answered(format, ("b", named("br_1")), ("w", "done"))]
    tail = back(format, "br_1")
    assert sent([*shared, *work(format, "x"), *tail], format) == shared + tail
    both = [("w", "Bash"), ("r", "context_return")]
    returned = [*asked(format, *both), *answered(format, ("r", named("br_1")), ("w", "done"))]
    assert sent([*shared, *work(format, "x"), *returned], format) == shared + returned
    assert project([*shared, *work(format, "x"), *returned], format).receipt.reason == ""


@every_format
def test_a_branch_that_stays_goes_with_the_one_around_it(format: Format) -> None:
    late = [*asked(format, ("r", "context_return")), *say("wait", format), *answered(format, ("r", named("br_2")))]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "x"), *late]
    assert reasons(messages, format) == ["apart"]
    messages = [*branch(format, "br_1"), *branch(format, "br_2"), *work(format, "x"), *asked(format, ("y", "Bash"))]
    messages += [*back(format, "br_2"), *work(format, "z")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_call_without_a_result_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *asked(format, ("w", "Bash")), *say("stop", format), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_without_a_call_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *answered(format, ("w", "done")), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_apart_from_its_call_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *asked(format, ("r", "context_return"))]
    messages += [*say("wait", format), *answered(format, ("r", named("br_1")))]
    assert reasons(messages, format) == ["apart"]


def test_text_beside_the_results_of_our_calls_stays_with_them() -> None:
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    reminder = {"type": "text", "text": "<system-reminder>x</system-reminder>"}
    head[-1]["content"].append(reminder)
    tail[-1]["content"].append(reminder)
    assert sent([*head, *work("anthropic", "w"), *tail], "anthropic") == head + tail


@pytest.mark.parametrize(
    ("tool", "reason"),
    [("context_branch", "hosted_call"), ("s_context_fold", "unconfirmed_tool"), ("context_expand", ""), ("Read", "")],
)
def test_a_call_of_ours_that_the_provider_ran_has_a_reason(tool: str, reason: str) -> None:
    item = {"type": "mcp_call", "id": "m", "server_label": "s", "name": tool, "output": named("br_1")}
    called = {"type": "mcp_tool_use", "id": "m", "name": tool, "server_name": "s", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": []}
    said: list[Message] = [{"role": "assistant", "content": [called, result, {"type": "text", "text": "Done."}]}]
    assert reasons([*say("go"), item, *say("on")], "openai-responses") == ([reason] if reason else [])
    assert reasons([*say("go"), *said, *say("on")], "anthropic") == ([reason] if reason else [])


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_a_tool_of_the_provider_in_the_turn_of_the_return_makes_the_pair_stay(kind: str) -> None:
    tail = back("anthropic", "br_1")
    tail[0]["content"].insert(0, {"type": kind, "id": "s1", "name": "web_search", "input": {}})
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *tail]
    assert reasons(messages, "anthropic") == ["unbalanced"]


def test_tools_of_the_provider_inside_go_with_their_turn() -> None:
    searched: Message = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        ],
    }
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    words = {"type": "text", "text": "go on"}
    merged = [head[0], {**head[1], "content": [*head[1]["content"], words]}]
    assert sent([*head, searched, *say("go on"), *tail], "anthropic") == merged + tail
    items: list[Message] = [{"type": "reasoning", "summary": []}, {"type": "web_search_call", "id": "ws"}]
    head, tail = branch("openai-responses", "br_1"), back("openai-responses", "br_1")
    assert sent([*head, *items, *say("go on"), *tail], "openai-responses") == [*head, *say("go on"), *tail]


@pytest.mark.parametrize(
    "asked_for", [{"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}, None]
)
def test_a_tool_of_the_provider_whose_result_comes_in_a_later_turn_makes_the_pair_stay(asked_for: Message) -> None:
    """Code that the provider runs calls a tool of the client's, and ends only once it has that result."""
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    calling = work("anthropic", "w")
    calling[0]["content"][:0] = [asked_for] if asked_for else []
    tail[0]["content"].insert(0, {"type": "code_execution_tool_result", "tool_use_id": "s1", "content": []})
    assert reasons([*head, *calling, *tail], "anthropic") == ["unbalanced"]


@pytest.mark.parametrize(
    ("format", "strange"),
    [
        ("anthropic", {"role": "assistant", "content": [{"type": "hologram"}]}),
        ("anthropic", {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}),
        ("anthropic", {"role": "narrator", "content": "x"}),
        ("anthropic", {"role": "user"}),
        ("anthropic", {"role": "system", "content": [{"type": "tool_addition"}]}),
        ("anthropic", {"role": "system", "content": "x", "output_config": {"effort": "low"}}),
        ("openai-chat", {"role": "function", "name": "f", "content": "x"}),
        ("openai-chat", {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}),
        ("openai-chat", {"role": "assistant", "tool_calls": [{"type": "function"}]}),
        ("openai-chat", {"role": "tool", "content": "x"}),
        ("openai-responses", {"type": "item_reference", "id": "i"}),
        ("openai-responses", {"type": "mcp_approval_request", "id": "i"}),
        ("openai-responses", {"type": "shell_call", "id": "i"}),
        ("gemini", {"role": "model", "parts": [{"hologram": {}}]}),
        ("gemini", {"role": "model", "parts": []}),
        ("gemini", {"role": "user", "parts": [{"functionResponse": {}}]}),
        ("gemini", {"role": "function", "parts": [{"text": "x"}]}),
        ("openai-responses", {"type": "function_call", "name": "f"}),
        ("openai-responses", {"type": ["message"]}),
        ("openai-responses", {"role": {}, "content": "x"}),
        ("anthropic", "text"),
        ("openai-chat", 7),
        ("openai-responses", None),
        ("openai-responses", []),
    ],
)
def test_what_nobody_knows_inside_makes_the_pair_stay(format: Format, strange: Any) -> None:
    messages = [*branch(format, "br_1"), *work(format, "w"), strange, *back(format, "br_1")]
    assert reasons(messages, format) == ["unknown_content"]
    elsewhere = [
        strange,
        *say("go", format),
        *branch(format, "br_1"),
        *work(format, "w"),
        *back(format, "br_1"),
        strange,
    ]
    assert len(sent(elsewhere, format)) == len(elsewhere) - 2


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_inside_stay_where_they_are(format: Format, role: str) -> None:
    rule = {"role": role, "content": "Be brief."}
    head, tail = branch(format, "br_1"), back(format, "br_1")
    messages = [*head, *work(format, "w1"), rule, *work(format, "w2"), *tail]
    assert sent(messages, format) == [*head, rule, *tail]
    (fold,) = project(messages, format).receipt.folds
    assert (fold.messages, fold.turns, fold.first) == (4, 2, len(head))
    assert sent([*head, rule, *tail], format) == [*head, rule, *tail]
    assert project([*head, rule, *tail], format).receipt.folds == ()


def test_instructions_among_anthropics_messages_go_with_the_branch() -> None:
    rule = {"role": "system", "content": "PostToolUse hook additional context: x"}
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    messages = [*say("go"), *head, rule, *work("anthropic", "w1"), rule, *work("anthropic", "w2"), rule, *tail, rule]
    assert sent(messages, "anthropic") == [*say("go"), *head, *tail, rule]


def test_reasoning_stays_with_the_call_it_led_to() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "…"}
    head, tail = [*branch("openai-responses", "br_1")], [reasoning, *back("openai-responses", "br_1")]
    assert sent([reasoning, *head, reasoning, *work("openai-responses", "w"), *tail], "openai-responses") == [
        reasoning,
        *head,
        *tail,
    ]
    lost = [*head, *work("openai-responses", "w"), reasoning, *say("x"), *back("openai-responses", "br_1")]
    assert reasons(lost, "openai-responses") == ["unknown_content"]


def test_text_in_the_turn_of_the_return_stays_with_it() -> None:
    for format in FORMATS:
        head = branch(format, "br_1")
        tail = [*asked(format, ("r", "context_return"), text="That is it."), *answered(format, ("r", named("br_1")))]
        assert sent([*head, *work(format, "w"), *tail], format) == head + tail


FORGIVING = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def thought(text: str) -> Message:
    return {"type": "thinking", "thinking": text, "signature": "s=", "extra": {"é": [1, 2.50]}}


def thinking_return() -> list[Message]:
    call = asked("anthropic", ("r", "context_return"), beside=(thought("return"),))
    return [*call, *answered("anthropic", ("r", named("br_1")))]


@pytest.mark.parametrize(
    ("model", "thinking", "folds"),
    [
        ("claude-3-7-sonnet-20250219", None, True),
        ("claude-sonnet-4-5-20250929", None, True),
        ("claude-opus-5", None, True),
        ("claude-opus-5-20270101", None, True),
        ("us.anthropic.claude-opus-5-5-v1:0", None, False),
        (BINDING, {"type": "adaptive"}, False),
        (BINDING, FORGIVING, True),
        ("claude-haiku-6", None, False),
        ("claude-opus-4-latest", None, False),
        ("opus", None, False),
        ("gpt-5.1", None, False),
        ("gpt-5.1", FORGIVING, True),
    ],
)
def test_a_model_that_is_not_known_is_taken_for_one_that_binds_thinking(
    model: str, thinking: Message | None, folds: bool
) -> None:
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *thinking_return()]
    projected = project_body(body_of(messages, "anthropic", model=model, thinking=thinking), "anthropic")
    assert projected.changed == folds
    assert projected.model == model
    assert projected.receipt.reason == ("" if folds else "bound_thinking")
    if thinking is None:
        assert project(messages, "anthropic", model=model).changed == folds


def test_a_change_in_front_of_bound_thinking_waits_for_the_users_next_words() -> None:
    head = [*say("go"), *asked("anthropic", ("b", "context_branch"), beside=(thought("branch"),))]
    head += answered("anthropic", ("b", named("br_1")))
    inside, tail = work("anthropic", "w"), thinking_return()
    later = [*asked("anthropic", ("x", "Bash"), beside=(thought("later"),)), *answered("anthropic", ("x", "done"))]
    done = asked("anthropic", text="Done.", beside=(thought("done"),))
    running = [*head, *inside, *tail, *later]
    for messages in (running, [*running, *done]):
        projection = project(messages, "anthropic", model=BINDING)
        assert projection.messages == messages
        assert projection.receipt.reason == "bound_thinking"
    new_loop = asked("anthropic", ("y", "Bash"), beside=(thought("new"),)) + answered("anthropic", ("y", "done"))
    for more in ([], new_loop, [*new_loop, *say("and?")]):
        messages = [*running, *done, *say("next"), *more]
        bare = [
            {**message, "content": [block for block in message["content"] if block["type"] != "thinking"]}
            for message in (*tail, *later, *done)
        ]
        expected = [*head, *bare, *say("next"), *more]
        projected = project_body(body_of(messages, "anthropic", model=BINDING), "anthropic")
        assert json.loads(projected.body)["messages"] == expected
        assert project(messages, "anthropic", model=BINDING).messages == expected
        assert projected.receipt.reason == ""
        assert project_body(projected.body, "anthropic").body is projected.body


def test_a_return_without_thinking_folds_at_once_and_later_thinking_stays() -> None:
    head, tail = [*say("go"), *branch("anthropic", "br_1")], back("anthropic", "br_1")
    inside = asked("anthropic", ("w", "Bash"), beside=(thought("gone"),)) + answered("anthropic", ("w", "done"))
    later = asked("anthropic", ("x", "Bash"), beside=(thought("later"),)) + answered("anthropic", ("x", "done"))
    messages = [*head, *inside, *tail, *later]
    assert project(messages, "anthropic", model=BINDING).messages == [*head, *tail, *later]


def test_a_message_of_thinking_alone_makes_the_change_wait_for_good() -> None:
    alone = {"role": "assistant", "content": [thought("alone")]}
    messages = [*say("go"), *branch("anthropic", "br_1"), *work("anthropic", "w"), *thinking_return(), alone]
    messages += [*say("next"), *work("anthropic", "x")]
    projection = project(messages, "anthropic", model=BINDING)
    assert projection.messages == messages
    assert projection.receipt.reason == "bound_thinking"
