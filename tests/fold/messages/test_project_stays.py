"""The projection by example: which pairs of branch and return stay and why, and what stays where a pair folds."""

from __future__ import annotations

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
from tests.support.clauses import covers

BINDING = "claude-opus-5-5"


@every_format
def test_a_shared_turn_stays_with_its_reason(format: Format) -> None:
    both = [("b", "context_branch"), ("w", "Bash")]
    shared = [*asked(format, *both), *answered(format, ("b", named("br_1")), ("w", "done"))]
    assert reasons([*shared, *work(format, "x"), *back(format, "br_1")], format) == ["shared_turn"]
    both = [("r", "context_return"), ("w", "Bash")]
    shared = [*asked(format, *both), *answered(format, ("r", named("br_1")), ("w", "done"))]
    messages = [*branch(format, "br_1"), *work(format, "x"), *shared]
    assert reasons(messages, format) == ["shared_turn"]
    assert project(messages, format).receipt.reason == "shared_turn"


@every_format
def test_a_pair_that_stays_goes_with_the_branch_around_it(format: Format) -> None:
    shared = asked(format, ("b", "context_branch"), ("w", "Bash"))
    shared += answered(format, ("b", named("br_2")), ("w", "done"))
    messages = [*branch(format, "br_1"), *shared, *work(format, "x"), *back(format, "br_2")]
    assert reasons(messages, format) == ["shared_turn"]
    messages += back(format, "br_1")
    assert sent(messages, format) == [*branch(format, "br_1"), *back(format, "br_1")]
    assert project(messages, format).receipt.skipped == ()


@every_format
def test_a_call_without_a_result_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *asked(format, ("w", "Bash")), *say("stop"), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_without_a_call_inside_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *answered(format, ("w", "done")), *back(format, "br_1")]
    assert reasons(messages, format) == ["unbalanced"]


@every_format
def test_a_result_apart_from_its_call_stays(format: Format) -> None:
    messages = [*branch(format, "br_1"), *work(format, "x"), *asked(format, ("r", "context_return"))]
    messages += [*say("wait"), *answered(format, ("r", named("br_1")))]
    assert reasons(messages, format) == ["apart"]


def test_text_after_the_result_is_kept_with_it_and_text_before_it_makes_the_pair_stay() -> None:
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    reminder = {"type": "text", "text": "<system-reminder>x</system-reminder>"}
    head[-1]["content"].append(reminder)
    tail[-1]["content"].append(reminder)
    assert sent([*head, *work("anthropic", "w"), *tail], "anthropic") == head + tail
    tail[-1]["content"].reverse()
    assert reasons([*head, *work("anthropic", "w"), *tail], "anthropic") == ["shared_result"]


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_a_tool_of_the_provider_in_the_turn_of_the_return_makes_the_pair_stay(kind: str) -> None:
    tail = back("anthropic", "br_1")
    tail[0]["content"].insert(0, {"type": kind, "id": "s1", "name": "web_search", "input": {}})
    messages = [*branch("anthropic", "br_1"), *work("anthropic", "w"), *tail]
    assert reasons(messages, "anthropic") == ["shared_turn"]


def test_tools_of_the_provider_inside_go_with_their_turn() -> None:
    searched: Message = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        ],
    }
    head, tail = branch("anthropic", "br_1"), back("anthropic", "br_1")
    assert sent([*head, searched, *say("go on"), *tail], "anthropic") == head + tail
    items: list[Message] = [{"type": "reasoning", "summary": []}, {"type": "web_search_call", "id": "ws"}]
    head, tail = branch("openai-responses", "br_1"), back("openai-responses", "br_1")
    assert sent([*head, *items, *say("go on"), *tail], "openai-responses") == head + tail


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
        ("openai-responses", {"type": "mcp_call", "id": "i"}),
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
    elsewhere = [strange, *say("go"), *branch(format, "br_1"), *work(format, "w"), *back(format, "br_1"), strange]
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


@covers("proxy.md#laws")
def test_thinking_that_stays_is_untouched_and_one_that_is_bound_makes_the_pair_stay() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s=", "extra": {"é": [1, 2.50]}}
    head = branch("anthropic", "br_1")
    tail = [
        *asked("anthropic", ("r", "context_return"), beside=(thought,)),
        *answered("anthropic", ("r", named("br_1"))),
    ]
    messages = [*head, *work("anthropic", "w"), *tail]
    assert sent(messages, "anthropic") == head + tail
    assert project(messages, "anthropic", binds_thinking=True).messages == messages
    forgiving = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    for model, thinking, folds in (
        ("claude-sonnet-4-5-20250929", None, True),
        ("claude-opus-5", None, True),
        ("claude-opus-5-20270101", None, True),
        ("us.anthropic.claude-opus-5-5-v1:0", None, False),
        (BINDING, {"type": "adaptive"}, False),
        (BINDING, forgiving, True),
        ("claude-haiku-6", None, False),
        ("gpt-5.1", None, True),
    ):
        projected = project_body(body_of(messages, "anthropic", model=model, thinking=thinking), "anthropic")
        assert projected.changed == folds, model
        assert projected.model == model
        assert projected.receipt.reason == ("" if folds else "bound_thinking")
    around = [*branch("anthropic", "br_0"), *messages, *back("anthropic", "br_0")]
    projected = project_body(body_of(around, "anthropic", model=BINDING), "anthropic")
    assert [fold.branch_id for fold in projected.receipt.folds] == ["br_0"]
    assert projected.receipt.skipped == ()
